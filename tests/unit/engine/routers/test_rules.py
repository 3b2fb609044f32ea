"""Routers, rule by rule: the names say which rule of the specification a test is about."""

from __future__ import annotations

import pytest

from headrace.core.clock import ManualClock
from headrace.core.errors import (
    RouterCycle,
    TopicExistsIncompatible,
)
from headrace.engine.engine import Engine
from headrace.engine.removal.deleting import TagMatch
from headrace.engine.routers.state import EXACTLY_ONCE
from headrace.engine.sealing import checkpoint
from headrace.engine.sealing.seal import Capture, capture
from headrace.engine.state import EngineState
from headrace.engine.topics.topic import Topic
from headrace.storage.block import Batch
from tests.support.engine_reads import all_records
from tests.support.router_calls import CLASSES, Restart, data, route, run, shard, write
from tests.support.seqs import seqs_of

# I1 to I12


@pytest.mark.parametrize("durability", ["disk", "fsync"])
def test_i1_a_source_write_is_one_frame_whatever_the_fan_out(
    engine: Engine, durability: str
) -> None:
    engine.put_topic("a", {"durability": durability}).result()
    for number in range(20):
        route(engine, f"r{number}", "a", f"d{number}")
    run(engine)
    frames, forwards = shard(engine).frames_total, shard(engine).forwards_total
    ticket = engine.append("a", [1])
    while not ticket.done:
        assert engine.state.by_name["d0"].staged == 0  # nobody waits for a copy
        engine.runtime.step()  # type: ignore[attr-defined]
    run(engine)
    assert shard(engine).frames_total == frames + 1
    assert shard(engine).forwards_total == forwards + 1  # one entry for all twenty
    assert all(data(engine, f"d{number}") == ["1"] for number in range(20))


@pytest.mark.parametrize("durability", CLASSES)
def test_i2_an_immediate_read_of_the_destination_shows_the_copies(
    engine: Engine, durability: str
) -> None:
    engine.put_topic("b", {"durability": durability}).result()
    route(engine, "r", "a", "b")
    for number in range(5):
        write(engine, "a", str(number))
        if number % 2:
            assert engine.routers.get("r").result().forwarded_total == number + 1
        else:
            assert data(engine, "b")[-1] == str(number)
    write(engine, "a", "5")
    if durability != "fsync":
        assert engine.topic("b").count == 6
    write(engine, "a", "6")
    engine.wait("b", 6).result()
    assert engine.state.by_name["b"].head == 7


def test_i2_copies_of_copies_are_there_at_once(engine: Engine) -> None:
    for number in range(4):
        route(engine, f"r{number}", f"t{number}", f"t{number + 1}")
    write(engine, "t0", "far")
    assert data(engine, "t4") == ["far"]


def test_i3_order_is_that_of_the_source_and_seqs_are_those_of_the_destination(
    engine: Engine,
) -> None:
    write(engine, "b", "own")
    route(engine, "r", "a", "b")
    for number in range(7):
        write(engine, "a", str(number))
    found = all_records(engine, "b")
    assert seqs_of(found) == list(range(1, 9))
    assert [r.data for r in found] == [b"own", *(b"%d" % n for n in range(7))]


def test_i4_only_records_after_the_creation_are_forwarded(engine: Engine, again: Restart) -> None:
    write(engine, "a", "before")
    route(engine, "r", "a", "b")
    engine = again(engine)
    write(engine, "a", "after")
    assert data(engine, "b") == ["after"]
    engine = again(engine)
    assert data(engine, "b") == ["after"]


def test_i5_the_cursor_passes_what_is_filtered_or_deleted(engine: Engine) -> None:
    route(engine, "r", "a", "b", filter=TagMatch("keep:", True))
    write(engine, "a", "1", "2", "3", tags=["keep:1", None, "other"])
    assert data(engine, "b") == ["1"]
    info = engine.routers.get("r").result()
    assert (info.cursor, info.forwarded_total) == (3, 1)
    assert info.filter == ("tag", "Glob", "keep:*")


def test_i5_a_full_destination_stops_it_and_room_lets_it_go_on(
    engine: Engine, clock: ManualClock
) -> None:
    engine.put_topic("b", {"cap_records": 2, "discard": "reject"}).result()
    route(engine, "r", "a", "b")
    for number in range(4):
        write(engine, "a", str(number))
    info = engine.routers.get("r").result()
    assert (info.forwarded_total, info.cursor, info.blocked) == (2, 2, True)
    assert data(engine, "b") == ["0", "1"]
    engine.delete("b", before_seq=3).result()
    info = engine.routers.get("r").result()
    assert (info.forwarded_total, info.cursor, info.blocked) == (4, 4, False)
    assert seqs_of(all_records(engine, "b")) == [3, 4]


def test_i5_a_full_destination_is_tried_again_by_itself_and_less_and_less_often(
    engine: Engine, clock: ManualClock
) -> None:
    engine.put_topic("b", {"cap_bytes": 3, "discard": "reject"}).result()
    route(engine, "r", "a", "b")
    write(engine, "a", "11", "22")
    run(engine)
    engine.delete("b", before_seq=2).result()
    router = engine.routers.by_name["r"]
    assert router.cursor == 1 and router.blocked
    waited = 0
    while router.cursor == 1:
        clock.advance(10)
        waited += 10
        run(engine)
    assert 50 <= waited <= 60
    assert data(engine, "b") == ["22"]
    write(engine, "a", "33")
    for _ in range(12):
        clock.advance(6_000)
        run(engine)
    assert router.blocked and router.retry_ns <= clock.monotonic_ns() + 5_000_000_000


@pytest.mark.parametrize("how", ["killed", "closed", "checkpointed"])
@pytest.mark.parametrize("dest_class", CLASSES)
@pytest.mark.parametrize("source_class", CLASSES)
def test_i6_a_restart_rebuilds_destinations_exactly(
    engine: Engine,
    kill: Restart,
    restart: Restart,
    source_class: str,
    dest_class: str,
    how: str,
) -> None:
    engine.put_topic("a", {"durability": source_class}).result()
    engine.put_topic("b", {"durability": dest_class}).result()
    route(engine, "r", "a", "b", preserve_node=False)
    for number in range(6):
        write(engine, "a", f"{number}", "-", tags=["t", None])
        if number % 2:
            write(engine, "b", "direct")
            assert len(data(engine, "b")) > number
        if how == "checkpointed" and number == 3:
            engine.checkpoint().result()
    before, head = all_records(engine, "b"), engine.topic("b").head_seq
    engine = restart(engine) if how == "closed" else kill(engine)
    after = all_records(engine, "b")
    if dest_class == "ephemeral":
        assert after == [] and engine.topic("b").head_seq >= head
    else:
        assert after == before
    total = engine.routers.get("r").result().forwarded_total
    if source_class != "ephemeral":
        assert total == 12
    write(engine, "a", "more")
    assert data(engine, "b")[-1] == "more"
    assert data(engine, "b").count("0") == (dest_class != "ephemeral")


def test_i6_what_an_append_evicts_in_the_same_turn_is_rebuilt(
    engine: Engine, again: Restart
) -> None:
    """The log has the append that takes the record before the entry that says it was copied."""
    engine.put_topic("a", {"cap_records": 1}).result()
    route(engine, "r", "a", "b")
    write(engine, "a", "first")
    later = engine.append("a", ["second"])
    assert data(engine, "b")[0] == "first"
    later.result()
    before = all_records(engine, "b")
    assert data(engine, "a") == ['"second"'] and len(before) == 2
    assert all_records(again(engine), "b") == before


def test_i6_what_is_deleted_from_the_source_later_is_rebuilt(
    engine: Engine, again: Restart
) -> None:
    route(engine, "r", "a", "b")
    write(engine, "a", "1", "2", "3", tags=["x", "y", "x"])
    before = all_records(engine, "b")
    engine.delete("a", match="x").result()
    engine.checkpoint().result()
    write(engine, "a", "4", tags=["x"])
    before = all_records(engine, "b")
    engine.delete("a", match="x").result()
    engine = again(engine)
    assert all_records(engine, "b") == before and data(engine, "a") == ["2"]


def test_i6_a_snapshot_that_races_the_drain_loses_and_doubles_nothing(
    engine: Engine, again: Restart
) -> None:
    engine.put_topic("a", {"cap_records": 8}).result()
    engine.put_topic("f", {"durability": "fsync"}).result()
    route(engine, "r", "a", "b")
    route(engine, "s", "a", "f")
    route(engine, "t", "f", "c")
    checkpoint = engine.checkpoint()
    for number in range(40):
        write(engine, "a", str(number))
        if number % 3 == 0:
            assert data(engine, "c")[-1] == str(number)
        if checkpoint.done:
            checkpoint = engine.checkpoint()
    before = {name: all_records(engine, name) for name in "bcf"}
    assert [r.data for r in before["c"]] == [b"%d" % n for n in range(40)]
    engine = again(engine)
    assert {name: all_records(engine, name) for name in "bcf"} == before


def test_i6_nothing_is_forwarded_while_a_checkpoint_captures(
    engine: Engine, kill: Restart, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else a copy would be newer than the snapshot's destination, and its record already gone."""
    engine.put_topic("b", {}).result()  # the older one is captured first
    engine.put_topic("a", {"cap_records": 1}).result()
    route(engine, "r", "a", "b")
    write(engine, "a", "0")
    assert data(engine, "b") == ["0"]
    captured: list[str] = []
    router = engine.routers.by_name["r"]
    router.busy = True  # so that it is behind when the checkpoint comes
    write(engine, "a", "1")

    def capture_and_disturb(state: EngineState, topic: Topic, *, clean: bool = False) -> Capture:
        taken = capture(state, topic, clean=clean)
        captured.append(topic.name)
        if len(captured) == 1:
            # Between the two captures: the record is asked for, and then evicted.
            router.busy = False
            engine.routers.drain_into("b")
            engine.append("a", ["2"])
            engine.flush()
        return taken

    monkeypatch.setattr(checkpoint, "capture", capture_and_disturb)
    engine.checkpoint().result()
    assert captured == ["b", "a"]
    before = all_records(engine, "b")
    engine = kill(engine)
    assert all_records(engine, "b") == before


def test_i7_what_the_source_lost_before_is_announced_as_source_trim(engine: Engine) -> None:
    engine.put_topic("a", {"cap_records": 2}).result()
    route(engine, "r", "a", "b")
    write(engine, "a", "0")
    assert data(engine, "b") == ["0"]
    write(engine, "a", "1", "2", "3", "4")  # 1 and 2 are gone before anything is forwarded
    page = engine.read("b").result()
    assert [r.data for r in page.records] == [b"0"] and page.next_from_seq == 1
    page = engine.read("b", 1).result()
    lost = page.tombstone
    assert lost is not None
    assert (lost.gap_from, lost.gap_to, lost.reason) == (2, 3, "source_trim")
    assert [(r.seq, r.data) for r in page.records] == [(4, b"3"), (5, b"4")]
    assert engine.routers.get("r").result().forwarded_total == 5
    assert engine.topic("b").count == 3


@pytest.mark.parametrize("checkpointed", [False, True])
def test_i7_a_source_trim_survives_a_restart(
    engine: Engine, again: Restart, checkpointed: bool
) -> None:
    engine.put_topic("a", {"ttl_ms": 100}).result()
    route(engine, "r", "a", "b")
    engine.state.forwarding.hold()  # type: ignore[union-attr]
    write(engine, "a", "1", "2")
    engine.state.clock._clock.advance(200)  # type: ignore[attr-defined]
    write(engine, "a", "3")
    engine.state.forwarding.release()  # type: ignore[union-attr]
    for _ in range(2):
        page = engine.read("b").result()
        assert page.tombstone is not None
        assert page.tombstone[:3] == (1, 2, "source_trim")
        assert [r.data for r in page.records] == [b"3"] and page.earliest_seq == 3
        if checkpointed:
            engine.checkpoint().result()
        engine = again(engine)


def test_i8_a_second_source_is_refused_and_direct_writes_are_not(engine: Engine) -> None:
    route(engine, "r", "a", "b")
    with pytest.raises(TopicExistsIncompatible) as refused:
        route(engine, "s", "other", "b")
    assert refused.value.detail == {"topic": "b", "reason": "router_dest_fan_in"}
    assert "other" not in engine.state.by_name and len(engine.routers.by_name) == 1
    route(engine, "twin", "a", "b", filter=TagMatch("x"))
    write(engine, "b", "direct")
    write(engine, "a", "1", tags=["x"])
    assert data(engine, "b") == ["direct", "1", "1"]


def test_i8_the_order_against_direct_writes_is_rebuilt_exactly(
    engine: Engine, again: Restart
) -> None:
    route(engine, "r", "a", "b")
    tickets = []
    for number in range(30):
        tickets.append(engine.append("a", [number]))
        tickets.append(engine.append("b", [f"direct {number}"]))
        if number % 4 == 0:
            run(engine)
    for ticket in tickets:
        ticket.result()
    before = all_records(engine, "b")
    assert len(before) == 60
    assert all_records(again(engine), "b") == before


def test_i9_a_circle_is_refused_with_its_path(engine: Engine) -> None:
    route(engine, "ab", "a", "b")
    route(engine, "bc", "b", "c")
    with pytest.raises(RouterCycle) as refused:
        route(engine, "ca", "c", "a")
    assert refused.value.detail["cycle"] == ["c", "a", "b", "c"]
    assert list(engine.routers.by_name) == ["ab", "bc"]
    route(engine, "ab", "a", "b", preserve_tag=False)  # its own edge does not count


@pytest.mark.parametrize("restarted", [False, True])
def test_i9_a_mirror_ends_after_eight_hops(engine: Engine, again: Restart, restarted: bool) -> None:
    route(engine, "ab", "a", "b")
    route(engine, "ba", "b", "a", allow_cycle=True)
    write(engine, "a", "x")
    for _ in range(40):
        if restarted:
            engine = again(engine)
        run(engine)
        data(engine, "a")
    assert (engine.topic("a").head_seq, engine.topic("b").head_seq) == (5, 4)
    write(engine, "b", "y")
    run(engine)
    heads = engine.topic("a").head_seq, engine.topic("b").head_seq
    assert heads == (9, 9)
    hops = engine.routers.directory.forwarder.hops
    assert engine.checkpoint().result() is None
    assert not any(hops.values())  # nothing is left to consume


def test_i9_a_chain_of_ten_topics_ends_at_the_ninth(engine: Engine) -> None:
    for number in range(9):
        route(engine, f"r{number}", f"t{number}", f"t{number + 1}")
    write(engine, "t0", "x")
    assert data(engine, "t8") == ["x"] and data(engine, "t9") == []


def test_i10_deletes_do_not_propagate_and_a_deleted_topic_takes_its_routers_along(
    engine: Engine, again: Restart
) -> None:
    route(engine, "z", "a", "b")
    route(engine, "y", "b", "c")
    route(engine, "x", "d", "e")
    write(engine, "a", "1", tags=["t"])
    assert data(engine, "c") == ["1"]
    engine.delete("a", match="t").result()
    engine.delete("b", match="t").result()
    assert (data(engine, "a"), data(engine, "b"), data(engine, "c")) == ([], [], ["1"])
    assert engine.delete_topic("b").result().routers_removed == ["y", "z"]
    assert list(engine.routers.by_name) == ["x"]
    write(engine, "a", "2")
    engine = again(engine)
    assert data(engine, "c") == ["1"] and list(engine.routers.by_name) == ["x"]
    assert "b" not in engine.state.by_name
    route(engine, "z", "a", "b")
    write(engine, "a", "3")
    assert data(engine, "b") == ["3"]


def test_i10_a_deleted_record_that_was_not_forwarded_is_skipped_in_silence(
    engine: Engine,
) -> None:
    route(engine, "r", "a", "b")
    engine.state.forwarding.hold()  # type: ignore[union-attr]
    write(engine, "a", "1", "2", "3", tags=["x", None, "x"])
    engine.delete("a", match="x").result()
    engine.state.forwarding.release()  # type: ignore[union-attr]
    page = engine.read("b").result()
    assert page.tombstone is None and [r.data for r in page.records] == [b"2"]
    info = engine.routers.get("r").result()
    assert (info.cursor, info.forwarded_total) == (3, 1)


def test_i11_exactly_once_says_where_a_copy_is_from(engine: Engine) -> None:
    route(engine, "r", "a", "b", guarantee=EXACTLY_ONCE)
    many = b"{" + b",".join(b'"k%d":%d' % (n, n) for n in range(64)) + b"}"
    engine.append("a", Batch([b"1", b"2", b"3"], metas=[None, b'{"m": 1.50}', many])).result()
    metas = [r.meta for r in all_records(engine, "b")]
    source = engine.state.by_name["a"]
    key = f"router:r:{source.id}:{source.epoch}"
    assert metas[0] is not None and f'"idempotency_key":"{key}:1"'.encode() in metas[0]
    assert metas[1] is not None and metas[1].startswith(b'{"m":1.50,"_topics_router":{')
    assert metas[2] is not None and metas[2].startswith(b'{"_topics_original_meta":{"k0":0,')
    assert b'"source_seq":3' in metas[2] and b'"source_topic":"a"' in metas[2]


@pytest.mark.parametrize("how", ["rewound", "recreated", "restarted"])
def test_i11_a_copy_that_is_alive_is_not_made_again(
    engine: Engine, again: Restart, how: str
) -> None:
    route(engine, "r", "a", "b", guarantee=EXACTLY_ONCE)
    write(engine, "a", "1", "2", "3")
    write(engine, "a", "4")
    assert data(engine, "b") == ["1", "2", "3", "4"]
    engine.delete("b", before_seq=2).result()
    if how == "rewound":
        engine.routers.by_name["r"].cursor = 0
    else:
        if how == "restarted":
            engine.checkpoint().result()
            engine = again(engine)
        engine.routers.delete("r").result()
        if how == "restarted":
            engine.checkpoint().result()
            engine = again(engine)
        route(engine, "r", "a", "b", guarantee=EXACTLY_ONCE, backfill=True)
    assert data(engine, "b") == ["2", "3", "4", "1"]  # the first was deleted, so it comes again
    engine.routers.by_name["r"].cursor = 0
    assert data(engine, "b") == ["2", "3", "4", "1"]


@pytest.mark.parametrize("checkpoints", [0, 1, 2])
def test_i12_a_copy_of_class_fsync_survives_power_loss_though_its_source_is_gone(
    engine: Engine, power_loss: Restart, checkpoints: int
) -> None:
    engine.put_topic("a", {"durability": "fsync", "cap_records": 1}).result()
    engine.put_topic("b", {"durability": "fsync"}).result()
    route(engine, "r", "a", "b")
    write(engine, "a", "1")
    if checkpoints:
        engine.checkpoint().result()
    before = all_records(engine, "b")
    write(engine, "a", "2")  # the first is evicted
    if checkpoints == 2:
        engine.checkpoint().result()
    before = all_records(engine, "b")
    assert [r.data for r in before] == [b"1", b"2"]
    engine = power_loss(engine)
    assert all_records(engine, "b") == before
    assert engine.read("b").result().tombstone is None


def test_i12_a_read_of_an_fsync_destination_waits_until_its_entry_is_on_disk(
    engine: Engine,
) -> None:
    """F7: copies have the class of their destination; the source is of class disk."""
    engine.put_topic("b", {"durability": "fsync"}).result()
    route(engine, "r", "a", "b")
    write(engine, "a", "1")
    reading = engine.read("b")
    assert not reading.done and engine.state.by_name["b"].head == 0
    written = shard(engine).written
    assert [r.data for r in reading.result().records] == [b"1"]
    assert shard(engine).durable >= written
