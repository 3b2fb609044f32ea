"""Damage: every byte of small directories flipped, every file cut, removed or swapped with another.

A unit is a sample of all the damage that can be done to one directory, no two of them alike; when
all of it was done, it begins again with other bits of the same bytes.
"""

from __future__ import annotations

from collections import Counter
from functools import cache
from itertools import islice

from headrace.testing.simdisk import SimDisk
from tests.campaigns.campaign import Campaign, Finding, Outcome, Work
from tests.campaigns.crash_states import SWEEPERS
from tests.harness.damaged_directory import Small, damages, judge, small_directory
from tests.harness.explore import Explorer

SLICE = 2_000
SEED = 1
NOW_MS = 1_700_000_100_000  # soon after the workloads, whose streams have not expired then
TOPICS = "topics"
# What the workload of a directory is about; `cold tier` needs a lake to be read.
AREAS = [TOPICS, *(area for area in SWEEPERS if area != "cold tier")]
FINDINGS_MAX = 20  # of a unit; what is so broken is seen well enough


def left_by(area: str) -> SimDisk:
    """The disk after a workload."""
    if area == TOPICS:
        return Explorer("mixed", SEED).disk
    sweeper, workloads = SWEEPERS[area]
    return sweeper(workloads[0], SEED).disk


@cache
def directory_of(area: str) -> tuple[Small, int]:
    """A directory, and how many ways to damage it there are."""
    small = small_directory(left_by(area), NOW_MS)
    return small, sum(1 for _ in damages(small.disk, SEED))


class DamagedDirectories(Campaign):
    name = "damage"
    about = (
        "Every byte of small directories flipped, every file cut, removed, swapped: all noticed."
    )
    goals = {"damages": 1_000_000}  # noqa: RUF012 - as of the base class

    def unit(self, work: Work) -> Outcome:
        """One slice; of which directory, the number says."""
        index, area_index = divmod(work.number - 1, len(AREAS))
        area = AREAS[area_index]
        small, total = directory_of(area)
        slices = -(-total // SLICE)
        rounds, slice_index = divmod(index, slices)
        outcome = Outcome(notes={f"damages of {area}": total})
        # A slice has something of every file, so that one that is not done to its end has, too.
        for damage in islice(damages(small.disk, SEED + rounds), slice_index, None, slices):
            try:
                noticed = judge(small, damage)
            except Exception as error:  # noqa: BLE001 - whatever it is, it is a finding
                reason = f"{area}: {damage}: {type(error).__name__}: {error}"
                outcome.findings.append(Finding(reason, self.repeat(work.number)))
                if len(outcome.findings) >= FINDINGS_MAX:
                    break
                continue
            outcome.counts += Counter({"damages": 1, damage.what: 1, noticed: 1})
        outcome.counts["directories done once"] += rounds == 0 and slice_index == slices - 1
        return outcome
