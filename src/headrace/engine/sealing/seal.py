"""Sealing: what the log and memory hold of some topics becomes segment files.

Only this file turns captured topics into files and into the states a snapshot lists.  A capture is
taken on the loop thread, one topic at a time, and is consistent for that topic: every record up to
`sealed_to`, with the floors, holes and counts of the same instant.  Whatever comes later is in the
log after the position the checkpoint began at.  Writing happens elsewhere, from the captures alone.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import accumulate
from operator import attrgetter

import msgspec

from headrace.core.let_go import let_go
from headrace.engine.queues.replay import stored_queue
from headrace.engine.removal.deleted_seqs import stored_deletes
from headrace.engine.state import EngineState
from headrace.engine.topics.topic import Topic
from headrace.storage.block import Block
from headrace.storage.files.merge_policy import MergePolicy
from headrace.storage.fs import Filesystem
from headrace.storage.segment.format import SegmentMeta
from headrace.storage.segment.from_blocks import BlockRows, BlockRun
from headrace.storage.segment.group_columns import ROW_AROUND_BYTES
from headrace.storage.segment.writer import SegmentWriter
from headrace.storage.snapshot.state import ProducerState, TopicState

# Rows are handed to the writer a row group at a time: of about this size, so that memory stays
# bounded, also that of the merge which reads eight such files side by side; and of so many blocks
# that no step over all of them takes long, for it keeps the interpreter from other threads.
PORTION_BYTES = 2 << 20
PORTION_BLOCKS_MAX = 8_192
NEIGHBOUR_BITS = 10  # topics whose ids are the same but for these are sorted in one step
SEGMENTS = "segments"
_TOPIC_ID = attrgetter("topic.id")

# What most topics have of these, and nobody changes.  Made anew they would be several objects for
# each capture, all of which the collector looks at on the loop while captures are taken.
_NO_RANGES: list[tuple[int, int]] = []
_NO_PRODUCERS: dict[str, ProducerState] = {}
_NO_APPENDS: dict[str, bytes] = {}


class Capture(msgspec.Struct, frozen=True, gc=False):
    """One topic at one instant."""

    topic: Topic
    state: TopicState
    blocks: list[Block]  # not sealed yet, oldest first; none once they have been written
    base: int  # rows up to here are dead
    bytes_max: int  # at least as many as the blocks have


def capture(state: EngineState, topic: Topic, *, clean: bool = False) -> Capture:
    """Take everything of `topic` that is not in a file yet.  On the loop thread.

    At a clean exit the reservation ends: no seq above the head was given out.
    """
    if not topic.ephemeral:
        topic.count_as_logged(topic.head)
    base = topic.kept_base
    blocks = topic.blocks.since(max(topic.sealed_to, base) + 1)
    held, holes = topic.bytes, topic.holes
    delete_floor = max(topic.delete_floor, topic.base)
    if topic.kept_for_forks:
        # To itself it has nothing left; which of its rows are needed, its forks say.
        held, holes, delete_floor = 0, None, topic.head
    sealed_to = topic.head
    if topic.ephemeral:
        # Only what was written under another class before is ever stored.
        sealed_to = max(topic.sealed_to, topic.logged_to)
        blocks = [block for block in blocks if block.last_seq <= sealed_to]
        held -= topic.size_between(sealed_to + 1, topic.head, state.sealed(topic))
    producers, older_appends = _NO_PRODUCERS, _NO_APPENDS
    if topic.producers is not None:
        producers, older_appends = topic.producers.saved()
    saved = TopicState(
        id=topic.id,
        name=topic.name,
        epoch=topic.epoch,
        config=topic.config.encode(),
        head=topic.head,
        sealed_to=sealed_to,
        # Of what is staged a stream says nothing: a client may have named any time.
        last_ts=topic.last_ts if topic.stream is None else topic.blocks.last_ts,
        created_ms=topic.created_ms,
        evict_floor_cap=topic.cap_floor,
        evict_floor_ttl=topic.ttl_floor,
        evict_floor_crash=topic.crash_floor,
        trim_floor=topic.trim_floor,
        delete_floor=delete_floor,
        reserved_to=topic.head if clean else reserved_to(topic),
        bytes=held,
        holes=holes.serialize() if holes else b"",
        gaps=list(topic.gaps) if topic.gaps else _NO_RANGES,
        producers=producers,
        state=topic.state,
        parent_id=topic.parent_id,
        parent_to=topic.parent_to,
        last_write_ms=topic.last_write_ms,
        queue=stored_queue(topic),
        trims=list(topic.trims) if topic.trims else _NO_RANGES,
        archived_seq=topic.archived_seq,
        overtaken_seq=topic.overtaken_seq,
        erased=stored_deletes(topic.deleted),
        older_appends=older_appends,
    )
    topic.begin_sealing(sealed_to)
    return Capture(topic, saved, blocks, base, topic.sealing_bytes)


def reserved_to(topic: Topic) -> int:
    """The last seq that may have been given out without a sync."""
    reservation = topic.reservation
    return max(reservation.valid_to, reservation.staged_to, topic.head)


def sealed(state: EngineState, captured: Capture) -> None:
    """The capture is in files that readers can see.  On the loop thread."""
    topic = captured.topic
    if not topic.sealing_to or not topic.live:
        return
    topic.end_sealing()
    state.sealed_blocks.may_go(topic)


def unsealed(captured: Capture) -> None:
    """The capture could not be written: its blocks are unsealed again."""
    captured.topic.give_up_sealing()


def write_captures(
    fs: Filesystem,
    captures: Sequence[Capture],
    next_file_id: Callable[[], int],
    created_ms: int,
    policy: MergePolicy,
    big_bytes_min: int,
) -> list[SegmentMeta]:
    """Off the loop: write the captured blocks to new files, in (topic_id, seq) order.

    A topic with at least `big_bytes_min` and enough for files of its own gets files of its own; the
    others share.
    """
    metas: list[SegmentMeta] = []
    shared: list[BlockRun] = []

    def write(runs: Iterable[BlockRun], owner: int) -> None:
        for portions in _files(_portions(runs), policy.own_bytes_max):
            metas.append(_write(fs, portions, owner, next_file_id(), created_ms))

    try:
        for captured in _by_topic(captures):
            run = run_of(captured)
            if run is None:
                continue
            if _is_big(run, captured.bytes_max, policy, big_bytes_min):
                write([run], run.topic_id)
            else:
                shared.append(run)
        write(shared, 0)
        let_go(shared)
        if metas:
            fs.sync_dir(SEGMENTS)
    except BaseException:
        for meta in metas:
            fs.unlink(meta.path)
        raise
    return metas


def forget_blocks(captures: Sequence[Capture]) -> None:
    """Off the loop: let go of blocks that have been written.

    Topics drop theirs when memory is short, and these would keep them in memory until the snapshot.
    """
    for captured in captures:
        let_go(captured.blocks)


def _by_topic(captures: Sequence[Capture]) -> Iterator[Capture]:
    """Yield captures by the ids of their topics.

    Neighbours are sorted together: to sort 50,000 in one step takes 10 ms and the interpreter.
    """
    neighbours: dict[int, list[Capture]] = {}
    for captured in captures:
        neighbours.setdefault(captured.topic.id >> NEIGHBOUR_BITS, []).append(captured)
    for number in sorted(neighbours):
        yield from sorted(neighbours[number], key=_TOPIC_ID)


def run_of(captured: Capture) -> BlockRun | None:
    """The rows of a capture that are above its dead prefix; None: there are none."""
    blocks, live_from = captured.blocks, captured.base + 1
    dead = 0
    while dead < len(blocks) and blocks[dead].last_seq < live_from:
        dead += 1
    if dead == len(blocks):
        return None
    skipped = max(0, live_from - blocks[dead].first_seq)
    return BlockRun(captured.topic.id, blocks[dead:] if dead else blocks, skipped)


def _is_big(run: BlockRun, bytes_max: int, policy: MergePolicy, big_bytes_min: int) -> bool:
    """Whether a topic gets files of its own; its blocks are only counted if they may be enough."""
    if bytes_max < big_bytes_min:
        return False
    if run.rows_max < policy.own_rows_min and bytes_max < policy.own_bytes_min:
        return False
    size = sum([block.bytes for block in run.blocks])
    rows = sum([block.count for block in run.blocks])
    return size >= big_bytes_min and (rows >= policy.own_rows_min or size >= policy.own_bytes_min)


class _Portion:
    """Rows that become one row group, while they are gathered."""

    __slots__ = ("blocks", "bytes", "runs")

    def __init__(self) -> None:
        self.runs: list[BlockRun] = []
        self.blocks = 0
        self.bytes = 0  # about what the rows take in a file

    def add(self, run: BlockRun, size: int) -> None:
        self.runs.append(run)
        self.blocks += len(run.blocks)
        self.bytes += size


class _Rows:
    """Rows that become one row group."""

    __slots__ = ("payload_bytes", "rows", "rows_max", "topics")

    def __init__(self, portion: _Portion) -> None:
        self.rows = rows = BlockRows.of_runs(portion.runs)
        self.payload_bytes = portion.bytes - ROW_AROUND_BYTES * rows.count
        self.rows_max = sum([run.rows_max for run in portion.runs])
        self.topics = len(portion.runs)
        let_go(portion.runs)


def _portions(runs: Iterable[BlockRun]) -> Iterator[_Portion]:
    """Cut runs into portions: of about a row group, but at least a block, and of not too many."""
    portion = _Portion()
    for run in runs:
        blocks = run.blocks
        ends = list(accumulate([block.bytes + ROW_AROUND_BYTES * block.count for block in blocks]))
        low = before = 0
        while low < len(blocks):
            room = before + PORTION_BYTES - portion.bytes
            most = min(len(blocks), low + PORTION_BLOCKS_MAX - portion.blocks)
            high = bisect_right(ends, room, low, most)
            if high == low and portion.runs:
                yield portion
                portion = _Portion()
                continue
            high = max(high, low + 1)
            whole = high - low == len(blocks)
            skipped = 0 if low else run.skipped
            part = run if whole else BlockRun(run.topic_id, blocks[low:high], skipped)
            portion.add(part, ends[high - 1] - before)
            low, before = high, ends[high - 1]
    if portion.runs:
        yield portion


def _files(portions: Iterable[_Portion], bytes_max: int) -> Iterator[list[_Rows]]:
    """Group portions into files of at most `bytes_max` of payload, or of one that is larger."""
    together: list[_Rows] = []
    size = 0
    for portion in portions:
        rows = _Rows(portion)
        if together and size + rows.payload_bytes > bytes_max:
            yield together
            together, size = [], 0
        together.append(rows)
        size += rows.payload_bytes
    if together:
        yield together


def _write(
    fs: Filesystem, groups: list[_Rows], owner: int, file_id: int, created_ms: int
) -> SegmentMeta:
    writer = SegmentWriter(
        fs,
        file_id,
        owner,
        0,
        created_ms,
        columns=frozenset().union(*[group.rows.optional for group in groups]),
        payload_bytes_hint=sum([group.payload_bytes for group in groups]),
        rows_hint=sum([group.rows_max for group in groups]),
        topics_hint=sum([group.topics for group in groups]),
    )
    groups.reverse()
    try:
        while groups:
            writer.add(groups.pop().rows.batch())
            writer.end_group()
        return writer.finish()
    except BaseException:
        writer.abort()
        raise
