"""Events of streams: what is written at once, when, for whom it is encoded, and when they end."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from headrace.wire.durable_streams.cursors import current_cursor
from headrace.wire.durable_streams.event_streams import EVENTS_MS_MAX, KEEP_ALIVE_MS
from tests.support.stream_readers import StreamServer


def test_a_pair_is_one_write_and_says_that_it_reaches_the_tail(streams: StreamServer) -> None:
    streams.create("s")
    streams.append("s", b"one", b"two")
    reader = streams.events("s")
    (pair,) = reader.writes()
    cursor = current_cursor(streams.engine.state.clock.now_ms())
    assert pair == (
        b"event: data\ndata:onetwo\n\n"
        b'event: control\ndata:{"streamNextOffset":"%b","streamCursor":"%d","upToDate":true}\n\n'
        % (streams.offset("s", 2).encode(), cursor)
    )
    assert reader.writes() == []
    streams.append("s", b"three")
    (pair,) = reader.writes()
    assert pair.startswith(b"event: data\ndata:three\n\nevent: control\n")


def test_a_reader_that_is_behind_is_not_up_to_date(serve: Callable[..., StreamServer]) -> None:
    streams = serve(stream_pending_bytes=1024)
    streams.create("s", "application/octet-stream")
    streams.append("s", *[bytes([number]) * 700 for number in range(3)])
    pairs = streams.events("s").writes()
    assert len(pairs) == 3
    assert [b"upToDate" in pair for pair in pairs] == [False, False, True]


def test_an_append_is_encoded_once_for_all(streams: StreamServer) -> None:
    streams.create("s", "application/json")
    readers = [streams.events("s") for _ in range(5)]
    for reader in readers:
        assert len(reader.writes()) == 1
    streams.append("s", b'{"a":1}')
    written = [reader.writes() for reader in readers]
    assert written[0][0].startswith(b'event: data\ndata:[{"a":1}]\n\n')
    assert {id(writes[0]) for writes in written} == {id(written[0][0])}


def test_a_cursor_of_its_own_changes_nothing_for_the_others(streams: StreamServer) -> None:
    streams.create("s")
    now = current_cursor(streams.engine.state.clock.now_ms())
    ahead, plain = streams.events("s", cursor=str(now + 7)), streams.events("s", cursor="1")
    streams.append("s", b"x")
    (mine,) = {event.control["streamCursor"] for event in ahead.events()[-1:]}
    (others,) = {event.control["streamCursor"] for event in plain.events()[-1:]}
    assert int(mine) > now + 7 and int(others) == now


def test_a_quiet_stream_is_told_where_it_is(streams: StreamServer) -> None:
    streams.create("s")
    streams.append("s", b"x")
    reader = streams.events("s")
    reader.events()
    streams.wait(KEEP_ALIVE_MS - 1_000)
    assert reader.events() == []
    streams.wait(2_000)
    (event,) = reader.events()
    assert event.control["streamNextOffset"] == streams.offset("s", 1)
    assert event.control["upToDate"] is True


def test_events_end_after_a_while_and_between_two(streams: StreamServer) -> None:
    streams.create("s")
    reader = streams.events("s")
    step_ms = 5_000
    for _ in range(EVENTS_MS_MAX // step_ms - 1):
        streams.wait(step_ms)
        streams.append("s", b"x")
        assert [event.name for event in reader.events()][-2:] == ["data", "control"]
        assert not reader.outlet.closed
    streams.wait(step_ms + 100)
    assert reader.outlet.closed
    assert all(event.name == "control" for event in reader.events())
    streams.append("s", b"x")
    assert reader.writes() == []


def test_a_close_is_told_once_and_ends_it(streams: StreamServer) -> None:
    streams.create("s")
    streams.append("s", b"x")
    readers = [streams.events("s"), streams.events("s", "now")]
    for reader in readers:
        reader.events()
    streams.close("s")
    for reader in readers:
        (event,) = reader.events()
        assert event.control == {
            "streamNextOffset": streams.offset("s", 1),
            "upToDate": True,
            "streamClosed": True,
        }
        assert reader.outlet.closed


def test_a_slow_reader_gets_all_before_the_close(serve: Callable[..., StreamServer]) -> None:
    streams = serve(stream_pending_bytes=1024)
    streams.create("s")
    reader = streams.events("s")
    reader.events()
    reader.outlet.fill()
    for number in range(4):
        streams.append("s", b"%d" % number * 700)
    streams.close("s")
    assert reader.events() == [] and not reader.outlet.closed
    reader.outlet.drain()
    events = reader.events()
    assert [event.data[0] for event in events if event.name == "data"] == list("0123")
    closed = ["streamClosed" in event.control for event in events if event.name == "control"]
    assert closed == [False, False, False, True] and reader.outlet.closed


def test_what_retention_took_under_a_slow_reader_ends_it(streams: StreamServer) -> None:
    streams.create("s", "application/octet-stream", cap_bytes=1_000)
    streams.append("s", b"a" * 400)
    reader = streams.events("s")
    reader.events()
    reader.outlet.fill()
    streams.append("s", *[b"b" * 400] * 8)
    reader.outlet.drain()
    assert reader.events() == [] and reader.outlet.closed
    assert streams.ask(f"s?offset={streams.offset('s', 1)}").status == 410


@pytest.mark.parametrize("payload", [b" leads", b"\n", b"\r\n\r", b"a\rb", "é\u2028".encode()])
def test_lines_come_back_as_they_were(streams: StreamServer, payload: bytes) -> None:
    streams.create("s")
    streams.append("s", payload)
    data, control = streams.events("s").events()
    expected = payload.decode().replace("\r\n", "\n").replace("\r", "\n")
    assert (data.data, control.name) == (expected, "control")


def test_a_stream_that_is_deleted_ends_its_events(streams: StreamServer) -> None:
    streams.create("s")
    reader = streams.events("s")
    reader.events()
    streams.engine.streams.delete("ds:s").result()
    assert reader.events() == [] and reader.outlet.closed


def test_a_stream_that_expires_under_a_quiet_reader_ends_its_events(
    streams: StreamServer, caplog: pytest.LogCaptureFixture
) -> None:
    """Between its time and its removal the reader was told where it is, by a name of nothing."""
    expires_ms = streams.engine.clock.now_ms() + KEEP_ALIVE_MS + 100
    streams.create("s", expires_ms=expires_ms)
    streams.wait(300)
    reader = streams.events("s")
    (first,) = reader.events()
    streams.wait(KEEP_ALIVE_MS)
    assert streams.ask("s").status == 404
    assert [event.control["streamNextOffset"] for event in reader.events()] == [
        first.control["streamNextOffset"]
    ]
    streams.wait(1_000)
    assert reader.outlet.closed and not caplog.records
