"""One followed topic: when its followers are served, and the pages that are read for them.

Only this file fans out.  The engine knows one waiter for each followed topic, however many follow
it.  When the topic publishes, each follower that can take a page is handed its next one: the page
is read here, once for all followers at the same place with the same options, and encoded and
written by the follower.  A follower that cannot take a page now reads on later, from its cursor
(`follower.py`): nothing is queued for it.

A round runs after the acknowledgements of its turn, in slices (`scheduling/turns.py`), so that a
thousand readers delay neither a writer nor the readers of another topic.  Followers that are told a
page in the same words get it together, as many as a slice has room for.  What is published during a
round goes to those still to be served, too, and to the others in the next round.  A page is read
anew for `SAME_PAGE_MIN` followers at least, so that most stay at few places.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from headrace.core.errors import HeadraceError, InvalidRequest, TopicNotFound
from headrace.core.runtime import Ticket
from headrace.engine.appending.admission import check_seq
from headrace.engine.live.follower import AnySubscription, Position
from headrace.engine.live.pages import PageOptions, SharedPage, up_to
from headrace.engine.reading.page import Page
from headrace.engine.reading.page_rows import ReadRequest
from headrace.engine.reading.read import read_at_once
from headrace.engine.scheduling.priority import priority_of
from headrace.engine.scheduling.turns import Job, Turns
from headrace.engine.topics.topic import Topic

if TYPE_CHECKING:
    from headrace.engine.live.hub import LiveHub

log = logging.getLogger("headrace.live")

UNKNOWN: Final = -1
FAILED: Final = "a follower of %r failed"

# Followers served between two looks at the clock; few at first, when a page's cost is not known.
TOGETHER_MAX, FIRST_TOGETHER_MAX = 256, 8
# Followers that a page is read for, before a round looks for what was published since.
SAME_PAGE_MIN: Final = 64
# What a follower is thought to take before any was served: the first slices are short.
NS_EACH: Final = 60_000

_PageKey = tuple[int, PageOptions, int]


class TopicFeed(Job):
    """One followed topic."""

    __slots__ = (
        "_armed",
        "_busy",
        "_fetching",
        "_hub",
        "_index",
        "_ns_each",
        "_pages",
        "_read_at",
        "_repeat",
        "_round",
        "_round_head",
        "_strong_count",
        "_syncing",
        "durable_to",
        "subscriptions",
        "sync_refusal",
        "topic",
    )

    def __init__(self, hub: LiveHub, topic: Topic) -> None:
        super().__init__()
        self.topic = topic
        self.subscriptions: dict[AnySubscription, None] = {}
        self.durable_to = UNKNOWN  # the last seq known to be on disk; kept for strong readers
        self.sync_refusal: InvalidRequest | None = None  # why its records are never on disk
        self._hub = hub
        self._armed = False
        self._busy = False  # a round is under way
        self._repeat = False  # another round is due after it
        self._round: list[AnySubscription] = []
        self._round_head = 0  # the topic's head when the round began, or looked for more
        self._read_at = 0  # the index at which it did
        self._index = 0  # of the next subscription in the round
        self._ns_each = NS_EACH  # what one of the followers took that were served last
        self._pages: dict[_PageKey, SharedPage] = {}
        self._fetching: dict[_PageKey, list[AnySubscription]] = {}
        self._strong_count = 0
        self._syncing = False
        self._arm()

    # Waking

    def _arm(self) -> None:
        """Wait for the topic's next change, unless this feed does so already."""
        topic = self.topic
        if self._armed or not topic.live:
            return
        self._armed = True
        topic.wait(self)

    def __call__(self) -> None:
        """Called by the engine: the topic has changed."""
        self._armed = False
        self.wake()

    def wake(self) -> None:
        """Serve all followers, in the round under way or in the next one."""
        if self._busy:
            self._repeat = True
            return
        self._pages.clear()
        if self.subscriptions:
            self._hub.turns.wake(self)

    @property
    def priority(self) -> int:
        return priority_of(self.topic, self._hub.now_ms())

    def held(self, ms_max: int) -> None:
        self._hub.turns.enqueue(_DelayNotice(self, ms_max))

    def step(self) -> bool:
        """Serve as many followers as fit into the slice."""
        turns = self._hub.turns
        if not self._busy:
            # Before anything is read, so that a later append wakes this feed again.
            self._arm()
            self._sync()
            self._busy, self._index, self._read_at = True, 0, 0
            self._round, self._round_head = list(self.subscriptions), self.topic.head
            self._pages.clear()
        subscriptions, index = self._round, self._index
        left_ns = turns.left_ns
        while index < len(subscriptions):
            if index - self._read_at >= SAME_PAGE_MIN and self.topic.head != self._round_head:
                self._round_head, self._read_at = self.topic.head, index
                self._pages.clear()
            most = TOGETHER_MAX if index else FIRST_TOGETHER_MAX
            part = subscriptions[index : index + min(max(left_ns // self._ns_each, 1), most)]
            self._index = index = index + len(part)
            for alike in self._ready(part):
                self._serve(alike)
            before_ns, left_ns = left_ns, turns.left_ns
            self._ns_each = (before_ns - left_ns) // len(part) + 1
            if left_ns <= 0:
                break
        if index < len(subscriptions):
            return True
        self._busy, self._round = False, []
        repeat, self._repeat = self._repeat, False
        return repeat and bool(self.subscriptions)

    @property
    def turns(self) -> Turns:
        return self._hub.turns

    def _ready(self, subscriptions: Sequence[AnySubscription]) -> list[list[AnySubscription]]:
        """Return those that can take a page now; alike ones that are at one place, together."""
        followed, found = self.subscriptions, []
        alike, cursor, epoch = None, UNKNOWN, UNKNOWN
        for subscription in subscriptions:
            if subscription not in followed:
                continue  # it was left during this round
            follower = subscription.follower
            try:
                if follower.backlog or not follower.ready:
                    follower.postpone(subscription)
                    continue
            except Exception:
                log.exception(FAILED, self.topic.name)
                follower.broken()
                continue
            position = subscription.position
            if (
                subscription.alike is alike
                and alike is not None
                and position.cursor == cursor
                and position.epoch == epoch
                and not subscription.first
            ):
                found[-1].append(subscription)
                continue
            found.append([subscription])
            cursor, epoch = position.cursor, position.epoch
            alike = None if subscription.first else subscription.alike
        return found

    def _serve(self, alike: Sequence[AnySubscription]) -> None:
        """Give followers their next page; who needs more than that reads on in its own turns."""
        try:
            if not self.hand_over(alike) and not self._rest_is_due(alike[0]):
                for subscription in alike:
                    subscription.follower.postpone(subscription)
                return
            for subscription in alike:
                if subscription.pattern is not None:
                    subscription.pattern.rested(subscription)
        except Exception:
            log.exception(FAILED, self.topic.name)
            for subscription in alike:
                subscription.follower.broken()

    def _rest_is_due(self, subscription: AnySubscription) -> bool:
        """Return whether what a follower has not been given is for the next round."""
        # What came since this round began has asked for it.
        behind = subscription.position.cursor < self._round_head
        return self._repeat and not behind and subscription.fetching is None

    # Pages

    def hand_over(self, alike: Sequence[AnySubscription]) -> bool:
        """Give a follower its next page; return whether that is all there is for it now.

        Several followers are alike, at one place, and have been given a page before.
        """
        subscription = alike[0]
        topic, options, position = self.topic, subscription.options, subscription.position
        stream = topic.stream
        if not topic.live or (stream is not None and stream.deleted):
            for one in alike:
                one.follower.lose(one)
            return True
        cursor, epoch, end = position.cursor, position.epoch, topic.head
        if options.strong:
            if self.sync_refusal is not None:
                _give_up(alike, self.sync_refusal)
                return True
            end = self.durable_to
            if end == UNKNOWN or (epoch == topic.epoch and end < cursor <= topic.head):
                return True  # nothing more is on disk; there will be a round when it is
        if cursor == end and epoch == topic.epoch and not subscription.first:
            if stream is not None and stream.closed:
                for one in alike:
                    one.follower.topic_closed(one)
            return True
        if subscription.fetching is None:
            shared = self._pages.get((cursor, options, epoch))
        else:
            shared = subscription.take_fetched()
        if shared is None:
            shared = self._read(alike)
            if shared is None:
                return subscription.fetching is None
        subscription.follower.deliver(alike, shared)
        cursor, epoch = shared.page.next_from_seq, shared.page.epoch
        for one in alike:
            position = one.position
            if position.cursor != cursor or position.epoch != epoch:
                position.move(epoch, cursor)
        subscription.first = False
        return cursor == (self.durable_to if options.strong else topic.head)

    def _read(self, alike: Sequence[AnySubscription]) -> SharedPage | None:
        """Read the next page of followers that are at one place.

        None: the page is being fetched, or cannot be read, which the followers were told.
        """
        subscription = alike[0]
        position, options = subscription.position, subscription.options
        cursor, epoch = position.cursor, position.epoch
        key = (cursor, options, epoch)
        waiting = self._fetching.get(key)
        if waiting is None:
            request = ReadRequest(cursor, options.limit, options.bytes_max, options.nodes, epoch)
            try:
                if subscription.first:
                    _check(position)
                found = read_at_once(self._hub.state, self.topic, request)
                if isinstance(found, Page):
                    return self._share(key, found)
                if found.error is not None:
                    raise found.error
            except (HeadraceError, OSError) as error:
                if not isinstance(error, TopicNotFound):  # of a deletion all are told soon
                    _give_up(alike, error)
                return None
            if found.done:
                return self._share(key, found.result())
            waiting = self._fetching[key] = []
            found.when_done(lambda done: self._fetched(key, done))
        for one in alike:
            waiting.append(one)
            one.fetching = (cursor, epoch)
        return None

    def _share(self, key: _PageKey, page: Page) -> SharedPage:
        hub = self._hub
        if key[1].strong:
            page = up_to(page, self.durable_to)
        if page.rows:
            self.topic.touch(hub.now_ms())
        shared = SharedPage(page)
        hub.keep(self)
        self._pages[key] = shared
        return shared

    def _fetched(self, key: _PageKey, ticket: Ticket[Page]) -> None:
        subscriptions = self._fetching.pop(key)
        error = ticket.error
        shared = self._share(key, ticket.result()) if error is None else None
        for subscription in subscriptions:
            if subscription not in self.subscriptions:
                continue
            follower = subscription.follower
            if shared is not None:
                subscription.fetched = shared
            else:
                subscription.fetching = None
                if error is not None and not isinstance(error, TopicNotFound):
                    follower.give_up(subscription, error)
            self._hub.turns.enqueue(follower)

    def forget_pages(self) -> None:
        self._pages.clear()

    # What is on disk

    def _sync(self) -> None:
        """Find out how much is on disk, if a strong reader follows."""
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
        # After any other failure the log takes no more writes: nothing is left to wait for.

    # Subscriptions

    def add(self, subscription: AnySubscription) -> None:
        assert subscription not in self.subscriptions
        self.subscriptions[subscription] = None
        self._strong_count += subscription.options.strong
        self._sync()

    def remove(self, subscription: AnySubscription) -> None:
        del self.subscriptions[subscription]
        self._strong_count -= subscription.options.strong
        if not self.subscriptions:
            if self._armed:
                self.topic.stop_waiting(self)
            self._armed = False
            self._hub.drop(self)


class _DelayNotice(Job):
    """Tells the followers of a topic that its new records come later, in slices."""

    __slots__ = ("_feed", "_left", "_ms_max")

    def __init__(self, feed: TopicFeed, ms_max: int) -> None:
        super().__init__()
        self._feed = feed
        self._left = list(feed.subscriptions)
        self._ms_max = ms_max

    @property
    def priority(self) -> int:
        return 0  # above the held topic, and no higher than anything that is delivered

    def step(self) -> bool:
        feed, left, turns = self._feed, self._left, self._feed.turns
        while left and not turns.over:
            subscription = left.pop()
            if subscription not in feed.subscriptions:
                continue
            follower = subscription.follower
            try:
                if follower.ready and subscription.position.cursor < feed.topic.head:
                    follower.topic_delayed(subscription, self._ms_max)
            except Exception:
                log.exception(FAILED, feed.topic.name)
                follower.broken()
        return bool(left)


def _give_up(subscriptions: Sequence[AnySubscription], error: BaseException) -> None:
    """Have followers leave a topic that cannot be read."""
    for subscription in subscriptions:
        subscription.follower.give_up(subscription, error)


def _check(position: Position) -> None:
    """Refuse a position that no topic can have: a client may have sent it."""
    check_seq("from_seq", position.cursor)
    check_seq("epoch", position.epoch)
