"""When streams expire: so long after their last use, or at a fixed time.

Only this file knows when a stream was last used and when it is due.  Uses are noted in memory: a
start counts as one, and no read writes to the disk.  A stream is over at its millisecond, whoever
looks; its records go with the next sweep (`removal.py`).
"""

from __future__ import annotations

from collections.abc import Mapping
from heapq import heapify, heappop, heappush, heapreplace

from headrace.core.clock import EngineClock
from headrace.engine.streams.state import StreamState
from headrace.engine.topics.topic import Topic

MS_PER_S = 1_000


class StreamExpiry:
    """The streams of one engine that expire."""

    def __init__(self, clock: EngineClock) -> None:
        self._clock = clock
        # Both hold one item for each stream that expires: as many as there are topics, at most.
        self._used_ms: dict[int, int] = {}
        self._due: list[tuple[int, int]] = []  # heap: not due before this time, topic id

    def __len__(self) -> int:
        return len(self._used_ms)

    def watch(self, topic: Topic) -> None:
        """A stream is there from now on."""
        stream = topic.stream
        if stream is not None and (stream.ttl_s is not None or stream.expires_ms is not None):
            self._used_ms[topic.id] = self._clock.now_ms()
            heappush(self._due, (self._due_ms(topic.id, stream), topic.id))

    def forget(self, topic: Topic) -> None:
        """It is gone."""
        if self._used_ms.pop(topic.id, None) is not None and len(self._due) > 2 * len(self) + 64:
            self._due = [due for due in self._due if due[1] in self._used_ms]
            heapify(self._due)

    def touch(self, topic: Topic) -> None:
        """It is used: the time that it may be idle begins anew."""
        if topic.id in self._used_ms:
            self._used_ms[topic.id] = self._clock.now_ms()

    def is_over(self, topic: Topic, stream: StreamState) -> bool:
        """Whether the stream has expired."""
        if stream.ttl_s is None and stream.expires_ms is None:
            return False
        return topic.id in self._used_ms and self._clock.now_ms() >= self._due_ms(topic.id, stream)

    def hides(self, topic: Topic) -> bool:
        """Whether a stream is absent for readers: it has expired, or only its forks live."""
        stream = topic.stream
        return stream is not None and (stream.deleted or self.is_over(topic, stream))

    def _due_ms(self, topic_id: int, stream: StreamState) -> int:
        due: list[int] = []
        if stream.ttl_s is not None:
            due.append(self._used_ms[topic_id] + stream.ttl_s * MS_PER_S)
        if stream.expires_ms is not None:
            due.append(stream.expires_ms)
        return min(due)

    def take_due(self, by_id: Mapping[int, Topic], most: int) -> list[Topic]:
        """Streams that have expired, at most so many; each is named again after its next use.

        One that could not be removed has to be put back (`put_back`).
        """
        taken: list[Topic] = []
        now = self._clock.now_ms()
        while self._due and self._due[0][0] <= now and len(taken) < most:
            topic_id = self._due[0][1]
            topic = by_id.get(topic_id) if topic_id in self._used_ms else None
            if topic is None or topic.stream is None or topic.stream.deleted:
                heappop(self._due)
                continue
            due_ms = self._due_ms(topic_id, topic.stream)
            if due_ms > now:
                heapreplace(self._due, (due_ms, topic_id))
                continue
            heappop(self._due)
            taken.append(topic)
        return taken

    def put_back(self, topic: Topic) -> None:
        """Name a stream again at the next sweep."""
        if topic.id in self._used_ms:
            heappush(self._due, (self._clock.now_ms(), topic.id))
