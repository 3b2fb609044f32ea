"""Workers that crash, on a server that crashes: a load of jobs over HTTP.

Half of the workers claim through the client, half are pushed jobs by `/work`.  `JobLedger` says
whether what they were told can be true; after each crash every job is looked for.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import random
from collections import Counter
from collections.abc import Coroutine
from dataclasses import dataclass, field
from typing import Any

from headrace.client import AsyncClient, Draft, TopicState
from tests.harness.job_ledger import JobLedger, Letter
from tests.harness.job_worker import QUEUES, Held, QueueKind, Worker, same
from tests.support.server_lives import LOOK_SECONDS, Lost, Site, heard, together

BATCH_MAX = 40
PAGE = 1_000
LOOKS_MAX = 500  # for a job that is being moved


@dataclass
class Fleet:
    """The load and all that is known about it."""

    site: Site
    seed: int
    workers: int
    jobs: int  # of each queue
    crashes: int
    calm: bool = False  # nobody crashes any more
    finished: bool = False
    told: Counter[tuple[int, str]] = field(default_factory=Counter)  # life, what -> jobs
    ledgers: dict[str, JobLedger] = field(default_factory=dict)
    stale: list[Held] = field(default_factory=list)
    producing: int = 0

    def __post_init__(self) -> None:
        for kind in QUEUES:
            self.ledgers[kind.name] = JobLedger(kind.name, kind.durable, kind.max_deliveries)

    # The whole story

    async def run(self) -> None:
        await self.site.start()
        await self.create()
        self.site.open()
        await together(self.direct(), self.everybody(), self.finish, seconds=1)
        await self.check_end()

    def everybody(self) -> list[Coroutine[None, None, None]]:
        """Producers and workers."""
        self.producing = len(QUEUES)
        return [
            *(self.produce(kind) for kind in QUEUES),
            *(self.work(number) for number in range(self.workers)),
        ]

    async def check_end(self) -> None:
        """When all have finished; the server is killed a few times more."""
        await self.check_counters()
        await self.check_again()
        await self.redrive()

    def finish(self) -> None:
        self.finished = True

    async def create(self) -> None:
        async with self.site.client(patient=True) as client:
            await client.put_topic("dead-fsync", {"durability": "fsync"})
            for kind in QUEUES:
                config: dict[str, object] = {
                    "type": "queue",
                    "durability": kind.durability,
                    "leases_durable": kind.durable,
                    "idempotency_window_ms": 3_600_000,
                }
                if kind.dead:
                    config |= {"max_deliveries": kind.max_deliveries, "dead_letter": kind.dead}
                await client.put_topic(kind.name, config)

    async def direct(self) -> None:
        """End the server when so much is done, again and again; then let them finish."""
        chance = random.Random(f"{self.seed} crashes")
        # Of what all lives but the last do together.
        share = self.jobs * len(QUEUES) * 0.9 / self.crashes
        for number in range(self.crashes):
            due = share * (number + chance.uniform(0.3, 1))
            while self.done() < due:
                await asyncio.sleep(LOOK_SECONDS)
            # The last life has no crash of a worker: what it counts is what they were told.
            self.calm = number == self.crashes - 1
            await self.crash(clean=number % 3 == 1, stumbling=number % 4 == 2)
        await self.drained()

    async def drained(self) -> None:
        """Until every job was sent and has its end."""
        while self.producing or await self.left():
            await asyncio.sleep(LOOK_SECONDS * 5)

    def done(self) -> int:
        return sum(ledger.settled() for ledger in self.ledgers.values())

    async def left(self) -> int:
        """Jobs that are still there."""
        async with self.site.client(patient=True) as client:
            return sum([(await client.topic(kind.name)).count for kind in QUEUES])

    async def crash(self, *, clean: bool, stumbling: bool) -> None:
        """End the server, start it, and look before anybody else does."""
        if clean:
            for ledger in self.ledgers.values():
                ledger.stopping(self.site.life)
            await self.site.stop()
        else:
            self.site.kill()
        await self.site.deserted()
        await self.site.start(stumbling=stumbling)
        await self.check_places()
        self.site.open()

    # Producers

    async def produce(self, kind: QueueKind) -> None:
        chance = random.Random(f"{self.seed} {kind.name}")
        ledger = self.ledgers[kind.name]
        numbers = iter(range(self.jobs))
        while batch := [
            f"{kind.name}:{n}" for n in itertools.islice(numbers, chance.randint(1, BATCH_MAX))
        ]:
            ledger.sent.update(batch)
            await self._append(kind, ledger, batch)
        self.producing -= 1

    async def _append(self, kind: QueueKind, ledger: JobLedger, batch: list[str]) -> None:
        """Until it is answered, under one key."""
        records = [Draft({"job": job}, tag="t", node="n", meta={"job": job}) for job in batch]
        while True:
            await self.site.opened()
            with contextlib.suppress(Lost):
                async with self.site.client() as client:
                    done = await heard(
                        client.append(kind.name, records, idempotency_key=f"key {batch[0]}")
                    )
                assert done.first_seq is not None  # under a key it is always known
                ledger.appended(batch, done.first_seq)
                return
            await asyncio.sleep(LOOK_SECONDS)

    # Workers

    async def work(self, number: int) -> None:
        """One worker: it crashes, and starts again under another name."""
        chance = random.Random(f"{self.seed} worker {number}")
        lives = 0
        while not self.finished:
            await self.site.opened()
            lives += 1
            worker = Worker(self, chance, f"w{number}.{lives}", self.site.life)
            with contextlib.suppress(Lost):
                async with self.site.client() as worker.client:
                    if number % 2:
                        await worker.be_pushed(QUEUES[number // 2 % len(QUEUES)])
                    else:
                        await worker.claim_jobs()
            await asyncio.sleep(LOOK_SECONDS)

    # Checks

    async def check_places(self) -> None:
        """Before anybody works: every job is where it must be, and counted so."""
        async with self.site.client(patient=True) as client:
            for kind in QUEUES:
                ledger = self.ledgers[kind.name]
                ledger.check_history()
                state, live, letters = await self._places(client, kind)
                ledger.check_places(live, letters)
                assert state.queue is not None
                counts = (state.queue.ready, state.queue.in_flight)
                same(kind, state.queue.dead_lettered, len(letters))
                same(kind, state.count, len(live))
                if not kind.durable:
                    same(kind, counts, (len(live), 0))

    async def _places(
        self, client: AsyncClient, kind: QueueKind
    ) -> tuple[TopicState, dict[int, str], list[Letter]]:
        """The state of a queue, its jobs by seq and its dead letters, all of one moment.

        A lease that a restart kept can end while they are read, and its job become a dead letter:
        first it is copied, then it is deleted.  What is in both places for longer is wrong.
        """
        looks = 0
        while True:
            looks += 1
            before = (await self._letters(client)).get(kind.name, [])
            state = await client.topic(kind.name)
            live = {r.seq: r.data["job"] for r in await read_all(client, kind.name)}
            still = (await client.topic(kind.name)).queue == state.queue
            still &= before == (await self._letters(client)).get(kind.name, [])
            moving = {letter.job for letter in before} & set(live.values())
            if still and (not moving or looks > LOOKS_MAX):
                return state, live, before
            await asyncio.sleep(LOOK_SECONDS)

    async def check_counters(self) -> None:
        """The last life: what the server counted is what workers were told."""
        async with self.site.client(patient=True) as client:
            figures = await _figures(client)
        for what in ("claimed", "pushed", "acked", "nacked", "extended"):
            counted = figures[f'headrace_queue_jobs_total{{event="{what}"}}']
            same(what, counted, self.told[self.site.life, what])
        for kind in QUEUES:
            for what in ("ready", "in_flight", "delayed"):
                same(kind, figures[f'headrace_topic_queue_{what}{{topic="{kind.name}"}}'], 0)

    async def check_again(self) -> None:
        """Nothing is left, and everything has an end; also after another crash."""
        for last in (False, True):
            await self.check_places()
            same("left", await self.left(), 0)
            for kind in QUEUES:
                same(kind, len(self.ledgers[kind.name].jobs), self.jobs)
            if not last:
                self.site.kill()
                await self.site.start()

    async def redrive(self) -> None:
        """Dead letters go back, each once, although the server dies on the way."""
        chance = random.Random(f"{self.seed} redrive")
        async with self.site.client(patient=True) as client:
            letters = await self._letters(client)
        fatal = {"dead-disk": chance.randint(0, 3), "dead-fsync": chance.randint(0, 3)}
        for topic, steps in fatal.items():
            for step in range(1_000):
                deadline = chance.uniform(0.0005, 0.01) if step == steps else None
                done = False
                with contextlib.suppress(Lost):
                    async with self.site.client() as client:
                        told = await heard(client.redrive(topic, limit=5), deadline)
                        # What was skipped is being moved by what a crash interrupted.
                        done = told.done and not told.skipped
                if step == steps:
                    self.site.kill()
                    await self.site.start()
                elif done:
                    break
        async with self.site.client(patient=True) as client:
            same("letters", await self._letters(client), {})
            for kind in QUEUES:
                found = sorted([r.data["job"] for r in await read_all(client, kind.name)])
                same(kind, found, sorted(letter.job for letter in letters.get(kind.name, [])))

    async def _letters(self, client: AsyncClient) -> dict[str, list[Letter]]:
        """Dead letters by the queue that they come from."""
        found: dict[str, list[Letter]] = {}
        there = [summary.topic async for summary in client.topics("dead-")]
        for topic in there:
            for record in await read_all(client, topic):
                same("tag and node", (record.tag, record.node), ("t", "n"))
                meta = record.meta
                letter = Letter(record.data["job"], meta)
                found.setdefault(meta["$dead_letter_from"], []).append(letter)
        return found


async def read_all(client: AsyncClient, topic: str) -> list[Any]:
    """Every record of a topic."""
    return [r async for r in client.follow(topic, to_head=True, limit=PAGE) if hasattr(r, "seq")]


async def _figures(client: AsyncClient) -> dict[str, float]:
    lines = (await client.metrics_text()).splitlines()
    pairs = [line.rpartition(" ") for line in lines if not line.startswith("#")]
    return {name: float(value) for name, _, value in pairs}
