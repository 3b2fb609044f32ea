"""Reading: from a cursor towards the head, across memory, hot files and cold ones.

Only this file walks records.  A page holds at most so many records and so many bytes, never skips a
live record, and says what was lost before its first one.  What memory or the page cache holds is
read at once; what needs a disk or an object store is read in the reader lane, and the walk goes on
from there, against the state of that moment.  What a topic with `cold_reads` has let go is read in
a lane of its own, from the lake.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import msgspec
import pyarrow as pa

from headrace.core.errors import (
    HeadraceError,
    InvalidRequest,
    LakeUnavailable,
    TopicNotFound,
    typed,
)
from headrace.core.runtime import Ticket
from headrace.engine import retention
from headrace.engine.admission import check_seq
from headrace.engine.collect import Collector, ReadRequest, take_runs
from headrace.engine.collect_columns import ColumnCollector
from headrace.engine.collect_elsewhere import take_parts
from headrace.engine.core_state import Core
from headrace.engine.erased import Erased
from headrace.engine.retention import LANE
from headrace.engine.topic import Lost, Topic
from headrace.storage.block import Record, Rows
from headrace.storage.cache import WouldBlock
from headrace.storage.catalog import runs_in
from headrace.storage.history import Kept
from headrace.storage.segment_reader import Run

WAITERS_SWEPT_MIN = 64
# Of its own: a lake that does not answer keeps nobody else waiting.
LAKE_LANE = "lake"
# More blocks than this are not turned into columns on the loop thread.
WINDOW_BLOCKS_MAX = 512


class Tombstone(NamedTuple):
    """Seqs gap_from..gap_to are gone without anybody having asked for it."""

    gap_from: int
    gap_to: int
    reason: str
    earliest_seq: int
    head_seq: int

    @property
    def missed_estimate(self) -> int:
        return self.gap_to - self.gap_from + 1


class Page(msgspec.Struct, frozen=True):
    """What one read gives: columns in `rows`, or `records` one by one.

    A read that asked for columns has them in `batches`, and no `rows`.
    """

    topic: str
    epoch: int
    rows: Sequence[Rows]
    next_from_seq: int
    head_seq: int
    earliest_seq: int
    tombstone: Tombstone | None
    scanned: int
    cold: int = 0  # of those scanned, the ones that the cold tier holds
    batches: Sequence[pa.RecordBatch] = ()  # see storage/page_columns.py
    lake: int = 0  # of those scanned, the ones that only the lake has

    @property
    def records(self) -> list[Record]:
        return [record for rows in self.rows for record in rows.records()]

    @property
    def count(self) -> int:
        return sum(map(len, self.rows)) + sum(batch.num_rows for batch in self.batches)

    @property
    def caught_up(self) -> bool:
        return self.next_from_seq == self.head_seq

    @property
    def lag(self) -> int:
        return self.head_seq - self.next_from_seq


class Reader:
    """Reads topics."""

    def __init__(self, core: Core) -> None:
        self._core = core

    def read(self, name: str, request: ReadRequest) -> Ticket[Page]:
        _check(request)
        core = self._core
        topic = core.topic(name)
        drained = core.drain(name) if name in core.routed else None
        if drained is None:
            return walk(core, topic, request)
        ticket: Ticket[Page] = Ticket(core.runtime)

        def read(_: object) -> None:
            try:
                if core.by_name.get(name) is not topic:
                    raise TopicNotFound.named(name)  # deleted while this waited
                _Walk(core, topic, request, ticket).start()
            except HeadraceError as error:
                ticket.fail(error)

        drained.when_done(read)
        return ticket

    def wait(self, name: str, after_seq: int) -> Ticket[None]:
        """A ticket that is done when `name` has a record beyond `after_seq`, or is gone."""
        check_seq("after_seq", after_seq)
        topic = self._core.topic(name)
        ticket: Ticket[None] = Ticket(self._core.runtime)
        if name in self._core.routed:
            self._core.drain(name)
        if topic.head > after_seq:
            ticket.resolve(None)
        else:
            _add_waiter(topic, Waiter(topic, after_seq, ticket))
        return ticket


def walk(core: Core, topic: Topic, request: ReadRequest) -> Ticket[Page]:
    """Read a topic as it is."""
    ticket: Ticket[Page] = Ticket(core.runtime)
    _Walk(core, topic, request, ticket).start()
    return ticket


class Waiter:
    """Somebody who wants to hear of records beyond a seq."""

    __slots__ = ("_after_seq", "_topic", "ticket")

    def __init__(self, topic: Topic, after_seq: int, ticket: Ticket[None]) -> None:
        self._topic = topic
        self._after_seq = after_seq
        self.ticket = ticket

    def __call__(self) -> None:
        """Something has changed."""
        if self.ticket.done or self.ticket.abandoned:
            return
        if self._topic.head > self._after_seq or not self._topic.live:
            self.ticket.resolve(None)
        else:
            _add_waiter(self._topic, self)


def _add_waiter(topic: Topic, waiter: Waiter) -> None:
    waiters = topic.waiters
    if waiters is None:
        waiters = topic.waiters = []
    count = len(waiters)
    if count >= WAITERS_SWEPT_MIN and count & (count - 1) == 0:
        # Those who gave up are dropped now and then, at a cost that does not grow.
        waiters[:] = [w for w in waiters if not getattr(w, "ticket", waiter.ticket).abandoned]
    waiters.append(waiter)


def _check(request: ReadRequest) -> None:
    for what in ("from_seq", "limit", "bytes_max", "from_ts", "last", "epoch"):
        value = getattr(request, what)
        if value is not None:
            check_seq(what, value)
    starts = [request.from_seq or None, request.from_ts, request.last]
    if sum(start is not None for start in starts) > 1:
        raise InvalidRequest("more than one start", fix="send from_seq, from_ts or last")


class _Walk:
    """One read under way."""

    __slots__ = ("_collector", "_core", "_request", "_ticket", "_tombstone", "_topic")

    def __init__(
        self, core: Core, topic: Topic, request: ReadRequest, ticket: Ticket[Page]
    ) -> None:
        self._core = core
        self._topic = topic
        self._request = request
        self._ticket = ticket
        self._tombstone: Tombstone | None = None

    def start(self) -> None:
        """Settle what has gone, then where to begin."""
        core, topic, request = self._core, self._topic, self._request
        retention.enforce(core, topic)
        waiting = core.fetching.get(topic.id)
        if waiting is not None and request.from_seq + 1 < _in_memory_from(topic):
            # A read of history waits for the cold tier anyway; one of the tail never does.
            waiting.append(self._begin)
        else:
            self._begin()

    def _begin(self) -> None:
        topic, request = self._topic, self._request
        cursor = request.from_seq
        recreated = request.epoch is not None and request.epoch != topic.epoch
        if recreated or cursor > topic.head:
            self._announce(1, topic.head, "recreated")
            cursor = topic.base
        elif request.last is not None:
            missing = topic.count - request.last
            cursor = topic.nth_live(missing) if missing > 0 else topic.base
        elif request.from_ts is not None:
            self._seek(request.from_ts)
            return
        self._go(cursor)

    def _seek(self, ts: int) -> None:
        """Find the first live seq with ts >= `ts`, then read from there."""
        topic, catalog = self._topic, self._core.catalog
        # What memory says now stands, however long the files take to answer.
        base, in_memory = topic.base, _in_memory_from(topic)
        later = _cursor_in_memory(topic, ts)
        if in_memory <= base + 1:
            self._go(later)
            return
        topic_id = topic.id

        def look(runs: list[Run], wait: bool) -> int:
            found = _cursor_in_runs(runs, base, in_memory, ts, wait)
            return later if found is None else found

        try:
            self._go(look(catalog.runs(topic_id, False), False))
        except WouldBlock:
            files = catalog.files_of(topic_id)
            self._core.runtime.submit(
                LANE, lambda: look(runs_in(files, topic_id), True), self._sought
            )

    def _sought(self, value: object, error: BaseException | None) -> None:
        if error is not None:
            self._ticket.fail(typed(error))
        else:
            assert isinstance(value, int)
            self._go(value)

    def _announce(self, first: int, last: int, reason: str) -> None:
        topic = self._topic
        # What a crash took above the floors is followed by what is left; so is a router's loss.
        above = reason in ("crash", "source_trim")
        floor = max(topic.evict_floor, last if above else 0) + 1
        if topic.kept_after(last):
            floor = last + 1
        self._tombstone = Tombstone(first, last, reason, floor, topic.head)

    def _go(self, cursor: int) -> None:
        topic = self._topic
        if self._tombstone is None:
            lost = topic.lost_after(cursor)
            if lost is not None and topic.erased is not None:
                lost = topic.unless_kept(lost)
            if lost is not None:
                self._announce(*lost)
                cursor = lost.last
        collector = ColumnCollector if self._request.columns else Collector
        self._collector: Collector = collector(topic, max(cursor, 0), self._request)
        self._walk()

    def _walk(self) -> None:
        """Take what can be had without waiting; hand over to the lane when that ends."""
        topic, collector = self._topic, self._collector
        if not topic.live:
            self._ticket.fail(TopicNotFound.named(topic.name))
            return
        # What a cap or a TTL took while files were being read is announced by the next page.
        if not collector.full:
            if collector.cursor >= topic.evict_floor:
                if not self._take():
                    return
            elif topic.erased is not None and self._elsewhere(topic.erased):
                return
        self._finish()

    def _elsewhere(self, erased: Erased) -> bool:
        """Go on with what the topic let go and the lake has; False: that is not for this page."""
        topic, collector, history = self._topic, self._collector, self._core.history
        last = topic.kept_after(collector.cursor)
        if not last:
            lost = topic.lost_after(collector.cursor) if self._begins else None
            lost = topic.unless_kept(lost) if lost is not None else None
            if lost is None:
                return False
            self._announce(*lost)
            collector.cursor = lost.last
            self._walk()
            return True
        # What was deleted up to some seq need not be looked for.
        collector.cursor = max(collector.cursor, min(erased.below, last))
        if collector.cursor >= last:
            self._walk()
            return True
        if history is None:
            self._ticket.fail(_no_lake(topic.name, collector.cursor + 1))
            return True
        kept = Kept(topic.name, topic.id, topic.epoch, self._core.directory)
        parts, gone = history.parts(kept, collector.cursor + 1, last), erased.copy()
        collector.freeze(gone.seqs)
        self._core.lake_reads_total += 1
        self._core.runtime.submit(
            LAKE_LANE, lambda: take_parts(collector, parts, gone), self._came_from_elsewhere
        )
        return True

    @property
    def _begins(self) -> bool:
        """Whether a loss can still be what this page begins with."""
        return self._tombstone is None and self._collector.left == self._request.limit

    def _came_from_elsewhere(self, value: object, error: BaseException | None) -> None:
        core, collector = self._core, self._collector
        collector.thaw()
        if error is not None:
            core.lake_read_errors_total += 1
            self._ticket.fail(typed(error))
            return
        if isinstance(value, Lost):
            if self._begins:
                self._announce(*value)
                collector.cursor = value.last
            else:
                collector.full = True  # the next page begins with it
        self._walk()

    def _take(self) -> bool:
        """Take from files, then from memory; False when the lane took over."""
        topic, collector = self._topic, self._collector
        # Up to the next gap only, even where everything up to beyond it is gone.
        stop = topic.read_end(collector.cursor)
        collector.cursor = min(max(collector.cursor, topic.base), stop)
        in_memory = _in_memory_from(topic)
        if collector.cursor >= stop:
            return True
        if collector.cursor + 1 < in_memory and not self._sealed(min(stop, in_memory - 1)):
            return False
        if not collector.full and isinstance(collector, ColumnCollector):
            window = collector.window(topic.blocks)
            if len(window) > WINDOW_BLOCKS_MAX:
                self._off_loop(lambda: collector.take_window(window, stop))
                return False
        if not collector.full:
            collector.take_blocks(topic.blocks, stop)
        if not collector.full:
            collector.cursor = stop
        return True

    def _sealed(self, last: int) -> bool:
        """Read sealed rows up to `last`; False when the lane took over."""
        topic, collector = self._topic, self._collector
        files = self._core.catalog.files_of(topic.id)
        try:
            take_runs(collector, files, last, wait=False)
            return True
        except WouldBlock:
            pass
        except (HeadraceError, OSError) as error:
            self._ticket.fail(typed(error))
            return False
        self._off_loop(lambda: take_runs(collector, files, last, wait=True))
        return False

    def _off_loop(self, work: Callable[[], None]) -> None:
        """Collect in the reader lane, from the topic as it is now; then the walk goes on."""
        self._collector.freeze()
        self._core.runtime.submit(LANE, work, self._resumed)

    def _resumed(self, _value: object, error: BaseException | None) -> None:
        self._collector.thaw()
        if error is not None:
            self._ticket.fail(typed(error))
        else:
            self._walk()

    def _finish(self) -> None:
        topic, collector = self._topic, self._collector
        self._core.cold_reads_total += collector.cold
        self._core.lake_records_total += collector.elsewhere
        self._ticket.resolve(
            Page(
                topic.name,
                topic.epoch,
                collector.rows,
                collector.cursor,
                topic.head,
                topic.earliest_seq,
                self._tombstone,
                collector.scanned,
                collector.cold,
                collector.batches if isinstance(collector, ColumnCollector) else (),
                collector.elsewhere,
            )
        )


def _no_lake(topic: str, first_seq: int) -> LakeUnavailable:
    return LakeUnavailable(
        f"seqs of {topic!r} from {first_seq} on are in the lake, and this server cannot read one",
        fix="pip install 'headrace[cold]' where `headrace serve` runs, and restart it",
        detail={"topic": topic, "first_seq": first_seq},
    )


def _in_memory_from(topic: Topic) -> int:
    """The first seq that memory holds."""
    oldest = topic.blocks.first
    return oldest.first_seq if oldest is not None else topic.head + 1


def _cursor_in_memory(topic: Topic, ts: int) -> int:
    """The cursor before the first record in memory with a timestamp of at least `ts`."""
    for block in topic.blocks.from_seq(topic.base + 1):
        if block.ts < ts:
            continue
        stamps = block.timestamps(0, block.count)
        older = 0 if isinstance(stamps, int) else sum(1 for stamp in stamps if stamp < ts)
        return max(topic.base, block.first_seq - 1 + older)
    return topic.head


def _cursor_in_runs(
    runs: Sequence[Run], base: int, in_memory: int, ts: int, wait: bool
) -> int | None:
    """The same among sealed rows before `in_memory`; None when there is none."""
    for run in runs:
        if run.first_seq >= in_memory:
            break
        if run.last_seq > base and run.max_ts >= ts:
            row = run.row_at_ts(ts, wait)
            seq = run.rows(row, row + 1, wait).seqs[0]
            return max(base, seq - 1) if seq < in_memory else None
    return None
