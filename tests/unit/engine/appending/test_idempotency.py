"""Idempotency keys, producers and `expected_head_seq`: what was seen before is not stored again."""

from __future__ import annotations

import msgspec
import pytest

from headrace.core.clock import ManualClock
from headrace.core.errors import (
    HeadMismatch,
    HeadraceError,
    InvalidRequest,
    ProducerFenced,
    ProducerGap,
    Throttled,
    TopicFull,
    TopicNotFound,
)
from headrace.engine.appending.admission import Append
from headrace.engine.appending.idempotency import KeyIndex
from headrace.engine.appending.pending_append import PendingAppend
from headrace.engine.appending.producers import ProducerClaim
from headrace.engine.engine import Engine
from headrace.storage.snapshot.key_files import KeyRow
from tests.support.engines import Start

WINDOW_MS = 120_000


def data(engine: Engine, name: str = "t") -> list[bytes]:
    found: list[bytes] = []
    cursor = 0
    while True:
        page = engine.read(name, cursor).result()
        found += [record.data for record in page.records]
        cursor = page.next_from_seq
        if page.caught_up:
            return found


# Keys


def test_a_key_is_stored_once_and_answered_as_the_first_time(engine: Engine, again: Start) -> None:
    first = engine.append("t", [1, 2], idempotency_key="k").result()
    engine.append("t", [3]).result()
    for _ in range(2):
        repeat = engine.append("t", [b"another payload"], idempotency_key="k").result()
        assert repeat.deduped and not repeat.created
        assert (repeat.first_seq, repeat.last_seq, repeat.head_seq, repeat.count) == (
            first.first_seq, first.last_seq, first.head_seq, first.count,
        )  # fmt: skip
        engine = again(engine)
    assert data(engine) == [b"1", b"2", b"3"]


def test_keys_are_of_one_topic(engine: Engine) -> None:
    engine.append("a", [1], idempotency_key="k").result()
    assert not engine.append("b", [1], idempotency_key="k").result().deduped
    assert not engine.append("a", [1], idempotency_key="K").result().deduped
    assert not engine.append("a", [1], idempotency_key="").result().deduped
    assert engine.append("a", [1], idempotency_key="").result().deduped


@pytest.mark.parametrize("checkpointed", [False, True])
def test_a_key_lives_as_long_as_the_window(
    engine: Engine, clock: ManualClock, kill: Start, checkpointed: bool
) -> None:
    engine.append("t", [1], idempotency_key="k", config={"idempotency_window_ms": 1_000}).result()
    if checkpointed:
        engine.checkpoint().result()
        engine = kill(engine)
    clock.advance(1_000)
    assert engine.append("t", [2], idempotency_key="k").result().deduped
    clock.advance(1)
    assert not engine.append("t", [3], idempotency_key="k").result().deduped
    assert engine.append("t", [4], idempotency_key="k").result().last_seq == 2
    assert data(engine) == [b"1", b"3"]


def test_two_appends_in_flight_with_one_key_are_one(engine: Engine) -> None:
    engine.put_topic("t", {"durability": "fsync"}).result()
    first, second = (engine.append("t", [n], idempotency_key="k") for n in (1, 2))
    third = engine.append("t", [3])
    engine.runtime.run()  # type: ignore[attr-defined]
    assert not first.result().deduped and second.result().deduped
    assert first.result().first_seq == second.result().first_seq == 1
    assert third.result().first_seq == 2


def test_two_creating_appends_with_one_key_are_one(engine: Engine) -> None:
    first, second = (engine.append("t", [n], idempotency_key="k") for n in (1, 2))
    engine.runtime.run()  # type: ignore[attr-defined]
    assert first.result().created and not first.result().deduped
    assert second.result().deduped and not second.result().created
    assert data(engine) == [b"1"]


def test_a_key_is_as_durable_as_its_records(engine: Engine, power_loss: Start) -> None:
    engine.append("t", [1], idempotency_key="k", config={"durability": "fsync"}).result()
    for mode in ("none", "prefix", "subset", "torn", "garbage", "all"):
        engine = power_loss(engine, mode)
        assert engine.append("t", [2], idempotency_key="k").result().deduped


def test_keys_go_with_their_topic(engine: Engine, again: Start) -> None:
    engine.append("t", [1], idempotency_key="k").result()
    engine.delete_topic("t").result()
    engine = again(engine)
    assert not engine.append("t", [2], idempotency_key="k").result().deduped
    assert engine.append("t", [2], idempotency_key="k").result().deduped


def test_a_key_outlives_its_records(engine: Engine, again: Start) -> None:
    engine.append("t", [1], idempotency_key="k").result()
    engine.delete("t", before_seq=2).result()
    engine = again(engine)
    assert engine.append("t", [2], idempotency_key="k").result().deduped
    assert data(engine) == []


def test_a_full_index_refuses_rather_than_forgets(start: Start, clock: ManualClock) -> None:
    engine = start(idempotency_entries_max=2)
    engine.append("t", [1], idempotency_key="a").result()
    engine.append("t", [2], idempotency_key="b").result()
    refused = engine.append("t", [3], idempotency_key="c")
    assert isinstance(refused.error, Throttled) and refused.error.fix
    assert refused.error.detail == {"limit": "idempotency_entries_max", "max": 2}
    assert isinstance(engine.append("new", [3], idempotency_key="c").error, Throttled)
    assert [info.topic for info in engine.topics()] == ["t"]
    assert engine.append("t", [4], idempotency_key="a").result().deduped
    assert engine.append("t", [5]).result().first_seq == 3
    clock.advance(WINDOW_MS + 1)
    assert not engine.append("t", [6], idempotency_key="c").result().deduped


def test_a_full_index_counts_what_is_in_flight(start: Start) -> None:
    engine = start(idempotency_entries_max=2)
    engine.put_topic("t").result()
    tickets = [engine.append("t", [n], idempotency_key=f"k{n}") for n in range(4)]
    engine.runtime.run()  # type: ignore[attr-defined]
    assert engine.state.keys.entries <= 2
    assert sum(ticket.error is None for ticket in tickets) == 2


def test_a_key_row_added_twice_counts_once() -> None:
    index = KeyIndex(10)
    row = KeyRow(1, b"k" * 16, 1, 1, 1, 1_000)
    for _ in range(3):
        index.add(row, 100, saved=True)
    assert index.entries == 1 and list(index.rows()) == [row]
    assert index.find(1, row.key, 100, 1_100) == row
    assert index.find(1, row.key, 100, 1_101) is None
    assert index.entries == 0


def test_a_thousand_keys_over_many_windows_leave_a_bounded_index(
    engine: Engine, clock: ManualClock
) -> None:
    engine.put_topic("t", {"idempotency_window_ms": 100}).result()
    for n in range(1_000):
        engine.append("t", [n], idempotency_key=f"k{n}").result()
        clock.advance(10)
        if n % 100 == 99:
            engine.checkpoint().result()
    assert engine.state.keys.entries < 40
    disk = engine.state.fs
    engine.append("t", [0]).result()
    engine.checkpoint().result()
    assert len([name for name in disk.listdir("meta") if name.startswith("keys-")]) <= 3


# Producers: (producer, epoch, sequence) -> accepted, duplicate, or the error

ACCEPTED, DUPLICATE = "accepted", "duplicate"
TABLE = [
    # what is known,            the claim,  the answer
    ([], (0, 0), ACCEPTED),
    ([], (7, 0), ACCEPTED),
    ([], (0, 1), ProducerGap),
    ([(5, 0)], (4, 1), ProducerFenced),
    ([(5, 0)], (4, 0), ProducerFenced),
    ([(5, 0)], (6, 1), InvalidRequest),
    ([(5, 0), (5, 1)], (6, 0), ACCEPTED),
    ([(5, 0), (5, 1)], (5, 1), DUPLICATE),
    ([(5, 0), (5, 1)], (5, 0), DUPLICATE),
    ([(5, 0), (5, 1)], (5, 2), ACCEPTED),
    ([(5, 0), (5, 1)], (5, 3), ProducerGap),
    ([(5, 0), (5, 1), (6, 0)], (5, 2), ProducerFenced),
    ([(5, 0), (5, 1), (6, 0)], (6, 1), ACCEPTED),
    ([(5, 0), (5, 1), (6, 0)], (6, 2), ProducerGap),
]


def claims(*pairs: tuple[int, int], who: str = "p") -> list[ProducerClaim]:
    return [ProducerClaim(who, epoch, sequence) for epoch, sequence in pairs]


@pytest.mark.parametrize(("known", "claim", "answer"), TABLE)
@pytest.mark.parametrize("in_flight", [False, True])
def test_the_producer_table(
    engine: Engine,
    known: list[tuple[int, int]],
    claim: tuple[int, int],
    answer: object,
    in_flight: bool,
) -> None:
    engine.put_topic("t", {"durability": "fsync"}).result()
    before = [engine.append("t", [0], producer=one) for one in claims(*known)]
    if not in_flight:
        engine.runtime.run()  # type: ignore[attr-defined]
    ticket = engine.append("t", [1], producer=claims(claim)[0])
    engine.runtime.run()  # type: ignore[attr-defined]
    assert all(t.error is None and not t.result().deduped for t in before)
    head = engine.topic("t").head_seq
    if answer == ACCEPTED:
        assert not ticket.result().deduped and head == len(known) + 1
    elif answer == DUPLICATE:
        assert ticket.result().deduped and head == len(known)
    else:
        assert type(ticket.error) is answer and head == len(known)
        assert isinstance(ticket.error, HeadraceError) and ticket.error.fix


def test_producer_errors_carry_what_a_client_needs(engine: Engine) -> None:
    for claim in claims((5, 0), (5, 1)):
        engine.append("t", [1], producer=claim).result()
    gap = engine.append("t", [1], producer=ProducerClaim("p", 5, 9)).error
    assert isinstance(gap, ProducerGap) and gap.detail == {"expected": 2, "received": 9}
    fenced = engine.append("t", [1], producer=ProducerClaim("p", 4, 0)).error
    assert isinstance(fenced, ProducerFenced) and fenced.detail == {"epoch": 5}
    unknown = engine.append("t", [1], producer=ProducerClaim("q", 0, 3)).error
    assert isinstance(unknown, ProducerGap) and unknown.detail == {"expected": 0, "received": 3}


def test_a_refused_first_claim_creates_no_topic(engine: Engine) -> None:
    assert engine.append("t", [1], producer=ProducerClaim("p", 0, 4)).error is not None
    assert engine.topics() == []


def test_producers_are_remembered_for_as_long_as_the_topic(
    engine: Engine, clock: ManualClock, again: Start
) -> None:
    for claim in claims((0, 0), (0, 1), (0, 2)):
        engine.append("t", [claim.sequence], producer=claim).result()
    engine.append("t", [9], producer=ProducerClaim("other", 3, 0)).result()
    clock.advance(10 * 365 * 86_400_000)
    for _ in range(2):
        engine = again(engine)
        repeat = engine.append("t", [9], producer=ProducerClaim("p", 0, 2)).result()
        assert repeat.deduped and (repeat.first_seq, repeat.head_seq) == (3, 3)
        assert engine.append("t", [9], producer=ProducerClaim("p", 0, 4)).error is not None
        assert engine.append("t", [9], producer=ProducerClaim("other", 2, 1)).error is not None
    assert data(engine) == [b"0", b"1", b"2", b"9"]


def test_a_topic_remembers_only_so_many_producers(start: Start, again: Start) -> None:
    engine = start(producers_per_topic_max=2)
    for who in ("a", "b"):
        engine.append("t", [who], producer=ProducerClaim(who, 0, 0)).result()
    refused = engine.append("t", ["c"], producer=ProducerClaim("c", 0, 0)).error
    assert isinstance(refused, TopicFull) and refused.fix
    assert refused.detail == {"limit": "producers_per_topic_max", "max": 2}
    # Those that are known go on, others have a topic of their own, and a repeat is still known.
    assert engine.append("t", [1], producer=ProducerClaim("a", 1, 0)).result().first_seq == 3
    assert engine.append("u", [1], producer=ProducerClaim("c", 0, 0)).result().first_seq == 1
    engine = again(engine)
    assert engine.append("t", [1], producer=ProducerClaim("a", 1, 0)).result().deduped
    assert engine.append("t", [2]).result().first_seq == 4


def test_all_topics_remember_only_so_many_producers(start: Start, again: Start) -> None:
    """Those of a topic that is gone leave room, those in flight take it, and a start counts."""
    engine = start(producers_max=3)
    for topic, who in (("t", "a"), ("t", "b"), ("u", "a")):
        engine.append(topic, [who], producer=ProducerClaim(who, 0, 0)).result()
    for _ in range(2):
        assert engine.state.producer_memory.producers == 3
        refused = engine.append("u", ["c"], producer=ProducerClaim("c", 0, 0)).error
        assert isinstance(refused, TopicFull) and "HEADRACE_PRODUCERS_MAX" in refused.fix
        assert refused.detail == {"limit": "producers_max", "max": 3}
        engine = again(engine)
    known = [engine.append("t", [n], producer=ProducerClaim("a", 0, n)) for n in (1, 2)]
    engine.delete_topic("u").result()
    coming = [engine.append("t", [n], producer=ProducerClaim(f"p{n}", 0, 0)) for n in range(2)]
    engine.runtime.run()  # type: ignore[attr-defined]
    assert [ticket.error is None for ticket in (*known, *coming)] == [True, True, True, False]
    engine.delete_topic("t").result()
    assert engine.state.producer_memory.producers == 0


def test_the_bound_on_producers_counts_those_in_flight(start: Start) -> None:
    engine = start(producers_per_topic_max=3)
    engine.put_topic("t").result()
    engine.put_topic("u").result()
    elsewhere = [engine.append("u", [n], producer=ProducerClaim(f"p{n}", 0, 0)) for n in range(3)]
    here = [engine.append("t", [n], producer=ProducerClaim(f"p{n}", 0, 0)) for n in range(5)]
    engine.runtime.run()  # type: ignore[attr-defined]
    assert [ticket.error for ticket in elsewhere] == [None] * 3
    assert [ticket.error is None for ticket in here] == [True, True, True, False, False]


def test_a_refused_append_does_not_advance_its_producer(engine: Engine) -> None:
    engine.append("t", [1], producer=ProducerClaim("p", 0, 0)).result()
    assert engine.append("t", [], producer=ProducerClaim("p", 0, 1)).error is not None
    assert (
        engine.append("t", [1], producer=ProducerClaim("p", 0, 1), expected_head_seq=9).error
        is not None
    )
    assert not engine.append("t", [2], producer=ProducerClaim("p", 0, 1)).result().deduped


def test_a_checkpoint_does_not_believe_a_claim_in_flight(start: Start, kill: Start) -> None:
    """Whatever step of a checkpoint a claim is staged in, losing it loses the claim too."""
    for steps in range(40):
        engine = start()
        engine.append("t", [b"old"]).result()
        checkpoint = engine.checkpoint()
        for _ in range(steps):
            engine.runtime.step()  # type: ignore[attr-defined]
        finished = checkpoint.done
        engine.append("t", [b"new"], producer=ProducerClaim("p", 0, 0))
        disk = engine.state.fs
        while not checkpoint.done:
            engine.runtime.step()  # type: ignore[attr-defined]
        engine.abandon()
        for mode in ("none", "all"):
            image = disk.image(disk.position, mode, 0)  # type: ignore[attr-defined]
            reopened = start(image)
            repeat = reopened.append("t", [b"new"], producer=ProducerClaim("p", 0, 0)).result()
            assert data(reopened)[-1] == b"new" and repeat.first_seq <= reopened.topic("t").head_seq
        if finished:
            return
    pytest.fail("the checkpoint never finished")


# expected_head_seq


def test_expected_head_seq(engine: Engine) -> None:
    assert engine.append("t", [1], expected_head_seq=0).result().first_seq == 1
    mismatch = engine.append("t", [2], expected_head_seq=0).error
    assert isinstance(mismatch, HeadMismatch) and mismatch.fix
    assert mismatch.detail == {"topic": "t", "head_seq": 1}
    assert engine.append("t", [2, 3], expected_head_seq=1).result().last_seq == 3
    assert data(engine) == [b"1", b"2", b"3"]


def test_expected_head_seq_of_an_absent_topic_is_zero(engine: Engine) -> None:
    mismatch = engine.append("t", [1], expected_head_seq=3).error
    assert isinstance(mismatch, HeadMismatch) and mismatch.detail["head_seq"] == 0
    assert engine.topics() == []
    missing = engine.append("t", [1], expected_head_seq=3, create=False).error
    assert isinstance(missing, TopicNotFound)


def test_of_two_writers_at_one_head_one_wins(engine: Engine) -> None:
    engine.put_topic("t", {"durability": "fsync"}).result()
    tickets = [engine.append("t", [n], expected_head_seq=0) for n in range(3)]
    engine.runtime.run()  # type: ignore[attr-defined]
    assert [t.error is None for t in tickets] == [True, False, False]


@pytest.mark.parametrize("durability", ["fsync", "disk", "ephemeral"])
def test_of_two_that_come_together_the_second_hears_of_the_head_second(
    engine: Engine, durability: str
) -> None:
    engine.put_topic("t", {"durability": durability}).result()
    how = Append(expected_head_seq=0)
    asked = [PendingAppend(engine.runtime, "t", msgspec.Raw(b"1"), how) for _ in range(2)]
    told: list[PendingAppend] = []
    engine.append_all(asked, told.extend)
    engine.runtime.run()  # type: ignore[attr-defined]
    assert [one is other for one, other in zip(told, asked, strict=True)] == [True, True]
    assert asked[0].error is None and isinstance(asked[1].error, HeadMismatch)
    assert asked[1].error.detail["head_seq"] == 1 and data(engine) == [b"1"]


def test_a_retry_by_key_wins_over_a_head_that_has_moved(engine: Engine) -> None:
    how = {"idempotency_key": "k", "expected_head_seq": 0}
    engine.append("t", [1], **how).result()  # type: ignore[arg-type]
    assert engine.append("t", [1], **how).result().deduped  # type: ignore[arg-type]
    claim = ProducerClaim("p", 0, 0)
    engine.append("t", [2], producer=claim, expected_head_seq=1).result()
    assert engine.append("t", [2], producer=claim, expected_head_seq=1).result().deduped
