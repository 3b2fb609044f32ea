"""Pins: sealed files that a reader outside the server uses, which therefore stay in place.

Only this file knows which files those are.  Pins are taken and let go on the loop thread; the lane
that removes files asks from its own, which is safe because a file is taken from readers, on the
loop thread, before it may be removed: no new pin can name it by then.

Pins are in memory only.  After a restart there are none.
"""

from __future__ import annotations

from collections.abc import Iterable


class Pins:
    """How many pins each file has.

    >>> pins = Pins()
    >>> pins.hold([1, 2]); pins.hold([2]); pins.let_go([1, 2])
    >>> pins.holds(1), pins.holds(2)
    (False, True)
    """

    __slots__ = ("_counts",)

    def __init__(self) -> None:
        self._counts: dict[int, int] = {}

    def __len__(self) -> int:
        return len(self._counts)

    def hold(self, file_ids: Iterable[int]) -> None:
        """These files stay, where they are."""
        counts = self._counts
        for file_id in file_ids:
            counts[file_id] = counts.get(file_id, 0) + 1

    def let_go(self, file_ids: Iterable[int]) -> None:
        """Undo one `hold` of the same files."""
        counts = self._counts
        for file_id in file_ids:
            left = counts[file_id] - 1
            if left:
                counts[file_id] = left
            else:
                del counts[file_id]

    def holds(self, file_id: int) -> bool:
        return file_id in self._counts
