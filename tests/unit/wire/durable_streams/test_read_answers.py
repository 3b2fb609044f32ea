"""Answers to reads: tags, what caches may do, bodies that are made once."""

from __future__ import annotations

import pytest

from headrace.engine.streams.spec import Position
from headrace.wire.durable_streams.offsets import NOW, START, ZERO, Offset
from headrace.wire.durable_streams.read_answers import Extent, caching, etag, matches
from tests.support.stream_readers import StreamServer

OWN = Position(7, 3)
PART = Extent(3, 5, 9, closed=False, sealed=True)
TAIL = Extent(3, 9, 9, closed=False, sealed=True)
END = Extent(3, 9, 9, closed=True, sealed=True)
UNSEALED = Extent(3, 5, 9, closed=False, sealed=False)
FOREVER = b"public, max-age=31536000, immutable"
MINUTE = b"public, max-age=60, stale-while-revalidate=300"
ASK = b"public, no-cache"


@pytest.mark.parametrize(
    ("offset", "extent", "expected"),
    [
        (OWN, PART, FOREVER),
        (OWN, END, FOREVER),
        (OWN, TAIL, MINUTE),
        (OWN, UNSEALED, MINUTE),
        (START, PART, ASK),
        (START, END, ASK),
        (ZERO, PART, ASK),
        (ZERO, END, ASK),
        (Position(6, 3), PART, ASK),
        (NOW, TAIL, b"no-store"),
    ],
)
def test_what_caches_may_do(offset: Offset, extent: Extent, expected: bytes) -> None:
    assert caching(offset, 7, extent, private=False) == (b"cache-control", expected)
    private = expected.replace(b"public", b"private")
    assert caching(offset, 7, extent, private=True) == (b"cache-control", private)


def test_tags_tell_extents_apart() -> None:
    extents = [PART, TAIL, END, Extent(4, 5, 9, closed=False), Extent(3, 6, 9, closed=False)]
    tags = {etag(epoch, extent) for epoch in (7, 8) for extent in extents}
    assert len(tags) == 2 * len(extents)
    assert etag(7, PART) == etag(7, UNSEALED), "where the bytes lie says nothing of them"
    tag = etag(7, PART)
    assert matches(tag, tag) and matches(b"*", tag) and matches(b'"x" , W/' + tag, tag)
    assert not matches(b"", tag) and not matches(tag[:-1], tag)


def test_a_body_is_made_once_for_all_who_ask_for_the_same(streams: StreamServer) -> None:
    streams.create("s", "application/json")
    streams.append("s", b"1", b"2")
    one, other = streams.ask("s"), streams.ask("s?offset=-1")
    assert one.reply == other.reply == b"[1,2]"
    streams.append("s", b"3")
    assert streams.ask("s").reply == b"[1,2,3]"


def test_a_read_whose_stream_is_made_again_meanwhile(streams: StreamServer) -> None:
    streams.create("s")
    streams.append("s", b"old")
    waiting = streams.ask(f"s?offset={streams.offset('s', 1)}&live=long-poll")
    assert not waiting.answered
    streams.engine.streams.delete("ds:s").result()
    streams.create("s")
    streams.append("s", b"new")
    streams.run()
    assert waiting.status in (404, 410)


def test_a_tag_that_says_all_is_answered_without_a_read(streams: StreamServer) -> None:
    streams.create("s")
    streams.append("s", b"one")
    tag = streams.ask("s").reply_headers[b"etag"].decode()
    before = streams.engine.state.topic("ds:s").last_read_ms
    streams.clock.advance(5)
    again = streams.ask("s", if_none_match=tag)
    assert (again.status, again.reply) == (304, b"")
    assert streams.engine.state.topic("ds:s").last_read_ms == before
