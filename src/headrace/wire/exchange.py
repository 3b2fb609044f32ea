"""One request and the way to answer it: the seam between the transports and the dialects.

A transport (HTTP/1.1, HTTP/2) makes an `Exchange` for each request; a handler answers it once, now
or later, with `answer`, `answer_parts`, `fail`, `stream` or `tunnel`.  Nothing here knows sockets,
and nothing in a handler knows which transport it serves.

A stream is an `Outlet`.  It holds no queue: a handler writes while there is `room`, and goes on
when `on_room` is called.  A request body that its handler takes in pieces is held back the same
way, by `pause_body` and `resume_body`.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Final, Protocol

from headrace.core.error_frames import without_frames
from headrace.core.errors import HeadraceError, Internal, InvalidRequest, OutOfResources
from headrace.storage.fs import FileRange as FileRange

if TYPE_CHECKING:
    from headrace.wire.routes import Route

log = logging.getLogger("headrace.wire")

JSON: Final = b"application/json"
ARROW_STREAM: Final = b"application/vnd.apache.arrow.stream"
EVENT_STREAM: Final = b"text/event-stream"

_READS: Final = frozenset({"read"})

# Names in lower case.  Values are single lines: `answer` takes nothing else.
Header = tuple[bytes, bytes]
Headers = Sequence[Header]


Part = bytes | FileRange  # of an answer


class Key(Protocol):
    """Who is asking, when there are API keys."""

    def allows_scope(self, scope: str) -> bool: ...
    def allows_name(self, name: str) -> bool: ...
    @property
    def has_prefixes(self) -> bool: ...


class HeldKey(Key, Protocol):
    """A key whose requests in progress are counted."""

    in_flight: int


class Outlet:
    """A response that goes on: SSE, or one direction of a tunnel.  Transports subclass it."""

    __slots__ = ("on_closed", "on_data", "on_room")
    # Whether what is written goes to the kernel at the end of the turn only.
    writes_later = False

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

    # Writing the same to many of them at once

    @property
    def descriptor(self) -> int:
        """Where what is `framed` may be written to until the loop goes on; -1: only by `write`."""
        return -1

    def framed(self, data: bytes) -> bytes:
        """Return what goes over the wire; the same for all streams of a kind that say where."""
        raise NotImplementedError

    def write_framed(self, framed: bytes) -> None:
        """Send what is left of what was framed."""
        raise NotImplementedError

    def when_writable(self, go_on: Callable[[], None]) -> bool:
        """Call once the kernel takes more, for who writes to the descriptor; False: use `write`."""
        return False

    def close(self) -> None:
        """End the response after what was written; `on_closed` is not called for it."""
        raise NotImplementedError

    def abort(self) -> None:
        """Break the response off, so that the client sees that it is not whole.

        Over HTTP/1.1 that ends the connection, over HTTP/2 the stream; `on_closed` is called.
        """
        raise NotImplementedError


class Repeated(bytes):
    """The value of a header that came more than once: all of them, joined with a comma.

    A list is the same in one header and in several.  What has one value by its protocol has none
    then, and is refused by who reads it.
    """

    __slots__ = ()


def sent_once(headers: Mapping[bytes, bytes], name: str) -> bytes | None:
    """The value of a header that has one; None: it is not there.  Two of them are refused.

    >>> sent_once({b"stream-seq": b"a, b"}, "Stream-Seq")
    b'a, b'
    >>> sent_once({b"stream-seq": Repeated(b"a, b")}, "Stream-Seq")
    Traceback (most recent call last):
    headrace.core.errors.InvalidRequest: Stream-Seq more than once; send it once
    """
    sent = headers.get(name.lower().encode())
    if type(sent) is Repeated:
        raise InvalidRequest(f"{name} more than once", fix="send it once")
    return sent


class Exchange:
    """A request.  `body` is whole and decompressed, unless the route takes it as a stream."""

    # What most requests never set stays here: a request is made for each append.
    body: bytes = b""
    budgeted: int = 0  # bytes of the body that count as memory of all requests
    params: Sequence[str] = ()  # of the path, decoded
    route: Route | None = None
    key: Key | None = None
    answered: bool = False
    streamed: bool = False  # the handler takes the body as it arrives
    long_lived: bool = False  # decided for this request, not by its route alone
    # What handlers have found out about requests with this very head, kept with it: never whether
    # one is let in.  None: nothing is kept.
    memo: dict[object, object] | None = None
    # Of a request whose body is streamed: each piece, and b"" at the end.  What arrives before this
    # is set waits.
    on_body: Callable[[bytes], None] | None = None
    # The client left before there was an answer.
    on_abort: Callable[[], None] | None = None
    # The answer, or the stream, has come to its end; the application counts it.
    on_answered: Callable[[Exchange, int], None] | None = None

    def __init__(
        self, method: str, path: str, query: str, headers: dict[bytes, bytes], started_ns: int
    ) -> None:
        self.method = method
        self.path = path  # as sent, without the query
        self.query = query  # as sent, without the "?"
        self.headers = headers  # by lower-case name; see `Repeated`
        self.started_ns = started_ns  # of the engine's monotonic clock

    def header(self, name: bytes) -> str:
        """A header's value as text; "" when it is not there."""
        return self.headers.get(name, b"").decode("latin-1")

    def let_go_body(self) -> None:
        """Drop the body, which the handler has read: its answer may take long."""
        self.body = b""

    # A streamed body

    def pause_body(self) -> None:
        """Call `on_body` no more until `resume_body`, and let the client wait.

        A bounded number of bytes is taken in meanwhile; time-outs for slow bodies stand still.
        Over HTTP/1.1 a client that resets its connection is noticed within about a second, one
        that merely ends it only after `resume_body`: it may have sent all of the body before.
        """
        raise NotImplementedError

    def resume_body(self) -> None:
        """Call `on_body` again, from the next turn of the loop on."""
        raise NotImplementedError

    # Answers: exactly one of these is called, once.

    def answer(
        self, status: int, body: bytes, content_type: bytes = JSON, headers: Headers = ()
    ) -> None:
        """Answer with a whole body; an empty content type is not told."""
        raise NotImplementedError

    @staticmethod
    def answer_all(
        answers: Sequence[WholeAnswer], header: bytes, content_type: bytes = JSON
    ) -> None:
        """Answer requests that were handled together, each with status 200 and its own body.

        Each answer has one header, of this name.  Requests of all transports may be among them.
        """
        for exchange, body, value in answers:
            try:
                exchange.answer(200, body, content_type, ((header, value),))
            except Exception as error:  # noqa: BLE001 - whatever it is, the client hears of it
                exchange.fail(error)

    @staticmethod
    def answer_empty(answers: Sequence[EmptyAnswer], status: int, lines: bytes) -> None:
        """Answer requests that were handled together, each with this status and without a body.

        `lines` are the headers of all of them, as HTTP/1.1 writes them, with places for the values
        of each (`b"etag: %d\\r\\n"`).  Requests of all transports may be among them.
        """
        for exchange, values in answers:
            try:
                exchange.answer(status, b"", b"", filled_headers(lines, values))
            except Exception as error:  # noqa: BLE001 - whatever it is, the client hears of it
                exchange.fail(error)

    def answer_parts(
        self, status: int, parts: Sequence[Part], content_type: bytes = JSON, headers: Headers = ()
    ) -> None:
        """Answer with a body of known length: bytes and ranges of open files, one after another.

        The files now belong to the answer, which closes each when it is over, however it ends.
        Nothing is compressed.  A file that cannot be read to the end of its range breaks the
        answer off: the client never gets a short or padded body that looks whole.
        """
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
        without_frames(error)
        if self.answered:
            log.error("an error after the answer to %s %s: %r", self.method, self.path, error)
            return
        if isinstance(error, MemoryError):
            # What only reads has changed nothing; of the rest nothing is known here.
            reads = self.route is not None and self.route.scopes == _READS
            error = OutOfResources.told("nothing" if reads else "unknown")
        elif not isinstance(error, HeadraceError):
            log.error("%s %s failed", self.method, self.path, exc_info=error)
            error = Internal(
                "the server met an error of its own",
                fix="see the server's log; if it says nothing of help, report it",
            )
        assert self.route is not None
        self.answer(*self.route.dialect.failure(error, self))


def filled_headers(lines: bytes, values: tuple[bytes | int, ...]) -> Headers:
    """The headers of an answer without a body, one by one.

    >>> filled_headers(b"etag: %d\\r\\nvary: %b\\r\\n", (7, b"a: b"))
    [(b'etag', b'7'), (b'vary', b'a: b')]
    """
    # Each by itself: a value with a line break in it is refused where the line is written.
    taken, headers = 0, []
    for line in lines.splitlines():
        count = line.count(b"%")
        name, _, value = line.partition(b": ")
        headers.append((name, value % values[taken : taken + count]))
        taken += count
    assert taken == len(values), values
    return headers


# A request with the body of its answer, and the value of the header that all such answers have.
WholeAnswer = tuple[Exchange, bytes, bytes]
# A request with the values of the headers that all such answers have.
EmptyAnswer = tuple[Exchange, tuple[bytes | int, ...]]
# status, body, content type, headers: the arguments of `answer`
Reply = tuple[int, bytes, bytes, Headers]
Handler = Callable[[Exchange], None]
TurnHandler = Callable[[Sequence[Exchange]], None]
