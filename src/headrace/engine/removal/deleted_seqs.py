"""Which records were deleted, of a topic whose past is served from an archive.

A topic forgets the records it let go; an archive does not.  So what may not be served is noted here
when it is deleted, wherever it is by then.  Deletes of seqs from `since` on are all known; records
below that are not served at all.  The memory is bounded: beyond the bound `since` goes up, and
readers are told of a gap where they would have got records.  Replaying deletes in the order of the
log gives the same again, and applying one twice is the same as once.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pyarrow as pa
from pyroaring import BitMap64

from headrace.core.limits import erased_bytes_max
from headrace.storage.snapshot.deleted_record import ErasedRecord, decode_erased, encode_erased

# At most what an entry of `tags` takes beside its text, and what a seq takes of a bitmap.
TAG_BYTES = 16
SEQ_BYTES = 16


class DeletedSeqs:
    """The deletes of one topic."""

    __slots__ = ("_added", "_size", "below", "seqs", "since", "tags")

    def __init__(self, since: int, seqs: BitMap64 | None = None) -> None:
        self.since = since
        self.below = 0  # everything up to here was deleted
        self.seqs = BitMap64() if seqs is None else seqs
        # Up to which seq records were deleted by tag; the flag: by a prefix of it.
        self.tags: dict[tuple[str, bool], int] = {}
        self._size = 0  # in bytes, when it was last measured
        self._added = len(self.seqs) * SEQ_BYTES  # at most, since then
        self._fit()

    def knows(self, last: int) -> bool:
        """Whether a delete of everything up to `last` would say nothing new."""
        return last <= self.below or last < self.since

    def delete(
        self, floor: int, seqs: BitMap64 | None, tag: tuple[str, bool, int] | None = None
    ) -> None:
        """Everything up to `floor` is deleted, or these seqs, and what has a tag up to a seq."""
        self.below = max(self.below, floor)
        if seqs:
            self.seqs |= seqs
            self._added += len(seqs) * SEQ_BYTES
        if tag is not None and tag[2] >= self._first:
            text, prefix, last = tag
            self.tags[text, prefix] = max(last, self.tags.get((text, prefix), 0))
            self._added += len(text.encode()) + TAG_BYTES
        if floor or seqs:
            self._forget_below()
        self._fit()

    @property
    def _first(self) -> int:
        """From here on anything is to be known at all."""
        return max(self.since, self.below + 1)

    def _forget_below(self) -> None:
        first = self._first
        self.seqs.remove_range(0, first)
        self.tags = {key: last for key, last in self.tags.items() if last >= first}

    def _fit(self) -> None:
        """Stay within the bound: of what is too much, the older half is not known any more."""
        if self._size + self._added <= erased_bytes_max:
            return
        self._measure()
        if self._size <= erased_bytes_max:
            return
        while self._size > erased_bytes_max // 2:
            by_tag = sum(map(_tag_bytes, self.tags))
            if by_tag > self._size // 2:
                cut = sorted(self.tags.values())[len(self.tags) // 2]
            else:
                cut = self.seqs[len(self.seqs) // 2]
            self.since = cut + 1
            self._forget_below()
            self._measure()

    def _measure(self) -> None:
        self.seqs.run_optimize()
        self._size = len(self.seqs.serialize()) + sum(map(_tag_bytes, self.tags))
        self._added = 0

    # For a reader

    def copy(self) -> DeletedSeqs:
        """As it is now, for another thread."""
        other = DeletedSeqs(self.since)
        other.below, other.seqs, other.tags = self.below, self.seqs.copy(), dict(self.tags)
        return other

    def add_tagged(self, rows: pa.RecordBatch) -> None:
        """Add to `seqs` those of these rows that were deleted by their tag."""
        if not self.tags:
            return
        first: Any = rows.column("seq")[0]
        if max(self.tags.values()) < first.as_py():
            return
        column: Any = rows.column("tag")
        lengths = {len(text) for text, prefix in self.tags if prefix}
        upto = {tag: self._deleted_to(tag, lengths) for tag in column.unique().to_pylist()}
        if not any(upto.values()):
            return
        seqs: Any = rows.column("seq")
        pairs = zip(seqs.to_pylist(), column.to_pylist(), strict=True)
        self.seqs.update(seq for seq, tag in pairs if seq <= upto[tag])

    def _deleted_to(self, tag: str | None, lengths: Iterable[int]) -> int:
        """Up to which seq records with this tag are deleted; `lengths` are those of prefixes."""
        if tag is None:
            return 0
        prefixes = (tag[:length] for length in lengths if length <= len(tag))
        found = max((self.tags.get((text, True), 0) for text in prefixes), default=0)
        return max(found, self.tags.get((tag, False), 0))


def _tag_bytes(key: tuple[str, bool]) -> int:
    return len(key[0].encode()) + TAG_BYTES


def stored_deletes(deletes: DeletedSeqs | None) -> bytes:
    """What a snapshot keeps of it."""
    if deletes is None:
        return b""
    seqs = deletes.seqs.serialize() if deletes.seqs else b""
    tags = [(tag, prefix, last) for (tag, prefix), last in deletes.tags.items()]
    return encode_erased(ErasedRecord(deletes.since, deletes.below, seqs, tags))


def restored_deletes(data: bytes) -> DeletedSeqs:
    """The same from a snapshot."""
    record = decode_erased(data)
    deletes = DeletedSeqs(record.since, BitMap64.deserialize(record.seqs) if record.seqs else None)
    deletes.below = record.below
    for tag in record.tags:
        deletes.delete(0, None, tag)
    return deletes
