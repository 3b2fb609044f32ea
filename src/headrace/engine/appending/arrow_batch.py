"""Arrow columns as records to append: which columns there may be, and what may be in them.

Only this file says no to an Arrow batch for what it holds; the limits are those of any other append
(`admission.py`).  `data` decides the kind: binary is stored as bytes, unchecked, text is JSON and
has to be.  Every check is a few calls of Arrow or of the JSON decoder for a whole column: no record
is looked at on its own unless something is wrong with one.

How the columns got here is not known here: they must have been validated, with their contents.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from headrace.core.errors import BatchTooLarge, InvalidRequest, PayloadTooLarge, RecordTooLarge
from headrace.core.limits import MIB
from headrace.core.settings import Settings
from headrace.storage.block import ColumnBatch
from headrace.storage.column_batch import column_batch, dense
from headrace.storage.fs import Buffer
from headrace.storage.rows import KIND_BYTES, KIND_JSON
from headrace.storage.segment.format import Column

COLUMNS = ("data", "tag", "node", "meta")
# So much JSON is checked in one call: the interpreter is not let go of during one.
JSON_CHUNK_BYTES = MIB
# The shortest member of a JSON object, with the comma before the next: `"":0,`.
JSON_MEMBER_BYTES_MIN = 5

_BINARY = frozenset({pa.binary(), pa.large_binary(), pa.binary_view()})
_TEXT = frozenset({pa.utf8(), pa.large_utf8(), pa.string_view()})
_VIEWS = {pa.binary_view(): pa.binary(), pa.string_view(): pa.utf8()}
_JSON_LIST = msgspec.json.Decoder(list[msgspec.Raw])
_NOT_UTF8 = b"\xff"
_JSON = msgspec.json.Decoder(msgspec.Raw)
_OBJECT = msgspec.json.Decoder(dict[str, msgspec.Raw])


def check_columns(types: Mapping[str, pa.DataType]) -> None:
    """Refuse columns that no append has, or that are of a type it cannot take."""
    unknown = [name for name in types if name not in COLUMNS]
    if unknown:
        raise InvalidRequest(
            f"unknown columns: {', '.join(map(repr, unknown))}",
            fix=f"send {', '.join(COLUMNS)}, of which only data is required",
            detail={"columns": unknown},
        )
    if "data" not in types:
        raise InvalidRequest("there is no column data", fix="send the payloads in a column data")
    for name, kind in types.items():
        plain = kind.value_type if isinstance(kind, pa.DictionaryType) else kind
        short = name in ("tag", "node")
        if plain not in (_TEXT if short else _TEXT | _BINARY) or (plain is not kind and not short):
            wanted = "utf8, plain or in a dictionary" if short else "utf8 or binary"
            raise InvalidRequest(
                f"the column {name} is of type {kind}",
                fix=f"send it as {wanted}",
                detail={"column": name, "type": str(kind)},
            )


def batch_of_columns(settings: Settings, columns: Mapping[str, Column]) -> ColumnBatch:
    """The records of these columns, or why they cannot be appended.

    >>> batch = batch_of_columns(Settings(), {"data": pa.array(['{"id":1}', "2"])})
    >>> batch.rows, batch.bytes
    (2, 9)
    """
    check_columns({name: column.type for name, column in columns.items()})
    data = columns["data"]
    if not len(data):
        raise InvalidRequest("an append without records", fix="send at least one record")
    if len(data) > settings.arrow_rows_max:
        raise BatchTooLarge(
            f"{len(data)} records in one append",
            fix=f"send at most {settings.arrow_rows_max} at a time",
            detail={"records": len(data), "max": settings.arrow_rows_max},
        )
    if data.null_count:
        raise InvalidRequest(
            f"{data.null_count} rows have no data",
            fix="leave such rows out, or send the JSON text null",
            detail={"rows": data.null_count},
        )
    bytes_max = settings.body_bytes_max
    data = _plain(data, bytes_max)
    tags = _texts("tag", columns, settings.tag_bytes_max, bytes_max)
    nodes = _texts("node", columns, settings.node_bytes_max, bytes_max)
    metas = None
    if "meta" in columns:
        metas = _without_json_nulls(_plain(columns["meta"], bytes_max))
        _check_lengths("meta", metas, settings.meta_bytes_max)
    _check_records(data, metas, settings.record_bytes_max)
    kind = KIND_BYTES if data.type in _BINARY else KIND_JSON
    if kind == KIND_JSON:
        _check_json("data", data)
    if metas is not None:
        _check_metas(metas, settings.meta_keys_max)
    return column_batch(data, kind, tags, nodes, metas)


def _texts(
    name: str, columns: Mapping[str, Column], bytes_max: int, total_max: int
) -> Column | None:
    """A column of short texts, written out where it came as a dictionary."""
    column = columns.get(name)
    if column is None:
        return None
    if isinstance(column, pa.DictionaryArray):
        # First, because one long value of a dictionary may be that of every row.
        _check_lengths(name, _plain(column.dictionary, total_max), bytes_max)
        return _plain(column.dictionary_decode(), total_max)
    column = _plain(column, total_max)
    _check_lengths(name, column, bytes_max)
    return column


def _plain(column: Column, bytes_max: int) -> Column:
    """Written out, if the values are views, many of which may show the same bytes."""
    if column.type not in _VIEWS:
        return column
    count, buffers = len(column), column.buffers()
    views: Any = pa.Array.from_buffers(pa.binary(16), count, buffers[:2], offset=column.offset)
    if column.null_count:
        # The view of a null is not validated, and Arrow believes its length when it casts.
        views = pc.fill_null(views, bytes(16))
        bits = column.is_valid().buffers()[1]
        column = pa.Array.from_buffers(column.type, count, [bits, views.buffers()[1], *buffers[2:]])
    words = pa.Array.from_buffers(
        pa.int32(), 4 * count, [None, views.buffers()[1]], offset=4 * views.offset
    )
    # The first of the four words of a view is its length.
    size = pc.sum(words.take(pa.arange(0, 4 * count, 4))).as_py() or 0  # type: ignore[attr-defined]
    if size > bytes_max:
        raise PayloadTooLarge(
            f"the views of a column show {size} bytes", fix=f"send at most {bytes_max}"
        )
    return column.cast(_VIEWS[column.type])


def _without_json_nulls(metas: Column) -> Column:
    """A meta that says null is none, as in any other append."""
    nothing = pa.scalar(b"null" if metas.type in _BINARY else "null", metas.type)
    given: Column = pc.if_else(pc.equal(metas, nothing), pa.scalar(None, metas.type), metas)
    return given


def _lengths(column: Any) -> Column:
    lengths: Column = pc.binary_length(column).cast(pa.int64())
    return lengths


def _check_lengths(name: str, column: Column, bytes_max: int) -> None:
    longest = pc.max(_lengths(column)).as_py() or 0
    if longest > bytes_max:
        raise InvalidRequest(f"{name} has {longest} bytes", fix=f"use 0 to {bytes_max}")


def _check_records(data: Column, metas: Column | None, bytes_max: int) -> None:
    sizes = _lengths(data)
    if metas is not None:
        no_meta: Any = pa.scalar(0, pa.int64())
        sizes = pc.add(sizes, pc.fill_null(_lengths(metas), no_meta))
    largest = pc.max(sizes).as_py()
    if largest > bytes_max:
        raise RecordTooLarge(
            f"a record of {largest} bytes",
            fix=f"use at most {bytes_max} bytes of data and meta",
            detail={"bytes": largest, "max": bytes_max},
        )


def _check_metas(metas: Column, keys_max: int) -> None:
    """Raise unless every meta is JSON, and no object has more than `keys_max` keys."""
    metas = metas.drop_null()
    if metas.type in _BINARY:
        try:
            metas = metas.cast(pa.large_utf8())
        except pa.ArrowInvalid:
            raise InvalidRequest("a meta is not UTF-8", fix="send JSON text") from None
    _check_json("meta", metas)
    long = pc.greater(_lengths(metas), pa.scalar(keys_max * JSON_MEMBER_BYTES_MIN, pa.int64()))
    for text in metas.filter(long).unique().to_pylist():
        assert isinstance(text, str)
        try:
            keys = len(_OBJECT.decode(text))
        except msgspec.MsgspecError:
            continue  # not an object, and that is fine
        if keys > keys_max:
            raise InvalidRequest(f"meta has {keys} keys", fix=f"use at most {keys_max}")


# JSON


def _check_json(name: str, column: Column) -> None:
    """Each value is one JSON value; the first that is not is named."""
    row = 0
    for chunk in _chunks(column):
        if not _is_json(chunk):
            # White space around a value is fine, and it is what the quick check cannot tell.
            _refuse_not_json(name, chunk, row)
        row += len(chunk)


def _chunks(column: Column) -> Iterator[Column]:
    """The column in slices of not much more than `JSON_CHUNK_BYTES` each."""
    size = len(dense(column)[3])
    rows = max(1, len(column) * JSON_CHUNK_BYTES // max(1, size))
    for start in range(0, len(column), rows):
        yield column[start : start + rows]


def _is_json(column: Column) -> bool:
    """Whether each value is one JSON value, with no white space around it."""
    _, offsets, _, values = dense(column)
    starts: Column = pa.Array.from_buffers(pa.int32(), len(column), [None, pa.py_buffer(offsets)])
    # As they lie first, one value right after the other: nothing is copied.
    if _are_values(_read(_JSON.decode_lines, values), starts, len(values)):
        return True
    # So numbers would run together; in a list they cannot.
    one: Any = pa.ListArray.from_arrays(pa.array([0, len(column)], pa.int32()), column)
    text: Any = pc.binary_join(one, pa.scalar(",", column.type))
    listed = b"".join((b"[", memoryview(text[0].as_buffer()), b"]"))
    return _are_values(_read(_JSON_LIST.decode, listed), starts, len(values))


def _read(decode: Callable[[Buffer], list[msgspec.Raw]], text: Buffer) -> list[msgspec.Raw]:
    """The JSON values of a text; none of what is not JSON."""
    try:
        return decode(text)
    except (msgspec.MsgspecError, RecursionError):
        return []


def _are_values(found: list[msgspec.Raw], starts: Column, size: int) -> bool:
    """Whether what was read is as long, value by value, as what starts here and has `size` bytes.

    What was read is put together with a byte between each two that is in no UTF-8 text.  If the
    length is right and that byte is before each start, then it is nowhere else, and each value is
    as long as it should be.

    So they are the same values: as long as all of the text, they have nothing between them, and in
    a list they have no more than the commas, of which there is one between each two.
    """
    count = len(starts)
    if len(found) != count:
        return False
    marked = pa.py_buffer(_NOT_UTF8.join(found))
    if marked.size != size + count - 1:
        return False
    octets: Any = pa.Array.from_buffers(pa.uint8(), marked.size, [None, marked])
    before = pa.arange(0, count - 1).cast(pa.int32())  # type: ignore[attr-defined]
    lowest = pc.min(octets.take(pc.add(starts[1:], before))).as_py()
    return lowest is None or lowest == _NOT_UTF8[0]  # None: there is one value


def _refuse_not_json(name: str, column: Column, first_row: int) -> None:
    for row, value in enumerate(column.to_pylist(), first_row):
        assert isinstance(value, str)
        try:
            _JSON.decode(value)
        except (msgspec.MsgspecError, RecursionError) as error:
            raise InvalidRequest(
                f"{name} of row {row} is not JSON: {error}",
                fix="send JSON text, or bytes as a binary column",
                detail={"column": name, "row": row},
            ) from None
