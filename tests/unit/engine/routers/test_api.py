"""Asking for routers: what is refused and in which order, what is shown, listed and deleted."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from headrace.core.errors import (
    HeadraceError,
    InvalidRequest,
    RouterCycle,
    RouterNotFound,
    Throttled,
    TopicNotFound,
)
from headrace.engine.engine import Engine
from headrace.engine.removal.deleting import TagMatch
from headrace.storage.block import Batch
from headrace.storage.files.merge_policy import MergePolicy
from tests.support.engine_reads import all_records
from tests.support.router_calls import CLASSES, LITTLE, Restart, data, route, run, write


def test_the_checks_of_a_put_come_in_their_order(engine: Engine) -> None:
    def refusal(name: str, source: str, dest: str, **options: object) -> HeadraceError:
        with pytest.raises(HeadraceError) as refused:
            route(engine, name, source, dest, **options)
        return refused.value

    route(engine, "ab", "a", "b")
    assert isinstance(refusal("", "a", "a"), InvalidRequest)
    assert "both" in refusal("r", "\n", "\n").message
    assert "control character" in refusal("r", "\n", "x", create_dest=False).message
    assert isinstance(refusal("ab", "x", "nowhere", create_dest=False), TopicNotFound)
    assert refusal("ab2", "x", "b").detail["reason"] == "router_dest_fan_in"
    assert refusal("ab", "b", "a").detail == {
        "router": "ab",
        "reason": "router_repoint_forbidden",
        "existing_source": "a",
        "existing_dest": "b",
    }
    assert isinstance(refusal("ba", "b", "a"), RouterCycle)
    assert isinstance(refusal("r", "x", "y", backfill=1), InvalidRequest)
    assert isinstance(refusal("r", "x", "y", guarantee="twice"), InvalidRequest)
    assert sorted(engine.state.by_name) == ["a", "b"] and list(engine.routers.by_name) == ["ab"]


def test_a_cap_is_told_before_a_circle_and_leaves_nothing_behind(start: Callable) -> None:
    engine: Engine = start(max_routers=1, max_topics=3)
    route(engine, "ab", "a", "b")
    with pytest.raises(Throttled) as refused:
        route(engine, "ba", "b", "a")
    assert refused.value.detail == {"limit": "max_routers", "max": 1}
    assert not route(engine, "ab", "a", "b", preserve_node=False).created
    engine.routers.delete("ab").result()
    with pytest.raises(Throttled) as refused:
        route(engine, "xy", "x", "y")
    assert refused.value.detail["limit"] == "max_topics"
    assert sorted(engine.state.by_name) == ["a", "b"]
    assert route(engine, "ax", "a", "x").created


def test_a_put_again_keeps_cursor_and_totals_and_changes_the_rest(
    engine: Engine, again: Restart
) -> None:
    assert route(engine, "r", "a", "b").created
    write(engine, "a", "1", tags=["t"])
    changed = route(engine, "r", "a", "b", preserve_tag=False, filter=TagMatch("t"))
    assert not changed.created and changed.router.filter == ("tag", "Eq", "t")
    engine = again(engine)
    write(engine, "a", "2", "3", tags=["t", "u"])
    assert [(r.data, r.tag) for r in all_records(engine, "b")] == [(b"1", "t"), (b"2", None)]
    info = engine.routers.get("r").result()
    assert (info.forwarded_total, info.cursor, info.preserve_tag) == (2, 3, False)


def test_a_backfill_begins_where_it_was_asked_to(engine: Engine) -> None:
    engine.put_topic("a", {"cap_records": 4}).result()
    write(engine, "a", *map(str, range(1, 7)))
    route(engine, "all", "a", "b", backfill=True)
    route(engine, "some", "a", "c", backfill=4)
    route(engine, "none", "a", "d")
    write(engine, "a", "7")
    assert data(engine, "b") == ["3", "4", "5", "6", "7"]
    assert engine.read("b").result().tombstone is None
    assert (data(engine, "c"), data(engine, "d")) == (["5", "6", "7"], ["7"])


def test_a_backfill_of_what_only_files_hold(start: Callable, again: Restart) -> None:
    engine: Engine = start(policy=MergePolicy(fan_in=2), **LITTLE)
    for number in range(12):
        engine.append("a", [b"%d:" % number + bytes(60_000)] * 5).result()
        if number % 3 == 2:
            engine.checkpoint().result()
    assert engine.state.by_name["a"].blocks.first.first_seq > 1  # type: ignore[union-attr]
    route(engine, "r", "a", "b", backfill=True)
    assert engine.topic("b").head_seq < 60  # it takes its time
    while engine.topic("b").head_seq < 60:
        engine.checkpoint().result()
        engine.state.clock._clock.advance(100)  # type: ignore[attr-defined]
        run(engine)
    assert [r.data for r in all_records(engine, "b")] == [r.data for r in all_records(engine, "a")]
    before = all_records(engine, "b")
    assert all_records(again(engine), "b") == before


def test_a_router_is_shown_listed_and_deleted(engine: Engine, again: Restart) -> None:
    for number in range(5):
        route(engine, f"r{number}", f"s{number % 2}", f"d{number}")
    page = engine.routers.page(limit=2)
    assert [r.router for r in page.routers] == ["r0", "r1"] and page.after == "r1"
    page = engine.routers.page(after="r1", source="s0")
    assert [r.router for r in page.routers] == ["r2", "r4"] and page.after is None
    assert [r.router for r in engine.routers.page(dest="d3").routers] == ["r3"]
    assert engine.routers.page("x").routers == []
    write(engine, "s0", "1")
    assert engine.routers.delete("r0").result()[:2] == ("r0", True)
    assert engine.routers.delete("r0").result()[:2] == ("r0", False)
    with pytest.raises(RouterNotFound) as missing:
        engine.routers.get("r0")
    assert missing.value.detail == {"router": "r0"}
    engine = again(engine)
    write(engine, "s0", "2")
    assert "r0" not in engine.routers.by_name and data(engine, "d0") == ["1"]
    assert data(engine, "d2") == ["1", "2"]


def test_a_deleted_router_stays_deleted_over_any_number_of_restarts(
    engine: Engine, kill: Restart, restart: Restart
) -> None:
    route(engine, "r", "a", "b")
    engine.checkpoint().result()
    engine.routers.delete("r").result()
    engine = restart(kill(engine))
    assert len(engine.routers.by_name) == 0
    engine = restart(engine)
    assert len(engine.routers.by_name) == 0


def test_flags_clear_tag_and_node(engine: Engine, again: Restart) -> None:
    """J2: copies keep both unless a flag clears one."""
    route(engine, "r", "a", "b", preserve_node=False)
    route(engine, "s", "a", "c", preserve_tag=False)
    engine.append("a", Batch([b"1"], tags=["t"], nodes="n", metas=[b'{"m":1}'])).result()
    for _ in range(2):
        (one,), (other,) = all_records(engine, "b"), all_records(engine, "c")
        assert (one.tag, one.node, one.meta) == ("t", None, b'{"m":1}')
        assert (other.tag, other.node) == (None, "n")
        engine = again(engine)


def test_at_most_1024_records_in_a_pass_and_every_router_gets_its_turn(engine: Engine) -> None:
    route(engine, "r", "a", "b")
    route(engine, "s", "other", "c")
    engine.append("a", [bytes(10)] * 5_000).result()
    write(engine, "other", "1")
    router = engine.routers.by_name["r"]
    heads = []
    while router.cursor < 5_000:
        engine.runtime.step()  # type: ignore[attr-defined]
        if not heads or heads[-1] != router.cursor:
            heads.append(router.cursor)
        if router.cursor == 2048:
            assert engine.state.by_name["c"].head == 1
    assert heads == [0, 1024, 2048, 3072, 4096, 5000]
    assert len(all_records(engine, "b")) == 5_000


@pytest.mark.parametrize("shards", [1, 2, 3, 5])
def test_any_number_of_shards(start: Callable, again: Restart, shards: int) -> None:
    engine: Engine = start(wal_shards=shards)
    engine.put_topic("a", {"cap_records": 3}).result()
    for number in range(6):
        durability = CLASSES[1 + number % 3]
        engine.put_topic(f"d{number}", {"durability": durability}).result()
        route(engine, f"r{number}", "a" if number < 3 else f"d{number - 3}", f"d{number}")
    for number in range(25):
        write(engine, "a", str(number))
        write(engine, f"d{number % 6}", "direct")
        assert str(number) in data(engine, f"d{number % 6}")
        if number % 10 == 9:
            engine.checkpoint().result()
    before = {f"d{n}": all_records(engine, f"d{n}") for n in range(6)}
    engine = again(engine, wal_shards=shards)
    assert {f"d{n}": all_records(engine, f"d{n}") for n in range(6)} == before
    engine = again(engine, wal_shards=1 + shards % 3)
    assert {f"d{n}": all_records(engine, f"d{n}") for n in range(6)} == before
