"""The payloads of a stretch of a topic as ranges of sealed files, to be sent without being read.

Only this file hands out bytes of files.  A range is verified before that, once while its file is
open (`Segment.check`); what is behind the last sealed record is added from memory, so that one
answer can be all there is.  The rows of a topic lie side by side in a file, so many small appends
are one range.

Where rows need a closer look it answers None, and the caller reads a page instead: records that are
missing between others, losses that have to be told, files of the cold tier, records that only
memory holds, and so few that a page costs less than an answer of parts.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

import msgspec

from headrace.core.errors import TopicNotFound, typed
from headrace.core.runtime import Ticket
from headrace.engine.reading.page_rows import Collector, ReadRequest
from headrace.engine.removal import retention
from headrace.engine.removal.retention import LANE
from headrace.engine.state import EngineState
from headrace.engine.topics.topic import Topic
from headrace.storage.files.block_cache import WouldBlock
from headrace.storage.files.catalog import runs_in
from headrace.storage.fs import FileRange
from headrace.storage.segment.held_file import HeldFile
from headrace.storage.segment.reader import Segment
from headrace.storage.segment.run import Run

# Records that memory holds as well are sent from there up to this size.
FROM_MEMORY_BYTES_MAX: Final = 64 * 1024
# Ranges of one answer: what a file has of a topic is one for each of its row groups.
RANGES_MAX: Final = 1_024


class PayloadRanges(msgspec.Struct, frozen=True):
    """The payloads of all records behind a seq up to `next_seq`, one after another."""

    parts: list[bytes | FileRange]
    next_seq: int
    count: int
    sealed: bool  # all of them are in files


class _Span(NamedTuple):
    """Seqs that one topic has stored, and the files that may have them."""

    topic_id: int
    first: int
    last: int
    files: Sequence[Segment]


class _Found(NamedTuple):
    parts: list[bytes | FileRange]
    next_seq: int
    full: bool  # there is more in files than an answer may have


Result = PayloadRanges | None


def payload_ranges(
    state: EngineState, topic: Topic, request: ReadRequest, sealed_bytes_max: int
) -> Result | Ticket[Result]:
    """The payloads behind `request.from_seq`; None: a page has to be read.

    At most `sealed_bytes_max` of files, and of what only memory has as much as the request says.
    """
    if topic.bounded:
        retention.enforce(state, topic)
    if not _is_plain(state, topic, request):
        return None
    cursor = request.from_seq
    spans = _spans(state, topic, cursor)
    if not spans:
        return None
    try:
        found = _collect(spans, cursor, sealed_bytes_max, wait=False)
    except WouldBlock:
        return _collect_in_lane(state, topic, request, spans, sealed_bytes_max)
    except OSError as error:
        raise typed(error) from None
    return _complete(topic, request, found)


def _is_plain(state: EngineState, topic: Topic, request: ReadRequest) -> bool:
    """Whether every seq behind the cursor is a record that is to be sent."""
    cursor = request.from_seq
    if request.epoch not in (None, topic.epoch) or not topic.base <= cursor < topic.head:
        return False
    if topic.name in state.routed or topic.id in state.fetching:
        return False
    if topic.gaps or topic.trims:
        return False
    holes = topic.holes
    if holes is not None and holes.range_cardinality(cursor + 1, topic.head + 1):
        return False
    oldest = topic.blocks.first
    if oldest is None or oldest.first_seq > cursor + 1:
        return True
    size = topic.bytes * (topic.head - cursor) // max(topic.count, 1)
    return size > FROM_MEMORY_BYTES_MAX


def _spans(state: EngineState, topic: Topic, cursor: int) -> list[_Span]:
    """Whose sealed records are behind a cursor: those of a fork's ancestors, then its own."""
    spans = []
    catalog = state.catalog
    for owner, first, last in topic.shares:
        if last > cursor:
            last = min(last, owner.sealed_to)
            spans.append(_Span(owner.id, first, last, catalog.files_of(owner.id)))
    if topic.sealed_to > max(cursor, topic.parent_to):
        first = topic.parent_to + 1
        spans.append(_Span(topic.id, first, topic.sealed_to, catalog.files_of(topic.id)))
    return spans


def _collect(spans: Sequence[_Span], cursor: int, bytes_max: int, wait: bool) -> _Found:
    """The verified ranges of what follows a cursor without a break.  From any thread."""
    parts: list[bytes | FileRange] = []
    for span in spans:
        for run in runs_in(span.files, span.topic_id, wait):
            if run.last_seq <= cursor:
                continue
            if run.first_seq > min(cursor + 1, span.last):
                break
            if run.segment.meta.tier or not run.dense:
                return _Found(parts, cursor, True)
            stop = run.row_of(span.last + 1, wait)
            start = run.row_of(cursor + 1, wait)
            end, ranges = run.payload_ranges(start, stop, bytes_max, wait)
            if parts and (sum(length for _, length in ranges) > bytes_max):
                return _Found(parts, cursor, True)
            _add(parts, run, ranges, wait)
            bytes_max -= sum(length for _, length in ranges)
            cursor = run.first_seq + end - 1
            if end < stop or len(parts) > RANGES_MAX:
                return _Found(parts, cursor, True)
        if cursor < span.last:
            return _Found(parts, cursor, True)
    return _Found(parts, cursor, False)


def _add(
    parts: list[bytes | FileRange], run: Run, ranges: list[tuple[int, int]], wait: bool
) -> None:
    file = HeldFile(run.segment)
    for offset, length in ranges:
        run.segment.check(offset, length, wait)
        parts.append(FileRange(file, offset, length))


def _collect_in_lane(
    state: EngineState,
    topic: Topic,
    request: ReadRequest,
    spans: Sequence[_Span],
    sealed_bytes_max: int,
) -> Ticket[Result]:
    ticket: Ticket[Result] = Ticket(state.runtime)

    def done(value: object, error: BaseException | None) -> None:
        if error is not None:
            ticket.fail(typed(error))
        elif not topic.live:
            ticket.fail(TopicNotFound.named(topic.name))
        elif topic.base > request.from_seq:
            ticket.resolve(None)  # what retention took meanwhile has to be told
        else:
            assert isinstance(value, _Found)
            ticket.resolve(_complete(topic, request, value))

    def work() -> _Found:
        return _collect(spans, request.from_seq, sealed_bytes_max, wait=True)

    state.runtime.submit(LANE, work, done)
    return ticket


def _complete(topic: Topic, request: ReadRequest, found: _Found) -> Result:
    """Add what only memory has, if the ranges lead up to it."""
    parts, cursor, full = found
    if not parts:
        return None
    count = cursor - request.from_seq
    oldest = topic.blocks.first
    ends = full or oldest is None or oldest.first_seq > cursor + 1 or cursor >= topic.head
    if ends or topic.holes is not None or topic.gaps or topic.trims:
        return PayloadRanges(parts, cursor, count, sealed=True)
    collector = Collector.begin(topic, cursor, request)
    collector.take_blocks(topic.blocks, topic.head)
    parts.append(b"".join([value for rows in collector.rows for value in rows.data]))
    count = collector.cursor - request.from_seq
    return PayloadRanges(parts, collector.cursor, count, sealed=False)
