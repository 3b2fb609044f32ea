"""The server as the clients of the soak see it: at one port, at times away, and back soon.

A call is made until the server has answered it.  `Cut` is raised only to those who ask for it,
because to them a second try is not the same as the first.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections import Counter
from collections.abc import Mapping
from typing import Any

import httpx
import msgspec

from tests.campaigns.soaking.ledger import Ledger
from tests.campaigns.soaking.wire import Answer, Connection, Cut

AWAY_SECONDS_MAX = 240.0  # a server that is away for longer does not come back
TRY_SECONDS = 0.2
NOT_NOW = (429, 503)  # refused, and nothing done
BUCKETS_PER_DOUBLING = 8


class Latencies:
    """How long calls took, in buckets of 9 %."""

    def __init__(self) -> None:
        self.buckets: Counter[int] = Counter()

    def add(self, seconds: float) -> None:
        self.buckets[round(math.log2(max(seconds, 1e-6)) * BUCKETS_PER_DOUBLING)] += 1


def quantile_ms(buckets: Counter[int], part: float) -> float:
    """The time that `part` of all calls took at most."""
    left = part * sum(buckets.values())
    for bucket in sorted(buckets):
        left -= buckets[bucket]
        if left <= 0:
            return float(1e3 * 2 ** (bucket / BUCKETS_PER_DOUBLING))
    return 0.0


class Site:
    """What all clients of one process share."""

    def __init__(self, port: int, ledger: Ledger) -> None:
        self.port = port
        self.ledger = ledger
        self.counts = ledger.counts
        self.stopping = asyncio.Event()  # nothing new is written
        self.quiet = asyncio.Event()  # nobody writes any more
        self.latencies = Latencies()

    def client(self) -> Client:
        return Client(self)

    async def pause(self, seconds: float) -> None:
        """Wait, unless it is time to stop."""
        try:
            async with asyncio.timeout(seconds):
                await self.stopping.wait()
        except TimeoutError:
            pass


class Client:
    """One connection, and patience."""

    def __init__(self, site: Site) -> None:
        self._site = site
        self._connection = Connection(site.port)

    async def once(
        self, method: str, path: str, body: bytes = b"", headers: Mapping[str, str] | None = None
    ) -> Answer:
        """The answer; `Cut` if the request may have been done without one."""
        deadline = time.monotonic() + AWAY_SECONDS_MAX
        while True:
            self._site.counts["requests"] += 1
            try:
                answer = await self._connection.ask(method, path, body, headers)
            except Cut as cut:
                if not isinstance(cut.__cause__, ConnectionRefusedError):
                    self._site.counts["requests without an answer"] += 1
                    raise
                answer = None
            if answer is not None and answer.status not in NOT_NOW:
                return answer
            if time.monotonic() > deadline:
                raise AssertionError(f"{method} {path}: the server does not come back: {answer}")
            await asyncio.sleep(TRY_SECONDS)

    async def ask(
        self, method: str, path: str, body: bytes = b"", headers: Mapping[str, str] | None = None
    ) -> Answer:
        """The answer of a call that may be made twice."""
        while True:
            try:
                return await self.once(method, path, body, headers)
            except Cut:
                await asyncio.sleep(TRY_SECONDS)

    async def json(self, method: str, path: str, body: object = None) -> Any:
        """The answer to a native call that may be made twice, which has to be a success."""
        sent = b"" if body is None else msgspec.json.encode(body)
        headers = {"Content-Type": "application/json"} if body is not None else None
        answer = await self.ask(method, path, sent, headers)
        if not 200 <= answer.status < 300:
            raise AssertionError(f"{method} {path}: {answer.status} {answer.body[:500]!r}")
        return msgspec.json.decode(answer.body)

    async def close(self) -> None:
        await self._connection.close()


class Http2Client(Client):
    """The same over HTTP/2."""

    def __init__(self, site: Site) -> None:
        super().__init__(site)
        self._http = httpx.AsyncClient(
            http1=False, http2=True, base_url=f"http://127.0.0.1:{site.port}", timeout=60.0
        )

    async def ask(
        self, method: str, path: str, body: bytes = b"", headers: Mapping[str, str] | None = None
    ) -> Answer:
        deadline = time.monotonic() + AWAY_SECONDS_MAX
        while True:
            self._site.counts["requests over HTTP/2"] += 1
            try:
                got = await self._http.request(method, path, content=body, headers=headers)
            except httpx.TransportError:
                got = None
            if got is not None and got.status_code not in NOT_NOW:
                return Answer(got.status_code, dict(got.headers), got.content)
            if time.monotonic() > deadline:
                raise AssertionError(f"{method} {path}: the server does not come back: {got}")
            await asyncio.sleep(TRY_SECONDS)
