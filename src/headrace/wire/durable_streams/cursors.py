"""Cursors of Durable Streams: a number that moves with time, so that caches keep no waiting read.

Only this file makes them.  A client sends back the cursor that it was given.  A cache that joins
equal requests then joins those of one interval only; and a client whose cursor is not behind gets a
greater one, by a random distance, so that two answers never lead it to the same request again.
"""

from __future__ import annotations

import re
from typing import Final

from headrace.core.clock import Random

INTERVAL_MS: Final = 20_000
EPOCH_MS: Final = 1_728_432_000_000  # 2024-10-09T00:00:00Z
JITTER_S_MAX: Final = 3_600
_INTERVAL_S: Final = INTERVAL_MS // 1_000
# Longer ones are no cursors of ours, and are not worth the arithmetic.
CURSOR_DIGITS_MAX: Final = 18
_number = re.compile(rf"[0-9]{{1,{CURSOR_DIGITS_MAX}}}").fullmatch


def current_cursor(now_ms: int) -> int:
    """Return the cursor of the interval that the time is in; 0 for a clock that is far behind."""
    return max(now_ms - EPOCH_MS, 0) // INTERVAL_MS


def next_cursor(now_ms: int, sent: str, random: Random) -> int:
    """Return the cursor for a client that sent `sent`; what is no cursor counts as none.

    >>> from headrace.core.clock import SeededRandom
    >>> next_cursor(EPOCH_MS + 45_000, "", SeededRandom(1))
    2
    >>> next_cursor(EPOCH_MS + 45_000, "2", SeededRandom(1)) > 2
    True
    """
    current = current_cursor(now_ms)
    if _number(sent) is None:
        return current
    known = int(sent)
    if known < current:
        return current
    seconds = random.u32() % JITTER_S_MAX + 1
    return known - -seconds // _INTERVAL_S
