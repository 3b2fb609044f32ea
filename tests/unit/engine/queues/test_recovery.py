"""What a queue still knows after a crash, a checkpoint and a clean restart."""

from __future__ import annotations

import pytest

from headrace.core.clock import ManualClock, SeededRandom
from headrace.core.errors import HeadraceError, NotReady
from headrace.core.runtime import StepRuntime
from headrace.engine.engine import Engine
from headrace.engine.queues.dead_letters import Redrive
from headrace.engine.queues.replay import replay_event
from headrace.engine.recovery import log_replay
from headrace.engine.state import EngineState
from headrace.engine.topics.topic import Topic
from headrace.storage.wal.frame import QueueEvent
from headrace.testing.faultfs import Fault, FaultFilesystem, FaultPlan
from headrace.testing.simdisk import SimDisk
from tests.support.engines import Start
from tests.support.queue_calls import ack, add, claim, contents, counts, make
from tests.support.seqs import seqs_of


def run(engine: Engine) -> None:
    assert isinstance(engine.runtime, StepRuntime)
    engine.runtime.run()


def test_h12_without_durable_leases_every_job_is_claimable_after_a_start(
    engine: Engine, again: Start
) -> None:
    make(engine)
    add(engine, 5)
    jobs = claim(engine, 3)
    ack(engine, jobs[:1])
    engine.queues.nack("jobs", "a", [2], 60_000).result()
    engine = again(engine)
    assert counts(engine) == (4, 0, 0, 0)
    assert ack(engine, jobs[2:]).skipped == [3]
    found = claim(engine, 9)
    assert seqs_of(found) == [2, 3, 4, 5]
    assert [job.deliveries for job in found] == [2, 2, 1, 1]


def test_h13_durable_leases_hold_until_their_deadline_after_a_start(
    engine: Engine, again: Start, clock: ManualClock
) -> None:
    make(engine, leases_durable=True, lease_ms=10_000)
    add(engine, 6)
    one, two, three, four = claim(engine, 4)
    engine.queues.nack("jobs", "a", [two.seq], 20_000).result()
    engine.queues.nack("jobs", "a", [three.seq]).result()
    engine.queues.extend("jobs", "a", [four.seq], 30_000, [four.lease_id]).result()
    clock.advance(1_000)
    engine = again(engine)
    assert counts(engine) == (3, 2, 1, 0)
    assert seqs_of(claim(engine, 9, "b")) == [3, 5, 6]
    clock.advance(8_900)
    assert claim(engine, 9, "b") == []
    assert engine.queues.extend("jobs", "a", [1], 100, [one.lease_id]).result().extended == 1
    clock.advance(101)
    (back,) = claim(engine, 9, "b", 60_000)
    assert (back.seq, back.deliveries) == (1, 2)
    clock.advance(10_000)
    assert seqs_of(claim(engine, 1, "b", 60_000)) == [2]
    assert ack(engine, [four]).acked == 1


def test_h13_of_all_that_happened_to_a_job_the_last_counts(
    engine: Engine, again: Start, clock: ManualClock
) -> None:
    make(engine, leases_durable=True, lease_ms=10_000)
    add(engine, 2)
    claim(engine, 2)
    engine.queues.nack("jobs", "a", [1], 500).result()
    clock.advance(500)
    last = claim(engine, 1, "b")
    clock.advance(9_501)
    last += claim(engine, 1, "b")
    assert seqs_of(last) == [1, 2]
    engine = again(engine)
    queue = engine.state.topic("jobs").queue
    assert queue is not None
    assert (list(queue.held), queue.delays) == ([1, 2], {})
    assert [grant.left for grant in queue.leases.values()] == [1, 1]
    assert counts(engine) == (0, 2, 0, 0)
    assert ack(engine, last, "b").acked == 2


def test_h13_they_survive_one_checkpoint_after_the_other(engine: Engine, kill: Start) -> None:
    make(engine, leases_durable=True, durability="fsync")
    add(engine, 3)
    jobs = claim(engine, 2)
    for turn in range(3):
        engine.checkpoint().result()
        engine.append("other", [turn]).result()
        engine = kill(engine)
    assert counts(engine) == (1, 2, 0, 0)
    assert ack(engine, jobs).acked == 2


def test_h13_a_claim_is_answered_when_its_lease_is_as_durable_as_the_topic(
    engine: Engine, power_loss: Start
) -> None:
    make(engine, leases_durable=True, durability="fsync")
    add(engine, 2)
    ticket = engine.queues.claim("jobs", "a", 2)
    engine.flush()
    assert not ticket.done
    jobs = ticket.result().jobs
    engine = power_loss(engine)
    assert counts(engine) == (0, 2, 0, 0)
    assert ack(engine, jobs).acked == 2


def test_h13_leases_of_a_connection_end_with_the_process(engine: Engine, again: Start) -> None:
    make(engine, leases_durable=True)
    add(engine, 2)
    connection = engine.queues.connect("jobs", lambda: False)
    engine.queues.claim("jobs", "a", 1, connection=connection).result()
    claim(engine, 1, "b")
    engine = again(engine)
    assert counts(engine) == (1, 1, 0, 0)
    assert claim(engine)[0].deliveries == 2


@pytest.mark.parametrize("jump_ms", [-3_600_000, 3_600_000])
def test_a_clock_that_was_set_makes_no_lease_longer(
    engine: Engine, again: Start, clock: ManualClock, jump_ms: int
) -> None:
    make(engine, leases_durable=True, lease_ms=10_000)
    add(engine, 2)
    claim(engine, 2)
    engine.queues.nack("jobs", "a", [2], 20_000).result()
    clock.jump(jump_ms)
    engine = again(engine)
    clock.advance(10_001)
    assert seqs_of(claim(engine, 9)) == ([1] if jump_ms < 0 else [1, 2])
    clock.advance(10_000)
    assert counts(engine)[2] == 0


def test_a_lease_id_of_the_last_run_never_fits_a_lease_of_this_one(clock: ManualClock) -> None:
    disk, olds = SimDisk(), []
    for seed in range(3):
        engine = Engine(disk, StepRuntime(clock), random=SeededRandom(seed))
        engine.recover()
        if not seed:
            make(engine)
            add(engine, 1)
        jobs = claim(engine)
        assert len(jobs) == 1
        for old in olds:
            assert ack(engine, old).acked == 0
        olds.append(jobs)
        engine.close()
        disk = disk.copy()


@pytest.mark.parametrize("durable", [False, True])
def test_delivery_counts_and_dead_letter_totals_survive(
    engine: Engine, again: Start, durable: bool
) -> None:
    make(engine, max_deliveries=2, dead_letter="dead", leases_durable=durable)
    add(engine, 2)
    claim(engine, 2)
    engine.queues.nack("jobs", "a", [1, 2]).result()
    run(engine)
    engine = again(engine)
    assert [job.deliveries for job in claim(engine, 2)] == [2, 2]
    engine.queues.nack("jobs", "a", [1]).result()
    run(engine)
    engine = again(engine)
    assert claim(engine, 2) == [] if durable else True
    engine.runtime.clock.advance(30_001)  # type: ignore[attr-defined]
    assert claim(engine, 2) == []
    engine = again(engine)
    assert counts(engine) == (0, 0, 0, 2)
    assert sorted(contents(engine, "dead")) == [b"1", b"2"]


def test_a_claim_whose_entry_was_lost_hides_no_job(engine: Engine, power_loss: Start) -> None:
    """The next claim is known, so the jobs before it were passed by; they are claimable."""
    make(engine)
    add(engine, 4)
    engine.synced("jobs").result()
    shard = engine.state.shard_of(engine.state.topic("jobs").id)
    shard.troubled = True  # this claim is not logged
    claim(engine, 2)
    shard.troubled = False
    claim(engine, 1)
    run(engine)
    engine.synced("jobs").result()
    engine = power_loss(engine)
    found = claim(engine, 9)
    assert seqs_of(found) == [1, 2, 3, 4]
    assert [job.deliveries for job in found] == [1, 1, 2, 1]


def test_jobs_of_an_ephemeral_queue_go_and_the_queue_goes_on(engine: Engine, again: Start) -> None:
    make(engine, durability="ephemeral", leases_durable=True)
    add(engine, 5)
    jobs = claim(engine, 3)
    assert ack(engine, jobs[:1]).acked == 1
    engine = again(engine)
    assert counts(engine) == (0, 0, 0, 0)
    add(engine, 2)
    assert [job.data for job in claim(engine, 9)] == [b"1", b"2"]


def test_a_change_of_class_loses_no_job(engine: Engine, again: Start) -> None:
    make(engine, durability="ephemeral")
    add(engine, 3)
    claim(engine, 2)
    make(engine, durability="disk")
    add(engine, 3, first=4)
    claim(engine, 3)
    engine = again(engine)
    live = contents(engine, "jobs")
    assert [job.data for job in claim(engine, 9)] == live
    assert b"6" in live


def test_recovering_twice_is_recovering_once(engine: Engine, kill: Start) -> None:
    make(engine, leases_durable=True, max_deliveries=1, dead_letter="dead")
    add(engine, 6)
    claim(engine, 4)
    engine.queues.nack("jobs", "a", [1]).result()
    claim(engine, 1)
    engine.queues.nack("jobs", "a", [2], 500).result()
    run(engine)
    engine = kill(engine)
    once = counts(engine), contents(engine, "jobs"), contents(engine, "dead")
    engine = kill(engine)
    assert (counts(engine), contents(engine, "jobs"), contents(engine, "dead")) == once


# When the log fails


class FullPlan(FaultPlan):
    """The next write of the log finds no room, once it is armed."""

    armed = False

    def __init__(self) -> None:
        super().__init__(Fault("pwritev", 1, "enospc", forever=True, path="wal/*"))

    def strike(self, operation: str, *paths: str) -> Fault | None:
        return super().strike(operation, *paths) if self.armed else None


def test_h10_an_ack_that_the_log_did_not_take_gives_the_jobs_back(start: Start) -> None:
    plan = FullPlan()
    engine = start(FaultFilesystem(SimDisk(), plan))
    make(engine)
    add(engine, 3)
    jobs = claim(engine, 2)
    run(engine)
    plan.armed = True
    ticket = engine.queues.ack("jobs", "a", seqs_of(jobs))
    with pytest.raises(HeadraceError):
        ticket.result()
    plan.armed = False
    assert counts(engine) == (3, 0, 0, 0)
    assert seqs_of(claim(engine, 3)) == [1, 2, 3]


def test_a_durable_claim_that_the_log_did_not_take_was_no_delivery(start: Start) -> None:
    plan = FullPlan()
    engine = start(FaultFilesystem(SimDisk(), plan))
    make(engine, leases_durable=True)
    add(engine, 2)
    plan.armed = True
    with pytest.raises(NotReady):
        engine.queues.claim("jobs", "a", 2).result()
    plan.armed = False
    assert counts(engine) == (2, 0, 0, 0)
    assert [job.deliveries for job in claim(engine, 2)] == [1, 1]


def stuck_move(start: Start, disk: SimDisk, plan: FullPlan) -> Engine:
    """An engine in which job 1 was copied to the dead letters, and could not be deleted."""
    engine = start(FaultFilesystem(disk, plan))
    make(engine, max_deliveries=1, dead_letter="dead")
    add(engine, 2)
    engine.put_topic("dead").result()
    claim(engine)
    engine.queues.nack("jobs", "a", [1]).result()
    ticket = engine.queues.claim("jobs", "a", 1)
    while not engine.topic("dead").count:
        assert engine.runtime.step()  # type: ignore[attr-defined]
    plan.armed = True
    assert seqs_of(ticket.result().jobs) == [2]
    plan.armed = False
    return engine


def test_dead_letters_that_were_copied_are_not_handed_out_while_the_log_is_full(
    start: Start, clock: ManualClock
) -> None:
    engine = stuck_move(start, SimDisk(), FullPlan())
    assert counts(engine) == (0, 1, 0, 0)
    assert claim(engine, 9) == []
    clock.advance(5_001)
    run(engine)
    assert counts(engine) == (0, 1, 0, 1)
    assert contents(engine, "dead") == [b"1"]


def test_a_move_under_way_survives_the_checkpoint_that_drops_its_entries(start: Start) -> None:
    disk = SimDisk()
    engine = stuck_move(start, disk, FullPlan())
    for _ in range(2):
        engine.checkpoint().result()
    engine.abandon()
    engine = start(disk.image(disk.position, "all", 0, power_loss=False))
    run(engine)
    assert contents(engine, "dead") == [b"1"]
    assert contents(engine, "jobs") == [b"2"]
    assert counts(engine) == (1, 0, 0, 1)


def test_a_stuck_move_ends_with_its_topic(start: Start, clock: ManualClock) -> None:
    engine = stuck_move(start, SimDisk(), FullPlan())
    engine.delete_topic("jobs").result()
    clock.advance(5_001)
    run(engine)
    engine.checkpoint().result()
    assert contents(engine, "dead") == [b"1"]
    assert "jobs" not in engine.state.by_name


# Leases whose topic changes


def test_h12_leases_that_are_durable_no_more_end_with_the_process(
    engine: Engine, again: Start
) -> None:
    make(engine, leases_durable=True)
    add(engine, 3)
    claim(engine, 3)
    engine.queues.nack("jobs", "a", [2], 60_000).result()
    make(engine, leases_durable=False)
    engine.queues.nack("jobs", "a", [1]).result()
    engine = again(engine)
    assert counts(engine) == (3, 0, 0, 0)
    assert [job.deliveries for job in claim(engine, 3)] == [2, 2, 2]


def test_h13_leases_that_become_durable_are_told_to_the_log(engine: Engine, again: Start) -> None:
    make(engine)
    add(engine, 4)
    jobs = claim(engine) + claim(engine) + claim(engine, 1, "b")
    engine.queues.nack("jobs", "b", [3], 60_000).result()
    make(engine, leases_durable=True)
    (shard,) = engine.state.shards
    frames = shard.frames_total
    engine.queues.extend("jobs", "a", [1], 60_000).result()
    assert shard.frames_total == frames + 3  # leases, delays, the extend
    engine = again(engine)
    assert counts(engine) == (1, 2, 1, 0)
    assert ack(engine, jobs[:2]).acked == 2
    assert [(job.seq, job.deliveries) for job in claim(engine, 9)] == [(4, 1)]


def test_h13_what_was_given_back_while_nobody_wrote_it_down_is_free(
    engine: Engine, again: Start
) -> None:
    make(engine, leases_durable=True)
    add(engine, 2)
    jobs = claim(engine, 2)
    make(engine)
    engine.queues.nack("jobs", "a", [1]).result()
    make(engine, leases_durable=True)
    engine.queues.extend("jobs", "a", [2], 60_000).result()
    engine = again(engine)
    assert counts(engine) == (1, 1, 0, 0)
    assert ack(engine, jobs).skipped == [1]


def test_h13_leases_that_were_not_durable_for_a_moment_are_told_to_the_log_again(
    engine: Engine, again: Start
) -> None:
    make(engine, leases_durable=True)
    add(engine, 2)
    jobs = claim(engine, 1)
    make(engine)
    make(engine, leases_durable=True)
    assert seqs_of(claim(engine, 1, "b")) == [2]
    engine = again(engine)
    assert counts(engine) == (0, 2, 0, 0)
    assert ack(engine, jobs).acked == 1


def test_a_queue_that_takes_a_name_again_knows_nothing_of_the_old_leases(
    engine: Engine, again: Start
) -> None:
    make(engine, leases_durable=True)
    add(engine, 2)
    old = claim(engine, 2)
    engine.delete_topic("jobs").result()
    make(engine, leases_durable=True)
    add(engine, 2)
    assert ack(engine, old).skipped == [1, 2]
    new = claim(engine, 1)
    assert new[0].deliveries == 1
    assert ack(engine, old).skipped == [1, 2]
    engine = again(engine)
    assert counts(engine) == (1, 1, 0, 0)
    assert ack(engine, old).skipped == [1, 2]
    assert ack(engine, new).acked == 1


def test_the_replay_of_jobs_that_are_done_takes_no_memory(
    engine: Engine, kill: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    most = 0

    def replay(state: EngineState, topic: Topic, event: QueueEvent) -> None:
        nonlocal most
        replay_event(state, topic, event)
        assert topic.queue is not None
        most = max(most, len(topic.queue.deliveries))

    monkeypatch.setattr(log_replay, "replay_event", replay)
    make(engine)
    add(engine, 1_000)
    for _ in range(50):
        ack(engine, claim(engine, 20))
    kill(engine)
    assert most == 20


def test_h6_a_lease_that_was_given_again_is_stale_after_a_start_too(
    engine: Engine, again: Start, clock: ManualClock
) -> None:
    make(engine, leases_durable=True, lease_ms=1_000)
    add(engine, 2)
    old = claim(engine, 2)
    clock.advance(1_001)
    new = claim(engine, 1, lease_ms=60_000)
    engine = again(engine)
    engine.queues._claims._tokens = 7  # at random, in every process
    new += claim(engine, 1, lease_ms=60_000)
    assert [job.deliveries for job in new] == [2, 2]
    ids = [job.lease_id for job in old]
    assert ack(engine, old).skipped == [1, 2]
    assert engine.queues.nack("jobs", "a", [1, 2], 0, ids).result().skipped == [1, 2]
    assert engine.queues.extend("jobs", "a", [1, 2], 100, ids).result().skipped == [1, 2]
    assert ack(engine, new).acked == 2


def test_h8_delayed_jobs_come_back_in_their_time_and_lowest_first_after_a_start(
    engine: Engine, again: Start, clock: ManualClock
) -> None:
    make(engine, leases_durable=True)
    add(engine, 5)
    claim(engine, 4)
    for seq, delay_ms in ((4, 1_000), (1, 3_000), (2, 2_000), (3, 2_000)):
        engine.queues.nack("jobs", "a", [seq], delay_ms).result()
    engine = again(engine)
    assert counts(engine) == (1, 0, 4, 0)
    clock.advance(1_000)
    assert seqs_of(claim(engine, 1)) == [4]
    clock.advance(1_000)
    assert seqs_of(claim(engine, 9)) == [2, 3, 5]
    clock.advance(1_000)
    assert seqs_of(claim(engine, 9)) == [1]


def test_moves_behind_one_that_the_log_holds_up_are_refused(
    start: Start, clock: ManualClock
) -> None:
    """Whether they came before the log failed or after; later nothing is there twice."""
    plan = FullPlan()
    engine = start(FaultFilesystem(SimDisk(), plan))
    make(engine, max_deliveries=1, dead_letter="dead")
    add(engine, 4)
    engine.queues.nack("jobs", "a", seqs_of(claim(engine, 4))).result()
    assert claim(engine) == []
    make(engine)
    first = engine.queues.redrive("dead", Redrive(limit=1))
    before = engine.queues.redrive("dead", Redrive(from_seq=1, limit=1))
    while not engine.topic("jobs").count:
        assert engine.runtime.step()  # type: ignore[attr-defined]
    assert not first.done and not before.done
    plan.armed = True
    run(engine)
    after = engine.queues.redrive("dead", Redrive(from_seq=2, limit=2))
    run(engine)
    for ticket in (first, before, after):
        assert isinstance(ticket.error, NotReady), ticket.error
    plan.armed = False
    clock.advance(5_001)
    run(engine)
    assert engine.queues.redrive("dead", Redrive()).result().moved == 3
    assert contents(engine, "dead") == []
    assert sorted(contents(engine, "jobs")) == [b"1", b"2", b"3", b"4"]
