"""The rows and goals of `--peers durable_streams`: the protocol by its servers, in the same run.

A case is one number of streams, or of readers; class disk stands beside the Rust server's memory
mode, which answers when the page cache has it, and class fsync beside its log.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

from bench.peer_goals import PeerGoal
from bench.peer_loads import Load
from bench.peer_starts import Start
from bench.stream_starts import appended, caught_up, resting, watched

NAME = "durable_streams"
STREAMS = (1, 100, 1_000, 10_000, 100_000)
STREAMS_WITH_GOAL = 10_000
NODE_STREAMS = (1, 100)  # it syncs a file for each append
READERS = (1, 32, 1_000)
EVENTS = (200, 2_000)
EVENT_READERS = 1_000
WATCHERS = (1, 10, 100, 1_000)
AT_REST = 100_000
RESIDENT_MB = 600.0
_PROMISES = {
    "disk": "written, synced within 50 ms",
    "memory": "in the page cache",
    "fsync": "on disk",
    "wal": "on disk",
    "file": "on disk",
}
_PEERS = {"disk": "memory", "fsync": "wal"}  # modes of the Rust server, by class of ours


def _appends(streams: int) -> Iterator[Load]:
    what = f"append 256 B by producers, {streams:,} stream{'s' if streams > 1 else ''}"
    for durability, mode in _PEERS.items():
        ours = append_name("headrace", durability, streams)
        servers = [("headrace", "headrace", durability), ("durable-streams-rust", "rust", mode)]
        if durability == "fsync" and streams in NODE_STREAMS:
            servers.append(("durable-streams-node", "node", "file"))
        for kind, known, promise in servers:
            start: Start = partial(appended, kind=known, mode=promise, streams=streams)
            yield Load(
                append_name(kind, promise, streams), what, _PROMISES[promise], start, ours,
                f"ds_append_{streams}",
            )  # fmt: skip


def append_name(kind: str, mode: str, streams: int) -> str:
    return f"{kind} ds {mode} {streams:,}"


def _readings(readers: int, events: int, what: str, case: str) -> Iterator[Load]:
    ours = f"headrace {case.replace('_', ' ')}"
    servers = (("headrace", "headrace", "disk"), ("durable-streams-rust", "rust", "memory"),
               ("nginx", "nginx", ""))  # fmt: skip
    for kind, known, mode in servers:
        yield Load(
            f"{kind} {case.replace('_', ' ')}", what, "",
            partial(caught_up, kind=known, mode=mode, events=events), ours, case, readers,
        )  # fmt: skip


def _reads() -> Iterator[Load]:
    for readers in READERS:
        many = f"{readers:,} reader{'s' if readers > 1 else ''}"
        yield from _readings(readers, 0, f"catch-up of 16 MiB, {many}", f"ds_catch_up_{readers}")
    for events in EVENTS:
        what = f"catch-up of {events:,} x 1 KB, {EVENT_READERS:,} readers"
        yield from _readings(EVENT_READERS, events, what, f"ds_events_{events}")


def _watched(watchers: int) -> Iterator[Load]:
    what = f"SSE, {watchers:,} watcher{'s' if watchers > 1 else ''}, 200 appends/s"
    for name, known, mode in zip(watch_names(watchers), ("headrace", "rust"), ("disk", "memory"),
                                 strict=True):  # fmt: skip
        yield Load(
            name, what, _PROMISES[mode], partial(watched, kind=known, mode=mode),
            watch_names(watchers)[0], "ds_sse", watchers, partner="peer_partners:watchers",
        )  # fmt: skip


def watch_names(watchers: int) -> tuple[str, str]:
    """Ours and theirs."""
    return f"headrace ds sse {watchers:,}", f"durable-streams-rust ds sse {watchers:,}"


RESTING = f"headrace ds {AT_REST:,} streams at rest"
_AT_REST = tuple(
    Load(
        name, f"{AT_REST:,} streams of one message", "",
        partial(resting, kind=known, mode=mode, streams=AT_REST), RESTING, "ds_at_rest", 1,
        partner="peer_partners:at_rest",
    )
    for name, known, mode in (
        (RESTING, "headrace", "fsync"),
        (f"durable-streams-rust ds {AT_REST:,} streams at rest", "rust", "wal"),
    )
)  # fmt: skip

LOADS = (
    *(load for streams in STREAMS for load in _appends(streams)),
    *_reads(),
    *(load for watchers in WATCHERS for load in _watched(watchers)),
    *_AT_REST,
)
CASES = tuple(dict.fromkeys(load.case for load in LOADS))


def _goals() -> Iterator[PeerGoal]:
    rust, node = "durable-streams-rust", "durable-streams-node"
    for streams in STREAMS:
        if streams > STREAMS_WITH_GOAL:
            continue
        for durability, mode in _PEERS.items():
            ours = append_name("headrace", durability, streams)
            theirs = append_name(rust, mode, streams)
            yield PeerGoal("rate", ours, theirs, 1.0, at_most=False)
            yield PeerGoal("cpu", ours, theirs, 1.3)
        if streams in NODE_STREAMS:
            theirs = append_name(node, "file", streams)
            yield PeerGoal("rate", ours, theirs, 10.0, at_most=False)
    for case in dict.fromkeys(load.case for load in _reads()):
        named = case.replace("_", " ")
        yield PeerGoal("rate", f"headrace {named}", f"{rust} {named}", 1.0, at_most=False)
        yield PeerGoal("rate", f"headrace {named}", f"nginx {named}", 0.8, at_most=False)
    for watchers in WATCHERS:
        yield PeerGoal("p50", *watch_names(watchers), 1.5)
    yield PeerGoal("resident", RESTING, "", RESIDENT_MB)


GOALS = tuple(_goals())
