"""Records as JSON: which keys, in which order, and what happens to payloads that are not JSON."""

from __future__ import annotations

import json

from headrace.storage.block import KIND_BYTES, KIND_COMMAND, KIND_JSON, Rows
from headrace.wire.native.record_json import encode_rows

TS = 1_700_000_000_000


def test_payload_bytes_come_back_verbatim() -> None:
    sent = b'{"b" : 1.0, "a":1,"a":2}'
    assert encode_rows([Rows([3], TS, [sent])]) == (
        b'[{"$seq":3,"$ts":1700000000000,"data":' + sent + b"}]"
    )


def test_the_keys_and_their_order() -> None:
    rows = Rows([1], TS, [b"null"], tags=["t"], nodes=["n"], metas=[b'{"m":1}'])
    assert encode_rows([rows], tags=True, metas=True) == (
        b'[{"$seq":1,"$ts":1700000000000,"$node":"n","$tag":"t","data":null,"meta":{"m":1}}]'
    )


def test_what_is_absent_or_not_asked_for_is_left_out() -> None:
    rows = Rows([1, 2], TS, [b"1", b"2"], tags=["t", None], nodes=[None, "n"], metas=[None, b"[1]"])
    first, second = json.loads(encode_rows([rows], tags=True, metas=True))
    assert first == {"$seq": 1, "$ts": TS, "$tag": "t", "data": 1}
    assert second == {"$seq": 2, "$ts": TS, "$node": "n", "data": 2, "meta": [1]}
    first, second = json.loads(encode_rows([rows], tags=False, metas=False))
    assert set(first) == {"$seq", "$ts", "data"}
    assert set(second) == {"$seq", "$ts", "$node", "data"}


def test_without_data_everything_else_is_there() -> None:
    rows = Rows([1], TS, [b"1"], tags=["t"], metas=[b"{}"])
    assert json.loads(encode_rows([rows], tags=True, metas=True, data=False)) == [
        {"$seq": 1, "$ts": TS, "$tag": "t", "meta": {}}
    ]
    assert encode_rows([Rows([1], TS, [b"1"])], data=False) == (b'[{"$seq":1,"$ts":1700000000000}]')


def test_rows_of_several_blocks_are_one_array() -> None:
    one = Rows(range(1, 3), [TS, TS + 1], [b"1", b"2"])
    two = Rows([9], TS + 2, [b"3"], nodes=["n"])
    assert [r["$seq"] for r in json.loads(encode_rows([one, two]))] == [1, 2, 9]
    assert [r["$ts"] for r in json.loads(encode_rows([one, two]))] == [TS, TS + 1, TS + 2]
    assert encode_rows([]) == b"[]"


def test_bytes_are_base64_and_meta_says_so() -> None:
    rows = Rows([1], TS, [b"\xff\x00"], kinds=KIND_BYTES)
    assert json.loads(encode_rows([rows], metas=True)) == [
        {"$seq": 1, "$ts": TS, "data": "/wA=", "meta": {"$encoding": "base64"}}
    ]


def test_the_note_joins_the_meta_that_is_there() -> None:
    metas: list[bytes | None] = [b' {"a":1} ', b"{ }", None, b"7"]
    rows = Rows(range(1, 5), TS, [b"x"] * 4, kinds=KIND_BYTES, metas=metas)
    note = {"$encoding": "base64"}
    assert [r["meta"] for r in json.loads(encode_rows([rows], metas=True))] == [
        {"a": 1, **note},
        note,
        note,
        {"$meta": 7, **note},
    ]


def test_only_the_records_that_are_not_json_are_encoded() -> None:
    kinds = bytes((KIND_JSON, KIND_BYTES, KIND_COMMAND))
    rows = Rows(range(1, 4), TS, [b'"x"', b"x", b"x"], kinds=kinds, metas=[b"{}", None, None])
    shown = json.loads(encode_rows([rows], metas=True))
    assert [r["data"] for r in shown] == ["x", "eA==", "eA=="]
    assert [r["meta"] for r in shown] == [{}, {"$encoding": "base64"}, {"$encoding": "base64"}]


def test_no_meta_asked_for_is_no_meta_shown() -> None:
    rows = Rows([1], TS, [b"x"], kinds=KIND_BYTES)
    assert json.loads(encode_rows([rows], metas=False)) == [{"$seq": 1, "$ts": TS, "data": "eA=="}]


def test_s12i_headers_and_commands_are_in_the_meta() -> None:
    rows = Rows(
        [1, 2, 3],
        TS,
        [b"x", b"token", b"1"],
        kinds=[KIND_BYTES, KIND_COMMAND, KIND_JSON],
        metas=[b'{"m":1}', None, None],
        headers=[[(b"a", b"\xff"), (b"a", b"")], [(b"", b"fence")], None],
    )
    bytes_, command, plain = json.loads(encode_rows([rows]))
    assert bytes_["meta"] == {
        "m": 1,
        "$encoding": "base64",
        "$headers": [["YQ==", "/w=="], ["YQ==", ""]],
    }
    assert command == {
        "$seq": 2,
        "$ts": TS,
        "data": "dG9rZW4=",
        "meta": {"$encoding": "base64", "$headers": [["", "ZmVuY2U="]], "$kind": "command"},
    }
    assert plain == {"$seq": 3, "$ts": TS, "data": 1}
