"""Arrow bodies of the native API: an append's records in, a page out, as columns.

Only this file knows how they look on the wire (docs/reference/arrow.md).  Into an append go the
columns `data`, and if wanted `tag`, `node` and `meta`; out of a diff come those of
`storage/segment/page_columns.py`, with all that is not a record in the metadata of the schema.  No
row is touched in Python either way.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, TypeVar, cast

import msgspec

from headrace.core.errors import OutOfResources
from headrace.core.runtime import Runtime
from headrace.core.settings import Settings
from headrace.engine.appending.arrow_batch import batch_of_columns, check_columns
from headrace.engine.reading.page import Page, Tombstone
from headrace.storage.block import ColumnBatch
from headrace.storage.segment.page_columns import HEADERS, PAGE_SCHEMA
from headrace.wire.arrow_stream import END_OF_STREAM, read_columns
from headrace.wire.exchange import Exchange

T = TypeVar("T")

# Larger bodies are encoded and decoded in a thread, so that the loop does not wait.
OFF_LOOP_BYTES_MIN: Final = 8 << 20
LANE: Final = "read"

_encode = msgspec.json.Encoder().encode


def when_done(
    runtime: Runtime,
    exchange: Exchange,
    size: int,
    work: Callable[[], T],
    then: Callable[[T], None],
) -> None:
    """Do `work` on `size` bytes and call `then` with its result; much of it in a thread.

    An error of either fails the exchange.
    """
    if size < OFF_LOOP_BYTES_MIN:
        then(work())
        return

    def done(value: object, error: BaseException | None) -> None:
        if exchange.answered:
            return
        if error is not None:
            short = isinstance(error, MemoryError)  # before anything has changed
            exchange.fail(OutOfResources.told("nothing") if short else error)
            return
        try:
            then(cast(T, value))
        except Exception as failure:  # noqa: BLE001 - whatever it is, the client hears of it
            exchange.fail(failure)

    runtime.submit(LANE, work, done)


def decode_append(body: bytes, settings: Settings) -> ColumnBatch:
    """The records of an append.

    >>> import pyarrow as pa
    >>> sink = pa.BufferOutputStream()
    >>> with pa.ipc.new_stream(sink, pa.schema([("data", pa.utf8())])) as writer:
    ...     writer.write_batch(pa.record_batch({"data": ['{"id":1}', '{"id":2}']}))
    >>> decode_append(sink.getvalue().to_pybytes(), Settings()).rows
    2
    """
    columns = read_columns(body, check_columns, settings.arrow_rows_max)
    return batch_of_columns(settings, columns)


def encode_page(
    page: Page,
    *,
    tags: bool = True,
    metas: bool = True,
    headers: bool = False,
    content_type: str | None = None,
) -> bytes:
    """A page that was read with `columns`, as an Arrow IPC stream; `content_type` of a stream."""
    wanted = {"tag": tags, "meta": metas, HEADERS: headers}
    left_out = [name for name, is_wanted in wanted.items() if not is_wanted]
    batches = page.batches
    schema = PAGE_SCHEMA
    for name in left_out:
        schema = schema.remove(schema.get_field_index(name))
    if left_out:
        batches = [batch.select(schema.names) for batch in batches]
    said = _metadata(page)
    if content_type is not None:
        said["headrace.content_type"] = content_type
    parts = [memoryview(schema.with_metadata(said).serialize())]
    parts += [memoryview(batch.serialize()) for batch in batches]
    return b"".join((*parts, END_OF_STREAM))


def size_of(page: Page) -> int:
    """About how many bytes a page will have."""
    return sum(batch.nbytes for batch in page.batches)


def _metadata(page: Page) -> dict[str | bytes, str | bytes]:
    """What a page says beside its records, in the words of its JSON form."""
    said: dict[str | bytes, str | bytes] = {
        "headrace.topic": page.topic,
        "headrace.epoch": str(page.epoch),
        "headrace.next_from_seq": str(page.next_from_seq),
        "headrace.head_seq": str(page.head_seq),
        "headrace.earliest_seq": str(page.earliest_seq),
        "headrace.caught_up": "true" if page.caught_up else "false",
        "headrace.lag": str(page.lag),
        "headrace.records_scanned": str(page.scanned),
    }
    if page.lake:
        said["headrace.lake_records_read"] = str(page.lake)
    if page.tombstone is not None:
        said["headrace.tombstone"] = _tombstone(page.tombstone)
    return said


def _tombstone(lost: Tombstone) -> bytes:
    return _encode({**lost._asdict(), "missed_estimate": lost.missed_estimate})
