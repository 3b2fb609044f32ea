"""Appends to streams that come in one turn are answered and stored as if each had come alone."""

from __future__ import annotations

import re
import socket
from collections.abc import Sequence
from random import Random
from typing import NamedTuple

import pytest

from headrace.testing.process import ServerProcess
from tests.support.pipelined import counted
from tests.support.servers import Servers

ROUNDS = 40
STREAMS = ("text", "text-2", "json", "json-2", "missing", "percent%20encoded")
COUNTED = ("headrace_http_requests_total", "headrace_append_records_total")
OFFSET = re.compile(rb"[0-9]{16}_([0-9]{16})")


class Answer(NamedTuple):
    status: int
    headers: tuple[bytes, ...]  # lines, sorted; offsets without the incarnation
    body: bytes


def exchange(connection: socket.socket, requests: Sequence[bytes]) -> list[Answer]:
    """Send requests together, and return their answers."""
    connection.sendall(b"".join(requests))
    data, found = b"", list[Answer]()
    while len(found) < len(requests):
        head, separator, rest = data.partition(b"\r\n\r\n")
        length = re.search(rb"content-length: (\d+)", head)
        asks_head = requests[len(found)].startswith(b"HEAD")
        size = 0 if length is None or asks_head else int(length[1])
        if not separator or len(rest) < size:
            more = connection.recv(1 << 20)
            assert more, data
            data += more
            continue
        body, data = rest[:size], rest[size:]
        line, *lines = OFFSET.sub(rb"\1", head).split(b"\r\n")
        if b" 412 " in line:  # what came before in the same turn may be there by now, or not
            lines = [one for one in lines if not one.startswith(b"stream-next-offset")]
        found.append(Answer(int(line.split()[1]), tuple(sorted(lines)), body))
    assert not data, "more than was asked for"
    return found


def request(method: str, name: str, body: bytes = b"", **headers: str) -> bytes:
    lines = [f"{method} /v1/stream/{name} HTTP/1.1", "Host: localhost"]
    lines += [f"{key.replace('_', '-')}: {value}" for key, value in headers.items()]
    return "\r\n".join([*lines, f"Content-Length: {len(body)}", "", ""]).encode() + body


def type_of(name: str) -> str:
    return "application/json" if name.startswith("json") else "text/plain"


def random_request(dice: Random, number: int) -> bytes:
    """A request to one of the streams: most append, and many are wrong in some way."""
    name = dice.choice(STREAMS)
    body, headers = b"%d" % number, {"content_type": type_of(name)}
    match dice.randrange(16):
        case 0:
            headers["content_type"] = dice.choice(["a/b", "TEXT/plain; x=y", ""])
        case 1 | 2 | 3 | 4:
            headers["producer_id"] = dice.choice(["p", "q"])
            headers["producer_epoch"] = str(dice.randrange(2))
            headers["producer_seq"] = str(dice.randrange(6))
        case 5:
            headers["stream_seq"] = f"{number + dice.randrange(3) - 1:05}"
        case 6:
            headers["producer_id"] = "alone"
        case 7:
            body = dice.choice([b"", b"[]", b"[1,2,3]", b"{", b"\xff"])
        case 8:
            headers["if_match"] = dice.choice(["*", "bad", '"0000000000000000_0000000000000000"'])
        case 9:
            return request("HEAD" if dice.randrange(2) else "PUT", name, **headers)
        case 10 if number > ROUNDS // 2 and name.endswith("2"):
            headers["stream_closed"] = "true"
            body = dice.choice([body, b""])
        case 11:
            headers["origin"] = "https://evil.example"
    return request("POST", name, body, **headers)


def run(server: ServerProcess, seed: int) -> tuple[list[Answer], list[Answer], list[str]]:
    """Random requests, some of which come together; their answers, and what is there then."""
    dice, told = Random(seed), list[Answer]()
    with socket.create_connection((server.host, server.port), timeout=30) as connection:
        for name in STREAMS:
            if name != "missing":
                exchange(connection, [request("PUT", name, content_type=type_of(name))])
        for number in range(ROUNDS):
            told += exchange(
                connection, [random_request(dice, number) for _ in range(1 + dice.randrange(10))]
            )
        reads = [exchange(connection, [request("GET", name)])[0] for name in STREAMS]
        reads = [Answer(one.status, (), one.body) for one in reads]
        return told, reads, counted(connection, COUNTED)


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_a_turn_is_answered_as_its_requests_one_by_one(servers: Servers, seed: int) -> None:
    together = run(servers.start(), seed)
    alone = run(servers.start(turn_requests_max=1), seed)
    assert together[0] == alone[0]
    assert together[1:] == alone[1:]
    assert {answer.status for answer in together[0]} >= {200, 204, 400, 403, 404, 409}


def test_a_close_in_a_turn_keeps_its_place(server: ServerProcess) -> None:
    text = {"content_type": "text/plain"}
    with socket.create_connection((server.host, server.port), timeout=30) as connection:
        exchange(connection, [request("PUT", "order", **text)])
        answers = exchange(
            connection,
            [
                request("POST", "order", b"a", **text),
                request("POST", "order", b"b", **text),
                request("POST", "order", b"", stream_closed="true"),
                request("POST", "order", b"c", **text),
                request("POST", "order", b"", stream_closed="true"),
            ],
        )
        assert [answer.status for answer in answers] == [204, 204, 204, 409, 204]
        (read,) = exchange(connection, [request("GET", "order")])
    assert read.body == b"ab"


def test_forks_of_forks_may_be_asked_for_at_once(server: ServerProcess) -> None:
    """Each waits for its source, which another request of the same packet makes."""

    def fork(name: str, source: str, body: bytes = b"") -> bytes:
        return request("PUT", name, body, stream_forked_from=f"/v1/stream/{source}")

    with socket.create_connection((server.host, server.port), timeout=30) as connection:
        made = [
            request("PUT", "chain", b"a", content_type="text/plain"),
            fork("chain-1", "chain", b"b"),
            fork("chain-2", "chain-1", b"c"),
            fork("chain-3", "chain-2", b"d"),
            fork("chain-1", "chain-3"),
            fork("chain-2", "chain-1"),
            fork("chain-x", "chain-y"),
            fork("chain-y", "chain-x"),
        ]
        answers = exchange(connection, made)
        assert [answer.status for answer in answers] == [201, 201, 201, 201, 409, 200, 404, 404]
        (read,) = exchange(connection, [request("GET", "chain-3")])
    assert read.body == b"abcd"


def test_a_value_that_differs_is_read_of_each_request(server: ServerProcess) -> None:
    """Heads that repeat are known by their bytes; numbers and conditions are each request's own."""
    text = {"content_type": "text/plain"}
    with socket.create_connection((server.host, server.port), timeout=30) as connection:
        exchange(connection, [request("PUT", "own", **text)])
        for number in range(6):
            producer = {"producer_id": "p", "producer_epoch": "0", "producer_seq": str(number)}
            (done,) = exchange(connection, [request("POST", "own", b"x", **text, **producer)])
            assert done.status == 200
            assert b"producer-seq: %d" % number in done.headers
        for number in range(6):
            (done,) = exchange(
                connection, [request("POST", "own", b"y", **text, stream_seq=f"{number}")]
            )
            assert done.status == 204
        (late,) = exchange(connection, [request("POST", "own", b"z", **text, stream_seq="3")])
        assert late.status == 409
        for tag, status in (("*", 204), ('"x"', 412), ("*", 204), ('"x"', 412)):
            (done,) = exchange(connection, [request("POST", "own", b"w", **text, if_match=tag)])
            assert done.status == status
        (read,) = exchange(connection, [request("GET", "own")])
    assert read.body == b"x" * 6 + b"y" * 6 + b"ww"
