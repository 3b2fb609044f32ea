"""Topics of class `memory` come back after the start: which wait, and where their entries lie.

Only this file decides whether a topic may wait (F0b).  The first reading of the log applies every
entry but theirs; of those it keeps the place, eight bytes for a batch, and what has to be known at
once: how far seqs were given out and reserved.  A second reading applies them, in the same order.

A topic does not wait if others depend on its records: where a router reads from or writes to it, it
has forks, is a stream or a queue, where dead letters go to it, or where its class has changed.
"""

from __future__ import annotations

from array import array
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass

from pyroaring import BitMap64
from xxhash import xxh3_64_intdigest

from headrace.core.errors import WalCorrupt
from headrace.engine.state import EngineState
from headrace.engine.topics.config import MEMORY, decode_config
from headrace.engine.topics.topic import Topic
from headrace.storage.block import ENTRY_APPEND, append_seqs
from headrace.storage.fs import Filesystem
from headrace.storage.wal.frame import (
    BATCH_HEADER_BYTES,
    ENTRY_ARCHIVED,
    ENTRY_FLOOR,
    ENTRY_GAP,
    ENTRY_QUEUE,
    ENTRY_RECORDS_DELETE,
    ENTRY_RESERVE,
    ENTRY_TOPIC_CONFIG,
    ENTRY_TOPIC_CREATE,
    ENTRY_TOPIC_DELETE,
    Archived,
    Floor,
    Gap,
    RecordsDelete,
    Reserve,
    TopicConfig,
    decode_batch_header,
    decode_control,
    entry_topic,
    split_entries,
)
from headrace.storage.wal.scan import WINDOW_BYTES, Window

Place = tuple[int, str, int]  # number and path of a log file, offset of a batch
Entry = tuple[int, bytes]

# After so many topics that a router wanted in the middle of the log, none waits any more: each
# costs another reading of what was put off.
EARLY_RETURNS_MAX = 8


@dataclass(slots=True)
class PutOff:
    """One topic that waits, and what the log says of its seqs."""

    head: int
    reserved_to: int
    last: Place
    gap_to: int = 0  # seqs up to here are announced as lost

    def note(self, kind: int, entry: bytes, epoch: int) -> bool:
        """Take what has to be known at once; False: the topic cannot wait any longer."""
        head, reserved_to, waits = 0, 0, True
        if kind == ENTRY_APPEND:
            _, head, reserved_to = append_seqs(entry)
        elif kind == ENTRY_TOPIC_CONFIG:
            config = decode_control(entry, TopicConfig)[1]
            head, reserved_to = config.used_to, config.reserved_to
            waits = decode_config(config.config).durability == MEMORY
        elif kind == ENTRY_RECORDS_DELETE:
            delete = decode_control(entry, RecordsDelete)[1]
            seqs = BitMap64.deserialize(delete.seqs) if delete.seqs else None
            head = max(delete.floor, seqs.max() if seqs else 0)
        elif kind == ENTRY_FLOOR:
            floor = decode_control(entry, Floor)[1]
            head = max(floor.cap, floor.ttl)
        elif kind == ENTRY_RESERVE:
            reserved_to = decode_control(entry, Reserve)[1].reserved_to
        elif kind == ENTRY_GAP:
            head = decode_control(entry, Gap)[1].last
        elif kind == ENTRY_ARCHIVED:
            told = decode_control(entry, Archived)[1]
            head = told.to_seq if told.epoch == epoch else 0
        elif kind == ENTRY_QUEUE:
            waits = False
        self.head = max(self.head, head)
        self.reserved_to = max(self.reserved_to, reserved_to)
        return waits


class MemoryTopics:
    """The topics that wait, of one engine that recovers."""

    def __init__(self, state: EngineState) -> None:
        self._state = state
        self._waiting: dict[int, PutOff] = {}
        self._bound: set[int] = set()  # ids that do not wait
        self._urgent: set[int] = set()  # of those that wait: not beyond the end of the log
        self._offsets: dict[tuple[int, str], array[int]] = {}
        self._place: Place = (0, "", 0)
        self._here: list[Entry] = []  # what was put off of the batch that is being read
        self._early_returns = 0

    # The first reading

    def batch(self, number: int, path: str, offset: int) -> None:
        """A batch is about to be applied."""
        self._place = (number, path, offset)
        self._here.clear()

    def takes(self, kind: int, entry: bytes) -> bool:
        """Put an entry off, if its topic waits; False: it is to be applied now."""
        topic_id = entry_topic(entry)
        waiting = self._waiting.get(topic_id)
        topic = self._state.by_id.get(topic_id)
        if kind in (ENTRY_TOPIC_CREATE, ENTRY_TOPIC_DELETE) or topic is None:
            return False
        if waiting is None:
            if not self._may_wait(topic):
                return False
            reserved_to = topic.reservation.valid_to
            waiting = self._waiting[topic_id] = PutOff(topic.head, reserved_to, self._place)
        if not waiting.note(kind, entry, topic.epoch):
            self._urgent.add(topic_id)
        waiting.last = self._place
        if not self._here:
            number, path, offset = self._place
            self._offsets.setdefault((number, path), array("Q")).append(offset)
        self._here.append((kind, entry))
        return True

    def _may_wait(self, topic: Topic) -> bool:
        config = topic.config
        return (
            config.durability == MEMORY
            and config.type != "queue"
            and topic.queue is None
            and topic.forks is None
            and topic.stream is None
            and topic.id not in self._bound
            and self._early_returns < EARLY_RETURNS_MAX
        )

    def bind(self, topic_ids: Iterable[int]) -> Iterator[Entry]:
        """Let these topics wait no longer; yield what was put off of them, in order."""
        topic_ids = set(topic_ids)
        self._bound |= topic_ids
        wanted = topic_ids & self._waiting.keys()
        if not wanted:
            return
        self._early_returns += 1
        if self._early_returns >= EARLY_RETURNS_MAX:
            wanted = set(self._waiting)
        yield from self._taken(wanted, mid_batch=True)

    def forget(self, topic_id: int) -> None:
        """The topic is gone."""
        self._waiting.pop(topic_id, None)
        self._urgent.discard(topic_id)

    def urgent(self) -> Iterator[Entry]:
        """At the end of the log: yield what was put off of topics that may not wait after all."""
        wanted = set(self._urgent)
        if self._waiting:
            names = set()
            for topic in self._state.by_id.values():
                names.add(topic.config.dead_letter)
                if topic.queue is not None:
                    names.update(move.topic for move in topic.queue.moving.values())
            wanted |= {i for i in self._waiting if self._state.by_id[i].name in names}
        yield from self._taken(wanted, mid_batch=False)

    def _taken(self, wanted: set[int], *, mid_batch: bool) -> Iterator[Entry]:
        if not wanted:
            return
        here = list(self._here) if mid_batch else []
        for topic_id in wanted:
            self.forget(topic_id)
        for place, entries in self.batches():
            if not (mid_batch and place == self._place):
                yield from (e for e in entries if entry_topic(e[1]) in wanted)
        yield from (e for e in here if entry_topic(e[1]) in wanted)

    # What waits

    def get(self, topic_id: int) -> PutOff | None:
        """What is known of a topic that waits; None: it does not."""
        return self._waiting.get(topic_id)

    @property
    def ids(self) -> Collection[int]:
        """The topics that wait."""
        return self._waiting.keys()

    # The second reading

    @property
    def batches_total(self) -> int:
        """How many batches it has to read."""
        return sum(map(len, self._offsets.values()))

    def batches(self) -> Iterator[tuple[Place, list[Entry]]]:
        """Yield every batch that has something put off, in the order of the log."""
        for (number, path), offsets in sorted(self._offsets.items(), key=lambda item: item[0]):
            for offset, entries in _read(self._state.fs, path, offsets):
                yield (number, path, offset), entries


def _read(fs: Filesystem, path: str, offsets: array[int]) -> Iterator[tuple[int, list[Entry]]]:
    file = fs.open_read(path)
    try:
        window = Window(file, WINDOW_BYTES)
        for offset in offsets:
            header = decode_batch_header(window.get(offset, BATCH_HEADER_BYTES), 0)
            body = b""
            if header is not None:
                body = window.get(offset + BATCH_HEADER_BYTES, header.body_bytes)
            if header is None or xxh3_64_intdigest(body) != header.body_hash:
                raise WalCorrupt(
                    f"{fs.describe(path)} gave other bytes at offset {offset} than a moment ago",
                    fix="check the disk, then restart",
                    detail={"file": path, "offset": offset},
                )
            yield offset, list(split_entries(body, header.entries, path))
    finally:
        file.close()
