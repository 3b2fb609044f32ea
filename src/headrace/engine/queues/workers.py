"""Workers that are pushed jobs: which of them are told that jobs may be ready, and when.

Only this file wakes them: when jobs are appended, when a job comes back, when a worker's own jobs
are done, and at the next deadline.  They are asked in turn, and only for as long as there are jobs,
so that one job among a thousand idle workers costs one call.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable

from headrace.engine.state import EngineState
from headrace.engine.topics.topic import Topic

log = logging.getLogger("headrace.queues")

ROUND_MAX = 64  # workers that are asked in one turn

Wake = Callable[[], bool]  # claims as much as it has room for; True: it has room for more


class _QueueWorkers:
    """The workers of one queue."""

    __slots__ = (
        "_armed",
        "_due",
        "_left",
        "_scheduled",
        "_state",
        "_tick",
        "_topic",
        "_with_room",
        "_workers",
    )

    def __init__(self, state: EngineState, topic: Topic, tick: Callable[[Topic], None]) -> None:
        self._state = state
        self._topic = topic
        self._tick = tick  # takes back what is overdue
        self._workers: dict[int, Wake] = {}
        self._with_room: dict[int, None] = {}  # in the order in which they are asked
        self._armed = False  # to hear of appends
        self._scheduled = False  # a round is scheduled
        self._left = 0  # workers that are still to be asked in this round
        self._due = 0  # a timer will fire at this time; 0: none

    def __len__(self) -> int:
        return len(self._workers)

    @property
    def idle(self) -> bool:
        """Whether it can be dropped: it has no workers, and nothing will call it any more."""
        return not self._workers and not self._armed and not self._scheduled and not self._due

    def add(self, connection: int, wake: Wake) -> None:
        self._workers[connection] = wake
        self.note_room((connection,))

    def remove(self, connection: int) -> None:
        self._workers.pop(connection, None)
        self._with_room.pop(connection, None)

    def note_room(self, connections: Iterable[int]) -> None:
        """Note that these workers may have room again."""
        for connection in connections:
            if connection in self._workers:
                self._with_room[connection] = None
        self.wake_soon()

    def wake_soon(self) -> None:
        """Ask the workers with room once the turn is over: jobs may be ready."""
        if self._with_room:
            self._left = len(self._with_room)
            self._schedule()

    def _schedule(self) -> None:
        if not self._scheduled:
            self._scheduled = True
            self._state.runtime.soon(self._run_round)

    def wake_all(self) -> None:
        """Wake every worker, so that it sees that the topic is gone."""
        self._with_room.update(dict.fromkeys(self._workers))
        self.wake_soon()

    def _run_round(self) -> None:
        self._scheduled = False
        topic = self._topic
        if topic.live:
            self._tick(topic)
        for _ in range(min(self._left, ROUND_MAX)):
            queue = topic.queue
            ready = queue.ready(topic.count) if queue is not None else topic.count
            if not self._with_room or (topic.live and not ready):
                self._left = 0
                break
            self._left -= 1
            connection = next(iter(self._with_room))
            del self._with_room[connection]
            if self._wake(connection) and connection in self._workers:
                self._with_room[connection] = None
        if self._left:
            self._schedule()
        self.arm()

    def _wake(self, connection: int) -> bool:
        try:
            return self._workers[connection]()
        except Exception:
            # The failure of one worker must not keep the others from being woken.
            log.exception("a worker of %r failed", self._topic.name)
            return False

    def arm(self) -> None:
        """Wait for the next deadline and, while a worker has room, for the next append."""
        topic = self._topic
        if not self._workers or not topic.live:
            return
        if self._with_room and not self._armed:
            self._armed = True
            topic.wait(self._appended)
        due = topic.queue.next_due() if topic.queue is not None else None
        if due is not None and (not self._due or due < self._due):
            self._due = due
            delay_ms = max(0, due - self._state.clock.now_ms())
            self._state.runtime.later(delay_ms, lambda: self._timer(due))

    def _appended(self) -> None:
        self._armed = False
        if self._topic.live:
            self.wake_soon()
        else:
            self.wake_all()

    def _timer(self, due: int) -> None:
        if self._due == due:
            self._due = 0
        if self._topic.live:
            self._tick(self._topic)  # a worker that is full may have room again
        self.wake_soon()
        self.arm()


class Workers:
    """The workers of all queues, by connection number."""

    def __init__(self, state: EngineState, tick: Callable[[Topic], None]) -> None:
        self._state = state
        self._tick = tick
        self._by_topic: dict[int, _QueueWorkers] = {}
        self._topics: dict[int, Topic] = {}
        self._last = 0

    def connect(self, topic: Topic, wake: Wake) -> int:
        """Add a worker of a topic; return its connection number."""
        self._last += 1
        self._topics[self._last] = topic
        workers = self._by_topic.get(topic.id)
        if workers is None:
            workers = self._by_topic[topic.id] = _QueueWorkers(self._state, topic, self._tick)
        workers.add(self._last, wake)
        return self._last

    def disconnect(self, connection: int) -> Topic | None:
        """Forget a worker; return its topic, or None if it was forgotten before."""
        topic = self._topics.pop(connection, None)
        workers = self._by_topic.get(topic.id) if topic is not None else None
        if topic is not None and workers is not None:
            workers.remove(connection)
            # What a timer or waiter will still call is kept: workers that come and go share it.
            if workers.idle or not (topic.live or len(workers)):
                del self._by_topic[topic.id]
        return topic

    def topic_of(self, connection: int) -> Topic | None:
        return self._topics.get(connection)

    def is_gone(self, connection: int | None) -> bool:
        return connection is not None and connection not in self._topics

    def wake_soon(self, topic: Topic) -> None:
        """Ask the workers of a topic with room: jobs may be ready."""
        workers = self._by_topic.get(topic.id)
        if workers is not None:
            workers.wake_soon()

    def note_room(self, topic: Topic, connections: Iterable[int]) -> None:
        """Note that these workers may have room again, and ask them."""
        workers = self._by_topic.get(topic.id)
        if workers is not None:
            workers.note_room(connections)

    def arm(self, topic: Topic) -> None:
        """Wait for the next deadline of a topic: deadlines have changed."""
        workers = self._by_topic.get(topic.id)
        if workers is not None:
            workers.arm()

    def forget(self, topic: Topic) -> None:
        """Wake the workers of a deleted topic for the last time."""
        workers = self._by_topic.get(topic.id)
        if workers is not None and not len(workers):
            del self._by_topic[topic.id]
        elif workers is not None:
            workers.wake_all()
