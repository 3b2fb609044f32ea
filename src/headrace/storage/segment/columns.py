"""Cutting the columns of a row group out of verified bytes, without Arrow.

Each function takes rows `a` to `b` (exclusive) of one row group and reads only the bytes those
rows need.  The places of buffers follow Arrow's layout: validity bits, offsets, values.  Arrow
objects would cost about a microsecond a value; slices of bytes cost a tenth of that.

Nothing here verifies or caches: `Source.read` has done both.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from itertools import pairwise
from typing import Protocol

from headrace.storage.block import Rows
from headrace.storage.record_headers import Header

FIXED_WIDTHS = {
    "topic_id": 8,
    "seq": 8,
    "ts": 8,
    "arrived_ms": 8,
    "append_first_seq": 8,
    "kind": 1,
    "tag_order": 4,
}


class Source(Protocol):
    """Where verified bytes come from: a `Segment`."""

    def read(self, offset: int, length: int, wait: bool = True) -> bytes: ...
    def buffer(self, group: int, column: str, number: int) -> tuple[int, int]: ...


def fixed_bytes(source: Source, group: int, column: str, a: int, b: int, wait: bool) -> bytes:
    offset, _ = source.buffer(group, column, 1)
    width = FIXED_WIDTHS[column]
    return source.read(offset + width * a, width * (b - a), wait)


def numbers(code: str, raw: bytes) -> int | Sequence[int]:
    """One number where all are the same, else all of them."""
    values = array(code, raw)
    width = values.itemsize
    return values[0] if raw == raw[:width] * len(values) else values


def value_ends(
    source: Source, group: int, column: str, a: int, b: int, wait: bool, number: int = 1
) -> array[int]:
    """The value offsets of rows a to b, b included."""
    code, width = ("q", 8) if column == "data" else ("i", 4)
    offset, _ = source.buffer(group, column, number)
    return array(code, source.read(offset + width * a, width * (b - a + 1), wait))


def values(
    source: Source, group: int, column: str, a: int, b: int, wait: bool, number: int = 1
) -> list[bytes]:
    """The values of rows a to b (exclusive), empty where null."""
    ends = value_ends(source, group, column, a, b, wait, number).tolist()
    base = ends[0]
    offset, _ = source.buffer(group, column, number + 1)
    joint = source.read(offset + base, ends[-1] - base, wait)
    if base:
        ends = [end - base for end in ends]
    return [joint[x:y] for x, y in pairwise(ends)]


def null_rows(source: Source, group: int, column: str, a: int, b: int, wait: bool) -> list[int]:
    """The rows from a to b (exclusive) that are null, counted from a."""
    offset, length = source.buffer(group, column, 0)
    if not length:
        return []
    bits = source.read(offset + a // 8, (b + 7) // 8 - a // 8, wait)
    shift = a % 8
    return [i - shift for i in range(shift, shift + b - a) if not bits[i >> 3] >> (i & 7) & 1]


def with_nulls(values: list[bytes], absent: list[int]) -> list[bytes | None]:
    column: list[bytes | None] = list(values)
    for row in absent:
        column[row] = None
    return column


def texts(source: Source, group: int, column: str, a: int, b: int, wait: bool) -> list[str | None]:
    texts: list[str | None] = [v.decode() for v in values(source, group, column, a, b, wait)]
    for row in null_rows(source, group, column, a, b, wait):
        texts[row] = None
    return texts


def headers(
    source: Source, group: int, a: int, b: int, wait: bool
) -> list[Sequence[Header] | None]:
    """Buffers: list validity and offsets, struct validity, then three of name, three of value."""
    ends = value_ends(source, group, "headers", a, b, wait)
    base, stop = ends[0], ends[-1]
    pairs: list[Header] = []
    if stop > base:
        names = values(source, group, "headers", base, stop, wait, 4)
        pairs = list(zip(names, values(source, group, "headers", base, stop, wait, 7), strict=True))
    column: list[Sequence[Header] | None] = [pairs[x - base : y - base] for x, y in pairwise(ends)]
    for row in null_rows(source, group, "headers", a, b, wait):
        column[row] = None
    return column


def joined(parts: list[Rows]) -> Rows:
    """Rows of several row groups as one."""

    def numbers(columns: list[tuple[int | Sequence[int], int]]) -> list[int]:
        return [
            value
            for column, count in columns
            for value in ([column] * count if isinstance(column, int) else column)
        ]

    def joined(columns: list[list | None]) -> list | None:  # type: ignore[type-arg]
        if columns[0] is None:
            return None
        return [value for column in columns if column is not None for value in column]

    return Rows(
        [seq for part in parts for seq in part.seqs],
        numbers([(part.ts, len(part)) for part in parts]),
        [value for part in parts for value in part.data],
        numbers([(part.kinds, len(part)) for part in parts]),
        joined([part.tags for part in parts]),
        joined([part.nodes for part in parts]),
        joined([part.metas for part in parts]),
        joined([part.headers for part in parts]),
        numbers([(part.append_firsts, len(part)) for part in parts]),
    )
