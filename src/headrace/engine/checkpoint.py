"""Checkpoints: the log becomes files, files are merged, a snapshot lists them, the log is cut.

Only this file decides when, and in which order.  One checkpoint at a time:

1. every shard goes on in a new log file, and everything staged before it settles;
2. changed topics are captured, a few milliseconds at a time;
3. elsewhere, captures are written to files; then readers see them;
4. elsewhere, files are merged by the plan; then readers see the outputs;
5. elsewhere, a snapshot of it all is written and verified; only then log files and segments that
   no retained snapshot needs are removed;
6. what is beyond the hot bound is copied to the cold tier, and a snapshot flips the pointers.

A step that fails leaves everything before it in place: records stay in memory and in the log, and
the next checkpoint starts over.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from itertools import islice
from typing import ParamSpec, TypeVar

from headrace.core.errors import HeadraceError, typed
from headrace.core.runtime import Ticket
from headrace.engine.core_state import ControlCommit, Core
from headrace.engine.seal import Capture, capture, reserved_to, sealed, unsealed, write_captures
from headrace.engine.sealed_files import SealedFiles
from headrace.engine.topic import Topic
from headrace.storage.keys import KeyFileMeta, KeyRow, live_key_files, read_keys, write_keys
from headrace.storage.segment_reader import Segment
from headrace.storage.snapshot import WAL_NUMBER, SnapshotChange

log = logging.getLogger("headrace.checkpoint")

T = TypeVar("T")
P = ParamSpec("P")
LANE = "work"
SLICE_NS = 2_000_000  # how long the loop thread may be held at a time
SLICE_ITEMS = 64
RETRY_MS = 5_000
KEY_FILES_MAX = 8  # more are merged into one


class Checkpointer:
    """Drives checkpoints of one engine."""

    def __init__(self, core: Core, files: SealedFiles) -> None:
        self._core = core
        self.files = files
        self._running: _Checkpoint | None = None
        self._wal_mark = 0
        self._not_before_ns = 0  # after a failure
        self.checkpoints_total = 0
        self.failures_total = 0
        self.stall_ns_max = 0
        self.last_error: BaseException | None = None

    # When

    def start_watching(self) -> None:
        """From now on a checkpoint starts by itself when it is due."""
        self._wal_mark = self._wal_bytes()
        for shard in self._core.shards:
            shard.after_settling = self.maybe
        self._arm()

    def _arm(self) -> None:
        def aged() -> None:
            if self._core.closing:
                return
            if self._core.dirty or self._core.removed:
                self.run()
            self._arm()

        settings = self._core.settings
        age_ms = min(settings.checkpoint_age_ms, settings.segment_max_age_ms)
        self._core.runtime.later(age_ms, aged)

    def _wal_bytes(self) -> int:
        return sum(shard.bytes_total for shard in self._core.shards)

    def maybe(self) -> None:
        """Start a checkpoint if enough has gathered."""
        core = self._core
        if self._running is not None or core.closing:
            return
        if self._not_before_ns and core.clock.monotonic_ns() < self._not_before_ns:
            return
        urgent = core.unsealed_bytes >= core.settings.memory_budget_bytes // 2
        grown = self._wal_bytes() - self._wal_mark >= core.settings.checkpoint_wal_bytes
        # One that is not urgent waits for log files that are ready, rather than use bare ones.
        if urgent or (grown and not any(shard.preparing for shard in core.shards)):
            self.run()

    def run(self) -> Ticket[None]:
        """Checkpoint now; while one runs, another follows it."""
        ticket: Ticket[None] = Ticket(self._core.runtime)
        if self._running is not None:
            self._running.followers.append(ticket)
            return ticket
        self._running = _Checkpoint(self, ticket)
        self._running.begin()
        return ticket

    def finished(self, running: _Checkpoint, error: BaseException | None) -> None:
        """One checkpoint has ended, one way or the other."""
        assert self._running is running
        self._running = None
        self.last_error = error
        self._core.fit_memory()
        if error is None:
            self._not_before_ns = 0
            self.checkpoints_total += 1
            running.ticket.resolve(None)
        else:
            self.failures_total += 1
            log.warning("checkpoint failed, the log is kept: %s", error)
            # Not at once: whatever is in the way, a full disk say, needs time to go.
            self._not_before_ns = self._core.clock.monotonic_ns() + RETRY_MS * 1_000_000
            self._core.runtime.later(RETRY_MS, self.maybe)
            running.ticket.fail(typed(error))
        if running.followers:
            followers = running.followers
            self.run().when_done(lambda done: _pass_on(done, followers))

    def close(self) -> None:
        """The last checkpoint of a clean exit: seal all, close the log, write a clean snapshot.

        Runs in the calling thread; nothing is in flight any more.
        """
        core = self._core
        running = _Checkpoint(self, Ticket(core.runtime))
        running.capture_all()
        try:
            running.adopt(running.write())
        finally:
            # Whatever happens to the files, what was acknowledged is synced.
            for shard in core.shards:
                shard.close()
        if all(shard.state == "ok" for shard in core.shards):
            running.positions = {shard.directory: shard.written for shard in core.shards}
            running.snapshot(clean=True)

    def mark_wal(self) -> None:
        self._wal_mark = self._wal_bytes()

    @property
    def core(self) -> Core:
        return self._core


def _pop(items: list[T], count: int) -> list[T]:
    taken = items[-count:]
    del items[-count:]
    return taken


def _pass_on(done: Ticket[None], followers: list[Ticket[None]]) -> None:
    for follower in followers:
        if done.error is not None:
            follower.fail(done.error)
        else:
            follower.resolve(None)


class _Checkpoint:
    """One checkpoint under way."""

    def __init__(self, owner: Checkpointer, ticket: Ticket[None]) -> None:
        self._owner = owner
        self._core = owner.core
        self._files = owner.files
        self.ticket = ticket
        self.followers: list[Ticket[None]] = []
        self.positions: dict[str, int] = {}
        self._wal_number = 0
        self._failure: BaseException | None = None
        self._todo: list[Topic] = []
        self._removed: set[int] = set()
        self._captures: list[Capture] = []
        self._keys: list[KeyRow] = []
        self._next_topic_id = 0
        self._connected: list[Topic] = []  # by routers, still to be captured
        self._parts: dict[str, bytes] = {}  # of the snapshot, that say how far routers are

    # 1. A new log file, and everything before it settled

    def begin(self) -> None:
        core = self._core
        self._owner.mark_wal()
        if core.forwarding is not None:
            # Until the topics that routers connect are captured.  So what the log has of copies
            # from here on is about records that this snapshot has, or that log: also where the
            # destination is made meanwhile, and is not in the snapshot.
            core.forwarding.hold()
        self._wal_number = next(core.wal_numbers)
        self._next_topic_id = core.next_topic_id
        for shard in core.shards:
            refusal = shard.refusal()
            if refusal is not None:
                core.runtime.soon(lambda error=refusal: self._end(error))  # type: ignore[misc]
                return
        try:
            for shard in core.shards:
                self.positions[shard.directory] = shard.rotate()
        except OSError as error:
            reason = error
            core.runtime.soon(lambda: self._end(reason))
            return
        self._barrier(self._start_capture)

    def _barrier(self, then: Callable[[], None]) -> None:
        """Go on when everything staged so far is on disk."""
        shards = self._core.shards
        waiting = len(shards)

        def passed(error: HeadraceError | None) -> None:
            nonlocal waiting
            waiting -= 1
            self._failure = self._failure or error
            if not waiting:
                self._core.runtime.soon(self._guarded(then))

        for shard in shards:
            shard.stage(ControlCommit(b"", True, passed))

    def _guarded(self, step: Callable[P, None]) -> Callable[P, None]:
        """A step on the loop thread: what it raises ends this checkpoint, and no later one."""

        def run(*args: P.args, **kwargs: P.kwargs) -> None:
            try:
                step(*args, **kwargs)
            except Exception as error:
                log.exception("a step of a checkpoint failed")
                self._end(error)

        return run

    # 2. Capture

    def _start_capture(self) -> None:
        if self._failure is not None:
            self._end(self._failure)
            return
        self._take_dirty()
        forwarding = self._core.forwarding
        if forwarding is not None:
            connected = forwarding.connected()
            self._connected = [topic for topic in self._todo if topic.id in connected]
            self._todo = [topic for topic in self._todo if topic.id not in connected]
        self._in_slices(self._connected, self._capture, self._capture_rest)

    def _capture_rest(self) -> None:
        self._capture_routers()
        self._in_slices(self._todo, self._capture, self._write)

    def _capture_routers(self) -> None:
        if self._core.forwarding is not None:
            self._parts = self._core.forwarding.capture()
            self._core.forwarding.release()

    def _take_dirty(self) -> None:
        core = self._core
        taken, core.dirty = core.dirty, {}
        self._todo = list(taken.values())
        self._removed, core.removed = core.removed, set()
        self._keys = core.keys.take_unsaved()
        for topic_id in self._removed:
            self._files.note_removed(topic_id)

    def _in_slices(
        self, items: list[T], step: Callable[[T], None], done: Callable[[], None]
    ) -> None:
        """Take one step for each item, a few milliseconds at a time, from the end of the list."""
        clock = self._core.clock
        started = clock.monotonic_ns()
        while items:
            for item in _pop(items, SLICE_ITEMS):
                step(item)
            if clock.monotonic_ns() - started > SLICE_NS:
                break
        owner = self._owner
        owner.stall_ns_max = max(owner.stall_ns_max, clock.monotonic_ns() - started)
        if items:
            again = self._guarded(lambda: self._in_slices(items, step, done))
            self._core.runtime.soon(again)
        else:
            done()

    def _write(self) -> None:
        self._core.runtime.submit(LANE, self.write, self._guarded(self._written))

    def _capture(self, topic: Topic, *, clean: bool = False) -> None:
        if topic.id >= self._next_topic_id:
            # Created since the rotation, so in the new log files, and for the next time: one
            # that is not live yet would be taken for deleted if it were counted.
            self._core.mark(topic)
        elif topic.live:
            self._captures.append(capture(self._core, topic, clean=clean))
            self._files.note_live(topic)

    def capture_all(self) -> None:
        """All at once, for a clean exit: also the topics whose reservation ends with it."""
        core = self._core
        self._wal_number = next(core.wal_numbers)
        self._next_topic_id = core.next_topic_id
        core.dirty.update((t.id, t) for t in core.by_id.values() if reserved_to(t) > t.head)
        self._take_dirty()
        for topic in _pop(self._todo, len(self._todo)):
            self._capture(topic, clean=True)
        self._capture_routers()

    # 3. Files

    def write(self) -> list[Segment]:
        """Off the loop: the captures as files, open for reading."""
        core = self._core
        metas = write_captures(
            core.fs,
            self._captures,
            self._files.next_file_id,
            core.clock.now_ms(),
            self._files.policy,
            core.total_bytes // self._files.policy.own_topics_max,
        )
        return self._files.open_new(metas)

    def _written(self, value: object, error: BaseException | None) -> None:
        if error is not None:
            self._end(error)
            return
        assert isinstance(value, list)
        for segment in value:
            self._files.add_file(segment)
        self._in_slices(list(self._captures), self._mark_sealed, self._merge)

    def _mark_sealed(self, captured: Capture) -> None:
        sealed(self._core, captured)

    def _merge(self) -> None:
        segments = self._core.catalog.segments()
        created_ms = self._core.clock.now_ms()
        files = self._files
        self._core.runtime.submit(
            LANE, lambda: files.merge(segments, created_ms), self._guarded(self._merged)
        )

    def adopt(self, segments: list[Segment]) -> None:
        """Readers see the new files; the blocks may leave memory."""
        for segment in segments:
            self._files.add_file(segment)
        for captured in self._captures:
            sealed(self._core, captured)

    # 4. Merges

    def _merged(self, value: object, error: BaseException | None) -> None:
        if error is not None:
            # The files before the merge are all there and say the same.
            log.warning("merge failed, its inputs are kept: %s", error)
        else:
            assert isinstance(value, list)
            for merged in value:
                for file_id in merged.inputs:
                    self._files.drop_file(file_id)
                for segment in merged.outputs:
                    self._files.add_file(segment)
        # Nothing that a snapshot says may be missing from the log it goes with.
        self._barrier(self._snapshot)

    # 5. Snapshot

    def _snapshot(self) -> None:
        if self._failure is not None:
            self._end(self._failure)
            return
        self._core.runtime.submit(
            LANE, lambda: self.snapshot(clean=False), self._guarded(self._snapshotted)
        )

    def snapshot(self, *, clean: bool) -> None:
        """Off the loop: write the keys, then the snapshot; then remove what it replaced."""
        core = self._core
        now = core.clock.now_ms()
        key_files = live_key_files(self._files.key_files, now)
        if len(key_files) >= KEY_FILES_MAX:
            self._keys = [*self._old_keys(key_files, now), *self._keys]
            key_files = []
        if self._keys:
            key_files.append(self._write_keys())
        self._files.write_snapshot(self._change(clean, key_files, now))
        self._files.key_files = key_files
        self._keys = []

    def _change(self, clean: bool, key_files: list[KeyFileMeta], now: int) -> SnapshotChange:
        core = self._core
        return SnapshotChange(
            created_ms=now,
            clean=clean,
            generation=core.generation,
            next_topic_id=self._next_topic_id,
            next_file_id=core.next_file_id,
            boot_id=core.fs.boot_id(),
            positions=dict(self.positions),
            key_files=key_files,
            topics={c.state.id: c.state for c in self._captures},
            topics_removed=set(self._removed),
            extra={WAL_NUMBER: self._wal_number.to_bytes(8, "little")}
            | {name: part for name, part in self._parts.items() if part},
            extra_removed={name for name, part in self._parts.items() if not part},
        )

    def _old_keys(self, key_files: list[KeyFileMeta], now: int) -> list[KeyRow]:
        """What is still within its window in these files, to be written into one."""
        core = self._core
        return [
            row
            for key_file in key_files
            for row in read_keys(core.fs, key_file)
            if now - row.time_ms <= core.keys.window_of(row.topic_id)
        ]

    def _write_keys(self) -> KeyFileMeta:
        core = self._core
        window_ms = max(core.keys.window_of(row.topic_id) for row in self._keys)
        return write_keys(core.fs, self._files.next_file_id(), self._keys, window_ms=window_ms)

    def _snapshotted(self, _value: object, error: BaseException | None) -> None:
        if error is not None:
            self._end(error)
            return
        movable = list(islice(self._files.relocatable(), 16))
        if not movable:
            self._end(None)
            return
        tiers, files = self._core.tiers, self._files
        self._core.runtime.submit(
            LANE,
            lambda: [files.open_cold(tiers.relocate(meta)) for meta in movable],
            self._guarded(self._relocated),
        )

    # 6. The cold tier

    def _relocated(self, value: object, error: BaseException | None) -> None:
        if error is not None:
            log.warning("the cold tier did not take files, they stay hot: %s", error)
            self._end(None)
            return
        assert isinstance(value, list)
        for segment in value:
            self._files.flip_to_cold(segment)
        moved = [segment.meta for segment in value]

        def flip() -> None:
            self._captures = []
            self._removed = set()
            self.snapshot(clean=False)
            self._files.drop_hot_copies(moved)

        self._core.runtime.submit(LANE, flip, self._guarded(lambda _, failed: self._end(failed)))

    def _end(self, error: BaseException | None) -> None:
        if self._core.forwarding is not None:
            self._core.forwarding.release()
        if error is not None:
            self._give_back()
        self._owner.finished(self, error)

    def _give_back(self) -> None:
        """What this checkpoint took is for the next one to do."""
        core = self._core
        for captured in self._captures:
            unsealed(captured)
        for captured in self._captures:
            if captured.topic.live:
                core.dirty.setdefault(captured.topic.id, captured.topic)
        for topic in [*self._connected, *self._todo]:
            core.dirty.setdefault(topic.id, topic)
        if core.forwarding is not None:
            core.forwarding.give_back(self._parts)
        core.removed |= self._removed
        core.keys.put_back(self._keys)
