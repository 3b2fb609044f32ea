"""The load generator: it counts whole answers, however they arrive, and nothing but good ones.

Most wires are fed by hand; the loops and the peers have a real server on the other side.
"""

from __future__ import annotations

import json
import socket
import struct
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.checkout import ROOT

sys.path.insert(0, str(ROOT))
from bench import measure, peer_loads, peer_servers, peers, wires, wires_peers, wires_streams
from bench.load import Generator
from bench.served import ServerFailed, free_port, started

BUFFER = bytearray(1 << 16)


def unconnected(kind: type[wires.Wire], **fields: Any) -> wires.Wire:
    """A wire that only hears what a test feeds it."""
    wire = kind.__new__(kind)
    wire.rest = b""
    wire.__dict__.update(fields)
    return wire


def fed(wire: wires.Wire, pieces: list[bytes]) -> list[int]:
    """How many answers each piece completes."""
    found = []
    for piece in pieces:
        BUFFER[: len(piece)] = piece
        found.append(int(wire.received(BUFFER, len(piece))))
    return found


HTTP = b"HTTP/1.1 200 OK\r\ncontent-type: a/b\r\nContent-Length: 5\r\n\r\nhello"
RESP = b"$15\r\n1700000000000-0\r\n"
NATS = b'MSG _INBOX.bench.1 1 27\r\n{"stream":"ORDERS","seq":9}\r\n'
WEBSOCKET = b"\x81\x0c" + b'{"op":"ack"}'
HTTP2 = (
    wires_streams.frame(wires_streams.HEADERS, 4, 1, b"\x3f\xe1\x1f\x88")
    + wires_streams.frame(wires_streams.DATA, 0, 1, b"{}")
    + wires_streams.frame(wires_streams.DATA, 1, 1, b"")
)

ANSWERS = [
    pytest.param(wires.Http, {"missing": 0}, HTTP, id="http"),
    pytest.param(wires.Http, {"missing": 0}, b"HTTP/1.1 204 No Content\r\n\r\n", id="http-204"),
    pytest.param(wires_peers.RedisAppend, {}, RESP, id="redis"),
    pytest.param(wires_peers.NatsPublish, {}, NATS, id="nats"),
    pytest.param(wires_streams.WebSocketPublish, {}, WEBSOCKET, id="websocket"),
    pytest.param(wires_streams.Http2Append, {"window": 0}, HTTP2, id="http2"),
]


@pytest.mark.parametrize(("kind", "fields", "answer"), ANSWERS)
def test_an_answer_counts_once_wherever_it_is_cut(
    kind: type[wires.Wire], fields: dict[str, Any], answer: bytes
) -> None:
    for cut in range(1, len(answer)):
        wire = unconnected(kind, **fields)
        assert fed(wire, [answer[:cut], answer[cut:]]) == [0, 1], cut
        assert fed(wire, [answer]) == [1]


REFUSALS = [
    pytest.param(wires.Http, {"missing": 0}, HTTP.replace(b"200 OK", b"429 No"), id="http"),
    pytest.param(wires_peers.RedisAppend, {}, b"-ERR no\r\n", id="redis"),
    pytest.param(wires_peers.NatsPublish, {}, b"-ERR 'no'\r\n", id="nats"),
    pytest.param(wires_streams.WebSocketPublish, {}, b'\x81\x0e{"op":"error"}', id="websocket"),
    pytest.param(
        wires_streams.Http2Append,
        {"window": 0},
        wires_streams.frame(wires_streams.HEADERS, 5, 1, b"\x8d"),
        id="http2",
    ),
]


@pytest.mark.parametrize(("kind", "fields", "answer"), REFUSALS)
def test_a_refusal_is_not_counted(
    kind: type[wires.Wire], fields: dict[str, Any], answer: bytes
) -> None:
    with pytest.raises(wires.BadAnswer):
        fed(unconnected(kind, **fields), [answer])


@pytest.mark.parametrize(("kind", "fields"), [(wires.Http, {"missing": 0})])
def test_a_closed_connection_is_an_error(kind: type[wires.Wire], fields: dict[str, Any]) -> None:
    with pytest.raises(wires.BadAnswer):
        fed(unconnected(kind, **fields), [b""])


def test_where_a_nested_redis_value_ends() -> None:
    value = b"*1\r\n*2\r\n$1\r\na\r\n*1\r\n*2\r\n$3\r\n1-0\r\n*2\r\n$1\r\nd\r\n$2\r\n{}\r\n"
    assert wires_peers.whole(value, 0) == len(value)
    assert all(wires_peers.whole(value[:cut], 0) is None for cut in range(len(value)))


def test_a_masked_frame_says_its_length() -> None:
    for size, head in ((5, 2), (300, 4), (70_000, 10)):
        data = wires_streams.masked(b"x" * size)
        assert len(data) == head + 4 + size
        assert data[0] == 0x81
        assert data[1] & 0x80
    assert struct.unpack(">H", wires_streams.masked(b"x" * 300)[2:4]) == (300,)


@pytest.fixture
def slow_server() -> Iterator[tuple[socket.socket, Generator]]:
    """A server that answers only when a test says so, and a generator with one connection."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        wire = wires.Http(listener.getsockname()[1], wires.append_request("orders"))
        near, _ = listener.accept()
        generator = Generator([wire], [])
        with near:
            yield near, generator
        generator.close()


def test_the_open_loop_counts_from_when_a_request_was_due(
    slow_server: tuple[socket.socket, Generator],
) -> None:
    near, generator = slow_server
    # Both answers are there at once, so the second one was due after it had been answered.
    near.sendall(HTTP)
    window = generator.open(seconds=0.02, rate=50.0)
    assert window.requests == len(window.latencies) == 1
    assert window.report()["max"] > 0


def test_the_closed_loop_waits_for_its_last_answer(
    slow_server: tuple[socket.socket, Generator],
) -> None:
    near, generator = slow_server
    near.sendall(HTTP)
    window = generator.closed(seconds=0.0)
    assert window.requests == 1


def test_a_server_that_ends_at_once_is_told_with_its_last_words(tmp_path: Path) -> None:
    program = [sys.executable, "-c", "raise SystemExit('no such option')"]
    server = started(program, free_port(), str(tmp_path))
    with pytest.raises(ServerFailed, match="no such option"), server:
        pass


# Peers


def test_the_table_has_ratios_and_says_what_is_missing() -> None:
    rows = [
        {"name": "headrace disk", "what": "append", "promise": "written", "rate": 100.0,
         "cpu": 20.0, "generator_cpu": 7.0, "p50": 1e3, "p99": 2e3, "rate_ratio": 1.0,
         "cpu_ratio": 1.0, "p99_ratio": 1.0},
        {"name": "redis everysec", "what": "append", "promise": "soon", "missing": "no apt-get"},
    ]  # fmt: skip
    for markdown in (False, True):
        text = peers.table(rows, markdown)
        assert "1.00 x" in text
        assert "not measured: no apt-get" in text


# Those of other cases take long together; one of each kind of partner runs always.
QUICK = ("http_append", "http_diff", "http_queue", "fsync")
QUICK_ROWS = (peer_loads.TOPICS_DISK, peer_loads.MANY, "headrace producer", "headrace sse 1")
# Those that start and ask as another row does, with another class of durability or another size.
ALIKE = (
    peer_loads.FSYNC, peer_loads.JOBS_FSYNC, "headrace jobs fsync leases", "headrace diff 1,000",
    "headrace one writer over HTTP",
)  # fmt: skip


def rows_of_peers() -> list[object]:
    names = {load.name for load in peer_loads.LOADS}
    assert names.issuperset(ALIKE) and names.issuperset(QUICK_ROWS)
    quick = {
        load
        for load in peer_loads.LOADS
        if (load.case in QUICK or load.name in QUICK_ROWS) and load.name not in ALIKE
    }
    return [
        pytest.param(load, id=load.name, marks=[] if load in quick else [pytest.mark.slow])
        for load in peer_loads.LOADS
    ]


@pytest.mark.parametrize("load", rows_of_peers())
def test_every_peer_that_is_installed_answers(
    load: peer_loads.Load, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(measure.QUICK_VARIABLE, "1")
    if not peer_servers.is_installed(load.kind):
        pytest.skip(f"{load.kind} is not installed")
    try:
        with peers.ready(load, "/var/tmp", quick=True) as partner:
            found = peers.best([partner.ask()])
    except peer_servers.NotOffered as error:
        pytest.skip(str(error))
    assert found["rate"] > 0, json.dumps(found)
