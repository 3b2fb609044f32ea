"""A disk that fails in the middle of random turns: each request of them has one answer, and a right
one: what was acknowledged is there, and nothing that was refused is."""

from __future__ import annotations

import errno
import json
import time
from collections import Counter
from collections.abc import Sequence
from typing import Any

import pytest

from headrace.engine.engine import Engine
from headrace.testing.faultfs import Fault, FaultFilesystem, FaultPlan
from headrace.testing.simdisk import SimDisk
from tests.support.engine_reads import all_records
from tests.support.memory_transport import in_a_loop
from tests.support.served_app import Response
from tests.support.turn_servers import TurnServer, http
from tests.support.turn_traffic import CONFIGS, COPIES, KEPT, REDRIVEN, Request, Traffic
from tests.support.wal_logs import Switch

STEPS = 60
CONNECTIONS = 20
FAULTS = [("pwritev", errno.ENOSPC), ("sync_data", errno.EIO), ("pwritev", errno.EIO)]
CALM_STEPS = 20  # after an error other than a full disk the log takes no more
Acked = dict[tuple[str, int, int], Any]  # by topic, epoch and seq


def acknowledged(request: Request, answer: Response) -> Acked:
    """The records that an append was told are there."""
    _, template, sent = request
    if not template.endswith(("/{topic}", "/{box}")) or not sent.startswith(b"POST"):
        return {}
    if answer.status not in (200, 201) or answer.json["deduped"]:
        return {}
    said: Any = answer.json
    records = json.loads(sent.partition(b"\r\n\r\n")[2])["records"]
    name = said.get("topic") or said["box"]
    seqs = range(said["first_seq"], said["last_seq"] + 1)
    data = [record["data"] for record in records]
    return {(name, said["epoch"], seq): d for seq, d in zip(seqs, data, strict=True)}


def present(engine: Engine) -> Acked:
    """The records that clients have appended, and a reader finds."""
    found: Acked = {}
    for info in engine.topics():
        if info.topic in COPIES or info.topic == REDRIVEN:
            continue
        for record in all_records(engine, info.topic):
            found[info.topic, info.epoch, record.seq] = json.loads(record.data)
    return found


class Faulty:
    """A server on a disk that fails in some turns, and what it has acknowledged."""

    def __init__(self, operation: str, code: int) -> None:
        self.switch, self.disk = Switch(code), SimDisk()
        fault = Fault(operation, 1, "call", forever=True, path="wal/*", hook=self.switch)
        self.server = TurnServer(
            FaultFilesystem(self.disk, FaultPlan(fault)), wait_ms_max=100, disk_reserve_bytes=0
        )
        for name, config in CONFIGS.items():
            self.server.ask(http("PUT", f"/v0/topics/{name}", config))
        self.clients = self.server.connect(CONNECTIONS)
        self.acked: Acked = {}
        self.statuses: Counter[int] = Counter()

    def take(self, step: Sequence[Sequence[Request]], *, fails: bool) -> list[Response]:
        """Send a step, whose turn may meet the fault; its answers, one for each request."""
        for client, part in zip(self.clients, step, strict=False):
            client.send(*(request for _, _, request in part))
        self.switch.on = fails
        self.server.end_turn()
        self.server.pass_ms(30)
        self.switch.on = False
        answers = []
        for client, part in zip(self.clients, step, strict=False):
            heard = client.hear()
            assert len(heard) == len(part), "one answer for each request"
            for request, answer in zip(part, heard, strict=True):
                new = acknowledged(request, answer)
                assert not new.keys() & self.acked.keys(), "a seq is given out once"
                self.acked |= new
            answers += heard
        self.statuses.update(answer.status for answer in answers)
        return answers

    def check(self) -> None:
        """Nothing is there that was not acknowledged; of what nothing was taken from, all is."""
        there = present(self.server.engine)
        assert there.items() <= self.acked.items(), there.keys() - self.acked.keys()
        missing = self.acked.keys() - there.keys()
        assert not [key for key in missing if key[0] == KEPT], missing


def run(seed: int, operation: str, code: int) -> Counter[int]:
    """Random steps, of which some fail; how often each status was answered."""
    traffic, faulty = Traffic(seed), Faulty(operation, code)
    with faulty.server as server:
        for number in range(STEPS):
            step = traffic.step(server)
            fails = number >= CALM_STEPS and traffic.dice.randrange(4) == 0
            traffic.heard(step, faulty.take(step, fails=fails))
            faulty.check()
            server.pass_ms(traffic.dice.choice((0, 1, 6_000)))
        assert len(server.app.turn) == 0 and server.app.budget.used == 0
        last = present(server.engine)
    image = faulty.disk.image(faulty.disk.position, "all", 0, power_loss=False)
    with TurnServer(image) as again:
        kept = present(again.engine)
        missing = last.keys() - kept.keys()
        assert not [key for key in missing if key[0] == KEPT], "a kill takes nothing"
    return faulty.statuses


@pytest.mark.parametrize("seed", range(1, 4))
@pytest.mark.parametrize(("operation", "code"), FAULTS)
def test_faults_in_the_middle_of_turns(seed: int, operation: str, code: int) -> None:
    statuses = in_a_loop(lambda: run(seed, operation, code))
    assert {200, 503} <= statuses.keys(), statuses
    if (operation, code) == FAULTS[0]:
        assert 500 not in statuses, "a full disk leaves no doubt"


@pytest.mark.long
def test_faults_in_turns_for_long(sweep) -> None:
    until, rounds = time.monotonic() + sweep.seconds, 0
    while time.monotonic() < until:
        seed = sweep.seed * 1_000 + rounds
        operation, code = FAULTS[rounds % len(FAULTS)]
        in_a_loop(lambda: run(seed, operation, code))  # noqa: B023 - called at once
        rounds += 1
    print(f"{rounds} rounds of {STEPS} steps")
