"""A shard of the write-ahead log: batches out in order, each commit told when its class is met.

Only this file writes log batches.  The rules it owns:

* one vectored write a turn; a commit that needs no sync is settled when it has returned;
* while a sync runs, commits that need one wait for the next group (the window is 0 if not wider);
* every sync group starts on a page of its own, so that a torn write cannot reach synced bytes;
* a batch says how far the shard was durable when it was built, which is what later tells a torn
  tail from damage; an empty batch closes the last window when the shard falls idle;
* after a failed write the file is left as it is and the log goes on in another, so that no
  half-written batch can come alive; after a failed sync nothing is ever written again.

It does not know what entries mean, and `wal_succession.py` makes its files.  `scan.py` reads what
this file writes.
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable
from itertools import islice

from headrace.core.clock import Random
from headrace.core.errors import HeadraceError
from headrace.core.runtime import Runtime, Thunk
from headrace.core.telemetry import BATCH_RECORDS, LATENCY_NS, SECONDS_PER_NS, Histogram
from headrace.storage.frame import (
    BATCH_HEADER_BYTES,
    ENTRY_FORWARD,
    PAGE_BYTES,
    encode_batch_header,
)
from headrace.storage.fs import Filesystem, write_all
from headrace.storage.wal_commit import Commit
from headrace.storage.wal_file import WalFile
from headrace.storage.wal_succession import Succession
from headrace.storage.wal_trouble import (
    NO_ROOM_ERRNOS,
    is_passing,
    no_room_error,
    read_only_error,
    shortage,
    unknown_outcome,
)

log = logging.getLogger("headrace.wal")

# The first file is small, so that an empty directory serves at once.
FIRST_FILE_BYTES = 4 << 20
# Upper bounds of the histogram of sync times, in microseconds.
SYNC_MICROS = (50, 100, 250, 500, 1_000, 5_000, 10_000, 50_000, 100_000)


class WalShard:
    """Append mode of one shard.  Used by the loop thread; the sync lane only syncs."""

    def __init__(
        self,
        fs: Filesystem,
        runtime: Runtime,
        random: Random,
        directory: str,
        shard: int,
        next_number: Callable[[], int],
        *,
        file_bytes: int,
        zeroed_bytes: int | None = None,
        batch_bytes_max: int,
        pending_bytes_max: int,
        sync_interval_ms: int,
    ) -> None:
        self.directory = directory
        self.durable = 0  # shard position known to be on disk
        self.written = 0  # shard position handed to the operating system
        self.pending_bytes = 0
        self.pending_bytes_max = pending_bytes_max
        self.batches_total = 0
        self.frames_total = 0  # entries, but for those of routers
        self.forwards_total = 0  # those
        self.bytes_total = 0
        self.syncs_total = 0
        self.rotations_total = 0
        self.submit_full_total = 0  # commits that were not staged because too much was pending
        self.depth_peak = 0
        self.sync_micros = Histogram(SYNC_MICROS)
        self.sync_durations = Histogram(LATENCY_NS, SECONDS_PER_NS)
        self.batch_entries = Histogram(BATCH_RECORDS)
        self.sync_ns = 0  # of the last sync
        self.write_ns = 0  # of the write that holds what is being settled
        self.window_ms = 0
        self.windows_total = 0  # syncs that waited for it
        self.window_wait_ns = 0  # how long what is being settled waited for its sync on purpose
        self.troubled = False  # `refusal` has something to say
        self.after_settling: Thunk = lambda: None  # once for each group, not for each commit
        self._fs = fs
        self._runtime = runtime
        self._lane = f"sync-{shard}"
        self._files = Succession(
            fs, runtime, random, directory, shard, next_number, file_bytes, zeroed_bytes
        )
        self._batch_bytes_max = batch_bytes_max
        self._sync_interval_ms = sync_interval_ms
        self._pending: list[Commit] = []
        self._pending_now = False  # some pending commit needs no sync
        self._pending_sync = False  # some pending commit needs one
        self._flush_asked = False
        self.forwards_staged = 0  # whoever stages one counts it
        # Written up to a position in so many nanoseconds, at which time, and not synced that far.
        self._waiting: deque[tuple[int, int, int, list[Commit]]] = deque()
        self._to_settle: deque[tuple[list[Commit], HeadraceError | None]] = deque()
        self._settling = self._syncing = False
        self._hurry: Thunk | None = None  # cuts a delayed sync short
        self._windowed, self._opened_ns = False, 0  # somebody waits for it nevertheless; since then
        self._poison: OSError | None = None
        self._no_room: OSError | None = None
        self._closed = False
        self._current: WalFile
        self._offset = PAGE_BYTES
        self._ordinal = 0
        self._must_rotate = False
        self._quiet = True  # the last batch was an empty one, or none was written
        # The sync lane marks where a group ends while the loop thread may be writing.
        self._group_lock = threading.Lock()
        self._new_group = False
        self._unsynced: tuple[WalFile, ...] = ()
        self._names_unsynced = False

    # Life

    def start(self, base: int, first: list[bytes]) -> None:
        """Open the shard at position `base` with these entries, durable on return."""
        self.open(base, first)
        self.prepare()

    def open(self, base: int, first: list[bytes]) -> None:
        """What `start` does without the runtime, so in any thread; `prepare` is still to come."""
        self._fs.mkdir(self.directory)
        first_bytes = min(self._files.file_bytes, FIRST_FILE_BYTES)
        try:
            self._current = self._files.create(first_bytes, zeroed=first_bytes)
        except OSError as error:
            if error.errno not in NO_ROOM_ERRNOS:
                raise
            self._current = self._files.create(first_bytes, zeroed=0)  # it may just fit without
        self._fs.sync_dir(self.directory)
        self._current.base = base
        self.written = base + PAGE_BYTES
        self.durable = base
        self._unsynced = (self._current,)
        self._write_batch(b"".join(first), len(first))
        self._current.file.sync_data()
        self.durable = self.written
        self._new_group = True

    def prepare(self) -> None:
        """Make the file of the next rotation ready, in the background."""
        self._files.prepare()

    def close(self) -> None:
        """Write what is pending, close the last window, sync.  The lanes must be idle."""
        if self._closed:
            return
        self.flush()
        self._closed = True
        if self._poison is None and self._no_room is None:
            self._sync_here()
            self._write_batch(b"", 0)
            self._sync_here()
        for file in {f.path: f for f in (*self._unsynced, self._current)}.values():
            file.file.close()
        self._files.close()

    def _sync_here(self) -> None:
        try:
            begun = self._sync_job(self._begin_sync())
        except OSError as error:
            self._synced(None, error)
            return
        self._synced(begun, None)

    # Staging and writing

    def refusal(self) -> HeadraceError | None:
        """Why nothing can be written now, or None."""
        if self._poison is not None:
            return read_only_error(self._poison)
        if self._no_room is not None:
            if self._fs.free_bytes() > self.pending_bytes + 2 * self._batch_bytes_max:
                self._no_room = None
                self.troubled = False
                return None
            return no_room_error(self._no_room)
        return None

    @property
    def state(self) -> str:
        """`ok`, `wal_read_only`, `disk_full` or `out_of_resources`."""
        if self._poison is not None:
            return "wal_read_only"
        return "ok" if self._no_room is None else shortage(self._no_room)

    def stage(self, commit: Commit) -> None:
        """Take a commit into the next batch.  The caller has asked `refusal` first."""
        self._pending.append(commit)
        self.pending_bytes += len(commit.raw)
        if not commit.needs_sync:
            self._pending_now = True
        else:
            self._pending_sync = True
            if self._syncing and self._hurry is None and not self._pending_now:
                return  # joins the group after the sync that is running
        if not self._flush_asked:
            self._flush_asked = True
            self._runtime.soon(self.flush)

    def flush(self) -> None:
        """End of the turn: write what is pending, settle what needs no more than that."""
        self._flush_asked = False
        commits = self._pending
        if not commits:
            return
        if self._syncing and self._hurry is None and not self._pending_now and not self._closed:
            return
        some_wait = self._pending_sync
        self._pending = []
        self._pending_now = self._pending_sync = False
        self.pending_bytes = 0
        self.depth_peak = max(self.depth_peak, len(commits))
        started = self._runtime.clock.monotonic_ns()
        failure, done = self._write(commits)
        self.write_ns = write_ns = self._runtime.clock.monotonic_ns() - started
        written = commits if failure is None else commits[:done]
        waiting = [commit for commit in written if commit.needs_sync] if some_wait else []
        if waiting and self._poison is None:
            # Before anything is settled: what settling stages has to come after these.
            self._waiting.append((self.written, write_ns, started + write_ns, waiting))
        elif waiting:
            self._settle(waiting, unknown_outcome(self._poison or OSError()))
        now = [commit for commit in written if not commit.needs_sync] if some_wait else written
        self._settle(now, None)
        if failure is not None:
            self._settle(commits[done:], failure)
        if done:
            self._want_sync(urgent=bool(self._waiting))
            self.after_settling()

    def _settle(self, commits: list[Commit], error: HeadraceError | None) -> None:
        """Settle in log order, also when settling makes somebody flush again."""
        if self._settling:
            self._to_settle.append((commits, error))
            return
        self._settling = True
        try:
            self._settle_all(commits, error)
            while self._to_settle:
                self._settle_all(*self._to_settle.popleft())
        finally:
            self._settling = False

    def _settle_all(self, commits: list[Commit], error: HeadraceError | None) -> None:
        for commit in commits:
            try:
                commit.settle(error)
            except Exception:
                # One caller's mistake must not keep the others from hearing.
                log.exception("a commit could not be settled")

    def _write(self, commits: list[Commit]) -> tuple[HeadraceError | None, int]:
        """Write all commits as batches; (what went wrong, how many were written)."""
        done = 0
        if self._poison is not None:
            return self.refusal(), 0
        while done < len(commits):
            stop, size = done, 0
            entries = []
            for commit in islice(commits, done, None):
                raw = commit.raw
                stop += 1
                if raw:
                    size += len(raw)
                    entries.append(raw)
                    if size >= self._batch_bytes_max:
                        break
            body = entries[0] if len(entries) == 1 else b"".join(entries)
            try:
                self._write_batch(body, len(entries))
            except OSError as error:
                return self._write_failed(error), done
            if self.forwards_staged:
                forwards = sum(raw[0] == ENTRY_FORWARD for raw in entries)
                self.forwards_staged -= forwards
                self.forwards_total += forwards
                self.frames_total -= forwards
            done = stop
        return None, done

    def _write_batch(self, body: bytes, entries: int) -> None:
        with self._group_lock:
            offset = self._offset
            if self._new_group:
                offset += -offset % PAGE_BYTES
            need = BATCH_HEADER_BYTES + len(body)
            if self._must_rotate or (offset + need > self._current.limit and offset > PAGE_BYTES):
                self._rotate()
                offset = PAGE_BYTES
            current = self._current
            header = encode_batch_header(
                current.salt, current.base + offset, self.durable, self._ordinal, body, entries
            )
            try:
                write_all(current.file, [header, body] if body else [header], offset)
            except OSError:
                self._must_rotate = True
                raise
            self._new_group = False
            self._offset = offset + need
            self._ordinal += 1
            self.written = current.base + self._offset
            if current not in self._unsynced:
                self._unsynced = (*self._unsynced, current)
        self.batches_total += 1
        self.frames_total += entries
        self.batch_entries.observe(entries)
        self.bytes_total += need
        self._quiet = entries == 0

    def _write_failed(self, error: OSError) -> HeadraceError:
        if is_passing(error):
            self._no_room = error
            self.troubled = True
            return no_room_error(error)
        self._poisoned(error)
        return unknown_outcome(error)

    # Files

    def rotate(self) -> int:
        """Go on in a new file; return its first position.  Everything before is in older files."""
        with self._group_lock:
            if self._offset > PAGE_BYTES:
                self._rotate()
        return self._current.base

    def _rotate(self) -> None:
        ready = self._files.take()
        if ready is None:
            # Nothing was ready: a bare file now, rather than a stall or a refusal.
            ready = self._files.create(self._files.file_bytes, zeroed=0)
            self._names_unsynced = True
        previous, self._current = self._current, ready
        # A file in which no write succeeded takes no room in the count of bytes.
        previous.end = ready.base = previous.base + (self._offset if self._ordinal else 0)
        if previous not in self._unsynced:
            previous.file.close()
        self._offset = PAGE_BYTES
        self._ordinal = 0
        self._must_rotate = False
        self.rotations_total += 1
        if not self._closed:
            self._files.prepare()

    @property
    def preparing(self) -> bool:
        """Whether a file that a rotation could use is on its way."""
        return self._files.preparing

    @property
    def depth(self) -> int:
        """Commits that wait to be written."""
        return len(self._pending)

    # Syncing

    def hasten(self) -> None:
        """Sync what was written at once, although nobody waits for it."""
        if self.written > self.durable:
            self._want_sync(urgent=True)

    def when_durable(self, commit: Commit) -> None:
        """Settle a commit that is not to be written once everything written so far is on disk."""
        refusal = self.refusal() if self._poison is not None else None
        if refusal is not None or self.written <= self.durable:
            self._settle([commit], refusal)
            return
        self._waiting.append((self.written, 0, self._runtime.clock.monotonic_ns(), [commit]))
        self._want_sync(urgent=True)

    def widen(self, window_ms: int) -> None:
        """Let syncs that somebody waits for wait so long for more to join them; 0: not at all."""
        self.window_ms = window_ms
        if not window_ms and self._windowed and self._hurry is not None:
            self._hurry()

    def _want_sync(self, *, urgent: bool) -> None:
        if self._poison is not None:
            return
        if self._syncing:
            if urgent and self._hurry is not None and not self._windowed:
                if self._open_window():
                    self._runtime.later(self.window_ms, self._hurry)
                    return
                self._hurry()
                self._hurry = None
            return
        self._syncing = True
        if urgent and not self._open_window():
            begun = self._begin_sync()
            self._runtime.submit(self._lane, lambda: self._sync_job(begun), self._synced)
        else:
            self._hurry = self._runtime.submit_after(
                self.window_ms if urgent else self._sync_interval_ms,
                self._lane,
                lambda: self._sync_job(self._begin_sync()),
                self._synced,
            )

    def _open_window(self) -> bool:
        self._windowed = self.window_ms > 0
        self._opened_ns = self._runtime.clock.monotonic_ns()
        return self._windowed

    def _begin_sync(self) -> tuple[int, tuple[WalFile, ...]]:
        with self._group_lock:
            self._new_group = True
            return self.written, self._unsynced

    def _sync_job(self, begun: tuple[int, tuple[WalFile, ...]]) -> object:
        target, files = begun
        started = self._runtime.clock.monotonic_ns()
        if self._names_unsynced:
            self._names_unsynced = False
            self._fs.sync_dir(self.directory)
        for file in files:
            file.file.sync_data()
        return target, started, self._runtime.clock.monotonic_ns() - started

    def _synced(self, value: object, error: BaseException | None) -> None:
        windowed, self._windowed = self._windowed, False
        self.windows_total += windowed
        self._syncing, self._hurry = False, None
        if error is not None:
            self._poisoned(error if isinstance(error, OSError) else OSError(str(error)))
            return
        assert isinstance(value, tuple)
        target, begun_ns, self.sync_ns = value
        self.syncs_total += 1
        self.sync_micros.observe(self.sync_ns // 1000)
        self.sync_durations.observe(self.sync_ns)
        self.durable = max(self.durable, target)
        self._forget_synced()
        while self._waiting and self._waiting[0][0] <= self.durable:
            _, self.write_ns, written_ns, commits = self._waiting.popleft()
            self.window_wait_ns = windowed * max(begun_ns - max(written_ns, self._opened_ns), 0)
            self._settle(commits, None)
        self.after_settling()
        if self._closed:
            return
        if self._pending and not self._flush_asked:
            self._flush_asked = True
            self._runtime.soon(self.flush)
        if self._waiting:
            self._want_sync(urgent=True)
        elif self.written > self.durable:
            self._want_sync(urgent=False)
        elif not self._quiet and not self._pending:
            seen = self.written
            self._runtime.later(self._sync_interval_ms, lambda: self._close_window(seen))

    def _forget_synced(self) -> None:
        """Let go of files that are durable to their end: not of one that grew during the sync."""
        keep = []
        for file in self._unsynced:
            if file is self._current or file.end > self.durable:
                keep.append(file)
            else:
                file.file.close()
        self._unsynced = tuple(keep)

    def _close_window(self, seen: int) -> None:
        idle = self.written == seen and not self._pending and not self._syncing
        if not idle or self._closed or self.refusal() is not None or self._quiet:
            return
        try:
            self._write_batch(b"", 0)
        except OSError as error:
            self._write_failed(error)
            return
        self._want_sync(urgent=False)

    def _poisoned(self, error: OSError) -> None:
        self._poison = error
        self.troubled = True
        waiting, self._waiting = self._waiting, deque()
        for *_, commits in waiting:
            self._settle(commits, unknown_outcome(error))
        pending, self._pending = self._pending, []
        self.pending_bytes = 0
        self._settle(pending, self.refusal())
