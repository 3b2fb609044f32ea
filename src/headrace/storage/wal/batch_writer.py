"""Writing batches to the current file of a shard: where each goes, and when a new file begins.

Only this file places batches in log files.  The rules it owns:

* every sync group starts on a page of its own, so that a torn write cannot reach synced bytes;
* a batch says how far the shard was durable when it was built, which is what later tells a torn
  tail from damage;
* after a failed write the file is left as it is and the log goes on in another, so that no
  half-written batch can come alive;
* a file is closed only once it is durable to its end;
* what a sync has made durable is marked in a second place (`mark.py`) before it is acknowledged.

It decides neither when to write nor when to sync: `shard.py` does.  `next_file.py` makes the files.
"""

from __future__ import annotations

import errno
import threading
from typing import NamedTuple

from headrace.core.telemetry import BATCH_RECORDS, Histogram
from headrace.storage.fs import Filesystem, write_all
from headrace.storage.wal.failures import NO_ROOM_ERRNOS
from headrace.storage.wal.file import WalFile
from headrace.storage.wal.frame import (
    BATCH_HEADER_BYTES,
    PAGE_BYTES,
    BatchBody,
    encode_batch_header,
)
from headrace.storage.wal.mark import MarkFile
from headrace.storage.wal.next_file import FileSequence

# The first file is small, so that an empty directory serves at once.
FIRST_FILE_BYTES = 4 << 20


class SyncGroup(NamedTuple):
    """What one sync makes durable: every position below `target`, in these files."""

    target: int
    files: tuple[WalFile, ...]
    idle: bool  # it closes the last window: nothing follows for now


class BatchWriter:
    """The end of one shard's log.  The loop thread writes; the sync lane syncs."""

    def __init__(self, fs: Filesystem, directory: str, files: FileSequence) -> None:
        self.written = 0  # shard position handed to the operating system
        self.durable = 0  # shard position known to be on disk
        self.batches_total = 0
        self.entries_total = 0
        self.bytes_total = 0
        self.rotations_total = 0
        self.batch_entries = Histogram(BATCH_RECORDS)
        self.quiet = True  # the last batch was an empty one, or none was written
        self._fs = fs
        self._directory = directory
        self._files = files
        self._marks = MarkFile(fs, directory)
        self._current: WalFile
        self._offset = PAGE_BYTES
        self._ordinal = 0
        self._must_rotate = False
        # The sync lane marks where a group ends while the loop thread may be writing.
        self._group_lock = threading.Lock()
        self._new_group = False
        self._unsynced: tuple[WalFile, ...] = ()
        self._names_unsynced = False

    def place(self, base: int) -> None:
        """The log goes on at this position, once there is room for a file."""
        self.written = self.durable = base

    def open(
        self, base: int, first: list[bytes], marks_answered: int, *, bare: bool = False
    ) -> None:
        """Begin a file at position `base` with these entries; they are durable on return.

        `bare`: it takes no room ahead of time.  An OSError leaves nothing behind, so that it can
        be tried again.
        """
        self._fs.mkdir(self._directory)
        self._marks.open()
        first_bytes = min(self._files.file_bytes, FIRST_FILE_BYTES)
        try:
            self._current = self._files.create(first_bytes, zeroed=0 if bare else first_bytes)
        except OSError as error:
            if error.errno not in NO_ROOM_ERRNOS:
                raise
            self._current = self._files.create(first_bytes, zeroed=0)  # it may just fit without
        try:
            self._begin(base, first)
        except OSError:
            self._unsynced, self._must_rotate = (), False
            self.place(base)
            self._marks.close()
            self._current.file.close()
            self._fs.unlink(self._current.path)
            raise
        # Only now: a mark that names the file must not outlive it.
        self._marks.begin(self._current.number, self.durable, marks_answered)

    def _begin(self, base: int, first: list[bytes]) -> None:
        self._fs.sync_dir(self._directory)
        self._current.base = base
        self.written = base + PAGE_BYTES
        self.durable = base
        self._unsynced = (self._current,)
        self.write(b"".join(first), len(first))
        self._current.file.sync_data()
        self.durable = self.written
        self._new_group = True

    def close(self) -> None:
        """Close every file.  What is not synced stays so."""
        for file in {f.path: f for f in (*self._unsynced, self._current)}.values():
            file.file.close()
        self._marks.close()

    def write(self, body: BatchBody, entries: int) -> None:
        """Write one batch; an OSError leaves the file behind, a MemoryError wrote nothing."""
        parts = [body] if isinstance(body, bytes) else body
        with self._group_lock:
            offset = self._offset
            if self._new_group:
                offset += -offset % PAGE_BYTES
            need = BATCH_HEADER_BYTES + sum(map(len, parts))
            if self._must_rotate or (offset + need > self._current.limit and offset > PAGE_BYTES):
                self._rotate()
                offset = PAGE_BYTES
            current = self._current
            header = encode_batch_header(
                current.salt, current.base + offset, self.durable, self._ordinal, body, entries
            )
            try:
                write_all(current.file, [header, *parts] if body else [header], offset)
                self._new_group = False
                self._offset = offset + need
                self._ordinal += 1
                self.written = current.base + self._offset
                if current not in self._unsynced:
                    self._unsynced = (*self._unsynced, current)
            except OSError:
                self._must_rotate = True
                raise
            except MemoryError:
                # All, some or nothing of it is in the file: no shortage that passes.
                self._must_rotate = True
                raise OSError(errno.EIO, "out of memory in the middle of a write") from None
        self.batches_total += 1
        self.entries_total += entries
        self.batch_entries.observe(entries)
        self.bytes_total += need
        self.quiet = entries == 0

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
        else:
            self._marks.begun(ready.number)
        previous, self._current = self._current, ready
        # A file in which no write succeeded takes no room in the count of bytes.
        previous.end = ready.base = previous.base + (self._offset if self._ordinal else 0)
        if previous not in self._unsynced:
            previous.file.close()
        self._offset = PAGE_BYTES
        self._ordinal = 0
        self._must_rotate = False
        self.rotations_total += 1
        self._files.prepare()

    # Syncing

    def begin_sync(self) -> SyncGroup:
        """End the group that is being written; return what a sync begun now makes durable."""
        with self._group_lock:
            self._new_group = True
            return SyncGroup(self.written, self._unsynced, self.quiet)

    def sync(self, group: SyncGroup) -> None:
        """Wait until these files, and the names of all files, are on disk.  In the sync lane."""
        if self._names_unsynced:
            self._names_unsynced = False
            self._fs.sync_dir(self._directory)
        for file in group.files:
            file.file.sync_data()
        self._marks.synced(group.files[-1].number, group.target, idle=group.idle)

    def note_durable(self, target: int) -> None:
        """Take everything below `target` as durable, and close the files that are so to their end.

        A file that grew during the sync stays open: the part it grew by is not durable.
        """
        self.durable = max(self.durable, target)
        keep = []
        for file in self._unsynced:
            if file is self._current or file.end > self.durable:
                keep.append(file)
            else:
                file.file.close()
        self._unsynced = tuple(keep)
