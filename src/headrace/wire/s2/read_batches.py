"""What a read takes of the pages that it is given: batches, cut to its limits and to their own.

Only this file decides which records a read is given of a page, how they are divided into batches,
and which of these tell the tail.
"""

from __future__ import annotations

from collections.abc import Callable

from headrace.engine.reading.page import Page
from headrace.storage.record_headers import Header
from headrace.wire.s2.ciphers import RecordCipher
from headrace.wire.s2.read_query import ReadQuery
from headrace.wire.s2.records import (
    BATCH_BYTES_MAX,
    BATCH_RECORDS_MAX,
    Position,
    ReadBatch,
    RecordHeaders,
    cut,
    read_batch,
)

Tail = Callable[[], Position]  # looks for it


class ReadLimits:
    """What a read may still take.

    >>> limits = ReadLimits(ReadQuery(count=3))
    >>> taken, size = limits.take(ReadBatch(range(2), [5, 5], [b"a", b"b"]))
    >>> len(taken), size, limits.count, limits.are_met
    (2, 18, 1, False)
    """

    __slots__ = ("are_met", "bytes", "count", "until")

    def __init__(self, asked: ReadQuery) -> None:
        self.count = asked.count
        self.bytes = asked.bytes
        self.until = asked.until
        self.are_met = asked.is_spent  # nothing more is to be taken

    @property
    def is_unbounded(self) -> bool:
        """Whether everything is to be taken."""
        return self.count is None and self.bytes is None and self.until is None

    def take(self, batch: ReadBatch) -> tuple[ReadBatch, int]:
        """The records before a limit, and their metered bytes, which count from now on."""
        taken, size = cut(batch, self.count, self.bytes, self.until)
        if len(taken) < len(batch):
            self.are_met = True
        if self.count is not None:
            self.count -= len(taken)
            self.are_met = self.are_met or not self.count
        if self.bytes is not None:
            self.bytes -= size
            self.are_met = self.are_met or not self.bytes
        return taken, size

    def take_some(self, batch: ReadBatch) -> ReadBatch:
        """The same of a batch that is an answer by itself: it has a record if any is due.

        What other dialects append may be larger than a batch may be; it is not left out for that.
        """
        before = self.bytes
        taken, _ = self.take(batch)
        if not len(taken) and before is not None and before >= BATCH_BYTES_MAX:
            taken, _ = cut(batch.prefix(1), None, None, self.until)
        return taken


def batch_of_page(page: Page, cipher: RecordCipher | None) -> ReadBatch:
    """The records of a page, as they were appended."""
    batch = read_batch(page)
    return batch if cipher is None else opened(batch, cipher)


def opened(batch: ReadBatch, cipher: RecordCipher) -> ReadBatch:
    """A batch of sealed records, and commands, with these records as they were appended."""
    bodies: list[bytes] = []
    headers: list[RecordHeaders] = []
    for body, pairs in zip(batch.bodies, batch.headers or [None] * len(batch), strict=True):
        plain: tuple[list[Header] | RecordHeaders, bytes] = (pairs, body)
        if not _is_command(pairs):
            plain = cipher.open(pairs, body)
        headers.append(plain[0])
        bodies.append(plain[1])
    some = headers if any(headers) else None
    return ReadBatch(batch.seq_nums, batch.timestamps, bodies, some, batch.tail)


def _is_command(pairs: RecordHeaders) -> bool:
    return pairs is not None and len(pairs) == 1 and not pairs[0][0]


def with_tail(batch: ReadBatch, page: Page, tail: Tail) -> ReadBatch:
    """A batch with all records of a page, which tells the tail if the page ends there."""
    if page.next_from_seq == page.head_seq:
        if len(batch) and batch.last_seq_num + 1 == page.head_seq:
            batch.tail = Position(page.head_seq, batch.timestamps[-1])
        else:
            batch.tail = tail()
    return batch


def divided(batch: ReadBatch) -> list[ReadBatch]:
    """A batch in parts, none of which is larger than a batch may be."""
    parts: list[ReadBatch] = []
    rest = batch
    while len(rest):
        part, _ = cut(rest, BATCH_RECORDS_MAX, BATCH_BYTES_MAX, None)
        if len(part) == len(rest):
            break
        if not len(part):
            part = rest.prefix(1)  # a record is never larger than a batch; this one is stored
        parts.append(part)
        rest = _behind(rest, len(part))
    if len(rest):
        parts.append(rest)
    return parts


def _behind(batch: ReadBatch, count: int) -> ReadBatch:
    headers = batch.headers
    return ReadBatch(
        batch.seq_nums[count:],
        batch.timestamps[count:],
        batch.bodies[count:],
        None if headers is None else headers[count:],
        batch.tail,
    )
