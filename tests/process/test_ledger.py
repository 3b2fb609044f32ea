"""The ledger notices each kind of broken promise, or the other tests here prove nothing."""

from __future__ import annotations

import copy
from collections.abc import Callable

import pytest

from headrace.api.records import DeleteResult
from headrace.core.clock import ManualClock, SeededRandom
from headrace.core.runtime import StepRuntime
from headrace.engine.appending.pending_append import Appended
from headrace.engine.engine import Engine
from headrace.storage.block import Record
from headrace.testing.simdisk import SimDisk
from tests.harness.ledger import Acked, Ledger, Violation
from tests.harness.traffic import (
    APPEND,
    CAPPED,
    DELETE_BEFORE,
    DELETE_TAG,
    DROP,
    TopicDump,
    Traffic,
    begin,
    dump,
    place_of,
    small_policy,
    small_settings,
)

SEED = 21
OPS = 300
Found = dict[str, TopicDump]


def opened(disk: SimDisk, clock: ManualClock) -> Engine:
    engine = Engine(
        disk,
        StepRuntime(clock),
        small_settings(),
        random=SeededRandom(1),
        policy=small_policy(),
    )
    engine.recover()
    return engine


@pytest.fixture(scope="module")
def played() -> tuple[Ledger, Found]:
    """What was acknowledged, with the last append of each topic unanswered, and what is there."""
    disk, clock, ledger = SimDisk(), ManualClock(), Ledger(SEED)
    engine, traffic = opened(disk, clock), Traffic(SEED, 0)
    last = {traffic[n].topic: n for n in range(OPS) if traffic[n].kind == APPEND}
    for number in range(OPS):
        op = traffic[number]
        if number > last.get(op.topic, OPS):
            continue
        place = place_of(engine, op)
        ticket = begin(engine, op, place)
        ledger.began(op, place)
        engine.runtime.run()
        clock.advance(3)
        if ticket.error is not None:
            ledger.refused(op, unknown=False)
            continue
        if number == last.get(op.topic):
            continue  # nobody heard the answer
        got = ticket.result()
        if op.kind == APPEND:
            assert isinstance(got, Appended)
            ledger.appended(op, Acked(got.epoch, got.first_seq, got.last_seq, got.ts, got.deduped))
        elif op.kind in (DELETE_BEFORE, DELETE_TAG):
            assert isinstance(got, DeleteResult)
            ledger.deleted(op, got.deleted)
        elif op.kind == DROP:
            ledger.dropped(op, got.deleted)
    engine.abandon()
    return ledger, dump(opened(disk, clock))


def test_what_is_right_is_accepted(played: tuple[Ledger, Found]) -> None:
    ledger, found = copy.deepcopy(played)
    ledger.compare(found)
    assert ledger.unsettled_kept > 0
    ledger.compare(found)  # and from now on it is what has to be there


def recounted(topic: TopicDump, records: list[Record]) -> None:
    """Change the records of a topic so that it still agrees with itself."""
    topic.records = records
    topic.count = len(records)
    topic.bytes = sum(len(record.data) + len(record.meta or b"") for record in records)
    topic.earliest = records[0].seq if records else topic.head + 1


def lose_one(found: Found) -> None:
    recounted(found["ledger"], found["ledger"].records[:3] + found["ledger"].records[4:])


def lose_the_oldest(found: Found) -> None:
    recounted(found["orders"], found["orders"].records[1:])


def lose_the_head(found: Found) -> None:
    topic = found["events"]
    topic.head -= 1
    recounted(topic, topic.records[:-1])


def lose_a_topic(found: Found) -> None:
    del found["clicks"]


def change_data(found: Found) -> None:
    records = found["audit"].records
    records[2] = records[2]._replace(data=records[2].data.replace(b'"pad"', b'"pat"'))


def change_data_of_equal_shape(found: Found) -> None:
    records = found["audit"].records
    one, other = records[1], records[2]
    recounted(
        found["audit"],
        [records[0], one._replace(data=other.data), other._replace(data=one.data), *records[3:]],
    )


def change_ts(found: Found) -> None:
    records = found["ledger"].records
    records[-1] = records[-1]._replace(ts=records[-1].ts + 1)


def change_tag(found: Found) -> None:
    records = found["orders"].records
    records[1] = records[1]._replace(tag="other")


def revive(found: Found) -> None:
    topic = found["orders"]
    recounted(topic, [topic.records[0]._replace(seq=topic.records[0].seq - 1), *topic.records])


def invent(found: Found) -> None:
    topic = found["events"]
    topic.head += 1
    newest = topic.records[-1]
    data = newest.data.replace(b'"from":"0.', b'"from":"9.')
    recounted(topic, [*topic.records, newest._replace(seq=newest.seq + 1, data=data)])


def store_twice(found: Found) -> None:
    topic = found["events"]
    topic.head += 1
    newest = topic.records[-1]
    recounted(topic, [*topic.records, newest._replace(seq=newest.seq + 1)])


def jump_ahead(found: Found) -> None:
    found["ledger"].head += 256


def announce(found: Found) -> None:
    found["clicks"].lost.append((1, 1, "crash"))


def miscount(found: Found) -> None:
    found["clicks"].count += 1


def mismeasure(found: Found) -> None:
    found["clicks"].bytes += 1


def evict_too_much(found: Found) -> None:
    recounted(found[CAPPED], found[CAPPED].records[1:])


DAMAGES: list[Callable[[Found], None]] = [
    lose_one,
    lose_the_oldest,
    lose_the_head,
    lose_a_topic,
    change_data,
    change_data_of_equal_shape,
    change_ts,
    change_tag,
    revive,
    invent,
    store_twice,
    jump_ahead,
    announce,
    miscount,
    mismeasure,
    evict_too_much,
]


@pytest.mark.parametrize("damage", DAMAGES, ids=lambda damage: damage.__name__)
def test_what_is_wrong_is_noticed(
    damage: Callable[[Found], None], played: tuple[Ledger, Found]
) -> None:
    ledger, found = copy.deepcopy(played)
    damage(found)
    with pytest.raises(Violation, match=f"seed {SEED}, topic "):
        ledger.compare(found)


def test_half_a_batch_is_noticed(played: tuple[Ledger, Found]) -> None:
    ledger, found = copy.deepcopy(played)
    by_append: dict[str, int] = {}
    for name, topic in found.items():
        if name != CAPPED and len(topic.records) > 1:
            newest = topic.records[-1]
            if newest.append_first_seq < newest.seq:
                by_append[name] = newest.seq
    assert by_append, "no topic ends with a batch of several records"
    for name in by_append:
        ledger, found = copy.deepcopy(played)
        topic = found[name]
        topic.head -= 1
        recounted(topic, topic.records[:-1])
        with pytest.raises(Violation):
            ledger.compare(found)


def test_wrong_answers_are_noticed() -> None:
    ledger = Ledger(SEED)
    appends = [op for op in map(Traffic(SEED, 0).__getitem__, range(200)) if op.topic == "ledger"]
    first, second = [op for op in appends if op.kind == APPEND][:2]
    ledger.began(first)
    ledger.appended(first, Acked(1, 1, first.rows, 5))
    ledger.began(second)
    skipping = first.rows + 2
    with pytest.raises(Violation, match="seqs skip"):
        ledger.appended(second, Acked(1, skipping, skipping + second.rows - 1, 6))


def test_what_may_have_been_fenced_off_is_not_sent_again() -> None:
    ledger = Ledger(SEED)
    claimed = {run: next(op for op in map(Traffic(SEED, run).__getitem__, range(OPS)) if op.claim)
               for run in (1, 2)}  # fmt: skip
    first = claimed[1]
    ledger.began(first)
    ledger.appended(first, Acked(1, 1, first.rows, 5, False))
    assert ledger.to_retry(list) == [first.name]
    # A newer run was killed with an append under way, and no start has told yet what became of it.
    ledger.began(claimed[2])
    assert ledger.to_retry(list) == []
