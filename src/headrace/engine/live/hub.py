"""All live readers of one engine: the topics they follow, and the names they wait for.

Only this file bounds how many shared pages are kept.  A page lives as long as the turns that use
it: when no job is left to do, all of them are dropped.
"""

from __future__ import annotations

from collections.abc import Callable
from weakref import WeakValueDictionary

from headrace.engine.engine import Engine
from headrace.engine.live.feed import TopicFeed
from headrace.engine.live.follower import AnySubscription
from headrace.engine.live.journal import PublishJournal
from headrace.engine.live.pages import PageOptions
from headrace.engine.scheduling.turns import Visits
from headrace.engine.topics.topic import Topic

# Pages kept at a time for followers at the same place; all are dropped when there are more.
SHARED_PAGES_MAX = 64


class LiveHub:
    """The followed topics of one engine.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as directory:
    ...     with Engine.open(directory) as engine:
    ...         hub = LiveHub(engine)
    ...         hub.page_options(10, 1000, (), False) is hub.page_options(10, 1000, (), False)
    True
    """

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self.state = engine.state
        self.turns = engine.state.turns
        self.turns.when_idle.append(self._forget_pages)
        self.visits = Visits(self.turns)
        self._feeds: dict[int, TopicFeed] = {}
        self._feeds_with_pages: dict[TopicFeed, None] = {}
        self._pages_count = 0
        self._options: WeakValueDictionary[tuple[object, ...], PageOptions] = WeakValueDictionary()
        self._by_prefix: dict[str, dict[Callable[[Topic], None], None]] = {}
        engine.state.on_topic_created(self._created)
        self.journal = PublishJournal(engine.state)

    def now_ms(self) -> int:
        """The engine's time."""
        return self.state.clock.now_ms()

    # Pages

    def page_options(
        self, limit: int, bytes_max: int, nodes: tuple[str, ...], strong: bool = False
    ) -> PageOptions:
        """Return the one object for these options."""
        key = (limit, bytes_max, nodes, strong)
        options = self._options.get(key)
        if options is None:
            options = self._options[key] = PageOptions(*key)
        return options

    def keep(self, feed: TopicFeed) -> None:
        """Make room for a page that a feed is about to keep."""
        if self._pages_count >= SHARED_PAGES_MAX:
            self._forget_pages()
        self._feeds_with_pages[feed] = None
        self._pages_count += 1
        self.turns.ask()  # a page that was read outside a turn is dropped by the next one

    def _forget_pages(self) -> None:
        for feed in self._feeds_with_pages:
            feed.forget_pages()
        self._feeds_with_pages.clear()
        self._pages_count = 0

    # Topics

    def find(self, name: str) -> Topic | None:
        """Return the live topic of a name."""
        topic = self.state.by_name.get(name)
        if topic is None or not topic.live or (topic.stream and self.state.expiry.hides(topic)):
            return None
        return topic

    def follow(self, topic: Topic, subscription: AnySubscription) -> TopicFeed:
        """Serve a subscription when its topic publishes."""
        feed = self._feeds.get(topic.id)
        if feed is None:
            feed = self._feeds[topic.id] = TopicFeed(self, topic)
        feed.add(subscription)
        return feed

    def drop(self, feed: TopicFeed) -> None:
        """Forget a topic that nobody follows any more."""
        if self._feeds.get(feed.topic.id) is feed:
            del self._feeds[feed.topic.id]
        self._feeds_with_pages.pop(feed, None)

    # Names

    def follow_names(self, prefix: str, created: Callable[[Topic], None]) -> None:
        """Call `created` with every new topic whose name has this prefix."""
        self._by_prefix.setdefault(prefix, {})[created] = None

    def leave_names(self, prefix: str, created: Callable[[Topic], None]) -> None:
        """Take back `follow_names`."""
        listeners = self._by_prefix[prefix]
        del listeners[created]
        if not listeners:
            del self._by_prefix[prefix]

    def _created(self, topic: Topic) -> None:
        if not self._by_prefix:
            return
        name = topic.name
        for length in range(len(name) + 1):
            for created in list(self._by_prefix.get(name[:length], ())):
                created(topic)
