"""Bands: which job is served next when more are ready than a turn can serve.

Only this file ranks.  A priority falls into one of five bands.  Bands are served by deficit
round-robin: in a round each gets as much credit as its weight, so that a high one is favoured and
none starves; within a band, the item that has waited longest comes first.  Waiting adds to a
priority, and after `AGE_CAP_MS` leads to the top band, whatever the priority was.

A rank decides when something is done, never what: order, visibility and retention of records do not
depend on it.  Everything here is pure: time is an argument, and items are never looked into.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator
from heapq import heapify, heappop, heappush
from typing import Final, Generic, TypeVar

T = TypeVar("T")

# The lowest priority of each band but the first, which has all priorities below.
FLOORS: Final = (0, 250, 500, 750)
WEIGHTS: Final = (1, 1, 2, 4, 8)
BANDS: Final = len(WEIGHTS)
BOTTOM: Final = 0
TOP: Final = BANDS - 1

# What a wait adds to a priority, up to the most it can add; then it leads to the top.
AGE_PER_MS: Final = 0.1
AGE_CAP_MS: Final = 10_000
# How often waiting items are ranked again, and how many of them per millisecond at most: to look at
# one takes about 0.25 µs, so that this is 5 % of the time.
AGING_TICK_MS: Final = 50
AGED_PER_MS: Final = 200

# One service costs one credit, and another for each `CREDIT_NS` it took: else a large job of a low
# band would cost the others more than its weight allows.
CREDIT_NS: Final = 125_000
# The most a single service is charged, and the most a band owes, so that none pays for long.
COST_MAX: Final = 16

assert len(FLOORS) == BANDS - 1


def band_of(priority: float) -> int:
    """Return the band of a priority.

    >>> [band_of(priority) for priority in (-1, 0, 249, 250, 500, 749, 750, 1000)]
    [0, 1, 1, 2, 3, 3, 4, 4]
    """
    return bisect_right(FLOORS, priority)


def age_boost(waited_ms: int) -> float:
    """Return what a wait adds to a priority.

    >>> age_boost(0), age_boost(1_000), age_boost(60_000)
    (0.0, 100.0, 1000.0)
    """
    return AGE_PER_MS * min(max(waited_ms, 0), AGE_CAP_MS)


class Bands(Generic[T]):
    """Items that are ready, by rank.

    >>> bands = Bands()
    >>> for item, priority in (("low", 0), ("high", 900), ("higher", 950)):
    ...     bands.add(item, priority, now_ms=0)
    >>> bands.take(), bands.take(), bands.take(), bands.take()
    ('high', 'higher', 'low', None)
    """

    def __init__(self) -> None:
        # Heaps of waiting items: since when, in which order they came, the item, its priority, and
        # whether it is lowered.  Plain tuples: a class would double the time that adding takes.
        self._waiting: tuple[list[tuple[int, int, T, int, bool]], ...]
        self._waiting = tuple([] for _ in range(BANDS))
        self._credit = [*[0] * TOP, WEIGHTS[TOP]]
        self._serving = TOP  # whose turn it is in this round
        self._count = 0
        self._size = 0
        self._aged_ms = 0
        self.holding = False  # the bottom band gets no credit
        self.served_total = [0] * BANDS
        self.taken_since_ms = 0  # since when the item taken last had waited

    def __len__(self) -> int:
        return self._size

    @property
    def ready(self) -> int:
        """How many can be taken."""
        return self._size - len(self._waiting[BOTTOM]) if self.holding else self._size

    @property
    def depths(self) -> list[int]:
        """How many wait in each band."""
        return list(map(len, self._waiting))

    def held(self) -> Iterator[tuple[T, int]]:
        """Yield the items that get no credit, and since when they wait."""
        for waiting in self._waiting[BOTTOM] if self.holding else ():
            yield waiting[2], waiting[0]

    def add(self, item: T, priority: int, now_ms: int, *, lowered: bool = False) -> None:
        """Add an item that waits from now on; `lowered`: one band below that of its priority."""
        self._count += 1
        self._size += 1
        plain = not lowered and not self.holding
        band = bisect_right(FLOORS, priority) if plain else self._rank(priority, lowered, 0)
        heappush(self._waiting[band], (now_ms, self._count, item, priority, lowered))

    def _rank(self, priority: int, lowered: bool, waited_ms: int) -> int:
        if waited_ms >= AGE_CAP_MS:
            return TOP
        if self.holding and priority < FLOORS[BOTTOM]:
            return BOTTOM  # age must not lift it out: a wait of milliseconds would
        band = band_of(priority + age_boost(waited_ms))
        # Not into the bottom band, which may be held: an item one band above it stays there.
        return band - 1 if lowered and band > BOTTOM + 1 else band

    def take(self) -> T | None:
        """Return the item to serve next; None when none is ready."""
        if not self.ready:
            # The next item begins a round.  Debts are forgotten: no item waited because of them.
            self._credit = [*[0] * TOP, WEIGHTS[TOP]]
            self._serving = TOP
            return None
        credit, last = self._credit, BOTTOM + 1 if self.holding else BOTTOM
        while True:
            band = self._serving
            waiting = self._waiting[band]
            if waiting and band >= last and (credit[band] > 0 or len(waiting) == self._size):
                credit[band] -= credit[band] > 0  # a band that is alone needs none
                self._size -= 1
                self.served_total[band] += 1
                self.taken_since_ms, _, item, _, _ = heappop(waiting)
                return item
            # Credit is not saved up by a band that has no use for it; debts stay.
            credit[band] = min(credit[band], 0)
            self._serving = following = band - 1 if band > last else TOP
            credit[following] += WEIGHTS[following]

    def charge(self, took_ns: int) -> None:
        """Charge the band of the item taken last for the time it took."""
        cost = min(took_ns // CREDIT_NS, COST_MAX - 1)
        if cost > 0:
            # A band that is alone is served on credit again and again: that must not add up.
            band = self._serving
            self._credit[band] = max(self._credit[band] - cost, -COST_MAX)

    def age(self, now_ms: int) -> None:
        """Move up items that have waited long enough; does nothing between two aging ticks."""
        if now_ms - self._aged_ms < max(AGING_TICK_MS, self._size // AGED_PER_MS):
            return
        self._aged_ms = now_ms
        self._rerank(now_ms)

    def hold(self, holding: bool, now_ms: int) -> None:
        """Give the bottom band no credit any more, or give it credit again."""
        self.holding = holding
        self._rerank(now_ms)

    def _rerank(self, now_ms: int) -> None:
        for band, waiting in enumerate(self._waiting[:TOP]):
            # Cheaper than a rank for each, and true of every item whose rank has risen.
            since_ms, ripe = now_ms - AGE_CAP_MS, FLOORS[band] / AGE_PER_MS - now_ms
            found = [
                one for one in waiting if one[3] / AGE_PER_MS - one[0] >= ripe or one[0] <= since_ms
            ]
            ranks = [(one, self._rank(one[3], one[4], now_ms - one[0])) for one in found]
            moving = [(one, rank) for one, rank in ranks if rank > band]
            if not moving:
                continue
            moved = {one[1] for one, _ in moving}
            waiting[:] = [one for one in waiting if one[1] not in moved]
            heapify(waiting)
            for one, rank in moving:
                heappush(self._waiting[rank], one)
