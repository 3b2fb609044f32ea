"""States of topics, pages of them by name, who counts as a consumer, and totals over all."""

from __future__ import annotations

import pytest

from headrace.core.clock import ManualClock
from headrace.core.errors import TopicNotFound
from headrace.engine.engine import Engine
from headrace.engine.scheduling.priority import effective_priority
from headrace.engine.topics import listing
from headrace.engine.topics.config import TopicConfig
from headrace.engine.topics.names import NameIndex
from tests.support.engines import Start


def names(engine: Engine, **query: object) -> list[str]:
    return [info.topic for info in engine.list_topics(**query).topics]  # type: ignore[arg-type]


def create(engine: Engine, *wanted: str) -> None:
    for ticket in [engine.put_topic(name) for name in wanted]:
        ticket.result()


# G1, G3: priority


@pytest.mark.parametrize(
    ("idle_ms", "priority"),
    [(0, 500), (15_000, 354), (30_000, 250), (60_000, 125), (120_000, 31), (299_999, 0)],
)
def test_g1_recency_halves_each_half_minute(idle_ms: int, priority: int) -> None:
    assert effective_priority(TopicConfig(), idle_ms) == priority


def test_g1_a_set_priority_wins_and_is_clamped() -> None:
    for given, shown in ((5, 5), (-5, -5), (5_000, 1_000), (-5_000, -1_000), (0, 0)):
        assert effective_priority(TopicConfig(priority=given), 0) == shown


def test_g1_nothing_is_automatic_where_it_is_off() -> None:
    assert effective_priority(TopicConfig(auto_priority=False), 0) == 0


def test_g3_never_consumed_is_zero_and_a_write_does_not_count(engine: Engine) -> None:
    engine.append("t", [1]).result()
    info = engine.topic("t")
    assert (info.last_read_ms, info.effective_priority) == (0, 0)
    assert info.last_write_ms == 1_700_000_000_000
    assert engine.put_topic("fresh").result().created
    assert engine.topic("fresh").last_write_ms == 0


def test_g3_a_touch_counts_before_the_answer_is_made(engine: Engine, clock: ManualClock) -> None:
    create(engine, "t")
    clock.advance(7)
    info = engine.topic("t", touch=True)
    assert (info.last_read_ms, info.effective_priority) == (1_700_000_000_007, 500)
    clock.advance(30_000)
    untouched = engine.topic("t")
    assert (untouched.last_read_ms, untouched.effective_priority) == (1_700_000_000_007, 250)
    engine.touch("t")
    assert engine.topic("t").effective_priority == 500
    clock.advance(60_000)
    assert engine.list_topics().topics[0].effective_priority == 125
    assert engine.list_topics(touch=True).topics[0].effective_priority == 500
    engine.touch(engine.state.by_name["t"])
    with pytest.raises(TopicNotFound):
        engine.touch("absent")


def test_l17_no_topic_counts_as_just_read_after_a_restart(engine: Engine, again: Start) -> None:
    create(engine, "t")
    assert engine.topic("t", touch=True).effective_priority == 500
    assert again(engine).topic("t").effective_priority == 0


# Pages


def test_pages_are_in_byte_order_and_complete(engine: Engine) -> None:
    wanted = ["a", "B", "a:1", "a-1", "Z", "ä", "z", "\U0001d49b", "\uffff", "10", "2"]
    create(engine, *wanted)
    ordered = sorted(wanted, key=lambda name: name.encode())
    assert names(engine) == ordered
    for limit in range(1, 13):
        seen: list[str] = []
        after: str | None = ""
        while after is not None:
            page = engine.list_topics("", after, limit)
            assert len(page.topics) <= limit
            seen += [info.topic for info in page.topics]
            after = page.after
        assert seen == ordered
    assert engine.list_topics(limit=len(wanted)).after is None
    assert names(engine, prefix="a") == ["a", "a-1", "a:1"]
    assert names(engine, prefix="a", after="a-1") == ["a:1"]
    assert names(engine, prefix="b", after="a") == []
    assert names(engine, prefix="\uffff") == ["\uffff"]


def test_a_page_shows_only_what_is_allowed(engine: Engine) -> None:
    create(engine, *(f"{kind}{n}" for kind in "ab" for n in range(5)))
    page = engine.list_topics("", "", 2, allowed=lambda name: name.startswith("b"))
    assert [info.topic for info in page.topics] == ["b0", "b1"] and page.after == "b1"


def test_a_page_looks_at_a_bounded_number_of_names(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(listing, "NAMES_TURNED_DOWN_MAX", 3)
    create(engine, *(f"t{n}" for n in range(8)))
    seen: list[str] = []
    asked = 0

    def allowed(name: str) -> bool:
        nonlocal asked
        asked += 1
        return name == "t7"

    after: str | None = ""
    while after is not None:
        before = asked
        page = engine.list_topics("", after, 5, allowed=allowed)
        assert asked - before <= 4
        seen += [info.topic for info in page.topics]
        after = page.after
    assert seen == ["t7"]


def test_the_list_follows_creations_deletions_and_restarts(start: Start, again: Start) -> None:
    engine = start()
    create(engine, "c", "a", "b")
    engine.delete_topic("b").result()
    pending = engine.put_topic("d")
    assert names(engine) == ["a", "c"], "not there before it is durable"
    pending.result()
    assert names(engine) == ["a", "c", "d"]
    engine.delete_topic("a")
    assert names(engine) == ["c", "d"]
    engine.put_topic("a").result()
    engine = again(engine)
    assert names(engine) == ["a", "c", "d"]
    assert [info.topic for info in engine.topics()] == ["a", "c", "d"]
    create(engine, "b")
    assert names(engine) == ["a", "b", "c", "d"]


def test_an_index_of_names_is_a_set() -> None:
    index = NameIndex()
    index.build(["b", "a", "b"])
    index.add("a")
    index.add("c")
    index.remove("b")
    index.remove("absent")
    assert list(index.after("")) == ["a", "c"] and len(index) == 2
    assert list(index.after("a")) == ["c"]


# Totals


def test_totals_count_topics_by_class_and_type(start: Start, again: Start) -> None:
    engine = start()
    for n, durability in enumerate(("ephemeral", "memory", "disk", "fsync", "fsync")):
        engine.put_topic(f"t{n}", {"durability": durability, "type": "queue"}).result()
    engine.put_topic("t4", {"durability": "memory", "type": "queue"}).result()
    engine.put_topic("log").result()
    engine.put_topic("t2", {"type": "queue", "durability": "disk"}).result()
    engine.delete_topic("t3").result()
    expected = {"ephemeral": 1, "memory": 2, "disk": 2, "fsync": 0}
    for _ in range(2):
        totals = engine.state.totals
        assert (totals.topics, totals.queues, totals.by_class) == (5, 4, expected)
        engine = again(engine)


def test_totals_count_live_records(start: Start, again: Start, clock: ManualClock) -> None:
    engine = start()
    engine.put_topic("capped", {"cap_records": 3}).result()
    engine.put_topic("short", {"ttl_ms": 1_000}).result()
    for n in range(6):
        engine.append("capped", [n]).result()
        engine.append("short", [n]).result()
        engine.append("plain", [n, n], config={"durability": "fsync"}).result()
    assert engine.state.totals.records == 3 + 6 + 12
    engine.delete("plain", before_seq=5).result()
    engine.delete("plain", match="absent*").result()
    assert engine.state.totals.records == 3 + 6 + 8
    clock.advance(2_000)
    engine.topic("short")
    assert engine.state.totals.records == 3 + 8
    engine.put_topic("capped", {"cap_records": 1}).result()
    assert engine.state.totals.records == 1 + 8
    engine = again(engine)
    assert engine.state.totals.records == 1 + 8
    engine.delete_topic("plain").result()
    assert engine.state.totals.records == 1
