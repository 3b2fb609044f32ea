"""An answer of parts: bytes and ranges of files, sent in order as the client takes them.

Only this file reads the files of an answer, and closes them: once, when nothing reads from them any
more, whether the answer was sent, the client left, or a read failed.

Over plain HTTP/1.1, while the transport's own buffer is empty, the kernel is given the bytes past
the transport: those of a file by `sendfile`, so that they are never copied into this process.  What
the page cache does not hold is read in a lane, a piece at a time, and so is everything over TLS and
HTTP/2; the outlet is asked for room before the next.

A file that ends before its range does, or cannot be read, breaks the answer off: its length has
been told, so there is no other way to say that it is not whole.
"""

from __future__ import annotations

import errno
import logging
from collections import deque
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from headrace.server.fan_out import write_now
from headrace.storage.fs import File, read_exact, send_of
from headrace.wire.exchange import FileRange, Outlet, Part

if TYPE_CHECKING:
    from headrace.server.app import App

log = logging.getLogger("headrace.server")

# What is read and written at a time.
PIECE_BYTES: Final = 128 * 1024
# What one answer may give the kernel before others have their turn.
TURN_BYTES_MAX: Final = 1 << 20
# Parts without a file are sent as one whole answer up to here.
SMALL_PARTS_BYTES: Final = 16 * 1024
LANE: Final = "read"
# The system does not move bytes of such a file, or to such a socket.
_NOT_SENT: Final = frozenset({errno.EINVAL, errno.ENOSYS, errno.EOPNOTSUPP, errno.EAGAIN})


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


def _is_cached(file: File, offset: int, length: int) -> bool:
    """Whether the page cache seems to hold a range, so that nothing waits for a disk."""
    return all(file.pread_nowait(1, at) is not None for at in (offset, offset + length - 1))


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
        outlet, left = self._outlet, TURN_BYTES_MAX
        while self._parts and not self._reading and not self._over and outlet.room:
            part = self._parts[0]
            try:
                moved = self._move(part, outlet.descriptor, left)
            except (OSError, EOFError) as error:
                self._break_off(error)
                return
            if moved:
                self._advance(moved)
                left -= moved
                if left <= 0:
                    self._app.soon(self._go_on)  # there are other connections
                    return
            elif moved == 0 and outlet.when_writable(self._go_on):
                return
            elif isinstance(part, FileRange):
                self._read(part)
            else:
                piece = part[self._at : self._at + PIECE_BYTES]
                self._advance(len(piece))
                outlet.write(piece)
        if not self._parts and not self._over:
            self._end()
            outlet.close()

    def _move(self, part: Part, descriptor: int, most: int) -> int | None:
        """Give the kernel what it takes of a part, past the transport; None: that cannot be."""
        if descriptor < 0:
            return None
        if not isinstance(part, FileRange):
            return write_now(descriptor, memoryview(part)[self._at : self._at + most])
        send, at = send_of(part.file), part.offset + self._at
        length = min(part.length - self._at, most)
        if send is None or length <= 0 or not _is_cached(part.file, at, length):
            return None
        try:
            moved = send(descriptor, length, at)
        except BlockingIOError:
            return 0
        except OSError as error:
            if error.errno in _NOT_SENT:
                return None
            raise
        if not moved:
            raise EOFError(f"{part.file.path} ends at {at}")
        return moved

    def _read(self, part: FileRange) -> None:
        """Read the next piece of a file, in a lane, and write it."""
        offset, length = part.offset + self._at, min(part.length - self._at, PIECE_BYTES)
        if length <= 0:
            self._advance(0)
            return

        def done(value: object, error: BaseException | None) -> None:
            self._reading = False
            if self._over:
                _close(self._files)  # which waited for this read
            elif error is not None:
                self._break_off(error)
            else:
                assert isinstance(value, bytes) and len(value) == length
                self._advance(length)
                self._outlet.write(value)
                self._go_on()

        self._reading = True
        self._app.submit(LANE, lambda: read_exact(part.file, length, offset), done)

    def _advance(self, count: int) -> None:
        """Note that so many bytes of the first part have been written."""
        self._at += count
        part = self._parts[0]
        if self._at >= (part.length if isinstance(part, FileRange) else len(part)):
            self._parts.popleft()
            self._at = 0

    def _break_off(self, error: BaseException) -> None:
        if not isinstance(error, ConnectionError):  # else the client left, and is not told
            log.error("%s: a file of the answer failed", self._path, exc_info=error)
        self._end()
        self._outlet.abort()

    def _end(self) -> None:
        """Send nothing more, and close the files as soon as nothing reads from them."""
        self._over = True
        self._parts.clear()
        if not self._reading:
            _close(self._files)
