"""Every figure the benchmarks give, with its unit and the goal it is held to.

Only this file, `figures_http.py` (the server), `figures_queue.py` (queues, routers, pressure) and
`figures_spark.py` (Spark) know goals.
"""

from __future__ import annotations

from bench.figures_http import HTTP_FIGURES
from bench.figures_queue import QUEUE_FIGURES
from bench.figures_spark import SPARK_FIGURES
from bench.goals import Figure, Goal, at_least, at_most
from bench.goals import figures_of as _case

WRITERS = 64
SHARDS = (1, 2, 4, 8)


def _writers(shards: int) -> list[Figure]:
    name = f"writers_64_shards_{shards}"
    acks = p50 = None
    if shards == 1:  # the default, and what the goals are about
        acks = at_least(30)
        p50 = Goal(
            True,
            lambda v: WRITERS * v[f"{name}_cpu"] + 4 * v[f"{name}_bare_p50"],
            "<= 64 x CPU per append + 4 x bare",
        )
    about = f"64 writers, class fsync, {shards} shard{'s' if shards > 1 else ''}"
    return [
        Figure(f"{name}_acks_per_sync", "writers", "acks", f"{about}: acks per fdatasync", acks),
        Figure(f"{name}_p50", "writers", "µs", f"{about}: latency p50", p50),
        Figure(f"{name}_p99", "writers", "µs", f"{about}: latency p99"),
        Figure(f"{name}_cpu", "writers", "µs", f"{about}: CPU per append, all threads"),
        Figure(f"{name}_acks", "writers", "acks/s", f"{about}: throughput, wall clock"),
        Figure(f"{name}_bare_p50", "writers", "µs", "a bare fdatasync in the same run"),
    ]


_READ = at_least(1_000_000)
_BATCH = "100 x 150 B, class disk"
_ONE = "1 x 150 B, class disk"
_OWN = "the same, less the time other threads had the cores"

FIGURES: tuple[Figure, ...] = (
    *_case(
        "append",
        ("append_batched", "records/CPU s", f"{_BATCH}: all threads' CPU", at_least(1_000_000)),
        ("append_batched_cpu", "µs", f"{_BATCH}: CPU per record, all threads", None),
        ("append_batched_loop_cpu", "µs", f"{_BATCH}: CPU per record, loop thread", None),
        ("append_batched_wall", "records/s", f"{_BATCH}: wall clock", None),
    ),
    *_case(
        "single",
        ("append_single_32", "µs", f"{_ONE}, 32 a turn: CPU", at_most(10)),
        ("append_single_1", "µs", f"{_ONE}, one a turn: CPU", at_most(10)),
        ("append_single_loop", "µs", f"{_ONE}, 64 asyncio tasks: CPU", None),
    ),
    *_case(
        "fsync",
        ("fsync_bare_p50", "µs", "a bare fdatasync after a small pwrite", None),
        ("fsync_bare_p99", "µs", "the same", None),
        (
            "fsync_one_writer_p50", "µs", "one writer, class fsync, asyncio",
            Goal(True, lambda v: 1.5 * v["fsync_bare_p50"], "<= 1.5 x bare"),
        ),
        ("fsync_one_writer_p99", "µs", "the same", None),
        ("fsync_blocking_p50", "µs", "one writer, class fsync, `.result()`", None),
        ("fsync_blocking_p99", "µs", "the same", None),
    ),
    *(figure for shards in SHARDS for figure in _writers(shards)),
    *_case(
        "read",
        ("read_memory", "records/CPU s", "1,000 records in memory, columns", _READ),
        ("read_memory_records", "records/CPU s", "the same, `.records`", _READ),
        ("read_memory_single", "records/CPU s", "of 1,000 single appends, columns", _READ),
        ("read_hot_cached", "records/CPU s", "hot segment in the cache, columns", _READ),
        ("read_hot_cached_records", "records/CPU s", "the same, `.records`", _READ),
        ("read_hot_uncached", "records/s", "hot segment, page cache dropped: wall clock", None),
        ("read_hot_uncached_cpu", "records/CPU s", "the same, CPU", None),
        ("read_cold", "records/s", "cold directory, page cache dropped: wall clock", None),
    ),
    *_case(
        "topics",
        ("topics_resident", "MB", "100,000 topics with one record each: RSS", at_most(500)),
        ("topics_create_cpu", "µs", "create a topic with its first record: CPU", None),
        ("topics_ready_log", "s", "ready after kill -9, all in the log", at_most(10)),
        ("topics_ready_snapshot", "s", "the same, all in a snapshot", at_most(10)),
        ("topics_resident_after", "MB", "RSS when ready again", at_most(500)),
        ("topics_bytes_each", "B", "RSS that each topic added", None),
    ),
    *_case(
        "recovery",
        ("recovery", "records/s", "replay, 100-record batches: wall clock", at_least(1_000_000)),
        ("recovery_cpu", "records/CPU s", "the same, CPU", None),
        ("recovery_sealing", "records/s", "a log beyond the replay memory: wall clock", None),
        ("recovery_memory", "MB", "RSS that this replay added at its peak", None),
        ("recovery_memory_ratio", "x", "the same, four times the log", at_most(1.25)),
    ),
    *_case(
        "growth",
        ("growth_append", "µs", "single append at 10,000,000 records: CPU", None),
        ("growth_append_ratio", "x", "against 10,000 records", at_most(1.3)),
        ("growth_read", "µs", "read of the last 100 at 10,000,000 records: CPU", None),
        ("growth_read_ratio", "x", "against 10,000 records", at_most(1.3)),
    ),
    *_case(
        "stall",
        ("stall_one_topic", "ms", "longest gap: one topic, batches, checkpoints", at_most(20)),
        ("stall_one_topic_own", "ms", _OWN, at_most(20)),
        ("stall_many_topics", "ms", "longest gap: 50,000 topics, merges, snapshots", at_most(20)),
        ("stall_many_topics_own", "ms", _OWN, at_most(20)),
        ("stall_many_topics_cpu", "ms", "the same, most CPU of the loop thread in a gap", None),
        ("stall_slice", "ms", "longest slice by the checkpointer's own count", at_most(20)),
        ("stall_idle", "ms", "longest gap with nothing but the ticker", None),
    ),
    *_case(
        "disk",
        ("disk_batched", "B/B", f"{_BATCH}: bytes to the disk per payload byte", None),
        ("disk_batched_log", "B/B", "of it: log batches", None),
        ("disk_batched_segments", "B/B", "of it: segments, merges included", None),
        ("disk_batched_rest", "B/B", "of it: log files zeroed ahead, snapshots, pages", None),
        ("disk_single", "B/B", f"{_ONE}, 32 a turn: bytes per payload byte", None),
        ("disk_fsync", "B/B", "the same, class fsync", None),
    ),
    *_case(
        "wal_files",
        ("wal_file_growing_p50", "µs", "fdatasync into a file that grows", None),
        ("wal_file_growing_p99", "µs", "the same", None),
        ("wal_file_allocated_p50", "µs", "into an allocated file", None),
        ("wal_file_allocated_p99", "µs", "the same", None),
        ("wal_file_zeroed_p50", "µs", "into a file written full of zeros", None),
        ("wal_file_zeroed_p99", "µs", "the same", None),
        ("wal_write_chunk_64k", "µs", "280 B pwritev, file zeroed in chunks of 64 KiB: CPU", None),
        ("wal_write_chunk_256k", "µs", "the same, 256 KiB", None),
        ("wal_write_chunk_1m", "µs", "the same, 1 MiB", None),
    ),
    *_case(
        "checkpoint",
        ("checkpoint_batched", "µs", "checkpoint CPU per record, blocks of 100", None),
        ("checkpoint_single", "µs", "checkpoint CPU per record, blocks of one", None),
    ),
    *HTTP_FIGURES,
    *QUEUE_FIGURES,
    *SPARK_FIGURES,
)  # fmt: skip

CASES: tuple[str, ...] = tuple(dict.fromkeys(figure.case for figure in FIGURES))

assert len({figure.name for figure in FIGURES}) == len(FIGURES)
