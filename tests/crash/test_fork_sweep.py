"""Forks and their sources are killed at every disk call: none shows what it should not, or less."""

from __future__ import annotations

import pytest

from tests.harness.crash_points import sweep_for_long
from tests.harness.fork_sweep import WORKLOADS, ForkExplorer


@pytest.mark.parametrize("workload", sorted(WORKLOADS))
def test_forks_at_every_crash_point(workload: str) -> None:
    report = ForkExplorer(workload, 1).sweep(damage=1, stride=11)
    assert report.states > 120, str(report)
    assert not report.findings, str(report)


@pytest.mark.long
def test_forks_at_every_crash_point_for_long(sweep) -> None:  # type: ignore[no-untyped-def]
    report = sweep_for_long(ForkExplorer, sorted(WORKLOADS), sweep.seed, sweep.seconds, stride=1)
    print(report)
    assert not report.findings, str(report)
