"""The columns of a lake's tables, as Arrow has them, and how rows of a topic become them.

The rule it owns: `data` stays byte for byte what it was.  Fields that were declared are beside it
in `value`, null where a record does not fit them.
"""

from __future__ import annotations

from typing import Any, Final, cast

import pyarrow as pa
import pyarrow.compute as pc

from headrace.core.errors import ConfigError

DAY: Final = "day"
VALUE: Final = "value"
TS: Final = pa.timestamp("us", "UTC")
# In place of fields: the whole record as Spark's VARIANT.
VARIANT: Final = "VARIANT"

# Those of a file, in this order; `value` comes last.
_FILE: Final = (
    pa.field("seq", pa.int64()),
    pa.field("ts", TS),
    pa.field("node", pa.utf8()),
    pa.field("tag", pa.utf8()),
    pa.field("meta", pa.utf8()),
    pa.field("kind", pa.utf8()),
    pa.field("data", pa.binary()),
)
CONTENT_TYPE: Final = "content_type"
HEADERS: Final = "headers"
_PAIR: Final[list[Any]] = [pa.field("name", pa.binary()), pa.field("value", pa.binary())]
# Those that only the table of a stream has, behind the others.
_STREAM: Final = (
    pa.field(CONTENT_TYPE, pa.utf8()),
    pa.field(HEADERS, pa.list_(pa.field("element", pa.struct(_PAIR)))),
)
# What is asked of the source; `gap` says which seqs are lost.
SOURCE: Final = (
    "seq", "ts", "node", "tag", "meta", "kind", "data", CONTENT_TYPE, HEADERS, "gap",
)  # fmt: skip
NAMES: Final = tuple(field.name for field in _FILE)
STREAM_NAMES: Final = NAMES + tuple(field.name for field in _STREAM)

_GAPS: Final[list[Any]] = [
    pa.field("first", pa.int64()),
    pa.field("last", pa.int64()),
    pa.field("reason", pa.utf8()),
    pa.field("to_seq", pa.int64()),
    pa.field("recorded", TS),
]
GAPS: Final = pa.schema(_GAPS)


def names_of(stream: bool) -> tuple[str, ...]:
    """The columns of a data file but `value`; the table of a stream has more."""
    return STREAM_NAMES if stream else NAMES


def file_schema(value_ddl: str | None, stream: bool = False) -> pa.Schema:
    """The columns of a data file."""
    fields: list[Any] = [*_FILE, *(_STREAM if stream else ())]
    if value_ddl is not None:
        fields.append(pa.field(VALUE, _value_type(value_ddl)))
    return pa.schema(fields)


def table_schema(value_ddl: str | None, stream: bool = False) -> pa.Schema:
    """The columns of a table: those of its files, and the day; Arrow has no VARIANT."""
    fields = list(file_schema(None if value_ddl == VARIANT else value_ddl, stream))
    fields.insert(2, pa.field(DAY, pa.date32()))
    return pa.schema(fields)


def checked_ddl(value_ddl: str) -> str:
    """The same, on one line, if these are fields that JSON can have.

    >>> checked_ddl(" id BIGINT,\\n price DOUBLE "), checked_ddl("variant")
    ('id BIGINT, price DOUBLE', 'VARIANT')
    """
    from headrace.spark.ddl import fields_of
    from headrace.spark.reading.typed_values import check_type

    text = " ".join(value_ddl.split())
    if text.upper() == VARIANT:
        return VARIANT
    fields = fields_of(text)
    check_type(fields, VALUE)
    if not fields.names:
        raise ConfigError("the schema has no field", fix="write fields such as id BIGINT")
    return text


def _value_type(value_ddl: str) -> Any:
    if value_ddl == VARIANT:
        parts: list[Any] = [pa.field(name, pa.binary(), False) for name in ("metadata", "value")]
        return pa.struct(parts)
    from pyspark.sql.pandas.types import to_arrow_type

    from headrace.spark.ddl import fields_of

    return to_arrow_type(fields_of(value_ddl), timezone="UTC")


class Values:
    """Makes the column `value` of the rows of a topic."""

    def __init__(self, value_ddl: str) -> None:
        from headrace.spark.ddl import fields_of
        from headrace.spark.reading.columns import KINDS
        from headrace.spark.reading.payloads import Payloads

        self._payloads = Payloads(fields_of(value_ddl), null_bad=True)
        self._kinds = pa.array(KINDS, pa.utf8())

    def added(self, topic: str, rows: pa.RecordBatch) -> pa.RecordBatch:
        """The rows with their values."""
        numbers = pc.index_in(rows.column("kind"), value_set=cast(Any, self._kinds))
        page = pa.RecordBatch.from_arrays(
            [rows.column("seq"), numbers, rows.column("data")], names=["seq", "kind", "data"]
        )
        values = self._payloads.column(topic, page)
        fields = [*rows.schema, pa.field(VALUE, values.type)]
        return pa.RecordBatch.from_arrays([*rows.columns, values], schema=pa.schema(fields))
