"""What an engine can say about itself in numbers: topics, log, memory, files, archive, recovery.

Only this file reads the engine's parts for those who show figures: metrics, probes, the CLI.  Each
figure is cheap: totals are kept by the engine, so reading one costs the same however many topics
there are.  It changes nothing.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from headrace.core.errors import NotReady
from headrace.core.telemetry import BATCH_RECORDS, LATENCY_NS, SECONDS_PER_NS, Histogram, add_up
from headrace.engine.queues.operations import Queues
from headrace.engine.reading.manifest import Manifests
from headrace.engine.reading.read import Reader
from headrace.engine.recovery.startup import Startup
from headrace.engine.routers.directory import RouterDirectory
from headrace.engine.sealing.checkpointer import Checkpointer
from headrace.engine.state import EngineState
from headrace.engine.topics.topic import Topic

FSYNC_MICROS = (50, 100, 250, 500, 1_000, 5_000, 10_000, 50_000, 100_000)


class TierFigures(NamedTuple):
    """Sealed files of the hot and of the cold tier, and their bytes."""

    hot_files: int
    hot_bytes: int
    cold_files: int
    cold_bytes: int


class Figures:
    """The figures of one engine at this moment.

    Recovery makes topics in another thread: until it is done there are none to count.
    """

    def __init__(
        self,
        state: EngineState,
        startup: Startup,
        routers: RouterDirectory,
        queues: Queues,
        checkpointer: Checkpointer,
        reader: Reader,
        manifests: Manifests,
    ) -> None:
        self._state = state
        self._startup = startup
        self._routers = routers
        self._queues = queues
        self._checkpointer = checkpointer
        self._reader = reader
        self._manifests = manifests
        self._started_ns = state.clock.monotonic_ns()

    @property
    def ready(self) -> bool:
        return self._state.ready

    @property
    def uptime_ms(self) -> int:
        return (self._state.clock.monotonic_ns() - self._started_ns) // 1_000_000

    # Topics

    @property
    def topics(self) -> int:
        return self._state.totals.topics if self.ready else 0

    def topics_of_class(self, durability: str) -> int:
        return self._state.totals.by_class[durability] if self.ready else 0

    @property
    def queue_topics(self) -> int:
        return self._state.totals.queues if self.ready else 0

    @property
    def streams(self) -> int:
        """Topics that are streams, without those that are kept for their forks alone."""
        totals = self._state.totals
        return totals.streams - totals.soft_deleted if self.ready else 0

    @property
    def stream_forks(self) -> int:
        return self._state.totals.forks if self.ready else 0

    @property
    def streams_soft_deleted(self) -> int:
        return self._state.totals.soft_deleted if self.ready else 0

    @property
    def leases(self) -> int:
        """Jobs that are leased."""
        return self._queues.leases if self.ready else 0

    @property
    def routers(self) -> int:
        return len(self._routers) if self.ready else 0

    @property
    def router_bytes(self) -> int:
        """What the names and filters of all routers hold."""
        return self._routers.bytes.held if self.ready else 0

    @property
    def topic_config_bytes(self) -> int:
        """What the names in all configs hold."""
        return self._state.totals.config_bytes if self.ready else 0

    @property
    def routers_blocked(self) -> int:
        """Routers whose destination takes nothing for now."""
        return self._routers.blocked if self.ready else 0

    @property
    def records_live(self) -> int:
        return self._state.totals.records if self.ready else 0

    @property
    def bytes_live(self) -> int:
        """Data and meta of the live records."""
        return self._state.totals.bytes if self.ready else 0

    def live_topics(self) -> Iterator[Topic]:
        """Every topic that exists, oldest first; nothing may be created while it is iterated."""
        if self.ready:
            yield from (topic for topic in self._state.by_name.values() if topic.live)

    # The log

    def of_log(self, name: str) -> int:
        """The sum of one counter of all shards."""
        return sum(getattr(shard, name) for shard in self._state.shards)

    @property
    def log_depth_peak(self) -> int:
        """The most commits that have waited for the log at once."""
        return max((shard.depth_peak for shard in self._state.shards), default=0)

    @property
    def log_window_ms(self) -> int:
        """How long a sync waits for more commits to join it."""
        return max((shard.window_ms for shard in self._state.shards), default=0)

    @property
    def log_read_only(self) -> bool:
        """Whether nothing can be written until a restart, because a sync failed."""
        return any(shard.state == "wal_read_only" for shard in self._state.shards)

    @property
    def writes_blocked_by(self) -> str:
        """Why nothing can be written now; "" when it can.

        A shard that had no room is asked to look again, as there may be no other writer to it.
        """
        for shard in self._state.shards:
            if shard.refusal() is not None:
                return shard.state
        return ""

    @property
    def sync_micros(self) -> Histogram:
        return add_up([shard.syncs.micros for shard in self._state.shards], FSYNC_MICROS, 1)

    @property
    def sync_durations(self) -> Histogram:
        shards = [shard.syncs.durations for shard in self._state.shards]
        return add_up(shards, LATENCY_NS, SECONDS_PER_NS)

    @property
    def batch_entries(self) -> Histogram:
        return add_up([shard.batch_entries for shard in self._state.shards], BATCH_RECORDS, 1)

    # Memory, files, checkpoints

    def memory(self) -> dict[str, int]:
        """Bytes of memory by what they hold; unsealed and ephemeral are parts of records."""
        state = self._state
        return {
            "records": state.totals.resident_bytes,
            "unsealed": state.totals.unsealed_bytes,
            "ephemeral": state.totals.ephemeral_bytes,
            "tag_index": state.totals.tag_index_bytes,
            "read_cache": state.cache.bytes,
        }

    @property
    def idempotency_entries(self) -> int:
        return self._state.keys.entries

    @property
    def producers(self) -> int:
        """Producers that all topics remember."""
        return self._state.producer_memory.producers if self.ready else 0

    @property
    def jobs_out(self) -> int:
        """Jobs of all queues that were delivered and are not done."""
        return self._queues.jobs_out if self.ready else 0

    @property
    def fences(self) -> int:
        """Streams with a token that a writer has to know, if it gives one."""
        return self._state.totals.fences if self.ready else 0

    @property
    def recent_page_bytes(self) -> int:
        """Pages that were read lately."""
        return self._reader.recent_bytes

    @property
    def manifest_pins(self) -> int:
        """Manifests whose files are kept."""
        return len(self._manifests)

    @property
    def producer_appends(self) -> int:
        return self._state.producer_memory.appends

    @property
    def read_cache_hits(self) -> int:
        return self._state.cache.hits

    @property
    def read_cache_misses(self) -> int:
        return self._state.cache.misses

    def tiers(self) -> TierFigures:
        files, sizes = [0, 0], [0, 0]
        for segment in self._state.catalog.segments() if self.ready else ():
            files[segment.meta.tier] += 1
            sizes[segment.meta.tier] += segment.meta.size
        return TierFigures(files[0], sizes[0], files[1], sizes[1])

    @property
    def relocated_bytes_total(self) -> int:
        """Bytes of sealed files that moved to the cold tier."""
        return self._state.relocated_bytes_total

    @property
    def cold_reads_total(self) -> int:
        """Records that reads took from the cold tier."""
        return self._state.reads.cold_records

    @property
    def checkpoints_total(self) -> int:
        return self._checkpointer.checkpoints_total

    @property
    def checkpoint_failures_total(self) -> int:
        return self._checkpointer.failures_total

    @property
    def disk_reserve_bytes(self) -> int:
        """Room held back so that deletes work on a full disk."""
        return self._state.reserve.bytes

    def disk_free_bytes(self) -> int:
        return self._state.fs.free_bytes()

    # The archive

    @property
    def topics_overtaken(self) -> int:
        """Topics that lost records before these were archived, and whose archive is behind."""
        return len(self._state.overtaken) if self.ready else 0

    @property
    def overtaken_records_total(self) -> int:
        return self._state.overtaken_records_total

    @property
    def archive_reads_total(self) -> int:
        return self._state.reads.archive_reads

    @property
    def archive_records_total(self) -> int:
        """Records that reads took from the archive."""
        return self._state.reads.archive_records

    @property
    def archive_read_errors_total(self) -> int:
        return self._state.reads.archive_errors

    # Recovery

    @property
    def recovery_progress(self) -> float:
        return 1.0 if self.ready else self._startup.progress

    @property
    def topics_recovering(self) -> int:
        """Topics of class `memory` that are not back yet, although the engine is ready."""
        return len(self._state.loading)

    @property
    def topics_recovered_part(self) -> float:
        """How far these are, from 0 to 1."""
        return self._state.loading.part

    @property
    def topics_failed(self) -> NotReady | None:
        """Why some of these stay away until a restart; None: they do not."""
        loading = self._state.loading
        return loading.refusal(None) if loading and loading.failed else None

    @property
    def recovery_ns(self) -> int:
        """How long the last start took until the engine was ready."""
        return self._startup.duration_ns

    def of_recovery(self, name: str) -> int:
        """One number of what recovery found; 0 before it is done."""
        recovered = self._startup.recovered
        return 0 if recovered is None else int(getattr(recovered, name))
