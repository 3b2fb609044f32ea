"""The names of all topics in order, so that a page of a list costs what it shows.

Only this file orders names.  The order is that of their UTF-8 bytes, which is the order of code
points, which is how Python compares strings.  It does not know topics; `Lifecycle` and recovery
tell it which names there are.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections.abc import Iterable, Iterator


class NameIndex:
    """A sorted set of names.

    >>> names = NameIndex()
    >>> names.build(["b", "a:2", "a:1"])
    >>> list(names.after("", prefix="a:"))
    ['a:1', 'a:2']
    """

    def __init__(self) -> None:
        self._names: list[str] = []

    def __len__(self) -> int:
        return len(self._names)

    def build(self, names: Iterable[str]) -> None:
        """Hold exactly these names."""
        self._names = sorted(set(names))

    def add(self, name: str) -> None:
        index = bisect_left(self._names, name)
        if index == len(self._names) or self._names[index] != name:
            insort(self._names, name, index)

    def remove(self, name: str) -> None:
        index = bisect_left(self._names, name)
        if index < len(self._names) and self._names[index] == name:
            del self._names[index]

    def after(self, name: str, prefix: str = "") -> Iterator[str]:
        """The names beyond `name` that start with `prefix`, in order.

        Nothing may be added or removed while it is iterated.
        """
        names = self._names
        index = max(bisect_right(names, name) if name else 0, bisect_left(names, prefix))
        while index < len(names) and names[index].startswith(prefix):
            yield names[index]
            index += 1
