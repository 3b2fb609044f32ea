"""Recovery: the newest snapshot, then the log after it, gives the state before the stop.

Only this file rebuilds state.  Applying an entry twice is the same as once, because the snapshot
may already show what the first entries after its position did.  Memory is bounded: when what was
replayed outgrows its bound, it is sealed into files and dropped.  What a power loss took of the
seqs that may have been acknowledged is announced as a gap, and the gap is durable before anybody
can be told; after a process death alone nothing that was acknowledged is missing.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from typing import NamedTuple

from pyroaring import BitMap64

from headrace.core.clock import Random
from headrace.core.errors import HeadraceError, WalCorrupt
from headrace.engine import retention
from headrace.engine.archiving import raise_archived
from headrace.engine.core_state import Core
from headrace.engine.deleting import apply_delete
from headrace.engine.idempotency import Producer, decode_sidecar
from headrace.engine.lifecycle import Lifecycle
from headrace.engine.log_files import log_files, make_durable, number_files
from headrace.engine.queues.replay import replay_config, replay_event, restored_queue, settle
from headrace.engine.routers.replay import RouterReplay
from headrace.engine.routers.routing import Routers
from headrace.engine.seal import capture, sealed, write_captures
from headrace.engine.sealed_files import SealedFiles
from headrace.engine.topic import Topic
from headrace.engine.topic_config import decode_config
from headrace.storage.block import ENTRY_APPEND, Block, decode_block
from headrace.storage.frame import (
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
    encode_control,
    entry_topic,
)
from headrace.storage.fs import Filesystem, read_file, write_file_durably
from headrace.storage.identity import IDENTITY_PATH, decode_identity, encode_identity
from headrace.storage.keys import KeyRow, read_keys
from headrace.storage.scan import ShardScan, scan_all
from headrace.storage.segment_reader import Segment
from headrace.storage.snapshot import SnapshotState, TopicState
from headrace.storage.snapshot_files import SnapshotStore

log = logging.getLogger("headrace.recovery")

Progress = Callable[[float], None]


def identity_of(fs: Filesystem, random: Random) -> str:
    """The name a data directory keeps for life: whose the cold files are."""
    if not fs.exists(IDENTITY_PATH):
        write_file_durably(fs, IDENTITY_PATH, [encode_identity(random.bytes(16).hex())])
    return decode_identity(read_file(fs, IDENTITY_PATH), fs.describe(IDENTITY_PATH))


class Recovered(NamedTuple):
    """What recovery found, for a person and for metrics."""

    topics: int
    batches: int
    bytes_replayed: int
    bytes_dropped: int
    clean: bool
    gaps: int
    problems: list[str]


class Recovery:
    """Brings one engine from its files to ready."""

    def __init__(
        self,
        core: Core,
        store: SnapshotStore,
        lifecycle: Lifecycle,
        files: SealedFiles,
        routers: Routers,
    ) -> None:
        self._core = core
        self._routers = RouterReplay(core, routers, self)
        self._store = store
        self._lifecycle = lifecycle
        self._files = files
        self._known_topics = 0  # ids below it that are absent were deleted before the snapshot
        self._last_good: Topic | None = None  # of the record replayed last
        self.sealed_midway = False

    def run(self, progress: Progress = lambda _part: None) -> Recovered:
        """Rebuild everything and open the log.

        Uses nothing of the runtime but its clock, so it may run in a thread of its own while the
        loop thread leaves the engine alone.
        """
        core = self._core
        for directory in ("meta", "segments", "wal"):
            core.fs.mkdir(directory)
        loaded = self._store.load()
        # Names that only this boot has seen: what is built on them must not outlive them.
        core.fs.sync_dir("meta")
        core.fs.sync_dir("segments")
        snapshot = loaded.state if loaded is not None else None
        cold_files = sum(meta.tier for meta in snapshot.files.values()) if snapshot else 0
        core.directory = identity_of(core.fs, core.random)
        core.tiers.claim(core.directory, cold_files)
        if snapshot is not None:
            self._restore(snapshot)
        self._sweep(snapshot)
        found = log_files(core.fs, snapshot)
        starts = dict(snapshot.positions) if snapshot is not None else {}
        clean = snapshot is not None and snapshot.clean
        self._routers.several = len(found) > 1
        scans = self._replay(found, starts, clean, progress)
        self._routers.finish_log()
        make_durable(core.fs, found, scans)
        clean = clean and not any(scan.batches for scan in scans.values())
        gaps = self._announce_losses(scans, clean)
        self._routers.finish()
        self._settle()
        number_files(core, snapshot)
        self._start_log(scans, starts, gaps)
        progress(1.0)
        return Recovered(
            len(core.by_id),
            sum(scan.batches for scan in scans.values()),
            sum(scan.bytes_read for scan in scans.values()),
            sum(scan.bytes_dropped for scan in scans.values()),
            clean,
            len(gaps),
            list(loaded.problems) if loaded is not None else [],
        )

    def _replay(
        self,
        found: dict[str, list[int]],
        starts: dict[str, int],
        clean: bool,
        progress: Progress,
    ) -> dict[str, ShardScan]:
        try:
            return scan_all(
                self._core.fs,
                found,
                starts,
                self.apply,
                must_go_on=not clean,
                waiting=self._routers.waiting,
                on_progress=progress,
            )
        except WalCorrupt as error:
            good = self._last_good
            if good is not None:
                error.detail["last_good"] = {"topic": good.name, "seq": good.head}
                raise type(error)(
                    f"{error.message}; the last good record before it is seq {good.head} of "
                    f"{good.name!r}",
                    fix=error.fix,
                    detail=error.detail,
                ) from None
            raise

    # The snapshot

    def _restore(self, snapshot: SnapshotState) -> None:
        core = self._core
        core.generation = snapshot.generation
        core.next_topic_id = self._known_topics = snapshot.next_topic_id
        core.next_file_id = snapshot.next_file_id
        for state in snapshot.topics.values():
            self._restore_topic(state)
        self._routers.restore(snapshot.extra)
        for meta in snapshot.files.values():
            core.catalog.add(Segment(meta, core.tiers.open(meta), core.cache))
        now = core.clock.now_ms()
        for key_file in snapshot.key_files:
            if key_file.expires_ms < now:
                continue
            self._files.key_files.append(key_file)
            for row in read_keys(core.fs, key_file):
                self._remember_key(row, saved=True)

    def _restore_topic(self, state: TopicState) -> None:
        core = self._core
        topic = Topic(state.id, state.name, state.epoch, decode_config(state.config))
        topic.live = True
        topic.created_ms = state.created_ms
        topic.cap_floor = state.evict_floor_cap
        topic.ttl_floor = state.evict_floor_ttl
        topic.crash_floor = state.evict_floor_crash
        topic.trim_floor = state.trim_floor
        topic.delete_floor = state.delete_floor
        topic.base = max(topic.evict_floor, topic.delete_floor)
        topic.sealed_to = topic.logged_to = state.sealed_to
        topic.head = max(state.sealed_to, max((last for _, last in state.gaps), default=0))
        if state.holes:
            topic.holes = BitMap64.deserialize(state.holes)
        topic.gaps = [(first, last) for first, last in state.gaps]
        topic.trims = [(first, last) for first, last in state.trims if last <= state.sealed_to]
        topic.bytes = state.bytes
        topic.last_ts = state.last_ts
        topic.last_write_ms = state.last_write_ms
        topic.reserved = state.reserved_to
        topic.state = state.state
        topic.queue = restored_queue(state.queue)
        topic.archived_seq, topic.overtaken_seq = state.archived_seq, state.overtaken_seq
        core.note_overtaken(topic)
        topic.restore_erased(state.erased)
        topic.parent_id, topic.parent_to = state.parent_id, state.parent_to
        if state.producers:
            topic.producers = {k: Producer(*v) for k, v in state.producers.items()}
        if state.head > topic.head:
            # Only records that are never stored are between the two.
            self._lose(topic, state.head)
        core.by_id[topic.id] = topic
        named = core.by_name.get(topic.name)
        if named is None or named.id < topic.id:
            core.by_name[topic.name] = topic
        core.total_bytes += topic.bytes
        self._files.note_live(topic)

    def _sweep(self, snapshot: SnapshotState | None) -> None:
        """Remove what no snapshot lists; finish what a crash cut short."""
        tiers = self._core.tiers
        try:
            for path in tiers.sweep(self._store.retained_files()):
                log.info("removed %s, which no snapshot lists", path)
            tiers.drop_hot_copies(snapshot.files.values() if snapshot is not None else ())
        except (HeadraceError, OSError) as error:
            log.warning("the cold tier was not swept: %s", error)

    # The log

    def _start_log(
        self, scans: dict[str, ShardScan], starts: dict[str, int], gaps: dict[int, Gap]
    ) -> None:
        """Open the shards.  The first of them makes all gaps durable, before any other begins.

        So a log whose newest file is of this boot has the gaps of every topic in it.
        """
        core = self._core
        first = [encode_control(ENTRY_GAP, topic_id, gap) for topic_id, gap in gaps.items()]
        for shard in core.shards:
            scan = scans.get(shard.directory)
            base = scan.end if scan is not None else starts.get(shard.directory, 0)
            shard.open(base, first)
            first = []

    def apply(self, kind: int, entry: bytes) -> None:
        """Make an entry true, now or when what it builds on is there."""
        if kind in ROUTER_ENTRIES:
            self._routers.entry(kind, entry)
            return
        if self._routers.aside and self._routers.put_aside(kind, entry_topic(entry), entry):
            return
        if kind == ENTRY_APPEND:
            topic = self._core.by_id.get(entry_topic(entry))
            if topic is not None:
                self.append(topic, decode_block(entry))
            return
        if kind == ENTRY_TOPIC_CREATE:
            self._create(entry)
            return
        topic = self._core.by_id.get(entry_topic(entry))
        if topic is not None:
            self._control(topic, kind, entry)

    def _create(self, entry: bytes) -> None:
        core = self._core
        topic_id, create = decode_control(entry, TopicCreate)
        if topic_id < self._known_topics or topic_id in core.by_id:
            return
        core.next_topic_id = max(core.next_topic_id, topic_id + 1)
        older = core.by_name.get(create.name)
        if older is not None:
            # A name is given again only after its delete was logged, in another shard perhaps.
            if older.id > topic_id:
                return
            self._forget(older)
        topic = Topic(topic_id, create.name, create.epoch, decode_config(create.config))
        topic.live = True
        topic.created_ms = create.created_ms
        topic.reserved = create.reserved_to
        topic.parent_id, topic.parent_to = create.parent_id, create.parent_to
        topic.state = create.state
        core.by_id[topic_id] = topic
        core.by_name[create.name] = topic
        core.mark(topic)

    def append(self, topic: Topic, block: Block) -> None:
        """Records are part of a topic, if they were not before."""
        core = self._core
        topic.reserved = max(topic.reserved, block.reserved_to)
        fresh = block.first_seq > topic.head
        if fresh:
            # Seqs between were of a class whose records are never stored.
            self.given_out(topic, block.first_seq - 1)
            topic.head = block.last_seq
            self._last_good = topic
            topic.bytes += block.bytes
            core.total_bytes += block.bytes
            topic.last_ts = max(topic.last_ts, block.ts)
            topic.last_write_ms = block.arrived_ms
            core.keep(topic, block)
            if topic.config.cap_records or topic.config.cap_bytes:
                self._evict(topic)
            if core.unsealed_bytes > core.settings.replay_memory_bytes:
                self._seal_midway()
        if block.has_sidecar:
            self._sidecar(topic, block, fresh)
        if self._routers.aside:
            self._routers.appended(topic.id)

    def _forget(self, topic: Topic) -> None:
        self._routers.dropped(topic)
        self._lifecycle.forget(topic)

    def _evict(self, topic: Topic) -> None:
        try:
            retention.enforce_caps(self._core, topic, self._core.sealed(topic))
        except (HeadraceError, OSError) as error:
            log.warning("%r keeps more than it should: %s", topic.name, error)

    def _sidecar(self, topic: Topic, block: Block, fresh: bool) -> None:
        beside = decode_sidecar(block.sidecar)
        if beside.key:
            self._remember_key(
                KeyRow(
                    topic.id, beside.key, block.first_seq, block.count, block.last_seq,
                    block.arrived_ms,
                ),
                saved=False,
            )  # fmt: skip
        if beside.producer_id:
            producers = topic.producers if topic.producers is not None else {}
            topic.producers = producers
            now = producers.get(beside.producer_id)
            claimed = (beside.producer_epoch, beside.producer_sequence)
            if now is None or (now.epoch, now.sequence) < claimed:
                producers[beside.producer_id] = Producer(
                    *claimed, block.first_seq, block.count, block.last_seq
                )
        if beside.state is not None and fresh:
            topic.state = beside.state
        if beside.forward:
            self._routers.whole(topic, beside.forward, block)

    def _remember_key(self, row: KeyRow, *, saved: bool) -> None:
        core = self._core
        topic = core.by_id.get(row.topic_id)
        if topic is None:
            return
        window_ms = topic.config.idempotency_window_ms
        if core.clock.now_ms() - row.time_ms <= window_ms:
            core.keys.add(row, window_ms, saved=saved)

    def _control(self, topic: Topic, kind: int, entry: bytes) -> None:
        core = self._core
        core.mark(topic)
        if kind == ENTRY_TOPIC_CONFIG:
            config = decode_control(entry, TopicConfig)[1]
            self.given_out(topic, config.used_to)
            topic.set_config(decode_config(config.config))
            core.note_overtaken(topic)
            replay_config(topic)
            if topic.head <= config.used_to and topic.archived_seq <= config.archived_to:
                # Otherwise the snapshot is newer, and what came since was kept by a later config.
                self._evict(topic)
            topic.reserved = max(topic.reserved, config.reserved_to)
        elif kind == ENTRY_TOPIC_DELETE:
            if core.by_name.get(topic.name) is topic:
                del core.by_name[topic.name]
            self._forget(topic)
        elif kind == ENTRY_RECORDS_DELETE:
            delete = decode_control(entry, RecordsDelete)[1]
            seqs = BitMap64.deserialize(delete.seqs) if delete.seqs else None
            self.given_out(topic, max(delete.floor, seqs.max() if seqs else 0))
            apply_delete(core, topic, delete.floor, seqs, delete.elsewhere)
        elif kind == ENTRY_FLOOR:
            floor = decode_control(entry, Floor)[1]
            self.given_out(topic, max(floor.cap, floor.ttl))
            topic.cap_floor = max(topic.cap_floor, floor.cap)
            topic.ttl_floor = max(topic.ttl_floor, floor.ttl)
            topic.overtaken_seq = max(topic.overtaken_seq, floor.overtaken)
            core.note_overtaken(topic)
            floor_to = topic.evict_floor
            freed = core.despite_damage(topic, lambda rows: topic.raise_base(floor_to, rows))
            core.free(topic, freed)
        elif kind == ENTRY_RESERVE:
            reserve = decode_control(entry, Reserve)[1]
            topic.reserved = max(topic.reserved, reserve.reserved_to)
        elif kind == ENTRY_GAP:
            gap = decode_control(entry, Gap)[1]
            self.given_out(topic, gap.last)
        elif kind == ENTRY_ARCHIVED:
            told = decode_control(entry, Archived)[1]
            if told.epoch == topic.epoch and told.to_seq > topic.archived_seq:
                self.given_out(topic, told.to_seq)
                raise_archived(core, topic, told.to_seq)
                self._evict(topic)
        elif kind == ENTRY_QUEUE:
            event = decode_control(entry, QueueEvent)[1]
            self.given_out(topic, max(event.seqs, default=0))
            replay_event(core, topic, event)
        else:
            assert kind == ENTRY_STATE, kind
            topic.state = decode_control(entry, State)[1].state

    def _seal_midway(self) -> None:
        """Move what was replayed so far into files, so that memory stays bounded."""
        core, files = self._core, self._files
        keep_dead = self._routers.sealed_with_dead
        captures = [keep_dead(capture(core, topic)) for topic in core.dirty.values()]
        metas = write_captures(
            core.fs, captures, files.next_file_id, core.clock.now_ms(),
            files.policy, core.total_bytes // files.policy.own_topics_max,
        )  # fmt: skip
        for segment in files.open_new(metas):
            files.add_file(segment)
        for captured in captures:
            sealed(core, captured)
            core.forget_blocks(captured.topic)
        self.sealed_midway = True

    # After the log

    def given_out(self, topic: Topic, seq: int) -> None:
        """An entry names this seq, so it was given out; what is not stored up to it is lost."""
        if seq > topic.head:
            self._lose(topic, seq)

    def _lose(self, topic: Topic, last: int) -> Gap:
        gap = Gap(topic.head + 1, last)
        topic.add_gap(gap.first, gap.last)
        self._core.mark(topic)
        return gap

    def _announce_losses(self, scans: dict[str, ShardScan], clean: bool) -> dict[int, Gap]:
        """Seqs that were reserved and are not there: acknowledged perhaps, and lost."""
        core = self._core
        if clean:
            return {}
        newest = max(scans.values(), key=lambda scan: scan.last_number, default=None)
        same_boot = newest is None or newest.boot_id in (core.fs.boot_id(), None)
        gaps = {}
        for topic in core.by_id.values():
            lossless = topic.needs_sync or (same_boot and not core.is_ephemeral(topic))
            if not lossless and topic.reserved > topic.head:
                gaps[topic.id] = self._lose(topic, topic.reserved)
        return gaps

    def _settle(self) -> None:
        """What every topic needs before it is served."""
        core = self._core
        for topic in core.by_id.values():
            topic.staged = topic.head
            topic.reserved = max(topic.head, 0 if topic.needs_sync else topic.reserved)
            topic.reserve_from = topic.head
            core.trim(topic)
            if topic.queue is not None:
                durable = topic.config.leases_durable
                settle(topic.queue, core.clock.now_ms(), topic.span, durable=durable)
        core.totals.build(core.by_id.values())
        core.names.build(core.by_name)
        core.fit_memory()

    def enforce_retention(self) -> Iterator[None]:
        """Once the log takes entries again: what expired meanwhile goes, and is logged.

        One topic at a time: whoever iterates may do something else in between.
        """
        core = self._core
        for topic in list(core.by_id.values()):
            config = topic.config
            if topic.live and (config.ttl_ms or config.cap_records or config.cap_bytes):
                retention.enforce(core, topic)
                yield
