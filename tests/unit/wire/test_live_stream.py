"""Live streams: time, room, pages that have to be fetched, and what streams share."""

from __future__ import annotations

from itertools import pairwise

import pytest

from headrace.engine.live.feed import TOGETHER_MAX
from headrace.engine.scheduling.turns import SLICE_NS, WRITE_NS
from headrace.storage.block import Batch
from headrace.testing.simdisk import SimDisk
from tests.support.exchanges import ListOutlet
from tests.support.live_readers import Event, Live, StartLive, record_seqs

# Time


def test_an_idle_stream_beats(live: Live) -> None:
    """K5: within `heartbeat_ms`."""
    live.append("jobs", 1)
    watcher = live.watch("jobs", heartbeat_ms=2_000)
    watcher.text()
    live.wait(1_500)
    assert watcher.text() == ""
    live.wait(500)
    text = watcher.text()
    assert text.startswith(": hb 17000000") and text.endswith("\n\n")
    assert abs(int(text.removeprefix(": hb ")) - live.clock.wall_ms()) < 100
    live.wait(2_000)
    assert watcher.text().startswith(": hb ")


def test_a_busy_stream_does_not_beat(live: Live) -> None:
    live.append("jobs", 1)
    watcher = live.watch("jobs", heartbeat_ms=1_000)
    for value in range(10):
        live.wait(800)
        live.append("jobs", value)
        assert ": hb" not in watcher.text()


@pytest.mark.parametrize(("asked", "kept"), [(1, 1_000), (5_000, 5_000), (10**9, 60_000)])
def test_heartbeats_are_clamped(live: Live, asked: int, kept: int) -> None:
    live.append("jobs", 1)
    watcher = live.watch("jobs", heartbeat_ms=asked)
    watcher.text()
    live.wait(kept - 100)
    assert watcher.text() == ""
    live.wait(100)
    assert watcher.text().startswith(": hb")


def test_a_full_stream_is_written_nothing(live: Live) -> None:
    live.append("jobs", 1)
    watcher = live.watch("jobs", heartbeat_ms=1_000)
    watcher.text()
    watcher.outlet.fill()
    live.append("jobs", 2)
    live.wait(10_000)
    assert watcher.text() == ""
    watcher.outlet.drain()
    assert record_seqs(watcher.events()) == [2]


def test_a_slow_reader_reads_the_log_at_its_own_pace(live: Live) -> None:
    watcher = None
    for value in range(100):
        live.append("jobs", value)
        if watcher is None:
            watcher = live.watch("jobs", limit=10)
            watcher.events()
            watcher.outlet.fill()
    assert watcher is not None
    got: list[int] = []
    for _ in range(20):
        watcher.outlet.full_since_ms = None
        if watcher.outlet.on_room is not None:
            watcher.outlet.on_room()
        live.engine.runtime.step()  # type: ignore[attr-defined]
        watcher.outlet.fill()
        got += record_seqs(watcher.events())
    watcher.outlet.drain()
    got += record_seqs(watcher.events())
    assert got == list(range(2, 101))


def test_who_takes_nothing_for_too_long_is_told_and_may_come_back(start: StartLive) -> None:
    live = start(slow_consumer_timeout_ms=5_000)
    live.append("jobs", 1)
    session = live.session("jobs")
    watcher = live.open(session)
    watcher.events()
    watcher.outlet.fill()
    live.append("jobs", 2)
    live.wait(4_500)
    assert not watcher.outlet.closed
    live.wait(6_000)
    assert watcher.outlet.closed
    [event] = [Event(b) for b in watcher.outlet.take().decode().split("\n\n")[:-1]]
    assert event.event == "error"
    assert event.id and event.data["message"]
    assert live.streams.of_kind["sse"] == 0
    assert record_seqs(live.open(session).events()) == [2]


def test_a_stream_that_is_closed_leaves_nothing_behind(live: Live) -> None:
    live.append("jobs", 1)
    watcher = live.watch("jobs p*", heartbeat_ms=1_000)
    watcher.events()
    topic = live.engine.state.by_name["jobs"]
    assert topic.waiters
    watcher.outlet.hang_up()
    assert not topic.waiters
    assert not live.hub._feeds
    assert not live.hub._by_prefix
    assert live.streams.limits.open == 0
    live.wait(2_000)
    assert not live.hub.visits._steps


def test_the_engine_has_one_waiter_for_a_topic(live: Live) -> None:
    live.append("jobs", 1)
    watchers = [live.watch("jobs") for _ in range(20)]
    live.run()
    waiters = live.engine.state.by_name["jobs"].waiters
    assert waiters is not None and len(waiters) == 1
    for watcher in watchers:
        watcher.outlet.hang_up()
    assert not live.engine.state.by_name["jobs"].waiters


# Stopping


def test_at_a_stop_every_stream_is_told(live: Live) -> None:
    live.append("jobs", 1)
    watchers = [live.watch("jobs"), live.watch("jobs")]
    for watcher in watchers:
        watcher.events()
    live.context.drain()
    for watcher in watchers:
        [event] = watcher.events()
        assert event.event == "error"
        assert event.data["code"] == "server_shutting_down"
        assert event.cursors["jobs"] == 1
        assert watcher.outlet.closed
    assert live.streams.of_kind["sse"] == 0


# Sealed rows, and rows that must be fetched


def test_a_backlog_is_read_from_files(start: StartLive) -> None:
    live = start()
    live.append("jobs", *range(300))
    live.engine.checkpoint().result()
    live.append("jobs", *range(100))
    assert record_seqs(live.watch("jobs", limit=64).events()) == list(range(1, 401))


def sealed_only(start: StartLive) -> Live:
    """A topic `cold` of 200 records that no read finds at once."""
    disk = SimDisk()
    disk.cached = False
    live = start(disk, read_cache_bytes=1, tag_index_bytes_max=1)
    live.append("cold", *("x" * 1_000 for _ in range(200)))
    live.engine.checkpoint().result()
    live.engine.state.forget_blocks(live.engine.state.by_name["cold"])
    return live


def test_a_backlog_that_has_to_be_fetched_does_not_hold_up_the_rest(start: StartLive) -> None:
    live = sealed_only(start)
    live.append("live", 1)
    watcher = live.watch("cold live", limit=50)
    events = watcher.events()
    order = [e.data["topic"] for e in events if e.event == "record"]
    assert order == ["live", "cold", "cold", "cold", "cold"]
    assert record_seqs([e for e in events if e.data["topic"] == "cold"]) == list(range(1, 201))


def test_what_is_appended_while_a_page_is_fetched_is_not_missed(start: StartLive) -> None:
    live = sealed_only(start)
    watchers = [live.watch("cold", limit=50) for _ in range(3)]
    got: list[list[int]] = [[], [], []]
    for value in range(30):
        live.engine.append("cold", [value])
        live.engine.runtime.step()  # type: ignore[attr-defined]
    for watcher, seen in zip(watchers, got, strict=True):
        seen += record_seqs(watcher.events())
    assert got == [list(range(1, 231))] * 3


def test_a_page_is_fetched_once_for_all_who_wait_for_it(start: StartLive) -> None:
    live = sealed_only(start)
    watchers = [live.watch("cold", limit=50) for _ in range(5)]
    [feed] = live.hub._feeds.values()
    while not feed._fetching:
        assert live.engine.runtime.step()  # type: ignore[attr-defined]
    assert [len(waiting) for waiting in feed._fetching.values()] == [5]
    assert all(record_seqs(watcher.events()) == list(range(1, 201)) for watcher in watchers)
    assert not feed._fetching


def test_who_goes_while_a_page_is_fetched_is_not_missed(start: StartLive) -> None:
    live = sealed_only(start)
    leaves, stays = live.watch("cold"), live.watch("cold")
    [feed] = live.hub._feeds.values()
    while not feed._fetching:
        assert live.engine.runtime.step()  # type: ignore[attr-defined]
    leaves.outlet.hang_up()
    assert record_seqs(stays.events()) == list(range(1, 201))


def test_sharing_does_not_mix_up_views(live: Live) -> None:
    """Streams of all projections on one topic at once: each gets its own."""
    batch = Batch([b"1"], tags=["t"], metas=[b'{"m":1}'])
    live.engine.append("jobs", batch).result()
    bodies = [
        {"include_tags": tags, "include_meta": meta, "include_data": data}
        for tags in (True, False)
        for meta in (True, False)
        for data in (True, False)
    ]
    watchers = [live.watch({"jobs": {"tail": True}}, **body) for body in bodies]
    boxes = live.ask("POST", "/v0/watch", {"boxes": {"jobs": {"tail": True}}}).json
    watchers.append(live.open(boxes))
    bodies.append({"include_tags": False, "include_meta": True, "include_data": True})
    for watcher in watchers:
        watcher.events()
    live.engine.append("jobs", batch).result()
    for watcher, body in zip(watchers, bodies, strict=True):
        record, _ = watcher.events()
        [shown] = record.data["records"]
        assert ("$tag" in shown, "meta" in shown, "data" in shown) == tuple(body.values())
        assert ("box" in record.data) == (watcher is watchers[-1])


def test_a_round_yields_to_other_work(live: Live, monkeypatch: pytest.MonkeyPatch) -> None:
    """With 50 µs a watcher, a millisecond holds twenty of them; the rest waits for its turn.

    Only the first of them, of which nobody knows what they take, may be more.
    """
    live.append("jobs", 1)
    watchers = [live.watch({"jobs": {"tail": True}}) for _ in range(200)]
    for watcher in watchers:
        watcher.events()
    write = ListOutlet.write

    def slow_write(outlet: ListOutlet, data: bytes) -> None:
        live.clock._monotonic_ns += 50_000
        write(outlet, data)

    live.append("jobs", 2)
    monkeypatch.setattr(ListOutlet, "write", slow_write)
    told = [0]
    while told[-1] < len(watchers):
        assert live.engine.runtime.step()  # type: ignore[attr-defined]
        told.append(sum(bool(w.outlet.written) for w in watchers))
    first, *later = [b - a for a, b in pairwise(told)]
    assert first <= TOGETHER_MAX, told
    assert max(later) <= 20, told
    assert all(record_seqs(w.events()) == [2] for w in watchers)


def test_a_round_counts_writes_that_are_still_to_be_made(
    live: Live, monkeypatch: pytest.MonkeyPatch
) -> None:
    """HTTP/2: a stream's bytes go to the kernel at the end of the turn, and take their time there.

    They began to be written one by one, so what one takes was known.
    """
    monkeypatch.setattr(ListOutlet, "writes_later", True)
    live.append("jobs", 1)
    watchers = [live.watch({"jobs": {"tail": True}}) for _ in range(3 * TOGETHER_MAX)]
    for watcher in watchers:
        watcher.events()
    live.append("jobs", 2)
    told = [0]
    while told[-1] < len(watchers):
        assert live.engine.runtime.step()  # type: ignore[attr-defined]
        told.append(sum(bool(w.outlet.written) for w in watchers))
    assert max(b - a for a, b in pairwise(told)) <= SLICE_NS // WRITE_NS + 1, told


def test_what_is_encoded_is_shared(live: Live) -> None:
    """K8: one encoding for all streams at the same place."""
    live.append("jobs", 1)
    watchers = [live.watch({"jobs": {"tail": True}}) for _ in range(5)]
    for watcher in watchers:
        watcher.events()
    live.append("jobs", 2)
    live.run()
    written = [watcher.outlet.written for watcher in watchers]
    assert all(data[0] is written[0][0] for data in written)
    assert not any(feed._pages for feed in live.hub._feeds.values()), "and then dropped"


def test_ids_of_several_topics_are_each_stream_s_own(live: Live) -> None:
    """Watches of one topic get the same bytes; one of two topics says where it is in both."""
    live.append("jobs", 1)
    live.append("logs", 1)
    watched = ({"jobs": {}}, {"jobs": {}, "logs": {}}, {"jobs": {}, "logs": {"tail": True}})
    watchers = [live.watch(topics) for topics in (*watched, {"jobs": {}})]
    for watcher in watchers:
        watcher.events()
    live.append("logs", 2)
    for watcher in watchers:
        watcher.events()
    live.append("jobs", 2)
    cursors = []
    for watcher in watchers:
        record, _ = watcher.events()
        assert record.seqs == [2]
        cursors.append({n: seq for n, seq in record.cursors.items() if n != "$e"})
    both = {"jobs": 2, "logs": 2}
    assert cursors == [{"jobs": 2}, both, both, {"jobs": 2}]


def test_deliveries_to_many_are_counted_for_each(live: Live) -> None:
    live.append("jobs", 1)
    watchers = [live.watch({"jobs": {"tail": True}}) for _ in range(5)]
    for watcher in watchers:
        watcher.events()
    lag, reads = live.metrics._watch_lag, live.metrics._reads["native", "hot"]
    deliveries, records = lag.count, reads.value
    live.append("jobs", 2, 3)
    live.run()
    assert (lag.count - deliveries, reads.value - records) == (5, 10)


def test_a_round_finds_beats_and_slow_streams_as_before(live: Live) -> None:
    """Those that got a record together need no heartbeat; who had no room catches up alone."""
    live.append("jobs", 1)
    watchers = [live.watch("jobs", heartbeat_ms=1_000) for _ in range(4)]
    for watcher in watchers:
        watcher.events()
    watchers[2].outlet.fill()
    for value in range(5):
        live.wait(800)
        live.append("jobs", value)
        live.run()
    texts = [watcher.text() for watcher in watchers]
    assert texts[0] == texts[1] == texts[3] and texts[2] == ""
    assert ": hb" not in texts[0]
    watchers[2].outlet.drain()
    assert record_seqs(watchers[2].events()) == [2, 3, 4, 5, 6]
