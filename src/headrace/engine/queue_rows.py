"""Reading the records of chosen jobs: runs of them at a time, from memory or from sealed files.

Only this file turns seqs that were taken into rows.  What needs a disk is read in the reader lane;
a record that should be in a file and is not is an error, never a shorter answer.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from pyroaring import BitMap64

from headrace.core.errors import HeadraceError, SegmentCorrupt, typed
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

Read = Callable[[list[Rows], BaseException | None], None]


def read_jobs(core: Core, topic: Topic, seqs: Sequence[int], bytes_max: int, done: Read) -> bool:
    """Read these jobs, ascending, or the first of them that fit, but at least one.

    True: `done` was called at once.  False: the reader lane will have it called; whoever asked
    keeps the jobs from others until then.
    """
    oldest = topic.blocks.first
    in_memory = oldest.first_seq if oldest is not None else topic.head + 1
    if seqs[0] >= in_memory:
        done(_from_blocks(topic.blocks, _runs_of(seqs), bytes_max), None)
        return True
    sealed = [seq for seq in seqs if seq < in_memory]
    # What memory holds is taken now: it may leave memory while the files are read.
    newer = _from_blocks(topic.blocks, _runs_of(seqs[len(sealed) :]), bytes_max)
    files, topic_id, name = core.catalog.files_of(topic.id), topic.id, topic.name

    def read(wait: bool) -> list[Rows]:
        return _from_runs(runs_in(files, topic_id, wait), sealed, bytes_max, wait, name)

    def resumed(value: object, error: BaseException | None) -> None:
        if error is not None:
            done([], typed(error))
        else:
            assert isinstance(value, list)
            done([*value, *newer], None)

    try:
        rows = read(False)
    except WouldBlock:
        core.runtime.submit(LANE, lambda: read(True), resumed)
        return False
    except (HeadraceError, OSError) as error:
        done([], typed(error))
        return True
    done([*rows, *newer], None)
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


def _from_runs(
    runs: Sequence[Run], seqs: Sequence[int], left: int, wait: bool, name: str
) -> list[Rows]:
    found: list[Rows] = []
    for first, last in _runs_of(seqs):
        at = first
        for run in runs:
            if run.last_seq < at or at > last:
                continue
            start, stop = run.row_of(at, wait), run.row_of(last + 1, wait)
            if start == stop:
                continue
            end = run.fit(start, stop, max(left, 0), wait)
            size = run.size_of(start, end, wait)
            if found and size > left:
                return found
            rows = run.rows(start, end, wait)
            if rows.seqs[0] != at:
                break
            found.append(rows)
            left -= size
            if end < stop:
                return found
            at = rows.seqs[-1] + 1
        if at <= last:
            raise SegmentCorrupt(
                f"job {at} of {name!r} cannot be read: no file has it",
                fix="run `headrace check`, then restore the file from a backup or the cold tier",
                detail={"topic": name, "first_seq": at, "last_seq": last},
            )
    return found
