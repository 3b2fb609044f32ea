"""Calls about records: append, read, tail, with refusals and forms of answers (s2 §6 to §8)."""

from __future__ import annotations

import base64
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from headrace.core.clock import ManualClock
from headrace.core.errors import StreamConflict
from headrace.engine.appending.pending_append import PendingAppend
from headrace.storage.block import KIND_BYTES, Batch
from tests.support.engines import open_engines
from tests.support.s2_servers import BASIN, S2Exchange, S2Server, records

PROTOBUF = {"content-type": "application/protobuf", "accept": "application/x-protobuf"}


def append(s2: S2Server, *given: dict[str, Any], **fields: object) -> S2Exchange:
    return s2.ask("POST", records("s"), {"records": list(given), **fields})


def refusal(exchange: S2Exchange) -> tuple[int, str]:
    return exchange.status, exchange.json["code"]


# Append


def test_an_ack_tells_where_the_records_are(s2: S2Server, clock: ManualClock) -> None:
    now = s2.engine.clock.now_ms()
    first = append(s2, {"body": "a", "timestamp": now - 9}, {"body": "b", "timestamp": now - 5})
    assert first.json == {
        "start": {"seq_num": 0, "timestamp": now - 9},
        "end": {"seq_num": 2, "timestamp": now - 5},
        "tail": {"seq_num": 2, "timestamp": now - 5},
    }
    clock.advance(5)
    second = append(s2, {"body": "c", "timestamp": 1})
    assert second.json["start"] == {"seq_num": 2, "timestamp": now - 5}  # never back


def test_protobuf_is_answered_with_protobuf(s2: S2Server) -> None:
    """§6c."""
    done = s2.ask("POST", records("s"), b"\x0a\x04\x1a\x02hi", PROTOBUF)
    assert (done.status, done.content_type) == (200, b"application/protobuf")
    read = s2.read(accept="application/protobuf")
    assert read.content_type == b"application/protobuf"
    assert read.reply.count(b"hi") == 1


def test_base64_keeps_any_bytes(s2: S2Server) -> None:
    """§6a."""
    body = base64.b64encode(bytes(range(256))).decode()
    done = s2.ask("POST", records("s"), {"records": [{"body": body}]}, {"s2-format": "base64"})
    assert done.status == 200
    assert s2.read(s2_format="json-binsafe").json["records"][0]["body"] == body


@pytest.mark.parametrize(
    ("body", "headers", "expected"),
    [
        (b"{", {}, (400, "bad_json")),
        (b"{}", {}, (400, "bad_json")),
        (b'{"records":[]}', {}, (422, "invalid")),
        (b'{"records":[{}]}', {"content-type": "text/plain"}, (400, "bad_json")),
        (b'{"records":[{}]}', {"s2-format": "hex"}, (400, "bad_header")),
        (b'{"records":[{}]}', {"s2-basin": "x"}, (400, "bad_header")),
        (b'{"records":[{}]}', {"s2-basin": "another-basin"}, (404, "basin_not_found")),
        (b'{"records":[{}]}', {"s2-stream-config": "{"}, (400, "bad_header")),
        (b'{"records":[{"timestamp":9223372036854775808}]}', {}, (422, "invalid")),
        (b'{"records":[{"headers":[["","what"]]}]}', {}, (422, "invalid")),
        (b'{"records":[{"body":"x"}],"fencing_token":"' + b"x" * 37 + b'"}', {}, (400, "bad_json")),
        (b"\xff", PROTOBUF, (400, "bad_proto")),
    ],
)
def test_what_cannot_be_appended_is_refused(
    s2: S2Server, body: bytes, headers: dict[str, str], expected: tuple[int, str]
) -> None:
    assert refusal(s2.ask("POST", records("s"), body, headers)) == expected
    assert s2.ask("GET", f"{records('s')}/tail").json == {"tail": {"seq_num": 0, "timestamp": 0}}


def test_conditions_tell_what_is_there(s2: S2Server) -> None:
    """§7a, §7b."""
    fence = {"headers": [["", "fence"]], "body": "mine"}
    assert append(s2, fence, fencing_token="").status == 200
    other = append(s2, {"body": "x"}, fencing_token="", match_seq_num=9)
    assert (other.status, other.json) == (412, {"fencing_token_mismatch": "mine"})
    behind = append(s2, {"body": "x"}, fencing_token="mine", match_seq_num=(1 << 64) - 1)
    assert (behind.status, behind.json) == (412, {"seq_num_mismatch": 1})
    assert append(s2, {"body": "x"}, fencing_token="mine", match_seq_num=1).status == 200
    assert append(s2, {"body": "x"}).status == 200  # who gives no token is not asked for one


def test_a_condition_that_fails_comes_before_a_timestamp_that_is_missing(
    s2: S2Server,
) -> None:
    """§7a."""
    config = {"timestamping": {"mode": "client-require"}}
    assert s2.ask("PATCH", "/v1/streams/s", config).status == 200
    assert refusal(append(s2, {"body": "x"})) == (422, "invalid")
    assert append(s2, {"body": "x"}, match_seq_num=5).json == {"seq_num_mismatch": 0}
    fenced = append(s2, {"body": "x"}, fencing_token="a", match_seq_num=0)
    assert fenced.json == {"fencing_token_mismatch": ""}
    assert refusal(append(s2, {"body": "x"}, fencing_token="", match_seq_num=0)) == (422, "invalid")


def test_a_refused_input_creates_no_stream(serve_s2: Callable[..., S2Server]) -> None:
    """§7g."""
    s2 = serve_s2(create_stream_on_append=True)
    bad = s2.ask("POST", records("new"), {"records": []})
    assert refusal(bad) == (422, "invalid")
    assert s2.ask("GET", "/v1/streams").json["streams"] == []
    config = {"s2-stream-config": '{"storage_class":"standard"}'}
    done = s2.ask("POST", records("new"), {"records": [{"body": "x"}]}, config)
    assert done.status == 200
    assert s2.ask("GET", "/v1/streams/new").json["storage_class"] == "standard"


def test_an_append_whose_new_stream_is_deleted_before_it_is_told_so(
    serve_s2: Callable[..., S2Server],
) -> None:
    """§4f: in such a basin no append is told that there is no stream."""
    s2 = serve_s2(create_stream_on_append=True)
    appended = s2.begin("POST", records("new"), {"records": [{"body": "x"}]})
    deleted = s2.begin("DELETE", "/v1/streams/new")
    s2.run()
    assert deleted.status == 202
    assert refusal(appended) == (409, "stream_deletion_pending")


def test_a_trim_takes_away_what_is_before_it(s2: S2Server) -> None:
    """§8d, §14a."""
    s2.append("a", "b", "c")
    record = b"\x12\x08\x0a\x00\x12\x04trim" + b"\x1a\x08" + (2).to_bytes(8, "big")
    trim = b"\x0a" + bytes([len(record)]) + record
    assert s2.ask("POST", records("s"), trim, PROTOBUF).status == 200
    s2.wait(5_000)
    assert [r["seq_num"] for r in s2.read().json["records"]] == [2, 3]


def trim_record(value: int) -> dict[str, Any]:
    """A command, for bodies of base64."""
    encoded = base64.b64encode(value.to_bytes(8, "big")).decode()
    return {"headers": [["", base64.b64encode(b"trim").decode()]], "body": encoded}


def test_two_trims_of_a_batch_reach_as_far_as_the_farther_one(s2: S2Server) -> None:
    s2.append("a", "b", "c", "d")
    body = {"records": [trim_record((1 << 64) - 1), trim_record(2), trim_record(3)]}
    assert s2.ask("POST", records("s"), body, {"s2-format": "base64"}).status == 200
    s2.wait(5_000)
    # The first would take everything: it takes what is before and itself.
    assert [r["seq_num"] for r in s2.read().json["records"]] == [5, 6]


def test_two_trims_of_a_batch_count_what_came_before_it_in_its_turn(s2: S2Server) -> None:
    """Which of them reaches farther depends on where the batch comes to stand."""
    format = {"s2-format": "base64"}
    asked = [
        s2.request("POST", records("s"), {"records": [{"body": ""}] * 4}, format),
        s2.request("POST", records("s"), {"records": [trim_record(4), trim_record(2)]}, format),
    ]
    s2.handle(asked)
    s2.run()
    assert [exchange.status for exchange in asked] == [200, 200]
    s2.wait(5_000)
    assert [r["seq_num"] for r in s2.read().json["records"]] == [4, 5]


def test_appends_of_a_turn_are_one_call_of_the_engine(
    s2: S2Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    together: list[int] = []
    append_all = s2.engine.append_all

    def counted(asked: Sequence[PendingAppend], *more: Any, **options: Any) -> None:
        together.append(len(asked))
        append_all(asked, *more, **options)

    monkeypatch.setattr(s2.engine, "append_all", counted)
    bodies = [{"records": [{"body": str(n)}]} for n in range(3)]
    exchanges = [s2.request("POST", records("s"), body) for body in (*bodies, {"records": []})]
    s2.handle(exchanges)
    s2.run()
    assert together == [3]
    assert [exchange.status for exchange in exchanges] == [200, 200, 200, 422]
    assert [exchange.json["start"]["seq_num"] for exchange in exchanges[:3]] == [0, 1, 2]


# Read


def test_a_read_is_answered_with_what_is_there_and_the_tail(s2: S2Server) -> None:
    s2.append("a", "b", "c")
    whole = s2.read("seq_num=1").json
    assert [record["body"] for record in whole["records"]] == ["b", "c"]
    assert whole["tail"]["seq_num"] == 3
    part = s2.read("tail_offset=2&count=1").json
    assert [record["seq_num"] for record in part["records"]] == [1]
    assert "tail" not in part


@pytest.mark.parametrize(
    "query",
    ["seq_num=3", "", "seq_num=9", "seq_num=9&clamp=true", "timestamp=9999999999999"],
)
def test_a_read_at_the_tail_that_may_not_wait_is_told_the_tail(s2: S2Server, query: str) -> None:
    """§8c."""
    s2.append("a", "b", "c")
    refused = s2.read(query)
    assert refused.status == 416
    assert refused.json["tail"]["seq_num"] == 3


def test_a_read_by_time_begins_with_the_first_record_that_is_not_older(s2: S2Server) -> None:
    """§8a, §8e."""
    now = s2.engine.clock.now_ms()
    for age in (30, 20, 10):
        append(s2, {"body": str(age), "timestamp": now - age})
    found = s2.read(f"timestamp={now - 25}").json["records"]
    assert [record["body"] for record in found] == ["20", "10"]
    found = s2.read(f"seq_num=0&until={now - 10}").json["records"]
    assert [record["body"] for record in found] == ["30", "20"]


def test_a_spent_limit_is_answered_before_the_start_is_looked_at(s2: S2Server) -> None:
    """§8b."""
    for query in ("seq_num=99&count=0", "timestamp=99999999999999&bytes=0"):
        found = s2.read(query)
        assert (found.status, found.json) == (200, {"records": []})


def test_a_read_that_waits_is_answered_by_the_first_append(s2: S2Server) -> None:
    waiting = s2.read("seq_num=0&wait=10")
    s2.wait(5_000)
    assert not waiting.answered
    s2.append("a", "b")
    assert [record["body"] for record in waiting.json["records"]] == ["a", "b"]


def test_a_read_that_waits_in_vain_is_empty_and_tells_the_tail(s2: S2Server) -> None:
    waiting = s2.read("seq_num=0&wait=2")
    s2.wait(2_100)
    assert waiting.json == {"records": [], "tail": {"seq_num": 0, "timestamp": 0}}


def test_a_stream_that_is_deleted_under_a_waiting_read_is_told(s2: S2Server) -> None:
    waiting = s2.read("seq_num=0&wait=10")
    s2.ask("DELETE", "/v1/streams/s")
    assert refusal(waiting) == (404, "stream_not_found")


def test_a_read_creates_its_stream_where_the_basin_says_so(
    serve_s2: Callable[..., S2Server],
) -> None:
    s2 = serve_s2(create_stream_on_read=True)
    assert s2.read("seq_num=0", stream="new").status == 416
    tail = s2.ask("GET", f"{records('other')}/tail", headers={"s2-stream-config": "nonsense"})
    assert tail.json == {"tail": {"seq_num": 0, "timestamp": 0}}
    names = [stream["name"] for stream in s2.ask("GET", "/v1/streams").json["streams"]]
    assert names == ["new", "other"]


def test_a_token_is_held_to_its_operations(s2: S2Server) -> None:
    scope = {"basins": {"exact": BASIN}, "streams": {"prefix": ""}, "ops": ["append", "read"]}
    issued = s2.ask("POST", "/v1/access-tokens", {"id": "t", "scope": scope})
    bearer = {"authorization": f"Bearer {issued.json['access_token']}"}
    path = records("s")
    assert s2.ask("POST", path, {"records": [{"body": "x"}]}, bearer).status == 200
    assert s2.ask("GET", f"{path}?seq_num=0", headers=bearer).status == 200
    fence = {"records": [{"headers": [["", "fence"]], "body": "f"}]}
    assert refusal(s2.ask("POST", path, fence, bearer)) == (403, "permission_denied")
    assert refusal(s2.ask("GET", f"{path}/tail", headers=bearer)) == (403, "permission_denied")


# What is large


@pytest.mark.parametrize("headers", [{}, PROTOBUF])
def test_a_body_that_no_batch_needs_is_refused(s2: S2Server, headers: dict[str, str]) -> None:
    """§3c: few bytes, compressed, may be millions of records."""
    body = b'{"records":[' + b"{}," * 800_000 + b"{}]}" if not headers else b"\x0a\x00" * 1_100_000
    assert refusal(s2.ask("POST", records("s"), body, headers)) == (422, "invalid")
    assert s2.ask("GET", records("s") + "/tail").json["tail"]["seq_num"] == 0


def test_a_record_of_another_dialect_may_be_larger_than_a_batch(s2: S2Server) -> None:
    """§8a."""
    name = f"s2:{BASIN}/s"
    large = b"x" * (1 << 20)
    for body in (b"before", large, b"behind"):
        s2.engine.append(name, Batch([body], KIND_BYTES)).result()
    first = s2.read().json
    assert [found["seq_num"] for found in first["records"]] == [0]
    assert "tail" not in first
    second = s2.read("seq_num=1").json
    assert [len(found["body"]) for found in second["records"]] == [len(large)]
    # A limit that the client gives is kept.
    assert s2.read("seq_num=1&bytes=100").json["records"] == []
    assert [found["body"] for found in s2.read("seq_num=2").json["records"]] == ["behind"]


def test_other_dialects_append_nothing_to_a_stream_with_a_cipher(
    serve_s2: Callable[..., S2Server],
) -> None:
    """§17c: it would not be sealed, and no reader could go past it."""
    s2 = serve_s2(stream_cipher="aes-256-gcm")
    s2.create()
    refused = s2.engine.append(f"s2:{BASIN}/s", Batch([b"plain"], KIND_BYTES))
    assert isinstance(refused.error, StreamConflict)


# What makes room


def test_a_full_server_takes_what_frees_it(clock: ManualClock) -> None:
    with open_engines(clock) as open_engine:
        s2 = S2Server(open_engine(max_total_bytes=20_000), clock)
        s2.create()
        while append(s2, {"body": "x" * 1_000}).status == 200:
            pass
        assert refusal(append(s2, {"body": "x" * 1_000})) == (429, "rate_limited")
        tail = s2.ask("GET", records("s") + "/tail").json["tail"]["seq_num"]
        trim = {"headers": [["", "dHJpbQ=="]], "body": base64.b64encode(tail.to_bytes(8)).decode()}
        done = s2.ask("POST", records("s"), {"records": [trim]}, {"s2-format": "base64"})
        assert done.status == 200
        s2.wait(5_000)
        s2.dialect.tick(5_000)
        s2.wait(5_000)
        assert append(s2, {"body": "x" * 1_000}).status == 200
        assert s2.ask("DELETE", f"/v1/basins/{BASIN}").status == 202
