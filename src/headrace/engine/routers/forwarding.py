"""Forwarding: passes over a source that copy its new records to the destinations of its routers.

Only this file moves a router's cursor.  A pass consumes at most `RECORDS_PER_PASS` records of a
source, for all routers with the same cursor, and logs one entry without payloads that says what was
copied where; the copies are visible, and the cursors moved, when that entry has met the class of
the destinations.  Where the source's records are not in the log, the copies are logged whole.

`source_job.py` runs passes when records have become visible.  A reader of a destination does not
wait for that: `drain.py` runs the passes that are left first.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from operator import itemgetter
from typing import NamedTuple

from pyroaring import BitMap64

from headrace.core.errors import HeadraceError
from headrace.core.limits import router_hops_max, seq_max
from headrace.core.runtime import Ticket
from headrace.engine.log_steps import all_durable
from headrace.engine.reading.page import Page
from headrace.engine.reading.page_rows import ReadRequest
from headrace.engine.reading.walk import walk
from headrace.engine.removal import retention
from headrace.engine.routers.copied_records import (
    BYTES_PER_PASS,
    RECORDS_PER_PASS,
    Copy,
    ForwardCommit,
    Window,
    encode_seqs,
    joined,
    live_rows,
    window_in_memory,
)
from headrace.engine.routers.copy_log import CopyLog
from headrace.engine.routers.retry import Retries
from headrace.engine.routers.selection import (
    ANNOUNCED,
    UNSYNCED,
    Picker,
    key_of,
    positions,
    seqs_of,
)
from headrace.engine.routers.source_job import SourceJob
from headrace.engine.routers.state import CopiedKeys, HopRuns, Router, counted
from headrace.engine.state import EngineState
from headrace.engine.streams.rules import takes_no_more
from headrace.engine.topics.live_seqs import Lost
from headrace.engine.topics.topic import Topic
from headrace.storage.block import Rows
from headrace.storage.wal.frame import (
    FORWARD_KEY,
    FORWARD_LOST,
    FORWARD_STORED,
)

# Memory has room for this many passes of the largest size.
PASSES_IN_MEMORY = 16
# Routers that one pass makes copies for; between passes the loop may do other work.  More share a
# log entry, and hold the loop for longer: 128 of them 0.4 ms and more.
ROUTERS_PER_PASS = 32


class _EntryGroup(NamedTuple):
    """What copies have in common that one log entry can describe."""

    turn: int  # routers before it in this pass with copies for the same topic
    shard: int
    synced: bool
    stored: bool
    picked: int  # the identity of what was picked
    last: int
    flags: int
    hops: tuple[int, ...]
    router_id: int  # 0: the copies have no keys, so that routers can share an entry


class Forwarder:
    """Drives the routers of one engine."""

    def __init__(self, state: EngineState) -> None:
        self.state = state
        self.sources: dict[int, SourceJob] = {}  # by topic id
        self._picker = Picker(state, self._consumed_to)
        self._log = CopyLog(state, self._settled)
        self.hops = self._picker.hops
        self.changed: set[int] = set()  # routers whose cursor has moved since the last snapshot
        self.keys_changed: set[int] = set()  # destinations
        self.forwarded_total = 0
        self.on_settled: Callable[[], None] = lambda: None
        self.held = False
        self.retries = Retries(state, self._try_again)

    # Passes

    def has_work(self, routers: Iterable[Router]) -> bool:
        """Return whether another pass could do something now."""
        if self.held:
            return False
        return any(
            r.live and not r.busy and not r.blocked and r.cursor < r.source.head for r in routers
        )

    def passes(self, routers: Iterable[Router]) -> list[list[Router]]:
        """Return the routers with something to do now, in groups with the same cursor."""
        if self.held:
            return []
        now_ns = self.state.clock.monotonic_ns()
        by_cursor: dict[int, list[Router]] = {}
        for router in routers:
            ready = router.live and not router.busy and router.cursor < router.source.head
            if ready and router.retry_ns <= now_ns:
                by_cursor.setdefault(router.cursor, []).append(router)
        return [
            together[at : at + ROUTERS_PER_PASS]
            for together in by_cursor.values()
            for at in range(0, len(together), ROUTERS_PER_PASS)
        ]

    def _consumed_to(self, topic_id: int) -> int:
        """Return the seq up to which all routers of a topic have consumed it."""
        job = self.sources.get(topic_id)
        return min(router.cursor for router in job.routers) if job is not None else 0

    def run(self, routers: list[Router]) -> bool:
        """Run one pass for routers with the same cursor; return whether it began anything."""
        assert len(routers) <= ROUTERS_PER_PASS, len(routers)
        topic, cursor = routers[0].source, routers[0].cursor
        retention.enforce(self.state, topic)
        lost = topic.lost_after(cursor)
        if lost is not None:
            return self._stage_lost(topic, cursor, lost, routers)
        window = window_in_memory(topic, cursor, topic.read_end(cursor), self._bytes_max(routers))
        if window is None:
            self._fetch(topic, cursor, routers)
            return True
        return self._stage(window, routers)

    def _bytes_max(self, routers: list[Router]) -> int:
        """Return how many bytes a pass may copy: all its copies together must fit into memory."""
        budget = self.state.settings.memory_budget_bytes // PASSES_IN_MEMORY
        return min(BYTES_PER_PASS, budget // len(routers))

    def _fetch(self, topic: Topic, cursor: int, routers: list[Router]) -> None:
        """Read records that memory does not hold from files, and stage their copies."""
        for router in routers:
            router.busy = True

        def fetched(done: Ticket[Page]) -> None:
            for router in routers:
                router.busy = False
            if done.error is not None:
                self.retries.add(routers, done.error)
            elif not self.held and topic.live:
                self._take_page(topic, cursor, done.result(), routers)
            self.on_settled()

        request = ReadRequest(cursor, RECORDS_PER_PASS, self._bytes_max(routers))
        walk(self.state, topic, request).when_done(fetched)

    def _take_page(self, topic: Topic, cursor: int, page: Page, routers: list[Router]) -> None:
        """Stage copies of the records of a page that are still alive."""
        routers = [r for r in routers if r.live and r.cursor == cursor]
        lost = topic.lost_after(cursor)
        if lost is not None:
            self._stage_lost(topic, cursor, lost, routers)
            return
        rows = joined(page.rows) if page.rows else Rows([], 0, [])
        last = min(page.next_from_seq, topic.read_end(cursor))
        self._stage(Window(topic, cursor, last, None, live_rows(topic, rows)), routers)

    def _try_again(self, router: Router) -> None:
        job = self.sources.get(router.source.id)
        if job is not None:
            self.state.turns.enqueue(job)

    # Staging

    def give_up(self, router: Router) -> bool:
        """Announce as lost what a router cannot copy of a source that goes; True: it has begun."""
        topic, cursor = router.source, router.cursor
        if self.held or not router.live:
            return False
        lost = topic.lost_after(cursor)
        if lost is not None:
            return self._stage_lost(topic, cursor, lost, [router], given_up=BitMap64())
        lost = Lost(max(cursor, topic.base) + 1, topic.read_end(cursor), "source_trim")
        deleted = BitMap64(topic.holes or ())
        return self._stage_lost(topic, cursor, lost, [router], given_up=deleted)

    def _stage_lost(
        self,
        topic: Topic,
        cursor: int,
        lost: Lost,
        routers: list[Router],
        *,
        given_up: BitMap64 | None = None,
    ) -> bool:
        """Stage holes for records that are gone; the destination announces them as lost.

        A hole counts its hops as a record does: it would go round a cycle for ever otherwise.
        `given_up`: also where the destination has no room, as holes take none, and without these
        seqs, which were deleted; a stream that has ended has no place even for holes.
        """
        hops, same_to = self.hops.get(topic.id, _NO_HOPS).run_from(lost.first)
        last = min(lost.last, same_to)
        over = [r for r in routers if given_up is not None and takes_no_more(r.dest)]
        if over or hops >= router_hops_max or last < lost.first:
            self._stage_nothing(topic, cursor, last, over or routers)
            return True
        # It is not known how many records a crash took: they are one hole.
        first_lost = last if lost.reason == "crash" else lost.first
        before = range(cursor + 1, first_lost)
        count, skip = last - first_lost + 1, encode_seqs(before)
        if given_up:
            given_up.remove_range(last + 1, seq_max)
            given_up.remove_range(0, first_lost)
            count -= len(given_up)
            skip = (given_up | BitMap64(before)).serialize()
        groups: dict[tuple[int, int, bool], list[Copy]] = {}
        turns: Counter[int] = Counter()  # by destination: what is numbered first is logged first
        now = self.state.clock.now_ms()
        for router in routers:
            dest = router.dest
            refuses = self._picker.refusal if given_up is None else self._picker.log_refusal
            refusal = refuses(router)
            if refusal is None and not dest.takes_trim():
                refusal = ANNOUNCED
            if refusal is not None:
                self.retries.add([router], refusal)
                continue
            first = dest.staged + 1
            reserve, synced = self._reserve(dest, count)
            dest.stage_trim(count, synced, reserve)
            total = router.forwarded_total + count
            copy = Copy(router, None, first, count, last, total, reserve, [count, hops + 1])
            group = (turns[dest.id], self._log.shard_number(dest), synced)
            groups.setdefault(group, []).append(copy)
            turns[dest.id] += 1
        for (_, shard, synced), copies in sorted(groups.items(), key=itemgetter(0)):
            self._log.stage(topic, cursor, last, skip, FORWARD_LOST, now, copies, shard, synced)
        return bool(groups)

    def _stage_nothing(self, topic: Topic, cursor: int, last: int, routers: list[Router]) -> None:
        """Stage entries that consume records without a copy.

        All entries of a router are in the shard of its destination, so that none is on disk
        before those that came first.
        """
        by_shard: dict[int, list[Copy]] = {}
        for router in routers:
            copy = Copy(router, None, 0, 0, last, router.forwarded_total)
            by_shard.setdefault(self._log.shard_number(router.dest), []).append(copy)
        skip = encode_seqs(range(cursor + 1, last + 1))
        now = self.state.clock.now_ms()
        for shard, copies in by_shard.items():
            self._log.stage(topic, cursor, last, skip, 0, now, copies, shard, False)

    def _stage(self, window: Window, routers: list[Router]) -> bool:
        topic, state = window.topic, self.state
        now = state.clock.now_ms()
        levels = self._picker.levels(window)
        nothing: dict[int, list[Router]] = {}
        groups: dict[_EntryGroup, list[Copy]] = {}
        turns: Counter[int] = Counter()  # by destination: what is numbered first is logged first
        for router in routers:
            picked, last, refusal = self._picker.pick(router, window, levels)
            if picked == () or not window.count:
                if last > window.cursor:
                    nothing.setdefault(last, []).append(router)
                elif refusal is UNSYNCED:
                    self._await_disk(router)
                elif refusal is not None:
                    self.retries.add([router], refusal)
                continue
            flags = router.flags
            made = window.make(picked, flags, router.name)
            dest = router.dest
            first = dest.staged + 1
            block = made.block(first, max(now, dest.last_ts), now)
            reserve, synced = self._reserve(dest, made.rows)
            dest.stage(block, synced, reserve)
            hops = [] if levels is None else [levels[i] + 1 for i in positions(window, picked)]
            copy = Copy(
                router, block, first, made.rows, last,
                router.forwarded_total + made.rows, reserve, counted(hops),
                seqs_of(window, picked) if flags & FORWARD_KEY else [],
            )  # fmt: skip
            stored = not dest.ephemeral or dest.changing > 0
            if stored and window.unlogged:
                self._log.stage_whole(window, picked, flags, now, copy, synced)
                continue
            shard = self._log.shard_number(dest)
            only = router.id if flags & FORWARD_KEY else 0
            turn, what = turns[dest.id], (id(picked), last, flags, tuple(hops), only)
            groups.setdefault(_EntryGroup(turn, shard, synced, stored, *what), []).append(copy)
            turns[dest.id] += 1
            window.keep(picked)
        for last, consumed in nothing.items():
            self._stage_nothing(topic, window.cursor, last, consumed)
        for group, copies in sorted(groups.items(), key=lambda each: each[0].turn):
            flags = group.flags | (FORWARD_STORED if group.stored else 0)
            skip = encode_seqs(window.skipped(window.kept(group.picked), group.last))
            where = (group.shard, group.synced)
            self._log.stage(topic, window.cursor, group.last, skip, flags, now, copies, *where)
        return bool(nothing or groups) or any(router.busy for router in routers)

    def _await_disk(self, router: Router) -> None:
        """Wait until the source is on disk in every shard, as a copy of class fsync needs it."""
        head = router.source.head
        router.busy = True

        def synced(done: Ticket[None]) -> None:
            router.busy = False
            if done.error is not None:
                self.retries.add([router], done.error)
            else:
                router.durable_to = head
            self._go_on([router])

        all_durable(self.state).when_done(synced)

    def _reserve(self, dest: Topic, count: int) -> tuple[int, bool]:
        """Return what the entry of the next seqs has to reserve, and whether it is synced."""
        state = self.state
        return dest.reserve(dest.staged + count, state.shard_of(dest.id), state.clock)

    # The end of a pass

    def _settled(
        self, commit: ForwardCommit, copies: list[Copy], error: HeadraceError | None
    ) -> None:
        for copy in copies:
            self._settle(commit, copy, error)
        if error is not None:
            self.retries.add([copy.router for copy in copies], error)
        self._go_on([copy.router for copy in copies])

    def _settle(self, commit: ForwardCommit, copy: Copy, error: HeadraceError | None) -> None:
        router, dest = copy.router, copy.router.dest
        router.busy = False
        if copy.first_seq and (error is not None or not dest.live):
            dest.unstage(copy.first_seq, copy.block, commit.needs_sync, copy.reserve)
        if error is not None:
            return
        router.placed()
        router.cursor = copy.cursor
        self.forwarded_total += copy.forwarded_total - router.forwarded_total
        router.forwarded_total = copy.forwarded_total
        self.changed.add(router.id)
        if copy.first_seq and dest.live:
            self._publish(commit, copy)

    def _publish(self, commit: ForwardCommit, copy: Copy) -> None:
        """Make the copies part of their destination."""
        state, dest, block = self.state, copy.router.dest, copy.block
        asked = (commit.needs_sync, copy.reserve, state.shard_of(dest.id))
        if block is None:
            dest.publish_trim(copy.first_seq, copy.rows, *asked)
        else:
            dest.publish(block, not dest.ephemeral or dest.changing > 0, *asked)
            if copy.seqs:
                self.note_keys(dest.id, key_of(copy.router), copy.seqs, block.first_seq)
            if dest.bounded and (dest.config.cap_records or dest.config.cap_bytes):
                retention.enforce(state, dest, replayed=True)
        if dest.id in self.sources:
            runs = self.hops.setdefault(dest.id, HopRuns())
            runs.add(copy.first_seq, copy.hops or [copy.rows, 1])
        dest.wake_waiters()

    @property
    def keys(self) -> dict[int, dict[tuple[str, int, int], CopiedKeys]]:
        """The records whose copies with keys are in a destination, by destination."""
        return self._picker.keys

    def note_keys(
        self, dest_id: int, key: tuple[str, int, int], seqs: Sequence[int], first_seq: int
    ) -> None:
        """Note that copies with keys are in a destination."""
        known = self.keys.setdefault(dest_id, {})
        if key not in known:
            known[key] = CopiedKeys()
        known[key].add(seqs, first_seq)
        self.keys_changed.add(dest_id)

    def _go_on(self, routers: list[Router]) -> None:
        job = self.sources.get(routers[0].source.id)
        if job is not None and self.has_work(routers):
            self.state.turns.enqueue(job)
        self.on_settled()


_NO_HOPS = HopRuns()
