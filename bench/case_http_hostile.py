"""Hostile clients of each kind, and of all kinds at once: what well-behaved ones notice of them.

Well-behaved is a load of all three dialects, open loop, at a fixed rate.  Rounds without and with
the hostile ones take turns, so that what else the machine does is in both.  Each kind has a server
of its own, whose streams are of class disk: what is compared is the loop, not the disk.  The kinds
are in `tests/support/hostile_kinds.py`; some of them only, with more rounds:

    python -m bench.case_http_hostile rapid_resets fork_bombs --rounds 5
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections.abc import Sequence
from statistics import median

from bench.load import Generator
from bench.measure import Measured, Partner
from bench.served import Round, Served, column, serving
from bench.streams import raise_file_limit
from bench.wires import Http, append_request, diff_request, http_request
from tests.support.hostile_clients import Crowd, Target
from tests.support.hostile_kinds import KINDS

RATE = 1_000.0
COPIES = 3  # connections of each sort of request
SECONDS = 2.0
ROUNDS = 3
# Of each kind: connections, and steps a second, each of which may be a hundred requests.
COUNT = 32
STEPS = 10.0
# Beside each other, so that all of them together ask for about what a server can do.
STEPS_TOGETHER = 1.0
ALL = "all"
BASIN = {"s2-basin": "well-behaved"}
PLAIN = {"Content-Type": "text/plain"}
JSON = {"Content-Type": "application/json"}
RECORDS = {"records": [{"body": "x" * 200}]}
SETTINGS = {"ds_durability": "disk", "s2_durability": "disk", "ds_webhook_loopback": "true"}


def run(directory: str, quick: bool) -> dict[str, Measured]:
    found: dict[str, Measured] = {}
    for name in (*KINDS, ALL):
        found |= measured(f"{directory}/{name}", name, 1 if quick else ROUNDS, quick)
    return found


def measured(directory: str, name: str, rounds: int, quick: bool = False) -> dict[str, Measured]:
    """The figures of one kind: rounds without it and with it, in turns."""
    kinds = list(KINDS) if name == ALL else [name]
    seconds = 0.2 if quick else SECONDS
    with serving(directory, **SETTINGS) as server:
        prepare(server)
        given = {"port": server.port, "pid": server.pid, "seconds": seconds}
        with (
            Partner("case_http_hostile:behave", **given) as behaved,
            Partner("case_http_hostile:attack", port=server.port, kinds=kinds) as attackers,
        ):
            behaved.ask()  # so that what a first load leaves behind is not called growth
            attackers.ask("begin")
            quiet: list[Round] = []
            beside: list[Round] = []
            resident = server.resident_mb
            server.reset_peak()
            for _ in range(rounds):
                quiet.append(behaved.ask())
                attackers.ask("attack")
                beside.append(behaved.ask())
                attackers.ask("leave")
            grown = server.peak_mb - resident
            behaved.close()
            attackers.close()
    return {
        f"http_hostile_{name}_quiet_p99": [us / 1e3 for us in column(quiet, "p99")],
        f"http_hostile_{name}_p99": [us / 1e3 for us in column(beside, "p99")],
        f"http_hostile_{name}_busy": max(
            0.0, median(column(beside, "busy")) - median(column(quiet, "busy"))
        ),
        f"http_hostile_{name}_growth": max(grown, 0.0),
    }


def prepare(server: Served) -> None:
    """The topics and streams of the well-behaved."""
    server.call("PUT", "/v0/topics/orders", {"cap_records": 10_000})
    generator = Generator(
        [
            Http(server.port, request)
            for request in (
                http_request("PUT", "/v1/stream/well-behaved", b"", PLAIN),
                http_request("POST", "/v1/basins", b'{"basin":"well-behaved"}', JSON),
            )
        ],
        [server.pid],
    )
    generator.closed(0.0)
    generator.close()
    made = Http(
        server.port, http_request("POST", "/v1/streams", b'{"stream":"s"}', {**JSON, **BASIN})
    )
    Generator([made], [server.pid]).closed(0.0)
    made.close()
    for request in appends():
        first = Generator([Http(server.port, request)], [server.pid])
        first.closed(0.0)
        first.close()


def appends() -> list[bytes]:
    body = json.dumps(RECORDS).encode()
    return [
        append_request("orders"),
        http_request("POST", "/v1/stream/well-behaved", b"x" * 200, PLAIN),
        http_request("POST", "/v1/streams/s/records", body, {**JSON, **BASIN}),
    ]


def reads() -> list[bytes]:
    return [
        diff_request("orders", 0, 10),
        http_request("GET", "/v1/stream/well-behaved?offset=now", b"", {}),
        http_request("GET", "/v1/streams/s/records?seq_num=0&count=10", b"", BASIN),
    ]


def behave(port: int, pid: int, seconds: float) -> None:
    """A partner: a round of the well-behaved load for each line."""
    wires = [Http(port, request) for request in (*appends(), *reads()) * COPIES]
    generator = Generator(list(wires), [pid])
    while sys.stdin.readline():
        print(json.dumps(generator.open(seconds, RATE).report()), flush=True)
    generator.close()


def attack(port: int, kinds: Sequence[str]) -> None:
    """A partner: the hostile clients, which come and go as they are told."""
    raise_file_limit()
    hostile = [KINDS[name](Target(port), COUNT) for name in kinds]
    rate = STEPS if len(hostile) == 1 else STEPS_TOGETHER
    for line in sys.stdin:
        crowd = Crowd(hostile, rate)
        if line.strip() == "begin":
            crowd.begin()
        elif line.strip() == "attack":
            with crowd:
                print("true", flush=True)
                sys.stdin.readline()
            if problems := crowd.problems():
                raise RuntimeError(f"an attack failed: {problems}")
        print("true", flush=True)


def main() -> int:
    """Measure some kinds and print a line of each."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("kinds", nargs="*", default=[*KINDS, ALL])
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    options = parser.parse_args()
    for name in options.kinds:
        with tempfile.TemporaryDirectory(prefix="headrace-bench-", dir="/var/tmp") as directory:
            found = measured(directory, name, options.rounds)
        quiet, beside, busy, growth = found.values()
        assert isinstance(quiet, list) and isinstance(beside, list)
        middle, best = median(beside) / median(quiet), min(beside) / min(quiet)
        print(
            f"{name:20} p99 {median(quiet):6.2f} -> {median(beside):6.2f} ms ({middle:.1f} x),"
            f" best {min(quiet):.2f} -> {min(beside):.2f} ms ({best:.1f} x),"
            f" {busy:5.2f} cores, {growth:4.0f} MB",
            flush=True,
        )
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
