"""The reservation of seqs: up to which one a topic may acknowledge before the log is synced.

Only this file decides how far seqs are reserved.  A power loss can take what was acknowledged
without a sync, but never the knowledge that its seqs were given out: the log says, durably, up to
which seq some may have been, and recovery announces what is missing up to there.  An entry asks for
more when half of what was asked for last is used up, so that hardly any append waits for a sync.
"""

from __future__ import annotations

from typing import Protocol

from headrace.core.clock import EngineClock
from headrace.core.limits import seq_max

# How far ahead of the head seqs are reserved, and over which time the rate is taken.
RESERVE_MIN = 256
RESERVE_RATE_NS = 100_000_000


class Log(Protocol):
    """The log that a topic's entries go to."""

    @property
    def written(self) -> int: ...  # up to where it is written, and up to where it is on disk
    @property
    def durable(self) -> int: ...


class Reservation:
    """The reserved seqs of one topic."""

    __slots__ = (
        "_ahead", "_asked_to", "_rate", "_since_ns", "_since_seq", "mark", "quiet_to", "staged_to",
        "valid_to",
    )  # fmt: skip

    def __init__(self) -> None:
        self.valid_to = 0  # highest seq that may be acknowledged before a sync
        self.staged_to = 0  # what the last entry that asked for more asked for
        self.mark = 0  # once the shard is durable here, what it asked for is valid; 0: it is
        self.quiet_to = 0  # no entry up to here has anything to ask for, or to wait for
        self._ahead = RESERVE_MIN  # how many seqs beyond its own that entry asked for
        self._asked_to = 0
        self._since_seq = 0  # the last seq, and the time, of an entry that asked, for the rate
        self._since_ns = 0
        self._rate = 0  # as it was then

    def up_to(self, last: int, log: Log, clock: EngineClock) -> tuple[int, bool]:
        """What an entry that gives out `last` has to ask for, and whether it has to be synced."""
        if self.mark and log.durable >= self.mark:
            self.valid_to, self.mark = self._asked_to, 0
        asking = 0
        asked = self.staged_to > self.valid_to and last <= self.staged_to
        # A turn can bring thousands: what is left has to last until a sync that is put off.
        self.quiet_to = self.valid_to - self._ahead // 2
        if not asked and last > self.quiet_to:
            self._ahead = max(RESERVE_MIN, 2 * self._rate_at(last, clock.monotonic_ns()))
            asking = min(last + self._ahead, seq_max)
        if asked or asking:
            self.quiet_to = self.valid_to
        return asking, last > self.valid_to

    def _rate_at(self, last: int, now_ns: int) -> int:
        """Return how many seqs `RESERVE_RATE_NS` bring: the last whole such time, or this one."""
        seqs, elapsed_ns = last - self._since_seq, now_ns - self._since_ns
        if elapsed_ns < RESERVE_RATE_NS:
            return max(self._rate, seqs)
        self._since_seq, self._since_ns = last, now_ns
        self._rate = seqs * RESERVE_RATE_NS // elapsed_ns
        return self._rate

    def stage(self, to: int) -> None:
        """Note that an entry on its way to the log asks for seqs up to `to`."""
        self.staged_to = to

    def written(self, to: int, log: Log) -> None:
        """Note that this entry is in the log."""
        # Valid once the log is durable beyond the entry; `written` is at or past its end.
        self._asked_to, self.mark = to, log.written

    def failed(self) -> None:
        """Note that the entry that asked is not in the log."""
        self.staged_to = self.quiet_to = 0

    def raise_to(self, to: int) -> None:
        """Note that the log says, durably, that seqs up to `to` may have been given out."""
        if to > self.valid_to:
            self.valid_to = to

    def begin(self, head: int, synced: bool) -> None:
        """Begin to serve from `head`; `synced`: every append is, and nothing need be reserved."""
        self.valid_to = head if synced else max(head, self.valid_to)
        self.quiet_to = 0
        self._since_seq = head
