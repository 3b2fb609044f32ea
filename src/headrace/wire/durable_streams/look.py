"""`HEAD` and `DELETE /v1/stream/{path}`: what a stream is, and its end."""

from __future__ import annotations

from functools import partial

from headrace.core.runtime import Ticket
from headrace.engine.streams.operations import StreamInfo
from headrace.wire.durable_streams.errors import CLOSED, NEXT_OFFSET, NO_STORE
from headrace.wire.durable_streams.offsets import offset_text
from headrace.wire.durable_streams.paths import stream_name
from headrace.wire.durable_streams.request_headers import EXPECTED_OFFSET, refuse_condition
from headrace.wire.exchange import Exchange, Header
from headrace.wire.failures import answering, failed
from headrace.wire.routes import PathRest
from headrace.wire.server_context import ServerContext


class LookApi:
    """Tells of streams without reading them, and deletes them."""

    def __init__(self, context: ServerContext) -> None:
        self._streams = context.engine.streams

    def head(self, exchange: Exchange) -> None:
        """Tell what a stream is; that is no use of it, so it expires no later."""
        info = self._streams.info(_name_of(exchange))
        content_type = info.state.content_type.encode("latin-1")
        exchange.answer(200, b"", content_type, described(info))

    def delete(self, exchange: Exchange) -> None:
        """Delete a stream; a condition that it is as it was is refused, not ignored."""
        refuse_condition(exchange.headers, "If-Match", unless=b"*")
        refuse_condition(exchange.headers, "If-None-Match")
        refuse_condition(exchange.headers, EXPECTED_OFFSET)
        ticket = self._streams.delete(_name_of(exchange))
        ticket.when_done(answering(exchange, partial(_deleted, exchange)))


def _deleted(exchange: Exchange, ticket: Ticket[None]) -> None:
    if not failed(exchange, ticket):
        exchange.answer(204, b"", b"")


def described(info: StreamInfo) -> list[Header]:
    """The headers that tell what a stream is."""
    state, config = info.state, info.config
    headers: list[Header] = [(NEXT_OFFSET, offset_text(info.tail)), NO_STORE]
    if state.ttl_s is not None:
        headers.append((b"stream-ttl", b"%d" % state.ttl_s))
    if state.expires_ms is not None:
        headers.append((b"stream-expires-at", state.expires_at.encode("latin-1")))
    if config.ttl_ms:
        headers.append((b"stream-retention-age", b"%d" % (config.ttl_ms // 1_000)))
    if config.cap_bytes:
        headers.append((b"stream-retention-bytes", b"%d" % config.cap_bytes))
    if state.closed:
        headers.append(CLOSED)
    return headers


def _name_of(exchange: Exchange) -> str:
    (path,) = exchange.params
    assert isinstance(path, PathRest)
    return stream_name(path)
