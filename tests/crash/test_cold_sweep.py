"""Topics whose past is in a lake are killed at every disk call: nothing deleted ever comes back."""

from __future__ import annotations

import pytest

from tests.harness.cold_sweep import WORKLOADS, ColdExplorer
from tests.harness.crash_points import sweep_for_long

SEEDS = (1, 2)


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("workload", sorted(WORKLOADS))
def test_the_past_at_every_crash_point(workload: str, seed: int) -> None:
    report = ColdExplorer(workload, seed).sweep(damage=seed, stride=7)
    assert report.states > 60, str(report)
    assert not report.findings, str(report)


@pytest.mark.long
def test_the_past_at_every_crash_point_for_long(sweep) -> None:  # type: ignore[no-untyped-def]
    report = sweep_for_long(ColdExplorer, sorted(WORKLOADS), sweep.seed, sweep.seconds, stride=1)
    print(report)
    assert not report.findings, str(report)
