"""Rows of the lake that somebody has deleted since: which they are, and a frame without them.

The rule it owns: what the server knows to be deleted is not shown, and what it does not know is.  A
topic knows of deletes above the last seq that retention took; one with `cold_reads` knows further
back.
"""

from __future__ import annotations

from base64 import b64decode
from collections.abc import Sequence
from functools import reduce
from typing import Any, Final, NamedTuple

import pyarrow as pa
from pyroaring import BitMap64
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql.functions import broadcast, coalesce, col, lit

from headrace.api.segments import Manifest
from headrace.lake.tables.files import DataFile
from headrace.lake.tables.seq_sets import ranges_of, whole

# More ranges, or tags, than this are left out by a join instead of a condition.
CONDITIONS_MAX: Final = 32
# A row of that join stands for this many seqs, as bits of words.
BUCKET_SEQS: Final = 1 << 15
WORD_SEQS: Final = 64


class Deleted(NamedTuple):
    """Seqs, and tags (or prefixes of them) with the last seq of which each is true."""

    seqs: BitMap64
    tags: list[tuple[str, bool, int]]

    def covers(self, file: DataFile) -> bool:
        """Whether nothing of a file is left."""
        return bool(self.seqs) and self.seqs.contains_range(file.first_seq, file.last_seq + 1)

    def of(self, files: Sequence[DataFile]) -> Deleted:
        """What of it is about rows of these files."""
        first = min((file.first_seq for file in files), default=0)
        tags = [tag for tag in self.tags if files and tag[2] >= first]
        if not self.seqs:
            return Deleted(self.seqs, tags)
        inside = BitMap64()
        for file in files:
            inside.add_range(file.first_seq, file.last_seq + 1)
        return Deleted(self.seqs & inside, tags)


def nothing_deleted() -> Deleted:
    return Deleted(BitMap64(), [])


def deleted_in(manifest: Manifest, last: int) -> Deleted:
    """What somebody deleted of the records up to `last`, as far as the server knows."""
    floors = manifest.floors
    lost = max(floors.cap, floors.ttl, floors.crash, floors.source_trim)
    found = whole(lost + 1, min(floors.delete, last))
    for first, end in manifest.deletes or ():
        found |= whole(first, min(end, last))
    if manifest.deletes_bitmap is not None:
        found |= BitMap64.deserialize(b64decode(manifest.deletes_bitmap))
    tags: list[tuple[str, bool, int]] = []
    if manifest.erased is not None:
        found |= whole(1, min(manifest.erased.below, last))
        found |= BitMap64.deserialize(b64decode(manifest.erased.seqs))
        tags = [*manifest.erased.tags]
    return Deleted(found & whole(1, last), tags)


def without(spark: SparkSession, frame: DataFrame, deleted: Deleted) -> DataFrame:
    """The rows of a frame that are not deleted; it has `seq`, and `tag` where tags are."""
    frame = _without_seqs(spark, frame, ranges_of(deleted.seqs))
    exact = [(tag, last) for tag, prefix, last in deleted.tags if not prefix]
    prefixes = [(tag, last) for tag, prefix, last in deleted.tags if prefix]
    if prefixes:
        begins = [col("tag").startswith(lit(tag)) for tag, _ in prefixes]
        frame = _unless(frame, [_upto(*one) for one in zip(begins, prefixes, strict=True)])
    if len(exact) <= CONDITIONS_MAX:
        return _unless(frame, [_upto(col("tag") == lit(one[0]), one) for one in exact])
    columns: Any = [pa.array([one[at] for one in exact]) for at in (0, 1)]
    table = spark.createDataFrame(pa.Table.from_arrays(columns, names=["gone_tag", "gone_to"]))
    joined = frame.join(broadcast(table), col("tag") == col("gone_tag"), "left")
    return joined.where("gone_to IS NULL OR seq > gone_to").drop("gone_tag", "gone_to")


def _upto(matches: Column, tag: tuple[str, int]) -> Column:
    return coalesce(matches, lit(False)) & (col("seq") <= tag[1])


def _unless(frame: DataFrame, conditions: list[Column]) -> DataFrame:
    """Rows of which none of these is true; what is unknown is not true."""
    if not conditions:
        return frame
    return frame.where(~reduce(lambda left, right: left | right, conditions))


def _without_seqs(
    spark: SparkSession, frame: DataFrame, ranges: list[tuple[int, int]]
) -> DataFrame:
    if len(ranges) <= CONDITIONS_MAX:
        return _unless(frame, [col("seq").between(first, last) for first, last in ranges])
    # As columns, so that Java makes rows of them and no Python process has to start.
    buckets = spark.createDataFrame(_buckets(ranges))
    word = f"element_at(words, cast(seq % {BUCKET_SEQS} div {WORD_SEQS} as int) + 1)"
    alive = f"words IS NULL OR getbit({word}, cast(seq % {WORD_SEQS} as int)) = 0"
    bucket = col("seq") - col("seq") % BUCKET_SEQS
    joined = frame.join(broadcast(buckets), bucket == col("bucket"), "left")
    return joined.where(alive).drop("bucket", "words")


def _buckets(ranges: Sequence[tuple[int, int]]) -> pa.Table:
    """A set of seqs as rows of (bucket, words): its first seq, and a bit for each seq of it.

    >>> _buckets([(3, 4), (32_767, 32_769)])["bucket"].to_pylist()
    [0, 32768]
    """
    bits: dict[int, int] = {}
    for first, last in ranges:
        for start in range(first - first % BUCKET_SEQS, last + 1, BUCKET_SEQS):
            low, high = max(first, start), min(last, start + BUCKET_SEQS - 1)
            mask = ((1 << high - low + 1) - 1) << low - start
            bits[start] = bits.get(start, 0) | mask
    raw = b"".join(one.to_bytes(BUCKET_SEQS // 8, "little") for one in bits.values())
    count = len(bits) * BUCKET_SEQS // WORD_SEQS
    words = pa.Array.from_buffers(pa.int64(), count, [None, pa.py_buffer(raw)])
    ends = pa.array(range(0, count + 1, BUCKET_SEQS // WORD_SEQS), pa.int32())
    columns: Any = [pa.array(list(bits), pa.int64()), pa.ListArray.from_arrays(ends, words)]
    return pa.Table.from_arrays(columns, names=["bucket", "words"])
