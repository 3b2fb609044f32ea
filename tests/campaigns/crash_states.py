"""Crash states: every crash point of every durable operation of all dialects, with ever new seeds.

A unit is one workload with one seed: topics, queues, routers, streams and their forks,
subscriptions, the S2 catalog, the scrub, the cold tier; each killed and with six kinds of power
loss at every position, recovered and judged.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import NamedTuple

from tests.campaigns.campaign import Campaign, Finding, Outcome, Work
from tests.harness import (
    cold_sweep,
    explore,
    fork_sweep,
    queue_sweep,
    router_sweep,
    stream_history_sweep,
    subscription_sweep,
    workloads,
)
from tests.harness.crash_points import Report, Sweeper

SECOND = 4  # one recovery in so many is crashed in turn
SEED_OF_UNIT_ONE = 1_000_000  # the suite has the seeds below


class Sweep(NamedTuple):
    """A workload, and what looks at all its states."""

    area: str
    workload: str
    sweep: Callable[[int], Report]


def topics(workload: str) -> Sweep:
    def sweep(seed: int) -> Report:
        return explore.Explorer(workload, seed).sweep(damage=seed, second=SECOND)

    return Sweep("topics", workload, sweep)


def others(area: str, sweeper: type[Sweeper], workload: str) -> Sweep:
    return Sweep(area, workload, lambda seed: sweeper(workload, seed).sweep(damage=seed))


SWEEPERS: dict[str, tuple[type[Sweeper], list[str]]] = {
    "queues": (queue_sweep.QueueExplorer, list(queue_sweep.WORKLOADS)),
    "routers": (router_sweep.RouterExplorer, list(router_sweep.WORKLOADS)),
    "forks": (fork_sweep.ForkExplorer, list(fork_sweep.WORKLOADS)),
    "streams": (stream_history_sweep.StreamExplorer, list(stream_history_sweep.WORKLOADS)),
    "subscriptions": (
        subscription_sweep.SubscriptionExplorer,
        list(subscription_sweep.WORKLOADS),
    ),
    "cold tier": (cold_sweep.ColdExplorer, list(cold_sweep.WORKLOADS)),
}
SWEEPS = [topics(workload) for workload in workloads.WORKLOADS] + [
    others(area, sweeper, workload)
    for area, (sweeper, names) in SWEEPERS.items()
    for workload in names
]


class CrashStates(Campaign):
    name = "crash"
    about = "Every crash point of every durable operation, with ever new seeds and damage."
    goals = {"states": 2_000_000}  # noqa: RUF012 - as of the base class

    def unit(self, work: Work) -> Outcome:
        """One workload; which, and with which seed, the number says."""
        rounds, index = divmod(work.number - 1, len(SWEEPS))
        swept = SWEEPS[index]
        found = swept.sweep(SEED_OF_UNIT_ONE + rounds)
        counts = Counter(
            {
                "states": found.states,
                "states alike to one before": found.alike,
                "crashes of a recovery": found.second,
                f"states of {swept.area}": found.states,
            }
        )
        findings = [
            Finding(f"{swept.workload}: {finding.reason}", finding.state.replay())
            for finding in found.findings
        ]
        return Outcome(counts, findings)
