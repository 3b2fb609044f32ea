"""The live sealed files: which hold a topic's rows, and how much of each is alive.

Only this file knows the set of files readers may use.  `Catalog` belongs to the loop thread: files
come in with a checkpoint or a merge, and leave with the merge that replaced them.  For every topic
the seq ranges of its runs never overlap, whatever was merged; that is asserted here, where runs are
put side by side.  `LiveStats` counts what is alive, off the loop, at each checkpoint.

It does not open, write or unlink files, and does not decide what to merge (see `merge`).
"""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections.abc import Mapping, Sequence
from itertools import pairwise
from operator import attrgetter
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
from pyroaring import BitMap64

from headrace.core.error_frames import without_frames
from headrace.core.errors import CorruptionError
from headrace.storage.files.merge_policy import FileStats, TopicShare
from headrace.storage.segment.format import Directory, SegmentMeta
from headrace.storage.segment.group_columns import ints
from headrace.storage.segment.reader import Segment
from headrace.storage.segment.run import Run, run_of

SEQ_MAX = (1 << 64) - 1
# Lists of runs are remembered until files change; this bounds the runs remembered.
CACHED_RUNS_MAX = 65_536
_COLUMN_TYPES = {"I": pa.uint32(), "Q": pa.uint64()}  # by the typecode of an array


# Not tracked by the collector: there is one for each topic, and none can be part of a cycle.
class TopicLiveness(msgspec.Struct, frozen=True, gc=False):
    """Rows with a seq below `earliest_seq` or in `holes` are dead.

    Dead rows never come back: the floor only rises, and a hole may be forgotten only when its
    row is below the floor or in no file.
    """

    earliest_seq: int
    holes: BitMap64 | None


# A topic that is absent has been deleted: all its rows are dead.
Liveness = Mapping[int, TopicLiveness]


class Catalog:
    """The live sealed files."""

    def __init__(self) -> None:
        self._segments: dict[int, Segment] = {}
        self._shared: dict[int, Segment] = {}
        self._own: dict[int, dict[int, Segment]] = {}
        self._runs: dict[int, list[Run]] = {}
        self._runs_cached = 0

    def __len__(self) -> int:
        return len(self._segments)

    def add(self, segment: Segment) -> None:
        """Make a sealed file visible to readers."""
        meta = segment.meta
        assert meta.file_id not in self._segments, meta.file_id
        self._segments[meta.file_id] = segment
        files = self._own.setdefault(meta.owner, {}) if meta.owner else self._shared
        files[meta.file_id] = segment
        self._forget_runs(meta.owner)

    def remove(self, file_id: int) -> Segment:
        """Take a file away from readers.  It stays open: the caller closes it."""
        segment = self._segments.pop(file_id)
        owner = segment.meta.owner
        if owner:
            del self._own[owner][file_id]
            if not self._own[owner]:
                del self._own[owner]
        else:
            del self._shared[file_id]
        self._forget_runs(owner)
        return segment

    def get(self, file_id: int) -> Segment:
        return self._segments[file_id]

    def find(self, file_id: int) -> Segment | None:
        """A file that may have left since it was seen."""
        return self._segments.get(file_id)

    def segments(self) -> list[Segment]:
        """All of them, in no particular order: what `LiveStats.count` takes."""
        return list(self._segments.values())

    def metas(self) -> list[SegmentMeta]:
        """What a snapshot lists, by file id."""
        return [self._segments[file_id].meta for file_id in sorted(self._segments)]

    def files_of(self, topic_id: int) -> list[Segment]:
        """The files that may hold rows of a topic: for `runs_in` off the loop thread."""
        return [*self._shared.values(), *self._own.get(topic_id, {}).values()]

    def runs(self, topic_id: int, wait: bool = True) -> list[Run]:
        """The topic's runs by seq, oldest first.  Not to be changed by the caller.

        With `wait=False` raises `WouldBlock` when a file's directory is not in memory yet.
        """
        cached = self._runs.get(topic_id)
        if cached is not None:
            return cached
        runs = runs_in(self.files_of(topic_id), topic_id, wait)
        if self._runs_cached + len(runs) > CACHED_RUNS_MAX:
            self._forget_runs(0)
        self._runs[topic_id] = runs
        self._runs_cached += len(runs) + 1
        return runs

    def _forget_runs(self, owner: int) -> None:
        if owner:
            forgotten = self._runs.pop(owner, None)
            self._runs_cached -= 0 if forgotten is None else len(forgotten) + 1
        else:
            self._runs.clear()
            self._runs_cached = 0
        assert self._runs_cached >= 0, self._runs_cached


def runs_in(files: Sequence[Segment], topic_id: int, wait: bool = True) -> list[Run]:
    """The runs of a topic in these files, oldest first.  From any thread.

    A file whose index cannot be read is left out and remembers why (`Segment.problem`): it may
    have no row of this topic.  A caller that misses rows looks there.
    """
    runs = []
    for segment in files:
        try:
            run = run_of(segment, topic_id, wait)
        except CorruptionError as error:
            segment.problem = without_frames(error)
            continue
        if run is not None:
            runs.append(run)
    runs.sort(key=attrgetter("first_seq"))
    for older, newer in pairwise(runs):
        assert older.last_seq < newer.first_seq, (topic_id, older.last_seq, newer.first_seq)
    return runs


def live_rows_max(first_seq: int, last_seq: int, rows: int, topic: TopicLiveness | None) -> int:
    """How many of a run's rows are alive: exact where no seq is missing, else an upper bound.

    >>> live_rows_max(11, 20, 10, TopicLiveness(15, BitMap64([3, 16, 20])))
    4
    >>> live_rows_max(11, 20, 10, None)
    0
    """
    if topic is None:
        return 0
    low = max(first_seq, topic.earliest_seq)
    if low > last_seq:
        return 0
    left = last_seq + 1 - low
    if topic.holes is not None:
        left -= topic.holes.range_cardinality(low, last_seq + 1)
    return min(rows, left)


class LiveStats:
    """Counts what is alive in every file, and remembers it, so that only changes are counted.

    Used by one thread at a time, off the loop, with a `liveness` that nobody changes meanwhile.
    Bytes are in proportion to rows: a plan needs no better, and nothing is read but directories.
    """

    def __init__(self) -> None:
        self._files: dict[int, _Counted] = {}
        self._seen: dict[int, tuple[int, int]] = {}  # topic -> earliest_seq, count of holes

    def count(self, segments: Sequence[Segment], liveness: Liveness) -> list[FileStats]:
        """The numbers `plan` takes, one for each of `segments`, in that order."""
        changed = self._changed(liveness)
        files: dict[int, _Counted] = {}
        for segment in segments:
            meta = segment.meta
            known = self._files.get(meta.file_id)
            if known is None:
                directory = segment.directory()
                counted = _Counted.whole(directory)
                touched: Sequence[int] = range(len(directory))
            else:
                counted = known
                touched = changed.places_in(counted.directory)
            files[meta.file_id] = counted.recount(touched, liveness)
        self._files = files
        return [
            FileStats(segment.meta, counted.live_rows, counted.live_bytes, counted)
            for segment, counted in zip(segments, files.values(), strict=True)
        ]

    def _changed(self, liveness: Liveness) -> _Changed:
        # In place: every topic's pair would be made, and those of the last time freed at once.
        seen = self._seen
        changed = []
        for topic_id, topic in liveness.items():
            # Dead rows never come back, so that counts left as they were are at worst too high.
            holes = 0 if topic.holes is None else len(topic.holes)
            before = seen.get(topic_id)
            if before is None or before[0] != topic.earliest_seq or before[1] != holes:
                seen[topic_id] = topic.earliest_seq, holes
                changed.append(topic_id)
        gone = [topic_id for topic_id in seen if topic_id not in liveness]
        for topic_id in gone:
            del seen[topic_id]
        return _Changed(changed + gone, liveness)


class _Changed:
    """The topics whose liveness is not what it was at the last count, as columns."""

    def __init__(self, topic_ids: list[int], liveness: Liveness) -> None:
        floors, holes_first, holes_last = array("Q"), array("Q"), array("Q")
        for topic_id in topic_ids:
            topic = liveness.get(topic_id)
            floors.append(SEQ_MAX if topic is None else topic.earliest_seq)
            holes = None if topic is None else topic.holes
            holes_first.append(holes.min() if holes else SEQ_MAX)
            holes_last.append(holes.max() if holes else 0)
        self._topic_ids = _column(array("Q", topic_ids))
        self._floors = _column(floors)
        self._holes_first = _column(holes_first)
        self._holes_last = _column(holes_last)

    def places_in(self, directory: Directory) -> list[int]:
        """Where in the directory are runs that the changes can have taken rows from."""
        if len(self._topic_ids) == 0:
            return []
        at = pc.index_in(_column(directory.topic_ids), value_set=self._topic_ids)
        first_seqs, last_seqs = _column(directory.first_seqs), _column(directory.last_seqs)
        trimmed = pc.greater(self._floors.take(at), first_seqs)
        above = pc.less_equal(self._holes_first.take(at), last_seqs)
        below = pc.greater_equal(self._holes_last.take(at), first_seqs)
        touched = pc.or_(trimmed, pc.and_(above, below))
        # A topic that has not changed is null here, which selects nothing.
        return _places(touched)


class _Counted:
    """The topics of one file and what of each is alive, as `merge.plan` looks at them.

    Never changed once made: stats made from it earlier may still be in use.
    """

    __slots__ = ("_bytes", "_live", "_rows", "directory", "live_bytes", "live_rows")

    def __init__(
        self, directory: Directory, rows: array[int], live: array[int], bytes: array[int]
    ) -> None:
        self.directory = directory
        self._rows = rows
        self._live = live
        self._bytes = bytes
        # Arrow adds up without the interpreter, which the loop would have to wait for.
        self.live_rows: int = pc.sum(_column(live)).as_py() or 0
        self.live_bytes: int = pc.sum(_column(bytes)).as_py() or 0

    @classmethod
    def whole(cls, directory: Directory) -> _Counted:
        """As if every row were alive."""
        starts = _column(directory.first_rows)
        between = pc.subtract(starts.slice(1), starts.slice(0, len(starts) - 1)).cast(pa.uint64())
        rows, buffer = array("Q"), between.buffers()[1]
        if buffer is not None:
            rows.frombytes(buffer.slice(0, rows.itemsize * len(between)))
        return cls(directory, rows, rows, directory.payload_bytes)

    def recount(self, places: Sequence[int], liveness: Liveness) -> _Counted:
        """Count the topics at these places of the directory again."""
        directory, rows = self.directory, self._rows
        live, live_bytes = self._live, self._bytes
        for at in places:
            topic = liveness.get(directory.topic_ids[at])
            left = live_rows_max(directory.first_seqs[at], directory.last_seqs[at], rows[at], topic)
            if left == live[at]:
                continue
            if live is self._live:
                live, live_bytes = live[:], live_bytes[:]
            live[at] = left
            live_bytes[at] = directory.payload_bytes[at] * left // rows[at]
        if live is self._live:
            return self
        return _Counted(directory, rows, live, live_bytes)

    def of(self, topic_id: int) -> TopicShare | None:
        directory = self.directory
        at = bisect_left(directory.topic_ids, topic_id)
        if at == len(directory) or directory.topic_ids[at] != topic_id:
            return None
        return TopicShare(
            self._live[at], self._bytes[at], directory.first_seqs[at], directory.last_seqs[at]
        )

    def heavy(self, bytes_min: int) -> list[int]:
        enough = pc.greater_equal(_column(self._bytes), pa.scalar(bytes_min, pa.uint64()))
        ids = self.directory.topic_ids
        return [ids[at] for at in _places(enough)]


def _column(values: array[int]) -> pa.Array[Any]:
    """The same memory as an Arrow array."""
    kind = _COLUMN_TYPES[values.typecode]
    return pa.Array.from_buffers(kind, len(values), [None, pa.py_buffer(values)])


def _places(selected: pa.BooleanArray) -> list[int]:
    """Where a mask is true."""
    return ints(pc.indices_nonzero(selected))
