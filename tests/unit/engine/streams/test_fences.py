"""Fencing tokens, other configs and places by time of streams, as a dialect asks for them."""

from __future__ import annotations

import pytest

from headrace.core.errors import FenceMismatch, HeadMismatch
from headrace.engine.appending.admission import Append
from headrace.engine.appending.pending_append import PendingAppend
from headrace.engine.engine import Engine
from headrace.engine.streams.spec import StreamWrite
from headrace.engine.topics.config import make_config
from headrace.storage.block import KIND_BYTES, KIND_COMMAND, KIND_MIXED, Batch
from tests.support.engines import Start
from tests.support.stream_calls import FullDisk, code_of, create, data_of, write


def test_a_writer_with_another_token_is_refused_with_the_right_one(
    engine: Engine, again: Start
) -> None:
    create(engine, "s")
    assert code_of(write(engine, "s", b"a", fencing_token="")) == ""
    assert code_of(write(engine, "s", b"b", fence="mine")) == ""
    for _ in range(2):
        refused = write(engine, "s", b"c", fencing_token="yours")
        with pytest.raises(FenceMismatch) as caught:
            refused.result()
        assert caught.value.detail == {"topic": "s", "fencing_token": "mine"}
        assert code_of(write(engine, "s", b"d", fencing_token="mine")) == ""
        assert code_of(write(engine, "s", b"e")) == ""  # who gives none is not asked
        engine = again(engine)
    assert code_of(write(engine, "s", b"f", fencing_token="mine", fence="")) == ""
    assert code_of(write(engine, "s", b"g", fencing_token="mine")) == "fence_mismatch"
    assert data_of(engine, "s") == [b"a", b"b", b"d", b"e", b"d", b"e", b"f"]


def test_the_fence_is_judged_before_the_head(engine: Engine) -> None:
    create(engine, "s", b"x")
    both = write(engine, "s", b"y", expected_head_seq=7, fencing_token="t")
    assert code_of(both) == "fence_mismatch"
    head = write(engine, "s", b"y", expected_head_seq=7, fencing_token="")
    assert code_of(head) == "head_mismatch"


def test_a_fence_on_its_way_counts_and_is_told_of_once_it_is_stored(engine: Engine) -> None:
    create(engine, "s")
    fence = write(engine, "s", b"x", fence="new")
    late = write(engine, "s", b"y", fencing_token="")
    right = write(engine, "s", b"z", fencing_token="new")
    assert not fence.done and not late.done
    assert code_of(late) == "fence_mismatch" and fence.done
    assert code_of(right) == ""
    assert data_of(engine, "s") == [b"x", b"z"]


def test_a_fence_that_is_not_stored_refuses_nobody(start: Start) -> None:
    disk = FullDisk()
    engine = start(fs=disk.fs)
    create(engine, "s")
    disk.full = True
    fence = write(engine, "s", b"x", fence="new")
    late = write(engine, "s", b"y", fencing_token="")
    assert code_of(fence) == code_of(late) not in ("", "fence_mismatch")
    assert engine.streams.info("s").state.fence == ""


def test_appends_of_one_turn_are_judged_by_each_other(engine: Engine) -> None:
    """Which of them are staged is known when `append_all` returns."""
    create(engine, "s")
    hows = [StreamWrite(fence="a"), StreamWrite(fencing_token="b"), StreamWrite(fencing_token="a")]
    asked = [
        PendingAppend(engine.runtime, "s", b"x", Append(create=False, stream=how)) for how in hows
    ]
    engine.append_all(asked, lambda _: None)
    assert [pending.block is not None for pending in asked] == [True, False, True]
    assert [code_of(pending) for pending in asked] == ["", "fence_mismatch", ""]


def test_a_head_is_still_refused_behind_a_fence_on_its_way(engine: Engine) -> None:
    create(engine, "s")
    write(engine, "s", b"x", fence="f")
    with pytest.raises(HeadMismatch) as caught:
        write(engine, "s", b"y", expected_head_seq=0, fencing_token="f").result()
    assert caught.value.detail["head_seq"] == 1


def test_commands_headers_and_times_are_stored_as_they_are(engine: Engine, again: Start) -> None:
    create(engine, "s")
    fence = [(b"", b"fence")]
    batch = Batch(
        [b"x", b"tok"],
        KIND_MIXED,
        headers=[[(b"a", b"\xff")], fence],
        kinds=bytes([KIND_BYTES, KIND_COMMAND]),
        timestamps=[5, 9],
    )
    how = Append(create=False, stream=StreamWrite(fence="tok"))
    pending = PendingAppend(engine.runtime, "s", batch, how)
    engine.append_all([pending], lambda _: None)
    assert pending.result().first_seq == 1
    assert pending.block is not None
    assert (pending.block.ts_at(0), pending.block.ts) == (5, 9)
    for _ in range(2):
        first, second = engine.read("s").result().records
        assert (first.kind, second.kind) == (KIND_BYTES, KIND_COMMAND)
        assert list(first.headers or ()) == [(b"a", b"\xff")]
        assert list(second.headers or ()) == fence
        assert (first.ts, second.ts) == (5, 9)
        assert engine.streams.info("s").last_ts == 9
        engine = again(engine)
    older = Batch([b"y"], KIND_BYTES, timestamps=[3])
    assert write(engine, "s", older).result().ts == 9  # times never go back


def test_the_time_of_the_last_record_is_known_once_it_is_stored(
    engine: Engine, again: Start
) -> None:
    created = create(engine, "s").info
    assert created.last_ts == 0 and created.written_ms > 0
    write(engine, "s", Batch([b"x"], KIND_BYTES, timestamps=[7])).result()
    last = write(engine, "s", Batch([b"y"], KIND_BYTES, timestamps=[2**63 - 1]))
    assert engine.streams.info("s").last_ts == 7
    last.result()
    for _ in range(2):
        info = engine.streams.info("s")
        assert info.last_ts == 2**63 - 1 and info.written_ms >= created.written_ms
        engine = again(engine)
    engine.checkpoint().result()
    engine = again(engine)
    assert engine.streams.info("s").last_ts == 2**63 - 1


@pytest.mark.parametrize("stamps", [[2**63], [-1], [2, 1], [1.5], [True], ["1"]])
def test_a_time_that_cannot_be_is_refused(engine: Engine, stamps: list[int]) -> None:
    create(engine, "s")
    batch = Batch([b"x"] * len(stamps), KIND_BYTES, timestamps=stamps)
    assert code_of(write(engine, "s", batch)) == "invalid_request"
    assert engine.streams.info("s").head_seq == 0


def test_an_append_that_failed_leaves_no_time_behind(start: Start) -> None:
    disk = FullDisk()
    engine = start(fs=disk.fs)
    create(engine, "s")
    disk.full = True
    assert code_of(write(engine, "s", Batch([b"x"], KIND_BYTES, timestamps=[2**62]))) != ""
    assert engine.streams.info("s").last_ts == 0
    assert engine.state.topic("s").last_ts == 0  # what comes next is not held to it


@pytest.mark.parametrize("sealed", [False, True])
def test_a_time_leads_to_the_first_record_that_is_not_older(engine: Engine, sealed: bool) -> None:
    create(engine, "s")
    for stamps in ([10], [10, 20], [30, 30, 40]):
        batch = Batch([b"x"] * len(stamps), KIND_BYTES, timestamps=stamps)
        write(engine, "s", batch).result()
    if sealed:
        engine.checkpoint().result()
        write(engine, "s", Batch([b"x"], KIND_BYTES, timestamps=[50])).result()
    wanted = {0: 1, 10: 1, 11: 3, 20: 3, 21: 4, 30: 4, 31: 6, 40: 6, 41: 7}
    assert {ts: engine.streams.seek_ts("s", ts).result() for ts in wanted} == wanted
    assert engine.streams.seek_ts("s", 51).result() == (8 if sealed else 7)
    assert code_of(engine.streams.seek_ts("none", 5)) == "topic_not_found"


def test_a_config_and_what_a_dialect_keeps_change_together(engine: Engine, again: Start) -> None:
    create(engine, "s", b"x", own=b"before")
    longer = make_config({"durability": "fsync", "ttl_ms": 60_000})
    fence = write(engine, "s", b"y", fence="f")
    changed = engine.streams.update("s", config=longer, own=b"after")
    behind = write(engine, "s", b"z", fencing_token="f")
    changed.result()
    assert fence.done and code_of(behind) == ""
    for _ in range(2):
        info = engine.streams.info("s")
        assert (info.config.ttl_ms, info.state.own, info.state.fence) == (60_000, b"after", "f")
        engine = again(engine)
    engine.streams.update("s", own=b"alone").result()
    engine.streams.update("s", config=make_config({"durability": "fsync"})).result()
    engine = again(engine)
    info = engine.streams.info("s")
    assert (info.config.ttl_ms, info.state.own) == (0, b"alone")
    engine.streams.update("s", config=info.config).result()  # nothing to change
    assert code_of(engine.streams.update("none", own=b"")) == "topic_not_found"


def test_an_update_that_is_not_stored_changes_nothing(start: Start) -> None:
    disk = FullDisk()
    engine = start(fs=disk.fs)
    create(engine, "s", own=b"before")
    disk.full = True
    longer = make_config({"durability": "fsync", "ttl_ms": 60_000})
    assert code_of(engine.streams.update("s", config=longer, own=b"after")) != ""
    info = engine.streams.info("s")
    assert (info.config.ttl_ms, info.state.own) == (0, b"before")
