"""What damage took away: which seqs of which topics, and how a topic says so from then on.

Pure bookkeeping for the tools, over what a snapshot and the log say; it reads and writes nothing.
The rules it owns: a live seq that no readable row has is lost; a seq that was ever acknowledged is
never given out again, so where the end of a loss is not known its upper bound counts; what is lost
becomes a gap of the topic, and a reader that comes across it gets a tombstone.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

import msgspec
from pyroaring import BitMap64

from headrace.core.limits import seq_max
from headrace.storage.block import ENTRY_APPEND
from headrace.storage.block import HEADER as APPEND
from headrace.storage.seq_ranges import ranges_of
from headrace.storage.snapshot.state import SnapshotState, TopicState
from headrace.storage.wal.frame import (
    BATCH_HEADER_BYTES,
    ENTRY_FORWARD,
    ENTRY_GAP,
    ENTRY_RECORDS_DELETE,
    ENTRY_TOPIC_CONFIG,
    ENTRY_TOPIC_CREATE,
    ENTRY_TOPIC_DELETE,
    ENTRY_TYPES,
    Forward,
    Gap,
    TopicConfig,
    TopicCreate,
    decode_batch_header,
    decode_control,
    entry_topic,
)

Range = tuple[int, int]  # first and last, both inclusive

# The fewest bytes of log that a record, and the creation of a topic, can take.
RECORD_BYTES_MIN = 4
CREATE_BYTES_MIN = 32
_EPHEMERAL = "ephemeral"
# What a topic is called from now on when its creation, and so its name, was lost.
RECOVERED_NAME = "headrace-recovered"


class Lost(msgspec.Struct, frozen=True):
    """Seqs that are gone.  Without `certain`, some of them may never have been used."""

    topic: str
    topic_id: int
    first: int
    last: int
    certain: bool = True

    def __str__(self) -> str:
        much = f"seq {self.first}..{self.last}"
        return f"topic {self.topic!r} {much if self.certain else 'at most ' + much}"


def merged(ranges: Iterable[Range]) -> list[Range]:
    """Sorted, with those that touch or overlap joined.

    >>> merged([(7, 9), (1, 3), (4, 5)])
    [(1, 5), (7, 9)]
    """
    found: list[Range] = []
    for first, last in sorted(ranges):
        if found and first <= found[-1][1] + 1:
            found[-1] = (found[-1][0], max(found[-1][1], last))
        else:
            found.append((first, last))
    return found


def base_of(state: TopicState) -> int:
    """The last seq of the dead prefix."""
    return max(
        state.evict_floor_cap,
        state.evict_floor_ttl,
        state.evict_floor_crash,
        state.trim_floor,
        state.delete_floor,
    )


def holes_of(state: TopicState) -> BitMap64:
    return BitMap64.deserialize(state.holes) if state.holes else BitMap64()


def live_ranges(state: TopicState, first: int, last: int) -> Iterator[Range]:
    """Runs of live seqs of a topic within first..last, by what the snapshot says."""
    first, last = max(first, base_of(state) + 1), min(last, state.sealed_to)
    if first > last:
        return
    dead = holes_of(state)
    dead.remove_range(0, first)
    dead.remove_range(last + 1, max(state.head, last) + 2)
    for a, b in ranges_of(dead):
        if first < a:
            yield first, a - 1
        first = b + 1
    if first <= last:
        yield first, last


def missing_seqs(state: TopicState, covered: Iterable[Range]) -> list[Range]:
    """Live sealed seqs of a topic that are in none of the `covered` ranges."""
    at = base_of(state) + 1
    missing: list[Range] = []
    for first, last in [*merged(covered), (state.sealed_to + 1, state.sealed_to + 1)]:
        if first > at:
            missing += live_ranges(state, at, min(first - 1, state.sealed_to))
        at = max(at, last + 1)
    return missing


def line_of(topics: Mapping[int, TopicState], topic_id: int) -> Iterator[tuple[int, int]]:
    """Whose rows a topic's records are, and up to which seq: itself, and all it descends from."""
    topic, last = topics.get(topic_id), seq_max
    while topic is not None:
        yield topic.id, last
        last = min(last, topic.parent_to)
        topic = topics.get(topic.parent_id)


def lose(state: TopicState, lost: Sequence[Range], live_bytes: int) -> TopicState:
    """The topic once it has lost these seqs and `live_bytes` are left: they are gaps from now on.

    Ranges with nothing alive between them become one gap, so that a reader is told once.
    """
    holes = holes_of(state)
    for first, last in lost:
        holes.add_range(first, last + 1)
    gaps: list[Range] = []
    for first, last in merged([*state.gaps, *lost]):
        start = gaps[-1][1] + 1 if gaps else base_of(state) + 1
        between = first - start
        if gaps and 0 <= between == holes.range_cardinality(start, first):
            gaps[-1] = (gaps[-1][0], last)
        else:
            gaps.append((first, last))
    # As in the engine, the dead prefix swallows the holes right above it.
    base = delete_floor = base_of(state)
    for first, last in ranges_of(holes):
        if first > base + 1:
            break
        base = max(base, last)
    holes.remove_range(0, base + 1)
    if base > delete_floor:
        delete_floor = base
    return msgspec.structs.replace(
        state,
        holes=holes.serialize() if holes else b"",
        gaps=gaps,
        delete_floor=max(state.delete_floor, delete_floor),
        bytes=live_bytes,
    )


def is_ephemeral(config: bytes) -> bool:
    """Whether the records of a topic of this configuration are never stored."""
    try:
        decoded = msgspec.json.decode(config)
    except msgspec.MsgspecError:
        return False
    return isinstance(decoded, dict) and decoded.get("durability") == _EPHEMERAL


class Guess(NamedTuple):
    """What a damaged stretch of log held, when every length in it still adds up."""

    last_seqs: dict[int, int]  # topic id -> last seq
    created: set[int]
    deletes: int  # of records or of topics


class LogHeads:
    """The heads of topics as the log goes by, and what damage in it took.

    Entries go to `apply`, damaged stretches to `damaged`; then `finish` tells all.
    """

    def __init__(self, state: SnapshotState | None) -> None:
        topics = state.topics.values() if state is not None else ()
        self.names = {topic.id: topic.name for topic in topics}
        self.topic_id_max = state.next_topic_id - 1 if state is not None else 0
        self._known_below = state.next_topic_id if state is not None else 0
        self._heads = {topic.id: topic.head for topic in topics}
        self._ephemeral = {topic.id for topic in topics if is_ephemeral(topic.config)}
        self._deleted: set[int] = set()
        self._doubts: dict[int, tuple[int, int, int]] = {}  # topic -> stretch, first, last
        self._lost: list[dict[int, tuple[int, int, bool]]] = []  # by stretch
        self.recovered: list[list[int]] = []  # by stretch: topics whose creation it took
        self.deletes_undone = 0  # -1: not known

    def apply(self, kind: int, entry: bytes) -> None:
        topic_id = entry_topic(entry)
        self.topic_id_max = max(self.topic_id_max, topic_id)
        if kind == ENTRY_TOPIC_CREATE:
            self._create(topic_id, decode_control(entry, TopicCreate)[1])
        elif kind == ENTRY_TOPIC_DELETE:
            self._deleted.add(topic_id)
            self._heads.pop(topic_id, None)
            self._doubts.pop(topic_id, None)
        elif kind == ENTRY_APPEND:
            fields = APPEND.unpack_from(entry)
            self._append(topic_id, fields[5], fields[5] + fields[9] - 1)
        elif kind == ENTRY_FORWARD:
            forward = decode_control(entry, Forward)[1]
            skipped = len(BitMap64.deserialize(forward.skip)) if forward.skip else 0
            copies = forward.last - forward.first + 1 - skipped
            for target in forward.targets:
                if target.first_seq:
                    self._append(target.dest_id, target.first_seq, target.first_seq + copies - 1)
        elif kind == ENTRY_GAP and topic_id in self._heads:
            gap = decode_control(entry, Gap)[1]
            self._append(topic_id, gap.first, gap.last)
        elif kind == ENTRY_TOPIC_CONFIG and topic_id in self._heads:
            config = decode_control(entry, TopicConfig)[1]
            self._class(topic_id, config.config)
            if config.used_to > self._heads[topic_id]:
                self._append(topic_id, config.used_to + 1, config.used_to)

    def _class(self, topic_id: int, config: bytes) -> None:
        (self._ephemeral.add if is_ephemeral(config) else self._ephemeral.discard)(topic_id)

    def _create(self, topic_id: int, create: TopicCreate) -> None:
        if topic_id >= self._known_below and topic_id not in self._heads:
            self._heads[topic_id] = create.parent_to
            self.names[topic_id] = create.name
            self._class(topic_id, create.config)

    def _append(self, topic_id: int, first: int, last: int) -> None:
        head = self._heads.get(topic_id)
        if head is None:
            if topic_id < self._known_below or topic_id in self._deleted or not self._lost:
                return
            # Its creation was in the last stretch: the records are kept, under another name.
            self.recovered[-1].append(topic_id)
            self.names[topic_id] = f"{RECOVERED_NAME}-{topic_id}"
            head = self._heads[topic_id] = 0
        doubt = self._doubts.pop(topic_id, None) if last > head else None
        if first > head + 1 and self._lost:
            stretch = doubt[0] if doubt is not None else len(self._lost) - 1
            self._lost[stretch][topic_id] = (head + 1, first - 1, True)
        self._heads[topic_id] = max(head, last)

    def damaged(self, length: int, stored: bytes | None, batches: int) -> None:
        """Record that a stretch of `length` bytes and `batches` batches (-1: unknown) is gone.

        `stored` is what is in its place, if anything.
        """
        self._lost.append({})
        self.recovered.append([])
        guess = self.guess(stored, batches) if stored is not None else None
        stretch = len(self._lost) - 1
        if guess is not None:
            self.deletes_undone += guess.deletes
            for topic_id, last in guess.last_seqs.items():
                if topic_id in self._heads:
                    self._doubt(topic_id, stretch, last)
            self.topic_id_max = max(self.topic_id_max, *guess.created, 0)
            return
        self.deletes_undone = -1 if length > BATCH_HEADER_BYTES else self.deletes_undone
        self.topic_id_max += length // CREATE_BYTES_MIN
        for topic_id, head in self._heads.items():
            if topic_id not in self._ephemeral:
                already = self._doubts.get(topic_id)
                base = already[2] if already is not None else head
                self._doubt(topic_id, stretch, base + length // RECORD_BYTES_MIN)

    def _doubt(self, topic_id: int, stretch: int, last: int) -> None:
        first = self._heads[topic_id] + 1
        already = self._doubts.get(topic_id)
        if already is not None:
            stretch, last = already[0], max(last, already[2])
        if last >= first:
            self._doubts[topic_id] = (stretch, first, last)

    def guess(self, stored: bytes, batches: int) -> Guess | None:
        """What the stretch held; None as soon as anything in it does not add up.

        A batch header is believed by its own hash; of the entries only the lengths, the topics
        and the seqs are, and those only if they fit what was before, without exception.
        """
        found = Guess({}, set(), 0)
        deletes = at = 0
        for _ in range(batches):
            while at < len(stored) and not any(stored[at : at + 8]):
                at += 8
            header = decode_batch_header(stored, at)
            if header is None:
                return None
            at += BATCH_HEADER_BYTES
            end = at + header.body_bytes
            for _ in range(header.entries):
                kind, length = self._guess_entry(stored, at, end, found)
                if not kind:
                    return None
                deletes += kind in (ENTRY_RECORDS_DELETE, ENTRY_TOPIC_DELETE)
                at += length
            if at != end:
                return None
        return found._replace(deletes=deletes) if batches > 0 and not any(stored[at:]) else None

    def _guess_entry(self, stored: bytes, at: int, end: int, found: Guess) -> tuple[int, int]:
        """(kind, length) of the entry at `at`, kind 0 when it cannot be one."""
        if at + 24 > min(end, len(stored)):
            return 0, 0
        kind, length = stored[at], int.from_bytes(stored[at + 4 : at + 8], "little")
        topic_id = int.from_bytes(stored[at + 8 : at + 16], "little")
        if kind not in ENTRY_TYPES or length % 8 or not 24 <= length <= end - at:
            return 0, 0
        if kind == ENTRY_TOPIC_CREATE and topic_id == self.topic_id_max + len(found.created) + 1:
            found.created.add(topic_id)
            return kind, length
        if topic_id not in self._heads and topic_id not in found.created:
            return 0, 0
        head = found.last_seqs.get(topic_id, self._heads.get(topic_id, 0))
        last = _last_of_append(stored, at, length, head)
        if (kind == ENTRY_APPEND) != (last > 0):
            return 0, 0  # or its kind is what is damaged, and records would be lost in silence
        if last:
            found.last_seqs[topic_id] = last
        return kind, length

    def finish(self) -> list[list[Lost]]:
        """What each stretch took, in the order they came."""
        for topic_id, (stretch, first, last) in self._doubts.items():
            self._lost[stretch][topic_id] = (first, last, False)
        self._doubts = {}
        return [
            [
                Lost(self.names[topic_id], topic_id, first, last, certain)
                for topic_id, (first, last, certain) in sorted(lost.items())
                if topic_id in self._heads
            ]
            for lost in self._lost
        ]


def _last_of_append(stored: bytes, at: int, length: int, head: int) -> int:
    """The last seq of an entry that is an append of what follows the head; 0 if it cannot be."""
    if length < APPEND.size:
        return 0
    fields = APPEND.unpack_from(stored, at)
    first, count = fields[5], fields[9]
    fits = first == head + 1 and 0 < count <= length // RECORD_BYTES_MIN
    return first + count - 1 if fits else 0
