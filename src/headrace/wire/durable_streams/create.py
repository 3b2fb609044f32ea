"""`PUT /v1/stream/{path}`: create a stream, empty or with its first data, or as a fork of another.

Every header is read before the engine is asked, so that one that is wrong creates nothing.
"""

from __future__ import annotations

from functools import partial
from typing import Final

from msgspec.structs import replace

from headrace.core.errors import Forbidden, HeadMismatch, HeadraceError, InvalidRequest
from headrace.core.limits import seq_max
from headrace.core.runtime import Ticket
from headrace.engine.appending.admission import Records
from headrace.engine.streams.operations import StreamCreated
from headrace.engine.streams.spec import Position, StreamSpec
from headrace.engine.topics.config import TopicConfig, make_config
from headrace.storage.block import KIND_BYTES, KIND_JSON
from headrace.wire.durable_streams.errors import CLOSED, NEXT_OFFSET
from headrace.wire.durable_streams.messages import messages_of
from headrace.wire.durable_streams.offsets import ZERO, Mark, offset_text, parse_offset
from headrace.wire.durable_streams.paths import name_at, origin_of, path_of, stream_name
from headrace.wire.durable_streams.request_headers import (
    DEFAULT_TYPE,
    EXPECTED_OFFSET,
    SECONDS_MAX,
    ContentType,
    closes,
    content_type_of,
    expires_at,
    is_media_type,
    refuse_condition,
    wants_new,
    whole_number,
)
from headrace.wire.exchange import Exchange, Header, sent_once
from headrace.wire.failures import answering, failed
from headrace.wire.routes import ADMIN, READ, PathRest
from headrace.wire.server_context import ServerContext

DIALECT: Final = "ds"  # what the state of a stream is marked with
_OCTETS: Final = ContentType(DEFAULT_TYPE, DEFAULT_TYPE)


class CreateApi:
    """Creates streams."""

    def __init__(self, context: ServerContext) -> None:
        self._engine = context.engine
        self._streams = context.engine.streams
        self._settings = context.settings
        # Of most streams; they share it.
        self._plain_config = make_config({"durability": context.settings.ds_durability})

    def create(self, exchange: Exchange) -> None:
        """Create the stream that a request describes; one that is there already is told so."""
        name = _name_of(exchange)
        spec = self._spec(exchange)
        self._check_key(exchange, name, spec)
        ticket = self._streams.create(name, spec, self._records(exchange.body, spec))
        ticket.when_done(answering(exchange, partial(self._created, exchange, name)))

    def check_head(self, exchange: Exchange) -> None:
        """Refuse what the head alone shows to be wrong."""
        self._check_key(exchange, _name_of(exchange), self._spec(exchange))

    def _created(self, exchange: Exchange, name: str, ticket: Ticket[StreamCreated]) -> None:
        if failed(exchange, ticket):
            return
        created, info = ticket.result().created, ticket.result().info
        if not created and wants_new(exchange.headers):
            exchange.fail(HeadMismatch("the stream is there", fix="use it, or another path"))
            return
        headers: list[Header] = [(NEXT_OFFSET, offset_text(info.tail))]
        if info.state.closed:
            headers.append(CLOSED)
        if created:
            address = origin_of(exchange, self._settings) + path_of(name)
            headers.append((b"location", address.encode("latin-1")))
        content_type = info.state.content_type.encode("latin-1")
        exchange.answer(201 if created else 200, b"", content_type, headers)

    # What was asked for

    def _spec(self, exchange: Exchange) -> StreamSpec:
        headers = exchange.headers
        refuse_condition(headers, "If-Match")
        refuse_condition(headers, EXPECTED_OFFSET)
        wants_new(headers)
        ttl_s = whole_number(headers, "Stream-TTL", SECONDS_MAX)
        expires = expires_at(headers)
        if ttl_s is not None and expires is not None:
            raise InvalidRequest("both Stream-TTL and Stream-Expires-At", fix="send one of them")
        source, fork_at, sub_offset = _fork_of(exchange)
        content_type = content_type_of(headers)
        if content_type is None:
            content_type = _OCTETS if source is None else None
        elif not is_media_type(content_type.media_type):
            content_type = _OCTETS
        kind = None
        if content_type is not None:
            kind = KIND_JSON if content_type.is_json else KIND_BYTES
        return StreamSpec(
            dialect=DIALECT,
            content_type=None if content_type is None else content_type.text,
            kind=kind,
            ttl_s=ttl_s,
            expires_ms=None if expires is None else expires[0],
            expires_at="" if expires is None else expires[1],
            closed=closes(headers),
            source=source,
            fork_at=fork_at,
            sub_offset=sub_offset,
            config=self._config(exchange),
        )

    def _config(self, exchange: Exchange) -> TopicConfig:
        """Durability, and what the stream is to forget: an extension of the protocol."""
        headers = exchange.headers
        age_s = whole_number(headers, "Stream-Retention-Age", SECONDS_MAX) or 0
        cap_bytes = whole_number(headers, "Stream-Retention-Bytes", seq_max) or 0
        if not age_s and not cap_bytes:
            return self._plain_config
        return replace(self._plain_config, ttl_ms=age_s * 1_000, cap_bytes=cap_bytes)

    def _records(self, body: bytes, spec: StreamSpec) -> Records | None:
        """The first records; a fork without a type has that of its source."""
        if not body:
            return None
        kind = spec.kind
        if kind is None and spec.source is not None:
            # Whether that can be forked is for the engine to say, and no matter for a repeat.
            source = self._engine.topics_by_name.get(spec.source)
            stream = None if source is None else source.stream
            kind = KIND_BYTES if stream is None else stream.kind
        if kind != KIND_JSON:
            return body
        return messages_of(body, self._settings.records_per_append_max)

    def _check_key(self, exchange: Exchange, name: str, spec: StreamSpec) -> None:
        """Refuse a key what it may not read, and what it may not configure."""
        key, source = exchange.key, spec.source
        if key is None:
            return
        if source is not None and not (key.allows_scope(READ) and key.allows_name(source)):
            raise Forbidden(
                "this key may not read the stream that is to be forked",
                fix="use a key with the scope read and a prefix of its name",
            )
        if key.allows_scope(ADMIN) or self._has_retention(name, spec.config):
            return
        raise Forbidden(
            "Stream-Retention-* needs the scope admin", fix="leave it out, or use another key"
        )

    def _has_retention(self, name: str, config: TopicConfig) -> bool:
        """Whether nothing would be configured: a stream that has expired is created anew."""
        asked = (config.ttl_ms, config.cap_bytes)
        if asked == (0, 0):
            return True
        try:
            known = self._streams.info(name).config
        except HeadraceError:
            return False
        return asked == (known.ttl_ms, known.cap_bytes)


def _name_of(exchange: Exchange) -> str:
    (path,) = exchange.params
    assert isinstance(path, PathRest)
    return stream_name(path)


def _fork_of(exchange: Exchange) -> tuple[str | None, Position | None, int]:
    """What a fork is made of: the topic of its source, where, and how much of the next append."""
    headers = exchange.headers
    forked_from = sent_once(headers, "Stream-Forked-From")
    sub_offset = whole_number(headers, "Stream-Fork-Sub-Offset")
    at_text = sent_once(headers, "Stream-Fork-Offset")
    if forked_from is None:
        if sub_offset is not None or at_text is not None:
            raise InvalidRequest(
                "a place to fork at, and nothing to fork", fix="send Stream-Forked-From, too"
            )
        return None, None, 0
    source = name_at(forked_from.decode("latin-1"))
    fork_at: Position | None = None
    if at_text is not None:
        at = parse_offset(at_text.decode("latin-1"))
        if at is not Mark.NOW:
            fork_at = ZERO if at is Mark.START else at
    return source, fork_at, sub_offset or 0
