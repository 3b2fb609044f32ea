"""A server whose answers are made of bytes and ranges of watched files, for tests."""

from __future__ import annotations

import errno
import hashlib
import threading
from collections.abc import Callable, Sequence
from pathlib import Path

from headrace.storage.fs import RealFile, RealFilesystem, Send
from headrace.wire.exchange import Exchange, Part
from headrace.wire.routes import Route

MIB = 1 << 20
CONTENT = hashlib.shake_256(b"parts").digest(3 * MIB)


class WatchedFile(RealFile):
    """A file that counts, can fail or wait, and must not be closed while it is read."""

    __slots__ = ("closes", "copies", "fails_at", "gate", "moves", "reading", "reads")

    def __init__(self, file: RealFile, *, moves: bool) -> None:
        fd, file._fd = file._fd, -1
        super().__init__(fd, file.path)
        self.reads = 0  # in any way
        self.copies = 0  # of them, into this process
        self.closes = 0
        self.fails_at = -1  # the number of a read
        self.gate: threading.Event | None = None
        self.reading = False
        self.moves = moves  # by the system, past this process

    @property
    def send(self) -> Send | None:  # type: ignore[override]
        return self._send if self.moves else None

    def _send(self, descriptor: int, length: int, offset: int) -> int:
        self.reads += 1
        if self.reads == self.fails_at:
            raise OSError(errno.EIO, "the disk failed")
        return super().send(descriptor, length, offset)

    def pread(self, length: int, offset: int) -> bytes:
        self.reads += 1
        self.copies += 1
        self.reading = True
        try:
            if self.gate is not None:
                assert self.gate.wait(20)
            if self.reads == self.fails_at:
                raise OSError(errno.EIO, "the disk failed")
            return super().pread(length, offset)
        finally:
            self.reading = False

    def close(self) -> None:
        assert not self.reading, "closed while it is read"
        self.closes += self._fd >= 0
        super().close()


class World:
    """A server whose GET /parts answers what a test says."""

    def __init__(self, root: Path) -> None:
        self.fs = RealFilesystem(root)
        self.files: list[WatchedFile] = []
        self.parts: Callable[[], Sequence[Part]] = list
        self.held: list[Exchange] = []
        self.moves = False
        (root / "content").write_bytes(CONTENT)

    def open(self, name: str = "content") -> WatchedFile:
        file = WatchedFile(self.fs.open_read(name), moves=self.moves)
        self.files.append(file)
        return file

    def routes(self) -> list[Route]:
        return [
            Route("GET", "/parts", self.answer),
            Route("GET", "/hold", self.held.append),
            Route("GET", "/echo", lambda e: e.answer(200, e.query.encode(), b"text/plain")),
            Route("POST", "/streamed", self.answer, streamed=True),
        ]

    def answer(self, exchange: Exchange) -> None:
        exchange.answer_parts(200, self.parts(), b"application/x-parts", ((b"x-more", b"1"),))

    def all_closed(self) -> bool:
        return all(file.closes == 1 for file in self.files)
