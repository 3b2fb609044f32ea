"""Queries of requests as fields: decoded, bounded, and read as flags."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final
from urllib.parse import parse_qsl

from headrace.core.errors import (
    InvalidRequest,
)
from headrace.wire.exchange import Exchange

QUERY_FIELDS_MAX: Final = 100
_TRUE: Final = frozenset({"true", "1"})
_FALSE: Final = frozenset({"false", "0"})


def query_of(exchange: Exchange) -> Mapping[str, str]:
    """The fields of the query; of a repeated one the first counts."""
    if not exchange.query:
        return {}
    try:
        pairs = parse_qsl(
            exchange.query,
            keep_blank_values=True,
            errors="strict",
            max_num_fields=QUERY_FIELDS_MAX,
        )
    except ValueError as error:
        raise InvalidRequest(f"the query does not parse: {error}", fix="percent-encode") from None
    fields: dict[str, str] = {}
    for name, value in pairs:
        fields.setdefault(name, value)
    return fields


def flag(query: Mapping[str, str], name: str, default: bool) -> bool:
    """A flag of the query; the default for what is neither yes nor no.

    >>> flag({"touch": "0"}, "touch", True), flag({"touch": "maybe"}, "touch", True)
    (False, True)
    """
    value = query.get(name)
    if value in _TRUE:
        return True
    return False if value in _FALSE else default
