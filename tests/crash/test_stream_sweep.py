"""Every crash point of the calls of streams, killed and with every kind of power loss."""

from __future__ import annotations

import pytest

from tests.harness import s2_workload, stream_workload
from tests.harness.step_sweep import explore

STATES_MIN = 250


@pytest.mark.parametrize("shards", [1, 3])
def test_every_crash_point(shards: int) -> None:
    states = explore(stream_workload.PROGRAM, shards, unseen=2)
    assert states >= STATES_MIN, states


@pytest.mark.parametrize("shards", [1, 3])
def test_every_crash_point_of_fences_trims_and_updates(shards: int) -> None:
    states = explore(s2_workload.PROGRAM, shards, unseen=2)
    assert states >= STATES_MIN, states
