"""Jobs whose records are damaged: passed over and shown, while the others are worked off."""

from __future__ import annotations

import pytest

from headrace.core.clock import ManualClock
from headrace.core.runtime import StepRuntime
from headrace.engine.engine import Engine
from headrace.storage.block import Batch
from headrace.storage.files.store import BytesFile
from headrace.storage.segment.format import BLOCK_BYTES
from headrace.storage.segment.reader import Segment
from headrace.testing.simdisk import SimDisk
from tests.support.engines import Start
from tests.support.queue_calls import ack, add, claim, contents, counts, make
from tests.support.seqs import seqs_of

JOB_BYTES = BLOCK_BYTES // 2


def sealed_jobs(engine: Engine, count: int, size: int = JOB_BYTES) -> None:
    """Jobs that are in files and not in memory."""
    engine.append("jobs", Batch([b"%d " % n + b"x" * size for n in range(1, count + 1)])).result()
    engine.checkpoint().result()
    engine.state.forget_blocks(engine.state.topic("jobs"))


def segment_of(engine: Engine) -> Segment:
    topic = engine.state.topic("jobs")
    (run,) = engine.state.catalog.runs(topic.id)
    return run.segment


def flip(engine: Engine, *seqs: int) -> None:
    """Turn a bit in the data of these jobs, or back."""
    disk, segment = engine.state.fs, segment_of(engine)
    assert isinstance(disk, SimDisk)
    disk.cached = False
    with_data = disk.open_read(segment.meta.path)
    data = with_data.pread(with_data.size(), 0)
    for seq in seqs:
        disk.flip(segment.meta.path, 8 * (data.index(b"%d xxx" % seq) + 40))
    engine.state.cache.drop(segment.meta.file_id, 1_000)


def unreadable(engine: Engine) -> int:
    return engine.queues.counts("jobs").unreadable


def test_damaged_jobs_are_passed_over_and_the_others_are_given(
    engine: Engine, clock: ManualClock
) -> None:
    make(engine)
    sealed_jobs(engine, 12)
    add(engine, 2, first=13)
    flip(engine, 5)
    found = seqs_of(claim(engine, 14))
    lost = sorted(set(range(1, 15)) - set(found))
    assert 5 in lost
    assert len(lost) <= 3  # whoever has bytes in the block
    assert counts(engine) == (0, len(found), 0, 0)
    assert unreadable(engine) == len(lost)
    assert engine.topic("jobs").count == 14


def test_a_claim_of_one_gets_the_first_job_that_is_whole(engine: Engine) -> None:
    make(engine)
    sealed_jobs(engine, 12)
    flip(engine, 6)
    found = [claim(engine)[0].seq for _ in range(6)]
    assert found == sorted(found)
    assert found[-1] == 6 + unreadable(engine)
    assert 1 <= unreadable(engine) <= 3


def test_damaged_jobs_are_tried_again_after_a_minute(engine: Engine, clock: ManualClock) -> None:
    make(engine, lease_ms=1_000_000)
    sealed_jobs(engine, 6)
    flip(engine, 3)
    whole = claim(engine, 6)
    lost = 6 - len(whole)
    clock.advance(59_999)
    assert claim(engine, 6) == []
    clock.advance(1)
    assert (counts(engine)[0], unreadable(engine)) == (lost, 0)
    assert claim(engine, 6) == []
    assert unreadable(engine) == lost
    flip(engine, 3)
    clock.advance(60_000)
    again = claim(engine, 6)
    assert sorted(seqs_of(whole) + seqs_of(again)) == [1, 2, 3, 4, 5, 6]
    assert {job.deliveries for job in again} == {1}


def test_a_worker_hears_of_damaged_jobs_that_are_whole_again(
    engine: Engine, clock: ManualClock
) -> None:
    make(engine)
    sealed_jobs(engine, 1)
    flip(engine, 1)
    found: list[int] = []

    def wake() -> bool:
        ticket = engine.queues.claim("jobs", "w", 1, 1_000_000, connection=connection)
        ticket.when_done(lambda done: found.extend(seqs_of(done.result().jobs)))
        return not found

    connection = engine.queues.connect("jobs", wake)
    assert isinstance(engine.runtime, StepRuntime)
    engine.runtime.run()
    assert (found, unreadable(engine)) == ([], 1)
    flip(engine, 1)
    clock.advance(60_000)
    engine.runtime.run()
    assert found == [1]


@pytest.mark.parametrize("count", [3, 1_000])
def test_many_small_jobs_of_one_block_do_not_hide_those_behind_it(
    engine: Engine, count: int
) -> None:
    make(engine)
    sealed_jobs(engine, 9_000, 20)
    flip(engine, 5_000)
    found: list[int] = []
    while not found or found[-1] < 8_900:
        jobs = claim(engine, count)
        assert jobs
        found += seqs_of(jobs)
        ack(engine, jobs)
    assert found == sorted(found)
    assert len(found) + unreadable(engine) == found[-1]
    assert 100 < unreadable(engine) < 4_000


def test_a_file_whose_rows_cannot_be_found_does_not_hide_the_jobs_of_others(
    engine: Engine, start: Start
) -> None:
    make(engine)
    sealed_jobs(engine, 3)
    first = segment_of(engine).meta
    add(engine, 3, first=4)
    engine.checkpoint().result()
    disk = engine.state.fs
    assert isinstance(disk, SimDisk)
    engine.abandon()
    disk = disk.image(disk.position, "all", 0, power_loss=False)
    disk.flip(first.path, 8 * (first.footer_offset + 20))
    engine = start(disk)
    engine.state.forget_blocks(engine.state.topic("jobs"))
    assert seqs_of(claim(engine, 9)) == [4, 5, 6]
    assert (counts(engine), unreadable(engine)) == ((0, 3, 0, 0), 3)


def test_a_file_that_a_merge_takes_away_while_it_is_read_is_no_damage(start: Start) -> None:
    engine = start(read_cache_bytes=0)
    make(engine)
    sealed_jobs(engine, 2)
    disk, segment = engine.state.fs, segment_of(engine)
    assert isinstance(disk, SimDisk)
    disk.cached = False
    disk.flip(segment.meta.path, 8 * 100)
    ticket = engine.queues.claim("jobs", "a", 2)
    disk.flip(segment.meta.path, 8 * 100)
    whole = disk.open_read(segment.meta.path).pread(segment.meta.size, 0)
    disk.flip(segment.meta.path, 8 * 100)
    engine.state.catalog.remove(segment.meta.file_id)
    engine.state.catalog.add(Segment(segment.meta, BytesFile("copy", whole), engine.state.cache))
    assert seqs_of(ticket.result().jobs) == [1, 2]
    assert unreadable(engine) == 0


def test_a_damaged_job_can_be_deleted(engine: Engine) -> None:
    make(engine)
    sealed_jobs(engine, 4)
    flip(engine, 1)
    claim(engine, 4)
    assert unreadable(engine) > 0
    engine.delete("jobs", before_seq=5).result()
    assert (counts(engine), unreadable(engine)) == ((0, 0, 0, 0), 0)


def test_a_damaged_job_does_not_keep_the_others_from_being_buried(engine: Engine) -> None:
    make(engine, max_deliveries=1, dead_letter="dead")
    sealed_jobs(engine, 8)
    jobs = claim(engine, 8)
    flip(engine, 4)
    engine.queues.nack("jobs", "a", seqs_of(jobs)).result()
    assert claim(engine, 8) == []
    dead = [int(data.split()[0]) for data in contents(engine, "dead")]
    assert 4 not in dead
    assert len(dead) == counts(engine)[3] == 8 - unreadable(engine) >= 5


def test_a_move_that_a_crash_interrupted_needs_no_rows_once_they_are_copied(
    engine: Engine, kill: Start
) -> None:
    make(engine, max_deliveries=1, dead_letter="dead")
    engine.put_topic("dead").result()
    sealed_jobs(engine, 2)
    claim(engine, 2)
    engine.queues.nack("jobs", "a", [1, 2]).result()
    engine.queues.claim("jobs", "a", 1)
    while not engine.topic("dead").count:
        assert engine.runtime.step()  # type: ignore[attr-defined]
    assert engine.topic("jobs").count == 2
    flip(engine, 1)
    engine = kill(engine)
    engine.runtime.run()  # type: ignore[attr-defined]
    assert counts(engine) == (0, 0, 0, 2)
    assert [data[:2] for data in contents(engine, "dead")] == [b"1 ", b"2 "]
