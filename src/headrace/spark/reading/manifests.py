"""From a manifest to slices: which file has which seqs, what comes over HTTP, what is lost.

Pure.  Every seq of a span ends up in exactly one slice, except those that somebody deleted.
"""

from __future__ import annotations

from base64 import b64decode
from collections.abc import Callable, Iterator

from pyroaring import BitMap64

from headrace.api.segments import Floors, Manifest, ManifestFile
from headrace.spark.read_failures import not_accounted
from headrace.spark.reading.parts import FileSlice, Gap, HttpSlice, Pin, Slice, seqs_between
from headrace.spark.reading.pushdown import Filters
from headrace.spark.reading.spans import Range, Span, clipped, outside

# What a record costs beside its data and meta.
ROW_BYTES = 24
# What a record is taken to hold where nothing tells.
DATA_BYTES_GUESS = 200

Direct = Callable[[ManifestFile], bool]


def slices_of(
    manifest: Manifest, span: Span, direct: Direct, filters: Filters | None = None
) -> list[Slice]:
    """What to read for a span; `direct` says which files can be opened from here."""
    assert manifest.epoch == span.epoch and manifest.topic == span.topic, (manifest.epoch, span)
    losses = losses_of(manifest, span)
    lost = [(gap.span.first, gap.span.last) for gap in losses]
    first = max(span.first, manifest.earliest_seq)
    found: list[Slice] = [*losses]
    sealed = span._replace(first=first, last=min(span.last, manifest.tail_from_seq - 1))
    found += _sealed(manifest, sealed, lost, direct, filters)
    tail = span._replace(first=max(first, manifest.tail_from_seq))
    found += _over_http(tail, lost, row_bytes(manifest))
    return sorted(found, key=lambda one: one.span.first)


def losses_of(manifest: Manifest, span: Span) -> list[Gap]:
    """What of a span is lost: below a floor, or taken by a crash."""
    floors = manifest.floors
    floor = max(floors.cap, floors.ttl, floors.crash, floors.source_trim)
    found = []
    if span.first <= min(floor, span.last):
        ending = span._replace(last=min(floor, span.last))
        found.append(Gap(ending, _floor_reason(floors, span.first)))
    for first, last in clipped(manifest.gaps, max(span.first, floor + 1), span.last):
        found.append(Gap(span._replace(first=first, last=last), "crash"))
    return found


def _floor_reason(floors: Floors, first: int) -> str:
    """As the server words it for a reader at `first`."""
    cap, ttl = floors.cap >= first, floors.ttl >= first
    if cap or ttl:
        return "mixed" if cap and ttl else ("cap" if cap else "ttl")
    return "crash" if floors.crash >= first else "source_trim"


def row_bytes(manifest: Manifest) -> int:
    """About what a record of this topic holds."""
    rows = sum(file.row_count for file in manifest.files)
    data = sum(file.bytes for file in manifest.files) // rows if rows else DATA_BYTES_GUESS
    return data + ROW_BYTES


def _sealed(
    manifest: Manifest, span: Span, lost: list[Range], direct: Direct, filters: Filters | None
) -> Iterator[Slice]:
    """Slices of the files: each from where the one before ends, so that no seq is left over."""
    dead = _dead_of(manifest)
    at = span.first
    pin = Pin(manifest.topic, manifest.pin, manifest.pin_ms)
    per_row = row_bytes(manifest)
    for file in manifest.files:
        part = span._replace(first=at, last=min(file.last_seq, span.last))
        if part.length == 0:
            continue
        at = part.last + 1
        if filters is not None and _too_old_or_new(file, filters):
            continue
        gone = seqs_between(dead, part.first, part.last)
        live = part.length - len(gone)
        if live and direct(file):
            size = live * per_row
            raw = gone.serialize() if gone else b""
            topic_id = file.topic_id or manifest.topic_id  # 0: the server is an older one
            yield FileSlice(part, file, topic_id, pin, raw, size, manifest.content_type)
        elif live:
            yield from _over_http(part, lost, per_row)
    rest = span._replace(first=at)
    missing = rest.length - len(seqs_between(dead, rest.first, rest.last))
    if missing:
        raise not_accounted(span.topic, rest.first, rest.last, 0, missing)


def _too_old_or_new(file: ManifestFile, filters: Filters) -> bool:
    return file.max_ts < filters.ts_first or file.min_ts > filters.ts_last


def _over_http(span: Span, lost: list[Range], per_row: int) -> Iterator[HttpSlice]:
    for first, last in outside(lost, span.first, span.last):
        part = span._replace(first=first, last=last)
        yield HttpSlice(part, part.length * per_row)


def _dead_of(manifest: Manifest) -> BitMap64:
    """Seqs of sealed records that are deleted, or that a crash took."""
    dead = BitMap64()
    if manifest.deletes_bitmap is not None:
        dead = BitMap64.deserialize(b64decode(manifest.deletes_bitmap))
    for first, last in [*(manifest.deletes or ()), *manifest.gaps]:
        dead.add_range(first, last + 1)
    return dead
