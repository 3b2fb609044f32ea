"""Routes that show what a transport does, and small limits to run into."""

from __future__ import annotations

from collections.abc import Callable

from headrace.core.settings import Settings
from headrace.wire.exchange import EVENT_STREAM, Exchange, Headers, Outlet
from headrace.wire.routes import Route

HTTP1_SETTINGS = Settings(
    body_bytes_max=1 << 20,
    record_bytes_max=1 << 20,
    header_bytes_max=4096,
    pipeline_requests_max=8,
    header_timeout_ms=1000,
    body_timeout_ms=1000,
    idle_timeout_ms=2000,
    stream_pending_bytes=64 * 1024,
)
HTTP2_SETTINGS = Settings(
    body_bytes_max=1 << 20,
    record_bytes_max=1 << 20,
    header_bytes_max=4096,
    stream_pending_bytes=64 * 1024,
    http2_streams_max=128,
)
TUNNEL_HEADERS = ((b"sec-websocket-accept", b"x"), (b"x-more", b"1"))


class Handlers:
    """What the routes were called with, and what they opened.

    `upgrade` is the protocol that `/tunnel` speaks; `big_bytes` is what `/big` answers.
    """

    def __init__(
        self, upgrade: bytes = b"websocket", headers: Headers = (), big_bytes: int = 3 << 20
    ) -> None:
        self._upgrade = upgrade
        self._tunnel_headers = headers
        self._big_bytes = big_bytes
        self.held: list[Exchange] = []
        self.outlets: list[Outlet] = []
        self.pieces: list[bytes] = []
        self.aborted = 0
        self.closed = 0
        self.woken = 0

    def routes(self) -> list[Route]:
        def route(method: str, path: str, handler: object, **more: object) -> Route:
            return Route(method, path, handler, **more)  # type: ignore[arg-type]

        return [
            route("POST", "/echo", lambda e: e.answer(200, e.body, b"text/plain")),
            route("GET", "/echo", lambda e: e.answer(200, e.query.encode(), b"text/plain")),
            route("GET", "/headers", self.headers),
            route("GET", "/nothing", lambda e: e.answer(204, b"")),
            route("GET", "/hold", self.hold, long_lived=True),
            route("GET", "/boom", self.boom),
            route("GET", "/big", self.big),
            route("GET", "/stream", self.stream, long_lived=True),
            route("POST", "/duplex", self.duplex, streamed=True),
            route("POST", "/late", self.hold, streamed=True),
            route("GET", "/tunnel", self.tunnel, long_lived=True),
        ]

    def headers(self, exchange: Exchange) -> None:
        lines = [b"%b=%b" % item for item in sorted(exchange.headers.items())]
        exchange.answer(200, b"\n".join(lines), b"text/plain", ((b"x-more", b"1"),))

    def big(self, exchange: Exchange) -> None:
        exchange.answer(200, b"x" * self._big_bytes, b"text/plain")

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
        exchange.on_body = self.shout(outlet)

    def tunnel(self, exchange: Exchange) -> None:
        if exchange.upgrade != self._upgrade:
            exchange.answer(200, b"no upgrade", b"text/plain")
            return
        outlet = exchange.tunnel(self._tunnel_headers)
        outlet.on_closed = self.close
        self.outlets.append(outlet)
        outlet.on_data = self.shout(outlet)

    def shout(self, outlet: Outlet) -> Callable[[bytes], None]:
        """What answers each piece in capitals, and closes at the end."""

        def piece_came(piece: bytes) -> None:
            self.pieces.append(piece)
            if piece:
                outlet.write(piece.upper())
            else:
                outlet.close()

        return piece_came


def http1_handlers() -> Handlers:
    return Handlers(b"echo", big_bytes=8 << 20)


def http2_handlers() -> Handlers:
    return Handlers(b"websocket", TUNNEL_HEADERS)
