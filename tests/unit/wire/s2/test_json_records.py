"""Records of S2 as JSON and as server-sent events, in both formats, to the byte."""

from __future__ import annotations

import json

import pytest

from headrace.core.errors import HeadMismatch
from headrace.wire.s2 import json_records, sse_records
from headrace.wire.s2.errors import S2Refusal, unavailable
from headrace.wire.s2.records import AppendAck, Position, ReadBatch, heartbeat

TAIL = Position(9, 1_700_000_000_000)


def refusal_of(body: bytes, base64: bool = False) -> str:
    with pytest.raises(S2Refusal) as caught:
        json_records.decode_append_input(body, base64)
    return caught.value.code


def test_an_input_has_its_records_as_columns() -> None:
    given = json_records.decode_append_input(
        '{"records":[{"body":"h\u00e9","headers":[["a","1"],["","x"]],"timestamp":0},{}],'
        '"match_seq_num":0,"fencing_token":"","colour":"red"}'.encode(),
        base64=False,
    )
    assert given.bodies == ["h\u00e9".encode(), b""]
    assert given.headers == [[(b"a", b"1"), (b"", b"x")], None]
    assert given.timestamps == [0, None]
    assert (given.match_seq_num, given.fencing_token) == (0, "")


def test_what_is_absent_or_null_is_not_there() -> None:
    for body in (
        b'{"records":[{}]}',
        b'{"records":[{"body":null,"headers":null,"timestamp":null}],"match_seq_num":null,'
        b'"fencing_token":null}',
    ):
        for base64 in (False, True):
            given = json_records.decode_append_input(body, base64)
            assert (given.bodies, given.headers, given.timestamps) == ([b""], None, None)
            assert (given.match_seq_num, given.fencing_token) == (None, None)


def test_base64_gives_any_bytes() -> None:
    given = json_records.decode_append_input(
        b'{"records":[{"body":"//79AA==","headers":[["AA==",""],["gQ==","Zg=="]]}]}', base64=True
    )
    assert given.bodies == [b"\xff\xfe\xfd\x00"]
    assert given.headers == [[(b"\x00", b""), (b"\x81", b"f")]]


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b"[]",
        b"{}",
        b'{"records":null}',
        b'{"records":{}}',
        b'{"records":[[]]}',
        b'{"records":[{"body":7}]}',
        b'{"records":[{"headers":{"a":"b"}}]}',
        b'{"records":[{"headers":[["a"]]}]}',
        b'{"records":[{"headers":[["a","b","c"]]}]}',
        b'{"records":[{"timestamp":-1}]}',
        b'{"records":[{"timestamp":18446744073709551616}]}',
        b'{"records":[{"timestamp":1.5}]}',
        b'{"records":[{"timestamp":"1"}]}',
        b'{"records":[],"match_seq_num":-1}',
        b'{"records":[],"match_seq_num":18446744073709551616}',
        b'{"records":[],"fencing_token":"%b"}' % (b"x" * 37),
        b'{"records":[],"fencing_token":7}',
        b'{"records":[{"body":"\xff"}]}',
        b'{"records":[{"body":"\\ud800"}]}',
        b'{"x":' + b"[" * 5_000,
    ],
)
def test_what_is_no_input_is_refused(body: bytes) -> None:
    assert refusal_of(body) == "bad_json"
    assert refusal_of(body, base64=True) == "bad_json"


@pytest.mark.parametrize("text", [b"a", b"_-8=", b"AA", b"A===", b"AAAA=", b"\\u00e9", b"AA==AA=="])
def test_what_is_no_base64_is_invalid(text: bytes) -> None:
    assert refusal_of(b'{"records":[{"body":"%b"}]}' % text, base64=True) == "invalid"
    assert refusal_of(b'{"records":[{"headers":[["%b",""]]}]}' % text, base64=True) == "invalid"


def test_the_format_has_two_names_each() -> None:
    for value, wanted in ((b"raw", False), (b"json", False), (b"base64", True)):
        assert json_records.is_base64(value) is wanted
    assert json_records.is_base64(b"json-binsafe") and not json_records.is_base64(None)
    for value in (b"", b"RAW", b"base32"):
        with pytest.raises(S2Refusal) as caught:
            json_records.is_base64(value)
        assert caught.value.code == "bad_header"


def test_an_ack_is_three_positions() -> None:
    ack = AppendAck(Position(0, 5), Position(2, 6), TAIL)
    assert json_records.encode_append_ack(ack) == (
        b'{"start":{"seq_num":0,"timestamp":5},"end":{"seq_num":2,"timestamp":6},'
        b'"tail":{"seq_num":9,"timestamp":1700000000000}}'
    )


def test_a_batch_leaves_out_what_is_empty() -> None:
    batch = ReadBatch(
        [0, 1, 2], [5, 5, 6], [b"hi", b"", b""], [None, [], [(b"k", b""), (b"", b"v")]], TAIL
    )
    assert json_records.encode_read_batch(batch, base64=False) == (
        b'{"records":[{"seq_num":0,"timestamp":5,"body":"hi"},{"seq_num":1,"timestamp":5},'
        b'{"seq_num":2,"timestamp":6,"headers":[["k",""],["","v"]]}],'
        b'"tail":{"seq_num":9,"timestamp":1700000000000}}'
    )
    assert json_records.encode_read_batch(batch, base64=True) == (
        b'{"records":[{"seq_num":0,"timestamp":5,"body":"aGk="},{"seq_num":1,"timestamp":5},'
        b'{"seq_num":2,"timestamp":6,"headers":[["aw==",""],["","dg=="]]}],'
        b'"tail":{"seq_num":9,"timestamp":1700000000000}}'
    )
    nothing = ReadBatch([], [], [])
    assert json_records.encode_read_batch(nothing, base64=False) == b'{"records":[]}'


def test_raw_replaces_what_is_no_utf8_and_base64_does_not() -> None:
    body = b"a\xff\xe2\x82z\xed\xa0\x80"
    batch = ReadBatch([0], [0], [body], [[(b"\x80", b"\xf0\x9f\x98\x80")]])
    raw = json.loads(json_records.encode_read_batch(batch, base64=False))["records"][0]
    assert raw["body"] == "a\ufffd\ufffdz\ufffd\ufffd\ufffd"
    assert raw["headers"] == [["\ufffd", "\U0001f600"]]
    told = json_records.encode_read_batch(batch, base64=True)
    again = json_records.decode_append_input(told, base64=True)
    assert again.bodies == [body] and again.headers == batch.headers


# Server-sent events


def test_a_batch_event_has_its_id() -> None:
    batch = ReadBatch([7], [5], [b"a\nb"])
    assert sse_records.batch_event(batch, sse_records.EventId(7, 3, 99), base64=False) == (
        b"event: batch\nid: 7,3,99\n"
        b'data: {"records":[{"seq_num":7,"timestamp":5,"body":"a\\nb"}]}\n\n'
    )


def test_pings_errors_and_the_end_are_these() -> None:
    assert sse_records.ping_event(8, TAIL) == (
        b'event: ping\ndata: {"timestamp":8,"tail":{"seq_num":9,"timestamp":1700000000000}}\n\n'
    )
    assert sse_records.error_event(unavailable("gone")) == (
        b'event: error\ndata: {"code":"unavailable","message":"gone"}\n\n'
    )
    mismatch = HeadMismatch("no", detail={"head_seq": 4})
    assert sse_records.error_event(mismatch) == b'event: error\ndata: {"seq_num_mismatch":4}\n\n'
    assert sse_records.DONE == b"data: [DONE]\n\n"


def test_a_heartbeat_has_a_tail_and_no_record() -> None:
    told = json_records.encode_read_batch(heartbeat(TAIL), base64=False)
    assert told == b'{"records":[],"tail":{"seq_num":9,"timestamp":1700000000000}}'
