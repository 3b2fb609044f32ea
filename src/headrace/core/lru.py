"""Bounded maps: one drops what was used longest ago, one what it has held longest.

The first is for caches of tools and of readers outside the loop (`storage/files/block_cache.py` has
its own: it takes runs of blocks under one lock), the second for the loop, where a lookup must cost
no more than that of a dict.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterator
from typing import Generic, TypeVar

K = TypeVar("K")
V = TypeVar("V")


class LruMap(Generic[K, V]):
    """Values by key, the latest used ones up to a total weight; the newest one stays in any case.

    >>> recent: LruMap[str, int] = LruMap(2)
    >>> for name in ("a", "b", "a", "c"):
    ...     _ = recent.put(name, len(recent))
    >>> list(recent), recent.get("b")
    (['a', 'c'], None)
    """

    def __init__(self, weight_max: int, dropped: Callable[[V], None] | None = None) -> None:
        assert weight_max > 0, weight_max
        self.weight_max = weight_max
        self.weight = 0
        self._dropped = dropped  # hears of each value that leaves
        self._values: OrderedDict[K, tuple[V, int]] = OrderedDict()

    def __len__(self) -> int:
        return len(self._values)

    def __iter__(self) -> Iterator[K]:
        """Iterate over the keys, the longest unused first."""
        return iter(self._values)

    def get(self, key: K) -> V | None:
        """Return the value, which counts as a use; None when there is none."""
        found = self._values.get(key)
        if found is None:
            return None
        self._values.move_to_end(key)
        return found[0]

    def put(self, key: K, value: V, weight: int = 1) -> V:
        """Keep a value, instead of one that had its key, and return it."""
        old = self._values.pop(key, None)
        if old is not None:
            self._leave(old, value)
        self._values[key] = value, weight
        self.weight += weight
        while self.weight > self.weight_max and len(self._values) > 1:
            self._leave(self._values.popitem(last=False)[1], value)
        return value

    def pop(self, key: K) -> V | None:
        """Take a value out, without `dropped` hearing of it; None when there is none."""
        found = self._values.pop(key, None)
        if found is None:
            return None
        self.weight -= found[1]
        return found[0]

    def clear(self) -> None:
        """Drop every value."""
        while self._values:
            self._leave(self._values.popitem()[1], None)

    def _leave(self, old: tuple[V, int], new: V | None) -> None:
        self.weight -= old[1]
        if self._dropped is not None and old[0] is not new:
            self._dropped(old[0])


class FifoMap(OrderedDict[K, V]):
    """Values by key, the last ones that were put, up to a number of them.

    >>> last: FifoMap[str, int] = FifoMap(2)
    >>> for number, name in enumerate("abac"):
    ...     last.put(name, number)
    >>> dict(last)
    {'b': 1, 'c': 3}
    """

    def __init__(self, count_max: int) -> None:
        super().__init__()
        self.count_max = count_max

    def put(self, key: K, value: V) -> None:
        """Keep a value; when there is no room, the one that came first goes."""
        if key not in self and len(self) >= self.count_max:
            self.popitem(last=False)
        self[key] = value
