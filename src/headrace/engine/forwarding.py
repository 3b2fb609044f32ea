"""Forwarding: passes over a source that copy its new records to the destinations of its routers.

Only this file moves a router's cursor.  A pass consumes at most so many records of a source, for
all routers that stand at the same place, and logs one entry without payloads that says what was
copied where; the copies are visible, and the cursors moved, when that entry has met the class of
the destinations.  Where the source's records are not in the log, the copies are logged whole.

A source's writers never wait: passes are jobs of `turns.py`, asked for when records have become
visible.  A reader of a destination does not wait for them: `drain` does what is left to do first.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Sequence
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
from headrace.engine.priority import priority_of
from headrace.engine.reading import Page, walk
from headrace.engine.router_copies import (
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
from headrace.engine.router_picking import ANNOUNCED, UNSYNCED, Picker, key_of, positions, seqs_of
from headrace.engine.router_state import CopiedKeys, HopRuns, Router, counted
from headrace.engine.topic import Lost, Topic
from headrace.engine.turns import Job
from headrace.storage.block import Rows, encode_block
from headrace.storage.frame import (
    ENTRY_FORWARD,
    FORWARD_KEY,
    FORWARD_LOST,
    FORWARD_STORED,
    Forward,
    encode_control,
)

log = logging.getLogger("headrace.routers")

# So many passes of the largest size fit into memory.
PASSES_IN_MEMORY = 16


class _Group(NamedTuple):
    """What copies have in common that one entry says all of."""

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

    __slots__ = ("_forwarder", "routers", "topic")
    background = True

    def __init__(self, forwarder: Forwarder, topic: Topic) -> None:
        super().__init__()
        self._forwarder = forwarder
        self.topic = topic
        self.routers: list[Router] = []
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
        return self._forwarder.run(self.routers) and self._forwarder.has_work(self.routers)

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
        self._picker = Picker(core)
        self.hops = self._picker.hops
        self.changed: set[int] = set()  # routers whose cursor has moved since the last snapshot
        self.keys_changed: set[int] = set()  # destinations
        self.forwarded_total = 0
        self.on_settled: Callable[[], None] = lambda: None
        self.in_flight = 0  # commits
        self.held = False
        self._retrying = False

    # Passes

    def has_work(self, routers: Iterable[Router]) -> bool:
        """Whether another pass could do something now."""
        if self.held:
            return False
        return any(
            r.live and not r.busy and not r.blocked and r.cursor < r.source.head for r in routers
        )

    def run(self, routers: Iterable[Router], *, forced: bool = False) -> bool:
        """One pass for routers of one source; whether anything was done or is on its way.

        `forced`: also those that wait before they try again.
        """
        if self.held:
            return False
        now_ns = self.core.clock.monotonic_ns()
        by_cursor: dict[int, list[Router]] = {}
        for router in routers:
            ready = router.live and not router.busy and router.cursor < router.source.head
            if ready and (forced or router.retry_ns <= now_ns):
                by_cursor.setdefault(router.cursor, []).append(router)
        done = False
        for cursor, group in by_cursor.items():
            done = self._pass(group[0].source, cursor, group) or done
        return done

    def _pass(self, topic: Topic, cursor: int, routers: list[Router]) -> bool:
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
                self._back_off(routers, done.error)
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

    def _back_off(self, routers: Iterable[Router], why: BaseException) -> None:
        now_ns = self.core.clock.monotonic_ns()
        delay_ms = 0
        for router in routers:
            if not router.blocked:
                log.info("router %r waits: %s", router.name, why)
            delay_ms = max(delay_ms, router.back_off(now_ns))
        if delay_ms and not self._retrying:
            self._retrying = True
            self.core.runtime.later(delay_ms, self._retry)

    def _retry(self) -> None:
        """Try those again that could not place a record."""
        self._retrying = False
        if self.core.closing:
            return
        now_ns = self.core.clock.monotonic_ns()
        next_ns = 0
        for job in self.sources.values():
            for router in job.routers:
                if router.blocked and router.retry_ns <= now_ns:
                    router.blocked = False
                    self.core.turns.enqueue(job)
                elif router.blocked:
                    next_ns = min(next_ns or router.retry_ns, router.retry_ns)
        if next_ns and not self._retrying:
            self._retrying = True
            self.core.runtime.later(max(1, (next_ns - now_ns) // 1_000_000), self._retry)

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
        groups: dict[tuple[int, bool], list[Copy]] = {}
        now = self.core.clock.now_ms()
        for router in routers:
            dest = router.dest
            refusal = self._picker.refusal(dest)
            if refusal is None and not dest.takes_trim():
                refusal = ANNOUNCED
            if refusal is not None:
                self._back_off([router], refusal)
                continue
            first = dest.staged + 1
            reserve, synced = self._number(dest, count, 0)
            total = router.forwarded_total + count
            copy = Copy(router, None, first, count, last, total, reserve, [count, hops + 1])
            groups.setdefault((self._shard_number(dest), synced), []).append(copy)
        for (shard, synced), copies in groups.items():
            self._log(topic, cursor, last, skip, FORWARD_LOST, now, copies, shard, synced)
        return bool(groups)

    def _stage_nothing(self, topic: Topic, cursor: int, last: int, routers: list[Router]) -> None:
        """Records are consumed, and there is nothing to copy."""
        copies = [Copy(r, None, 0, 0, last, r.forwarded_total) for r in routers]
        skip = encode_seqs(range(cursor + 1, last + 1))
        now = self.core.clock.now_ms()
        self._log(topic, cursor, last, skip, 0, now, copies, self._shard_number(topic), False)

    def _stage(self, window: Window, routers: list[Router]) -> bool:
        topic, core = window.topic, self.core
        now = core.clock.now_ms()
        levels = self._levels(window)
        nothing: dict[int, list[Router]] = {}
        groups: dict[_Group, list[Copy]] = {}
        for router in routers:
            picked, last, refusal = self._picker.pick(router, window, levels)
            if picked == () or not window.count:
                if last > window.cursor:
                    nothing.setdefault(last, []).append(router)
                elif refusal is UNSYNCED:
                    self._await_disk(router)
                elif refusal is not None:
                    self._back_off([router], refusal)
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
            group = _Group(shard, synced, stored, id(picked), last, flags, tuple(hops), only)
            groups.setdefault(group, []).append(copy)
            window.keep(picked)
        for last, consumed in nothing.items():
            self._stage_nothing(topic, window.cursor, last, consumed)
        for group, copies in groups.items():
            flags = group.flags | (FORWARD_STORED if group.stored else 0)
            skip = encode_seqs(window.skipped(window.kept(group.picked), group.last))
            where = (group.shard, group.synced)
            self._log(topic, window.cursor, group.last, skip, flags, now, copies, *where)
        return bool(nothing or groups) or any(router.busy for router in routers)

    def _levels(self, window: Window) -> list[int] | None:
        runs = self.hops.get(window.topic.id)
        if runs:
            runs.drop_to(min(r.cursor for r in self.sources[window.topic.id].routers))
        return self._picker.levels(window)

    def _await_disk(self, router: Router) -> None:
        """A copy of class fsync is not visible before its source is on disk, in every shard."""
        waiting = len(self.core.shards)
        head = router.source.head
        router.busy = True

        def synced(error: HeadraceError | None) -> None:
            nonlocal waiting
            waiting -= 1
            if waiting:
                return
            router.busy = False
            if error is None:
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
        self.in_flight += 1
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
        self.in_flight += 1
        self.core.shard_of(dest.id).stage(commit)

    def _settled(
        self, commit: ForwardCommit, copies: list[Copy], error: HeadraceError | None
    ) -> None:
        self.in_flight -= 1
        for copy in copies:
            self._settle(commit, copy, error)
        if error is not None:
            self._back_off([copy.router for copy in copies], error)
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
            if dest.bounded:
                retention.enforce(core, dest)
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
