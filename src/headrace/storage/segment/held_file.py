"""A sealed file while an answer uses it: it stays open, whatever becomes of the segment.

A merge takes a file from readers and unlinks it, and the descriptor lives on as long as somebody
has a part of it; so an answer that has begun sends the bytes that it promised.  Only a server that
stops closes the file under an answer, which is then cut off.
"""

from __future__ import annotations

from headrace.storage.files.store import ReadOnlyFile
from headrace.storage.fs import Send, send_of
from headrace.storage.segment.reader import Segment


class HeldFile(ReadOnlyFile):
    """The file of a segment, as one answer has it; closing it lets go of it, and closes nothing."""

    __slots__ = ("_segment", "path", "send")

    def __init__(self, segment: Segment) -> None:
        self.path = segment.meta.path
        self._segment: Segment | None = segment
        self.send: Send | None = send_of(segment.file)

    def pread(self, length: int, offset: int) -> bytes:
        return self._held.file.pread(length, offset)

    def pread_nowait(self, length: int, offset: int) -> bytes | None:
        return self._held.file.pread_nowait(length, offset)

    def size(self) -> int:
        return self._held.file.size()

    @property
    def _held(self) -> Segment:
        assert self._segment is not None, f"{self.path} was let go"
        return self._segment

    def close(self) -> None:
        """Let go of the file."""
        self._segment = self.send = None
