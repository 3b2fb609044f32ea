"""Feeds: rounds of followers, pages that are read once, and what a follower does when behind."""

from __future__ import annotations

import pytest

from headrace.core.errors import InvalidRequest
from headrace.engine.engine import Engine
from headrace.engine.live import feed as feed_module
from headrace.engine.live.feed import TopicFeed
from headrace.engine.live.follower import Follower, Position, Subscription
from headrace.engine.live.hub import SHARED_PAGES_MAX, LiveHub
from headrace.engine.live.pages import SharedPage
from headrace.engine.topics.topic import Topic
from tests.support.seqs import seqs_of_page


class Reader(Follower[None]):
    """Takes every page at once, while it has room."""

    __slots__ = ("errors", "fails", "given_up", "gone", "hub", "pages", "room", "seqs")

    def __init__(self, hub: LiveHub) -> None:
        super().__init__(hub)
        self.hub = hub
        self.seqs: list[int] = []
        self.pages: list[SharedPage] = []
        self.gone: list[tuple[str, int]] = []
        self.errors: list[BaseException] = []
        self.room = True
        self.fails = False
        self.given_up = False

    @property
    def ready(self) -> bool:
        return self.room

    def deliver(self, subscription: Subscription[None], shared: SharedPage) -> None:
        if self.fails:
            raise RuntimeError("broken on purpose")
        self.pages.append(shared)
        self.seqs += seqs_of_page(shared.page)

    def topic_gone(self, subscription: Subscription[None], head_seq: int) -> None:
        self.gone.append((subscription.position.name, head_seq))

    def topic_failed(self, subscription: Subscription[None], error: BaseException) -> None:
        self.errors.append(error)

    def broken(self) -> None:
        self.given_up = True
        self.leave_all()

    def start(
        self, topic: Topic, cursor: int = 0, limit: int = 100, epoch: int | None = None
    ) -> Subscription[None]:
        """Follow a topic."""
        epoch = topic.epoch if epoch is None else epoch
        options = self.hub.page_options(limit, 1 << 20, ())
        return self.follow(Position(topic.name, epoch, cursor), options, None, topic)


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
        def deliver(self, subscription: Subscription[None], shared: SharedPage) -> None:
            super().deliver(subscription, shared)
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
        def deliver(self, subscription: Subscription[None], shared: SharedPage) -> None:
            super().deliver(subscription, shared)
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
    read_topic = feed_module.read_topic
    monkeypatch.setattr(
        feed_module, "read_topic", lambda *given: reads.append(given) or read_topic(*given)
    )
    engine.append("jobs", [0]).result()
    while engine.runtime.step():  # type: ignore[attr-defined]
        assert not any(reader.backlog for reader in (appending, *readers))
    assert [reader.seqs for reader in (appending, *readers)] == [list(range(3, 41))] * 4
    pages = [shared.page.count for shared in readers[0].pages if shared.count]
    assert len(reads) == len(pages) == 1 + 37 // 3 + 1


def test_a_page_is_read_once_for_all_and_not_kept(
    engine: Engine, hub: LiveHub, monkeypatch: pytest.MonkeyPatch
) -> None:
    readers = [Reader(hub) for _ in range(3)]
    feeds = [feed_of(reader.start(topic_of(engine, "jobs"), cursor=2)) for reader in readers]
    run(engine)
    reads: list[object] = []
    read_topic = feed_module.read_topic
    monkeypatch.setattr(
        feed_module, "read_topic", lambda *given: reads.append(given) or read_topic(*given)
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
        assert not feed.hand_over(subscription)
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
    assert [page.count for page in slow.pages if page.count] == [2, 2, 1]
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
