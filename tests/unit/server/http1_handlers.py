"""Routes that show what a transport does, and small limits to run into."""

from __future__ import annotations

from headrace.core.settings import Settings
from headrace.wire.exchange import EVENT_STREAM, Exchange
from headrace.wire.native import TOPICS
from headrace.wire.routes import Route

SETTINGS = Settings(
    body_bytes_max=1 << 20,
    record_bytes_max=1 << 20,
    header_bytes_max=4096,
    pipeline_requests_max=8,
    header_timeout_ms=1000,
    body_timeout_ms=1000,
    idle_timeout_ms=2000,
    stream_pending_bytes=64 * 1024,
)


class Handlers:
    """Routes that show what the transport does."""

    def __init__(self) -> None:
        self.held: list[Exchange] = []
        self.outlets: list[object] = []
        self.aborted = 0
        self.closed = 0

    def routes(self) -> list[Route]:
        def route(method: str, path: str, handler: object, **more: object) -> Route:
            return Route(method, path, handler, TOPICS, **more)  # type: ignore[arg-type]

        return [
            route("POST", "/echo", lambda e: e.answer(200, e.body, b"text/plain")),
            route("GET", "/echo", lambda e: e.answer(200, e.query.encode(), b"text/plain")),
            route("GET", "/hold", self.hold, long_lived=True),
            route("GET", "/boom", self.boom),
            route("GET", "/stream", self.stream, long_lived=True),
            route("POST", "/duplex", self.duplex, streamed=True),
            route("GET", "/tunnel", self.tunnel, long_lived=True),
            route("GET", "/big", lambda e: e.answer(200, b"x" * (8 << 20), b"text/plain")),
        ]

    def hold(self, exchange: Exchange) -> None:
        exchange.on_abort = self.abort
        self.held.append(exchange)

    def abort(self) -> None:
        self.aborted += 1

    def close(self) -> None:
        self.closed += 1

    def boom(self, _exchange: Exchange) -> None:
        raise ZeroDivisionError

    def stream(self, exchange: Exchange) -> None:
        outlet = exchange.stream(EVENT_STREAM)
        outlet.on_closed = self.close
        outlet.write(b"first\n")
        self.outlets.append(outlet)

    def duplex(self, exchange: Exchange) -> None:
        outlet = exchange.stream(b"text/plain")

        def body(piece: bytes) -> None:
            if piece:
                outlet.write(piece.upper())
            else:
                outlet.close()

        exchange.on_body = body

    def tunnel(self, exchange: Exchange) -> None:
        if exchange.upgrade != b"echo":
            exchange.answer(200, b"no upgrade", b"text/plain")
            return
        outlet = exchange.tunnel()
        outlet.on_data = lambda data: outlet.write(data.upper())
        outlet.on_closed = self.close
