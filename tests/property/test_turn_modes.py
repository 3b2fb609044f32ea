"""Requests that are handled together are answered, counted and stored as if each had come alone.

The same random traffic goes to servers that handle a turn's requests together, at most three at a
time, and one by one.  Time stands still during a turn, so the answers must be the same to the byte,
headers and all.  Two things of queues may differ: the ids of leases, which are drawn, and how many
jobs a queue holds when one of them is answered, which is compared when the turn is over.
"""

from __future__ import annotations

import re
import time
from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

import pytest

from headrace.storage.block import ENTRY_APPEND
from headrace.storage.wal.frame import entry_topic
from headrace.testing.simdisk import SimDisk
from tests.support.engine_reads import all_data
from tests.support.memory_transport import in_a_loop
from tests.support.served_app import Response
from tests.support.turn_http2 import Http2TurnClient
from tests.support.turn_servers import TurnClient, TurnServer, http, log_entries
from tests.support.turn_traffic import CONFIGS, COPIES, LOGS, QUEUES, Traffic

STEPS = 50
CONNECTIONS = 20
MOST = (512, 3, 1)  # what `turn_requests_max` may be
# What counts requests, records and jobs; how many batches and syncs that makes is another matter.
COUNTED = r"headrace_(http|append|read_records|queue|rejected|router|topics|idempotency)"
NOT_COUNTED = re.compile(r"_seconds|_bucket")


LEASE = re.compile(rb"lease_[0-9a-f]{16}")
# Of the answers of a queue: jobs that it holds at the moment, and the names of leases.
MOMENTARY = re.compile(rb'("ready"|"in_flight"):\d+|' + LEASE.pattern)


class Outcome(NamedTuple):
    """What there is at the end."""

    counted: list[str]
    states: list[object]
    contents: dict[str, object]
    appended: dict[int, list[bytes]]  # entries of the log, by topic
    recovered: list[object]  # after a kill


def start(most: int) -> TurnServer:
    server = TurnServer(turn_requests_max=most, wait_ms_max=100)
    for name, config in CONFIGS.items():
        assert server.ask(http("PUT", f"/v0/topics/{name}", config)).status in (200, 201)
    return server


def same(answer: Response) -> tuple[int, object, bytes]:
    """What must not depend on who else was answered in the turn."""
    if b'"in_flight":' not in answer.body and b'"claimed":' not in answer.body:
        return answer
    headers = {name: value for name, value in answer.headers.items() if name != b"content-length"}
    return answer.status, headers, MOMENTARY.sub(b"", answer.body)


def states(server: TurnServer) -> list[object]:
    """What every topic says of itself."""
    names = (*LOGS, *QUEUES, *COPIES)
    return [server.ask(http("GET", f"/v0/topics/{name}")).body for name in names]


def outcome(server: TurnServer) -> Outcome:
    counted = [line for line in server.counters(COUNTED) if not NOT_COUNTED.search(line)]
    found = states(server)
    there = [info.topic for info in server.engine.topics()]
    contents: dict[str, object] = {name: all_data(server.engine, name) for name in there}
    assert isinstance(server.fs, SimDisk)
    disk = server.fs.image(server.fs.position, "all", 0, power_loss=False)
    entries = log_entries(disk)
    server.engine.abandon()
    with TurnServer(disk) as again:
        recovered = [
            [info.topic, info.head_seq, info.count, all_data(again.engine, info.topic)]
            for info in again.engine.topics()
        ]
    appended: dict[int, list[bytes]] = {}
    for kind, entry in entries:
        if kind == ENTRY_APPEND:
            appended.setdefault(entry_topic(entry), []).append(entry)
    return Outcome(counted, found, contents, appended, recovered)


class Leases:
    """The leases of a server, by the ids that the first server gave to the same ones."""

    def __init__(self) -> None:
        self._own: dict[bytes, bytes] = {}

    def note(self, firsts: Sequence[Response], own: Sequence[Response]) -> None:
        """Learn from the answers to the same requests."""
        for first, answer in zip(firsts, own, strict=True):
            pairs = zip(LEASE.findall(first.body), LEASE.findall(answer.body), strict=True)
            self._own.update(pairs)

    def named(self, request: bytes) -> bytes:
        """The request with the server's own ids, which are as long."""
        return LEASE.sub(lambda found: self._own.get(found[0], found[0]), request)


def connected(server: TurnServer) -> list[TurnClient]:
    """Connections; every third speaks HTTP/2."""
    kinds = (TurnClient, TurnClient, Http2TurnClient)
    return [kinds[number % len(kinds)](server) for number in range(CONNECTIONS)]


def compare(seed: int, steps: int) -> Counter[int]:
    """Send random traffic to one server of each kind; how often each status was answered."""
    servers = [start(most) for most in MOST]
    clients = [connected(server) for server in servers]
    leases = [Leases() for _ in servers]
    traffic, statuses = Traffic(seed), Counter[int]()
    for number in range(steps):
        step = traffic.step(servers[0])
        pause_ms = traffic.dice.choice((0, 1, 25, 60))
        heard, held = [], []
        for server, connections, own in zip(servers, clients, leases, strict=True):
            for client, part in zip(connections, step, strict=False):
                client.send(*(own.named(request) for _, _, request in part))
            server.end_turn()
            server.pass_ms(30)  # for those that wait
            heard.append([client.hear() for client in connections[: len(step)]])
            held.append([server.ask(http("GET", f"/v0/topics/{name}")) for name in QUEUES])
            server.pass_ms(pause_ms)
        for most, others, own in zip(MOST[1:], heard[1:], leases[1:], strict=True):
            told = f"seed {seed}, step {number}, {MOST[0]} and {most} together"
            for part, mine, theirs in zip(step, heard[0], others, strict=True):
                assert [*map(same, mine)] == [*map(same, theirs)], f"{told}: {part}"
                own.note(mine, theirs)
        assert held[0] == held[1] == held[2], f"seed {seed}, step {number}"
        answers = [answer for some in heard[0] for answer in some]
        traffic.heard(step, answers)
        statuses.update(answer.status for answer in answers)
    ends = [outcome(server) for server in servers]
    for most, end in zip(MOST[1:], ends[1:], strict=True):
        for mine, theirs, name in zip(ends[0], end, Outcome._fields, strict=True):
            assert mine == theirs, f"seed {seed}, {MOST[0]} and {most} together: {name}"
    assert ends[0].counted and ends[0].appended
    return statuses


@pytest.mark.parametrize("seed", range(1, 4))
def test_a_turn_is_as_its_requests_one_by_one(seed: int) -> None:
    statuses = in_a_loop(lambda: compare(seed, STEPS))
    assert {200, 201, 400, 403, 404, 409} <= statuses.keys(), statuses
    assert 500 not in statuses, statuses


@pytest.mark.long
def test_turns_for_long(sweep) -> None:
    until, rounds = time.monotonic() + sweep.seconds, 0
    while time.monotonic() < until:
        seed = sweep.seed * 1_000 + rounds
        assert 500 not in in_a_loop(lambda seed=seed: compare(seed, STEPS))
        rounds += 1
    print(f"{rounds} rounds of {STEPS} steps")
