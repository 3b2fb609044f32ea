"""What a queue refuses, what bounds it, and jobs that lie in files."""

from __future__ import annotations

import pytest
from pyroaring import BitMap64

from headrace.core.clock import ManualClock
from headrace.core.errors import (
    BatchTooLarge,
    InvalidRequest,
    NotAQueue,
    ShuttingDown,
    Throttled,
    TopicNotFound,
)
from headrace.engine.engine import Engine
from headrace.engine.queues.jobs_out import COUNT_AGAIN_MS
from headrace.storage.block import Batch
from headrace.storage.files.store import DirectoryStore
from headrace.testing.simdisk import SimDisk
from tests.support.engines import Start
from tests.support.queue_calls import ack, add, claim, counts, make
from tests.support.seqs import seqs_of


def test_what_is_delivered_and_not_done_is_bounded(start: Start) -> None:
    engine = start(jobs_out_max=3)
    make(engine)
    add(engine, 5)
    jobs = claim(engine, 5)
    assert seqs_of(jobs) == [1, 2, 3]
    with pytest.raises(Throttled) as refused:
        engine.queues.claim("jobs", "b").result()
    assert refused.value.detail == {"limit": "jobs_out_max", "max": 3}
    engine.queues.nack("jobs", "a", [2]).result()
    assert seqs_of(claim(engine, 5)) == [2]
    ack(engine, jobs[:1])
    assert seqs_of(claim(engine, 5)) == [4]


def test_what_all_queues_have_delivered_is_bounded(start: Start, clock: ManualClock) -> None:
    engine = start(all_jobs_out_max=4)
    for name in ("jobs", "more"):
        make(engine, name)
        add(engine, 5, name)
    jobs = claim(engine, 3)
    assert len(engine.queues.claim("more", "b", 5).result().jobs) == 1
    clock.advance(COUNT_AGAIN_MS)
    for name in ("jobs", "more"):
        with pytest.raises(Throttled) as refused:
            engine.queues.claim(name, "b").result()
        assert refused.value.detail == {"limit": "all_jobs_out_max", "max": 4}
    ack(engine, jobs)
    clock.advance(COUNT_AGAIN_MS)
    assert len(engine.queues.claim("more", "b", 5).result().jobs) == 3


def test_the_bytes_of_a_claim_are_bounded_but_one_job_always_fits(start: Start) -> None:
    engine = start(claim_bytes_max=100)
    make(engine)
    for size in (60, 40, 1, 500, 10):
        engine.append("jobs", Batch([b"x" * size])).result()
    taken = [seqs_of(claim(engine, 10)) for _ in range(4)]
    assert taken == [[1, 2], [3], [4], [5]]
    engine.append("jobs", Batch([b"x" * 60, b"x" * 60, b"x" * 30])).result()
    assert [seqs_of(claim(engine, 10)) for _ in range(3)] == [[6], [7, 8], []]
    assert counts(engine) == (0, 8, 0, 0)


def test_calls_that_make_no_sense_are_refused(engine: Engine) -> None:
    make(engine)
    engine.append("log", [1]).result()
    queues = engine.queues
    for call in (
        lambda: queues.claim("nowhere", "a"),
        lambda: queues.ack("nowhere", "a", []),
        lambda: queues.nack("nowhere", "a", []),
        lambda: queues.extend("nowhere", "a", [], 100),
    ):
        with pytest.raises(TopicNotFound):
            call().result()
    for call in (
        lambda: queues.claim("log", ""),
        lambda: queues.ack("log", "a", []),
        lambda: queues.nack("log", "a", []),
        lambda: queues.extend("log", "a", [], 100),
    ):
        with pytest.raises(NotAQueue) as refused:
            call().result()
        assert refused.value.detail == {"topic": "log"}
    for call in (
        lambda: queues.claim("jobs", ""),
        lambda: queues.claim("jobs", "n" * 129),
        lambda: queues.claim("jobs", "a", -1),
        lambda: queues.ack("jobs", "", []),
        lambda: queues.ack("jobs", "a", [1], []),
        lambda: queues.ack("jobs", "a", [1], ["lease_xyz"]),
        lambda: queues.ack("nowhere", "a", [1], ["nonsense"]),
        lambda: queues.nack("jobs", "a", [1], -1),
        lambda: queues.extend("jobs", "a", [1], -1),
    ):
        with pytest.raises(InvalidRequest):
            call().result()
    with pytest.raises(BatchTooLarge) as large:
        queues.ack("jobs", "a", [1] * 1_001).result()
    assert large.value.detail == {"seqs": 1_001, "max": 1_000}
    assert queues.ack("jobs", "a", []).result().acked == 0


def test_a_claim_asks_for_at_least_one_and_at_most_a_thousand(engine: Engine) -> None:
    make(engine)
    add(engine, 1_100)
    assert len(claim(engine, 0)) == 1
    assert len(claim(engine, 5_000)) == 1_000


def test_jobs_say_what_they_are(engine: Engine) -> None:
    make(engine)
    engine.append("jobs", Batch([b"1", b"2"], tags=["t", None], metas=[None, b'{"a":1}'])).result()
    one, two = claim(engine, 2)
    now = engine.state.clock.now_ms()
    assert (one.data, one.tag, one.meta, one.ts) == (b"1", "t", None, now)
    assert (two.data, two.tag, two.meta) == (b"2", None, b'{"a":1}')
    assert one.lease_id != two.lease_id
    assert one.lease_id.startswith("lease_")


def test_a_job_nobody_claimed_costs_nothing(engine: Engine) -> None:
    make(engine)
    add(engine, 5_000)
    assert engine.state.topic("jobs").queue is None
    claim(engine, 3)
    queue = engine.state.topic("jobs").queue
    assert queue is not None
    assert (len(queue.deliveries), len(queue.leases), len(queue.held)) == (3, 3, 3)
    assert (len(queue.free), len(queue.spent), len(queue.busy)) == (0, 0, 0)


def test_leases_that_are_over_are_not_kept_until_their_deadline(engine: Engine) -> None:
    make(engine, lease_ms=86_400_000)
    add(engine, 1_000)
    for _ in range(500):
        ack(engine, claim(engine))
        (job,) = claim(engine)
        engine.queues.nack("jobs", "a", [job.seq], 86_400_000).result()
    queue = engine.state.topic("jobs").queue
    assert queue is not None
    assert len(queue._grant_deadlines) < 200
    engine.delete("jobs", before_seq=1_001).result()
    assert len(queue._delay_deadlines) < 200
    assert (queue.delays, queue.deliveries) == ({}, {})


def test_jobs_of_a_claim_that_are_done_are_not_kept_with_the_one_that_is_not(
    engine: Engine,
) -> None:
    make(engine)
    add(engine, 2_000)
    ack(engine, claim(engine, 1_000)[1:])
    queue = engine.state.topic("jobs").queue
    assert queue is not None
    (grant,) = queue.leases.values()
    assert len(grant.seqs) < 200
    jobs = claim(engine, 1_000)
    engine.queues.nack("jobs", "a", seqs_of(jobs), 1_000).result()
    engine.delete("jobs", before_seq=2_000).result()
    (delay,) = queue.delays.values()
    assert len(delay.seqs) < 200


def test_what_was_only_passed_by_counts_towards_the_bound(start: Start) -> None:
    engine = start(jobs_out_max=10)
    make(engine)
    add(engine, 50)
    jobs = claim(engine, 5)
    queue = engine.state.topic("jobs").queue
    assert queue is not None
    queue.reserve(BitMap64([40]), engine.state.topic("jobs").span)
    assert seqs_of(claim(engine, 50)) == [6, 7, 8, 9, 10]
    with pytest.raises(Throttled):
        engine.queues.claim("jobs", "b").result()
    engine.queues.nack("jobs", "a", [7, 3]).result()
    assert seqs_of(claim(engine, 50)) == [3, 7]
    ack(engine, jobs[:2])
    engine.queues.nack("jobs", "a", [9]).result()
    assert seqs_of(claim(engine, 2)) == [9, 11]
    assert seqs_of(claim(engine, 50)) == [12]


@pytest.mark.parametrize("most", [0, 2])
def test_many_jobs_that_were_passed_by_are_free_at_once(engine: Engine, most: int) -> None:
    make(engine, max_deliveries=most, dead_letter="dead")
    add(engine, 3)
    claim(engine, 3)
    queue = engine.state.topic("jobs").queue
    assert queue is not None
    queue.deliveries[2] = 2
    queue.deliveries[9] = 5
    queue.set_free(BitMap64(range(2, 1_000_000)))
    assert list(queue.spent) == ([2, 9] if most else [])
    assert len(queue.free) + len(queue.spent) == 999_998


def test_a_claim_is_refused_where_its_entry_has_no_room_and_by_an_engine_that_closes(
    start: Start,
) -> None:
    engine = start()
    make(engine)
    add(engine, 2)
    (shard,) = engine.state.shards
    make(engine, "fleeting", durability="ephemeral")
    add(engine, 1, "fleeting")
    most, shard.pending_bytes_max = shard.pending_bytes_max, 0
    assert seqs_of(claim(engine, name="fleeting")) == [1]
    with pytest.raises(Throttled) as refused:
        engine.queues.claim("jobs", "a").result()
    assert refused.value.detail == {"limit": "wal_pending_bytes_max", "max": 0}
    shard.pending_bytes_max = most
    assert seqs_of(claim(engine)) == [1]
    engine.state.closing = True
    with pytest.raises(ShuttingDown):
        engine.queues.claim("jobs", "a").result()


def test_counts_for_somebody_who_only_looks_take_no_job_away(
    engine: Engine, clock: ManualClock
) -> None:
    make(engine, ttl_ms=1_000)
    add(engine, 3)
    clock.advance(1_001)
    topic = engine.state.topic("jobs")
    assert engine.queues.counts_of(topic).ready == 3
    assert topic.count == 3
    assert engine.queues.counts("jobs").ready == 0
    assert topic.count == 0


# Sealed jobs


def test_a_job_that_does_not_fit_is_not_overtaken_by_those_in_memory(start: Start) -> None:
    engine = start(claim_bytes_max=100)
    make(engine)
    engine.append("jobs", Batch([b"x" * 60, b"x" * 90])).result()
    engine.checkpoint().result()
    engine.state.forget_blocks(engine.state.topic("jobs"))
    engine.append("jobs", Batch([b"x" * 10])).result()
    assert [seqs_of(claim(engine, 3)) for _ in range(2)] == [[1], [2, 3]]


def test_jobs_here_and_there_in_many_files_are_read_in_order(engine: Engine) -> None:
    make(engine)
    for first in range(1, 301, 30):
        add(engine, 30, first=first)
        engine.checkpoint().result()
    engine.state.forget_blocks(engine.state.topic("jobs"))
    add(engine, 10, first=301)
    jobs = claim(engine, 310)
    engine.queues.nack("jobs", "a", seqs_of(jobs)[::7]).result()
    again = claim(engine, 310)
    assert seqs_of(again) == list(range(1, 311, 7))
    assert [job.data for job in again] == [b"%d" % seq for seq in range(1, 311, 7)]


def test_jobs_in_files_are_claimed_and_acknowledged(start: Start) -> None:
    engine = start(read_cache_bytes=0)
    make(engine)
    for first in range(1, 41, 10):
        add(engine, 10, first=first)
    engine.checkpoint().result()
    engine.state.forget_blocks(engine.state.topic("jobs"))
    add(engine, 10, first=41)
    engine.delete("jobs", before_seq=4).result()
    disk = engine.state.fs
    disk.cached = False
    jobs = claim(engine, 43)
    assert [job.data for job in jobs] == [b"%d" % n for n in range(4, 47)]
    engine.queues.nack("jobs", "a", [8, 20, 45]).result()
    again = claim(engine, 5)
    assert seqs_of(again) == [8, 20, 45, 47, 48]
    assert [job.data for job in again] == [b"8", b"20", b"45", b"47", b"48"]
    keep = [job for job in jobs if job.seq not in (8, 20, 45)]
    assert ack(engine, keep).acked == 40
    assert counts(engine) == (2, 5, 0, 0)


def test_a_job_that_is_deleted_while_files_are_read_is_not_delivered(start: Start) -> None:
    engine = start(read_cache_bytes=0)
    make(engine, max_deliveries=1, dead_letter="dead")
    add(engine, 4)
    engine.checkpoint().result()
    engine.state.forget_blocks(engine.state.topic("jobs"))
    engine.state.fs.cached = False
    deleting = engine.delete("jobs", before_seq=3)
    ticket = engine.queues.claim("jobs", "a", 3)
    assert not ticket.done
    assert counts(engine) == (1, 0, 0, 0)
    assert seqs_of(claim(engine, 9, "b")) == [4]
    assert seqs_of(ticket.result().jobs) == [3]
    assert deleting.result().deleted == 2
    assert counts(engine) == (0, 2, 0, 0)


def test_an_ack_of_jobs_in_the_cold_tier_asks_the_reader_lane_first(start: Start) -> None:
    cold = SimDisk()
    engine = start(cold=DirectoryStore(cold))
    make(engine)
    add(engine, 20)
    engine.checkpoint().result()
    engine.state.forget_blocks(engine.state.topic("jobs"))
    jobs = claim(engine, 10)
    for segment in engine.state.catalog.segments():
        engine.state.cache.drop(segment.meta.file_id, 1_000)
    disk = engine.state.fs
    assert isinstance(disk, SimDisk)
    disk.cached = False
    ticket = engine.queues.ack("jobs", "a", seqs_of(jobs[::2]))
    engine.flush()
    assert not ticket.done
    assert engine.topic("jobs").count == 20
    assert counts(engine) == (10, 5, 0, 0)
    assert ticket.result().acked == 5
    assert engine.topic("jobs").bytes == sum(len(job.data) for job in jobs[1::2]) + 20
    assert counts(engine) == (10, 5, 0, 0)
