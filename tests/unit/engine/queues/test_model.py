"""A queue against a model so simple that it is plainly right, through restarts of every kind."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
from hypothesis import seed, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    Bundle,
    RuleBasedStateMachine,
    consumes,
    initialize,
    invariant,
    rule,
    run_state_machine_as_test,
)

from headrace.core.clock import ManualClock, SeededRandom
from headrace.core.runtime import StepRuntime
from headrace.core.settings import Settings
from headrace.engine.engine import Engine
from headrace.storage.block import Batch
from headrace.testing.simdisk import SimDisk
from tests.support.queue_calls import contents
from tests.support.seqs import seqs_of

SETTINGS = Settings(wal_file_bytes=1 << 16, wal_batch_bytes_max=1 << 14)
MAX_DELIVERIES = 3
# Of 80 steps each, on a machine that has other things to do.
EXAMPLES_PER_SECOND = 4
NODES = st.sampled_from(["a", "b"])


@dataclass
class ModelJob:
    """What is known of one job."""

    data: bytes
    ts: int = 0
    deliveries: int = 0
    passed: bool = False  # was handed out before, so it goes before fresh ones
    node: str | None = None
    lease_id: str = ""
    deadline: int = 0
    worker: bool = False
    delayed_until: int = 0

    def free(self) -> None:
        self.node = None
        self.delayed_until = 0
        self.worker = False


class QueueMachine(RuleBasedStateMachine):
    """One queue, its dead letters, one clock."""

    held = Bundle("held")

    def __init__(self) -> None:
        super().__init__()
        self.jobs: dict[int, ModelJob] = {}
        self.dead: list[bytes] = []
        self.head = 0
        self.clock = ManualClock()
        self.disk = SimDisk()
        self.seed = 0
        self.connection: int | None = None
        self.told = True  # the log knows of leases that were there when they became durable
        self.start()

    def start(self) -> None:
        self.seed += 1
        runtime = StepRuntime(self.clock)
        random = SeededRandom(self.seed)
        self.engine = Engine(self.disk, runtime, SETTINGS, random=random)
        self.engine.recover()
        self.connection = None

    @initialize(
        durable=st.booleans(),
        dead_letter=st.booleans(),
        durability=st.sampled_from(["disk", "fsync", "memory"]),
        cap=st.sampled_from([0, 0, 8]),
        ttl_ms=st.sampled_from([0, 0, 4_000]),
    )
    def make(
        self, durable: bool, dead_letter: bool, durability: str, cap: int, ttl_ms: int
    ) -> None:
        self.durable, self.dead_letter, self.cap, self.ttl_ms = durable, dead_letter, cap, ttl_ms
        self.config = {
            "type": "queue", "leases_durable": durable, "durability": durability,
            "max_deliveries": MAX_DELIVERIES, "dead_letter": "dead" if dead_letter else None,
            "cap_records": cap, "ttl_ms": ttl_ms,
        }  # fmt: skip
        self.engine.put_topic("q", self.config).result()

    @rule()
    def change(self) -> None:
        self.durable = not self.durable
        self.told = not self.jobs
        self.config["leases_durable"] = self.durable
        self.engine.put_topic("q", self.config).result()

    def now(self) -> int:
        return self.engine.state.clock.now_ms()

    def tick(self) -> None:
        if self.ttl_ms:
            oldest = self.now() - self.ttl_ms
            self.jobs = {seq: job for seq, job in self.jobs.items() if job.ts >= oldest}
        if self.cap:
            self.jobs = {seq: self.jobs[seq] for seq in sorted(self.jobs)[-self.cap :]}
        for job in self.jobs.values():
            if job.node is not None and job.deadline < self.now():
                job.free()
            if job.delayed_until and job.delayed_until <= self.now():
                job.free()

    def mine(self, node: str, seq: int, lease_id: str | None) -> bool:
        job = self.jobs.get(seq)
        return job is not None and job.node == node and lease_id in (None, "", job.lease_id)

    @rule(count=st.integers(1, 6))
    def append(self, count: int) -> None:
        data = [b"%d" % (self.head + n + 1) for n in range(count)]
        self.engine.append("q", Batch(data)).result()
        for item in data:
            self.head += 1
            self.jobs[self.head] = ModelJob(item, self.now())
        self.tick()

    @rule(
        target=held,
        node=NODES,
        count=st.integers(1, 5),
        lease_ms=st.sampled_from([100, 500, 5_000]),
        worker=st.booleans(),
    )
    def claim(self, node: str, count: int, lease_ms: int, worker: bool) -> list[tuple[int, str]]:
        self.tick()
        if worker and self.connection is None:
            self.connection = self.engine.queues.connect("q", lambda: False)
        connection = self.connection if worker else None
        self.told = True
        answer = self.engine.queues.claim("q", node, count, lease_ms, connection=connection)
        result = answer.result()
        idle = {s: j for s, j in self.jobs.items() if j.node is None and not j.delayed_until}
        if self.dead_letter:
            spent = [s for s in sorted(idle) if idle[s].deliveries >= MAX_DELIVERIES]
            for seq in spent:
                self.dead.append(self.jobs.pop(seq).data)
                del idle[seq]
        order = sorted(idle, key=lambda seq: (not idle[seq].passed, seq))[:count]
        assert seqs_of(result.jobs) == order
        for got in result.jobs:
            job = self.jobs[got.seq]
            job.deliveries += 1
            job.passed = True
            job.node, job.lease_id, job.worker = node, got.lease_id, worker
            job.deadline = self.now() + lease_ms
            assert (got.data, got.deliveries, got.deadline) == (
                job.data, job.deliveries, job.deadline,
            )  # fmt: skip
        return [(got.seq, got.lease_id) for got in result.jobs]

    @rule(node=NODES, jobs=consumes(held), named=st.booleans())
    def ack(self, node: str, jobs: list[tuple[int, str]], named: bool) -> None:
        self.tick()
        seqs, ids = [seq for seq, _ in jobs], [lease for _, lease in jobs]
        self.told = True
        answer = self.engine.queues.ack("q", node, seqs, ids if named else None).result()
        mine = [seq for seq, lease in jobs if self.mine(node, seq, lease if named else None)]
        assert answer.acked == len(mine)
        assert answer.skipped == [seq for seq in seqs if seq not in mine]
        for seq in mine:
            del self.jobs[seq]

    @rule(node=NODES, jobs=held, delay_ms=st.sampled_from([0, 0, 200, 2_000]))
    def nack(self, node: str, jobs: list[tuple[int, str]], delay_ms: int) -> None:
        self.tick()
        seqs, ids = [seq for seq, _ in jobs], [lease for _, lease in jobs]
        self.told = True
        answer = self.engine.queues.nack("q", node, seqs, delay_ms, ids).result()
        mine = [seq for seq, lease in jobs if self.mine(node, seq, lease)]
        assert answer.nacked == len(mine)
        for seq in mine:
            self.jobs[seq].free()
            self.jobs[seq].delayed_until = self.now() + delay_ms if delay_ms else 0

    @rule(node=NODES, jobs=held, lease_ms=st.sampled_from([100, 3_000]))
    def extend(self, node: str, jobs: list[tuple[int, str]], lease_ms: int) -> None:
        self.tick()
        seqs, ids = [seq for seq, _ in jobs], [lease for _, lease in jobs]
        self.told = True
        answer = self.engine.queues.extend("q", node, seqs, lease_ms, ids).result()
        mine = [seq for seq, lease in jobs if self.mine(node, seq, lease)]
        assert sorted(answer.deadlines) == sorted(mine)
        for seq in mine:
            self.jobs[seq].deadline = self.now() + lease_ms

    @rule(part=st.floats(0, 1))
    def delete(self, part: float) -> None:
        self.tick()
        before = int(self.head * part / 2)
        self.engine.delete("q", before_seq=before).result()
        self.jobs = {seq: job for seq, job in self.jobs.items() if seq >= before}

    @rule(ms=st.sampled_from([1, 99, 100, 101, 400, 3_000]))
    def advance(self, ms: int) -> None:
        self.clock.advance(ms)
        self.engine.runtime.run()  # type: ignore[attr-defined]

    @rule()
    def disconnect(self) -> None:
        self.tick()
        if self.connection is not None:
            self.engine.queues.disconnect(self.connection)
            self.connection = None
            for job in self.jobs.values():
                if job.worker:
                    job.free()

    @rule()
    def checkpoint(self) -> None:
        self.engine.checkpoint().result()
        self.told = True

    @rule(how=st.sampled_from(["kill", "close"]))
    def restart(self, how: str) -> None:
        self.tick()
        before = self.now()
        if how == "kill":
            self.engine.flush()
            self.engine.abandon()
            self.disk = self.disk.image(self.disk.position, "all", 0, power_loss=False)
        else:
            self.engine.close()
            self.disk = self.disk.copy()
        self.clock.set_wall(before)  # engine time goes on
        self.start()
        for job in self.jobs.values():
            if not self.durable or job.worker or not (self.told or how == "close"):
                job.free()
        self.told = True
        self.tick()

    @invariant()
    def counters_add_up(self) -> None:
        if not hasattr(self, "durable"):
            return
        self.tick()
        found = self.engine.queues.counts("q")
        in_flight = sum(job.node is not None for job in self.jobs.values())
        delayed = sum(job.delayed_until > 0 for job in self.jobs.values())
        ready = len(self.jobs) - in_flight - delayed
        assert (found.ready, found.in_flight, found.delayed) == (ready, in_flight, delayed)
        assert found.dead_lettered == len(self.dead)
        assert self.engine.topic("q").count == len(self.jobs)

    @invariant()
    def the_dead_are_all_there_and_once(self) -> None:
        if self.dead:
            assert contents(self.engine, "dead") == self.dead

    @invariant()
    def every_job_is_in_one_place_and_nothing_is_kept_of_others(self) -> None:
        if not hasattr(self, "durable"):
            return
        queue = self.engine.state.topic("q").queue
        if queue is None:
            return
        assert set(queue.held) == queue.leases.keys() | queue.delays.keys()
        assert len(queue.held) == len(queue.leases) + len(queue.delays)
        assert not queue.unreadable
        places = [set(queue.held), set(queue.free), set(queue.spent), set(queue.busy)]
        assert sum(map(len, places)) == len(set().union(*places))
        assert set().union(*places) == {seq for seq in self.jobs if seq <= queue.cursor}
        assert queue.deliveries == {s: j.deliveries for s, j in self.jobs.items() if j.deliveries}
        for grant in set(queue.leases.values()):
            assert grant.left == sum(held is grant for held in queue.leases.values())

    def teardown(self) -> None:
        self.engine.abandon()


def test_a_queue_behaves_as_the_model_does() -> None:
    run_state_machine_as_test(
        QueueMachine, settings=settings(max_examples=150, stateful_step_count=40, deadline=None)
    )


@pytest.mark.long
def test_a_queue_behaves_as_the_model_does_for_long(sweep) -> None:  # type: ignore[no-untyped-def]
    examples = max(50, int(sweep.seconds * EXAMPLES_PER_SECOND))
    run_state_machine_as_test(
        seed(sweep.seed)(QueueMachine),
        settings=settings(max_examples=examples, stateful_step_count=80, deadline=None),
    )
