"""Random requests to all routes of topics and queues: good ones, bad ones, and ones that compete.

A step is what comes in one turn.  Its requests are in the order in which a server handles them
whether they are taken together or one by one: first those of routes that take each by itself, then
route by route.  So two servers that differ in nothing but that answer every step alike.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from random import Random
from typing import Any

from tests.support.served_app import Response
from tests.support.turn_servers import TurnServer, http

LOGS = ("disk", "fsync", "memory", "full", "capped", "brief", "percent%20encoded", "new-a", "new-b")
KEPT = "percent encoded"  # nothing is taken from it
QUEUES = ("jobs", "fsync-jobs")
# Where the server itself appends, in its own time: only read and redriven.
COPIES = ("letters", "copies")
REDRIVEN = "jobs"  # where redriven letters go
NODES = ("n1", "n2")
CONFIGS: dict[str, dict[str, Any]] = {
    "disk": {},
    "fsync": {"durability": "fsync"},
    "memory": {"durability": "memory"},
    "full": {"cap_records": 25, "discard": "reject"},
    "capped": {"durability": "fsync", "cap_records": 4},
    "brief": {"ttl_ms": 40},
    "jobs": {"type": "queue", "lease_ms": 100, "max_deliveries": 2, "dead_letter": "letters"},
    "fsync-jobs": {"type": "queue", "durability": "fsync", "leases_durable": True},
    "letters": {"type": "queue"},
    "copies": {},
}
STEP_REQUESTS_MAX = 6  # of each kind
PIPELINED_MAX = 3

Request = tuple[str, str, bytes]  # method, template of the route, bytes


class Traffic:
    """Steps of random requests, which depend on what the steps before were answered."""

    def __init__(self, seed: int) -> None:
        self.dice = Random(seed)
        # Leases that were given out: queue, node, seq, id.
        self._leases: list[tuple[str, str, int, str]] = []
        self._claims: list[tuple[str, str]] = []  # of this step: queue, node
        self._targets: Sequence[str] = ()  # of appends in this step
        work = [self.append, self.box_append, self.diff, self.claim, self.ack, self.nack]
        self._work: list[Callable[[], Request]] = [*work, self.extend, self.state, self.topics]
        self._changes: list[Callable[[], Request]] = [
            self.put, self.drop, self.delete, self.redrive, self.router, self.state,
        ]  # fmt: skip

    def step(self, server: TurnServer) -> list[Sequence[Request]]:
        """What comes in one turn: the requests of one connection after those of another."""
        dice = self.dice
        # What changes topics comes in steps of its own: beside an append to the same topic both
        # orders are right, and which one it is depends on who is taken together.
        kinds = self._changes if dice.randrange(6) == 0 else self._work
        drawn = dice.sample(kinds, 1 + dice.randrange(3))
        # The same is true of a claim beside an append to its queue.
        works = {self.claim, self.ack, self.nack, self.extend}.intersection(drawn)
        self._targets = LOGS if works else (*LOGS, *QUEUES, *QUEUES)
        self._claims.clear()
        groups = [self._group(kind) for kind in drawn]
        groups.sort(key=lambda group: server.holds_turns(group[0][1], group[0][0]))
        return [part for group in groups for part in self._by_connection(group)]

    def _group(self, kind: Callable[[], Request]) -> list[Request]:
        return [kind() for _ in range(1 + self.dice.randrange(STEP_REQUESTS_MAX))]

    def _by_connection(self, group: list[Request]) -> list[Sequence[Request]]:
        """Some requests of a route come on one connection, one behind the other."""
        parts: list[Sequence[Request]] = []
        while group:
            size = 1 + self.dice.randrange(PIPELINED_MAX)
            parts.append(group[:size])
            group = group[size:]
        return parts

    def heard(self, step: Sequence[Sequence[Request]], answers: Sequence[Response]) -> None:
        """Remember the leases that were given out."""
        claims = iter(self._claims)
        asked = [request for part in step for request in part]
        for (_, template, _), answer in zip(asked, answers, strict=True):
            if not template.endswith("/claim"):
                continue
            queue, node = next(claims)
            if answer.status == 200:
                jobs: Any = answer.json["claimed"]
                self._leases += [(queue, node, job["$seq"], job["lease_id"]) for job in jobs]

    # Appends

    def append(self) -> Request:
        return self._append("topics", "topic")

    def box_append(self) -> Request:
        return self._append("boxes", "box")

    def _append(self, plural: str, noun: str) -> Request:
        dice = self.dice
        name = dice.choice(self._targets)
        query = dice.choice(("?return_seqs=false", "", "", ""))
        value = {"n": dice.randrange(1_000), "é": "ü" * dice.randrange(9)}
        records: list[dict[str, Any]] = [{"data": value}]
        if dice.randrange(4) == 0:
            records += [{"data": k, "tag": f"t{k}", "meta": {"k": k}} for k in range(3)]
        body: dict[str, Any] = {"records": records}
        headers: dict[str, str] = {}
        if dice.randrange(30) == 0:
            # Not one that is refused by its head: that ends the connection before it is read.
            body["records"] = [{"data": "x" * 70_000}]
        else:
            self._spoil(body, headers, dice.randrange(16))
        sent = json.dumps(body, ensure_ascii=False).encode()
        if dice.randrange(20) == 0:
            sent = sent[: dice.randrange(len(sent))]
        request = http("POST", f"/v0/{plural}/{name}{query}", sent, **headers)
        return "POST", f"/v0/{plural}/{{{noun}}}", request

    def _spoil(self, body: dict[str, Any], headers: dict[str, str], kind: int) -> None:
        """Add a condition, or something that the server refuses."""
        dice = self.dice
        if kind == 0:
            headers["host"] = "evil.example"
        elif kind == 1:
            headers["content_type"] = "text/plain"
        elif kind == 2:
            headers["idempotency_key"] = f"k{dice.randrange(6)}"
        elif kind == 3:
            headers |= {"producer_id": "p", "producer_epoch": "0"}
            headers["producer_seq"] = str(dice.randrange(6))
        elif kind == 4:
            body["expected_head_seq"] = dice.randrange(9)
        elif kind == 5:
            body["unknown"] = 1
        elif kind == 6:
            headers["origin"] = "https://evil.example"
        elif kind == 7:
            body["config"] = {"durability": "fsync"}
        elif kind == 8:
            body["create"] = False
        elif kind == 9:
            body["idempotency_key"] = f"k{dice.randrange(6)}"

    # Reads

    def diff(self) -> Request:
        dice = self.dice
        body: dict[str, Any] = {"from_seq": dice.randrange(30)}
        if dice.randrange(2):
            body["limit"] = 1 + dice.randrange(20)
        if dice.randrange(4) == 0:
            body["wait_ms"] = 20
        if dice.randrange(8) == 0:
            body["limit"] = -1
        name = dice.choice((*LOGS, *QUEUES, *COPIES))
        return "POST", "/v0/topics/{topic}/diff", http("POST", f"/v0/topics/{name}/diff", body)

    def state(self) -> Request:
        name = self.dice.choice((*LOGS, *QUEUES, *COPIES, "absent"))
        return "GET", "/v0/topics/{topic}", http("GET", f"/v0/topics/{name}")

    def topics(self) -> Request:
        size = 1 + self.dice.randrange(9)
        return "GET", "/v0/topics", http("GET", f"/v0/topics?page_size={size}")

    # Queues

    def claim(self) -> Request:
        queue = self.dice.choice((*QUEUES, "jobs", "disk"))
        node = self.dice.choice(NODES)
        self._claims.append((queue, node))
        return self._work_on(queue, "claim", {"node": node, "max": self.dice.randrange(5)})

    def ack(self) -> Request:
        return self._about_leases("ack", {})

    def nack(self) -> Request:
        return self._about_leases("nack", self.dice.choice(({}, {"delay_ms": 30})))

    def extend(self) -> Request:
        return self._about_leases("extend", {"lease_ms": 50 + self.dice.randrange(100)})

    def _about_leases(self, verb: str, more: dict[str, Any]) -> Request:
        """About jobs that are out, have been, or are another's; several may want the same."""
        dice = self.dice
        if not self._leases or dice.randrange(8) == 0:
            seqs = [dice.randrange(9)]
            return self._work_on(dice.choice(QUEUES), verb, {"node": "n1", "seqs": seqs, **more})
        queue, node, _, _ = dice.choice(self._leases[-12:])
        same = [lease for lease in self._leases[-12:] if lease[:2] == (queue, node)]
        some = dice.sample(same, 1 + dice.randrange(len(same)))
        body = {"node": node, "seqs": [seq for _, _, seq, _ in some], **more}
        if dice.randrange(2):
            body["lease_ids"] = [lease for _, _, _, lease in some]
        if dice.randrange(8) == 0:
            body["node"] = "another"
        return self._work_on(queue, verb, body)

    def _work_on(self, queue: str, verb: str, body: dict[str, Any]) -> Request:
        request = http("POST", f"/v0/topics/{queue}/{verb}", body)
        return "POST", f"/v0/topics/{{topic}}/{verb}", request

    # What changes topics

    def put(self) -> Request:
        name = self.dice.choice(tuple(CONFIGS))
        config = dict(CONFIGS[name])
        if self.dice.randrange(2):
            config["ttl_ms"] = 1_000
        return "PUT", "/v0/topics/{topic}", http("PUT", f"/v0/topics/{name}", config)

    def drop(self) -> Request:
        name = self.dice.choice(("new-a", "new-b", "memory", "capped"))
        return "DELETE", "/v0/topics/{topic}", http("DELETE", f"/v0/topics/{name}")

    def delete(self) -> Request:
        body = self.dice.choice(({"before_seq": self.dice.randrange(20)}, {"match": {"tag": "t1"}}))
        name = self.dice.choice(("disk", "fsync", "memory", "full", "capped", "new-a"))
        return "POST", "/v0/topics/{topic}/delete", http("POST", f"/v0/topics/{name}/delete", body)

    def redrive(self) -> Request:
        return self._work_on("letters", "redrive", {"limit": self.dice.randrange(4)})

    def router(self) -> Request:
        source = self.dice.choice(("disk", "fsync", "new-a", "absent"))
        body = {"source": source, "dest": "copies"}
        return "PUT", "/v0/routers/{router}", http("PUT", f"/v0/routers/{source}", body)
