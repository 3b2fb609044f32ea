"""Streams against a model: any order of creates, appends, reads, forks, deletes and restarts."""

from __future__ import annotations

import itertools
import time
from pathlib import Path

import pytest

from tests.harness.stream_lockstep import lockstep
from tests.support.sweeps import Sweep

SEEDS, CALLS = 2, 250


@pytest.mark.parametrize("seed", range(SEEDS))
def test_streams_follow_their_model(seed: int, tmp_path: Path) -> None:
    with lockstep(seed, tmp_path) as run:
        run.run(CALLS)


@pytest.mark.long
def test_streams_follow_their_model_for_long(sweep: Sweep, tmp_path: Path) -> None:
    deadline = time.monotonic() + sweep.seconds
    for seed in itertools.count(sweep.seed):
        with lockstep(seed, tmp_path / str(seed)) as run:
            run.run(4 * CALLS)
        if time.monotonic() > deadline:
            return
