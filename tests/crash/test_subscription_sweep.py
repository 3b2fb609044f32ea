"""Servers with subscriptions are killed at every disk call: cursors, wakes and leases hold."""

from __future__ import annotations

import pytest

from headrace.wire.durable_streams.subscriptions import records
from tests.harness.crash_points import sweep_for_long
from tests.harness.planted_bugs import Break, acknowledged_early
from tests.harness.subscription_sweep import EVENTS_BYTES_MIN, WORKLOADS, SubscriptionExplorer

STRIDE = 43
STATES_MIN = 25


@pytest.fixture(autouse=True)
def soon_summed_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(records, "EVENTS_BYTES_MIN", EVENTS_BYTES_MIN)


@pytest.mark.parametrize("workload", sorted(WORKLOADS))
def test_subscriptions_at_crash_points(workload: str) -> None:
    report = SubscriptionExplorer(workload, 1).sweep(damage=1, stride=STRIDE)
    assert report.states >= STATES_MIN, str(report)
    assert not report.findings, str(report)


@pytest.mark.long
def test_subscriptions_at_every_crash_point_for_long(sweep) -> None:  # type: ignore[no-untyped-def]
    report = sweep_for_long(
        SubscriptionExplorer, sorted(WORKLOADS), sweep.seed, sweep.seconds, stride=5
    )
    print(report)
    assert not report.findings, str(report)


@pytest.mark.parametrize("workload", sorted(WORKLOADS))
def test_the_play_reaches_everything(workload: str) -> None:
    """The sweep is worth nothing if nothing is claimed, acked or told in it."""
    play = SubscriptionExplorer(workload, 1).play
    assert play.lives == 3 and play.claims >= 3 and play.acks >= 5


def cursors_forgotten(patch: pytest.MonkeyPatch) -> None:
    """What is written anew of a subscription begins with the streams as they are."""
    patch.setattr(records, "cursor_text", lambda _cursor: "-1")


@pytest.mark.parametrize("bug", [acknowledged_early, cursors_forgotten])
def test_a_seeded_bug_is_found(bug: Break, monkeypatch: pytest.MonkeyPatch) -> None:
    bug(monkeypatch)
    report = SubscriptionExplorer("plain", 1).sweep(damage=1, stride=STRIDE)
    assert report.findings, f"{report.states} states, and none is wrong"
