"""Requests that come in one turn are answered, counted and stored as if each had come alone."""

from __future__ import annotations

import json
import socket
from random import Random
from typing import Any

import pytest

from headrace.testing.process import ServerProcess
from tests.support.pipelined import counted, pipelined
from tests.support.servers import Servers

ROUNDS = 30
TOPICS = ("disk", "fsync", "full", "new", "percent%20encoded")
NOT_COMPARED = ("epoch", "performance", "ts")
COUNTED = (
    "headrace_http_requests_total",
    "headrace_append_records_total",
    "headrace_read_records_total",
)


def append_of(dice: Random, number: int) -> bytes:
    """A request that appends, or tries to: heads and bodies of many kinds."""
    name = TOPICS[dice.randrange(len(TOPICS))]
    path = f"/v0/topics/{name}" + ("?return_seqs=false", "", "", "")[dice.randrange(4)]
    records: list[dict[str, Any]] = [{"data": {"n": number, "é": "ü" * dice.randrange(9)}}]
    if dice.randrange(4) == 0:
        records += [{"data": k, "tag": "t", "meta": {"k": k}} for k in range(dice.randrange(3))]
    body: dict[str, Any] = {"records": records}
    headers = ["Host: localhost", "Content-Type: application/json"]
    kind = dice.randrange(14)
    if kind == 0:
        headers[0] = "Host: evil.example"
    elif kind == 1:
        headers[1] = "Content-Type: text/plain"
    elif kind == 2:
        headers.append(f"Idempotency-Key: k{dice.randrange(4)}")
    elif kind == 3:
        number = dice.randrange(6)
        headers += ["Producer-Id: p", "Producer-Epoch: 0", f"Producer-Seq: {number}"]
    elif kind == 4:
        body["expected_head_seq"] = dice.randrange(4)
    elif kind == 5:
        body["unknown"] = 1
    elif kind == 6:
        headers.append("Origin: https://evil.example")
    sent = json.dumps(body, ensure_ascii=False).encode()
    if kind == 7:
        sent = sent[: dice.randrange(len(sent))]
    head = f"POST {path} HTTP/1.1\r\n" + "\r\n".join([*headers, f"Content-Length: {len(sent)}"])
    return head.encode() + b"\r\n\r\n" + sent


def diff_of(dice: Random) -> bytes:
    """A request that reads, or tries to; what the same connection has just appended is there."""
    name = (*TOPICS, "nowhere")[dice.randrange(len(TOPICS) + 1)]
    body: dict[str, Any] = {"from_seq": dice.randrange(3), "limit": 1 + dice.randrange(20)}
    content_type = "application/json"
    kind = dice.randrange(8)
    if kind == 0:
        body = {"last": dice.randrange(4)}
    elif kind == 1:
        body = {"from_seq": 1, "last": 1}
    elif kind == 2:
        body["wait_ms"] = 1
    elif kind == 3:
        content_type = "text/plain"
    sent = json.dumps(body).encode()
    head = (
        f"POST /v0/topics/{name}/diff HTTP/1.1\r\nHost: localhost\r\n"
        f"Content-Type: {content_type}\r\nContent-Length: {len(sent)}\r\n\r\n"
    )
    return head.encode() + sent


def answers(connection: socket.socket, requests: list[bytes]) -> list[object]:
    """What requests that are sent at once are told."""
    return [
        (status, names, said(json.loads(body)))
        for status, names, body in pipelined(connection, requests)
    ]


def said(body: dict[str, Any]) -> dict[str, Any]:
    told = {name: value for name, value in body.items() if name not in NOT_COMPARED}
    for record in told.get("records", ()):
        del record["$ts"]
    return told


def stored(connection: socket.socket) -> list[object]:
    """Every record of every topic."""
    body = b'{"from_seq":0,"limit":1000}'
    heads = [
        f"POST /v0/topics/{name}/diff HTTP/1.1\r\nHost: localhost\r\n"
        f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
        for name in TOPICS
    ]
    return [answers(connection, [head.encode() + body])[0] for head in heads]


def run(server: ServerProcess, seed: int) -> tuple[list[object], list[object], list[str]]:
    """Random requests, some of which come together; what each was told, and what is there then."""
    dice, told = Random(seed), []
    host, _, port = server.address.rpartition(":")
    with socket.create_connection((host, int(port)), timeout=30) as connection:
        for name, config in (("disk", {}), ("fsync", {"durability": "fsync"}),
                             ("full", {"cap_records": 25, "discard": "reject"})):  # fmt: skip
            body = json.dumps(config).encode()
            head = (
                f"PUT /v0/topics/{name} HTTP/1.1\r\nHost: localhost\r\n"
                f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
            )
            answers(connection, [head.encode() + body])
        for number in range(ROUNDS):
            count = 1 + dice.randrange(10)
            asked = [
                append_of(dice, number) if dice.randrange(3) else diff_of(dice)
                for _ in range(count)
            ]
            told += answers(connection, asked)
        return told, stored(connection), counted(connection, COUNTED)


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_a_turn_is_answered_as_its_requests_one_by_one(servers: Servers, seed: int) -> None:
    together = run(servers.start(), seed)
    alone = run(servers.start(turn_requests_max=1), seed)
    assert together == alone
    statuses = {answer[0] for answer in together[0]}  # type: ignore[index]
    assert len(statuses) >= 5, statuses
    assert together[2], "some requests are counted"
