"""What the engine knows about itself, as metrics: topics, log, recovery, files, memory.

Only this file reads the engine for a scrape.  The names of the native contract come first and in
its order, because programs that look for a line by its beginning find `headrace_topics` before
`headrace_topics_by_class`.  A scrape costs the same however many topics there are: totals are kept
by the engine, and only the first `TOPICS_SHOWN_MAX` topics have series of their own.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import islice
from typing import Final

import msgspec

from headrace.core.telemetry import (
    BATCH_RECORDS,
    LATENCY_NS,
    SECONDS_PER_NS,
    Counter,
    Described,
    Histogram,
    Labels,
    Number,
    add_up,
    escape,
)
from headrace.engine.engine import Engine
from headrace.engine.topic import Topic
from headrace.wire.metrics import Metrics
from headrace.wire.metrics_archive import watch_archives
from headrace.wire.metrics_queues import leases_of, watch_queues
from headrace.wire.metrics_scheduler import watch_scheduler

TOPICS_SHOWN_MAX: Final = 1_000
CLASSES: Final = ("ephemeral", "memory", "disk", "fsync")
FSYNC_MICROS: Final = (50, 100, 250, 500, 1_000, 5_000, 10_000, 50_000, 100_000)


class EngineFigures:
    """The engine's figures at this moment; each property is cheap."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self._core = engine.core
        self._started_ns = engine.core.clock.monotonic_ns()
        self.topics_left_out = Counter()

    @property
    def ready(self) -> bool:
        return self._core.ready

    @property
    def progress(self) -> float:
        return 1.0 if self._core.ready else self.engine.progress

    @property
    def uptime_ms(self) -> int:
        return (self._core.clock.monotonic_ns() - self._started_ns) // 1_000_000

    # Topics.  Recovery makes them in another thread: until it is done there are none to count.

    @property
    def topics(self) -> int:
        return self._core.totals.topics if self.ready else 0

    @property
    def by_class(self) -> dict[str, int]:
        return {name: self._core.totals.by_class[name] for name in CLASSES} if self.ready else {}

    @property
    def routers(self) -> int:
        return len(self.engine.routers) if self.ready else 0

    @property
    def routers_blocked(self) -> int:
        return self.engine.routers.blocked if self.ready else 0

    @property
    def records_live(self) -> int:
        return self._core.totals.records if self.ready else 0

    @property
    def bytes_live(self) -> int:
        return self._core.total_bytes if self.ready else 0

    @property
    def queue_topics(self) -> int:
        return self._core.totals.queues if self.ready else 0

    def shown(self) -> list[Topic]:
        """The topics that have series of their own."""
        if not self.ready:
            return []
        live = (topic for topic in self._core.by_name.values() if topic.live)
        return list(islice(live, TOPICS_SHOWN_MAX))

    @property
    def topics_hidden(self) -> int:
        return max(0, self.topics - TOPICS_SHOWN_MAX)

    # The log

    def of_log(self, name: str) -> int:
        """The sum of one counter of all shards."""
        return sum(getattr(shard, name) for shard in self._core.shards)

    @property
    def depth_peak(self) -> int:
        return max((shard.depth_peak for shard in self._core.shards), default=0)

    @property
    def read_only(self) -> bool:
        return any(shard.state == "wal_read_only" for shard in self._core.shards)

    @property
    def blocked_by(self) -> str:
        """Why nothing can be written now; "" when it can.

        A shard that had no room is asked to look again: nobody else may be writing to it.
        """
        for shard in self._core.shards:
            if shard.refusal() is not None:
                return shard.state
        return ""

    @property
    def sync_micros(self) -> Histogram:
        return add_up([shard.sync_micros for shard in self._core.shards], FSYNC_MICROS, 1)

    @property
    def sync_durations(self) -> Histogram:
        shards = [shard.sync_durations for shard in self._core.shards]
        return add_up(shards, LATENCY_NS, SECONDS_PER_NS)

    @property
    def batch_entries(self) -> Histogram:
        return add_up([shard.batch_entries for shard in self._core.shards], BATCH_RECORDS, 1)

    # Recovery

    def of_recovery(self, name: str) -> int:
        recovered = self.engine.recovered
        return 0 if recovered is None else int(getattr(recovered, name))


def watch_engine(metrics: Metrics, engine: Engine) -> EngineFigures:
    """Register everything that is read from an engine."""
    figures = EngineFigures(engine)
    _native_topics(metrics, figures)
    _native_live(metrics, figures)
    _native_log(metrics, figures)
    _log(metrics, figures)
    _recovery(metrics, engine, figures)
    _storage(metrics, engine)
    watch_scheduler(metrics, engine)
    return figures


class WalSnapshot(msgspec.Struct):
    """The log, since the start."""

    fsyncs: int
    frames: int
    batches: int
    bytes_written: int
    rotations: int
    queue_depth: int
    queue_depth_peak: int
    submit_full_total: int
    read_only: bool
    fsync_count: int
    fsync_micros_total: int


class MetricsSnapshot(msgspec.Struct):
    """The totals of `/v0/metrics`, for programs that would rather read JSON."""

    topics: int
    topics_ephemeral: int
    topics_memory: int
    topics_disk: int
    topics_fsync: int
    routers: int
    records_live: int
    bytes_live: int
    queue_topics: int
    queue_leases_in_flight: int
    sse_connections: int
    watch_sessions: int
    ready: bool
    replay_progress: float
    uptime_ms: int
    wal: WalSnapshot


def snapshot(metrics: Metrics, figures: EngineFigures) -> MetricsSnapshot:
    """The totals now."""
    by_class = figures.by_class
    sources = metrics.sources
    micros = figures.sync_micros
    return MetricsSnapshot(
        topics=figures.topics,
        topics_ephemeral=by_class.get("ephemeral", 0),
        topics_memory=by_class.get("memory", 0),
        topics_disk=by_class.get("disk", 0),
        topics_fsync=by_class.get("fsync", 0),
        routers=figures.routers,
        records_live=figures.records_live,
        bytes_live=figures.bytes_live,
        queue_topics=figures.queue_topics,
        queue_leases_in_flight=leases_of(figures.engine),
        sse_connections=sources.sse_connections(),
        watch_sessions=sources.watch_sessions(),
        ready=figures.ready,
        replay_progress=figures.progress,
        uptime_ms=figures.uptime_ms,
        wal=WalSnapshot(
            fsyncs=figures.of_log("syncs_total"),
            frames=figures.of_log("frames_total"),
            batches=figures.of_log("batches_total"),
            bytes_written=figures.of_log("bytes_total"),
            rotations=figures.of_log("rotations_total"),
            queue_depth=figures.of_log("depth"),
            queue_depth_peak=figures.depth_peak,
            submit_full_total=figures.of_log("submit_full_total"),
            read_only=figures.read_only,
            fsync_count=micros.count,
            fsync_micros_total=int(micros.sum),
        ),
    )


def _native_topics(metrics: Metrics, figures: EngineFigures) -> None:
    registry = metrics.registry
    registry.gauge("headrace_topics", "Topics.", lambda: figures.topics)
    registry.read_gauges(
        "headrace_topics_by_class",
        "Topics by durability class.",
        ("class",),
        lambda: [((name,), figures.by_class.get(name, 0)) for name in CLASSES],
    )
    registry.gauge("headrace_routers", "Routers.", lambda: figures.routers)
    registry.gauge(
        "headrace_routers_blocked",
        "Routers whose destination takes nothing for now.",
        lambda: figures.routers_blocked,
    )
    registry.gauge("headrace_records_live", "Live records.", lambda: figures.records_live)
    registry.gauge("headrace_bytes_live", "Their data and meta.", lambda: figures.bytes_live)
    registry.block(PER_TOPIC, lambda: _topic_lines(figures))
    watch_queues(registry, figures.engine, figures.shown)
    watch_archives(registry, figures.engine, figures.shown)
    registry.gauge(
        "headrace_topic_metrics_truncated",
        f"1 when only the first {TOPICS_SHOWN_MAX} topics have series of their own.",
        lambda: int(figures.topics_hidden > 0),
    )
    registry.read_counter(
        "headrace_topic_series_dropped_total",
        "Topics left out, added up over all scrapes.",
        lambda: figures.topics_left_out.value,
    )


PER_TOPIC: Final = [
    Described(name, "gauge", ("topic",), help_text)
    for name, help_text in (
        ("headrace_topic_head_seq", "The last seq of a topic."),
        ("headrace_topic_earliest_seq", "The first seq that is still there."),
        ("headrace_topic_records_live", "Live records of a topic."),
        ("headrace_topic_bytes_live", "Data and meta of these."),
        ("headrace_topic_live_bytes", "The same, named by its unit."),
    )
]


def _topic_lines(figures: EngineFigures) -> Iterator[str]:
    """The series of single topics, all at once: a label is made once, not once a metric."""
    shown = [(f'{{topic="{escape(topic.name)}"}}', topic) for topic in figures.shown()]
    figures.topics_left_out.add(figures.topics_hidden)
    heads, earliest, records, sizes, live_sizes = (one.name for one in PER_TOPIC)
    series = (
        [f"{heads}{label} {topic.head}\n" for label, topic in shown],
        [f"{earliest}{label} {topic.base + 1}\n" for label, topic in shown],
        [f"{records}{label} {topic.count}\n" for label, topic in shown],
        [f"{sizes}{label} {topic.bytes}\n" for label, topic in shown],
        [f"{live_sizes}{label} {topic.bytes}\n" for label, topic in shown],
    )
    for described, lines in zip(PER_TOPIC, series, strict=True):
        yield described.head
        yield from lines


PER_TIER: Final = [
    Described("headrace_segment_files", "gauge", ("tier",), "Sealed files."),
    Described("headrace_segment_bytes", "gauge", ("tier",), "Their bytes."),
]


def _tier_lines(engine: Engine) -> Iterator[str]:
    files, sizes = [0, 0], [0, 0]
    for segment in engine.core.catalog.segments() if engine.core.ready else ():
        files[segment.meta.tier] += 1
        sizes[segment.meta.tier] += segment.meta.size
    for described, (hot, cold) in zip(PER_TIER, (files, sizes), strict=True):
        name = described.name
        yield f'{described.head}{name}{{tier="hot"}} {hot}\n{name}{{tier="cold"}} {cold}\n'


def _native_live(metrics: Metrics, figures: EngineFigures) -> None:
    registry, sources = metrics.registry, metrics.sources
    registry.gauge(
        "headrace_sse_connections", "Open SSE streams.", lambda: sources.sse_connections()
    )
    registry.gauge(
        "headrace_watch_sessions", "Watch sessions kept.", lambda: sources.watch_sessions()
    )
    registry.gauge("headrace_ready", "1 once recovery is done.", lambda: int(figures.ready))
    registry.gauge("headrace_recovery_progress", "From 0 to 1.", lambda: figures.progress)
    registry.gauge("headrace_uptime_ms", "Since the start.", lambda: figures.uptime_ms)


def _native_log(metrics: Metrics, figures: EngineFigures) -> None:
    registry = metrics.registry
    counters = (
        (
            "headrace_wal_frames_total",
            "Entries written to the log, without those that tell what routers copied.",
            "frames_total",
        ),
        (
            "headrace_wal_forward_entries_total",
            "Entries that tell what routers copied; one for up to 128 routers of a source.",
            "forwards_total",
        ),
        ("headrace_wal_batches_total", "Batches written to the log.", "batches_total"),
        ("headrace_wal_fsyncs_total", "Syncs of the log.", "syncs_total"),
        ("headrace_wal_bytes_written_total", "Bytes written to the log.", "bytes_total"),
        ("headrace_wal_rotations_total", "Changes to another log file.", "rotations_total"),
        (
            "headrace_wal_submit_full_total",
            "Appends refused because too much waited for the log.",
            "submit_full_total",
        ),
    )
    for name, help_text, attribute in counters:
        registry.read_counter(name, help_text, _reading(figures, attribute))
    registry.gauge(
        "headrace_wal_queue_depth",
        "Commits that wait to be written.",
        lambda: figures.of_log("depth"),
    )
    registry.gauge(
        "headrace_wal_queue_depth_peak",
        "The most of these there have been.",
        lambda: figures.depth_peak,
    )
    registry.gauge(
        "headrace_wal_read_only",
        "1 after a failed sync: nothing can be written until a restart.",
        lambda: int(figures.read_only),
    )
    registry.read_histogram(
        "headrace_wal_fsync_latency_us",
        "Time of one sync, in microseconds.",
        lambda: figures.sync_micros,
    )


class _reading:
    """A counter of the log, read when it is called."""

    def __init__(self, figures: EngineFigures, attribute: str) -> None:
        self._figures = figures
        self._attribute = attribute

    def __call__(self) -> int:
        return self._figures.of_log(self._attribute)


def _log(metrics: Metrics, figures: EngineFigures) -> None:
    registry = metrics.registry
    registry.read_histogram(
        "headrace_wal_fsync_duration_seconds",
        "Time of one sync.",
        lambda: figures.sync_durations,
    )
    registry.read_counter(
        "headrace_wal_written_bytes_total",
        "Bytes written to the log.",
        lambda: figures.of_log("bytes_total"),
    )
    registry.read_histogram(
        "headrace_wal_commit_batch_records",
        "Entries of one batch of the log.",
        lambda: figures.batch_entries,
    )
    registry.gauge(
        "headrace_wal_pending_bytes",
        "Bytes that wait to be written to the log.",
        lambda: figures.of_log("pending_bytes"),
    )
    registry.gauge(
        "headrace_wal_disk_full",
        "1 while the log has no room; ends by itself.",
        lambda: int(figures.blocked_by not in ("", "wal_read_only")),
    )


def _recovery(metrics: Metrics, engine: Engine, figures: EngineFigures) -> None:
    registry = metrics.registry
    registry.gauge(
        "headrace_recovery_duration_seconds",
        "How long the last start took until it was ready.",
        lambda: engine.recovery_ns / 1e9,
    )
    registry.gauge(
        "headrace_recovery_replayed_bytes",
        "Bytes of log that the last start replayed.",
        lambda: figures.of_recovery("bytes_replayed"),
    )
    registry.gauge(
        "headrace_recovery_truncated_bytes",
        "Bytes of log that the last start dropped as torn.",
        lambda: figures.of_recovery("bytes_dropped"),
    )
    registry.gauge(
        "headrace_recovery_gaps",
        "Ranges of seqs that the last start announced as lost.",
        lambda: figures.of_recovery("gaps"),
    )
    registry.read_counter(
        "headrace_clock_jumps_total",
        "Jumps of the wall clock by more than a minute.",
        lambda: engine.clock_jumps_total,
    )


def _storage(metrics: Metrics, engine: Engine) -> None:
    registry, core, checkpointer = metrics.registry, engine.core, engine.checkpointer
    registry.read_counter(
        "headrace_tier_relocated_bytes_total",
        "Bytes of sealed files that moved to the cold tier.",
        lambda: core.relocated_bytes_total,
    )
    registry.read_counter(
        "headrace_tier_cold_reads_total",
        "Records that reads took from the cold tier.",
        lambda: core.cold_reads_total,
    )
    registry.read_counter(
        "headrace_checkpoints_total",
        "Checkpoints that came to their end.",
        lambda: checkpointer.checkpoints_total,
    )
    registry.read_counter(
        "headrace_checkpoint_failures_total",
        "Checkpoints that failed; the log is kept and grows.",
        lambda: checkpointer.failures_total,
    )

    def memory() -> Iterable[tuple[Labels, Number]]:
        return (
            (("records",), core.resident_bytes),
            (("unsealed",), core.unsealed_bytes),
            (("ephemeral",), core.ephemeral_bytes),
            (("tag_index",), core.tag_index_bytes),
            (("read_cache",), core.cache.bytes),
        )

    registry.read_gauges(
        "headrace_memory_bytes",
        "Memory by what it holds; unsealed and ephemeral are parts of records.",
        ("kind",),
        memory,
    )
    registry.gauge(
        "headrace_idempotency_entries", "Idempotency keys remembered.", lambda: core.keys.entries
    )
    registry.read_counters(
        "headrace_read_cache_blocks_total",
        "Blocks of sealed files that reads needed, by whether memory held them.",
        ("result",),
        lambda: ((("hit",), core.cache.hits), (("miss",), core.cache.misses)),
    )
    registry.block(PER_TIER, lambda: _tier_lines(engine))
    registry.gauge(
        "headrace_disk_free_bytes", "Free where the data directory is.", core.fs.free_bytes
    )
