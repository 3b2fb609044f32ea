"""Bad input: each refusal is typed, says what to do, and leaves everything as it was."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from headrace.core import errors
from headrace.core.errors import (
    BatchTooLarge,
    ClientError,
    HeadraceError,
    InvalidRequest,
    RecordTooLarge,
    ShuttingDown,
    Throttled,
    TopicFull,
    TopicNotFound,
)
from headrace.core.limits import seq_max, topic_name_bytes_max
from headrace.core.runtime import Ticket
from headrace.engine.appending.producers import ProducerClaim
from headrace.engine.engine import Engine
from headrace.storage.block import KIND_MIXED, Batch
from headrace.testing.simdisk import SimDisk
from tests.support.engines import Start


def state_of(engine: Engine) -> object:
    """Everything a caller could notice, and what is waiting to be written."""
    state = engine.state
    return (
        engine.topics(),
        {name: engine.read(name).result().records for name in state.by_name},
        state.totals.bytes,
        state.totals.staged_bytes,
        state.keys.entries,
        [(t.head, t.staged, t.staged_count, t.producers, t.state) for t in state.by_id.values()],
        [shard.pending_bytes for shard in state.shards],
        state.fs.contents() if isinstance(state.fs, SimDisk) else None,
    )


@contextmanager
def unchanged(engine: Engine) -> Iterator[None]:
    """Nothing changes in the block, on disk neither, and the engine goes on as before."""
    before = state_of(engine)
    yield
    engine.runtime.run()  # type: ignore[attr-defined]
    assert state_of(engine) == before
    head = engine.topic("t").head_seq
    assert engine.append("t", [b"goes on"]).result().first_seq == head + 1


def refusal(ticket: Ticket[object], kind: type[HeadraceError]) -> HeadraceError:
    error = ticket.error
    assert type(error) is kind, (error, kind)
    assert isinstance(error, HeadraceError)
    assert error.fix, "an error says what to do next"
    assert error.fix in str(error) and error.code != "internal"
    return error


@pytest.fixture
def ready(engine: Engine) -> Engine:
    engine.append("t", [1, 2]).result()
    engine.runtime.run()  # type: ignore[attr-defined]
    return engine


# Names

BAD_NAMES = [
    "",
    "x" * (topic_name_bytes_max + 1),
    "é" * (topic_name_bytes_max // 2 + 1),
    "a\nb",
    "a\0b",
    "\x7f",
    "\ud800",
    None,
    5,
    b"bytes",
    ["list"],
    {"a": "dict"},
    ("tuple",),
]


@pytest.mark.parametrize("name", BAD_NAMES, ids=lambda name: repr(name)[:20])
def test_a_bad_name_is_refused_where_it_would_be_created(ready: Engine, name: str) -> None:
    with unchanged(ready):
        refusal(ready.append(name, [1]), InvalidRequest)
        refusal(ready.put_topic(name), InvalidRequest)


@pytest.mark.parametrize("name", BAD_NAMES, ids=lambda name: repr(name)[:20])
def test_a_bad_name_is_never_found(ready: Engine, name: str) -> None:
    """Typed, whichever of the two it is called."""
    with unchanged(ready):
        for ticket in (
            ready.read(name),
            ready.wait(name, 0),
            ready.delete(name, before_seq=1),
        ):
            assert isinstance(ticket.error, TopicNotFound | InvalidRequest), ticket.error
        with pytest.raises((TopicNotFound, InvalidRequest)):
            ready.topic(name)


@pytest.mark.parametrize(
    "name", ["a", "x" * topic_name_bytes_max, "ds:a/b", "é\u2028", " ", "a b", "a->b"]
)
def test_a_name_may_be_any_text(ready: Engine, again: Start, name: str) -> None:
    ready.append(name, [1]).result()
    assert name in [info.topic for info in again(ready).topics()]


# Records

BAD_RECORDS: list[tuple[object, type[HeadraceError]]] = [
    ([], InvalidRequest),
    (None, InvalidRequest),
    ("text", InvalidRequest),
    (b"bytes", InvalidRequest),
    (5, InvalidRequest),
    ({"a": 1}, InvalidRequest),
    ([b"bytes", {"and": "values"}], InvalidRequest),
    ([1j], InvalidRequest),
    (["\ud800"], InvalidRequest),
    ([b"x"] * 10_001, BatchTooLarge),
    ([b"x" * ((1 << 20) + 1)], RecordTooLarge),
    (Batch([]), InvalidRequest),
    (Batch(["text"]), InvalidRequest),
    (Batch([b"x", "text"]), InvalidRequest),
    (Batch([b"x", None]), InvalidRequest),
    (Batch([5]), InvalidRequest),
    (Batch(None), InvalidRequest),
    (Batch(b"xy"), InvalidRequest),
    (Batch([b"x"], kind=7), InvalidRequest),
    (Batch([b"x"], kind=700), InvalidRequest),
    (Batch([b"x"], kind="json"), InvalidRequest),
    (Batch([b"x"], kind=None), InvalidRequest),
    (Batch([b"x"], kind=KIND_MIXED), InvalidRequest),
    (Batch([b"x"], kind=KIND_MIXED, kinds=b"\x09"), InvalidRequest),
    (Batch([b"x"], kind=KIND_MIXED, kinds=b""), InvalidRequest),
    (Batch([b"x"], kind=KIND_MIXED, kinds=[0]), InvalidRequest),
    (Batch([b"x"], tags=[]), InvalidRequest),
    (Batch([b"x"], tags=["a", "b"]), InvalidRequest),
    (Batch([b"x"], tags=[5]), InvalidRequest),
    (Batch([b"x"], tags=[b"a"]), InvalidRequest),
    (Batch([b"x"], tags=["x" * 257]), InvalidRequest),
    (Batch([b"x"], tags=["é" * 129]), InvalidRequest),
    (Batch([b"x"], tags=["\udfff"]), InvalidRequest),
    (Batch([b"x"], nodes="x" * 129), InvalidRequest),
    (Batch([b"x"], nodes=["x" * 129]), InvalidRequest),
    (Batch([b"x"], nodes=[5]), InvalidRequest),
    (Batch([b"x"], nodes=5), InvalidRequest),
    (Batch([b"x"], nodes=["a", "b"]), InvalidRequest),
    (Batch([b"x"], metas=["{}"]), InvalidRequest),
    (Batch([b"x"], metas=[5]), InvalidRequest),
    (Batch([b"x"], metas=[b"x" * (16 * 1024 + 1)]), InvalidRequest),
    (Batch([b"x"], metas=[b"1", b"2"]), InvalidRequest),
    (Batch([b"x" * (1 << 20)], metas=[b"1"]), RecordTooLarge),
    (Batch([b"x"], headers=[[1]]), InvalidRequest),
    (Batch([b"x"], headers=[[("name", "value")]]), InvalidRequest),
    (Batch([b"x"], headers=[[(b"a",)]]), InvalidRequest),
    (Batch([b"x"], headers=[b"ab"]), InvalidRequest),
    (Batch([b"x"], headers=[]), InvalidRequest),
    (Batch([b"x"], timestamps=[]), InvalidRequest),
    (Batch([b"x"], timestamps=["1"]), InvalidRequest),
    (Batch([b"x"], timestamps=[-1]), InvalidRequest),
    (Batch([b"x"], timestamps=[1.5]), InvalidRequest),
    (Batch([b"x"], timestamps=[1 << 63]), InvalidRequest),
    (Batch([b"x", b"y"], timestamps=[9, 8]), InvalidRequest),
]


@pytest.mark.parametrize(
    ("records", "kind"), BAD_RECORDS, ids=[repr(case[0])[:60] for case in BAD_RECORDS]
)
def test_bad_records_are_refused(
    ready: Engine, records: list[object], kind: type[HeadraceError]
) -> None:
    with unchanged(ready):
        refusal(ready.append("t", records), kind)  # type: ignore[arg-type]
        refusal(ready.append("new", records), kind)  # type: ignore[arg-type]


def test_a_nested_value_too_deep_for_json_is_refused(ready: Engine) -> None:
    deep: list[object] = []
    for _ in range(100_000):
        deep = [deep]
    with unchanged(ready):
        refusal(ready.append("t", [deep]), InvalidRequest)
    while deep:  # taken apart by hand: its destruction would recurse as deep
        deep = deep[0]  # type: ignore[assignment]


def test_limits_are_inclusive(ready: Engine, again: Start) -> None:
    ready.append("t", [0] * 10_000).result()
    batch = Batch(
        [b"x" * ((1 << 20) - 16 * 1024)],
        tags=["é" * 128],
        nodes="n" * 128,
        metas=[b"m" * (16 * 1024)],
    )
    seq = ready.append("t", batch, idempotency_key="k" * 256).result().first_seq
    engine = again(ready)
    record = engine.read("t", seq - 1).result().records[0]
    assert (len(record.data), record.tag, record.node) == (
        (1 << 20) - 16 * 1024, "é" * 128, "n" * 128,
    )  # fmt: skip


# Conditions


@pytest.mark.parametrize(
    "how",
    [
        {"idempotency_key": 5},
        {"idempotency_key": b"k"},
        {"idempotency_key": "k" * 257},
        {"idempotency_key": "\ud800"},
        {"expected_head_seq": -1},
        {"expected_head_seq": "2"},
        {"expected_head_seq": True},
        {"expected_head_seq": 2.0},
        {"expected_head_seq": seq_max + 1},
        {"producer": ProducerClaim("", 0, 0)},
        {"producer": ProducerClaim("p" * 257, 0, 0)},
        {"producer": ProducerClaim(5, 0, 0)},  # type: ignore[arg-type]
        {"producer": ProducerClaim("p", -1, 0)},
        {"producer": ProducerClaim("p", 0, -1)},
        {"producer": ProducerClaim("p", 0, "0")},  # type: ignore[arg-type]
        {"producer": ProducerClaim("p", 1 << 53, 0)},
        {"producer": ("p", 0)},
        {"producer": "p"},
        {"state": "text"},
        {"state": 5},
    ],
    ids=repr,
)
def test_bad_conditions_are_refused(ready: Engine, how: dict[str, object]) -> None:
    with unchanged(ready):
        refusal(ready.append("t", [1], **how), InvalidRequest)  # type: ignore[arg-type]
        refusal(ready.append("new", [1], **how), InvalidRequest)  # type: ignore[arg-type]


# The order of the checks


def test_a_bad_record_on_a_missing_topic_creates_nothing(ready: Engine) -> None:
    with unchanged(ready):
        refusal(ready.append("new", [b"x" * (1 << 21)], create=False), RecordTooLarge)
        refusal(ready.append("new", [], create=False), InvalidRequest)


def test_a_missing_topic_comes_before_what_only_its_records_could_break(start: Start) -> None:
    engine = start(max_total_bytes=20)
    engine.append("t", [b"x" * 10]).result()
    engine.runtime.run()  # type: ignore[attr-defined]
    with unchanged(engine):
        refusal(engine.append("new", [b"x" * 20], create=False), TopicNotFound)
        refusal(engine.append("new", [1], create=False, expected_head_seq=5), TopicNotFound)
        claim = ProducerClaim("p", 0, 5)
        refusal(engine.append("new", [1], create=False, producer=claim), TopicNotFound)
        refusal(engine.append("", [b"x" * 20]), InvalidRequest)
        refusal(engine.append("new", [b"x" * 20]), Throttled)


def test_a_full_topic_comes_before_the_quota(start: Start) -> None:
    engine = start(max_total_bytes=20)
    engine.append("t", [b"x"], config={"cap_records": 1, "discard": "reject"}).result()
    refusal(engine.append("t", [b"x" * 20]), TopicFull)


# The queue to the log


def test_a_full_queue_throttles_and_drains(start: Start) -> None:
    engine = start(wal_pending_bytes_max=16 << 10)
    engine.append("t", [1]).result()
    tickets = [engine.append("t", [b"x" * 1_000]) for _ in range(40)]
    accepted = [t for t in tickets if t.error is None]
    assert 10 < len(accepted) < 20
    error = refusal(next(t for t in tickets if t.error), Throttled)
    assert error.retryable and error.detail["limit"] == "wal_pending_bytes_max"
    engine.runtime.run()  # type: ignore[attr-defined]
    assert [t.result().first_seq for t in accepted] == list(range(2, 2 + len(accepted)))
    assert engine.append("t", [1]).result().first_seq == 2 + len(accepted)


def test_a_throttled_first_write_creates_no_topic(start: Start) -> None:
    """At every fill of the queue: either the append is accepted or nothing is created."""
    refused = 0
    for size in range(0, 600, 8):
        engine = start(wal_pending_bytes_max=16 << 10)
        engine.append("t", [1]).result()
        while engine.state.shards[0].pending_bytes < (16 << 10) - 600:
            engine.append("t", [b"x" * 256])
        engine.append("t", [b"x" * size])
        ticket = engine.append("new", [1])
        engine.runtime.run()  # type: ignore[attr-defined]
        names = [info.topic for info in engine.topics()]
        assert names == (["new", "t"] if ticket.error is None else ["t"])
        refused += ticket.error is not None
    assert refused


# Closing


def test_a_closing_engine_takes_no_writes(ready: Engine) -> None:
    ready.close()
    refusal(ready.append("t", [1]), ShuttingDown)
    refusal(ready.put_topic("u"), ShuttingDown)
    refusal(ready.delete("t", before_seq=2), ShuttingDown)
    refusal(ready.delete_topic("t"), ShuttingDown)
    ready.close()


# The classes


def test_every_error_class_is_complete() -> None:
    classes = [c for c in vars(errors).values() if isinstance(c, type)]
    codes = set()
    for kind in classes:
        if not issubclass(kind, HeadraceError) or kind in (HeadraceError, ClientError):
            continue
        error = kind("what", fix="do this", detail={"a": 1})
        assert 400 <= error.status < 600 and error.code.replace("_", "").isalpha()
        assert (error.status < 500) == isinstance(error, ClientError)
        assert str(error) == "what; do this" and error.detail == {"a": 1}
        assert error.docs.endswith(f"#{error.code}")
        codes.add(error.code)
    assert len(codes) >= 20
