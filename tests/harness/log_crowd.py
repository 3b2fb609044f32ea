"""Clients of one log, of whichever dialect, on a server that is killed under them.

Only this file decides what they do: they append, with and without conditions, read on, read from
the middle, and look at the tail.  `linearizability.py` judges what they saw.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, NamedTuple

from headrace.client import AsyncClient
from headrace.testing.process import ServerProcess
from tests.harness.linearizability import History, chain
from tests.support.server_lives import LOOK_SECONDS, Lost, Site, together

RECORDS_MAX = 4  # of one append
PART_LIMIT = 20
PLACES_KEPT = 400


class Stored(NamedTuple):
    """An append was stored; its first seq, from 1."""

    first_seq: int


class Elsewhere(NamedTuple):
    """An append was refused: the tail is not the one that it asked for."""

    tail: int


class Fenced(NamedTuple):
    """An append was refused: the fencing token is not the one that it gave."""

    token: bytes


Outcome = Stored | Elsewhere | Fenced


class Shown(NamedTuple):
    """Some records, and whether there was nothing behind them."""

    records: list[bytes]
    to_tail: bool


class LogClient(ABC):
    """One connection to one life of the server, in one dialect; a call is answered or `Lost`."""

    dialect: ClassVar[str]
    fencing: ClassVar[bool] = False

    def __init__(self, client: AsyncClient, server: ServerProcess, log: str) -> None:
        self.client, self.server, self.log = client, server, log

    @abstractmethod
    async def create(self, chance: random.Random) -> str:
        """Make the log; returns what clients call it."""

    @abstractmethod
    def record(self, text: str) -> bytes:
        """A record of this text."""

    @abstractmethod
    async def append(
        self, records: Sequence[bytes], *, after: int | None, token: bytes | None, fences: bool
    ) -> Outcome: ...

    @abstractmethod
    async def read(self, place: int, limit: int | None = None) -> Shown:
        """Records behind the first `place`; `limit` is a wish."""

    @abstractmethod
    async def tail(self) -> int: ...


@dataclass
class Crowd:
    """Some clients, what they saw, and what they tell each other."""

    site: Site
    dialect: type[LogClient]
    seed: int
    clients: int = 8
    operations: int = 500  # of each
    kills: int = 4
    history: History = field(default_factory=History)
    done: int = 0
    known_tail: int = 0
    known_token: bytes = b""
    places: list[int] = field(default_factory=lambda: [0])  # ends of appends
    log: str = ""

    async def run(self) -> None:
        """The whole story; raises a `Violation` unless what they saw is one order."""
        site = self.site
        await site.start()
        async with site.client(patient=True) as client:
            chance = random.Random(f"{self.seed} log")
            self.log = await self.dialect(client, site.server, "").create(chance)
        site.open()
        actors = [Actor(self, number) for number in range(self.clients)]
        await together(self._direct(), [actor.work() for actor in actors], lambda: None)
        site.kill()
        await site.start()
        async with site.client(patient=True) as client:
            mine = self.dialect(client, site.server, self.log)
            self.history.check(await everything(mine))

    async def _direct(self) -> None:
        """Kill the server when a part of all operations is done, and again."""
        chance = random.Random(f"{self.seed} kills")
        total = self.clients * self.operations
        for at in sorted(chance.uniform(0.05, 0.95) for _ in range(self.kills)):
            while self.done < total * at:
                await asyncio.sleep(LOOK_SECONDS / 4)
            self.site.kill()
            await self.site.deserted()
            await self.site.start()
            self.site.open()

    def ended(self, last_seq: int) -> None:
        """An append ends there."""
        self.places.append(last_seq)
        del self.places[:-PLACES_KEPT]
        self.known_tail = max(self.known_tail, last_seq)


async def everything(client: LogClient) -> list[bytes]:
    log: list[bytes] = []
    while True:
        shown = await client.read(len(log))
        log += shown.records
        if shown.to_tail:
            return log


class Actor:
    """One client over all lives: a place up to which it has read, and chances."""

    def __init__(self, crowd: Crowd, number: int) -> None:
        self._crowd, self._number = crowd, number
        self._chance = random.Random(f"{crowd.seed} client {number}")
        self._left = crowd.operations
        self._place, self._hash, self._count = 0, 0, 0

    async def work(self) -> None:
        crowd, site = self._crowd, self._crowd.site
        while self._left:
            await site.opened()
            with contextlib.suppress(Lost):
                async with site.client() as client:
                    mine = crowd.dialect(client, site.server, crowd.log)
                    while self._left:
                        self._left -= 1
                        crowd.done += 1
                        await self._act(mine)
            await asyncio.sleep(LOOK_SECONDS)

    async def _act(self, client: LogClient) -> None:
        chance = self._chance.random()
        if chance < 0.5:
            await self._append(client)
        elif chance < 0.55 and client.fencing:
            await self._fence(client)
        elif chance < 0.75:
            await self._read_on(client)
        elif chance < 0.85:
            await self._read_part(client)
        else:
            began = self._crowd.history.now()
            self._saw(began, await client.tail())

    def _saw(self, began: int, tail: int) -> None:
        self._crowd.history.saw_tail(began, tail)
        self._crowd.known_tail = max(self._crowd.known_tail, tail)

    def _text(self) -> str:
        self._count += 1
        return f"{self._number}-{self._count}"

    async def _append(self, client: LogClient) -> None:
        crowd, chance = self._crowd, self._chance
        records = [client.record(self._text()) for _ in range(chance.randint(1, RECORDS_MAX))]
        after = crowd.known_tail if chance.random() < 0.4 else None
        token = crowd.known_token if client.fencing and chance.random() < 0.4 else None
        await self._send(client, records, after=after, token=token, fences=False)

    async def _fence(self, client: LogClient) -> None:
        new = self._text().encode()
        given = self._crowd.known_token
        outcome = await self._send(client, [new], after=None, token=given, fences=True)
        if isinstance(outcome, Stored):
            self._crowd.known_token = new

    async def _send(
        self,
        client: LogClient,
        records: list[bytes],
        *,
        after: int | None,
        token: bytes | None,
        fences: bool,
    ) -> Outcome:
        crowd, history = self._crowd, self._crowd.history
        conditions: dict[str, Any] = {"after": after, "token": token, "fences": fences}
        began = history.now()
        try:
            outcome = await client.append(records, **conditions)
        except Lost as lost:
            if lost.unknown:
                history.lost_sight(began, records, **conditions)
            raise
        if isinstance(outcome, Stored):
            history.appended(began, records, outcome.first_seq, **conditions)
            crowd.ended(outcome.first_seq + len(records) - 1)
        elif isinstance(outcome, Elsewhere):
            assert after is not None, outcome
            history.refused(began, after=after, tail=outcome.tail)
            crowd.known_tail = max(crowd.known_tail, outcome.tail)
        else:
            assert token is not None, outcome
            history.fenced_off(began, given=token, told=outcome.token)
            crowd.known_token = outcome.token
        return outcome

    async def _read_on(self, client: LogClient) -> None:
        """Read on to the tail: as if all were read from the start."""
        began = self._crowd.history.now()
        while True:
            shown = await client.read(self._place)
            self._hash = chain(self._hash, shown.records)
            self._place += len(shown.records)
            if shown.to_tail:
                break
        self._crowd.history.read(began, self._place, self._hash)
        self._crowd.known_tail = max(self._crowd.known_tail, self._place)

    async def _read_part(self, client: LogClient) -> None:
        place = self._chance.choice(self._crowd.places)
        began = self._crowd.history.now()
        shown = await client.read(place, PART_LIMIT)
        self._crowd.history.read_part(began, place + 1, shown.records)
