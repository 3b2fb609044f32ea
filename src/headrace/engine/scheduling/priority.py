"""Effective priority: computed from a topic's config and the time since it was last consumed.

Only this file knows the formula.  It has no state and no clock; who counts as a consumer is the
dialects' business, and what follows from a priority is the scheduler's.
"""

from __future__ import annotations

from math import floor
from typing import TYPE_CHECKING, Final

from headrace.engine.topics.config import TopicConfig

if TYPE_CHECKING:
    from headrace.engine.topics.topic import Topic

PRIORITY_MAX: Final = 1000
AUTO_PRIORITY_MAX: Final = 500  # right after a topic was consumed
HALF_LIFE_MS: Final = 30_000
FORGOTTEN_MS: Final = 300_000


def effective_priority(config: TopicConfig, idle_ms: int | None) -> int:
    """Return the priority of a topic that was last consumed `idle_ms` ago; None: never.

    >>> [effective_priority(TopicConfig(), ms) for ms in (0, 15_000, 90_000, 300_000, None)]
    [500, 354, 63, 0, 0]
    >>> effective_priority(TopicConfig(priority=5_000), None)
    1000
    """
    if config.priority is not None:
        return max(-PRIORITY_MAX, min(config.priority, PRIORITY_MAX))
    if not config.auto_priority or idle_ms is None or idle_ms >= FORGOTTEN_MS:
        return 0
    share: float = 2.0 ** (-max(idle_ms, 0) / HALF_LIFE_MS)
    # Halves go up: `round` would make 62 of the 62.5 after 90 seconds.
    return floor(AUTO_PRIORITY_MAX * share + 0.5)


def priority_of(topic: Topic, now_ms: int) -> int:
    """Return the priority of a topic at a time of the engine's clock."""
    read_ms = topic.last_read_ms
    return effective_priority(topic.config, now_ms - read_ms if read_ms else None)
