"""Arrow IPC streams from clients: read so that no byte of one can do harm.

Only this file hands a client's bytes to Arrow.  Arrow itself checks the frame of each message; what
it would believe is checked here before anything follows an offset: the columns are of types that
were asked for, the rows are few enough, nothing has to be decompressed (a few bytes could ask for
gigabytes: a whole body may be compressed, by `Content-Encoding`), the stream came to its end, and
every array is validated with its contents.  Whatever is wrong is the client's to hear, by name.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping, Sequence

import pyarrow as pa

from headrace.core.errors import BatchTooLarge, InvalidRequest
from headrace.storage.segment.format import Column

# What many small record batches would cost is time on the loop thread.
RECORD_BATCHES_MAX = 1_024
END_OF_STREAM = b"\xff\xff\xff\xff\0\0\0\0"

# Fields of the flatbuffer tables of an Arrow message, by number.
_MESSAGE_HEADER = 2
_DICTIONARY_DATA = 1
_BATCH_COMPRESSION = 3

_DAMAGE = (
    pa.ArrowException,
    OSError,
    ValueError,
    LookupError,
    MemoryError,
    StopIteration,
    struct.error,
)


def read_columns(
    body: bytes, check: Callable[[Mapping[str, pa.DataType]], None], rows_max: int
) -> dict[str, Column]:
    """The columns of a stream, its record batches put together; `check` sees their types first.

    >>> sink = pa.BufferOutputStream()
    >>> with pa.ipc.new_stream(sink, pa.schema([("data", pa.binary())])) as writer:
    ...     writer.write_batch(pa.record_batch({"data": [b"a", b"b"]}))
    >>> read_columns(sink.getvalue().to_pybytes(), lambda types: None, 10)["data"].to_pylist()
    [b'a', b'b']
    """
    try:
        batches = _record_batches(body)
        with pa.ipc.open_stream(pa.py_buffer(body)) as stream:
            schema = stream.schema
            names = _names(schema)
            check(dict(zip(names, schema.types, strict=True)))
            read = _read(stream, batches, rows_max)
            return {name: _joined(read, i, schema) for i, name in enumerate(names)}
    except _DAMAGE as error:
        what = str(error).split("\n")[0][:200] or type(error).__name__
        raise InvalidRequest(
            f"the body is not an Arrow IPC stream: {what}",
            fix="write it with an Arrow library, as a stream, not as a file",
        ) from None


def _read(
    stream: pa.RecordBatchStreamReader, batches: int, rows_max: int
) -> Sequence[pa.RecordBatch]:
    """Read every record batch and validate it."""
    read = []
    rows = 0
    for _ in range(batches):
        batch = stream.read_next_batch()
        # Before anything looks at the rows: this number is the client's as well.
        rows += batch.num_rows
        if rows > rows_max:
            raise BatchTooLarge(
                f"{rows} records in one append",
                fix=f"send at most {rows_max} at a time",
                detail={"records": rows, "max": rows_max},
            )
        batch.validate(full=True)
        read.append(batch)
    return read


def _joined(batches: Sequence[pa.RecordBatch], column: int, schema: pa.Schema) -> Column:
    arrays: list[Column] = [batch.column(column) for batch in batches if batch.num_rows]
    if not arrays:
        return pa.array([], schema.types[column])
    return arrays[0] if len(arrays) == 1 else pa.concat_arrays(arrays)


def _names(schema: pa.Schema) -> list[str]:
    names = list(schema.names)
    if len(set(names)) < len(names):
        raise InvalidRequest("two columns have the same name", fix="send each column once")
    return names


# Messages


def _record_batches(body: bytes) -> int:
    """How many record batches there are; refuses what must not be read at all."""
    source = pa.BufferReader(body)
    count = 0
    for message in pa.ipc.MessageReader.open_stream(source):
        if message.type not in ("record batch", "dictionary"):
            continue
        if _is_compressed(memoryview(message.metadata), message.type == "dictionary"):
            raise InvalidRequest(
                "the buffers of the Arrow stream are compressed",
                fix="write it without compression, and compress the body: Content-Encoding: zstd",
            )
        count += message.type == "record batch"
        if count > RECORD_BATCHES_MAX:
            raise InvalidRequest(
                f"more than {RECORD_BATCHES_MAX} record batches",
                fix="put more rows into each of them",
            )
    if not body.endswith(END_OF_STREAM) or source.tell() != len(body):
        raise InvalidRequest(
            "the Arrow stream has no end, or more after it",
            fix="close the writer before sending what it wrote",
        )
    return count


def _is_compressed(metadata: memoryview, dictionary: bool) -> bool:
    """Whether a message says that its buffers are compressed; Arrow has verified its tables."""
    (root,) = struct.unpack_from("<I", metadata, 0)
    batch = _table(metadata, root, _MESSAGE_HEADER)
    if batch and dictionary:
        batch = _table(metadata, batch, _DICTIONARY_DATA)
    return bool(batch) and bool(_field(metadata, batch, _BATCH_COMPRESSION))


def _field(metadata: memoryview, table: int, number: int) -> int:
    """Where a field of a flatbuffer table is; 0 when it is absent."""
    (back,) = struct.unpack_from("<i", metadata, table)
    vtable = table - back
    (size,) = struct.unpack_from("<H", metadata, vtable)
    at = 4 + 2 * number
    if at >= size:
        return 0
    (field,) = struct.unpack_from("<H", metadata, vtable + at)
    return table + int(field) if field else 0


def _table(metadata: memoryview, table: int, number: int) -> int:
    """Where the table that a field refers to is; 0 when it is absent."""
    at = _field(metadata, table, number)
    if not at:
        return 0
    (offset,) = struct.unpack_from("<I", metadata, at)
    return at + int(offset)
