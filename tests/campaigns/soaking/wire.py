"""A small HTTP/1.1 client on asyncio: requests that keep a connection, and answers that go on.

It tries once.  Whoever calls knows what a request without an answer means to him.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Mapping
from typing import NamedTuple

HEAD_BYTES_MAX = 1 << 20  # of a line or a head; more is no answer of ours
ANSWER_SECONDS_MAX = 90.0


class Cut(Exception):
    """A request without an answer: it may have been done, or not."""


class Answer(NamedTuple):
    """An answer, whole."""

    status: int
    headers: dict[str, str]
    body: bytes


class Connection:
    """One connection, made again when it was lost; one request at a time."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._reader: asyncio.StreamReader | None = None
        self._writer: asyncio.StreamWriter | None = None

    async def ask(
        self, method: str, path: str, body: bytes = b"", headers: Mapping[str, str] | None = None
    ) -> Answer:
        """Send a request and wait for all of its answer."""
        try:
            async with asyncio.timeout(ANSWER_SECONDS_MAX):
                await self.send_head(method, path, headers, len(body))
                await self.send(body)
                status, found = await self.head()
                answer = Answer(status, found, await self._body(method, status, found))
        except (OSError, EOFError, TimeoutError, asyncio.LimitOverrunError) as error:
            await self.close()
            raise Cut(f"{method} {path}: {error!r}") from error
        except asyncio.CancelledError:
            await self.close()
            raise
        if found.get("connection") == "close":
            await self.close()
        return answer

    async def send_head(
        self, method: str, path: str, headers: Mapping[str, str] | None, length: int | None
    ) -> None:
        """Send the head of a request; without a length its body comes in chunks."""
        if self._writer is None:
            self._reader, self._writer = await asyncio.open_connection(
                "127.0.0.1", self._port, limit=HEAD_BYTES_MAX
            )
        lines = [f"{method} {path} HTTP/1.1", f"Host: 127.0.0.1:{self._port}"]
        lines += [f"{name}: {value}" for name, value in (headers or {}).items()]
        if length is None:
            lines.append("Transfer-Encoding: chunked")
        elif length or method in ("POST", "PUT"):
            lines.append(f"Content-Length: {length}")
        self._writer.write("\r\n".join([*lines, "", ""]).encode())

    async def send(self, data: bytes) -> None:
        assert self._writer is not None
        self._writer.write(data)
        await self._writer.drain()

    async def send_chunk(self, data: bytes) -> None:
        """Send a piece of a body in chunks; b"" ends it."""
        await self.send(b"%x\r\n%b\r\n" % (len(data), data))

    async def head(self) -> tuple[int, dict[str, str]]:
        """The status and the headers of the next answer."""
        assert self._reader is not None
        lines = (await self._reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
        headers = {}
        for line in lines[1:-2]:
            name, _, value = line.partition(":")
            headers[name.lower()] = value.strip()
        return int(lines[0].split(" ")[1]), headers

    async def _body(self, method: str, status: int, headers: Mapping[str, str]) -> bytes:
        assert self._reader is not None
        if method == "HEAD" or status in (204, 304):
            return b""
        if "content-length" in headers:
            return await self._reader.readexactly(int(headers["content-length"]))
        return b"".join([chunk async for chunk in self.chunks()])

    async def chunks(self) -> AsyncIterator[bytes]:
        """The pieces of an answer in chunks, as they come."""
        assert self._reader is not None
        while True:
            size = int(await self._reader.readuntil(b"\r\n"), 16)
            data = await self._reader.readexactly(size + 2)
            if not size:
                return
            yield data[:-2]

    async def close(self) -> None:
        writer, self._reader, self._writer = self._writer, None, None
        if writer is not None:
            writer.close()
            with contextlib.suppress(OSError):
                await writer.wait_closed()


class Event(NamedTuple):
    """A server-sent event."""

    name: str
    data: str
    id: str


async def events(chunks: AsyncIterator[bytes]) -> AsyncIterator[Event]:
    """The events of an answer; lines end with LF."""
    held = b""
    async for chunk in chunks:
        held += chunk
        while b"\n\n" in held:
            block, _, held = held.partition(b"\n\n")
            name, data, id = "message", [], ""
            for line in block.decode().split("\n"):
                field, _, value = line.partition(":")
                value = value.removeprefix(" ")
                if field == "event":
                    name = value
                elif field == "data":
                    data.append(value)
                elif field == "id":
                    id = value
            if data:
                yield Event(name, "\n".join(data), id)
