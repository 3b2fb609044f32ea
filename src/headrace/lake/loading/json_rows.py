"""Rows of columns as objects of JSON: text made by Arrow, column by column.

No row is looked at in Python, unless a column holds what Arrow cannot spell: lists, structs, bytes
and rare control characters.  What each type becomes is in docs/operate/lake.md.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from headrace.core.errors import InvalidRequest
from headrace.lake.loading.producers import is_text

_NULL: Final = "null"
# What has to be escaped, and what of it has a short form: the backslash comes first.
_SPECIAL: Final = r'["\\\x00-\x1f]'
_ESCAPES: Final = (("\\", "\\\\"), ('"', '\\"'), ("\n", "\\n"), ("\r", "\\r"), ("\t", "\\t"))
_CONTROL: Final = r"[\x00-\x1f]"


def json_objects(rows: pa.RecordBatch) -> Any:
    """An object for each row, as a column of text.

    >>> json_objects(pa.record_batch({"id": [1, 2], "name": ['a"b', None]})).to_pylist()
    ['{"id":1,"name":"a\\\\"b"}', '{"id":2,"name":null}']
    """
    check_names(rows.schema.names)
    if not rows.num_columns:
        return pa.repeat("{}", rows.num_rows)
    parts: list[Any] = []
    for number, name in enumerate(rows.schema.names):
        key = msgspec.json.encode(name).decode()
        parts += [pa.scalar(f"{',' if number else '{'}{key}:"), _texts(name, rows.column(number))]
    return pc.binary_join_element_wise(*parts, pa.scalar("}"), pa.scalar(""))


def check_names(names: Sequence[str]) -> None:
    """An object has each name once."""
    twice = next((name for at, name in enumerate(names) if name in names[:at]), None)
    if twice is not None:
        raise InvalidRequest(
            f"two columns are called {twice!r}", fix="give each column a name of its own"
        )


def _texts(name: str, column: Any) -> Any:
    """The JSON of each value of a column."""
    kind = column.type
    if pa.types.is_dictionary(kind):
        column = column.dictionary_decode()
        kind = column.type
    if pa.types.is_null(kind):
        return pa.repeat(_NULL, len(column))
    if pa.types.is_boolean(kind) or pa.types.is_integer(kind):
        found = column.cast(pa.utf8())
    elif pa.types.is_floating(kind):
        wide = column.cast(pa.float32()) if pa.types.is_float16(kind) else column
        found = pc.if_else(pc.is_finite(wide), wide.cast(pa.utf8()), pa.scalar(_NULL))
    elif is_text(kind):
        found = _quoted_texts(column.cast(pa.utf8()))
    elif pa.types.is_timestamp(kind):
        found = _quoted(pc.replace_substring(column.cast(pa.utf8()), " ", "T", max_replacements=1))
    elif pa.types.is_date(kind) or pa.types.is_time(kind) or pa.types.is_decimal(kind):
        found = _quoted(column.cast(pa.utf8()))
    else:
        found = _one_by_one(name, column)
    return pc.fill_null(found, pa.scalar(_NULL))


def _quoted(texts: Any) -> Any:
    mark: Any = pa.scalar('"')
    return pc.binary_join_element_wise(mark, texts, mark, pa.scalar(""))


def _quoted_texts(texts: Any) -> Any:
    if not pc.any(pc.match_substring_regex(texts, _SPECIAL)).as_py():
        return _quoted(texts)
    escaped = texts
    for plain, short in _ESCAPES:
        escaped = pc.replace_substring(escaped, plain, short)
    if pc.any(pc.match_substring_regex(escaped, _CONTROL)).as_py():
        return _one_by_one("", texts)
    return _quoted(escaped)


def _one_by_one(name: str, column: Any) -> Any:
    try:
        return pa.array(
            [msgspec.json.encode(value, enc_hook=_spelt).decode() for value in column.to_pylist()],
            pa.utf8(),
        )
    except (TypeError, ValueError, msgspec.MsgspecError) as error:
        raise InvalidRequest(
            f"column {name!r} of type {column.type} cannot be written as JSON: {error}",
            fix="leave it out, or make it another type",
        ) from None


def _spelt(value: Any) -> str:
    """What the encoder does not know, such as times with nanoseconds."""
    spell = getattr(value, "isoformat", None)
    if spell is None:
        raise TypeError(f"{type(value).__name__} is not known")
    return str(spell())
