"""Whether what is measured of the server stays flat, by a fit that outliers do not move.

A life of the server is judged by its own samples, after a warm-up, and only if it was long enough.
"""

from __future__ import annotations

import os
from pathlib import Path
from statistics import median
from typing import NamedTuple

MIB = 1 << 20
BUCKET_SECONDS = 20.0  # samples of so long are one point: their median
WARM_UP_SECONDS = 600.0
WARM_UP_PART = 0.25
JUDGED_SECONDS_MIN = 900.0  # less than that after the warm-up says nothing of a slope
TEN_MINUTES = 600.0


class Bound(NamedTuple):
    """How much a measure may rise in ten minutes."""

    name: str
    unit: float
    rise_max: float


BOUNDS = (
    Bound("resident MiB", MIB, 1.0),
    Bound("open files", 1, 2.0),
    Bound("threads", 1, 0.5),
    Bound("files", 1, 10.0),
    Bound("disk MiB", MIB, 2.0),
)


class Sample(NamedTuple):
    """What was measured at a time, in the order of `BOUNDS`."""

    seconds: float
    values: tuple[float, ...]


def measure(pid: int, data: Path, seconds: float) -> Sample:
    """Look at a server's process and at its directory."""
    status = Path(f"/proc/{pid}/status").read_text()
    resident = int(status.split("VmRSS:")[1].split()[0]) * 1024
    threads = int(status.split("Threads:")[1].split()[0])
    descriptors = len(os.listdir(f"/proc/{pid}/fd"))
    files, used = 0, 0
    for directory, _, names in os.walk(data):
        for name in names:
            try:
                used += os.lstat(os.path.join(directory, name)).st_blocks * 512
            except FileNotFoundError:
                continue  # removed meanwhile
            files += 1
    return Sample(seconds, (resident, descriptors, threads, files, used))


def points(samples: list[Sample], measure: int) -> list[tuple[float, float]]:
    """Medians of buckets of time."""
    buckets: dict[int, list[Sample]] = {}
    for sample in samples:
        buckets.setdefault(int(sample.seconds // BUCKET_SECONDS), []).append(sample)
    return [
        (median(s.seconds for s in found), median(s.values[measure] for s in found))
        for _, found in sorted(buckets.items())
    ]


def slope(found: list[tuple[float, float]]) -> float:
    """The median of the slopes of all pairs of points (Theil-Sen), for a second."""
    slopes = [
        (later[1] - earlier[1]) / (later[0] - earlier[0])
        for place, earlier in enumerate(found)
        for later in found[place + 1 :]
        if later[0] > earlier[0]
    ]
    return median(slopes) if slopes else 0.0


class Life:
    """The samples of one life of the server."""

    POINTS_MAX = 1_000  # kept; then every second one is dropped

    def __init__(self, began: float) -> None:
        self.began = began
        self._samples: list[Sample] = []
        self._every, self._seen = 1, 0

    def add(self, sample: Sample) -> None:
        self._seen += 1
        if self._seen % self._every:
            return
        self._samples.append(sample)
        if len(self._samples) >= self.POINTS_MAX:
            del self._samples[::2]
            self._every *= 2

    @property
    def seconds(self) -> float:
        return self._samples[-1].seconds - self.began if self._samples else 0.0

    @property
    def warm(self) -> list[Sample]:
        """What was measured after the warm-up."""
        warm_up = min(WARM_UP_SECONDS, max(self.seconds * WARM_UP_PART, WARM_UP_SECONDS / 2))
        return [s for s in self._samples if s.seconds - self.began >= warm_up]

    def rises(self) -> dict[str, float]:
        """The rise of each measure in ten minutes, by the fit."""
        warm = self.warm
        return {
            bound.name: slope(points(warm, place)) * TEN_MINUTES / bound.unit
            for place, bound in enumerate(BOUNDS)
        }

    def peaks(self) -> dict[str, float]:
        return {
            bound.name: max((s.values[place] for s in self._samples), default=0.0) / bound.unit
            for place, bound in enumerate(BOUNDS)
        }

    def wrong(self) -> list[str]:
        """What is not flat."""
        warm = self.warm
        if not warm or warm[-1].seconds - warm[0].seconds < JUDGED_SECONDS_MIN:
            return []
        rises = self.rises()
        return [
            f"{bound.name} of the server rise by {rises[bound.name]:.2f} in ten minutes, "
            f"and may by {bound.rise_max}"
            for bound in BOUNDS
            if rises[bound.name] > bound.rise_max
        ]
