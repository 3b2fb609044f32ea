"""The plan of Durable Streams: which rows it has, what its connections send, and what they read.

No peer is needed for any of it.
"""

from __future__ import annotations

import sys
from typing import Any

import pytest

from tests.support.checkout import ROOT

sys.path.insert(0, str(ROOT))
from bench import command, peer_goals, peer_loads, peer_servers, peers, plans, stream_loads, wires
from bench.wires import BadAnswer


class Sent:
    """A socket that only keeps what is sent."""

    def __init__(self) -> None:
        self.data: list[bytes] = []

    def setsockopt(self, *_: int) -> None:
        pass

    def sendall(self, data: bytes) -> None:
        self.data.append(data)


@pytest.fixture
def sockets(monkeypatch: pytest.MonkeyPatch) -> list[Sent]:
    made: list[Sent] = []

    def connect(*_: object) -> Sent:
        made.append(Sent())
        return made[-1]

    monkeypatch.setattr(wires.socket, "create_connection", connect)
    return made


# The plan


def test_goals_are_about_rows_of_one_case() -> None:
    cases = {load.name: load.case for load in peers.LOADS}
    assert len(cases) == len(peers.LOADS), "two rows of one name"
    for goal in stream_loads.GOALS:
        assert cases[goal.ours] in stream_loads.CASES
        if goal.peer:
            assert cases[goal.peer] == cases[goal.ours], goal
    by_name = {load.name: load for load in stream_loads.LOADS}
    for load in stream_loads.LOADS:
        ours = by_name[load.versus]
        assert (ours.kind, ours.case) == ("headrace", load.case)


def test_the_plan_runs_only_where_it_is_named() -> None:
    assert peers.chosen(["durable_streams"]) == list(stream_loads.CASES)
    assert not set(peers.chosen([])) & set(stream_loads.CASES)
    assert not {load.name for load in peer_loads.LOADS} & {load.name for load in stream_loads.LOADS}
    assert command.trouble_of(["durable_streams", "ds_sse"], peers.CHOICES) == ""


def test_every_number_of_streams_readers_and_watchers_that_was_asked_for_has_its_rows() -> None:
    said = " ".join(load.what for load in stream_loads.LOADS)
    for words in ("1 stream", "100,000 streams", "16 MiB, 1,000 readers", "2,000 x 1 KB",
                  "SSE, 10 watchers", "streams of one message"):  # fmt: skip
        assert words in said, words
    kinds = {load.kind for load in stream_loads.LOADS}
    assert kinds == {"headrace", "durable-streams-rust", "durable-streams-node", "nginx"}


def test_a_peer_that_is_not_there_is_skipped_with_a_word(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(peer_servers, "is_installed", lambda kind: kind == "headrace")
    said: list[str] = []
    missing = peer_servers.install(said.append, ["headrace", "nginx"], allowed=False)
    assert missing == {"nginx": "it is not installed"}
    assert said == ["nginx is skipped: it is not installed"]


def test_a_report_is_kept_by_what_was_asked_for(
    tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(command, "RESULTS", tmp_path / "results")
    path = command.save({"machine": {"cores": 2}}, ["durable_streams"])
    assert path == tmp_path / "results" / "durable_streams.json"
    assert '"cores": 2' in path.read_text()


def test_memory_is_judged_by_itself() -> None:
    rounds = [{"rate": 0.0, "resident": mb, **dict.fromkeys(peers.COSTS, 0.0)} for mb in (500, 601)]
    row = {"name": stream_loads.RESTING, "what": "", **peers.best(rounds)}
    (found,) = peer_goals.judged([row], stream_loads.GOALS)
    assert (found["value"], found["met"], found["goal"]) == (601, False, "<= 600.0 MB")


# Appends


def appends(streams: int, connections: int, requests: int, sockets: list[Sent]) -> None:
    plan = {"wire": "stream_appends", "path": "/s/t{}", "streams": streams, "writers": connections}
    made = [plans.wire_of(plan, 1) for _ in range(connections)]
    for _ in range(requests):
        for wire in made:
            wire.send_next()


@pytest.mark.parametrize(("streams", "connections"), [(12, 4), (13, 4), (1, 4), (4, 4)])
def test_each_producer_numbers_its_appends_to_a_stream(
    sockets: list[Sent], streams: int, connections: int
) -> None:
    appends(streams, connections, 30, sockets)
    numbers: dict[tuple[bytes, bytes], list[int]] = {}
    for socket in sockets:
        for request in socket.data:
            head, _, body = request.partition(b"\r\n\r\n")
            line, *lines = head.split(b"\r\n")
            headers = dict(one.split(b": ", 1) for one in lines)
            assert int(headers[b"Content-Length"]) == len(body) == wires.DATA_BYTES
            place = line.split(b" ")[1], headers[b"Producer-Id"]
            numbers.setdefault(place, []).append(int(headers[b"Producer-Seq"]))
    assert {path for path, _ in numbers} == {b"/s/t%d" % number for number in range(streams)}
    assert all(found == list(range(len(found))) for found in numbers.values())
    if streams >= connections:
        assert len(numbers) == streams, "one writer for each stream"


# Readers


def reading(sockets: list[Sent], size: int = 0) -> Any:
    wire = plans.wire_of({"wire": "catch_up", "path": "/s/r", "size": size}, 1)
    wire.send_next()
    assert sockets[0].data[-1].startswith(b"GET /s/r?offset=-1 HTTP/1.1\r\n")
    return wire


def take(wire: Any, data: bytes, pieces: int = 1) -> int:
    """How many readings are complete with an answer that comes in so many pieces."""
    step = -(-len(data) // pieces)
    return sum(
        wire.received(bytearray(data[at : at + step]), len(data[at : at + step]))
        for at in range(0, len(data), step)
    )


def answer(body: bytes, *headers: bytes) -> bytes:
    lines = [b"HTTP/1.1 200 OK", b"Content-Length: %d" % len(body), *headers]
    return b"\r\n".join([*lines, b"", body])


@pytest.mark.parametrize("pieces", [1, 2, 7])
def test_a_reading_goes_on_until_it_is_up_to_date(sockets: list[Sent], pieces: int) -> None:
    wire = reading(sockets, size=9)
    assert take(wire, answer(b"12345", b"Stream-Next-Offset: 0_5"), pieces) == 0
    assert sockets[0].data[-1].startswith(b"GET /s/r?offset=0_5 ")
    last = answer(b"6789", b"stream-next-offset: 0_9", b"stream-up-to-date: true")
    assert take(wire, last, pieces) == 1
    assert len(sockets[0].data) == 2


def test_a_file_is_read_with_its_first_answer(sockets: list[Sent]) -> None:
    wire = reading(sockets, size=3)
    assert take(wire, answer(b"abc", b"Server: nginx")) == 1


@pytest.mark.parametrize("pieces", [1, 3, 40])
def test_an_answer_in_chunks_is_read_to_its_end(sockets: list[Sent], pieces: int) -> None:
    wire = reading(sockets, size=5)
    head = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nStream-Up-To-Date: true\r\n\r\n"
    assert take(wire, head + b"3\r\nabc\r\n2;x=1\r\nde\r\n0\r\n\r\n", pieces) == 1


def test_a_reading_of_another_size_is_no_reading(sockets: list[Sent]) -> None:
    with pytest.raises(BadAnswer, match="3 bytes were read, of 4"):
        take(reading(sockets, size=4), answer(b"abc"))
    with pytest.raises(BadAnswer, match="404"):
        take(reading(sockets), b"HTTP/1.1 404 Not Found\r\ncontent-length: 0\r\n\r\n")
