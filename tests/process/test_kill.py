"""`kill -9` under load, again and again, on one directory: nothing acknowledged is ever missing."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from pathlib import Path

import pytest

CYCLES = 30
CYCLES_FEW = 15
SEED = 20_240_601
# How much of the load is heard before the kill comes: reports (one each 20 operations), and then
# some time, so that it falls anywhere.  The start itself is hit too, now and then.
REPORTS_MAX = 10
PAUSE_SECONDS_MAX = 0.02
START_SECONDS_MAX = 0.06
KILL_DURING_START = 0.15


def cycle(story, workers, directory: Path, run: int, chance: random.Random) -> None:
    """Start, check what is there, load, kill."""
    ledger = story.ledger
    retries = ledger.to_retry(lambda stored: chance.sample(stored, min(8, len(stored))))
    worker = workers.start(
        directory=str(directory),
        seed=ledger.seed,
        run=run,
        settings={"checkpoint_wal_bytes": 32 << 10},
        dump_first=True,
        retries=retries,
    )
    try:
        if chance.random() < KILL_DURING_START:
            story.follow(run, worker.hear(seconds=chance.random() * START_SECONDS_MAX))
        else:
            for _ in range(chance.randint(1, REPORTS_MAX)):
                words = story.follow(run, worker.hear("stat"))
                assert words and words[-1] == "stat", (words[-3:], worker.complaints())
            story.follow(run, worker.hear(seconds=chance.random() * PAUSE_SECONDS_MAX))
        worker.kill()
        story.follow(run, worker.hear())
    finally:
        worker.discard()
    assert not worker_failed(story.errors), story.errors[-3:]


def worker_failed(errors: list) -> list:
    """Refusals that a healthy disk does not explain."""
    return [e for e in errors if e[1] not in ("throttled", "topic_not_found")]


def finish(story, workers, directory: Path, run: int) -> None:
    """One last look, then a clean stop, and another look."""
    for last in (run, run + 1):
        worker = workers.start(
            directory=str(directory), seed=story.ledger.seed, run=last, ops=0, dump_first=True
        )
        words = story.follow(last, worker.hear("end"))
        assert words[-1] == "end" and worker.end() == 0, worker.complaints()


def sweep_cycles(story, workers, directory: Path, enough: Callable[[int], bool]) -> int:
    chance = random.Random(story.ledger.seed)
    run = 0
    while not enough(run):
        cycle(story, workers, directory, run, chance)
        run += 1
    finish(story, workers, directory, run)
    return run


@pytest.mark.parametrize("cycles", [CYCLES_FEW, pytest.param(CYCLES, marks=pytest.mark.slow)])
def test_nothing_acknowledged_is_lost(make_story, workers, tmp_path: Path, cycles: int) -> None:
    story = make_story(SEED)
    sweep_cycles(story, workers, tmp_path / "data", lambda run: run >= cycles)
    # The load was one: everything that moves data was running when the kills came.
    assert story.ledger.acked_records > 1_000
    assert story.ledger.unsettled_kept + story.ledger.unsettled_lost > 0
    assert story.checkpoints > cycles // 10
    assert story.merges > 0


@pytest.mark.long
def test_nothing_acknowledged_is_lost_for_long(make_story, workers, tmp_path, sweep) -> None:
    deadline = time.monotonic() + sweep.seconds
    story = make_story(sweep.seed)
    cycles = sweep_cycles(
        story, workers, tmp_path / "data", lambda _run: time.monotonic() > deadline
    )
    print(f"{cycles} kills, {story.ledger.acked_records} records acknowledged, none lost")
