"""What `/v1/metrics` tells of: operations, appends and reads of basins, and what basins hold.

Only this file counts them, since the start of the process.  A count is two additions.  Minutes are
kept for `MINUTES_KEPT`, hours for `HOURS_KEPT`, and fewer of them if there are so many basins that
`ENTRIES_MAX` figures are held: the oldest go first.  What finds no room even then is not counted:
basins come and go without an end, so that one interval alone may have too many.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from typing import Final

from headrace.core.clock import EngineClock

log = logging.getLogger("headrace.s2")

MINUTE_S: Final = 60
HOUR_S: Final = 3_600
MINUTES_KEPT: Final = 180
HOURS_KEPT: Final = 90 * 24
ENTRIES_MAX: Final = 200_000
# Clients name storage classes as they like; those beyond so many are counted together.
CLASSES_MAX: Final = 64
OTHER_CLASS: Final = "other"

# What is counted beside operations, which are counted as `op:` and their name.
OP: Final = "op:"
APPENDS: Final = "appends:"  # and the storage class
APPENDED_BYTES: Final = "appended_bytes:"  # and the storage class
READS: Final = "reads:"  # and how
READ_BYTES: Final = "read_bytes"
STORAGE: Final = "storage"
STREAMING: Final = "streaming"
UNARY: Final = "unary"

Figure = tuple[str | None, str]  # of which basin, and what; None: of no basin
Points = list[tuple[int, int]]  # when it began, in seconds since 1970, and how much


class Usage:
    """The figures of one server.

    >>> from headrace.core.clock import ManualClock
    >>> usage = Usage(EngineClock(ManualClock(wall_ms=7_200_000)))
    >>> usage.count_op("read", "my-basin")
    >>> usage.points("my-basin", "op:read", HOUR_S, 0, 10_000)
    [(7200, 1)]
    """

    def __init__(self, clock: EngineClock) -> None:
        self._clock = clock
        self._minutes = _Buckets(MINUTE_S, MINUTES_KEPT)
        self._hours = _Buckets(HOUR_S, HOURS_KEPT)
        self._classes: set[str] = set()

    @property
    def entries(self) -> int:
        """How many figures are held."""
        return self._minutes.entries + self._hours.entries

    # Counting

    def count_op(self, op: str, basin: str | None) -> None:
        """Count an operation, of a basin or of the account alone."""
        self._add((basin, OP + op), 1)

    def appended(self, basin: str, storage_class: str, size: int) -> None:
        """Count an append that was acknowledged, with its metered bytes."""
        if storage_class not in self._classes:
            if len(self._classes) < CLASSES_MAX:
                self._classes.add(storage_class)
            else:
                storage_class = OTHER_CLASS
        self._add((basin, APPENDS + storage_class), 1)
        self._add((basin, APPENDED_BYTES + storage_class), size)

    def read(self, basin: str, size: int, *, streaming: bool) -> None:
        """Count a read of a batch, with its metered bytes."""
        self._add((basin, READS + (STREAMING if streaming else UNARY)), 1)
        self._add((basin, READ_BYTES), size)

    def held(self, basin: str, size: int) -> None:
        """Note what a basin holds now: it stands for this hour."""
        self._hours.put((basin, STORAGE), size, self._clock.now_ms() // 1_000)

    def _add(self, figure: Figure, count: int) -> None:
        now_s = self._clock.now_ms() // 1_000
        self._minutes.add(figure, count, now_s)
        self._hours.add(figure, count, now_s)

    # Telling

    def points(self, basin: str | None, what: str, interval_s: int, start: int, end: int) -> Points:
        """A figure in a range of time, by the interval in which it was counted."""
        buckets = self._minutes if interval_s < HOUR_S else self._hours
        sums: dict[int, int] = {}
        for at, values in buckets.between(start, end):
            value = values.get((basin, what))
            if value is not None:
                began = at - at % interval_s
                sums[began] = sums.get(began, 0) + value
        return sorted(sums.items())

    def counted(self, basin: str | None, start_with: str, start: int, end: int) -> list[str]:
        """The figures of a basin in a range of time whose names start so."""
        return sorted(
            {
                what
                for _, values in self._hours.between(start, end)
                for owner, what in values
                if owner == basin and what.startswith(start_with)
            }
        )

    def basins_with(self, start_with: str, start: int, end: int) -> list[str]:
        """The basins that have such a figure in a range of time."""
        return sorted(
            {
                owner
                for _, values in self._hours.between(start, end)
                for owner, what in values
                if owner is not None and what.startswith(start_with)
            }
        )


class _Buckets:
    """Sums of figures by the interval in which they were counted."""

    def __init__(self, interval_s: int, kept: int) -> None:
        self._interval_s = interval_s
        self._kept = kept
        self._all: dict[int, dict[Figure, int]] = {}  # by when it began, oldest first
        self._newest: dict[Figure, int] = {}
        self._next_s = 0  # when the newest one is over
        self.entries = 0  # of all of them
        self._told = False  # that some are left out

    def add(self, figure: Figure, count: int, now_s: int) -> None:
        """Add to a figure of now."""
        values = self._newest if now_s < self._next_s else self._begin(now_s)
        before = values.get(figure)
        if before is not None:
            values[figure] = before + count
        elif self._make_room():
            values[figure] = count

    def put(self, figure: Figure, value: int, now_s: int) -> None:
        """Set a figure of now."""
        values = self._newest if now_s < self._next_s else self._begin(now_s)
        if figure in values or self._make_room():
            values[figure] = value

    def _begin(self, now_s: int) -> dict[Figure, int]:
        began = now_s - now_s % self._interval_s
        self._newest = self._all[began] = {}
        self._next_s = began + self._interval_s
        while next(iter(self._all)) <= began - self._kept * self._interval_s:
            self._drop_oldest()
        return self._newest

    def _make_room(self) -> bool:
        """Whether there is room for one more figure; the oldest ones go for that."""
        while self.entries >= ENTRIES_MAX and len(self._all) > 1:
            self._drop_oldest()
        if self.entries >= ENTRIES_MAX:
            if not self._told:
                log.warning("/v1/metrics leaves out figures: there are more than %d", ENTRIES_MAX)
            self._told = True
            return False
        self.entries += 1
        return True

    def _drop_oldest(self) -> None:
        self.entries -= len(self._all.pop(next(iter(self._all))))

    def between(self, start: int, end: int) -> Iterable[tuple[int, dict[Figure, int]]]:
        """The intervals that overlap a range of time, oldest first."""
        first = start - start % self._interval_s
        return ((at, values) for at, values in self._all.items() if first <= at <= end)
