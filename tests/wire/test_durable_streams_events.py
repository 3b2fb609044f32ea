"""Events of Durable Streams over the wire: pairs of data and control, and how they end."""

from __future__ import annotations

import base64
import json
import socket
from contextlib import AbstractContextManager

import pytest

from headrace.testing.process import ServerProcess
from tests.support.durable_streams import (
    ZERO,
    DurableStream,
    SentEvent,
    StreamMaker,
    events_in,
    parse_events,
)
from tests.support.servers import Servers
from tests.support.speakers import Speaker, Stream


@pytest.fixture
def make(speak: Speaker, topic: str) -> StreamMaker:
    """Create a stream: `make(type, body)`."""
    return StreamMaker(speak, topic)


def events_of(stream: DurableStream, count: int, **query: str) -> list[SentEvent]:
    """The first `count` events of a stream."""
    found = []
    with open_events(stream, **query) as sent:
        for event in events_in(sent._chunks):
            found.append(event)
            if len(found) == count:
                break
    return found


def open_events(
    stream: DurableStream, offset: str = "-1", **query: str
) -> AbstractContextManager[Stream]:
    more = "".join(f"&{name}={value}" for name, value in query.items())
    return stream.speak.stream(f"{stream.path}?offset={offset}&live=sse{more}")


def test_events_of_a_closed_stream_end(make: StreamMaker) -> None:
    stream = make(body=b"one\r\ntwo\rthree\nfour\n")
    stream.close()
    with open_events(stream) as sent:
        assert sent.status == 200
        assert sent.headers["content-type"] == "text/event-stream"
        assert "no-cache" in sent.headers["cache-control"]
        assert "stream-sse-data-encoding" not in sent.headers
        assert "content-length" not in sent.headers
        body = sent.read()
    assert body == (
        b"event: data\ndata:one\ndata:two\ndata:three\ndata:four\ndata:\n\n"
        b'event: control\ndata:{"streamNextOffset":"%b","upToDate":true,"streamClosed":true}\n\n'
        % stream.tail.encode()
    )
    for offset in (stream.tail, "now"):
        with open_events(stream, offset) as sent:
            (event,) = parse_events(sent.read().decode())
        assert event.control == {
            "streamNextOffset": stream.tail,
            "upToDate": True,
            "streamClosed": True,
        }


def test_lines_of_a_client_never_become_fields(make: StreamMaker) -> None:
    stream = make()
    payload = "x\nevent: control\ndata:{}\n\nevent: data\r\rid: 1\r\n data: y"
    stream.post(payload.encode())
    data, control = events_of(stream, 2)
    assert data == ("data", payload.replace("\r\n", "\n").replace("\r", "\n"))
    assert control.control["streamNextOffset"] == stream.tail


def test_every_data_event_has_its_control(make: StreamMaker) -> None:
    stream = make("application/json")
    stream.post(b'[{"a":\n1}, 2]')
    first = stream.tail
    with open_events(stream) as sent:
        events = events_in(sent._chunks)
        data, control = next(events), next(events)
        assert (data.name, json.loads(data.data)) == ("data", [{"a": 1}, 2])
        found = control.control
        assert found.pop("streamCursor").isdigit()
        assert found == {"streamNextOffset": first, "upToDate": True}
        stream.post(b"3")
        data, control = next(events), next(events)
        assert (json.loads(data.data), control.control["streamNextOffset"]) == ([3], stream.tail)
        assert stream("POST", b"4", content_type=stream.type, stream_closed="true").status == 204
        data, control = next(events), next(events)
        assert json.loads(data.data) == [4]
        assert control.control == {
            "streamNextOffset": stream.tail,
            "upToDate": True,
            "streamClosed": True,
        }
        assert next(events, None) is None, "the server has ended it"


def test_other_types_are_in_base64(make: StreamMaker) -> None:
    stream = make("application/octet-stream")
    payload = bytes(range(256))
    stream.post(payload)
    with open_events(stream) as sent:
        assert sent.headers["stream-sse-data-encoding"] == "base64"
        events = events_in(sent._chunks)
        data, control = next(events), next(events)
        assert base64.b64decode(data.data, validate=True) == payload
        assert control.control["upToDate"] is True
        stream.post(b"x")
        data, control = next(events), next(events)
        assert (data.data, control.control["streamNextOffset"]) == ("eA==", stream.tail)


@pytest.mark.parametrize("offset", ["-1", "now", ZERO])
def test_an_empty_stream_says_where_it_is_at_once(make: StreamMaker, offset: str) -> None:
    stream = make()
    with open_events(stream, offset) as sent:
        events = events_in(sent._chunks)
        control = next(events).control
        assert (control["streamNextOffset"], control["upToDate"]) == (stream.tail, True)
        stream.post(b"first")
        data, after = next(events), next(events)
        assert (data.data, after.control["streamNextOffset"]) == ("first", stream.tail)


def test_a_close_alone_ends_the_events(make: StreamMaker) -> None:
    stream = make(body=b"one")
    with open_events(stream) as sent:
        events = events_in(sent._chunks)
        next(events), next(events)
        stream.close()
        control = next(events).control
        assert control["streamClosed"] is True and "streamCursor" not in control
        assert next(events, None) is None


def test_a_delete_ends_the_events(make: StreamMaker) -> None:
    stream = make(body=b"one")
    with open_events(stream) as sent:
        events = events_in(sent._chunks)
        next(events), next(events)
        assert stream("DELETE").status == 204
        assert next(events, None) is None


def test_a_cursor_that_is_ahead_is_led_on(make: StreamMaker) -> None:
    stream = make(body=b"one")
    plain = int(events_of(stream, 2)[1].control["streamCursor"])
    led = int(events_of(stream, 2, cursor=str(plain + 5))[1].control["streamCursor"])
    assert led > plain + 5


def test_a_long_history_comes_in_pairs(make: StreamMaker) -> None:
    stream = make("application/octet-stream")
    pieces = [bytes([number]) * 90_001 for number in range(20)]
    for piece in pieces:
        stream.post(piece)
    read, offsets = b"", list[str]()
    with open_events(stream) as sent:
        events = events_in(sent._chunks)
        while True:
            data, control = next(events), next(events).control
            assert (data.name, len(data.data) % 4) == ("data", 0)
            read += base64.b64decode(data.data, validate=True)
            offsets.append(control["streamNextOffset"])
            if "upToDate" in control:
                break
    assert read == b"".join(pieces) and len(offsets) > 1
    assert offsets == sorted(set(offsets)) and offsets[-1] == stream.tail


def test_a_pair_is_one_write(server: ServerProcess, servers: Servers, topic: str) -> None:
    speak = servers.speaker(server, "h1")
    stream = DurableStream(speak, topic)
    stream.put(b"one")
    with socket.create_connection((server.host, server.port), timeout=20) as sock:
        sock.sendall(
            f"GET {stream.path}?offset=-1&live=sse HTTP/1.1\r\nHost: localhost\r\n\r\n".encode()
        )
        received = b""
        while b"event: control" not in received:
            received = received + sock.recv(65_536)
    body = received.partition(b"\r\n\r\n")[2]
    length, _, chunk = body.partition(b"\r\n")
    assert len(chunk) == int(length, 16) + 2
    assert [event.name for event in parse_events(chunk.decode())] == ["data", "control"]
