"""Manifests: where a topic's sealed records lie, for readers of files.

docs/reference/segments.md says how a reader uses one.
"""

from __future__ import annotations

from typing import ClassVar

import msgspec

from headrace.api.base import Answer


class Floors(msgspec.Struct, frozen=True):
    """The last seq that each reason took, from the front."""

    cap: int
    ttl: int
    crash: int
    source_trim: int
    delete: int


class ManifestFile(msgspec.Struct, frozen=True):
    """One sealed file, and where in it the topic's records are.

    `hash` is the XXH3-64 of everything from `footer_offset`, where the file's own hashes are.
    """

    file_id: int
    location: str  # an absolute path, or the URL of an object
    tier: str  # "hot" or "cold"
    format: int
    size: int
    footer_offset: int
    hash: str  # 16 hexadecimal digits
    owner: int  # the one topic_id it holds; 0: of several
    topics: int
    rows: int
    first_row: int  # of this topic's rows, which lie together
    row_count: int
    first_seq: int
    last_seq: int
    min_ts: int
    max_ts: int
    bytes: int  # data and meta of this topic's rows
    topic_id: int = 0  # of these rows: the topic's, or of one that it inherits them from


class Erasures(msgspec.Struct, frozen=True):
    """What somebody deleted of a topic with `cold_reads`, also of what the topic holds no more."""

    since: int  # deletes of seqs from here on are all known
    below: int  # everything up to here was deleted
    seqs: str  # base64 of a 64-bit Roaring bitmap in its portable form
    tags: list[tuple[str, bool, int]]  # tag, whether it is a prefix, up to which seq


class Manifest(Answer, frozen=True):
    """Where a topic's sealed records lie; a pin keeps the files there."""

    # A record of a file is live if its seq is at least `earliest_seq`, below `tail_from_seq`, and
    # not deleted; records from `tail_from_seq` on are read from the server.

    schema_name: ClassVar[str] = "SegmentsAnswer"

    topic: str
    topic_id: int
    epoch: int
    head_seq: int
    earliest_seq: int
    tail_from_seq: int
    floors: Floors
    gaps: list[tuple[int, int]]  # first and last seqs that a crash, or a router's source, lost
    files: list[ManifestFile]  # by seq
    pin: str
    pin_ms: int
    pin_expires_ms: int
    deletes: list[tuple[int, int]] | None = None  # first and last; None: see deletes_bitmap
    deletes_bitmap: str | None = None  # base64 of a 64-bit Roaring bitmap in its portable form
    directory: str = ""  # the name that the data directory keeps for life
    erased: Erasures | None = None  # of a topic with `cold_reads`
    content_type: str | None = None  # of a stream


class Pin(Answer, frozen=True):
    """How long the files of a manifest stay."""

    schema_name: ClassVar[str] = "PinAnswer"

    topic: str
    pin: str
    pin_ms: int
    pin_expires_ms: int


class PinReleased(Answer, frozen=True):
    """The files of a manifest are let go."""

    schema_name: ClassVar[str] = "ReleaseAnswer"

    topic: str
    pin: str
    released: bool
