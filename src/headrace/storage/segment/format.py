"""The format of a sealed segment: its columns, its index, and what a snapshot records of it.

Only this file knows the layout of the index (docs/formats/segment.md).  A segment is one Arrow IPC
file; between the end of its Arrow stream and its Arrow footer lies the index: a hash of each
64 KiB block before it, where every buffer of every row group lies, and the directory of topics.
`SegmentMeta.footer_hash` covers the index and the Arrow footer, the index's hashes cover all that
is before them, so that no byte of a file has to be trusted.

Nothing here touches a file: `writer.py` writes them and `reader.py` reads them.
"""

from __future__ import annotations

import struct
import sys
from array import array
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec
import pyarrow as pa
from xxhash import xxh3_64_intdigest

from headrace.core.errors import SegmentCorrupt, UnsupportedFormat

if TYPE_CHECKING:
    Column = pa.Array[Any]  # generic for the type checker only
else:
    Column = pa.Array

assert sys.byteorder == "little", "the index is read by copying little-endian arrays"

# On-disk values: never change one.
FORMAT_VERSION = 1
BLOCK_BYTES = 64 * 1024
INDEX_MAGIC = b"HEADRIDX"
ARROW_MAGIC = b"ARROW1"
FORMAT_KEY = b"headrace.format"  # in the schema's metadata: the format version in decimal
INDEX_KEY = b"headrace.index"  # in the Arrow footer's metadata: "<offset> <length>" in decimal
FLAG_DENSE = 1  # no seq is missing between the first and the last
FLAG_TAGS = 2  # at least one row has a tag

# Rows are counted in 32 bits inside a file.
ROWS_MAX = (1 << 32) - 1

HEADER_TYPE = pa.list_(
    pa.field(
        "item",
        pa.struct(
            [
                pa.field("name", pa.binary(), nullable=False),
                pa.field("value", pa.binary(), nullable=False),
            ]
        ),
        nullable=False,
    )
)
REQUIRED_TYPES: dict[str, pa.DataType] = {
    "topic_id": pa.uint64(),
    "seq": pa.uint64(),
    "ts": pa.int64(),
    "arrived_ms": pa.int64(),
    "append_first_seq": pa.uint64(),
    "kind": pa.uint8(),
    "data": pa.large_binary(),
}
OPTIONAL_TYPES: dict[str, pa.DataType] = {
    "node": pa.utf8(),
    "tag": pa.utf8(),
    "meta": pa.binary(),
    "headers": HEADER_TYPE,
}
OPTIONAL_COLUMNS = frozenset(OPTIONAL_TYPES)
TAG_ORDER = "tag_order"

# Which optional columns a file has, one bit each.  On-disk values: never change one.
_COLUMN_BITS = {"node": 1, "tag": 2, "meta": 4, "headers": 8}
# How many Arrow buffers a column has, in the order Arrow writes them.
_BUFFERS = {"data": 3, "node": 3, "tag": 3, "meta": 3, "headers": 9}


class SegmentMeta(msgspec.Struct, frozen=True):
    """What a snapshot records of one sealed file.

    >>> SegmentMeta(7, 0, 0, 1, 1, 900, 400, 5, 10, 1, 1, 1).path
    'segments/seg-0000000000000007.arrow'
    """

    file_id: int
    owner: int  # 0: shared by topics, else the one topic_id
    level: int
    rows: int
    topics: int
    size: int
    footer_offset: int  # where the index starts; the Arrow footer follows it
    footer_hash: int  # XXH3-64 of everything from footer_offset
    payload_bytes: int  # data + meta bytes of all rows
    min_ts: int
    max_ts: int
    created_ms: int
    tier: int = 0  # 0 hot, 1 cold
    # Place among the files it is merged with; 0: its file_id (see `storage/files/merge_policy.py`).
    order: int = 0

    @property
    def path(self) -> str:
        return segment_path(self.file_id)


def segment_path(file_id: int) -> str:
    """The name of a sealed file, in either tier."""
    return f"segments/seg-{file_id:016d}.arrow"


def columns_of_file(optional: Iterable[str]) -> list[str]:
    """All columns of a file that has these optional ones, in order."""
    names = [*REQUIRED_TYPES, *(name for name in OPTIONAL_TYPES if name in set(optional))]
    return [*names, TAG_ORDER] if "tag" in names else names


def schema_of(optional: Iterable[str], tag_order: bool = True) -> pa.Schema:
    """The Arrow schema of a file that has these optional columns.

    >>> schema_of({"tag"}).names[-2:]
    ['tag', 'tag_order']
    """
    return _schema(frozenset(optional), tag_order)


@cache
def _schema(optional: frozenset[str], tag_order: bool) -> pa.Schema:
    # To make one takes as long as to write a hundred rows.
    fields = []
    for name in columns_of_file(optional):
        if name in REQUIRED_TYPES:
            fields.append(pa.field(name, REQUIRED_TYPES[name], nullable=False))
        elif name in OPTIONAL_TYPES:
            fields.append(pa.field(name, OPTIONAL_TYPES[name]))
        elif tag_order:
            fields.append(pa.field(name, pa.uint32(), nullable=False))
    return pa.schema(fields, metadata={FORMAT_KEY: b"%d" % FORMAT_VERSION})


def buffer_slots(optional: Iterable[str]) -> tuple[dict[str, int], int]:
    """The number of each column's first buffer in a row group, and the count of all buffers."""
    slots = {}
    count = 0
    for name in columns_of_file(optional):
        slots[name] = count
        count += _BUFFERS.get(name, 2)
    return slots, count


@dataclass(frozen=True, slots=True)
class Directory:
    """The topics of a file, as parallel columns sorted by topic id.

    The rows of topic i are `first_rows[i]` to `first_rows[i + 1]` (exclusive).
    """

    topic_ids: array[int]
    first_seqs: array[int]
    last_seqs: array[int]
    payload_bytes: array[int]
    min_ts: array[int]
    max_ts: array[int]
    first_rows: array[int]
    flags: bytearray

    @classmethod
    def empty(cls) -> Directory:
        return cls(
            topic_ids=array("Q"), first_seqs=array("Q"), last_seqs=array("Q"),
            payload_bytes=array("Q"), min_ts=array("q"), max_ts=array("q"),
            first_rows=array("I", [0]), flags=bytearray(),
        )  # fmt: skip

    def __len__(self) -> int:
        return len(self.topic_ids)


class Index(NamedTuple):
    """All a reader needs to find and verify any value of a file.

    `spans` has, for each row group, the file offset and length of its Arrow message, then the
    offset and length of each of its buffers in Arrow's order; an absent buffer is (0, 0).
    """

    file_id: int
    owner: int
    level: int
    payload_bytes: int
    footer_offset: int
    min_ts: int
    max_ts: int
    created_ms: int
    columns: frozenset[str]
    hashes: array[int]
    spans: array[int]
    group_first_rows: array[int]
    directory: Directory

    @property
    def rows(self) -> int:
        return self.group_first_rows[-1]

    @property
    def groups(self) -> int:
        return len(self.group_first_rows) - 1

    @property
    def file_columns(self) -> list[str]:
        """All columns of the file, in order; `columns` are the optional ones among them."""
        return columns_of_file(self.columns)


#  magic version columns level | file_id owner | groups topics blocks block_bytes |
#  rows payload_bytes footer_offset | min_ts max_ts created_ms
_INDEX_HEADER = struct.Struct("<8sHHIQQIIIIQQQqqq")
INDEX_HEADER_BYTES = 96
INDEX_TRAILER_BYTES = 16  # the index's own length, then its hash
assert _INDEX_HEADER.size == INDEX_HEADER_BYTES
_INDEX_VERSION = struct.Struct("<8sH")
_U64 = struct.Struct("<Q")


def encode_index(index: Index) -> bytes:
    """The index as it lies in the file; its length is a multiple of 8."""
    directory = index.directory
    topics, groups = len(directory), index.groups
    bits = sum(_COLUMN_BITS[name] for name in index.columns)
    assert index.rows == directory.first_rows[-1], (index.rows, directory.first_rows[-1])
    assert len(index.spans) == groups * (2 + 2 * buffer_slots(index.columns)[1])
    assert len(index.hashes) == -(-index.footer_offset // BLOCK_BYTES)
    header = _INDEX_HEADER.pack(
        INDEX_MAGIC, FORMAT_VERSION, bits, index.level, index.file_id, index.owner,
        groups, topics, len(index.hashes), BLOCK_BYTES,
        index.rows, index.payload_bytes, index.footer_offset,
        index.min_ts, index.max_ts, index.created_ms,
    )  # fmt: skip
    parts = [header, index.hashes.tobytes(), index.spans.tobytes()]
    parts += [
        directory.topic_ids.tobytes(), directory.first_seqs.tobytes(),
        directory.last_seqs.tobytes(), directory.payload_bytes.tobytes(),
        directory.min_ts.tobytes(), directory.max_ts.tobytes(),
    ]  # fmt: skip
    parts += [index.group_first_rows.tobytes(), directory.first_rows.tobytes()]
    parts.append(bytes(directory.flags))
    body = b"".join(parts)
    body += b"\0" * (-len(body) % 8)
    body += _U64.pack(len(body) + INDEX_TRAILER_BYTES)
    return body + _U64.pack(xxh3_64_intdigest(body))


def decode_index(raw: bytes, name: str) -> Index:
    """The index at the start of `raw`; `name` is the file's name for messages.

    The index verifies itself, so that a file can be read without a snapshot; a caller that has
    a snapshot has already verified `raw` as a whole.
    """
    if len(raw) < INDEX_HEADER_BYTES or raw[:8] != INDEX_MAGIC:
        raise _bad_index(name, "has no index where one should start")
    version = _INDEX_VERSION.unpack_from(raw)[1]
    if version != FORMAT_VERSION:
        raise UnsupportedFormat(
            f"{name} has segment format {version}, this version reads {FORMAT_VERSION}",
            fix="open the data directory with the newer Headrace that wrote the file",
            detail={"file": name, "format": version, "supported": FORMAT_VERSION},
        )
    fields = _INDEX_HEADER.unpack_from(raw)
    bits, groups, topics, blocks, block_bytes = fields[2], *fields[6:10]
    columns = frozenset(column for column, bit in _COLUMN_BITS.items() if bits & bit)
    stride = 2 + 2 * buffer_slots(columns)[1]
    items = [("Q", blocks), ("Q", groups * stride)]
    items += [("Q", topics)] * 4 + [("q", topics)] * 2
    items += [("I", groups + 1), ("I", topics + 1)]
    length = INDEX_HEADER_BYTES + topics
    length += sum(count * (4 if code == "I" else 8) for code, count in items)
    length += -length % 8 + 8
    if len(raw) < length + 8 or _U64.unpack_from(raw, length)[0] != xxh3_64_intdigest(raw[:length]):
        raise _bad_index(name, "has a damaged index")
    assert block_bytes == BLOCK_BYTES, block_bytes
    arrays = []
    at = INDEX_HEADER_BYTES
    for code, count in items:
        column = array(code)
        end = at + count * column.itemsize
        column.frombytes(raw[at:end])
        arrays.append(column)
        at = end
    index = Index(
        file_id=fields[4], owner=fields[5], level=fields[3],
        payload_bytes=fields[11], footer_offset=fields[12],
        min_ts=fields[13], max_ts=fields[14], created_ms=fields[15],
        columns=columns, hashes=arrays[0], spans=arrays[1], group_first_rows=arrays[8],
        directory=Directory(
            topic_ids=arrays[2], first_seqs=arrays[3], last_seqs=arrays[4],
            payload_bytes=arrays[5], min_ts=arrays[6], max_ts=arrays[7],
            first_rows=arrays[9], flags=bytearray(raw[at : at + topics]),
        ),
    )  # fmt: skip
    assert index.rows == fields[10] == index.directory.first_rows[-1], (index.rows, fields[10])
    return index


def meta_of(index: Index, footer: bytes) -> SegmentMeta:
    """What a snapshot records of a file with this index; `footer` is all from `footer_offset`."""
    return SegmentMeta(
        file_id=index.file_id, owner=index.owner, level=index.level,
        rows=index.rows, topics=len(index.directory),
        size=index.footer_offset + len(footer), footer_offset=index.footer_offset,
        footer_hash=xxh3_64_intdigest(footer), payload_bytes=index.payload_bytes,
        min_ts=index.min_ts, max_ts=index.max_ts, created_ms=index.created_ms,
    )  # fmt: skip


def _bad_index(name: str, what: str) -> SegmentCorrupt:
    return SegmentCorrupt(
        f"{name} {what}",
        fix="run `headrace check`, then restore the file from a backup or the cold tier",
        detail={"file": name},
    )
