"""The hub: rounds of followers, shared pages, names, and pages cut at what is on disk."""

from __future__ import annotations

import pytest

from headrace.engine.engine import Engine
from headrace.engine.live import SHARED_PAGES_MAX, Feed, Follower, LiveHub, Shared, up_to
from headrace.engine.topic import Topic


class Reader(Follower):
    """Reads whatever arrives, at once."""

    __slots__ = ("cursor", "fails", "given_up", "hub", "pages", "seqs")

    def __init__(self, hub: LiveHub) -> None:
        super().__init__()
        self.hub = hub
        self.cursor = 0
        self.seqs: list[int] = []
        self.pages: list[Shared] = []
        self.fails = False
        self.given_up = False

    def arrived(self, feed: Feed) -> None:
        if self.fails:
            raise RuntimeError("broken on purpose")
        if not feed.topic.live:
            feed.remove(self, False)
            return
        wishes = self.hub.wishes(100, 1 << 20, ())
        shared = feed.read(self.cursor, feed.topic.epoch, wishes, self)
        assert shared is not None
        self.pages.append(shared)
        self.seqs += [record.seq for record in shared.page.records]
        self.cursor = shared.page.next_from_seq

    def step(self) -> bool:
        return False

    def broken(self) -> None:
        self.given_up = True


def topic_of(engine: Engine, name: str) -> Topic:
    return engine.core.by_name[name]


@pytest.fixture
def hub(engine: Engine) -> LiveHub:
    engine.append("jobs", [1, 2]).result()
    return LiveHub(engine)


def run(engine: Engine) -> None:
    engine.runtime.run()  # type: ignore[attr-defined]


def test_followers_hear_of_every_append(engine: Engine, hub: LiveHub) -> None:
    readers = [Reader(hub) for _ in range(3)]
    for reader in readers:
        hub.follow(topic_of(engine, "jobs"), reader)
    for value in range(5):
        engine.append("jobs", [value, value]).result()
        run(engine)
    assert [reader.seqs for reader in readers] == [list(range(1, 13))] * 3


def test_what_is_appended_during_a_round_is_heard_in_the_next(engine: Engine, hub: LiveHub) -> None:
    class Appending(Reader):
        def arrived(self, feed: Feed) -> None:
            super().arrived(feed)
            if self.cursor < 10:
                engine.append("jobs", [0])
                engine.flush()

    appending, reader = Appending(hub), Reader(hub)
    hub.follow(topic_of(engine, "jobs"), reader)
    hub.follow(topic_of(engine, "jobs"), appending)
    engine.append("jobs", [0]).result()
    run(engine)
    assert reader.seqs == appending.seqs == list(range(1, 11))


def test_a_page_is_read_once_for_all_and_not_kept(engine: Engine, hub: LiveHub) -> None:
    readers = [Reader(hub) for _ in range(3)]
    for reader in readers:
        feed = hub.follow(topic_of(engine, "jobs"), reader)
    engine.append("jobs", [3]).result()
    run(engine)
    pages = [reader.pages for reader in readers]
    assert all(page[0] is pages[0][0] for page in pages)
    assert not feed._shared


def test_pages_that_are_kept_are_bounded(engine: Engine, hub: LiveHub) -> None:
    engine.append("jobs", list(range(200))).result()
    reader = Reader(hub)
    feed = hub.follow(topic_of(engine, "jobs"), reader)
    wishes = hub.wishes(1, 1 << 20, ())
    for cursor in range(SHARED_PAGES_MAX + 10):
        feed.read(cursor, feed.topic.epoch, wishes, reader)
        assert len(feed._shared) <= SHARED_PAGES_MAX
    run(engine)
    assert not feed._shared


def test_a_follower_that_fails_harms_nobody_else(engine: Engine, hub: LiveHub) -> None:
    readers = [Reader(hub) for _ in range(3)]
    readers[1].fails = True
    for reader in readers:
        hub.follow(topic_of(engine, "jobs"), reader)
    engine.append("jobs", [3]).result()
    run(engine)
    assert [reader.given_up for reader in readers] == [False, True, False]
    assert readers[0].seqs == readers[2].seqs == [1, 2, 3]


def test_a_deleted_topic_wakes_its_followers(engine: Engine, hub: LiveHub) -> None:
    reader = Reader(hub)
    feed = hub.follow(topic_of(engine, "jobs"), reader)
    engine.delete_topic("jobs").result()
    run(engine)
    assert not feed.followers
    assert not hub._feeds


def test_who_comes_and_goes_leaves_no_waiters(engine: Engine, hub: LiveHub) -> None:
    topic = topic_of(engine, "jobs")
    for _ in range(100):
        reader = Reader(hub)
        hub.follow(topic, reader).remove(reader, False)
    assert not topic.waiters
    assert not hub._feeds


def test_a_topic_and_its_successor_are_two_feeds(engine: Engine, hub: LiveHub) -> None:
    old, new = Reader(hub), Reader(hub)
    hub.follow(topic_of(engine, "jobs"), old)
    engine.delete_topic("jobs")
    engine.append("jobs", [7]).result()
    hub.follow(topic_of(engine, "jobs"), new)
    engine.append("jobs", [8]).result()
    run(engine)
    assert old.seqs == []
    assert new.seqs == [1, 2]


def test_reading_is_consuming(engine: Engine, hub: LiveHub) -> None:
    reader = Reader(hub)
    hub.follow(topic_of(engine, "jobs"), reader)
    assert topic_of(engine, "jobs").last_read_ms == 0
    engine.append("jobs", [3]).result()
    run(engine)
    assert topic_of(engine, "jobs").last_read_ms == engine.core.clock.now_ms()


def test_names_are_heard_of_by_prefix(engine: Engine, hub: LiveHub) -> None:
    heard: dict[str, list[str]] = {"": [], "a": [], "a:b": []}

    def listener(prefix: str) -> None:
        def created(topic: Topic) -> None:
            heard[prefix].append(topic.name)

        hub.follow_names(prefix, created)

    for prefix in heard:
        listener(prefix)
    for name in ("a", "a:b", "a:bc", "b", "ab"):
        engine.append(name, [1]).result()
    assert heard == {
        "": ["a", "a:b", "a:bc", "b", "ab"],
        "a": ["a", "a:b", "a:bc", "ab"],
        "a:b": ["a:b", "a:bc"],
    }


def test_names_may_be_left(engine: Engine, hub: LiveHub) -> None:
    heard: list[Topic] = []
    hub.follow_names("a", heard.append)
    hub.leave_names("a", heard.append)
    engine.append("a", [1]).result()
    assert heard == []
    assert not hub._by_prefix


def test_wishes_that_nobody_has_are_forgotten(hub: LiveHub) -> None:
    assert hub.wishes(1, 2, ("n",), True) is hub.wishes(1, 2, ("n",), True)
    assert len(hub._wishes) == 0
    kept = hub.wishes(1, 2, ())
    assert kept is not hub.wishes(1, 3, ())
    assert len(hub._wishes) == 1


# Pages cut at what is on disk


def test_a_page_is_cut(engine: Engine, hub: LiveHub) -> None:
    engine.append("jobs", [3, 4, 5]).result()
    page = engine.read("jobs").result()
    for last in range(6):
        cut = up_to(page, last)
        assert [record.seq for record in cut.records] == list(range(1, last + 1))
        assert (cut.next_from_seq, cut.head_seq) == (last, last)
    assert up_to(page, 5) is page


def test_a_page_that_ends_before_the_cut_is_not_caught_up(engine: Engine, hub: LiveHub) -> None:
    engine.append("jobs", [3, 4, 5]).result()
    cut = up_to(engine.read("jobs", limit=2).result(), 4)
    assert (cut.next_from_seq, cut.head_seq, cut.caught_up) == (2, 4, False)


def test_what_is_gone_is_told_however_much_is_on_disk(engine: Engine, hub: LiveHub) -> None:
    for value in range(6):
        engine.append("capped", [value], config={"cap_records": 2}).result()
    page = engine.read("capped").result()
    cut = up_to(page, 2)
    assert cut.tombstone is not None and cut.tombstone.gap_to == 4
    assert (cut.next_from_seq, cut.head_seq, cut.records) == (4, 4, [])
