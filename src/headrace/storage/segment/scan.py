"""Reading much of a sealed file once: only the columns asked for, past the cache.

What `columns_of_run` does for a page, this does for a reader of whole files: the buffers of a row
group are read in as few reads as there are stretches of them, each block is verified once, and the
columns are made where the bytes lie, without a copy.  Nothing is kept from one row group to the
next.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence

import pyarrow as pa

from headrace.storage.segment.columns import FIXED_WIDTHS
from headrace.storage.segment.format import BLOCK_BYTES
from headrace.storage.segment.page_columns import (
    COLUMNS,
    HEADERS,
    PAGE_SCHEMA,
    columns_of_group,
    has_column,
    offset_width,
    page_of,
)
from headrace.storage.segment.reader import Segment
from headrace.storage.segment.run import Run

# Two stretches with at most this many blocks between them are one read.
NEIGHBOUR_BLOCKS_MAX = 2

_Stretch = tuple[int, int]  # file offset and length


class Group:
    """Rows of a run that lie in one row group: `count` of them, from the run's row `start` on."""

    __slots__ = ("_a", "_b", "_fetched", "_group", "_run", "count", "start")

    def __init__(self, run: Run, group: int, a: int, b: int, start: int) -> None:
        self._run = run
        self._group = group
        self._a = a
        self._b = b
        self._fetched = _Fetched(run.segment)
        self.start = start
        self.count = b - a

    def columns(self, names: Collection[str]) -> pa.RecordBatch:
        """These columns, in the order and with the types of `PAGE_SCHEMA`."""
        assert COLUMNS.issuperset(names), names
        present = [name for name in PAGE_SCHEMA.names if name in names]
        stored = [name for name in present if has_column(self._run, name)]
        self._fetch(stored)
        columns = columns_of_group(
            self._run, self._group, self._a, self._b, self.start, self._fetched, stored
        )
        schema = pa.schema([PAGE_SCHEMA.field(name) for name in present])
        return page_of(columns, self.count, schema)

    def _fetch(self, names: Sequence[str]) -> None:
        """Bring what these columns need, as few reads as possible."""
        firsts = self._run.segment.index().group_first_rows
        whole = self.count == firsts[self._group + 1] - firsts[self._group]
        wanted: list[_Stretch] = []
        partial = []
        for name in names:
            if (name == "seq" and self._run.dense) or name == HEADERS:
                continue  # headers are read as they are needed: few records have them
            if name in FIXED_WIDTHS:
                at, _ = self._place(name, 1)
                width = FIXED_WIDTHS[name]
                wanted.append((at + width * self._a, width * self.count))
                continue
            wanted.append(self._place(name, 0))
            if whole:
                wanted += [self._place(name, 1), self._place(name, 2)]
            else:
                wanted.append(self._offsets_of(name))
                partial.append(name)
        self._fetched.fetch(wanted)
        # Where the values of some rows lie is known only from their offsets.
        self._fetched.fetch([self._values_of(name) for name in partial])

    def _place(self, name: str, number: int) -> _Stretch:
        return self._run.segment.buffer(self._group, name, number)

    def _offsets_of(self, name: str) -> _Stretch:
        width = offset_width(name)
        first = self._a - self._a % 8  # whole bytes of null bits, see `columns_of_group`
        return self._place(name, 1)[0] + width * first, width * (self._b - first + 1)

    def _values_of(self, name: str) -> _Stretch:
        width = offset_width(name)
        ends = self._fetched.read(*self._offsets_of(name))
        low = int.from_bytes(ends[:width], "little")
        return self._place(name, 2)[0] + low, int.from_bytes(ends[-width:], "little") - low


def groups_of(run: Run, start: int, stop: int) -> Iterator[Group]:
    """Rows `start` to `stop` (exclusive) of a run, row group by row group."""
    for group, a, b in run.pieces(start, stop):
        yield Group(run, group, a, b, start)
        start += b - a


class _Fetched:
    """Verified stretches of a file, and what else is asked for."""

    __slots__ = ("_segment", "_stretches")

    def __init__(self, segment: Segment) -> None:
        self._segment = segment
        self._stretches: list[tuple[int, memoryview]] = []

    def buffer(self, group: int, column: str, number: int) -> tuple[int, int]:
        return self._segment.buffer(group, column, number)

    def fetch(self, wanted: Sequence[_Stretch]) -> None:
        """Bring these, neighbours in one read; what is here already is not read again."""
        missing = [(at, length) for at, length in wanted if length and not self._find(at, length)]
        runs: list[list[int]] = []
        for at, length in sorted(missing):
            first, stop = at // BLOCK_BYTES, -(-(at + length) // BLOCK_BYTES)
            if runs and first <= runs[-1][1] + NEIGHBOUR_BLOCKS_MAX:
                runs[-1][1] = max(runs[-1][1], stop)
            else:
                runs.append([first, stop])
        for first, stop in runs:
            data = memoryview(self._segment.fetch(first, stop, wait=True))
            self._stretches.append((first * BLOCK_BYTES, data))

    def read(self, offset: int, length: int, wait: bool = True) -> memoryview:
        found = self._find(offset, length)
        if found is None:
            self.fetch([(offset, length)])
            found = self._find(offset, length)
            assert found is not None, (offset, length)
        return found

    def _find(self, offset: int, length: int) -> memoryview | None:
        if not length:
            return memoryview(b"")
        for at, data in self._stretches:
            if at <= offset and offset + length <= at + len(data):
                return data[offset - at : offset - at + length]
        return None
