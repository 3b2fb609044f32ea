"""Which records a damaged block of a segment holds, so that an error can name them.

The answer may name too many records, never too few: where the bytes that would tell are damaged
too, or a column is not worth the trouble, the whole row group counts.  Nothing is repaired here.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Callable

from headrace.storage.segment.columns import FIXED_WIDTHS, Source
from headrace.storage.segment.format import BLOCK_BYTES, FLAG_DENSE, Directory, Index

SeqRange = tuple[int, int, int]  # topic_id, first seq, last seq
# The data offsets of a row group, None when they cannot be trusted.
DataEnds = Callable[[int], "array[int] | None"]


def affected_seqs(index: Index, source: Source, block: int, data_ends: DataEnds) -> list[SeqRange]:
    """What the rows with bytes in a block are, in order of topic."""
    low = block * BLOCK_BYTES
    high = low + BLOCK_BYTES
    found: list[SeqRange] = []
    firsts = index.group_first_rows
    for group in range(index.groups):
        rows = firsts[group + 1] - firsts[group]
        ranges = [
            _rows_in(source, group, rows, column, (low, high), data_ends)
            for column in index.file_columns
        ]
        start = min(start for start, _ in ranges)
        stop = max(stop for _, stop in ranges)
        if start < stop:
            found += _seqs_of(index.directory, firsts[group] + start, firsts[group] + stop)
    return found


def _rows_in(
    source: Source,
    group: int,
    rows: int,
    column: str,
    span: tuple[int, int],
    data_ends: DataEnds,
) -> tuple[int, int]:
    """Rows of a group whose values of a column overlap a span of the file; (rows, 0) if none."""
    start, stop = rows, 0
    count = 2 if column in FIXED_WIDTHS else 9 if column == "headers" else 3
    for number in range(count):
        offset, length = source.buffer(group, column, number)
        first, last = max(span[0] - offset, 0), min(span[1] - offset, length)
        if first >= last:
            continue
        if number == 1 and column != "headers":
            width = FIXED_WIDTHS.get(column, 8 if column == "data" else 4)
            # An offset ends the row before it and starts the row after it.
            early = 0 if column in FIXED_WIDTHS else 1
            start = min(start, max(first // width - early, 0))
            stop = max(stop, min((last - 1) // width + 1, rows))
        elif column == "data" and number == 2 and (ends := data_ends(group)) is not None:
            start = min(start, max(bisect_right(ends, first) - 1, 0))
            stop = max(stop, min(bisect_left(ends, last), rows))
        else:
            return 0, rows
    return start, stop


def _seqs_of(directory: Directory, start: int, stop: int) -> list[SeqRange]:
    """What the file's rows `start` to `stop` (exclusive) are."""
    found = []
    position = bisect_right(directory.first_rows, start) - 1
    while position < len(directory) and directory.first_rows[position] < stop:
        first_seq, last_seq = directory.first_seqs[position], directory.last_seqs[position]
        if directory.flags[position] & FLAG_DENSE:
            first_row = directory.first_rows[position]
            last_seq = min(last_seq, first_seq + stop - 1 - first_row)
            first_seq = max(first_seq, first_seq + start - first_row)
        found.append((directory.topic_ids[position], first_seq, last_seq))
        position += 1
    return found
