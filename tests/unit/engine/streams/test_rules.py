"""What native calls may not do to a stream."""

from __future__ import annotations

import msgspec
import pytest

from headrace.core.errors import HeadraceError
from headrace.core.runtime import Ticket
from headrace.engine.engine import Engine
from headrace.engine.routers.state import RouterOptions
from headrace.storage.block import KIND_BYTES, KIND_COMMAND, KIND_MIXED, Batch
from tests.support.engines import Start
from tests.support.stream_calls import JSON, close, code_of, create, data_of, write


def test_native_appends_of_the_right_kind_are_taken_while_it_is_open(engine: Engine) -> None:
    create(engine, "j", content_type=JSON)
    create(engine, "b")
    engine.append_batch("j", msgspec.Raw(b"1")).result()
    engine.append("j", [2, 3]).result()
    engine.append_batch("b", b"x").result()
    for name, records in (("j", [b"x"]), ("b", [1])):
        assert code_of(engine.append(name, records)) == "stream_conflict"
    assert code_of(engine.append_batch("j", b"x")) == "stream_conflict"
    assert code_of(engine.append_batch("b", msgspec.Raw(b"1"))) == "stream_conflict"
    assert code_of(engine.append_batch("j", Batch([b"x"], KIND_BYTES))) == "stream_conflict"
    assert data_of(engine, "j") == [b"1", b"2", b"3"] and data_of(engine, "b") == [b"x"]
    for name in ("j", "b"):
        closing = close(engine, name)
        assert code_of(engine.append_batch(name, b"x")) == "throttled"
        closing.result()
        assert code_of(engine.append_batch(name, b"x")) == "stream_closed"


@pytest.mark.parametrize("content_type", ["text/plain", JSON])
def test_changes_are_the_dialects(engine: Engine, content_type: str) -> None:
    create(engine, "s", None, content_type)
    engine.append("s", [1] if content_type == JSON else [b"1"]).result()
    engine.put_topic("q", {"type": "queue"}).result()
    calls: list[Ticket[object]] = [
        engine.put_topic("s", {"ttl_ms": 5}),
        engine.delete_topic("s"),
        engine.delete("s", before_seq=9),
        engine.queues.redrive("s"),
        engine.put_topic("q", {"type": "queue", "max_deliveries": 1, "dead_letter": "s"}),
        engine.append("fresh", [1], config={"dead_letter": "s"}),
    ]
    assert [code_of(call) for call in calls] == ["stream_conflict"] * len(calls)
    with pytest.raises(HeadraceError, match="stream"):
        engine.queues.topic("s")
    assert engine.topic("s").count == 1


def test_routers_lead_to_open_streams_of_their_kind(engine: Engine) -> None:
    create(engine, "j", content_type=JSON)
    create(engine, "b", b"bytes")
    engine.append("t", [1]).result()

    def put(name: str, source: str, dest: str) -> Ticket[object]:
        return engine._attempt(  # type: ignore[return-value]
            lambda: engine.routers.put(name, RouterOptions(source=source, dest=dest))
        )

    assert code_of(put("to bytes", "t", "b")) == "stream_conflict"
    assert code_of(put("bytes to json", "b", "j")) == "stream_conflict"
    assert code_of(put("from", "b", "copies")) == ""
    assert code_of(put("into", "t", "j")) == ""
    engine.append("t", [2]).result()
    engine.runtime.run()  # type: ignore[attr-defined]
    assert data_of(engine, "j") == [b"2"]
    close(engine, "j").result()
    engine.append("t", [3]).result()
    engine.runtime.run()  # type: ignore[attr-defined]
    assert data_of(engine, "j") == [b"2"]
    assert code_of(put("late", "t", "j")) == "stream_closed"
    engine.delete_topic("t").result()  # it does not wait for what can never be copied
    write(engine, "b", b"more").result()
    engine.runtime.run()  # type: ignore[attr-defined]
    assert data_of(engine, "copies") == [b"more"]


def test_a_router_to_a_closed_stream_stops_and_another_goes_on_where_it_stands(
    engine: Engine, again: Start
) -> None:
    create(engine, "j", content_type=JSON)
    engine.routers.put("r", RouterOptions(source="t", dest="j")).result()
    engine.append("t", [1]).result()
    engine.routers.get("r").result()
    close(engine, "j").result()
    engine.append("t", [2, 3]).result()
    for _ in range(2):
        info = engine.routers.get("r").result()
        assert (info.cursor, info.forwarded_total, info.blocked) == (1, 1, True)
        assert "closed" in info.reason
        assert data_of(engine, "j") == [b"1"]
        engine = again(engine)
    deleted = engine.routers.delete("r").result()
    assert (deleted.left, deleted.copied_to) == (2, 1)
    options = RouterOptions(source="t", dest="next", backfill=deleted.copied_to)
    engine.routers.put("r", options).result()
    info = engine.routers.get("r").result()
    assert (info.blocked, info.reason) == (False, "")
    assert data_of(engine, "next") == [b"2", b"3"]


def test_a_router_stops_at_what_was_lost_before_a_closed_stream(engine: Engine) -> None:
    create(engine, "j", content_type=JSON)
    engine.put_topic("t", {"cap_records": 1}).result()
    engine.routers.put("r", RouterOptions(source="t", dest="j")).result()
    close(engine, "j").result()
    engine.append("t", [1]).result()
    engine.append("t", [2]).result()
    info = engine.routers.get("r").result()
    assert (info.cursor, info.forwarded_total, info.blocked) == (0, 0, True)


def test_a_router_stops_at_a_record_of_another_kind(engine: Engine) -> None:
    create(engine, "j", content_type=JSON)
    engine.routers.put("r", RouterOptions(source="t", dest="j")).result()
    for value in (1, b"bytes", 2):
        engine.append("t", [value]).result()
    info = engine.routers.get("r").result()
    assert (info.cursor, info.blocked) == (1, True) and "kind" in info.reason
    assert data_of(engine, "j") == [b"1"]
    engine.delete("t", before_seq=3).result()
    info = engine.routers.get("r").result()
    assert (info.cursor, info.blocked) == (3, False)
    assert data_of(engine, "j") == [b"1", b"2"]


def test_streams_of_s2_are_under_the_same_rules(engine: Engine) -> None:
    """The longest name, of any characters but NUL; bytes only, changes by its dialect only."""
    name = "s2:" + "b" * 48 + "/" + "\n" + "é" * 255 + "/"
    assert len(name.encode()) == 564
    create(engine, name, dialect="s2")
    engine.append(name, [b"x"]).result()
    engine.put_topic("q", {"type": "queue"}).result()
    calls: list[Ticket[object]] = [
        engine.append(name, [1]),
        engine.append(name, Batch([b"x"], KIND_COMMAND)),
        engine.put_topic(name, {"ttl_ms": 5}),
        engine.put_topic(name, {"cap_records": 5}),
        engine.delete_topic(name),
        engine.delete(name, before_seq=9),
        engine.delete(name, match="x*"),
        engine.queues.redrive(name),
        engine.put_topic("q", {"type": "queue", "max_deliveries": 1, "dead_letter": name}),
        engine._attempt(lambda: engine.routers.put("r", RouterOptions(source="q", dest=name))),
    ]
    assert [code_of(call) for call in calls] == ["stream_conflict"] * len(calls)
    assert data_of(engine, name) == [b"x"] and engine.topics("s2:")[0].topic == name
    with pytest.raises(HeadraceError, match="control character"):
        create(engine, "s2:b/\0", dialect="s2")


def test_a_router_from_a_stream_of_s2_copies_what_its_records_are(engine: Engine) -> None:
    create(engine, "s2:b/s", dialect="s2")
    engine.routers.put("r", RouterOptions(source="s2:b/s", dest="copies")).result()
    batch = Batch(
        [b"x", b"f"],
        KIND_MIXED,
        headers=[[(b"a", b"b")], [(b"", b"fence")]],
        kinds=bytes([KIND_BYTES, KIND_COMMAND]),
        timestamps=[1, 2**63 - 1],
    )
    write(engine, "s2:b/s", batch, fence="f", trim=1).result()
    engine.runtime.run()  # type: ignore[attr-defined]
    copies = engine.read("copies").result().records
    assert [(bytes(one.data), one.kind) for one in copies] == [
        (b"x", KIND_BYTES),
        (b"f", KIND_COMMAND),
    ]
    assert [list(one.headers or ()) for one in copies] == [[(b"a", b"b")], [(b"", b"fence")]]
    assert all(one.ts == engine.clock.now_ms() for one in copies)  # a copy is of its own time
