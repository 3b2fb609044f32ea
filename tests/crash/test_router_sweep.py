"""Routers are killed at every disk call, and destinations come back as they were."""

from __future__ import annotations

import pytest

from tests.harness.crash_points import sweep_for_long
from tests.harness.router_sweep import WORKLOADS, RouterExplorer

SEEDS = (1,)
# In the default suite one state in so many, at every position; with several logs, whose workloads
# are those of one log, at every other position.  The long sweep looks at all.
SHARE = 6
STRIDE_SHARDS = 2
STATES_MIN = 140


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("workload", sorted(WORKLOADS))
def test_routers_at_every_crash_point(workload: str, seed: int) -> None:
    stride = STRIDE_SHARDS if workload.endswith("_shards") else 1
    report = RouterExplorer(workload, seed).sweep(damage=seed, stride=stride, share=SHARE)
    assert report.states >= STATES_MIN, str(report)
    assert not report.findings, str(report)


@pytest.mark.long
def test_routers_at_every_crash_point_for_long(sweep) -> None:  # type: ignore[no-untyped-def]
    report = sweep_for_long(RouterExplorer, sorted(WORKLOADS), sweep.seed, sweep.seconds, stride=1)
    print(report)
    assert not report.findings, str(report)
