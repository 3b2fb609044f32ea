"""Routers are killed at every disk call, and destinations come back as they were."""

from __future__ import annotations

import os

import pytest

from headrace.testing.router_sweep import WORKLOADS, RouterExplorer

SEEDS = (1, 2)


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("workload", sorted(WORKLOADS))
def test_routers_at_every_crash_point(workload: str, seed: int) -> None:
    stride = 7 if workload == "fan_out_shards" else 3
    report = RouterExplorer(workload, seed).sweep(damage=seed, stride=stride)
    assert report.states > 150, str(report)
    assert not report.findings, str(report)


@pytest.mark.long
@pytest.mark.parametrize("workload", sorted(WORKLOADS))
def test_routers_at_every_crash_point_of_many_runs(workload: str) -> None:
    first = int(os.environ.get("HEADRACE_TEST_SEED", "1"))
    for seed in range(first, first + 8):
        report = RouterExplorer(workload, seed).sweep(damage=seed)
        assert not report.findings, str(report)
