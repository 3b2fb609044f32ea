"""A producer's repeat is answered with its own seqs while they are remembered, then without any."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from headrace.core.clock import ManualClock, SeededRandom
from headrace.core.errors import ProducerFenced
from headrace.core.settings import Settings
from headrace.engine.appending.pending_append import Appended
from headrace.engine.appending.producers import (
    PLACE,
    Place,
    ProducerClaim,
    ProducerMemory,
    TopicProducers,
)
from headrace.engine.engine import Engine
from headrace.engine.topics.config import TopicConfig
from headrace.engine.topics.topic import Topic
from headrace.storage.files.store import open_store
from headrace.storage.snapshot.state import ProducerState, TopicState
from headrace.storage.tools.restore import restore
from headrace.testing.simdisk import SimDisk
from tests.support.engines import Start

NONE = (None, None, None)


def send(
    engine: Engine, sequence: int, epoch: int = 0, who: str = "p", name: str = "t"
) -> Appended:
    """Append one record more than the number says, so that no two answers are alike."""
    records = [[who, epoch, sequence]] * (sequence + 1)
    return engine.append(name, records, producer=ProducerClaim(who, epoch, sequence)).result()


def place(answer: Appended) -> tuple[int | None, int | None, int | None]:
    return answer.first_seq, answer.last_seq, answer.count


def test_a_repeat_gets_its_own_seqs(engine: Engine, again: Start) -> None:
    """§12g: asked for an older number, the answer is about that one, over any restart."""
    first = []
    for sequence in range(5):
        first.append(send(engine, sequence))
        engine.append("t", ["between"]).result()
    for _ in range(2):
        for sequence in (3, 0, 4, 1, 2):
            repeat = send(engine, sequence)
            assert repeat.deduped and place(repeat) == place(first[sequence])
            assert repeat.head_seq == first[sequence].head_seq
            assert repeat.producer_sequence == 4
        engine = again(engine)
    assert engine.topic("t").head_seq == 20
    assert first[0].producer_sequence is None


def test_a_repeat_of_an_append_in_flight_gets_its_seqs(engine: Engine) -> None:
    """§12g: also while later numbers are in flight with it."""
    engine.put_topic("t", {"durability": "fsync"}).result()
    for sequence in range(2):
        send(engine, sequence)
    claims = [ProducerClaim("p", 0, sequence) for sequence in range(4)]
    firsts = [engine.append("t", [1], producer=claim) for claim in claims[2:]]
    repeats = [engine.append("t", [2, 2], producer=claim) for claim in claims]
    assert not any(ticket.done for ticket in firsts)
    engine.runtime.run()  # type: ignore[attr-defined]
    answers = [ticket.result() for ticket in repeats]
    assert [answer.deduped for answer in answers] == [True] * 4
    assert [place(answer)[:2] for answer in answers] == [(1, 1), (2, 3), (4, 4), (5, 5)]
    # What is stored when each is answered: a number in flight is none that is stored.
    assert [answer.producer_sequence for answer in answers] == [1, 1, 2, 3]
    repeats = engine._appender.repeats
    assert not repeats._claims


def test_seqs_beyond_the_bound_are_forgotten_and_the_number_is_not(
    start: Start, again: Start
) -> None:
    """§12g: such a repeat is `deduped`, without seqs, and never another append's."""
    engine = start(appends_per_producer_max=3)
    first = [send(engine, sequence) for sequence in range(6)]
    for _ in range(2):
        for sequence in range(6):
            repeat = send(engine, sequence)
            assert repeat.deduped and repeat.producer_sequence == 5
            assert place(repeat) == (place(first[sequence]) if sequence > 2 else NONE)
            assert repeat.head_seq == (repeat.last_seq or 21)
        engine = again(engine)


def test_one_append_of_each_producer_is_remembered_at_least(start: Start, again: Start) -> None:
    engine = start(appends_per_producer_max=1, producer_appends_max=0)
    first = [send(engine, sequence) for sequence in range(3)]
    engine = again(engine)
    assert [place(send(engine, sequence)) for sequence in range(3)] == [NONE, NONE, place(first[2])]
    assert engine.state.producer_memory.appends == 0


def test_an_epoch_begins_without_the_seqs_of_the_last(engine: Engine, again: Start) -> None:
    """§12g: a new epoch has numbers of its own."""
    for sequence in range(4):
        send(engine, sequence)
    newer = [send(engine, 0, epoch=1), send(engine, 1, epoch=1)]
    engine = again(engine)
    assert [place(send(engine, sequence, epoch=1)) for sequence in (0, 1)] == [*map(place, newer)]
    late = engine.append("t", [1], producer=ProducerClaim("p", 0, 3)).error
    assert isinstance(late, ProducerFenced)
    assert engine.state.producer_memory.appends == 1


def test_the_topic_that_was_written_to_longest_ago_forgets_first(start: Start) -> None:
    engine = start(producer_appends_max=6)
    for who, name in (("p", "t"), ("q", "t"), ("p", "u")):
        for sequence in range(3):
            send(engine, sequence, who=who, name=name)
    memory = engine.state.producer_memory
    assert memory.appends == 6
    send(engine, 3, who="p", name="u")  # makes seven: all older ones of `p` in `t` go
    assert memory.appends == 5
    assert [place(send(engine, n)) for n in range(3)] == [NONE, NONE, (4, 6, 3)]
    assert [place(send(engine, n, who="q"))[0] for n in range(3)] == [7, 8, 10]
    assert [place(send(engine, n, name="u"))[0] for n in range(4)] == [1, 2, 4, 7]
    send(engine, 3, who="q")  # `t` is the newer one now
    send(engine, 4, who="q")
    assert memory.appends == 4
    assert [place(send(engine, n, name="u"))[0] for n in range(4)] == [None, None, None, 7]


def test_a_start_counts_what_it_finds_and_keeps_to_its_bounds(start: Start, again: Start) -> None:
    engine = start()
    for who in "abc":
        for sequence in range(5):
            send(engine, sequence, who=who)
    engine = again(engine)
    assert engine.state.producer_memory.appends == 12
    engine = again(engine, producer_appends_max=9)
    assert engine.state.producer_memory.appends == 8
    assert [place(send(engine, 4, who=who))[2] for who in "abc"] == [5, 5, 5]
    engine = again(engine, appends_per_producer_max=2, producer_appends_max=9)
    send(engine, 5, who="c")
    assert [place(send(engine, n, who="c"))[2] for n in (3, 4, 5)] == [None, 5, 6]


def test_a_topic_that_is_created_again_knows_no_producer(engine: Engine, again: Start) -> None:
    for sequence in range(3):
        send(engine, sequence)
    assert engine.state.producer_memory.appends == 2
    engine.delete_topic("t").result()
    assert engine.state.producer_memory.appends == 0
    engine = again(engine)
    assert not send(engine, 0).deduped and not send(engine, 1).deduped
    assert place(send(engine, 0)) == (1, 1, 1)


def test_a_key_answers_with_its_own_seqs_after_other_appends(engine: Engine, again: Start) -> None:
    """§3.5e: keys and numbers do not stand in for each other."""
    for n in range(3):
        engine.append("t", [n] * (n + 1), idempotency_key=f"k{n}").result()
        send(engine, n)
    for _ in range(2):
        for n, first in enumerate((1, 3, 7)):
            repeat = engine.append("t", [9], idempotency_key=f"k{n}").result()
            assert repeat.deduped and place(repeat) == (first, first + n, n + 1)
            assert repeat.producer_sequence is None
        engine = again(engine)


def test_a_backup_has_the_seqs_of_older_appends(
    engine: Engine, start: Start, tmp_path: Path
) -> None:
    first = [send(engine, sequence) for sequence in range(3)]
    engine.backup(str(tmp_path)).result()
    disk = SimDisk()
    restore(open_store(str(tmp_path)), disk, SeededRandom(3), ManualClock())
    engine = start(disk)
    assert [place(send(engine, n)) for n in range(3)] == [*map(place, first)]
    assert not send(engine, 3).deduped


def test_a_number_that_is_missing_ends_what_came_before_it() -> None:
    """As after a repair that lost part of the log."""
    known = TopicProducers()
    for sequence in (0, 1, 2, 4):
        known.accept("p", ProducerState(0, sequence, 10 * sequence + 1, 3, 0), 9)
    assert known.place_of(ProducerClaim("p", 0, 4)) == Place(41, 3)
    assert [known.place_of(ProducerClaim("p", 0, n)) for n in range(4)] == [None] * 4
    assert known.place_of(ProducerClaim("p", 0, 5)) is None and known.appends == 0


def test_a_topic_of_an_older_snapshot_knows_the_newest_append() -> None:
    """Version 1 has no field for those before it."""
    newest = {"p": ProducerState(2, 7, 40, 2, 41)}
    blank = dict.fromkeys(TopicState.__struct_fields__[:18], 0)
    filled = {"name": "t", "config": b"{}", "holes": b"", "gaps": [], "producers": newest}
    state = TopicState(**{**blank, **filled}, state=b"")  # type: ignore[arg-type]
    fields = msgspec.msgpack.decode(msgspec.msgpack.encode(state))
    at = TopicState.__struct_fields__.index("older_appends")
    older = msgspec.msgpack.decode(msgspec.msgpack.encode(fields[:at]), type=TopicState)
    assert older.producers == newest and older.older_appends == {}


@pytest.mark.parametrize("producers", [1, 50])
def test_what_is_counted_is_what_is_there(producers: int) -> None:
    """The sum over all topics, whatever is accepted and forgotten."""
    memory = ProducerMemory(Settings(appends_per_producer_max=4, producer_appends_max=60))
    topics = [Topic(id, f"t{id}", 1, TopicConfig()) for id in range(3)]
    for n in range(1_000):
        topic, who = topics[n % 7 % 3], f"p{n % producers}"
        before = topic.make_producers().newest(who)
        epoch = n // 300
        sequence = before.sequence + 1 if before is not None and before.epoch == epoch else 0
        memory.accept(topic, who, ProducerState(epoch, sequence, n + 1, 1, n + 1))
        if n % 97 == 0:
            memory.forget(topic, [who])
        older = [topic.make_producers().saved()[1] for topic in topics]
        there = sum(len(places) for one in older for places in one.values()) // PLACE.size
        assert memory.appends == there <= 60
        assert all(0 < len(places) <= 3 * PLACE.size for one in older for places in one.values())
    for topic in topics:
        memory.forget_topic(topic)
    assert memory.appends == 0
