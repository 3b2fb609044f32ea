"""A snapshot as bytes: the state of everything but the records, whole or as a difference.

Only this file knows the layout (docs/formats/snapshot.md).  A *full* snapshot holds all of the
state; a *delta* holds what changed since the snapshot it names as its base, by number and by hash,
so that cost follows what changed and no delta is ever put on another base.  Every byte is under a
hash, and nothing is decoded before its hash was checked.

No I/O here: `files.py` says when files are written, believed, kept and removed.  What the state
is, and what a change does to it, is said in `state.py`.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Iterator
from itertools import chain
from typing import NamedTuple, TypeVar

import msgspec
import xxhash

from headrace.core.errors import SnapshotCorrupt, UnsupportedFormat
from headrace.storage.segment.format import SegmentMeta
from headrace.storage.snapshot.state import Scalars, SnapshotChange, SnapshotState, TopicState

MAGIC = b"HRSNAPSH"  # on disk: never change
MAGIC_END = b"HRSNAPND"  # on disk: never change
VERSION = 4  # 1 to 3 are read, too

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

# One call of the encoder or of the decoder holds the interpreter lock, so it gets at most this much
# to do: half a millisecond.
CHUNK_ENTRIES_MAX = 256
CHUNK_BYTES_TARGET = 1 << 18

K = TypeVar("K")
V = TypeVar("V")


class StoredScalars(Scalars, array_like=True, forbid_unknown_fields=True):
    """The first chunk of every snapshot."""


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

    scalars: StoredScalars
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
        version >= 1
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
    decode_topics: bool = True,
) -> Decoded:
    """Check every byte of a file of `size` bytes, read by `read(length, offset)`.

    Without `keep_topics` topics are checked and decoded all the same, then let go, so that who
    wants only the file lists, or only the check, has no second copy of the state in memory.
    Without `decode_topics` only their hashes are checked: nine tenths of the time.

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
    collector = _Collector(header, name, keep_topics, decode_topics)
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
    """Return the error for one file; a caller that knows of another snapshot catches it."""
    return SnapshotCorrupt(
        f"{name}: {why}",
        fix="restore the data directory from a backup, or see `headrace check`",
        detail={"file": name, "reason": why},
    )


class _Collector:
    """Puts decoded chunks together, and checks what only holds for all of them."""

    def __init__(self, header: Header, name: str, keep_topics: bool, decode_topics: bool) -> None:
        self._header = header
        self._name = name
        self._keep_topics = keep_topics
        self._decode_topics = decode_topics
        self._chunks = 0
        self._change: SnapshotChange | None = None

    def add(self, kind: int, entries: int, payload: bytes) -> None:
        self._chunks += 1
        if (kind == SCALARS) != (self._chunks == 1):
            raise damaged(self._name, "the scalars are not its first chunk")
        if kind in _REMOVALS and self._header.kind == FULL:
            raise damaged(self._name, "it is full and removes something")
        if kind == TOPICS and not self._decode_topics:
            return
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


_SCALARS_DECODER = msgspec.msgpack.Decoder(StoredScalars)
_TOPICS_DECODER = msgspec.msgpack.Decoder(list[TopicState])
_FILES_DECODER = msgspec.msgpack.Decoder(list[SegmentMeta])
_EXTRA_DECODER = msgspec.msgpack.Decoder(dict[str, bytes])
_IDS_DECODER = msgspec.msgpack.Decoder(list[int])
_NAMES_DECODER = msgspec.msgpack.Decoder(list[str])


def _scalars(change: SnapshotChange) -> StoredScalars:
    return StoredScalars(*(getattr(change, name) for name in Scalars.__struct_fields__))


def _merged(old: dict[K, V], changed: dict[K, V], removed: set[K]) -> Iterator[tuple[K, V]]:
    kept = (item for item in old.items() if item[0] not in changed and item[0] not in removed)
    return chain(kept, changed.items())


def _topic_bytes(topic: TopicState) -> int:
    """About what a topic takes; only the parts that can be large are counted."""
    large = sum(map(len, (topic.holes, topic.state, topic.config, topic.queue, topic.erased)))
    producers = 64 * len(topic.producers) + 256 * len(topic.older_appends)
    return 256 + large + producers + 18 * (len(topic.gaps) + len(topic.trims))


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
