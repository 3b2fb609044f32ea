"""Recovery: the newest snapshot, then the log after it, gives the state before the stop.

Only this file decides what is read and in which order, and what is lost.  What a power loss took of
the seqs that may have been acknowledged is announced as a gap, which is durable before any reader
can see it; after a process death alone nothing that was acknowledged is missing.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from typing import NamedTuple

from headrace.core.clock import Random
from headrace.core.error_frames import without_frames
from headrace.core.errors import HeadraceError, WalCorrupt
from headrace.engine.queues.replay import restored_queue, settle
from headrace.engine.recovery.log_files import log_files, log_marks, make_durable, number_files
from headrace.engine.recovery.log_replay import LogReplay
from headrace.engine.recovery.second_reading import SecondReading
from headrace.engine.removal import retention
from headrace.engine.routers.directory import RouterDirectory
from headrace.engine.sealing.sealed_files import SealedFiles
from headrace.engine.state import EngineState
from headrace.engine.topics.topic import Topic
from headrace.storage.fs import Filesystem, read_file, write_file_durably
from headrace.storage.identity import IDENTITY_PATH, decode_identity, encode_identity
from headrace.storage.segment.reader import Segment
from headrace.storage.snapshot.files import SnapshotStore
from headrace.storage.snapshot.key_files import read_keys
from headrace.storage.snapshot.state import SnapshotState, TopicState
from headrace.storage.wal.failures import NO_ROOM_ERRNOS
from headrace.storage.wal.frame import ENTRY_GAP, Gap, encode_control
from headrace.storage.wal.log_end import LogEnd
from headrace.storage.wal.mark import Mark
from headrace.storage.wal.scan import ShardScan
from headrace.storage.wal.scan_shards import scan_all
from headrace.storage.wal.shard import WalShard

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
        state: EngineState,
        store: SnapshotStore,
        files: SealedFiles,
        routers: RouterDirectory,
    ) -> None:
        self._state = state
        self._store = store
        self._files = files
        self._log = LogReplay(state, files, routers)
        self._routers = self._log.routers

    @property
    def sealed_midway(self) -> bool:
        """Whether records were sealed into files that no snapshot lists yet."""
        return self._log.sealed_midway

    def second_reading(self) -> SecondReading:
        """What brings back the topics that do not delay the start."""
        return SecondReading(self._state, self._log)

    def run(self, progress: Progress = lambda _part: None) -> Recovered:
        """Rebuild everything and open the log.

        Uses nothing of the runtime but its clock, so it may run in a thread of its own while the
        loop thread leaves the engine alone.
        """
        state = self._state
        for directory in ("meta", "segments", "wal"):
            state.fs.mkdir(directory)
        loaded = self._store.load()
        # Names that only this boot has seen: what is built on them must not outlive them.
        for directory in ("", "meta", "segments", "wal"):
            state.fs.sync_dir(directory)
        snapshot = loaded.state if loaded is not None else None
        cold_files = sum(meta.tier for meta in snapshot.files.values()) if snapshot else 0
        state.set_identity(identity_of(state.fs, state.random))
        state.tiers.claim(state.identity, cold_files)
        if snapshot is not None:
            self._restore(snapshot)
        self._sweep(snapshot)
        found = log_files(state.fs, snapshot)
        starts = dict(snapshot.positions) if snapshot is not None else {}
        clean = snapshot is not None and snapshot.clean
        self._routers.several = len(found) > 1
        scans = self._replay(found, starts, log_marks(state.fs, snapshot), clean, progress)
        self._log.apply_all(self._log.memory.urgent())
        self._routers.finish_log()
        self._log.settle_forks()
        make_durable(state.fs, found, scans)
        clean = clean and not any(scan.batches for scan in scans.values())
        gaps = self._announce_losses(scans, clean)
        self._routers.finish()
        self._settle()
        number_files(state, snapshot)
        self._start_log(scans, starts, gaps)
        progress(1.0)
        return Recovered(
            len(state.by_id),
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
        marks: dict[str, Mark],
        clean: bool,
        progress: Progress,
    ) -> dict[str, ShardScan]:
        try:
            return scan_all(
                self._state.fs,
                found,
                starts,
                self._log.apply,
                marks=marks,
                must_go_on=not clean,
                waiting=self._routers.waiting,
                on_progress=progress,
                on_batch=self._log.memory.batch,
            )
        except WalCorrupt as error:
            good = self._log.last_good
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
        state = self._state
        next_topic_id = self._log.known_topics = snapshot.next_topic_id
        state.restore_ids(snapshot.generation, next_topic_id, snapshot.next_file_id)
        for saved in snapshot.topics.values():
            self._restore_topic(saved)
        self._routers.restore(snapshot.extra)
        self._log.apply_all(self._log.memory.bind(self._routers.connected()))
        for meta in snapshot.files.values():
            state.catalog.add(Segment(meta, state.tiers.open(meta), state.cache))
        now = state.clock.now_ms()
        for key_file in snapshot.key_files:
            if key_file.expires_ms < now:
                continue
            self._files.key_files.append(key_file)
            for row in read_keys(state.fs, key_file):
                self._log.remember_key(row, saved=True)

    def _restore_topic(self, saved: TopicState) -> None:
        state = self._state
        topic = Topic.restored(saved, state.totals, restored_queue(saved.queue))
        state.update_overtaken(topic)
        if saved.head > topic.head:
            # Only records that are never stored are between the two.
            self._log.lose(topic, saved.head)
        state.topics.restore(topic)
        state.producer_memory.restored(topic)
        self._files.note_live(topic)

    def _sweep(self, snapshot: SnapshotState | None) -> None:
        """Remove what no snapshot lists; finish what a crash cut short."""
        self._files.note_left_over(snapshot.files if snapshot is not None else ())
        tiers = self._state.tiers
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
        state = self._state
        state.reserve.open()
        first = [encode_control(ENTRY_GAP, topic_id, gap) for topic_id, gap in gaps.items()]
        before: LogEnd | None = None
        no_room: OSError | None = None
        for shard in state.shards:
            scan = scans.get(shard.directory)
            base = scan.end if scan is not None else starts.get(shard.directory, 0)
            answered = scan.marks_answered if scan is not None else 0
            if no_room is None:
                no_room = _open(shard, base, first, answered)
            if no_room is not None:
                # What is there can be read; the same gaps are found again until they are logged.
                shard.log_end.open_later(base, first, answered, no_room, before)
            first, before = [], shard.log_end

    # After the log

    def _announce_losses(self, scans: dict[str, ShardScan], clean: bool) -> dict[int, Gap]:
        """Seqs that were reserved and are not there: acknowledged perhaps, and lost."""
        state = self._state
        if clean:
            return {}
        newest = max(scans.values(), key=lambda scan: scan.last_number, default=None)
        same_boot = newest is None or newest.boot_id in (state.fs.boot_id(), None)
        gaps = {}
        for topic in state.by_id.values():
            lossless = topic.needs_sync or (same_boot and not topic.ephemeral)
            waiting = self._log.memory.get(topic.id)
            if lossless:
                continue
            if waiting is not None:
                if waiting.reserved_to > waiting.head:
                    # Shown once the topic is back; that it is lost is durable before.
                    waiting.gap_to = waiting.reserved_to
                    gaps[topic.id] = Gap(waiting.head + 1, waiting.reserved_to)
            elif topic.reservation.valid_to > topic.head:
                gaps[topic.id] = self._log.lose(topic, topic.reservation.valid_to)
        return gaps

    def _settle(self) -> None:
        """What every topic needs before it is served."""
        state = self._state
        for topic in state.by_id.values():
            if topic.forks is not None:
                self._files.note_live(topic)  # forks were not known when the snapshot was read
            if self._log.memory.get(topic.id) is not None:
                continue
            topic.begin_serving()
            state.drop_dead_blocks(topic)
            if topic.queue is not None:
                durable = topic.config.leases_durable
                settle(topic.queue, state.clock.now_ms(), topic.span, durable=durable)
        state.totals.build(state.by_id.values())
        state.topics.index_names()
        state.sealed_blocks.make_room()

    def enforce_retention(self) -> Iterator[None]:
        """Once the log takes entries again: what expired meanwhile goes, and is logged.

        One topic at a time: the caller may do something else in between.
        """
        state = self._state
        for topic in list(state.by_id.values()):
            config = topic.config
            if self._log.memory.get(topic.id) is not None:
                continue
            if topic.live and (config.ttl_ms or config.cap_records or config.cap_bytes):
                retention.enforce(state, topic)
                yield


def _open(shard: WalShard, base: int, first: list[bytes], answered: int) -> OSError | None:
    """Open a shard, or return why the disk has no room for it."""
    try:
        shard.open(base, first, answered)
    except OSError as error:
        if error.errno not in NO_ROOM_ERRNOS:
            raise
        log.warning("no room for the log, so nothing can be written: %s", error)
        return without_frames(error)
    return None
