"""An open watch: what its client is told, in which order, and with which ids."""

from __future__ import annotations

import pytest

from headrace.storage.block import KIND_BYTES, Batch
from headrace.wire.native.watch_ids import NAMED_TOPICS_MAX
from tests.support.live_readers import Event, Live, record_seqs

# Frames


def test_the_first_block_is_retry(live: Live) -> None:
    live.append("jobs", 1)
    assert live.watch("jobs").text().startswith("retry: 2000\n\nid: ")


def test_a_backlog_is_records_then_caught_up(live: Live) -> None:
    """K1: records come before `caught-up`, and each id has the cursors after its frame."""
    live.append("jobs", {"v": 1}, {"v": 2})
    epoch = live.engine.topic("jobs").epoch
    record, caught_up = live.watch("jobs").events()
    assert (record.event, caught_up.event) == ("record", "caught-up")
    assert record.data["topic"] == "jobs"
    assert record.seqs == [1, 2]
    assert (record.data["from_seq"], record.data["to_seq"], record.data["head_seq"]) == (0, 2, 2)
    assert caught_up.data == {"topic": "jobs", "head_seq": 2}
    assert record.cursors == caught_up.cursors == {"$e": {"jobs": epoch}, "jobs": 2}


def test_the_lines_of_an_event(live: Live) -> None:
    live.append("jobs", {"v": 1})
    ts = live.clock.wall_ms()
    record, _ = live.watch("jobs").events()
    lines = record.block.split("\n")
    assert [line.split(" ")[0] for line in lines] == ["id:", "event:", "data:"]
    assert lines[1] == "event: record"
    records = f'[{{"$seq":1,"$ts":{ts},"data":{{"v":1}}}}]'
    place = '"from_seq":0,"to_seq":1,"head_seq":1'
    assert lines[2] == f'data: {{"topic":"jobs","records":{records},{place}}}'


def test_an_empty_topic_is_caught_up(live: Live) -> None:
    live.engine.put_topic("jobs").result()
    [event] = live.watch("jobs").events()
    assert (event.event, event.data) == ("caught-up", {"topic": "jobs", "head_seq": 0})


def test_each_live_batch_is_a_record_and_a_caught_up(live: Live) -> None:
    live.append("jobs", 1)
    watcher = live.watch({"jobs": {"tail": True}})
    assert watcher.names() == ["caught-up"]
    for number in (2, 3):
        live.append("jobs", number)
        record, caught_up = watcher.events()
        assert record.seqs == [number]
        assert record.cursors["jobs"] == number
        assert caught_up.event == "caught-up"


def test_topics_are_drained_in_the_order_of_their_names(live: Live) -> None:
    for name in ("b", "a", "c"):
        live.append(name, *range(5))
    events = live.watch("c a b", limit=2).events()
    told = [(e.data["topic"], e.event) for e in events]
    assert told == [
        (name, event) for name in "abc" for event in ("record", "record", "record", "caught-up")
    ]
    assert list(events[-1].cursors) == ["$e", "a", "b", "c"], "keys are sorted"
    assert events[0].cursors["a"] == 2 and events[0].cursors["b"] == 0
    assert events[3].cursors == events[2].cursors


def test_a_line_break_between_tokens_becomes_a_space(live: Live) -> None:
    sent = b'{"a":\r\n1,\n"b":"x\\ny"}'
    live.engine.append("jobs", Batch([sent])).result()
    [record, _] = live.watch("jobs").events()
    assert record.data["records"][0]["data"] == {"a": 1, "b": "x\ny"}
    assert "\r" not in record.block


def test_projections(live: Live) -> None:
    batch = Batch([b"1"], tags=["t"], nodes=["n"], metas=[b'{"m":1}'])
    live.engine.append("jobs", batch).result()
    keys = {
        (): {"$seq", "$ts", "$node", "data", "meta"},
        (("include_tags", True),): {"$seq", "$ts", "$node", "$tag", "data", "meta"},
        (("include_meta", False),): {"$seq", "$ts", "$node", "data"},
        (("include_data", False),): {"$seq", "$ts", "$node", "meta"},
    }
    for wanted, shown in keys.items():
        record, _ = live.watch("jobs", **dict(wanted)).events()
        assert set(record.data["records"][0]) == shown, wanted


def test_bytes_come_as_base64(live: Live) -> None:
    live.engine.append("jobs", Batch([b"\xff"], KIND_BYTES)).result()
    record, _ = live.watch("jobs").events()
    assert record.data["records"][0]["data"] == "/w=="
    assert record.data["records"][0]["meta"] == {"$encoding": "base64"}


# Nodes


@pytest.mark.parametrize("node", ["me", ["me", "you"]])
def test_records_of_a_node_are_left_out_and_the_cursor_moves(live: Live, node: object) -> None:
    live.engine.append("jobs", Batch([b"1", b"2"], nodes="me")).result()
    watcher = live.watch("jobs", node=node)
    [caught_up] = watcher.events()
    assert caught_up.event == "caught-up"
    assert caught_up.cursors["jobs"] == 2
    live.engine.append("jobs", Batch([b"3"], nodes="me")).result()
    [caught_up] = watcher.events()
    assert caught_up.cursors["jobs"] == 3
    live.engine.append("jobs", Batch([b"4"], nodes="them")).result()
    record, _ = watcher.events()
    assert record.seqs == [4]


def test_nodes_are_not_left_out_where_the_topic_says_so(live: Live) -> None:
    config = {"dedupe_node": False}
    live.engine.append("jobs", Batch([b"1"], nodes="me"), config=config).result()
    assert live.watch("jobs", node="me").events()[0].seqs == [1]


# Gaps


def test_the_first_gap_of_a_connection_says_from_seq_too_old(live: Live) -> None:
    """K3: the cursor moves to the end of the gap."""
    for value in range(6):
        live.append("jobs", value, config={"cap_records": 3})
    lost, record, caught_up = live.watch("jobs").events()
    assert lost.event == "tombstone"
    assert lost.data == {
        "topic": "jobs",
        "reason": "from_seq_too_old",
        "gap_from": 1,
        "gap_to": 3,
        "earliest_seq": 4,
        "head_seq": 6,
    }
    assert lost.cursors["jobs"] == 3
    assert record.seqs == [4, 5, 6]
    assert caught_up.event == "caught-up"


def test_a_later_gap_says_why(live: Live) -> None:
    live.append("jobs", 0, config={"cap_records": 3})
    watcher = live.watch("jobs")
    watcher.events()
    watcher.outlet.fill()
    for value in range(1, 7):
        live.append("jobs", value)
    assert watcher.events() == []
    watcher.outlet.drain()
    lost, record, _ = watcher.events()
    assert (lost.data["reason"], lost.data["gap_from"], lost.data["gap_to"]) == ("cap", 2, 4)
    assert record.seqs == [5, 6, 7]


def test_deleted_records_are_passed_over_in_silence(live: Live) -> None:
    live.append("jobs", *range(4))
    live.engine.delete("jobs", before_seq=3).result()
    record, caught_up = live.watch("jobs").events()
    assert record.seqs == [3, 4]
    assert caught_up.event == "caught-up"


def test_a_cursor_beyond_the_head_reads_from_the_first(live: Live) -> None:
    live.append("jobs", 1, 2)
    lost, record, _ = live.watch({"jobs": {"from_seq": 10}}).events()
    assert lost.event == "tombstone"
    assert (lost.data["gap_from"], lost.data["gap_to"]) == (1, 2)
    assert lost.cursors["jobs"] == 0, "whoever comes back with this id misses nothing"
    assert record.seqs == [1, 2]
    assert record.data["from_seq"] == 0


def test_another_epoch_is_a_gap_even_below_the_head(live: Live) -> None:
    live.append("jobs", 1, 2)
    old = live.engine.topic("jobs").epoch
    live.engine.delete_topic("jobs").result()
    live.append("jobs", 1, 2, 3)
    lost, record, _ = live.watch({"jobs": {"from_seq": 2, "epoch": old}}).events()
    assert lost.event == "tombstone"
    assert record.seqs == [1, 2, 3]
    assert record.cursors["$e"]["jobs"] == live.engine.topic("jobs").epoch
    names = live.watch({"jobs": {"from_seq": 2, "epoch": old + 1}}).names()
    assert names[0] == "record"


# Coming back


def resumed(live: Live, count: int, last_id: str | None) -> list[Event]:
    """Read everything of a topic, go away, and come back with an id."""
    live.append("jobs", *range(count))
    session = live.session("jobs")
    watcher = live.open(session)
    watcher.events()
    watcher.outlet.hang_up()
    headers = {} if last_id is None else {"last_event_id": last_id}
    return live.open(session, **headers).events()


def test_an_earlier_id_takes_the_session_back(live: Live) -> None:
    events = resumed(live, 3, "eyJqb2JzIjoxfQ")  # {"jobs":1}
    assert record_seqs(events) == [2, 3]


def test_the_current_id_brings_nothing_again_but_caught_up(live: Live) -> None:
    live.append("jobs", 1)
    session = live.session("jobs")
    watcher = live.open(session)
    last_id = watcher.events()[-1].id
    watcher.outlet.hang_up()
    assert live.open(session, last_event_id=last_id).names() == ["caught-up"]


@pytest.mark.parametrize(
    "last_id",
    [
        "eyJqb2JzIjo5OX0",  # {"jobs":99}: never forward
        "eyJvdGhlciI6MX0",  # {"other":1}
        "eyJqb2JzIjotMX0",  # {"jobs":-1}
        "eyJqb2JzIjoxLjV9",  # {"jobs":1.5}
        "bm90IGpzb24",
        "!!!",
        "cp_",
        "cp_////",
    ],
)
def test_what_an_id_cannot_mean_is_ignored(live: Live, last_id: str) -> None:
    assert record_seqs(resumed(live, 3, last_id)) == []


def test_a_session_goes_on_where_it_was_without_an_id(live: Live) -> None:
    live.append("jobs", 1)
    session = live.session("jobs")
    watcher = live.open(session)
    watcher.events()
    watcher.outlet.hang_up()
    live.append("jobs", 2)
    assert record_seqs(live.open(session).events()) == [2]


def test_an_id_of_the_topic_before_it_was_made_anew(live: Live) -> None:
    """The client may have missed that; so it is told again."""
    live.append("jobs", 1, 2)
    live.append("other", 1)
    session = live.session("jobs other")
    watcher = live.open(session)
    old_id = watcher.events()[-1].id
    watcher.outlet.hang_up()
    live.engine.delete_topic("jobs").result()
    live.append("jobs", 1, 2, 3)
    again = live.open(session)
    assert "tombstone" in again.names()
    again.outlet.hang_up()
    events = live.open(session, last_event_id=old_id).events()
    assert record_seqs(events) == [1, 2, 3]
    assert events[0].event == "tombstone"


def test_a_new_session_may_begin_at_an_id(live: Live) -> None:
    live.append("jobs", *range(5))
    last_id = live.watch("jobs", limit=2).events()[1].id
    said = live.session({"jobs": {"tail": True}}, cursor=last_id)
    assert said["topics"]["jobs"]["from_seq"] == 4
    assert record_seqs(live.open(said).events()) == [5]


def test_many_topics_have_an_opaque_id(live: Live) -> None:
    names = [f"t{number:03}" for number in range(NAMED_TOPICS_MAX + 1)]
    for name in names:
        live.append(name, 1, 2)
    session = live.session(" ".join(names))
    watcher = live.open(session)
    events = watcher.events()
    assert all(event.id.startswith("cp_") for event in events)
    assert len(events[0].id) < 10 * len(names)
    watcher.outlet.hang_up()
    middle = next(e for e in events if e.data["topic"] == names[30] and e.event == "record")
    again = live.open(session, last_event_id=middle.id).events()
    assert [e.data["topic"] for e in again if e.event == "record"] == names[31:]


def test_two_streams_of_a_session_have_cursors_of_their_own(live: Live) -> None:
    """K7."""
    live.append("jobs", 1, 2)
    session = live.session("jobs")
    first, second = live.open(session), live.open(session)
    live.append("jobs", 3)
    assert record_seqs(first.events()) == record_seqs(second.events()) == [1, 2, 3]
    first.outlet.hang_up()
    second.outlet.hang_up()
    assert live.open(session).names() == ["caught-up"]


def test_a_dead_connection_takes_nothing_from_the_one_that_came_after_it(live: Live) -> None:
    """The server hears late, if ever, that a client has gone; the client is back long before."""
    live.append("jobs", 1)
    session = live.session("jobs")
    dead = live.open(session)
    last = dead.events()[-1].id
    live.append("jobs", 2)
    assert record_seqs(dead.events()) == [2]  # and nobody reads it
    alive = live.open(session, last_event_id=last)
    live.append("jobs", 3)
    assert record_seqs(alive.events()) == [2, 3]
    dead.outlet.hang_up()
    live.append("jobs", 4)
    assert record_seqs(alive.events()) == [4]
    alive.outlet.hang_up()
    live.append("jobs", 5)
    assert record_seqs(live.open(session).events()) == [5], (
        "the newest cursors are those of the session"
    )
    assert live.api.watch_sessions == 1


def test_the_end_of_an_older_stream_leaves_the_session(live: Live) -> None:
    live.append("jobs", 1)
    session = live.session("jobs")
    older, newer = live.open(session), live.open(session)
    older.outlet.fill()
    live.engine.delete_topic("jobs").result()
    assert newer.names()[-1] == "topic-deleted"
    assert live.api.watch_sessions == 0
    older.outlet.drain()
    older.events()
    assert older.outlet.closed
    assert live.streams.limits.open == 0


# Deletion of topics


def test_the_end_of_a_topic_is_told_at_once_and_ends_only_that(live: Live) -> None:
    """K4."""
    live.append("a", 1, 2)
    live.append("b", 1)
    watcher = live.watch("a b")
    watcher.events()
    live.engine.delete_topic("a").result()
    [gone] = watcher.events()
    assert gone.event == "topic-deleted"
    assert gone.data == {"topic": "a", "head_seq": 2, "reason": "deleted"}
    assert gone.id
    live.append("b", 2)
    record, _ = watcher.events()
    assert record.seqs == [2]
    assert "a" not in record.cursors
    live.append("a", "made anew, and not what was watched")
    assert watcher.events() == []


def test_a_stream_ends_with_its_last_topic(live: Live) -> None:
    live.append("a", 1)
    live.append("b", 1)
    session = live.session("a b")
    watcher = live.open(session)
    watcher.events()
    for name in ("a", "b"):
        assert watcher.outlet.room
        live.engine.delete_topic(name).result()
        assert watcher.names() == ["topic-deleted"]
    assert watcher.outlet.closed
    assert live.streams.of_kind["sse"] == 0
    assert live.ask("GET", session["stream_url"]).status == 404


def test_a_topic_that_went_while_nobody_listened(live: Live) -> None:
    live.append("a", 1)
    session = live.session("a")
    live.engine.delete_topic("a").result()
    watcher = live.open(session)
    assert watcher.names() == ["topic-deleted"]
    assert watcher.outlet.closed


def test_a_watch_of_nothing_that_exists_ends_at_once(live: Live) -> None:
    asked = live.ask("POST", "/v0/watch?lenient=1", {"topics": {"ghost": {}}})
    watcher = live.open(asked.json)
    assert watcher.text() == "retry: 2000\n\n"
    assert watcher.outlet.closed
