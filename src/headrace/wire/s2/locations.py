"""`/v1/locations`: where basins can be.  One server is one place; its locations are names of it."""

from __future__ import annotations

from functools import partial
from typing import Final

import msgspec

from headrace.core.runtime import Ticket
from headrace.wire.exchange import Exchange
from headrace.wire.failures import answering, failed
from headrace.wire.routes import ADMIN, READ, Route
from headrace.wire.s2.access import Access
from headrace.wire.s2.catalog.catalog import Catalog
from headrace.wire.s2.configs import DEFAULT_STORAGE_CLASS
from headrace.wire.s2.errors import bad_json, invalid
from headrace.wire.s2.names import location_name
from headrace.wire.s2.requests import answer_json, json_body

ALL = "/v1/locations"
DEFAULT = "/v1/locations/default"
STORAGE_CLASSES: Final = ("standard", "express")


class LocationInfo(msgspec.Struct, frozen=True):
    """A location as it is shown."""

    name: str
    is_private: bool = True
    storage_classes: tuple[str, ...] = STORAGE_CLASSES
    default_storage_class: str = DEFAULT_STORAGE_CLASS


class LocationsApi:
    """The calls about locations."""

    def __init__(self, catalog: Catalog, access: Access) -> None:
        self._catalog = catalog
        self._access = access

    def list(self, exchange: Exchange) -> None:
        """List the locations."""
        self._access.caller(exchange).allow("list-locations")
        answer_json(exchange, 200, [LocationInfo(name) for name in self._catalog.locations])

    def get_default(self, exchange: Exchange) -> None:
        """Tell where basins are that name no location."""
        self._access.caller(exchange).allow("get-default-location")
        answer_json(exchange, 200, LocationInfo(self._catalog.default_location))

    def set_default(self, exchange: Exchange) -> None:
        """Choose where basins are that name no location."""
        caller = self._access.caller(exchange)
        name = location_name(json_body(exchange, str), bad_json)
        caller.allow("set-default-location")
        if name not in self._catalog.locations:
            raise invalid(f"Location {name!r} is not one of {', '.join(self._catalog.locations)}")
        ticket = self._catalog.set_default_location(name)
        ticket.when_done(answering(exchange, partial(_chosen, exchange, name)))


def _chosen(exchange: Exchange, name: str, ticket: Ticket[None]) -> None:
    if not failed(exchange, ticket):
        answer_json(exchange, 200, LocationInfo(name))


def location_routes(catalog: Catalog, access: Access) -> list[Route]:
    """The rows of locations."""
    api = LocationsApi(catalog, access)
    read = frozenset({READ})
    return [
        Route("GET", ALL, api.list, read, "List locations"),
        Route("GET", DEFAULT, api.get_default, read, "The default location"),
        Route("PUT", DEFAULT, api.set_default, frozenset({ADMIN}), "Choose the default location"),
    ]
