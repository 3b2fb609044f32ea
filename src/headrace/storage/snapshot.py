"""A snapshot as bytes: the state of everything but the records, whole or as a difference.

Only this file knows the layout (docs/formats/snapshot.md) and the meaning of a change.  A *full*
snapshot holds all of the state; a *delta* holds what changed since the snapshot it names as its
base, by number and by hash, so that cost follows what changed and no delta is ever put on another
base.  Every byte is under a hash, and nothing is decoded before its hash was checked.

No I/O here: `snapshot_files.py` says when files are written, believed, kept and removed.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Iterator
from itertools import chain
from typing import NamedTuple, TypeVar

import msgspec
import xxhash

from headrace.core.errors import SnapshotCorrupt, UnsupportedFormat
from headrace.storage.keys import KeyFileMeta
from headrace.storage.segment import SegmentMeta

MAGIC = b"HRSNAPSH"  # on disk: never change
MAGIC_END = b"HRSNAPND"  # on disk: never change
VERSION = 1

# Kinds of snapshot.  On-disk values: never change one.
FULL, DELTA = 1, 2

# Kinds of chunk.  On-disk values: never change one.
SCALARS, TOPICS, TOPICS_REMOVED, FILES, FILES_REMOVED, EXTRA, EXTRA_REMOVED = 1, 2, 3, 4, 5, 6, 7
_REMOVALS = (TOPICS_REMOVED, FILES_REMOVED, EXTRA_REMOVED)

#   magic version kind | number base_number base_hash body_bytes | chunks reserved
# The place of the version and of the hash that follows these 56 bytes is the same in every
# version, so that an old server can tell a newer file from a damaged one: never change it.
HEADER = struct.Struct("<8sIIQQQQII")
CHUNK = struct.Struct("<IIQ")  # kind, entries, payload bytes
TRAILER = struct.Struct("<8sQ")  # end magic, file hash
_HASH = struct.Struct("<Q")
HEADER_BYTES = HEADER.size + _HASH.size
CHUNK_HEADER_BYTES = CHUNK.size + _HASH.size
TRAILER_BYTES = TRAILER.size
assert (HEADER_BYTES, CHUNK_HEADER_BYTES, TRAILER_BYTES) == (64, 24, 16)

# One call of the encoder holds the interpreter lock, so it gets at most this much to do.
CHUNK_ENTRIES_MAX = 1000
CHUNK_BYTES_TARGET = 1 << 20

WAL_NUMBER = "wal_number"  # in `extra`: log files of other directories count from this number

Blob = bytes  # TopicState has a field named `bytes`, which hides the type inside that class
K = TypeVar("K")
V = TypeVar("V")


# Not tracked by the collector: there are many, they live long and cannot be part of a cycle.
class TopicState(
    msgspec.Struct, array_like=True, frozen=True, forbid_unknown_fields=True, gc=False
):
    """All that is kept of a topic beside its records.

    On-disk field order: never change it, add only at the end and with a default.  The containers
    inside belong to the snapshot once handed over: nobody changes them.
    """

    id: int
    name: str
    epoch: int
    config: Blob  # JSON
    head: int
    sealed_to: int
    last_ts: int
    created_ms: int
    evict_floor_cap: int
    evict_floor_ttl: int
    evict_floor_crash: int
    trim_floor: int
    delete_floor: int
    reserved_to: int
    bytes: int  # of live records
    holes: Blob  # BitMap64.serialize() of deleted seqs, b"" for none
    gaps: list[tuple[int, int]]  # announced crash ranges, both ends inclusive
    producers: dict[str, tuple[int, int, int, int, int]]  # epoch sequence first_seq count head
    state: Blob  # of the dialect that owns the topic
    parent_id: int = 0
    parent_to: int = 0
    last_write_ms: int = 0
    queue: Blob = b""  # see queue_record.py
    trims: list[tuple[int, int]] = []  # announced ranges that a router's source had lost
    archived_seq: int = 0  # records up to here are kept elsewhere, too
    overtaken_seq: int = 0  # the last that retention took although it was to wait for that
    erased: Blob = b""  # see erased_record.py


class SnapshotState(msgspec.Struct):
    """The state a chain of snapshots adds up to."""

    number: int
    created_ms: int
    clean: bool
    generation: int  # bumped by a restore
    next_topic_id: int
    next_file_id: int
    boot_id: bytes
    positions: dict[str, int]  # WAL directory -> LSN where replay starts
    topics: dict[int, TopicState]
    files: dict[int, SegmentMeta]
    key_files: list[KeyFileMeta]
    extra: dict[str, bytes]


class SnapshotChange(msgspec.Struct, kw_only=True):
    """What is new since the last snapshot written: all scalars, and of the rest what changed.

    A removed id that was never stored is allowed: it came and went between two snapshots.
    """

    created_ms: int
    clean: bool
    generation: int
    next_topic_id: int
    next_file_id: int
    boot_id: bytes
    positions: dict[str, int]
    key_files: list[KeyFileMeta]  # all of them: there are only ever a few
    topics: dict[int, TopicState] = {}
    topics_removed: set[int] = set()
    files: dict[int, SegmentMeta] = {}
    files_removed: set[int] = set()
    extra: dict[str, bytes] = {}
    extra_removed: set[str] = set()


class Scalars(msgspec.Struct, array_like=True, frozen=True, forbid_unknown_fields=True):
    """The first chunk of every snapshot.  On-disk field order: add only at the end."""

    created_ms: int
    clean: bool
    generation: int
    next_topic_id: int
    next_file_id: int
    boot_id: bytes
    positions: dict[str, int]
    key_files: list[KeyFileMeta]


class Header(NamedTuple):
    """The first 64 bytes, decoded; the base is 0 and 0 for a full snapshot."""

    kind: int
    number: int
    base_number: int
    base_hash: int
    body_bytes: int
    chunks: int


class Body(NamedTuple):
    """What goes into one snapshot; iterables, so that a full one needs no copy of the state."""

    scalars: Scalars
    topics: Iterable[TopicState]
    topics_removed: Iterable[int]
    files: Iterable[SegmentMeta]
    files_removed: Iterable[int]
    extra: Iterable[tuple[str, bytes]]
    extra_removed: Iterable[str]


class Decoded(NamedTuple):
    """One file, every byte of it checked."""

    header: Header
    change: SnapshotChange
    file_hash: int


def check_change(change: SnapshotChange) -> None:
    """The invariants of a change, before it may go to disk."""
    assert all(key == topic.id for key, topic in change.topics.items())
    assert all(key == meta.file_id for key, meta in change.files.items())
    assert change.topics_removed.isdisjoint(change.topics), "both changed and removed"
    assert change.files_removed.isdisjoint(change.files), "both changed and removed"
    assert change.extra_removed.isdisjoint(change.extra), "both changed and removed"
    assert max(change.topics, default=-1) < change.next_topic_id, "an id would be used twice"
    assert max(change.files, default=-1) < change.next_file_id, "an id would be used twice"
    assert all(position >= 0 for position in change.positions.values()), change.positions


def apply_change(state: SnapshotState | None, change: SnapshotChange, number: int) -> SnapshotState:
    """The state after `change`: `state` itself, brought forward, or a new one when None."""
    if state is None:
        state = SnapshotState(0, 0, False, 0, 0, 0, b"", {}, {}, {}, [], {})
    assert number > state.number, (number, state.number)
    state.number = number
    state.created_ms = change.created_ms
    state.clean = change.clean
    state.generation = change.generation
    state.next_topic_id = change.next_topic_id
    state.next_file_id = change.next_file_id
    state.boot_id = change.boot_id
    state.positions = dict(change.positions)
    state.key_files = list(change.key_files)
    for topic_id in change.topics_removed:
        state.topics.pop(topic_id, None)
    for file_id in change.files_removed:
        state.files.pop(file_id, None)
    for name in change.extra_removed:
        state.extra.pop(name, None)
    state.topics.update(change.topics)
    state.files.update(change.files)
    state.extra.update(change.extra)
    return state


def delta_body(change: SnapshotChange) -> Body:
    """Only what changed."""
    return Body(
        _scalars(change),
        change.topics.values(),
        change.topics_removed,
        change.files.values(),
        change.files_removed,
        change.extra.items(),
        change.extra_removed,
    )


def full_body(state: SnapshotState | None, change: SnapshotChange) -> Body:
    """All of `state` after `change`, without changing or copying `state`."""
    if state is None:
        return delta_body(change)._replace(topics_removed=(), files_removed=(), extra_removed=())
    topics = _merged(state.topics, change.topics, change.topics_removed)
    files = _merged(state.files, change.files, change.files_removed)
    extra = _merged(state.extra, change.extra, change.extra_removed)
    return Body(
        _scalars(change),
        (topic for _, topic in topics),
        (),
        (meta for _, meta in files),
        (),
        extra,
        (),
    )


def encode_body(body: Body) -> Iterator[bytes]:
    """The chunks in order, each with its header; the first holds the scalars."""
    encode = msgspec.msgpack.Encoder().encode
    yield _chunk(SCALARS, 1, encode(body.scalars))
    for topics in _slices(body.topics, _topic_bytes):
        yield _chunk(TOPICS, len(topics), encode(topics))
    for ids in _slices(body.topics_removed, lambda _: 9):
        yield _chunk(TOPICS_REMOVED, len(ids), encode(ids))
    for metas in _slices(body.files, lambda _: 256):
        yield _chunk(FILES, len(metas), encode(metas))
    for ids in _slices(body.files_removed, lambda _: 9):
        yield _chunk(FILES_REMOVED, len(ids), encode(ids))
    for items in _slices(body.extra, lambda item: len(item[0]) + len(item[1])):
        yield _chunk(EXTRA, len(items), encode(dict(items)))
    for names in _slices(body.extra_removed, len):
        yield _chunk(EXTRA_REMOVED, len(names), encode(names))


def encode_header(header: Header) -> bytes:
    """The first 64 bytes of a file."""
    assert header.kind in (FULL, DELTA)
    assert (header.base_number > 0) == (header.kind == DELTA)
    assert header.base_number < header.number
    kind, number, base_number, base_hash, body_bytes, chunks = header
    data = HEADER.pack(MAGIC, VERSION, kind, number, base_number, base_hash, body_bytes, chunks, 0)
    return data + _HASH.pack(xxhash.xxh3_64_intdigest(data))


def encode_trailer(file_hash: int) -> bytes:
    """The last 16 bytes; the hash is XXH3-64 over the body, then the header."""
    return TRAILER.pack(MAGIC_END, file_hash)


def encode(number: int, base: tuple[int, int] | None, body: Body) -> bytes:
    """A whole snapshot in memory: for small ones, tools and tests.

    `base` is the number and file hash of the snapshot a delta is put on, None for a full one.
    """
    chunks = list(encode_body(body))
    data = b"".join(chunks)
    base_number, base_hash = base or (0, 0)
    kind = DELTA if base else FULL
    header = encode_header(Header(kind, number, base_number, base_hash, len(data), len(chunks)))
    return header + data + encode_trailer(xxhash.xxh3_64_intdigest(data + header))


def decode_header(data: bytes, name: str) -> Header:
    """Check and decode the first 64 bytes; `name` is for messages.

    Raises `UnsupportedFormat` for a newer version, `SnapshotCorrupt` for anything else that is
    not a header of ours.
    """
    if len(data) < HEADER_BYTES:
        raise damaged(name, f"it has {len(data)} bytes, fewer than a header")
    fields = HEADER.unpack_from(data)
    magic, version, kind, number, base_number, base_hash, body_bytes, chunks, _ = fields
    if magic != MAGIC:
        raise damaged(name, "it does not begin with the magic of a snapshot")
    (stored,) = _HASH.unpack_from(data, HEADER.size)
    if xxhash.xxh3_64_intdigest(data[: HEADER.size]) != stored:
        raise damaged(name, "its header does not match its XXH3-64")
    if version > VERSION:
        raise UnsupportedFormat(
            f"{name} has snapshot version {version}; this Headrace reads up to {VERSION}",
            fix="start the version of Headrace that wrote it, or a later one",
            detail={"file": name, "version": version, "supported": VERSION},
        )
    consistent = (
        version == VERSION
        and number > 0
        and (
            (kind == FULL and base_number == 0 and base_hash == 0)
            or (kind == DELTA and 0 < base_number < number)
        )
    )
    if not consistent:
        raise damaged(name, "its header contradicts itself")
    return Header(kind, number, base_number, base_hash, body_bytes, chunks)


def decode(
    read: Callable[[int, int], bytes],
    size: int,
    name: str,
    *,
    keep_topics: bool = True,
) -> Decoded:
    """Check every byte of a file of `size` bytes, read by `read(length, offset)`.

    Without `keep_topics` topics are checked and decoded all the same, then let go, so that who
    wants only the file lists, or only the check, has no second copy of the state in memory.

    >>> change = SnapshotChange(created_ms=0, clean=True, generation=1, next_topic_id=1,
    ...     next_file_id=1, boot_id=b"", positions={"wal": 4096}, key_files=[])
    >>> data = encode(1, None, full_body(None, change))
    >>> decode(lambda length, offset: data[offset:offset + length], len(data), "x").change == change
    True
    """
    header_data = read(min(size, HEADER_BYTES), 0)
    header = decode_header(header_data, name)
    body_end = HEADER_BYTES + header.body_bytes
    if size != body_end + TRAILER_BYTES:
        raise damaged(name, f"it has {size} bytes, its header says {body_end + TRAILER_BYTES}")
    hasher = xxhash.xxh3_64()
    collector = _Collector(header, name, keep_topics)
    offset = HEADER_BYTES
    while offset < body_end:
        if body_end - offset < CHUNK_HEADER_BYTES:
            raise damaged(name, f"a chunk header at {offset} goes past the end of the body")
        chunk_header = read(CHUNK_HEADER_BYTES, offset)
        kind, entries, length = CHUNK.unpack_from(chunk_header)
        offset += CHUNK_HEADER_BYTES
        if length > body_end - offset:
            raise damaged(name, f"the chunk at {offset} goes past the end of the body")
        payload = read(length, offset)
        if _chunk_hash(chunk_header[: CHUNK.size], payload) != chunk_header[CHUNK.size :]:
            raise damaged(name, f"the chunk at {offset} does not match its XXH3-64")
        hasher.update(chunk_header)
        hasher.update(payload)
        collector.add(kind, entries, payload)
        offset += length
    hasher.update(header_data)
    magic_end, stored = TRAILER.unpack(read(TRAILER_BYTES, body_end))
    if magic_end != MAGIC_END or hasher.intdigest() != stored:
        raise damaged(name, "its bytes do not match its trailer's XXH3-64")
    return Decoded(header, collector.finish(), stored)


def damaged(name: str, why: str) -> SnapshotCorrupt:
    """The error for one file; whoever knows of another snapshot catches it."""
    return SnapshotCorrupt(
        f"{name}: {why}",
        fix="restore the data directory from a backup, or see `headrace check`",
        detail={"file": name, "reason": why},
    )


class _Collector:
    """Puts decoded chunks together, and checks what only holds for all of them."""

    def __init__(self, header: Header, name: str, keep_topics: bool) -> None:
        self._header = header
        self._name = name
        self._keep_topics = keep_topics
        self._chunks = 0
        self._change: SnapshotChange | None = None

    def add(self, kind: int, entries: int, payload: bytes) -> None:
        self._chunks += 1
        if (kind == SCALARS) != (self._chunks == 1):
            raise damaged(self._name, "the scalars are not its first chunk")
        if kind in _REMOVALS and self._header.kind == FULL:
            raise damaged(self._name, "it is full and removes something")
        try:
            count = self._decode(kind, payload)
        except msgspec.MsgspecError as error:
            raise damaged(self._name, f"a chunk of kind {kind} does not decode: {error}") from None
        if count != entries:
            raise damaged(self._name, f"a chunk of kind {kind} has {count} entries, not {entries}")

    def _decode(self, kind: int, payload: bytes) -> int:
        """Decode one chunk into the change; return how many entries it had."""
        if kind == SCALARS:
            scalars = _SCALARS_DECODER.decode(payload)
            self._change = SnapshotChange(**msgspec.structs.asdict(scalars))
            return 1
        change = self._change
        assert change is not None
        if kind == TOPICS:
            topics = {topic.id: topic for topic in _TOPICS_DECODER.decode(payload)}
            if max(topics, default=-1) >= change.next_topic_id:
                raise damaged(self._name, "a topic has an id that was never given out")
            if self._keep_topics:
                change.topics.update(topics)
            return len(topics)
        if kind == FILES:
            metas = {meta.file_id: meta for meta in _FILES_DECODER.decode(payload)}
            if max(metas, default=-1) >= change.next_file_id:
                raise damaged(self._name, "a file has an id that was never given out")
            change.files.update(metas)
            return len(metas)
        if kind == EXTRA:
            items = _EXTRA_DECODER.decode(payload)
            change.extra.update(items)
            return len(items)
        if kind == EXTRA_REMOVED:
            names = _NAMES_DECODER.decode(payload)
            change.extra_removed.update(names)
            return len(names)
        if kind not in _REMOVALS:
            raise damaged(self._name, f"it has a chunk of unknown kind {kind}")
        ids = _IDS_DECODER.decode(payload)
        (change.topics_removed if kind == TOPICS_REMOVED else change.files_removed).update(ids)
        return len(ids)

    def finish(self) -> SnapshotChange:
        if self._chunks != self._header.chunks:
            raise damaged(self._name, f"{self._chunks} chunks, not {self._header.chunks}")
        if self._change is None:
            raise damaged(self._name, "it has no scalars")
        return self._change


_SCALARS_DECODER = msgspec.msgpack.Decoder(Scalars)
_TOPICS_DECODER = msgspec.msgpack.Decoder(list[TopicState])
_FILES_DECODER = msgspec.msgpack.Decoder(list[SegmentMeta])
_EXTRA_DECODER = msgspec.msgpack.Decoder(dict[str, bytes])
_IDS_DECODER = msgspec.msgpack.Decoder(list[int])
_NAMES_DECODER = msgspec.msgpack.Decoder(list[str])


def _scalars(change: SnapshotChange) -> Scalars:
    return Scalars(*(getattr(change, name) for name in Scalars.__struct_fields__))


def _merged(old: dict[K, V], changed: dict[K, V], removed: set[K]) -> Iterator[tuple[K, V]]:
    kept = (item for item in old.items() if item[0] not in changed and item[0] not in removed)
    return chain(kept, changed.items())


def _topic_bytes(topic: TopicState) -> int:
    """About what a topic takes; only the parts that can be large are counted."""
    large = sum(map(len, (topic.holes, topic.state, topic.config, topic.queue, topic.erased)))
    return 256 + large + 64 * len(topic.producers) + 18 * (len(topic.gaps) + len(topic.trims))


def _slices(items: Iterable[V], weigh: Callable[[V], int]) -> Iterator[list[V]]:
    """Runs of at most CHUNK_ENTRIES_MAX items, cut once they weigh CHUNK_BYTES_TARGET."""
    run: list[V] = []
    weight = 0
    for item in items:
        run.append(item)
        weight += weigh(item)
        if len(run) >= CHUNK_ENTRIES_MAX or weight >= CHUNK_BYTES_TARGET:
            yield run
            run, weight = [], 0
    if run:
        yield run


def _chunk(kind: int, entries: int, payload: bytes) -> bytes:
    start = CHUNK.pack(kind, entries, len(payload))
    return b"".join((start, _chunk_hash(start, payload), payload))


def _chunk_hash(start: bytes, payload: bytes) -> bytes:
    hasher = xxhash.xxh3_64(start)
    hasher.update(payload)
    return _HASH.pack(hasher.intdigest())
