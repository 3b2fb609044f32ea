"""The workloads of syncs: those that the loop does itself, and those that wait for others.

What is right is not decided here; see `workloads.py`, which lists them with the others.
"""

from __future__ import annotations

from tests.harness.model import config_of
from tests.harness.scene import Stage

# Longer than a sync waits for others under any pressure.
WINDOW_MS = 20


def lone(stage: Stage) -> None:
    """Durable calls one at a time, which the loop syncs itself; some come while it is busy."""
    fsync, disk = (config_of(durability=durability) for durability in ("fsync", "disk"))
    driver = stage.open()
    driver.put("t", fsync)
    for turn in range(20):
        driver.append("t", stage.record(6_000, tagged=True), config=fsync)
        if turn % 6 == 5:
            driver.append("t", stage.record())
        if turn % 10 == 9:
            driver.finish()
            driver.delete("t", match="a")
        if turn % 8 == 7:
            driver.append("d", stage.record(), config=disk)
        stage.pace(driver)
        driver.steps(1)
        if turn == 12:
            stage.checkpoint(driver)
    driver.settle()


def window(stage: Stage) -> None:
    """Pressure comes and goes: syncs wait for others, and crashes fall into the wait."""
    classes = {"f": "fsync", "d": "disk", "e": "ephemeral"}
    configs = {name: config_of(durability=durability) for name, durability in classes.items()}
    driver = stage.open()
    for turn, pressure in enumerate((1.0, 0.5, 0.0, 1.0, 0.7, 1.0)):
        driver.govern(pressure)
        for _ in range(6):
            name = ("f", "d", "e")[stage.dice.below(3)]
            config = configs[name]
            driver.append(name, *stage.records(1 + stage.dice.below(3), tagged=True), config=config)
            stage.pace(driver)
            stage.clock.advance(stage.dice.below(5))
            driver.steps(stage.dice.below(4))
        if turn == 1:
            driver.delete("f", match="a")
        if turn == 3:
            stage.checkpoint(driver)
        if turn == 4:
            stage.clock.advance(WINDOW_MS)
            driver.finish()
            driver.drop("d")
    stage.clock.advance(WINDOW_MS)
    driver.finish()
