"""Positions: whose a seq is, and which are refused."""

from __future__ import annotations

import pytest

from headrace.core.errors import InvalidRequest, OffsetGone
from headrace.engine.engine import Engine
from headrace.engine.streams.spec import START, Position
from headrace.engine.topics.config import make_config
from tests.support.stream_calls import create, fork, write


def test_an_empty_stream_has_a_tail_that_can_be_read_from(engine: Engine) -> None:
    tail = create(engine, "s").info.tail
    assert tail.incarnation > 0 and tail.seq == 0
    assert engine.streams.resolve("s", tail) == engine.streams.resolve("s", START) == 0


def test_a_fork_names_inherited_places_as_its_source_does(engine: Engine) -> None:
    root = create(engine, "a", b"1").info.epoch
    middle = fork(engine, "b", "a", records=b"2").info.epoch
    leaf = fork(engine, "c", "b", records=b"3").info.epoch
    assert root < middle < leaf
    positions = [engine.streams.position("c", seq) for seq in range(4)]
    assert positions == [
        Position(root, 0),
        Position(root, 1),
        Position(middle, 2),
        Position(leaf, 3),
    ]
    assert positions == sorted(positions)
    assert [engine.streams.resolve("c", at) for at in positions] == [0, 1, 2, 3]


def test_what_a_stream_never_gave_out_is_invalid(engine: Engine) -> None:
    root = create(engine, "a", b"1").info.epoch
    leaf = fork(engine, "b", "a", records=b"2").info.epoch
    write(engine, "a", b"later").result()
    for name, at in (
        ("a", Position(root, 3)),
        ("a", Position(leaf, 1)),
        ("b", Position(root, 2)),  # of the source, behind the fork
        ("b", Position(leaf, 1)),  # the source's place, named as the fork's
        ("b", Position(leaf, 3)),
        ("b", Position(10**16 - 1, 10**16 - 1)),
    ):
        with pytest.raises(InvalidRequest):
            engine.streams.resolve(name, at)


def test_what_another_stream_of_the_name_gave_out_is_gone(engine: Engine) -> None:
    old = create(engine, "s", b"1").info.tail
    engine.streams.delete("s").result()
    create(engine, "s", b"1")
    with pytest.raises(OffsetGone) as caught:
        engine.streams.resolve("s", old)
    assert caught.value.detail["reason"] == "incarnation"


def test_what_retention_took_is_gone(engine: Engine) -> None:
    config = make_config({"durability": "fsync", "cap_bytes": 2})
    epoch = create(engine, "s", b"1", config=config).info.epoch
    for data in (b"2", b"3", b"4"):
        write(engine, "s", data).result()
    assert engine.streams.info("s").earliest_seq == 3
    for seq in (0, 1):
        with pytest.raises(OffsetGone) as caught:
            engine.streams.resolve("s", Position(epoch, seq))
        assert caught.value.detail["reason"] == "retention"
    assert engine.streams.resolve("s", Position(epoch, 2)) == 2
    assert engine.streams.resolve("s", START) == 0
