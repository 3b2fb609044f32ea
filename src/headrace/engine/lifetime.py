"""The life of an engine: its parts put together, its directory opened, recovered, closed.

Only this file knows all parts of an engine and the order in which they start and stop.  What can be
done with an engine that is open is in `engine.py`.
"""

from __future__ import annotations

import contextlib
import logging
import os
from collections.abc import Iterator, Mapping
from typing import Final, Self

from headrace.core.clock import Random, SystemRandom
from headrace.core.errors import HeadraceError
from headrace.core.runtime import Runtime
from headrace.core.settings import Settings
from headrace.core.thread_runtime import LoopRuntime, ThreadRuntime
from headrace.engine.appending.append import Appender
from headrace.engine.figures import Figures
from headrace.engine.own_files import OwnFiles
from headrace.engine.queues.operations import Queues
from headrace.engine.reading.manifest import Manifests
from headrace.engine.reading.read import Reader
from headrace.engine.recovery.recovery import Progress, Recovered, Recovery
from headrace.engine.recovery.startup import Startup
from headrace.engine.removal.deleting import Deleter
from headrace.engine.removal.watermark import Archives
from headrace.engine.routers.directory import RouterDirectory
from headrace.engine.routers.operations import Routers
from headrace.engine.scrubbing.scrub import Scrub
from headrace.engine.sealing.checkpointer import Checkpointer
from headrace.engine.sealing.sealed_files import SealedFiles
from headrace.engine.state import EngineState
from headrace.engine.streams.operations import Streams
from headrace.engine.topics.lifecycle import Lifecycle
from headrace.engine.topics.topic import Topic
from headrace.storage.files.merge_policy import MergePolicy
from headrace.storage.files.store import DirectoryStore, Store, open_store
from headrace.storage.files.tier import Tiers
from headrace.storage.fs import LOCK_PATH, Filesystem, Lock, RealFilesystem
from headrace.storage.snapshot.files import SnapshotStore
from headrace.storage.tools.backup_manifest import refuse_backup

log = logging.getLogger("headrace.engine")

CLOCK_WATCH_MS = 1_000


class EngineLifetime:
    """The parts of one engine on one data directory, from its lock to its release."""

    def __init__(
        self,
        fs: Filesystem,
        runtime: Runtime,
        settings: Settings | None = None,
        *,
        random: Random | None = None,
        cold: Store | None = None,
        policy: MergePolicy | None = None,
    ) -> None:
        self.settings = settings or Settings()
        self.runtime = runtime
        refuse_backup(fs)
        self._lock: Lock | None = fs.lock(LOCK_PATH)
        tiers = Tiers(DirectoryStore(fs), cold)
        self._state = state = EngineState(
            self.settings, fs, runtime, random or SystemRandom(), tiers
        )
        self._store = SnapshotStore(fs)
        self._lifecycle = Lifecycle(state)
        self._appender = Appender(state, self._lifecycle)
        self._reader = Reader(state)
        self._deleter = Deleter(state)
        self.archives = Archives(state)
        self._router_directory = RouterDirectory(state)
        self.routers = Routers(state, self._lifecycle, self._router_directory)
        self.queues = Queues(state, self._appender, self._reader)
        self.streams = Streams(state, self._lifecycle, self._appender)
        self._files = SealedFiles(state, self._store, policy or _policy(self.settings))
        self._checkpointer = Checkpointer(state, self._files)
        self.manifests = Manifests(state, self._files)
        self.scrub: Final = Scrub(state, self._files)
        self._startup = Startup(
            state, lambda: Recovery(state, self._store, self._files, self._router_directory)
        )
        self.figures = Figures(
            state,
            self._startup,
            self._router_directory,
            self.queues,
            self._checkpointer,
            self._reader,
            self.manifests,
        )
        self.own_files: Final = OwnFiles(fs, runtime)
        self.clock: Final = state.clock  # engine time
        self.random: Final = state.random
        self.turns: Final = state.turns  # live delivery and background work
        self.throttle: Final = state.throttle
        self.loading: Final = state.loading  # topics that come back after the start
        # By name, live or being created; for looking up, never for changing.
        self.topics_by_name: Final[Mapping[str, Topic]] = state.by_name
        self.clock_jumps_total = 0
        self._closed = False

    @classmethod
    def open(cls, directory: str | os.PathLike[str], settings: Settings | None = None) -> Self:
        """Open a directory in a synchronous program, creating it if need be."""
        settings = settings or Settings(data_dir=os.fspath(directory))
        runtime = ThreadRuntime(threads={"read": settings.reader_threads})
        engine = cls._make(directory, settings, runtime)
        engine.recover()
        return engine

    @classmethod
    async def open_async(
        cls, directory: str | os.PathLike[str], settings: Settings | None = None
    ) -> Self:
        """Open a directory inside the running asyncio loop, which then owns the engine."""
        engine = cls.prepare_async(directory, settings)
        await engine.recover_async()
        return engine

    @classmethod
    def prepare_async(
        cls, directory: str | os.PathLike[str], settings: Settings | None = None
    ) -> Self:
        """Take a directory inside the running asyncio loop; nothing is read before recovery."""
        settings = settings or Settings(data_dir=os.fspath(directory))
        return cls._make(
            directory, settings, LoopRuntime(threads={"read": settings.reader_threads})
        )

    @classmethod
    def _make(cls, directory: str | os.PathLike[str], settings: Settings, runtime: Runtime) -> Self:
        fs = RealFilesystem(directory)
        fs.mkdir("")
        cold = open_store(settings.cold_url) if settings.cold_url else None
        return cls(fs, runtime, settings, cold=cold)

    def recover(
        self, progress: Progress = lambda _part: None, *, all_at_once: bool = True
    ) -> Recovered:
        """Bring back the state of the last run; the engine is ready on return.

        If not all at once, topics of class `memory` come back after that, as beside a loop.
        """
        with self._abandoned_on_failure():
            return self._startup.run(progress, self._go_live, all_at_once=all_at_once)

    async def recover_async(self) -> Recovered:
        """The same beside the running loop, which stays free: `progress` says how far it is."""
        with self._abandoned_on_failure():
            return await self._startup.run_async(self._go_live)

    @contextlib.contextmanager
    def _abandoned_on_failure(self) -> Iterator[None]:
        try:
            yield
        except BaseException:
            self.abandon()
            raise

    def _go_live(self, sealed_midway: bool) -> None:
        """Take requests, and begin what happens by itself; on the loop thread."""
        self._state.go_live()
        self.queues.resume()
        self.streams.start()
        self._checkpointer.start_watching()
        self._router_directory.start()
        self._watch_clock()
        if sealed_midway or self._state.room.short:
            # On a full disk: a stop may have come between a delete and the room it frees.
            self._checkpointer.run()

    @property
    def ready(self) -> bool:
        """Whether recovery is done and requests are taken."""
        return self._state.ready

    @property
    def progress(self) -> float:
        """How far recovery is, from 0 to 1."""
        return self._startup.progress

    @property
    def recovered(self) -> Recovered | None:
        """What recovery found; None until the log has been read."""
        return self._startup.recovered

    def _watch_clock(self) -> None:
        """Say so when the wall clock jumps; engine time does not follow it."""
        jump_ms = self._state.clock.check_jump()
        if jump_ms is not None:
            self.clock_jumps_total += 1
            log.warning("the wall clock jumped by %d ms; engine time goes on as before", jump_ms)
        if not self._closed:
            self.runtime.later(CLOCK_WATCH_MS, self._watch_clock)

    # The end

    def flush(self) -> None:
        """End the turn now: write what is staged."""
        for shard in self._state.shards:
            shard.flush()

    def govern(self) -> None:
        """Shed load in time rather than all at once: for servers, on a loop that runs by itself."""
        self._state.throttle.start()

    def close(self) -> None:
        """Seal everything, leave a clean snapshot, give the directory back."""
        if self._closed:
            return
        self._closed = True
        state = self._state
        state.throttle.stop()  # first: what it puts off is for turns that do not come any more
        self._router_directory.finish()
        state.begin_closing()
        try:
            if state.ready:
                self.flush()
                self.runtime.drain()
                self._checkpointer.close()
        except (HeadraceError, OSError, MemoryError) as error:
            why = str(error) or "out of memory"
            log.warning("no clean snapshot, the next start replays the log: %s", why)
        finally:
            self._release()

    def abandon(self) -> None:
        """Let go as a killed process would: nothing is written, the directory is free."""
        self._closed = True
        self._state.begin_closing()
        self._release()

    def _release(self) -> None:
        self.runtime.close()
        self._startup.cancel()
        for segment in self._state.catalog.segments():
            segment.close()
        if self._lock is not None:
            self._lock.release()
            self._lock = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None:
        self.close()

    @property
    def state(self) -> EngineState:
        """The shared state, for the packages of the engine and for tests."""
        return self._state

    @property
    def checkpointer(self) -> Checkpointer:
        return self._checkpointer


def _policy(settings: Settings) -> MergePolicy:
    return MergePolicy(
        own_rows_min=settings.segment_max_events, own_bytes_max=settings.segment_max_bytes
    )
