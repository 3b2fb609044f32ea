"""Power loss at any call, with any legal damage: no image of a running engine is called corrupt.

The counterpart of `test_damage.py`: what tells rot from a torn tail must not take one for the
other.
Whether the images hold what was acknowledged is the business of tests/crash.
"""

from __future__ import annotations

import random

import pytest

from headrace.core.clock import ManualClock, SeededRandom, SystemClock
from headrace.core.runtime import StepRuntime
from headrace.engine.engine import Engine
from headrace.testing.simdisk import MODES, SimDisk
from tests.harness.traffic import Traffic, begin, dump, place_of, small_policy, small_settings

OPS = 90
RUNS = 3
IMAGES_EACH = 230
IMAGES_SLOW = 700
IMAGES_LONG = 50  # of each run of the long sweep, which has to end when its time is up
SEED = 3


def opened(disk: SimDisk, clock: ManualClock, seed: int) -> Engine:
    engine = Engine(
        disk,
        StepRuntime(clock),
        small_settings(checkpoint_wal_bytes=16 << 10),
        random=SeededRandom(seed),
        policy=small_policy(),
    )
    engine.recover()
    return engine


def loaded(seed: int, ops: int) -> tuple[SimDisk, ManualClock]:
    """A disk with a trace: an engine under traffic, stopped, started and loaded once more."""
    disk, clock = SimDisk(), ManualClock()
    for run in range(2):
        engine = opened(disk, clock, seed + run)
        traffic = Traffic(seed, run)
        chance = random.Random(seed + run)
        for number in range(ops // 2):
            op = traffic[number]
            begin(engine, op, place_of(engine, op))
            # A few operations a turn, a pause now and then: batches, groups, idle windows.
            if chance.random() < 0.6:
                engine.runtime.run()
            if chance.random() < 0.3:
                clock.advance(chance.randrange(40))
                engine.runtime.run()
        engine.abandon()
    return disk, clock


def explore(disk: SimDisk, clock: ManualClock, seed: int, count: int) -> int:
    chance = random.Random(seed)
    positions = sorted(chance.randrange(disk.crash_points) for _ in range(count))
    for position in positions:
        mode = chance.choice(MODES)
        image = disk.image(position, mode, seed)
        try:
            engine = opened(image, clock, seed + 7)
            dump(engine)
            engine.abandon()
        except Exception as error:
            error.add_note(f"image({position}, {mode!r}, {seed}) of loaded({seed}, {OPS})")
            raise
    return count


@pytest.mark.parametrize("images", [IMAGES_EACH, pytest.param(IMAGES_SLOW, marks=pytest.mark.slow)])
@pytest.mark.parametrize("run", range(RUNS))
def test_no_legal_image_is_called_corrupt(run: int, images: int) -> None:
    seed = SEED + 10 * run
    disk, clock = loaded(seed, OPS)
    assert explore(disk, clock, seed, images) == images


def test_the_images_are_two_thousand() -> None:
    assert RUNS * IMAGES_SLOW >= 2_000


@pytest.mark.long
def test_no_legal_image_is_called_corrupt_for_long(sweep) -> None:
    clock = SystemClock()
    deadline_ns = clock.monotonic_ns() + int(sweep.seconds * 1e9)
    images, seed = 0, sweep.seed
    while clock.monotonic_ns() < deadline_ns:
        disk, time = loaded(seed, OPS)
        images += explore(disk, time, seed, IMAGES_LONG)
        seed += 1
    print(f"{images} images from seed {sweep.seed} on, none called corrupt")
