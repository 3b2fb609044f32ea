"""Examining one sealed file: which of its row groups are whole, and which records those hold.

For tools, with no engine running.  A file is read to its end whatever is wrong with it, so that
what is still good can be kept.  Which records are alive, and what becomes of the file, is decided
by `check.py` and `repair.py`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

import pyarrow as pa
import pyarrow.compute as pc

from headrace.core.errors import HeadraceError, NotReady, SegmentCorrupt, UnsupportedFormat
from headrace.storage.files.block_cache import BlockCache
from headrace.storage.files.store import Store
from headrace.storage.files.tier import COLD, Tiers
from headrace.storage.fs import File
from headrace.storage.segment.format import BLOCK_BYTES, Index, SegmentMeta, buffer_slots, schema_of
from headrace.storage.segment.reader import Segment
from headrace.storage.tools.lost_seqs import Range

READ_BLOCKS = 16
CACHE_BYTES = 2 * READ_BLOCKS * BLOCK_BYTES


@dataclass
class SegmentState:
    """What was found of one listed file."""

    meta: SegmentMeta
    problem: str = ""  # empty: whole
    offset: int | None = None
    exists: bool = True
    unreachable: bool = False
    spare: bool = False  # the hot copy is damaged, the cold one whole
    store: Store | None = None  # where the damaged copy lies
    groups_whole: list[int] = field(default_factory=list)  # of a damaged file
    rows_kept: int = 0
    topics: frozenset[int] | None = None  # None: its index cannot be read
    covered: dict[int, list[Range]] = field(default_factory=dict)  # records that can be read

    def may_hold(self, topic_id: int) -> bool:
        """Whether lost records of a topic may have been in this file."""
        if self.topics is not None:
            return topic_id in self.topics
        return self.meta.owner in (0, topic_id)


def examine_segment(tiers: Tiers, meta: SegmentMeta) -> SegmentState:
    """Read every byte of a file, in the copy that an engine would use."""
    state = _examine_in(tiers.hot, meta)
    if state.exists and not state.problem:
        return state
    if tiers.cold is None:
        if not state.exists and meta.tier == COLD:
            state.unreachable = True
            state.problem = "it is in the cold tier, and no cold tier is set (--cold-url)"
        return state
    try:
        cold = _examine_in(tiers.cold, meta)
    except (NotReady, OSError) as error:
        if state.exists:
            return state
        state.unreachable = True
        state.problem = error.message if isinstance(error, HeadraceError) else str(error)
        return state
    if state.exists and cold.exists and not cold.problem:
        cold.problem, cold.spare, cold.store = state.problem, True, tiers.hot
        return cold
    if state.exists or not cold.exists:
        return state
    return cold


def _examine_in(store: Store, meta: SegmentMeta) -> SegmentState:
    state = SegmentState(meta, store=store)
    try:
        file = store.open_read(meta.path)
        size = file.size()
    except FileNotFoundError:
        state.exists = False
        state.problem = f"the snapshot lists it and it is missing ({store.describe(meta.path)})"
        return state
    try:
        _examine_file(state, file, size)
    except SegmentCorrupt as error:
        state.problem = error.message
    finally:
        file.close()
    return state


def _examine_file(state: SegmentState, file: File, size: int) -> None:
    meta = state.meta
    segment = Segment(meta, file, BlockCache(CACHE_BYTES))
    if size != meta.size:
        state.offset = min(size, meta.size)
        state.problem = f"it has {size} bytes, the snapshot says {meta.size}"
        return
    try:
        index = segment.index()
    except (SegmentCorrupt, UnsupportedFormat) as error:
        state.offset = meta.footer_offset
        state.problem = error.message
        return
    state.topics = frozenset(index.directory.topic_ids)
    bad = _bad_blocks(segment, index)
    if not bad:
        directory = index.directory
        for at, topic_id in enumerate(directory.topic_ids):
            found = (directory.first_seqs[at], directory.last_seqs[at])
            state.covered[topic_id] = [found]
        return
    state.offset = min(bad) * BLOCK_BYTES
    state.problem = f"{len(bad)} of {len(index.hashes)} blocks do not match their checksum"
    for group in range(index.groups):
        if _touches(index, group, bad):
            continue
        batch = read_group(segment, group)
        state.groups_whole.append(group)
        state.rows_kept += batch.num_rows
        for topic_id, found in _ranges(batch):
            state.covered.setdefault(topic_id, []).append(found)


def _bad_blocks(segment: Segment, index: Index) -> set[int]:
    bad: set[int] = set()
    blocks = len(index.hashes)
    for first in range(0, blocks, READ_BLOCKS):
        stop = min(first + READ_BLOCKS, blocks)
        try:
            _read_blocks(segment, index, first, stop)
        except SegmentCorrupt:
            for block in range(first, stop):
                try:
                    _read_blocks(segment, index, block, block + 1)
                except SegmentCorrupt:
                    bad.add(block)
    return bad


def _read_blocks(segment: Segment, index: Index, first: int, stop: int) -> None:
    offset = first * BLOCK_BYTES
    segment.read(offset, min(stop * BLOCK_BYTES, index.footer_offset) - offset)


def _span(index: Index, group: int) -> tuple[int, int]:
    stride = 2 + 2 * buffer_slots(index.columns)[1]
    offset, length = index.spans[group * stride : group * stride + 2]
    return offset, length


def _touches(index: Index, group: int, bad: set[int]) -> bool:
    offset, length = _span(index, group)
    return any(
        offset // BLOCK_BYTES <= block <= (offset + length - 1) // BLOCK_BYTES for block in bad
    )


def read_group(segment: Segment, group: int) -> pa.RecordBatch:
    """One row group, every byte verified."""
    index = segment.index()
    offset, length = _span(index, group)
    data = segment.read(offset, length)
    batch = pa.ipc.read_record_batch(pa.py_buffer(data), schema_of(index.columns))
    assert batch.num_rows == index.group_first_rows[group + 1] - index.group_first_rows[group]
    return batch


def _ranges(batch: pa.RecordBatch) -> Iterator[tuple[int, Range]]:
    """Topic, first and last seq of each topic's rows in a batch.

    Rows of a topic are in order and complete, so that each live seq between the two is there.
    """
    runs = pc.run_end_encode(batch.column("topic_id"))  # type: ignore[attr-defined]
    start = 0
    for topic_id, end in zip(runs.values.to_pylist(), runs.run_ends.to_pylist(), strict=True):
        seqs = batch.column("seq")
        yield topic_id, (seqs[start].as_py(), seqs[end - 1].as_py())
        start = end
