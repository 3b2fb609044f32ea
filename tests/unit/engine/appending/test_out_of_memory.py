"""Memory that runs out in the middle of an append: refused before a change, or a log that is
read-only (native §1.3d)."""

from __future__ import annotations

from typing import Any

import pytest

from headrace.core.errors import HeadraceError, NotReady
from headrace.engine.appending import append_block
from headrace.engine.engine import Engine
from headrace.engine.topics.topic import Topic
from headrace.storage.wal import batch_writer
from headrace.testing.simdisk import SimDisk
from tests.support.engines import Start

DURABILITIES = pytest.mark.parametrize("durability", ["fsync", "disk", "memory", "ephemeral"])


def no_memory(*_: object) -> object:
    raise MemoryError


def refused(engine: Engine, name: str = "t", **how: object) -> HeadraceError:
    with pytest.raises(HeadraceError) as caught:
        engine.append(name, [b"1", b"2"], **how).result()  # type: ignore[arg-type]
    return caught.value


def seqs(engine: Engine, name: str = "t") -> list[int]:
    return [record.seq for record in engine.read(name).result().records]


@DURABILITIES
def test_no_memory_for_the_block_changes_nothing(
    start: Start, monkeypatch: pytest.MonkeyPatch, durability: str
) -> None:
    engine = start()
    how: dict[str, Any] = {"config": {"durability": durability}, "idempotency_key": "k"}
    with monkeypatch.context() as patch:
        patch.setattr(append_block, "encode_block", no_memory)
        error = refused(engine, **how)
    assert (error.code, error.detail) == ("out_of_resources", {"outcome": "nothing"})
    engine.runtime.drain()
    assert engine.topics() == []  # the topic that it would have created, too
    assert engine.append("t", [b"1"], **how).result().first_seq == 1
    with monkeypatch.context() as patch:
        patch.setattr(append_block, "encode_block", no_memory)
        refused(engine)
    assert engine.append("t", [b"2"]).result().first_seq == 2
    assert seqs(engine) == [1, 2]


@pytest.mark.parametrize("durability", ["fsync", "disk"])
def test_no_memory_for_the_batch_of_the_log_fails_the_turn_and_no_more(
    start: Start, monkeypatch: pytest.MonkeyPatch, durability: str
) -> None:
    engine = start()
    engine.append("t", [b"1"], config={"durability": durability}).result()
    with monkeypatch.context() as patch:
        patch.setattr(batch_writer, "encode_batch_header", no_memory)
        tickets = [engine.append("t", [b"x"]) for _ in range(3)]
        for ticket in tickets:
            with pytest.raises(HeadraceError) as caught:
                ticket.result()
            assert (caught.value.code, caught.value.detail["outcome"]) == (
                "out_of_resources",
                "nothing",
            )
    # Their seqs are given out again, and everything goes on.
    assert engine.append("t", [b"2"]).result().first_seq == 2
    assert seqs(engine) == [1, 2]


def test_no_memory_in_the_middle_of_a_write_makes_the_log_read_only(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk = SimDisk()
    engine = start(disk)
    engine.append("t", [b"1"], config={"durability": "disk"}).result()
    with monkeypatch.context() as patch:
        patch.setattr(batch_writer, "write_all", no_memory)
        assert refused(engine).detail == {"outcome": "unknown"}
    check_read_only(engine, disk, start, {1})


@pytest.mark.parametrize("durability", ["fsync", "disk", "memory"])
def test_no_memory_to_apply_what_is_in_the_log_makes_it_read_only(
    start: Start, monkeypatch: pytest.MonkeyPatch, durability: str
) -> None:
    disk = SimDisk()
    engine = start(disk)
    engine.append("t", [b"1"], config={"durability": durability}).result()
    publish, left = Topic.publish_one_of_many, [None]

    def publish_later(*arguments: Any) -> None:
        if left:
            left.pop()
            raise MemoryError
        publish(*arguments)

    with monkeypatch.context() as patch:
        patch.setattr(Topic, "publish_one_of_many", publish_later)
        tickets = [engine.append("t", [b"x"]) for _ in range(3)]
        for ticket in tickets:
            # Those behind it are in the log, too, and must not be shown in its place.
            with pytest.raises(HeadraceError) as caught:
                ticket.result()
            assert caught.value.detail == {"outcome": "unknown"}
    check_read_only(engine, disk, start, {1, 4})


def test_no_memory_to_stage_makes_the_log_read_only(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk = SimDisk()
    engine = start(disk)
    engine.append("t", [b"1"], config={"durability": "disk"}).result()
    with monkeypatch.context() as patch:
        patch.setattr(Topic, "stage", no_memory)
        assert refused(engine).detail == {"outcome": "unknown"}
    check_read_only(engine, disk, start, {1})


def check_read_only(engine: Engine, disk: SimDisk, start: Start, heads: set[int]) -> None:
    """It shows what it did before, takes nothing, and a restart says what there is."""
    error = refused(engine)
    assert isinstance(error, NotReady) and error.detail == {"reason": "wal_read_only"}
    assert seqs(engine) == [1]
    engine.abandon()
    again = start(disk)
    head = again.topic("t").head_seq
    assert head in heads and seqs(again) == [*range(1, head + 1)]
    assert again.append("t", [b"y"]).result().first_seq == head + 1
