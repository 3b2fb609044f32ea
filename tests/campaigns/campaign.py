"""What a campaign is: numbered units of work, what came of each, and how much is enough.

A unit is decided by its number alone, so that a campaign can go on where it was stopped, several
processes can share it, and a finding names the one command that repeats it.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar, NamedTuple


class Finding(NamedTuple):
    """Something that is wrong, and the command that shows it again."""

    reason: str
    repeat: str


@dataclass
class Outcome:
    """What a unit looked at, by kind, and what it found."""

    counts: Counter[str] = field(default_factory=Counter)
    findings: list[Finding] = field(default_factory=list)
    notes: dict[str, object] = field(default_factory=dict)  # the report shows the newest


class Work(NamedTuple):
    """What a unit is given."""

    number: int
    seconds_left: float  # until the campaign ends; a unit may go on a little longer
    directory: Path  # for files of this unit, empty, removed when the unit ends
    say: Callable[[str], None]  # a few words for the live line, at any time


class Campaign(ABC):
    """One campaign: its name, what it is for, and how to do one unit."""

    name: ClassVar[str]
    about: ClassVar[str]
    goals: ClassVar[dict[str, int]] = {}  # how much of each count is enough
    units: ClassVar[int | None] = None  # how many there are; None: as many as the time allows
    workers_max: ClassVar[int] = 64  # how many units may run at once
    # What a unit may take at most; one that takes longer hangs, which is a finding.
    unit_seconds_max: ClassVar[float] = 900.0

    @abstractmethod
    def unit(self, work: Work) -> Outcome:
        """Do one unit; an exception is a finding, too."""

    def missing(self) -> str | None:
        """Why this machine cannot run it, with what to do about that; None if it can."""
        return None

    def repeat(self, number: int) -> str:
        """The command that does one unit again."""
        return f"./run test --campaign {self.name} --unit {number}"
