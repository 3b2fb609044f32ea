"""Reading all topics whose names begin alike, however many: what is idle costs nothing.

Only this file decides which topics of a pattern a follower reads now.  A topic is followed while it
has something new, at most `ACTIVE_MAX` of them at a time, and is let go at its head.  Topics that
wait for their turn are a number and a cursor each.  Everything else is at its head, and the journal
tells when that changes (`journal.py`).

Topics that the journal says nothing about, because they are new to the reader or it does not reach
back, are looked at one by one (`sweeping.py`).
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Final, Generic

from headrace.engine.live.follower import Follower, Position, Subscription, ViewT
from headrace.engine.live.pages import PageOptions
from headrace.engine.live.places import Place
from headrace.engine.live.sweeping import Sweeper
from headrace.engine.scheduling.turns import Job
from headrace.engine.topics.topic import Topic
from headrace.storage.epochs import EPOCHS_PER_GENERATION

if TYPE_CHECKING:
    from headrace.engine.live.hub import LiveHub

# Topics of a pattern that one reader follows at a time.
ACTIVE_MAX: Final = 64
# Topics that were read further than the number says, and whose cursors are remembered for that.
# Beyond them a reader that comes back gets again what it had just got.
AHEAD_MAX: Final = 64
# Topics that could not be read, and whose cursors are remembered.
FAILED_MAX: Final = 256
# What a topic that waits for its turn takes: measured, and rounded up.
PENDING_BYTES: Final = 384


class PatternPosition(Position):
    """Where a follower is in a topic of a pattern, while it reads it."""

    __slots__ = ("_reader", "topic_id")

    def __init__(
        self, reader: PatternReader[ViewT], topic_id: int, name: str, epoch: int, cursor: int
    ) -> None:
        super().__init__(name, epoch, cursor)
        self._reader = reader
        self.topic_id = topic_id

    def move(self, epoch: int, cursor: int) -> None:
        super().move(epoch, cursor)
        self._reader.moved(self)


class PatternReader(Job, Generic[ViewT]):
    """What a follower reads of the topics of some patterns.

    `is_named` says which topics it reads by name, and not here.  `hold` is told of the bytes that
    waiting topics take, and says whether there is room for more.  A topic that the follower read by
    name may be given to the pattern (`Subscription.pattern`); `released` hears when it is at its
    head, and only the pattern's from then on.
    """

    __slots__ = (
        "_active",
        "_ahead",
        "_behind_max",
        "_caught_up_to",
        "_failed",
        "_follower",
        "_gone",
        "_hold",
        "_hub",
        "_is_named",
        "_journal",
        "_options",
        "_prefixes",
        "_released",
        "_settled",
        "_sweeper",
        "_view",
        "closed",
        "pending",
    )

    def __init__(
        self,
        hub: LiveHub,
        follower: Follower[ViewT],
        prefixes: Sequence[str],
        options: PageOptions,
        view: ViewT,
        is_named: Callable[[str], bool],
        hold: Callable[[int], bool],
        released: Callable[[Position], None] = lambda _: None,
    ) -> None:
        super().__init__()
        self._hold = hold
        self._behind_max = hub.state.settings.watch_topics_behind_max
        self._released = released
        self._hub = hub
        self._journal = hub.journal
        self._follower = follower
        self._prefixes = tuple(prefixes)
        self._options = options
        self._view = view
        self._is_named = is_named
        # Topics with something new, by id: the number of its publish, when it was, the cursor.
        self.pending: OrderedDict[int, tuple[int, int, int]] = OrderedDict()
        self._active: dict[int, Subscription[ViewT]] = {}  # followed now, by id of the topic
        self._gone: deque[tuple[int, str, int, int]] = deque()  # deleted, and not yet told
        self._sweeper: Sweeper[ViewT] = Sweeper(self, hub, is_named)
        self._ahead: OrderedDict[int, tuple[int, int]] = OrderedDict()  # cursor and number by epoch
        self._failed: dict[int, int] = {}  # cursor by epoch
        # Topics that were read up to a publish that is still to be told, which then is nothing new.
        self._settled: dict[int, int] = {}
        self._caught_up_to = 0  # in the journal; -1: it is heard as it goes
        self.closed = False

    # Beginning and end

    def begin(self, place: Place) -> None:
        """Read on from a place."""
        journal = self._journal
        journal.hold()
        if place.run == journal.run and journal.reaches(place.number):
            self._sweeper.add(place.sweeps)
            self._caught_up_to = place.number
            self._take_exact(place, journal.number)
        else:
            self._sweeper.add_since(place, self._prefixes)
            self._take_exact(place, journal.number)
            self._listen()
        self._hub.turns.enqueue(self)

    def _take_exact(self, place: Place, number: int) -> None:
        """Begin in the topics that the place has a cursor of, up to the publish of this number."""
        for epoch, cursor in place.exact:
            topic = self._topic_of_epoch(epoch)
            if topic is None:
                continue
            if self._sweeper.covers(topic.name):
                self._sweeper.given[epoch] = cursor
            elif not self._is_mine(topic.name):
                continue
            elif cursor != topic.head:
                # Its place says so until it is read: another resume begins there, too.
                self._sweeper.given[epoch] = cursor
                self._await(topic.id, place.number + 1, cursor)
            else:
                self._ahead[epoch] = (cursor, number)
                self._settled[topic.id] = number

    def _topic_of_epoch(self, epoch: int) -> Topic | None:
        topic = self._hub.state.by_id.get(epoch % EPOCHS_PER_GENERATION)
        return topic if topic is not None and topic.live and topic.epoch == epoch else None

    def _listen(self) -> None:
        self._caught_up_to = -1
        for prefix in self._prefixes:
            self._journal.listen(prefix, self)

    def _stop_listening(self) -> None:
        for prefix in self._prefixes:
            self._journal.leave(prefix, self)

    def close(self) -> None:
        """Read nothing any more."""
        if not self.closed:
            self.closed = True
            for subscription in list(self._active.values()):
                self._follower.leave(subscription)
            self._hold(-PENDING_BYTES * len(self.pending))
            self.pending.clear()
            self._stop_listening()
            self._journal.drop()

    # Where it is

    @property
    def number(self) -> int:
        """The last publish up to which everything was read."""
        for number, _, _ in self.pending.values():
            return number - 1
        return self._journal.told_to if self._caught_up_to < 0 else self._caught_up_to

    @property
    def place(self) -> Place:
        """Where the reader is in all its topics."""
        first = next(iter(self.pending.values()), None)
        ms = self._hub.now_ms() if first is None else first[1]
        ahead = {epoch: cursor for epoch, (cursor, _) in self._ahead.items()}
        exact = tuple({**self._sweeper.exact, **self._failed, **ahead}.items())
        sweeps = tuple(self._sweeper.sweeps)
        return Place(self._journal.run, self.number, ms, sweeps, exact)

    # What the journal tells

    def published(self, topic: Topic, number: int, head: int) -> None:
        if topic.id in self.pending or self._settled.get(topic.id, 0) >= number:
            return
        if not topic.live or not self._is_mine(topic.name):
            return
        if self._has_room:
            self._await(topic.id, number, head)
            self._hub.turns.enqueue(self)
        elif self._caught_up_to < 0:
            # The journal keeps it: this reader goes on there when it has read something.
            self._stop_listening()
            self._caught_up_to = number - 1

    @property
    def _has_room(self) -> bool:
        """Whether one more topic may wait."""
        waiting = len(self.pending)
        return waiting < ACTIVE_MAX or (waiting < self._behind_max and self._hold(0))

    def deleted(self, topic: Topic) -> None:
        if topic.id in self._active or not self._is_mine(topic.name):
            return  # whoever reads it hears of it there, or it is not known yet
        self._forget(topic.id)
        self._gone.append((topic.id, topic.name, topic.epoch, topic.head))
        self._hub.turns.enqueue(self)

    def told(self) -> None:
        if self._settled:
            to = self._journal.told_to
            self._settled = {id: number for id, number in self._settled.items() if number > to}

    def _is_mine(self, name: str) -> bool:
        return (
            name.startswith(self._prefixes)
            and not self._is_named(name)
            and not self._sweeper.covers(name)
        )

    def broken(self) -> None:
        self._follower.broken()

    def _await(self, topic_id: int, number: int, cursor: int) -> None:
        self.pending[topic_id] = (number, self._hub.now_ms(), cursor)
        self._hold(PENDING_BYTES)

    def _forget(self, topic_id: int) -> None:
        if self.pending.pop(topic_id, None) is not None:
            self._hold(-PENDING_BYTES)

    # What the follower has read

    def moved(self, position: PatternPosition) -> None:
        """Note that a topic was read up to the position."""
        topic = self._hub.state.by_id.get(position.topic_id)
        if topic is not None and (topic.head, topic.epoch) == (position.cursor, position.epoch):
            self._settle(topic)
        self._remember(position)

    def _settle(self, topic: Topic) -> None:
        self._forget(topic.id)
        heard = self._journal.told_to if self._caught_up_to < 0 else self._caught_up_to
        if self._journal.number > heard:
            self._settled[topic.id] = self._journal.number

    def _remember(self, position: Position) -> None:
        """Keep a cursor for as long as the number alone would say less."""
        ahead = self._ahead
        ahead[position.epoch] = (position.cursor, self._journal.number)
        ahead.move_to_end(position.epoch)
        self._failed.pop(position.epoch, None)
        self._sweeper.given.pop(position.epoch, None)
        number = self.number
        while ahead:
            epoch = next(iter(ahead))
            if len(ahead) <= AHEAD_MAX and ahead[epoch][1] > number:
                break
            del ahead[epoch]

    def rested(self, subscription: Subscription[ViewT]) -> None:
        """Let a topic go that has nothing more for now, unless some of it is not on disk yet."""
        feed, position = subscription.feed, subscription.position
        if subscription not in self._follower.subscriptions or feed is None:
            return
        topic = feed.topic
        if (topic.head, topic.epoch) != (position.cursor, position.epoch):
            return
        self._follower.leave(subscription)
        self._settle(topic)
        self._remember(position)
        self._leave(subscription)
        if self._sweeper.covers(topic.name):
            self._sweeper.given[position.epoch] = position.cursor  # for when it comes to the topic

    def ended(self, subscription: Subscription[ViewT], *, failed: bool) -> None:
        """Let a topic go that is gone, or cannot be read."""
        position = subscription.position
        assert isinstance(position, PatternPosition)
        self._forget(position.topic_id)
        if failed:
            self._failed[position.epoch] = position.cursor
            if len(self._failed) > FAILED_MAX:
                del self._failed[next(iter(self._failed))]
        self._leave(subscription)

    def _leave(self, subscription: Subscription[ViewT]) -> None:
        position = subscription.position
        if isinstance(position, PatternPosition):
            self._active.pop(position.topic_id, None)
        else:
            self._released(position)
        self._sweeper.left(subscription)
        self._hub.turns.enqueue(self)

    # Turns

    def step(self) -> bool:
        """Follow the next topics, as many as there is room for."""
        if self.closed:
            return False
        if self._caught_up_to >= 0:
            self._catch_up()
        active = self._active
        while self._gone and len(active) < ACTIVE_MAX:
            topic_id, name, epoch, head = self._gone.popleft()
            self._follow(None, PatternPosition(self, topic_id, name, epoch, head))
        if len(active) < ACTIVE_MAX:
            for topic_id in list(self._next_pending()):
                topic = self._hub.state.by_id.get(topic_id)
                if topic is None or not topic.live:
                    self._forget(topic_id)
                    continue
                cursor = self.pending[topic_id][2]
                position = PatternPosition(self, topic_id, topic.name, topic.epoch, cursor)
                self._follow(topic, position).first = False
        more = len(active) < ACTIVE_MAX and self._sweeper.look()
        return more or (self._caught_up_to >= 0 and self._has_room)

    def _next_pending(self) -> list[int]:
        """Return the longest pending topics that are not followed, as many as there is room for."""
        found: list[int] = []
        room = ACTIVE_MAX - len(self._active)
        for topic_id in self.pending:
            if len(found) >= room:
                break
            if topic_id not in self._active:
                found.append(topic_id)
        return found

    def is_reading(self, topic: Topic) -> bool:
        """Return whether a topic is followed now."""
        return topic.id in self._active

    def read_from(self, topic: Topic, cursor: int) -> Subscription[ViewT]:
        """Follow a topic that a sweep has come to."""
        position = PatternPosition(self, topic.id, topic.name, topic.epoch, cursor)
        return self._follow(topic, position)

    def _follow(self, topic: Topic | None, position: PatternPosition) -> Subscription[ViewT]:
        subscription = self._follower.follow(position, self._options, self._view, topic)
        subscription.pattern = self
        self._active[position.topic_id] = subscription
        return subscription

    def _catch_up(self) -> None:
        """Read in the journal what was published since the reader was here, while there is room.

        At its end the reader hears of publishes as they are told.
        """
        journal, turns = self._journal, self._hub.turns
        if not journal.reaches(self._caught_up_to):
            # It has lost its beginning meanwhile.
            self._sweeper.add_since(self.place, self._prefixes)
            self._listen()
            return
        for number, topic, head in journal.after(self._caught_up_to):
            if not self._has_room:
                return
            self.published(topic, number, head)
            self._caught_up_to = number
            if turns.over:
                return
        self._listen()
