"""Long polls of streams: what ends the wait, and what they are answered with then."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.support.stream_readers import StreamServer

WAIT_MS = 500


@pytest.fixture
def streams(serve: Callable[..., StreamServer]) -> StreamServer:
    return serve(ds_long_poll_ms=WAIT_MS)


def test_an_append_ends_the_wait_of_all(streams: StreamServer) -> None:
    streams.create("s", "application/json")
    streams.append("s", b"1")
    at_tail = streams.offset("s", 1)
    polls = [streams.ask(f"s?offset={offset}&live=long-poll") for offset in (at_tail, "now")]
    assert not any(poll.answered for poll in polls)
    streams.append("s", b"2", b"3")
    streams.run()
    for poll in polls:
        assert poll.status == 200 and poll.reply.startswith(b"[2")
        assert poll.reply_headers[b"stream-cursor"].isdigit()
        assert b"etag" in poll.reply_headers


def test_a_close_ends_the_wait(streams: StreamServer) -> None:
    streams.create("s")
    streams.append("s", b"x")
    poll = streams.ask("s?offset=now&live=long-poll")
    assert not poll.answered
    streams.close("s")
    streams.run()
    assert (poll.status, poll.reply_headers[b"stream-closed"]) == (204, b"true")
    assert b"stream-cursor" not in poll.reply_headers
    assert poll.reply_headers[b"stream-up-to-date"] == b"true"


def test_time_ends_the_wait(streams: StreamServer) -> None:
    streams.create("s")
    poll = streams.ask("s?offset=-1&live=long-poll")
    streams.wait(WAIT_MS - 50)
    assert not poll.answered
    streams.wait(100)
    assert (poll.status, poll.reply) == (204, b"")
    assert poll.reply_headers[b"stream-next-offset"] == streams.offset("s", 0).encode()
    assert poll.reply_headers[b"stream-cursor"].isdigit()
    assert poll.reply_headers[b"cache-control"] == b"no-store"


def test_the_end_of_the_stream_ends_the_wait(streams: StreamServer) -> None:
    streams.create("s")
    poll = streams.ask("s?offset=now&live=long-poll")
    streams.engine.streams.delete("ds:s").result()
    streams.run()
    assert poll.status == 404


def test_a_server_that_stops_ends_the_wait(streams: StreamServer) -> None:
    streams.create("s")
    poll = streams.ask("s?offset=now&live=long-poll")
    streams.context.drain()
    streams.run()
    assert poll.status == 204


def test_a_client_that_has_an_old_tag_waits_for_new_bytes(streams: StreamServer) -> None:
    streams.create("s")
    streams.append("s", b"x")
    tag = streams.ask("s").reply_headers[b"etag"].decode()
    poll = streams.ask("s?offset=now&live=long-poll", if_none_match=tag)
    assert not poll.answered
    streams.append("s", b"y")
    streams.run()
    assert (poll.status, poll.reply) == (200, b"y")


def test_a_wait_on_a_stream_that_is_kept_for_its_forks_ends_as_any_read_of_it(
    streams: StreamServer,
) -> None:
    streams.create("s")
    streams.fork("f", "s")
    poll = streams.ask("s?offset=now&live=long-poll")
    streams.engine.streams.delete("ds:s").result()
    streams.run()
    assert poll.status == streams.ask("s").status == 410


def test_a_wait_on_a_stream_that_was_made_again_is_told_so(streams: StreamServer) -> None:
    streams.create("s")
    poll = streams.ask("s?offset=now&live=long-poll")
    streams.engine.streams.delete("ds:s")
    streams.create("s")
    streams.run()
    assert poll.status == 410
