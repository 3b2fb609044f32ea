"""Forwarding: passes over a source that copy its new records to the destinations of its routers.

Only this file moves a router's cursor.  A pass consumes at most so many records of a source, for
all routers that stand at the same place, and logs one entry without payloads that says what was
copied where; the copies are visible, and the cursors moved, when that entry has met the class of
the destinations.  Where the source's records are not in the log, the copies are logged whole.

A source's writers never wait: passes are jobs of `scheduling/turns.py`, asked for when records have
become visible.  A reader of a destination does not wait for them: `drain` does what is left to do
first.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from operator import itemgetter
from typing import NamedTuple

import msgspec

from headrace.core.errors import HeadraceError
from headrace.core.limits import router_hops_max
from headrace.core.runtime import Ticket
from headrace.engine import retention
from headrace.engine.append import Appender
from headrace.engine.collect import ReadRequest
from headrace.engine.core_state import ControlCommit, Core
from headrace.engine.idempotency import Sidecar
from headrace.engine.reading import Page, walk
from headrace.engine.routers.copies import (
    BYTES_PER_PASS,
    RECORDS_PER_PASS,
    Copy,
    ForwardCommit,
    Picked,
    Window,
    encode_seqs,
    joined,
    living,
    target_of,
    window_in_memory,
)
from headrace.engine.routers.picking import ANNOUNCED, UNSYNCED, Picker, key_of, positions, seqs_of
from headrace.engine.routers.retry import Retries
from headrace.engine.routers.state import CopiedKeys, HopRuns, Router, counted
from headrace.engine.scheduling.priority import priority_of
from headrace.engine.scheduling.turns import Job
from headrace.engine.topic import Lost, Topic
from headrace.storage.block import Rows, encode_block
from headrace.storage.frame import (
    ENTRY_FORWARD,
    FORWARD_KEY,
    FORWARD_LOST,
    FORWARD_STORED,
    Forward,
    encode_control,
)

# So many passes of the largest size fit into memory.
PASSES_IN_MEMORY = 16
# So many routers have their copies made at once; the loop is left to others between.
ROUTERS_PER_PASS = 128


class _Group(NamedTuple):
    """What copies have in common that one entry says all of."""

    turn: int  # how many routers before it bring something to the same topic
    shard: int
    synced: bool
    stored: bool
    picked: int  # the identity of what was picked
    last: int
    flags: int
    hops: tuple[int, ...]
    router_id: int  # where the copies are unlike those of any other


class SourceJob(Job):
    """The routers of one source, and its waiter: hears when there is something new."""

    __slots__ = ("_forwarder", "_turn", "routers", "topic")
    background = True

    def __init__(self, forwarder: Forwarder, topic: Topic) -> None:
        super().__init__()
        self._forwarder = forwarder
        self.topic = topic
        self.routers: list[Router] = []
        self._turn = 0
        self._wait()

    @property
    def priority(self) -> int:
        return priority_of(self.topic, self._forwarder.core.clock.now_ms())

    def _wait(self) -> None:
        if self.topic.waiters is None:
            self.topic.waiters = [self]
        else:
            self.topic.waiters.append(self)

    def __call__(self) -> None:
        """The engine: something has changed."""
        if self.routers and self.topic.live:
            self._wait()
            self._forwarder.core.turns.wake(self)

    def step(self) -> bool:
        """Passes, one after the other, until the turn is over; those left out are the next."""
        forwarder = self._forwarder
        passes = forwarder.passes(self.routers)
        done = False
        for number in range(len(passes)):
            if number and forwarder.core.turns.over:
                return True
            done = forwarder.run(passes[self._turn % len(passes)]) or done
            self._turn += 1
        return done and forwarder.has_work(self.routers)

    def close(self) -> None:
        """There are no routers left."""
        waiters = self.topic.waiters
        if waiters is not None and self in waiters:
            waiters.remove(self)


class Forwarder:
    """Drives the routers of one engine."""

    def __init__(self, core: Core, appender: Appender) -> None:
        self.core = core
        self._appender = appender
        self.sources: dict[int, SourceJob] = {}  # by topic id
        self._picker = Picker(core, self._consumed_to)
        self.hops = self._picker.hops
        self.changed: set[int] = set()  # routers whose cursor has moved since the last snapshot
        self.keys_changed: set[int] = set()  # destinations
        self.forwarded_total = 0
        self.on_settled: Callable[[], None] = lambda: None
        self.held = False
        self.retries = Retries(core, self._try_again)

    # Passes

    def has_work(self, routers: Iterable[Router]) -> bool:
        """Whether another pass could do something now."""
        if self.held:
            return False
        return any(
            r.live and not r.busy and not r.blocked and r.cursor < r.source.head for r in routers
        )

    def passes(self, routers: Iterable[Router]) -> list[list[Router]]:
        """The routers that have something to do now, by where they stand, so many together."""
        if self.held:
            return []
        now_ns = self.core.clock.monotonic_ns()
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
        """Up to where all routers that read from a topic have come."""
        job = self.sources.get(topic_id)
        return min(router.cursor for router in job.routers) if job is not None else 0

    def run(self, routers: list[Router]) -> bool:
        """One pass, for routers at one place of a source; whether anything is on its way."""
        assert len(routers) <= ROUTERS_PER_PASS, len(routers)
        topic, cursor = routers[0].source, routers[0].cursor
        retention.enforce(self.core, topic)
        lost = topic.lost_after(cursor)
        if lost is not None:
            return self._stage_lost(topic, cursor, lost, routers)
        window = window_in_memory(topic, cursor, topic.read_end(cursor), self._bytes_max(routers))
        if window is None:
            self._fetch(topic, cursor, routers)
            return True
        return self._stage(window, routers)

    def _bytes_max(self, routers: list[Router]) -> int:
        """What a pass may copy: all its copies together must leave room in memory."""
        budget = self.core.settings.memory_budget_bytes // PASSES_IN_MEMORY
        return min(BYTES_PER_PASS, budget // len(routers))

    def _fetch(self, topic: Topic, cursor: int, routers: list[Router]) -> None:
        """Records that memory does not hold come from files."""
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
        walk(self.core, topic, request).when_done(fetched)

    def _take_page(self, topic: Topic, cursor: int, page: Page, routers: list[Router]) -> None:
        """Stage what was read, as far as it is alive still."""
        routers = [r for r in routers if r.live and r.cursor == cursor]
        lost = topic.lost_after(cursor)
        if lost is not None:
            self._stage_lost(topic, cursor, lost, routers)
            return
        rows = joined(page.rows) if page.rows else Rows([], 0, [])
        last = min(page.next_from_seq, topic.read_end(cursor))
        self._stage(Window(topic, cursor, last, None, living(topic, rows)), routers)

    def _try_again(self, router: Router) -> None:
        job = self.sources.get(router.source.id)
        if job is not None:
            self.core.turns.enqueue(job)

    # Staging

    def _stage_lost(self, topic: Topic, cursor: int, lost: Lost, routers: list[Router]) -> bool:
        """Records that are gone leave a hole each, which the destination announces.

        A hole counts its hops as a record does: it would go round for ever otherwise.
        """
        hops, same_to = self.hops.get(topic.id, _NO_HOPS).run_from(lost.first)
        last = min(lost.last, same_to)
        if hops >= router_hops_max:
            self._stage_nothing(topic, cursor, last, routers)
            return True
        # How many records a crash took nobody knows: that is one hole.
        first_lost = last if lost.reason == "crash" else lost.first
        count = last - first_lost + 1
        skip = encode_seqs(range(cursor + 1, first_lost))
        groups: dict[tuple[int, int, bool], list[Copy]] = {}
        turns: Counter[int] = Counter()  # by destination: what is numbered first is logged first
        now = self.core.clock.now_ms()
        for router in routers:
            dest = router.dest
            refusal = self._picker.refusal(router)
            if refusal is None and not dest.takes_trim():
                refusal = ANNOUNCED
            if refusal is not None:
                self.retries.add([router], refusal)
                continue
            first = dest.staged + 1
            reserve, synced = self._number(dest, count, 0)
            total = router.forwarded_total + count
            copy = Copy(router, None, first, count, last, total, reserve, [count, hops + 1])
            group = (turns[dest.id], self._shard_number(dest), synced)
            groups.setdefault(group, []).append(copy)
            turns[dest.id] += 1
        for (_, shard, synced), copies in sorted(groups.items(), key=itemgetter(0)):
            self._log(topic, cursor, last, skip, FORWARD_LOST, now, copies, shard, synced)
        return bool(groups)

    def _stage_nothing(self, topic: Topic, cursor: int, last: int, routers: list[Router]) -> None:
        """Records are consumed, and there is nothing to copy.

        All entries of a router are in the shard of its destination, so that none is on disk
        before those that came first.
        """
        by_shard: dict[int, list[Copy]] = {}
        for router in routers:
            copy = Copy(router, None, 0, 0, last, router.forwarded_total)
            by_shard.setdefault(self._shard_number(router.dest), []).append(copy)
        skip = encode_seqs(range(cursor + 1, last + 1))
        now = self.core.clock.now_ms()
        for shard, copies in by_shard.items():
            self._log(topic, cursor, last, skip, 0, now, copies, shard, False)

    def _stage(self, window: Window, routers: list[Router]) -> bool:
        topic, core = window.topic, self.core
        now = core.clock.now_ms()
        levels = self._picker.levels(window)
        nothing: dict[int, list[Router]] = {}
        groups: dict[_Group, list[Copy]] = {}
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
            reserve, synced = self._number(dest, made.rows, made.size)
            dest.last_ts = ts = max(now, dest.last_ts)
            hops = [] if levels is None else [levels[i] + 1 for i in positions(window, picked)]
            copy = Copy(
                router, made.block(first, ts, now), first, made.rows, last,
                router.forwarded_total + made.rows, reserve, counted(hops),
                seqs_of(window, picked) if flags & FORWARD_KEY else [],
            )  # fmt: skip
            stored = not dest.ephemeral or dest.changing > 0
            if stored and _unlogged(window):
                self._log_whole(window, picked, flags, now, copy, synced)
                continue
            shard = self._shard_number(dest)
            only = router.id if flags & FORWARD_KEY else 0
            turn, what = turns[dest.id], (id(picked), last, flags, tuple(hops), only)
            groups.setdefault(_Group(turn, shard, synced, stored, *what), []).append(copy)
            turns[dest.id] += 1
            window.keep(picked)
        for last, consumed in nothing.items():
            self._stage_nothing(topic, window.cursor, last, consumed)
        for group, copies in sorted(groups.items(), key=lambda each: each[0].turn):
            flags = group.flags | (FORWARD_STORED if group.stored else 0)
            skip = encode_seqs(window.skipped(window.kept(group.picked), group.last))
            where = (group.shard, group.synced)
            self._log(topic, window.cursor, group.last, skip, flags, now, copies, *where)
        return bool(nothing or groups) or any(router.busy for router in routers)

    def _await_disk(self, router: Router) -> None:
        """A copy of class fsync is not visible before its source is on disk, in every shard."""
        waiting = len(self.core.shards)
        head = router.source.head
        router.busy = True
        failures: list[HeadraceError] = []

        def synced(error: HeadraceError | None) -> None:
            nonlocal waiting
            waiting -= 1
            failures.extend([error] if error is not None else [])
            if waiting:
                return
            router.busy = False
            if failures:
                self.retries.add([router], failures[0])
            else:
                router.durable_to = head
            self._go_on([router])

        for shard in self.core.shards:
            shard.when_durable(ControlCommit(b"", True, synced))

    def _number(self, dest: Topic, count: int, size: int) -> tuple[int, bool]:
        """Give the next seqs of a destination out; from here on nothing can be refused."""
        last = dest.staged + count
        shard = self.core.shard_of(dest.id)
        reserve, synced = self._appender.number_copies(dest, last, shard)
        dest.staged = last
        if size:
            dest.staged_count += count
            dest.staged_bytes += size
            self.core.staged_bytes += size
        dest.unsettled_syncs += synced
        return reserve, synced

    def _shard_number(self, dest: Topic) -> int:
        core = self.core
        return 0 if len(core.shards) == 1 else core.shards.index(core.shard_of(dest.id))

    # The log

    def _log(
        self, topic: Topic, cursor: int, last: int, skip: bytes, flags: int, now: int,
        copies: list[Copy], shard: int, synced: bool,
    ) -> None:  # fmt: skip
        entry = Forward(
            topic.id, topic.epoch, cursor + 1, last, skip, flags, now, [*copies[0].hops],
            [target_of(copy, flags) for copy in copies],
        )  # fmt: skip
        for copy in copies:
            copy.router.busy = True
        raw = encode_control(ENTRY_FORWARD, topic.id, entry)
        self.core.shards[shard].forwards_staged += 1
        self.core.shards[shard].stage(ForwardCommit(raw, synced, copies, self._settled))

    def _log_whole(
        self, window: Window, picked: Picked, flags: int, now: int, copy: Copy, synced: bool
    ) -> None:
        """The source's records are not in the log, so the copies are."""
        topic, block = window.topic, copy.block
        assert block is not None
        skip = encode_seqs(window.skipped(picked, copy.cursor))
        entry = Forward(
            topic.id, topic.epoch, window.cursor + 1, copy.cursor, skip, flags, now, [*copy.hops],
            [target_of(copy, flags)],
        )  # fmt: skip
        dest = copy.router.dest
        sidecar = Sidecar(forward=msgspec.msgpack.encode(entry)).encode()
        batch = window.batch(picked, flags, copy.router.name)
        whole = encode_block(batch, dest.id, block.first_seq, block.ts, now, copy.reserve, sidecar)
        copy.router.busy = True
        commit = ForwardCommit(whole.raw, synced, [copy._replace(block=whole)], self._settled)
        self.core.shard_of(dest.id).stage(commit)

    def _settled(
        self, commit: ForwardCommit, copies: list[Copy], error: HeadraceError | None
    ) -> None:
        for copy in copies:
            self._settle(commit, copy, error)
        if error is not None:
            self.retries.add([copy.router for copy in copies], error)
        self._go_on([copy.router for copy in copies])

    def _settle(self, commit: ForwardCommit, copy: Copy, error: HeadraceError | None) -> None:
        router, core = copy.router, self.core
        dest, shard = router.dest, core.shard_of(router.dest.id)
        router.busy = False
        if copy.first_seq:
            if copy.block is not None:
                dest.staged_count -= copy.rows
                dest.staged_bytes -= copy.size
                core.staged_bytes -= copy.size
            dest.unsettled_syncs -= commit.needs_sync
            if error is not None:
                # Everything staged behind this failed with it.
                dest.staged = min(dest.staged, copy.first_seq - 1)
                dest.reserve_staged = 0 if copy.reserve else dest.reserve_staged
        if error is not None:
            return
        if copy.reserve:
            dest.reserve_asked, dest.reserve_mark = copy.reserve, shard.written
        router.placed()
        router.cursor = copy.cursor
        self.forwarded_total += copy.forwarded_total - router.forwarded_total
        router.forwarded_total = copy.forwarded_total
        self.changed.add(router.id)
        if copy.first_seq and dest.live:
            self._publish(copy)

    def _publish(self, copy: Copy) -> None:
        """The copies are part of the destination from now on."""
        core, dest, block = self.core, copy.router.dest, copy.block
        if block is None:
            dest.add_trim(copy.first_seq, copy.first_seq + copy.rows - 1)
            core.mark(dest)
        else:
            assert block.first_seq == dest.head + 1, (dest.name, block.first_seq, dest.head)
            dest.head = block.last_seq
            dest.bytes += block.bytes
            dest.last_write_ms = block.arrived_ms
            dest.counted += block.count
            core.totals.records += block.count
            core.total_bytes += block.bytes
            core.keep(dest, block, not dest.ephemeral or dest.changing > 0)
            if copy.seqs:
                self.note_keys(dest.id, key_of(copy.router), copy.seqs, block.first_seq)
            if dest.bounded and (dest.config.cap_records or dest.config.cap_bytes):
                retention.enforce(core, dest, replayed=True)
        if dest.id in self.sources:
            runs = self.hops.setdefault(dest.id, HopRuns())
            runs.add(copy.first_seq, copy.hops or [copy.rows, 1])
        waiters, dest.waiters = dest.waiters, None
        for wake in waiters or ():
            wake()

    @property
    def keys(self) -> dict[int, dict[tuple[str, int, int], CopiedKeys]]:
        """By destination: of which records copies with keys have come to it."""
        return self._picker.keys

    def note_keys(
        self, dest_id: int, key: tuple[str, int, int], seqs: Sequence[int], first_seq: int
    ) -> None:
        """Copies with keys have come to a destination."""
        known = self.keys.setdefault(dest_id, {})
        if key not in known:
            known[key] = CopiedKeys()
        known[key].add(seqs, first_seq)
        self.keys_changed.add(dest_id)

    def _go_on(self, routers: list[Router]) -> None:
        job = self.sources.get(routers[0].source.id)
        if job is not None and self.has_work(routers):
            self.core.turns.enqueue(job)
        self.on_settled()


_NO_HOPS = HopRuns()


def _unlogged(window: Window) -> bool:
    """Whether some of these records are not in the log, so that nothing could be rebuilt."""
    return window.seqs[0] <= window.topic.unlogged_to
