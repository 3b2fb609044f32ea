"""The story of a server that is killed again and again under the load of many areas.

Only this file decides when and how a server dies: at any moment, just when a file comes or goes
(a rotation, a checkpoint, a merge, a snapshot), while it recovers, at an exact system call.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
from collections import Counter
from pathlib import Path

from tests.harness.kill_area import Area
from tests.support.server_lives import Site, together
from tests.support.strace import strace_works, traced

LIFE_SECONDS = (0.05, 0.8)  # under load
STUMBLE_SECONDS_MAX = 0.1
STUMBLES_MAX = 2
FILE_SECONDS_MAX = 1.5  # for a file to come or go
FILE_LATER_SECONDS_MAX = 0.006
LOOK_FILES_SECONDS = 0.002
CALL_SECONDS_MAX = 3.0  # for the system call to come
# How often each is; a server is killed at an exact system call where strace may trace.
WAYS = {"at any moment": 5, "at a change of files": 3, "at a system call": 2}
CALLS = {
    "pwritev,pwritev2": 60,
    "pwrite64": 8,
    "fdatasync": 40,
    "fsync": 8,
    "rename": 4,
    "unlink": 4,
}
FINISH_SECONDS = 2.0  # who is pushed jobs never finishes


class Killer:
    """Ends lives of one server, in ways by dice."""

    def __init__(self, site: Site, directory: Path, seed: int) -> None:
        self._site, self._directory = site, directory
        self._chance = random.Random(f"{seed} kills")
        self._ways = [way for way, often in WAYS.items() for _ in range(often)]
        if not strace_works():
            self._ways = [way for way in self._ways if way != "at a system call"]
        self.counts: Counter[str] = Counter()

    async def kill(self) -> None:
        """Let the server live a while under load, and kill it."""
        chance, site = self._chance, self._site
        way = chance.choice(self._ways)
        await asyncio.sleep(chance.uniform(*LIFE_SECONDS))
        if way == "at a system call" and await self._at_a_call():
            site.kill()
        else:
            if way == "at a change of files":
                await self._change_of_files()
                await asyncio.sleep(chance.random() * FILE_LATER_SECONDS_MAX)
            elif way == "at a system call":
                way = "at any moment"
            site.kill()
        self.counts[f"kills {way}"] += 1

    def stumbles(self) -> list[float]:
        """How long each start runs that is killed before one is let through."""
        chance = self._chance
        if chance.random() > 0.25:
            return []
        count = chance.randint(1, STUMBLES_MAX)
        self.counts["kills during recovery"] += count
        return [chance.random() * STUMBLE_SECONDS_MAX for _ in range(count)]

    async def _change_of_files(self) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(FILE_SECONDS_MAX):
                before = names_below(self._directory)
                while names_below(self._directory) == before:
                    await asyncio.sleep(LOOK_FILES_SECONDS)

    async def _at_a_call(self) -> bool:
        """Whether the server has died at a system call."""
        call = self._chance.choice(list(CALLS))
        rule = f"{call}:signal=SIGKILL:when={self._chance.randint(1, CALLS[call])}"
        self._site.may_die()
        with traced(self._site.server.process.pid, call, rule):
            return await self._site.died(CALL_SECONDS_MAX)


def names_below(directory: Path) -> frozenset[str]:
    """The names of all files."""
    return frozenset(
        os.path.join(path, name) for path, _, names in os.walk(directory) for name in names
    )


class KillStory:
    """All areas on one server, which is killed so many times."""

    def __init__(self, site: Site, directory: Path, areas: list[Area], seed: int) -> None:
        self._site, self._areas = site, areas
        self.killer = Killer(site, directory, seed)

    async def run(self, kills: int) -> None:
        site, areas = self._site, self._areas
        await site.start()
        for area in areas:
            await area.create()
        site.open()
        workers = [worker for area in areas for worker in area.workers()]
        await together(self._direct(kills), workers, self._finish, FINISH_SECONDS)
        for area in areas:
            await area.last()

    async def _direct(self, kills: int) -> None:
        site = self._site
        while site.kills < kills:
            await self.killer.kill()
            await site.deserted()
            await site.start(stumbles=self.killer.stumbles())
            if site.kills >= kills:
                for area in self._areas:
                    area.calm()
            for area in self._areas:
                await area.check()
            site.open()
        for area in self._areas:
            await area.end()

    def _finish(self) -> None:
        for area in self._areas:
            area.finish()
