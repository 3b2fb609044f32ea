"""One worker of a load of jobs: it claims through the client, or is pushed jobs on a plain socket.

It finishes jobs, gives them back, extends, falls silent, vanishes in the middle of a request or a
stream, and comes late with leases that are over, all by dice.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import AsyncIterator, Sequence
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from headrace.api.queues import Job
from headrace.client import AsyncClient
from tests.harness.events import Violation
from tests.harness.job_ledger import Grant, JobLedger
from tests.support.server_lives import LOOK_SECONDS, Lost, heard

if TYPE_CHECKING:
    from tests.harness.job_fleet import Fleet

LEASES_MS = (150, 400, 1_500)
DELAYS_MS = (0, 0, 60, 250)
PER_CLAIM = 8
STALE_MAX = 200
POISON_ONE_IN = 37


class QueueKind(NamedTuple):
    """A queue of the load."""

    name: str
    durability: str
    durable: bool
    dead: str = ""
    max_deliveries: int = 0


QUEUES = (
    QueueKind("disk-kept", "disk", True, "dead-disk", 6),
    QueueKind("fsync-kept", "fsync", True, "dead-fsync", 5),
    QueueKind("disk-free", "disk", False),
    QueueKind("fsync-free", "fsync", False, "dead-disk", 7),
)


class Held(NamedTuple):
    """Jobs that a worker has."""

    ledger: JobLedger
    node: str
    jobs: list[Job]
    grants: list[Grant]


class Worker:
    """One life of one worker."""

    client: AsyncClient

    def __init__(self, fleet: Fleet, chance: random.Random, node: str, life: int) -> None:
        self.fleet = fleet
        self.chance = chance
        self.node = node
        self.life = life

    # By request

    async def claim_jobs(self) -> None:
        fleet, chance = self.fleet, self.chance
        while not fleet.finished:
            kind = chance.choice(QUEUES)
            lease_ms = chance.choice(LEASES_MS)
            count = chance.randint(1, PER_CLAIM)
            claim = self.client.claim(kind.name, self.node, count, lease_ms=lease_ms)
            claimed = await heard(claim, self.patience())
            fleet.told[self.life, "claimed"] += len(claimed.jobs)
            held = self.held(kind, claimed.jobs, lease_ms, bound=False)
            if held.jobs:
                await self.treat(held)
            else:
                await asyncio.sleep(LOOK_SECONDS)
            if fleet.stale and chance.random() < 0.3:
                late = fleet.stale.pop(chance.randrange(len(fleet.stale)))
                await self.end("ack", ordinary(late))

    def held(self, kind: QueueKind, jobs: Sequence[Job], lease_ms: int, *, bound: bool) -> Held:
        ledger = self.fleet.ledgers[kind.name]
        grants = [
            ledger.granted(
                job.data["job"],
                job.seq,
                job.lease_id,
                self.node,
                deadline=job.deadline,
                lease_ms=lease_ms,
                deliveries=job.deliveries,
                bound=bound,
                life=self.life,
            )
            for job in jobs
        ]
        return Held(ledger, self.node, list(jobs), grants)

    async def treat(self, held: Held) -> None:
        """Do something with jobs, or nothing."""
        choice = self.chance.random()
        if not self.fleet.calm and choice < 0.05:
            self.later(held)
            raise Lost(unknown=True)  # it vanishes
        if choice < 0.12:
            self.later(held)  # it falls silent
        elif choice < 0.2:
            await self.end("nack", held)
        else:
            if choice < 0.3:
                await self.extend(held)
            await asyncio.sleep(self.chance.random() * 0.005)
            await self.end("ack", ordinary(held))
            # What nobody can do is given back, or forgotten.
            if self.chance.random() < 0.7:
                await self.end("nack", poison(held))

    def later(self, held: Held) -> None:
        if len(self.fleet.stale) < STALE_MAX:
            self.fleet.stale.append(held)

    async def end(self, what: str, held: Held) -> None:
        """Acknowledge jobs or give them back."""
        ledger, grants = held.ledger, held.grants
        if not grants:
            return
        asked = ledger.ask(self.life)
        delay_ms = self.chance.choice(DELAYS_MS)
        client, name = self.client, ledger.name
        try:
            if what == "ack":
                acked = await heard(client.ack(name, held.node, held.jobs), self.patience())
                done, skipped = acked.acked, acked.skipped
            else:
                given_back = client.nack(name, held.node, held.jobs, delay_ms=delay_ms)
                nacked = await heard(given_back, self.patience())
                done, skipped = nacked.nacked, nacked.skipped
        except Lost as lost:
            if lost.unknown:
                ledger.lost(what, asked, grants)
            raise
        same(what, done + len(skipped), len(grants))
        ledger.done(what, asked, grants, skipped)
        if what == "nack":
            ledger.delayed(asked, grants, skipped, delay_ms)
        self.fleet.told[self.life, f"{what}ed"] += done

    async def extend(self, held: Held) -> None:
        asked = held.ledger.ask(self.life)
        lease_ms = self.chance.choice(LEASES_MS)
        call = self.client.extend(held.ledger.name, held.node, held.jobs, lease_ms)
        try:
            extended = await heard(call, self.patience())
        except Lost as lost:
            if lost.unknown:
                held.ledger.lost("extend", asked, held.grants, lease_ms)
            raise
        same("extend", extended.extended + len(extended.skipped), len(held.grants))
        held.ledger.extended(asked, held.grants, extended.deadlines)
        self.fleet.told[self.life, "extended"] += extended.extended

    def patience(self) -> float | None:
        """Now and then the worker dies in the middle of a request."""
        if self.fleet.calm or self.chance.random() > 0.02:
            return None
        return self.chance.uniform(0.0001, 0.01)

    # By stream

    async def be_pushed(self, kind: QueueKind) -> None:
        server = self.fleet.site.server
        lease_ms = self.chance.choice(LEASES_MS)
        most = self.chance.randint(1, PER_CLAIM)
        path = f"/v0/topics/{kind.name}/work?node={self.node}&max={most}&lease_ms={lease_ms}"
        try:
            reader, writer = await asyncio.open_connection(server.host, server.port)
        except OSError:
            raise Lost(unknown=False) from None
        mine: list[Grant] = []
        try:
            writer.write(f"GET {path} HTTP/1.1\r\nhost: localhost\r\n\r\n".encode())
            async for job in self.pushed(reader):
                held = self.held(kind, [job], lease_ms, bound=True)
                self.fleet.told[self.life, "pushed"] += 1
                mine += held.grants
                await self.treat_pushed(held)
        finally:
            self.fleet.ledgers[kind.name].dropped(mine)
            writer.transport.abort()
            with contextlib.suppress(OSError):
                await writer.wait_closed()

    async def treat_pushed(self, held: Held) -> None:
        if not self.fleet.calm and self.chance.random() < 0.02:
            # It neither reads nor speaks until its leases are over, and then is gone.
            await asyncio.sleep(self.chance.uniform(0.1, 0.5))
            self.later(held)
            raise Lost(unknown=True)
        await self.treat(held)

    async def pushed(self, reader: asyncio.StreamReader) -> AsyncIterator[Job]:
        """Jobs of a stream until it ends."""
        site = self.fleet.site
        try:
            head = await reader.readuntil(b"\r\n\r\n")
            if not head.startswith(b"HTTP/1.1 200 "):
                if site.ending or site.life != self.life:
                    return
                raise Violation(f"no stream: {head.decode()}")
            async for name, data in events(reader):
                if name == "job":
                    yield msgspec.json.decode(data, type=Job)
                elif "server_shutting_down" not in data:
                    raise Violation(f"a stream ended: {name} {data}")
        except (OSError, asyncio.IncompleteReadError):
            pass
        if not site.ending and site.life == self.life:
            raise Violation("the server hung up on a worker")


async def events(reader: asyncio.StreamReader) -> AsyncIterator[tuple[str, str]]:
    """Server-sent events of a chunked answer: name and data of each."""
    pending = b""
    while size := int(await reader.readuntil(b"\r\n"), 16):
        pending += (await reader.readexactly(size + 2))[:-2]
        *blocks, pending = pending.split(b"\n\n")
        for block in blocks:
            lines = dict(
                line.split(": ", 1) for line in block.decode().split("\n") if line[:1] not in ":"
            )
            if "data" in lines:
                yield lines["event"], lines["data"]


def is_poison(kind: QueueKind | JobLedger, job: str) -> bool:
    """Jobs that no worker can do."""
    return bool(kind.max_deliveries) and int(job.rpartition(":")[2]) % POISON_ONE_IN == 0


def ordinary(held: Held) -> Held:
    return _only(held, poison=False)


def poison(held: Held) -> Held:
    return _only(held, poison=True)


def _only(held: Held, *, poison: bool) -> Held:
    both = [
        (job, grant)
        for job, grant in zip(held.jobs, held.grants, strict=True)
        if is_poison(held.ledger, job.data["job"]) is poison
    ]
    return held._replace(jobs=[job for job, _ in both], grants=[grant for _, grant in both])


def same(what: object, found: object, wanted: object) -> None:
    if found != wanted:
        raise Violation(f"{what}: {found}, not {wanted}")
