"""What a watch follows: topics by pattern, and only what is on disk if it asks for that."""

from __future__ import annotations

import sys
from types import FrameType

import pytest

from headrace.wire.native import watch_session as native_watch_session
from tests.support.live_readers import Event, Live, record_seqs

# Patterns

MADE_BY_HAND = "eyJvcmRlcnM6MDAiOjF9"  # {"orders:00":1}


def test_a_pattern_follows_what_is_there_and_what_is_created_later(live: Live) -> None:
    live.append("orders:eu", 1)
    live.append("other", 1)
    said = live.session("orders:*")
    assert list(said["topics"]) == ["orders:eu"]
    watcher = live.open(said)
    assert record_seqs(watcher.events()) == [1]
    live.append("orders:us", 1, 2)
    live.append("other", 2)
    events = watcher.events()
    assert {e.data["topic"] for e in events} == {"orders:us"}
    assert record_seqs(events) == [1, 2]
    assert set(events[-1].cursors) == {"$e", "orders:eu", "orders:us"}


def test_a_new_topic_is_followed_without_a_look_at_all_others(live: Live) -> None:
    """Else who follows a thousand topics pays for each of them whenever one is created."""
    watcher = live.watch("orders:*")
    looks: list[int] = []

    def count(frame: FrameType, event: str, _argument: object) -> None:
        code = frame.f_code
        if event == "call" and code.co_name == "<genexpr>":
            looks.append(code.co_filename.endswith("watch_stream.py"))

    sys.setprofile(count)
    try:
        for number in range(40):
            live.append(f"orders:{number:02}", 1)
    finally:
        sys.setprofile(None)
    assert sum(looks) == 0
    events = watcher.events()
    assert [e.data["topic"] for e in events if e.event == "record"] == [
        f"orders:{number:02}" for number in range(40)
    ]


def test_positions_of_new_topics_are_in_order_whichever_comes_first(live: Live) -> None:
    watcher = live.watch("orders:*")
    for name in ("m", "z", "a", "y"):
        live.append(f"orders:{name}", 1)
        last = watcher.events()[-1]
    names = [name for name in last.cursors if name.startswith("orders:")]
    assert names == [f"orders:{name}" for name in "amyz"]


def test_a_pattern_finds_what_was_created_while_nobody_listened(live: Live) -> None:
    session = live.session("orders:*")
    live.append("orders:us", 1)
    assert record_seqs(live.open(session).events()) == [1]


def test_a_pattern_outlives_its_topics(live: Live) -> None:
    live.append("orders:eu", 1)
    watcher = live.watch("orders:*")
    watcher.events()
    live.engine.delete_topic("orders:eu").result()
    assert watcher.names() == ["topic-deleted"]
    live.append("orders:eu", 1, 2)
    assert record_seqs(watcher.events()) == [1, 2]


def test_a_pattern_notices_a_topic_that_is_made_anew_at_once(live: Live) -> None:
    live.append("orders:eu", 1)
    watcher = live.watch("orders:*")
    watcher.events()
    deleted = live.engine.delete_topic("orders:eu")
    appended = live.engine.append("orders:eu", [7, 8, 9])
    deleted.result()
    appended.result()
    events = watcher.events()
    assert events[0].event == "topic-deleted"
    assert record_seqs(events) == [1, 2, 3]


def test_a_pattern_notices_a_topic_that_is_made_anew_before_its_end_was_told(live: Live) -> None:
    """It went while nobody was connected, and is back while its end waits for room."""
    live.append("orders:eu", 1)
    session = live.session("orders:*")
    watcher = live.open(session)
    watcher.events()
    watcher.outlet.hang_up()
    live.engine.delete_topic("orders:eu").result()
    watcher = live.open(session)
    watcher.outlet.fill()
    live.append("orders:eu", 7, 8, 9)
    live.run()
    watcher.outlet.drain()
    events = watcher.events()
    assert events[0].event == "topic-deleted"
    assert record_seqs(events) == [1, 2, 3]
    assert not watcher.outlet.closed
    live.append("orders:eu", 10)
    assert record_seqs(watcher.events()) == [4]


@pytest.mark.parametrize("topics", ["orders:eu other", "orders:* other"])
def test_an_end_that_did_not_arrive_is_told_again(live: Live, topics: str) -> None:
    live.append("orders:eu", 1)
    live.append("other", 1)
    session = live.session(topics)
    watcher = live.open(session)
    last = watcher.events()[-1].id
    live.engine.delete_topic("orders:eu").result()
    [told] = watcher.events()  # to a client that is gone
    watcher.outlet.hang_up()
    again = live.open(session, last_event_id=last)
    first, *rest = again.events()
    assert (first.event, first.data["topic"]) == ("topic-deleted", "orders:eu")
    assert [event.data["topic"] for event in rest] == ["other"]
    assert "orders:eu" not in first.cursors
    again.outlet.hang_up()
    assert live.open(session, last_event_id=told.id).names() == ["caught-up"], "it has heard"
    assert live.open(session, last_event_id=last).names() == ["caught-up"], (
        "it has heard since then"
    )


def test_a_topic_made_anew_after_an_end_that_did_not_arrive(live: Live) -> None:
    """Nothing else would ever say that there are records to read."""
    live.append("jobs", 1, 2)
    live.append("other", 1)
    session = live.session("jobs other")
    watcher = live.open(session)
    last = watcher.events()[-1].id
    live.engine.delete_topic("jobs").result()
    assert watcher.names() == ["topic-deleted"]
    watcher.outlet.hang_up()
    live.append("jobs", 7, 8, 9)
    events = live.open(session, last_event_id=last).events()
    assert [event.event for event in events[:2]] == ["tombstone", "record"]
    assert record_seqs(events) == [1, 2, 3]


@pytest.mark.parametrize("before", [1, 70])
def test_an_id_from_before_a_topic_goes_back_to_its_first_record(live: Live, before: int) -> None:
    """What was sent of it went to a client that was gone; the same for opaque ids."""
    for number in range(before):
        live.append(f"orders:{number:02}", 1)
    session = live.session("orders:*")
    watcher = live.open(session)
    last = watcher.events()[-1].id
    live.append("orders:new", 1, 2)
    assert record_seqs(watcher.events()) == [1, 2]  # and nobody reads it
    assert record_seqs(live.open(session, last_event_id=last).events()) == [1, 2]
    watcher.outlet.hang_up()
    assert record_seqs(live.open(session, last_event_id=last).events()) == [1, 2]
    # One that somebody made by hand says nothing of topics that it does not name.
    assert record_seqs(live.open(session, last_event_id=MADE_BY_HAND).events()) == []


def test_ended_topics_are_bounded(live: Live, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(native_watch_session, "ENDED_TOPICS_MAX", 2)
    for name in "abc":
        live.append(f"t:{name}", 1)
    session = live.session("t:*")
    watcher = live.open(session)
    last = watcher.events()[-1].id
    for name in "abc":
        live.engine.delete_topic(f"t:{name}").result()
    watcher.events()
    watcher.outlet.hang_up()
    events = live.open(session, last_event_id=last).events()
    assert [event.data["topic"] for event in events] == ["t:b", "t:c"]


def test_a_name_beats_a_pattern(live: Live) -> None:
    live.append("orders:eu", 1, 2)
    live.append("orders:us", 1, 2)
    said = live.session({"orders:eu": {"from_seq": 1}, "orders:*": {"tail": True}})
    assert said["topics"]["orders:eu"]["from_seq"] == 1
    assert said["topics"]["orders:us"]["from_seq"] == 2


# Strong consistency


@pytest.mark.parametrize("durability", ["memory", "disk"])
def test_strong_waits_for_the_disk_and_eventual_does_not(live: Live, durability: str) -> None:
    live.append("jobs", 0, config={"durability": durability})
    live.wait(200)
    eventual, strong = live.watch("jobs"), live.watch("jobs", consistency="strong")
    assert record_seqs(eventual.events()) == [1]
    live.wait(200)
    assert record_seqs(strong.events()) == [1]
    synced: list[int] = []
    shard = live.engine.state.shards[0]
    live.append("jobs", 1)
    while not strong.outlet.written:
        synced.append(shard.syncs_total)
        assert live.engine.runtime.step(), "nothing is left to do"  # type: ignore[attr-defined]
    assert record_seqs(eventual.events()) == [2]
    [record, caught_up] = strong.events()
    assert record.seqs == [2]
    assert caught_up.data["head_seq"] == 2
    assert synced[-1] > synced[0], "the record came after a sync"


def test_strong_shows_nothing_of_what_came_after_the_sync(live: Live) -> None:
    """Appends go on all the time: what is on disk is delivered, and no more."""
    live.append("jobs", 0)
    live.wait(200)
    watcher = live.watch("jobs", consistency="strong")
    live.wait(200)
    watcher.events()
    [feed] = live.hub._feeds.values()
    seen: list[int] = []
    for value in range(1, 40):
        live.engine.append("jobs", [value])
        for _ in range(3):
            live.engine.runtime.step()  # type: ignore[attr-defined]
        if watcher.outlet.written:
            durable_to = feed.durable_to
            batch = [Event(b) for b in watcher.outlet.take().decode().split("\n\n")[:-1]]
            seen += record_seqs(batch)
            assert max(seen) <= durable_to
    seen += record_seqs(watcher.events())
    assert seen == list(range(2, 41))


def test_a_topic_that_becomes_ephemeral_ends_a_strong_watch(live: Live) -> None:
    live.append("jobs", 0)
    watcher = live.watch("jobs", consistency="strong")
    live.wait(200)
    watcher.events()
    live.engine.put_topic("jobs", {"durability": "ephemeral"}).result()
    live.append("jobs", 1)
    live.wait(200)
    [event] = watcher.events()
    assert (event.event, event.data["code"]) == ("error", "invalid_request")
