"""What requests about the records of a stream have in common: who asks, for which stream, how.

Only this file decides by content type and `Accept` what a request is: a session (`s2s/proto`), or
a call with a body of protobuf or JSON, answered as one of these or with events.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, NamedTuple

from headrace.core.error_frames import without_frames
from headrace.core.errors import HeadraceError
from headrace.core.runtime import Ticket
from headrace.wire.exchange import EVENT_STREAM, Exchange
from headrace.wire.failures import answering
from headrace.wire.routes import Handling
from headrace.wire.s2.access import Access, Caller
from headrace.wire.s2.catalog.catalog import Catalog
from headrace.wire.s2.catalog.streams import DataOp, OpenStream
from headrace.wire.s2.ciphers import RecordCipher
from headrace.wire.s2.errors import unavailable, unnamed
from headrace.wire.s2.names import encryption_key, split_topic
from headrace.wire.s2.records import Position
from headrace.wire.s2.requests import basin_of, stream_of
from headrace.wire.server_context import ServerContext

DIALECT: Final = "s2"  # a label of metrics

SESSION_TYPE: Final = b"s2s/proto"
PROTOBUF_TYPES: Final = frozenset({b"application/protobuf", b"application/x-protobuf"})
CONFIG_HEADER: Final = b"s2-stream-config"
KEY_HEADER: Final = b"s2-encryption-key"


class Target(NamedTuple):
    """The stream that a request is about, by its whole name, and who asks."""

    basin: str
    stream: str
    caller: Caller


def media_type(exchange: Exchange, header: bytes) -> bytes:
    """The first media type of a header, in lower case and without parameters; b"" for none."""
    first = exchange.headers.get(header, b"").partition(b",")[0]
    return first.partition(b";")[0].strip().lower()


def is_session(exchange: Exchange) -> bool:
    """Whether a request opens a session."""
    return media_type(exchange, b"content-type") == SESSION_TYPE


def wants_events(exchange: Exchange) -> bool:
    """Whether a read is to be answered with events."""
    return media_type(exchange, b"accept") == EVENT_STREAM


def wants_protobuf(exchange: Exchange) -> bool:
    """Whether an answer is to be protobuf; else it is JSON."""
    return media_type(exchange, b"accept") in PROTOBUF_TYPES


def append_handling(exchange: Exchange) -> Handling:
    """How an append is handled: a session takes its body as it comes, and lasts."""
    session = is_session(exchange)
    return Handling(streamed=session, long_lived=session)


def read_handling(exchange: Exchange) -> Handling:
    """How a read is handled: a session does not wait for the end of a request without a body."""
    session = is_session(exchange)
    return Handling(streamed=session, long_lived=session or wants_events(exchange))


def tail_of(opened: OpenStream) -> Position:
    """Where a stream ended when it was looked up."""
    return Position(opened.info.head_seq, opened.info.last_ts)


class DataRequests:
    """Finds what requests are about, for one server."""

    def __init__(self, context: ServerContext, catalog: Catalog, access: Access) -> None:
        self.context = context
        self.engine = context.engine
        self.metrics = context.metrics
        self.catalog = catalog
        self._access = access

    def target(self, exchange: Exchange) -> Target:
        """The stream that a request names, and who asks."""
        caller = self._access.caller(exchange)
        return Target(basin_of(exchange), stream_of(exchange, caller), caller)

    def check_caller(self, exchange: Exchange) -> None:
        """Raise if whoever opened a stream that goes on would not be known any more."""
        self._access.caller(exchange)

    def open(
        self,
        exchange: Exchange,
        op: DataOp,
        target: Target,
        then: Callable[[OpenStream], None],
        *,
        configured: bool = True,
    ) -> None:
        """Find the stream, or create it where its basin says so, and go on with it.

        What is raised meanwhile is the answer.  `configured`: the request may say what a stream
        is to be like that it creates.
        """
        config = exchange.headers.get(CONFIG_HEADER) if configured else None
        found = self.catalog.open_for(op, target.basin, target.stream, config)
        if isinstance(found, OpenStream):
            then(found)
            return

        def done(ticket: Ticket[OpenStream]) -> None:
            if exchange.answered:
                return
            if ticket.error is not None:
                raise ticket.error
            then(ticket.result())

        found.when_done(answering(exchange, done))

    def gone(self, topic: str) -> HeadraceError:
        """Why a read or an append of a stream that was deleted meanwhile cannot go on."""
        try:
            self.catalog.stream(*split_topic(topic))
        except HeadraceError as error:
            # Not by its name: whoever asks may know the stream by another than this whole one.
            return unnamed(without_frames(error))
        return unavailable("the stream was deleted, and created anew")

    def count_read(self, topic: str, metered: int, *, streaming: bool) -> None:
        """Count a batch that a reader was given, for whoever asks for the use of its basin."""
        self.catalog.usage.read(split_topic(topic)[0], metered, streaming=streaming)

    def tail(self, topic: str) -> Position:
        """Where a stream ends now."""
        info = self.engine.streams.info(topic)
        return Position(info.head_seq, info.last_ts)

    def cipher(self, exchange: Exchange, opened: OpenStream) -> RecordCipher | None:
        """What seals and opens the records of a stream; None: they are stored as they come."""
        own = opened.own
        if own.cipher is None:
            return None
        text = exchange.headers.get(KEY_HEADER, b"").decode("latin-1")
        key = encryption_key(text, own.cipher)
        return RecordCipher(own.cipher, key, own.encryption_id, self.engine.random)
