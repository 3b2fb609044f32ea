"""Walking a log that may be damaged: every whole batch, and every stretch where there is none.

`scan.py` is the judge: it says whether a log can be opened.  This file is the coroner: it goes on
after a bad batch, so that a tool can say all that is wrong and all that is still there.  A batch
counts here on the same terms as there (its salt, its place, both hashes), only not that the batch
before it was whole.  Nothing is changed on disk.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from xxhash import xxh3_64_intdigest

from headrace.storage.fs import Filesystem
from headrace.storage.wal.file import file_path
from headrace.storage.wal.frame import (
    BATCH_HEADER_BYTES,
    PAGE_BYTES,
    BatchHeader,
    FileHeader,
    decode_batch_header,
    decode_file_header,
)
from headrace.storage.wal.mark import Mark
from headrace.storage.wal.scan import WINDOW_BYTES, Window, headers_after


class WholeBatch(NamedTuple):
    """A batch with every byte right."""

    path: str
    offset: int
    header: BatchHeader
    body: bytes


class Damage(NamedTuple):
    """Bytes of the shard's log between whole batches that are none: `length` at `position`.

    `stored` of them are at `offset` of the file at `path`; the others are in no file at all.
    `batches` is how many batches there were, -1 when nothing tells.
    """

    path: str
    offset: int
    stored: int
    position: int
    length: int
    why: str
    batches: int = -1


class Tail(NamedTuple):
    """What follows the last whole batch of a file: zeros, or bytes that never became a batch."""

    path: str
    offset: int
    torn_bytes: int


Item = WholeBatch | Damage | Tail

# As a start: a file that is looked at by itself may begin at any position.
ANYWHERE = 1 << 63
_WHY = "a batch does not match its checksum"


class LogFile(NamedTuple):
    """One file, as far as it could be read."""

    path: str
    number: int
    size: int
    header: FileHeader | None
    base: int | None  # position of its first byte; None when it holds no batch header
    end: int  # position after its last whole batch
    batches: int

    @property
    def made_bytes(self) -> int:
        """How long it was before its first batch; 0 when it does not say."""
        return self.header.made_bytes if self.header is not None else 0

    @property
    def is_cut(self) -> bool:
        """Whether it was written to and is shorter than it was before that."""
        return self.base is not None and self.size < self.made_bytes


@dataclass
class Survey:
    """What a shard's directory holds."""

    directory: str
    files: list[LogFile] = field(default_factory=list)
    damages: list[Damage] = field(default_factory=list)
    tails: list[Tail] = field(default_factory=list)
    durable: int = 0  # the furthest position that a batch knew to be durable
    # Files of which a part that was acknowledged is in a later file: a repair was interrupted.
    overlaps: list[LogFile] = field(default_factory=list)
    others: list[str] = field(default_factory=list)  # under a log file's name, and not that file
    mark: Mark | None = None  # what the log was known to hold, if a repair did not answer for it

    @property
    def cut(self) -> list[LogFile]:
        """Files that are shorter than they were made: what was beyond their end is unknown."""
        return [file for file in self.files if file.is_cut]

    @property
    def absent(self) -> int:
        """The number of the file that the mark says was begun, if it is not there; else 0."""
        whole = {f.number for f in self.files if f.header is not None and f.size >= f.made_bytes}
        first = min((file.number for file in self.files), default=0)
        number = self.mark.file_no if self.mark is not None else 0
        return number if number >= first and number not in whole else 0

    @property
    def end_unknown(self) -> bool:
        """Whether a file is not the one it should be, and no mark says how far the log went."""
        return bool(self.others) and self.mark is None

    @property
    def end(self) -> int:
        """The position after the last whole batch."""
        return max((file.end for file in self.files if file.base is not None), default=0)

    @property
    def reach(self) -> int:
        """The last position that any file has room for."""
        return max(
            (file.base + file.size for file in self.files if file.base is not None), default=0
        )

    def promised(self, damage: Damage) -> bool:
        """Whether bytes of this stretch were acknowledged: a later batch knew them durable."""
        return self.durable > damage.position


def survey(
    fs: Filesystem,
    directory: str,
    numbers: Sequence[int],
    start: int | None,
    on_bytes: Callable[[int], None] = lambda _count: None,
    mark: Mark | None = None,
) -> Survey:
    """Walk every file of a shard; `start` is where its replay begins, None for the beginning."""
    found = Survey(directory, mark=mark)
    for item in walk_shard(fs, directory, numbers, start, found, on_bytes):
        if isinstance(item, Damage):
            found.damages.append(item)
        elif isinstance(item, Tail) and item.torn_bytes:
            found.tails.append(item)
    return found


def walk_shard(
    fs: Filesystem,
    directory: str,
    numbers: Sequence[int],
    start: int | None,
    notes: Survey | None = None,
    on_bytes: Callable[[int], None] = lambda _count: None,
) -> Iterator[Item]:
    """Everything in the files of one shard that counts, in order; file facts go to `notes`.

    A file takes the place of whatever older ones hold from its first position on: of a write that
    failed and reached the disk all the same, or of a log that was repaired.
    """
    notes = notes if notes is not None else Survey(directory)
    walks: list[FileWalk] = []
    damaged_to = 0
    try:
        expected: int | None = None
        for number in numbers:
            walks.append(FileWalk(fs, file_path(directory, number), number))
        for at, walk in enumerate(walks):
            later = [other.first_position() for other in walks[at + 1 :]]
            stop = min((base for base in later if base is not None), default=None)
            base = walk.first_position()
            before = expected if expected is not None else start or 0
            if base is not None and base > before and (stop is None or base < stop):
                why = "the log between this file and the one before it is missing"
                yield Damage(walk.path, 0, 0, before, base - before, why)
            for item in walk.items(stop, on_bytes):
                if isinstance(item, Damage):
                    damaged_to = max(damaged_to, item.position + item.length)
                yield item
            file = walk.describe()
            notes.files.append(file)
            notes.durable = max(notes.durable, walk.durable)
            if stop is not None and walk.given_up > stop:
                notes.overlaps.append(file)
            elif file.base is not None and (stop is None or file.base < stop):
                expected = file.end
        yield from _gone(notes, max(damaged_to, start or 0 if expected is None else expected))
    finally:
        for walk in walks:
            walk.close()


def _gone(notes: Survey, end: int) -> Iterator[Damage]:
    """What the log held beyond its end, by its mark."""
    answered = max((f.header.marks_answered for f in notes.files if f.header), default=0)
    if notes.mark is not None and notes.mark.number <= answered:
        notes.mark = None
    if notes.mark is None:
        return
    notes.durable = max(notes.durable, notes.mark.durable)
    length = notes.mark.durable - end
    if length > 0:
        used = (file.number for file in notes.files if file.base is not None)
        number = max(notes.mark.file_no, *used, 0)
        why = "the log is gone from here on; its mark says that it was on disk"
        path = file_path(notes.directory, number)
        yield Damage(path, 0, 0, end, length + -length % 8, why)


class FileWalk:
    """One log file being walked."""

    def __init__(self, fs: Filesystem, path: str, number: int) -> None:
        self._file = fs.open_read(path)
        self._window = Window(self._file, WINDOW_BYTES)
        self.path = path
        self.durable = 0  # the furthest position that a header in here knew to be durable
        self.given_up = 0  # the same of what a later file has taken the place of
        self._number = number
        self._header = decode_file_header(self._window.get(0, PAGE_BYTES), fs.describe(path))
        self._salt = self._header.salt if self._header is not None else None
        self._base: int | None = None
        self._sought = False
        self._end = PAGE_BYTES
        self._batches = 0
        self._ordinal = 0

    def close(self) -> None:
        self._file.close()

    def describe(self) -> LogFile:
        base = self._base
        return LogFile(
            self.path,
            self._number,
            self._window.size,
            self._header,
            base,
            # A file without a whole batch takes no room in the count of bytes.
            (base or 0) + (self._end if self._batches else 0),
            self._batches,
        )

    def first_position(self) -> int | None:
        """The shard position of the file's first byte, None when it has no batch header."""
        if self._base is None and not self._sought:
            self._sought = True
            for at, header in headers_after(self._window, PAGE_BYTES):
                if self._ours(at, header):
                    self._salt = header.salt
                    self._base = header.position - at
                    break
        return self._base

    def items(self, stop: int | None, on_bytes: Callable[[int], None]) -> Iterator[Item]:
        """Batches before position `stop` and what lies between them, then the tail."""
        base = self._base
        if base is None:
            if self._header is None:
                self._end = 0  # Not even the first page is what was written.
            yield Tail(self.path, self._end, self._torn_bytes())
            return
        if self._header is None:
            yield Damage(self.path, 0, PAGE_BYTES, base, PAGE_BYTES, "its header is damaged", 0)
        while True:
            batch = self._next() or self._search(self._end)
            if batch is None:
                yield from self._last()
                return
            if stop is not None and batch.header.position >= stop:
                self._give_up(batch.offset)
                return
            if batch.header.ordinal != self._ordinal:
                start = self._skip_padding()
                length = batch.offset - start
                batches = batch.header.ordinal - self._ordinal
                yield Damage(self.path, start, length, base + start, length, _WHY, batches)
            yield batch
            self.durable = max(self.durable, batch.header.durable)
            self._batches += 1
            self._ordinal = batch.header.ordinal + 1
            end = batch.offset + BATCH_HEADER_BYTES + batch.header.body_bytes
            on_bytes(end - self._end)
            self._end = end

    def _give_up(self, offset: int) -> None:
        for at, header in headers_after(self._window, offset):
            if self._ours(at, header):
                self.given_up = max(self.given_up, header.durable)

    def _skip_padding(self) -> int:
        """Where the batch after the last whole one began: a page is filled up with zeros."""
        page = self._end + -self._end % PAGE_BYTES
        return page if not any(self._window.get(self._end, page - self._end)) else self._end

    def _last(self) -> Iterator[Item]:
        """What follows the last whole batch: damage if a header in it knew of durable bytes."""
        torn_bytes = self._torn_bytes()
        for at, header in headers_after(self._window, self._end):
            if self._ours(at, header):
                self.durable = max(self.durable, header.durable)
        position = (self._base or 0) + (self._end if self._batches else 0)
        if self.durable > position and torn_bytes:
            length = torn_bytes + -torn_bytes % 8
            yield Damage(self.path, self._end, length, position, length, _WHY)
            torn_bytes = 0
        yield Tail(self.path, self._end, torn_bytes)

    def _next(self) -> WholeBatch | None:
        """The batch that follows at once, or at the start of the next page."""
        for offset in (self._end, self._end + -self._end % PAGE_BYTES):
            header = decode_batch_header(self._window.get(offset, BATCH_HEADER_BYTES), 0)
            if header is not None and header.ordinal == self._ordinal:
                batch = self._whole(offset, header)
                if batch is not None:
                    return batch
        return None

    def _search(self, offset: int) -> WholeBatch | None:
        """The first whole batch at `offset` or after it."""
        for at, header in headers_after(self._window, offset):
            batch = self._whole(at, header) if at >= offset else None
            if batch is not None:
                return batch
        return None

    def _ours(self, offset: int, header: BatchHeader) -> bool:
        """Whether a header is one of this file, not one that a record happens to hold."""
        base = header.position - offset
        return base >= 0 and self._salt in (None, header.salt) and self._base in (None, base)

    def _whole(self, offset: int, header: BatchHeader) -> WholeBatch | None:
        if not self._ours(offset, header) or header.ordinal < self._ordinal:
            return None
        body = self._window.get(offset + BATCH_HEADER_BYTES, header.body_bytes)
        if len(body) < header.body_bytes or xxh3_64_intdigest(body) != header.body_hash:
            return None
        return WholeBatch(self.path, offset, header, body)

    def _torn_bytes(self) -> int:
        """How many bytes after the end there are up to the last that is not zero."""
        at, last = self._end, 0
        while at < self._window.size:
            chunk = self._window.get(at, min(WINDOW_BYTES, self._window.size - at))
            stripped = len(chunk.rstrip(b"\0"))
            if stripped:
                last = at + stripped - self._end
            at += max(1, len(chunk))
        return last


def read_stretch(fs: Filesystem, damage: Damage, bytes_max: int) -> bytes | None:
    """The stored bytes of a damage, None when they are not all stored or too many."""
    if damage.stored != damage.length or damage.length > bytes_max:
        return None
    file = fs.open_read(damage.path)
    try:
        window = Window(file, WINDOW_BYTES)
        return window.get(damage.offset, damage.stored)
    finally:
        file.close()
