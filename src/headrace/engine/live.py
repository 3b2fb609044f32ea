"""Live reading: who follows which topic, who is told when, and what is read once for all of them.

Only this file fans out.  The engine knows one waiter for each followed topic, however many follow
it.  What an append wakes runs after the acknowledgements of its turn, in slices
(`scheduling/turns.py`), so that a thousand readers delay neither a writer nor the readers of
another topic.  A follower holds a cursor, not a queue: pages are read when there is room for them,
and followers at the same place with the same wishes are handed the same page, with whatever was
encoded of it.

It knows nothing of protocols: how a page looks to a client is its followers' business.
"""

from __future__ import annotations

import logging
from bisect import bisect_right
from collections.abc import Callable, Hashable
from weakref import WeakValueDictionary

import msgspec

from headrace.core.errors import HeadraceError, InvalidRequest
from headrace.core.runtime import Ticket
from headrace.engine.collect import ReadRequest
from headrace.engine.engine import Engine
from headrace.engine.reading import Page
from headrace.engine.scheduling.priority import priority_of
from headrace.engine.scheduling.turns import Job, Turns, Visited, Visits
from headrace.engine.topic import Topic

log = logging.getLogger("headrace.live")

# Pages kept at a time for followers at the same place; all are dropped when there are more.
SHARED_PAGES_MAX = 64
UNKNOWN = -1


class Wishes:
    """What a follower wants to read.  Equal wishes are one object (`LiveHub.wishes`)."""

    __slots__ = ("__weakref__", "bytes_max", "limit", "nodes", "strong")

    def __init__(self, limit: int, bytes_max: int, nodes: tuple[str, ...], strong: bool) -> None:
        self.limit = limit
        self.bytes_max = bytes_max
        self.nodes = nodes  # whose records are left out
        self.strong = strong  # only what is on disk


class Shared:
    """A page that was read once, and what followers have made of it."""

    __slots__ = ("count", "encoded", "page")

    def __init__(self, page: Page) -> None:
        self.page = page
        self.count = page.count
        self.encoded: dict[Hashable, object] = {}


class Follower(Visited):
    """Somebody who follows topics."""

    __slots__ = ()

    def arrived(self, feed: Feed) -> None:
        """There is something new, or the topic is gone."""
        raise NotImplementedError

    def fetched(self, feed: Feed, shared: Shared | None, error: BaseException | None) -> None:
        """A page that `Feed.read` could not give at once."""
        raise NotImplementedError

    def paced(self, feed: Feed, ms_max: int) -> None:
        """What is new is held back until the server is less busy, or for so long at most."""


_Key = tuple[int, Wishes, int]


class Feed(Job):
    """One followed topic."""

    __slots__ = (
        "_again",
        "_armed",
        "_busy",
        "_fetching",
        "_hub",
        "_position",
        "_round",
        "_shared",
        "_strong_count",
        "_syncing",
        "durable_to",
        "followers",
        "sync_refusal",
        "topic",
    )

    def __init__(self, hub: LiveHub, topic: Topic) -> None:
        super().__init__()
        self.topic = topic
        self.followers: dict[Follower, None] = {}
        self.durable_to = UNKNOWN  # the last seq known to be on disk; kept while anybody asks
        self.sync_refusal: InvalidRequest | None = None  # why nothing of it ever will be
        self._hub = hub
        self._armed = False
        self._busy = False  # a round is under way
        self._again = False  # and another one is due after it
        self._round: list[Follower] = []
        self._position = 0
        self._shared: dict[_Key, Shared] = {}
        self._fetching: dict[_Key, list[Follower]] = {}
        self._strong_count = 0
        self._syncing = False
        self._arm()

    # Waking

    def _arm(self) -> None:
        """Be the topic's waiter, if we are not."""
        topic = self.topic
        if self._armed or not topic.live:
            return
        self._armed = True
        if topic.waiters is None:
            topic.waiters = [self]
        else:
            topic.waiters.append(self)

    def __call__(self) -> None:
        """The engine: something has changed."""
        self._armed = False
        self.wake()

    def wake(self) -> None:
        """Tell all followers, in this or the next round."""
        self._shared.clear()
        if self._busy:
            self._again = True
        elif self.followers:
            self._hub.turns.wake(self)

    @property
    def priority(self) -> int:
        return priority_of(self.topic, self._hub.engine.core.clock.now_ms())

    def held(self, ms_max: int) -> None:
        self._hub.turns.enqueue(_Notice(self, ms_max))

    def step(self) -> bool:
        """Tell as many followers as fit into the slice."""
        turns = self._hub.turns
        if not self._busy:
            # Before anybody reads, so that what comes later wakes us again.
            self._arm()
            self._sync()
            self._busy, self._position = True, 0
            self._round = list(self.followers)
        followers = self._round
        for index in range(self._position, len(followers)):
            self._position = index + 1
            follower = followers[index]
            try:
                follower.arrived(self)
            except Exception:
                log.exception("a follower of %r failed", self.topic.name)
                follower.broken()
            if turns.over:
                break
        if self._position < len(followers):
            return True
        self._busy, self._round = False, []
        again, self._again = self._again, False
        return again and bool(self.followers)

    @property
    def turns(self) -> Turns:
        return self._hub.turns

    # Reading

    def end(self, wishes: Wishes) -> int:
        """The last seq that a reader with these wishes may see; `UNKNOWN` until that is known."""
        return self.durable_to if wishes.strong else self.topic.head

    def read(self, cursor: int, epoch: int, wishes: Wishes, follower: Follower) -> Shared | None:
        """The page after a cursor; None when it has to be fetched, and `fetched` will be called.

        Raises what the engine refuses.  The page may be one of another topic that has taken the
        name: compare its epoch.
        """
        key = (cursor, wishes, epoch)
        shared = self._shared.get(key)
        if shared is not None:
            return shared
        waiting = self._fetching.get(key)
        if waiting is not None:
            waiting.append(follower)
            return None
        request = ReadRequest(cursor, wishes.limit, wishes.bytes_max, wishes.nodes, epoch)
        ticket = self._hub.engine.read_page(self.topic.name, request)
        if ticket.error is not None:
            raise ticket.error
        if ticket.done:
            return self._share(key, ticket.result())
        self._fetching[key] = [follower]
        ticket.when_done(lambda done: self._fetched(key, done))
        return None

    def _share(self, key: _Key, page: Page) -> Shared:
        topic, hub = self.topic, self._hub
        if key[1].strong and page.epoch == topic.epoch:
            page = up_to(page, self.durable_to)
        if page.rows:
            hub.engine.touch(topic)
        shared = Shared(page)
        hub.keep(self)
        self._shared[key] = shared
        return shared

    def _fetched(self, key: _Key, ticket: Ticket[Page]) -> None:
        followers = self._fetching.pop(key)
        error = ticket.error
        shared = self._share(key, ticket.result()) if error is None else None
        for follower in followers:
            follower.fetched(self, shared, error)

    def forget_pages(self) -> None:
        self._shared.clear()

    # What is on disk

    def _sync(self) -> None:
        """Learn how much is on disk, if anybody wants to know."""
        topic = self.topic
        if not self._strong_count or self._syncing or self.durable_to >= topic.head:
            return
        self._syncing = True
        head = topic.head
        self._hub.engine.synced(topic.name).when_done(lambda done: self._synced(head, done))

    def _synced(self, head: int, ticket: Ticket[None]) -> None:
        self._syncing = False
        if ticket.error is None:
            self.durable_to = max(self.durable_to, head)
            self.wake()
        elif isinstance(ticket.error, InvalidRequest):
            self.sync_refusal = ticket.error
            self.wake()
        # Any other failure: the log takes nothing any more, so there is nothing to wait for.

    # Followers

    def add(self, follower: Follower, strong: bool) -> None:
        assert follower not in self.followers
        self.followers[follower] = None
        self._strong_count += strong
        self._sync()

    def remove(self, follower: Follower, strong: bool) -> None:
        del self.followers[follower]
        self._strong_count -= strong
        if not self.followers:
            waiters = self.topic.waiters
            if self._armed and waiters is not None and self in waiters:
                waiters.remove(self)
            self._armed = False
            self._hub.drop(self)


class _Notice(Job):
    """Tells the followers of a topic that they have to wait, in slices like anything else."""

    __slots__ = ("_feed", "_left", "_ms_max")

    def __init__(self, feed: Feed, ms_max: int) -> None:
        super().__init__()
        self._feed = feed
        self._left = list(feed.followers)
        self._ms_max = ms_max

    @property
    def priority(self) -> int:
        return 0  # above what it tells of, and no higher than anything that is delivered

    def step(self) -> bool:
        feed, left, turns = self._feed, self._left, self._feed.turns
        while left and not turns.over:
            follower = left.pop()
            if follower not in feed.followers:
                continue
            try:
                follower.paced(feed, self._ms_max)
            except Exception:
                log.exception("a follower of %r failed", feed.topic.name)
                follower.broken()
        return bool(left)


class LiveHub:
    """Everybody who follows topics of one engine.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as directory:
    ...     with Engine.open(directory) as engine:
    ...         hub = LiveHub(engine)
    ...         hub.wishes(10, 1000, (), False) is hub.wishes(10, 1000, (), False)
    True
    """

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self.turns = engine.core.turns
        self.turns.when_idle.append(self._forget_pages)
        self.visits = Visits(self.turns)
        self._feeds: dict[int, Feed] = {}
        self._shared_in: dict[Feed, None] = {}
        self._shared_count = 0
        self._wishes: WeakValueDictionary[tuple[object, ...], Wishes] = WeakValueDictionary()
        self._by_prefix: dict[str, dict[Callable[[Topic], None], None]] = {}
        engine.core.on_topic_created.append(self._created)

    # Pages

    def wishes(
        self, limit: int, bytes_max: int, nodes: tuple[str, ...], strong: bool = False
    ) -> Wishes:
        """The one object for these wishes."""
        key = (limit, bytes_max, nodes, strong)
        wishes = self._wishes.get(key)
        if wishes is None:
            wishes = self._wishes[key] = Wishes(*key)
        return wishes

    def keep(self, feed: Feed) -> None:
        """A page is about to be kept in a feed."""
        if self._shared_count >= SHARED_PAGES_MAX:
            self._forget_pages()
        self._shared_in[feed] = None
        self._shared_count += 1
        self.turns.ask()  # where it was read outside a turn, the next one drops it

    def _forget_pages(self) -> None:
        for feed in self._shared_in:
            feed.forget_pages()
        self._shared_in.clear()
        self._shared_count = 0

    # Topics

    def find(self, name: str) -> Topic | None:
        """The live topic of a name."""
        topic = self.engine.core.by_name.get(name)
        return topic if topic is not None and topic.live else None

    def follow(self, topic: Topic, follower: Follower, *, strong: bool = False) -> Feed:
        """Begin to follow a topic."""
        feed = self._feeds.get(topic.id)
        if feed is None:
            feed = self._feeds[topic.id] = Feed(self, topic)
        feed.add(follower, strong)
        return feed

    def drop(self, feed: Feed) -> None:
        """Nobody follows it any more."""
        if self._feeds.get(feed.topic.id) is feed:
            del self._feeds[feed.topic.id]
        self._shared_in.pop(feed, None)

    def follow_names(self, prefix: str, created: Callable[[Topic], None]) -> None:
        """Hear of every topic that is created with a name of this prefix."""
        self._by_prefix.setdefault(prefix, {})[created] = None

    def leave_names(self, prefix: str, created: Callable[[Topic], None]) -> None:
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


def up_to(page: Page, last: int) -> Page:
    """A page as if `last` were the topic's head."""
    lost = page.tombstone
    if lost is not None and lost.reason != "recreated":
        last = max(last, lost.gap_to)  # what is gone needs no disk
    if page.head_seq <= last:
        return page
    rows = []
    for part in page.rows:
        if part.seqs[-1] > last:
            kept = bisect_right(part.seqs, last)
            part = part.pick(range(kept))
        if len(part):
            rows.append(part)
    cursor = min(page.next_from_seq, last)
    return msgspec.structs.replace(page, rows=rows, next_from_seq=cursor, head_seq=last)


def is_gone(error: BaseException) -> bool:
    """Whether a read failed only because the topic is on its way out."""
    return isinstance(error, HeadraceError) and error.code == "topic_not_found"
