"""What is kept of a campaign between runs: how far it came, what it counted, what it found.

One JSON file, replaced whole after each unit, so that a campaign that is killed at any time goes on
with the units that were not done.  A record that was published lies in the checkout; where there is
no other, a campaign goes on from it, so that what was counted on one machine is not done again on
the next.
"""

from __future__ import annotations

import os
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from tests.campaigns.campaign import Campaign, Finding, Outcome

FINDINGS_MAX = 200  # kept; more are counted


@dataclass
class Run:
    """One start of the command."""

    commit: str
    started: str  # UTC, to the second
    seconds: float = 0.0
    workers: int = 1
    counts: dict[str, int] = field(default_factory=dict)


@dataclass
class Record:
    """All runs of one campaign."""

    next_unit: int = 1
    unfinished: list[int] = field(default_factory=list)  # handed out, and not done
    findings_total: int = 0
    findings: list[Finding] = field(default_factory=list)
    notes: dict[str, object] = field(default_factory=dict)
    runs: list[Run] = field(default_factory=list)

    @property
    def counts(self) -> Counter[str]:
        return sum((Counter(run.counts) for run in self.runs), Counter())

    @property
    def seconds(self) -> float:
        return sum(run.seconds for run in self.runs)

    def take(self, units: int | None) -> int | None:
        """The number of the next unit, which is unfinished from now on; None if all are done."""
        if units is not None and self.next_unit > units:
            return None
        number = self.next_unit
        self.next_unit += 1
        self.unfinished.append(number)
        return number

    def add(self, number: int, outcome: Outcome) -> None:
        """A unit is done."""
        self.unfinished.remove(number)
        run = self.runs[-1]
        run.counts = dict(Counter(run.counts) + outcome.counts)
        self.notes.update(outcome.notes)
        self.findings_total += len(outcome.findings)
        self.findings += outcome.findings[: FINDINGS_MAX - len(self.findings)]


def published(campaign: Campaign) -> Path:
    """Where the record of a campaign lies in the checkout, if it was published."""
    return Path(__file__).parent / "records" / f"{campaign.name}.json"


def load(path: Path) -> Record | None:
    """What was kept, if anything was."""
    if not path.exists():
        return None
    return msgspec.json.decode(path.read_bytes(), type=Record)


def save(path: Path, record: Record) -> None:
    new = path.with_suffix(".new")
    new.write_bytes(msgspec.json.format(msgspec.json.encode(record)))
    os.replace(new, path)
