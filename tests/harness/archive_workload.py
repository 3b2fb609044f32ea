"""The workload of the watermark: topics that wait for their archive, and one that is told in vain.

What is right is not decided here; see `workloads.py`, which lists it with the others.
"""

from __future__ import annotations

from tests.harness.engine_driver import Driver
from tests.harness.model import config_of
from tests.harness.scene import Stage


def archive(stage: Stage) -> None:
    """What an archive is told to have is let go, and nothing else, unless it is too much."""
    driver = stage.open()
    kept: dict[str, object] = {"retain_until_archived": True}
    configs = {
        "records": config_of(durability="fsync", cap_records=3, **kept),
        "bytes": config_of(durability="disk", cap_bytes=90, retain_bytes_max=150, **kept),
        "ttl": config_of(durability="disk", ttl_ms=150, retain_bytes_max=40, **kept),
        "plain": config_of(durability="disk", cap_records=6),
        "spare": config_of(durability="disk", **kept),
    }
    for turn in range(8):
        for name, config in configs.items():
            driver.append(name, *stage.records(1 + stage.dice.below(3), tagged=True), config=config)
            stage.pace(driver)
            topic = driver.engine.state.by_name.get(name)
            if topic is not None and name != "spare" and stage.dice.below(3):
                driver.archived(name, max(0, topic.head - stage.dice.below(4)))
                stage.pace(driver)
        driver.finish()
        stage.clock.advance(100)
        if turn == 3:
            driver.delete("records", match="a")
            driver.put("plain", config_of(durability="disk", cap_records=3, **kept))
        if turn == 5:
            driver.drop("bytes")
            driver.put("records", config_of(durability="fsync", cap_records=2))
        if turn in (1, 4):
            stage.checkpoint(driver)
            driver.steps(stage.dice.below(9))
        if turn == 6:
            _change_beside_a_checkpoint(stage, driver)
    _tell_less_than_a_cap_wants(stage, driver)
    driver.finish()


def _change_beside_a_checkpoint(stage: Stage, driver: Driver) -> None:
    """A cap that comes and goes, then a watermark: all behind the rotation, before the capture.

    So the log that goes with the snapshot has a cap in it that never took anything, and the
    snapshot a watermark that would have let it.
    """
    head = driver.engine.state.by_name["spare"].head
    stage.checkpoint(driver)
    driver.put("spare", config_of(durability="disk", cap_records=2, retain_until_archived=True))
    driver.put("spare", config_of(durability="disk", cap_records=99, retain_until_archived=True))
    driver.archived("spare", head)
    driver.finish()


def _tell_less_than_a_cap_wants(stage: Stage, driver: Driver) -> None:
    """Of four records a cap would keep two, and one is archived: it alone goes, whatever the dice.

    Then the same with more appends, so that crashes fall before, between and after.
    """
    config = config_of(durability="fsync", cap_records=2, retain_until_archived=True)
    driver.append("held", *stage.records(4), config=config)
    driver.finish()
    for told in (1, 3):
        driver.archived("held", told)
        stage.pace(driver)
        driver.append("held", *stage.records(2))
        stage.pace(driver)
    driver.finish()
