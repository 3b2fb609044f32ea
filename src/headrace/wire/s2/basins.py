"""`/v1/basins`: list, create, ensure, look at, reconfigure and delete basins."""

from __future__ import annotations

from functools import partial
from typing import Literal

import msgspec

from headrace.core.runtime import Ticket
from headrace.wire.exchange import Exchange
from headrace.wire.failures import answering, failed
from headrace.wire.rfc3339 import rfc3339
from headrace.wire.routes import ADMIN, DELETE, READ, Route
from headrace.wire.s2.access import Access, Caller
from headrace.wire.s2.catalog.catalog import Catalog, Provisioned
from headrace.wire.s2.catalog.entries import Basin
from headrace.wire.s2.configs import BasinConfig, BasinReconfiguration, creation_key
from headrace.wire.s2.errors import bad_json, bad_path
from headrace.wire.s2.names import basin_name, basin_prefix, location_name
from headrace.wire.s2.requests import (
    answer_deleted,
    answer_json,
    answer_provisioned,
    json_body,
    listing_of,
    optional_body,
    page_of,
    token_of,
)

ALL = "/v1/basins"
ONE = "/v1/basins/{basin}"


class CreateBasin(msgspec.Struct, frozen=True):
    """The body of a creation."""

    basin: str
    config: BasinConfig | None = None
    location: str | None = None


class EnsureBasin(msgspec.Struct, frozen=True):
    """The body of a PUT."""

    config: BasinConfig | None = None
    location: str | None = None


class BasinInfo(msgspec.Struct, frozen=True):
    """A basin as lists show it."""

    name: str
    location: str | None
    created_at: str
    deleted_at: str | None
    state: Literal["active", "deleting"]

    @classmethod
    def of(cls, basin: Basin) -> BasinInfo:
        """What is shown of a basin."""
        deleted_ms = basin.deleted_ms
        return cls(
            basin.name,
            basin.location,
            rfc3339(basin.created_ms),
            rfc3339(deleted_ms) if deleted_ms else None,
            "deleting" if deleted_ms else "active",
        )


class BasinPage(msgspec.Struct, frozen=True):
    """A page of basins."""

    basins: list[BasinInfo]
    has_more: bool


class BasinsApi:
    """The calls about basins."""

    def __init__(self, catalog: Catalog, access: Access) -> None:
        self._catalog = catalog
        self._access = access

    def list(self, exchange: Exchange) -> None:
        """List basins by name."""
        caller = self._access.caller(exchange)
        caller.allow("list-basins")
        asked = listing_of(exchange, basin_prefix)
        found = self._catalog.basins_after(asked.start_after, asked.prefix)
        seen = (basin for basin in found if caller.may_see_basin(basin.name))
        page, more = page_of(seen, asked.limit)
        answer_json(exchange, 200, BasinPage([BasinInfo.of(basin) for basin in page], more))

    def create(self, exchange: Exchange) -> None:
        """Create a basin."""
        caller = self._access.caller(exchange)
        body = json_body(exchange, CreateBasin)
        name = basin_name(body.basin, bad_json)
        config, location = _checked(body)
        token = token_of(exchange)
        caller.allow("create-basin", name)
        key = "" if token is None else creation_key(token, body.config).hex()
        ticket = self._catalog.create_basin(name, config, location, key)
        ticket.when_done(answering(exchange, partial(_provisioned, exchange, 201)))

    def ensure(self, exchange: Exchange) -> None:
        """Create a basin, or replace the config of the one that is there."""
        caller, name = self._named(exchange)
        body = optional_body(exchange, EnsureBasin) or EnsureBasin()
        config, location = _checked(body)
        caller.allow("create-basin", name)
        replacing = partial(caller.allow, "reconfigure-basin", name)
        ticket = self._catalog.ensure_basin(name, config, location, replacing)
        ticket.when_done(answering(exchange, partial(_provisioned, exchange, 200)))

    def get(self, exchange: Exchange) -> None:
        """Tell the config of a basin."""
        caller, name = self._named(exchange)
        caller.allow("get-basin-config", name)
        answer_json(exchange, 200, self._catalog.find_basin(name).config.to_json())

    def change(self, exchange: Exchange) -> None:
        """Reconfigure a basin."""
        caller, name = self._named(exchange)
        changes = json_body(exchange, BasinReconfiguration)
        changes.check()
        caller.allow("reconfigure-basin", name)
        ticket = self._catalog.change_basin(name, changes.applied)
        ticket.when_done(answering(exchange, partial(_changed, exchange)))

    def delete(self, exchange: Exchange) -> None:
        """Begin to delete a basin."""
        caller, name = self._named(exchange)
        caller.allow("delete-basin", name)
        ticket = self._catalog.delete_basin(name)
        ticket.when_done(answering(exchange, partial(answer_deleted, exchange)))

    def _named(self, exchange: Exchange) -> tuple[Caller, str]:
        caller = self._access.caller(exchange)
        return caller, basin_name(exchange.params[0], bad_path)


def _checked(body: CreateBasin | EnsureBasin) -> tuple[BasinConfig, str | None]:
    """The config and the location that are asked for."""
    config = body.config or BasinConfig()
    config.check()
    if body.location is not None:
        location_name(body.location, bad_json)
    return config.reduced(), body.location


def _provisioned(exchange: Exchange, otherwise: int, ticket: Ticket[Provisioned]) -> None:
    if failed(exchange, ticket):
        return
    basin, result = ticket.result()
    answer_provisioned(exchange, otherwise, result, BasinInfo.of(basin))


def _changed(exchange: Exchange, ticket: Ticket[Provisioned]) -> None:
    if not failed(exchange, ticket):
        answer_json(exchange, 200, ticket.result().basin.config.to_json())


def basin_routes(catalog: Catalog, access: Access) -> list[Route]:
    """The rows of basins."""
    api = BasinsApi(catalog, access)
    read, admin = frozenset({READ}), frozenset({ADMIN})
    return [
        Route("GET", ALL, api.list, read, "List basins"),
        Route("POST", ALL, api.create, admin, "Create a basin"),
        Route("PUT", ONE, api.ensure, admin, "Create or replace a basin"),
        Route("GET", ONE, api.get, read, "The config of a basin"),
        Route("PATCH", ONE, api.change, admin, "Reconfigure a basin"),
        Route("DELETE", ONE, api.delete, frozenset({DELETE}), "Delete a basin"),
    ]
