"""Several routers with the same source and the same destination."""

from __future__ import annotations

import pytest

from headrace.engine.engine import Engine
from headrace.engine.routers.state import EXACTLY_ONCE
from tests.support.engine_reads import all_records
from tests.support.router_calls import CLASSES, Restart, route, run, write
from tests.support.seqs import seqs_of

# Copies of the first and the third are made alike, those of the second otherwise.
ALIKE = {"r1": {}, "r2": {"preserve_tag": False}, "r3": {}}


@pytest.mark.parametrize("durability", CLASSES)
def test_copies_are_numbered_in_the_order_in_which_they_are_logged(
    engine: Engine, kill: Restart, durability: str
) -> None:
    engine.put_topic("b", {"durability": durability}).result()
    for name, options in ALIKE.items():
        route(engine, name, "a", "b", **options)
    for number in range(3):
        write(engine, "a", str(number), tags=["t"])
        run(engine)
    before = all_records(engine, "b")
    assert seqs_of(before) == list(range(1, 10))
    assert sorted(record.data for record in before) == sorted([b"0", b"1", b"2"] * 3)
    assert [record.tag for record in before].count(None) == 3
    assert [engine.routers.get(name).result().forwarded_total for name in ALIKE] == [3, 3, 3]
    if durability != "ephemeral":
        assert all_records(kill(engine), "b") == before


def test_routers_of_many_kinds_into_two_topics(engine: Engine, kill: Restart) -> None:
    """Each topic has its copies in one order, whichever entries they share with the other's."""
    kinds = [{}, {"preserve_tag": False}, {"preserve_node": False}, {"guarantee": EXACTLY_ONCE}]
    names = []
    for round in range(3):
        for dest in ("b", "c") if round % 2 else ("c", "b"):
            for number, kind in enumerate(kinds[round:] + kinds[:round]):
                names.append(f"{dest}{round}{number}")
                route(engine, names[-1], "a", dest, **kind)
    for number in range(5):
        write(engine, "a", str(number), tags=["t"])
    run(engine)
    before = {topic: all_records(engine, topic) for topic in "bc"}
    for found in before.values():
        assert seqs_of(found) == list(range(1, 5 * 12 + 1))
    assert {engine.routers.get(name).result().forwarded_total for name in names} == {5}
    engine = kill(engine)
    assert {topic: all_records(engine, topic) for topic in "bc"} == before


def test_holes_of_several_routers(engine: Engine, kill: Restart) -> None:
    engine.put_topic("a", {"cap_records": 1}).result()
    for name, kind in ALIKE.items():
        route(engine, name, "a", "b", **kind)
    engine.append("a", [1, 2, 3]).result()
    run(engine)
    state = engine.topic("b")
    assert (state.head_seq, len(all_records(engine, "b"))) == (9, 3)
    engine = kill(engine)
    assert (engine.topic("b").head_seq, len(all_records(engine, "b"))) == (9, 3)
