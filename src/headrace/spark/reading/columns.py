"""The columns that a query sees: their types, and how rows of a page become rows of Spark.

The rules this file owns: every column may be null, because a gap is a row too; batches have exactly
the Arrow schema that Spark expects; what the user declares by `.schema(...)` is the same as asking
by options, and is refused where a column cannot have that type.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterator
from functools import cache
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    DataType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampType,
    VariantType,
)

from headrace.core.errors import ConfigError
from headrace.spark.ddl import fields_of
from headrace.spark.options import SourceOptions
from headrace.spark.reading.payloads import Payloads, alone, text_of
from headrace.spark.reading.typed_values import Column, check_type
from headrace.storage.segment.page_columns import COLUMNS

GAP: Final = StructType(
    [
        StructField("first", LongType()),
        StructField("last", LongType()),
        StructField("reason", StringType()),
    ]
)
HEADERS: Final = ArrayType(
    StructType([StructField("name", BinaryType()), StructField("value", BinaryType())])
)
# In the order in which they come when nobody chooses; `data` has a type for each format.
_TYPES: Final[dict[str, DataType]] = {
    "topic": StringType(),
    "seq": LongType(),
    "ts": TimestampType(),
    "node": StringType(),
    "tag": StringType(),
    "meta": StringType(),
    "data": BinaryType(),
    "gap": GAP,
    "kind": StringType(),
    "content_type": StringType(),
    "headers": HEADERS,
}
DEFAULT: Final = ("topic", "seq", "ts", "node", "tag", "meta", "data")
# The end of the year 9999.  A later timestamp, which only writers of streams can give, is shown as
# this one: neither Python nor a table of a lake has a date for it.
LAST_MS: Final = 253_402_300_799_999
KINDS: Final = ("json", "bytes", "command")  # by the number that a page has

_FORMATS: Final = {"binary": BinaryType(), "json": StringType(), "variant": VariantType()}


class Shape:
    """The columns of one query.  It travels to the executors, so it can be pickled."""

    def __init__(self, schema: StructType, payloads: Payloads) -> None:
        self.schema = schema
        self.arrow = to_arrow_schema(schema, timezone="UTC")
        self._payloads = payloads
        # `seq` is always needed: it costs nothing, and messages name it.
        own = {"seq", *schema.names} & COLUMNS
        self.needs = frozenset(own | payloads.needs if "data" in own else own)

    def rows(
        self, topic: str, batch: pa.RecordBatch, content_type: str | None = None
    ) -> Iterator[pa.RecordBatch]:
        """The rows of a page; nothing for an empty one.  `content_type` is that of a stream."""
        if batch.num_rows:
            arrays = [self._column(field, topic, batch, content_type) for field in self.arrow]
            yield pa.RecordBatch.from_arrays(arrays, schema=self.arrow)

    def gap(self, topic: str, first: int, last: int, reason: str) -> pa.RecordBatch:
        """The row that says that records are gone."""
        values = {"topic": topic, "gap": {"first": first, "last": last, "reason": reason}}
        assert "gap" in self.schema.names, "a query without this column fails instead"
        arrays = [pa.array([values.get(field.name)], field.type) for field in self.arrow]
        return pa.RecordBatch.from_arrays(arrays, schema=self.arrow)

    def _column(
        self, field: pa.Field[Any], topic: str, batch: pa.RecordBatch, content_type: str | None
    ) -> Column:
        make = _MAKERS.get(field.name)
        if make is not None:
            return make(topic, batch)
        if field.name == "data":
            return self._payloads.column(topic, batch)
        if field.name == "content_type" and content_type is not None:
            return _repeated(content_type, batch.num_rows)
        if field.name in ("gap", "content_type"):
            return pa.nulls(batch.num_rows, field.type)
        if field.name == "headers":
            return _headers(field, batch)
        return batch.column(field.name)  # seq, node and tag are as they are


def _headers(field: pa.Field[Any], batch: pa.RecordBatch) -> Column:
    """A server of an older version sends none, and knows of none."""
    if field.name not in batch.schema.names:
        return pa.nulls(batch.num_rows, field.type)
    return batch.column(field.name).cast(field.type)


def _repeated(text: str, count: int) -> Column:
    zeros = pa.Array.from_buffers(pa.int32(), count, [None, pa.py_buffer(bytes(4 * count))])
    return alone(pa.utf8(), text.encode()).take(zeros)


def _topic(topic: str, batch: pa.RecordBatch) -> Column:
    return _repeated(topic, batch.num_rows)


def _ts(topic: str, batch: pa.RecordBatch) -> Column:
    column: Any = batch.column("ts")
    last = pc.max(column.cast(pa.int64())).as_py()
    if last is not None and last > LAST_MS:
        numbers = pc.min_element_wise(column.cast(pa.int64()), pa.scalar(LAST_MS, pa.int64()))
        column = numbers.cast(pa.timestamp("ms", "UTC"))
    return column.cast(pa.timestamp("us", "UTC"))


def _meta(topic: str, batch: pa.RecordBatch) -> Column:
    return text_of(topic, batch, "meta")


def _kind(topic: str, batch: pa.RecordBatch) -> Column:
    return _kinds().take(batch.column("kind"))


@cache
def _kinds() -> Column:
    # Not at import: to make an array of a list, pyarrow imports pandas.
    return pa.array(KINDS, pa.utf8())


_MAKERS: Final[dict[str, Callable[[str, pa.RecordBatch], Column]]] = {
    "topic": _topic,
    "ts": _ts,
    "meta": _meta,
    "kind": _kind,
}


def shape_of(options: SourceOptions, schema: StructType | None) -> Shape:
    """The columns by the options; and by `schema`, what the user declared, when there is one."""
    declared = _by_options(options)
    if schema is not None:
        _check_declared(options, schema, declared)
        declared = schema
    if not options.fail_on_data_loss and "gap" not in declared.names:
        raise ConfigError(
            "failOnDataLoss is false, and there is no column `gap` to say what is lost",
            fix="add gap to the columns, or set failOnDataLoss to true",
        )
    data = declared["data"].dataType if "data" in declared.names else None
    return Shape(declared, Payloads(data, null_bad=options.bad_records == "null"))


def _by_options(options: SourceOptions) -> StructType:
    names = options.columns
    if not names:
        names = DEFAULT if options.fail_on_data_loss else (*DEFAULT, "gap")
    for name in names:
        _check_known(name, "columns names")
    return StructType([StructField(name, _type_of(name, options)) for name in names])


def _type_of(name: str, options: SourceOptions) -> DataType:
    if name != "data":
        return _TYPES[name]
    if options.data_schema is not None:
        return fields_of(options.data_schema)
    return _FORMATS[options.data_format]


def _check_known(name: str, who: str) -> None:
    if name not in _TYPES:
        nearest = difflib.get_close_matches(name.lower(), _TYPES, n=1, cutoff=0.0)[0]
        raise ConfigError(f"{who} {name!r}, which is no column", fix=f"did you mean {nearest}?")


def _check_declared(options: SourceOptions, schema: StructType, asked: StructType) -> None:
    """What `.schema(...)` says is possible, and not other than what the options say."""
    if not schema.names:
        raise ConfigError(".schema() has no column", fix=f"name some of {', '.join(_TYPES)}")
    for at, field in enumerate(schema):
        _check_known(field.name, ".schema() has")
        if field.name in schema.names[:at]:
            raise ConfigError(f".schema() has {field.name} twice", fix="name each column once")
        _check_type(field, options)
    if options.columns and tuple(schema.names) != options.columns:
        raise ConfigError(
            f".schema() has {', '.join(schema.names)}, and columns {', '.join(asked.names)}",
            fix="give one of them",
        )


def _check_type(field: StructField, options: SourceOptions) -> None:
    """The type is one that the column can have."""
    right = _type_of(field.name, options)
    free = field.name == "data" and options.data_format == "binary"
    if free and isinstance(field.dataType, StructType):
        check_type(field.dataType, "data")
    elif field.dataType != right and not (free and field.dataType in _FORMATS.values()):
        can_be = "BINARY, STRING, VARIANT or a STRUCT" if free else right.simpleString().upper()
        raise ConfigError(
            f".schema() has {field.name} as {field.dataType.simpleString().upper()}",
            fix=f"with these options it is {can_be}",
        )
    if not field.nullable:
        raise ConfigError(
            f".schema() has {field.name} as NOT NULL",
            fix="leave NOT NULL out: Spark must be ready for a null in each column",
        )
