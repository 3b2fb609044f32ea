"""The engine against the model, call by call, without power losses."""

from __future__ import annotations

import pytest

from headrace.core.clock import SystemClock
from tests.harness.topic_lockstep import run

SEEDS, CALLS = 24, 250


@pytest.mark.parametrize("seed", range(1, SEEDS + 1))
def test_engine_and_model_agree(seed: int) -> None:
    run(seed, CALLS)


@pytest.mark.long
def test_engine_and_model_agree_for_long(sweep) -> None:  # type: ignore[no-untyped-def]
    clock = SystemClock()
    deadline_ns = clock.monotonic_ns() + int(sweep.seconds * 1e9)
    seed = sweep.seed * 1_000
    while clock.monotonic_ns() < deadline_ns:
        seed += 1
        run(seed, CALLS)
    print(f"{seed - sweep.seed * 1_000} runs of {CALLS} calls")
