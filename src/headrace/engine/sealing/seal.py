"""Sealing: what the log and memory hold of some topics becomes segment files.

Only this file turns captured topics into files and into the states a snapshot lists.  A capture is
taken on the loop thread, one topic at a time, and is consistent for that topic: every record up to
`sealed_to`, with the floors, holes and counts of the same instant.  Whatever comes later is in the
log after the position the checkpoint began at.  Writing happens elsewhere, from the captures alone.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from itertools import accumulate

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
from headrace.storage.segment.from_blocks import batch_of_blocks, optional_columns
from headrace.storage.segment.writer import SegmentWriter
from headrace.storage.snapshot.state import ProducerState, TopicState

# Rows are handed to the writer in pieces of about this size, so that memory stays bounded.
PORTION_BYTES = 4 << 20
SEGMENTS = "segments"

Piece = tuple[int, Block, int, int]

# What most topics have of these, and nobody changes.  Made anew they would be several objects for
# each capture, all of which the collector looks at on the loop while captures are taken.
_NO_RANGES: list[tuple[int, int]] = []
_NO_PRODUCERS: dict[str, ProducerState] = {}
_NO_APPENDS: dict[str, bytes] = {}


class Capture(msgspec.Struct, frozen=True, gc=False):
    """One topic at one instant."""

    topic: Topic
    state: TopicState
    blocks: list[Block]  # not sealed yet, oldest first
    base: int  # rows up to here are dead


def capture(state: EngineState, topic: Topic, *, clean: bool = False) -> Capture:
    """Take everything of `topic` that is not in a file yet.  On the loop thread.

    At a clean exit the reservation ends: no seq above the head was given out.
    """
    if not topic.ephemeral:
        topic.count_as_logged(topic.head)
    blocks = topic.blocks.since(max(topic.sealed_to, topic.base) + 1)
    held = topic.bytes
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
        last_ts=topic.last_ts,
        created_ms=topic.created_ms,
        evict_floor_cap=topic.cap_floor,
        evict_floor_ttl=topic.ttl_floor,
        evict_floor_crash=topic.crash_floor,
        trim_floor=topic.trim_floor,
        delete_floor=max(topic.delete_floor, topic.base),
        reserved_to=topic.head if clean else reserved_to(topic),
        bytes=held,
        holes=topic.holes.serialize() if topic.holes else b"",
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
    return Capture(topic, saved, blocks, topic.base)


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
    state.may_drop_blocks(topic)


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
    """Write the blocks of all captures to files, durable on return.  Off the loop thread.

    A topic with enough of its own gets files of its own; the others share.
    """
    metas: list[SegmentMeta] = []
    shared: list[Capture] = []
    try:
        for captured in sorted(captures, key=lambda c: c.topic.id):
            if not captured.blocks:
                continue
            size = sum([block.bytes for block in captured.blocks])
            rows = sum([block.count for block in captured.blocks])
            enough = rows >= policy.own_rows_min or size >= policy.own_bytes_min
            if enough and size >= big_bytes_min:
                for part in _split(pieces_of(captured), policy.own_bytes_max):
                    topic_id = captured.topic.id
                    metas.append(_write(fs, part, topic_id, next_file_id(), created_ms))
            else:
                shared.append(captured)
        everyone = [piece for captured in shared for piece in pieces_of(captured)]
        metas.extend(
            _write(fs, part, 0, next_file_id(), created_ms)
            for part in _split(everyone, policy.own_bytes_max)
        )
        let_go(everyone)
        if metas:
            fs.sync_dir(SEGMENTS)
    except BaseException:
        for meta in metas:
            fs.unlink(meta.path)
        raise
    return metas


def pieces_of(captured: Capture) -> list[Piece]:
    """The rows of a capture that are above its dead prefix."""
    topic_id, live_from = captured.topic.id, captured.base + 1
    if not captured.blocks or captured.blocks[0].first_seq >= live_from:
        return [(topic_id, block, 0, block.count) for block in captured.blocks]
    pieces = []
    for block in captured.blocks:
        start = max(0, live_from - block.first_seq)
        if start < block.count:
            pieces.append((topic_id, block, start, block.count))
    return pieces


def _split(pieces: Sequence[Piece], bytes_max: int) -> Iterator[Sequence[Piece]]:
    """Yield runs of pieces of at most `bytes_max` together, or one piece that is larger."""
    ends = list(accumulate([piece[1].bytes for piece in pieces]))
    low = before = 0
    while low < len(ends):
        high = max(low + 1, bisect_right(ends, before + bytes_max, low))
        yield pieces[low:high]
        low, before = high, ends[high - 1]


def _write(
    fs: Filesystem, pieces: Sequence[Piece], owner: int, file_id: int, created_ms: int
) -> SegmentMeta:
    writer = SegmentWriter(
        fs,
        file_id,
        owner,
        0,
        created_ms,
        columns=optional_columns([piece[1] for piece in pieces]),
        payload_bytes_hint=sum([len(piece[1].raw) for piece in pieces]),
        rows_hint=sum([stop - start for _, _, start, stop in pieces]),
        topics_hint=len({piece[0] for piece in pieces}),
    )
    try:
        for portion in _split(pieces, PORTION_BYTES):
            writer.add(batch_of_blocks(portion))
        return writer.finish()
    except BaseException:
        writer.abort()
        raise
