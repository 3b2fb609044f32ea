"""Trims of streams: durable with the append, done a while later, silently."""

from __future__ import annotations

import pytest

from headrace.core.clock import ManualClock
from headrace.engine.engine import Engine
from headrace.engine.streams.trims import TRIM_DELAY_MS
from headrace.storage.block import KIND_BYTES, Batch
from tests.support.engines import Start
from tests.support.stream_calls import FullDisk, create, data_of, write

FIVE = Batch([b"1", b"2", b"3", b"4", b"5"], KIND_BYTES)


def pass_time(engine: Engine, ms: int = TRIM_DELAY_MS) -> None:
    """Let engine time go on, and all that is due happen."""
    clock = engine.runtime.clock
    assert isinstance(clock, ManualClock)
    clock.advance(ms)
    engine.runtime.run()  # type: ignore[attr-defined]


def test_records_go_a_while_after_the_trim_and_silently(engine: Engine, again: Start) -> None:
    create(engine, "s", FIVE)
    write(engine, "s", b"trim", trim=3).result()
    assert engine.streams.info("s").state.trim_to == 3
    assert len(data_of(engine, "s")) == 6  # not at once: who follows it still gets them
    pass_time(engine, TRIM_DELAY_MS - 1)
    assert len(data_of(engine, "s")) == 6
    pass_time(engine, 1)
    for _ in range(2):
        page = engine.read("s").result()
        assert [bytes(record.data) for record in page.records] == [b"4", b"5", b"trim"]
        assert page.tombstone is None
        assert engine.streams.info("s").earliest_seq == 4
        engine = again(engine)


def test_what_a_stop_left_is_trimmed_after_the_start(engine: Engine, again: Start) -> None:
    create(engine, "s", FIVE)
    write(engine, "s", b"trim", trim=4).result()
    engine = again(engine)
    assert len(data_of(engine, "s")) == 6
    pass_time(engine)
    assert data_of(engine, "s") == [b"5", b"trim"]


def test_a_trim_never_goes_back_nor_beyond_its_own_record(engine: Engine) -> None:
    create(engine, "s", FIVE)
    write(engine, "s", Batch([b"t", b"u"], KIND_BYTES), trim=2**62, trim_row=0).result()
    assert engine.streams.info("s").state.trim_to == 6
    write(engine, "s", b"t", trim=2).result()
    write(engine, "s", b"t", trim=0).result()
    assert engine.streams.info("s").state.trim_to == 6
    pass_time(engine)
    assert data_of(engine, "s") == [b"u", b"t", b"t"]


def test_each_trim_waits_for_its_own_time(engine: Engine) -> None:
    create(engine, "s", FIVE)
    write(engine, "s", b"t", trim=1).result()
    pass_time(engine, TRIM_DELAY_MS // 2)
    write(engine, "s", b"t", trim=3).result()
    pass_time(engine, TRIM_DELAY_MS // 2)
    assert engine.streams.info("s").earliest_seq == 2
    pass_time(engine)
    assert engine.streams.info("s").earliest_seq == 4


@pytest.mark.parametrize("sealed", [False, True])
def test_all_of_a_stream_can_be_trimmed(engine: Engine, sealed: bool, again: Start) -> None:
    create(engine, "s", Batch([b"1", b"2"], KIND_BYTES, timestamps=[7, 8]))
    if sealed:
        engine.checkpoint().result()
    write(engine, "s", Batch([b"t"], KIND_BYTES, timestamps=[9]), trim=3).result()
    pass_time(engine)
    engine = again(engine)
    info = engine.streams.info("s")
    assert (info.earliest_seq, info.head_seq, info.last_ts) == (4, 3, 9)
    assert data_of(engine, "s") == []
    assert engine.streams.seek_ts("s", 0).result() == 4


def test_a_new_stream_of_the_name_is_not_trimmed_by_the_old_one(engine: Engine) -> None:
    create(engine, "s", FIVE)
    write(engine, "s", b"trim", trim=5).result()
    engine.streams.delete("s").result()
    create(engine, "s", FIVE)
    pass_time(engine)
    assert len(data_of(engine, "s")) == 5


def test_a_trim_that_finds_no_room_is_tried_again(start: Start) -> None:
    disk = FullDisk()
    engine = start(fs=disk.fs)
    create(engine, "s", FIVE)
    write(engine, "s", b"trim", trim=5).result()
    disk.full = True
    pass_time(engine)
    disk.full = False
    for _ in range(20):
        pass_time(engine)
    assert data_of(engine, "s") == [b"trim"]
