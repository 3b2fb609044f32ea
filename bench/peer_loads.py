"""The rows of `./run bench --peers`: each a server, what is sent to it, and what it promises.

All rows of a case run in turns.  `versus` names the row of ours that promises the same.
"""

from __future__ import annotations

from functools import partial
from typing import NamedTuple

from bench import jobs
from bench.case_http_appends import MANY_TOPICS, TOPICS
from bench.peer_starts import (
    BATCH,
    Start,
    dramatiq_jobs,
    headrace,
    headrace_bulk,
    headrace_jobs,
    headrace_read,
    headrace_topics,
    headrace_traffic,
    headrace_watched,
    nats,
    nats_jobs,
    node_streams,
    redis,
    redis_jobs,
    redis_many,
    redis_read,
    redis_streams,
    rust_bulk,
    rust_many,
    rust_streams,
    rust_watched,
    s2_streams,
    unserved,
)

CONNECTIONS = 64
READ_CONNECTIONS = 8
DRAMATIQ_JOBS = 2_000  # it takes its time
WATCHERS = (1, 100, 1_000)
ARROW_ROWS = 10_000


class Load(NamedTuple):
    """One row: a server, what is sent, and the row of ours it is compared with."""

    name: str
    what: str
    promise: str  # when the answer comes
    start: Start
    versus: str
    case: str  # by which rows can be chosen
    connections: int = CONNECTIONS
    jobs: int = 0
    partner: str = "load:take_turns"
    units: int = 1  # records of a request, where figures are of records

    @property
    def kind(self) -> str:
        """Whose server it is."""
        return self.name.partition(" ")[0]


# The rows

_WRITTEN = "written, synced within 50 ms"
_SOON = "in memory, written soon, synced each s"
_ON_DISK = "on disk"
_ONE, _MANY = "append 256 B", f"append 256 B, {TOPICS} topics"

DISK, FSYNC = "headrace disk", "headrace fsync"
_APPEND = (
    Load(DISK, _ONE, _WRITTEN, headrace, DISK, "http_append"),
    Load("redis everysec", _ONE, _SOON, partial(redis, policy="everysec"), DISK, "http_append"),
    Load(
        "nats file", _ONE, "written, synced each 2 min", partial(nats, sync="default"), DISK,
        "http_append",
    ),
    Load(
        "durable-streams-node memory", _ONE, "in memory", partial(node_streams, stored=False),
        DISK, "http_append",
    ),
    Load(FSYNC, _ONE, _ON_DISK, partial(headrace, durability="fsync"), FSYNC, "http_append"),
    Load("redis always", _ONE, _ON_DISK, partial(redis, policy="always"), FSYNC, "http_append"),
    Load("nats sync always", _ONE, _ON_DISK, partial(nats, sync="always"), FSYNC, "http_append"),
    Load(
        "durable-streams-node file", _ONE, _ON_DISK, partial(node_streams, stored=True), FSYNC,
        "http_append",
    ),
)  # fmt: skip

TOPICS_DISK, TOPICS_FSYNC = "headrace topics disk", "headrace topics fsync"
RUST_MEMORY, RUST_WAL = "durable-streams-rust memory", "durable-streams-rust wal"
REDIS_EVERYSEC, REDIS_ALWAYS = "redis topics everysec", "redis topics always"


def _appends(name: str, promise: str, start: Start, versus: str) -> Load:
    return Load(name, _MANY, promise, start, versus, "http_appends")


_APPENDS = (
    _appends(TOPICS_DISK, _WRITTEN, partial(headrace_topics, durability="disk"), TOPICS_DISK),
    _appends(
        RUST_MEMORY, "in the page cache", partial(rust_streams, durability="memory"), TOPICS_DISK
    ),
    _appends(REDIS_EVERYSEC, _SOON, partial(redis_streams, policy="everysec"), TOPICS_DISK),
    _appends("s2-lite memory", "in memory", partial(s2_streams, stored=False), TOPICS_DISK),
    _appends(TOPICS_FSYNC, _ON_DISK, partial(headrace_topics, durability="fsync"), TOPICS_FSYNC),
    _appends(RUST_WAL, _ON_DISK, partial(rust_streams, durability="wal"), TOPICS_FSYNC),
    _appends(REDIS_ALWAYS, _ON_DISK, partial(redis_streams, policy="always"), TOPICS_FSYNC),
    _appends("s2-lite files", _ON_DISK, partial(s2_streams, stored=True), TOPICS_FSYNC),
)


PLAIN, MANY = "headrace plain", "headrace 10,000 topics"
TRAFFIC_CASE = "http_traffic"
_TO_MANY = f"{_ONE}, {MANY_TOPICS:,} topics"


def _traffic(name: str, what: str, promise: str, start: Start, versus: str) -> Load:
    return Load(name, what, promise, start, versus, TRAFFIC_CASE)


_TRAFFIC = (
    *(
        _traffic(name, what, _WRITTEN, partial(headrace_traffic, name=kind), PLAIN)
        for name, what, kind in (
            (PLAIN, _MANY, "disk"),
            ("headrace mixed lengths", f"append 40 to 4,000 B, {TOPICS} topics", "mixed"),
            ("headrace key", f"{_MANY}, with a key", "key"),
            ("headrace producer", f"{_MANY}, with Producer-Seq", "producer"),
        )
    ),
    _traffic(MANY, _TO_MANY, _WRITTEN, partial(headrace_traffic, name="many"), MANY),
    _traffic(
        "durable-streams-rust 10,000 topics", _TO_MANY, "in the page cache",
        partial(rust_many, topics=MANY_TOPICS), MANY,
    ),
    _traffic(
        "redis 10,000 topics", _TO_MANY, _SOON, partial(redis_many, topics=MANY_TOPICS), MANY
    ),
)  # fmt: skip


def _reads(records: int) -> tuple[Load, ...]:
    ours, what = f"headrace diff {records:,}", f"read {records:,} x 256 B"
    return tuple(
        Load(name, what, "", partial(start, records=records), ours, "http_diff", READ_CONNECTIONS)
        for name, start in ((ours, headrace_read), (f"redis xread {records:,}", redis_read))
    )


JOBS_DISK, JOBS_FSYNC = "headrace jobs disk", "headrace jobs fsync"
REDIS_JOBS, NATS_JOBS = "redis jobs everysec", "nats jobs file"
NATS_CONFIRMED = "nats jobs file confirmed"
_BATCHED = "jobs, claim 8, ack 8"


def _jobs(
    name: str, what: str, promise: str, start: Start, versus: str,
    jobs_of_round: int = jobs.JOBS, partner: str = "jobs:take_turns",
) -> Load:  # fmt: skip
    return Load(
        name, what, promise, start, versus, "http_queue",
        jobs.WORKER_COUNT, jobs_of_round, partner,
    )  # fmt: skip


_JOBS = (
    _jobs(JOBS_DISK, _BATCHED, _WRITTEN, partial(headrace_jobs, how="disk"), JOBS_DISK),
    _jobs(REDIS_JOBS, _BATCHED, _SOON, partial(redis_jobs, policy="everysec"), JOBS_DISK),
    _jobs(
        "dramatiq on redis everysec", "jobs, one by one", _SOON,
        partial(dramatiq_jobs, policy="everysec"), JOBS_DISK, DRAMATIQ_JOBS,
        "peer_partners:dramatiq",
    ),
    _jobs(
        NATS_JOBS, "jobs, claim 8, ack 1, unanswered", "written, synced each 2 min",
        partial(nats_jobs, how="default"), JOBS_DISK,
    ),
    _jobs(
        NATS_CONFIRMED, "jobs, claim 8, ack 1", "written, synced each 2 min",
        partial(nats_jobs, how="default confirmed"), JOBS_DISK,
    ),
    _jobs(JOBS_FSYNC, _BATCHED, _ON_DISK, partial(headrace_jobs, how="fsync"), JOBS_FSYNC),
    _jobs(
        "headrace jobs fsync leases", _BATCHED, "on disk, claims too",
        partial(headrace_jobs, how="fsync leases"), JOBS_FSYNC,
    ),
    _jobs(
        "redis jobs always", _BATCHED, "on disk, claims too",
        partial(redis_jobs, policy="always"), JOBS_FSYNC,
    ),
    _jobs(
        "nats jobs sync always", "jobs, claim 8, ack 1", _ON_DISK,
        partial(nats_jobs, how="always confirmed"), JOBS_FSYNC,
    ),
)  # fmt: skip

WRITER, BARE = "headrace one writer", "bare fdatasync"
WRITER_HTTP = "headrace one writer over HTTP"
_SYNCS = (
    Load(
        BARE, "300 B, one after the other", _ON_DISK, partial(unserved, writes="bare"), WRITER,
        "fsync", 1, partner="peer_partners:one_writer",
    ),
    Load(
        WRITER, "append 150 B, in process", _ON_DISK, partial(unserved, writes="engine"), WRITER,
        "fsync", 1, partner="peer_partners:one_writer",
    ),
    Load(
        WRITER_HTTP, _ONE, _ON_DISK, partial(headrace, durability="fsync"), WRITER, "fsync", 1
    ),
)  # fmt: skip


def watch_names(watchers: int) -> tuple[str, str]:
    """Ours and theirs."""
    return f"headrace sse {watchers:,}", f"durable-streams-rust sse {watchers:,}"


def _watched(watchers: int) -> tuple[Load, ...]:
    ours, theirs = watch_names(watchers)
    what = f"SSE, {watchers:,} watcher{'s' if watchers > 1 else ''}, 200 appends/s"
    return tuple(
        Load(
            name, what, promise, start, ours, "http_sse", watchers,
            partner="peer_partners:watchers",
        )
        for name, promise, start in (
            (ours, _WRITTEN, headrace_watched),
            (theirs, "in the page cache", rust_watched),
        )
    )  # fmt: skip


JSON_BATCH, ARROW_BINARY = "headrace json 100", "headrace arrow binary"
_JSON = {"wire": "append", "records": BATCH}
_ARROW = {"wire": "arrow_append", "rows": ARROW_ROWS}


def _bulk(
    name: str, what: str, start: Start, case: str, connections: int, units: int, versus: str
) -> Load:
    partner = "peer_partners:bulk"
    return Load(name, what, _WRITTEN, start, versus, case, connections, 0, partner, units)


_BULK = (
    _bulk(
        JSON_BATCH, "append 100 x 150 B, JSON", partial(headrace_bulk, plan=_JSON), "http_batch",
        8, BATCH, JSON_BATCH,
    ),
    _bulk(
        "durable-streams-rust json 100", "append 100 x 150 B, JSON", rust_bulk, "http_batch",
        8, BATCH, JSON_BATCH,
    )._replace(promise="in the page cache"),
    *(
        _bulk(
            f"headrace arrow {column}", f"append 10,000 x 150 B, Arrow {column}",
            partial(headrace_bulk, plan={**_ARROW, "utf8": column == "utf8"}), "http_arrow",
            4, ARROW_ROWS, ARROW_BINARY,
        )
        for column in ("binary", "utf8")
    ),
)  # fmt: skip

HTTP1, HTTP2 = "headrace http/1.1", "headrace http/2"
_H2 = (
    Load(HTTP1, _ONE, _WRITTEN, headrace, HTTP1, "http_h2"),
    Load(
        HTTP2, f"{_ONE}, 4 x 16 streams", _WRITTEN,
        partial(headrace, wire="h2_append", streams=16), HTTP1, "http_h2", 4,
    ),
)  # fmt: skip

LOADS = (
    *_APPEND,
    *_APPENDS,
    *_TRAFFIC,
    *_reads(10),
    *_reads(1_000),
    *_JOBS,
    *_SYNCS,
    *(load for watchers in WATCHERS for load in _watched(watchers)),
    *_BULK,
    *_H2,
)
CASES = tuple(dict.fromkeys(load.case for load in LOADS))
