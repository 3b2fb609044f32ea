"""Routers are killed at every disk call, and destinations come back as they were."""

from __future__ import annotations

import pytest

from tests.harness.crash_points import sweep_for_long
from tests.harness.router_sweep import WORKLOADS, RouterExplorer

SEEDS = (1,)


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("workload", sorted(WORKLOADS))
def test_routers_at_every_crash_point(workload: str, seed: int) -> None:
    stride = 7 if workload.endswith("_shards") else 3
    report = RouterExplorer(workload, seed).sweep(damage=seed, stride=stride)
    assert report.states > 150, str(report)
    assert not report.findings, str(report)


@pytest.mark.long
def test_routers_at_every_crash_point_for_long(sweep) -> None:  # type: ignore[no-untyped-def]
    report = sweep_for_long(RouterExplorer, sorted(WORKLOADS), sweep.seed, sweep.seconds, stride=1)
    print(report)
    assert not report.findings, str(report)
