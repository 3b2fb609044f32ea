"""Rows as text: what Spark is asked to make of each column, so that Python only passes it on.

Bytes that are UTF-8 are shown as that text, others as 0x and their digits; times are those of the
session's time zone; variants, structs, arrays and maps are JSON.
"""

from __future__ import annotations

from collections.abc import Iterator

import msgspec
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    DataType,
    MapType,
    StringType,
    StructField,
    StructType,
    VariantType,
)

_NESTED = (ArrayType, MapType, StructType, VariantType)
_ROW = msgspec.json.Decoder(dict[str, msgspec.Raw])
# Times of a JSON document are whole, where Spark would cut them at milliseconds, and say which zone
# they are of, if they are of one.
_JSON_OPTIONS = {
    "ignoreNullFields": "false",
    "timestampFormat": "yyyy-MM-dd'T'HH:mm:ss.SSSSSSXXX",
    "timestampNTZFormat": "yyyy-MM-dd'T'HH:mm:ss.SSSSSS",
}


def text_rows(frame: DataFrame) -> DataFrame:
    """The same rows with every column as text; a null stays a null."""
    plain, fields = _numbered(frame)
    columns = [_text(field.dataType, plain[name]) for name, field in fields.items()]
    return plain.select(*(column.alias(name) for name, column in zip(fields, columns, strict=True)))


def json_rows(frame: DataFrame) -> DataFrame:
    """The same rows with one column, the JSON that `row_values` reads."""
    plain, fields = _numbered(frame)
    values = [_json(field.dataType, plain[name]).alias(name) for name, field in fields.items()]
    return plain.select(F.to_json(F.struct(*values), _JSON_OPTIONS).alias("row"))


def row_values(text: str) -> list[msgspec.Raw]:
    """The values of one row of `json_rows`, each as the JSON that it is.

    >>> [bytes(value) for value in row_values('{"0":1.50,"1":null}')]
    [b'1.50', b'null']
    """
    return list(_ROW.decode(text).values())


def column_types(frame: DataFrame) -> Iterator[tuple[str, str]]:
    """Name and SQL type of each column."""
    for field in frame.schema:
        yield field.name, field.dataType.simpleString()


def _numbered(frame: DataFrame) -> tuple[DataFrame, dict[str, StructField]]:
    """Columns named by their place, because a statement may name two of them alike."""
    fields = {str(at): field for at, field in enumerate(frame.schema)}
    return frame.toDF(*fields), fields


def _text(kind: DataType, column: Column) -> Column:
    if isinstance(kind, StringType):
        return column
    if isinstance(kind, BinaryType):
        return _bytes(column)
    if isinstance(kind, _NESTED):
        return F.to_json(column, _JSON_OPTIONS)
    return column.cast("string")


def _json(kind: DataType, column: Column) -> Column:
    return _bytes(column) if isinstance(kind, BinaryType) else column


def _bytes(column: Column) -> Column:
    return F.coalesce(
        F.try_validate_utf8(column.cast("string")), F.concat(F.lit("0x"), F.hex(column))
    )
