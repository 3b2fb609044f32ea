"""What the parts of the engine share: the topics, the log, the sealed files and the totals.

Only this file routes a topic to a shard.  The parts (append,
read, delete, lifecycle, checkpoint, recovery) each hold the one `EngineState`, and are handed the
few other parts they use.  They read its attributes and change it by its methods alone.  Everything
here belongs to the loop thread.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from itertools import count
from threading import Lock
from typing import TYPE_CHECKING, TypeVar

from xxhash import xxh3_64_intdigest

from headrace.core.clock import EngineClock, Random
from headrace.core.errors import (
    CorruptionError,
    HeadraceError,
    NotReady,
    ShuttingDown,
    Throttled,
    TopicNotFound,
)
from headrace.core.runtime import Runtime, Ticket
from headrace.core.settings import Settings
from headrace.engine.appending.idempotency import KeyIndex
from headrace.engine.appending.producers import ProducerMemory
from headrace.engine.forwarding_seam import Forwarding
from headrace.engine.reading.read_counters import ReadCounters
from headrace.engine.removal.row_fetches import RowFetches
from headrace.engine.scheduling.throttle import Throttle
from headrace.engine.scheduling.turns import Turns
from headrace.engine.sealed_blocks import SealedBlocks
from headrace.engine.streams.expiry import StreamExpiry
from headrace.engine.streams.staged import StagedStreams
from headrace.engine.topics.directory import TopicDirectory
from headrace.engine.topics.loading import LoadingTopics
from headrace.engine.topics.sealed_rows import Sealed
from headrace.engine.topics.topic import Topic
from headrace.engine.topics.totals import Totals
from headrace.storage.archive import Archive
from headrace.storage.files.block_cache import BlockCache
from headrace.storage.files.catalog import Catalog
from headrace.storage.files.tier import Tiers
from headrace.storage.fs import Filesystem
from headrace.storage.reserve import DiskReserve
from headrace.storage.wal.commit import ControlCommit
from headrace.storage.wal.frame import Control, encode_control
from headrace.storage.wal.room import LogRoom
from headrace.storage.wal.shard import WalShard

if TYPE_CHECKING:
    from headrace.engine.routers.state import Router

log = logging.getLogger("headrace.engine")

T = TypeVar("T")


class EngineState:
    """Shared state of one engine."""

    def __init__(
        self, settings: Settings, fs: Filesystem, runtime: Runtime, random: Random, tiers: Tiers
    ) -> None:
        self.settings = settings
        self.fs = fs
        self.runtime = runtime
        self.random = random
        self.clock = EngineClock(runtime.clock)
        self.tiers = tiers
        self.topics = TopicDirectory()
        # For looking up; `topics` changes them.
        self.by_name: Mapping[str, Topic] = self.topics.by_name
        self.by_id: Mapping[int, Topic] = self.topics.by_id
        self.totals = Totals()  # of all topics
        self.identity = ""  # the name of the data directory, once recovery has read it
        self.next_file_id = 1
        self._file_ids = Lock()  # checkpoints and merges take ids, each in a lane of their own
        self.wal_numbers: Iterator[int] = count(1)  # two threads take from it
        self.shards: Sequence[WalShard] = ()
        self.reserve = DiskReserve(fs, runtime, settings.disk_reserve_bytes)
        self.room = LogRoom(fs, self.reserve, settings.wal_batch_bytes_max)
        self.cache = BlockCache(settings.read_cache_bytes)
        self.catalog = Catalog()
        self.keys = KeyIndex(settings.idempotency_entries_max)
        self.producer_memory = ProducerMemory(settings)
        self.staged_streams = StagedStreams()
        self.expiry = StreamExpiry(self.clock)  # of streams
        self.turns = Turns(runtime)  # live delivery and background work
        self.throttle = Throttle(self, self.turns)
        self.archive: Archive | None = None  # keeps what topics with `cold_reads` let go
        self.reads = ReadCounters()
        self.relocated_bytes_total = 0  # of files that moved to the cold tier
        self.sealed_blocks = SealedBlocks(settings.memory_budget_bytes, self.totals, self.cache)
        self.fetching = RowFetches()
        self._overtaken: set[int] = set()
        self.overtaken_records_total = 0
        self.ready = False
        self.closing = False
        self.loading = LoadingTopics()
        self._routed: dict[str, list[Router]] = {}
        # Topics by name that routers feed, what brings them up to date, and who does it all.
        self.routed: Mapping[str, Sequence[Router]] = self._routed
        self.drain: Callable[[str], Ticket[None] | None] = lambda _name: None
        self.forwarding: Forwarding | None = None
        self._pinned: set[int] = set()
        self._on_created: list[Callable[[Topic], None]] = []
        self._on_deleted: list[Callable[[Topic], None]] = []

    # Life

    def restore_ids(self, generation: int, next_topic_id: int, next_file_id: int) -> None:
        """Go on from the ids of a snapshot."""
        self.topics.restore_ids(next_topic_id, generation)
        self.next_file_id = next_file_id

    def set_identity(self, identity: str) -> None:
        """Take the name that the data directory keeps for life."""
        self.identity = identity

    def set_shards(self, shards: Sequence[WalShard]) -> None:
        """Log to these shards."""
        assert not self.shards and shards
        self.shards = shards

    def number_log_files_from(self, number: int) -> None:
        """Number new log files from here on."""
        self.wal_numbers = count(number)

    def take_file_id(self) -> int:
        """The id of a new sealed file; no file has had it.  From any thread."""
        with self._file_ids:
            file_id = self.next_file_id
            self.next_file_id += 1
        return file_id

    def set_archive(self, archive: Archive | None) -> None:
        """Serve from `archive` what topics with `cold_reads` no longer hold."""
        self.archive = archive

    def go_live(self) -> None:
        """Take requests: recovery is done."""
        assert not self.ready
        self.ready = True

    def begin_closing(self) -> None:
        """Take nothing new."""
        self.closing = True
        self.reserve.close()

    def connect_routers(
        self, forwarding: Forwarding, drain: Callable[[str], Ticket[None] | None]
    ) -> None:
        """Tell the other parts who forwards, and how a topic is brought up to date."""
        assert self.forwarding is None
        self.forwarding, self.drain = forwarding, drain

    def add_route(self, router: Router) -> None:
        """Note that a router feeds its destination."""
        self._routed.setdefault(router.dest.name, []).append(router)

    def remove_route(self, router: Router) -> None:
        """Note that it does not any more."""
        into = self._routed[router.dest.name]
        into.remove(router)
        if not into:
            del self._routed[router.dest.name]

    # Topics

    def find(self, name: str) -> Topic | None:
        """The topic of this name, live or being created."""
        return self.topics.find(name)

    def topic(self, name: str) -> Topic:
        """The live topic of this name, or `TopicNotFound`."""
        if not self.ready:
            self.refuse_unready()
        if self.loading:
            self.loading.refuse(name)
        topic = self.topics.find(name)
        if topic is None or not topic.live or (topic.stream and self.expiry.hides(topic)):
            raise TopicNotFound.named(name)
        return topic

    def forget(self, topic: Topic) -> None:
        """Take a deleted topic out of memory; its files go with the next checkpoint."""
        self.topics.remove(topic)
        self._overtaken.discard(topic.id)
        if self.ready:
            self.totals.remove(topic)
        self.sealed_blocks.forget(topic)
        topic.end()
        self.keys.forget_topic(topic.id)
        self.producer_memory.forget_topic(topic)
        self.expiry.forget(topic)
        self.release_inherited(topic)
        topic.wake_waiters()

    def on_topic_created(self, listener: Callable[[Topic], None]) -> None:
        """Call this with every new topic, on the loop thread, once its creation is acknowledged."""
        self._on_created.append(listener)

    def on_topic_deleted(self, listener: Callable[[Topic], None]) -> None:
        """Call this with every deleted topic, once its deletion is acknowledged."""
        self._on_deleted.append(listener)

    def tell_created(self, topic: Topic) -> None:
        """Tell the listeners of a new topic."""
        _tell(self._on_created, topic)

    def tell_deleted(self, topic: Topic) -> None:
        """Tell the listeners of a deleted topic."""
        _tell(self._on_deleted, topic)

    def sealed(self, topic: Topic, *, wait: bool = True) -> Sealed:
        """Access to the sealed rows of a topic."""
        return Sealed(lambda: self.catalog.runs(topic.id, wait), wait)

    def despite_damage(self, topic: Topic, step: Callable[[Sealed], T]) -> T:
        """Take a step that is decided; it only needs sizes, which damaged files cannot tell."""
        try:
            return step(self.sealed(topic))
        except (CorruptionError, OSError) as error:
            log.error("the bytes of %r are not exact any more: %s", topic.name, error)
            return step(Sealed(list))

    @property
    def overtaken(self) -> Set[int]:
        """Ids of topics that lost what was to be archived first, and whose archive is behind."""
        return self._overtaken

    def update_overtaken(self, topic: Topic) -> None:
        """Look again at a topic whose watermark, config or floor has moved."""
        if topic.is_overtaken:
            self._overtaken.add(topic.id)
        else:
            self._overtaken.discard(topic.id)

    def count_overtaken(self, records: int) -> None:
        """Count records that went before they were archived."""
        self.overtaken_records_total += records

    def count_relocated(self, size: int) -> None:
        """Count the bytes of a file that moved to the cold tier."""
        self.relocated_bytes_total += size

    # The log

    def shard_of(self, topic_id: int) -> WalShard:
        shards = self.shards
        if len(shards) == 1:
            return shards[0]
        return shards[xxh3_64_intdigest(topic_id.to_bytes(8, "little")) % len(shards)]

    def refuse_unready(self) -> None:
        """Raise while there is no log to write to."""
        if not self.ready:
            raise NotReady("recovery is running", fix="retry", detail={"reason": "recovering"})

    def refuse_writes(self, shard: WalShard, *, frees: bool = False) -> None:
        """Raise if nothing can be written to this shard now; `frees`: not even what frees room."""
        pending = shard.pending_bytes
        if not (
            self.closing
            or shard.troubled
            or pending >= shard.pending_bytes_max
            or self.totals.unsealed_bytes + pending >= self.settings.memory_budget_bytes
        ):
            return
        if self.closing:
            raise ShuttingDown("the engine is closing", fix="retry after the restart")
        refusal = shard.refusal(frees=frees)
        if refusal is not None:
            raise refusal
        if frees:
            return
        if shard.pending_bytes >= shard.pending_bytes_max:
            shard.submit_full_total += 1
            raise Throttled(
                f"{shard.pending_bytes} bytes wait for the log",
                fix="retry after a moment, or raise HEADRACE_WAL_PENDING_BYTES_MAX",
                detail={"limit": "wal_pending_bytes_max", "max": shard.pending_bytes_max},
            )
        if self.totals.unsealed_bytes + shard.pending_bytes >= self.settings.memory_budget_bytes:
            shard.submit_full_total += 1
            raise Throttled(
                f"{self.totals.unsealed_bytes} bytes wait to be sealed",
                fix="retry after a moment, or raise HEADRACE_MEMORY_BUDGET_BYTES",
                detail={
                    "limit": "memory_budget_bytes",
                    "max": self.settings.memory_budget_bytes,
                },
            )

    def room_in(self, shard: WalShard) -> int:
        """How many bytes a shard takes before it refuses; raise if nothing can be written now."""
        budget = self.settings.memory_budget_bytes - self.totals.unsealed_bytes
        room = min(shard.pending_bytes_max, budget) - shard.pending_bytes
        if room <= 0 or shard.troubled or self.closing:
            self.refuse_writes(shard)
        return room

    def refuse_ephemeral(self, size: int) -> None:
        """Raise if memory has no room for more records that only it holds."""
        budget = self.settings.memory_budget_bytes // 2
        if self.totals.ephemeral_bytes + size > budget:
            raise Throttled(
                f"{self.totals.ephemeral_bytes} bytes of ephemeral records are in memory",
                fix="cap or expire them, or raise HEADRACE_MEMORY_BUDGET_BYTES",
                detail={"limit": "memory_budget_bytes", "max": self.settings.memory_budget_bytes},
            )

    def log(
        self,
        topic: Topic,
        kind: int,
        control: Control,
        *,
        needs_sync: bool,
        done: Callable[[HeadraceError | None], None] = lambda _error: None,
        behind: bytes = b"",
    ) -> None:
        """Stage a control entry of a topic; `done` hears when its class is met.

        `behind`: another entry of the topic that is in the same commit, records for example.
        """
        commit = ControlCommit(encode_control(kind, topic.id, control), needs_sync, done)
        if behind:
            commit.entries = (*commit.entries, behind)
        self.shard_of(topic.id).stage(commit)

    # Memory

    def records_removed(self, topic: Topic) -> None:
        """Count a topic again that has lost records, and drop what is dead from memory."""
        topic.recount()
        topic.mark_changed()
        self.drop_dead_blocks(topic)
        if topic.parent is not None and topic.releases():
            self.release_inherited(topic)

    def release_inherited(self, topic: Topic) -> None:
        """Let go of what was kept for a fork that has removed it, or is gone."""
        for ancestor in topic.ancestors():
            if ancestor.live:
                ancestor.mark_changed()
                self.drop_dead_blocks(ancestor)

    def drop_dead_blocks(self, topic: Topic) -> None:
        """Drop the dead blocks of a topic from memory, unless a replay may want them."""
        if topic.id in self._pinned:
            return
        topic.drop_dead_blocks()

    def pin_dead_rows(self, topic_id: int) -> None:
        """Keep the dead rows of a topic in memory, while the log is replayed."""
        assert not self.ready
        self._pinned.add(topic_id)

    def is_pinned(self, topic_id: int) -> bool:
        """Whether the dead rows of a topic are kept."""
        return topic_id in self._pinned

    def unpin(self) -> None:
        """Keep no dead rows any more: everything was replayed."""
        self._pinned.clear()

    def forget_blocks(self, topic: Topic) -> None:
        """Drop every block of a topic from memory, and the index of their tags."""
        self.sealed_blocks.forget(topic)
        topic.drop_blocks()


def _tell(listeners: list[Callable[[Topic], None]], topic: Topic) -> None:
    """Let every listener hear, whatever the others do with it."""
    for listener in tuple(listeners):
        try:
            listener(topic)
        except Exception:
            log.exception("a listener failed about %r", topic.name)


def failed(runtime: Runtime, error: BaseException) -> Ticket[T]:
    """A ticket that has failed already."""
    ticket: Ticket[T] = Ticket(runtime)
    ticket.fail(error)
    return ticket
