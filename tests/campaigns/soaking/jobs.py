"""Jobs of a queue: claimed, done, given back, held longer, forgotten, pushed, and dead letters.

What becomes of a job its number decides.  Every job is done exactly once, or is a dead letter.
"""

from __future__ import annotations

import asyncio
import time
from itertools import count

import msgspec

from tests.campaigns.soaking.content import payload
from tests.campaigns.soaking.ledger import Once
from tests.campaigns.soaking.readers import Row
from tests.campaigns.soaking.site import TRY_SECONDS, Client, Site
from tests.campaigns.soaking.topics import Line
from tests.campaigns.soaking.wire import Connection, Cut, events

DELIVERIES_MAX = 5
LEASE_MS = 5_000
STREAM_SECONDS = 25.0
JSON = {"Content-Type": "application/json"}


def dies(n: int) -> bool:
    """A job that nobody can do."""
    return n % 50 == 7


def given_back(n: int) -> bool:
    return n % 20 == 3


def forgotten(n: int) -> bool:
    return n % 41 == 5


def held_longer(n: int) -> bool:
    return n % 33 == 9


class Job(msgspec.Struct, rename={"seq": "$seq"}):
    seq: int
    lease_id: str
    deliveries: int
    data: msgspec.Raw


class Claimed(msgspec.Struct):
    claimed: list[Job]


class Queue:
    """A queue, its dead letters, and who works on it."""

    def __init__(self, site: Site, topic: str, dead: str, line: Line) -> None:
        self._site, self.topic, self.dead_topic = site, topic, dead
        self.line = line
        ledger = site.ledger
        self.done = Once(ledger, f"jobs of {topic}", (n for n in count(1) if not dies(n)))
        self.dead = Once(ledger, f"dead letters of {topic}", (n for n in count(1) if dies(n)))
        self.maybe: set[int] = set()  # the ack had no answer, and the job did not come again

    async def work(self, node: str) -> None:
        """Claim and work, until nothing is left once nobody adds jobs."""
        client = self._site.client()
        idle_since = 0.0
        while True:
            body = {"node": node, "max": 5, "lease_ms": LEASE_MS}
            try:
                answer = await client.once(
                    "POST", f"/v0/topics/{self.topic}/claim", msgspec.json.encode(body), JSON
                )
            except Cut:
                continue  # what it claimed comes again when the lease is over
            assert answer.status == 200, answer
            jobs = msgspec.json.decode(answer.body, type=Claimed).claimed
            for job in jobs:
                await self._do(client, node, job)
            if jobs:
                idle_since = 0.0
            elif self._site.quiet.is_set():
                idle_since = idle_since or time.monotonic()
                if time.monotonic() - idle_since > 3 * LEASE_MS / 1000:
                    return
            if not jobs:
                await asyncio.sleep(0.1)

    async def pushed(self, node: str) -> None:
        """Work on what a stream pushes; what it holds at a cut is given back by the server."""
        client = self._site.client()
        while not self._site.quiet.is_set():
            connection = Connection(self._site.port)
            try:
                async with asyncio.timeout(STREAM_SECONDS):
                    await self._stream(connection, client, node)
            except TimeoutError:
                pass
            except (OSError, EOFError):
                await asyncio.sleep(TRY_SECONDS)
            finally:
                await connection.close()

    async def _stream(self, connection: Connection, client: Client, node: str) -> None:
        path = f"/v0/topics/{self.topic}/work?node={node}&max=4&lease_ms={LEASE_MS}"
        await connection.send_head("GET", path, {"Accept": "text/event-stream"}, 0)
        status, _ = await connection.head()
        if status != 200:
            await asyncio.sleep(TRY_SECONDS)
            return
        self._site.counts["streams opened: work"] += 1
        async for event in events(connection.chunks()):
            if event.name == "job":
                await self._do(client, node, msgspec.json.decode(event.data, type=Job))

    async def _do(self, client: Client, node: str, job: Job) -> None:
        n = job.seq
        self._site.counts["jobs delivered"] += 1
        if not dies(n) and n in self.done:
            self._site.ledger.wrong(f"{self.topic}: job {n} was delivered after it was done")
        if bytes(job.data) != payload(self.topic, n):
            self._site.ledger.wrong(f"{self.topic}: job {n} holds {bytes(job.data)[:80]!r}")
        self.maybe.discard(n)
        first = job.deliveries == 1
        if dies(n) or (given_back(n) and first):
            await self._tell(client, node, job, "nack", delay_ms=200 * (n % 3))
            return
        if forgotten(n) and first:
            self._site.counts["jobs forgotten"] += 1
            return
        if held_longer(n):
            await self._tell(client, node, job, "extend", lease_ms=2 * LEASE_MS)
        doubtful = n in self.maybe  # another worker's ack may have counted
        self.maybe.add(n)  # until there is an answer; the stream that pushed it may end before
        try:
            acked = await self._tell(client, node, job, "ack")
        except Cut:
            return
        if acked or not doubtful:
            self.maybe.discard(n)
        if acked:
            self.done.take(n)
            self._site.counts["jobs done"] += 1

    async def _tell(self, client: Client, node: str, job: Job, what: str, **more: int) -> bool:
        """Whether it counted: the lease was still held."""
        body = {"node": node, "seqs": [job.seq], "lease_ids": [job.lease_id], **more}
        path = f"/v0/topics/{self.topic}/{what}"
        try:
            answer = await client.once("POST", path, msgspec.json.encode(body), JSON)
        except Cut:
            if what == "ack":
                raise
            return False
        assert answer.status == 200, answer
        skipped = msgspec.json.decode(answer.body)["skipped"]
        self._site.counts[f"jobs: {what}" if not skipped else f"jobs: {what} too late"] += 1
        return not skipped

    def bury(self, row: Row) -> None:
        """A dead letter was read."""
        n = int((row.meta or {})["$dead_letter_src_seq"])
        if bytes(row.data) != payload(self.topic, n):
            self._site.ledger.wrong(f"{self.dead_topic}: seq {row.seq} is of job {n}")
        self._site.counts["dead letters"] += 1
        if dies(n):
            self.dead.take(n)
        else:  # its workers were too late each time
            self._site.counts["jobs dead by lateness"] += 1
            self.done.take(n)

    async def finish(self) -> None:
        """Every job is done, or a dead letter, and the queue is empty."""
        for n in sorted(self.maybe):
            if n not in self.done:
                self.done.take(n)  # its ack had no answer; it did not come again
        self.done.finish(self.line.head)
        self.dead.finish(self.line.head)
        state = await self._site.client().json("GET", f"/v0/topics/{self.topic}")
        if state["count"]:
            self._site.ledger.wrong(f"{self.topic}: {state['count']} jobs are left: {state}")
