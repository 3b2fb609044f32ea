"""Replaying the log: each entry is made true of the topics again.

Only this file applies log entries.  Applying one twice is the same as once, because the snapshot
may already show what the first entries after its position did.  Memory is bounded: when what was
replayed outgrows its bound, it is sealed into files and dropped.  An entry that builds on another
topic's records waits for them (`routers/replay.py`).
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterable, Iterator, Sequence
from functools import partial
from operator import attrgetter

from pyroaring import BitMap64

from headrace.core.errors import HeadraceError
from headrace.core.steps import Steps, in_lane
from headrace.engine.appending.idempotency import Sidecar, decode_sidecar
from headrace.engine.queues.replay import replay_config, replay_event
from headrace.engine.recovery.memory_topics import MemoryTopics
from headrace.engine.removal import retention
from headrace.engine.removal.deleting import apply_delete
from headrace.engine.removal.watermark import raise_archived
from headrace.engine.routers.directory import RouterDirectory
from headrace.engine.routers.replay import RouterReplay
from headrace.engine.sealing.seal import Capture, capture, sealed, unsealed, write_captures
from headrace.engine.sealing.sealed_files import SealedFiles
from headrace.engine.state import EngineState
from headrace.engine.topics.config import decode_config
from headrace.engine.topics.topic import Topic
from headrace.storage.block import ENTRY_APPEND, Block, decode_block
from headrace.storage.segment.reader import Segment
from headrace.storage.snapshot.key_files import KeyRow
from headrace.storage.snapshot.state import ProducerState
from headrace.storage.wal.failures import NO_ROOM_ERRNOS
from headrace.storage.wal.frame import (
    ENTRY_ARCHIVED,
    ENTRY_FLOOR,
    ENTRY_GAP,
    ENTRY_QUEUE,
    ENTRY_RECORDS_DELETE,
    ENTRY_RESERVE,
    ENTRY_STATE,
    ENTRY_TOPIC_CONFIG,
    ENTRY_TOPIC_CREATE,
    ENTRY_TOPIC_DELETE,
    ROUTER_ENTRIES,
    Archived,
    Floor,
    Gap,
    QueueEvent,
    RecordsDelete,
    Reserve,
    State,
    TopicConfig,
    TopicCreate,
    decode_control,
    entry_topic,
)

log = logging.getLogger("headrace.recovery")

WORK_LANE = "work"
_TOPIC_ID = attrgetter("id")


class LogReplay:
    """Applies the entries of the log to one engine that recovers."""

    def __init__(self, state: EngineState, files: SealedFiles, routers: RouterDirectory) -> None:
        self._state = state
        self._files = files
        self.routers = RouterReplay(state, routers, self)
        self.memory = MemoryTopics(state)
        self.known_topics = 0  # ids below it that are absent were deleted before the snapshot
        self.last_good: Topic | None = None  # of the record replayed last
        self.sealed_midway = False
        self.seals_midway = True  # by itself; otherwise whoever applies entries sees to it
        self._memory_max = state.settings.replay_memory_bytes

    def apply(self, kind: int, entry: bytes) -> None:
        """Make an entry true, now or when what it builds on is there."""
        if kind in ROUTER_ENTRIES:
            self.apply_all(self.memory.bind(self.routers.named(kind, entry)))
            self.routers.entry(kind, entry)
        elif not self.memory.takes(kind, entry):
            self.apply_now(kind, entry)

    def apply_all(self, entries: Iterable[tuple[int, bytes]]) -> None:
        """Make entries true that were put off."""
        for kind, entry in entries:
            self.apply_now(kind, entry)

    def apply_now(self, kind: int, entry: bytes) -> None:
        """Make an entry true that is not put off; one that another shard has to precede waits."""
        if self.routers.aside and self.routers.put_aside(kind, entry_topic(entry), entry):
            return
        if kind == ENTRY_APPEND:
            topic = self._state.by_id.get(entry_topic(entry))
            if topic is not None:
                self.append(topic, decode_block(entry))
            return
        if kind == ENTRY_TOPIC_CREATE:
            self._create(entry)
            return
        topic = self._state.by_id.get(entry_topic(entry))
        if topic is not None:
            self._control(topic, kind, entry)

    def _create(self, entry: bytes) -> None:
        state = self._state
        topic_id, create = decode_control(entry, TopicCreate)
        if topic_id < self.known_topics or topic_id in state.by_id:
            return
        older = state.by_name.get(create.name)
        if older is not None:
            # A name is given again only after its delete was logged, in another shard perhaps.
            if older.id > topic_id:
                return
            self._forget(older)
        if create.parent_id:
            # A reader of the fork may want the records of its parent at once.
            self.apply_all(self.memory.bind(self._line_of(create.parent_id)))
        topic = Topic.replayed(topic_id, create, state.totals)
        state.topics.restore(topic)
        topic.mark_changed()

    def _line_of(self, topic_id: int) -> Iterator[int]:
        """The ids of a topic and of all that it descends from."""
        topic = self._state.by_id.get(topic_id)
        if topic is not None:
            yield topic.id
            yield from (ancestor.id for ancestor in topic.ancestors())

    def append(self, topic: Topic, block: Block) -> None:
        """Records are part of a topic, if they were not before."""
        state = self._state
        topic.reservation.raise_to(block.reserved_to)
        fresh = block.first_seq > topic.head
        if fresh:
            # Seqs between were of a class whose records are never stored.
            self.given_out(topic, block.first_seq - 1)
            topic.replay(block)
            self.last_good = topic
            if topic.config.cap_records or topic.config.cap_bytes:
                self._evict(topic)
            if self.seals_midway and state.totals.unsealed_bytes > self._memory_max:
                self._seal_midway()
        if block.has_sidecar:
            self._sidecar(topic, block)
        if self.routers.aside:
            self.routers.appended(topic.id)

    def _forget(self, topic: Topic) -> None:
        self.memory.forget(topic.id)
        self.routers.dropped(topic)
        self._state.topics.release_name(topic)
        self._state.forget(topic)

    def _evict(self, topic: Topic) -> None:
        try:
            retention.enforce_caps(self._state, topic, self._state.sealed(topic))
        except (HeadraceError, OSError) as error:
            log.warning("%r keeps more than it should: %s", topic.name, error)

    def _sidecar(self, topic: Topic, block: Block) -> None:
        beside = decode_sidecar(block.sidecar)
        if beside.key:
            self.remember_key(
                KeyRow(
                    topic.id, beside.key, block.first_seq, block.count, block.last_seq,
                    block.arrived_ms,
                ),
                saved=False,
            )  # fmt: skip
        if beside.producer_id:
            self._accept(topic, beside, block.first_seq, block.count)
        if beside.state is not None:
            # Also of records that are there: a state before them was just made true again.
            topic.set_state(beside.state)
        if beside.forward:
            self.routers.whole(topic, beside.forward, block)

    def _accept(self, topic: Topic, beside: Sidecar, first_seq: int, count: int) -> None:
        """A producer's number was taken, if none behind it is known already."""
        now = topic.make_producers().newest(beside.producer_id)
        claimed = (beside.producer_epoch, beside.producer_sequence)
        if now is None or (now.epoch, now.sequence) < claimed:
            accepted = ProducerState(*claimed, first_seq, count, first_seq + count - 1)
            self._state.producer_memory.accept(topic, beside.producer_id, accepted)

    def _state_alone(self, topic: Topic, entry: State) -> None:
        topic.set_state(entry.state)
        beside = decode_sidecar(entry.sidecar) if entry.sidecar else None
        if beside is not None and beside.producer_id:
            self._accept(topic, beside, topic.head + 1, 0)

    def remember_key(self, row: KeyRow, *, saved: bool) -> None:
        state = self._state
        topic = state.by_id.get(row.topic_id)
        if topic is None:
            return
        window_ms = topic.config.idempotency_window_ms
        if state.clock.now_ms() - row.time_ms <= window_ms:
            state.keys.add(row, window_ms, saved=saved)

    def _control(self, topic: Topic, kind: int, entry: bytes) -> None:
        state = self._state
        topic.mark_changed()
        if kind == ENTRY_TOPIC_CONFIG:
            config = decode_control(entry, TopicConfig)[1]
            self.given_out(topic, config.used_to)
            topic.set_config(decode_config(config.config))
            state.update_overtaken(topic)
            replay_config(topic)
            if topic.head <= config.used_to and topic.archived_seq <= config.archived_to:
                # Otherwise the snapshot is newer, and what came since was kept by a later config.
                self._evict(topic)
            topic.reservation.raise_to(config.reserved_to)
        elif kind == ENTRY_TOPIC_DELETE:
            self._forget(topic)
        elif kind == ENTRY_RECORDS_DELETE:
            delete = decode_control(entry, RecordsDelete)[1]
            seqs = BitMap64.deserialize(delete.seqs) if delete.seqs else None
            self.given_out(topic, max(delete.floor, seqs.max() if seqs else 0))
            apply_delete(state, topic, delete.floor, seqs, delete.elsewhere)
        elif kind == ENTRY_FLOOR:
            floor = decode_control(entry, Floor)[1]
            self.given_out(topic, max(floor.cap, floor.ttl))
            topic.overtake(floor.overtaken)
            state.update_overtaken(topic)
            state.despite_damage(
                topic, lambda rows: topic.evict_as_logged(floor.cap, floor.ttl, rows)
            )
            state.records_removed(topic)
        elif kind == ENTRY_RESERVE:
            topic.reservation.raise_to(decode_control(entry, Reserve)[1].reserved_to)
        elif kind == ENTRY_GAP:
            gap = decode_control(entry, Gap)[1]
            self.given_out(topic, gap.last)
        elif kind == ENTRY_ARCHIVED:
            told = decode_control(entry, Archived)[1]
            if told.epoch == topic.epoch and told.to_seq > topic.archived_seq:
                self.given_out(topic, told.to_seq)
                raise_archived(state, topic, told.to_seq)
                self._evict(topic)
        elif kind == ENTRY_QUEUE:
            event = decode_control(entry, QueueEvent)[1]
            self.given_out(topic, max(event.seqs, default=0))
            replay_event(state, topic, event)
        else:
            assert kind == ENTRY_STATE, kind
            self._state_alone(topic, decode_control(entry, State)[1])

    def _seal_midway(self) -> None:
        """Move what was replayed so far into files, so that memory stays bounded."""
        state = self._state
        keep_dead = self.routers.sealed_with_dead
        captures = [keep_dead(capture(state, topic)) for topic in state.totals.changed.values()]
        try:
            segments = self._write(captures)
        except OSError as error:
            for captured in captures:
                unsealed(captured)
            self._do_without_files(error)
            return
        self._add(segments, captures)

    def seal_steps(self, topic_ids: Collection[int]) -> Steps[None]:
        """The same of these topics beside requests: files are written in a lane."""
        state = self._state
        changed = [t for t in state.totals.changed.values() if t.id in topic_ids and t.live]
        captures = [capture(state, topic) for topic in changed]
        write = partial(self._write, captures)
        try:
            segments: list[Segment] = yield in_lane(state.runtime, WORK_LANE, write)
        except OSError as error:
            for captured in captures:
                unsealed(captured)
            log.warning("what came back is not sealed, so memory holds it: %s", error)
            return
        self._add(segments, captures)

    def _write(self, captures: Sequence[Capture]) -> list[Segment]:
        """Write what was captured into files; return them, open."""
        state, files = self._state, self._files
        metas = write_captures(
            state.fs, captures, files.next_file_id, state.clock.now_ms(),
            files.policy, state.totals.bytes // files.policy.own_topics_max,
        )  # fmt: skip
        return files.open_new(metas)

    def _add(self, segments: Sequence[Segment], captures: Sequence[Capture]) -> None:
        """Serve from these files what was captured."""
        for segment in segments:
            self._files.add_file(segment)
        for captured in captures:
            sealed(self._state, captured)
            self._state.forget_blocks(captured.topic)
        self.sealed_midway = True

    def _do_without_files(self, error: OSError) -> None:
        """A full disk takes no files: keep as much in memory as a running engine may, or raise."""
        memory_max = self._state.settings.memory_budget_bytes
        if error.errno not in NO_ROOM_ERRNOS or self._memory_max >= memory_max:
            raise error
        log.warning("no room to seal what is replayed, so memory holds it: %s", error)
        self._memory_max = memory_max

    def given_out(self, topic: Topic, seq: int) -> None:
        """An entry names this seq, so it was given out; what is not stored up to it is lost."""
        if seq > topic.head:
            self.lose(topic, seq)

    def lose(self, topic: Topic, last: int) -> Gap:
        gap = Gap(topic.head + 1, last)
        topic.add_gap(gap.first, gap.last)
        topic.mark_changed()
        topic.lose_in_forks(gap.first, gap.last)
        return gap

    def settle_forks(self) -> None:
        """At the end of the log: what forks inherit was given out, and is lost where it is not
        there.
        """
        by_id = self._state.by_id
        for topic in sorted(by_id.values(), key=_TOPIC_ID):  # parents are older than their forks
            if not topic.parent_id:
                continue
            parent = by_id.get(topic.parent_id)
            if parent is None:
                log.error("%r inherits from a topic that is gone", topic.name)
                topic.lose_inherited(1, topic.parent_to)
                continue
            self.given_out(parent, topic.parent_to)
            for first, last in parent.gaps:
                topic.lose_inherited(first, last)
