"""The rows of one topic in a sealed segment: found by seq, time or tag, sized, and read as columns.

Columns are cut out of verified bytes with `struct`.  Which rows are alive is not known here: the
caller applies deletes and floors.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Sequence

from headrace.storage.block import Rows
from headrace.storage.segment.columns import (
    fixed_bytes,
    headers,
    joined,
    null_rows,
    numbers,
    texts,
    value_ends,
    values,
    with_nulls,
)
from headrace.storage.segment.format import FLAG_DENSE, FLAG_TAGS
from headrace.storage.segment.reader import Segment

# `fit` looks at the offsets of this many rows at a time.
FIT_ROWS = 4096


def run_of(segment: Segment, topic_id: int, wait: bool = True) -> Run | None:
    """Return the rows of one topic in this file, None when it has none."""
    topic_ids = segment.index(wait).directory.topic_ids
    position = bisect_left(topic_ids, topic_id)
    if position == len(topic_ids) or topic_ids[position] != topic_id:
        return None
    return Run(segment, position)


_TagKey = tuple[bool, bytes]  # whether it has no tag: those are sorted last


class Run:
    """One topic's rows in one file, numbered from 0 to `count` - 1."""

    __slots__ = (
        "bytes",
        "count",
        "dense",
        "first_row",
        "first_seq",
        "has_tags",
        "last_seq",
        "max_ts",
        "min_ts",
        "segment",
        "topic_id",
    )

    def __init__(self, segment: Segment, position: int) -> None:
        directory = segment.directory()
        self.segment = segment
        self.topic_id = directory.topic_ids[position]
        self.first_seq = directory.first_seqs[position]
        self.last_seq = directory.last_seqs[position]
        self.bytes = directory.payload_bytes[position]
        self.min_ts = directory.min_ts[position]
        self.max_ts = directory.max_ts[position]
        self.dense = bool(directory.flags[position] & FLAG_DENSE)
        self.has_tags = bool(directory.flags[position] & FLAG_TAGS)
        self.first_row = directory.first_rows[position]
        self.count = directory.first_rows[position + 1] - self.first_row
        assert self.count > 0 and self.first_seq <= self.last_seq, self.topic_id

    def pieces(self, start: int, stop: int) -> list[tuple[int, int, int]]:
        """(row group, first row in it, stop row in it) of the run's rows start..stop."""
        assert 0 <= start <= stop <= self.count, (start, stop, self.count)
        firsts = self.segment.index().group_first_rows
        at, end = self.first_row + start, self.first_row + stop
        group = bisect_right(firsts, at) - 1
        pieces = []
        while at < end:
            until = min(end, firsts[group + 1])
            pieces.append((group, at - firsts[group], until - firsts[group]))
            at = until
            group += 1
        return pieces

    def _number(self, column: str, row: int, wait: bool) -> int:
        ((group, at, _),) = self.pieces(row, row + 1)
        offset, _ = self.segment.buffer(group, column, 1)
        value = self.segment.read(offset + 8 * at, 8, wait)
        return int.from_bytes(value, "little", signed=column in ("ts", "arrived_ms"))

    # Places

    def row_of(self, seq: int, wait: bool = True) -> int:
        """The first row with this seq or a higher one; `count` if there is none."""
        if seq <= self.first_seq:
            return 0
        if seq > self.last_seq:
            return self.count
        if self.dense:
            return seq - self.first_seq
        rows = range(self.count)
        return bisect_left(rows, seq, key=lambda row: self._number("seq", row, wait))

    def row_at_ts(self, ts: int, wait: bool = True) -> int:
        """The first row with this ts or a later one; `count` if there is none."""
        if ts <= self.min_ts:
            return 0
        if ts > self.max_ts:
            return self.count
        return bisect_left(range(self.count), ts, key=lambda row: self.ts_at(row, wait))

    def ts_at(self, row: int, wait: bool = True) -> int:
        return self._number("ts", row, wait)

    def row_at_arrival(self, ms: int, wait: bool = True) -> int:
        """The first row that arrived at this time or later; `count` if there is none."""
        if self.arrived_at(0, wait) >= ms:
            return 0
        if self.arrived_at(self.count - 1, wait) < ms:
            return self.count
        return bisect_left(range(self.count), ms, key=lambda row: self.arrived_at(row, wait))

    def arrived_at(self, row: int, wait: bool = True) -> int:
        return self._number("arrived_ms", row, wait)

    # Sizes

    def size_of(self, start: int, stop: int, wait: bool = True) -> int:
        """Data and meta bytes of rows `start` to `stop` (exclusive), from offsets only."""
        if stop - start == self.count:
            return self.bytes
        total = 0
        for group, a, b in self.pieces(start, stop):
            for name, width in self._sized():
                offset, _ = self.segment.buffer(group, name, 1)
                low = self.segment.read(offset + width * a, width, wait)
                high = self.segment.read(offset + width * b, width, wait)
                total += int.from_bytes(high, "little") - int.from_bytes(low, "little")
        return total

    def fit(self, start: int, stop: int, bytes_max: int, wait: bool = True) -> int:
        """The largest stop whose rows from `start` have at most `bytes_max`; at least one row."""
        assert start < stop <= self.count, (start, stop, self.count)
        if start == 0 and stop == self.count and self.bytes <= bytes_max:
            return stop
        room = bytes_max
        for first in range(start, stop, FIT_ROWS):
            for group, a, b in self.pieces(first, min(first + FIT_ROWS, stop)):
                columns = [
                    value_ends(self.segment, group, name, a, b, wait) for name, _ in self._sized()
                ]
                sums = (
                    columns[0] if len(columns) == 1 else list(map(sum, zip(*columns, strict=True)))
                )
                fitting = bisect_right(sums, sums[0] + room) - 1 if room >= 0 else 0
                if fitting < b - a:
                    index = self.segment.index()
                    row = index.group_first_rows[group] + a + fitting - self.first_row
                    return max(row, start + 1)
                room -= sums[-1] - sums[0]
        return stop

    def _sized(self) -> list[tuple[str, int]]:
        """The columns that count as bytes of a record, and the width of their offsets."""
        has_meta = "meta" in self.segment.columns()
        return [("data", 8), ("meta", 4)] if has_meta else [("data", 8)]

    def payload_ranges(
        self, start: int, stop: int, bytes_max: int, wait: bool = True
    ) -> tuple[int, list[tuple[int, int]]]:
        """Where in the file the payloads of rows lie: (offset, length) of each stretch.

        As many rows from `start` on as have at most `bytes_max`, but one at least; returned with
        the row behind them.  The rows of a row group are one stretch, however they were appended.
        """
        segment, end = self.segment, start
        ranges: list[tuple[int, int]] = []
        for group, a, b in self.pieces(start, stop):
            offsets_at, _ = segment.buffer(group, "data", 1)

            def value_end(row: int, at: int = offsets_at) -> int:
                return int.from_bytes(segment.read(at + 8 * row, 8, wait), "little")

            low = value_end(a)
            fits = bisect_right(range(a, b + 1), low + bytes_max, key=value_end) - 1
            if not fits and end == start:
                fits = 1
            if not fits:
                break
            length = value_end(a + fits) - low
            if length:
                ranges.append((segment.buffer(group, "data", 2)[0] + low, length))
            end += fits
            bytes_max -= length
            if fits < b - a:
                break
        return end, ranges

    # Rows

    def rows(self, start: int, stop: int, wait: bool = True) -> Rows:
        """Rows `start` to `stop` (exclusive) as columns."""
        parts: list[Rows] = []
        for group, a, b in self.pieces(start, stop):
            parts.append(self._rows_of(group, a, b, start, wait))
            start += b - a
        if len(parts) == 1:
            return parts[0]
        return joined(parts) if parts else Rows([], [], [])

    def _rows_of(self, group: int, a: int, b: int, start: int, wait: bool) -> Rows:
        """Rows of one row group; `start` is the run's number of its row `a`."""
        segment, count = self.segment, b - a
        seqs: Sequence[int]
        if self.dense:
            seqs = range(self.first_seq + start, self.first_seq + start + count)
        else:
            seqs = array("Q", fixed_bytes(segment, group, "seq", a, b, wait))
        rows = Rows(
            seqs,
            numbers("q", fixed_bytes(segment, group, "ts", a, b, wait)),
            values(segment, group, "data", a, b, wait),
            numbers("B", fixed_bytes(segment, group, "kind", a, b, wait)),
            append_firsts=numbers("Q", fixed_bytes(segment, group, "append_first_seq", a, b, wait)),
        )
        columns = segment.columns()
        if "tag" in columns and self.has_tags:
            rows.tags = texts(segment, group, "tag", a, b, wait)
        if "node" in columns:
            rows.nodes = texts(segment, group, "node", a, b, wait)
        if "meta" in columns:
            rows.metas = with_nulls(
                values(segment, group, "meta", a, b, wait),
                null_rows(segment, group, "meta", a, b, wait),
            )
        if "headers" in columns:
            rows.headers = headers(segment, group, a, b, wait)
        return rows

    # Tags

    def find_tag(self, tag: str, prefix: bool, wait: bool = True) -> list[int]:
        """The seqs of rows with this tag, or with a tag that starts with it, ascending."""
        if not self.has_tags:
            return []
        segment, wanted = self.segment, tag.encode()
        length = len(wanted) if prefix else None
        found: list[int] = []
        for group, a, b in self.pieces(0, self.count):
            order_at, _ = segment.buffer(group, "tag_order", 1)

            def key(position: int, group: int = group, order_at: int = order_at) -> _TagKey:
                row = int.from_bytes(segment.read(order_at + 4 * position, 4, wait), "little")
                if null_rows(segment, group, "tag", row, row + 1, wait):
                    return (True, b"")
                return (False, values(segment, group, "tag", row, row + 1, wait)[0][:length])

            low = bisect_left(range(b), (False, wanted), lo=a, key=key)
            high = bisect_right(range(b), (False, wanted), lo=low, key=key)
            order = array("I", segment.read(order_at + 4 * low, 4 * (high - low), wait))
            base = segment.index().group_first_rows[group] - self.first_row
            found += sorted(base + row for row in order)
        if self.dense:
            return [self.first_seq + row for row in found]
        return [self._number("seq", row, wait) for row in found]
