"""Queries of reads: what they ask for, and what is refused."""

from __future__ import annotations

import pytest

from headrace.core.errors import InvalidRequest
from headrace.engine.streams.spec import Position
from headrace.wire.durable_streams.offsets import NOW, START
from headrace.wire.durable_streams.read_query import (
    Live,
    ReadQuery,
    asks_for_events,
    parse_query,
)


@pytest.mark.parametrize(
    ("query", "expected"),
    [
        ("", ReadQuery(START, Live.NO, "")),
        ("other=1&offset=now", ReadQuery(NOW, Live.NO, "")),
        ("offset=-1&live=sse", ReadQuery(START, Live.SSE, "")),
        (
            "cursor=7&live=long-poll&offset=0000000000000001_0000000000000002",
            ReadQuery(Position(1, 2), Live.LONG_POLL, "7"),
        ),
        ("other=1&other=2&offset=%2D1", ReadQuery(START, Live.NO, "")),
    ],
)
def test_what_is_asked_for(query: str, expected: ReadQuery) -> None:
    assert parse_query(query) == expected


@pytest.mark.parametrize(
    "query",
    [
        "offset=",
        "offset",
        "offset=-1&offset=now",
        "live=sse",
        "live=long-poll&cursor=1",
        "offset=-1&live=",
        "offset=-1&live=SSE",
        "offset=-1&live=sse&live=sse",
        "offset=%ff",
        "&".join(["x=1"] * 101),
    ],
)
def test_what_is_refused(query: str) -> None:
    with pytest.raises(InvalidRequest):
        parse_query(query)


@pytest.mark.parametrize(
    ("query", "events"),
    [
        ("offset=now&live=sse", True),
        ("offset=now&live=%73se", True),
        ("offset=now&l%69ve=sse", True),
        ("offset=now&live=long-poll", False),
        ("offset=now&x=live=sse", False),
        ("offset=now&alive=sse", False),
        ("offset=zz&live=sse", False),
        ("", False),
    ],
)
def test_what_is_answered_with_events_is_what_the_query_says(query: str, events: bool) -> None:
    """Else it holds the place of a request in progress for a minute, or a read holds none."""
    assert asks_for_events(query) is events
