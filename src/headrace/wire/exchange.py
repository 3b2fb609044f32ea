"""One request and the way to answer it: the seam between the transports and the dialects.

A transport (HTTP/1.1, HTTP/2) makes an `Exchange` for each request; a handler answers it once, now
or later, with `answer`, `fail`, `stream` or `tunnel`.  Nothing here knows sockets, and nothing in a
handler knows which transport it serves.

A stream is an `Outlet`.  It holds no queue: a handler writes while there is `room`, and goes on
when `on_room` is called.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Final, Protocol

from headrace.core.errors import HeadraceError, Internal

if TYPE_CHECKING:
    from headrace.wire.routes import Route

log = logging.getLogger("headrace.wire")

JSON: Final = b"application/json"
ARROW_STREAM: Final = b"application/vnd.apache.arrow.stream"
EVENT_STREAM: Final = b"text/event-stream"

# Names in lower case.  Values are single lines: `answer` takes nothing else.
Header = tuple[bytes, bytes]
Headers = Sequence[Header]


class Key(Protocol):
    """Who is asking, when there are API keys."""

    def allows_scope(self, scope: str) -> bool: ...
    def allows_name(self, name: str) -> bool: ...
    @property
    def has_prefixes(self) -> bool: ...


class Outlet:
    """A response that goes on: SSE, or one direction of a tunnel.  Transports subclass it."""

    __slots__ = ("on_closed", "on_data", "on_room")

    def __init__(self) -> None:
        self.on_room: Callable[[], None] | None = None  # there is room again
        self.on_closed: Callable[[], None] | None = None  # the other side went; called once
        self.on_data: Callable[[bytes], None] | None = None  # of a tunnel; b"" is its end

    @property
    def room(self) -> bool:
        """Whether fewer than `stream_pending_bytes` wait to be taken."""
        raise NotImplementedError

    @property
    def stuck_ms(self) -> int:
        """How long there has been no room; 0 while there is."""
        raise NotImplementedError

    def write(self, data: bytes) -> None:
        """Send; nothing happens once it is closed."""
        raise NotImplementedError

    def close(self) -> None:
        """End the response after what was written; `on_closed` is not called for it."""
        raise NotImplementedError


class Exchange:
    """A request.  `body` is whole and decompressed, unless the route takes it as a stream."""

    # What most requests never set stays here: a request is made for each append.
    body: bytes = b""
    params: Sequence[str] = ()  # of the path, decoded
    route: Route | None = None
    key: Key | None = None
    answered: bool = False
    # Of a route that takes its body as a stream: each piece, and b"" at the end.
    on_body: Callable[[bytes], None] | None = None
    # The client went away before there was an answer.
    on_abort: Callable[[], None] | None = None
    # The answer, or the stream, has come to its end; for whoever counts.
    on_answered: Callable[[Exchange, int], None] | None = None

    def __init__(
        self, method: str, path: str, query: str, headers: dict[bytes, bytes], started_ns: int
    ) -> None:
        self.method = method
        self.path = path  # as sent, without the query
        self.query = query  # as sent, without the "?"
        self.headers = headers  # by lower-case name; repeated ones are joined with ", "
        self.started_ns = started_ns  # of the engine's monotonic clock

    def header(self, name: bytes) -> str:
        """A header's value as text; "" when it is not there."""
        return self.headers.get(name, b"").decode("latin-1")

    # Answers: exactly one of these is called, once.

    def answer(
        self, status: int, body: bytes, content_type: bytes = JSON, headers: Headers = ()
    ) -> None:
        """Answer with a whole body."""
        raise NotImplementedError

    def stream(self, content_type: bytes, headers: Headers = ()) -> Outlet:
        """Answer 200 with a body that goes on until `close`."""
        raise NotImplementedError

    def tunnel(self, headers: Headers = ()) -> Outlet:
        """Accept an upgrade: from here on bytes go both ways."""
        raise NotImplementedError

    @property
    def upgrade(self) -> bytes:
        """The protocol that the client wants to change to, in lower case; b"" for none."""
        raise NotImplementedError

    def fail(self, error: BaseException) -> None:
        """Answer with an error, in the form of the route's dialect."""
        if self.answered:
            log.error("an error after the answer to %s %s: %r", self.method, self.path, error)
            return
        if not isinstance(error, HeadraceError):
            log.error("%s %s failed", self.method, self.path, exc_info=error)
            error = Internal(
                "the server met an error of its own",
                fix="see the server's log; if it says nothing of help, report it",
            )
        assert self.route is not None
        reply = self.route.dialect.failure(error)
        self.answer(*reply)


# status, body, content type, headers: the arguments of `answer`
Reply = tuple[int, bytes, bytes, Headers]
Handler = Callable[[Exchange], None]


class Dialect(Protocol):
    """What differs between the protocols of one port."""

    name: str

    def failure(self, error: HeadraceError) -> Reply:
        """An error in the form of this dialect."""
        ...
