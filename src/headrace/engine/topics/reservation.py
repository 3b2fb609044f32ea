"""The reservation of seqs: up to which one a topic may acknowledge before the log is synced.

Only this file decides how far seqs are reserved.  A power loss can take what was acknowledged
without a sync, but never the knowledge that its seqs were given out: the log says, durably, up to
which seq some may have been, and recovery announces what is missing up to there.  An entry asks for
more in time, so that hardly any append waits for a sync.
"""

from __future__ import annotations

from typing import Protocol

from headrace.core.clock import EngineClock
from headrace.core.limits import seq_max

# How far ahead of the head seqs are reserved, and over which time the rate is taken.
RESERVE_MIN = 256
RESERVE_RATE_NS = 100_000_000
# An entry that comes this close to what is reserved asks for more.
ASK_BEFORE = RESERVE_MIN // 2


class Log(Protocol):
    """The log that a topic's entries go to."""

    @property
    def written(self) -> int: ...  # up to where it is written, and up to where it is on disk
    @property
    def durable(self) -> int: ...


class Reservation:
    """The reserved seqs of one topic."""

    __slots__ = ("_asked_at_ns", "_asked_at_seq", "_asked_to", "mark", "staged_to", "valid_to")

    def __init__(self) -> None:
        self.valid_to = 0  # highest seq that may be acknowledged before a sync
        self.staged_to = 0  # what the last entry that asked for more asked for
        self.mark = 0  # once the shard is durable here, what it asked for is valid; 0: it is
        self._asked_to = 0
        self._asked_at_seq = 0  # the seq and the time of that entry, for the rate
        self._asked_at_ns = 0

    def up_to(self, last: int, log: Log, clock: EngineClock) -> tuple[int, bool]:
        """What an entry that gives out `last` has to ask for, and whether it has to be synced."""
        if self.mark and log.durable >= self.mark:
            self.valid_to, self.mark = self._asked_to, 0
        asking = 0
        asked = self.staged_to > self.valid_to and last <= self.staged_to
        if not asked and last + ASK_BEFORE > self.valid_to:
            now_ns = clock.monotonic_ns()
            elapsed_ns = max(RESERVE_RATE_NS, now_ns - self._asked_at_ns)
            rate = (last - self._asked_at_seq) * RESERVE_RATE_NS // elapsed_ns
            self._asked_at_ns, self._asked_at_seq = now_ns, last
            asking = min(last + max(RESERVE_MIN, 2 * rate), seq_max)
        return asking, last > self.valid_to

    def stage(self, to: int) -> None:
        """Note that an entry on its way to the log asks for seqs up to `to`."""
        self.staged_to = to

    def written(self, to: int, log: Log) -> None:
        """Note that this entry is in the log."""
        # Valid once the log is durable beyond the entry; `written` is at or past its end.
        self._asked_to, self.mark = to, log.written

    def failed(self) -> None:
        """Note that the entry that asked is not in the log."""
        self.staged_to = 0

    def raise_to(self, to: int) -> None:
        """Note that the log says, durably, that seqs up to `to` may have been given out."""
        if to > self.valid_to:
            self.valid_to = to

    def begin(self, head: int, synced: bool) -> None:
        """Begin to serve from `head`; `synced`: every append is, and nothing need be reserved."""
        self.valid_to = head if synced else max(head, self.valid_to)
        self._asked_at_seq = head
