"""A shard of the write-ahead log: batches out in order, each commit told when its class is met.

Only this file decides when the log is written.  The rules it owns:

* one vectored write a turn; a commit that needs no sync is settled when it has returned;
* while a sync runs, commits that need one wait for the next group;
* a commit that only has to be settled behind others waits for their sync, and for none of its own;
* an empty batch closes the last window when the shard falls idle;
* after a failed sync nothing is ever written again.

It does not know what entries mean.  `batch_writer.py` places the batches in files, `syncing.py`
syncs them, `scan.py` reads them back.
"""

from __future__ import annotations

import errno
from collections import deque

from headrace.core.clock import NS_PER_MS
from headrace.core.error_frames import without_frames
from headrace.core.errors import HeadraceError, OutOfResources
from headrace.core.runtime import Runtime, Thunk
from headrace.core.telemetry import Histogram
from headrace.storage.fs import Filesystem
from headrace.storage.reserve import DiskReserve
from headrace.storage.wal.commit import Commit, OrderedSettling, next_batch
from headrace.storage.wal.delayed_flush import DelayedFlush
from headrace.storage.wal.failures import is_passing, read_only_error, unknown_outcome
from headrace.storage.wal.frame import ENTRY_FORWARD
from headrace.storage.wal.log_end import LogEnd
from headrace.storage.wal.next_file import FileSequence
from headrace.storage.wal.room import LogRoom
from headrace.storage.wal.syncing import LogSyncs


class WalShard:
    """Append mode of one shard.  Used by the loop thread; the sync lane only syncs."""

    def __init__(
        self,
        fs: Filesystem,
        runtime: Runtime,
        files: FileSequence,
        *,
        batch_bytes_max: int,
        pending_bytes_max: int,
        sync_interval_ms: int,
        inline_sync_us_max: int = 0,
        room: LogRoom | None = None,
    ) -> None:
        self.directory = files.directory
        self.pending_bytes = 0
        self.pending_bytes_max = pending_bytes_max
        self.forwards_total = 0  # entries of routers
        self.submit_full_total = 0  # commits that were not staged because too much was pending
        self.depth = 0  # entries that wait to be written
        self.depth_peak = 0
        self.sync_ns = 0  # of the last sync
        self.write_ns = 0  # of the write that holds what is being settled
        self.window_wait_ns = 0  # how long what is being settled waited for its sync on purpose
        self.troubled = False  # `refusal` has something to say
        self.after_settling: Thunk = lambda: None  # once for each group, not for each commit
        self.room = room or LogRoom(fs, DiskReserve(fs, runtime, 0), batch_bytes_max)
        self.room.listen(self._room_changed)
        self._runtime = runtime
        self._files = files
        self.log_end = self._writer = LogEnd(fs, files, self.room)
        self.syncs = LogSyncs(
            runtime,
            f"sync-{files.shard}",
            self._writer,
            self._synced,
            interval_ms=sync_interval_ms,
            inline_us_max=inline_sync_us_max,
        )
        self.batch_bytes_max = batch_bytes_max
        self._sync_interval_ms = sync_interval_ms
        self._pending: list[Commit] = []
        self._pending_now = False  # some pending commit needs no sync
        self._pending_sync = False  # some pending commit waits for one
        self._pending_own = False  # some pending commit needs one that begins after it is written
        self._flush_asked = False
        self._flush_after_sync = False  # something pending waits for the sync that is running
        self.delayed_flush = DelayedFlush(runtime, self.flush)
        self._idle_since_ns = 0  # when the last sync left nothing to do
        self._close_asked = False  # a timer looks whether the last window is to be closed
        self.forwards_staged = 0  # counted by the part that stages them
        # Commits that wait for a sync: up to which position, how long the write took, and when.
        self._waiting: deque[tuple[int, int, int, list[Commit]]] = deque()
        self._settling = OrderedSettling(self.halt)
        self._settle = self._settling.settle
        self._poison: OSError | None = None
        self._closed = False

    # Life

    def start(self, base: int, first: list[bytes]) -> None:
        """Open the shard at position `base` with these entries, durable on return."""
        self.open(base, first)
        self.prepare()

    def open(self, base: int, first: list[bytes], marks_answered: int = 0) -> None:
        """What `start` does without the runtime, so in any thread; `prepare` is still to come.

        `marks_answered` is what the files of the log say of marks from before a repair.
        """
        self._writer.open(base, first, marks_answered)

    def prepare(self) -> None:
        """Make the file of the next rotation ready, in the background."""
        self._files.prepare()

    def close(self) -> None:
        """Write what is pending, close the last window, sync.  The lanes must be idle."""
        if self._closed:
            return
        self.flush()
        self._closed = True
        self._files.stop_preparing()
        if self._poison is None and self.room.state == "ok":
            self.syncs.here()
            self._writer.write(b"", 0)
            self.syncs.here()
        self._writer.close()
        self._files.close()

    # Staging and writing

    def refusal(self, *, frees: bool = False) -> HeadraceError | None:
        """Why nothing can be written now, or None.

        `frees`: an entry that frees room is tried although there is none; the reserve pays for it.
        """
        if self._poison is not None:
            return read_only_error(self._poison)
        return None if frees else self.room.refusal(self.pending_bytes)

    def _room_changed(self) -> None:
        self.troubled = self._poison is not None or self.room.state != "ok"
        if not self.troubled:
            self.prepare()

    @property
    def state(self) -> str:
        """`ok`, `wal_read_only`, `disk_full` or `out_of_resources`."""
        if self._poison is not None:
            return "wal_read_only"
        return self.room.state

    def stage(self, commit: Commit, *, flushes: bool = False, follows: bool = False) -> None:
        """Take a commit into the next batch.  The caller has asked `refusal` first.

        `flushes`: the caller ends the turn, and calls `flush` itself.  `follows`: if the commit
        needs a sync, then only because earlier ones do, behind which it has to be settled.  With
        a sync for it, too, each would hold up what comes meanwhile, and so call for the next one.
        """
        # One that joins the group after the sync that is running needs no flush of its own.
        joins = commit.needs_sync and self.syncs.running and not follows
        if not flushes and not self._flush_asked:
            if joins and not self._pending_now:
                self._flush_after_sync = True
            else:
                self._runtime.soon(self.flush)
                self._flush_asked = True
        self._pending.append(commit)
        self.pending_bytes += sum(map(len, commit.entries))
        self.depth += len(commit.entries)
        if commit.needs_sync:
            self._pending_sync = True
            if not follows:
                self._pending_own = True
        if follows or not commit.needs_sync:
            self._pending_now = True

    def flush(self) -> None:
        """End of the turn: write what is pending, settle what needs no more than that."""
        self._flush_asked = False
        commits = self._pending
        if not commits:
            return
        if self.syncs.running and not self._pending_now and not self._closed:
            self._flush_after_sync = True
            return
        some_wait, some_sync = self._pending_sync, self._pending_own
        self._pending = []
        self._pending_now = self._pending_sync = self._pending_own = False
        self._flush_after_sync = False
        self.depth_peak = max(self.depth_peak, self.depth)
        self.pending_bytes = self.depth = 0
        started = self._runtime.clock.monotonic_ns()
        failure, done = self._write(commits)
        self.write_ns = write_ns = self._runtime.clock.monotonic_ns() - started
        written = commits if failure is None else commits[:done]
        target = self.written
        if not some_sync and some_wait:
            # They wait for what those before them wait for, if those still do.
            some_wait = bool(self._waiting)
            target = self._waiting[-1][0] if some_wait else 0
        waiting = [commit for commit in written if commit.needs_sync] if some_wait else []
        if waiting and self._poison is None:
            # Before anything is settled: what settling stages has to come after these.
            self._waiting.append((target, write_ns, started + write_ns, waiting))
            if some_sync:
                self.syncs.join()
        elif waiting:
            self._settle(waiting, unknown_outcome(self._poison or OSError()))
        now = [commit for commit in written if not commit.needs_sync] if some_wait else written
        self._settle(now, None)
        if failure is not None:
            self._settle(commits[done:], failure)
        if done:
            self._want_sync(urgent=bool(self._waiting), lone=len(commits) == 1)
            self.after_settling()

    def _write(self, commits: list[Commit]) -> tuple[HeadraceError | None, int]:
        """Write all commits as batches; (what went wrong, how many were written)."""
        done = 0
        if self._poison is not None:
            return self.refusal(), 0
        while done < len(commits):
            entries, stop = commits[done].entries, done + 1
            if stop < len(commits):
                entries, stop = next_batch(commits, done, self.batch_bytes_max)
            try:
                self._writer.put(entries)
            except OSError as error:
                return self._write_failed(error, sum(map(len, entries))), done
            except MemoryError:  # nothing of it is written
                return OutOfResources.told("nothing"), done
            if self.forwards_staged:
                forwards = sum(raw[0] == ENTRY_FORWARD for raw in entries)
                self.forwards_staged -= forwards
                self.forwards_total += forwards
            done = stop
        return None, done

    def _write_failed(self, error: OSError, body_bytes: int = 0) -> HeadraceError:
        if is_passing(error):
            self.room.lack(error, body_bytes)
            return self.room.said()
        self._poisoned(error)
        return unknown_outcome(error)

    def halt(self) -> HeadraceError:
        """Write nothing more: memory ran out while a commit was staged or applied.

        What the log has and what memory shows may differ, until a restart reads the log.  Return
        what a commit is told whose outcome is unknown.
        """
        error = OSError(errno.ENOMEM, "out of memory in the middle of a change")
        self._poisoned(error)
        return unknown_outcome(error)

    # Files

    def rotate(self) -> int:
        """Go on in a new file; return its first position.  Everything before is in older files."""
        return self._writer.turn()

    # What the writer knows

    @property
    def written(self) -> int:
        """The shard position handed to the operating system."""
        return self._writer.written

    @property
    def durable(self) -> int:
        """The shard position known to be on disk."""
        return self._writer.durable

    @property
    def batches_total(self) -> int:
        return self._writer.batches_total

    @property
    def frames_total(self) -> int:
        """Entries that were written, except those of routers."""
        return self._writer.entries_total - self.forwards_total

    @property
    def bytes_total(self) -> int:
        return self._writer.bytes_total

    @property
    def rotations_total(self) -> int:
        return self._writer.rotations_total

    @property
    def batch_entries(self) -> Histogram:
        """How many entries the batches had."""
        return self._writer.batch_entries

    @property
    def syncs_total(self) -> int:
        return self.syncs.total

    @property
    def inline_syncs_total(self) -> int:
        """Those of them that the loop thread did itself."""
        return self.syncs.inline_total

    @property
    def windows_total(self) -> int:
        """Syncs that waited for more to join them."""
        return self.syncs.windows_total

    @property
    def preparing(self) -> bool:
        """Whether a file that a rotation could use is on its way."""
        return self._files.preparing

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

    @property
    def window_ms(self) -> int:
        """How long syncs that somebody waits for wait for more to join them."""
        return self.syncs.window_ms

    def widen(self, window_ms: int) -> None:
        """Change `window_ms`; 0: they do not wait."""
        self.syncs.widen(window_ms)

    def _want_sync(self, *, urgent: bool, lone: bool = False) -> None:
        if self._poison is None:
            # Those that are being settled in this turn would hear of it only after the sync.
            self.syncs.want(urgent=urgent, lone=lone and not self._settling.busy)

    def _synced(self, error: OSError | None) -> None:
        if error is not None:
            self._poisoned(error)
            return
        self.sync_ns = self.syncs.last_ns
        while self._waiting and self._waiting[0][0] <= self.durable:
            _, self.write_ns, written_ns, commits = self._waiting.popleft()
            self.window_wait_ns = self.syncs.put_off_ns(written_ns)
            self._settle(commits, None)
        self.after_settling()
        if self._closed:
            return
        # What waits on purpose, for room in memory, waits on (`delayed_flush`).
        if self._flush_after_sync and not self._flush_asked:
            self._flush_asked = True
            self._runtime.soon(self.flush)
        if self._waiting:
            self._want_sync(urgent=True)
        elif self.written > self.durable:
            self._want_sync(urgent=False)
        elif not self._writer.quiet and not self._pending:
            self._idle_since_ns = self._runtime.clock.monotonic_ns()
            if not self._close_asked:  # one timer, however many syncs there are meanwhile
                self._close_asked = True
                self._runtime.later(self._sync_interval_ms, self._close_window)

    def _close_window(self) -> None:
        """Close the last window, if nothing was written for as long as that takes."""
        self._close_asked = False
        if self._pending or self.syncs.asked or self.written > self.durable or self._closed:
            return  # the sync that is due asks again
        if self.refusal() is not None or self._writer.quiet:
            return
        idle_ns = self._runtime.clock.monotonic_ns() - self._idle_since_ns
        left_ms = self._sync_interval_ms - idle_ns // NS_PER_MS
        if left_ms > 0:
            self._close_asked = True
            self._runtime.later(left_ms, self._close_window)
            return
        try:
            self._writer.write(b"", 0)
        except OSError as error:
            self._write_failed(error)
            return
        self._want_sync(urgent=False)

    def _poisoned(self, error: OSError) -> None:
        self._poison = without_frames(error)
        self.troubled = True
        waiting, self._waiting = self._waiting, deque()
        for *_, commits in waiting:
            self._settle(commits, unknown_outcome(error))
        pending, self._pending = self._pending, []
        self.pending_bytes = self.depth = 0
        self._settle(pending, self.refusal())
