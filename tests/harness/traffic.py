"""Seeded traffic for one engine: what to do, how to do it, and all that can be read afterwards.

Only this file knows the mix.  `Traffic(seed, run)[n]` is the same operation every time, so that a
program that dies needs to report only the numbers of what it began and what was acknowledged: who
knows the seed knows the contents.  Every record names the operation it came from, so that one that
nobody wrote, or one stored twice, is seen at once.  What counts as right is in `ledger.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final, NamedTuple

import msgspec

from headrace.api.records import DeleteResult
from headrace.core.clock import SeededRandom
from headrace.core.limits import KIB, MIB
from headrace.core.runtime import Ticket
from headrace.core.settings import Settings
from headrace.engine.appending.pending_append import Appended
from headrace.engine.appending.producers import ProducerClaim
from headrace.engine.engine import Engine
from headrace.engine.reading.page import Page
from headrace.engine.topics.lifecycle import Deleted
from headrace.storage.block import KIND_JSON, Batch, Record
from headrace.storage.files.merge_policy import MergePolicy

APPEND: Final = "append"
DELETE_BEFORE: Final = "delete_before"
DELETE_TAG: Final = "delete_tag"
DROP: Final = "drop"
READ: Final = "read"
CHECKPOINT: Final = "checkpoint"

_WINDOW_MS: Final = 3_600_000
CAP_RECORDS: Final = 64

# Every class, a capped topic, one that comes and goes, and one written by a numbered producer.
TOPICS: Final[Mapping[str, Mapping[str, object]]] = {
    "ledger": {"durability": "fsync", "idempotency_window_ms": _WINDOW_MS},
    "audit": {"durability": "fsync"},
    "orders": {"durability": "disk", "idempotency_window_ms": _WINDOW_MS},
    "events": {"durability": "disk"},
    "clicks": {"durability": "memory", "idempotency_window_ms": _WINDOW_MS},
    "recent": {"durability": "disk", "cap_records": CAP_RECORDS},
    "scratch": {"durability": "disk"},
    "loaded": {"durability": "fsync"},
    "flash": {"durability": "ephemeral"},
}
KEYED: Final = frozenset({"ledger", "orders", "clicks"})
TAGGED: Final = frozenset({"audit", "orders", "clicks"})
DROPPED: Final = "scratch"
CLAIMED: Final = "loaded"
CAPPED: Final = "recent"
EPHEMERAL: Final = "flash"
# Where a prefix delete would make the expected contents ambiguous.
_NEVER_CUT: Final = frozenset({CAPPED, EPHEMERAL})
_NAMES: Final = tuple(TOPICS)


class Op(NamedTuple):
    """One operation.  `share`, in percent, says how far a prefix delete or a read reaches."""

    run: int
    number: int
    kind: str
    topic: str
    rows: int = 0
    pad: int = 0
    key: str | None = None
    claim: ProducerClaim | None = None
    match: str = ""
    share: int = 0

    @property
    def name(self) -> tuple[int, int]:
        return self.run, self.number

    def batch(self) -> Batch:
        """The records of an append."""
        tags = [self._tag(row) for row in range(self.rows)] if self.topic in TAGGED else None
        nodes = f"node-{self.number % 3}" if self.number % 4 == 0 else None
        metas = None
        if self.number % 5 == 0:
            metas = [b'{"row":%d}' % row if row % 2 else None for row in range(self.rows)]
        return Batch(
            [self.payload(row) for row in range(self.rows)],
            KIND_JSON,
            tags=tags,
            nodes=nodes,
            metas=metas,
        )

    def payload(self, row: int) -> bytes:
        origin = f"{self.run}.{self.number}.{row}"
        return b'{"from":"%s","pad":"%s"}' % (origin.encode(), b"x" * self.pad)

    def _tag(self, row: int) -> str | None:
        mixed = (self.number * 7 + row * 3) % 41
        return None if mixed == 40 else f"chat-{mixed % 4}:{mixed // 4}"


class Origin(NamedTuple):
    """Which record of which operation a stored one is."""

    run: int
    number: int
    row: int


class _Payload(msgspec.Struct):
    origin: str = msgspec.field(name="from")
    pad: str


def origin_of(data: bytes) -> Origin:
    """
    >>> origin_of(Op(3, 14, APPEND, "events", rows=2, pad=1).payload(1))
    Origin(run=3, number=14, row=1)
    """
    run, number, row = msgspec.json.decode(data, type=_Payload).origin.split(".")
    return Origin(int(run), int(number), int(row))


class Traffic:
    """The operations of one run, by number.

    >>> Traffic(1, 2)[40] == Traffic(1, 2)[40]
    True
    """

    def __init__(self, seed: int, run: int) -> None:
        self._random = SeededRandom(seed * 1_000_003 + run)
        self._run = run
        self._claims = 0
        self._ops: list[Op] = []

    def __getitem__(self, number: int) -> Op:
        while len(self._ops) <= number:
            self._ops.append(self._next(len(self._ops)))
        return self._ops[number]

    def _below(self, bound: int) -> int:
        return self._random.u32() % bound

    def _next(self, number: int) -> Op:
        run, chance = self._run, self._below(1000)
        if chance < 8:
            return Op(run, number, DROP, DROPPED)
        if chance < 13:
            return Op(run, number, CHECKPOINT, "")
        topic = _NAMES[self._below(len(_NAMES))]
        if chance < 40:
            return Op(run, number, READ, topic, share=self._below(100))
        if chance < 70 and topic not in _NEVER_CUT:
            return Op(run, number, DELETE_BEFORE, topic, share=40 + self._below(61))
        if chance < 110 and topic in TAGGED:
            exact = self._below(2)
            match = f"chat-{self._below(4)}:" + (f"{self._below(10)}" if exact else "*")
            return Op(run, number, DELETE_TAG, topic, match=match)
        return self._append(number, topic)

    def _append(self, number: int, topic: str) -> Op:
        rows = 1 if self._below(2) else 1 + self._below(24)
        # Now and then one that no log batch of small settings holds beside others.
        pad = 9_000 if self._below(200) == 0 else self._below(160)
        key = claim = None
        if topic in KEYED and self._below(3) == 0:
            key = f"key-{self._run}-{number}"
        if topic == CLAIMED:
            claim = ProducerClaim("loader", self._run, self._claims)
            self._claims += 1
        return Op(self._run, number, APPEND, topic, rows, pad, key, claim)


def small_settings(**changes: int) -> Settings:
    """Settings under which rotation, checkpoints, merges and eviction happen all the time."""
    values: dict[str, int] = {
        "wal_file_bytes": 64 * KIB,
        "wal_batch_bytes_max": 16 * KIB,
        "wal_pending_bytes_max": MIB,
        "checkpoint_wal_bytes": 64 * KIB,
        "memory_budget_bytes": 2 * MIB,
        "read_cache_bytes": 256 * KIB,
        "tag_index_bytes_max": 64 * KIB,
        "disk_reserve_bytes": 160 * KIB,
        "replay_memory_bytes": MIB,
        "sync_interval_ms": 10,
        "reader_threads": 1,
        "read_limit_max": 1_000,
    }
    return Settings(**(values | changes))  # type: ignore[arg-type]


def small_policy() -> MergePolicy:
    """A merge policy under which a few checkpoints already give several levels."""
    return MergePolicy(
        fan_in=3,
        shared_bytes_max=2 * MIB,
        own_rows_min=400,
        own_bytes_min=64 * KIB,
        own_bytes_max=256 * KIB,
        own_topics_max=6,
    )


Answer = Ticket[Appended] | Ticket[DeleteResult] | Ticket[Deleted] | Ticket[Page] | Ticket[None]


def begin(engine: Engine, op: Op, before_seq: int = 0) -> Answer:
    """Ask the engine for one operation."""
    if op.kind == APPEND:
        return engine.append(
            op.topic,
            op.batch(),
            config=TOPICS[op.topic],
            idempotency_key=op.key,
            producer=op.claim,
        )
    if op.kind == DELETE_BEFORE:
        return engine.delete(op.topic, before_seq=before_seq)
    if op.kind == DELETE_TAG:
        return engine.delete(op.topic, match=op.match)
    if op.kind == DROP:
        return engine.delete_topic(op.topic)
    if op.kind == READ:
        return engine.read(op.topic, before_seq, limit=200)
    assert op.kind == CHECKPOINT, op.kind
    return engine.checkpoint()


def place_of(engine: Engine, op: Op) -> int:
    """The seq a prefix delete or a read means: so many percent of what is there now."""
    topic = engine.state.by_name.get(op.topic)
    if topic is None or op.kind not in (DELETE_BEFORE, READ):
        return 0
    return topic.base + 1 + (topic.head - topic.base) * op.share // 100


class TopicDump(msgspec.Struct, array_like=True):
    """All that can be known of one topic by reading it."""

    name: str
    epoch: int
    head: int
    earliest: int
    count: int
    bytes: int
    lost: list[tuple[int, int, str]]  # first, last, reason, as announced to a reader from 0
    records: list[Record]


def dump_topic(engine: Engine, name: str, between: Callable[[], None] = lambda: None) -> TopicDump:
    """Read a topic from its beginning to its head."""
    records: list[Record] = []
    lost: list[tuple[int, int, str]] = []
    cursor = 0
    while True:
        page = engine.read(name, cursor, limit=500).result()
        between()
        if page.tombstone is not None:
            gone = page.tombstone
            lost.append((gone.gap_from, gone.gap_to, gone.reason))
        records += page.records
        if page.caught_up:
            break
        assert page.next_from_seq > cursor or page.tombstone is not None, page
        cursor = page.next_from_seq
    info = engine.topic(name)
    return TopicDump(
        name, info.epoch, info.head_seq, info.earliest_seq, info.count, info.bytes, lost, records
    )


def dump(engine: Engine) -> dict[str, TopicDump]:
    """Read everything there is."""
    return {info.topic: dump_topic(engine, info.topic) for info in engine.topics()}
