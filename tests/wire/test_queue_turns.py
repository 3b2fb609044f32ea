"""Claims and acks that come in one turn are answered and counted as if each had come alone."""

from __future__ import annotations

import json
import re
import socket
from random import Random
from typing import Any

import pytest

from headrace.testing.process import ServerProcess
from tests.support.pipelined import counted, pipelined
from tests.support.servers import Servers

ROUNDS = 25
COUNTED = ("headrace_http_requests_total", "headrace_queue_jobs_total")
NOT_COMPARED = ("performance", "in_flight")  # who is held depends on what is written together
QUEUES = {
    "disk": {"type": "queue", "max_deliveries": 2, "dead_letter": "dead"},
    "fsync": {"type": "queue", "durability": "fsync", "leases_durable": True},
    "log": {},
}
NODES = ("a", "b")


def request(path: str, body: bytes, *headers: str, method: str = "POST") -> bytes:
    lines = [f"{method} {path} HTTP/1.1", *headers, f"Content-Length: {len(body)}"]
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + body


def odd_head(dice: Random) -> list[str]:
    """The headers of a request, some of which are refused."""
    headers = ["Host: localhost", "Content-Type: application/json"]
    kind = dice.randrange(20)
    if kind == 0:
        headers[0] = "Host: evil.example"
    elif kind == 1:
        headers[1] = "Content-Type: text/plain"
    elif kind == 2:
        headers[1] = "Content-Type: application/json; charset=utf-8"
    return headers


def odd_body(dice: Random, body: dict[str, Any]) -> bytes:
    kind = dice.randrange(16)
    if kind == 0:
        return b""
    if kind == 1:
        body["unknown"] = 1
    if kind == 2:
        body["node"] = ""
    sent = json.dumps(body).encode()
    return sent[:-2] if kind == 3 else sent


def path_of(dice: Random, call: str) -> str:
    name = dice.choice(["disk", "disk", "fsync", "fsync", "log", "missing", "_pipelines"])
    return f"/v0/{dice.choice(['topics', 'topics', 'boxes'])}/{name}/{call}"


def claim_of(dice: Random) -> bytes:
    body: dict[str, Any] = {"node": dice.choice(NODES), "max": dice.randrange(5)}
    if dice.randrange(4) == 0:
        body["lease_ms"] = dice.choice([60_000, 1 << 70])
    return request(path_of(dice, "claim"), odd_body(dice, body), *odd_head(dice))


def ack_of(dice: Random, held: list[tuple[int, str]]) -> bytes:
    some = dice.sample(held, min(len(held), dice.randrange(5)))
    body: dict[str, Any] = {
        "node": dice.choice(NODES),
        "seqs": [seq for seq, _ in some] + [dice.choice([1, 1 << 70])] * (not dice.randrange(9)),
    }
    if dice.randrange(3):
        body["lease_ids"] = [lease for _, lease in some]
        body["lease_ids"] += ["lease_zz"] * (not dice.randrange(9))
    return request(path_of(dice, "ack"), odd_body(dice, body), *odd_head(dice))


def answers(connection: socket.socket, requests: list[bytes]) -> list[tuple[bytes, Any]]:
    """What requests that are sent at once are told."""
    return [
        (status + b" ".join(names), json.loads(body))
        for status, names, body in pipelined(connection, requests)
    ]


def shown(body: dict[str, Any]) -> object:
    """What an answer says, without what chance and time decide."""
    kept = {name: value for name, value in body.items() if name not in NOT_COMPARED}
    timeless = re.sub(r'"(deadline|\$ts)": \d+', r'"\1": 0', json.dumps(kept))
    return json.loads(re.sub(r"lease_[0-9a-f]{16}", "lease", timeless))


def run(server: ServerProcess, seed: int) -> tuple[list[object], list[str]]:
    """Random claims and acks, some of which come together; what each was told."""
    dice, told = Random(seed), list[object]()
    held: list[tuple[int, str]] = []
    host, _, port = server.address.rpartition(":")
    plain = ("Host: localhost", "Content-Type: application/json")
    with socket.create_connection((host, int(port)), timeout=30) as connection:
        for name, config in QUEUES.items():
            body = json.dumps(config).encode()
            answers(connection, [request(f"/v0/topics/{name}", body, *plain, method="PUT")])
        for number in range(ROUNDS):
            records = [{"data": {"n": number}}, {"data": "é", "tag": "t", "meta": {"k": 1}}]
            added = json.dumps({"records": records[: 1 + dice.randrange(2)] * 3}).encode()
            for name in ("disk", "fsync"):
                answers(connection, [request(f"/v0/topics/{name}", added, *plain)])
            asked = [claim_of(dice) for _ in range(1 + dice.randrange(8))]
            found = answers(connection, asked)
            for _, one in found:
                held += [(job["$seq"], job["lease_id"]) for job in one.get("claimed", ())]
            found += answers(connection, [ack_of(dice, held) for _ in range(dice.randrange(8))])
            told += [(head, shown(one)) for head, one in found]
        return told, counted(connection, COUNTED)


@pytest.mark.parametrize("seed", [1, 2])
def test_claims_and_acks_of_a_turn_are_answered_as_one_by_one(servers: Servers, seed: int) -> None:
    together, figures = run(servers.start(), seed)
    alone, figures_alone = run(servers.start(turn_requests_max=1), seed)
    assert together == alone
    assert figures == figures_alone
    assert any("claimed" in line for line in figures), figures
    statuses = {answer[0][:12] for answer in together}  # type: ignore[index]
    assert len(statuses) >= 5, statuses
    acked = [one[1]["acked"] for one in together if "acked" in one[1]]  # type: ignore[index]
    assert any(acked) and not all(acked)
