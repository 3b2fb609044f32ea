"""The walk of one read: from a cursor towards the head, across memory, hot files and cold ones.

Only this file walks records.  A page holds at most as many records and bytes as the request allows,
never skips a live record, and says what was lost before its first one.  What memory or the page
cache holds is read at once; what needs a disk or an object store is read in the reader lane, and
the walk goes on from there, against the state of that moment.  What a topic with `cold_reads` has
let go is read in a lane of its own, from the archive.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from headrace.core.errors import HeadraceError, LakeUnavailable, TopicNotFound, typed
from headrace.core.runtime import Ticket
from headrace.engine.reading.page import Page, Tombstone
from headrace.engine.reading.page_archived import take_parts
from headrace.engine.reading.page_columns import ColumnCollector
from headrace.engine.reading.page_rows import Collector, ReadRequest, take_runs
from headrace.engine.removal import retention
from headrace.engine.removal.deleted_seqs import DeletedSeqs
from headrace.engine.removal.retention import LANE
from headrace.engine.state import EngineState
from headrace.engine.topics.live_seqs import Lost
from headrace.engine.topics.topic import Topic
from headrace.storage.archive import ArchivedTopic
from headrace.storage.files.block_cache import WouldBlock
from headrace.storage.files.catalog import runs_in
from headrace.storage.segment.run import Run

# Of its own: an archive that does not answer keeps no other read waiting.
ARCHIVE_LANE = "lake"
# More blocks than this are not turned into columns on the loop thread.
WINDOW_BLOCKS_MAX = 512


def walk(state: EngineState, topic: Topic, request: ReadRequest) -> Ticket[Page]:
    """Read a topic as it is."""
    ticket: Ticket[Page] = Ticket(state.runtime)
    Walk(state, topic, request, ticket).start()
    return ticket


class Walk:
    """One read under way: settles where to begin, takes what is there, answers with a page."""

    __slots__ = ("_collector", "_request", "_state", "_ticket", "_tombstone", "_topic")

    def __init__(
        self, state: EngineState, topic: Topic, request: ReadRequest, ticket: Ticket[Page]
    ) -> None:
        self._state = state
        self._topic = topic
        self._request = request
        self._ticket = ticket
        self._tombstone: Tombstone | None = None

    def start(self) -> None:
        """Settle what has gone, then where to begin."""
        state, topic, request = self._state, self._topic, self._request
        retention.enforce(state, topic)
        if topic.id in state.fetching and request.from_seq + 1 < _in_memory_from(topic):
            # A read of old records waits for the cold tier anyway; one of the tail never does.
            state.fetching.wait(topic.id, self._begin)
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
        topic, catalog = self._topic, self._state.catalog
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
            self._state.runtime.submit(
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
        if topic.archived_after(last):
            floor = last + 1
        self._tombstone = Tombstone(first, last, reason, floor, topic.head)

    def _go(self, cursor: int) -> None:
        topic = self._topic
        if self._tombstone is None:
            lost = topic.lost_after(cursor)
            if lost is not None and topic.deleted is not None:
                lost = topic.unless_archived(lost)
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
            elif topic.deleted is not None and self._read_archive(topic.deleted):
                return
        self._finish()

    def _read_archive(self, deleted: DeletedSeqs) -> bool:
        """Go on with what only the archive has; False: that is not for this page."""
        topic, collector, archive = self._topic, self._collector, self._state.archive
        last = topic.archived_after(collector.cursor)
        if not last:
            lost = topic.lost_after(collector.cursor) if self._begins else None
            lost = topic.unless_archived(lost) if lost is not None else None
            if lost is None:
                return False
            self._announce(*lost)
            collector.cursor = lost.last
            self._walk()
            return True
        # What was deleted up to some seq need not be looked for.
        collector.cursor = max(collector.cursor, min(deleted.below, last))
        if collector.cursor >= last:
            self._walk()
            return True
        if archive is None:
            self._ticket.fail(_no_archive(topic.name, collector.cursor + 1))
            return True
        archived = ArchivedTopic(topic.name, topic.id, topic.epoch, self._state.identity)
        parts, gone = archive.parts(archived, collector.cursor + 1, last), deleted.copy()
        collector.freeze(gone.seqs)
        self._state.reads.archive()
        self._state.runtime.submit(
            ARCHIVE_LANE, lambda: take_parts(collector, parts, gone), self._archive_was_read
        )
        return True

    @property
    def _begins(self) -> bool:
        """Whether a loss can still be what this page begins with."""
        return self._tombstone is None and self._collector.left == self._request.limit

    def _archive_was_read(self, value: object, error: BaseException | None) -> None:
        state, collector = self._state, self._collector
        collector.thaw()
        if error is not None:
            state.reads.archive_failed()
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
        files = self._state.catalog.files_of(topic.id)
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
        self._state.runtime.submit(LANE, work, self._resumed)

    def _resumed(self, _value: object, error: BaseException | None) -> None:
        self._collector.thaw()
        if error is not None:
            self._ticket.fail(typed(error))
        else:
            self._walk()

    def _finish(self) -> None:
        topic, collector = self._topic, self._collector
        self._state.reads.page(collector.cold, collector.elsewhere)
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


def _no_archive(topic: str, first_seq: int) -> LakeUnavailable:
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
