"""A crew in a process of its own: it works until it is told to stop, and closes its accounts."""

from __future__ import annotations

import asyncio
import multiprocessing
import traceback
from collections import Counter
from collections.abc import Coroutine
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from typing import Any

from tests.campaigns.soaking.ledger import Ledger
from tests.campaigns.soaking.native_crew import NativeCrew
from tests.campaigns.soaking.site import Site
from tests.campaigns.soaking.stream_crew import StreamCrew

CREWS: dict[str, type[NativeCrew] | type[StreamCrew]] = {
    "native": NativeCrew,
    "streams": StreamCrew,
}
TELL_SECONDS = 2.0
END_SECONDS_MAX = 900.0
REASON_CHARACTERS_MAX = 2_000


@dataclass
class Said:
    """What a crew tells of itself."""

    counts: Counter[str] = field(default_factory=Counter)
    lags: dict[str, int] = field(default_factory=dict)
    over: bool = False
    findings: list[str] = field(default_factory=list)
    heads: dict[str, int] = field(default_factory=dict)
    latencies: Counter[int] = field(default_factory=Counter)


async def _guarded(name: str, ledger: Ledger, work: Coroutine[Any, Any, None]) -> None:
    try:
        await work
    except Exception as error:  # noqa: BLE001 - whatever it is, it is a finding; others go on
        last = traceback.format_exc()[-REASON_CHARACTERS_MAX:]
        ledger.wrong(f"{name}: {type(error).__name__}: {error}\n{last}")


async def _work(kind: str, port: int, pipe: Connection) -> None:
    ledger = Ledger()
    site = Site(port, ledger)
    crew = CREWS[kind](site)
    await crew.prepare()
    writing = [asyncio.create_task(_guarded(n, ledger, w)) for n, w in crew.writing().items()]
    reading = [asyncio.create_task(_guarded(n, ledger, w)) for n, w in crew.reading().items()]
    while not pipe.poll():
        pipe.send(Said(ledger.counts, crew.lags(), findings=ledger.findings))
        await asyncio.sleep(TELL_SECONDS)
    said = Said(ledger.counts, findings=ledger.findings, over=True)
    try:
        async with asyncio.timeout(END_SECONDS_MAX):
            site.stopping.set()
            await asyncio.gather(*writing)
            site.quiet.set()
            await asyncio.gather(*reading)
            said.heads = await crew.close_accounts()
    except TimeoutError:
        left = [task for task in (*writing, *reading) if not task.done()]
        ledger.wrong(f"{len(left)} of crew {kind} do not come to their end: {left}")
    except Exception as error:  # noqa: BLE001 - it is a finding
        ledger.wrong(f"{kind}: {type(error).__name__}: {error}")
    said.latencies = site.latencies.buckets
    pipe.send(said)


def run(kind: str, port: int, pipe: Connection) -> None:
    """The process of a crew."""
    asyncio.run(_work(kind, port, pipe))


class Crew:
    """A crew, as the campaign sees it."""

    def __init__(self, kind: str, port: int) -> None:
        context = multiprocessing.get_context("spawn")
        self.kind = kind
        self._pipe, theirs = context.Pipe()
        self.process = context.Process(target=run, args=(kind, port, theirs), daemon=True)
        self.process.start()
        theirs.close()
        self.said = Said()

    def listen(self) -> Said:
        """What it said last."""
        try:
            while not self.said.over and self._pipe.poll():
                self.said = self._pipe.recv()
        except EOFError:
            self.said.findings.append(f"the process of crew {self.kind} ended")
            self.said.over = True
        return self.said

    def stop(self) -> None:
        """Have it stop writing and close its accounts."""
        self._pipe.send("stop")

    def finish(self) -> Said:
        """Wait until it has."""
        while not self.said.over:
            self._pipe.poll(1.0)
            self.listen()
        self.process.join()
        return self.said

    def end(self) -> None:
        self.process.kill()
        self.process.join()
