"""Routers where several things happen at once: twins, checkpoints, failures, waiting readers."""

from __future__ import annotations

from collections.abc import Callable
from itertools import count, pairwise

import pytest

from headrace.core.clock import ManualClock
from headrace.core.errors import RouterNotFound, TopicNotFound
from headrace.engine.engine import Engine
from headrace.engine.removal.deleting import TagMatch
from headrace.engine.routers.forwarding import ROUTERS_PER_PASS
from headrace.engine.routers.replay import RouterReplay
from headrace.engine.routers.state import EXACTLY_ONCE, HopRuns, RouterOptions
from headrace.engine.scheduling import turns
from headrace.engine.sealing.checkpoint import Checkpoint
from headrace.storage.files.merge_policy import MergePolicy
from headrace.storage.files.store import DirectoryStore
from headrace.testing.simdisk import SimDisk
from tests.support.engine_reads import all_records
from tests.support.engines import Start
from tests.support.router_calls import Restart, data, route, run, shard, write


def test_i3_twins_are_logged_in_the_order_of_their_seqs(engine: Engine, again: Restart) -> None:
    """The last router shares its entry with one of the first two; the third is before it."""
    for name in ("x", "y"):
        route(engine, name, "a", "z", filter=TagMatch("f"))
    route(engine, "r", "a", "b")
    route(engine, "s", "a", "b", filter=TagMatch("f"))
    write(engine, "a", "1", "2", tags=["f", None])
    assert data(engine, "b") == ["1", "2", "1"]
    before = all_records(engine, "b")
    assert all_records(again(engine), "b") == before


def test_i3_twins_announce_losses_in_the_order_of_their_seqs(
    engine: Engine, again: Restart
) -> None:
    engine.put_topic("a", {"cap_records": 1}).result()
    engine.put_topic("f", {"durability": "fsync"}).result()
    for name, dest in (("w", "f"), ("r", "b"), ("s", "b")):
        route(engine, name, "a", dest)
    # So that only the second of the twins is synced.
    engine.state.by_name["b"].reservation.valid_to = 300
    write(engine, "a", *map(str, range(200)))
    assert data(engine, "b") == ["199", "199"]
    run(engine)  # until what is of class fsync is on disk
    heads = [engine.state.by_name[name].head for name in "bf"]
    assert heads == [400, 200]
    before = all_records(engine, "b")
    engine = again(engine)
    assert all_records(engine, "b") == before
    assert [engine.state.by_name[name].head for name in "bf"] == heads


def test_i6_a_destination_made_while_a_checkpoint_begins_keeps_its_copies(
    engine: Engine, kill: Restart, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The snapshot does not have it yet, and has its source without the record already."""
    engine.put_topic("a", {"cap_records": 1}).result()
    write(engine, "a", "0")
    started = Checkpoint._take_changed
    seen: list[list[bytes]] = []

    def between(self: Checkpoint) -> None:
        if not seen:
            engine.put_topic("b", {"durability": "fsync"}).result()
            route(engine, "r", "a", "b")
            write(engine, "a", "1")
            run(engine)
            write(engine, "a", "2")
            run(engine)
            seen.append(in_memory(engine, "b"))
        started(self)

    monkeypatch.setattr(Checkpoint, "_take_changed", between)
    engine.checkpoint().result()
    before = all_records(engine, "b")
    assert [r.data for r in before][: len(seen[0])] == seen[0]
    engine = kill(engine)
    assert all_records(engine, "b") == before


def in_memory(engine: Engine, name: str) -> list[bytes]:
    return [d for block in engine.state.by_name[name].blocks for d in block.data(0, block.count)]


def test_i2_a_reader_of_a_full_destination_does_not_wait_for_ever(engine: Engine) -> None:
    """As many passes as one read may cause fill it; the next one finds no room."""
    engine.put_topic("b", {"cap_records": 8 * 1024, "discard": "reject"}).result()
    route(engine, "r", "a", "b")
    engine.state.forwarding.hold()  # type: ignore[union-attr]
    engine.append("a", [bytes(1)] * 9_000).result()
    # So that no pass has to wait for the disk.
    engine.state.by_name["b"].reservation.valid_to = 1 << 40
    engine.state.forwarding.release()  # type: ignore[union-attr]
    reading = engine.read("b")
    while not reading.done and engine.runtime.step():  # type: ignore[attr-defined]
        pass
    assert reading.done and engine.state.by_name["b"].head == 8 * 1024


def test_i2_a_reader_does_not_wait_until_routers_have_their_turn(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Under pressure the jobs of routers are held back for seconds; reads are not."""
    route(engine, "r", "a", "b")
    job = engine.routers.directory.forwarder.sources[engine.state.by_name["a"].id]
    monkeypatch.setattr(type(job), "step", lambda _self: False)
    engine.append("a", [bytes(1)] * 10_000).result()
    engine.state.by_name["b"].reservation.valid_to = 1 << 40
    reading = engine.read("b", 9_999)
    while not reading.done and engine.runtime.step():  # type: ignore[attr-defined]
        pass
    assert reading.done and len(reading.result().records) == 1


def test_i12_a_shard_that_fails_is_not_taken_for_durable(start: Callable) -> None:
    """And its routers wait, rather than ask again at once."""
    engine: Engine = start(wal_shards=3)
    state = engine.state
    (source, *_), _, (dest, *_) = topics_by_shard(engine)
    engine.put_topic(dest, {"durability": "fsync"}).result()
    route(engine, "r", source, dest)
    write(engine, source, "1")
    state.shards[0]._poisoned(OSError(5, "broken"))
    for _ in range(2_000):
        if not engine.runtime.step():  # type: ignore[attr-defined]
            break
    else:
        pytest.fail("it asks again and again")
    router = engine.routers.by_name["r"]
    assert state.by_name[dest].head == 0 and router.durable_to == 0 and router.blocked


def test_i5_each_router_is_tried_again_after_its_own_time(
    engine: Engine, clock: ManualClock
) -> None:
    for name in "bc":
        engine.put_topic(name, {"cap_records": 1, "discard": "reject"}).result()
        route(engine, f"a->{name}", "a" if name == "b" else "x", name)
    write(engine, "a", "1", "2")
    for _ in range(12):
        clock.advance(6_000)
        run(engine)
    assert engine.routers.by_name["a->b"].blocked  # and waits for five seconds
    write(engine, "x", "1", "2")
    run(engine)
    engine.delete("c", before_seq=2).result()
    waited = 0
    while engine.state.by_name["c"].head < 2:
        clock.advance(10)
        waited += 10
        run(engine)
        assert waited <= 120
    assert waited >= 50


def test_i5_a_reader_does_not_make_a_full_destination_wait_longer(
    engine: Engine, clock: ManualClock
) -> None:
    engine.put_topic("b", {"cap_records": 1, "discard": "reject"}).result()
    route(engine, "r", "a", "b")
    write(engine, "a", "1", "2")
    for _ in range(20):
        assert data(engine, "b") == ["1"]
    engine.delete("b", before_seq=2).result()
    clock.advance(60)
    run(engine)
    assert engine.state.by_name["b"].head == 2


def test_i9_a_circle_with_too_many_runs_of_hops_goes_on(
    engine: Engine, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each of the two would wait for the other."""
    monkeypatch.setattr("headrace.engine.routers.selection.HOP_RUNS_MAX", 3)
    route(engine, "ab", "a", "b")
    route(engine, "ba", "b", "a", allow_cycle=True)
    engine.state.forwarding.hold()  # type: ignore[union-attr]
    for number in range(10):
        write(engine, "a", f"a{number}")
        write(engine, "b", f"b{number}")
    for name in "ab":
        runs = engine.routers.directory.forwarder.hops[engine.state.by_name[name].id] = HopRuns()
        for seq in range(1, 11, 2):
            runs.add(seq, [1, 7])
    engine.state.forwarding.release()  # type: ignore[union-attr]
    for _ in range(40):
        run(engine)
        clock.advance(6_000)
    for router in engine.routers.by_name.values():
        assert router.cursor == router.source.head and not router.blocked


def test_copies_that_are_never_stored_wait_for_nothing_in_a_replay(
    engine: Engine, kill: Restart, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Their source was never stored either, and will not come."""
    for name in "ab":
        engine.put_topic(name, {"durability": "ephemeral"}).result()
    route(engine, "r", "a", "b")
    write(engine, "a", "1", "2")
    assert data(engine, "b") == ["1", "2"]
    engine.put_topic("b", {}).result()
    write(engine, "b", "3")
    assert data(engine, "b") == ["1", "2", "3"]

    def put_aside(*_: object) -> bool:
        pytest.fail("an entry was put aside")

    monkeypatch.setattr(RouterReplay, "put_aside", put_aside)
    engine = kill(engine)
    assert [(r.seq, r.data) for r in all_records(engine, "b")] == [(3, b"3")]


@pytest.mark.parametrize("caps", [{"cap_records": 2}, {"cap_bytes": 2}])
def test_i1_caps_of_destinations_cost_no_frames(
    engine: Engine, kill: Restart, caps: dict[str, int]
) -> None:
    for number in range(20):
        engine.put_topic(f"d{number}", caps).result()
        route(engine, f"r{number}", "a", f"d{number}")
    write(engine, "a", "1", "2", "3")
    run(engine)
    frames = shard(engine).frames_total
    write(engine, "a", "4")
    run(engine)
    assert shard(engine).frames_total == frames + 1
    before = [all_records(engine, f"d{number}") for number in range(20)]
    assert [r.data for r in before[0]] == [b"3", b"4"]
    engine = kill(engine)
    assert [all_records(engine, f"d{number}") for number in range(20)] == before
    assert engine.topic("d0").earliest_seq == 3


def test_i11_the_key_counts_where_a_destination_is_bounded(engine: Engine) -> None:
    engine.put_topic("b", {"cap_bytes": 400, "discard": "reject"}).result()
    route(engine, "r", "a", "b", guarantee=EXACTLY_ONCE)
    write(engine, "a", *["x" * 100] * 4)
    assert data(engine, "b") == ["x" * 100]
    assert engine.topic("b").bytes <= 400
    assert engine.routers.get("r").result().blocked


def test_i11_what_is_remembered_of_copies_goes_with_them(engine: Engine, again: Restart) -> None:
    engine.put_topic("b", {"cap_records": 10}).result()
    route(engine, "r", "a", "b", guarantee=EXACTLY_ONCE, filter=TagMatch("t"))
    for _ in range(5):
        write(engine, "a", *["x"] * 200, tags=["t", None] * 100)
        assert len(data(engine, "b")) == 10
    engine.checkpoint().result()
    (keys,) = engine.routers.directory.forwarder.keys[engine.state.by_name["b"].id].values()
    assert len(keys) == 10
    assert sum(len(part) for pair in keys.encode() for part in pair) < 200
    before = all_records(engine, "b")
    engine = again(engine)
    assert (all_records(engine, "b"), len(keys)) == (before, 10)
    engine.routers.by_name["r"].cursor = 980
    assert all_records(engine, "b") == before
    engine.delete("b", match="t").result()
    engine.routers.by_name["r"].cursor = 980
    assert len(data(engine, "b")) == 10


def test_i11_routers_that_are_there_are_remembered_before_those_that_were(
    engine: Engine, restart: Restart, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("headrace.engine.routers.snapshot.KEY_SETS_MAX", 2)
    for name in ("r", "s", "t", "u", "v"):
        route(engine, name, "a", "b", guarantee=EXACTLY_ONCE)
    write(engine, "a", "1")
    assert len(data(engine, "b")) == 5
    for name in "stu":
        engine.routers.delete(name).result()
    engine = restart(engine)
    for name in "rv":
        engine.routers.delete(name).result()
    for name, copies in (("r", 5), ("v", 5), ("u", 5), ("t", 5), ("s", 6)):
        route(engine, name, "a", "b", guarantee=EXACTLY_ONCE, backfill=True)
        assert len(data(engine, "b")) == copies


def test_a_backfill_does_not_announce_what_had_expired_before(
    engine: Engine, clock: ManualClock
) -> None:
    engine.put_topic("a", {"ttl_ms": 100}).result()
    write(engine, "a", "1", "2")
    clock.advance(200)
    route(engine, "r", "a", "b", backfill=True)
    write(engine, "a", "3")
    page = engine.read("b").result()
    assert page.tombstone is None and [r.data for r in page.records] == [b"3"]
    assert page.records[0].seq == 1


def test_a_change_does_not_reach_what_was_written_before(engine: Engine) -> None:
    route(engine, "r", "a", "b")
    engine.state.forwarding.hold()  # type: ignore[union-attr]
    write(engine, "a", "1", tags=["no"])
    asked = RouterOptions(source="a", dest="b", filter=TagMatch("yes"))
    changing = engine.routers.put("r", asked)
    run(engine)
    engine.state.forwarding.release()  # type: ignore[union-attr]
    changing.result()
    write(engine, "a", "2", "3", tags=["no", "yes"])
    assert data(engine, "b") == ["1", "3"]


def test_who_waits_for_a_router_hears_that_it_is_gone(engine: Engine) -> None:
    engine.put_topic("b", {"durability": "fsync"}).result()
    route(engine, "r", "a", "b")
    write(engine, "a", "1")
    asked = RouterOptions(source="a", dest="b", preserve_tag=False)
    waiting = [engine.routers.get("r"), engine.routers.put("r", asked), engine.read("b")]
    assert not any(ticket.done for ticket in waiting)
    engine.delete_topic("b").result()
    run(engine)
    errors = [type(ticket.error) for ticket in waiting]  # type: ignore[attr-defined]
    assert errors == [RouterNotFound, RouterNotFound, TopicNotFound]
    assert len(engine.routers.by_name) == 0


def topics_by_shard(engine: Engine) -> list[list[str]]:
    state = engine.state
    found: list[list[str]] = [[] for _ in state.shards]
    for number in range(12):
        topic = engine.put_topic(f"t{number}").result().topic
        found[state.shards.index(state.shard_of(state.by_name[topic].id))].append(topic)
    return found


def in_two_shards(start: Start) -> tuple[Engine, str, str]:
    """An engine, a source that is synced at once, and a destination in another shard."""
    engine = start(wal_shards=2)
    (source, *_), (dest, *_) = topics_by_shard(engine)
    engine.put_topic(source, {"durability": "fsync"}).result()
    return engine, source, dest


def test_a_change_does_not_move_a_cursor_beyond_what_the_disk_has(
    start: Callable, power_loss: Restart
) -> None:
    """The entries of the copies are in another shard than the change, which is synced."""
    engine, source, dest = in_two_shards(start)
    state = engine.state
    route(engine, "r", source, dest)
    write(engine, source, "1", "2")
    assert data(engine, dest) == ["1", "2"]
    route(engine, "r", source, dest, preserve_tag=False)
    assert state.shards[1].durable < state.shards[1].written
    engine = power_loss(engine)
    assert data(engine, dest) == ["1", "2"]


def test_what_is_left_out_does_not_move_a_cursor_beyond_what_the_disk_has(
    start: Callable, power_loss: Restart
) -> None:
    """A record that the filter leaves out comes after one whose copy is lost."""
    engine, source, dest = in_two_shards(start)
    state = engine.state
    route(engine, "r", source, dest, filter=TagMatch("f"))
    write(engine, source, "1", tags=["f"])
    assert data(engine, dest) == ["1"]
    write(engine, source, "2")
    assert engine.routers.get("r").result().cursor == 2
    write(engine, source, "3", tags=["f"])
    state.forwarding.hold()  # type: ignore[union-attr]
    assert state.shards[1].durable < state.shards[1].written
    engine = power_loss(engine)
    assert data(engine, dest) == ["1", "3"]


def tick(engine: Engine, clock: ManualClock) -> None:
    """From now on every look at the clock takes longer than a turn."""
    ticks = count(0, 1_100_000)
    engine.state.turns.monotonic_ns = lambda: clock.monotonic_ns() + next(ticks)


def test_a_fan_out_leaves_the_loop_to_others(engine: Engine, clock: ManualClock) -> None:
    """A pass is for so many routers; what is written meanwhile need not wait for all of them."""
    for number in range(300):
        route(engine, f"r{number}", "a", f"d{number}")
    run(engine)
    tick(engine, clock)
    write(engine, "a", "1")
    heads = []
    while engine.runtime.step():  # type: ignore[attr-defined]
        there = sum(engine.state.by_name[f"d{number}"].head for number in range(300))
        if not heads or heads[-1] != there:
            heads.append(there)
    assert heads[-1] == 300
    assert max(b - a for a, b in pairwise(heads)) <= ROUTERS_PER_PASS < 300


def test_a_fan_out_is_charged_for_what_its_copies_cost_later(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They become visible in the turn in which they are staged, after the time of that is up."""
    monkeypatch.setattr(turns, "SETTLE_NS", turns.SLICE_NS // ROUTERS_PER_PASS)
    for number in range(3 * ROUTERS_PER_PASS):
        route(engine, f"r{number}", "a", f"d{number}")
    run(engine)
    write(engine, "a", "1")
    copies = [engine.state.by_name[f"d{number}"] for number in range(3 * ROUTERS_PER_PASS)]
    heads = {0}
    while engine.runtime.step():  # type: ignore[attr-defined]
        heads.add(sum(topic.head for topic in copies))
    assert sorted(heads) == [n * ROUTERS_PER_PASS for n in range(4)]


def test_a_read_of_one_destination_does_not_wait_for_all_others(engine: Engine) -> None:
    for number in range(300):
        route(engine, f"r{number}", "a", f"d{number}")
    run(engine)
    write(engine, "a", "1")
    assert in_memory(engine, "d299") == []
    engine.routers.drain_into("d299")
    assert in_memory(engine, "d299") == [b"1"]
    assert sum(engine.state.by_name[f"d{number}"].head for number in range(300)) < 300
    run(engine)
    assert sum(engine.state.by_name[f"d{number}"].head for number in range(300)) == 300


def test_routers_at_different_places_share_a_turn(engine: Engine, clock: ManualClock) -> None:
    """Many that stand at many places: the loop is left between them, and all get on."""
    for number in range(6):
        config = {"cap_records": number + 1, "discard": "reject"}
        engine.put_topic(f"d{number}", config).result()
        route(engine, f"r{number}", "a", f"d{number}")
    write(engine, "a", *map(str, range(20)))
    run(engine)
    for number in range(6):
        engine.put_topic(f"d{number}", {}).result()
    tick(engine, clock)
    job = engine.routers.directory.forwarder.sources[engine.state.by_name["a"].id]
    for router in job.routers:
        router.placed()
    steps = 0
    while job.step():
        steps += 1
        run(engine)
    run(engine)
    assert steps >= 3
    assert [engine.state.by_name[f"d{number}"].head for number in range(6)] == [20] * 6


@pytest.mark.parametrize("gone", ["deleted", "evicted", "topic"])
def test_i12_copies_of_cold_records_are_rebuilt_though_these_are_gone(
    start: Callable, gone: str
) -> None:
    """And the files go when the copies are sealed: nothing is kept for them any longer."""
    disk, cold = SimDisk(), SimDisk()
    policy = MergePolicy(fan_in=2, own_rows_min=1, own_bytes_min=1, own_topics_max=1_000)
    how = {"policy": policy, "hot_retain_segments": 1}
    engine: Engine = start(disk, cold=DirectoryStore(cold), **how)
    for part in range(5):
        engine.append("a", [b"%d" % part * 500] * 20).result()
        engine.checkpoint().result()
    assert 1 in {meta.tier for meta in engine.state.catalog.metas()}
    engine.state.forget_blocks(engine.state.by_name["a"])
    engine.put_topic("b", {"durability": "fsync"}).result()
    route(engine, "r", "a", "b", backfill=True, guarantee=EXACTLY_ONCE)
    before = all_records(engine, "b")
    assert len(before) == 100
    if gone == "deleted":
        engine.delete("a", before_seq=101).result()
        engine.synced("a").result()
    elif gone == "evicted":
        engine.put_topic("a", {"cap_records": 1}).result()
    else:
        engine.delete_topic("a").result()
    for _ in range(2):
        engine.abandon()
        image = disk.image(disk.position, "none", 0)
        engine = start(image.copy(), cold=DirectoryStore(cold.copy()), **how)
        assert all_records(engine, "b") == before
    for _ in range(6):
        engine.append("c", [1]).result()
        engine.checkpoint().result()
    of_a = [t for s in engine.state.catalog.segments() for t in s.directory().topic_ids if t == 1]
    assert len(of_a) == (gone == "evicted")
    engine.delete_topic("b").result()
    engine.delete_topic("a").result()
    for _ in range(6):
        engine.append("c", [1]).result()
        engine.checkpoint().result()
    assert sum(meta.size for meta in engine.state.catalog.metas()) < 20_000
