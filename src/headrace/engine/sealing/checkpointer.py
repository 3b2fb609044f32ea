"""When checkpoints run: by age, by the size of the log, on request, and one last at a clean exit.

Only this file decides when; `checkpoint.py` decides in which order.  One checkpoint runs at a time:
those asked for meanwhile are one more, which follows it.  After a failure none starts by itself for
a while.
"""

from __future__ import annotations

import logging
from functools import partial

from headrace.core.errors import HeadraceError, typed
from headrace.core.runtime import Ticket
from headrace.core.steps import Steps, follow_at_once, pass_on, turn_end
from headrace.engine.sealing.checkpoint import SLICE_NS, Checkpoint
from headrace.engine.sealing.merging import Merging
from headrace.engine.sealing.sealed_files import SealedFiles
from headrace.engine.state import EngineState
from headrace.storage.wal.failures import NO_ROOM_ERRNOS

log = logging.getLogger("headrace.checkpoint")

RETRY_MS = 5_000


class Checkpointer:
    """Drives checkpoints of one engine."""

    def __init__(self, state: EngineState, files: SealedFiles) -> None:
        self._state = state
        self.files = files
        self._merging = Merging(state, files, self._merges_ended)
        self._running = False
        self._followers: list[Ticket[None]] = []  # asked for the one after the running one
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
        for shard in self._state.shards:
            shard.after_settling = self.maybe
        self._state.room.listen(self._room_changed)
        self._state.loading.when_done(self._all_back)
        self._arm()

    def _all_back(self) -> None:
        """Run what had to wait for topics that came back after the start."""
        followers, self._followers = self._followers, []
        self._run_for(followers)
        self._state.runtime.soon(self.maybe)

    def _room_changed(self) -> None:
        """When room gets short: see what a checkpoint frees of it.

        Not soon after one that failed: where a disk has free bytes and refuses to write them (no
        inodes left, a quota), shortages begin and end with every try.
        """
        if self._state.room.state == "disk_full" and not self._is_put_off():
            self._state.room.want()
            self._state.runtime.soon(self.maybe)

    def _arm(self) -> None:
        def aged() -> None:
            if self._state.closing:
                return
            if self._state.totals.changed or self._state.totals.removed:
                self.run()
            self._arm()

        settings = self._state.settings
        age_ms = min(settings.checkpoint_age_ms, settings.segment_max_age_ms)
        self._state.runtime.later(age_ms, aged)

    def _wal_bytes(self) -> int:
        return sum(shard.bytes_total for shard in self._state.shards)

    def maybe(self) -> None:
        """Start a checkpoint if enough has gathered, and keep to the budget until it is done."""
        state = self._state
        state.sealed_blocks.keep_to_budget()
        if self._running:
            if self._merging.waited_for and self._due():
                self._merging.hurry()
            return
        if state.closing or state.loading:
            return
        if state.room.was_wanted():
            self.run()
            return
        if self._is_put_off():
            return
        if self._due():
            self.run()

    def _due(self) -> bool:
        """Whether enough has gathered since the last checkpoint began."""
        state = self._state
        if state.totals.unsealed_bytes >= state.settings.memory_budget_bytes // 2:
            return True
        # One that is not urgent waits for log files that are ready, rather than use bare ones.
        grown = self._wal_bytes() - self._wal_mark >= state.settings.checkpoint_wal_bytes
        return grown and not any(shard.preparing for shard in state.shards)

    def _next_is_due(self) -> bool:
        """Whether the checkpoint that runs should not wait: another one follows at once."""
        return bool(self._followers) or self._due()

    def _merges_ended(self) -> None:
        """Show what merges made that have ended without a checkpoint to wait for them."""
        if not self._running and not self._state.closing:
            self.run()

    # One at a time

    def run(self) -> Ticket[None]:
        """Checkpoint now, or once more after the one that runs; return the ticket of its end."""
        ticket: Ticket[None] = Ticket(self._state.runtime)
        if self._running or self._state.loading:
            self._followers.append(ticket)
            self._merging.hurry()
        else:
            self._running = True
            self._wal_mark = self._wal_bytes()
            follow_at_once(self._state.runtime, self._run(ticket))
        return ticket

    def _run(self, ticket: Ticket[None]) -> Steps[None]:
        """Run one checkpoint, answer for it, and start the one that follows it, if any."""
        checkpoint = Checkpoint(self._state, self.files, self._merging, self._next_is_due)
        free_before = self._state.fs.free_bytes()
        failure: Exception | None = None
        try:
            yield from checkpoint.steps()
        except Exception as error:
            if not isinstance(error, HeadraceError | OSError | MemoryError):
                log.exception("a step of a checkpoint failed")
            failure = error.with_traceback(None)  # which refers to all that was captured
        self.last_error = failure
        self.stall_ns_max = max(self.stall_ns_max, checkpoint.stall_ns_max)
        yield from self._fit_memory()
        followers, self._followers = self._followers, []
        self._running = False
        if failure is None:
            self._not_before_ns = 0
            self.checkpoints_total += 1
            ticket.resolve(None)
        else:
            self._put_off(failure)
            ticket.fail(typed(failure))
        followed = self._see_to_room(failure, free_before)
        self._run_for(followers, or_so=followed)
        if self._state.totals.changed:
            # As much may have come meanwhile that appends are refused: then nothing settles that
            # would start the next one.
            self._state.runtime.soon(self.maybe)

    def _fit_memory(self) -> Steps[None]:
        """Drop what no longer has to be in memory, a few milliseconds at a time."""
        clock = self._state.clock
        started = clock.monotonic_ns()
        for _ in self._state.sealed_blocks.making_room():
            held = clock.monotonic_ns() - started
            if held > SLICE_NS:
                self.stall_ns_max = max(self.stall_ns_max, held)
                yield turn_end(self._state.runtime)
                started = clock.monotonic_ns()

    def _run_for(self, followers: list[Ticket[None]], *, or_so: bool = False) -> None:
        if followers or or_so:
            next_one = self.run()
            for follower in followers:
                next_one.when_done(partial(pass_on, to=follower))

    def _see_to_room(self, failure: Exception | None, free_before: int) -> bool:
        """After a checkpoint: whether the next one, now, may free room that is short.

        One that failed for want of room is run again with what the disk reserve holds, and appends
        are refused, for they would make the next one larger.
        """
        state = self._state
        if state.closing:
            return False
        if failure is None:
            state.room.sealed()
        elif isinstance(failure, OSError) and failure.errno in NO_ROOM_ERRNOS:
            state.room.lack_for_sealing(failure, state.totals.unsealed_bytes)
            if state.room.refusal(0) is not None and state.reserve.spend():
                return True
        if state.room.was_wanted():
            return True
        gained = state.fs.free_bytes() > free_before
        if failure is None and self.files.merges_left and gained:
            return state.room.refusal(0) is not None
        state.reserve.fill()
        return False

    def _put_off(self, failure: Exception) -> None:
        """Start no checkpoint for a while: whatever is in the way, a full disk say, has to go."""
        self.failures_total += 1
        log.warning("checkpoint failed, the log is kept: %s", failure)
        self._not_before_ns = self._state.clock.monotonic_ns() + RETRY_MS * 1_000_000
        self._state.runtime.later(RETRY_MS, self.maybe)

    def _is_put_off(self) -> bool:
        """Whether one has failed so recently that none starts by itself."""
        return self._state.clock.monotonic_ns() < self._not_before_ns

    def close(self) -> None:
        """Run the last checkpoint of a clean exit, in the calling thread; nothing is in flight."""
        if self._state.loading:
            for shard in self._state.shards:
                shard.close()
            self._state.loading.refuse(None)
        Checkpoint(self._state, self.files, self._merging, self._next_is_due).run_last()
