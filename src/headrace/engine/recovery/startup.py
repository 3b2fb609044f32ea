"""The start of an engine: open the log, recover, and begin to serve.

Only this file decides which part of a start runs where: replaying the log may take long and can run
in a thread of its own, beside a loop that answers probes; everything after it belongs to the loop
thread.  What the files and the log say is `recovery`'s to know.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import logging
from collections.abc import Callable, Iterator

from headrace.core.errors import ShuttingDown
from headrace.core.runtime import Ticket
from headrace.core.steps import follow
from headrace.engine.recovery.recovery import Progress, Recovered, Recovery
from headrace.engine.state import EngineState
from headrace.storage.wal.file import shard_directory
from headrace.storage.wal.next_file import FileSequence
from headrace.storage.wal.shard import WalShard

log = logging.getLogger("headrace.recovery")

RECOVERY_LANE = "recover"
SLICE_NS = 2_000_000  # how long the end of a recovery may hold the loop at a time

# Called on the loop thread once everything is recovered; True: files were sealed on the way.
GoLive = Callable[[bool], None]


class Startup:
    """One start of one engine: how far it is, and what it found."""

    def __init__(self, state: EngineState, make_recovery: Callable[[], Recovery]) -> None:
        self._state = state
        self._make_recovery = make_recovery
        self._started_ns = state.runtime.clock.monotonic_ns()
        self._replaying: Ticket[Recovery] | None = None
        self.progress = 0.0  # 0 to 1, never falling
        self.recovered: Recovered | None = None
        self.duration_ns = 0  # from the start until the engine was ready

    def run(self, progress: Progress, go_live: GoLive, *, all_at_once: bool) -> Recovered:
        """Recover, and go live, in the calling thread; if not all at once, then topics of class
        `memory` come back beside requests.
        """
        with self._garbage_left_alone():
            recovery = self._replay(progress)
            self._prepare_log()
            if all_at_once:
                recovery.second_reading().run()
                self._state.sealed_blocks.make_room()
            for _ in recovery.enforce_retention():
                pass
            return self._finish(recovery, go_live)

    async def run_async(self, go_live: GoLive) -> Recovered:
        """The same beside the running loop, which stays free: `progress` says how far it is."""
        state = self._state
        ticket = self._replaying = Ticket(state.runtime)

        def replayed(recovery: object, error: BaseException | None) -> None:
            if ticket.done:
                return  # closed meanwhile
            if error is not None:
                ticket.fail(error)
            else:
                assert isinstance(recovery, Recovery)
                ticket.resolve(recovery)

        with self._garbage_left_alone():
            state.runtime.submit(RECOVERY_LANE, self._replay, replayed)
            recovery = await ticket
            self._prepare_log()
            clock = state.clock
            started = clock.monotonic_ns()
            for _ in recovery.enforce_retention():
                if clock.monotonic_ns() - started > SLICE_NS:
                    await asyncio.sleep(0)
                    self._refuse_closing()
                    started = clock.monotonic_ns()
            return self._finish(recovery, go_live)

    def cancel(self) -> None:
        """Fail a start that waits for the thread that replays the log."""
        if self._replaying is not None and not self._replaying.done:
            self._replaying.fail(ShuttingDown("closed during recovery", fix="start again"))

    @contextlib.contextmanager
    def _garbage_left_alone(self) -> Iterator[None]:
        """Switch the garbage collector off: what recovery makes stays, and looking for garbage in
        it takes 40 % of the time.
        """
        collecting = gc.isenabled()
        gc.disable()
        try:
            yield
        finally:
            self._replaying = None
            if collecting:
                gc.enable()

    def _replay(self, progress: Progress = lambda _part: None) -> Recovery:
        """Read the snapshot and the log; may run in another thread."""

        def report(part: float) -> None:
            self._refuse_closing()
            # A scan looks back now and then; what is shown never does.
            self.progress = max(self.progress, part)
            progress(self.progress)

        self._make_shards()
        recovery = self._make_recovery()
        self.recovered = recovery.run(report)
        return recovery

    def _make_shards(self) -> None:
        state, settings = self._state, self._state.settings
        shards = []
        for shard in range(settings.wal_shards):
            files = FileSequence(
                state.fs,
                state.runtime,
                state.random,
                shard_directory(shard, settings.wal_shards),
                shard,
                lambda: next(state.wal_numbers),
                file_bytes=settings.wal_file_bytes,
                # A checkpoint ends a file about here; the rest is seldom reached.
                zeroed_bytes=settings.checkpoint_wal_bytes * 9 // 8,
                spare=state.room.spare,
            )
            shards.append(
                WalShard(
                    state.fs,
                    state.runtime,
                    files,
                    batch_bytes_max=settings.wal_batch_bytes_max,
                    pending_bytes_max=settings.wal_pending_bytes_max,
                    sync_interval_ms=settings.sync_interval_ms,
                    inline_sync_us_max=settings.inline_sync_us_max,
                    room=state.room,
                )
            )
        state.set_shards(shards)

    def _prepare_log(self) -> None:
        for shard in self._state.shards:
            shard.prepare()

    def _refuse_closing(self) -> None:
        if self._state.closing:
            raise ShuttingDown("closed during recovery", fix="start again")

    def _finish(self, recovery: Recovery, go_live: GoLive) -> Recovered:
        assert self.recovered is not None
        state = self._state
        self.duration_ns = state.runtime.clock.monotonic_ns() - self._started_ns
        rest = recovery.second_reading()
        rest.begin()
        go_live(recovery.sealed_midway)
        if state.loading:
            log.info("ready; %d topics of class memory are coming back", len(state.loading))

            def back() -> None:
                log.info("all topics of class memory are back")
                state.sealed_blocks.make_room()
                if recovery.sealed_midway:
                    state.room.want()

            follow(state.runtime, rest.steps(back))
        return self.recovered
