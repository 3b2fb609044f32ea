"""Routes that show what a transport does, for the tests of HTTP/2."""

from __future__ import annotations

from headrace.core.settings import Settings
from headrace.wire.exchange import EVENT_STREAM, Exchange, Outlet
from headrace.wire.native import TOPICS
from headrace.wire.routes import Route

SETTINGS = Settings(
    body_bytes_max=1 << 20,
    record_bytes_max=1 << 20,
    header_bytes_max=4096,
    stream_pending_bytes=64 * 1024,
    http2_streams_max=128,
)


class Handlers:
    """Routes that show what the transport does."""

    def __init__(self) -> None:
        self.held: list[Exchange] = []
        self.outlets: list[Outlet] = []
        self.pieces: list[bytes] = []
        self.aborted = 0
        self.closed = 0
        self.woken = 0

    def routes(self) -> list[Route]:
        def route(method: str, path: str, handler: object, **more: object) -> Route:
            return Route(method, path, handler, TOPICS, **more)

        return [
            route("POST", "/echo", lambda e: e.answer(200, e.body, b"text/plain")),
            route("GET", "/echo", lambda e: e.answer(200, e.query.encode(), b"text/plain")),
            route("GET", "/headers", self.headers),
            route("GET", "/nothing", lambda e: e.answer(204, b"")),
            route("GET", "/hold", self.hold, long_lived=True),
            route("GET", "/boom", self.boom),
            route("GET", "/big", lambda e: e.answer(200, b"x" * (3 << 20), b"text/plain")),
            route("GET", "/stream", self.stream, long_lived=True),
            route("POST", "/duplex", self.duplex, streamed=True),
            route("POST", "/late", self.hold, streamed=True),
            route("GET", "/tunnel", self.tunnel, long_lived=True),
        ]

    def headers(self, exchange: Exchange) -> None:
        lines = [b"%b=%b" % item for item in sorted(exchange.headers.items())]
        exchange.answer(200, b"\n".join(lines), b"text/plain", ((b"x-more", b"1"),))

    def hold(self, exchange: Exchange) -> None:
        exchange.on_abort = self.abort
        self.held.append(exchange)

    def abort(self) -> None:
        self.aborted += 1

    def close(self) -> None:
        self.closed += 1

    def boom(self, _exchange: Exchange) -> None:
        raise ZeroDivisionError

    def wake(self) -> None:
        self.woken += 1

    def stream(self, exchange: Exchange) -> None:
        outlet = exchange.stream(EVENT_STREAM)
        outlet.on_closed = self.close
        outlet.on_room = self.wake
        outlet.write(b"first\n")
        self.outlets.append(outlet)

    def duplex(self, exchange: Exchange) -> None:
        outlet = exchange.stream(b"text/plain")
        outlet.on_closed = self.close

        def body(piece: bytes) -> None:
            self.pieces.append(piece)
            if piece:
                outlet.write(piece.upper())
            else:
                outlet.close()

        exchange.on_body = body

    def tunnel(self, exchange: Exchange) -> None:
        if exchange.upgrade != b"websocket":
            exchange.answer(200, b"no upgrade", b"text/plain")
            return
        outlet = exchange.tunnel(((b"sec-websocket-accept", b"x"), (b"x-more", b"1")))
        outlet.on_closed = self.close
        self.outlets.append(outlet)

        def data(piece: bytes) -> None:
            self.pieces.append(piece)
            if piece:
                outlet.write(piece.upper())
            else:
                outlet.close()

        outlet.on_data = data
