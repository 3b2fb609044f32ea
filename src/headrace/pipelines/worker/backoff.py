"""How long a pipeline that failed waits until it is tried again."""

from __future__ import annotations

from typing import Final

FIRST_MS: Final = 1_000
LONGEST_MS: Final = 300_000


def pause_ms(failures: int) -> int:
    """Twice as long after each failure in a row, up to five minutes.

    >>> [pause_ms(failures) for failures in (1, 2, 3, 9, 10, 1_000_000)]
    [1000, 2000, 4000, 256000, 300000, 300000]
    """
    return min(FIRST_MS << min(failures - 1, 30), LONGEST_MS)
