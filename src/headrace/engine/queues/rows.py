"""Reading the records of chosen jobs: runs of them at a time, from memory or from sealed files.

Only this file turns seqs that were taken into rows.  What needs a disk is read in the reader lane.
Jobs whose records are damaged, or in no file, are named, and the others are read all the same: one
bad block must not keep a queue from being worked off.
"""

from __future__ import annotations

import errno
import logging
from bisect import bisect_left
from collections.abc import Callable, Iterable, Sequence

from pyroaring import BitMap64

from headrace.core.errors import CorruptionError, HeadraceError, typed
from headrace.engine.blocklist import BlockList
from headrace.engine.collect import fit_rows
from headrace.engine.core_state import Core
from headrace.engine.retention import LANE
from headrace.engine.topic import Topic
from headrace.storage.block import Record, Rows
from headrace.storage.cache import WouldBlock
from headrace.storage.catalog import runs_in
from headrace.storage.segment_reader import Run
from headrace.storage.seqs import ranges_of

log = logging.getLogger("headrace.queues")

FEW_ROWS = 8  # so many are read before it is known whether they fit

# The rows, the seqs that cannot be read, why nothing could be.
Read = Callable[[list[Rows], list[int], BaseException | None], None]


def read_jobs(core: Core, topic: Topic, seqs: Sequence[int], bytes_max: int, done: Read) -> bool:
    """Read these jobs, ascending, or the first of them that fit, but at least one.

    True: `done` was called at once.  False: the reader lane will have it called; whoever asked
    keeps the jobs from others until then.
    """
    oldest = topic.blocks.first
    in_memory = oldest.first_seq if oldest is not None else topic.head + 1
    if seqs[0] >= in_memory:
        done(_from_blocks(topic.blocks, _runs_of(seqs), bytes_max), [], None)
        return True
    sealed = seqs[: bisect_left(seqs, in_memory)]
    # What memory holds is taken now: it may leave memory while the files are read.
    newer = _from_blocks(topic.blocks, _runs_of(seqs[len(sealed) :]), bytes_max)
    files, topic_id, name = core.catalog.files_of(topic.id), topic.id, topic.name

    def read(wait: bool) -> _Sealed:
        found = _Sealed(runs_in(files, topic_id, wait), bytes_max, wait)
        found.take(sealed)
        return found

    def submit() -> None:
        core.runtime.submit(LANE, lambda: read(True), resumed)

    def answer(found: _Sealed) -> None:
        if found.damaged:
            problems = [file.problem for file in files if file.problem is not None]
            why = found.why or (problems[0] if problems else "no file has them")
            shown = BitMap64(found.damaged)
            log.error("%d jobs of %r from %d on: %s", len(shown), name, shown.min(), why)
        # Nothing is skipped for want of room.
        done([*found.rows, *(() if found.full else newer)], found.damaged, None)

    def resumed(value: object, error: BaseException | None) -> None:
        nonlocal files
        before, files = files, core.catalog.files_of(topic_id)
        if error is not None:
            done([], [], typed(error))
            return
        assert isinstance(value, _Sealed)
        if value.damaged and files != before:
            submit()  # a merge has replaced what was looked at, and may have removed it
        else:
            answer(value)

    try:
        found = read(False)
    except (WouldBlock, CorruptionError, OSError):
        # What is damaged is searched for off the loop.
        submit()
        return False
    except HeadraceError as error:
        done([], [], error)
        return True
    answer(found)
    return True


def fetch_sizes(core: Core, topic: Topic, seqs: BitMap64, done: Callable[[], None]) -> None:
    """Have at hand what deleting these jobs asks of files, so that no cold tier holds the loop.

    Files that cannot be read do not keep a job from being deleted, so nothing fails here.
    """
    oldest = topic.blocks.first
    in_memory = oldest.first_seq if oldest is not None else topic.head + 1
    if core.tiers.cold is None or seqs.min() >= in_memory:
        done()
        return
    ranges = list(ranges_of(seq for seq in seqs if seq < in_memory))
    files, topic_id = core.catalog.files_of(topic.id), topic.id

    def look(wait: bool) -> None:
        for run in runs_in(files, topic_id, wait):
            for first, last in ranges:
                if run.first_seq <= last and run.last_seq >= first:
                    run.size_of(run.row_of(first, wait), run.row_of(last + 1, wait), wait)

    try:
        look(False)
    except WouldBlock:
        core.runtime.submit(LANE, lambda: look(True), lambda _value, _error: done())
        return
    except (HeadraceError, OSError):
        pass
    done()


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
    for first, last in runs:
        for block in blocks.from_seq(first):
            low = block.first_seq
            if low > last:
                break
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


class _Sealed:
    """Jobs that are read from sealed files, in ascending order."""

    def __init__(self, runs: Sequence[Run], bytes_max: int, wait: bool) -> None:
        self.rows: list[Rows] = []
        self.damaged: list[int] = []
        self.why: BaseException | None = None  # the first of them cannot be read
        self.full = False  # the next job does not fit
        self._runs = runs
        self._at = 0  # runs before this one end before the next job
        self._left = bytes_max
        self._wait = wait

    def take(self, seqs: Sequence[int]) -> None:
        for first, last in _runs_of(seqs):
            while first <= last and not self.full:
                first = self._take(first, last)

    def _take(self, first: int, last: int) -> int:
        """Take from the next file that has some of these; returns where to go on."""
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

        Damage is one stretch, mostly: where a job at both ends and one between are damaged, so
        are the others.
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
        """Take rows; nothing has changed where that fails."""
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
            return error
        self.full = end < stop
        if self.full:
            last = rows.seqs[-1]
        if len(rows) < last - first + 1:
            self.damaged.extend(BitMap64(range(first, last + 1)) - BitMap64(rows.seqs))
        if len(rows):
            self.rows.append(rows)
        self._left -= size
        return None
