"""`/v1/streams`: list, create, ensure, look at, reconfigure and delete the streams of a basin."""

from __future__ import annotations

from functools import partial

import msgspec

from headrace.core.runtime import Ticket
from headrace.wire.exchange import Exchange
from headrace.wire.failures import answering, failed
from headrace.wire.rfc3339 import rfc3339
from headrace.wire.routes import ADMIN, DELETE, READ, WRITE, Route
from headrace.wire.s2.access import Access, Caller
from headrace.wire.s2.catalog.catalog import Catalog
from headrace.wire.s2.catalog.entries import Basin
from headrace.wire.s2.catalog.streams import ProvisionedStream
from headrace.wire.s2.configs import (
    Cipher,
    OptionalStreamConfig,
    StreamConfig,
    StreamReconfiguration,
    creation_key,
    reconfigured,
)
from headrace.wire.s2.errors import bad_json
from headrace.wire.s2.names import stream_prefix
from headrace.wire.s2.requests import (
    answer_deleted,
    answer_json,
    answer_provisioned,
    basin_of,
    json_body,
    listing_of,
    optional_body,
    page_of,
    stream_of,
    token_of,
    whole_name,
)
from headrace.wire.s2.stream_own import StreamOwn

ALL = "/v1/streams"
ONE = "/v1/streams/{stream}"


class CreateStream(msgspec.Struct, frozen=True):
    """The body of a creation."""

    stream: str
    config: OptionalStreamConfig | None = None


class StreamDescription(msgspec.Struct, frozen=True):
    """A stream as lists show it."""

    name: str
    created_at: str
    deleted_at: str | None
    cipher: Cipher | None

    @classmethod
    def of(cls, name: str, own: StreamOwn, deleted_ms: int = 0) -> StreamDescription:
        """What is shown of a stream."""
        deleted_at = rfc3339(deleted_ms) if deleted_ms else None
        return cls(name, rfc3339(own.created_ms), deleted_at, own.cipher)


class StreamPage(msgspec.Struct, frozen=True):
    """A page of streams."""

    streams: list[StreamDescription]
    has_more: bool


class StreamsApi:
    """The calls about streams that are not about their records."""

    def __init__(self, catalog: Catalog, access: Access) -> None:
        self._catalog = catalog
        self._access = access

    def list(self, exchange: Exchange) -> None:
        """List the streams of a basin by name."""
        caller = self._access.caller(exchange)
        basin = basin_of(exchange)
        caller.allow("list-streams", basin)
        asked = listing_of(exchange, stream_prefix)
        self._catalog.find_basin(basin)
        prefix = caller.streams_within(caller.stream_name(asked.prefix))
        after = caller.stream_name(asked.start_after) if asked.start_after else ""
        found = () if prefix is None else self._catalog.streams.after(basin, after, prefix)
        seen = (stream for stream in found if caller.may_see_stream(basin, stream.name))
        page, more = page_of(seen, asked.limit)
        shown = [
            StreamDescription.of(caller.shown(name), own, deleted_ms)
            for name, own, deleted_ms in page
        ]
        answer_json(exchange, 200, StreamPage(shown, more))

    def create(self, exchange: Exchange) -> None:
        """Create a stream."""
        caller = self._access.caller(exchange)
        basin = basin_of(exchange)
        body = json_body(exchange, CreateStream)
        name = whole_name(caller, body.stream, bad_json)
        if body.config is not None:
            body.config.check()
        token = token_of(exchange)
        caller.allow("create-stream", basin, name)
        key = b"" if token is None else creation_key(token, body.config)
        ticket = self._catalog.streams.create(basin, name, body.config, key)
        ticket.when_done(answering(exchange, partial(_provisioned, exchange, caller, 201)))

    def ensure(self, exchange: Exchange) -> None:
        """Create a stream, or replace the config of the one that is there."""
        caller, basin, name = self._named(exchange)
        given = optional_body(exchange, OptionalStreamConfig)
        if given is not None:
            given.check()
        caller.allow("create-stream", basin, name)
        replacing = partial(caller.allow, "reconfigure-stream", basin, name)
        ticket = self._catalog.streams.ensure(basin, name, given, replacing)
        ticket.when_done(answering(exchange, partial(_provisioned, exchange, caller, 200)))

    def get(self, exchange: Exchange) -> None:
        """Tell the config of a stream; of an unknown basin it is the stream that is not there."""
        caller, basin, name = self._named(exchange)
        caller.allow("get-stream-config", basin, name)
        found = self._catalog.streams.find(basin, name)
        answer_json(exchange, 200, found.own.config.to_json())

    def change(self, exchange: Exchange) -> None:
        """Reconfigure a stream."""
        caller, basin, name = self._named(exchange)
        changes = json_body(exchange, StreamReconfiguration)
        changes.check()
        caller.allow("reconfigure-stream", basin, name)

        def changed(current: StreamConfig, owner: Basin) -> StreamConfig:
            return reconfigured(current, changes, owner.config.default_stream_config)

        ticket = self._catalog.streams.change(basin, name, changed)
        ticket.when_done(answering(exchange, partial(_changed, exchange)))

    def delete(self, exchange: Exchange) -> None:
        """Delete a stream."""
        caller, basin, name = self._named(exchange)
        caller.allow("delete-stream", basin, name)
        ticket = self._catalog.streams.delete(basin, name)
        ticket.when_done(answering(exchange, partial(answer_deleted, exchange)))

    def _named(self, exchange: Exchange) -> tuple[Caller, str, str]:
        caller = self._access.caller(exchange)
        return caller, basin_of(exchange), stream_of(exchange, caller)


def _provisioned(
    exchange: Exchange, caller: Caller, otherwise: int, ticket: Ticket[ProvisionedStream]
) -> None:
    if failed(exchange, ticket):
        return
    name, own, result = ticket.result()
    shown = StreamDescription.of(caller.shown(name), own)
    answer_provisioned(exchange, otherwise, result, shown)


def _changed(exchange: Exchange, ticket: Ticket[ProvisionedStream]) -> None:
    if not failed(exchange, ticket):
        answer_json(exchange, 200, ticket.result().own.config.to_json())


def stream_routes(catalog: Catalog, access: Access) -> list[Route]:
    """The rows of streams."""
    api = StreamsApi(catalog, access)
    read, write = frozenset({READ}), frozenset({WRITE})
    return [
        Route("GET", ALL, api.list, read, "List streams"),
        Route("POST", ALL, api.create, write, "Create a stream"),
        Route("PUT", ONE, api.ensure, write, "Create or replace a stream"),
        Route("GET", ONE, api.get, read, "The config of a stream"),
        Route("PATCH", ONE, api.change, frozenset({ADMIN}), "Reconfigure a stream"),
        Route("DELETE", ONE, api.delete, frozenset({DELETE}), "Delete a stream"),
    ]
