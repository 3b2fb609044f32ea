"""What the sessions of one server share: their headers, and how many bytes of appends they hold.

Only this file bounds what append sessions hold.  An input counts from when it is taken out of its
frame until it is acknowledged, against a bound of its session and one of all sessions; a session
that has no room takes nothing more from its client until others have been acknowledged.  A frame
that has begun to arrive counts, too: beyond what every session may have, against a bound of all.
"""

from __future__ import annotations

from typing import Final, Protocol

from headrace.core.limits import KIB, MIB
from headrace.wire.exchange import Headers
from headrace.wire.s2.errors import refusal

# Metered bytes of inputs that are not acknowledged: of one session, and of all.
SESSION_BYTES_MAX: Final = 8 * MIB
SESSIONS_BYTES_MAX: Final = 128 * MIB
# Inputs of one session that are not acknowledged.
SESSION_INPUTS_MAX: Final = 1_024
# Bytes of a frame that has begun to arrive: what any session may have, and all beyond that.
FRAME_FREE_BYTES: Final = 64 * KIB
FRAMES_BYTES_MAX: Final = 256 * MIB

SESSION_HEADERS: Final[Headers] = (
    (b"cache-control", b"no-cache, no-transform"),
    (b"x-accel-buffering", b"no"),
)


class Holder(Protocol):
    """A session that waits for room."""

    def room_again(self) -> None: ...


class SessionBytes:
    """The bytes that all append sessions of one server hold."""

    __slots__ = ("_waiting", "frames", "held")

    def __init__(self) -> None:
        self.held = 0  # of inputs that are not acknowledged
        self.frames = 0  # of frames that have begun to arrive
        self._waiting: dict[Holder, None] = {}  # in the order in which they began to wait

    def take(self, size: int) -> None:
        """Count an input; it may be too much once, and `is_full` then says so."""
        self.held += size

    @property
    def is_full(self) -> bool:
        """Whether no session may take another input."""
        return self.held >= SESSIONS_BYTES_MAX

    def give(self, size: int) -> None:
        """Count an input no more, and let sessions go on that waited for it."""
        self.held -= size
        assert self.held >= 0, self.held
        while self._waiting and not self.is_full:
            holder = next(iter(self._waiting))
            del self._waiting[holder]
            holder.room_again()

    def wait(self, holder: Holder) -> None:
        """Tell a session when there is room again."""
        self._waiting[holder] = None

    def forget(self, holder: Holder) -> None:
        """Tell a session nothing more."""
        self._waiting.pop(holder, None)

    def frame_grew(self, before: int, now: int) -> None:
        """Count what a session has of a frame that is not complete, or raise if that is too much.

        `before` is what was counted last.
        """
        change = max(now - FRAME_FREE_BYTES, 0) - max(before - FRAME_FREE_BYTES, 0)
        if change > 0 and self.frames + change > FRAMES_BYTES_MAX:
            raise refusal("rate_limited", "too many large frames are arriving; try again")
        self.frames += change
