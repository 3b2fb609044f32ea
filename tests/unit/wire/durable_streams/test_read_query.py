"""Queries of reads: what they ask for, and what is refused."""

from __future__ import annotations

import pytest

from headrace.core.errors import InvalidRequest
from headrace.engine.streams.spec import Position
from headrace.wire.durable_streams.offsets import NOW, START
from headrace.wire.durable_streams.read_query import Live, ReadQuery, parse_query


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
