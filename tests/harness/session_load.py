"""Append sessions of S2 on a server that is killed: many inputs on the way, each whole or absent.

A session is acknowledged in order, so that what a kill leaves of it is its beginning, with all
that was acknowledged.
"""

from __future__ import annotations

import asyncio
import contextlib
from base64 import b64decode
from collections.abc import Coroutine

from headrace.wire.s2.frames import FrameDecoder, frame
from tests.harness.kill_area import Area, as_json, caller
from tests.support.server_lives import LOOK_SECONDS, Lost, Site

BASIN = "kill-sessions"
WRITERS = 2
ON_THE_WAY_MAX = 12
SEND_PACE_SECONDS = 0.005
PAGE = 1_000
HEADERS = {"s2-basin": BASIN, "s2-format": "base64"}


def input_of(bodies: list[bytes]) -> bytes:
    """An AppendInput message of short bodies."""
    records = [b"\x1a" + bytes([len(body)]) + body for body in bodies]
    return b"".join(b"\x0a" + bytes([len(record)]) + record for record in records)


class Session:
    """One stream and the one who writes it, over all lives."""

    def __init__(self, area: Area, number: int) -> None:
        self._area, self.stream = area, f"s{number}"
        self.kept: list[bytes] = []  # what is known to be there
        self._sent: list[list[bytes]] = []  # in this life, by input
        self._acked = 0  # of these
        self._count = 0

    async def work(self) -> None:
        site = self._area.site
        while not self._area.finished:
            await site.opened()
            if not self._sent:  # what comes of inputs is not known before it is judged
                with contextlib.suppress(Lost, OSError, asyncio.IncompleteReadError):
                    async with site.client():
                        await self._session()
            await asyncio.sleep(LOOK_SECONDS)

    async def _session(self) -> None:
        server = self._area.site.server
        reader, writer = await asyncio.open_connection(server.host, server.port)
        try:
            writer.write(
                f"POST /v1/streams/{self.stream}/records HTTP/1.1\r\nhost: localhost\r\n"
                f"s2-basin: {BASIN}\r\ncontent-type: s2s/proto\r\n"
                "transfer-encoding: chunked\r\n\r\n".encode()
            )
            head = await reader.readuntil(b"\r\n\r\n")
            if head.startswith((b"HTTP/1.1 503", b"HTTP/1.1 429")):
                return
            self._area.want(head.startswith(b"HTTP/1.1 200 "), head)
            hearing = asyncio.create_task(self._hear(reader))
            try:
                while not self._area.finished and not hearing.done():
                    if len(self._sent) - self._acked < ON_THE_WAY_MAX:
                        self._send(writer)
                    await asyncio.sleep(SEND_PACE_SECONDS)
            finally:
                hearing.cancel()
                await asyncio.gather(hearing, return_exceptions=True)
        finally:
            writer.transport.abort()

    def _send(self, writer: asyncio.StreamWriter) -> None:
        self._count += 1
        bodies = [b"%d.%d" % (self._count, n) for n in range(1 + self._count % 3)]
        self._sent.append(bodies)
        data = frame(input_of(bodies))
        writer.write(b"%x\r\n%s\r\n" % (len(data), data))

    async def _hear(self, reader: asyncio.StreamReader) -> None:
        decoder = FrameDecoder()
        while size := int(await reader.readuntil(b"\r\n"), 16):
            for _ack in decoder.take((await reader.readexactly(size + 2))[:-2]):
                self._acked += 1

    async def judge(self) -> None:
        """What is there is what was, and the first inputs of the session, with all that were
        acknowledged."""
        found: list[bytes] = []
        async with caller(self._area.site, patient=True) as calls:
            path = f"/v1/streams/{self.stream}/records"
            tail = as_json(await calls.call("GET", path + "/tail", None, HEADERS))
            while len(found) < tail["tail"]["seq_num"]:
                query = f"{path}?seq_num={len(found)}&count={PAGE}"
                page = as_json(await calls.call("GET", query, None, HEADERS))
                found += [b64decode(record["body"]) for record in page["records"]]
        wanted, inputs = list(self.kept), 0
        while inputs < len(self._sent) and (inputs < self._acked or len(wanted) < len(found)):
            wanted += self._sent[inputs]
            inputs += 1
        self._area.want(
            found == wanted,
            f"{self.stream}: {len(found)} records, {len(self.kept)} before, "
            f"{self._acked} of {len(self._sent)} inputs acknowledged: {found[-3:]}, {wanted[-3:]}",
        )
        self._area.judged += len(found)
        self.kept, self._sent, self._acked = found, [], 0


class SessionLoad(Area):
    """Some writers of sessions."""

    name = "S2 sessions"

    def __init__(self, site: Site, seed: int) -> None:
        super().__init__(site, seed)
        self._sessions = [Session(self, number) for number in range(WRITERS)]

    async def create(self) -> None:
        async with caller(self.site, patient=True) as calls:
            made = await calls.call("PUT", f"/v1/basins/{BASIN}")
            self.want(made.status == 201, made)
            for session in self._sessions:
                body = {"stream": session.stream}
                made = await calls.call("POST", "/v1/streams", body, HEADERS)
                self.want(made.status == 201, made)

    def workers(self) -> list[Coroutine[None, None, None]]:
        return [session.work() for session in self._sessions]

    async def check(self) -> None:
        for session in self._sessions:
            await session.judge()

    async def last(self) -> None:
        await self.check()
