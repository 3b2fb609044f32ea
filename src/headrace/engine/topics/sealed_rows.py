"""How a topic asks for what it must know of its sealed rows: sizes, and where a seq lies.

Only the way to ask is here; which files there are is the catalog's to know.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from headrace.storage.segment.run import Run


class Sealed(NamedTuple):
    """How to get at the sealed rows of a topic; asked only when memory does not hold the answer.

    Without `wait`, what is not at hand raises `WouldBlock`, and nothing has been changed.
    """

    runs: Callable[[], list[Run]]  # oldest first
    wait: bool = True


def size_in(run: Run, first: int, last: int, wait: bool) -> int:
    """Data and meta bytes of the rows of a run with first <= seq <= last."""
    if first <= run.first_seq and last >= run.last_seq:
        return run.bytes
    return run.size_of(run.row_of(first, wait), run.row_of(last + 1, wait), wait)
