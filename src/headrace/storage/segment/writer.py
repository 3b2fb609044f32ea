"""Writing sealed segments: blocks of the log become columns, columns become a verified file.

Only this file creates segment files.  Rows arrive in (topic_id, seq) order and leave as row
groups of about `ROW_GROUP_BYTES`; the file is written once, front to back, each 64 KiB hashed on
the way, and is durable when `finish` returns except for its name, which the caller makes durable
with one `sync_dir` for several files.  What is written is never changed again.

Which rows go to which file, and when, is decided elsewhere (the checkpoint and
`storage/files/merge_policy.py`).
"""

from __future__ import annotations

import struct
from array import array
from bisect import bisect_right
from collections.abc import Sequence
from operator import le, sub

import pyarrow as pa
import pyarrow.compute as pc
from xxhash import xxh3_64

from headrace.storage.fs import Buffer, File, Filesystem, write_all
from headrace.storage.segment.format import (
    ARROW_MAGIC,
    BLOCK_BYTES,
    FLAG_DENSE,
    FLAG_TAGS,
    INDEX_KEY,
    OPTIONAL_COLUMNS,
    REQUIRED_TYPES,
    ROWS_MAX,
    TAG_ORDER,
    Directory,
    Index,
    SegmentMeta,
    buffer_slots,
    encode_index,
    meta_of,
    schema_of,
    segment_path,
)
from headrace.storage.segment.from_blocks import batch_of_blocks, optional_columns
from headrace.storage.segment.group_columns import (
    assert_ordered,
    ints,
    numbers,
    payload_offsets,
    row_offsets,
    tag_order,
    tagged_runs,
)
from headrace.storage.segment.message import MessageParts

__all__ = ["ROW_GROUP_BYTES", "SegmentWriter", "batch_of_blocks", "optional_columns"]

ROW_GROUP_BYTES = 4 * 1024 * 1024

_U32 = struct.Struct("<I")
_END_OF_STREAM = b"\xff\xff\xff\xff\0\0\0\0"


class SegmentWriter:
    """One segment file being written.

    `columns` are the optional columns the file may have values in; None means those of the first
    batch.  The hints are upper bounds known from the inputs, and `finish` checks them: a merge
    that writes a row twice is stopped before its file can be listed.
    """

    def __init__(
        self,
        fs: Filesystem,
        file_id: int,
        owner: int,
        level: int,
        created_ms: int,
        *,
        columns: frozenset[str] | None,
        payload_bytes_hint: int | None = None,
        rows_hint: int | None = None,
        topics_hint: int | None = None,
        group_bytes: int = ROW_GROUP_BYTES,
    ) -> None:
        assert file_id > 0 and group_bytes > 0, (file_id, group_bytes)
        assert columns is None or columns <= OPTIONAL_COLUMNS, columns
        self.rows = 0  # added so far
        self.payload_bytes = 0  # of the row groups written so far
        self._identity = (file_id, owner, level, created_ms)
        self._hints = (rows_hint, topics_hint, payload_bytes_hint)
        self._columns = columns
        self._group_bytes = group_bytes
        self._opened: tuple[pa.Schema, MessageParts] | None = None
        self._pending: list[pa.RecordBatch] = []
        self._pending_bytes = 0
        self._group_first_rows = array("I", [0])
        self._messages: list[tuple[int, int, int]] = []  # offset, metadata and body length
        self._spans = array("Q")
        self._directory = Directory.empty()
        self._hashes = array("Q")
        self._hasher = xxh3_64()
        self._offset = 0
        self._fs = fs
        self._path = segment_path(file_id)
        self._file: File | None = fs.create(self._path)

    def add(self, batch: pa.RecordBatch) -> None:
        """Add rows that come after all rows added before; `tag_order` is computed again."""
        try:
            self._add(batch)
        except BaseException:
            self.abort()
            raise

    def end_group(self) -> None:
        """Write what was added so far: the next rows begin a row group."""
        try:
            if self._pending:
                self._flush_group()
        except BaseException:
            self.abort()
            raise

    def finish(self) -> SegmentMeta:
        """Write the rest and the index, and sync the file; its directory is the caller's."""
        try:
            return self._finish()
        except BaseException:
            self.abort()
            raise

    def abort(self) -> None:
        """Give up: close and unlink the file.  Does nothing after `finish`, or twice."""
        if self._file is not None:
            file, self._file = self._file, None
            file.close()
            self._fs.unlink(self._path)

    def _add(self, batch: pa.RecordBatch) -> None:
        assert self._file is not None, "the writer is closed"
        if not batch.num_rows:
            return
        batch = self._conform(batch)
        self.rows += batch.num_rows
        assert self.rows <= ROWS_MAX, self.rows
        sizes = row_offsets(batch)
        start = 0
        while start < batch.num_rows:
            room = self._group_bytes - self._pending_bytes
            stop = bisect_right(sizes, sizes[start] + room, lo=start) - 1
            if stop <= start and not self._pending:
                stop = start + 1  # a row larger than a group is a group of its own
            if stop > start:
                self._pending.append(batch.slice(start, stop - start))
                self._pending_bytes += sizes[stop] - sizes[start]
                start = stop
            if start < batch.num_rows or self._pending_bytes >= self._group_bytes:
                self._flush_group()

    def _conform(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """The same rows with exactly the columns of this file, but for `tag_order`."""
        given = {name: batch.column(name) for name in batch.schema.names}
        if self._columns is None:
            self._columns = frozenset(given.keys() & OPTIONAL_COLUMNS)
        schema = schema_of(self._columns, tag_order=False)
        for name, column in given.items():
            known = name in schema.names or name == TAG_ORDER
            if not known and column.null_count < len(column):
                raise ValueError(f"{self._path} was not to have a column {name!r}")
        arrays = []
        for field in schema:
            if field.name not in given:
                assert field.name not in REQUIRED_TYPES, field.name
                arrays.append(pa.nulls(batch.num_rows, field.type))
                continue
            column = given[field.name]
            assert field.nullable or not column.null_count, field.name
            arrays.append(column if column.type == field.type else column.cast(field.type))
        return pa.RecordBatch.from_arrays(arrays, schema=schema)

    def _flush_group(self) -> None:
        """Write the pending rows as one row group."""
        assert self._pending and self._columns is not None
        pending = self._pending
        batch = pending[0]
        if len(pending) > 1:
            batch = pa.concat_batches(pending)  # type: ignore[attr-defined]
        self._pending, self._pending_bytes = [], 0
        self._extend_directory(batch)
        if "tag" in self._columns:
            batch = batch.append_column(
                pa.field(TAG_ORDER, pa.uint32(), nullable=False), tag_order(batch)
            )
        schema, messages = self._start()
        head, buffers = messages.of(batch)
        size = len(head) + sum(map(len, buffers))
        # Arrow knows by the head alone where each buffer is: the rest of this stays as it is.
        message = pa.allocate_buffer(size)
        memoryview(message).cast("B")[: len(head)] = head
        self._messages.append((self._offset, len(head), size - len(head)))
        spans = [self._offset, size]
        parsed = pa.ipc.read_record_batch(message, schema)
        for column in parsed.columns:
            for buffer in column.buffers():
                if buffer is None or not buffer.size:
                    spans += [0, 0]
                    continue
                within = buffer.address - message.address
                assert 0 < within <= message.size - buffer.size, (within, buffer.size)
                spans += [self._offset + within, buffer.size]
        assert len(spans) == 2 + 2 * buffer_slots(self._columns)[1], len(spans)
        self._spans.extend(spans)
        self._group_first_rows.append(self._group_first_rows[-1] + batch.num_rows)
        self._write([head, *buffers])

    def _start(self) -> tuple[pa.Schema, MessageParts]:
        """The file's schema, and its messages; the first call writes the file's opening."""
        if self._opened is None:
            assert self._columns is not None and self._offset == 0
            schema = schema_of(self._columns)
            self._opened = schema, MessageParts(schema)
            self._write([ARROW_MAGIC + b"\0\0", memoryview(schema.serialize())])
        return self._opened

    def _write(self, parts: Sequence[Buffer]) -> None:
        """Append to the file, hashing each block as it fills."""
        assert self._file is not None
        write_all(self._file, parts, self._offset)
        for part in parts:
            data, at = memoryview(part), 0
            while at < len(data):
                take = min(BLOCK_BYTES - self._offset % BLOCK_BYTES, len(data) - at)
                self._hasher.update(data[at : at + take])
                self._offset += take
                at += take
                if self._offset % BLOCK_BYTES == 0:
                    self._end_block()

    def _end_block(self) -> None:
        self._hashes.append(self._hasher.intdigest())
        self._hasher.reset()

    def _extend_directory(self, batch: pa.RecordBatch) -> None:
        """Note the topics of one row group; its first may go on from the group before."""
        runs = pc.run_end_encode(batch.column("topic_id"))  # type: ignore[attr-defined]
        topic_ids = ints(runs.values)
        ends = ints(runs.run_ends)
        starts = [0, *ends[:-1]]
        assert_ordered(batch, topic_ids, starts)
        lasts = [end - 1 for end in ends]
        bounds = [0, *ends]
        before_row = numbers(payload_offsets(batch))
        sizes = [before_row[bound] for bound in bounds]
        seqs, stamps = numbers(batch.column("seq")), numbers(batch.column("ts"))
        first_seqs = [seqs[row] for row in starts]
        last_seqs = [seqs[row] for row in lasts]
        # Within a topic ts never goes back, so that its ends are its extremes.
        min_ts = [stamps[row] for row in starts]
        max_ts = [stamps[row] for row in lasts]
        tagged = tagged_runs(batch, bounds)
        assert all(map(le, min_ts, max_ts)), topic_ids[:4]
        d = self._directory
        before = self._group_first_rows[-1]
        totals = list(map(sub, sizes[1:], sizes))
        new = 0
        if d.topic_ids and d.topic_ids[-1] == topic_ids[0]:
            assert d.last_seqs[-1] < first_seqs[0], (topic_ids[0], first_seqs[0])
            assert d.max_ts[-1] <= min_ts[0], (topic_ids[0], min_ts[0])
            d.last_seqs[-1], d.max_ts[-1] = last_seqs[0], max_ts[0]
            d.payload_bytes[-1] += totals[0]
            d.first_rows[-1] = before + ends[0]
            d.flags[-1] |= FLAG_TAGS if tagged[0] else 0
            new = 1
        in_order = not d.topic_ids or all(d.topic_ids[-1] < one for one in topic_ids[new : new + 1])
        assert in_order, (d.topic_ids[-1], topic_ids[:2])
        d.topic_ids.extend(topic_ids[new:])
        d.first_seqs.extend(first_seqs[new:])
        d.last_seqs.extend(last_seqs[new:])
        d.payload_bytes.extend(totals[new:])
        d.min_ts.extend(min_ts[new:])
        d.max_ts.extend(max_ts[new:])
        d.first_rows.extend([before + end for end in ends[new:]])
        d.flags.extend([FLAG_TAGS if tag else 0 for tag in tagged[new:]])
        self.payload_bytes += sizes[-1] - sizes[0]

    def _finish(self) -> SegmentMeta:
        assert self._file is not None, "the writer is closed"
        assert self.rows > 0, "a segment without rows: abort it instead"
        if self._pending:
            self._flush_group()
        self._write([_END_OF_STREAM])
        footer_offset = self._offset
        if footer_offset % BLOCK_BYTES:
            self._end_block()
        index = self._index(footer_offset)
        raw = encode_index(index)
        assert self._opened is not None
        footer = _arrow_footer(
            self._opened[0], self._messages, {INDEX_KEY: b"%d %d" % (footer_offset, len(raw))}
        )
        tail = raw + footer
        write_all(self._file, [tail], footer_offset)
        self._file.sync()
        file, self._file = self._file, None
        file.close()
        return meta_of(index, tail)

    def _index(self, footer_offset: int) -> Index:
        d = self._directory
        for i in range(len(d)):
            count = d.first_rows[i + 1] - d.first_rows[i]
            if d.last_seqs[i] - d.first_seqs[i] + 1 == count:
                d.flags[i] |= FLAG_DENSE
        file_id, owner, level, created_ms = self._identity
        assert self._columns is not None and self._group_first_rows[-1] == self.rows
        assert not owner or list(d.topic_ids) == [owner], (owner, d.topic_ids[:2])
        done = (self.rows, len(d), self.payload_bytes)
        for hint, value in zip(self._hints, done, strict=True):
            assert hint is None or value <= hint, (self._hints, done)
        return Index(
            file_id, owner, level, self.payload_bytes, footer_offset,
            min(d.min_ts), max(d.max_ts), created_ms,
            self._columns, self._hashes, self._spans, self._group_first_rows, d,
        )  # fmt: skip


def _arrow_footer(
    schema: pa.Schema, messages: list[tuple[int, int, int]], metadata: dict[bytes, bytes]
) -> bytes:
    """The Arrow footer of a file with these record batches, with its length and magic.

    Arrow writes one for as many empty batches; then their places are replaced by the real ones.
    Placing the metadata last would otherwise need its size before the first row is written.
    """
    sink = pa.BufferOutputStream()
    nothing = pa.RecordBatch.from_arrays([pa.array([], t) for t in schema.types], schema=schema)
    with pa.ipc.new_file(sink, schema, metadata=metadata) as writer:  # type: ignore[call-arg]
        for _ in messages:
            writer.write_batch(nothing)
    shadow = sink.getvalue().to_pybytes()
    assert shadow.endswith(ARROW_MAGIC)
    ending = 4 + len(ARROW_MAGIC)
    length = int.from_bytes(shadow[-ending : -len(ARROW_MAGIC)], "little")
    footer = bytearray(shadow[-ending - length :])
    # A flatbuffer: root table -> its vtable -> field 3, a vector of 24-byte structs.
    (root,) = _U32.unpack_from(footer, 0)
    (vtable_back,) = struct.unpack_from("<i", footer, root)
    (field,) = struct.unpack_from("<H", footer, root - vtable_back + 4 + 2 * 3)
    assert field, "an Arrow footer without record batches"
    vector = root + field + _U32.unpack_from(footer, root + field)[0]
    assert _U32.unpack_from(footer, vector)[0] == len(messages)
    for i, (offset, metadata_bytes, body_bytes) in enumerate(messages):
        struct.pack_into(
            "<qiiq", footer, vector + 4 + 24 * i, offset, metadata_bytes, 0, body_bytes
        )
    return bytes(footer)
