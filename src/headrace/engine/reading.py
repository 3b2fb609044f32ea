"""Reading: from a cursor towards the head, across memory, hot files and cold ones.

Only this file walks records.  A page holds at most so many records and so many bytes, never skips a
live record, and says what was lost before its first one.  What memory or the page cache holds is
read at once; what needs a disk or an object store is read in the reader lane, and the walk goes on
from there, against the state of that moment.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import NamedTuple

import msgspec

from headrace.core.errors import HeadraceError, InvalidRequest, TopicNotFound
from headrace.core.limits import seq_max
from headrace.core.runtime import Ticket
from headrace.engine import retention
from headrace.engine.blocklist import BlockList
from headrace.engine.core_state import Core
from headrace.engine.topic import Topic
from headrace.storage.block import Block, Record, Rows
from headrace.storage.cache import WouldBlock
from headrace.storage.catalog import runs_in
from headrace.storage.segment_reader import Run

LANE = "read"


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
    """What one read gives: columns in `rows`, or `records` one by one."""

    topic: str
    epoch: int
    rows: Sequence[Rows]
    next_from_seq: int
    head_seq: int
    earliest_seq: int
    tombstone: Tombstone | None
    scanned: int

    @property
    def records(self) -> list[Record]:
        return [record for rows in self.rows for record in rows.records()]

    @property
    def count(self) -> int:
        return sum(map(len, self.rows))

    @property
    def caught_up(self) -> bool:
        return self.next_from_seq == self.head_seq

    @property
    def lag(self) -> int:
        return self.head_seq - self.next_from_seq


class ReadRequest(NamedTuple):
    """Where to read, and how much.  At most one of from_seq, from_ts and last is given."""

    from_seq: int = 0
    limit: int = 256
    bytes_max: int = 1 << 20
    nodes: Collection[str] = ()
    epoch: int | None = None
    from_ts: int | None = None
    last: int | None = None


class Reader:
    """Reads topics."""

    def __init__(self, core: Core) -> None:
        self._core = core

    def read(self, name: str, request: ReadRequest) -> Ticket[Page]:
        _check(request)
        topic = self._core.topic(name)
        ticket: Ticket[Page] = Ticket(self._core.runtime)
        _Walk(self._core, topic, request, ticket).start()
        return ticket

    def wait(self, name: str, after_seq: int) -> Ticket[None]:
        """A ticket that is done when `name` has a record beyond `after_seq`, or is gone."""
        _check_number("after_seq", after_seq)
        topic = self._core.topic(name)
        ticket: Ticket[None] = Ticket(self._core.runtime)
        if topic.head > after_seq:
            ticket.resolve(None)
            return ticket

        def wake() -> None:
            if ticket.done:
                return
            if topic.head > after_seq or not topic.live:
                ticket.resolve(None)
            else:
                _add_waiter(topic, wake)

        _add_waiter(topic, wake)
        return ticket


def _add_waiter(topic: Topic, wake: object) -> None:
    if topic.waiters is None:
        topic.waiters = []
    topic.waiters.append(wake)  # type: ignore[arg-type]


def _check(request: ReadRequest) -> None:
    for what in ("from_seq", "limit", "bytes_max", "from_ts", "last", "epoch"):
        value = getattr(request, what)
        if value is not None:
            _check_number(what, value)
    starts = [request.from_seq or None, request.from_ts, request.last]
    if sum(start is not None for start in starts) > 1:
        raise InvalidRequest("more than one start", fix="send from_seq, from_ts or last")


def _check_number(what: str, value: object) -> None:
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value <= seq_max:
        raise InvalidRequest(f"{what} is {value!r}", fix=f"send a number from 0 to {seq_max}")


class _Collector:
    """Rows taken so far, and how much more fits."""

    __slots__ = ("bytes_left", "cursor", "full", "left", "nodes", "rows", "scanned", "topic")

    def __init__(self, topic: Topic, cursor: int, request: ReadRequest) -> None:
        self.topic = topic
        self.cursor = cursor
        self.left = request.limit
        self.bytes_left = request.bytes_max
        self.nodes = request.nodes if topic.config.dedupe_node else ()
        self.rows: list[Rows] = []
        self.scanned = 0
        self.full = request.limit == 0

    def take_run(self, run: Run, last: int, wait: bool) -> None:
        """Take from a sealed run until it ends, `last` is passed, or the page is full."""
        stop = run.row_of(last + 1, wait)
        start = run.row_of(self.cursor + 1, wait)
        while start < stop and not self.full:
            end = min(stop, start + self.left)
            end = run.fit(start, end, max(self.bytes_left, 0), wait)
            self._add(run.rows(start, end, wait), run.size_of(start, end, wait))
            start = end

    def take_blocks(self, blocks: BlockList, last: int) -> None:
        """Take from memory until `last` is passed or the page is full."""
        while not self.full:
            # A block has at least one record, so more of them are never needed at a time.
            window = blocks.since(self.cursor + 1, self.left)
            index = 0
            while index < len(window) and window[index].first_seq <= last and not self.full:
                taken = self._take_singles(window, index, last)
                if taken == index and not self.full:
                    self._take_block(window[index], last)
                    taken += 1
                index = taken
            if index < len(window) or not window:
                return

    def _take_singles(self, blocks: list[Block], index: int, last: int) -> int:
        """Take a stretch of one-record blocks at once; returns where it ends."""
        seqs: list[int] = []
        data: list[bytes] = []
        stamps, kinds = [], []
        size = 0
        stop = min(len(blocks), index + self.left)
        while index < stop:
            block = blocks[index]
            payload = block.single
            if payload is None or block.first_seq > last:
                break
            size += block.bytes
            if size > self.bytes_left and (data or self.rows):
                size -= block.bytes
                self.full = not data
                break
            seqs.append(block.first_seq)
            stamps.append(block.ts)
            data.append(payload)
            kinds.append(block.kind)
            index += 1
        if data:
            self._add(Rows(seqs, stamps, data, kinds, append_firsts=seqs), size)
        return index

    def _take_block(self, block: Block, last: int) -> None:
        stop = min(block.count, last - block.first_seq + 1)
        start = max(0, self.cursor + 1 - block.first_seq)
        while start < stop and not self.full:
            end = min(stop, start + self.left)
            size = block.size_of(start, end)
            if size > self.bytes_left:
                end = _fit(block, start, end, self.bytes_left)
                size = block.size_of(start, end)
            self._add(block.rows(start, end), size)
            start = end

    def _add(self, rows: Rows, size: int) -> None:
        """Take rows; `size` is exact where nothing is filtered out."""
        seen, last = len(rows), rows.seqs[-1]
        if self._filtered(rows):
            live = self._wanted(rows)
            size = 0
            if len(live) == len(rows):
                size = _size(rows)
            elif live:
                rows = rows.pick(live)
                size = _size(rows)
            else:
                self.scanned += seen
                self.cursor = last
                return
        if size > self.bytes_left and self.rows:
            self.full = True
            return
        self.rows.append(rows)
        self.scanned += seen
        self.cursor = last
        self.left -= len(rows)
        self.bytes_left -= size
        self.full = self.left <= 0 or self.bytes_left <= 0

    def _filtered(self, rows: Rows) -> bool:
        if self.nodes and rows.nodes is not None:
            return True
        holes = self.topic.holes
        return holes is not None and bool(holes.range_cardinality(rows.seqs[0], rows.seqs[-1] + 1))

    def _wanted(self, rows: Rows) -> list[int]:
        holes = self.topic.holes or ()
        nodes = self.nodes
        columns = rows.nodes if nodes and rows.nodes is not None else None
        if columns is None:
            return [i for i, seq in enumerate(rows.seqs) if seq not in holes]
        return [
            i
            for i, (seq, node) in enumerate(zip(rows.seqs, columns, strict=True))
            if seq not in holes and node not in nodes
        ]


def _size(rows: Rows) -> int:
    total = sum(map(len, rows.data))
    if rows.metas is not None:
        total += sum(len(meta) for meta in rows.metas if meta is not None)
    return total


def _fit(block: Block, start: int, stop: int, bytes_max: int) -> int:
    """The largest end such that rows start..end hold at most `bytes_max`; at least one row."""
    low, high = start + 1, stop
    while low < high:
        middle = (low + high + 1) // 2
        if block.size_of(start, middle) <= bytes_max:
            low = middle
        else:
            high = middle - 1
    return low


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
        core, topic, request = self._core, self._topic, self._request
        retention.enforce(core, topic)
        cursor = request.from_seq
        recreated = request.epoch is not None and request.epoch != topic.epoch
        if recreated or cursor > topic.head:
            self._announce(1, topic.head, "recreated")
            cursor = topic.base
        elif request.last is not None:
            missing = topic.count - request.last
            cursor = topic.nth_live(missing) if missing > 0 else topic.base
        elif request.from_ts is not None:
            self._seek(request.from_ts, wait=False)
            return
        self._go(cursor)

    def _seek(self, ts: int, wait: bool) -> None:
        """Find the first live seq with ts >= `ts`, then read from there."""
        topic, catalog = self._topic, self._core.catalog
        try:
            runs = [] if _all_in_memory(topic) else catalog.runs(topic.id, wait)
            cursor = cursor_at_ts(topic, runs, ts, wait)
        except WouldBlock:
            files = catalog.files_of(topic.id)
            self._core.runtime.submit(
                LANE,
                lambda: cursor_at_ts(topic, runs_in(files, topic.id), ts, True),
                self._sought,
            )
            return
        self._go(cursor)

    def _sought(self, value: object, error: BaseException | None) -> None:
        if error is not None:
            self._ticket.fail(error)
        else:
            assert isinstance(value, int)
            self._go(value)

    def _announce(self, first: int, last: int, reason: str) -> None:
        topic = self._topic
        floor = topic.evict_floor + 1
        self._tombstone = Tombstone(first, last, reason, floor, topic.head)

    def _go(self, cursor: int) -> None:
        topic = self._topic
        if self._tombstone is None:
            lost = topic.lost_after(cursor)
            if lost is not None:
                self._announce(*lost)
                cursor = lost.last
        self._collector = _Collector(topic, max(cursor, 0), self._request)
        self._walk()

    def _walk(self) -> None:
        """Take what can be had without waiting; hand over to the lane when that ends."""
        topic, collector = self._topic, self._collector
        if not topic.live:
            self._ticket.fail(TopicNotFound.named(topic.name))
            return
        while not collector.full:
            # Up to the next gap only, even where everything up to beyond it is gone.
            stop = topic.read_end(collector.cursor)
            collector.cursor = min(max(collector.cursor, topic.base), stop)
            if collector.cursor >= stop:
                break
            oldest = topic.blocks.first
            in_memory = oldest.first_seq if oldest is not None else topic.head + 1
            if collector.cursor + 1 < in_memory and not self._sealed(min(stop, in_memory - 1)):
                return
            if not collector.full:
                collector.take_blocks(topic.blocks, stop)
            if not collector.full:
                collector.cursor = stop
            break
        self._finish()

    def _sealed(self, last: int) -> bool:
        """Read sealed rows up to `last`; False when the lane took over."""
        topic, collector, catalog = self._topic, self._collector, self._core.catalog
        try:
            _take_runs(collector, catalog.runs(topic.id, False), last, wait=False)
            return True
        except WouldBlock:
            pass
        except (HeadraceError, OSError) as error:
            self._ticket.fail(error)
            return False
        files = catalog.files_of(topic.id)
        self._core.runtime.submit(
            LANE,
            lambda: _take_runs(collector, runs_in(files, topic.id), last, wait=True),
            self._resumed,
        )
        return False

    def _resumed(self, _value: object, error: BaseException | None) -> None:
        if error is not None:
            self._ticket.fail(error)
        else:
            self._walk()

    def _finish(self) -> None:
        topic, collector = self._topic, self._collector
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
            )
        )


def _take_runs(collector: _Collector, runs: Sequence[Run], last: int, wait: bool) -> None:
    for run in runs:
        if run.first_seq > last or collector.full:
            break
        if run.last_seq > collector.cursor:
            collector.take_run(run, last, wait)
    if not collector.full:
        collector.cursor = max(collector.cursor, last)


def _all_in_memory(topic: Topic) -> bool:
    oldest = topic.blocks.first
    return oldest is not None and oldest.first_seq <= topic.base + 1


def cursor_at_ts(topic: Topic, runs: Sequence[Run], ts: int, wait: bool) -> int:
    """The cursor from which the next record is the first with a timestamp of at least `ts`."""
    oldest = topic.blocks.first
    for run in runs:
        if oldest is not None and run.first_seq >= oldest.first_seq:
            break
        if run.last_seq > topic.base and run.max_ts >= ts:
            row = run.row_at_ts(ts, wait)
            return max(topic.base, run.rows(row, row + 1, wait).seqs[0] - 1)
    for block in topic.blocks.from_seq(topic.base + 1):
        if block.ts < ts:
            continue
        stamps = block.timestamps(0, block.count)
        older = 0 if isinstance(stamps, int) else sum(1 for stamp in stamps if stamp < ts)
        return max(topic.base, block.first_seq - 1 + older)
    return topic.head
