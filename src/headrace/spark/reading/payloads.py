"""The column `data` in the format that a query asked for: bytes, text, VARIANT or typed fields.

The rule it owns: a record that is not of that format is named by topic and seq, or is a null when
that was asked for; it is never left out, and never something else.  Bytes and texts are passed on
without touching a row.  Typed fields are read by the column where that gives the same values as
record by record, which is what decides (typed_values.py).
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Any, Final, NoReturn

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.json
from pyspark.errors import PySparkException
from pyspark.sql.pandas.types import to_arrow_schema, to_arrow_type
from pyspark.sql.types import DataType, StringType, StructType, VariantType
from pyspark.sql.variant_utils import VariantUtils

from headrace.core.errors import InvalidRequest
from headrace.spark.reading.typed_values import (
    Column,
    as_read,
    finish,
    holds_map,
    parse,
    scale_of,
    value_of,
)

# Where reading by the column fails, it is tried again on this many rows at a time.
SLICE_ROWS: Final = 1_024

KIND_JSON: Final = 0  # of a page: the server has checked that it is one value of JSON
_OBJECT: Final = r"^[ \t\r\n]*\{"
# Numbers of 19 digits and more, with an exponent, or with digits written as escapes.
_UNUSUAL: Final = r'[0-9]{19}|[:,\[\s"][+-]?[0-9.]+[eE][+-]?[0-9]+[\s",}\]]|\\u00[2-6]'
# The reader of columns multiplies without looking whether 128 bits are enough.  Of numbers with up
# to 18 digits before and behind the point it makes at most 36 digits for such a scale.
SCALE_MAX: Final = 18

_CHECKED: Final = msgspec.json.Decoder(msgspec.Raw)


class Payloads:
    """Makes the column `data`.  `null_bad`: what is not of the format becomes a null."""

    def __init__(self, kind: DataType | None, *, null_bad: bool) -> None:
        self._kind = kind
        self._null_bad = null_bad
        parsed = isinstance(kind, VariantType | StructType)
        self.needs = frozenset({"data", "seq", "kind"} if parsed else {"data", "seq"})

    def column(self, topic: str, batch: pa.RecordBatch) -> Column:
        """`data` of these rows, which have the columns of `needs`."""
        kind = self._kind
        if isinstance(kind, StringType):
            return text_of(topic, batch, "data", null_bad=self._null_bad)
        if isinstance(kind, VariantType):
            values = self._each(topic, batch, _variant_of)
            return pa.array(values, to_arrow_type(kind))
        if isinstance(kind, StructType):
            return self._typed(topic, batch, kind)
        return batch.column("data")

    def _typed(self, topic: str, batch: pa.RecordBatch, kind: StructType) -> Column:
        final = to_arrow_type(kind, timezone="UTC")
        if not holds_map(kind):
            found = by_column(batch, kind)
            if found is not None:
                return found
            if batch.num_rows > SLICE_ROWS:
                starts = range(0, batch.num_rows, SLICE_ROWS)
                parts = [self._typed(topic, batch[at : at + SLICE_ROWS], kind) for at in starts]
                return pa.concat_arrays(parts)
        found = by_record(self._each(topic, batch, lambda text: typed_of(text, kind)), kind)
        assert found.type == final
        return found

    def _each(self, topic: str, batch: pa.RecordBatch, make: Callable[[bytes], Any]) -> list[Any]:
        """What `make` gives for each record; it raises where one is not of the format."""
        found: list[Any] = []
        rows: Any = zip(*(batch.column(name).to_pylist() for name in ("data", "kind")), strict=True)
        for at, (data, kind) in enumerate(rows):
            try:
                if kind != KIND_JSON:
                    _CHECKED.decode(data)
                found.append(make(data))
            except (ValueError, RecursionError, PySparkException) as error:
                if not self._null_bad:
                    _refuse(topic, batch, at, str(error))
                found.append(None)
        return found


def _two(first: int, second: int) -> pa.Buffer:
    return pa.py_buffer(struct.pack("=ii", first, second))


def alone(kind: pa.DataType, value: bytes) -> Column:
    """An array of one value.

    `pa.array` and `pa.scalar` import pandas, which takes longer than all else that a process of
    Spark does before it reads.
    """
    return pa.Array.from_buffers(kind, 1, [None, _two(0, len(value)), pa.py_buffer(value)])


def text_of(topic: str, batch: pa.RecordBatch, name: str, *, null_bad: bool = False) -> Column:
    """A column of bytes as text."""
    column: Any = batch.column(name)
    try:
        return column.cast(pa.utf8())
    except pa.ArrowInvalid:
        texts = [None if value is None else _utf8(value) for value in column.to_pylist()]
    for at, text in enumerate(texts):
        if text is None and column[at].is_valid and not null_bad:
            _refuse(topic, batch, at, f"its {name} is not UTF-8")
    return pa.array(texts, pa.utf8())


def _utf8(value: bytes) -> str | None:
    try:
        return value.decode()
    except UnicodeDecodeError:
        return None


def _refuse(topic: str, batch: pa.RecordBatch, at: int, why: str) -> NoReturn:
    seq = batch.column("seq")[at].as_py()
    raise InvalidRequest(
        f"record {seq} of topic {topic!r} cannot be read as this query asks: {why}",
        fix="set badRecords to null for nulls in place of such records, or read data as binary",
        detail={"topic": topic, "seq": seq},
    )


def _variant_of(data: bytes) -> dict[str, bytes]:
    value, metadata = VariantUtils.parse_json(data.decode())
    return {"value": value, "metadata": metadata}


def typed_of(data: bytes, kind: StructType) -> Any:
    """One record; `ValueError` says what is wrong with it."""
    return value_of(parse(data.decode()), kind, "data")


def by_record(values: list[Any], kind: StructType) -> Column:
    """The column out of what `typed_of` gave."""
    return finish(pa.array(values, to_arrow_type(as_read(kind))), kind)


def by_column(batch: pa.RecordBatch, kind: StructType) -> Column | None:
    """All rows at once; None when a record needs a closer look."""
    data: Any = batch.column("data")
    if not _are_objects(data, batch.column("kind")):
        return None
    scale = scale_of(kind)
    if scale > SCALE_MAX:
        return None
    if scale >= 0 and pc.any(pc.match_substring_regex(data, _UNUSUAL)).as_py():
        return None
    ends: Any = pa.Array.from_buffers(pa.int32(), 2, [None, _two(0, len(data))])
    rows: Any = pa.ListArray.from_arrays(ends, data)
    lines: Any = pc.binary_join(rows, alone(pa.binary(), b"\n"))
    text = lines[0].as_buffer()
    reading: Any = as_read(kind)
    source: Any = pa.BufferReader(text)
    try:
        # One block, so that a line break inside a record is no end of a row.
        table = pyarrow.json.read_json(
            source,
            read_options=pyarrow.json.ReadOptions(use_threads=False, block_size=text.size + 1),
            parse_options=pyarrow.json.ParseOptions(
                explicit_schema=to_arrow_schema(reading), unexpected_field_behavior="ignore"
            ),
        )
        if table.num_rows != len(data):
            return None
        columns = [table.column(name).combine_chunks() for name in kind.names]
        fields = list(to_arrow_schema(reading))
        return finish(pa.StructArray.from_arrays(columns, fields=fields), kind)
    except pa.ArrowInvalid:
        return None


def _are_objects(data: Any, kinds: Any) -> bool:
    """Whether each row is one object of JSON in UTF-8, and nothing else.

    The reader of columns does not check it: it would take two objects of one row for two rows, and
    it dies of a `null`.
    """
    plain = pc.all(pc.starts_with(data, "{")).as_py()
    if not plain and not pc.all(pc.match_substring_regex(data, _OBJECT)).as_py():
        return False
    assert not KIND_JSON
    foreign = data.filter(kinds.cast(pa.bool_()))
    try:
        foreign.cast(pa.utf8())
        for value in foreign.to_pylist():
            _CHECKED.decode(value)
    except (pa.ArrowInvalid, ValueError, RecursionError):
        return False
    return True
