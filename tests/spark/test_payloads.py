"""The column `data` in each format, and that reading by the column gives what each record gives."""

from __future__ import annotations

import datetime
import json
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    MapType,
    StringType,
    StructField,
    StructType,
    VariantType,
)
from pyspark.sql.variant_utils import VariantUtils

from headrace.core.errors import ConfigError, InvalidRequest
from headrace.spark.ddl import fields_of
from headrace.spark.reading.payloads import SLICE_ROWS, Payloads, by_column, by_record, typed_of
from headrace.spark.reading.typed_values import check_type
from tests.support.record_pages import page

EVERY_TYPE = fields_of(
    "b BOOLEAN, i1 TINYINT, i2 SMALLINT, i4 INT, i8 BIGINT, f FLOAT, d DOUBLE, n DECIMAL(6, 2),"
    " s STRING, day DATE, at TIMESTAMP, local TIMESTAMP_NTZ, xs ARRAY<BIGINT>,"
    " times ARRAY<TIMESTAMP>, o STRUCT<x: INT, at: TIMESTAMP, deep: STRUCT<f: FLOAT>>,"
    " os ARRAY<STRUCT<n: DECIMAL(6, 2), s: STRING>>"
)
WHOLE = (
    b'{"b":true,"i1":-128,"i2":32767,"i4":-5,"i8":922337203685477580,"f":0.1,"d":1000.5,'
    b'"n":1234.50,'
    b'"s":"\\u00e9\\n","day":"2026-01-31","at":"2026-01-31T12:00:00.5+02:00",'
    b'"local":"2026-01-31 12:00","xs":[1,null,3],"times":["2026-01-31T12:00:00Z",null],'
    b'"o":{"x":1,"at":"2026-01-31T12:00:00Z","deep":{"f":1}},"os":[{"n":"1.5"},null,{"s":"t"}]}'
)


def typed(
    records: list[bytes], kind: StructType, *, null_bad: bool = False, of: int = 0
) -> list[Any]:
    column = Payloads(kind, null_bad=null_bad).column("t", page(records, kind=of))
    column.validate(full=True)
    return column.to_pylist()


def one(field: str, text: str) -> Any:
    """The value of a field of that type, spelt so."""
    return typed([b'{"v": %s}' % text.encode()], fields_of(f"v {field}"))[0]["v"]


def test_every_type_is_read_by_the_column() -> None:
    records = page([WHOLE, b"{}", b'  {"other": [1, {"x": null}],\n "i8": 2}\n'])
    column = by_column(records, EVERY_TYPE)
    assert column is not None
    first, second, third = column.to_pylist()
    noon = datetime.datetime(2026, 1, 31, 12, tzinfo=datetime.UTC)
    assert first == {
        "b": True,
        "i1": -128,
        "i2": 32767,
        "i4": -5,
        "i8": 922337203685477580,
        "f": pytest.approx(0.1),
        "d": 1000.5,
        "n": Decimal("1234.50"),
        "s": "é\n",
        "day": datetime.date(2026, 1, 31),
        "at": noon - datetime.timedelta(hours=2) + datetime.timedelta(milliseconds=500),
        "local": datetime.datetime(2026, 1, 31, 12),
        "xs": [1, None, 3],
        "times": [noon, None],
        "o": {"x": 1, "at": noon, "deep": {"f": 1.0}},
        "os": [{"n": Decimal("1.50"), "s": None}, None, {"n": None, "s": "t"}],
    }
    assert set(second.values()) == {None}
    assert third == second | {"i8": 2}


def test_large_numbers_are_read_by_the_column() -> None:
    column = by_column(
        page([b'{"i": 9223372036854775807, "d": 1e300}']), fields_of("i BIGINT, d DOUBLE")
    )
    assert column is not None
    assert column.to_pylist() == [{"i": 2**63 - 1, "d": 1e300}]


@pytest.mark.parametrize(
    ("field", "text", "value"),
    [
        ("TIMESTAMP", '"1970-01-01T00:00:00.0000019Z"', 1),
        ("TIMESTAMP", '"1970-01-01"', 0),
        ("TIMESTAMP", '"1970-01-01 00:00:01"', 1_000_000),
        ("TIMESTAMP", '"1970-01-01T01:00+01:00"', 0),
        ("TIMESTAMP_NTZ", '"1970-01-01T00:00:00.1234567"', 123456),
    ],
)
def test_times_of_every_spelling(field: str, text: str, value: int) -> None:
    at = one(field, text)
    assert (at.replace(tzinfo=None) - datetime.datetime(1970, 1, 1)) // datetime.timedelta(
        microseconds=1
    ) == value


@pytest.mark.parametrize(
    ("field", "text"),
    [
        ("BIGINT", "9223372036854775808"),
        ("BIGINT", "1.0"),
        ("BIGINT", "1e2"),
        ("BIGINT", '"1"'),
        ("BIGINT", "true"),
        ("TINYINT", "128"),
        ("INT", "-2147483649"),
        ("FLOAT", "1e39"),
        ("DOUBLE", "1e999"),
        ("DOUBLE", '"1"'),
        ("DECIMAL(6, 2)", "1.234"),
        ("DECIMAL(6, 2)", "10000"),
        ("DECIMAL(6, 2)", '"many"'),
        ("DECIMAL(6, 2)", "1e999999999999999999999"),
        # Arrow's own reader makes numbers of these, of what is left in 128 bits.
        ("DECIMAL(6, 2)", "1e-41"),
        ("DECIMAL(6, 2)", '"\\u0031e-41"'),
        ("DECIMAL(38, 10)", "1e30"),
        ("DECIMAL(38, 38)", "12345678901234"),
        ("STRING", "1"),
        ("STRING", '"\\ud800"'),
        ("BOOLEAN", "0"),
        ("DATE", '"2026-02-30"'),
        ("TIMESTAMP", "1767225600000"),
        ("TIMESTAMP", '"soon"'),
        ("TIMESTAMP_NTZ", '"2026-01-31T12:00:00Z"'),
        ("ARRAY<INT>", "{}"),
        ("ARRAY<INT>", "[1, []]"),
        ("STRUCT<x: INT>", "[]"),
        ("MAP<STRING, INT>", '{"a": "b"}'),
        ("MAP<STRING, INT>", "[]"),
    ],
)
def test_a_value_of_another_type_is_named(field: str, text: str) -> None:
    with pytest.raises(InvalidRequest, match=r"record 1 of topic 't' .* data\.v") as refused:
        one(field, text)
    assert refused.value.detail == {"topic": "t", "seq": 1}
    assert typed([b'{"v": %s}' % text.encode()], fields_of(f"v {field}"), null_bad=True) == [None]


def test_maps_are_read_record_by_record() -> None:
    kind = fields_of("m MAP<STRING, TIMESTAMP>, n MAP<STRING, ARRAY<FLOAT>>")
    found = typed([b'{"m":{"a":"1970-01-01","b":null},"n":{"x":[0.5]}}', b"null", b"{}"], kind)
    epoch = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)
    assert found == [
        {"m": [("a", epoch), ("b", None)], "n": [("x", [0.5])]},
        None,
        {"m": None, "n": None},
    ]


@pytest.mark.parametrize(
    "bad", [b"", b"[1]", b'{"id":1} {"id":2}', b'{"id":', b"\xff", b'{"id":NaN}']
)
def test_one_bad_record_among_many_is_found(bad: bytes) -> None:
    kind = fields_of("id BIGINT")
    records = [b'{"id":%d}' % at for at in range(3 * SLICE_ROWS)]
    expected: list[Any] = [{"id": at} for at in range(len(records))]
    at = SLICE_ROWS + 7
    records[at] = bad
    # Beside it a record that would make up for a row too many.
    records[at + 1], expected[at + 1] = b" null", None
    with pytest.raises(InvalidRequest, match=f"record {at + 1} of topic 't'"):
        typed(records, kind, of=1)
    expected[at] = None
    assert typed(records, kind, of=1, null_bad=True) == expected


def test_a_record_cannot_reach_into_its_neighbours() -> None:
    """Joined they would be three good lines, and none of them is one by itself."""
    kind = fields_of("id BIGINT")
    assert typed([b'{"id":', b'1}{"id":2}', b'{"id":3}'], kind, null_bad=True, of=1) == [
        None,
        None,
        {"id": 3},
    ]


def test_the_last_of_two_fields_of_one_name_counts() -> None:
    assert typed([b'{"id":1,"id":2}', b'{"id":3}'], fields_of("id BIGINT")) == [
        {"id": 2},
        {"id": 3},
    ]


def test_text_is_passed_on_as_it_is() -> None:
    payloads = Payloads(StringType(), null_bad=False)
    assert payloads.needs == {"seq", "data"}
    texts = ['{"a":  1.50}', "é", ""]
    assert payloads.column("t", page([t.encode() for t in texts])).to_pylist() == texts
    bad = page([b"a", b"\xff\xfe", b"c"], kind=1, first_seq=40)
    with pytest.raises(InvalidRequest, match=r"record 41 of topic 't'.*not UTF-8"):
        payloads.column("t", bad)
    assert Payloads(StringType(), null_bad=True).column("t", bad).to_pylist() == ["a", None, "c"]


def test_bytes_are_passed_on_without_a_copy() -> None:
    batch = page([b"\x00\xff", b""], kind=1)
    column = Payloads(BinaryType(), null_bad=False).column("t", batch)
    assert column.buffers()[2].address == batch.column("data").buffers()[2].address


def test_variants_hold_the_values() -> None:
    payloads = Payloads(VariantType(), null_bad=True)
    values = [{"a": [1, -2.5, None], "b": "é"}, None, [], "x", 12345678901]
    records = [json.dumps(value).encode() for value in values]
    column = payloads.column("t", page([*records, b"{", b'{"a":NaN}'], kind=[0, 0, 0, 0, 0, 1, 1]))
    column.validate(full=True)
    found = column.to_pylist()
    assert found[5:] == [None, None]
    assert [VariantUtils.to_python(v["value"], v["metadata"]) for v in found[:5]] == values
    with pytest.raises(InvalidRequest, match="record 2 of topic 't'"):
        Payloads(VariantType(), null_bad=False).column("t", page([b"1", b"[1"], kind=1))


@pytest.mark.parametrize(
    ("kind", "why"),
    [
        (StructType([StructField("x", BinaryType())]), r"data\.x is BINARY"),
        (StructType([StructField("x", StringType(), nullable=False)]), r"data\.x is NOT NULL"),
        (ArrayType(StringType(), containsNull=False), "NOT NULL"),
        (MapType(StringType(), StringType(), valueContainsNull=False), "NOT NULL"),
        (MapType(ArrayType(StringType()), StringType()), "keys of data are not STRING"),
        (StructType([]), "none"),
        (VariantType(), "VARIANT"),
    ],
)
def test_types_that_json_has_not(kind: Any, why: str) -> None:
    with pytest.raises(ConfigError, match=why):
        check_type(kind, "data")


# What is written into documents below: near the edges of what each type takes.
NUMBERS = st.one_of(
    st.integers(-300, 300).map(str),
    st.sampled_from(["0", "-0", "1.0", "1e2", "1E-2", "0.1", "1.234", "1e999", "-1e-999", "1e39"]),
    st.sampled_from(["3.4028235e38", "3.4028236e38", "16777217", "9999.99", "9999.990", "10000"]),
    st.sampled_from([f"{2**63 - 1}", f"{2**63}", f"{10**36}", f"{10**18}", f"0.{1:019}", "1e-41"]),
    st.tuples(st.integers(-99, 99), st.integers(-60, 60)).map(lambda pair: f"{pair[0]}e{pair[1]}"),
    st.floats(allow_nan=False, allow_infinity=False).map(repr),
    st.floats(allow_nan=False, allow_infinity=False, width=32).map(repr),
)
TEXTS = st.one_of(
    st.text(max_size=4).map(json.dumps),
    st.text(max_size=4).map(lambda text: json.dumps(text, ensure_ascii=False)),
    st.sampled_from(
        [
            f'"{text}"'
            for text in (
                r"\ud800",
                r"\u0000",
                "1.5",
                " 1.5",
                "+1.5",
                ".5",
                "5.",
                "1_0",
                "1e2",
                "NaN",
                r"\u0031e-41",
                "2026-01-31",
                "2026-01-31T12:00:00Z",
                "2026-01-31T12:00:00.1234567-03:30",
                "2026-01-31 12:00",
                "2026-01-31T12",
                "0000-01-01",
                "0001-01-01T00:00:00+14:00",
                "9999-12-31T23:59:59.999999",
                "2026-02-29",
                "2026-01-31T24:00",
                "2026-01-31T12:00:00z",
                "12:00:00Z",
            )
        ]
    ),
)
SCALARS = st.one_of(NUMBERS, TEXTS, st.sampled_from(["true", "false", "null"]))
NAMES = st.sampled_from([field.name for field in EVERY_TYPE] + ["x", "deep", "other", ""])
SPACE = st.sampled_from(["", "", "", " ", "\n", "\r\n\t"])


def _array(inner: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    return st.tuples(st.lists(inner, max_size=3), SPACE).map(lambda p: f"[{p[1]}{','.join(p[0])}]")


def _object(inner: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    fields = st.lists(st.tuples(NAMES, inner), max_size=3)
    return st.tuples(fields, SPACE).map(
        lambda p: "{" + p[1] + ",".join(f"{json.dumps(n)}{p[1]}:{v}" for n, v in p[0]) + "}" + p[1]
    )


VALUES = st.recursive(SCALARS, lambda inner: _array(inner) | _object(inner), max_leaves=5)
WANTED = {
    "BOOLEAN": st.sampled_from(["true", "false"]),
    "STRING": TEXTS,
    "DATE": TEXTS,
    "TIMESTAMP": TEXTS,
    "TIMESTAMP_NTZ": TEXTS,
    "ARRAY<BIGINT>": _array(NUMBERS),
    "ARRAY<TIMESTAMP>": _array(TEXTS),
}
DECIMALS = [f"DECIMAL({p},{s})" for p, s in ((6, 2), (18, 18), (38, 10), (38, 18), (38, 38))]
KINDS = ["TINYINT", "INT", "BIGINT", "FLOAT", "DOUBLE", *DECIMALS, *WANTED]


@st.composite
def pages_of_objects(draw: st.DrawFn) -> tuple[StructType, list[bytes]]:
    """Some fields, and objects that mostly fit them."""
    kinds = draw(st.lists(st.sampled_from(KINDS), min_size=1, max_size=3))
    ddl = ", ".join(f"f{at} {kind}" for at, kind in enumerate(kinds))
    records = []
    for _ in range(draw(st.integers(1, 3))):
        parts = []
        for at, kind in enumerate(kinds):
            if draw(st.integers(0, 7)):
                fits = WANTED.get(kind, NUMBERS)
                value = draw(fits if draw(st.integers(0, 7)) else VALUES)
                parts.append(f'"f{at}":{draw(SPACE)}{value}')
        if not draw(st.integers(0, 3)):
            parts.append(f'"other":{draw(VALUES)}')
        records.append(("{" + ",".join(parts) + "}" + draw(SPACE)).encode())
    return fields_of(ddl), records


def compare(kind: StructType, batch: pa.RecordBatch) -> None:
    """What the column reader gives is what each record by itself gives."""
    fast = by_column(batch, kind)
    if fast is not None:
        fast.validate(full=True)
        values = [typed_of(data, kind) for data in batch.column("data").to_pylist()]
        assert fast.equals(by_record(values, kind)), (fast.to_pylist(), values)


@settings(max_examples=400)
@given(pages_of_objects())
def test_the_column_gives_what_each_record_gives(found: tuple[StructType, list[bytes]]) -> None:
    kind, records = found
    compare(kind, page(records))


@given(st.lists(_object(VALUES), min_size=1, max_size=3))
@example([WHOLE.decode()])
def test_the_same_with_every_type(records: list[str]) -> None:
    compare(EVERY_TYPE, page([record.encode() for record in records]))


@given(
    st.lists(_object(VALUES).map(str.encode), min_size=1, max_size=3),
    st.lists(st.tuples(st.integers(0, 200), st.binary(max_size=2)), max_size=3),
)
def test_the_same_with_damaged_bytes(records: list[bytes], damage: list[tuple[int, bytes]]) -> None:
    for at, put in damage:
        which = at % len(records)
        where = at % (len(records[which]) + 1)
        records[which] = records[which][:where] + put + records[which][where + 1 :]
    compare(EVERY_TYPE, page(records, kind=1))
