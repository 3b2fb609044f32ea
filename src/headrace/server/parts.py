"""An answer of parts: bytes and ranges of files, sent in order as the client takes them.

Only this file reads the files of an answer, and closes them: once, when nothing reads from them any
more, whether the answer was sent, the client left, or a read failed.  It holds one piece at a time,
read in a lane, and asks the outlet for room before the next, so it is the same for both transports.

A file that ends before its range does, or cannot be read, breaks the answer off: its length has
been told, so there is no other way to say that it is not whole.

`_read` is where a copy can be saved later: on plain HTTP/1.1 the system can move a range from file
to socket (`sendfile`) while the transport's own buffer is empty.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from headrace.storage.fs import File, read_exact
from headrace.wire.exchange import FileRange, Outlet, Part

if TYPE_CHECKING:
    from headrace.server.app import App

log = logging.getLogger("headrace.server")

# What is read and written at a time.
PIECE_BYTES: Final = 128 * 1024
# Parts without a file are sent as one whole answer up to here.
SMALL_PARTS_BYTES: Final = 16 * 1024
LANE: Final = "read"


def parts_length(parts: Sequence[Part]) -> int:
    """The length of the body that these parts make.

    >>> parts_length([b"abc", b"", b"d"])
    4
    """
    return sum(part.length if isinstance(part, FileRange) else len(part) for part in parts)


def close_files(parts: Sequence[Part]) -> None:
    """Close the files of an answer, each once."""
    _close({id(part.file): part.file for part in parts if isinstance(part, FileRange)})


def _close(files: dict[int, File]) -> None:
    while files:
        _, file = files.popitem()
        try:
            file.close()
        except OSError:  # the others have to be closed, too
            log.exception("%s could not be closed", file.path)


class PartsSender:
    """Sends the parts of one answer into an outlet."""

    def __init__(self, app: App, outlet: Outlet, parts: Sequence[Part], path: str) -> None:
        self._app = app
        self._outlet = outlet
        self._path = path
        self._parts = deque(part for part in parts if not isinstance(part, bytes) or part)
        self._at = 0  # how much of the first part has been written
        self._files = {id(part.file): part.file for part in parts if isinstance(part, FileRange)}
        self._reading = False
        self._over = False

    def start(self) -> None:
        """Send what there is room for, and the rest when there is room again."""
        self._outlet.on_room = self._go_on
        self._outlet.on_closed = self._end
        self._go_on()

    def _go_on(self) -> None:
        outlet = self._outlet
        while self._parts and not self._reading and not self._over and outlet.room:
            part = self._parts[0]
            if isinstance(part, FileRange):
                self._read(part)
            else:
                self._write(part[self._at : self._at + PIECE_BYTES], len(part))
        if not self._parts and not self._over:
            self._end()
            outlet.close()

    def _read(self, part: FileRange) -> None:
        """Read the next piece of a file, in a lane, and write it."""
        offset, length = part.offset + self._at, min(part.length - self._at, PIECE_BYTES)
        if length <= 0:
            self._write(b"", part.length)
            return

        def done(value: object, error: BaseException | None) -> None:
            self._reading = False
            if self._over:
                _close(self._files)  # which waited for this read
            elif error is not None:
                log.error("%s: a file of the answer failed", self._path, exc_info=error)
                self._end()
                self._outlet.abort()
            else:
                assert isinstance(value, bytes) and len(value) == length
                self._write(value, part.length)
                self._go_on()

        self._reading = True
        self._app.submit(LANE, lambda: read_exact(part.file, length, offset), done)

    def _write(self, piece: bytes, part_length: int) -> None:
        self._at += len(piece)
        if self._at >= part_length:
            self._parts.popleft()
            self._at = 0
        self._outlet.write(piece)

    def _end(self) -> None:
        """Send nothing more, and close the files as soon as nothing reads from them."""
        self._over = True
        self._parts.clear()
        if not self._reading:
            _close(self._files)
