"""The totals of `/v0/metrics` as JSON, for programs that do not read Prometheus text.

Only this file chooses which figures are in it.
"""

from __future__ import annotations

import msgspec

from headrace.engine.figures import Figures
from headrace.metrics.requests import Metrics


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


def snapshot(metrics: Metrics, figures: Figures) -> MetricsSnapshot:
    """The totals now."""
    sources = metrics.sources
    micros = figures.sync_micros
    return MetricsSnapshot(
        topics=figures.topics,
        topics_ephemeral=figures.topics_of_class("ephemeral"),
        topics_memory=figures.topics_of_class("memory"),
        topics_disk=figures.topics_of_class("disk"),
        topics_fsync=figures.topics_of_class("fsync"),
        routers=figures.routers,
        records_live=figures.records_live,
        bytes_live=figures.bytes_live,
        queue_topics=figures.queue_topics,
        queue_leases_in_flight=figures.leases,
        sse_connections=sources.sse_connections(),
        watch_sessions=sources.watch_sessions(),
        ready=figures.ready,
        replay_progress=figures.recovery_progress,
        uptime_ms=figures.uptime_ms,
        wal=WalSnapshot(
            fsyncs=figures.of_log("syncs_total"),
            frames=figures.of_log("frames_total"),
            batches=figures.of_log("batches_total"),
            bytes_written=figures.of_log("bytes_total"),
            rotations=figures.of_log("rotations_total"),
            queue_depth=figures.of_log("depth"),
            queue_depth_peak=figures.log_depth_peak,
            submit_full_total=figures.of_log("submit_full_total"),
            read_only=figures.log_read_only,
            fsync_count=micros.count,
            fsync_micros_total=int(micros.sum),
        ),
    )
