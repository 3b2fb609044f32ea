"""Lines as `kcat -J` writes them: the value becomes the data, the key the tag, the rest a meta.

Blocks whose values are all text that is JSON, which is what most topics hold, are taken apart by
Arrow; in all others each line is looked at.  Both ways give the same rows.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator
from typing import Any, Final

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.json

from headrace.lake.loading.json_rows import json_objects

_BLANKS: Final = b" \t\r"
_NUMBERS: Final = ("partition", "offset", "ts")
_FIELDS: Final[list[Any]] = [
    *(pa.field(name, pa.utf8()) for name in ("payload", "key", "topic")),
    *(pa.field(name, pa.int64()) for name in _NUMBERS),
]
_SCHEMA: Final = pa.schema(_FIELDS)
# What only the other way knows how to read, as a name in a line that is not within a text.
_RARE: Final = (b'"value"', b'"headers"')


class KafkaRecord(msgspec.Struct):
    """A line of `kcat -J`, or of another tool that names things the same way."""

    payload: msgspec.Raw = msgspec.Raw(b"null")
    value: msgspec.Raw = msgspec.Raw(b"")  # what some tools call it
    topic: str | None = None
    partition: int | None = None
    offset: int | None = None
    ts: int | None = None
    key: str | None = None
    headers: msgspec.Raw = msgspec.Raw(b"null")


def kafka_rows(blocks: Iterator[bytes]) -> Iterator[pa.RecordBatch]:
    """Rows of `data`, `tag` and `meta` of blocks of lines; no data: it is no record of Kafka."""
    for block in blocks:
        rows = quick_rows(block)
        if rows is None:
            rows = each_row(block)
        if rows.num_rows:
            yield rows


def quick_rows(block: bytes) -> pa.RecordBatch | None:
    """The rows of a block that holds nothing unusual; None: each line has to be looked at."""
    if any(name in block for name in _RARE):
        return None
    source: Any = pa.BufferReader(block)
    try:
        table = pyarrow.json.read_json(
            source,
            read_options=pyarrow.json.ReadOptions(use_threads=False, block_size=len(block) + 1),
            parse_options=pyarrow.json.ParseOptions(
                explicit_schema=_SCHEMA, unexpected_field_behavior="ignore"
            ),
        )
        (batch,) = table.combine_chunks().to_batches()
        batch.validate(full=True)
    except (pa.ArrowException, ValueError):
        return None
    lines = block.count(b"\n") + (not block.endswith(b"\n"))
    payload: Any = batch.column("payload")
    if batch.num_rows != lines or payload.null_count or not are_json(payload):
        return None
    rest = [name for name in ("topic", *_NUMBERS) if batch.column(name).null_count < lines]
    if any(batch.column(name).null_count for name in rest):
        return None
    kafka: Any = json_objects(batch.select(rest))
    around: list[Any] = [pa.scalar('{"kafka":'), kafka, pa.scalar("}"), pa.scalar("")]
    metas = pc.binary_join_element_wise(*around) if rest else pa.nulls(lines, pa.utf8())
    return _batch(payload, batch.column("key"), metas)


def are_json(texts: Any) -> bool:
    """Whether each text is JSON without blanks around it: joined they are a list of just these."""
    ends = pa.py_buffer(array("i", (0, len(texts))))
    whole: Any = pa.Array.from_buffers(pa.int32(), 2, [None, ends])
    joined: Any = pc.binary_join(pa.ListArray.from_arrays(whole, texts), ",")
    try:
        items = _LIST.decode(b"".join((b"[", memoryview(joined[0].as_buffer()), b"]")))
    except (msgspec.MsgspecError, RecursionError):
        return False
    found = array("i", map(len, items))
    lengths: Any = pa.Array.from_buffers(pa.int32(), len(found), [None, pa.py_buffer(found)])
    return bool(lengths.equals(pc.binary_length(texts)))


_LIST: Final = msgspec.json.Decoder(list[msgspec.Raw])


def each_row(block: bytes) -> pa.RecordBatch:
    """The same for any block."""
    decoder = msgspec.json.Decoder(KafkaRecord)
    rows = [_row(decoder, line) for line in block.split(b"\n") if line.strip(_BLANKS)]
    columns = [[row[at] for row in rows] for at in range(3)]
    return _batch(*(pa.array(column, pa.utf8()) for column in columns))


def _batch(*arrays: Any) -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays(list(arrays), names=["data", "tag", "meta"])


def _row(
    decoder: msgspec.json.Decoder[KafkaRecord], line: bytes
) -> tuple[str | None, str | None, str | None]:
    try:
        record = decoder.decode(line)
        return _data(record), record.key, _meta(record)
    except (msgspec.MsgspecError, UnicodeError, RecursionError):
        return None, None, None


def _data(record: KafkaRecord) -> str:
    """The value; a text that is JSON itself is that JSON, as `kcat` wraps every value."""
    raw = bytes(record.value) or bytes(record.payload)
    if raw[:1] == b'"':
        text: str = msgspec.json.decode(raw)
        try:
            msgspec.json.decode(text, type=msgspec.Raw)
            return text
        except (msgspec.MsgspecError, UnicodeEncodeError, RecursionError):
            pass
    return raw.decode()


def _meta(record: KafkaRecord) -> str | None:
    known: dict[str, Any] = {
        "topic": record.topic,
        "partition": record.partition,
        "offset": record.offset,
        "ts": record.ts,
        "headers": record.headers if bytes(record.headers) != b"null" else None,
    }
    kafka = {name: value for name, value in known.items() if value is not None}
    return msgspec.json.encode({"kafka": kafka}).decode() if kafka else None
