"""Values of JSON as values of Spark's types: which types there are, and what each of them takes.

Both ways of reading typed data end here.  Columns that were read by the batch pass through
`finish`; `value_of` makes the same values out of one record, and says what is wrong with it.  What
no column of a fast reader can hold as it is (times, dates) is read as text and finished later.

What a type takes: whole numbers without point or exponent, within range; DECIMAL a number, or one
in quotes, that fits without rounding; TIMESTAMP and DATE texts of ISO 8601, where a time without
an offset is UTC and parts of a microsecond are cut off; everything else only its own kind.
"""

from __future__ import annotations

import json
import math
import re
import struct
from collections.abc import Callable, Iterator
from decimal import Context, Decimal, InvalidOperation
from typing import Any, Final, NoReturn

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.pandas.types import to_arrow_type
from pyspark.sql.types import (
    ArrayType,
    BooleanType,
    ByteType,
    DataType,
    DateType,
    DecimalType,
    DoubleType,
    FloatType,
    IntegerType,
    LongType,
    MapType,
    ShortType,
    StringType,
    StructField,
    StructType,
    TimestampNTZType,
    TimestampType,
)

from headrace.core.errors import ConfigError

# An array of pyarrow; which one, the types there do not say well.
Column = Any

_UTC: Final = pa.timestamp("us", "UTC")
_NTZ: Final = pa.timestamp("us")
_BITS: Final[dict[type[DataType], int]] = {
    ByteType: 8,
    ShortType: 16,
    IntegerType: 32,
    LongType: 64,
}
_INTEGER: Final = re.compile("-?[0-9]{1,19}")
_DECIMAL: Final = re.compile(r"[+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?")
_EXACT: Final = Context(prec=80)
# A date, a time, and how far that is from UTC.
_WITH_OFFSET: Final = r"[T ][0-9:.]+(?:Z|[+-][0-9]{2}(?::?[0-9]{2})?)$"
_TOO_FINE: Final = r"(\.[0-9]{6})[0-9]+"


class Unfit(ValueError):
    """A value is not of its type; the message names the field and both."""


def check_type(kind: DataType, path: str) -> None:
    """Refuse a type that no value of JSON has."""
    if isinstance(kind, StructType):
        for field in kind:
            if not field.nullable:
                _refuse_not_null(f"{path}.{field.name}")
            check_type(field.dataType, f"{path}.{field.name}")
        if len(set(kind.names)) != len(kind.names) or not kind.names:
            raise ConfigError(f"{path} has two fields of one name, or none", fix="name each once")
    elif isinstance(kind, ArrayType):
        if not kind.containsNull:
            _refuse_not_null(f"an element of {path}")
        check_type(kind.elementType, f"{path}[]")
    elif isinstance(kind, MapType):
        if not kind.valueContainsNull:
            _refuse_not_null(f"a value of {path}")
        if kind.keyType != StringType():
            raise ConfigError(f"the keys of {path} are not STRING", fix="write MAP<STRING, ...>")
        check_type(kind.valueType, f"{path}[]")
    elif type(kind) not in _VALUES or (isinstance(kind, StringType) and kind != StringType()):
        raise ConfigError(
            f"{path} is {name_of(kind)}, which no value of JSON is",
            fix="use BOOLEAN, a number type, STRING, DATE, TIMESTAMP, ARRAY, MAP or STRUCT",
        )


def _refuse_not_null(path: str) -> NoReturn:
    raise ConfigError(f"{path} is NOT NULL", fix="leave NOT NULL out: a record may lack any value")


def name_of(kind: DataType) -> str:
    """As SQL writes it."""
    return kind.simpleString().upper()


def leaves(kind: DataType) -> Iterator[DataType]:
    """The types in it that have no types in them; a MAP counts as one."""
    if isinstance(kind, StructType):
        for field in kind:
            yield from leaves(field.dataType)
    elif isinstance(kind, ArrayType):
        yield from leaves(kind.elementType)
    else:
        yield kind


def holds_map(kind: DataType) -> bool:
    """Whether there is a MAP in it."""
    return any(isinstance(leaf, MapType) for leaf in leaves(kind))


def scale_of(kind: DataType) -> int:
    """The largest scale of a DECIMAL in it; -1 when there is none."""
    scales = [leaf.scale for leaf in leaves(kind) if isinstance(leaf, DecimalType)]
    return max(scales, default=-1)


def as_read(kind: DataType) -> DataType:
    """The type as which values are read before `finish` makes them what they should be."""
    if isinstance(kind, StructType):
        return StructType([StructField(f.name, as_read(f.dataType)) for f in kind])
    if isinstance(kind, ArrayType):
        return ArrayType(as_read(kind.elementType))
    if isinstance(kind, MapType):
        return MapType(StringType(), as_read(kind.valueType))
    if isinstance(kind, DateType | TimestampType | TimestampNTZType):
        return StringType()
    # The nearest FLOAT of the nearest DOUBLE, so that there is one way to round.
    return DoubleType() if isinstance(kind, FloatType) else kind


def finish(column: Column, kind: DataType) -> Column:
    """A column of `as_read(kind)` as one of `kind`; `pa.ArrowInvalid` where a value is not one."""
    if isinstance(kind, StructType):
        # `flatten` also makes the fields of a null struct null, where there would be empty texts.
        inner = [
            finish(part, field.dataType) for part, field in zip(column.flatten(), kind, strict=True)
        ]
        mask = column.is_null() if column.null_count else None
        return pa.StructArray.from_arrays(inner, fields=list(_final(kind)), mask=mask)
    if isinstance(kind, ArrayType):
        return _rebuilt(column, kind, finish(column.values, kind.elementType))
    if isinstance(kind, MapType):
        final = _final(kind)
        values = finish(column.items, kind.valueType)
        fields = [final.key_field, final.item_field]
        entries = pa.StructArray.from_arrays([column.keys, values], fields=fields)
        return _rebuilt(column, kind, entries)
    if isinstance(kind, TimestampType):
        return _timestamps(column)
    if isinstance(kind, TimestampNTZType):
        return _cut(column, _NTZ)
    if isinstance(kind, DateType):
        return column.cast(pa.date32())
    if isinstance(kind, FloatType):
        found = column.cast(pa.float32())
        if pc.any(pc.is_inf(found)).as_py():
            raise pa.ArrowInvalid("a number is too large for a FLOAT")
        return found
    if isinstance(kind, DecimalType):
        column.validate(full=True)  # the reader of columns does not look at the precision
    return column


def _final(kind: DataType) -> Any:
    return to_arrow_type(kind, timezone="UTC")


def _rebuilt(column: Column, kind: DataType, inner: Column) -> Column:
    """The same nulls and lengths around other values."""
    return pa.Array.from_buffers(
        _final(kind),
        len(column),
        column.buffers()[:2],
        column.null_count,
        column.offset,
        [inner],
    )


def _cut(texts: Column, kind: Any) -> Column:
    try:
        return texts.cast(kind)
    except pa.ArrowInvalid:
        return pc.replace_substring_regex(texts, _TOO_FINE, r"\1").cast(kind)


def _timestamps(texts: Column) -> Column:
    """Times with an offset, and those without, which are UTC."""
    try:
        return texts.cast(_UTC)
    except pa.ArrowInvalid:
        nothing = pa.scalar(None, pa.utf8())
        has_offset = pc.match_substring_regex(texts, _WITH_OFFSET)
        plain = _cut(pc.if_else(has_offset, nothing, texts), _NTZ)
        return pc.coalesce(
            _cut(pc.if_else(has_offset, texts, nothing), _UTC), pc.assume_timezone(plain, "UTC")
        )


class _Number(str):
    """A number as it was spelt."""


def parse(text: str | bytes) -> object:
    """A document of JSON; numbers stay as they were spelt.  `ValueError` where it is none."""
    try:
        return json.loads(
            text, parse_int=_Number, parse_float=_Number, parse_constant=_refuse_constant
        )
    except RecursionError:
        raise ValueError("it is nested too deeply") from None


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"JSON has no {name}")


def value_of(value: object, kind: DataType, path: str) -> Any:
    """A parsed value as Arrow takes it for `as_read(kind)`; `Unfit` where it is not one."""
    return None if value is None else _VALUES[type(kind)](value, kind, path)


def _unfit(value: object, kind: DataType, path: str) -> Unfit:
    what = _WORDS.get(type(value), "a value")
    return Unfit(f"{path} is {what} that does not fit {name_of(kind)}")


_WORDS: Final[dict[type, str]] = {
    str: "a text",
    _Number: "a number",
    bool: "a boolean",
    list: "an array",
    dict: "an object",
}


def _boolean(value: object, kind: DataType, path: str) -> bool:
    if isinstance(value, bool):
        return value
    raise _unfit(value, kind, path)


def _integer(value: object, kind: DataType, path: str) -> int:
    half = 1 << (_BITS[type(kind)] - 1)
    if type(value) is not _Number or not _INTEGER.fullmatch(value):
        raise _unfit(value, kind, path)
    if not -half <= int(value) < half:
        raise _unfit(value, kind, path)
    return int(value)


def _float(value: object, kind: DataType, path: str) -> float:
    if type(value) is not _Number:
        raise _unfit(value, kind, path)
    found = float(value)
    try:
        if isinstance(kind, FloatType):
            struct.pack("<f", found)
    except OverflowError:
        found = math.inf
    if math.isinf(found):
        raise _unfit(value, kind, path)
    return found


def _decimal(value: object, kind: DataType, path: str) -> Decimal:
    assert isinstance(kind, DecimalType)
    if not isinstance(value, str) or not _DECIMAL.fullmatch(value):
        raise _unfit(value, kind, path)
    try:
        found = Decimal(value)
        exact = found.quantize(Decimal(1).scaleb(-kind.scale), context=_EXACT)
    except InvalidOperation:  # an exponent or a number that is too large
        raise _unfit(value, kind, path) from None
    if exact != found or (found and found.adjusted() >= kind.precision - kind.scale):
        raise _unfit(value, kind, path)
    return exact


def _text(value: object, kind: DataType, path: str) -> str:
    if type(value) is not str:
        raise _unfit(value, kind, path)
    try:
        value.encode()
    except UnicodeEncodeError:
        raise Unfit(f"{path} is a text with half a surrogate pair") from None
    return value


def _time(value: object, kind: DataType, path: str) -> str:
    text = _text(value, kind, path)
    try:
        finish(pa.array([text], pa.utf8()), kind)
    except pa.ArrowInvalid:
        raise _unfit(value, kind, path) from None
    return text


def _array(value: object, kind: DataType, path: str) -> list[Any]:
    assert isinstance(kind, ArrayType)
    if not isinstance(value, list):
        raise _unfit(value, kind, path)
    inner = kind.elementType
    return [value_of(element, inner, f"{path}[{at}]") for at, element in enumerate(value)]


def _map(value: object, kind: DataType, path: str) -> list[tuple[str, Any]]:
    assert isinstance(kind, MapType)
    if not isinstance(value, dict):
        raise _unfit(value, kind, path)
    inner = kind.valueType
    return [
        (_text(key, kind.keyType, f"a key of {path}"), value_of(item, inner, f"{path}.{key}"))
        for key, item in value.items()
    ]


def _struct(value: object, kind: DataType, path: str) -> dict[str, Any]:
    assert isinstance(kind, StructType)
    if not isinstance(value, dict):
        raise _unfit(value, kind, path)
    return {
        field.name: value_of(value.get(field.name), field.dataType, f"{path}.{field.name}")
        for field in kind
    }


_VALUES: Final[dict[type[DataType], Callable[[object, DataType, str], Any]]] = {
    BooleanType: _boolean,
    ByteType: _integer,
    ShortType: _integer,
    IntegerType: _integer,
    LongType: _integer,
    FloatType: _float,
    DoubleType: _float,
    DecimalType: _decimal,
    StringType: _text,
    DateType: _time,
    TimestampType: _time,
    TimestampNTZType: _time,
    ArrayType: _array,
    MapType: _map,
    StructType: _struct,
}
