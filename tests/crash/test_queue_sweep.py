"""Queues are killed at every disk call: leases hold, acks stay, dead letters come once."""

from __future__ import annotations

import pytest

from headrace.engine.queues import replay
from headrace.engine.queues.state import QueueState
from tests.harness.crash_points import sweep_for_long
from tests.harness.planted_bugs import Break, acknowledged_early
from tests.harness.queue_sweep import WORKLOADS, QueueExplorer, Teller

STRIDE = 29
STATES_MIN = 25


@pytest.mark.parametrize("workload", sorted(WORKLOADS))
def test_queues_at_crash_points(workload: str) -> None:
    report = QueueExplorer(workload, 1).sweep(damage=1, stride=STRIDE)
    assert report.states >= STATES_MIN, str(report)
    assert not report.findings, str(report)


@pytest.mark.long
def test_queues_at_every_crash_point_for_long(sweep) -> None:  # type: ignore[no-untyped-def]
    report = sweep_for_long(QueueExplorer, sorted(WORKLOADS), sweep.seed, sweep.seconds, stride=5)
    print(report)
    assert not report.findings, str(report)


@pytest.mark.parametrize("workload", sorted(WORKLOADS))
def test_the_play_reaches_everything(workload: str) -> None:
    """The sweep is worth nothing if nothing is held, comes back, or is done in it."""
    explorer = QueueExplorer(workload, 1)
    teller = Teller(explorer.kind, explorer.disk.marks_until(explorer.disk.position))
    ledger = teller.ledger
    grants = [grant for grants in ledger.grants.values() for grant in grants]
    assert teller.life == 3 and {grant.life for grant in grants} == {1, 2, 3}
    assert any(grant.bound for grant in grants) and not all(grant.bound for grant in grants)
    assert any(grant.deliveries > 1 for grant in grants) and ledger.acked
    assert teller.redriven is explorer.kind.redrive


def leases_forgotten(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(QueueState, "adopt", lambda self, grant: None)


def moves_not_finished(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(replay, "apply_delete", lambda state, topic, floor, seqs: 0)


@pytest.mark.parametrize(
    ("workload", "bug"),
    [
        ("fsync_durable", leases_forgotten),
        ("fsync_durable", acknowledged_early),
        ("disk_free", moves_not_finished),
    ],
)
def test_a_seeded_bug_is_found(workload: str, bug: Break, monkeypatch: pytest.MonkeyPatch) -> None:
    bug(monkeypatch)
    report = QueueExplorer(workload, 1).sweep(damage=1, stride=STRIDE)
    assert report.findings, f"{report.states} states, and none is wrong"
