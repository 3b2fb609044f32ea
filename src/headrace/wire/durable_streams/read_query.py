"""What a read of a stream asks for: its query, taken apart and checked.

Only this file reads queries of reads.  `offset`, `live` and `cursor` count, and others are ignored.
A field that is there twice is refused: a proxy and this server could take different ones.
"""

from __future__ import annotations

import enum
from typing import Final, NamedTuple
from urllib.parse import parse_qsl

from headrace.core.errors import InvalidRequest
from headrace.wire.durable_streams.offsets import START, Offset, parse_offset

QUERY_FIELDS_MAX: Final = 100
_KNOWN: Final = frozenset({"offset", "live", "cursor"})


class Live(enum.Enum):
    """How a read goes on at the tail."""

    NO = ""
    LONG_POLL = "long-poll"
    SSE = "sse"


class ReadQuery(NamedTuple):
    """A read that makes sense."""

    offset: Offset
    live: Live
    cursor: str  # as it was sent


_FROM_THE_START: Final = ReadQuery(START, Live.NO, "")


def parse_query(query: str) -> ReadQuery:
    """Return what a query asks for, or refuse it.

    >>> parse_query("offset=now&live=sse&x=1").live
    <Live.SSE: 'sse'>
    """
    if not query:
        return _FROM_THE_START
    fields = _fields(query)
    offset, live = fields.get("offset"), _live(fields.get("live"))
    if offset is None and live is not Live.NO:
        raise InvalidRequest(
            f"live={live.value} without an offset", fix="send offset=-1, now or a known offset"
        )
    at = START if offset is None else parse_offset(offset)
    return ReadQuery(at, live, fields.get("cursor", ""))


def asks_for_events(query: str) -> bool:
    """Whether a query is answered with events, however it is written; one that is wrong is not.

    >>> asks_for_events("offset=now&live=%73se"), asks_for_events("offset=now&x=live=sse")
    (True, False)
    """
    if "live=sse" not in query and "%" not in query:
        return False  # as in most reads
    try:
        return parse_query(query).live is Live.SSE
    except InvalidRequest:
        return False


def _fields(query: str) -> dict[str, str]:
    try:
        pairs = parse_qsl(
            query, keep_blank_values=True, errors="strict", max_num_fields=QUERY_FIELDS_MAX
        )
    except ValueError as error:
        raise InvalidRequest(f"the query does not parse: {error}", fix="percent-encode") from None
    fields: dict[str, str] = {}
    for name, value in pairs:
        if name in _KNOWN:
            if name in fields:
                raise InvalidRequest(f"{name} is there twice", fix=f"send one {name}")
            fields[name] = value
    return fields


def _live(text: str | None) -> Live:
    if text is None:
        return Live.NO
    if text == Live.LONG_POLL.value:
        return Live.LONG_POLL
    if text == Live.SSE.value:
        return Live.SSE
    raise InvalidRequest(f"live is {text[:40]!r}", fix="send live=long-poll or live=sse")
