"""How streams end: deleted, expired, or collected behind their last fork."""

from __future__ import annotations

import logging

import pytest

from headrace.core.clock import ManualClock
from headrace.core.errors import StreamDeleted, TopicNotFound
from headrace.engine.engine import Engine
from headrace.engine.streams import removal
from headrace.engine.streams.removal import SWEEP_MS
from tests.support.engines import Start
from tests.support.stream_calls import (
    close,
    code_of,
    create,
    data_of,
    fork,
    spec_of,
    write,
)


def settle(engine: Engine) -> None:
    engine.runtime.run()  # type: ignore[attr-defined]


def pass_time(engine: Engine, ms: int) -> None:
    clock = engine.runtime.clock
    assert isinstance(clock, ManualClock)
    clock.advance(ms)
    engine.runtime.run()  # type: ignore[attr-defined]


def test_a_delete_frees_the_name(engine: Engine, again: Start) -> None:
    old = create(engine, "s", b"old").info
    engine.streams.delete("s").result()
    assert code_of(engine.streams.delete("s")) == "topic_not_found"
    new = create(engine, "s", b"new", "text/html").info
    assert new.epoch > old.epoch
    engine = again(engine)
    assert data_of(engine, "s") == [b"new"]


def test_a_stream_with_forks_is_kept_for_them(engine: Engine, again: Start) -> None:
    create(engine, "s", b"1")
    fork(engine, "f", "s", records=b"2")
    engine.streams.delete("s").result()
    for _ in range(2):
        for call in (
            engine.streams.delete("s"),
            write(engine, "s", b"x"),
            close(engine, "s"),
        ):
            assert code_of(call) == "stream_deleted"
        with pytest.raises(StreamDeleted):
            engine.streams.info("s")
        with pytest.raises(TopicNotFound):
            engine.topic("s")
        assert [info.topic for info in engine.topics()] == ["f"]
        assert code_of(engine.streams.create("s", spec_of())) == "stream_conflict"
        assert data_of(engine, "f") == [b"1", b"2"]
        engine = again(engine)


def test_the_last_fork_takes_the_whole_line_with_it(engine: Engine) -> None:
    create(engine, "a", b"1")
    fork(engine, "b", "a", records=b"2")
    fork(engine, "c", "b", records=b"3")
    for name in ("a", "b"):
        engine.streams.delete(name).result()
    assert data_of(engine, "c") == [b"1", b"2", b"3"]
    engine.streams.delete("c").result()
    settle(engine)
    assert not engine.state.by_name and not engine.state.by_id
    assert create(engine, "a").created


def test_a_living_source_outlives_its_forks(engine: Engine) -> None:
    create(engine, "a", b"1")
    fork(engine, "b", "a")
    engine.streams.delete("b").result()
    settle(engine)
    assert data_of(engine, "a") == [b"1"]
    assert code_of(engine.streams.delete("a")) == ""
    assert engine.find("a") is None


def test_a_start_collects_what_a_stop_left(engine: Engine, kill: Start, clock: ManualClock) -> None:
    """The stop comes between the delete of the last fork and that of its source."""
    create(engine, "a", b"1")
    fork(engine, "b", "a")
    engine.streams.delete("a").result()
    engine._lifecycle.remove(engine.state.topic("b"))
    engine.flush()
    engine = kill(engine)
    assert engine.find("b") is None and engine.find("a") is not None
    pass_time(engine, SWEEP_MS)
    settle(engine)
    assert engine.find("a") is None


def test_a_delete_and_the_end_of_the_last_fork_at_once(engine: Engine) -> None:
    create(engine, "a", b"1")
    fork(engine, "b", "a")
    tickets = [engine.streams.delete("a"), engine.streams.delete("b")]
    assert [code_of(ticket) for ticket in tickets] == ["", ""]
    settle(engine)
    assert not engine.state.by_name


# Expiry


def test_a_stream_is_over_to_the_millisecond(engine: Engine, clock: ManualClock) -> None:
    create(engine, "idle", b"x", ttl_s=2)
    create(engine, "dated", b"x", expires_ms=clock.wall_ms() + 1_500)
    for name, ms in (("dated", 1_500), ("idle", 500)):
        clock.advance(ms - 1)
        engine.streams.info(name)
        clock.advance(1)
        with pytest.raises(TopicNotFound):
            engine.streams.info(name)
        with pytest.raises(TopicNotFound):
            engine.topic(name)
        assert code_of(write(engine, name, b"y")) == code_of(close(engine, name))
        assert code_of(engine.append(name, [b"y"])) == "topic_not_found"
        assert create(engine, name, b"new", "text/html").created
        assert data_of(engine, name) == [b"new"]


def test_a_use_begins_the_time_anew(engine: Engine, clock: ManualClock) -> None:
    create(engine, "s", ttl_s=2)
    uses = (
        lambda: engine.streams.touch("s"),
        lambda: write(engine, "s", b"x").result(),
        lambda: close(engine, "s").result(),
    )
    for use in uses:
        clock.advance(1_500)
        use()
        clock.advance(1_500)
        engine.streams.info("s")  # a look is no use
        use()
    clock.advance(2_000)
    with pytest.raises(TopicNotFound):
        engine.streams.info("s")


def test_a_start_counts_as_a_use(engine: Engine, clock: ManualClock, again: Start) -> None:
    create(engine, "s", b"x", ttl_s=2)
    clock.advance(1_900)
    engine = again(engine)
    clock.advance(1_900)
    assert data_of(engine, "s") == [b"x"]


def test_a_sweep_removes_what_is_due_and_says_so_once(
    engine: Engine, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "headrace.streams")
    for number in range(5):
        create(engine, f"s{number}", b"x", ttl_s=1)
    create(engine, "later", b"x", ttl_s=100)
    pass_time(engine, 1_000)
    pass_time(engine, SWEEP_MS)
    assert list(engine.state.by_name) == ["later"]
    pass_time(engine, SWEEP_MS)
    assert caplog.messages == ["5 streams expired"]
    assert len(engine.state.expiry) == 1


def test_a_sweep_takes_so_many_at_most(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(removal, "SWEEP_STREAMS_MAX", 2)
    for number in range(5):
        create(engine, f"s{number}", ttl_s=1)
    left = []
    pass_time(engine, 999)
    for _ in range(4):
        pass_time(engine, SWEEP_MS)
        left.append(len(engine.state.by_name))
    assert left == [3, 1, 0, 0]


def test_an_expired_source_is_kept_for_its_forks(engine: Engine) -> None:
    create(engine, "s", b"1", ttl_s=1)
    fork(engine, "f", "s", ttl_s=100)
    pass_time(engine, 1_000)
    with pytest.raises(StreamDeleted):
        engine.streams.info("s")
    pass_time(engine, SWEEP_MS)
    assert engine.state.by_name["s"].stream.deleted  # type: ignore[union-attr]
    assert data_of(engine, "f") == [b"1"]
    pass_time(engine, 100_000)
    pass_time(engine, SWEEP_MS)
    settle(engine)
    assert not engine.state.by_name
