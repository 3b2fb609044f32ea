"""A hundred workers that crash, on a server that crashes: each job is done, none by two at once.

Everything runs in one thread by dice: workers claim, finish, give back, extend, vanish; the server
is killed, restarted and checkpointed.  With durable leases a job has at most one valid holder at
any time, across every restart.
"""

from __future__ import annotations

from collections import Counter

import pytest

from headrace.core.clock import ManualClock, SeededRandom
from headrace.core.runtime import StepRuntime
from headrace.core.settings import Settings
from headrace.engine.engine import Engine
from headrace.storage.block import Batch
from headrace.testing.diskmodel import Dice
from headrace.testing.simdisk import SimDisk
from tests.support.queue_calls import contents

WORKERS = 100
LEASE_MS = 2_000
PER_CLAIM = 8


class Fleet:
    """Workers, what they hold, and what they have done."""

    def __init__(self, seed: int, jobs: int, *, durable: bool, dead_letter: bool) -> None:
        self.dice = Dice(seed, 0xF1EE7)
        self.clock = ManualClock()
        self.disk = SimDisk()
        self.durable = durable
        self.lives = 0
        self.done: set[bytes] = set()
        self.holders: dict[int, tuple[str, int]] = {}  # seq -> node, deadline
        self.held: dict[str, dict[int, tuple[str, bytes]]] = {}  # node -> seq -> lease, data
        self.start()
        config: dict[str, object] = {
            "type": "queue", "leases_durable": durable, "lease_ms": LEASE_MS,
        }  # fmt: skip
        if dead_letter:
            config |= {"max_deliveries": 6, "dead_letter": "dead"}
        self.engine.put_topic("jobs", config).result()
        self.data = {b"job %d" % n for n in range(jobs)}
        batch = list(self.data)
        for first in range(0, jobs, 100):
            self.engine.append("jobs", Batch(batch[first : first + 100])).result()

    def start(self) -> None:
        self.lives += 1
        settings = Settings(wal_file_bytes=1 << 20, wal_batch_bytes_max=1 << 18)
        random = SeededRandom(self.lives)
        self.engine = Engine(self.disk, StepRuntime(self.clock), settings, random=random)
        self.engine.recover()

    def now(self) -> int:
        return self.engine.state.clock.now_ms()

    def crash(self) -> None:
        self.engine.runtime.run()  # type: ignore[attr-defined]
        now = self.now()
        if self.dice.coin():
            self.engine.abandon()
            self.disk = self.disk.image(self.disk.position, "all", 0, power_loss=False)
        else:
            self.engine.close()
            self.disk = self.disk.copy()
        self.clock.set_wall(now)
        self.start()
        if not self.durable:
            self.holders.clear()

    def step(self) -> None:
        node = f"w{self.dice.below(WORKERS)}"
        mine = self.held.get(node, {})
        choice = self.dice.below(100)
        if choice < 3:
            self.held.pop(node, None)  # the worker is gone, and says nothing
        elif mine and choice < 12:
            self.give_back(node, mine)
        elif mine and choice < 20:
            answer = self.engine.queues.extend("jobs", node, list(mine), LEASE_MS).result()
            for seq, deadline in answer.deadlines.items():
                if seq in mine:
                    self.holders[seq] = (node, deadline)
        elif mine:
            self.finish(node, mine)
        else:
            self.claim(node)
        self.clock.advance(self.dice.below(30))

    def claim(self, node: str) -> None:
        answer = self.engine.queues.claim("jobs", node, 1 + self.dice.below(PER_CLAIM)).result()
        mine = self.held.setdefault(node, {})
        for job in answer.jobs:
            other = self.holders.get(job.seq)
            assert other is None or other[1] < self.now(), f"{job.seq} is held by {other}"
            assert job.data not in self.done, f"{job.data!r} was acknowledged before"
            self.holders[job.seq] = (node, job.deadline)
            mine[job.seq] = (job.lease_id, job.data)

    def finish(self, node: str, mine: dict[int, tuple[str, bytes]]) -> None:
        seqs = list(mine)
        answer = self.engine.queues.ack("jobs", node, seqs, [mine[s][0] for s in seqs]).result()
        for seq in set(seqs) - set(answer.skipped):
            self.done.add(mine[seq][1])
            del self.holders[seq]
        del self.held[node]

    def give_back(self, node: str, mine: dict[int, tuple[str, bytes]]) -> None:
        seqs = list(mine)
        delay = self.dice.below(3) * 500
        ids = [mine[s][0] for s in seqs]
        answer = self.engine.queues.nack("jobs", node, seqs, delay, ids).result()
        for seq in set(seqs) - set(answer.skipped):
            del self.holders[seq]
        del self.held[node]

    def run(self, crash_one_in: int) -> None:
        for _ in range(40 * len(self.data)):
            if not self.engine.topic("jobs").count:
                return
            self.step()
            if self.dice.below(crash_one_in) == 0:
                self.crash()
            elif self.dice.below(200) == 0:
                self.engine.checkpoint()
        raise AssertionError(f"{self.engine.queues.counts('jobs')} is left")

    def check(self) -> None:
        dead = contents(self.engine, "dead") if "dead" in self.engine.state.by_name else []
        assert not [data for data, times in Counter(dead).items() if times > 1]
        assert self.done.isdisjoint(dead)
        assert self.done | set(dead) == self.data
        counts = self.engine.queues.counts("jobs")
        assert (counts.ready, counts.in_flight, counts.delayed) == (0, 0, 0)
        assert counts.dead_lettered == len(dead)
        assert self.lives > 2
        self.engine.abandon()


@pytest.mark.parametrize("dead_letter", [False, True])
@pytest.mark.parametrize("durable", [False, True])
def test_every_job_is_done_and_none_by_two_at_once(durable: bool, dead_letter: bool) -> None:
    fleet = Fleet(1, 600, durable=durable, dead_letter=dead_letter)
    fleet.run(crash_one_in=60)
    fleet.check()


@pytest.mark.long
@pytest.mark.parametrize("durable", [False, True])
def test_twenty_thousand_jobs(durable: bool) -> None:
    fleet = Fleet(2, 20_000, durable=durable, dead_letter=True)
    fleet.run(crash_one_in=800)
    fleet.check()
