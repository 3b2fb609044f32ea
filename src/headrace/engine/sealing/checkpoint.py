"""One checkpoint: the log becomes files, files are merged, a snapshot lists them, the log is cut.

Only this file decides in which order.  `Checkpoint.steps` reads from top to bottom:

1. every shard goes on in a new log file, and everything staged before it settles;
2. changed topics are captured, a few milliseconds at a time;
3. in the work lane, captures are written to files; then readers see them;
4. files are merged by the plan (`merging.py`); then readers see the outputs.  If the next
   checkpoint is due before the merges have ended, this one goes on without them;
5. in the work lane, a snapshot of it all is written and verified; only then log files and segments
   that no retained snapshot needs are removed;
6. what is beyond the hot bound is copied to the cold tier, and a snapshot flips the pointers.

A step that fails leaves everything before it in place: records stay in memory and in the log, and
the next checkpoint starts over.
"""

from __future__ import annotations

import errno
import logging
from collections.abc import Callable
from itertools import islice
from typing import TypeVar

from headrace.core.error_frames import without_frames
from headrace.core.let_go import let_go
from headrace.core.steps import Steps, at_turn_end, in_lane, turn_end
from headrace.engine.log_steps import all_settled
from headrace.engine.sealing.merging import Merging
from headrace.engine.sealing.seal import (
    SEGMENTS,
    Capture,
    capture,
    forget_blocks,
    reserved_to,
    sealed,
    unsealed,
    write_captures,
)
from headrace.engine.sealing.sealed_files import PlannedMerge, SealedFiles
from headrace.engine.state import EngineState
from headrace.engine.topics.topic import Topic
from headrace.storage.segment.format import SegmentMeta
from headrace.storage.segment.reader import Segment
from headrace.storage.snapshot.key_files import (
    KeyFileMeta,
    KeyRow,
    live_key_files,
    read_keys,
    write_keys,
)
from headrace.storage.snapshot.state import WAL_NUMBER, SnapshotChange

log = logging.getLogger("headrace.checkpoint")

T = TypeVar("T")
LANE = "work"
SLICE_NS = 2_000_000  # how long the loop thread may be held at a time
SLICE_ITEMS = 64
KEY_FILES_MAX = 8  # more are merged into one
SNAPSHOT_SLACK_BYTES = 16 << 10  # what a snapshot may take beyond twice the last one
RELOCATED_FILES_MAX = 16  # of one checkpoint


class Checkpoint:
    """One checkpoint, and what it has taken from the engine so far."""

    def __init__(
        self,
        state: EngineState,
        files: SealedFiles,
        merging: Merging,
        next_is_due: Callable[[], bool],
    ) -> None:
        self._state = state
        self._files = files
        self._merging = merging
        self._next_is_due = next_is_due
        self._started_ns = state.clock.monotonic_ns()
        self.stall_ns_max = 0
        self._wal_number = next(state.wal_numbers)
        self._next_topic_id = state.topics.next_id
        self._positions: dict[str, int] = {}  # the log from here on is not in the snapshot
        self._todo: list[Topic] = []  # still to be captured
        self._connected: list[Topic] = []  # the same, by routers: these come first
        self._captures: list[Capture] = []
        self._removed: set[int] = set()
        self._keys: list[KeyRow] = []
        self._router_parts: dict[str, bytes] = {}  # of the snapshot: how far routers are

    def steps(self) -> Steps[None]:
        """Run the checkpoint.  What it took is for the next one to do if a step raises."""
        state = self._state
        try:
            yield from self._rotate()
            yield from self._capture_changed()
            yield from self._seal()
            yield from self._merge()
            # Nothing that a snapshot says may be missing from the log it goes with.
            yield at_turn_end(state.runtime, all_settled(state))
            yield in_lane(state.runtime, LANE, lambda: self._write_snapshot(clean=False))
            yield from self._relocate()
        except Exception:
            self._give_back()
            raise

    def run_last(self) -> None:
        """Seal all, close the log, write a clean snapshot; for an exit, in the calling thread."""
        state = self._state
        self._capture_all()
        try:
            for segment in self._write_files():
                self._files.add_file(segment)
            for captured in self._captures:
                sealed(state, captured)
            self._show_merged()
        finally:
            # Whatever happens to the files, what was acknowledged is synced.
            for shard in state.shards:
                shard.close()
        if all(shard.state == "ok" for shard in state.shards):
            self._positions = {shard.directory: shard.written for shard in state.shards}
            self._write_snapshot(clean=True)

    # 1. A new log file, and everything before it settled

    def _rotate(self) -> Steps[None]:
        state = self._state
        if state.forwarding is not None:
            # Until the topics that routers connect are captured.  So what the log has of copies
            # from here on is about records that this snapshot has, or that log: also where the
            # destination is made meanwhile, and is not in the snapshot.
            state.forwarding.hold()
        refusal = self._rotate_shards()
        if refusal is not None:
            yield turn_end(state.runtime)
            raise refusal
        yield at_turn_end(state.runtime, all_settled(state))

    def _rotate_shards(self) -> Exception | None:
        """Let every shard go on in a new file; return why that is not possible."""
        for shard in self._state.shards:
            refusal = shard.refusal(frees=True)
            if refusal is not None:
                return refusal
        try:
            for shard in self._state.shards:
                self._positions[shard.directory] = shard.rotate()
        except OSError as error:
            return without_frames(error)
        return None

    # 2. Capture

    def _capture_changed(self) -> Steps[None]:
        state = self._state
        if state.forwarding is not None:
            self._connected = state.totals.take(sorted(state.forwarding.connected()))
        self._take_changed()
        yield from self._in_slices(self._connected, self._capture)
        self._capture_routers()
        yield from self._in_slices(self._todo, self._capture)

    def _take_changed(self) -> None:
        """Take what has changed since the last checkpoint: topics, removals, keys."""
        state = self._state
        self._todo, self._removed = state.totals.take_changes()
        self._keys = state.keys.take_unsaved()
        for topic_id in self._removed:
            self._files.note_removed(topic_id)

    def _capture(self, topic: Topic, *, clean: bool = False) -> None:
        if topic.id >= self._next_topic_id:
            # Created since the rotation, so in the new log files, and for the next time: one
            # that is not live yet would be taken for deleted if it were counted.
            topic.mark_changed()
        elif topic.live:
            self._captures.append(capture(self._state, topic, clean=clean))
            self._files.note_live(topic)

    def _capture_routers(self) -> None:
        if self._state.forwarding is not None:
            self._router_parts = self._state.forwarding.capture()
            self._state.forwarding.release()

    def _capture_all(self) -> None:
        """Capture all at once, for a clean exit: also topics whose reservation ends with it."""
        state = self._state
        for topic in state.by_id.values():
            if reserved_to(topic) > topic.head:
                topic.mark_changed()
        self._take_changed()
        for topic in _pop(self._todo, len(self._todo)):
            self._capture(topic, clean=True)
        self._capture_routers()

    def _in_slices(self, items: list[T], step: Callable[[T], None]) -> Steps[None]:
        """Take one step for each item, a few milliseconds at a time, from the end of the list."""
        state = self._state
        while True:
            started = state.clock.monotonic_ns()
            while items:
                for item in _pop(items, SLICE_ITEMS):
                    step(item)
                if state.clock.monotonic_ns() - started > SLICE_NS:
                    break
            self.stall_ns_max = max(self.stall_ns_max, state.clock.monotonic_ns() - started)
            if not items:
                return
            yield turn_end(state.runtime)

    # 3. Files

    def _seal(self) -> Steps[None]:
        segments: list[Segment] = yield in_lane(self._state.runtime, LANE, self._write_files)
        for segment in segments:
            self._files.add_file(segment)
        yield from self._in_slices(list(self._captures), lambda one: sealed(self._state, one))
        size = sum(segment.meta.size for segment in segments)
        self._state.throttle.sealed(size, self._state.clock.monotonic_ns() - self._started_ns)

    def _write_files(self) -> list[Segment]:
        """Off the loop: write the captures to files; return these, open for reading."""
        state = self._state
        self._refuse_without_room()
        metas = write_captures(
            state.fs,
            self._captures,
            self._files.next_file_id,
            state.clock.now_ms(),
            self._files.policy,
            state.totals.bytes // self._files.policy.own_topics_max,
        )
        forget_blocks(self._captures)
        return self._files.open_new(metas)

    def _refuse_without_room(self) -> None:
        """Raise where room is short and what follows does not fit: files without a snapshot would
        take the last of it, and free nothing.
        """
        state = self._state
        if not state.room.short:
            return
        rows = sum(len(block.raw) for one in self._captures for block in one.blocks)
        needed = rows + rows // 4 + 2 * self._files.snapshots.bytes_last + SNAPSHOT_SLACK_BYTES
        if state.fs.free_bytes() < needed:
            raise OSError(errno.ENOSPC, f"a checkpoint needs {needed} bytes", SEGMENTS)

    # 4. Merges

    def _merge(self) -> Steps[None]:
        """Show what merges have made; begin those of the plan, and wait for their end unless the
        next checkpoint is due before it.

        Then they go on beside it, and it is the next one that shows what they made.
        """
        state, merging = self._state, self._merging
        self._show_merged()
        if not merging.under_way:
            segments, now, room = state.catalog.segments(), state.clock.now_ms(), self._room()
            try:
                planned: list[PlannedMerge] = yield in_lane(
                    state.runtime,
                    LANE,
                    lambda: self._files.plan_merges(segments, now, room),
                )
            except Exception as error:  # noqa: BLE001 - whatever it is
                log.warning("no merge was planned: %s", error)
                return
            merging.begin(planned)
        if merging.under_way and not self._next_is_due():
            yield merging.end_or_hurry()
        self._show_merged()

    def _show_merged(self) -> None:
        for merged in self._merging.take_merged():
            self._files.replace(merged)

    def _room(self) -> int | None:
        """What merges may write where room is short: half, for the snapshot needs some."""
        return self._state.fs.free_bytes() // 2 if self._state.room.short else None

    # 5. Snapshot

    def _write_snapshot(self, *, clean: bool) -> None:
        """Off the loop: write the keys, then the snapshot; then remove what it replaced."""
        state = self._state
        now = state.clock.now_ms()
        key_files = live_key_files(self._files.key_files, now)
        if len(key_files) >= KEY_FILES_MAX:
            self._keys = [*self._old_keys(key_files, now), *self._keys]
            key_files = []
        if self._keys:
            key_files.append(self._write_keys())
        # Where room is short the snapshot before this one, and what only that needs, goes at once.
        alone = state.room.short
        self._files.write_snapshot(self._change(clean, key_files, now), alone=alone)
        self._files.key_files = key_files
        self._keys = []
        # Here, because the loop would be held by it: nothing is given back any more.
        let_go(self._captures)

    def _change(self, clean: bool, key_files: list[KeyFileMeta], now: int) -> SnapshotChange:
        state = self._state
        return SnapshotChange(
            created_ms=now,
            clean=clean,
            generation=state.topics.generation,
            next_topic_id=self._next_topic_id,
            next_file_id=state.next_file_id,
            boot_id=state.fs.boot_id(),
            positions=dict(self._positions),
            key_files=key_files,
            topics={c.state.id: c.state for c in self._captures},
            topics_removed=set(self._removed),
            extra={WAL_NUMBER: self._wal_number.to_bytes(8, "little")}
            | {name: part for name, part in self._router_parts.items() if part},
            extra_removed={name for name, part in self._router_parts.items() if not part},
        )

    def _old_keys(self, key_files: list[KeyFileMeta], now: int) -> list[KeyRow]:
        """Return what is still within its window in these files, to be written into one."""
        state = self._state
        return [
            row
            for key_file in key_files
            for row in read_keys(state.fs, key_file)
            if now - row.time_ms <= state.keys.window_of(row.topic_id)
        ]

    def _write_keys(self) -> KeyFileMeta:
        state = self._state
        window_ms = max(state.keys.window_of(row.topic_id) for row in self._keys)
        return write_keys(state.fs, self._files.next_file_id(), self._keys, window_ms=window_ms)

    # 6. The cold tier

    def _relocate(self) -> Steps[None]:
        state, files = self._state, self._files
        free = (m for m in files.relocatable() if m.file_id not in self._merging.inputs)
        movable = list(islice(free, RELOCATED_FILES_MAX))
        if not movable:
            return
        tiers = state.tiers
        try:
            segments: list[Segment] = yield in_lane(
                state.runtime, LANE, lambda: [files.open_cold(tiers.relocate(m)) for m in movable]
            )
        except Exception as error:  # noqa: BLE001 - whatever it is
            log.warning("the cold tier did not take files, they stay hot: %s", error)
            return
        for segment in segments:
            files.flip_to_cold(segment)
        yield in_lane(state.runtime, LANE, lambda: self._flip([s.meta for s in segments]))

    def _flip(self, moved: list[SegmentMeta]) -> None:
        """Off the loop: write a snapshot that points to the cold copies; drop the hot ones."""
        assert not self._captures, "the snapshot before this one has them"
        self._removed = set()
        self._write_snapshot(clean=False)
        self._files.drop_hot_copies(moved)

    # Failure

    def _give_back(self) -> None:
        """Leave what this checkpoint took to the next one."""
        state = self._state
        if state.forwarding is not None:
            state.forwarding.release()
        for captured in self._captures:
            unsealed(captured)
        taken = [captured.topic for captured in self._captures if captured.topic.live]
        taken += [*self._connected, *self._todo]
        if state.forwarding is not None:
            state.forwarding.give_back(self._router_parts)
        state.totals.put_back_changes(taken, self._removed)
        state.keys.put_back(self._keys)


def _pop(items: list[T], count: int) -> list[T]:
    taken = items[-count:]
    del items[-count:]
    return taken
