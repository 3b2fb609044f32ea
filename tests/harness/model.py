"""A topic as its documentation describes it: plain dictionaries that tests compare an engine with.

Only the words of the specification are in here: no blocks, no bitmaps, no floors behind floors.  It
is slow and obvious on purpose, and shares nothing with the engine but the shape of a config, so
that the two can only agree where both are right.

It does not know crashes; `oracle.py` says which of these states a crash may leave.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import NamedTuple

from headrace.engine.topics.config import EPHEMERAL, TopicConfig, make_config

Range = tuple[int, int]


class Refused(Exception):
    """The model says that this call is refused, and with which error code."""

    def __init__(self, code: str) -> None:
        super().__init__(code)
        self.code = code


class NewRecord(NamedTuple):
    """A record as a writer sends it."""

    data: bytes
    tag: str | None = None
    node: str | None = None
    meta: bytes | None = None

    @property
    def size(self) -> int:
        return len(self.data) + len(self.meta or b"")


class Rec(NamedTuple):
    """A record as a reader must see it, byte for byte."""

    data: bytes
    tag: str | None
    node: str | None
    meta: bytes | None
    ts: int
    append_first_seq: int

    @property
    def size(self) -> int:
        return len(self.data) + len(self.meta or b"")


class Producer(NamedTuple):
    """Who appends, in which epoch, with which sequence number."""

    id: str
    epoch: int
    sequence: int


class AppendCall(NamedTuple):
    """An append, as asked for."""

    name: str
    records: tuple[NewRecord, ...]
    key: str | None = None
    producer: Producer | None = None
    expected_head: int | None = None
    create: bool | None = None
    config: TopicConfig | None = None

    @property
    def size(self) -> int:
        return sum(record.size for record in self.records)


class DeleteCall(NamedTuple):
    """A delete of records, as asked for."""

    name: str
    before_seq: int | None = None
    match: str | None = None


class PutCall(NamedTuple):
    """A topic to create or to configure."""

    name: str
    config: TopicConfig


class DropCall(NamedTuple):
    """A topic to delete."""

    name: str


class ArchiveCall(NamedTuple):
    """To be told that records are kept elsewhere, too."""

    name: str
    to_seq: int


class CheckpointCall(NamedTuple):
    """A checkpoint."""


Call = AppendCall | DeleteCall | PutCall | DropCall | ArchiveCall | CheckpointCall


class Stored(NamedTuple):
    """Where an append is, and when it came."""

    first: int
    records: int
    at_ms: int

    @property
    def last(self) -> int:
        return self.first + self.records - 1


@dataclass
class TopicModel:
    """One topic: what is in it, and what a reader must be told of the rest.

    >>> topic = TopicModel(make_config({"cap_records": 2}))
    >>> for data in (b"a", b"b", b"c"):
    ...     _ = topic.append([NewRecord(data)], now_ms=7)
    >>> topic.head, sorted(topic.live), topic.evict_floor
    (3, [2, 3], 1)
    >>> topic.delete(topic.resolve(before_seq=3))
    1
    """

    config: TopicConfig = field(default_factory=TopicConfig)
    head: int = 0
    live: dict[int, Rec] = field(default_factory=dict)
    evict_floor: int = 0  # the last seq that a cap or the TTL took
    gaps: list[Range] = field(default_factory=list)  # what a crash took
    last_ts: int = 0
    keys: dict[str, Stored] = field(default_factory=dict)
    # By id: the epoch, and where each append of it is, by its number.  Nothing is ever forgotten:
    # no epoch of a workload has more appends than an engine remembers.
    producers: dict[str, tuple[int, tuple[Stored, ...]]] = field(default_factory=dict)
    volatile: set[int] = field(default_factory=set)  # seqs of records that need not be stored
    silent: set[int] = field(default_factory=set)  # seqs that somebody deleted
    reclassed: bool = False  # the class has changed, so that some of those may be stored yet
    bytes: int = 0
    archived: int = 0  # records up to here are kept elsewhere, too
    overtaken: int = 0  # the last that a cap or the TTL took although it was to wait for that

    def copy(self) -> TopicModel:
        other = object.__new__(TopicModel)
        other.__dict__ |= self.__dict__
        other.live = dict(self.live)
        other.gaps = list(self.gaps)
        other.keys = dict(self.keys)
        other.producers = dict(self.producers)
        other.volatile = set(self.volatile)
        other.silent = set(self.silent)
        return other

    @property
    def count(self) -> int:
        return len(self.live)

    @property
    def earliest_seq(self) -> int:
        return min(self.live, default=self.head + 1)

    # Appending

    def stored_before(self, call: AppendCall, now_ms: int) -> Stored | None:
        """Where this append was stored already, by its key or its producer."""
        if call.key is not None:
            stored = self.keys.get(call.key)
            window_ms = self.config.idempotency_window_ms
            if stored is not None and now_ms - stored.at_ms <= window_ms:
                return stored
        if call.producer is None:
            return None
        epoch, appends = self.producers.get(call.producer.id, (call.producer.epoch, ()))
        if call.producer.epoch < epoch:
            raise Refused("producer_fenced")
        if call.producer.epoch > epoch:
            if call.producer.sequence:
                raise Refused("invalid_request")
            return None
        if call.producer.sequence < len(appends):
            return appends[call.producer.sequence]
        if call.producer.sequence > len(appends):
            raise Refused("producer_gap")
        return None

    def admit(self, call: AppendCall, now_ms: int) -> Stored | None:
        """None: it goes in.  Otherwise where it was stored before, or `Refused`."""
        stored = self.stored_before(call, now_ms)
        if stored is not None:
            return stored
        if call.expected_head is not None and call.expected_head != self.head:
            raise Refused("head_mismatch")
        config = self.config
        if config.discard == "reject":
            count, size = len(call.records), call.size
            if _over(config, count, size):
                raise Refused("record_too_large")
            if _over(config, self.count + count, self.bytes + size):
                raise Refused("topic_full")
        return None

    def append(
        self,
        records: Sequence[NewRecord],
        now_ms: int,
        key: str | None = None,
        producer: Producer | None = None,
        *,
        volatile: bool | None = None,
    ) -> Stored:
        """Put records in; the ones a cap pushes out go."""
        first = self.head + 1
        ts = self.last_ts = max(now_ms, self.last_ts)
        for seq, new in enumerate(records, first):
            self.live[seq] = Rec(*new, ts, first)
            self.bytes += new.size
        self.head += len(records)
        if self.config.durability == EPHEMERAL if volatile is None else volatile:
            self.volatile.update(range(first, self.head + 1))
        stored = Stored(first, len(records), now_ms)
        if key is not None:
            self.keys[key] = stored
        if producer is not None:
            epoch, appends = self.producers.get(producer.id, (producer.epoch, ()))
            before = appends if epoch == producer.epoch else ()
            self.producers[producer.id] = (producer.epoch, (*before, stored))
        self.enforce_caps()
        return stored

    # Losing

    def lose(self, seqs: Iterable[int]) -> None:
        """A crash took these."""
        self._remove(seq for seq in list(seqs) if seq in self.live)

    def gone_after(self, seen: Collection[int]) -> set[int]:
        """Records that a crash took, when these are the ones seen after it.

        A class that is never stored keeps nothing, unless the topic was of another class too.
        """
        gone = self.volatile & self.live.keys()
        return gone.difference(seen) if self.reclassed else gone

    def _remove(self, seqs: Iterable[int]) -> int:
        removed = 0
        for seq in seqs:
            self.bytes -= self.live.pop(seq).size
            removed += 1
        return removed

    def enforce_caps(self) -> None:
        """Evict the oldest until both caps are met."""
        count, size, surplus = self.count, self.bytes, []
        if not _over(self.config, count, size):
            return
        for seq, rec in sorted(self.live.items()):
            if not _over(self.config, count, size):
                break
            surplus.append(seq)
            count, size = count - 1, size - rec.size
        self._let_go(surplus)

    def _let_go(self, seqs: Iterable[int]) -> None:
        """Evict of these, the oldest ones there are, what need not wait to be archived."""
        held = 0
        for seq in sorted(seqs, reverse=True):
            if self.config.retain_until_archived and seq > self.archived:
                held += self.live[seq].size
                most = self.config.retain_bytes_max
                if not most or held <= most:
                    continue
            self.evict(seq)
            return

    def expire(self, now_ms: int) -> None:
        """Evict what is older than the TTL."""
        if not self.config.ttl_ms:
            return
        expired = [s for s, rec in self.live.items() if now_ms - rec.ts > self.config.ttl_ms]
        if expired:
            self._let_go(seq for seq in self.live if seq <= max(expired))

    def evict(self, floor: int) -> None:
        """Everything up to this seq was taken without anybody having asked."""
        self.evict_floor = max(self.evict_floor, floor)
        if self.config.retain_until_archived and floor > self.archived:
            self.overtaken = max(self.overtaken, floor)
        self._remove([seq for seq in self.live if seq <= floor])

    def reconfigure(self, config: TopicConfig) -> None:
        self.reclassed = self.reclassed or config.durability != self.config.durability
        self.config = config
        self.enforce_caps()

    def archive(self, to_seq: int) -> None:
        """Records up to here are kept elsewhere, too."""
        self.archived = max(self.archived, to_seq)
        self.enforce_caps()

    # Deleting

    def resolve(self, before_seq: int | None = None, match: str | None = None) -> list[int]:
        """The seqs that a delete means, now."""
        return [
            seq
            for seq, rec in sorted(self.live.items())
            if (before_seq is None or seq < before_seq) and (match is None or matches(rec, match))
        ]

    def delete(self, seqs: Iterable[int]) -> int:
        seqs = [seq for seq in seqs if seq in self.live]
        self.silent.update(seqs)
        return self._remove(seqs)

    # Reading

    def announced(self) -> list[Range]:
        """Every range a reader from the start is told about, in order, merged."""
        floor = self.evict_floor
        ranges = [(1, floor)] if floor else []
        return merged(ranges + [(max(a, floor + 1), b) for a, b in self.gaps if b > floor])


def _over(config: TopicConfig, count: int, size: int) -> bool:
    return bool(
        (config.cap_records and count > config.cap_records)
        or (config.cap_bytes and size > config.cap_bytes)
    )


def matches(rec: Rec, match: str) -> bool:
    """Whether a record's tag is meant by `"tag"` or `"prefix*"`.

    >>> matches(Rec(b"", "chat-420:x", None, None, 0, 1), "chat-42:*")
    False
    """
    if rec.tag is None:
        return False
    return rec.tag.startswith(match[:-1]) if match.endswith("*") else rec.tag == match


def merged(ranges: Iterable[Range]) -> list[Range]:
    """The same seqs in the fewest ranges.

    >>> merged([(5, 9), (1, 2), (3, 3)])
    [(1, 3), (5, 9)]
    """
    result: list[Range] = []
    for first, last in sorted(ranges):
        if result and first <= result[-1][1] + 1:
            result[-1] = (result[-1][0], max(last, result[-1][1]))
        else:
            result.append((first, last))
    return result


def ranges_of(seqs: Iterable[int]) -> list[Range]:
    """Seqs as ranges.

    >>> ranges_of({4, 1, 2})
    [(1, 2), (4, 4)]
    """
    # Not by `merged`: most are one range of many seqs, and a sweep asks for them all the time.
    ordered = sorted(set(seqs))
    if not ordered:
        return []
    if ordered[-1] - ordered[0] == len(ordered) - 1:
        return [(ordered[0], ordered[-1])]
    ends = [a for a, b in pairwise(ordered) if b != a + 1]
    starts = [b for a, b in pairwise(ordered) if b != a + 1]
    return list(zip([ordered[0], *starts], [*ends, ordered[-1]], strict=True))


def inside(inner: Iterable[Range], outer: Iterable[Range]) -> bool:
    """Whether every seq of `inner` is in `outer`.

    >>> inside([(2, 3)], [(1, 2), (3, 9)]), inside([(2, 3)], [(1, 2)])
    (True, False)
    """
    whole = merged(outer)
    return all(any(a <= first and last <= b for a, b in whole) for first, last in inner)


def config_of(**values: object) -> TopicConfig:
    """A config from keywords, for workloads.

    >>> config_of(durability="fsync").durable
    True
    """
    return make_config(values)
