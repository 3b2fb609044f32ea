"""Routers are killed at every disk call, and destinations come back as they were."""

from __future__ import annotations

import pytest

from headrace.core.clock import SystemClock
from headrace.testing.explore import Report
from headrace.testing.router_sweep import WORKLOADS, RouterExplorer

SEEDS = (1, 2)


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("workload", sorted(WORKLOADS))
def test_routers_at_every_crash_point(workload: str, seed: int) -> None:
    stride = 7 if workload.endswith("_shards") else 3
    report = RouterExplorer(workload, seed).sweep(damage=seed, stride=stride)
    assert report.states > 150, str(report)
    assert not report.findings, str(report)


@pytest.mark.long
def test_routers_at_every_crash_point_for_long(sweep) -> None:  # type: ignore[no-untyped-def]
    clock = SystemClock()
    deadline_ns = clock.monotonic_ns() + int(sweep.seconds * 1e9)
    names = sorted(WORKLOADS)
    report = Report()
    seed = sweep.seed % 1_000_000 * 1_000
    while clock.monotonic_ns() < deadline_ns:
        seed += 1
        explorer = RouterExplorer(names[(sweep.seed + seed) % len(names)], seed)
        report.add(explorer.sweep(damage=seed, deadline_ns=deadline_ns))
    print(report)
    assert not report.findings, str(report)
