"""Many clients of one log, killed and restarted under them: what they saw is one order."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from headrace.core.clock import ManualClock
from headrace.core.runtime import Ticket
from headrace.engine.appending.pending_append import Appended
from headrace.engine.reading.page import Page
from headrace.testing.diskmodel import Dice
from headrace.testing.simdisk import MODES, SimDisk
from tests.harness.engine_driver import Driver, Setup, batch_of
from tests.harness.linearizability import History, chain
from tests.harness.model import NewRecord

HISTORIES, CLIENTS, CALLS, CRASHES = 20, 8, 1_000, 4
CONFIG = {"durability": "fsync"}


class Client:
    """Appends and reads, one call at a time."""

    def __init__(self, name: int, crowd: Crowd) -> None:
        self.name = name
        self.crowd = crowd
        self.cursor, self.hash = 0, 0
        self.calls = 0
        self.in_flight: Callable[[], None] | None = None  # says that its outcome is unknown

    def call(self) -> None:
        crowd, dice = self.crowd, self.crowd.dice
        self.calls += 1
        began = crowd.history.now()
        if dice.below(3):
            records = [
                NewRecord(b"%d.%d.%d" % (self.name, self.calls, n))
                for n in range(1 + dice.below(3))
            ]
            data = [record.data for record in records]
            self.in_flight = lambda: crowd.history.lost_sight(began, data)
            ticket = crowd.driver.engine.append("log", batch_of(records), config=CONFIG)
            ticket.when_done(lambda done: self.appended(began, data, done))
        else:
            self.in_flight = lambda: None
            page = crowd.driver.engine.read("log", self.cursor, limit=1_000)
            page.when_done(lambda done: self.seen(began, done))

    def appended(self, began: int, data: list[bytes], done: Ticket[Appended]) -> None:
        self.in_flight = None
        self.crowd.history.appended(began, data, done.result().first_seq)

    def seen(self, began: int, done: Ticket[Page]) -> None:
        self.in_flight = None
        if done.error is not None:
            return  # no such topic yet
        page = done.result()
        assert page.tombstone is None
        self.hash = chain(self.hash, (record.data for record in page.records))
        self.cursor = page.next_from_seq
        if page.caught_up:
            self.crowd.history.read(began, self.cursor, self.hash)


class Crowd:
    """Some clients, and the engine that is killed under them."""

    def __init__(self, seed: int) -> None:
        self.dice = Dice(seed, 0xC10D)
        self.history = History()
        self.clock = ManualClock()
        self.setup = Setup(shuffled=True, cached=bool(seed % 2))
        self.driver = self.start(SimDisk(), seed)
        self.clients = [Client(name, self) for name in range(CLIENTS)]

    def start(self, disk: SimDisk, seed: int) -> Driver:
        driver = Driver(disk, self.setup, self.clock, seed)
        driver.recover()
        return driver

    def run(self, calls: int) -> None:
        for _ in range(calls):
            client = self.clients[self.dice.below(CLIENTS)]
            if client.in_flight is None:
                client.call()
            self.driver.steps(self.dice.below(4))
            if self.dice.below(200) == 0:
                self.driver.engine.checkpoint()

    def crash(self) -> None:
        """Power or process goes; nobody hears the answers of what was in flight."""
        for client in self.clients:
            if client.in_flight is not None:
                client.in_flight()
                client.in_flight = None
        disk = self.driver.disk
        mode = MODES[self.dice.below(len(MODES))]
        power_loss = self.dice.coin()
        image = disk.image(disk.position, mode, self.dice.below(1 << 20), power_loss=power_loss)
        self.driver.abandon()
        self.clock.advance(1_000)
        self.driver = self.start(image, self.dice.below(1 << 20))


@pytest.mark.parametrize("seed", range(1, HISTORIES + 1))
def test_histories_are_linearisable(seed: int) -> None:
    crowd = Crowd(seed)
    for _ in range(CRASHES):
        crowd.run(CALLS * CLIENTS // (CRASHES + 1) // 4)
        crowd.crash()
    crowd.run(CALLS * CLIENTS // (CRASHES + 1) // 4)
    crowd.driver.finish()
    log: list[bytes] = []
    while True:
        page = crowd.driver.read("log", len(log))
        if not page.records:
            break
        log += [record.data for record in page.records]
    assert len(crowd.history.appends) > CALLS // 4 and len(crowd.history.reads) > CALLS // 10
    crowd.history.check(log)
