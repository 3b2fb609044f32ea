"""Durable Streams that come and go: appended to, followed, forked and forked again, closed, read
whole, deleted, and left to expire.

A stream holds the records 1, 2, 3, … of its own name, and a fork first those of its source.
"""

from __future__ import annotations

import asyncio
import base64
import time
from collections.abc import Iterable
from itertools import count

import msgspec

from tests.campaigns.soaking.content import payload
from tests.campaigns.soaking.site import TRY_SECONDS, Client, Site
from tests.campaigns.soaking.wire import Connection, events

APPENDS = 100  # of one stream
EVERY = 0.35
OWN = 8  # appends of a fork
EXPIRY_SECONDS = 2
EXPIRED_SECONDS_MAX = 60.0
GONE_SECONDS_MAX = 60.0
JSON = "application/json"
BYTES = "application/octet-stream"
Parts = list[tuple[str, int]]  # whose records, and how many of them


def whole(parts: Parts, type: str) -> bytes:
    """All bytes of a stream, as one read of it gives them."""
    records = [payload(of, n) for of, last in parts for n in range(1, last + 1)]
    return joined(records, type)


def joined(records: Iterable[bytes], type: str) -> bytes:
    return b"[%b]" % b",".join(records) if type == JSON else b"".join(records)


class Stream:
    """One stream: its writer, and what it has to hold."""

    def __init__(self, site: Site, path: str, type: str, inherited: Parts | None = None) -> None:
        self._site, self.path, self.type = site, path, type
        self.client = site.client()
        self.inherited = inherited or []
        self.done = 0
        self.offset = ""
        self._sent = 0

    @property
    def url(self) -> str:
        return f"/v1/stream/{self.path}"

    @property
    def parts(self) -> Parts:
        return [*self.inherited, (self.path, self.done)]

    async def create(self, **headers: str) -> None:
        given = {name.replace("_", "-"): value for name, value in headers.items()}
        answer = await self.client.ask("PUT", self.url, b"", {"Content-Type": self.type, **given})
        assert answer.status in (200, 201), answer
        self.offset = answer.headers["stream-next-offset"]

    async def append(self, many: int, *, close: bool = False) -> None:
        """Append by a producer, so that a repeat is stored once."""
        body = joined(
            (payload(self.path, n) for n in range(self.done + 1, self.done + many + 1)), self.type
        )
        headers = {
            "Content-Type": self.type,
            "Producer-Id": "writer",
            "Producer-Epoch": "0",
            "Producer-Seq": str(self._sent),
        }
        if close:
            headers["Stream-Closed"] = "true"
        begun = time.monotonic()
        answer = await self.client.ask("POST", self.url, body, headers)
        assert answer.status in (200, 204), (self.path, answer)
        self._site.latencies.add(time.monotonic() - begun)
        self._site.counts["records appended: Durable Streams"] += many
        self._sent += 1
        self.done += many
        # A repeat need not say where the first one ended.
        self.offset = answer.headers.get("stream-next-offset", "")

    async def fork(self, path: str) -> Stream:
        """A fork of all that is there now."""
        head = await self.client.ask("HEAD", self.url)
        assert head.status == 200, (self.path, head)
        made = Stream(self._site, path, self.type, self.parts)
        await made.create(
            Stream_Forked_From=self.url, Stream_Fork_Offset=head.headers["stream-next-offset"]
        )
        for _ in range(OWN):
            await made.append(1)
        self._site.counts["forks"] += 1
        return made

    async def compare(self) -> None:
        """Read all of it, which has to be what was appended."""
        found, offset = [], "-1"
        while True:
            answer = await self.client.ask("GET", f"{self.url}?offset={offset}")
            assert answer.status == 200, (self.path, answer)
            found.append(answer.body)
            offset = answer.headers["stream-next-offset"]
            if "stream-up-to-date" in answer.headers:
                break
        if self.type == JSON:
            read = [bytes(r) for b in found for r in msgspec.json.decode(b, type=list[msgspec.Raw])]
            data = joined(read, JSON)
        else:
            data = b"".join(found)
        self._site.counts["records read: Durable Streams"] += sum(n for _, n in self.parts)
        if data != whole(self.parts, self.type):
            self._site.ledger.wrong(
                f"{self.path}: a read has {len(data)} bytes that are not the "
                f"{len(whole(self.parts, self.type))} of {self.parts}"
            )

    async def delete(self) -> None:
        cuts = self._site.counts["requests without an answer"]
        answer = await self.client.ask("DELETE", self.url)
        again = self._site.counts["requests without an answer"] > cuts
        assert answer.status == 204 or (again and answer.status in (404, 410)), (self.path, answer)
        self._site.counts["streams deleted"] += 1

    async def close_connection(self) -> None:
        await self.client.close()


class Reader:
    """Follows a stream by events until it is closed."""

    def __init__(self, site: Site, stream: Stream) -> None:
        self._site, self._stream = site, stream
        self.records: list[bytes] = []
        self._offset = "-1"
        self._over = False

    async def run(self) -> None:
        while not self._over:
            connection = Connection(self._site.port)
            try:
                await self._read(connection)
            except (OSError, EOFError):
                await asyncio.sleep(TRY_SECONDS)
            finally:
                await connection.close()
        found = joined(self.records, self._stream.type)
        if found != whole(self._stream.parts, self._stream.type):
            self._site.ledger.wrong(f"{self._stream.path}: its events are not what was appended")
        self._site.counts["records read: Durable Streams, events"] += self._stream.done

    async def _read(self, connection: Connection) -> None:
        path = f"{self._stream.url}?offset={self._offset}&live=sse"
        await connection.send_head("GET", path, {}, 0)
        status, _ = await connection.head()
        if status != 200:
            if status != 503:
                raise AssertionError(f"events of {self._stream.path}: {status}")
            await asyncio.sleep(TRY_SECONDS)
            return
        self._site.counts["streams opened: Durable Streams"] += 1
        held: list[bytes] = []  # counts with the control event that follows
        async for event in events(connection.chunks()):
            if event.name == "data":
                if self._stream.type == JSON:
                    held += map(bytes, msgspec.json.decode(event.data, type=list[msgspec.Raw]))
                else:
                    held.append(base64.b64decode(event.data.replace("\n", "")))
            elif event.name == "control":
                said = msgspec.json.decode(event.data)
                self.records += held
                held = []
                self._offset = said["streamNextOffset"]
                self._over = said.get("streamClosed", False)


async def generations(site: Site, slot: int) -> None:
    """Streams of one place, one after the other."""
    type = JSON if slot % 2 else BYTES
    for generation in count():
        if site.stopping.is_set():
            return
        await live(site, f"soak/{slot}/{generation}", type)


async def live(site: Site, path: str, type: str) -> None:
    """The life of one stream and of its forks."""
    stream = Stream(site, path, type)
    await stream.create()
    reader = asyncio.create_task(Reader(site, stream).run())
    forks: list[Stream] = []
    try:
        for turn in range(APPENDS):
            if site.stopping.is_set():
                break
            await stream.append(1 + turn % 3)
            if turn in (APPENDS // 3, 2 * APPENDS // 3):
                forks.append(await stream.fork(f"{path}-fork-{len(forks)}"))
                forks.append(await forks[-1].fork(f"{path}-fork-{len(forks)}"))
            await site.pause(EVERY)
        await stream.append(1, close=True)
        await reader
    finally:
        reader.cancel()
    await stream.compare()
    for fork in forks:
        await fork.compare()
    await stream.delete()
    for fork in forks:  # which live on without their source
        await fork.compare()
    for fork in reversed(forks):
        await fork.delete()
    await gone(site, stream.client, [stream, *forks])
    for each in (stream, *forks):
        await each.close_connection()
    site.counts["streams lived"] += 1 + len(forks)


async def gone(site: Site, client: Client, streams: list[Stream]) -> None:
    """Wait until none of them is known any more."""
    deadline = time.monotonic() + GONE_SECONDS_MAX
    for stream in streams:
        while (await client.ask("HEAD", stream.url)).status != 404:
            if time.monotonic() > deadline:
                site.ledger.wrong(f"{stream.path} is still known a minute after its delete")
                return
            await asyncio.sleep(TRY_SECONDS)


async def expiring(site: Site) -> None:
    """Streams that are left alone, and expire."""
    for generation in count():
        if site.stopping.is_set():
            return
        stream = Stream(site, f"soak/passing/{generation}", JSON)
        await stream.create(Stream_TTL=str(EXPIRY_SECONDS))
        answer = await stream.client.ask(
            "POST", stream.url, payload(stream.path, 1), {"Content-Type": JSON}
        )
        # After a kill it may have expired before it could be appended to.
        assert answer.status in (204, 404), answer
        deadline = time.monotonic() + EXPIRED_SECONDS_MAX
        while (await stream.client.ask("HEAD", stream.url)).status != 404:
            if time.monotonic() > deadline:
                site.ledger.wrong(f"{stream.path} did not expire")
                break
            await asyncio.sleep(0.5)
        site.counts["streams expired"] += 1
        await stream.close_connection()
