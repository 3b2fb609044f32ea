"""Carrying out a merge job: inputs in, outputs without the dead rows, in steps and bounded memory.

Only this file moves rows between sealed files.  Each input is read once, front to back, and holds
one row group in memory; rows leave in (topic_id, seq) order.  Dead rows are dropped by the given
liveness, whatever the plan believed.  Rows are handled as columns: Python works per topic and per
row group, never per row.  The outputs are synced; nothing is renamed, listed or unlinked here but
the outputs of a job that fails.

It does not choose what to merge (see `merge`), and does not make outputs visible: the caller syncs
the directory, lists them in a snapshot, and swaps them for the inputs.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from heapq import merge as merge_sorted
from itertools import groupby, pairwise
from typing import cast

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
from pyroaring import BitMap64

from headrace.core.let_go import let_go
from headrace.storage.files.catalog import Liveness, TopicLiveness
from headrace.storage.files.merge_inputs import MergeInput, Part
from headrace.storage.files.merge_policy import MergeJob, MergePolicy, order_of
from headrace.storage.fs import Filesystem
from headrace.storage.segment.format import TAG_ORDER, SegmentMeta
from headrace.storage.segment.group_columns import FIXED_ROW_BYTES
from headrace.storage.segment.reader import Segment
from headrace.storage.segment.writer import ROW_GROUP_BYTES, SegmentWriter

# Rows of several topics are sorted together in portions of about this many payload bytes.
PORTION_BYTES_MAX = 4 * 1024 * 1024
# And of at most this many rows, for topics whose payloads are tiny.
PORTION_ROWS_MAX = 262_144


class MergeRun:
    """One merge job under way.

    It is done a step at a time, so that other work of a checkpoint never waits for a whole merge.
    Made and stepped off the loop thread, by one thread at a time.  `segments` are the inputs, in
    any order; `liveness` must not change before the end.
    """

    def __init__(
        self,
        fs: Filesystem,
        job: MergeJob,
        segments: Sequence[Segment],
        liveness: Liveness,
        next_file_id: Callable[[], int],
        created_ms: int,
        policy: MergePolicy,
    ) -> None:
        assert {segment.meta.file_id for segment in segments} == set(job.inputs), job
        inputs = [MergeInput(segment, liveness) for segment in segments]
        self._outputs = _Outputs(fs, job, inputs, next_file_id, created_ms, policy)
        self._step_bytes = policy.step_bytes
        self._written = _write_rows(job, inputs, liveness, self._outputs)
        self.done: list[SegmentMeta] | None = None  # the new files, perhaps none; None: not yet

    def step(self) -> None:
        """Write some megabytes more, or at last finish the files: then they are `done`.

        The files are synced, their directory is not.  On any error the outputs are unlinked and
        the error raised.  A run that is dropped before its end leaves its files, as a process that
        is killed does: whoever gives it up calls `abort`.
        """
        assert self.done is None
        try:
            left = self._step_bytes
            for size in self._written:
                left -= size
                if left <= 0:
                    return
            self.done = self._outputs.finish()
        except BaseException:
            self.abort()
            raise

    def abort(self) -> None:
        """Give up: unlink the outputs.  A run that is done has none left to give up."""
        if self.done is None:
            self._outputs.abort()


def _write_rows(
    job: MergeJob, inputs: Sequence[MergeInput], liveness: Liveness, outputs: _Outputs
) -> Iterator[int]:
    """Write the live rows of the inputs; yields the size of what it has written, bit by bit."""
    for portion in _portions(inputs, job.own_topics):
        topic_id = portion[0][0].topic_id
        if len(portion) > 1:
            batches = _sorted_rows(inputs, portion, liveness)
        else:
            batches = _stream(inputs, portion[0], liveness)
        if topic_id in job.own_topics:
            yield from outputs.write_own(portion[0], batches)
        else:
            yield from outputs.write_shared(batches)
        let_go(portion)


def give_back_memory() -> None:
    """Give the system what Arrow keeps for later: after a merge, tens of MB for a minute or more.

    Off the loop: it takes milliseconds, and other threads go on meanwhile.
    """
    pa.default_memory_pool().release_unused()


def _portions(
    inputs: Sequence[MergeInput], own_topics: frozenset[int]
) -> Iterator[list[list[Part]]]:
    """All parts, grouped by topic, in portions: several small topics, or one to be streamed."""
    parts = merge_sorted(*(source.parts(number) for number, source in enumerate(inputs)))
    portion: list[list[Part]] = []
    size = rows = 0
    for topic_id, group in groupby(parts, key=lambda part: part.topic_id):
        topic = list(group)
        topic_size = sum(part.bytes for part in topic)
        topic_rows = sum(part.rows for part in topic)
        alone = topic_id in own_topics
        if portion and (
            alone or size + topic_size > PORTION_BYTES_MAX or rows + topic_rows > PORTION_ROWS_MAX
        ):
            yield portion
            portion, size, rows = [], 0, 0
        portion.append(topic)
        size += topic_size
        rows += topic_rows
        if alone:
            yield portion
            portion, size, rows = [], 0, 0
    if portion:
        yield portion


def _stream(
    inputs: Sequence[MergeInput], topic: list[Part], liveness: Liveness
) -> Iterator[pa.RecordBatch]:
    """One topic's live rows, input after input."""
    for older, newer in pairwise(topic):
        assert older.last_seq < newer.first_seq, (older, newer)
    for part in topic:
        for batch in inputs[part.number].take(part.first_row, part.rows):
            if part.mixed:
                seqs = cast(pa.UInt64Array, batch.column("seq"))
                batch = batch.filter(_alive(seqs, liveness[part.topic_id]))
            if batch.num_rows:
                yield batch


def _sorted_rows(
    inputs: Sequence[MergeInput], portion: list[list[Part]], liveness: Liveness
) -> Iterator[pa.RecordBatch]:
    """The live rows of several topics, in order."""
    by_input: dict[int, list[Part]] = {}
    for topic in portion:
        for part in topic:
            by_input.setdefault(part.number, []).append(part)
    tables = []
    mixed = any(part.mixed for topic in portion for part in topic)
    masks: list[pa.BooleanArray] = []  # of all rows, if some are dead
    for number, parts in by_input.items():
        batches: list[pa.RecordBatch] = []
        for first_row, rows in _stretches(parts):
            batches += inputs[number].take(first_row, rows)
        table = pa.Table.from_batches(batches)
        tables.append(table.drop_columns(TAG_ORDER) if TAG_ORDER in table.schema.names else table)
        if mixed:
            masks += _alive_parts(table, parts, liveness)
    table = pa.concat_tables(tables, promote_options="default")
    if mixed:
        table = table.filter(pa.concat_arrays(masks))
    if len(by_input) > 1:
        order = pc.sort_indices(table, sort_keys=[("topic_id", "ascending"), ("seq", "ascending")])
        table = table.take(order)
    yield from table.combine_chunks().to_batches()


def _alive_parts(
    table: pa.Table, parts: list[Part], liveness: Liveness
) -> Iterator[pa.BooleanArray]:
    """Which rows of one input are alive: a mask for each part that is mixed, and for the rows
    between two of these.

    One for each part would be an object for each topic and file: 400,000 of them take seconds to
    make, and all other threads wait while they are freed.
    """
    seqs = table.column("seq")
    at = whole = 0  # all rows from `whole` to `at` are alive
    for part in parts:
        if part.mixed:
            if at > whole:
                yield pa.repeat(True, at - whole)
            part_seqs = cast(pa.UInt64Array, seqs.slice(at, part.rows).combine_chunks())
            yield _alive(part_seqs, liveness[part.topic_id])
            whole = at + part.rows
        at += part.rows
    if at > whole:
        yield pa.repeat(True, at - whole)
    assert at == table.num_rows, (at, table.num_rows)


def _stretches(parts: list[Part]) -> Iterator[tuple[int, int]]:
    """First row and count of the stretches that parts of one input make up together."""
    start = end = parts[0].first_row
    for part in parts:
        if part.first_row != end:
            yield start, end - start
            start = part.first_row
        end = part.first_row + part.rows
    yield start, end - start


def _alive(seqs: pa.UInt64Array, topic: TopicLiveness) -> pa.BooleanArray:
    """Which of these ascending seqs of one topic are alive."""
    alive = pc.greater_equal(seqs, pa.scalar(topic.earliest_seq, pa.uint64()))
    if topic.holes:
        span = BitMap64()
        span.add_range(seqs[0].as_py(), seqs[-1].as_py() + 1)
        holes = (span & topic.holes).to_array()
        if holes:
            dead = pc.is_in(seqs, value_set=pa.array(holes, pa.uint64()))
            alive = pc.and_(alive, pc.invert(dead))
    return alive


def _row_bytes(batch: pa.RecordBatch) -> int:
    """What a row of this batch takes on average."""
    size: int = batch.column("data").nbytes  # with the offsets
    if "meta" in batch.schema.names:
        size += batch.column("meta").nbytes
    return size // batch.num_rows + FIXED_ROW_BYTES


class _Outputs:
    """The files a job makes: one shared, and some for each topic of its own."""

    def __init__(
        self,
        fs: Filesystem,
        job: MergeJob,
        inputs: Sequence[MergeInput],
        next_file_id: Callable[[], int],
        created_ms: int,
        policy: MergePolicy,
    ) -> None:
        self._fs = fs
        self._job = job
        self._next_file_id = next_file_id
        self._created_ms = created_ms
        self._policy = policy
        metas = [source.segment.meta for source in inputs]
        self._columns = frozenset[str]().union(*(s.segment.columns() for s in inputs))
        self._rows_max = sum(meta.rows for meta in metas)
        self._topics_max = sum(meta.topics for meta in metas)
        self._payload_bytes_max = sum(meta.payload_bytes for meta in metas)
        self._order = min(order_of(meta) for meta in metas)
        self._shared: SegmentWriter | None = None
        self._own: SegmentWriter | None = None
        self._done: list[SegmentMeta] = []

    def write_shared(self, batches: Iterator[pa.RecordBatch]) -> Iterator[int]:
        """Write rows to the shared file; yields the size of each batch."""
        for batch in batches:
            if self._shared is None:
                self._shared = self._open(0, self._columns)
            self._shared.add(batch)
            size = batch.nbytes
            del batch  # not to be held until the next step
            yield size

    def write_own(self, topic: list[Part], batches: Iterator[pa.RecordBatch]) -> Iterator[int]:
        """One topic's rows, in files of about equal size below the policy's bound; yields the size
        of each batch.
        """
        topic_id = topic[0].topic_id
        size = sum(part.live_size for part in topic)
        # Never more files than this, whatever the estimate missed: a merge of some files that
        # gave as many again would be planned for ever.
        pieces = -(-size // self._policy.own_bytes_max)
        bytes_max = -(-size // pieces)
        columns = self._columns
        if not any(part.tagged for part in topic):
            columns -= {"tag"}
        room = first_seq = 0
        for batch in batches:
            size, row_bytes = batch.nbytes, _row_bytes(batch)
            while batch.num_rows:
                if self._own is not None and room < row_bytes and pieces:
                    self._finish_own(first_seq)
                if self._own is None:
                    self._own = self._open(topic_id, columns)
                    first_seq = batch.column("seq")[0].as_py()
                    room = bytes_max
                    pieces -= 1
                rows = min(batch.num_rows, max(1, room // row_bytes)) if pieces else batch.num_rows
                self._own.add(batch.slice(0, rows))
                room -= rows * row_bytes
                batch = batch.slice(rows)
            yield size
        if self._own is not None:
            self._finish_own(first_seq)

    def _finish_own(self, first_seq: int) -> None:
        assert self._own is not None and first_seq > 0
        writer, self._own = self._own, None
        self._done.append(msgspec.structs.replace(writer.finish(), order=first_seq))

    def _open(self, owner: int, columns: frozenset[str]) -> SegmentWriter:
        return SegmentWriter(
            self._fs,
            self._next_file_id(),
            owner,
            self._job.level,
            self._created_ms,
            columns=columns,
            payload_bytes_hint=self._payload_bytes_max,
            rows_hint=self._rows_max,
            topics_hint=self._topics_max,
            group_bytes=ROW_GROUP_BYTES,
        )

    def finish(self) -> list[SegmentMeta]:
        assert self._own is None
        if self._shared is not None:
            writer, self._shared = self._shared, None
            self._done.append(msgspec.structs.replace(writer.finish(), order=self._order))
        rows = sum(meta.rows for meta in self._done)
        assert rows <= self._rows_max, (rows, self._rows_max)
        return self._done

    def abort(self) -> None:
        """Leave nothing behind.  A file that cannot be unlinked now is an orphan at next start."""
        for writer in (self._own, self._shared):
            if writer is not None:
                with contextlib.suppress(OSError):
                    writer.abort()
        for meta in self._done:
            with contextlib.suppress(OSError):
                self._fs.unlink(meta.path)
