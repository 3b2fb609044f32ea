"""When to repeat a call, and after how long.

The rules this file alone owns: a call that is known to have changed nothing is repeated until its
deadline, unless it can never succeed (`connection_failures.py`); one whose outcome is unknown only
if a repeat cannot be stored twice; the pause is random between nothing and a bound that doubles
(full jitter), and never shorter than `Retry-After`.  It neither sleeps nor reads a clock.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, NamedTuple

from headrace.client.message import SETUP
from headrace.core.clock import NS_PER_MS, Random
from headrace.core.errors import HeadraceError, Internal, OutOfResources, Unreachable

PAUSE_MS_FIRST: Final = 25
PAUSE_MS_MAX: Final = 2_000
RETRY_AFTER_MS_MAX: Final = 60_000
NOTHING: Final[Mapping[str, object]] = {}


class Pause(NamedTuple):
    """How long to wait before the next attempt."""

    ms: int


def next_pause(
    error: HeadraceError,
    *,
    attempt: int,
    repeatable: bool,
    retry_after_ms: int,
    left_ms: int,
    random: Random,
) -> Pause | None:
    """The pause before attempt `attempt` + 1, or None if the error is final.

    >>> from headrace.core.clock import SeededRandom
    >>> from headrace.core.errors import InvalidRequest, Throttled
    >>> how = {"attempt": 1, "repeatable": False, "left_ms": 5_000, "random": SeededRandom(1)}
    >>> next_pause(InvalidRequest("no"), retry_after_ms=0, **how)
    >>> next_pause(Throttled("later"), retry_after_ms=1_000, **how).ms >= 1_000
    True
    >>> next_pause(Throttled("later"), retry_after_ms=6_000, **how)
    """
    if not worth_repeating(error, repeatable):
        return None
    bound_ms = min(PAUSE_MS_FIRST << min(attempt - 1, 16), PAUSE_MS_MAX)
    pause_ms = min(retry_after_ms, RETRY_AFTER_MS_MAX) + random.u32() % (bound_ms + 1)
    return Pause(pause_ms) if pause_ms < left_ms else None


def worth_repeating(error: HeadraceError, repeatable: bool) -> bool:
    """Whether the same call may succeed later, and cannot be done twice."""
    if error.detail.get("reason") == SETUP:
        return False
    if (
        isinstance(error, Unreachable | Internal | OutOfResources)
        and error.detail.get("outcome") == "unknown"
    ):
        return repeatable
    return error.retryable


def retry_after_ms(headers: dict[str, str], detail: Mapping[str, object] = NOTHING) -> int:
    """When to try again, in milliseconds; 0 where nothing that we read says so.

    The header has whole seconds; the error itself may be more exact.

    >>> retry_after_ms({"retry-after": "2"}), retry_after_ms({"retry-after": "Fri, 13 Nov"})
    (2000, 0)
    >>> retry_after_ms({"retry-after": "1"}, {"retry_after_ms": 500})
    500
    """
    exact = detail.get("retry_after_ms")
    if isinstance(exact, int) and exact >= 0:
        return exact
    text = headers.get("retry-after", "").strip()
    return int(text) * 1_000 if text.isascii() and text.isdigit() and len(text) < 10 else 0


def left_ms(deadline_ns: int, now_ns: int) -> int:
    """Milliseconds until the deadline; 0 once it has passed."""
    return max(0, (deadline_ns - now_ns) // NS_PER_MS)
