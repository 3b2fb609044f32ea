"""The end of a log on a disk that may be full: opened when there is room, paid by the reserve.

Only this file spends the disk reserve for the log: for a batch with an entry that frees room, and
for a rotation, as a checkpoint follows.  Where batches go is `batch_writer.py`'s to know.
"""

from __future__ import annotations

from collections.abc import Sequence

from headrace.core.limits import KIB
from headrace.core.runtime import Thunk
from headrace.storage.fs import BUFFERS_PER_CALL_MAX, Filesystem
from headrace.storage.wal.batch_writer import BatchWriter
from headrace.storage.wal.failures import is_passing
from headrace.storage.wal.frame import BatchBody
from headrace.storage.wal.next_file import FileSequence
from headrace.storage.wal.room import LogRoom

# Entries of this size are written from where they are: to copy them costs more than to hash and
# write each of them by itself.
APART_BYTES_MIN = 64 * KIB


def body_of(entries: Sequence[bytes]) -> BatchBody:
    """What is written of these entries: one run of bytes, or each of them if all are large.

    >>> body_of([b"12345678", b"abcdefgh"])
    b'12345678abcdefgh'
    """
    if len(entries) == 1:
        return entries[0]
    large = 0 < len(entries) < BUFFERS_PER_CALL_MAX and len(entries[0]) >= APART_BYTES_MIN
    if large and min(map(len, entries)) >= APART_BYTES_MIN:
        return entries
    return b"".join(entries)


class LogEnd(BatchWriter):
    """A `BatchWriter` that knows how much room there is."""

    def __init__(self, fs: Filesystem, files: FileSequence, room: LogRoom) -> None:
        super().__init__(fs, files.directory, files)
        self.room = room
        self._opening: Thunk | None = None  # what opens it once there is room

    def open_later(
        self,
        base: int,
        first: list[bytes],
        marks_answered: int,
        error: OSError,
        before: LogEnd | None,
    ) -> None:
        """There is no room for a file: open the log with the first batch that finds some.

        The one `before` it has to be open first.
        """

        def opening() -> None:
            if before is not None:
                before.open_now()
            self.open(base, first, marks_answered, bare=True)

        self.place(base)
        self._opening = opening
        self.room.lack(error, sum(map(len, first)))

    def open_now(self) -> None:
        """Open a log that had no room, or raise what is still in the way."""
        if self._opening is not None:
            self._opening()
            self._opening = None

    def put(self, entries: Sequence[bytes]) -> None:
        """Write one batch; one that frees room may have what the reserve holds."""
        body = body_of(entries)
        try:
            self.open_now()
            self.write(body, len(entries))
        except OSError as error:
            if not (is_passing(error) and self.room.pays_for(entries)):
                raise
            self.room.lack(error, sum(map(len, entries)))
            self.open_now()
            self.write(body, len(entries))

    def turn(self) -> int:
        """Go on in a new file for a checkpoint, which frees room at last; return its position."""
        try:
            self.open_now()
            return self.rotate()
        except OSError as error:
            if not (is_passing(error) and self.room.reserve.spend()):
                raise
            self.room.lack(error, 0)
            self.open_now()
            return self.rotate()

    def close(self) -> None:
        """Close every file, if there is one.  What is not synced stays so."""
        if self._opening is None:
            super().close()
