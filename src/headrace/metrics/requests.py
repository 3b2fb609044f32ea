"""What is counted while requests are served: the counters, and where the gauges are read from.

Only this file counts requests, appends and reads.  Each costs a few additions of whole numbers;
labels become text and nanoseconds become seconds at a scrape.  `engine.py` adds
what the engine knows, `process.py` what the process knows.
"""

from __future__ import annotations

import platform
from collections.abc import Sequence
from typing import Final, NamedTuple, Protocol

import headrace
from headrace.core.errors import CorruptionError
from headrace.core.telemetry import (
    BATCH_RECORDS,
    LATENCY_NS,
    SECONDS_PER_NS,
    Counter,
    Histogram,
    Registry,
)
from headrace.metrics.holders import Holders, Read

# Which answers are refusals, and what they are counted as.
REFUSALS: Final = {
    401: "unauthorized",
    403: "forbidden",
    408: "request_timeout",
    413: "payload_too_large",
    429: "throttled",
    431: "headers_too_large",
    503: "not_ready",
}
# A path that no route has: one series for all of them, whatever the path and the method were.
UNROUTED: Final = "(none)"
JOB_EVENTS: Final = ("claimed", "pushed", "acked", "nacked", "extended", "redriven")
LAG_RECORDS: Final = (0, 1, 10, 100, 1_000, 10_000, 100_000, 1_000_000)


class _NamedDialect(Protocol):
    @property
    def name(self) -> str: ...


class CountedRoute(Protocol):
    """What the counters need to know of a route."""

    @property
    def method(self) -> str: ...
    @property
    def template(self) -> str: ...
    @property
    def dialect(self) -> _NamedDialect: ...
    @property
    def long_lived(self) -> bool: ...


class SharedFigure:
    """A figure that other parts keep, each its share; they are asked at a scrape.

    >>> figure = SharedFigure()
    >>> figure.add(lambda: 2)
    >>> figure.add(lambda: 3)
    >>> figure()
    5
    """

    __slots__ = ("_shares",)

    def __init__(self) -> None:
        self._shares: list[Read] = []

    def add(self, share: Read) -> None:
        self._shares.append(share)

    def __call__(self) -> int:
        return sum(share() for share in self._shares)


class Sources:
    """The figures of the parts that serve: dialects and transports."""

    def __init__(self) -> None:
        self.sse_connections = SharedFigure()
        self.ws_connections = SharedFigure()
        self.session_connections = SharedFigure()
        self.longpoll_connections = SharedFigure()
        self.watch_sessions = SharedFigure()
        self.open_connections = SharedFigure()
        self.parked_requests = SharedFigure()
        self.degraded_parts = SharedFigure()
        self.request_body_bytes = SharedFigure()
        self.response_pending_bytes = SharedFigure()
        self.holders = Holders()


class _OfRoute:
    """The figures of one route."""

    __slots__ = ("duration", "route", "statuses")

    def __init__(self, route: CountedRoute, duration: Histogram | None) -> None:
        self.route = route
        self.duration = duration  # None: a stream, whose length says nothing
        self.statuses: dict[int, Counter] = {}


class AnswersOf(NamedTuple):
    """Counts the answers of one route with one status."""

    total: Counter
    durations_ns: Histogram

    def add(self, durations_ns: Sequence[int]) -> None:
        """Count answers, by the time of each."""
        self.total.value += len(durations_ns)
        self.durations_ns.observe_all(durations_ns)


class _OfAppends:
    """The figures of the appends of one class through one dialect."""

    __slots__ = ("bytes", "duration", "records")

    def __init__(self, records: Counter, size: Counter, duration: Histogram) -> None:
        self.records = records
        self.bytes = size
        self.duration = duration


class Metrics:
    """What a serving process counts.

    >>> metrics = Metrics()
    >>> metrics.appended("fsync", "native", records=2, size=20, ns=300_000)
    >>> [line for line in metrics.registry.text().splitlines() if "records_total{" in line]
    ['headrace_append_records_total{topic_class="fsync",dialect="native"} 2']
    """

    def __init__(self, registry: Registry | None = None) -> None:
        self.registry = registry = registry or Registry()
        self.sources = Sources()
        # By the identity of the route, which `_OfRoute` keeps alive; hashing it would take longer
        # than all the rest.
        self._routes: dict[int, _OfRoute] = {}
        self._appends: dict[tuple[str, str], _OfAppends] = {}
        self._reads: dict[tuple[str, str], Counter] = {}
        self._read_durations: dict[str, Histogram] = {}
        build = registry.gauges(
            "headrace_build_info", "1, with what is running.", ("version", "commit", "python")
        )
        build.of(headrace.__version__, "unknown", platform.python_version()).set(1)
        self._make_traffic(registry)
        self._make_http(registry)
        self._make_watch(registry)
        self._corruption = registry.counters(
            "headrace_corruption_detected_total",
            "Answers that met damaged bytes, by where these are.",
            ("layer",),
        )
        for layer in ("wal", "segment", "snapshot"):
            self._corruption.of(layer)

    def _make_traffic(self, registry: Registry) -> None:
        of_append = ("topic_class", "dialect")
        self._append_records = registry.counters(
            "headrace_append_records_total", "Records appended and acknowledged.", of_append
        )
        self._append_bytes = registry.counters(
            "headrace_append_bytes_total", "Bytes of these, as they were sent.", of_append
        )
        self._append_durations = registry.histograms(
            "headrace_append_duration_seconds",
            "From the arrival of an append to its acknowledgement.",
            ("topic_class",),
            LATENCY_NS,
            SECONDS_PER_NS,
        )
        self._append_batches = registry.histogram(
            "headrace_append_batch_records", "Records of one append.", BATCH_RECORDS
        )
        self._read_records = registry.counters(
            "headrace_read_records_total", "Records given to readers.", ("dialect", "tier")
        )
        self._read_duration = registry.histograms(
            "headrace_read_duration_seconds",
            "From the arrival of a read to its answer, with what a long poll waited.",
            ("tier",),
            LATENCY_NS,
            SECONDS_PER_NS,
        )

    def _make_http(self, registry: Registry) -> None:
        self._requests = registry.counters(
            "headrace_http_requests_total",
            "Requests that came to their end; status 0: the client went away first.",
            ("dialect", "method", "route", "status"),
        )
        self._durations = registry.histograms(
            "headrace_http_request_duration_seconds",
            "From a request's last header to the end of its answer; no streams.",
            ("dialect", "method", "route"),
            LATENCY_NS,
            SECONDS_PER_NS,
        )
        self._rejected = registry.counters(
            "headrace_http_rejected_total", "Refused before anything was done.", ("reason",)
        )
        sources = self.sources
        registry.gauge(
            "headrace_http_connections",
            "Open connections.",
            lambda: sources.open_connections(),
        )
        registry.gauge(
            "headrace_degraded_parts",
            "Parts that do not work while all else goes on; /v0/ready names them.",
            lambda: sources.degraded_parts(),
        )
        registry.gauge(
            "headrace_http_parked_requests",
            "Requests that wait for recovery.",
            lambda: sources.parked_requests(),
        )
        registry.gauge(
            "headrace_http_request_body_bytes",
            "Bodies in memory of requests that are arriving or in progress, and messages in part.",
            lambda: sources.request_body_bytes(),
        )
        registry.gauge(
            "headrace_http_response_pending_bytes",
            "Bytes of answers that clients have not taken, as of the last second.",
            lambda: sources.response_pending_bytes(),
        )

    def _make_watch(self, registry: Registry) -> None:
        sources = self.sources
        registry.read_gauges(
            "headrace_watch_connections",
            "Readers that wait for records, and sessions of any kind, by how.",
            ("kind",),
            lambda: (
                (("sse",), sources.sse_connections()),
                (("ws",), sources.ws_connections()),
                (("session",), sources.session_connections()),
                (("longpoll",), sources.longpoll_connections()),
            ),
        )
        self._watch_lag = registry.histogram(
            "headrace_watch_lag_records",
            "How far behind the head a stream was when a batch was sent.",
            LAG_RECORDS,
        )
        self._watch_dropped = registry.counters(
            "headrace_watch_dropped_total", "Streams that the server closed.", ("reason",)
        )
        self._jobs = registry.counters(
            "headrace_queue_jobs_total",
            "Jobs by what was done to them: claimed by a request, pushed to a stream, and so on.",
            ("event",),
        )
        for event in JOB_EVENTS:
            self._jobs.of(event)
        self._watch_paced = registry.counter(
            "headrace_watch_paced_total",
            "Times that a stream was told that what is new is held back.",
        )

    # The hot path

    def request_done(self, route: CountedRoute, status: int, ns: int) -> None:
        """Count a request that has ended; refusals are counted by their status."""
        figures = self._routes.get(id(route)) or self._of_route(route)
        counter = figures.statuses.get(status) or self._of_status(figures, status)
        counter.value += 1
        duration = figures.duration
        if duration is not None:
            duration.observe(ns)
        if status in REFUSALS:
            self.rejected(REFUSALS[status])

    def stream_done(self, route: CountedRoute, status: int) -> None:
        """Count a long-lived request of a route that has others, without its duration."""
        figures = self._routes.get(id(route)) or self._of_route(route)
        counter = figures.statuses.get(status) or self._of_status(figures, status)
        counter.value += 1
        if status in REFUSALS:
            self.rejected(REFUSALS[status])

    def _of_route(self, route: CountedRoute) -> _OfRoute:
        duration = None
        if not route.long_lived:
            duration = self._durations.of(route.dialect.name, route.method, route.template)
        figures = self._routes[id(route)] = _OfRoute(route, duration)
        return figures

    def _of_status(self, figures: _OfRoute, status: int) -> Counter:
        route = figures.route
        counter = self._requests.of(route.dialect.name, route.method, route.template, str(status))
        figures.statuses[status] = counter
        return counter

    def answers_of(self, route: CountedRoute, status: int) -> AnswersOf:
        """What counts the answers of a route with this status, for those who count many."""
        figures = self._routes.get(id(route)) or self._of_route(route)
        counter = figures.statuses.get(status) or self._of_status(figures, status)
        assert figures.duration is not None and status not in REFUSALS, (route.template, status)
        return AnswersOf(counter, figures.duration)

    def appended(self, durability: str, dialect: str, records: int, size: int, ns: int) -> None:
        """Count an append that was acknowledged, `ns` after it arrived."""
        self.appended_all(durability, dialect, (records,), size, (ns,))

    def appended_all(
        self,
        durability: str,
        dialect: str,
        records: Sequence[int],
        size: int,
        durations_ns: Sequence[int],
    ) -> None:
        """Count appends: the records and the time of each, and the bytes of all."""
        figures = self._appends.get((durability, dialect))
        if figures is None:
            figures = self._appends[durability, dialect] = _OfAppends(
                self._append_records.of(durability, dialect),
                self._append_bytes.of(durability, dialect),
                self._append_durations.of(durability),
            )
        figures.records.value += sum(records)
        figures.bytes.value += size
        figures.duration.observe_all(durations_ns)
        self._append_batches.observe_all(records)

    def read(self, dialect: str, records: int, ns: int, tier: str = "hot") -> None:
        """Count a read that was answered; `tier` is `cold` or `lake` if one of them was read."""
        self.read_all(dialect, tier, ((records, ns),))

    def read_all(self, dialect: str, tier: str, reads: Sequence[tuple[int, int]]) -> None:
        """Count reads: how many records each was given, and how long it took."""
        counter = self._reads.get((dialect, tier))
        if counter is None:
            counter = self._reads[dialect, tier] = self._read_records.of(dialect, tier)
        duration = self._read_durations.get(tier)
        if duration is None:
            duration = self._read_durations[tier] = self._read_duration.of(tier)
        counter.value += sum([records for records, _ in reads])
        duration.observe_all([ns for _, ns in reads])

    def delivered(self, dialect: str, records: int, lag: int, streams: int = 1) -> None:
        """Count a batch that live streams were given; `lag` records are still ahead of it."""
        counter = self._reads.get((dialect, "hot"))
        if counter is None:
            counter = self._reads[dialect, "hot"] = self._read_records.of(dialect, "hot")
        counter.value += records * streams
        self._watch_lag.observe_times(lag, streams)

    # What is rare

    def rejected(self, reason: str) -> None:
        """Count a refusal that is no answer to a request, such as that of a connection."""
        self._rejected.of(reason).add()

    def watch_dropped(self, reason: str) -> None:
        """Count a stream that the server closed, by why."""
        self._watch_dropped.of(reason).add()

    def jobs(self, event: str, count: int) -> None:
        """Count what was done to jobs; `event` is one of `JOB_EVENTS`."""
        self._jobs.of(event).add(count)

    def watch_paced(self) -> None:
        """Count that a stream was told that new records are held back."""
        self._watch_paced.add()

    def failed(self, error: BaseException) -> None:
        """Count an error that tells of damage; others are counted by their status."""
        if isinstance(error, CorruptionError):
            self._corruption.of(error.code.removesuffix("_corrupt")).add()
