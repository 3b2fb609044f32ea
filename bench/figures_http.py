"""The figures of the server under load, with their goals; `figures.py` adds them to the others."""

from __future__ import annotations

from bench.goals import Figure, Goal, Values, at_least, at_most
from bench.goals import figures_of as _case
from tests.support.hostile_kinds import KINDS

WATCHERS = (0, 1, 10, 1_000)
# Of deliveries without sockets.
DELIVERED = (1, 100, 1_000)
_LONE_SYNC = "the same, 1 connection"


def _load(case: str, name: str, about: str, cpu: Goal | None, p99: Goal | None) -> list[Figure]:
    """What every closed loop of requests is described by."""
    return _case(
        case,
        (f"{name}_cpu", "µs", f"{about}: server CPU a request", cpu),
        (f"{name}_rate", "requests/s", f"{about}: wall clock", None),
        (f"{name}_p50", "µs", f"{about}: latency p50", None),
        (f"{name}_p99", "µs", f"{about}: latency p99", p99),
    )


def _bulk(case: str, name: str, unit: str, about: str, goal: Goal) -> list[Figure]:
    return _case(
        case,
        (f"{name}", f"{unit}/s", f"{about}: wall clock", goal),
        (f"{name}_cpu", f"{unit}/CPU s", f"{about}: server CPU", None),
    )


def _watchers(count: int) -> list[Figure]:
    name = f"http_sse_{count}"
    about = f"{count:,} watcher{'s' if count > 1 else ''}, 20 appends/s"
    p50 = at_most(12 if count == 1_000 else 2)
    return _case(
        "http_sse",
        (f"{name}_p50", "ms", f"{about}: delivery p50", p50),
        (f"{name}_p99", "ms", f"{about}: delivery p99", None),
        (f"{name}_writer_p99", "ms", f"{about}: the writer's p99", _writer_goal()),
        (f"{name}_cpu", "µs", f"{about}: server CPU per delivery", None),
    )


def _delivery(count: int) -> list[Figure]:
    name = f"http_delivery_{count}"
    about = f"the Python part of a delivery to one of {count:,} watchers"
    return _case(
        "http_delivery",
        (f"{name}_cpu", "µs", about, None),
        (f"{name}_bytecodes", "", "the same, in bytecodes", None),
    )


def _hostile(kind: str) -> list[Figure]:
    """What a load of all dialects notices of one kind of hostile clients, or of all of them."""
    name = f"http_hostile_{kind}"
    quiet = f"{name}_quiet_p99"
    twice = Goal(True, lambda values: 2 * values[quiet], "<= 2 x quiet")
    return _case(
        "http_hostile",
        (quiet, "ms", f"1,000 requests/s, rounds without {kind}: p99", None),
        (f"{name}_p99", "ms", f"the same, rounds beside {kind}: p99", twice),
        (f"{name}_busy", "cores", f"server CPU that {kind} added", None),
        (f"{name}_growth", "MB", f"RSS that {kind} added, at its highest", None),
    )


def _writer_goal() -> Goal:
    def bound(values: Values) -> float:
        return values["http_sse_0_writer_p99"] + 3

    return Goal(True, bound, "<= without x 1 + 3")


def _appends(name: str, about: str, cpu: Goal | None) -> list[Figure]:
    of = f"1 x 256 B, 64 connections, topics in turn, {about}"
    return _case(
        "http_appends",
        (f"http_appends_{name}_cpu", "µs", f"{of}: server CPU a request", cpu),
        (f"http_appends_{name}_rate", "requests/s", f"{of}: wall clock", None),
    )


def _lone(way: str, about: str) -> list[Figure]:
    name = f"http_lone_{way}"
    beside = [
        row
        for neighbour, what in (("append", "an append of class disk"), ("read", "a read"))
        for row in (
            (f"{name}_beside_{neighbour}_p50", "µs", f"{about}, beside a neighbour: p50", None),
            (f"{name}_{neighbour}_p50", "µs", f"the neighbour, {what}: p50", None),
            (f"{name}_{neighbour}_p99", "µs", "the same, p99", None),
            (f"{name}_{neighbour}_rate", "requests/s", "the same", None),
        )
    ]
    return _case(
        "http_lone",
        (f"{name}_p50", "µs", f"{about}, alone: p50", None),
        (f"{name}_p99", "µs", "the same, p99", None),
        *beside,
    )


_SINGLE = "1 x 256 B, 64 connections"
_ONE = "1 x 256 B, 1 connection"

HTTP_FIGURES: tuple[Figure, ...] = (
    *_load("http_append", "http_append_disk", f"{_SINGLE}, class disk", at_most(25), None),
    *_load("http_append", "http_append_fsync", f"{_SINGLE}, class fsync", at_most(35), None),
    *_load("http_append", "http_append_one_disk", f"{_ONE}, class disk", None, None),
    *_load("http_append", "http_append_one_fsync", f"{_ONE}, class fsync", None, None),
    *_case(
        "http_append",
        ("http_append_generator_cpu", "µs", "the generator's own CPU a request, disk", None),
    ),
    *_appends("disk", "to 100 topics, class disk", at_most(20)),
    *_appends("fsync", "to 100 topics, class fsync", at_most(30)),
    *_appends("many", "to 10,000 topics", None),
    *_appends("mixed", "of 40 to 4,000 B", None),
    *_appends("key", "with a key", None),
    *_appends("producer", "with Producer-Seq", None),
    *_bulk("http_batch", "http_batch_100", "records", "100 x 150 B as JSON", at_least(600_000)),
    *_bulk("http_batch", "http_batch_1000", "records", "1,000 x 150 B", at_least(1_000_000)),
    *_bulk("http_diff", "http_diff_1000", "records", "1,000 x 150 B as JSON", at_least(700_000)),
    *_bulk(
        "http_arrow", "http_arrow_append_binary", "rows",
        "append of 10,000 x 150 B as binary", at_least(3_000_000),
    ),
    *_bulk(
        "http_arrow", "http_arrow_append_utf8", "rows",
        "append of 10,000 x 150 B as utf8", at_least(1_200_000),
    ),
    *_bulk(
        "http_arrow", "http_arrow_diff_binary", "rows",
        "diff of 10,000 x 150 B as binary", at_least(3_000_000),
    ),
    *_bulk(
        "http_arrow", "http_arrow_diff_utf8", "rows",
        "diff of 10,000 x 150 B as utf8", at_least(1_200_000),
    ),
    *_case(
        "http_budget",
        ("http_budget_read", "µs", "a lone append: read, route, decode", None),
        ("http_budget_stage", "µs", "checks, seq, block", None),
        ("http_budget_write", "µs", "the log write", None),
        ("http_budget_sync", "µs", "fdatasync (class fsync only)", None),
        ("http_budget_answer", "µs", "the turn, publishing, the answer's bytes", None),
        ("http_budget_watch", "µs", "a watcher: wake, read, frame", None),
        ("http_budget_socket", "µs", "a small write to a socket on loopback", None),
        ("http_budget_disk", "µs", "from the bytes of a request to its answer, disk", None),
        ("http_budget_fsync", "µs", "the same, class fsync", None),
    ),
    *_case(
        "http_turn",
        ("http_turn_append_1_cpu", "µs", "the Python part of an append alone in its turn", None),
        ("http_turn_append_1_bytecodes", "", "the same, in bytecodes", None),
        ("http_turn_append_64_cpu", "µs", "of one append among 64 in a turn", None),
        ("http_turn_append_64_bytecodes", "", "the same, in bytecodes", None),
        ("http_turn_diff_1_cpu", "µs", "of a read of 10 records alone in its turn", None),
        ("http_turn_diff_1_bytecodes", "", "the same, in bytecodes", None),
        ("http_turn_diff_64_cpu", "µs", "of one read among 64 in a turn", None),
        ("http_turn_diff_64_bytecodes", "", "the same, in bytecodes", None),
    ),
    *(figure for count in DELIVERED for figure in _delivery(count)),
    *_case(
        "http_turn_streams",
        ("http_turn_h2_1_cpu", "µs", "of an append over HTTP/2 alone in its turn", None),
        ("http_turn_h2_1_bytecodes", "", "the same, in bytecodes", None),
        ("http_turn_ws_1_cpu", "µs", "of a publish over a WebSocket alone in its turn", None),
        ("http_turn_ws_1_bytecodes", "", "the same, in bytecodes", None),
        ("http_turn_h2_64_cpu", "µs", "of one among 64 over HTTP/2, 16 a connection", None),
        ("http_turn_h2_64_bytecodes", "", "the same, in bytecodes", None),
        ("http_turn_ws_64_cpu", "µs", "of one among 64 over as many WebSockets", None),
        ("http_turn_ws_64_bytecodes", "", "the same, in bytecodes", None),
    ),
    *_case(
        "http_latency",
        ("http_latency_saturation", "requests/s", f"{_SINGLE}, class fsync, closed loop", None),
        ("http_latency_rate", "requests/s", "half of that, open loop: what was reached", None),
        ("http_latency_p50", "ms", "acknowledgement at half of saturation: p50", None),
        ("http_latency_p99", "ms", "the same, p99", at_most(9.99)),
        ("http_latency_p999", "ms", "the same, p99.9", None),
    ),
    *_case("http_lone", ("http_lone_bare_p50", "µs", "a bare fdatasync in the same run", None)),
    *_lone("inline", "one writer, class fsync"),
    *_lone("lane", "the same with every sync in the lane"),
    *_case(
        "http_sse",
        ("http_sse_0_writer_p99", "ms", "no watcher, 20 appends/s: the writer's p99", None),
        ("http_sse_0_writer_p50", "ms", "the same, p50", None),
    ),
    *(figure for count in WATCHERS[1:] for figure in _watchers(count)),
    *_case(
        "http_idle",
        ("http_idle_topics", "MB", "100,000 topics with one record, made over HTTP: RSS", None),
        ("http_idle_resident", "MB", "the same and 5,000 idle watchers: RSS", at_most(1_000)),
        ("http_idle_watcher_kb", "kB", "RSS that each idle watcher added", None),
        ("http_idle_cpu", "ms", "CPU a second while all of them are idle", None),
    ),
    *_case(
        "http_memory",
        ("http_memory_resident", "MB", f"{_SINGLE}, 100 topics, 30 s: RSS at the end",
         at_most(350)),
        ("http_memory_peak", "MB", "the same, at its highest", None),
        ("http_memory_idle", "MB", "the same, before the first append", None),
        ("http_memory_refused", "requests", "the same: 429s", at_most(0)),
        ("http_memory_checkpoints", "", "checkpoints meanwhile", None),
        ("http_memory_rate", "requests/s", "the same: wall clock", None),
        ("http_memory_cpu", "µs", "the same: server CPU a request", None),
        ("http_memory_batch_resident", "MB", "JSON, 1,000 records of 150 B, 30 s: RSS at the end",
         at_most(350)),
        ("http_memory_batch_peak", "MB", "the same, at its highest", at_most(350)),
        ("http_memory_batch_idle", "MB", "the same, before the first append", None),
        ("http_memory_batch_refused", "requests", "the same: 429s", at_most(0)),
        ("http_memory_batch_checkpoints", "", "checkpoints meanwhile", None),
        ("http_memory_batch_rate", "requests/s", "the same: wall clock", None),
        ("http_memory_batch_cpu", "µs", "the same: server CPU a request", None),
    ),
    *(row for kind in (*KINDS, "all") for row in _hostile(kind)),
    *_load("http_h2", "http_h2_disk", "1 x 256 B over h2c, 4 x 16 streams, disk", None, None),
    *_load("http_websocket", "http_websocket_publish", "publish, 64 sockets", None, None),
    *_case(
        "http_websocket",
        ("http_websocket_delivery_p50", "ms", "10 subscribers, 20 publishes/s: p50", None),
        ("http_websocket_delivery_p99", "ms", "the same, p99", None),
    ),
    *_case(
        "http_soak",
        ("http_soak_growth", "x", "mixed load: RSS of the last quarter to the second",
         at_most(1.05)),
        ("http_soak_resident", "MB", "RSS at the end", None),
        ("http_soak_rate", "requests/s", "requests answered", None),
        ("http_soak_p99", "ms", "append p99, worst minute", None),
        ("http_soak_gc_pause", "ms", "the longest garbage collection", None),
        ("http_soak_minutes", "min", "how long it ran", None),
    ),
)  # fmt: skip
