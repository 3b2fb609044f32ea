"""Workers that are pushed jobs: told the moment there may be one, and only as long as there is."""

from __future__ import annotations

import itertools

import pytest

from headrace.core.clock import ManualClock
from headrace.core.errors import HeadraceError, NotAQueue, TopicFull, TopicNotFound
from headrace.core.runtime import StepRuntime
from headrace.engine.engine import Engine
from headrace.engine.queues.answers import Job
from tests.support.queue_calls import add, claim, counts, make
from tests.support.seqs import seqs_of


class Worker:
    """Keeps at most `room` jobs."""

    def __init__(self, engine: Engine, node: str, room: int = 1, lease_ms: int = 30_000) -> None:
        self.engine = engine
        self.node = node
        self.room = room
        self.lease_ms = lease_ms
        self.jobs: list[Job] = []
        self.woken = 0
        self.error: BaseException | None = None
        self.connection = 0
        self.connection = engine.queues.connect("jobs", self.wake)

    def wake(self) -> bool:
        self.woken += 1
        queues = self.engine.queues
        free = self.room - queues.held_by(self.connection)
        if free <= 0:
            return False
        ticket = queues.claim("jobs", self.node, free, self.lease_ms, connection=self.connection)
        ticket.when_done(lambda done: self.got(done.error, done.result().jobs))
        return queues.held_by(self.connection) < self.room

    def got(self, error: BaseException | None, jobs: list[Job]) -> None:
        self.error = error
        self.jobs += jobs

    def ack(self) -> None:
        done, self.jobs = self.jobs, []
        self.engine.queues.ack("jobs", self.node, seqs_of(done)).result()


def run(engine: Engine) -> None:
    assert isinstance(engine.runtime, StepRuntime)
    engine.runtime.run()


def test_a_worker_gets_what_is_there_and_what_is_appended(engine: Engine) -> None:
    make(engine)
    add(engine, 2)
    worker = Worker(engine, "w", 3)
    run(engine)
    assert seqs_of(worker.jobs) == [1, 2]
    add(engine, 5, first=3)
    run(engine)
    assert seqs_of(worker.jobs) == [1, 2, 3]


def test_h15_a_worker_holds_no_more_than_it_has_room_for(engine: Engine) -> None:
    make(engine)
    add(engine, 9)
    worker = Worker(engine, "w", 4)
    run(engine)
    assert counts(engine) == (5, 4, 0, 0)
    worker.ack()
    run(engine)
    assert seqs_of(worker.jobs) == [5, 6, 7, 8]
    assert counts(engine) == (1, 4, 0, 0)


def test_h15_a_disconnect_frees_the_jobs_of_this_connection_alone(engine: Engine) -> None:
    make(engine)
    add(engine, 6)
    one, two = Worker(engine, "same", 2), Worker(engine, "same", 2)
    run(engine)
    claim(engine, 1, "same")
    assert counts(engine) == (1, 5, 0, 0)
    engine.queues.disconnect(one.connection)
    assert counts(engine) == (3, 3, 0, 0)
    assert engine.queues.held_by(two.connection) == 2
    assert engine.queues.held_by(one.connection) == 0
    engine.queues.disconnect(one.connection)
    assert seqs_of(claim(engine, 9)) == [1, 2, 6]


def test_an_ack_refills_the_worker_in_the_same_turn(engine: Engine) -> None:
    make(engine)
    add(engine, 3)
    worker = Worker(engine, "w")
    run(engine)
    for seq in (1, 2, 3):
        assert seqs_of(worker.jobs) == [seq]
        worker.ack()
        run(engine)
    assert worker.jobs == []


def test_a_nack_and_a_disconnect_wake_those_who_wait(engine: Engine) -> None:
    make(engine)
    add(engine, 2)
    busy = Worker(engine, "busy", 1)
    run(engine)
    (other,) = claim(engine, 1)
    idle = Worker(engine, "idle", 2)
    run(engine)
    assert idle.jobs == []
    engine.queues.nack("jobs", "a", [other.seq]).result()
    run(engine)
    assert seqs_of(idle.jobs) == [2]
    engine.queues.disconnect(busy.connection)
    run(engine)
    assert seqs_of(idle.jobs) == [2, 1]


def test_the_next_deadline_wakes_those_who_wait(engine: Engine, clock: ManualClock) -> None:
    make(engine)
    add(engine, 2)
    claim(engine, 1, "gone", 500)
    (two,) = claim(engine, 1, "slow")
    worker = Worker(engine, "w", 5)
    run(engine)
    engine.queues.nack("jobs", "slow", [two.seq], 900).result()
    clock.advance(500)
    run(engine)
    assert worker.jobs == []
    clock.advance(1)
    run(engine)
    assert seqs_of(worker.jobs) == [1]
    clock.advance(399)
    run(engine)
    assert seqs_of(worker.jobs) == [1, 2]


def test_a_deadline_that_is_earlier_than_the_one_waited_for_counts(
    engine: Engine, clock: ManualClock
) -> None:
    make(engine)
    add(engine, 1)
    claim(engine, 1, "a", 50_000)
    worker = Worker(engine, "w", 2)
    run(engine)
    engine.queues.extend("jobs", "a", [1], 200).result()
    clock.advance(201)
    run(engine)
    assert seqs_of(worker.jobs) == [1]


def test_a_lease_that_ran_out_gives_its_worker_room(engine: Engine, clock: ManualClock) -> None:
    make(engine)
    add(engine, 1)
    worker = Worker(engine, "w", 1, lease_ms=100)
    run(engine)
    add(engine, 1, first=2)
    other = Worker(engine, "o", 1)
    run(engine)
    assert (seqs_of(worker.jobs), seqs_of(other.jobs)) == ([1], [2])
    clock.advance(101)
    engine.queues.counts("jobs")
    run(engine)
    assert seqs_of(worker.jobs) == [1, 1]


def test_one_job_among_many_idle_workers_wakes_one_of_them_each_in_turn(engine: Engine) -> None:
    make(engine)
    workers = [Worker(engine, f"w{n}", 9) for n in range(20)]
    run(engine)
    before = sum(worker.woken for worker in workers)
    for first in range(1, 21):
        add(engine, 1, first=first)
        run(engine)
    assert sum(worker.woken for worker in workers) - before == 20
    assert [len(worker.jobs) for worker in workers] == [1] * 20


def test_many_workers_are_asked_a_few_at_a_time(engine: Engine) -> None:
    make(engine)
    workers = [Worker(engine, f"w{n}") for n in range(300)]
    run(engine)
    add(engine, 300)
    taken = [0]
    while engine.runtime.step():  # type: ignore[attr-defined]
        taken.append(sum(len(worker.jobs) for worker in workers))
    assert taken[-1] == 300
    assert max(after - before for before, after in itertools.pairwise(taken)) == 64


def test_workers_share_a_cohort_with_each_other(engine: Engine, clock: ManualClock) -> None:
    make(engine, claim_jitter_ms=100)
    add(engine, 20)
    workers = [Worker(engine, f"w{n}", 10) for n in range(4)]
    run(engine)
    clock.advance(100)
    run(engine)
    assert [len(worker.jobs) for worker in workers] == [5, 5, 5, 5]


def test_a_worker_that_went_while_its_claim_waited_holds_nothing(
    engine: Engine, clock: ManualClock
) -> None:
    make(engine, claim_jitter_ms=100)
    add(engine, 4)
    worker = Worker(engine, "w", 4)
    run(engine)
    engine.queues.disconnect(worker.connection)
    clock.advance(100)
    run(engine)
    assert counts(engine) == (4, 0, 0, 0)


def test_workers_hear_that_their_topic_is_gone(engine: Engine) -> None:
    make(engine)
    worker = Worker(engine, "w")
    run(engine)
    before = worker.woken
    errors: list[HeadraceError] = []

    def wake() -> bool:
        ticket = engine.queues.claim("jobs", "w")
        assert isinstance(ticket.error, HeadraceError)
        errors.append(ticket.error)
        return False

    worker.wake = wake  # type: ignore[method-assign]
    engine.queues.connect("jobs", wake)
    engine.delete_topic("jobs").result()
    run(engine)
    assert worker.woken >= before
    assert isinstance(errors[-1], TopicNotFound)


def test_only_a_queue_has_workers(engine: Engine) -> None:
    engine.append("log", [1]).result()
    with pytest.raises(NotAQueue):
        engine.queues.connect("log", lambda: False)
    with pytest.raises(TopicNotFound):
        engine.queues.connect("nowhere", lambda: False)


def test_a_worker_that_fails_does_not_keep_the_others_from_hearing(
    engine: Engine, caplog: pytest.LogCaptureFixture
) -> None:
    make(engine)

    def broken() -> bool:
        raise RuntimeError("boom")

    engine.queues.connect("jobs", broken)
    worker = Worker(engine, "w")
    add(engine, 1)
    run(engine)
    assert seqs_of(worker.jobs) == [1]
    assert "boom" in caplog.text


def test_a_full_worker_has_room_again_when_its_lease_runs_out(
    engine: Engine, clock: ManualClock
) -> None:
    """Nobody else has to ask for anything."""
    make(engine)
    add(engine, 1)
    worker = Worker(engine, "w", 1, lease_ms=100)
    run(engine)
    assert seqs_of(worker.jobs) == [1]
    for _ in range(2):
        clock.advance(101)
        run(engine)
    assert [(job.seq, job.deliveries) for job in worker.jobs] == [(1, 1), (1, 2), (1, 3)]


def test_a_worker_whose_job_was_deleted_has_room_again(engine: Engine) -> None:
    """It learns of it by its ack, which finds nothing."""
    make(engine)
    add(engine, 2)
    worker = Worker(engine, "w", 1)
    run(engine)
    engine.delete("jobs", before_seq=2).result()
    assert engine.queues.ack("jobs", "w", [1]).result().skipped == [1]
    run(engine)
    assert seqs_of(worker.jobs) == [1, 2]


def test_workers_that_come_and_go_leave_nothing_behind(engine: Engine, clock: ManualClock) -> None:
    make(engine, lease_ms=86_400_000)
    add(engine, 1)
    claim(engine)
    topic = engine.state.topic("jobs")
    assert isinstance(engine.runtime, StepRuntime)
    timers = len(engine.runtime._timers._heap)
    for _ in range(20):
        worker = Worker(engine, "w")
        run(engine)
        engine.queues.disconnect(worker.connection)
    assert len(topic.waiters or ()) == 1
    assert len(engine.runtime._timers._heap) == timers + 1
    add(engine, 1, first=2)
    worker = Worker(engine, "w")
    run(engine)
    assert seqs_of(worker.jobs) == [2]
    engine.queues.disconnect(worker.connection)
    engine.delete_topic("jobs").result()
    assert engine.queues._workers._by_topic == {}


def test_a_job_that_could_not_go_back_is_pushed_again(engine: Engine) -> None:
    make(engine, "jobs")
    make(engine, "source", max_deliveries=1, dead_letter="jobs", cap_records=1, discard="reject")
    add(engine, 1, "source")
    claim(engine, name="source")
    engine.queues.nack("source", "a", [1]).result()
    claim(engine, name="source")
    add(engine, 1, "source")
    ticket = engine.queues.redrive("jobs")
    worker = Worker(engine, "w")
    with pytest.raises(TopicFull):
        ticket.result()
    run(engine)
    assert seqs_of(worker.jobs) == [1]
