"""Where a workload plays: one simulated disk, the engines that live on it, and the dice.

Only this file makes the records of a workload and paces its calls.  The same seed gives the same
play.  What is asked of the engine is the workload's business, what is right the oracle's.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from headrace.core.clock import ManualClock
from headrace.testing.diskmodel import Dice
from headrace.testing.simdisk import SimDisk
from tests.harness.engine_driver import Driver, Setup
from tests.harness.events import Loss, Quiet, Seen, TopicView
from tests.harness.model import NewRecord

TAGS = (None, "a", "b", "chat-42:x", "chat-420:x")


@dataclass
class Stage:
    """One disk, and the engines that live on it one after the other."""

    setup: Setup
    seed: int
    checkpoints: bool = True  # False: leave them out, to compare with a run that has them
    calm: bool = False  # each call is answered before the next
    disk: SimDisk = field(default_factory=SimDisk)
    clock: ManualClock = field(default_factory=ManualClock)
    drivers: list[Driver] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.dice = Dice(self.seed, 0x57A6E)
        self._serial = 0

    def open(self, **changes: object) -> Driver:
        """An engine on the disk; `changes` to its settings last."""
        if changes:
            settings = replace(self.setup.settings, **changes)  # type: ignore[arg-type]
            self.setup = replace(self.setup, settings=settings)
        life = len(self.drivers) + 1
        driver = Driver(self.disk, self.setup, self.clock, self.seed * 100 + life)
        self.drivers.append(driver)
        driver.recover()
        return driver

    def reopen(self, driver: Driver, loss: Loss, **changes: object) -> Driver:
        """The next engine, after this one was closed or killed."""
        if loss == "clean":
            driver.engine.close()
            self.disk.mark(Quiet())
        else:
            driver.abandon()
        self.clock.advance(1_000)
        later = self.open(**changes)
        self.disk.mark(Seen(later.observe(), loss, later.engine.state.clock.now_ms()))
        return later

    def checkpoint(self, driver: Driver) -> None:
        if self.checkpoints:
            driver.checkpoint()
        if self.calm:
            driver.finish()

    def recovered_views(self) -> dict[str, TopicView]:
        """What an engine shows that starts after the last one was killed."""
        image = self.disk.image(self.disk.position, "all", 0, power_loss=False)
        driver = Driver(image, self.setup, self.clock, 0)
        driver.recover()
        return driver.observe()

    def record(self, size: int = 40, *, tagged: bool = False) -> NewRecord:
        """A record like no other."""
        self._serial += 1
        data = b"%d:" % self._serial
        data += self.dice.bytes(self.dice.below(size) + 1)
        if not tagged:
            return NewRecord(data)
        tag = TAGS[self.dice.below(len(TAGS))]
        node = "n1" if self.dice.below(3) == 0 else None
        meta = b'{"k":%d}' % self._serial if self.dice.below(3) == 0 else None
        return NewRecord(data, tag, node, meta)

    def records(self, count: int, size: int = 40, *, tagged: bool = False) -> list[NewRecord]:
        return [self.record(size, tagged=tagged) for _ in range(count)]

    def pace(self, driver: Driver) -> None:
        """Let nothing, a little or everything happen before the next call."""
        choice = self.dice.below(4)
        if self.calm:
            choice = 0
        if choice == 0:
            driver.finish()
        elif choice == 1:
            driver.steps(1 + self.dice.below(3))
        elif choice == 2 and self.dice.below(3) == 0:
            self.clock.advance(20)
