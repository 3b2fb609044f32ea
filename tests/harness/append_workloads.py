"""What the crash explorer runs to append: each class, all of them in one log, whole turns."""

from __future__ import annotations

from tests.harness.model import config_of
from tests.harness.scene import Stage

CLASSES = ("fsync", "disk", "memory", "ephemeral")
OF_CLASS = {durability: config_of(durability=durability) for durability in CLASSES}
FSYNC, DISK = OF_CLASS["fsync"], OF_CLASS["disk"]


def _append(stage: Stage, durability: str) -> None:
    driver = stage.open()
    driver.put("t", OF_CLASS[durability])
    for _ in range(24):
        driver.append("t", stage.record())
        stage.pace(driver)
    driver.settle()
    for _ in range(8):
        driver.append("t", stage.record())
        stage.pace(driver)
    driver.finish()


def append_fsync(stage: Stage) -> None:
    _append(stage, "fsync")


def append_disk(stage: Stage) -> None:
    _append(stage, "disk")


def append_memory(stage: Stage) -> None:
    _append(stage, "memory")


def append_ephemeral(stage: Stage) -> None:
    _append(stage, "ephemeral")


def append_classes(stage: Stage) -> None:
    """All classes in one log, created on the way."""
    driver = stage.open()
    for turn in range(12):
        for durability in CLASSES:
            driver.append(durability, stage.record(), config=OF_CLASS[durability])
            stage.pace(driver)
        if turn % 4 == 3:
            driver.settle()
    driver.finish()


def append_turns(stage: Stage) -> None:
    """What a turn brings to topics of several classes, some made on the way, as one batch."""
    driver = stage.open()
    names = [f"{durability}-{number}" for durability in CLASSES for number in range(2)]
    for turn in range(14):
        count = 1 + stage.dice.below(7)
        chosen = [names[stage.dice.below(len(names))] for _ in range(count)]
        size = (40, 600, 9_000)[stage.dice.below(3)]
        driver.append_turn(
            *[(name, stage.record(size), OF_CLASS[name.partition("-")[0]]) for name in chosen]
        )
        stage.pace(driver)
        if turn % 5 == 4:
            driver.settle()
    driver.finish()
