"""Coming back to a watch over more topics than are followed one by one (native §7.4c)."""

from __future__ import annotations

import random
from collections import defaultdict

import pytest

from headrace.engine.live import patterns
from headrace.testing.simdisk import SimDisk
from tests.support.live_readers import Event, Live, StartLive
from tests.support.wide_watches import (
    again,
    events_so_far,
    fill,
    held,
    read,
    resume,
    three_one_by_one,
)

__all__ = ["three_one_by_one"]


def test_resuming_with_the_current_id_brings_nothing_again(live: Live) -> None:
    fill(live, 10)
    session = live.session("t*")
    watcher = live.open(session)
    last = watcher.events()[-1].id
    watcher = again(live, session, watcher, last)
    assert watcher.events() == []
    live.append("t07", 2)
    assert read(watcher.events()) == {"t07": [2]}
    assert again(live, session, watcher).events() == []


def test_resuming_brings_what_came_after_the_id(live: Live) -> None:
    fill(live, 10)
    session = live.session("t*")
    watcher = live.open(session)
    watcher.events()
    watcher.outlet.fill()  # so that all of them wait at once
    for name in ("t03", "t05", "t03", "t01"):
        live.append(name, 2)
    live.run()
    watcher.outlet.drain()
    events = watcher.events()
    expected = {"t03": [2, 3], "t05": [2], "t01": [2]}
    assert read(events) == expected
    for count, event in enumerate(events, 1):
        seen = read(events[:count])
        watcher = again(live, session, watcher, event.id)
        rest = read(watcher.events())
        assert {n: seen.get(n, []) + rest.get(n, []) for n in expected} == expected, event


def test_what_came_while_nobody_listened(live: Live) -> None:
    fill(live, 10)
    session = live.session("t*")
    watcher = live.open(session)
    last = watcher.events()[-1].id
    watcher.outlet.hang_up()
    for name in ("t03", "t03", "t20"):
        live.append(name, 2, 3)
    expected = {"t03": [2, 3, 4, 5], "t20": [1, 2]}
    watcher = live.open(session)
    assert read(watcher.events()) == expected
    assert read(again(live, session, watcher, last).events()) == expected


def test_coming_back_in_the_middle_of_the_first_reading(live: Live) -> None:
    names = fill(live, 30, 1, 2)
    session = live.session("t*", limit=1)
    seen: dict[str, list[int]] = defaultdict(list)
    last = ""
    for _ in range(200):
        watcher = resume(live, session, last)
        for _ in range(6):
            live.engine.runtime.step()  # type: ignore[attr-defined]
        for event in events_so_far(watcher)[:3]:  # the others did not arrive
            last = event.id
            for name, seqs in read([event]).items():
                seen[name] += seqs
        watcher.outlet.hang_up()
    assert seen == {name: [1, 2] for name in names}


def test_a_client_that_comes_back_from_before_there_were_so_many(live: Live) -> None:
    """Its id has the topics of then; it has seen nothing of the others."""
    fill(live, 3)
    session = live.session("t*")
    watcher = live.open(session)
    last = watcher.events()[-1].id
    for name in ("t03", "t04", "t00"):
        live.append(name, 1)
    expected = {"t00": [2], "t03": [1], "t04": [1]}
    assert read(watcher.events()) == expected
    assert read(again(live, session, watcher, last).events()) == expected


def test_coming_back_twice_before_anything_was_read(live: Live) -> None:
    """A place in the middle of a topic is kept while nobody reads on from it."""
    fill(live, 10)
    session = live.session({"t*": {"tail": True}}, limit=2)
    watcher = live.open(session)
    watcher.events()
    live.append("t03", *range(6))
    while not (events := events_so_far(watcher)):
        live.engine.runtime.step()  # type: ignore[attr-defined]
    assert read(events[:1]) == {"t03": [2, 3]}  # the rest did not arrive
    watcher = again(live, session, watcher, events[0].id)
    watcher.outlet.fill()
    live.append("t04", 2)
    live.run()
    assert read(again(live, session, watcher).events()) == {"t03": [4, 5, 6, 7], "t04": [2]}


def test_a_cursor_from_before_nobody_kept_the_journal(live: Live) -> None:
    """What was published while it was not kept is found all the same."""
    fill(live, 10)
    live.clock.advance(100_000)
    watcher = live.watch({"t*": {"tail": True}})
    live.append("t03", 2)
    last = watcher.events()[-1].id
    watcher.outlet.hang_up()
    live.clock.advance(400_000)
    live.api.tick()
    assert live.engine.state.totals.journal is None
    live.append("t05", 2)
    found = read(live.watch({"t*": {"tail": True}}, cursor=last).events())
    assert found == {"t03": [2], "t05": [2]}


def test_a_topic_that_is_created_before_the_one_that_is_being_read(live: Live) -> None:
    for number in range(1, 10):
        live.append(f"t{number:02}", *range(6))
    watcher = live.watch("t*", limit=2)
    while not (events := events_so_far(watcher)):
        live.engine.runtime.step()  # type: ignore[attr-defined]
        watcher.outlet.fill()
    live.append("t00", 1)
    live.run()
    watcher.outlet.drain()
    assert read(events + watcher.events())["t00"] == [1]


def test_two_streams_of_one_session(live: Live) -> None:
    """K7: each has a place of its own."""
    fill(live, 10)
    session = live.session("t*")
    first = live.open(session)
    last = first.events()[-1].id
    live.append("t01", 2)
    second = live.open(session, last_event_id=last)
    assert read(first.events()) == read(second.events()) == {"t01": [2]}
    live.append("t02", 2)
    assert read(first.events()) == read(second.events()) == {"t02": [2]}
    for watcher in (first, second):
        watcher.outlet.hang_up()
    live.clock.advance(400_000)
    live.api.tick()
    assert live.engine.state.totals.journal is None, "nobody needs it any more"
    assert held(live) == 0


def test_after_longer_than_the_journal_reaches(start: StartLive) -> None:
    """Nothing is missing; what came in the last minute before may come again."""
    live = start(watch_journal_bytes=1_024)
    fill(live, 10)
    session = live.session({"t*": {"tail": True}})
    watcher = live.open(session)
    watcher.events()
    live.clock.advance(100_000)
    live.append("t09", 2)
    record, _ = watcher.events()
    watcher.outlet.hang_up()
    live.clock.advance(100_000)
    for _ in range(200):
        live.append("t01", 2)
    live.append("t05", 2)
    found = read(live.open(session, last_event_id=record.id).events())
    assert found.pop("t09") == [2], "of the last minute"
    assert found == {"t01": list(range(2, 202)), "t05": [2]}


def test_after_a_restart(start: StartLive) -> None:
    """§7.4c: the id is good for another session, in another life of the server.

    What was written in the minute before it comes again, and nothing older.
    """
    disk = SimDisk()
    live = start(disk)
    fill(live, 10)
    watcher = live.watch("t*")
    watcher.events()
    live.clock.advance(100_000)
    live.append("t03", 2)
    last = watcher.events()[-1].id
    live.clock.advance(100_000)
    live.append("t05", 2)
    live.engine.close()
    live = start(disk)
    live.append("t07", 2)
    watcher = live.watch("t*", cursor=last)
    assert read(watcher.events()) == {"t03": [2], "t05": [2], "t07": [2]}


def test_what_a_cap_took_meanwhile_is_announced_after_a_restart(start: StartLive) -> None:
    disk = SimDisk()
    live = start(disk)
    live.append("t00", 1, config={"cap_records": 2})
    fill(live, 10)
    live.clock.advance(100_000)
    last = live.watch("t*").events()[-1].id
    live.clock.advance(100_000)
    live.append("t00", 2, 3, 4, 5)
    live.engine.close()
    events = start(disk).watch("t*", cursor=last).events()
    assert [event.event for event in events] == ["tombstone", "record", "caught-up"]
    assert read(events) == {"t00": [5, 6]}


def test_a_cursor_of_other_patterns_is_refused(live: Live) -> None:
    fill(live, 10)
    watcher = live.watch("t*")
    while not (events := events_so_far(watcher)):
        live.engine.runtime.step()  # type: ignore[attr-defined]
    asked = live.ask("POST", "/v0/watch", {"topics": {"u*": {}}, "cursor": events[0].id})
    assert (asked.status, asked.code) == (400, "invalid_request")


# Any order of events


@pytest.mark.parametrize("seed", range(12))
def test_nothing_is_lost_and_nothing_comes_twice(
    live: Live, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    """K2: appends, full outlets, lost connections and old ids, in any order."""
    chance = random.Random(seed)
    monkeypatch.setattr(patterns, "ACTIVE_MAX", 3)
    written: dict[str, int] = defaultdict(int)
    seen: dict[str, list[int]] = defaultdict(list)
    names = [f"t{number:02}" for number in range(12)]

    def write() -> None:
        name = chance.choice(names)
        count = chance.choice((1, 1, 1, 5))
        live.append(name, *range(count))
        written[name] += count

    for _ in range(chance.choice((0, 30))):
        write()
    session = live.session("t*", limit=2)
    last = ""
    unseen: list[Event] = []
    watcher = live.open(session)
    for _ in range(300):
        what = chance.random()
        if what < 0.5:
            write()
        elif what < 0.6:
            watcher.outlet.fill()
        elif what < 0.7:
            watcher.outlet.drain()
        elif what < 0.8:
            for _ in range(chance.randrange(8)):
                live.engine.runtime.step()  # type: ignore[attr-defined]
        unseen += events_so_far(watcher)
        arrived = chance.randrange(len(unseen) + 1)
        for event in unseen[:arrived]:
            last = event.id
            for name, seqs in read([event]).items():
                seen[name] += seqs
        del unseen[:arrived]
        if what > 0.9 and last:
            watcher.outlet.hang_up()
            unseen.clear()
            watcher = resume(live, session, last)
    watcher.outlet.drain()
    for name, seqs in read(unseen + watcher.events()).items():
        seen[name] += seqs
    assert seen == {name: list(range(1, count + 1)) for name, count in written.items()}
