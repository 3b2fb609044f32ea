"""Figures of the S2 API: by when they were counted, and no more of them than there is room for."""

from __future__ import annotations

import pytest

from headrace.core.clock import EngineClock, ManualClock
from headrace.wire.s2 import usage as module
from headrace.wire.s2.usage import HOUR_S, MINUTE_S, Usage

START = 1_700_000_000
DAY_S = 86_400


def points(usage: Usage, what: str, interval_s: int) -> list[tuple[int, int]]:
    return usage.points("my-basin", what, interval_s, 0, 1 << 32)


def test_counts_are_sums_by_minute_hour_and_day() -> None:
    clock = ManualClock(START * 1_000)
    usage = Usage(EngineClock(clock))
    for _ in range(3):
        usage.appended("my-basin", "express", 100)
        clock.advance(90 * MINUTE_S * 1_000 // 60)
    minutes = points(usage, "appends:express", MINUTE_S)
    assert [count for _, count in minutes] == [1, 1, 1]
    assert all(at % MINUTE_S == 0 for at, _ in minutes)
    hour = START - START % HOUR_S
    assert points(usage, "appended_bytes:express", HOUR_S) == [(hour, 300)]
    day = START - START % DAY_S
    assert points(usage, "appended_bytes:express", DAY_S) == [(day, 300)]


def test_a_range_has_what_was_counted_in_it() -> None:
    clock = ManualClock(START * 1_000)
    usage = Usage(EngineClock(clock))
    usage.count_op("read", "my-basin")
    clock.advance(10 * HOUR_S * 1_000)
    usage.count_op("append", "my-basin")
    usage.count_op("append", "other-basin")
    now = START + 10 * HOUR_S
    assert usage.counted("my-basin", "op:", now - HOUR_S, now) == ["op:append"]
    assert usage.counted("my-basin", "op:", START, now) == ["op:append", "op:read"]
    assert usage.basins_with("op:", START, START + 60) == ["my-basin"]
    assert usage.points("my-basin", "op:append", HOUR_S, START, START + HOUR_S) == []


def test_minutes_and_hours_are_kept_for_a_time() -> None:
    clock = ManualClock(START * 1_000)
    usage = Usage(EngineClock(clock))
    usage.count_op("read", "my-basin")
    clock.advance((module.MINUTES_KEPT + 1) * MINUTE_S * 1_000)
    usage.count_op("read", "my-basin")
    assert len(points(usage, "op:read", MINUTE_S)) == 1
    assert len(points(usage, "op:read", HOUR_S)) == 2
    clock.advance(module.HOURS_KEPT * HOUR_S * 1_000)
    usage.count_op("read", "my-basin")
    assert len(points(usage, "op:read", HOUR_S)) == 1


def test_there_are_never_more_figures_than_there_may_be(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "ENTRIES_MAX", 10)
    clock = ManualClock(START * 1_000)
    usage = Usage(EngineClock(clock))
    for hour in range(20):
        for basin in range(4):
            usage.count_op("read", f"basin-{basin}")
        held = usage.points("basin-0", "op:read", HOUR_S, 0, 1 << 32)
        assert 1 <= len(held) <= 3, hour
        now_s = START + hour * HOUR_S
        assert held[-1] == (now_s - now_s % HOUR_S, 1)  # the oldest went, and not the newest
        clock.advance(HOUR_S * 1_000)


def test_nor_in_one_hour(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    """Whoever creates and deletes basins has as many names as they like."""
    monkeypatch.setattr(module, "ENTRIES_MAX", 10)
    usage = Usage(EngineClock(ManualClock(START * 1_000)))
    for basin in range(30):
        usage.count_op("read", f"basin-{basin:02}")
        usage.held(f"basin-{basin:02}", 1)
    usage.count_op("read", "basin-00")
    assert len(usage.basins_with("", 0, 1 << 32)) == 5
    assert [count for _, count in usage.points("basin-00", "op:read", HOUR_S, 0, 1 << 32)] == [2]
    assert len([text for text in caplog.messages if "leaves out" in text]) == 2  # hours and minutes


def test_what_is_held_stands_for_its_hour() -> None:
    clock = ManualClock(START * 1_000)
    usage = Usage(EngineClock(clock))
    usage.held("my-basin", 10)
    usage.held("my-basin", 30)
    assert [size for _, size in points(usage, "storage", HOUR_S)] == [30]


def test_storage_classes_beyond_some_are_counted_together(monkeypatch: pytest.MonkeyPatch) -> None:
    """Clients name them as they like."""
    monkeypatch.setattr(module, "CLASSES_MAX", 2)
    clock = ManualClock(START * 1_000)
    usage = Usage(EngineClock(clock))
    for name in ("a", "b", "c", "d", "a"):
        usage.appended("my-basin", name, 10)
    seen = usage.counted("my-basin", module.APPENDS, START, START + HOUR_S)
    assert seen == ["appends:a", "appends:b", "appends:other"]
    assert [count for _, count in points(usage, "appends:other", HOUR_S)] == [2]
