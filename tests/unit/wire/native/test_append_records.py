"""Large bodies of plain records: read another way, and as any body is."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.api.records import AppendBody
from headrace.core.errors import BatchTooLarge, HeadraceError, InvalidRequest
from headrace.core.settings import Settings
from headrace.engine.appending.admission import PLAIN, check_batch
from headrace.storage.block import Batch, JsonPayloads
from headrace.storage.block_encoding import BlockPlace, encode_block, encode_payloads
from headrace.wire.bodies import decode_json
from headrace.wire.native.append_records import PLAIN_BYTES_MIN, batch_of, decode_append

SETTINGS = Settings(record_bytes_max=40, meta_bytes_max=40, records_per_append_max=6)
PLACE = BlockPlace(7, 5, 100, 101)
DECODER = msgspec.json.Decoder(AppendBody)
RECORDS_MAX = 50

SPACES = st.sampled_from(["", "", "", " ", "\n", "\t \r\n"])
TEXTS = st.text('a"\\{}[],:\u00e9\U0001f600', max_size=4)
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | TEXTS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXTS, inner, max_size=2),
    max_leaves=5,
).map(lambda value: msgspec.json.encode(value).decode())
# Payloads that look like what is around them.
HOSTILE = st.sampled_from(
    [
        '{"data":1},{"data":2}', '"},{\\"data\\":"', '[{"data":1},{"data":2}]', "1,2", "1}", "",
        '{"data":1', '1,"tag":"x"', '1,"data":2', "1],[2", '"\\ud83d"', "\x00", "[" * 50,
        '{"records":[{"data":1}]}', '1,"d\\u0061ta":2', '1,"meta":null', '1,"node":"n"', " 1 ",
        '"' + "x" * 60 + '"',
    ]
)  # fmt: skip
RECORD_KEYS = st.sampled_from(['"data"'] * 30 + ['"d\\u0061ta"', '"tag"', '"other"', "data"])
BODY_KEYS = st.sampled_from(['"records"'] * 20 + ['"r\\u0065cords"', '"node"', '"config"'])


@st.composite
def bodies(draw: st.DrawFn) -> bytes:
    """Bodies that have nothing but data, or nearly so."""

    def text(*parts: str) -> str:
        return "".join(part + draw(SPACES) for part in parts)

    records = []
    for _ in range(draw(st.integers(0, 8))):
        value = draw(VALUES if draw(st.integers(0, 9)) else HOSTILE)
        records.append(text("{", draw(RECORD_KEYS), ":", value, "}"))
    members = [text(draw(BODY_KEYS), ":", "[", text(",").join(records), "]")]
    if not draw(st.integers(0, 9)):
        more = ['"records":[{"data":9}]', '"node":"n"', '"node":null', '"other":[1]', '"records":1']
        members.append(text(draw(st.sampled_from(more))))
    body = (text("{") + ",".join(members) + text("}")).encode()
    return body if draw(st.integers(0, 9)) else body.replace(b"a", b"\xff")


def stored(body: AppendBody) -> object:
    """What the engine would store of a body, or why it would not."""
    try:
        batch = batch_of(body, SETTINGS.meta_keys_max)
        check_batch(SETTINGS, batch, PLAIN)
    except HeadraceError as error:
        return type(error), error.message, error.fix, error.detail
    if isinstance(batch, JsonPayloads):
        return encode_payloads(batch, PLACE).raw
    assert isinstance(batch, msgspec.Raw | Batch)
    lists = Batch([batch]) if isinstance(batch, msgspec.Raw) else batch
    return encode_block(lists, *PLACE).raw


def beside(body: AppendBody) -> list[object]:
    """All that a body says beside its records."""
    return [getattr(body, name) for name in body.__struct_fields__ if name != "records"]


def told(decode: Callable[[bytes], AppendBody], body: bytes) -> AppendBody | tuple[str, str]:
    """A body as it is read, or what its sender is told."""
    try:
        return decode(body)
    except InvalidRequest as refusal:
        return refusal.message, refusal.fix


def check(body: bytes) -> AppendBody | None:
    """Read a body as a large one is, and as any is; return the first, or None of a refused one."""
    large = body + b" " * PLAIN_BYTES_MIN
    expected = told(partial(decode_json, decoder=DECODER), large)
    found = told(partial(decode_append, most=RECORDS_MAX), large)
    if isinstance(expected, tuple) or isinstance(found, tuple):
        assert found == expected
        return None
    assert beside(found) == beside(expected)
    assert stored(found) == stored(expected)
    return found


def is_plain(body: AppendBody | None) -> bool:
    """Whether a body was read as one of plain records."""
    return body is not None and type(body) is not AppendBody


@given(bodies())
def test_a_large_body_is_read_as_any_other(body) -> None:
    check(body)


@given(st.lists(VALUES, max_size=8), SPACES, st.sampled_from(["", ',"node":"n"', ',"create":true']))
def test_plain_records_are_known_as_such(values, space, more) -> None:
    records = f",{space}".join(f'{{"data":{space}{value}}}' for value in values)
    assert is_plain(check(f'{{"records":[{space}{records}]{more}}}'.encode()))


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{}",
        b"[]",
        b'{"records":[{"data":1},{"data":2,"tag":"t"}]}',
        b'{"records":[{"data":1},{"data":2,"meta":{}}]}',
        b'{"records":[{"data":1},{"data":2,"meta":null}]}',
        b'{"records":[{"data":1},{"data":2,"unknown":3}]}',
        b'{"records":[{"data":1,"node":"own"},{"data":2}],"node":"n"}',
        b'{"records":[{"data":1},{}]}',
        b'{"records":[{"data":1},{"data":2]}',
        b'{"records":[{"data":1}],"create":1}',
        b'{"records":[{"data":"\xff"},{"data":2}]}',
        b'{"records":[{"data":1}]}{"records":[]}',
        b'{"records":' + b"[" * 100_000,
    ],
)
def test_anything_else_is_read_as_any_body(body) -> None:
    assert not is_plain(check(body))


def test_a_small_body_is_not_read_twice() -> None:
    assert not is_plain(decode_append(b'{"records":[{"data":1},{"data":2}]}', RECORDS_MAX))


def test_too_many_records_are_refused_at_the_first_one_too_many() -> None:
    body = b'{"records":[' + b'{"data":"%b"},' % (b"x" * 100) * (RECORDS_MAX + 1)
    with pytest.raises(BatchTooLarge, match="more than 50 records") as refused:
        decode_append(body + b"what comes behind is not read", RECORDS_MAX)
    assert refused.value.detail == {"max": RECORDS_MAX}


@pytest.mark.parametrize("data", [b"1", b'{"a":{"b":[{},{},{}]}}', b'"{{{{{{"'])
def test_as_many_as_are_allowed_are_read_whatever_is_in_them(data) -> None:
    body = b'{"records":[' + b",".join([b'{"data":%b}' % data] * RECORDS_MAX) + b"]}"
    large = body + b" " * PLAIN_BYTES_MIN
    assert len(decode_append(large, RECORDS_MAX).records) == RECORDS_MAX


def test_the_only_record_is_itself() -> None:
    body = check(b'{"records":[{"data": {"a" : 1} }]}')
    assert is_plain(body)
    assert batch_of(body, 1) == msgspec.Raw(b'{"a" : 1}')


@pytest.mark.parametrize("count", [0, 2, 6, 7])
@pytest.mark.parametrize("size", [2, 39, 40, 41])
def test_the_limits_are_those_of_any_other_append(count, size) -> None:
    records = [{"data": "x" * (size - 2)}] * (count - 1) + [{"data": 1}] * min(count, 1)
    assert is_plain(check(msgspec.json.encode({"records": records})))
