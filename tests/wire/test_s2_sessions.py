"""Sessions of S2 streams over real sockets, on both transports."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from headrace.testing.process import ServerProcess
from headrace.wire.s2.frames import frame
from tests.support.s2_session_clients import SESSIONS, Http1Session, Http2Session
from tests.support.servers import Servers
from tests.support.speakers import Speaker

SETTINGS = {"body_timeout_ms": 1_000}
BASIN = {"s2-basin": "wire-basin"}
SESSION = {**BASIN, "content-type": "s2s/proto"}

Open = Callable[..., Http1Session | Http2Session]


def given(*bodies: bytes) -> bytes:
    """An AppendInput message of short bodies."""
    records = [b"\x1a" + bytes([len(body)]) + body for body in bodies]
    return b"".join(b"\x0a" + bytes([len(record)]) + record for record in records)


@pytest.fixture
def stream(speak: Speaker, topic: str) -> str:
    """The path of the records of a stream."""
    speak("POST", "/v1/basins", {"basin": "wire-basin"})
    assert speak("POST", "/v1/streams", {"stream": topic}, BASIN).status == 201
    return f"/v1/streams/{topic}/records"


@pytest.fixture
def open_session(server: ServerProcess, protocol: str) -> Iterator[Open]:
    """Open a session: `open_session(method, path)`."""
    opened: list[Http1Session | Http2Session] = []

    def open_one(method: str, path: str, **headers: str) -> Http1Session | Http2Session:
        session = SESSIONS[protocol](server, method, path, {**SESSION, **headers})
        opened.append(session)
        return session

    yield open_one
    for session in opened:
        session.close()


def read(speak: Speaker, path: str, query: str = "seq_num=0") -> Any:
    reply = speak("GET", f"{path}?{query}", None, BASIN)
    assert reply.status == 200, reply
    return reply.json


def test_appends_and_reads_go_on_side_by_side(
    speak: Speaker, stream: str, open_session: Open
) -> None:
    reader = open_session("GET", f"{stream}?seq_num=0")
    assert reader.status() == 200
    assert reader.next() is not None  # the tail
    writer = open_session("POST", stream)
    assert writer.status() == 200  # before anything of the body was sent
    for number in range(20):
        writer.send(frame(given(b"%d" % number)))
        ack = writer.next()
        assert ack is not None and ack.flag == 0
    found = 0
    while found < 20:
        batch = reader.next()
        assert batch is not None
        found += batch.payload.count(b"\x22")  # the tag of a body
    writer.end()
    assert writer.next() is None
    assert [r["body"] for r in read(speak, stream)["records"]] == [str(n) for n in range(20)]


def test_many_inputs_at_once_are_acknowledged_in_order(
    speak: Speaker, stream: str, open_session: Open
) -> None:
    writer = open_session("POST", stream)
    writer.send(b"".join(frame(given(b"x" * 100)) for _ in range(3_000)))
    writer.end()
    acks = 0
    while (ack := writer.next()) is not None:
        assert ack.flag == 0, ack
        acks += 1
    assert acks == 3_000
    tail = speak("GET", f"{stream}/tail", None, BASIN).json
    assert tail["tail"]["seq_num"] == 3_000


def test_a_connection_that_is_to_be_closed_is_after_a_refused_session(
    server: ServerProcess, stream: str
) -> None:
    """The answer ends before the request does."""
    session = Http1Session(server, "POST", stream, {**SESSION, "connection": "close"})
    session.send(b"\0\0\0")  # no frame is empty
    refused = session.next()
    assert refused is not None and refused.is_terminal
    assert session.next() is None
    session.end()
    session.sock.settimeout(10)
    assert session.sock.recv(1) == b""
    session.close()


def test_a_session_that_is_idle_for_longer_than_any_timeout_lives(
    stream: str, open_session: Open
) -> None:
    writer = open_session("POST", stream)
    assert writer.status() == 200
    for _ in range(2):  # before its first input, and between two
        time.sleep(3.5)
        writer.send(frame(given(b"a")))
        ack = writer.next()
        assert ack is not None and ack.flag == 0
    writer.end()
    assert writer.next() is None


def test_a_session_that_leaves_a_frame_unfinished_is_told_so(
    stream: str, open_session: Open
) -> None:
    """Behind the acks of the inputs before it (s2 §1e)."""
    writer = open_session("POST", stream)
    writer.send(frame(given(b"a")) + frame(given(b"b"))[:5])
    ack, last = writer.next(), writer.next()
    assert ack is not None and ack.flag == 0
    assert last is not None
    status, body = last.error
    assert (status, body["code"]) == (408, "request_timeout")
    assert writer.next() is None


def test_a_terminal_frame_ends_the_answer_and_the_stream(
    speak: Speaker, stream: str, open_session: Open
) -> None:
    writer = open_session("POST", stream)
    writer.send(frame(given(b"a")) + frame(given(b"b") + b"\x10\x07") + frame(given(b"c")))
    ack, last = writer.next(), writer.next()
    assert ack is not None and ack.flag == 0
    assert last is not None and last.error == (412, {"seq_num_mismatch": 1})
    assert writer.next() is None
    if isinstance(writer, Http2Session):
        writer.client.until(lambda: writer.stream.reset is not None)
        assert writer.stream.ended and writer.stream.reset == 0  # NO_ERROR
    assert len(read(speak, stream)["records"]) == 1


def test_a_session_that_is_refused_is_an_ordinary_answer(
    open_session: Open, speak: Speaker
) -> None:
    refused = open_session("POST", "/v1/streams/nothing/records")
    assert refused.status() == 404
    assert b"not_found" in refused.body()


@pytest.mark.parametrize("method", ["POST", "GET"])
def test_a_server_that_stops_tells_its_sessions(
    servers: Servers, protocol: str, topic: str, method: str
) -> None:
    server = servers.start()
    speak = servers.speaker(server, protocol)
    assert speak("POST", "/v1/basins", {"basin": "wire-basin"}).status == 201
    assert speak("POST", "/v1/streams", {"stream": topic}, BASIN).status == 201
    path = f"/v1/streams/{topic}/records"
    session = SESSIONS[protocol](server, method, path, SESSION)
    assert session.status() == 200
    if method == "GET":
        assert session.next() is not None  # the tail
    server.process.send_signal(signal.SIGTERM)
    last = session.next()
    assert last is not None
    assert (last.error[0], last.error[1]["code"]) == (503, "server_draining")
    assert session.next() is None
    session.close()
