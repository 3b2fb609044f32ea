"""The walk of one read: from a cursor towards the head, across memory, hot files and cold ones.

Only this file walks records.  A page holds at most as many records and bytes as the request allows,
never skips a live record, and says what was lost before its first one.  What memory or the page
cache holds is read at once; what needs a disk or an object store is read in the reader lane, and
the walk goes on from there, against the state of that moment.  What a topic with `cold_reads` has
let go is read in a lane of its own, from the archive.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from headrace.core.errors import HeadraceError, LakeUnavailable, TopicNotFound, typed
from headrace.core.runtime import Ticket
from headrace.engine.reading.page import Page, Tombstone
from headrace.engine.reading.page_archived import take_parts
from headrace.engine.reading.page_columns import ColumnCollector
from headrace.engine.reading.page_rows import Collector, ReadRequest, take_runs
from headrace.engine.reading.recent_pages import RecentPages, RecentRows
from headrace.engine.reading.seek import Seek, in_memory_from
from headrace.engine.removal import retention
from headrace.engine.removal.deleted_seqs import DeletedSeqs
from headrace.engine.removal.retention import LANE
from headrace.engine.state import EngineState, failed
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
# Goes on with what a lane gave, or with its error.
_Step = Callable[[object, BaseException | None], Page | None]


def walk(state: EngineState, topic: Topic, request: ReadRequest) -> Ticket[Page]:
    """Read a topic as it is."""
    try:
        found = Walk(state, topic, request).start()
    except HeadraceError as error:
        return failed(state.runtime, error)
    if isinstance(found, Ticket):
        return found
    ticket: Ticket[Page] = Ticket(state.runtime)
    ticket.resolve(found)
    return ticket


class Walk:
    """One read under way: settles where to begin, takes what is there, answers with a page.

    Each step returns the page, or None once a lane has taken over, and raises what is refused.
    """

    __slots__ = (
        "_collector",
        "_key",
        "_recent",
        "_request",
        "_state",
        "_ticket",
        "_tombstone",
        "_topic",
    )

    def __init__(
        self,
        state: EngineState,
        topic: Topic,
        request: ReadRequest,
        recent: RecentPages | None = None,
    ) -> None:
        self._state = state
        self._topic = topic
        self._request = request
        self._recent = None if request.columns else recent  # what others were given
        self._ticket: Ticket[Page] | None = None  # once a lane has taken over
        self._tombstone: Tombstone | None = None

    def start(self) -> Page | Ticket[Page]:
        """Read: the page, or where that takes a while a ticket of it."""
        state, topic = self._state, self._topic
        if topic.bounded:
            retention.enforce(state, topic)
            if topic.id in state.fetching and self._request.from_seq + 1 < in_memory_from(topic):
                # A read of old records waits for the cold tier anyway; one of the tail never does.
                state.fetching.wait(topic.id, partial(self._go_on, self._begin))
                return self._later()
        page = self._begin()
        return self._later() if page is None else page

    def _later(self) -> Ticket[Page]:
        if self._ticket is None:
            self._ticket = Ticket(self._state.runtime)
        return self._ticket

    def _go_on(self, step: Callable[[], Page | None]) -> None:
        """Take the next step of a read that somebody has a ticket of."""
        ticket = self._later()
        try:
            page = step()
        except Exception as error:  # noqa: BLE001 - whatever it is, the ticket tells of it
            ticket.fail(typed(error))
            return
        if page is not None:
            ticket.resolve(page)

    def _hand_over(self, lane: str, work: Callable[[], object], step: _Step) -> None:
        """Have work done in a lane, and go on with what it gives, or with its error."""
        self._later()

        def done(value: object, error: BaseException | None) -> None:
            self._go_on(partial(step, value, error))

        self._state.runtime.submit(lane, work, done)

    def _begin(self) -> Page | None:
        """Settle where to begin."""
        topic, request = self._topic, self._request
        cursor, epoch = request.from_seq, request.epoch
        if cursor > topic.head or (epoch is not None and epoch != topic.epoch):
            self._announce(1, topic.head, "recreated")
            cursor = topic.base
        elif request.last is not None:
            missing = topic.count - request.last
            cursor = topic.nth_live(missing) if missing > 0 else topic.base
        elif request.from_ts is not None:
            return self._seek(request.from_ts)
        return self._go(cursor)

    def _seek(self, ts: int) -> Page | None:
        """Find the first live seq with ts >= `ts`, then read from there."""
        topic, catalog = self._topic, self._state.catalog
        # What memory says now stands, however long the files take to answer.
        seek = Seek(topic, ts)
        try:
            found = seek.find(lambda topic_id: catalog.runs(topic_id, False), wait=False)
        except WouldBlock:
            files = {topic_id: catalog.files_of(topic_id) for topic_id in seek.owner_ids}

            def runs_of(topic_id: int) -> list[Run]:
                return runs_in(files[topic_id], topic_id)

            self._hand_over(LANE, lambda: seek.find(runs_of, wait=True), self._sought)
            return None
        return self._go(found)

    def _sought(self, value: object, error: BaseException | None) -> Page | None:
        if error is not None:
            raise error
        assert isinstance(value, int)
        return self._go(value)

    def _announce(self, first: int, last: int, reason: str) -> None:
        topic = self._topic
        # What a crash took above the floors is followed by what is left; so is a router's loss.
        above = reason in ("crash", "source_trim")
        floor = max(topic.evict_floor, last if above else 0) + 1
        if topic.archived_after(last):
            floor = last + 1
        self._tombstone = Tombstone(first, last, reason, floor, topic.head)

    def _go(self, cursor: int) -> Page | None:
        topic = self._topic
        if self._tombstone is None:
            lost = topic.lost_after(cursor)
            if lost is not None and topic.deleted is not None:
                lost = topic.unless_archived(lost)
            if lost is not None:
                self._announce(*lost)
                cursor = lost.last
        request, recent = self._request, self._recent
        if recent is not None:
            self._key = key = recent.key_of(topic, cursor, request)
            found = None if key is None else recent.find(key, topic.head)
            if found is not None:
                return self._page_of(found)
        kind = ColumnCollector if request.columns else Collector
        self._collector: Collector = kind.begin(topic, cursor, request)
        return self._walk()

    def _walk(self) -> Page | None:
        """Take what can be had without waiting; hand over to a lane when that ends."""
        topic, collector = self._topic, self._collector
        if not topic.live:
            raise TopicNotFound.named(topic.name)
        # What a cap or a TTL took while files were being read is announced by the next page.
        while not collector.full:
            if collector.cursor >= topic.base or collector.cursor >= topic.evict_floor:
                if not self._take():
                    return None
                break
            deleted = topic.deleted
            if deleted is None:
                break
            last = topic.archived_after(collector.cursor)
            # What was deleted up to some seq need not be looked for.
            collector.cursor = max(collector.cursor, min(deleted.below, last))
            if collector.cursor < last:
                self._read_archive(deleted, last)
                return None
            if not last and not self._pass_lost():
                break
        return self._page()

    def _pass_lost(self) -> bool:
        """Move on to what follows a loss that is announced; False: none is, by this page."""
        topic = self._topic
        lost = topic.lost_after(self._collector.cursor) if self._begins else None
        lost = topic.unless_archived(lost) if lost is not None else None
        if lost is None:
            return False
        self._announce(*lost)
        self._collector.cursor = lost.last
        return True

    def _read_archive(self, deleted: DeletedSeqs, last: int) -> None:
        """Go on with what only the archive has."""
        topic, collector, archive = self._topic, self._collector, self._state.archive
        if archive is None:
            raise _no_archive(topic.name, collector.cursor + 1)
        archived = ArchivedTopic(topic.name, topic.id, topic.epoch, self._state.identity)
        parts, gone = archive.parts(archived, collector.cursor + 1, last), deleted.copy()
        collector.freeze(gone.seqs)
        self._state.reads.archive()
        self._hand_over(
            ARCHIVE_LANE, lambda: take_parts(collector, parts, gone), self._archive_was_read
        )

    @property
    def _begins(self) -> bool:
        """Whether a loss can still be what this page begins with."""
        return self._tombstone is None and self._collector.left == self._request.limit

    def _archive_was_read(self, value: object, error: BaseException | None) -> Page | None:
        state, collector = self._state, self._collector
        collector.thaw()
        if error is not None:
            state.reads.archive_failed()
            raise error
        if isinstance(value, Lost):
            if self._begins:
                self._announce(*value)
                collector.cursor = value.last
            else:
                collector.full = True  # the next page begins with it
        return self._walk()

    def _take(self) -> bool:
        """Take from files, then from memory; False when the lane took over."""
        topic, collector = self._topic, self._collector
        # Up to the next gap only, even where everything up to beyond it is gone.
        cursor, base = collector.cursor, topic.base
        stop = topic.read_end(cursor)
        if cursor < base:
            cursor = base
        if cursor >= stop:
            collector.cursor = stop
            return True
        collector.cursor = cursor
        if cursor < topic.parent_to:
            for owner, _, last in topic.shares:
                if last > collector.cursor and not self._take_from(owner, min(stop, last)):
                    return False
                if collector.full or collector.cursor >= stop:
                    return True
        return self._take_from(topic, stop)

    def _take_from(self, owner: Topic, stop: int) -> bool:
        """Take what one topic holds up to `stop`; False when the lane took over."""
        collector = self._collector
        in_memory = in_memory_from(owner)
        if collector.cursor + 1 < in_memory and not self._sealed(owner, min(stop, in_memory - 1)):
            return False
        if not collector.full:
            if self._request.columns and self._window_off_loop(owner, stop):
                return False
            collector.take_blocks(owner.blocks, stop)
        if not collector.full:
            collector.cursor = stop
        return True

    def _window_off_loop(self, owner: Topic, stop: int) -> bool:
        """Have many blocks turned into columns in the lane; False: they are few."""
        collector = self._collector
        assert isinstance(collector, ColumnCollector)
        window = collector.window(owner.blocks)
        if len(window) <= WINDOW_BLOCKS_MAX:
            return False
        self._off_loop(lambda: collector.take_window(window, stop))
        return True

    def _sealed(self, owner: Topic, last: int) -> bool:
        """Read sealed rows up to `last`; False when the lane took over."""
        collector, owner_id = self._collector, owner.id
        files = self._state.catalog.files_of(owner_id)
        try:
            take_runs(collector, files, owner_id, last, wait=False)
        except WouldBlock:
            self._off_loop(lambda: take_runs(collector, files, owner_id, last, wait=True))
            return False
        except OSError as error:
            raise typed(error) from None
        return True

    def _off_loop(self, work: Callable[[], None]) -> None:
        """Collect in the reader lane, from the topic as it is now; then the walk goes on."""
        self._collector.freeze()
        self._hand_over(LANE, work, self._resumed)

    def _resumed(self, _value: object, error: BaseException | None) -> Page | None:
        self._collector.thaw()
        if error is not None:
            raise error
        return self._walk()

    def _page(self) -> Page:
        topic, collector = self._topic, self._collector
        if collector.cold or collector.elsewhere:
            self._state.reads.page(collector.cold, collector.elsewhere)
        elif self._recent is not None and self._key is not None and self._ticket is None:
            # No lane has taken over meanwhile, so the topic is as it was.
            kept = self._recent.keep(self._key, topic.head, collector)
            if kept is not None:
                return self._page_of(kept)
        return Page(
            topic.name,
            topic.epoch,
            collector.rows,
            collector.cursor,
            topic.head,
            topic.base + 1,
            self._tombstone,
            collector.scanned,
            collector.cold,
            collector.batches if isinstance(collector, ColumnCollector) else (),
            collector.elsewhere,
        )

    def _page_of(self, recent: RecentRows) -> Page:
        topic = self._topic
        return Page(
            topic.name,
            topic.epoch,
            recent.rows,
            recent.next_from_seq,
            topic.head,
            topic.base + 1,
            self._tombstone,
            recent.scanned,
            recent=recent,
        )


def _no_archive(topic: str, first_seq: int) -> LakeUnavailable:
    return LakeUnavailable(
        f"seqs of {topic!r} from {first_seq} on are in the lake, and this server cannot read one",
        fix="pip install 'headrace[cold]' where `headrace serve` runs, and restart it",
        detail={"topic": topic, "first_seq": first_seq},
    )
