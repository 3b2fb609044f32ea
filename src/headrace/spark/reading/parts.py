"""What one task reads: slices of sealed files, ranges over HTTP, and gaps.

All of it is small, and can be pickled.
"""

from __future__ import annotations

from typing import NamedTuple

import msgspec
from pyroaring import BitMap64
from pyspark.sql.datasource import InputPartition

from headrace.api.segments import ManifestFile
from headrace.spark.reading.pushdown import Filters
from headrace.spark.reading.spans import Span


def seqs_between(seqs: BitMap64, first: int, last: int) -> BitMap64:
    """Those of a set of seqs that lie in a range.

    >>> list(seqs_between(BitMap64([1, 5, 9]), 2, 9))
    [5, 9]
    """
    if not seqs or last < first:
        return BitMap64()
    whole = BitMap64()
    whole.add_range(first, last + 1)
    return seqs & whole


class Pin(NamedTuple):
    """What keeps the files of a manifest where they are, for `ms` after each renewal."""

    topic: str
    pin: str
    ms: int


class FileSlice(msgspec.Struct, frozen=True):
    """Records of one sealed file.

    Every seq of the span is a row of the file or in `dead`, the portable form of a 64-bit Roaring
    bitmap: deleted, or taken by a crash.
    """

    span: Span
    file: ManifestFile
    topic_id: int
    pin: Pin
    dead: bytes = b""
    bytes: int = 0  # about
    content_type: str | None = None  # of a stream

    def cut(self, first: int, last: int) -> FileSlice:
        """The part between two seqs."""
        share = self.bytes * (last - first + 1) // self.span.length
        span = self.span._replace(first=first, last=last)
        dead = b""
        if self.dead and (inside := seqs_between(BitMap64.deserialize(self.dead), first, last)):
            dead = inside.serialize()
        return msgspec.structs.replace(self, span=span, bytes=share, dead=dead)


class HttpSlice(msgspec.Struct, frozen=True):
    """Records that the server is asked for."""

    span: Span
    bytes: int = 0  # about

    def cut(self, first: int, last: int) -> HttpSlice:
        share = self.bytes * (last - first + 1) // self.span.length
        return HttpSlice(self.span._replace(first=first, last=last), share)


class Gap(msgspec.Struct, frozen=True):
    """Seqs that are lost."""

    span: Span
    reason: str
    bytes: int = 0


Slice = FileSlice | HttpSlice | Gap


class ReadPart(InputPartition):
    """What one task reads, in this order; `planned_ms` is when that was decided."""

    def __init__(
        self, slices: tuple[Slice, ...], filters: Filters | None = None, planned_ms: int = 0
    ) -> None:
        super().__init__(None)
        self.slices = slices
        self.filters = filters
        self.planned_ms = planned_ms

    @property
    def pins(self) -> list[Pin]:
        """Of the files in it."""
        found = (one.pin for one in self.slices if isinstance(one, FileSlice))
        return list(dict.fromkeys(found))

    @property
    def bytes(self) -> int:
        return sum(one.bytes for one in self.slices)
