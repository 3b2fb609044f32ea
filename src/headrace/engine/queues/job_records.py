"""Reading the records of chosen jobs: runs of them at a time, from memory or from sealed files.

Only this file turns seqs that were taken into rows.  What needs a disk is read in the reader lane.
Jobs whose records are damaged, or in no file, are named, and the others are read all the same: one
bad block must not keep a queue from being worked off.
"""

from __future__ import annotations

import errno
import logging
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from functools import partial
from itertools import accumulate
from typing import NamedTuple

from pyroaring import BitMap64

from headrace.core.error_frames import without_frames
from headrace.core.errors import CorruptionError, HeadraceError, typed
from headrace.core.steps import Steps, in_lane
from headrace.engine.queues.answers import JobColumns
from headrace.engine.reading.page_rows import fit_rows
from headrace.engine.removal.retention import LANE
from headrace.engine.state import EngineState
from headrace.engine.topics.block_list import BlockList
from headrace.engine.topics.topic import Topic
from headrace.storage.block import KIND_JSON, Block, Record, Rows
from headrace.storage.files.block_cache import WouldBlock
from headrace.storage.files.catalog import runs_in
from headrace.storage.segment.reader import Segment
from headrace.storage.segment.run import Run
from headrace.storage.seq_ranges import ranges_of

log = logging.getLogger("headrace.queues")

FEW_ROWS = 8  # up to this many rows are read before their size is known
# Up to this many runs of sealed jobs are read on the loop where the cache has them, which takes
# about 30 µs for each.  Jobs that lie scattered are as many runs, and are read in the lane.
RUNS_ON_LOOP_MAX = 32


class JobRows(NamedTuple):
    """Rows of jobs, in their order, and the seqs of those that cannot be read."""

    rows: list[Rows]
    damaged: list[int]


def rows_in_memory(topic: Topic, seqs: Sequence[int], bytes_max: int) -> list[Rows] | None:
    """Return the rows of these jobs, ascending, or of the first that fit; None: some are in files.

    At least one row is returned, however large it is.
    """
    if seqs[0] < _first_in_memory(topic):
        return None
    return _from_blocks(topic.blocks, _runs_of(seqs), bytes_max)


def read_jobs(
    state: EngineState, topic: Topic, seqs: Sequence[int], bytes_max: int
) -> Steps[JobRows]:
    """Read these busy jobs, ascending, or the first of them that fit, but at least one."""
    rows = rows_in_memory(topic, seqs, bytes_max)
    if rows is not None:
        return JobRows(rows, [])
    return (yield from read_sealed(state, topic, seqs, bytes_max))


def read_sealed(
    state: EngineState, topic: Topic, seqs: Sequence[int], bytes_max: int
) -> Steps[JobRows]:
    """Read busy jobs of which some are in files, in the reader lane where that may take long."""
    sealed = seqs[: bisect_left(seqs, _first_in_memory(topic))]
    # What memory holds is taken now: it may leave memory while the files are read.
    newer = _from_blocks(topic.blocks, _runs_of(seqs[len(sealed) :]), bytes_max)
    files = state.catalog.files_of(topic.id)
    runs = list(_runs_of(sealed))
    found = None
    if len(runs) <= RUNS_ON_LOOP_MAX:
        # Where the disk is needed, or something is damaged, the lane sees to it.
        with suppress(WouldBlock, CorruptionError, OSError):
            found = _take_sealed(files, topic.id, runs, bytes_max, wait=False)
    while found is None:
        work = partial(_take_sealed, files, topic.id, runs, bytes_max, wait=True)
        try:
            found = yield in_lane(state.runtime, LANE, work)
        except Exception as error:  # noqa: BLE001 - any error
            raise typed(error) from None
        before, files = files, state.catalog.files_of(topic.id)
        if found.damaged and files != before:
            found = None  # a merge has replaced what was looked at, and may have removed it
    if found.damaged:
        problems = [file.problem for file in files if file.problem is not None]
        why = found.why or (problems[0] if problems else "no file has them")
        shown = BitMap64(found.damaged)
        log.error("%d jobs of %r from %d on: %s", len(shown), topic.name, shown.min(), why)
    # Where a sealed job did not fit, no newer one is taken before it.
    return JobRows([*found.rows, *(() if found.full else newer)], found.damaged)


def _first_in_memory(topic: Topic) -> int:
    oldest = topic.blocks.first
    return oldest.first_seq if oldest is not None else topic.head + 1


def fetch_sizes(state: EngineState, topic: Topic, seqs: BitMap64, done: Callable[[], None]) -> None:
    """Load what deleting these jobs asks of files, so that the loop never waits for a cold tier.

    Files that cannot be read do not keep a job from being deleted, so nothing fails here.
    """
    in_memory = _first_in_memory(topic)
    if state.tiers.cold is None or seqs.min() >= in_memory:
        done()
        return
    ranges = list(ranges_of(seq for seq in seqs if seq < in_memory))
    files, topic_id = state.catalog.files_of(topic.id), topic.id

    def look(wait: bool) -> None:
        for run in runs_in(files, topic_id, wait):
            for first, last in ranges:
                if run.first_seq <= last and run.last_seq >= first:
                    run.size_of(run.row_of(first, wait), run.row_of(last + 1, wait), wait)

    try:
        look(False)
    except WouldBlock:
        state.runtime.submit(LANE, lambda: look(True), lambda _value, _error: done())
        return
    except (HeadraceError, OSError):
        pass
    done()


def _take_sealed(
    files: Sequence[Segment],
    topic_id: int,
    jobs: Sequence[tuple[int, int]],
    bytes_max: int,
    *,
    wait: bool,
) -> _SealedReader:
    found = _SealedReader(runs_in(files, topic_id, wait), bytes_max, wait)
    found.take(jobs)
    return found


def columns_of(rows: Sequence[Rows]) -> JobColumns:
    """Return rows of jobs as one."""
    seqs: list[int] = []
    data: list[bytes] = []
    stamps: list[int] = []
    kinds, tagged, noted = rows[0].kinds if rows else KIND_JSON, False, False
    for some in rows:
        seqs += some.seqs
        data += some.data
        stamps += _of_each(some.ts, some)
        if some.kinds != kinds:
            kinds = b""
        tagged = tagged or some.tags is not None
        noted = noted or some.metas is not None
    if not isinstance(kinds, int):
        kinds = [kind for some in rows for kind in _of_each(some.kinds, some)]
    tags = [tag for some in rows for tag in some.tags or (None,) * len(some)] if tagged else None
    metas = [meta for some in rows for meta in some.metas or (None,) * len(some)] if noted else None
    return JobColumns(seqs, stamps, data, kinds, tags, metas)


def _of_each(column: int | Sequence[int], rows: Rows) -> Sequence[int]:
    return (column,) * len(rows) if isinstance(column, int) else column


def fitting(jobs: JobColumns, bytes_max: int, alive: BitMap64 | None = None) -> JobColumns:
    """Return the jobs of one answer: those that are alive, up to `bytes_max`, or one."""
    if alive is not None and len(alive) < len(jobs.seqs):
        jobs = jobs.pick([index for index, seq in enumerate(jobs.seqs) if seq in alive])
    sizes = [len(data) for data in jobs.data]
    if jobs.metas is not None:
        sizes = [size + len(meta or b"") for size, meta in zip(sizes, jobs.metas, strict=True)]
    if sum(sizes) <= bytes_max:
        return jobs
    count = bisect_right(list(accumulate(sizes)), bytes_max)
    return jobs.part(0, max(count, 1))


def records_of(rows: Iterable[Rows]) -> list[Record]:
    return [record for some in rows for record in some.records()]


def _size(rows: Rows) -> int:
    metas = sum([len(meta) for meta in rows.metas if meta]) if rows.metas else 0
    return sum(map(len, rows.data)) + metas


def _runs_of(seqs: Sequence[int]) -> Iterable[tuple[int, int]]:
    if not seqs:
        return ()
    if seqs[-1] - seqs[0] == len(seqs) - 1:
        return ((seqs[0], seqs[-1]),)
    return ranges_of(seqs)


def _from_blocks(blocks: BlockList, runs: Iterable[tuple[int, int]], left: int) -> list[Rows]:
    found: list[Rows] = []
    singles = _Singles(found)
    for first, last in runs:
        for block in blocks.from_seq(first):
            low = block.first_seq
            if low > last:
                break
            if block.count == 1 and block.bytes <= left and singles.take(block):
                left -= block.bytes
                if low == last:
                    break
                continue
            start, stop = max(0, first - low), min(block.count, last - low + 1)
            size = block.size_of(start, stop)
            if size > left:
                stop = fit_rows(block, start, stop, left)
                if found and block.size_of(start, stop) > left:
                    return found
                found.append(block.rows(start, stop))
                return found
            left -= size
            found.append(block.rows(start, stop))
            if low + stop > last:
                break
    return found


class _Singles:
    """Puts jobs that were appended one by one together: rows of one each take far longer."""

    __slots__ = ("_data", "_found", "_kind", "_seqs", "_stamps")

    def __init__(self, found: list[Rows]) -> None:
        self._found = found  # gets the rows
        self._kind = -1  # of those that are being put together
        self._seqs: list[int] = []
        self._stamps: list[int] = []
        self._data: list[bytes] = []

    def take(self, block: Block) -> bool:
        """Take the job of a block that has one; False: it has more than data."""
        if not block.is_single:
            return False
        kind, found = block.kind, self._found
        if not found or found[-1].seqs is not self._seqs or self._kind != kind:
            self._seqs, self._stamps, self._data, self._kind = [], [], [], kind
            seqs = self._seqs
            found.append(Rows(seqs, self._stamps, self._data, kind, append_firsts=seqs))
        self._seqs.append(block.first_seq)
        self._stamps.append(block.ts)
        self._data += block.data(0, 1)
        return True


class _SealedReader:
    """Reads jobs from sealed files, in ascending order."""

    def __init__(self, runs: Sequence[Run], bytes_max: int, wait: bool) -> None:
        self.rows: list[Rows] = []
        self.damaged: list[int] = []
        self.why: BaseException | None = None  # why the first damaged job cannot be read
        self.full = False  # the next job does not fit
        self._runs = runs
        self._at = 0  # runs before this one end before the next job
        self._left = bytes_max
        self._wait = wait

    def take(self, jobs: Sequence[tuple[int, int]]) -> None:
        """Take these jobs, given as runs of seqs, or the first that fit."""
        for first, last in jobs:
            while first <= last and not self.full:
                first = self._take(first, last)

    def _take(self, first: int, last: int) -> int:
        """Take rows from the next file that has some of these; return the seq to go on from."""
        runs = self._runs
        while self._at < len(runs) and runs[self._at].last_seq < first:
            self._at += 1
        if self._at == len(runs) or runs[self._at].first_seq > first:
            last = min(last, runs[self._at].first_seq - 1) if self._at < len(runs) else last
            self.damaged.extend(range(first, last + 1))
        else:
            last = min(last, runs[self._at].last_seq)
            self._take_some(runs[self._at], first, last)
        return last + 1

    def _take_some(self, run: Run, first: int, last: int) -> None:
        """Take what can be read of these.

        Damage is mostly one stretch: if the first, the middle and the last job are damaged, all
        of them count as damaged.
        """
        error = self._try(run, first, last)
        if error is None:
            return
        if not self._wait or (isinstance(error, OSError) and error.errno != errno.EIO):
            raise error
        self.why = self.why or error
        middle = (first + last) // 2
        if first == last or all(self._is_damaged(run, seq) for seq in (first, middle, last)):
            self.damaged.extend(range(first, last + 1))
            return
        self._take_some(run, first, middle)
        if not self.full:
            self._take_some(run, middle + 1, last)

    def _is_damaged(self, run: Run, seq: int) -> bool:
        try:
            row = run.row_of(seq)
            run.rows(row, row + 1)
        except (CorruptionError, OSError):
            return True
        return False

    def _try(self, run: Run, first: int, last: int) -> CorruptionError | OSError | None:
        """Take rows; return the error, in which case nothing has changed."""
        wait = self._wait
        try:
            start, stop = run.row_of(first, wait), run.row_of(last + 1, wait)
            end, rows = stop, Rows([], [], [])
            if stop - start <= FEW_ROWS:
                rows = run.rows(start, stop, wait)
            size = _size(rows)
            if start < stop and (size > self._left or not len(rows)):
                end = run.fit(start, stop, max(self._left, 0), wait)
                size = run.size_of(start, end, wait)
                if self.rows and size > self._left:
                    self.full = True
                    return None
                rows = run.rows(start, end, wait)
        except (CorruptionError, OSError) as error:
            return without_frames(error)
        self.full = end < stop
        if self.full:
            last = rows.seqs[-1]
        if len(rows) < last - first + 1:
            self.damaged.extend(BitMap64(range(first, last + 1)) - BitMap64(rows.seqs))
        if len(rows):
            self.rows.append(rows)
        self._left -= size
        return None
