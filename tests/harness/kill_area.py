"""One part of the load of a server that is killed again and again: who works, and who judges.

Areas share one server and know nothing of each other.  While the server is open their workers
work; after each restart, before anybody works again, each area looks at all that it was told.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import time
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import AsyncIterator, Coroutine, Sequence
from typing import Any, ClassVar, Generic, TypeVar

import msgspec

from headrace.client import AsyncClient
from headrace.client.message import Response
from headrace.core.errors import Unreachable
from tests.harness.events import Violation
from tests.support.server_lives import LOOK_SECONDS, Lost, Site

# What a server that is going or coming says.
NOT_NOW = frozenset({429, 503})
PATIENCE_SECONDS = 30.0
STORY_MAX = 60
S = TypeVar("S")


class Area(ABC):
    """A part of the load, and all that is known about it."""

    name: ClassVar[str]

    def __init__(self, site: Site, seed: int) -> None:
        self.site = site
        self.seed = seed
        self.judged = 0  # records and other facts that were compared with what was told
        self.finished = False

    @abstractmethod
    async def create(self) -> None:
        """Make what the workers work with, in the first life."""

    @abstractmethod
    def workers(self) -> list[Coroutine[None, None, None]]:
        """Those that work until `finished`, over all lives."""

    @abstractmethod
    async def check(self) -> None:
        """Raise unless all that was told is so; nobody works meanwhile."""

    def calm(self) -> None:  # noqa: B027 - most have nothing to do
        """The next life is the last."""

    async def end(self) -> None:  # noqa: B027
        """What is left to do and to judge in the last life, while workers still work."""

    def finish(self) -> None:
        self.finished = True

    async def last(self) -> None:  # noqa: B027
        """What is left to judge when nobody works any more."""

    def want(self, right: bool, wrong: object) -> None:
        """One fact that was compared."""
        if not right:
            raise Violation(f"{self.name}, life {self.site.life}: {wrong}"[:2_000])
        self.judged += 1


class Caller:
    """One connection to one life of the server, for any dialect."""

    def __init__(self, client: AsyncClient, *, patient: bool = False) -> None:
        self._client = client
        self._patience = PATIENCE_SECONDS if patient else 0.0

    async def call(
        self,
        method: str,
        path: str,
        body: object = None,
        headers: dict[str, str] | None = None,
    ) -> Response:
        """The answer, or `Lost`.  A body that is not bytes goes as JSON."""
        fields = dict(headers or {})
        if body is not None and not isinstance(body, bytes):
            body = msgspec.json.encode(body)
            fields.setdefault("content-type", "application/json")
        deadline = time.monotonic() + self._patience
        while True:
            try:
                answer = await self._client.request(method, path, headers=fields, body=body or b"")
            except Unreachable as error:
                raise Lost(unknown=error.detail.get("outcome") == "unknown") from None
            if answer.status not in NOT_NOW:
                return answer
            if time.monotonic() >= deadline:
                raise Lost(unknown=True)
            await asyncio.sleep(LOOK_SECONDS)


@contextlib.asynccontextmanager
async def caller(site: Site, *, patient: bool = False) -> AsyncIterator[Caller]:
    async with site.client() as client:
        yield Caller(client, patient=patient)


def as_json(answer: Response) -> Any:
    return msgspec.json.decode(answer.body)


class Owner(ABC, Generic[S]):
    """A client that does one thing at a time to things that only it touches.

    So it knows what is there, but for the one call that a kill may have interrupted: that was done
    or it was not.
    """

    def __init__(self, area: Area, name: str, state: S) -> None:
        self.area, self.name, self.state = area, name, state
        self.chance = random.Random(f"{area.seed} {area.name} {name}")
        self._begun: tuple[str, S] | None = None  # what is done, and the state if it was
        self._story: deque[str] = deque(maxlen=STORY_MAX)  # what was done last, for a finding

    async def work(self) -> None:
        site = self.area.site
        while not self.area.finished:
            await site.opened()
            if self._begun is not None:  # what comes of it is not known before it is judged
                await asyncio.sleep(LOOK_SECONDS)
                continue
            with contextlib.suppress(Lost):
                async with caller(site) as calls:
                    while not self.area.finished:
                        await self.act(calls)
            await asyncio.sleep(LOOK_SECONDS)

    @abstractmethod
    async def act(self, calls: Caller) -> None:
        """Do one thing, by dice."""

    @abstractmethod
    async def look(self, calls: Caller) -> S:
        """All that is there, in the form of the state."""

    async def change(
        self, what: str, after: S, call: Coroutine[None, None, Response], *statuses: int
    ) -> Response:
        """Make a call after which the state is `after`."""
        self._begun = (what, after)
        life = self.area.site.life
        try:
            answer = await call
        except Lost as lost:
            self._story.append(f"{life} {what}: {lost}")
            if not lost.unknown:
                self._begun = None
            raise
        self._story.append(f"{life} {what}: {answer.status}")
        self.area.want(answer.status in statuses, f"{self.name} {what}: {answer}")
        self.state, self._begun = after, None
        return answer

    async def judge(self) -> None:
        """Look at all; what was interrupted is known from then on."""
        async with caller(self.area.site, patient=True) as calls:
            found = await self.look(calls)
        if self.fits(found, self.state):
            self.settled(done=False)
        elif self._begun is not None and self.fits(found, self._begun[1]):
            self.state = self._begun[1]
            self._story.append(f"{self.area.site.life} it was done: {self._begun[0]}")
            self.settled(done=True)
        else:
            raise Violation(
                f"{self.area.name}, {self.name}, life {self.area.site.life}: "
                f"{differences(found, self.state)}; interrupted: "
                f"{self._begun[0] if self._begun else 'nothing'}; before: {list(self._story)}"
            )
        self._begun = None
        self.area.judged += self.weight()

    def fits(self, found: S, state: S) -> bool:
        """Whether what was found is what a state says."""
        return found == state

    def settled(self, *, done: bool) -> None:
        """It is known now whether the interrupted call was done."""

    def weight(self) -> int:
        """How many facts a look compares."""
        return 1


def differences(found: object, wanted: object, most: int = 400) -> str:
    """The parts of two dictionaries that differ, or both whole."""
    if isinstance(found, dict) and isinstance(wanted, dict):
        keys = [k for k in found.keys() | wanted.keys() if found.get(k) != wanted.get(k)]
        found = {k: found.get(k) for k in keys}
        wanted = {k: wanted.get(k) for k in keys}
    return f"found {found!r:.{most}}, not {wanted!r:.{most}}"


async def all_judge(owners: Sequence[Owner[Any]]) -> None:
    for owner in owners:
        await owner.judge()
