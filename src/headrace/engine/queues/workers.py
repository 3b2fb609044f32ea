"""Workers that are pushed jobs: who is told that there may be something to claim, and when.

Only this file wakes them: when jobs are appended, when a job comes back, when a worker's own jobs
are done, and at the next deadline.  They are asked in turn, and only for as long as there are jobs,
so that one job among a thousand idle workers costs one call.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable

from headrace.engine.core_state import Core
from headrace.engine.topic import Topic

log = logging.getLogger("headrace.queues")

ROUND_MAX = 64  # workers that are asked in one turn

Wake = Callable[[], bool]  # claim what there is room for; whether there is room for more


class _Bench:
    """The workers of one queue."""

    __slots__ = (
        "_armed",
        "_asked",
        "_core",
        "_due",
        "_hungry",
        "_left",
        "_tick",
        "_topic",
        "_workers",
    )

    def __init__(self, core: Core, topic: Topic, tick: Callable[[Topic], None]) -> None:
        self._core = core
        self._topic = topic
        self._tick = tick  # takes back what is overdue
        self._workers: dict[int, Wake] = {}
        self._hungry: dict[int, None] = {}  # in the order in which they are asked
        self._armed = False  # to hear of appends
        self._asked = False  # a round is on its way
        self._left = 0  # workers that are still to be asked about what there is
        self._due = 0  # a timer will fire at this time; 0: none

    def __len__(self) -> int:
        return len(self._workers)

    @property
    def idle(self) -> bool:
        """Nobody is there, and nothing will call it any more: what comes next can begin anew."""
        return not self._workers and not self._armed and not self._asked and not self._due

    def add(self, connection: int, wake: Wake) -> None:
        self._workers[connection] = wake
        self.hungry((connection,))

    def remove(self, connection: int) -> None:
        self._workers.pop(connection, None)
        self._hungry.pop(connection, None)

    def hungry(self, connections: Iterable[int]) -> None:
        """These may have room again."""
        for connection in connections:
            if connection in self._workers:
                self._hungry[connection] = None
        self.stir()

    def stir(self) -> None:
        """There may be something to claim: ask once the turn is over."""
        if self._hungry:
            self._left = len(self._hungry)
            self._soon()

    def _soon(self) -> None:
        if not self._asked:
            self._asked = True
            self._core.runtime.soon(self._ask)

    def all(self) -> None:
        """Let every worker look: the topic is gone."""
        self._hungry.update(dict.fromkeys(self._workers))
        self.stir()

    def _ask(self) -> None:
        self._asked = False
        topic = self._topic
        if topic.live:
            self._tick(topic)
        for _ in range(min(self._left, ROUND_MAX)):
            queue = topic.queue
            ready = queue.ready(topic.count) if queue is not None else topic.count
            if not self._hungry or (topic.live and not ready):
                self._left = 0
                break
            self._left -= 1
            connection = next(iter(self._hungry))
            del self._hungry[connection]
            if self._wake(connection) and connection in self._workers:
                self._hungry[connection] = None
        if self._left:
            self._soon()
        self.arm()

    def _wake(self, connection: int) -> bool:
        try:
            return self._workers[connection]()
        except Exception:
            # One worker's mistake must not keep the others from hearing.
            log.exception("a worker of %r failed", self._topic.name)
            return False

    def arm(self) -> None:
        """Hear of the next deadline, and while anybody wants jobs of the next append."""
        topic = self._topic
        if not self._workers or not topic.live:
            return
        if self._hungry and not self._armed:
            self._armed = True
            if topic.waiters is None:
                topic.waiters = []
            topic.waiters.append(self._appended)
        due = topic.queue.next_due() if topic.queue is not None else None
        if due is not None and (not self._due or due < self._due):
            self._due = due
            delay_ms = max(0, due - self._core.clock.now_ms())
            self._core.runtime.later(delay_ms, lambda: self._timer(due))

    def _appended(self) -> None:
        self._armed = False
        if self._topic.live:
            self.stir()
        else:
            self.all()

    def _timer(self, due: int) -> None:
        if self._due == due:
            self._due = 0
        if self._topic.live:
            self._tick(self._topic)  # a worker that is full may have room again
        self.stir()
        self.arm()


class Workers:
    """The workers of all queues, by a number of their own."""

    def __init__(self, core: Core, tick: Callable[[Topic], None]) -> None:
        self._core = core
        self._tick = tick
        self._benches: dict[int, _Bench] = {}
        self._topics: dict[int, Topic] = {}
        self._last = 0

    def connect(self, topic: Topic, wake: Wake) -> int:
        self._last += 1
        self._topics[self._last] = topic
        bench = self._benches.get(topic.id)
        if bench is None:
            bench = self._benches[topic.id] = _Bench(self._core, topic, self._tick)
        bench.add(self._last, wake)
        return self._last

    def disconnect(self, connection: int) -> Topic | None:
        """Forget a worker; the topic it worked on, unless it was forgotten before."""
        topic = self._topics.pop(connection, None)
        bench = self._benches.get(topic.id) if topic is not None else None
        if topic is not None and bench is not None:
            bench.remove(connection)
            # One that will still be called is kept: many that come and go have but one.
            if bench.idle or not (topic.live or len(bench)):
                del self._benches[topic.id]
        return topic

    def topic_of(self, connection: int) -> Topic | None:
        return self._topics.get(connection)

    def is_gone(self, connection: int | None) -> bool:
        return connection is not None and connection not in self._topics

    def stir(self, topic: Topic) -> None:
        """There may be something to claim."""
        bench = self._benches.get(topic.id)
        if bench is not None:
            bench.stir()

    def hungry(self, topic: Topic, connections: Iterable[int]) -> None:
        """These workers may have room again, and there may be something to claim."""
        bench = self._benches.get(topic.id)
        if bench is not None:
            bench.hungry(connections)

    def arm(self, topic: Topic) -> None:
        """Deadlines have changed."""
        bench = self._benches.get(topic.id)
        if bench is not None:
            bench.arm()

    def forget(self, topic: Topic) -> None:
        """A topic was deleted: its workers look once more."""
        bench = self._benches.get(topic.id)
        if bench is not None and not len(bench):
            del self._benches[topic.id]
        elif bench is not None:
            bench.all()
