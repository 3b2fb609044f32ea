"""What the engine knows about itself, as metrics: topics, log, recovery, files, memory.

Only this file puts an engine's figures (`engine/figures.py`) under these names.  Their order is
promised, because programs that look for a line by its beginning find `headrace_topics` before
`headrace_topics_by_class`.  A scrape costs the same however many topics there are: totals are kept
by the engine, and only the first `TOPICS_SHOWN_MAX` topics have series of their own.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from typing import Final

from headrace.core.settings import Settings
from headrace.core.telemetry import (
    Counter,
    Described,
    escape,
)
from headrace.engine.engine import Engine
from headrace.engine.figures import Figures
from headrace.engine.topics.topic import Topic
from headrace.metrics.archive import watch_archives
from headrace.metrics.engine_holders import hold_engine
from headrace.metrics.queues import watch_queues
from headrace.metrics.requests import Metrics
from headrace.metrics.scheduler import watch_scheduler
from headrace.metrics.scrub import watch_scrub

TOPICS_SHOWN_MAX: Final = 1_000
CLASSES: Final = ("ephemeral", "memory", "disk", "fsync")


class ShownTopics:
    """The topics that have series of their own: the first `TOPICS_SHOWN_MAX`."""

    def __init__(self, figures: Figures) -> None:
        self._figures = figures
        self.left_out = Counter()  # added up over all scrapes

    def __call__(self) -> list[Topic]:
        return list(islice(self._figures.live_topics(), TOPICS_SHOWN_MAX))

    @property
    def hidden(self) -> int:
        return max(0, self._figures.topics - TOPICS_SHOWN_MAX)


def watch_engine(metrics: Metrics, engine: Engine) -> None:
    """Register everything that is read from an engine."""
    figures = engine.figures
    _topics(metrics, engine)
    _serving(metrics, figures, engine.settings)
    _log(metrics, figures)
    _log_by_unit(metrics, figures)
    _recovery(metrics, engine)
    _storage(metrics, figures)
    watch_scrub(metrics.registry, engine.scrub)
    watch_scheduler(metrics, engine)


def _topics(metrics: Metrics, engine: Engine) -> None:
    registry, figures = metrics.registry, engine.figures
    shown = ShownTopics(figures)
    registry.gauge("headrace_topics", "Topics.", lambda: figures.topics)
    registry.read_gauges(
        "headrace_topics_by_class",
        "Topics by durability class.",
        ("class",),
        lambda: [((name,), figures.topics_of_class(name)) for name in CLASSES],
    )
    registry.gauge("headrace_routers", "Routers.", lambda: figures.routers)
    registry.gauge(
        "headrace_routers_blocked",
        "Routers whose destination takes nothing for now.",
        lambda: figures.routers_blocked,
    )
    registry.gauge("headrace_streams", "Topics that are streams.", lambda: figures.streams)
    registry.gauge("headrace_stream_forks", "Streams that are forks.", lambda: figures.stream_forks)
    registry.gauge(
        "headrace_streams_soft_deleted",
        "Deleted streams whose data is kept for their forks.",
        lambda: figures.streams_soft_deleted,
    )
    registry.gauge("headrace_records_live", "Live records.", lambda: figures.records_live)
    registry.gauge("headrace_bytes_live", "Their data and meta.", lambda: figures.bytes_live)
    registry.block(PER_TOPIC, lambda: _topic_lines(shown))
    watch_queues(registry, engine, shown)
    watch_archives(registry, figures, shown)
    registry.gauge(
        "headrace_topic_metrics_truncated",
        f"1 when only the first {TOPICS_SHOWN_MAX} topics have series of their own.",
        lambda: int(shown.hidden > 0),
    )
    registry.read_counter(
        "headrace_topic_series_dropped_total",
        "Topics left out, added up over all scrapes.",
        lambda: shown.left_out.value,
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


def _topic_lines(topics: ShownTopics) -> Iterator[str]:
    """The series of single topics, all at once: a label is made once, not once a metric."""
    shown = [(f'{{topic="{escape(topic.name)}"}}', topic) for topic in topics()]
    topics.left_out.add(topics.hidden)
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


def _tier_lines(figures: Figures) -> Iterator[str]:
    tiers = figures.tiers()
    counts = ((tiers.hot_files, tiers.cold_files), (tiers.hot_bytes, tiers.cold_bytes))
    for described, (hot, cold) in zip(PER_TIER, counts, strict=True):
        name = described.name
        yield f'{described.head}{name}{{tier="hot"}} {hot}\n{name}{{tier="cold"}} {cold}\n'


def _serving(metrics: Metrics, figures: Figures, settings: Settings) -> None:
    registry, sources = metrics.registry, metrics.sources
    registry.gauge(
        "headrace_sse_connections", "Open SSE streams.", lambda: sources.sse_connections()
    )
    registry.gauge(
        "headrace_watch_sessions", "Watch sessions kept.", lambda: sources.watch_sessions()
    )
    hold_engine(sources.holders, figures, settings)
    sources.holders.watch(registry, settings)
    registry.gauge("headrace_ready", "1 once recovery is done.", lambda: int(figures.ready))
    registry.gauge("headrace_recovery_progress", "From 0 to 1.", lambda: figures.recovery_progress)
    registry.gauge("headrace_uptime_ms", "Since the start.", lambda: figures.uptime_ms)


def _log(metrics: Metrics, figures: Figures) -> None:
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
        (
            "headrace_wal_inline_fsyncs_total",
            "Those of them that the loop did itself, for a lone commit.",
            "inline_syncs_total",
        ),
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
        lambda: figures.log_depth_peak,
    )
    registry.gauge(
        "headrace_wal_read_only",
        "1 after a failed sync: nothing can be written until a restart.",
        lambda: int(figures.log_read_only),
    )
    registry.read_histogram(
        "headrace_wal_fsync_latency_us",
        "Time of one sync, in microseconds.",
        lambda: figures.sync_micros,
    )


class _reading:
    """A counter of the log, read when it is called."""

    def __init__(self, figures: Figures, attribute: str) -> None:
        self._figures = figures
        self._attribute = attribute

    def __call__(self) -> int:
        return self._figures.of_log(self._attribute)


def _log_by_unit(metrics: Metrics, figures: Figures) -> None:
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
        "headrace_disk_reserve_bytes",
        "Room held back so that deletes work on a full disk; 0 while it is spent.",
        lambda: figures.disk_reserve_bytes,
    )
    registry.gauge(
        "headrace_wal_disk_full",
        "1 while the log has no room; ends by itself.",
        lambda: int(figures.writes_blocked_by not in ("", "wal_read_only")),
    )


def _recovery(metrics: Metrics, engine: Engine) -> None:
    registry, figures = metrics.registry, engine.figures
    registry.gauge(
        "headrace_recovery_duration_seconds",
        "How long the last start took until it was ready.",
        lambda: figures.recovery_ns / 1e9,
    )
    registry.gauge(
        "headrace_recovery_topics",
        "Topics of class memory that are not back yet; they are refused until then.",
        lambda: figures.topics_recovering,
    )
    registry.gauge(
        "headrace_recovery_topics_progress",
        "How far these are, from 0 to 1.",
        lambda: figures.topics_recovered_part,
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


def _storage(metrics: Metrics, figures: Figures) -> None:
    registry = metrics.registry
    registry.read_counter(
        "headrace_tier_relocated_bytes_total",
        "Bytes of sealed files that moved to the cold tier.",
        lambda: figures.relocated_bytes_total,
    )
    registry.read_counter(
        "headrace_tier_cold_reads_total",
        "Records that reads took from the cold tier.",
        lambda: figures.cold_reads_total,
    )
    registry.read_counter(
        "headrace_checkpoints_total",
        "Checkpoints that came to their end.",
        lambda: figures.checkpoints_total,
    )
    registry.read_counter(
        "headrace_checkpoint_failures_total",
        "Checkpoints that failed; the log is kept and grows.",
        lambda: figures.checkpoint_failures_total,
    )
    registry.read_gauges(
        "headrace_memory_bytes",
        "Memory by what it holds; unsealed and ephemeral are parts of records.",
        ("kind",),
        lambda: [((kind,), size) for kind, size in figures.memory().items()],
    )
    registry.gauge(
        "headrace_idempotency_entries",
        "Idempotency keys remembered.",
        lambda: figures.idempotency_entries,
    )
    registry.gauge(
        "headrace_producer_appends",
        "Appends of producers whose seqs are remembered, beside the newest of each.",
        lambda: figures.producer_appends,
    )
    registry.read_counters(
        "headrace_read_cache_blocks_total",
        "Blocks of sealed files that reads needed, by whether memory held them.",
        ("result",),
        lambda: ((("hit",), figures.read_cache_hits), (("miss",), figures.read_cache_misses)),
    )
    registry.block(PER_TIER, lambda: _tier_lines(figures))
    registry.gauge(
        "headrace_disk_free_bytes", "Free where the data directory is.", figures.disk_free_bytes
    )
