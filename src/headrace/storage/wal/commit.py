"""Commits: what a shard of the log is handed, and how each hears what became of it.

The rule this file owns: commits are settled in the order of the log, also when settling one of them
makes the shard flush again.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Sequence
from itertools import islice
from typing import Protocol

from headrace.core.errors import HeadraceError

log = logging.getLogger("headrace.wal")


class Commit(Protocol):
    """Something staged: its entries, and what to do when its class is met or it failed.

    Its entries are written together, or none of them is.  One without entries is a barrier: nothing
    is logged, everything staged before it is.
    """

    entries: Sequence[bytes]
    needs_sync: bool

    def settle(self, error: HeadraceError | None) -> None: ...


class ControlCommit:
    """A control entry on its way to the log."""

    __slots__ = ("_done", "entries", "needs_sync")

    def __init__(
        self, raw: bytes, needs_sync: bool, done: Callable[[HeadraceError | None], None]
    ) -> None:
        self.entries: Sequence[bytes] = (raw,) if raw else ()
        self.needs_sync = needs_sync
        self._done = done

    def settle(self, error: HeadraceError | None) -> None:
        self._done(error)


def next_batch(commits: Sequence[Commit], start: int, bytes_max: int) -> tuple[list[bytes], int]:
    """The entries of commits from `start` on that fill a batch, and where the next begins."""
    stop, size = start, 0
    entries: list[bytes] = []
    for commit in islice(commits, start, None):
        stop += 1
        entries += commit.entries
        size += sum(map(len, commit.entries))
        if size >= bytes_max:
            break
    return entries, stop


class OrderedSettling:
    """Settles groups of commits one after the other."""

    def __init__(self, halt: Callable[[], HeadraceError]) -> None:
        self._halt = halt  # called when memory ran out while a commit was applied
        self._later: deque[tuple[list[Commit], HeadraceError | None]] = deque()
        self.busy = False

    def settle(self, commits: list[Commit], error: HeadraceError | None) -> None:
        """Tell these commits; inside of another call, after that one is done."""
        if self.busy:
            self._later.append((commits, error))
            return
        self.busy = True
        try:
            self._tell(commits, error)
            while self._later:
                self._tell(*self._later.popleft())
        finally:
            self.busy = False

    def _tell(self, commits: list[Commit], error: HeadraceError | None) -> None:
        for commit in commits:
            try:
                commit.settle(error)
            except MemoryError:
                # It is applied in part, so those behind it must not be.
                if error is None:
                    error = self._halt()
            except Exception:
                # One caller's mistake must not keep the others from hearing.
                log.exception("a commit could not be settled")
