"""Patterns that match more topics than a watch follows one by one (native §12f, §7.1e)."""

from __future__ import annotations

from headrace.engine.live import patterns
from tests.support.live_readers import Live, StartLive
from tests.support.websocket_client import Client
from tests.support.wide_watches import again, fill, held, read, three_one_by_one

__all__ = ["three_one_by_one"]


# How many topics there are


def test_the_next_topic_is_followed_like_those_before(live: Live) -> None:
    """The stream goes on when there are more topics than are followed one by one."""
    names = fill(live, 3)
    watcher = live.watch("t*")
    assert set(read(watcher.events())) == set(names)
    for name in ("t03", "t04", "t00", "t03"):
        live.append(name, 1)
        events = watcher.events()
        assert [event.event for event in events] == ["record", "caught-up"]
        assert {event.data["topic"] for event in events} == {name}
    assert not watcher.outlet.closed


def test_a_session_says_that_it_does_not_list_all(live: Live) -> None:
    fill(live, 3)
    assert "truncated" not in live.session("t*")
    live.append("t03", 1)
    said = live.session("t*")
    assert (said["truncated"], list(said["topics"])) == (True, ["t00", "t01", "t02"])


def test_everything_is_delivered_once_and_then_costs_nothing(live: Live) -> None:
    """K10: nothing is kept of a topic that is idle, and an id stays short."""
    names = fill(live, 200, 1, 2, 3)
    watcher = live.watch("t*")
    events = watcher.events()
    assert read(events) == {name: [1, 2, 3] for name in names}
    assert list(read(events)) == sorted(names), "in the order of their names"
    assert not live.hub._feeds
    assert all(topic.waiters is None for topic in live.engine.state.by_name.values())
    assert len(events[-1].id) < 80


def test_the_tail_is_what_comes_later(live: Live) -> None:
    fill(live, 10)
    watcher = live.watch({"t*": {"tail": True}})
    assert watcher.events() == []
    live.append("t05", 2)
    live.append("new", 1)
    live.append("t99", 1)
    assert read(watcher.events()) == {"t05": [2], "t99": [1]}


def test_from_seq_counts_for_every_topic(live: Live) -> None:
    fill(live, 5, 1, 2, 3)
    assert set(map(tuple, read(live.watch({"t*": {"from_seq": 2}}).events()).values())) == {(3,)}


def test_a_name_beats_a_pattern(live: Live) -> None:
    fill(live, 6, 1, 2, 3)
    watcher = live.watch({"t01": {"from_seq": 2}, "t*": {"tail": True}})
    assert read(watcher.events()) == {"t01": [3]}
    live.append("t01", 4)
    live.append("t02", 4)
    assert read(watcher.events()) == {"t01": [4], "t02": [4]}


def test_two_patterns_that_match_the_same(live: Live) -> None:
    fill(live, 6, 1, 2)
    events = live.watch("t* t0*").events()
    assert set(map(tuple, read(events).values())) == {(1, 2)}


def test_many_topics_that_came_while_nobody_listened(live: Live) -> None:
    fill(live, 2)
    session = live.session("t*")
    watcher = live.open(session)
    watcher.events()
    watcher.outlet.hang_up()
    names = fill(live, 9, 1)
    found = read(live.open(session).events())
    assert found == {**{name: [1] for name in names[2:]}, "t00": [2], "t01": [2]}


def test_only_what_is_on_disk_if_it_asks_for_that(live: Live) -> None:
    fill(live, 6)
    watcher = live.watch("t*", consistency="strong")
    live.wait(100)
    assert len(read(watcher.events())) == 6
    live.append("t03", 2)
    live.wait(100)
    assert read(watcher.events()) == {"t03": [2]}
    assert not live.hub._feeds


# Readers that are slow, topics that go


def test_a_slow_reader_gets_everything_once(live: Live) -> None:
    names = fill(live, 200)
    watcher = live.watch({"t*": {"tail": True}})
    watcher.events()
    watcher.outlet.fill()
    for _ in range(2):
        for name in names:
            live.append(name, 2)
    live.run()
    assert len(live.hub._feeds) <= patterns.ACTIVE_MAX
    watcher.outlet.drain()
    assert read(watcher.events()) == {name: [2, 3] for name in names}


def test_a_reader_that_falls_too_far_behind(start: StartLive) -> None:
    """Beyond a bound nothing is kept in mind for it: it goes on in the journal."""
    live = start(watch_topics_behind_max=80)
    names = fill(live, 200)
    watcher = live.watch({"t*": {"tail": True}})
    watcher.events()
    watcher.outlet.fill()
    for _ in range(2):
        for name in names:
            live.append(name, 2)
    live.run()
    assert held(live) < 80 * patterns.PENDING_BYTES + 200_000
    watcher.outlet.drain()
    assert read(watcher.events()) == {name: [2, 3] for name in names}
    live.append("t07", 2)
    assert read(watcher.events()) == {"t07": [4]}


def test_a_reader_that_falls_behind_the_journal(start: StartLive) -> None:
    """Nothing is missing."""
    live = start(watch_topics_behind_max=64, watch_journal_bytes=2_048)
    names = fill(live, 200)
    watcher = live.watch({"t*": {"tail": True}})
    watcher.events()
    watcher.outlet.fill()
    for _ in range(2):
        for name in names:
            live.append(name, 2)
    live.run()
    watcher.outlet.drain()
    found = read(watcher.events())
    assert {name: sorted({*seqs} - {1}) for name, seqs in found.items()} == {
        name: [2, 3] for name in names
    }


def test_a_topic_that_goes_and_comes_back(live: Live) -> None:
    fill(live, 10)
    watcher = live.watch("t*")
    watcher.events()
    live.engine.delete_topic("t04").result()
    [gone] = watcher.events()
    assert (gone.event, gone.data["topic"]) == ("topic-deleted", "t04")
    live.append("t04", 1, 2)
    assert read(watcher.events()) == {"t04": [1, 2]}
    assert not watcher.outlet.closed


def test_a_topic_that_cannot_be_read(live: Live) -> None:
    """§7.3h: the others go on, and who resumes tries it again."""
    names = fill(live, 10)
    session = live.session("t*")
    live.engine.checkpoint().result()
    state = live.engine.state
    state.forget_blocks(state.by_name["t04"])
    files_of = state.catalog.files_of
    state.catalog.files_of = lambda topic_id: []  # type: ignore[method-assign]
    watcher = live.open(session)
    events = watcher.events()
    assert set(read(events)) == set(names) - {"t04"}
    [error] = [event for event in events if event.event == "error"]
    assert (error.data["topic"], error.data["code"]) == ("t04", "segment_corrupt")
    live.append("t05", 2)
    last = watcher.events()[-1]
    assert last.data["topic"] == "t05"
    state.catalog.files_of = files_of  # type: ignore[method-assign]
    assert read(again(live, session, watcher, last.id).events()) == {"t04": [1]}


# Over a WebSocket


def test_a_websocket_follows_patterns(live: Live) -> None:
    """§8g: as a watch does, from the first records on or from the tail."""
    names = fill(live, 100, 1, 2)
    client = Client(live)
    client.send("subscribe", topics={"t*": {}, "t00": {"tail": True}})
    [said, *messages] = client.read()
    assert (said["op"], said["patterns"], list(said["topics"])) == ("subscribed", ["t*"], ["t00"])
    found = {m["topic"]: [r["$seq"] for r in m["records"]] for m in messages if m["op"] == "record"}
    assert found == {name: [1, 2] for name in names[1:]}
    live.append("t42", 3)
    live.append("t00", 3)
    records = [message for message in client.read() if message["op"] == "record"]
    assert {message["topic"] for message in records} == {"t42", "t00"}
    live.engine.delete_topic("t07").result()
    [gone] = client.read()
    assert (gone["op"], gone["topic"]) == ("topic_deleted", "t07")
    client.send("unsubscribe", topics=["t*"])
    assert client.read()[-1]["topics"] == ["t*"]
    live.append("t42", 4)
    assert client.read() == []
    client.outlet.hang_up()
    assert held(live) == 0
    assert live.engine.state.totals.journal is None


def test_patterns_of_a_websocket_do_not_overlap(live: Live) -> None:
    client = Client(live)
    client.send("subscribe", topic="t*", tail=True)
    assert client.read()[0]["patterns"] == ["t*"]
    client.send("subscribe", topic="t0*")
    [refused] = client.read()
    assert (refused["op"], refused["code"]) == ("error", "invalid_request")
    client.send("subscribe", topic="t*", tail=True)  # again is fine
    assert client.read()[0]["op"] == "subscribed"
    live.append("t01", 1)
    assert [message["op"] for message in client.read()] == ["record", "caught_up"]


def test_a_name_of_a_websocket_beats_its_pattern(live: Live) -> None:
    fill(live, 5)
    client = Client(live)
    client.send("subscribe", topics={"t*": {"tail": True}, "t01": {"from_seq": 0}})
    records = [message for message in client.read() if message["op"] == "record"]
    assert [message["topic"] for message in records] == ["t01"]
