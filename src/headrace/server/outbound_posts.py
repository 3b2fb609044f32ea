"""POSTs that the server makes itself: the only place that opens outgoing connections.

The rules this file owns.  A name is resolved once for each POST, every address that it resolves to
has to be allowed, and one of those very addresses is connected to: a name that means something else
a moment later changes nothing.  Redirects are answers like any other; nothing is followed.  An
answer is read up to a bound, and everything has to happen within one time.
"""

from __future__ import annotations

import asyncio
import logging
import socket
import ssl
from collections.abc import Awaitable, Callable
from typing import Final

from httptools import HttpParserError, HttpResponseParser

from headrace.core.settings import Settings
from headrace.wire.outbound import OutboundPost, PostResult
from headrace.wire.outbound_urls import Target, UrlRefused, check_address, check_url

log = logging.getLogger("headrace.server")

POST_TIMEOUT_SECONDS: Final = 15.0
CONNECT_TIMEOUT_SECONDS: Final = 5.0
# Addresses of one name that are tried, one after the other.
ADDRESSES_MAX: Final = 4
RESPONSE_BODY_BYTES_MAX: Final = 64 << 10
RESPONSE_HEAD_BYTES_MAX: Final = 32 << 10
READ_BYTES: Final = 16 << 10
FAILURE_TEXT_MAX: Final = 200


Resolve = Callable[[str, int], Awaitable[list[str]]]


async def resolve_by_system(host: str, port: int) -> list[str]:
    """The addresses that the system's resolver has for a host, each once."""
    loop = asyncio.get_running_loop()
    found = await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    return list(dict.fromkeys(str(entry[4][0]) for entry in found))


class HttpPosts:
    """Makes POSTs over HTTP/1.1, each on a connection of its own."""

    def __init__(self, settings: Settings, resolve: Resolve = resolve_by_system) -> None:
        self._resolve = resolve
        self._loopback = settings.ds_webhook_loopback
        self._tls: ssl.SSLContext | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._draining = False

    @property
    def under_way(self) -> int:
        """How many POSTs have no result yet."""
        return len(self._tasks)

    def post(self, asked: OutboundPost, done: Callable[[PostResult], None]) -> None:
        """Make a POST; `done` hears what came of it."""
        task = asyncio.get_running_loop().create_task(self._run(asked, done))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def drain(self) -> None:
        """Give up what is under way, and take nothing more: the server is stopping."""
        self._draining = True
        for task in list(self._tasks):
            task.cancel()

    async def _run(self, asked: OutboundPost, done: Callable[[PostResult], None]) -> None:
        if self._draining:
            return
        try:
            async with asyncio.timeout(POST_TIMEOUT_SECONDS):
                result = await self._post(asked)
        except TimeoutError:
            result = PostResult(failure=f"no answer within {POST_TIMEOUT_SECONDS:.0f} s")
        except (OSError, ValueError, HttpParserError, EOFError) as error:
            text = str(error) or type(error).__name__
            result = PostResult(failure=text[:FAILURE_TEXT_MAX])
        except Exception:
            log.exception("a POST of the server's own failed")
            result = PostResult(failure="an error of the server itself")
        done(result)

    async def _post(self, asked: OutboundPost) -> PostResult:
        target = check_url(asked.url, loopback=self._loopback)
        if isinstance(target, UrlRefused):
            raise ConnectionError(target.reason)
        addresses = await self._addresses(target)
        reader, writer = await self._connect(target, addresses)
        try:
            writer.write(request_bytes(target, asked))
            await writer.drain()
            return await read_answer(reader)
        finally:
            # An answer that was read is enough: nobody waits for a polite end.
            writer.transport.abort()

    async def _addresses(self, target: Target) -> list[str]:
        """The addresses of a host, each of which may be connected to."""
        addresses = await self._resolve(target.host, target.port)
        for address in addresses:
            refused = check_address(address, loopback=self._loopback)
            if refused is not None:
                raise ConnectionError(refused.reason)
            if target.scheme == "http" and check_address(address, loopback=False) is None:
                raise ConnectionError(f"{address!r} is elsewhere, and http stays here")
        if not addresses:
            raise ConnectionError(f"{target.host!r} has no address")
        return addresses[:ADDRESSES_MAX]

    async def _connect(
        self, target: Target, addresses: list[str]
    ) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        tls = await self._tls_context() if target.scheme == "https" else None
        failure: OSError = ConnectionError("no address")
        for address in addresses:
            try:
                async with asyncio.timeout(CONNECT_TIMEOUT_SECONDS):
                    return await asyncio.open_connection(
                        address,
                        target.port,
                        ssl=tls,
                        server_hostname=target.host if tls is not None else None,
                        limit=RESPONSE_HEAD_BYTES_MAX,
                        flags=socket.AI_NUMERICHOST,
                    )
            except TimeoutError:
                failure = ConnectionError(f"{target.host!r} cannot be reached")
            except OSError as error:
                failure = error
        raise failure

    async def _tls_context(self) -> ssl.SSLContext:
        if self._tls is None:
            # It reads and parses all certificates of the system.
            loop = asyncio.get_running_loop()
            self._tls = await loop.run_in_executor(None, ssl.create_default_context)
        return self._tls


def request_bytes(target: Target, asked: OutboundPost) -> bytes:
    """The request as it goes over the wire."""
    lines = [
        f"POST {target.path} HTTP/1.1".encode(),
        b"host: " + target.authority.encode(),
        b"content-length: %d" % len(asked.body),
        b"connection: close",
        *(name + b": " + value for name, value in asked.headers),
    ]
    assert not any(b"\r" in line or b"\n" in line for line in lines), lines
    return b"\r\n".join(lines) + b"\r\n\r\n" + asked.body


async def read_answer(reader: asyncio.StreamReader) -> PostResult:
    """Read an answer, or as much of its body as is allowed."""
    answer = _Answer()
    answer.parser = parser = HttpResponseParser(answer)
    try:
        await _feed(parser, answer, reader)
    finally:
        answer.parser = None  # which knows the answer: a circle
    whole = not answer.cut and (answer.complete or not answer.framed)
    return PostResult(answer.status, bytes(answer.body), whole)


async def _feed(parser: HttpResponseParser, answer: _Answer, reader: asyncio.StreamReader) -> None:
    """Give the parser what comes, until the answer is complete or cut, or no more comes."""
    taken = 0
    while not answer.complete and not answer.cut:
        data = await reader.read(READ_BYTES)
        if not data:
            break
        taken += len(data)
        parser.feed_data(data)
        if not answer.headed and taken > RESPONSE_HEAD_BYTES_MAX:
            raise ConnectionError("the head of the answer is too large")
    if not answer.headed:
        raise ConnectionError("the connection was closed before an answer")


class _Answer:
    """What a parser has found; an interim answer (1xx) is not the answer."""

    def __init__(self) -> None:
        self.parser: HttpResponseParser | None = None
        self.status = 0
        self.headed = self.complete = self.cut = self.framed = False
        self.body = bytearray()

    def on_header(self, name: bytes, _value: bytes) -> None:
        self.framed = self.framed or name.lower() in (b"content-length", b"transfer-encoding")

    def on_headers_complete(self) -> None:
        assert self.parser is not None
        self.status = self.parser.get_status_code()
        self.headed = self.status >= 200

    def on_body(self, data: bytes) -> None:
        room = RESPONSE_BODY_BYTES_MAX - len(self.body)
        self.cut = self.cut or len(data) > room
        self.body += data[:room]

    def on_message_complete(self) -> None:
        self.complete = self.headed
        if not self.headed:
            self.framed = False
