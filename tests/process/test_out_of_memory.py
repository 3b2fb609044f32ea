"""A server whose memory runs out in the middle of requests: each is answered, and it serves on."""

from __future__ import annotations

import gzip
import json
import resource
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from http.client import HTTPException
from pathlib import Path

import pytest
from httpx import TransportError
from websockets.exceptions import ConnectionClosed
from websockets.sync.client import connect

from headrace.testing.process import ServerProcess
from tests.support.speakers import JSON_TYPE, SPEAKERS

# How much more the server may map than it has when it is ready, and what it is asked to unpack.
ROOM_BYTES = 24 << 20
BODY_BYTES = 16 << 20
REQUESTS = 24
CLIENTS = 6
SECONDS_MAX = 30
RECORD = {"data": "x" * 1_000_000}
APPEND = json.dumps({"records": [RECORD] * (BODY_BYTES // 1_000_000)}).encode()
DIFF = b'{"from_seq":0' + b" " * BODY_BYTES + b"}"
CUT_OFF = "cut off"
PACKED = {**JSON_TYPE, "content-encoding": "gzip"}


def mapped_bytes(pid: int) -> int:
    return int(Path(f"/proc/{pid}/status").read_text().split("VmSize:")[1].split()[0]) * 1024


@pytest.fixture
def server(tmp_path: Path) -> Iterator[ServerProcess]:
    with (
        open(tmp_path / "log", "wb") as log,
        ServerProcess(tmp_path / "data", stderr=log) as server,
    ):
        with closing(SPEAKERS["h1"](server)) as speak:
            # Everything that is started on first use is there.
            for path, body in (("t", APPEND), ("t/diff", DIFF)):
                packed = gzip.compress(body, 1)
                assert speak("POST", f"/v0/topics/{path}", packed, PACKED).status in (200, 201)
        limit = mapped_bytes(server.process.pid) + ROOM_BYTES
        resource.prlimit(server.process.pid, resource.RLIMIT_AS, (limit, limit))
        yield server
    assert (tmp_path / "log").read_text().count("Traceback") == reads_cut_off(tmp_path)


def reads_cut_off(tmp_path: Path) -> int:
    """How often the event loop itself had no memory to read: it then closes the connection."""
    return (tmp_path / "log").read_text().count("in uvloop.loop.__uv_stream_on_read_impl")


@pytest.mark.parametrize("protocol", sorted(SPEAKERS))
def test_every_request_is_answered(server: ServerProcess, protocol: str, tmp_path: Path) -> None:
    """native §1.3d: 503 `out_of_resources`, and the connection closes."""
    kinds = [
        ("t", gzip.compress(APPEND, 1), PACKED),
        ("t/diff", gzip.compress(DIFF, 1), PACKED),
        ("t", APPEND, JSON_TYPE),
    ]
    if protocol == "h2c":
        kinds.pop()  # a client that is refused while it sends does not read the answer
    head = state(server)

    def ask(number: int) -> tuple[int, str, int]:
        path, body, headers = kinds[number % len(kinds)]
        with closing(SPEAKERS[protocol](server)) as speak:
            try:
                reply = speak("POST", f"/v0/topics/{path}", body, headers)
            except (OSError, HTTPException, TransportError):
                return 0, CUT_OFF, 0
        if reply.status < 300:
            return reply.status, "", reply.json.get("count", 0)
        assert reply.error["detail"] == {"outcome": "nothing"}, reply
        assert protocol == "h2c" or reply.headers["connection"] == "close"
        return reply.status, reply.error["code"], 0

    with ThreadPoolExecutor(CLIENTS) as pool:
        answers = list(pool.map(ask, range(REQUESTS)))
    counts = Counter((status, code) for status, code, _ in answers)
    assert counts[503, "out_of_resources"] > 0, counts
    assert counts.keys() <= {(200, ""), (503, "out_of_resources"), (0, CUT_OFF)}, counts
    # Only those that the event loop could not read, which no handler has seen.
    assert counts[0, CUT_OFF] <= reads_cut_off(tmp_path), counts
    # It is alive, has exactly what it said, and takes what fits.
    assert server.process.poll() is None
    head += sum(count for _, _, count in answers)
    assert state(server) == head
    with closing(SPEAKERS[protocol](server)) as speak:
        for _ in range(20):
            head += 1
            assert speak.append("t", 1)["head_seq"] == head
        assert speak.ok("GET", "/v0/ready")["status"] == "ready"


def state(server: ServerProcess) -> int:
    with closing(SPEAKERS["h1"](server)) as speak:
        return int(speak.state("t")["head_seq"])


def test_a_message_is_answered(server: ServerProcess) -> None:
    """native §1.3d: the same over a WebSocket."""
    message = json.dumps({"op": "publish", "topic": "t", "records": [RECORD] * 8})
    small = json.dumps({"op": "publish", "topic": "t", "records": [{"data": 1}]})
    url, head = f"ws://{server.address}/v0/ws", state(server)
    with connect(url, max_size=None, compression=None) as socket:
        answer = {"op": "ack", "head_seq": head}
        while answer["op"] == "ack":  # what is stored stays in memory, until there is none
            head = answer["head_seq"]
            try:
                socket.send(message)
                answer = json.loads(socket.recv(SECONDS_MAX))
            except ConnectionClosed:  # while it was sent, so that the words were lost on the way
                break
        else:
            assert (answer["op"], answer["code"]) == ("error", "out_of_resources"), answer
            with pytest.raises(ConnectionClosed):
                socket.recv(SECONDS_MAX)
    assert state(server) == head
    with connect(url) as socket:
        socket.send(small)
        assert json.loads(socket.recv(SECONDS_MAX))["head_seq"] == head + 1
