"""The oracle itself: what it accepts after a crash, and each thing it must never accept."""

from __future__ import annotations

import pytest

from headrace.engine.topics.config import TopicConfig
from tests.harness.events import (
    Answer,
    Answered,
    Event,
    Invoked,
    Loss,
    Quiet,
    TopicView,
    Violation,
)
from tests.harness.model import AppendCall, DeleteCall, NewRecord, PutCall, Rec, config_of
from tests.harness.oracle import Oracle

NOW = 1_000
FSYNC, DISK, EPHEMERAL = (config_of(durability=d) for d in ("fsync", "disk", "ephemeral"))


def appended(
    op: int, first: int, count: int, *, acked: bool = True, name: str = "t"
) -> list[Event]:
    records = tuple(
        NewRecord(b"%d" % seq, "even" if seq % 2 == 0 else None)
        for seq in range(first, first + count)
    )
    events: list[Event] = [Invoked(op, AppendCall(name, records), NOW)]
    if acked:
        events.append(Answered(op, Answer(1, first, count, first + count - 1, False, NOW)))
    return events


def created(config: TopicConfig, name: str = "t", epoch: int = 1) -> list[Event]:
    return [Invoked(0, PutCall(name, config), NOW), Answered(0, Answer(epoch))]


def view(
    config: TopicConfig,
    seqs: dict[int, int],
    head: int,
    crashed: tuple[tuple[int, int], ...] = (),
    name: str = "t",
) -> TopicView:
    """`seqs`: each seq with the first seq of its append."""
    records = {
        seq: Rec(b"%d" % seq, "even" if seq % 2 == 0 else None, None, None, NOW, first)
        for seq, first in seqs.items()
    }
    size = sum(rec.size for rec in records.values())
    earliest = min(seqs, default=head + 1)
    return TopicView(name, 1, head, earliest, len(seqs), size, config, records, list(crashed), 0)


def judge(events: list[Event], seen: TopicView | None, loss: Loss = "power") -> None:
    oracle = Oracle()
    for event in events:
        oracle.feed(event)
    oracle.check({seen.name: seen} if seen is not None else {}, loss, NOW)


THREE = {1: 1, 2: 1, 3: 3}
ACKED = [*appended(1, 1, 2), *appended(2, 3, 1)]


def test_what_a_crash_may_leave() -> None:
    judge([*created(FSYNC), *ACKED], view(FSYNC, THREE, 3))
    judge([*created(DISK), *ACKED], view(DISK, {1: 1, 2: 1}, 258, ((3, 258),)))
    judge([*created(DISK), *ACKED], view(DISK, THREE, 3), "kill")
    judge([*created(EPHEMERAL), *ACKED], view(EPHEMERAL, {}, 258, ((1, 258),)), "kill")
    judge([*created(FSYNC), *appended(1, 1, 2, acked=False)], view(FSYNC, {}, 0))
    judge([*created(FSYNC), *appended(1, 1, 2, acked=False)], view(FSYNC, {1: 1, 2: 1}, 2))
    judge(created(FSYNC)[:1], None)


@pytest.mark.parametrize(
    ("events", "seen", "loss", "reason"),
    [
        ([*created(FSYNC), *ACKED], view(FSYNC, {1: 1, 2: 1}, 2), "power", "was acknowledged"),
        ([*created(DISK), *ACKED], view(DISK, {1: 1, 2: 1}, 2), "kill", "was acknowledged"),
        ([*created(DISK), *ACKED], view(DISK, {1: 1, 2: 1}, 2), "power", "was acknowledged"),
        (
            [*created(DISK), *ACKED, Quiet()],
            view(DISK, {1: 1, 2: 1}, 258, ((3, 258),)),
            "power",
            "are missing",
        ),
        ([*created(DISK), *ACKED], view(DISK, {1: 1, 2: 1}, 258), "power", "announced as lost"),
        ([*created(DISK), *ACKED], view(DISK, THREE, 258, ((4, 258),)), "kill", "3 was due"),
        ([*created(FSYNC), *ACKED], view(FSYNC, {**THREE, 4: 4}, 4), "power", "3 was due"),
        (
            [*created(FSYNC), *appended(1, 1, 2, acked=False)],
            view(FSYNC, {1: 1}, 1),
            "power",
            "was due",
        ),
        ([*created(FSYNC), *ACKED], None, "power", "is missing"),
        ([], view(FSYNC, {}, 0), "power", "should not be there"),
        ([*created(FSYNC), *ACKED], view(DISK, THREE, 3), "power", "config"),
    ],
)
def test_what_a_crash_must_not_leave(
    events: list[Event], seen: TopicView | None, loss: Loss, reason: str
) -> None:
    with pytest.raises(Violation, match=reason):
        judge(events, seen, loss)


def test_a_delete_stays() -> None:
    delete: list[Event] = [
        Invoked(3, DeleteCall("t", match="even"), NOW),
        Answered(3, Answer(0, 0, 1, 3)),
    ]
    events = [*created(FSYNC), *ACKED, *delete]
    judge(events, view(FSYNC, {1: 1, 3: 3}, 3))
    with pytest.raises(Violation, match="should not be there"):
        judge(events, view(FSYNC, THREE, 3))


def test_topics_of_one_log_end_at_one_point() -> None:
    oracle = Oracle()
    for event in (
        *created(DISK, "a"),
        *created(DISK, "b", 2),
        *appended(1, 1, 1, name="a"),
        Invoked(2, AppendCall("b", (NewRecord(b"1"),)), NOW),
        Answered(2, Answer(2, 1, 1, 1, False, NOW)),
    ):
        oracle.feed(event)
    lost = view(DISK, {}, 256, ((1, 256),), "a")
    there = view(DISK, {1: 1}, 256, ((2, 256),), "b")._replace(epoch=2)
    with pytest.raises(Violation, match="logged before it"):
        oracle.check({"a": lost, "b": there}, "power", NOW)


def test_what_was_seen_has_to_stay() -> None:
    oracle = Oracle()
    for event in (*created(DISK), *ACKED):
        oracle.feed(event)
    seen = {"t": view(DISK, {1: 1, 2: 1}, 258, ((3, 258),))}
    later = oracle.after(seen, oracle.check(seen, "power", NOW), "power")
    later.check(seen, "power", NOW)
    with pytest.raises(Violation, match="are missing"):
        later.check({"t": view(DISK, {}, 258, ((1, 258),))}, "power", NOW)
    with pytest.raises(Violation, match="head"):
        later.check({"t": view(DISK, {1: 1, 2: 1}, 2)}, "power", NOW)


def test_answers_are_judged_too() -> None:
    for answer, reason in (
        (Answer(1, 2, 2, 3, False, NOW), "was due"),
        (Answer(1, 1, 2, 2, False, NOW - 1), "was due"),
    ):
        with pytest.raises(Violation, match=reason):
            judge([*created(FSYNC), *appended(1, 1, 2, acked=False), Answered(1, answer)], None)
    two = [*created(FSYNC), *appended(1, 1, 1, acked=False), *appended(2, 2, 1)]
    with pytest.raises(Violation, match="answered before"):
        judge(two, None)
