"""A topic that cannot be read, on a stream of several: it is told and left, the others go on."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from headrace.core.errors import LakeUnavailable
from headrace.engine.live import feed
from headrace.storage.segment.reader import Segment
from headrace.wire.live_stream import RETRY_MS
from tests.support.live_readers import Live, record_seqs
from tests.support.websocket_client import Client

Repair = Callable[[], None]


@pytest.fixture
def repair(live: Live) -> Repair:
    """Make `bad`, whose sealed records are damaged until this is called, and `good`."""
    for name in ("bad", "good"):
        live.append(name, *range(10))
    live.engine.checkpoint().result()
    state = live.engine.state
    for name in ("bad", "good"):
        state.forget_blocks(state.by_name[name])
    damaged, catalog = state.by_name["bad"].id, state.catalog
    files_of = catalog.files_of

    def files_left(topic_id: int) -> list[Segment]:
        return [] if topic_id == damaged else files_of(topic_id)

    catalog.files_of = files_left  # type: ignore[method-assign]

    def repaired() -> None:
        catalog.files_of = files_of  # type: ignore[method-assign]

    return repaired


def test_the_others_go_on(live: Live, repair: Repair) -> None:
    """§7.3h, K9: `bad` comes first by name, and takes nothing from `good`."""
    session = live.session("bad good")
    watcher = live.open(session)
    error, *others = watcher.events()
    assert (error.event, error.data["topic"]) == ("error", "bad")
    assert (error.data["code"], error.data["status"]) == ("segment_corrupt", 500)
    assert error.data["detail"]["first_seq"] == 1 and error.data["from_seq"] == 0
    assert "headrace check" in error.data["message"]
    assert "nothing more of it comes on this stream" in error.data["message"]
    assert "retry_after_ms" not in error.data
    assert record_seqs(others) == list(range(1, 11))
    live.append("bad", 10)
    live.append("good", 10)
    later = watcher.events()
    assert [event.event for event in later] == ["record", "caught-up"]
    assert {event.data["topic"] for event in later} == {"good"}
    assert not watcher.outlet.closed

    # The id still has the topic, where it was: who comes back reads on, from there.
    watcher.outlet.hang_up()
    assert later[-1].cursors["bad"] == 0
    again = live.open(session, last_event_id=later[-1].id)
    assert [event.event for event in again.events()] == ["error", "caught-up"]
    again.outlet.hang_up()
    repair()
    events = live.open(session, last_event_id=later[-1].id).events()
    assert record_seqs(events) == list(range(1, 12))
    assert {event.data["topic"] for event in events if event.event == "record"} == {"bad"}


def test_damage_is_counted(live: Live, repair: Repair) -> None:
    live.watch("bad good").events()
    text = live.metrics.registry.text()
    assert 'headrace_corruption_detected_total{layer="segment"} 1' in text


def test_the_stream_ends_with_the_last_topic_that_can_be_read(live: Live, repair: Repair) -> None:
    """The session stays: it can be resumed."""
    session = live.session("bad good")
    watcher = live.open(session)
    watcher.events()
    live.engine.delete_topic("good").result()
    assert watcher.names() == ["topic-deleted"]
    assert watcher.outlet.closed
    repair()
    assert record_seqs(live.open(session).events()) == list(range(1, 11))


def test_a_pattern_goes_on_without_it(live: Live, repair: Repair) -> None:
    watcher = live.watch("b*")
    assert watcher.names() == ["error"]
    live.append("best", 1)
    assert record_seqs(watcher.events()) == [1]
    live.engine.delete_topic("bad").result()
    live.append("bad", 1, 2)
    events = watcher.events()
    assert [event.event for event in events] == ["tombstone", "record", "caught-up"]
    assert record_seqs(events) == [1, 2]


def test_a_websocket_goes_on_without_it(live: Live, repair: Repair) -> None:
    """§8f: it stays open, and the topic can be subscribed again."""
    client = Client(live)
    client.send("subscribe", topics={"bad": {}, "good": {}})
    _, error, record, caught_up = client.read()
    assert (error["op"], error["request_id"], error["topic"]) == ("error", None, "bad")
    assert (error["code"], error["from_seq"]) == ("segment_corrupt", 0)
    assert (record["op"], record["topic"], caught_up["op"]) == ("record", "good", "caught_up")
    repair()
    client.send("subscribe", topic="bad", from_seq=5)
    _, record, _ = client.read()
    assert (record["topic"], record["to_seq"]) == ("bad", 10)


# A reason that passes by itself


@pytest.fixture
def lake_is_away(live: Live, monkeypatch: pytest.MonkeyPatch) -> Repair:
    """Make `bad`, which cannot be read until this is called, and `good`."""
    for name in ("bad", "good"):
        live.append(name, 1, 2)
    read_at_once = feed.read_at_once

    def away(state: object, topic: object, request: object) -> object:
        if topic.name == "bad":  # type: ignore[attr-defined]
            raise LakeUnavailable("the lake does not answer", fix="wait")
        return read_at_once(state, topic, request)  # type: ignore[arg-type]

    monkeypatch.setattr(feed, "read_at_once", away)
    return lambda: monkeypatch.setattr(feed, "read_at_once", read_at_once)


def test_it_is_tried_again(live: Live, lake_is_away: Repair) -> None:
    """§7.3h: every five seconds, and told each time."""
    watcher = live.watch("bad good")
    error, *others = watcher.events()
    assert (error.data["code"], error.data["retry_after_ms"]) == ("lake_unavailable", RETRY_MS)
    assert error.data["message"].endswith("it is tried again")
    assert record_seqs(others) == [1, 2]
    live.append("good", 3)
    assert record_seqs(watcher.events()) == [3]
    live.wait(RETRY_MS)
    assert watcher.names() == ["error"]
    lake_is_away()
    live.wait(RETRY_MS - 100)
    assert watcher.events() == []
    live.wait(100)
    assert record_seqs(watcher.events()) == [1, 2]


def test_a_topic_alone_is_tried_again_on_the_same_stream(live: Live, lake_is_away: Repair) -> None:
    watcher = live.watch("bad")
    assert watcher.names() == ["error"]
    assert not watcher.outlet.closed
    lake_is_away()
    live.wait(RETRY_MS)
    assert record_seqs(watcher.events()) == [1, 2]


def test_what_is_left_is_not_tried_again(live: Live, lake_is_away: Repair) -> None:
    client = Client(live)
    client.send("subscribe", topic="bad")
    assert client.read()[-1]["code"] == "lake_unavailable"
    client.send("unsubscribe", topic="bad")
    assert client.read()[-1]["topics"] == ["bad"]
    lake_is_away()
    live.wait(2 * RETRY_MS)
    assert client.read() == []
    gone = live.watch("bad")
    gone.outlet.hang_up()
    live.wait(2 * RETRY_MS)
    assert not live.hub._feeds
