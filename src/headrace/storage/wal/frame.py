"""The bytes of the write-ahead log: file header, batch header, control entries.

Only this file knows them (docs/formats/wal.md); `block.py` knows the append entry.  Everything
here is pure: bytes in, values out.  A header is believed only when its own hash is right, so that
a scan can tell a real header from data that looks like one.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple, TypeVar

import msgspec
from xxhash import xxh3_64, xxh3_64_intdigest

from headrace.core.errors import UnsupportedFormat
from headrace.storage.block import ENTRY_APPEND

# Never change a value below: it is part of the persistent format.
FORMAT_VERSION: Final = 4  # 1 to 3 are read, too
FILE_MAGIC: Final = b"HRWALOG\0"
BATCH_MAGIC: Final = b"HRWB"
PAGE_BYTES: Final = 4096  # file header, and the boundary on which each sync group starts

ENTRY_TOPIC_CREATE: Final = 2
ENTRY_TOPIC_CONFIG: Final = 3
ENTRY_TOPIC_DELETE: Final = 4
ENTRY_RECORDS_DELETE: Final = 5
ENTRY_FLOOR: Final = 6
ENTRY_RESERVE: Final = 7
ENTRY_GAP: Final = 8
ENTRY_STATE: Final = 9
ENTRY_QUEUE: Final = 10
ENTRY_ROUTER: Final = 11
ENTRY_ROUTER_DELETE: Final = 12
ENTRY_FORWARD: Final = 13
ENTRY_ARCHIVED: Final = 14
ENTRY_TYPES: Final = frozenset(range(ENTRY_APPEND, ENTRY_ARCHIVED + 1))
ROUTER_ENTRIES: Final = frozenset((ENTRY_ROUTER, ENTRY_ROUTER_DELETE, ENTRY_FORWARD))

# What a forward entry says of the copies it stands for.
FORWARD_NODE: Final = 1  # they keep the node
FORWARD_TAG: Final = 2  # they keep the tag
FORWARD_KEY: Final = 4  # their meta has the key of an exactly-once router
FORWARD_LOST: Final = 8  # the source had lost these records: there are only holes
FORWARD_STORED: Final = 16  # the destination stores records: they are rebuilt

# What a queue entry says has happened.
EVENT_CLAIM: Final = 1
EVENT_RELEASE: Final = 2
EVENT_EXTEND: Final = 3
EVENT_BURY: Final = 4
EVENT_REVIVE: Final = 5
EVENT_MOVED: Final = 6
EVENT_STAYED: Final = 7

#  magic version salt | file_no created_ms | shard reserved | boot_id | hash of the page
_FILE = struct.Struct("<8sIIQqII16sQ")
#  since version 2, after the hash: made_bytes marks_answered
_FILE_2 = struct.Struct("<QQ")
#  magic salt | position durable | ordinal body_bytes entries flags | body_hash header_hash
BATCH = struct.Struct("<4sIQQIIIIQQ")
BATCH_HEADER_BYTES: Final = BATCH.size
_BATCH_SANS_HASH = struct.Struct("<4sIQQIIIIQ")
#  type zero zero length | topic_id | payload_bytes zero
_CONTROL = struct.Struct("<BBHIQII")
_ENTRY = struct.Struct("<BBHI")
assert BATCH_HEADER_BYTES == 56 and BATCH_HEADER_BYTES % 8 == 0
assert _CONTROL.size == 24

S = TypeVar("S", bound="Control")
BatchBody = bytes | Sequence[bytes]  # the entries of a batch, in one run or each by itself


class FileHeader(NamedTuple):
    """What the first page of a log file says."""

    version: int
    salt: int
    file_no: int
    created_ms: int
    shard: int
    boot_id: bytes
    made_bytes: int = 0  # how long the file was before its first batch; version 1 does not say
    marks_answered: int = 0  # marks up to this one are about a log that was repaired into this file


class BatchHeader(NamedTuple):
    """What precedes a batch of entries.  `position` and `durable` count bytes of the shard."""

    salt: int
    position: int
    durable: int
    ordinal: int
    body_bytes: int
    entries: int
    body_hash: int


class Control(msgspec.Struct, array_like=True, frozen=True):
    """Base of what control entries carry, as msgpack arrays: fields are only ever added."""


class Inherited(Control, frozen=True):
    """Which of the seqs that a fork inherits were alive in its parent, as a snapshot says it."""

    cap_floor: int = 0
    ttl_floor: int = 0
    crash_floor: int = 0
    trim_floor: int = 0
    delete_floor: int = 0
    holes: bytes = b""
    gaps: list[tuple[int, int]] = []
    trims: list[tuple[int, int]] = []
    last_ts: int = 0


class TopicCreate(Control, frozen=True):
    name: str
    epoch: int
    config: bytes
    reserved_to: int
    created_ms: int
    parent_id: int = 0
    parent_to: int = 0
    state: bytes = b""
    inherited: Inherited | None = None  # of a fork


class TopicConfig(Control, frozen=True):
    config: bytes
    reserved_to: int
    used_to: int = 0  # seqs given out so far, also those of records that are never stored
    archived_to: int = 0  # the watermark that holds once this does


class TopicDelete(Control, frozen=True):
    epoch: int


class RecordsDelete(Control, frozen=True):
    """`floor`: everything up to and including it (0: none).  `seqs`: a serialized set of seqs.

    `elsewhere`: a tag, whether it is a prefix, and the last seq of what the topic does not hold.
    """

    floor: int
    seqs: bytes
    elsewhere: tuple[str, bool, int] | None = None


class Floor(Control, frozen=True):
    """Involuntary loss up to and including these seqs; 0 leaves one alone."""

    cap: int
    ttl: int
    overtaken: int = 0  # the last of them that was not archived, though it should have been


class Archived(Control, frozen=True):
    """Everything up to and including this seq is kept elsewhere, too; of this epoch only."""

    epoch: int
    to_seq: int


class Reserve(Control, frozen=True):
    reserved_to: int


class Gap(Control, frozen=True):
    """Seqs first..last were lost to a crash; announced from now on."""

    first: int
    last: int


class State(Control, frozen=True):
    """Dialect state and producers that change without a record."""

    state: bytes
    sidecar: bytes = b""


class Held(NamedTuple):
    """A number of jobs of a claim, in their order: who holds them, and until when."""

    token: int
    node: str
    deadline_ms: int
    held_ms: int
    bound: bool  # to a connection
    jobs: int


class QueueEvent(Control, frozen=True):
    """Something happened to jobs; all numbers are what holds after it, so that twice is once."""

    what: int
    seqs: list[int]
    counts: int | list[int] = 0  # claim: deliveries of all, or of each; moved: dead letters so far
    held: list[Held] = []  # claim: the leases, where they are durable
    until_ms: int = 0  # release: delayed until; extend: the deadline
    held_ms: int = 0  # release, extend: the length of that
    number: int = 0  # of a move
    topic: str = ""  # where it goes


class RouterPut(Control, frozen=True):
    """A router as it is from now on; a cursor that is ahead of this one already stays."""

    router_id: int
    name: str
    source_id: int
    dest_id: int
    preserve_node: bool
    preserve_tag: bool
    filter: tuple[str, bool] | None  # tag, and whether it is a prefix
    allow_cycle: bool
    exactly_once: bool
    cursor: int
    forwarded_total: int = 0


class RouterDelete(Control, frozen=True):
    router_id: int


class CopyTarget(NamedTuple):
    """Where the copies of a pass went.  `first_seq` 0: no copy was made."""

    router_id: int
    dest_id: int
    first_seq: int
    ts: int
    reserved_to: int
    forwarded_total: int
    name: str = ""  # of the router, where the copies have keys


class Forward(Control, frozen=True):
    """Records first..last of the source were consumed; all but `skip` were copied."""

    source_id: int
    epoch: int
    first: int
    last: int
    skip: bytes  # a serialized set of seqs
    flags: int
    arrived_ms: int
    hops: list[int]  # of the copies: how many, their hops, and so on; empty: 1 for all
    targets: list[CopyTarget]


def encode_file_header(header: FileHeader) -> bytes:
    page = bytearray(PAGE_BYTES)
    _FILE.pack_into(
        page, 0, FILE_MAGIC, header.version, header.salt, header.file_no, header.created_ms,
        header.shard, 0, header.boot_id, 0,
    )  # fmt: skip
    if header.version > 1:
        _FILE_2.pack_into(page, _FILE.size, header.made_bytes, header.marks_answered)
    digest = xxh3_64_intdigest(bytes(page))
    struct.pack_into("<Q", page, _FILE.size - 8, digest)
    return bytes(page)


def decode_file_header(page: bytes, name: str) -> FileHeader | None:
    """The header, or None where the page is not one that was written whole."""
    if len(page) < PAGE_BYTES or page[:8] != FILE_MAGIC:
        return None
    fields = _FILE.unpack_from(page)
    bare = bytearray(page[:PAGE_BYTES])
    struct.pack_into("<Q", bare, _FILE.size - 8, 0)
    if xxh3_64_intdigest(bytes(bare)) != fields[-1]:
        return None
    refuse_newer(name, fields[1], FORMAT_VERSION)
    added = _FILE_2.unpack_from(page, _FILE.size) if fields[1] > 1 else ()
    return FileHeader(fields[1], fields[2], fields[3], fields[4], fields[5], fields[7], *added)


def refuse_newer(name: str, version: int, supported: int) -> None:
    """Refuse, by name, a file that a newer Headrace wrote."""
    if version > supported:
        raise UnsupportedFormat(
            f"{name} has format version {version}, this Headrace reads up to {supported}",
            fix="use the newer version that wrote it, or restore a backup made for this one",
            detail={"file": name, "version": version, "supported": supported},
        )


def encode_batch_header(
    salt: int, position: int, durable: int, ordinal: int, body: BatchBody, entries: int
) -> bytes:
    """The header of a batch of `entries` entries; `body` is all of them."""
    if isinstance(body, bytes):
        size, body_hash = len(body), xxh3_64_intdigest(body)
    else:
        size, hasher = sum(map(len, body)), xxh3_64()
        for entry in body:
            hasher.update(entry)
        body_hash = hasher.intdigest()
    assert size % 8 == 0 and durable <= position, (size, durable, position)
    bare = _BATCH_SANS_HASH.pack(
        BATCH_MAGIC, salt, position, durable, ordinal, size, entries, 0, body_hash
    )
    return bare + xxh3_64_intdigest(bare).to_bytes(8, "little")


def decode_batch_header(buffer: bytes | memoryview, offset: int) -> BatchHeader | None:
    """The header at `offset`, or None where there is none with a right hash."""
    if offset + BATCH_HEADER_BYTES > len(buffer) or buffer[offset : offset + 4] != BATCH_MAGIC:
        return None
    fields = BATCH.unpack_from(buffer, offset)
    if xxh3_64_intdigest(buffer[offset : offset + BATCH_HEADER_BYTES - 8]) != fields[9]:
        return None
    return BatchHeader(fields[1], fields[2], fields[3], fields[4], fields[5], fields[6], fields[8])


def encode_control(kind: int, topic_id: int, control: Control) -> bytes:
    payload = msgspec.msgpack.encode(control)
    pad = -(_CONTROL.size + len(payload)) % 8
    length = _CONTROL.size + len(payload) + pad
    return _CONTROL.pack(kind, 0, 0, length, topic_id, len(payload), 0) + payload + b"\0" * pad


def decode_control(entry: bytes, as_type: type[S]) -> tuple[int, S]:
    """(topic_id, what it says)."""
    _, _, _, _, topic_id, length, _ = _CONTROL.unpack_from(entry)
    payload = entry[_CONTROL.size : _CONTROL.size + length]
    return topic_id, msgspec.msgpack.decode(payload, type=as_type)


def entry_topic(entry: bytes) -> int:
    """Every kind of entry has its topic id at the same place."""
    return int.from_bytes(entry[8:16], "little")


def split_entries(body: bytes, count: int, name: str) -> Iterator[tuple[int, bytes]]:
    """(type, bytes) of each entry of a batch body whose hash was right."""
    at = 0
    for _ in range(count):
        kind, _, _, length = _ENTRY.unpack_from(body, at)
        assert 8 <= length <= len(body) - at and length % 8 == 0, (at, length, len(body))
        if kind not in ENTRY_TYPES:
            raise UnsupportedFormat(
                f"{name} holds an entry of type {kind}, unknown to this Headrace",
                fix="use the newer version that wrote it",
                detail={"file": name, "entry_type": kind},
            )
        yield kind, body[at : at + length]
        at += length
    assert at == len(body), (at, len(body))
