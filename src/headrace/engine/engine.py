"""The engine: one data directory, opened, and everything that can be done with it in-process.

This file only puts the parts together and names them for callers.  Every call is made on the loop
thread and answers with a `Ticket`: `.result()` in a synchronous program, `await` in an asyncio one.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import logging
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, TypeVar

from headrace.core.clock import Random, SystemRandom
from headrace.core.errors import HeadraceError, ShuttingDown
from headrace.core.runtime import LoopRuntime, Runtime, ThreadRuntime, Ticket
from headrace.core.settings import Settings
from headrace.engine.admission import PLAIN, Append
from headrace.engine.append import Appended, Appender
from headrace.engine.archiving import Archives
from headrace.engine.checkpoint import Checkpointer
from headrace.engine.collect import ReadRequest
from headrace.engine.core_state import Core, failed
from headrace.engine.deleting import Deleter, DeleteResult, TagMatch
from headrace.engine.idempotency import ProducerClaim
from headrace.engine.lifecycle import Deleted, Lifecycle, Put
from headrace.engine.listing import TopicInfo, TopicPage, info_of, page_of
from headrace.engine.payloads import Payload, make_batch
from headrace.engine.queues.queueing import Queues
from headrace.engine.reading import Page, Reader
from headrace.engine.recovery import Progress, Recovered, Recovery
from headrace.engine.routers.routing import Routers
from headrace.engine.sealed_files import SealedFiles
from headrace.engine.syncing import synced
from headrace.engine.topic import Topic
from headrace.engine.topic_config import TopicConfig, make_config
from headrace.storage.block import AnyBatch
from headrace.storage.fs import LOCK_PATH, Filesystem, Lock, RealFilesystem
from headrace.storage.merge import MergePolicy
from headrace.storage.snapshot_files import SnapshotStore
from headrace.storage.tier import DirectoryStore, Store, Tiers, open_store
from headrace.storage.wal import WalShard
from headrace.storage.wal_file import shard_directory

if TYPE_CHECKING:
    from headrace.storage.backup import BackupReport

log = logging.getLogger("headrace.engine")


CLOCK_WATCH_MS = 1_000
RECOVERY_LANE = "recover"
SLICE_NS = 2_000_000  # how long the end of a recovery may hold the loop at a time

T = TypeVar("T")
ConfigLike = TopicConfig | Mapping[str, object] | None
_NO_CONDITIONS = (None,) * 5


class Engine:
    """A durable event log in one directory.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as directory:
    ...     with Engine.open(directory) as engine:
    ...         appended = engine.append("orders", [{"id": 1}, {"id": 2}]).result()
    ...         page = engine.read("orders").result()
    >>> appended.last_seq, [record.data for record in page.records]
    (2, [b'{"id":1}', b'{"id":2}'])
    """

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
        self._lock: Lock | None = fs.lock(LOCK_PATH)
        tiers = Tiers(DirectoryStore(fs), cold)
        self._core = core = Core(self.settings, fs, runtime, random or SystemRandom(), tiers)
        self._store = SnapshotStore(fs)
        self._lifecycle = Lifecycle(core)
        self._appender = Appender(core, self._lifecycle)
        self._reader = Reader(core)
        self._deleter = Deleter(core)
        self.archives = Archives(core)
        self.routers = Routers(core, self._lifecycle, self._appender)
        self.queues = Queues(core, self._appender, self._reader)
        self._files = SealedFiles(core, self._store, policy or _policy(self.settings))
        self._checkpointer = Checkpointer(core, self._files)
        self.progress = 0.0  # of recovery, 0 to 1
        self.recovered: Recovered | None = None
        self.clock_jumps_total = 0
        self.recovery_ns = 0  # from the start until it was ready
        self._started_ns = runtime.clock.monotonic_ns()
        self._closed = False
        self._replaying: Ticket[Recovery] | None = None

    @classmethod
    def open(cls, directory: str | os.PathLike[str], settings: Settings | None = None) -> Engine:
        """Open a directory in a synchronous program, creating it if need be."""
        settings = settings or Settings(data_dir=os.fspath(directory))
        runtime = ThreadRuntime(threads={"read": settings.reader_threads})
        engine = cls._make(directory, settings, runtime)
        engine.recover()
        return engine

    @classmethod
    async def open_async(
        cls, directory: str | os.PathLike[str], settings: Settings | None = None
    ) -> Engine:
        """Open a directory inside the running asyncio loop, which then owns the engine."""
        engine = cls.prepare_async(directory, settings)
        await engine.recover_async()
        return engine

    @classmethod
    def prepare_async(
        cls, directory: str | os.PathLike[str], settings: Settings | None = None
    ) -> Engine:
        """Take a directory inside the running asyncio loop; nothing is read before recovery."""
        settings = settings or Settings(data_dir=os.fspath(directory))
        return cls._make(
            directory, settings, LoopRuntime(threads={"read": settings.reader_threads})
        )

    @classmethod
    def _make(
        cls, directory: str | os.PathLike[str], settings: Settings, runtime: Runtime
    ) -> Engine:
        fs = RealFilesystem(directory)
        fs.mkdir("")
        cold = open_store(settings.cold_url) if settings.cold_url else None
        return cls(fs, runtime, settings, cold=cold)

    def recover(self, progress: Progress = lambda _part: None) -> Recovered:
        """Bring back the state of the last run; the engine is ready on return."""
        with self._recovering():
            recovery = self._replay(progress)
            self._prepare_log()
            for _ in recovery.enforce_retention():
                pass
            return self._go_live(recovery)

    async def recover_async(self) -> Recovered:
        """The same beside the running loop, which stays free: `progress` says how far it is."""
        ticket = self._replaying = Ticket(self.runtime)

        def replayed(recovery: object, error: BaseException | None) -> None:
            if ticket.done:
                return  # closed meanwhile
            if error is not None:
                ticket.fail(error)
            else:
                assert isinstance(recovery, Recovery)
                ticket.resolve(recovery)

        with self._recovering():
            self.runtime.submit(RECOVERY_LANE, self._replay, replayed)
            recovery = await ticket
            self._prepare_log()
            clock = self._core.clock
            started = clock.monotonic_ns()
            for _ in recovery.enforce_retention():
                if clock.monotonic_ns() - started > SLICE_NS:
                    await asyncio.sleep(0)
                    self._refuse_closing()
                    started = clock.monotonic_ns()
            return self._go_live(recovery)

    @contextlib.contextmanager
    def _recovering(self) -> Iterator[None]:
        """What is made in a recovery stays: looking for garbage in it takes 40 % of the time."""
        collecting = gc.isenabled()
        gc.disable()
        try:
            yield
        except BaseException:
            self.abandon()
            raise
        finally:
            self._replaying = None
            if collecting:
                gc.enable()

    def _replay(self, progress: Progress = lambda _part: None) -> Recovery:
        """The part of recovery that may run in another thread."""

        def note(part: float) -> None:
            self._refuse_closing()
            # A scan looks back now and then; what is shown never does.
            self.progress = max(self.progress, part)
            progress(self.progress)

        self._make_shards()
        parts = (self._store, self._lifecycle, self._files, self.routers)
        recovery = Recovery(self._core, *parts)
        self.recovered = recovery.run(note)
        return recovery

    def _prepare_log(self) -> None:
        for shard in self._core.shards:
            shard.prepare()

    def _refuse_closing(self) -> None:
        if self._core.closing:
            raise ShuttingDown("closed during recovery", fix="start again")

    def _go_live(self, recovery: Recovery) -> Recovered:
        """On the loop thread: take requests, and begin what happens by itself."""
        self.recovery_ns = self.runtime.clock.monotonic_ns() - self._started_ns
        self._core.ready = True
        self.queues.resume()
        self._checkpointer.start_watching()
        self.routers.start()
        self._watch_clock()
        if recovery.sealed_midway:
            self._checkpointer.run()
        assert self.recovered is not None
        return self.recovered

    def _watch_clock(self) -> None:
        """Say so when the wall clock jumps; engine time does not follow it."""
        jump_ms = self._core.clock.check_jump()
        if jump_ms is not None:
            self.clock_jumps_total += 1
            log.warning("the wall clock jumped by %d ms; engine time goes on as before", jump_ms)
        if not self._closed:
            self.runtime.later(CLOCK_WATCH_MS, self._watch_clock)

    def _make_shards(self) -> None:
        core, settings = self._core, self.settings

        core.shards = [
            WalShard(
                core.fs,
                core.runtime,
                core.random,
                shard_directory(shard, settings.wal_shards),
                shard,
                lambda: next(core.wal_numbers),
                file_bytes=settings.wal_file_bytes,
                # A checkpoint ends a file about here; the rest is seldom reached.
                zeroed_bytes=settings.checkpoint_wal_bytes * 9 // 8,
                batch_bytes_max=settings.wal_batch_bytes_max,
                pending_bytes_max=settings.wal_pending_bytes_max,
                sync_interval_ms=settings.sync_interval_ms,
            )
            for shard in range(settings.wal_shards)
        ]

    # Topics

    def put_topic(self, name: str, config: ConfigLike = None) -> Ticket[Put]:
        """Create a topic, or replace the whole config of the one that is there."""
        return self._attempt(lambda: self._lifecycle.put(name, make_config(config)))

    def delete_topic(self, name: str, *, if_empty: bool = False) -> Ticket[Deleted]:
        """Delete a topic and everything in it."""
        return self._attempt(lambda: self._lifecycle.delete(name, if_empty=if_empty))

    def topic(self, name: str, *, touch: bool = False) -> TopicInfo:
        """The state of a topic, now; `TopicNotFound` if there is none.

        `touch`: the caller consumes the topic, which counts for its priority.
        """
        topic = self._core.topic(name)
        self.routers.drain_into(name)  # of class fsync, and where files are read: wait for it first
        return info_of(self._core, topic, touch=touch)

    def topics(self, prefix: str = "") -> list[TopicInfo]:
        """The state of all topics whose name starts with `prefix`, by name."""
        return self.list_topics(prefix, limit=len(self._core.by_name)).topics

    def list_topics(
        self,
        prefix: str = "",
        after: str = "",
        limit: int = 100,
        *,
        allowed: Callable[[str], bool] | None = None,
        touch: bool = False,
    ) -> TopicPage:
        """A page of topics in the byte order of their names, from beyond the name `after` on.

        What it costs follows `limit`, not the number of topics.
        """
        self._core.refuse_unready()
        return page_of(self._core, prefix, after, limit, allowed, touch)

    def touch(self, topic: str | Topic) -> None:
        """Somebody consumed this topic just now: a read, a state that was asked for, a delivery."""
        if isinstance(topic, str):
            topic = self._core.topic(topic)
        topic.last_read_ms = self._core.clock.now_ms()

    # Records

    def append(
        self,
        name: str,
        records: AnyBatch | Sequence[Payload],
        *,
        config: ConfigLike = None,
        create: bool | None = None,
        idempotency_key: str | None = None,
        producer: ProducerClaim | None = None,
        expected_head_seq: int | None = None,
        state: bytes | None = None,
        disable_backpressure: bool = False,
    ) -> Ticket[Appended]:
        """Append records, all or none, creating the topic on the way.

        `records` is a `Batch` of columns, or a list whose items are bytes (stored as they are)
        or values (stored as JSON).  With `disable_backpressure` it is not refused because the
        server is overloaded.
        """
        how = PLAIN
        try:
            given = (create, idempotency_key, producer, expected_head_seq, state)
            if config is not None or disable_backpressure or given != _NO_CONDITIONS:
                made = None if config is None else make_config(config)
                how = Append(made, *given, disable_backpressure)
            batch = records if isinstance(records, AnyBatch) else make_batch(records)
            return self._appender.append(name, batch, how)
        except HeadraceError as error:
            return failed(self.runtime, error)

    def append_batch(self, name: str, batch: AnyBatch, how: Append = PLAIN) -> Ticket[Appended]:
        """`append` for callers that have columns and conditions already: the wire layer."""
        try:
            return self._appender.append(name, batch, how)
        except HeadraceError as error:
            return failed(self.runtime, error)

    def read(
        self,
        name: str,
        from_seq: int = 0,
        *,
        limit: int | None = None,
        bytes_max: int | None = None,
        nodes: str | Sequence[str] = (),
        epoch: int | None = None,
        from_ts: int | None = None,
        last: int | None = None,
        columns: bool = False,
    ) -> Ticket[Page]:
        """Read records after `from_seq`, or from a time, or the last so many.

        Records whose node is in `nodes` are left out.  With `columns` the page has Arrow batches.
        """
        settings = self.settings
        request = ReadRequest(
            from_seq,
            settings.read_limit_default if limit is None else limit,
            settings.read_bytes_default if bytes_max is None else bytes_max,
            (nodes,) if isinstance(nodes, str) else nodes,
            epoch,
            from_ts,
            last,
            columns,
        )
        return self._attempt(lambda: self._reader.read(name, request))

    def read_page(self, name: str, request: ReadRequest) -> Ticket[Page]:
        """`read` for callers that have the request already: the wire layer."""
        return self._attempt(lambda: self._reader.read(name, request))

    def wait(self, name: str, after_seq: int) -> Ticket[None]:
        """Done when there is a record beyond `after_seq`, or the topic is gone."""
        return self._attempt(lambda: self._reader.wait(name, after_seq))

    def delete(
        self, name: str, *, before_seq: int | None = None, match: str | TagMatch | None = None
    ) -> Ticket[DeleteResult]:
        """Delete records below a seq, by tag (`"tag"` or `"prefix*"`), or both at once."""

        def run() -> Ticket[DeleteResult]:
            parsed = match if isinstance(match, TagMatch | None) else TagMatch.parse(match)
            return self._deleter.delete(name, before_seq, parsed)

        return self._attempt(run)

    def synced(self, name: str) -> Ticket[None]:
        """Done when everything of a topic that is visible now is on disk, power loss or not."""
        return self._attempt(lambda: synced(self._core, name))

    # Upkeep

    def checkpoint(self) -> Ticket[None]:
        """Seal what the log holds, merge files, write a snapshot."""

        def run() -> Ticket[None]:
            self._core.refuse_unready()
            return self._checkpointer.run()

        return self._attempt(run)

    def backup(self, target: str, *, replace: bool = False) -> Ticket[BackupReport]:
        """Bring a backup in a directory or object store up to date; serving goes on meanwhile.

        Only what changed since the last backup there is copied.  `replace` allows a target that
        holds the backup of another directory.
        """
        from headrace.engine.backup import backup

        def run() -> Ticket[BackupReport]:
            self._core.refuse_unready()
            return backup(self, target, replace=replace)

        return self._attempt(run)

    def flush(self) -> None:
        """End the turn now: write what is staged."""
        for shard in self._core.shards:
            shard.flush()

    @property
    def core(self) -> Core:
        """The shared state, for the layers above and for tests."""
        return self._core

    @property
    def checkpointer(self) -> Checkpointer:
        return self._checkpointer

    def govern(self) -> None:
        """Shed load in time rather than all at once: for servers, on a loop that runs by itself."""
        self._core.throttle.start()

    def close(self) -> None:
        """Seal everything, leave a clean snapshot, give the directory back."""
        if self._closed:
            return
        self._closed = True
        core = self._core
        self.routers.finish()
        core.closing = True
        core.throttle.stop()
        try:
            if core.ready:
                self.flush()
                self.runtime.drain()
                self._checkpointer.close()
        except (HeadraceError, OSError) as error:
            log.warning("no clean snapshot, the next start replays the log: %s", error)
        finally:
            self._release()

    def abandon(self) -> None:
        """Let go as a killed process would: nothing is written, the directory is free."""
        self._closed = True
        self._core.closing = True
        self._release()

    def _release(self) -> None:
        self.runtime.close()
        if self._replaying is not None and not self._replaying.done:
            self._replaying.fail(ShuttingDown("closed during recovery", fix="start again"))
        for segment in self._core.catalog.segments():
            segment.close()
        if self._lock is not None:
            self._lock.release()
            self._lock = None

    def __enter__(self) -> Engine:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def _attempt(self, call: Callable[[], Ticket[T]]) -> Ticket[T]:
        """Run a call; what it refuses is the ticket's error, so that callers have one way."""
        try:
            return call()
        except HeadraceError as error:
            return failed(self.runtime, error)


def _policy(settings: Settings) -> MergePolicy:
    return MergePolicy(
        own_rows_min=settings.segment_max_events, own_bytes_max=settings.segment_max_bytes
    )
