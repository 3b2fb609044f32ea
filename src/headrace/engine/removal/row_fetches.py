"""Which topics have the sizes and times of their oldest rows looked up, and who waits for that."""

from __future__ import annotations

from headrace.core.runtime import Thunk


class RowFetches:
    """Lookups under way, at most one for each topic.

    >>> fetches = RowFetches()
    >>> fetches.begin(7)
    >>> 7 in fetches, len(fetches), fetches.end(7), len(fetches)
    (True, 1, [], 0)
    """

    def __init__(self) -> None:
        self._waiting: dict[int, list[Thunk]] = {}

    def __contains__(self, topic_id: int) -> bool:
        return topic_id in self._waiting

    def __len__(self) -> int:
        return len(self._waiting)

    def begin(self, topic_id: int) -> None:
        """Note that a lookup is under way."""
        assert topic_id not in self._waiting, topic_id
        self._waiting[topic_id] = []

    def wait(self, topic_id: int, *wake: Thunk) -> None:
        """Have these called when the lookup that is under way has ended."""
        self._waiting[topic_id].extend(wake)

    def end(self, topic_id: int) -> list[Thunk]:
        """Note that the lookup has ended; return who waits for that."""
        return self._waiting.pop(topic_id)
