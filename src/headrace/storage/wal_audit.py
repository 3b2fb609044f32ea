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

from headrace.storage.frame import (
    BATCH_HEADER_BYTES,
    PAGE_BYTES,
    BatchHeader,
    FileHeader,
    decode_batch_header,
    decode_file_header,
)
from headrace.storage.fs import Filesystem
from headrace.storage.scan import WINDOW_BYTES, Window, headers_after
from headrace.storage.wal_file import file_path


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


@dataclass
class Survey:
    """What a shard's directory holds."""

    directory: str
    files: list[LogFile] = field(default_factory=list)
    damages: list[Damage] = field(default_factory=list)
    tails: list[Tail] = field(default_factory=list)
    durable: int = 0  # the furthest position that a batch knew to be durable
    overlaps: list[LogFile] = field(default_factory=list)

    @property
    def end(self) -> int:
        """The position after the last whole batch."""
        return max((file.end for file in self.files if file.base is not None), default=0)

    def promised(self, damage: Damage) -> bool:
        """Whether bytes of this stretch were acknowledged: a later batch knew them durable."""
        return self.durable > damage.position


def survey(
    fs: Filesystem,
    directory: str,
    numbers: Sequence[int],
    start: int | None,
    on_bytes: Callable[[int], None] = lambda _count: None,
) -> Survey:
    """Walk every file of a shard; `start` is where its replay begins, None for the beginning."""
    found = Survey(directory)
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
    """Everything in the files of one shard, in order; file facts go to `notes`."""
    notes = notes if notes is not None else Survey(directory)
    expected: int | None = None
    for number in numbers:
        walk = FileWalk(fs, file_path(directory, number), number, expected)
        try:
            first = walk.first_position()
            if first is not None and expected is not None and first < expected:
                # Only a repair that was interrupted leaves such a file: it replaces the others.
                notes.overlaps.append(walk.describe())
                continue
            before = expected if expected is not None else start or 0
            if first is not None and first > before:
                why = "the log between this file and the one before it is missing"
                yield Damage(walk.path, 0, 0, before, first - before, why)
            yield from walk.items(on_bytes)
            file = walk.describe()
            notes.files.append(file)
            notes.durable = max(notes.durable, walk.durable)
            if file.base is not None:
                expected = file.end
        finally:
            walk.close()


class FileWalk:
    """One log file being walked."""

    def __init__(self, fs: Filesystem, path: str, number: int, expected: int | None) -> None:
        self._file = fs.open_read(path)
        self._window = Window(self._file, WINDOW_BYTES)
        self.path = path
        self.durable = 0  # the furthest position that a header in here knew to be durable
        self._number = number
        self._header = decode_file_header(self._window.get(0, PAGE_BYTES), fs.describe(path))
        self._salt = self._header.salt if self._header is not None else None
        self._base: int | None = None
        self._expected = expected
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
            (base or 0) + self._end,
            self._batches,
        )

    def first_position(self) -> int | None:
        """The shard position of the file's first byte, None when it has no batch header."""
        if self._base is None:
            for at, header in headers_after(self._window, PAGE_BYTES):
                if self._ours(at, header):
                    self._salt = header.salt
                    self._base = header.position - at
                    break
        return self._base

    def items(self, on_bytes: Callable[[int], None]) -> Iterator[Item]:
        """Batches and what lies between them, then the tail."""
        if self.first_position() is None:
            yield Tail(self.path, self._end, self._torn_bytes())
            return
        base = self._base
        assert base is not None
        if self._header is None:
            yield Damage(self.path, 0, PAGE_BYTES, base, PAGE_BYTES, "its header is damaged", 0)
        while True:
            batch = self._next() or self._search(self._end)
            if batch is None:
                yield from self._last()
                return
            if batch.header.ordinal != self._ordinal:
                length = batch.offset - self._end
                batches = batch.header.ordinal - self._ordinal
                yield Damage(self.path, self._end, length, base + self._end, length, _WHY, batches)
            yield batch
            self._batches += 1
            self._ordinal = batch.header.ordinal + 1
            end = batch.offset + BATCH_HEADER_BYTES + batch.header.body_bytes
            on_bytes(end - self._end)
            self._end = end

    def _last(self) -> Iterator[Item]:
        """What follows the last whole batch: damage if a header in it knew of durable bytes."""
        torn_bytes = self._torn_bytes()
        base = self._base or 0
        if self.durable > base + self._end and torn_bytes:
            length = torn_bytes + -torn_bytes % 8
            yield Damage(self.path, self._end, length, base + self._end, length, _WHY)
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
        if self._salt is None:
            # Without a file header to say so, only what goes on from the file before is believed.
            return base >= (self._expected or 0)
        return base >= 0 and header.salt == self._salt and self._base in (None, base)

    def _whole(self, offset: int, header: BatchHeader) -> WholeBatch | None:
        if not self._ours(offset, header) or header.ordinal < self._ordinal:
            return None
        self.durable = max(self.durable, header.durable)
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
