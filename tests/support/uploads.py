"""Uploads whose handler pauses: what it got, and what waits for it."""

from __future__ import annotations

import hashlib
from dataclasses import replace

from headrace.server.transport_exchange import TransportExchange
from headrace.wire.exchange import Exchange
from headrace.wire.routes import Route
from tests.support.transport_routes import HTTP1_SETTINGS

MIB = 1 << 20
BODY_BYTES = 64 * MIB
PIECE = bytes(range(256)) * 256
UPLOAD_SETTINGS = replace(HTTP1_SETTINGS, http2_streams_max=64)


class Upload:
    """A streamed request: what its handler got, and what waits for it."""

    def __init__(self, exchange: Exchange, paused: bool) -> None:
        assert isinstance(exchange, TransportExchange)
        self.exchange = exchange
        self.bytes = 0
        self.hash = hashlib.sha256()
        self.paused = paused
        self.each = False  # pause after each piece
        self.ended = 0
        self.aborted = 0
        exchange.on_abort = self._abort
        if paused:
            exchange.pause_body()
        exchange.on_body = self._took

    def _abort(self) -> None:
        self.aborted += 1

    def _took(self, piece: bytes) -> None:
        assert not self.paused, "a piece while the body is paused"
        if not piece:
            self.ended += 1
            self.exchange.answer(200, b"%d" % self.bytes, b"text/plain")
            return
        self.bytes += len(piece)
        self.hash.update(piece)
        if self.each:
            self.pause()
            self.resume_soon()

    def pause(self) -> None:
        self.paused = True
        self.exchange.pause_body()

    def resume(self) -> None:
        self.paused = False
        self.exchange.resume_body()

    def resume_soon(self) -> None:
        self.exchange._connection.app.soon(self.resume)

    @property
    def kept_bytes(self) -> int:
        return sum(map(len, self.exchange.arrived))


class UploadHandlers:
    """Routes whose handlers take their bodies in pieces."""

    def __init__(self) -> None:
        self.uploads: list[Upload] = []

    def routes(self) -> list[Route]:
        def upload(paused: bool, exchange: Exchange) -> None:
            self.uploads.append(Upload(exchange, paused))

        def go(exchange: Exchange) -> None:
            upload(False, exchange)

        def wait(exchange: Exchange) -> None:
            upload(True, exchange)

        def broken(exchange: Exchange) -> None:
            def took(_piece: bytes) -> None:
                raise ZeroDivisionError

            exchange.on_body = took

        return [
            Route("POST", "/paused", wait, streamed=True),
            Route("POST", "/upload", go, streamed=True),
            Route("POST", "/broken", broken, streamed=True),
            Route("POST", "/echo", lambda e: e.answer(200, e.body, b"text/plain")),
            Route("GET", "/echo", lambda e: e.answer(200, e.query.encode(), b"text/plain")),
        ]


def expected_hash(size: int) -> str:
    assert size % len(PIECE) == 0
    digest = hashlib.sha256()
    for _ in range(size // len(PIECE)):
        digest.update(PIECE)
    return digest.hexdigest()
