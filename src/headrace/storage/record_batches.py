"""Records on their way into a block: as lists, as buffers, or as nothing but payloads.

`Batch` is what a caller hands in as lists, `ColumnBatch` the same as the buffers that a block
stores, and `JsonPayloads` what most appends of many records are.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from itertools import accumulate
from typing import NamedTuple

from headrace.storage.fs import Buffer
from headrace.storage.record_headers import Header
from headrace.storage.rows import KIND_JSON

# Column modes.  On-disk values: never change one.
ABSENT, UNIFORM, DENSE, NULLABLE = 0, 1, 2, 3

Blob = bytes  # for classes with a field named `bytes`, which hides the type inside of them

# mode, u32 offsets, a presence byte a row, values: the buffers of a column as they are stored.
EncodedColumn = tuple[int, Buffer, Buffer, Buffer]
NO_COLUMN: EncodedColumn = (ABSENT, b"", b"", b"")


class Batch(NamedTuple):
    """Records to append, as columns; every present column has one item a record.

    >>> Batch([b'{"id":1}', b'{"id":2}'], tags=["a", None]).rows
    2
    """

    data: Sequence[bytes]
    kind: int = KIND_JSON
    tags: Sequence[str | None] | None = None
    nodes: Sequence[str | None] | str | None = None  # one string: the node of every record
    metas: Sequence[bytes | None] | None = None
    headers: Sequence[Sequence[Header] | None] | None = None
    kinds: bytes | None = None  # only with kind == KIND_MIXED
    timestamps: Sequence[int] | None = None  # client timestamps, already non-decreasing

    @property
    def rows(self) -> int:
        return len(self.data)


class ColumnBatch(NamedTuple):
    """Records to append, as the buffers a block stores: see `column_batch.py`, which makes them.

    Its maker has validated it: nothing looks at its records again.
    """

    rows: int
    kind: int
    bytes: int  # data + meta bytes
    data: EncodedColumn
    tags: EncodedColumn = NO_COLUMN
    nodes: EncodedColumn = NO_COLUMN
    metas: EncodedColumn = NO_COLUMN


class JsonPayloads(NamedTuple):
    """JSON records to append that have nothing but data; `json_payloads` makes it.

    What is known of it once is not asked again: its items are bytes, and end at these offsets.
    """

    data: Sequence[Blob]
    ends: array[int]

    @property
    def rows(self) -> int:
        return len(self.data)

    @property
    def bytes(self) -> int:
        return self.ends[-1]


def json_payloads(data: Sequence[bytes]) -> JsonPayloads:
    """Take payloads of which their decoder says that each is bytes, and JSON.

    >>> json_payloads([b"12", b"null"]).ends.tolist()
    [0, 2, 6]
    """
    return JsonPayloads(data, ends_of(data))


def ends_of(data: Sequence[bytes]) -> array[int]:
    """The offsets of a column as it is stored: zero, and where each value ends."""
    return array("I", accumulate(map(len, data), initial=0))


AnyBatch = Batch | ColumnBatch | JsonPayloads
