"""Feeds: rounds of followers, pages that are read once, and what a follower does when behind."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from headrace.core.errors import InvalidRequest
from headrace.engine.engine import Engine
from headrace.engine.live import feed as feed_module
from headrace.engine.live.feed import FIRST_TOGETHER_MAX, SAME_PAGE_MIN, TopicFeed
from headrace.engine.live.follower import Follower, Position, Subscription
from headrace.engine.live.hub import SHARED_PAGES_MAX, LiveHub
from headrace.engine.live.pages import SharedPage
from headrace.engine.topics.topic import Topic
from tests.support.seqs import seqs_of_page


class Reader(Follower[None]):
    """Takes every page at once, while it has room."""

    __slots__ = ("errors", "fails", "given_up", "gone", "hub", "pages", "room", "seqs", "together")

    def __init__(self, hub: LiveHub) -> None:
        super().__init__(hub)
        self.hub = hub
        self.seqs: list[int] = []
        self.pages: list[SharedPage] = []
        self.gone: list[tuple[str, int]] = []
        self.errors: list[BaseException] = []
        self.together: list[int] = []  # how many it has delivered a page to, itself included
        self.room = True
        self.fails = False
        self.given_up = False

    @property
    def ready(self) -> bool:
        return self.room

    def deliver(self, alike: Sequence[Subscription[None]], shared: SharedPage) -> None:
        if self.fails:
            raise RuntimeError("broken on purpose")
        self.together.append(len(alike))
        for one in alike:
            assert isinstance(one.follower, Reader)
            one.follower.pages.append(shared)
            one.follower.seqs += seqs_of_page(shared.page)

    def topic_gone(self, subscription: Subscription[None], head_seq: int) -> None:
        self.gone.append((subscription.position.name, head_seq))

    def topic_failed(self, subscription: Subscription[None], error: BaseException) -> None:
        self.errors.append(error)

    def broken(self) -> None:
        self.given_up = True
        self.leave_all()

    def start(
        self,
        topic: Topic,
        cursor: int = 0,
        limit: int = 100,
        epoch: int | None = None,
        alike: object = None,
    ) -> Subscription[None]:
        """Follow a topic."""
        epoch = topic.epoch if epoch is None else epoch
        options = self.hub.page_options(limit, 1 << 20, ())
        return self.follow(Position(topic.name, epoch, cursor), options, None, topic, alike)


def feed_of(subscription: Subscription[None]) -> TopicFeed:
    assert subscription.feed is not None
    return subscription.feed


def topic_of(engine: Engine, name: str) -> Topic:
    return engine.state.by_name[name]


def run(engine: Engine) -> None:
    engine.runtime.run()  # type: ignore[attr-defined]


def test_followers_get_every_append(engine: Engine, hub: LiveHub) -> None:
    readers = [Reader(hub) for _ in range(3)]
    for reader in readers:
        reader.start(topic_of(engine, "jobs"))
    for value in range(5):
        engine.append("jobs", [value, value]).result()
        run(engine)
    assert [reader.seqs for reader in readers] == [list(range(1, 13))] * 3


def test_what_is_appended_during_a_round_comes_with_the_next(engine: Engine, hub: LiveHub) -> None:
    class Appending(Reader):
        def deliver(self, alike: Sequence[Subscription[None]], shared: SharedPage) -> None:
            super().deliver(alike, shared)
            if self.seqs[-1] < 10:
                engine.append("jobs", [0])
                engine.flush()

    appending, reader = Appending(hub), Reader(hub)
    reader.start(topic_of(engine, "jobs"))
    appending.start(topic_of(engine, "jobs"))
    engine.append("jobs", [0]).result()
    run(engine)
    assert reader.seqs == appending.seqs == list(range(1, 11))


def test_a_round_takes_what_is_new_for_each_however_much_comes_meanwhile(
    engine: Engine, hub: LiveHub, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody falls out of the rounds into turns of its own: each round reads one page for all."""

    class Appending(Reader):
        def deliver(self, alike: Sequence[Subscription[None]], shared: SharedPage) -> None:
            super().deliver(alike, shared)
            for _ in range(3):
                if reads and topic.head < 40:
                    engine.append("jobs", [0])
                    engine.flush()

    reads: list[object] = []
    topic = topic_of(engine, "jobs")
    readers = [Reader(hub) for _ in range(3)]
    appending = Appending(hub)
    for reader in (readers[0], appending, *readers[1:]):
        reader.start(topic, cursor=2)
    run(engine)
    read_at_once = feed_module.read_at_once
    monkeypatch.setattr(
        feed_module, "read_at_once", lambda *given: reads.append(given) or read_at_once(*given)
    )
    engine.append("jobs", [0]).result()
    while engine.runtime.step():  # type: ignore[attr-defined]
        assert not any(reader.backlog for reader in (appending, *readers))
    assert [reader.seqs for reader in (appending, *readers)] == [list(range(3, 41))] * 4
    pages = [shared.page.count for shared in readers[0].pages if shared.page.count]
    assert len(reads) == len(pages) == 1 + 37 // 3 + 1


def test_what_comes_during_a_long_round_goes_to_those_still_to_be_served(
    engine: Engine, hub: LiveHub, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A record waits for one round at most; pages are shared by many all the same."""

    class Appending(Reader):
        def deliver(self, alike: Sequence[Subscription[None]], shared: SharedPage) -> None:
            super().deliver(alike, shared)
            if topic.head == 3:
                engine.append("jobs", [4])
                engine.flush()

    monkeypatch.setattr(feed_module, "TOGETHER_MAX", 1)
    topic = topic_of(engine, "jobs")
    readers = [Appending(hub), *(Reader(hub) for _ in range(3 * SAME_PAGE_MIN))]
    for reader in readers:
        reader.start(topic, cursor=2)
    run(engine)
    reads: list[object] = []
    read_at_once = feed_module.read_at_once
    monkeypatch.setattr(
        feed_module, "read_at_once", lambda *given: reads.append(given) or read_at_once(*given)
    )
    engine.append("jobs", [3]).result()
    run(engine)
    assert all(reader.seqs == [3, 4] for reader in readers)
    counts = [
        [shared.page.count for shared in reader.pages if shared.page.count] for reader in readers
    ]
    assert counts[:SAME_PAGE_MIN] == [[1, 1]] * SAME_PAGE_MIN
    assert counts[SAME_PAGE_MIN:] == [[2]] * (len(readers) - SAME_PAGE_MIN)
    assert len(reads) == 3
    assert not any(reader.backlog for reader in readers)


def test_a_page_is_read_once_for_all_and_not_kept(
    engine: Engine, hub: LiveHub, monkeypatch: pytest.MonkeyPatch
) -> None:
    readers = [Reader(hub) for _ in range(3)]
    feeds = [feed_of(reader.start(topic_of(engine, "jobs"), cursor=2)) for reader in readers]
    run(engine)
    reads: list[object] = []
    read_at_once = feed_module.read_at_once
    monkeypatch.setattr(
        feed_module, "read_at_once", lambda *given: reads.append(given) or read_at_once(*given)
    )
    engine.append("jobs", [3]).result()
    run(engine)
    assert len(reads) == 1
    assert all(reader.pages[-1] is readers[0].pages[-1] for reader in readers)
    assert [reader.seqs for reader in readers] == [[3]] * 3
    assert not any(feed._pages for feed in feeds)


def test_pages_that_are_kept_are_bounded(engine: Engine, hub: LiveHub) -> None:
    engine.append("jobs", list(range(200))).result()
    reader = Reader(hub)
    subscription = reader.start(topic_of(engine, "jobs"), limit=1)
    feed = feed_of(subscription)
    for cursor in range(SHARED_PAGES_MAX + 10):
        subscription.position.cursor = cursor
        assert not feed.hand_over((subscription,))
        assert len(feed._pages) <= SHARED_PAGES_MAX
    reader.room = False
    run(engine)
    assert not feed._pages


def test_a_follower_that_fails_harms_no_other(engine: Engine, hub: LiveHub) -> None:
    readers = [Reader(hub) for _ in range(3)]
    readers[1].fails = True
    for reader in readers:
        reader.start(topic_of(engine, "jobs"))
    engine.append("jobs", [3]).result()
    run(engine)
    assert [reader.given_up for reader in readers] == [False, True, False]
    assert readers[0].seqs == readers[2].seqs == [1, 2, 3]


def test_followers_of_a_deleted_topic_lose_it(engine: Engine, hub: LiveHub) -> None:
    reader = Reader(hub)
    feed = feed_of(reader.start(topic_of(engine, "jobs")))
    engine.delete_topic("jobs").result()
    run(engine)
    assert reader.gone == [("jobs", 2)]
    assert not feed.subscriptions and not reader.subscriptions and not reader.backlog
    assert not hub._feeds


def test_who_comes_and_goes_leaves_no_waiters(engine: Engine, hub: LiveHub) -> None:
    topic = topic_of(engine, "jobs")
    for _ in range(100):
        reader = Reader(hub)
        reader.leave(reader.start(topic))
    assert not topic.waiters
    assert not hub._feeds


def test_a_topic_and_its_successor_are_two_feeds(engine: Engine, hub: LiveHub) -> None:
    old, new = Reader(hub), Reader(hub)
    old.start(topic_of(engine, "jobs"), cursor=2)
    engine.delete_topic("jobs")
    engine.append("jobs", [7]).result()
    new.start(topic_of(engine, "jobs"))
    engine.append("jobs", [8]).result()
    run(engine)
    assert (old.seqs, old.gone) == ([], [("jobs", 2)])
    assert new.seqs == [1, 2]


def test_reading_is_consuming(engine: Engine, hub: LiveHub) -> None:
    Reader(hub).start(topic_of(engine, "jobs"))
    assert topic_of(engine, "jobs").last_read_ms == 0
    engine.append("jobs", [3]).result()
    run(engine)
    assert topic_of(engine, "jobs").last_read_ms == engine.state.clock.now_ms()


def test_who_has_no_room_is_read_nothing_and_catches_up_later(engine: Engine, hub: LiveHub) -> None:
    slow, quick = Reader(hub), Reader(hub)
    subscription = slow.start(topic_of(engine, "jobs"), cursor=2, limit=2)
    quick.start(topic_of(engine, "jobs"), cursor=2, limit=2)
    run(engine)
    slow.room = False
    for value in range(5):
        engine.append("jobs", [value]).result()
        run(engine)
    assert quick.seqs == [3, 4, 5, 6, 7]
    assert slow.seqs == [] and list(slow.backlog) == [subscription]
    slow.room = True
    hub.turns.enqueue(slow)
    run(engine)
    assert slow.seqs == [3, 4, 5, 6, 7]
    assert [shared.page.count for shared in slow.pages if shared.page.count] == [2, 2, 1]
    assert not slow.backlog


@pytest.mark.parametrize(("cursor", "epoch"), [(-1, 0), (1 << 60, 0), (0, -1), (0, 1 << 60)])
def test_a_position_that_no_topic_can_have_is_refused(
    engine: Engine, hub: LiveHub, cursor: int, epoch: int
) -> None:
    reader = Reader(hub)
    reader.start(topic_of(engine, "jobs"), cursor=cursor, epoch=epoch)
    run(engine)
    [error] = reader.errors
    assert isinstance(error, InvalidRequest)
    assert str(cursor or epoch) in str(error)


def test_positions_are_checked_when_they_come_from_outside_only(
    engine: Engine, hub: LiveHub, monkeypatch: pytest.MonkeyPatch
) -> None:
    checked: list[object] = []
    monkeypatch.setattr(feed_module, "check_seq", lambda *given: checked.append(given))
    reader = Reader(hub)
    reader.start(topic_of(engine, "jobs"))
    run(engine)
    assert len(checked) == 2, "the cursor and the epoch"
    engine.append("jobs", [3]).result()
    run(engine)
    assert reader.seqs == [1, 2, 3]
    assert len(checked) == 2


# Together


def alike_readers(engine: Engine, hub: LiveHub, count: int) -> list[Reader]:
    """Readers at the tail of `jobs` whose subscriptions are alike."""
    alike = object()
    readers = [Reader(hub) for _ in range(count)]
    for reader in readers:
        reader.start(topic_of(engine, "jobs"), cursor=2, alike=alike)
    run(engine)
    for reader in readers:
        reader.together.clear()
    return readers


def test_those_alike_get_a_page_together(engine: Engine, hub: LiveHub) -> None:
    readers = alike_readers(engine, hub, 5)
    for value in range(3):
        engine.append("jobs", [value]).result()
        run(engine)
    assert [reader.seqs for reader in readers] == [[3, 4, 5]] * 5
    assert readers[0].together == [5] * 3
    assert not any(reader.together for reader in readers[1:])
    assert [
        subscription.position.cursor for reader in readers for subscription in reader.subscriptions
    ] == [5] * 5


def test_a_round_begins_with_few_since_its_page_may_take_longer_than_the_last_one(
    engine: Engine, hub: LiveHub
) -> None:
    readers = alike_readers(engine, hub, 40)
    for value in range(3):
        engine.append("jobs", [value]).result()
        run(engine)
        first = next(reader for reader in readers if reader.together)
        assert first.together[0] <= FIRST_TOGETHER_MAX
        for reader in readers:
            reader.together.clear()
    assert [reader.seqs for reader in readers] == [[3, 4, 5]] * 40


def test_those_alike_at_two_places_get_two_pages(engine: Engine, hub: LiveHub) -> None:
    readers = alike_readers(engine, hub, 4)
    for subscription in (*readers[1].subscriptions, *readers[2].subscriptions):
        subscription.position.cursor = 1
    engine.append("jobs", [3]).result()
    run(engine)
    assert [reader.seqs for reader in readers] == [[3], [2, 3], [2, 3], [3]]
    assert [reader.together for reader in readers] == [[1], [2], [], [1]]


def test_who_is_elsewhere_or_has_no_room_is_not_among_them(engine: Engine, hub: LiveHub) -> None:
    """Who is behind, full, gone or otherwise unlike gets its own page, in its own time."""
    readers = alike_readers(engine, hub, 6)
    full, gone, other = readers[1], readers[3], Reader(hub)
    other.start(topic_of(engine, "jobs"), cursor=2, alike=object())
    run(engine)
    full.room = False
    gone.leave_all()
    engine.append("jobs", [3]).result()
    run(engine)
    assert (full.seqs, gone.seqs, other.seqs) == ([], [], [3])
    rest = [reader for reader in readers if reader not in (full, gone)]
    assert [reader.seqs for reader in rest] == [[3]] * 4
    assert readers[0].together == [4] and other.together[-1] == 1
    full.room = True
    hub.turns.enqueue(full)
    engine.append("jobs", [4]).result()
    run(engine)
    assert full.seqs == [3, 4]
    assert [reader.seqs for reader in rest] == [[3, 4]] * 4


def test_the_first_page_of_a_follower_is_its_own(engine: Engine, hub: LiveHub) -> None:
    """It may be told a loss in other words, and where it begins is checked."""
    alike = object()
    readers = [Reader(hub) for _ in range(3)]
    for reader in readers:
        reader.room = False
        reader.start(topic_of(engine, "jobs"), alike=alike)
    run(engine)
    for reader in readers:
        reader.backlog.clear()
        reader.room = True
    engine.append("jobs", [3]).result()
    run(engine)
    assert [reader.together for reader in readers] == [[1]] * 3
    assert [reader.seqs for reader in readers] == [[1, 2, 3]] * 3


def test_of_those_alike_all_lose_a_topic_that_is_deleted(engine: Engine, hub: LiveHub) -> None:
    readers = alike_readers(engine, hub, 3)
    engine.delete_topic("jobs").result()
    run(engine)
    assert [reader.gone for reader in readers] == [[("jobs", 2)]] * 3
    assert not hub._feeds


def test_those_alike_fall_behind_together_and_catch_up(engine: Engine, hub: LiveHub) -> None:
    """More than a page has come: the rest is read in turns of their own, for each all of it."""
    alike = object()
    readers = [Reader(hub) for _ in range(3)]
    for reader in readers:
        reader.start(topic_of(engine, "jobs"), cursor=2, limit=2, alike=alike)
    run(engine)
    engine.append("jobs", list(range(7))).result()
    run(engine)
    assert [reader.seqs for reader in readers] == [list(range(3, 10))] * 3
    assert not any(reader.backlog for reader in readers)
