"""Answers to Arrow diffs: a table of records, with the rest of the page in its schema metadata.

pyarrow is imported when the first such answer is read.
"""

from __future__ import annotations

from typing import Any, Final, NamedTuple

import msgspec

from headrace.api.records import Tombstone
from headrace.core.errors import Unreachable

# What every name of the schema metadata of an Arrow answer begins with.
ARROW_METADATA: Final = "headrace."


class ArrowPage(NamedTuple):
    """A page of records as columns: `table` is a `pyarrow.Table`, the rest is as in `Page`."""

    table: Any
    next_from_seq: int
    head_seq: int
    earliest_seq: int
    caught_up: bool
    lag: int
    tombstone: Tombstone | None
    epoch: int | None
    content_type: str | None = None  # of a stream


def arrow_page(body: bytes) -> ArrowPage:
    """Return the answer to an Arrow diff."""
    import pyarrow as pa

    try:
        with pa.ipc.open_stream(pa.py_buffer(body)) as reader:
            table = reader.read_all()
    except pa.ArrowInvalid as error:
        raise Unreachable(
            f"the answer is not an Arrow stream: {error}",
            fix="check that the address is of a Headrace server",
            detail={"outcome": "unknown"},
        ) from None
    metadata = table.schema.metadata or {}
    said = {
        name: msgspec.json.decode(metadata[key])
        for name in ArrowPage._fields
        if name != "content_type" and (key := f"{ARROW_METADATA}{name}".encode()) in metadata
    }
    gap = said.get("tombstone")
    content_type = metadata.get(f"{ARROW_METADATA}content_type".encode())
    return ArrowPage(
        table=table.replace_schema_metadata(None),
        next_from_seq=said["next_from_seq"],
        head_seq=said["head_seq"],
        earliest_seq=said["earliest_seq"],
        caught_up=said["caught_up"],
        lag=said["lag"],
        tombstone=None if gap is None else msgspec.convert(gap, Tombstone),
        epoch=said.get("epoch"),
        content_type=None if content_type is None else content_type.decode(),
    )
