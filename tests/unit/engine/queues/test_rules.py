"""The rules of queues, one test each: who gets which job, for how long, and what is said of it."""

from __future__ import annotations

import itertools

import pytest

from headrace.core.clock import ManualClock
from headrace.core.runtime import StepRuntime
from headrace.engine.engine import Engine
from headrace.engine.routers.state import RouterOptions
from headrace.storage.block import Batch
from tests.support.engines import Start
from tests.support.queue_calls import ack, add, claim, contents, counts, make
from tests.support.seqs import seqs_of


def run(engine: Engine) -> None:
    assert isinstance(engine.runtime, StepRuntime)
    engine.runtime.run()


# H1 to H8: who gets what


def test_h1_a_job_is_claimable_iff_it_is_there_and_nobody_holds_or_delays_it(
    engine: Engine, clock: ManualClock
) -> None:
    make(engine, lease_ms=1_000)
    assert claim(engine) == []
    add(engine, 4)
    engine.delete("jobs", before_seq=2).result()
    (two,) = claim(engine)
    assert two.seq == 2
    (three,) = claim(engine)
    engine.queues.nack("jobs", "a", [three.seq], 500).result()
    assert seqs_of(claim(engine, 10)) == [4]
    assert claim(engine, 10) == []
    clock.advance(500)
    assert seqs_of(claim(engine, 10)) == [3]
    clock.advance(501)
    assert seqs_of(claim(engine, 10)) == [2, 4]


def test_h2_what_comes_back_goes_before_what_is_fresh_lowest_seq_first(
    engine: Engine, clock: ManualClock
) -> None:
    make(engine)
    add(engine, 10)
    held = claim(engine, 6)
    engine.queues.nack("jobs", "a", [held[4].seq]).result()
    engine.queues.nack("jobs", "a", [held[1].seq]).result()
    assert seqs_of(claim(engine, 4)) == [2, 5, 7, 8]


def test_h3_each_claim_counts_as_a_delivery_and_an_extend_does_not(
    engine: Engine, clock: ManualClock
) -> None:
    make(engine, lease_ms=1_000)
    add(engine, 1)
    for delivery in (1, 2, 3):
        (job,) = claim(engine)
        assert job.deliveries == delivery
        engine.queues.extend("jobs", "a", [1], 2_000).result()
        clock.advance(2_001)
    (job,) = claim(engine)
    ack(engine, [job])
    queue = engine.state.topic("jobs").queue
    assert queue is not None
    assert queue.deliveries == {}


def test_h4_a_lease_is_live_up_to_its_deadline_and_not_beyond(
    engine: Engine, clock: ManualClock
) -> None:
    make(engine, lease_ms=1_000)
    add(engine, 1)
    (job,) = claim(engine)
    assert job.deadline == engine.state.clock.now_ms() + 1_000
    clock.advance(1_000)
    assert claim(engine) == []
    assert counts(engine) == (0, 1, 0, 0)
    clock.advance(1)
    assert counts(engine) == (1, 0, 0, 0)
    assert claim(engine)[0].deliveries == 2


def test_h4_the_lease_asked_for_is_clamped(engine: Engine) -> None:
    make(engine)
    add(engine, 2)
    now = engine.state.clock.now_ms()
    assert claim(engine, lease_ms=1)[0].deadline == now + 100
    assert claim(engine, lease_ms=1 << 40)[0].deadline == now + 86_400_000


def test_h4_a_wall_clock_that_jumps_ends_no_lease(engine: Engine, clock: ManualClock) -> None:
    make(engine, lease_ms=1_000)
    add(engine, 1)
    claim(engine)
    clock.jump(3_600_000)
    assert claim(engine) == []
    clock.jump(-7_200_000)
    clock.advance(1_001)
    assert seqs_of(claim(engine)) == [1]


def test_h5_two_claimers_never_hold_the_same_job(engine: Engine) -> None:
    make(engine)
    add(engine, 50)
    taken = [seqs_of(claim(engine, 7, node)) for node in "abcdefghij"]
    flat = list(itertools.chain.from_iterable(taken))
    assert sorted(flat) == list(range(1, 51))


def test_h6_only_the_holder_acts_on_a_job_and_only_by_its_lease(
    engine: Engine, clock: ManualClock
) -> None:
    make(engine, lease_ms=1_000)
    add(engine, 3)
    first = claim(engine, 2)
    assert ack(engine, first, "b").skipped == [1, 2]
    assert engine.queues.nack("jobs", "b", [2, 1, 3]).result().skipped == [2, 1, 3]
    assert engine.queues.extend("jobs", "b", [1], 500).result().skipped == [1]
    clock.advance(1_001)
    late = ack(engine, first)
    assert (late.acked, late.skipped, late.ready) == (0, [1, 2], 3)
    again = claim(engine, 2)
    assert [job.lease_id for job in again] != [job.lease_id for job in first]
    stale = ack(engine, first)
    assert (stale.acked, stale.skipped) == (0, [1, 2])
    mixed = engine.queues.ack("jobs", "a", [2, 1], [first[1].lease_id, ""]).result()
    assert (mixed.acked, mixed.skipped) == (1, [2])
    assert ack(engine, again).skipped == [1]


def test_h6_a_seq_that_is_named_twice_counts_once(engine: Engine) -> None:
    make(engine)
    add(engine, 1)
    claim(engine)
    answer = engine.queues.ack("jobs", "a", [1, 1]).result()
    assert (answer.acked, answer.skipped) == (1, [1])


def test_h7_ready_is_what_is_neither_leased_nor_delayed(engine: Engine, clock: ManualClock) -> None:
    make(engine)
    add(engine, 10)
    assert counts(engine) == (10, 0, 0, 0)
    jobs = claim(engine, 6)
    assert counts(engine) == (4, 6, 0, 0)
    engine.queues.nack("jobs", "a", [1, 2], 1_000).result()
    assert counts(engine) == (4, 4, 2, 0)
    answer = ack(engine, jobs[2:4])
    assert (answer.acked, answer.ready, answer.in_flight) == (2, 4, 2)
    clock.advance(1_000)
    assert counts(engine) == (6, 2, 0, 0)
    assert engine.topic("jobs").count == 8


def test_h8_a_delay_holds_a_job_back_and_no_delay_does_not(
    engine: Engine, clock: ManualClock
) -> None:
    make(engine)
    add(engine, 1)
    claim(engine)
    answer = engine.queues.nack("jobs", "a", [1], 5_000).result()
    assert (answer.nacked, answer.ready, answer.in_flight) == (1, 0, 0)
    clock.advance(4_999)
    assert counts(engine) == (0, 0, 1, 0)
    clock.advance(1)
    assert counts(engine) == (1, 0, 0, 0)
    (job,) = claim(engine)
    assert job.deliveries == 2
    assert engine.queues.nack("jobs", "a", [1]).result().ready == 1
    assert claim(engine)[0].deliveries == 3


def test_a_seq_named_twice_is_extended_and_not_skipped(engine: Engine) -> None:
    make(engine)
    add(engine, 2)
    claim(engine, 2)
    answer = engine.queues.extend("jobs", "a", [1, 1, 9], 1_000).result()
    assert (answer.extended, list(answer.deadlines), answer.skipped) == (1, [1], [9])


def test_an_extend_moves_the_deadline_and_keeps_the_lease(
    engine: Engine, clock: ManualClock
) -> None:
    make(engine, lease_ms=1_000)
    add(engine, 3)
    jobs = claim(engine, 3)
    clock.advance(900)
    answer = engine.queues.extend("jobs", "a", [3, 1, 9], 1_000).result()
    now = engine.state.clock.now_ms()
    assert (answer.extended, answer.skipped) == (2, [9])
    assert answer.deadlines == {3: now + 1_000, 1: now + 1_000}
    clock.advance(500)
    assert counts(engine) == (1, 2, 0, 0)
    assert ack(engine, jobs).skipped == [2]


# H16 to H18: a queue is a topic


def test_h16_a_queue_reads_as_a_log_and_only_an_ack_changes_it(engine: Engine) -> None:
    make(engine)
    add(engine, 4)
    jobs = claim(engine, 3)
    engine.queues.nack("jobs", "a", [2], 1_000).result()
    assert contents(engine, "jobs") == [b"1", b"2", b"3", b"4"]
    ack(engine, [jobs[0], jobs[2]])
    page = engine.read("jobs").result()
    assert [record.data for record in page.records] == [b"2", b"4"]
    assert page.tombstone is None


@pytest.mark.parametrize("durability", ["ephemeral", "memory", "disk", "fsync"])
def test_h17_an_ack_of_many_is_one_entry_of_the_log(engine: Engine, durability: str) -> None:
    make(engine, durability=durability)
    add(engine, 1_000)
    jobs = claim(engine, 1_000)
    run(engine)
    (shard,) = engine.state.shards
    frames, syncs = shard.frames_total, shard.syncs_total
    assert ack(engine, jobs).acked == 1_000
    logged = durability != "ephemeral"
    assert shard.frames_total - frames == logged
    assert shard.syncs_total - syncs == (durability == "fsync")
    assert engine.topic("jobs").count == 0


def test_h17_a_claim_of_many_with_durable_leases_is_one_entry(engine: Engine) -> None:
    make(engine, durability="fsync", leases_durable=True)
    add(engine, 100)
    (shard,) = engine.state.shards
    frames, syncs = shard.frames_total, shard.syncs_total
    jobs = claim(engine, 100)
    assert (shard.frames_total - frames, shard.syncs_total - syncs) == (1, 1)
    engine.queues.extend("jobs", "a", seqs_of(jobs), 5_000).result()
    assert shard.frames_total - frames == 2
    engine.queues.nack("jobs", "a", seqs_of(jobs), 5_000).result()
    assert (shard.frames_total - frames, shard.syncs_total - syncs) == (3, 3)


def test_h17_an_ack_of_an_fsync_queue_is_answered_after_the_sync(engine: Engine) -> None:
    make(engine, durability="fsync")
    add(engine, 2)
    jobs = claim(engine, 2)
    ticket = engine.queues.ack("jobs", "a", seqs_of(jobs))
    engine.flush()
    assert not ticket.done
    assert counts(engine) == (0, 0, 0, 0)
    assert engine.topic("jobs").count == 2
    assert ticket.result().acked == 2
    assert engine.topic("jobs").count == 0


def test_h18_a_job_that_a_cap_or_a_ttl_takes_leaves_the_queue(
    engine: Engine, clock: ManualClock
) -> None:
    make(engine, cap_records=4, ttl_ms=10_000)
    add(engine, 4)
    jobs = claim(engine, 2)
    engine.queues.nack("jobs", "a", [2], 50_000).result()
    assert counts(engine) == (2, 1, 1, 0)
    add(engine, 1, first=5)
    assert counts(engine) == (3, 0, 1, 0)
    add(engine, 1, first=6)
    assert counts(engine) == (4, 0, 0, 0)
    assert ack(engine, jobs).skipped == [1, 2]
    claim(engine, 4)
    clock.advance(10_001)
    assert counts(engine) == (0, 0, 0, 0)
    queue = engine.state.topic("jobs").queue
    assert queue is not None
    assert (queue.deliveries, queue.leases, list(queue.held)) == ({}, {}, [])


def test_h18_a_job_that_is_deleted_leaves_the_queue(engine: Engine) -> None:
    make(engine)
    add(engine, 6, tags=["x", "y"] * 3)
    jobs = claim(engine, 4)
    engine.queues.nack("jobs", "a", [3]).result()
    engine.delete("jobs", match="x").result()
    assert counts(engine) == (1, 2, 0, 0)
    assert ack(engine, jobs).skipped == [1, 3]
    assert seqs_of(claim(engine, 9)) == [6]


@pytest.mark.parametrize("durability", ["disk", "fsync"])
def test_what_routers_are_about_to_bring_can_be_claimed(
    engine: Engine, again: Start, durability: str
) -> None:
    make(engine, durability=durability, leases_durable=True)
    engine.routers.put("r", RouterOptions(source="source", dest="jobs")).result()
    engine.append("source", Batch([b"1", b"2", b"3"])).result()
    jobs = claim(engine, 2)
    assert [job.data for job in jobs] == [b"1", b"2"]
    assert ack(engine, jobs[:1]).acked == 1
    run(engine)
    engine = again(engine)
    assert counts(engine) == (1, 1, 0, 0)
    assert ack(engine, jobs[1:]).acked == 1
    assert [job.data for job in claim(engine, 9)] == [b"3"]
