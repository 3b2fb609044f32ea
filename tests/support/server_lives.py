"""A server on one directory that is killed, stopped and started again, for tests of crashes.

The rule it owns: who talks to the server knows which life of it he talks to, and that a life is
about to end is known before it ends.  A request has an answer, or is `Lost`.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterable, Sequence
from typing import Self, TypeVar

from headrace.client import AsyncClient
from headrace.core.errors import HeadraceError, NotReady, ShuttingDown, Throttled, Unreachable
from headrace.testing.process import ServerProcess

LOOK_SECONDS = 0.02
PATIENCE_MS = 60_000
T = TypeVar("T")


class Lost(Exception):
    """A request without an answer; `unknown`: it may have been done."""

    def __init__(self, *, unknown: bool) -> None:
        super().__init__("it may have been done" if unknown else "it was not done")
        self.unknown = unknown


class Site:
    """One directory and the server on it."""

    def __init__(self, directory: str | os.PathLike[str], **settings: str | int) -> None:
        self.life = 0
        self.kills = 0
        self.ending = True  # it is down, or going down
        self._up = asyncio.Event()
        self._directory = directory
        self._settings: dict[str, str | int] = {"log": "error", **settings}
        self._server: ServerProcess | None = None
        self._clients = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._server is not None:
            self._server.kill()

    @property
    def server(self) -> ServerProcess:
        assert self._server is not None
        return self._server

    async def start(self, *, stumbling: bool = False, stumbles: Sequence[float] = ()) -> None:
        """Start it; it is not open before somebody says so.

        `stumbling`: it is killed as soon as it runs, and started once more; `stumbles`: so many
        times, each so many seconds after it runs, which is while it recovers.
        """
        for seconds in (0.0,) if stumbling else stumbles:
            self._launch()
            await asyncio.sleep(seconds)
            self.kill()
        self._launch()
        self.life += 1
        self.ending = False
        async with AsyncClient(self.server.url, deadline_ms=PATIENCE_MS) as client:
            while True:
                with contextlib.suppress(NotReady):
                    await client.ready()
                    return
                await asyncio.sleep(LOOK_SECONDS)

    def _launch(self) -> None:
        # Nobody else has anything to do meanwhile, and so no process can be forgotten.
        self._server = ServerProcess(
            self._directory, variables=None, stderr=None, module="headrace", **self._settings
        )

    def may_die(self) -> None:
        """Whatever ends from now on may end because the server does; it still serves."""
        self.ending = True

    def kill(self) -> None:
        self._end()
        self.server.kill()
        self.kills += 1

    async def died(self, seconds: float) -> bool:
        """Whether it ends by itself within so many seconds, as a death that was arranged."""
        process, deadline = self.server.process, time.monotonic() + seconds
        while process.poll() is None:
            if time.monotonic() > deadline:
                return False
            await asyncio.sleep(LOOK_SECONDS / 10)
        return True

    async def stop(self) -> None:
        """A clean stop; what is under way gets its answers."""
        self._end()
        process = self.server.process
        process.send_signal(signal.SIGTERM)
        while process.poll() is None:
            await asyncio.sleep(LOOK_SECONDS)
        code = self.server.stop()
        assert code == 0, f"the server ended with {code}"

    def _end(self) -> None:
        self.ending = True
        self._up.clear()

    def open(self) -> None:
        """Everybody may come."""
        self._up.set()

    async def opened(self) -> None:
        """Until everybody may come."""
        while not self._up.is_set():  # again: it may have ended before the waiter came to run
            await self._up.wait()

    @contextlib.asynccontextmanager
    async def client(self, *, patient: bool = False) -> AsyncIterator[AsyncClient]:
        """A client of this life, which tries once, or is patient."""
        deadline_ms = PATIENCE_MS if patient else 0
        self._clients += 1
        try:
            async with AsyncClient(self.server.url, deadline_ms=deadline_ms) as client:
                yield client
        finally:
            self._clients -= 1

    async def deserted(self) -> None:
        """Until everybody has heard the last of the life that ended."""
        while self._clients:
            await asyncio.sleep(LOOK_SECONDS)


async def heard(answer: Awaitable[T], seconds: float | None = None) -> T:
    """The answer, or `Lost`: the server is gone or refused, or nobody waited any longer."""
    try:
        async with asyncio.timeout(seconds):
            return await answer
    except TimeoutError:
        raise Lost(unknown=True) from None
    except HeadraceError as error:
        if not isinstance(error, Unreachable | ShuttingDown | NotReady | Throttled):
            raise
        raise Lost(unknown=error.detail.get("outcome") == "unknown") from None


async def together(
    story: Coroutine[None, None, None],
    others: Iterable[Coroutine[None, None, None]],
    finish: Callable[[], None],
    seconds: float | None = None,
) -> None:
    """Run a story while others do their work; then tell them to finish.

    Whoever fails ends everything.  Those that have not finished after `seconds` are sent away.
    """
    main = asyncio.create_task(story)
    tasks = [asyncio.create_task(other) for other in others]
    try:
        waiting = {main, *tasks}
        while not main.done():
            done, waiting = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                task.result()
        finish()
        done, waiting = await asyncio.wait(tasks, timeout=seconds)
        for task in done:
            task.result()
    finally:
        for task in (main, *tasks):
            task.cancel()
        await asyncio.gather(main, *tasks, return_exceptions=True)
