"""Every setting: its name, default, bounds and meaning.

Only this file knows a setting.  A value out of its bounds is refused here, wherever it comes from,
and two that contradict each other (`core/setting_relations.py`); `core/setting_rules.py` says what
bounds are, and `core/config.py` finds the values.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Annotated, get_type_hints

from headrace.core import limits
from headrace.core.limits import KIB, MIB
from headrace.core.setting_relations import Value, check_relations
from headrace.core.setting_rules import Rule, check_value
from headrace.core.setting_rules import count as _count
from headrace.core.setting_rules import duration as _duration
from headrace.core.setting_rules import flag as _flag
from headrace.core.setting_rules import size as _size
from headrace.core.setting_rules import text as _text


@dataclass(frozen=True, slots=True)
class Settings:
    """All settings of one process; valid once constructed.

    >>> Settings(port=0).port
    0
    >>> Settings(port=70_000)
    Traceback (most recent call last):
    headrace.core.errors.ConfigError: port is 70000; use 65535 or less
    """

    # What a person sets.
    data_dir: Annotated[str, _text("Directory that holds everything stored.")] = "./headrace-data"
    host: Annotated[str, _text("Address to listen on: a host, or host:port.")] = "127.0.0.1"
    port: Annotated[int, _count("TCP port to listen on; 0 takes a free one.", 0, 65_535)] = 4000
    port_file: Annotated[str, _text("File that gets the port once ready; empty: none.")] = ""
    log: Annotated[
        str, _text("Least severe log level shown.", choices=("debug", "info", "warning", "error"))
    ] = "info"
    cold_url: Annotated[
        str,
        _text(
            "Where old segments go: a directory, or an s3:// or gs:// address; empty: nowhere.",
            variables=("HEADRACE_COLD_URL", "HEADRACE_COLD_DIR"),
        ),
    ] = ""

    lake: Annotated[
        str,
        _text(
            "Where `headrace lake` keeps tables, and reads of topics with `cold_reads` look: a"
            " directory, or an s3:// or gs:// address; empty: `lake` in the data directory."
        ),
    ] = ""

    # Who may connect, and from where.
    api_keys: Annotated[
        str,
        _text("Bearer keys, `key[:scopes[:prefixes]]`, by commas; none: no auth.", secret=True),
    ] = ""
    allow_insecure_no_auth: Annotated[
        bool, _flag("Serve beyond this machine although there are no keys.")
    ] = False
    probe_auth: Annotated[bool, _flag("Ask for a key on health and ready, too.")] = False
    cors_origins: Annotated[
        str, _text("Origins of web pages that may call, by commas, or `*`; empty: none.")
    ] = ""
    allowed_hosts: Annotated[
        str, _text("More names by which this server may be addressed without keys, by commas.")
    ] = ""
    tls_cert: Annotated[str, _text("Certificate chain, a PEM file; empty: no TLS.")] = ""
    tls_key: Annotated[str, _text("Private key of the certificate, a PEM file.")] = ""

    # Connections and requests in progress.
    max_connections: Annotated[int, _count("Most connections at once.")] = 20_000
    header_bytes_max: Annotated[int, _size("Request line and headers of one request.", KIB)] = (
        64 * KIB
    )
    header_timeout_ms: Annotated[int, _duration("Time for a request's headers to arrive.")] = 60_000
    body_timeout_ms: Annotated[
        int, _duration("Time without a byte of a body, and over which its rate is looked at.")
    ] = 30_000
    body_bytes_per_second_min: Annotated[
        int,
        _size(
            "Slowest rate of a body, of a frame that a session has begun, and of a WebSocket"
            " message; 0: none.",
            0,
        ),
    ] = 256
    chunk_overhead_bytes_max: Annotated[
        int,
        _size(
            "Chunk sizes, extensions and trailers of a body, beside 16 bytes for each of it.", KIB
        ),
    ] = 64 * KIB
    idle_timeout_ms: Annotated[int, _duration("Time a connection may rest.")] = 120_000
    write_timeout_ms: Annotated[
        int,
        _duration(
            "Time without a byte taken by a client that is being answered, and over which its"
            " rate is looked at."
        ),
    ] = 30_000
    answer_bytes_per_second_min: Annotated[
        int,
        _size(
            "Slowest rate at which a client takes what waits for it, also of a stream; 0: none.", 0
        ),
    ] = 256
    slow_consumer_timeout_ms: Annotated[
        int,
        _duration("Time a stream's client may take nothing; then it is closed, and can resume."),
    ] = 30_000
    drain_timeout_ms: Annotated[int, _duration("Time for requests to end at a stop.", 0)] = 10_000
    pipeline_requests_max: Annotated[int, _count("Requests of a connection in progress.")] = 64
    turn_requests_max: Annotated[
        int, _count("Requests of one turn of the loop that are handled together; 1: none are.")
    ] = 512
    parked_requests_max: Annotated[int, _count("Requests that wait for recovery.", 0)] = 1_000
    parked_ms_max: Annotated[int, _duration("Time a request waits for recovery.", 0)] = 5_000
    request_memory_bytes_max: Annotated[
        int, _size("Bodies of all requests that are arriving.", MIB)
    ] = 512 * MIB
    response_memory_bytes_max: Annotated[
        int, _size("Answers of all connections that clients have not taken yet.", MIB)
    ] = 32 * MIB
    stream_pending_bytes: Annotated[
        int, _size("Bytes a stream may have pending before it waits.", KIB)
    ] = 256 * KIB
    compress_bytes_min: Annotated[int, _size("Smallest answer that is compressed.")] = KIB
    http2_streams_max: Annotated[int, _count("Streams of one HTTP/2 connection.")] = 1_024
    http2_ping_ms: Annotated[int, _duration("Time between HTTP/2 pings, and for an answer.")] = (
        20_000
    )
    websocket_message_bytes_max: Annotated[int, _size("One WebSocket message.", KIB)] = 64 * MIB

    # The write-ahead log.
    wal_shards: Annotated[
        int, _count("Logs written side by side; recovery accepts any.", 1, limits.wal_shards_max)
    ] = 1
    wal_file_bytes: Annotated[int, _size("Size of one log file.", 64 * KIB)] = 128 * MIB
    wal_batch_bytes_max: Annotated[int, _size("Most bytes one group commit holds.", 4 * KIB)] = (
        4 * MIB
    )
    wal_pending_bytes_max: Annotated[int, _size("Most bytes waiting for the log.", 4 * KIB)] = (
        64 * MIB
    )
    wal_queue_depth_max: Annotated[
        int, _count("Appends waiting for the log beyond which an overloaded server refuses more.")
    ] = 4_096
    sync_interval_ms: Annotated[
        int, _duration("Longest time until classes `memory` and `disk` are synced.", 1, 60_000)
    ] = 50
    inline_sync_us_max: Annotated[
        int,
        _count(
            "Microseconds that syncs may take on average for the loop to wait for one itself when"
            " a durable append is all there is to do; 0: it never does.",
            0,
            limits.inline_sync_us_max,
        ),
    ] = 500

    disk_reserve_bytes: Annotated[
        int,
        _size(
            "Room held back so that deletes work on a full disk; at most a sixteenth of the disk;"
            " 0: none.",
            0,
        ),
    ] = 96 * MIB

    # Checkpoints and segments.
    checkpoint_wal_bytes: Annotated[int, _size("Log bytes that start a checkpoint.")] = 64 * MIB
    checkpoint_age_ms: Annotated[int, _duration("Age that starts a checkpoint.")] = 600_000
    segment_max_events: Annotated[
        int, _count("Rows in shared files that give a topic segments of its own.")
    ] = 10_000
    segment_max_bytes: Annotated[int, _size("Most payload bytes of a topic's segment.")] = 64 * MIB
    segment_max_age_ms: Annotated[
        int, _duration("Age of unsealed rows that seals a topic's segment.")
    ] = 3_600_000
    hot_retain_segments: Annotated[
        int, _count("Own segments a topic keeps on local disk; 0: no bound.", 0)
    ] = 4
    hot_retain_bytes: Annotated[
        int, _size("Sealed bytes a topic keeps on local disk; 0: no bound.", 0)
    ] = 0

    # The scrub.
    scrub_bytes_per_second: Annotated[
        int, _size("Bytes of stored files that are verified in a second; 0: none are.", 0)
    ] = 4 * MIB
    scrub_interval_ms: Annotated[
        int, _duration("Time after which a file is verified again.", 1_000)
    ] = 7 * 86_400_000
    scrub_repair_from: Annotated[
        str,
        _text(
            "A backup that damaged segments are fetched again from: a directory, or an s3:// or"
            " gs:// address; empty: none."
        ),
    ] = ""

    # Memory and threads.
    memory_budget_bytes: Annotated[
        int, _size("Memory for unsealed records, indexes and caches together.", MIB)
    ] = 160 * MIB
    read_cache_bytes: Annotated[int, _size("Verified segment blocks kept.", 0)] = 128 * MIB
    tag_index_bytes_max: Annotated[int, _size("Index of the tags of unsealed records.", 0)] = (
        64 * MIB
    )
    replay_memory_bytes: Annotated[int, _size("Memory for replay at start.", MIB)] = 64 * MIB
    reader_threads: Annotated[
        int, _count("Threads that read from disk.", 1, limits.reader_threads_max)
    ] = 2

    # Caps on the whole.
    idempotency_entries_max: Annotated[
        int, _count("Idempotency keys remembered; a full table answers 429.")
    ] = 1_000_000
    producers_per_topic_max: Annotated[
        int, _count("Producers a topic remembers; a new one beyond them answers 422.")
    ] = 100_000
    producers_max: Annotated[
        int, _count("Producers all topics remember; a new one beyond them answers 422.")
    ] = 1_000_000
    appends_per_producer_max: Annotated[
        int,
        _count(
            "Newest appends of a producer whose repeats are answered with their seqs.", 1, 1_000
        ),
    ] = 16
    producer_appends_max: Annotated[
        int, _count("The same of all producers; the newest of each is known beside them.", 0)
    ] = 250_000
    max_topics: Annotated[int, _count("Most topics; 0: no bound.", 0)] = 100_000
    max_total_bytes: Annotated[int, _size("Most live bytes of all topics; 0: no bound.", 0)] = 0

    jobs_out_max: Annotated[int, _count("Jobs of one queue delivered and not done.")] = 200_000
    all_jobs_out_max: Annotated[int, _count("The same of all queues.")] = 1_000_000
    claims_waiting_max: Annotated[int, _count("Claims of one queue that are being gathered.")] = (
        10_000
    )
    max_routers: Annotated[int, _count("Most routers; 0: no bound.", 0)] = 10_000
    max_watch_sessions: Annotated[int, _count("Most watch sessions; 0: no bound.", 0)] = 10_000
    max_sse_connections: Annotated[
        int, _count("Most SSE and WebSocket connections; 0: no bound.", 0)
    ] = 10_000
    max_sse_connections_per_key: Annotated[
        int, _count("The same for one API key; 0: no bound.", 0)
    ] = 1_000
    max_long_polls: Annotated[int, _count("Most reads that wait for records; 0: no bound.", 0)] = (
        20_000
    )
    max_inflight_per_key: Annotated[
        int, _count("Requests in progress of one API key; 0: no bound.", 0)
    ] = 1_000

    # Webhooks of subscriptions to streams.
    ds_webhook_loopback: Annotated[
        bool, _flag("Send webhooks to this machine, too, and over http: for development.")
    ] = False
    ds_webhook_key_days: Annotated[
        int, _count("Days that a key signs webhooks; 0: for ever.", 0, 3_650)
    ] = 90

    # What callers may make the server hold in memory: one object, and all of its kind.
    watch_session_bytes_max: Annotated[
        int, _size("Topics and nodes of one watch session or WebSocket.", KIB)
    ] = 2 * MIB
    watch_sessions_bytes_max: Annotated[int, _size("The same of all of them.", KIB)] = 128 * MIB
    router_bytes_max: Annotated[int, _size("Names and filter of one router.", KIB)] = 4 * KIB
    routers_bytes_max: Annotated[int, _size("The same of all routers.", KIB)] = 32 * MIB
    pipeline_bytes_max: Annotated[
        int, _size("Declaration of one pipeline; its worker's last report.", KIB)
    ] = 64 * KIB
    pipelines_bytes_max: Annotated[int, _size("Declarations of all pipelines.", KIB)] = 64 * MIB
    subscription_bytes_max: Annotated[
        int, _size("Config and linked streams of one subscription to streams.", KIB)
    ] = 32 * MIB
    subscriptions_bytes_max: Annotated[int, _size("The same of all subscriptions.", KIB)] = (
        128 * MIB
    )
    topic_config_bytes_max: Annotated[int, _size("Names in the config of one topic.", 0)] = KIB
    topic_configs_bytes_max: Annotated[int, _size("The same of all topics.", KIB)] = 64 * MIB
    api_key_bytes_max: Annotated[int, _size("An API key with its prefixes.", KIB)] = 64 * KIB
    api_keys_bytes_max: Annotated[int, _size("All API keys.", KIB)] = MIB

    # Limits on one request.
    records_per_append_max: Annotated[int, _count("Records in one append.")] = 10_000
    record_bytes_max: Annotated[int, _size("Data and meta of one record.")] = MIB
    body_bytes_max: Annotated[
        int, _size("Body of one request.", variables=("HEADRACE_MAX_BODY_BYTES",))
    ] = 64 * MIB
    meta_bytes_max: Annotated[int, _size("Meta of one record.")] = 16 * KIB
    meta_keys_max: Annotated[int, _count("Top-level keys in meta.")] = 64
    tag_bytes_max: Annotated[int, _size("A tag.")] = 256
    node_bytes_max: Annotated[int, _size("A node name.")] = 128
    idempotency_key_bytes_max: Annotated[int, _size("An idempotency key.")] = 256
    read_limit_default: Annotated[int, _count("Records in a read that names no limit.")] = 256
    read_limit_max: Annotated[int, _count("Records in one read.")] = 1_000
    wait_ms_max: Annotated[int, _duration("Longest wait of a long poll.", 0)] = 30_000
    read_bytes_default: Annotated[int, _size("Bytes in a read that names no budget.")] = MIB
    read_bytes_max: Annotated[int, _size("Bytes in one read.")] = 8 * MIB
    claim_bytes_max: Annotated[int, _size("Bytes of jobs in one claim, beyond the first.")] = (
        8 * MIB
    )
    arrow_rows_max: Annotated[int, _count("Rows in one Arrow body.")] = 65_536
    arrow_bytes_max: Annotated[int, _size("Bytes in one Arrow answer.")] = 64 * MIB
    page_size_default: Annotated[int, _count("Items in a list that names no size.")] = 100
    page_size_max: Annotated[int, _count("Items in one list.")] = 1_000
    topics_per_watch_max: Annotated[int, _count("Topics and patterns that one watch names.")] = 256
    watch_topics_behind_max: Annotated[
        int, _count("Topics of a watch's patterns that wait for a slow reader at a time.")
    ] = 100_000
    watch_journal_bytes: Annotated[
        int, _size("Publishes that watches of many topics can resume from.", KIB)
    ] = 16 * MIB
    heartbeat_ms_default: Annotated[int, _duration("Heartbeat of a watch that names none.")] = (
        15_000
    )
    watch_session_ttl_ms: Annotated[int, _duration("Time an unused watch session is kept.")] = (
        300_000
    )
    manifest_pin_ms: Annotated[int, _duration("Time the files of a manifest are kept.")] = 600_000
    manifest_pins_max: Annotated[int, _count("Manifests whose files are kept at once.")] = 10_000

    # Durable Streams.
    ds_long_poll_ms: Annotated[int, _duration("Longest wait of a stream's long poll.")] = 30_000
    ds_durability: Annotated[
        str,
        _text(
            "Class of new streams: what a crash may take of what was acknowledged.",
            choices=("memory", "disk", "fsync"),
        ),
    ] = "fsync"

    # The S2 API.
    s2_durability: Annotated[
        str,
        _text(
            "Class of new S2 streams: what a crash may take of what was acknowledged.",
            choices=("memory", "disk", "fsync"),
        ),
    ] = "fsync"
    s2_basins_max: Annotated[int, _count("Most basins.")] = 10_000
    s2_tokens_max: Annotated[int, _count("Most access tokens of the S2 API.")] = 10_000
    s2_locations: Annotated[
        str, _text("Locations that the S2 API lists, by commas; basins are in the first.")
    ] = "local"

    def __post_init__(self) -> None:
        for name, rule in RULES.items():
            check_value(name, rule, getattr(self, name))
        check_relations(asdict(self), lambda name: name)


RULES: Mapping[str, Rule] = {
    name: hint.__metadata__[0]
    for name, hint in get_type_hints(Settings, include_extras=True).items()
}


# Last, because the defaults are checked like any other values.
DEFAULTS: Mapping[str, Value] = asdict(Settings())
assert RULES.keys() == DEFAULTS.keys()
