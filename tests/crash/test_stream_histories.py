"""Histories of streams, with calls under way at once, are crashed at every disk call.

They come back whole, with their producers, closes and forks.
"""

from __future__ import annotations

import pytest

from tests.harness.crash_points import sweep_for_long
from tests.harness.stream_history_sweep import WORKLOADS, StreamExplorer
from tests.support.sweeps import Sweep

# In the default suite, as few of the points as show each seeded bug; the long sweep has all.
STRIDES = {"closes": 3, "lives": 6, "restarts": 5, "forks": 8}
STRIDE_ELSE = 4


@pytest.mark.parametrize(
    "workload",
    [
        name if name in STRIDES else pytest.param(name, marks=pytest.mark.slow)
        for name in sorted(WORKLOADS)
    ],
)
def test_streams_at_every_crash_point(workload: str) -> None:
    stride = STRIDES.get(workload, STRIDE_ELSE)
    report = StreamExplorer(workload, 1).sweep(damage=1, stride=stride)
    assert report.states > 80, str(report)
    assert not report.findings, str(report)


@pytest.mark.long
def test_streams_at_every_crash_point_for_long(sweep: Sweep) -> None:
    report = sweep_for_long(StreamExplorer, sorted(WORKLOADS), sweep.seed, sweep.seconds, stride=1)
    print(report)
    assert not report.findings, str(report)
