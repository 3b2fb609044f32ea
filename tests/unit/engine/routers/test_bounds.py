"""What routers keep is bounded: what a destination announces, what a replay puts aside."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from headrace.engine.engine import Engine
from headrace.engine.routers.replay import RouterReplay
from tests.support.engine_reads import all_records
from tests.support.router_calls import Restart, data, route, run, write


def test_i7_a_destination_announces_a_bounded_number_of_ranges(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At the bound its router waits, and nothing is lost without a word; a delete makes room."""
    monkeypatch.setattr("headrace.engine.topics.live_seqs.source_trims_max", 3)
    engine.put_topic("a", {"cap_records": 1}).result()
    route(engine, "r", "a", "b")
    dest = engine.state.by_name["b"]
    write(engine, "b", "first")
    for number in range(3):
        write(engine, "a", f"lost {number}", f"kept {number}")
        assert data(engine, "b")[-1] == f"kept {number}"
    assert dest.trims == [(2, 2), (4, 4), (6, 6)]
    write(engine, "a", "lost 3", "kept 3")
    assert data(engine, "b")[-1] == "kept 2"
    assert engine.routers.get("r").result().blocked
    write(engine, "a", "kept 4")  # and `kept 3` is gone before it could be copied
    # Where nothing alive is between two ranges, they are one.
    engine.delete("b", before_seq=4).result()
    assert data(engine, "b") == ["kept 1", "kept 2", "kept 4"]
    assert dest.trims == [(2, 4), (6, 6), (8, 9)]
    told = []
    for cursor in (0, 1, 2, 4, 5, 6, 7, 8, 9):
        lost = dest.lost_after(cursor)
        told.append(lost and (cursor, *lost[:2]))
        assert (
            dest.read_end(cursor) == {0: 1, 1: 1, 2: 2, 4: 5, 5: 5, 6: 7, 7: 7, 8: 8, 9: 10}[cursor]
        )
    assert [one for one in told if one] == [
        (0, 2, 4), (1, 2, 4), (2, 3, 4), (5, 6, 6), (7, 8, 9), (8, 9, 9),
    ]  # fmt: skip


def test_what_is_put_aside_in_a_replay_is_bounded(
    start: Callable, kill: Restart, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The log of a destination waits for that of its source; both are rebuilt exactly."""
    payload = "x" * 100_000
    memory = {"wal_shards": 2, "replay_memory_bytes": 1 << 20, "wal_file_bytes": 32 << 20}
    engine: Engine = start(**memory)
    state = engine.state
    by_shard: list[list[str]] = [[], []]
    for name in "abcdefgh":
        engine.put_topic(name).result()
        by_shard[state.shards.index(state.shard_of(state.by_name[name].id))].append(name)
    # One of the destinations is read before its source.
    pairs = list(zip(by_shard[0][:2], by_shard[1][1::-1], strict=True))
    pairs[1] = pairs[1][::-1]
    for source, dest in pairs:
        route(engine, f"{source}->{dest}", source, dest)
    for number in range(40):
        for source, dest in pairs:
            write(engine, source, f"{number} {payload}")
            run(engine)
            write(engine, dest, f"direct {number} {payload}")
    before = [all_records(engine, dest) for _, dest in pairs]
    assert [len(found) for found in before] == [80, 80]
    held: list[int] = []
    put_aside = RouterReplay.put_aside

    def watched(replay: RouterReplay, kind: int, topic_id: int, entry: bytes) -> bool:
        waits = put_aside(replay, kind, topic_id, entry)
        held.append(replay.waiting.bytes)
        return waits

    monkeypatch.setattr(RouterReplay, "put_aside", watched)
    engine = kill(engine, **memory)
    assert [all_records(engine, dest) for _, dest in pairs] == before
    assert held and max(held) <= (1 << 20) + 2 * len(payload)
