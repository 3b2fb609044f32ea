"""Fields as SQL writes them, `id BIGINT, items ARRAY<STRING>`, read without a Spark session.

The processes in which a source plans and reads have no session, and PySpark parses such text only
through one.  Only types that a value of JSON can have are known here.
"""

from __future__ import annotations

import difflib
import re
from typing import Final

from pyspark.sql import types

from headrace.core.errors import ConfigError

DEPTH_MAX: Final = 64

SIMPLE: Final[dict[str, type[types.DataType]]] = {
    "BOOLEAN": types.BooleanType,
    "TINYINT": types.ByteType,
    "BYTE": types.ByteType,
    "SMALLINT": types.ShortType,
    "SHORT": types.ShortType,
    "INT": types.IntegerType,
    "INTEGER": types.IntegerType,
    "BIGINT": types.LongType,
    "LONG": types.LongType,
    "FLOAT": types.FloatType,
    "REAL": types.FloatType,
    "DOUBLE": types.DoubleType,
    "STRING": types.StringType,
    "DATE": types.DateType,
    "TIMESTAMP": types.TimestampType,
    "TIMESTAMP_LTZ": types.TimestampType,
    "TIMESTAMP_NTZ": types.TimestampNTZType,
}
_DECIMALS: Final = ("DECIMAL", "DEC", "NUMERIC")
NAMES: Final = (*SIMPLE, "DECIMAL", "ARRAY", "MAP", "STRUCT")

_TOKEN: Final = re.compile(r"\s*(?:`((?:[^`]|``)+)`|(\w+)|([<>(),:]))")


def fields_of(text: str) -> types.StructType:
    """The fields; `ConfigError` says where the text is not what it should be.

    >>> fields_of("id BIGINT, `the price` DECIMAL(10, 2), items ARRAY<STRUCT<n: INT>>").names
    ['id', 'the price', 'items']
    """
    parser = _Parser(text)
    fields = parser.fields(end="", depth=0)
    return types.StructType(fields)


class _Parser:
    """Reads from left to right, one token ahead."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._at = 0  # where the next token begins
        self._start = 0  # where the current one did
        self.token = ""  # the current one; "" at the end
        self.quoted = False
        self._next()

    def _next(self) -> None:
        self._start = self._at
        if not self._text[self._at :].strip():
            self.token, self.quoted = "", False
            return
        match = _TOKEN.match(self._text, self._at)
        if match is None:
            raise self._wrong("a character that does not belong there")
        self._at = match.end()
        self.quoted = match[1] is not None
        self.token = match[1].replace("``", "`") if self.quoted else match[2] or match[3]

    def _wrong(self, why: str, fix: str = "") -> ConfigError:
        rest = self._text[self._start :].strip()[:40]
        return ConfigError(
            f"schema: {why} at {rest!r}" if rest else f"schema: {why} at its end",
            fix=fix or "write fields such as id BIGINT, items ARRAY<STRING>",
        )

    def _is(self, token: str) -> bool:
        return not self.quoted and self.token.upper() == token

    def _take(self, token: str) -> None:
        if not self._is(token):
            raise self._wrong(f"{token!r} is missing")
        self._next()

    def fields(self, end: str, depth: int) -> list[types.StructField]:
        found: list[types.StructField] = []
        while True:
            found.append(self._field(depth))
            if any(other.name == found[-1].name for other in found[:-1]):
                raise self._wrong(f"a second field {found[-1].name!r}", "name each field once")
            if self._is(end) and (end or not self.token):
                return found
            self._take(",")

    def _field(self, depth: int) -> types.StructField:
        if not self.token or (not self.quoted and not self.token[0].isidentifier()):
            raise self._wrong("the name of a field is missing")
        name = self.token
        self._next()
        if self._is(":"):
            self._next()
        kind = self._type(depth)
        if self._is("NOT"):
            raise self._wrong(
                f"{name} is NOT NULL", "leave NOT NULL out: a record may lack any field"
            )
        return types.StructField(name, kind)

    def _type(self, depth: int) -> types.DataType:
        if depth > DEPTH_MAX:
            raise self._wrong(f"types within more than {DEPTH_MAX} types")
        name = "" if self.quoted else self.token.upper()
        if name in SIMPLE:
            self._next()
            return SIMPLE[name]()
        if name in _DECIMALS:
            return self._decimal()
        if name not in ("ARRAY", "MAP", "STRUCT"):
            near = difflib.get_close_matches(name, NAMES, n=1)
            if name == "BINARY":
                raise self._wrong("JSON has no BINARY", "use STRING, and unbase64(...) on it")
            raise self._wrong(
                f"{self.token!r} is no type that a field of JSON can have",
                f"did you mean {near[0]}?" if near else f"use one of {', '.join(NAMES)}",
            )
        self._next()
        self._take("<")
        found = self._nested(name, depth + 1)
        self._take(">")
        return found

    def _nested(self, name: str, depth: int) -> types.DataType:
        if name == "ARRAY":
            return types.ArrayType(self._type(depth))
        if name == "STRUCT":
            return types.StructType(self.fields(">", depth))
        if not self._is("STRING"):
            raise self._wrong("the keys of a MAP are not STRING", "write MAP<STRING, ...>")
        self._next()
        self._take(",")
        return types.MapType(types.StringType(), self._type(depth))

    def _decimal(self) -> types.DecimalType:
        self._next()
        if not self._is("("):
            return types.DecimalType(10, 0)
        self._next()
        precision, scale = self._number(38), 0
        if self._is(","):
            self._next()
            scale = self._number(precision)
        self._take(")")
        return types.DecimalType(precision, scale)

    def _number(self, most: int) -> int:
        if not re.fullmatch("[0-9]{1,2}", self.token) or int(self.token) > most:
            raise self._wrong(f"no number of at most {most}", "write DECIMAL(precision, scale)")
        found = int(self.token)
        self._next()
        return found
