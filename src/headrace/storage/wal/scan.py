"""Reading the write-ahead log back, and deciding whether a bad end is torn or corrupt.

Only this file judges log bytes.  The rule: on a bad batch at position X, look ahead for any header
with a right hash that says the shard was durable beyond X when it was built.  If one does,
acknowledged bytes are damaged, and opening is refused by name.  If none does, nothing beyond X was
ever promised, and the log ends at X.  A later file that begins exactly at X was written by a
recovery that had decided the same, so reading goes on there.

What a file cannot say of itself is refused, too: one that is shorter than it was made, and a log
that does not hold what its mark says (`mark.py`).

A scan changes nothing on disk; it says which files are of no use.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator
from dataclasses import dataclass, field

from xxhash import xxh3_64_intdigest

from headrace.core.errors import WalCorrupt
from headrace.storage.fs import File, Filesystem
from headrace.storage.wal.file import file_path, first_position, index_of
from headrace.storage.wal.frame import (
    BATCH_HEADER_BYTES,
    BATCH_MAGIC,
    PAGE_BYTES,
    BatchHeader,
    FileHeader,
    decode_batch_header,
    decode_file_header,
    split_entries,
)
from headrace.storage.wal.mark import Mark, mark_path

WINDOW_BYTES = 1 << 20
_ZEROS = bytes(WINDOW_BYTES)

# kind, entry, shard position of its batch
OnEntry = Callable[[int, bytes], None]
# Before the entries of a batch: number and path of its file, and where it is there.
OnBatch = Callable[[int, str, int], None]


@dataclass
class ShardScan:
    """What the log of one shard turned out to hold."""

    directory: str
    end: int = 0
    boot_id: bytes | None = None  # of the boot that wrote the last batch
    last_number: int = 0  # of the file that holds it
    batches: int = 0  # from the start asked for on
    bytes_read: int = 0
    bytes_dropped: int = 0  # un-acknowledged bytes after the end
    marks_answered: int = 0  # the last mark that a repaired file answers for
    useless: list[str] = field(default_factory=list)  # files that can be unlinked


class Window:
    """A bounded view of a file: bytes at any offset, read a window at a time."""

    def __init__(
        self, file: File, window_bytes: int, on_read: Callable[[int], None] = lambda _offset: None
    ) -> None:
        self._file = file
        self._window_bytes = window_bytes
        self._on_read = on_read
        self._start = 0
        self._buffer = b""
        self.size = file.size()

    def get(self, offset: int, length: int) -> bytes:
        """Up to `length` bytes at `offset`; fewer at the end of the file."""
        at = offset - self._start
        if at < 0 or at + length > len(self._buffer):
            self._on_read(offset)
            want = max(length, self._window_bytes)
            self._buffer = self._read(offset, min(want, max(0, self.size - offset)))
            self._start, at = offset, 0
        return self._buffer[at : at + length]

    def _read(self, offset: int, length: int) -> bytes:
        parts = []
        while length > 0:
            part = self._file.pread(length, offset)
            if not part:
                break
            parts.append(part)
            offset += len(part)
            length -= len(part)
        return parts[0] if len(parts) == 1 else b"".join(parts)


class ShardScanner:
    """Scans the files of one shard directory in ascending number."""

    def __init__(
        self,
        fs: Filesystem,
        directory: str,
        start: int | None,
        on_entry: OnEntry,
        window_bytes: int = WINDOW_BYTES,
        mark: Mark | None = None,
        on_batch: OnBatch = lambda _number, _path, _offset: None,
    ) -> None:
        self._fs = fs
        self._start = start
        self._mark = mark
        self._first_number = 0  # of the files to scan
        self._whole_numbers: set[int] = set()  # of files as long as they were made
        self._on_entry = on_entry
        self._on_batch = on_batch
        self._window_bytes = window_bytes
        self._expected: int | None = None  # where the next file has to begin
        self._bases: dict[int, int | None] = {}  # of the files to scan, by number
        self._bad = ""  # where the log broke off, in words; empty while it is whole
        self.result = ShardScan(directory)

    def choose(self, numbers: list[int]) -> list[int]:
        """The files from the one that holds the start on: what is before it is of no interest.

        Obsolete files are removed in any order, so there may be holes among them.
        """
        directory = self.result.directory
        if self._start is not None:
            numbers = numbers[index_of(self._fs, directory, numbers, self._start) :]
        self._bases = {n: first_position(self._fs, file_path(directory, n)) for n in numbers}
        self._first_number = numbers[0] if numbers else 0
        return numbers

    def _stop_before(self, number: int) -> int | None:
        """Where the next file begins.  Batches of this one beyond it were given up: a write that
        failed may have reached the disk all the same."""
        later = (base for n, base in sorted(self._bases.items()) if n > number)
        return next((base for base in later if base is not None), None)

    def scan_file(self, number: int, on_read: Callable[[int], None]) -> Iterator[None]:
        """Deliver every entry of this file that counts, a batch at a time.

        `on_read` hears how far it has come.
        """
        path = file_path(self.result.directory, number)
        file = self._fs.open_read(path)
        try:
            yield from self._scan(path, number, Window(file, self._window_bytes, on_read))
        finally:
            file.close()

    def finish(self, *, must_go_on: bool) -> ShardScan:
        """The whole picture, once every file was scanned.

        `must_go_on`: a batch at or after the start was on disk before the snapshot was written.
        """
        if self._expected is None:
            if self._start is not None:
                self._missing(self._start)
            self.result.end = 0
        else:
            if self._start is not None and self._expected < self._start:
                self._missing(self._expected)
            self.result.end = self._expected
            if self._start is not None and must_go_on and not self.result.batches:
                self._missing(self._start)
        if self._mark is not None and self._mark.number > self.result.marks_answered:
            self._compare(self._mark)
        return self.result

    def _compare(self, mark: Mark) -> None:
        """Refuse a log that does not hold what its mark says."""
        directory = self.result.directory
        path, said_by = file_path(directory, mark.file_no), self._fs.describe(mark_path(directory))
        if mark.durable > max(self.result.end, self._start or 0):
            raise WalCorrupt(
                f"the log in {self._fs.describe(directory)} ends at position {self.result.end}, "
                f"and {said_by} says that it was on disk up to {mark.durable}, in {path}",
                fix="put the file back, or run `headrace check --repair`, which says what is lost",
                detail={"file": path, "position": self.result.end, "durable": mark.durable},
            )
        # A mark that is older than what is scanned says nothing of it.
        if mark.file_no >= max(self._first_number, 1) and mark.file_no not in self._whole_numbers:
            raise WalCorrupt(
                f"{self._fs.describe(path)} is missing or cut to nothing, and {said_by} says that "
                f"the log went on there",
                fix="put the file back, or run `headrace check --repair`",
                detail={"file": path, "position": self.result.end},
            )

    def _scan(self, path: str, number: int, window: Window) -> Iterator[None]:
        header = decode_file_header(window.get(0, PAGE_BYTES), self._fs.describe(path))
        first = decode_batch_header(window.get(PAGE_BYTES, BATCH_HEADER_BYTES), 0)
        usable = header is not None and first is not None and first.salt == header.salt
        if header is not None:
            self._length(path, window, header, used=usable)
        if not usable or first is None or header is None:
            # Never used, or its first group never reached the disk.
            salt = header.salt if header is not None else None
            self._refuse_if_promised(path, window, 0, self._expected, salt)
            self.result.useless.append(path)
            return
        base = first.position - PAGE_BYTES
        if self._expected is None:
            if base > (self._start or 0):
                self._missing(self._start or 0)
        elif base > self._expected:
            self._refuse_if_promised(path, window, 0, self._expected, header.salt, base)
            self._bad = self._bad or f"{path} begins at {base}, {self._expected} was expected"
            self.result.useless.append(path)
            return
        elif base < self._expected:
            raise self._corrupt(path, 0, base, "this file overlaps the one before it")
        end = yield from self._batches(path, window, header, base, self._stop_before(number))
        if end == PAGE_BYTES:
            # A file without a whole batch takes no room in the count of bytes.
            self._refuse_if_promised(path, window, 0, base, header.salt, base)
            self._expected = base
            self.result.useless.append(path)
            return
        self._expected = base + end
        self.result.boot_id = header.boot_id
        self.result.last_number = number
        if self._torn(window, end):
            self._refuse_if_promised(path, window, end, base + end, header.salt, base)
            self._bad = self._bad or f"{path} at offset {end}"
            self.result.bytes_dropped += window.size - end

    def _length(self, path: str, window: Window, header: FileHeader, *, used: bool) -> None:
        """Refuse a file with a batch that is shorter than it was before it had one."""
        if window.size >= header.made_bytes:
            self._whole_numbers.add(header.file_no)
            self.result.marks_answered = max(self.result.marks_answered, header.marks_answered)
        elif used:
            raise self._corrupt(
                path, window.size, None, f"it is cut, and was made with {header.made_bytes} bytes"
            )

    def _batches(
        self, path: str, window: Window, header: FileHeader, base: int, stop: int | None
    ) -> Generator[None, None, int]:
        """Deliver whole batches; return the offset where they end."""
        end, ordinal = PAGE_BYTES, 0
        while True:
            found = self._next_batch(window, header.salt, base, end, ordinal)
            if found is None:
                return end
            offset, batch = found
            if stop is not None and batch.position >= stop >= base:
                return end
            body = window.get(offset + BATCH_HEADER_BYTES, batch.body_bytes)
            if len(body) < batch.body_bytes or xxh3_64_intdigest(body) != batch.body_hash:
                return end
            if self._start is None or batch.position >= self._start:
                self._on_batch(header.file_no, path, offset)
                for kind, entry in split_entries(body, batch.entries, path):
                    self._on_entry(kind, entry)
                self.result.batches += 1
            self.result.bytes_read += BATCH_HEADER_BYTES + batch.body_bytes
            ordinal += 1
            end = offset + BATCH_HEADER_BYTES + batch.body_bytes
            yield

    def _next_batch(
        self, window: Window, salt: int, base: int, end: int, ordinal: int
    ) -> tuple[int, BatchHeader] | None:
        """The batch after `end`: right there, or at the start of the next page."""
        for offset in (end, end + -end % PAGE_BYTES):
            batch = decode_batch_header(window.get(offset, BATCH_HEADER_BYTES), 0)
            if (
                batch is not None
                and batch.salt == salt
                and batch.position == base + offset
                and batch.ordinal == ordinal
            ):
                return offset, batch
        return None

    def _torn(self, window: Window, end: int) -> bool:
        """Whether anything but zeros follows the last whole batch."""
        while end < window.size:
            chunk = window.get(end, min(self._window_bytes, window.size - end))
            if not chunk or not _is_zero(chunk):
                return True
            end += len(chunk)
        return False

    def _refuse_if_promised(
        self,
        path: str,
        window: Window,
        offset: int,
        position: int | None,
        salt: int | None = None,
        base: int | None = None,
    ) -> None:
        """Raise if any later header of this file says `position` was already durable.

        With no position known (the first file of a log), the file's own first page is meant.
        Headers with another salt or place are data that looks like one: a stored log, say.
        """
        for at, batch in headers_after(window, offset):
            own_base = batch.position - at
            if salt not in (None, batch.salt) or base not in (None, own_base):
                continue
            limit = position if position is not None else own_base + PAGE_BYTES
            if own_base >= 0 and batch.durable > limit:
                raise self._corrupt(
                    path, offset, limit, f"the batch at {at} knew {batch.durable} durable"
                )

    def _missing(self, position: int) -> None:
        raise WalCorrupt(
            f"the log in {self._fs.describe(self.result.directory)} does not reach position "
            f"{position}, where the snapshot says it goes on"
            + (f" (it breaks off at {self._bad})" if self._bad else ""),
            fix="put the missing file back, or run `headrace check --repair`",
            detail={"directory": self.result.directory, "position": position},
        )

    def _corrupt(self, path: str, offset: int, position: int | None, why: str) -> WalCorrupt:
        where = f"offset {offset}" + (f" (position {position})" if position is not None else "")
        return WalCorrupt(
            f"acknowledged bytes of {self._fs.describe(path)} are damaged at {where}: {why}",
            fix="restore a backup, or run `headrace check --repair`, which keeps a copy",
            detail={"file": path, "offset": offset, "position": position},
        )


def _is_zero(chunk: bytes) -> bool:
    return chunk == _ZEROS[: len(chunk)] if len(chunk) <= WINDOW_BYTES else not any(chunk)


def headers_after(window: Window, offset: int) -> Iterator[tuple[int, BatchHeader]]:
    """Every header with a right hash from `offset` on, in order."""
    at = offset - offset % 8
    while at < window.size:
        chunk = window.get(at, min(WINDOW_BYTES, window.size - at))
        # Most of what is looked at was never written to, and comparing is ten times as fast.
        found = -1 if _is_zero(chunk) else chunk.find(BATCH_MAGIC)
        while found >= 0:
            if (at + found) % 8 == 0:
                batch = decode_batch_header(window.get(at + found, BATCH_HEADER_BYTES), 0)
                if batch is not None:
                    yield at + found, batch
            found = chunk.find(BATCH_MAGIC, found + 1)
        at += max(8, len(chunk) - BATCH_HEADER_BYTES - (len(chunk) - BATCH_HEADER_BYTES) % 8)


def file_bytes(fs: Filesystem, path: str) -> int:
    file = fs.open_read(path)
    try:
        return file.size()
    finally:
        file.close()
