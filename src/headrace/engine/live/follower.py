"""A live reader of topics: its position in each, and what it reads when it has fallen behind.

Only this file decides in which order a follower catches up.  A follower holds a cursor for each
topic, not a queue of pages.  When a topic publishes, its feed hands the follower the next page at
once (`feed.py`); a follower that cannot take it then has the topic in its backlog, and reads on in
turns of its own, at its own pace.

It knows nothing of protocols: subclasses encode a page and write it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from headrace.engine.live.pages import PageOptions, SharedPage
from headrace.engine.scheduling.priority import PRIORITY_MAX, priority_of
from headrace.engine.scheduling.turns import Visited
from headrace.engine.topics.topic import Topic

if TYPE_CHECKING:
    from headrace.engine.live.feed import TopicFeed
    from headrace.engine.live.hub import LiveHub
    from headrace.engine.live.patterns import PatternReader

ViewT = TypeVar("ViewT")


class Position:
    """Where a reader is in one topic."""

    __slots__ = ("cursor", "epoch", "name")

    def __init__(self, name: str, epoch: int, cursor: int) -> None:
        self.name = name
        self.epoch = epoch
        self.cursor = cursor

    def move(self, epoch: int, cursor: int) -> None:
        """Go to another place, perhaps in a topic that has taken the name."""
        self.epoch, self.cursor = epoch, cursor


class Subscription(Generic[ViewT]):
    """One topic that a follower reads; `view` is how its dialect shows it."""

    __slots__ = (
        "alike",
        "feed",
        "fetched",
        "fetching",
        "first",
        "follower",
        "options",
        "pattern",
        "position",
        "view",
    )

    def __init__(
        self,
        follower: Follower[ViewT],
        position: Position,
        options: PageOptions,
        view: ViewT,
        alike: object = None,
    ) -> None:
        self.follower = follower
        self.position = position
        self.options = options
        self.view = view
        # Subscriptions with the same object have the same options, and are told a page in the same
        # words; it is then delivered to all of them at once.  None: there is no other like it.
        self.alike = alike
        self.pattern: PatternReader[ViewT] | None = None  # that it is read for, and lets it go
        self.feed: TopicFeed | None = None  # None: the topic was gone before it was followed
        self.first = True  # no page was delivered yet
        self.fetching: tuple[int, int] | None = None  # the (cursor, epoch) of a page on its way
        self.fetched: SharedPage | None = None  # that page, when it has come

    def take_fetched(self) -> SharedPage | None:
        """Return the page that was fetched, unless the position has moved since."""
        shared, self.fetched = self.fetched, None
        place, self.fetching = self.fetching, None
        return shared if place == (self.position.cursor, self.position.epoch) else None


AnySubscription = Subscription[Any]


class Follower(Visited, Generic[ViewT]):
    """A reader of topics.

    `backlog` has the topics that may have something for it; they are read in that order.
    """

    __slots__ = ("_hub", "backlog", "subscriptions")

    def __init__(self, hub: LiveHub) -> None:
        super().__init__()
        self._hub = hub
        self.subscriptions: dict[Subscription[ViewT], None] = {}  # to live topics
        self.backlog: dict[Subscription[ViewT], None] = {}

    # What a subclass does

    @property
    def ready(self) -> bool:
        """Whether it can take a page now."""
        raise NotImplementedError

    def deliver(self, alike: Sequence[Subscription[ViewT]], shared: SharedPage) -> None:
        """Take a page, for this follower and for all others whose subscriptions are alike.

        The positions move to its end afterwards.
        """
        raise NotImplementedError

    def topic_gone(self, subscription: Subscription[ViewT], head_seq: int) -> None:
        """A topic was deleted, and is no longer followed."""
        raise NotImplementedError

    def topic_closed(self, subscription: Subscription[ViewT]) -> None:
        """A topic that it has read to its end takes no more records; it may be told again."""

    def topic_delayed(self, subscription: Subscription[ViewT], ms_max: int) -> None:
        """New records of a topic are held back until the server is less busy, or `ms_max`."""
        raise NotImplementedError

    def topic_failed(self, subscription: Subscription[ViewT], error: BaseException) -> None:
        """A topic cannot be read, and is no longer followed; the others are."""
        raise NotImplementedError

    # Topics

    def follow(
        self,
        position: Position,
        options: PageOptions,
        view: ViewT,
        topic: Topic | None,
        alike: object = None,
    ) -> Subscription[ViewT]:
        """Read a topic from a position on; None stands for one that is gone already."""
        subscription = Subscription(self, position, options, view, alike)
        self._attach(subscription, topic)
        return subscription

    def follow_again(self, subscription: Subscription[ViewT]) -> None:
        """Read on in a topic that was left."""
        subscription.feed = None
        self._attach(subscription, self._hub.find(subscription.position.name))

    def _attach(self, subscription: Subscription[ViewT], topic: Topic | None) -> None:
        if topic is not None:
            subscription.feed = self._hub.follow(topic, subscription)
            self.subscriptions[subscription] = None
        self.postpone(subscription)

    def leave(self, subscription: Subscription[ViewT]) -> None:
        """Read no further in a topic."""
        self.backlog.pop(subscription, None)
        if subscription in self.subscriptions:
            del self.subscriptions[subscription]
            assert subscription.feed is not None
            subscription.feed.remove(subscription)

    def leave_all(self) -> None:
        """Read no further in any topic."""
        for subscription in list(self.subscriptions):
            self.leave(subscription)
        self.backlog.clear()

    def lose(self, subscription: Subscription[ViewT]) -> None:
        """Leave a topic that is gone, and hear of it."""
        feed = subscription.feed
        head_seq = subscription.position.cursor if feed is None else feed.topic.head
        self.leave(subscription)
        self.topic_gone(subscription, head_seq)

    def give_up(self, subscription: Subscription[ViewT], error: BaseException) -> None:
        """Leave a topic that cannot be read, and hear why."""
        self.leave(subscription)
        self.topic_failed(subscription, error)

    # Turns

    def postpone(self, subscription: Subscription[ViewT]) -> None:
        """Read a topic in a turn of the follower's own."""
        self.backlog[subscription] = None
        self._hub.turns.enqueue(self)

    @property
    def priority(self) -> int:
        # A follower catches up at its own pace, and is never held back: only new records can be.
        for subscription in self.backlog:
            if subscription.feed is not None:
                return max(priority_of(subscription.feed.topic, self._hub.now_ms()), 0)
        return PRIORITY_MAX

    def step(self) -> bool:
        """Take one page of the backlog."""
        if not self.ready:
            return False
        for subscription in self.backlog:
            if subscription.fetching is None or subscription.fetched is not None:
                break
        else:
            return False
        feed = subscription.feed
        if feed is None:
            self.lose(subscription)
        elif feed.hand_over((subscription,)):
            self.backlog.pop(subscription, None)
            if subscription.pattern is not None:
                subscription.pattern.rested(subscription)
        return bool(self.backlog)
