"""The epochs of topics: numbers that no two topics ever share, before a restore or after it."""

from __future__ import annotations

# A restored data directory counts from another start, so that old cursors are noticed.
# On disk: never change it.
EPOCHS_PER_GENERATION = 1 << 32


def epoch_of(generation: int, topic_id: int) -> int:
    """Return the epoch of a topic that got this id in this generation of its data directory.

    >>> epoch_of(0, 7), epoch_of(1, 7)
    (7, 4294967303)
    """
    return generation * EPOCHS_PER_GENERATION + topic_id
