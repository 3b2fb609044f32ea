"""Streams that are created, and those that are there already."""

from __future__ import annotations

import pytest

from headrace.core.clock import ManualClock
from headrace.engine.engine import Engine
from headrace.engine.streams.spec import START, Position
from headrace.engine.topics.config import make_config
from headrace.storage.block import Batch, json_payloads
from tests.support.engines import Start
from tests.support.stream_calls import (
    JSON,
    FullDisk,
    close,
    code_of,
    create,
    data_of,
    fork,
    spec_of,
    write,
)


def test_a_stream_begins_with_its_first_records(engine: Engine, again: Start) -> None:
    created = create(engine, "s", b"first")
    assert created.created and created.info.head_seq == 1
    create(engine, "j", json_payloads([b"1", b"2"]), JSON)
    create(engine, "empty")
    engine = again(engine)
    assert [data_of(engine, name) for name in ("s", "j", "empty")] == [[b"first"], [b"1", b"2"], []]
    info = engine.streams.info("s")
    assert info.state.content_type == "text/plain" and info.epoch == created.info.epoch


def test_the_same_again_changes_nothing(engine: Engine) -> None:
    create(engine, "s", b"x", ttl_s=60)
    repeat = create(engine, "s", b"y", "TEXT/plain; a=b", ttl_s=60)
    assert not repeat.created and repeat.info.head_seq == 1
    assert data_of(engine, "s") == [b"x"]


def test_a_fork_waits_for_a_source_that_is_on_its_way(engine: Engine) -> None:
    source = engine.streams.create("s", spec_of(), b"x")
    forked = engine.streams.create("f", spec_of(None, source="s"), b"y")
    again = engine.streams.create("f", spec_of(None, source="s"), b"y")
    assert [t.result().created for t in (source, forked, again)] == [True, True, False]
    assert data_of(engine, "f") == [b"x", b"y"]


def test_a_fork_of_a_source_that_the_log_refuses_is_refused(start: Start) -> None:
    disk = FullDisk()
    engine = start(disk.fs)
    disk.full = True
    source = engine.streams.create("s", spec_of())
    forked = engine.streams.create("f", spec_of(None, source="s"))
    assert (code_of(source), code_of(forked)) == ("not_ready", "topic_not_found")
    assert engine.find("f") is None


@pytest.mark.parametrize(
    ("content_type", "fields"),
    [
        ("text/html", {}),
        ("text/plain", {"ttl_s": 61}),
        ("text/plain", {"expires_ms": 1}),
        ("text/plain", {"closed": True}),
        ("text/plain", {"config": make_config({"durability": "fsync", "cap_bytes": 9})}),
        ("text/plain", {"source": "other"}),
    ],
)
def test_another_one_is_a_conflict(
    engine: Engine, content_type: str, fields: dict[str, object]
) -> None:
    create(engine, "s")
    create(engine, "other")
    asked = engine.streams.create("s", spec_of(content_type, **fields))  # type: ignore[arg-type]
    assert code_of(asked) == "stream_conflict"


def test_a_closed_stream_is_another_than_an_open_one(engine: Engine) -> None:
    create(engine, "s")
    close(engine, "s")  # on its way
    assert code_of(engine.streams.create("s", spec_of())) == "stream_conflict"
    assert not create(engine, "s", closed=True).created
    create(engine, "born closed", b"x", closed=True)
    assert code_of(write(engine, "born closed", b"y")) == "stream_closed"


def test_two_at_once_are_one_stream(engine: Engine) -> None:
    tickets = [engine.streams.create("s", spec_of(), data) for data in (b"x", b"y")]
    late = write(engine, "s", b"z", media_type="a/b")
    assert not any(ticket.done for ticket in (*tickets, late))
    assert [ticket.result().created for ticket in tickets] == [True, False]
    assert code_of(late) == "stream_conflict"
    assert data_of(engine, "s") == [b"x"]


def test_a_topic_is_no_stream(engine: Engine) -> None:
    engine.put_topic("t").result()
    assert code_of(engine.streams.create("t", spec_of())) == "stream_conflict"


def test_a_stream_that_could_not_be_logged_is_not_there(start: Start) -> None:
    disk = FullDisk()
    engine = start(disk.fs)
    create(engine, "source", b"1")
    disk.full = True
    tickets = [
        engine.streams.create("s", spec_of(), b"x"),
        engine.streams.create("f", spec_of(None, source="source"), b"x"),
        engine.streams.create("s", spec_of(), b"x"),
    ]
    assert [code_of(ticket) for ticket in tickets] == ["not_ready"] * 3
    assert engine.find("s") is engine.find("f") is None
    assert engine.state.topic("source").forks is None
    assert engine.state.totals.staged_bytes == 0


def test_bad_requests(engine: Engine) -> None:
    create(engine, "s", b"x")
    for asked in (
        spec_of(durability="ephemeral"),
        spec_of(sub_offset=1),
        spec_of(None, source="s", sub_offset=1),
        spec_of(None),
        spec_of(None, source="s", fork_at=Position(10**16 - 1, 10**16 - 1)),
        spec_of(None, source="s", fork_at=START, sub_offset=2),
    ):
        assert code_of(engine.streams.create("new", asked)) == "invalid_request", asked
    assert code_of(engine.streams.create("new", spec_of(JSON), b"x")) == "invalid_request"
    assert code_of(engine.streams.create("new", spec_of(), Batch([]))) == "invalid_request"
    assert code_of(engine.streams.create("new", spec_of(), bytes(1 << 21))) == "record_too_large"
    assert engine.find("new") is None


# Forks


def test_a_fork_begins_with_what_its_source_holds(engine: Engine, again: Start) -> None:
    epoch = create(engine, "s", b"1").info.epoch
    write(engine, "s", b"2", sequence="7").result()
    write(engine, "s", b"3").result()
    at = fork(engine, "at", "s", Position(epoch, 2), b"own")
    fork(engine, "tail", "s")
    fork(engine, "start", "s", START)
    assert at.info.tail == Position(at.info.epoch, 3)
    write(engine, "s", b"later").result()
    for _ in range(2):
        assert data_of(engine, "at") == [b"1", b"2", b"own"]
        assert data_of(engine, "tail") == [b"1", b"2", b"3"]
        assert data_of(engine, "start") == []
        assert engine.streams.info("tail").tail == Position(epoch, 3)
        assert engine.streams.info("at").state.sequence is None
        engine = again(engine)


def test_a_fork_takes_type_and_life_of_its_source_and_starts_open(engine: Engine) -> None:
    create(engine, "s", b"1", ttl_s=60)
    close(engine, "s").result()
    state = fork(engine, "f", "s").info.state
    assert (state.content_type, state.ttl_s, state.closed) == ("text/plain", 60, False)
    assert fork(engine, "g", "s", expires_ms=1 << 50).info.state.ttl_s is None
    assert code_of(engine.streams.create("h", spec_of("a/b", source="s"))) == "stream_conflict"
    assert len(engine.state.topic("s").forks or ()) == 2


def test_the_same_fork_again(engine: Engine) -> None:
    epoch = create(engine, "s", b"1").info.epoch
    write(engine, "s", b"2").result()
    fork(engine, "f", "s", Position(epoch, 1))
    assert not fork(engine, "f", "s", Position(epoch, 1)).created
    assert not fork(engine, "f", "s").created
    for at, more in ((Position(epoch, 2), 0), (START, 0), (Position(epoch, 1), 1)):
        asked = spec_of(None, source="s", fork_at=at, sub_offset=more)
        assert code_of(engine.streams.create("f", asked)) == "stream_conflict"
    fork(engine, "g", "s", START)
    assert not fork(engine, "g", "s", START).created


@pytest.mark.parametrize("sealed", [False, True])
def test_a_part_of_the_next_append(engine: Engine, sealed: bool, again: Start) -> None:
    epoch = create(engine, "s", b"one").info.epoch
    write(engine, "s", b"twotwo").result()
    if sealed:
        engine.checkpoint().result()
    fork(engine, "cut", "s", Position(epoch, 1), b"own", sub_offset=3)
    fork(engine, "whole", "s", Position(epoch, 1), sub_offset=6)
    asked = spec_of(None, source="s", fork_at=Position(epoch, 1), sub_offset=7)
    assert code_of(engine.streams.create("more", asked)) == "invalid_request"
    composed = fork(engine, "composed", "cut", Position(epoch, 1), sub_offset=2)
    engine = again(engine)
    assert data_of(engine, "cut") == [b"one", b"two", b"own"]
    assert data_of(engine, "whole") == [b"one", b"twotwo"]
    assert data_of(engine, "composed") == [b"one", b"tw"]
    assert composed.info.head_seq == 2
    assert not create(
        engine, "cut", None, None, source="s", fork_at=Position(epoch, 1), sub_offset=3
    ).created


@pytest.mark.parametrize("sealed", [False, True])
def test_no_more_messages_than_the_next_append_has(
    engine: Engine, sealed: bool, restart: Start
) -> None:
    epoch = create(engine, "s", json_payloads([b"1", b"2", b"3"]), JSON).info.epoch
    write(engine, "s", json_payloads([b"4"])).result()
    if sealed:
        engine.checkpoint().result()
        engine = restart(engine)
        assert next(engine.state.topic("s").blocks.from_seq(1), None) is None  # only in the file
    for source in ("s", "all"):
        for number, (at, more, taken) in enumerate(
            [
                (START, 3, True),
                (START, 4, False),
                (Position(epoch, 1), 2, True),
                (Position(epoch, 1), 3, False),
                (Position(epoch, 3), 1, True),
                (Position(epoch, 3), 2, False),
            ]
        ):
            asked = spec_of(None, source=source, fork_at=at, sub_offset=more)
            answer = code_of(engine.streams.create(f"{source}-{number}", asked))
            assert answer == ("" if taken else "invalid_request")
        if source == "s":
            fork(engine, "all", "s")
    assert data_of(engine, "s-0") == data_of(engine, "all-0") == [b"1", b"2", b"3"]


def test_some_messages_of_the_next_append(engine: Engine) -> None:
    epoch = create(engine, "s", json_payloads([b"1", b"2", b"3"]), JSON).info.epoch
    write(engine, "s", json_payloads([b"4", b"5"])).result()
    fork(engine, "f", "s", START, sub_offset=2)
    assert data_of(engine, "f") == [b"1", b"2"]
    for source, at, more in (("s", START, 4), ("s", Position(epoch, 5), 1), ("f", START, 3)):
        asked = spec_of(None, source=source, fork_at=at, sub_offset=more)
        assert code_of(engine.streams.create("g", asked)) == "invalid_request"
    fork(engine, "g", "f", Position(epoch, 1), sub_offset=1)
    assert data_of(engine, "g") == [b"1", b"2"]


@pytest.mark.parametrize("sealed", [False, True])
def test_some_messages_of_the_first_append_that_retention_left(
    engine: Engine, sealed: bool, restart: Start
) -> None:
    """The count began at the seq behind the offset, which is long gone: the fork was empty."""
    config = make_config({"durability": "fsync", "cap_bytes": 6})
    create(engine, "s", None, JSON, config=config)
    for number in range(5):
        write(engine, "s", json_payloads([b"%d0" % number, b"%d1" % number])).result()
    left = data_of(engine, "s")
    assert len(left) == 3 and left[1:] == [b"40", b"41"]
    if sealed:
        engine.checkpoint().result()
        engine = restart(engine)
    fork(engine, "one", "s", START, sub_offset=1)
    assert data_of(engine, "one") == left[:1]
    asked = spec_of(None, source="s", fork_at=START, sub_offset=2)
    assert code_of(engine.streams.create("two", asked)) == "invalid_request"
    at = engine.streams.position("s", engine.streams.info("s").earliest_seq)
    fork(engine, "next", "s", at, sub_offset=1)
    assert data_of(engine, "next") == left[:2]


def test_sources_that_are_not_there(engine: Engine, clock: ManualClock) -> None:
    engine.put_topic("native").result()
    create(engine, "short", b"x", ttl_s=1)
    create(engine, "kept", b"x")
    fork(engine, "f", "kept")
    engine.streams.delete("kept").result()
    clock.advance(1_000)
    asked = {name: spec_of(None, source=name) for name in ("native", "none", "short", "kept")}
    codes = {name: code_of(engine.streams.create("g", spec)) for name, spec in asked.items()}
    assert codes == {
        "native": "topic_not_found",
        "none": "topic_not_found",
        "short": "topic_not_found",
        "kept": "stream_conflict",
    }
