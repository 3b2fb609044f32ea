"""Metrics: what a scrape says, read by the parser that Prometheus's own client has."""

from __future__ import annotations

import gc
from collections.abc import Iterator

import pytest
from prometheus_client.parser import text_string_to_metric_families

from headrace.core.clock import ManualClock, SeededRandom
from headrace.core.errors import SegmentCorrupt
from headrace.core.runtime import StepRuntime
from headrace.core.settings import Settings
from headrace.engine.engine import Engine
from headrace.engine.figures import FSYNC_MICROS
from headrace.metrics import engine as metrics_engine
from headrace.metrics.engine import watch_engine
from headrace.metrics.process import TICK_MS, watch_process
from headrace.metrics.requests import Metrics
from headrace.testing.simdisk import SimDisk
from headrace.wire.native.dialect import NativeDialect
from headrace.wire.routes import Route, RouteTable
from tests.support.stream_calls import create, fork

Samples = dict[tuple[str, tuple[tuple[str, str], ...]], float]

NATIVE = [
    "topics",
    "routers",
    "records_live",
    "bytes_live",
    "topic_metrics_truncated",
    "queue_topics",
    "queue_leases_in_flight",
    "sse_connections",
    "watch_sessions",
    "ready",
    "recovery_progress",
    "uptime_ms",
    "wal_frames_total",
    "wal_batches_total",
    "wal_fsyncs_total",
    "wal_bytes_written_total",
    "wal_rotations_total",
    "wal_submit_full_total",
    "wal_queue_depth",
    "wal_queue_depth_peak",
    "wal_read_only",
]


@pytest.fixture
def runtime() -> StepRuntime:
    return StepRuntime(ManualClock())


@pytest.fixture
def engine(runtime: StepRuntime) -> Iterator[Engine]:
    settings = Settings(wal_file_bytes=64 << 10, wal_batch_bytes_max=16 << 10)
    engine = Engine(SimDisk(), runtime, settings, random=SeededRandom(1))
    engine.recover()
    yield engine
    engine.abandon()


@pytest.fixture
def metrics(engine: Engine) -> Metrics:
    metrics = Metrics()
    watch_engine(metrics, engine)
    return metrics


def parse(metrics: Metrics) -> Samples:
    """Every sample of a scrape, as somebody else's parser sees it; no series may come twice."""
    samples: Samples = {}
    for family in text_string_to_metric_families(metrics.registry.text()):
        for sample in family.samples:
            key = (sample.name, tuple(sorted(sample.labels.items())))
            assert key not in samples, key
            samples[key] = sample.value
    return samples


def value(metrics: Metrics, name: str, **labels: str) -> float:
    return parse(metrics)[name, tuple(sorted(labels.items()))]


def one(name: str, **labels: str) -> tuple[str, tuple[tuple[str, str], ...]]:
    return name, tuple(sorted(labels.items()))


def route(method: str = "POST", template: str = "/v0/topics/{topic}", **more: bool) -> Route:
    made = Route(method, template, lambda _exchange: None, **more)  # type: ignore[arg-type]
    return made._replace(dialect=NativeDialect())


def test_counts_are_exact_after_two_topics_and_two_records(
    engine: Engine, metrics: Metrics
) -> None:
    engine.put_topic("jobs", {"durable": True}).result()
    engine.put_topic("q", {"durable": True, "type": "queue"}).result()
    engine.append("jobs", [{"n": 1}, {"n": 2}]).result()
    text = metrics.registry.text()
    samples = parse(metrics)
    assert samples[one("headrace_topics")] == 2
    assert samples[one("headrace_records_live")] == 2
    assert samples[one("headrace_bytes_live")] == len('{"n":1}{"n":2}')
    assert samples[one("headrace_queue_topics")] == 1
    assert samples[one("headrace_ready")] == samples[one("headrace_recovery_progress")] == 1
    assert samples[one("headrace_wal_frames_total")] >= 3
    assert samples[one("headrace_wal_fsyncs_total")] >= 3
    assert samples[one("headrace_wal_queue_depth")] == 0
    assert samples[one("headrace_wal_read_only")] == 0
    assert samples[one("headrace_topic_metrics_truncated")] == 0
    assert 'headrace_topics_by_class{class="fsync"} 2\n' in text
    assert 'headrace_topic_head_seq{topic="jobs"} 2\n' in text
    assert 'headrace_topic_earliest_seq{topic="jobs"} 1\n' in text
    assert 'headrace_topic_records_live{topic="jobs"} 2\n' in text
    assert 'headrace_topic_bytes_live{topic="jobs"} 14\n' in text
    assert 'headrace_topic_queue_ready{topic="q"} 0\n' in text
    assert 'headrace_topic_queue_in_flight{topic="q"} 0\n' in text
    assert 'headrace_topic_queue_ready{topic="jobs"}' not in text


def test_streams_forks_and_what_is_kept_for_them(engine: Engine, metrics: Metrics) -> None:
    def counts() -> list[float]:
        samples = parse(metrics)
        names = ("headrace_streams", "headrace_stream_forks", "headrace_streams_soft_deleted")
        return [samples[one(name)] for name in names]

    engine.append("plain", [1]).result()
    create(engine, "a", b"x")
    create(engine, "b", b"y", closed=True)
    assert counts() == [2, 0, 0]
    fork(engine, "f", "a")
    assert counts() == [3, 1, 0]
    engine.streams.delete("a").result()
    assert counts() == [2, 1, 1]
    engine.streams.delete("f").result()
    engine.runtime.drain()
    assert counts() == [1, 0, 0]


def test_archives_that_are_behind_and_overtaken(engine: Engine, metrics: Metrics) -> None:
    config = {"cap_records": 1, "retain_until_archived": True, "retain_bytes_max": 2}
    engine.append("plain", [1, 2]).result()
    epoch = engine.put_topic("kept", config).result().epoch
    engine.append("kept", [1, 2, 3]).result()
    lag = "headrace_topic_archive_lag_records"
    samples = parse(metrics)
    assert [key for key in samples if key[0] == lag] == [one(lag, topic="kept")]
    assert samples[one(lag, topic="kept")] == 3
    mark = "headrace_topic_archived_seq"
    assert [key for key in samples if key[0] == mark] == [one(mark, topic="kept")]
    assert samples[one(mark, topic="kept")] == 0
    assert samples[one("headrace_topics_overtaken")] == 0
    engine.append("kept", [4, 5]).result()
    samples = parse(metrics)
    assert samples[one("headrace_topics_overtaken")] == 1
    assert samples[one("headrace_topics_overtaken_records_total")] == 2
    engine.archives.told("kept", epoch, 4).result()
    samples = parse(metrics)
    assert (samples[one(lag, topic="kept")], samples[one(mark, topic="kept")]) == (1, 4)
    assert samples[one("headrace_topics_overtaken")] == 0
    assert samples[one("headrace_topics_overtaken_records_total")] == 2


def test_a_line_is_found_by_its_beginning(metrics: Metrics) -> None:
    """Simple readers take the first line that starts with a name."""
    lines = metrics.registry.text().splitlines()
    for name in NATIVE:
        first = next(line for line in lines if line.startswith(f"headrace_{name}"))
        assert first.startswith(f"headrace_{name} "), first


def test_the_histogram_of_syncs_counts_every_sync(engine: Engine, metrics: Metrics) -> None:
    for n in range(5):
        engine.append("t", [n], config={"durable": True}).result()
    samples = parse(metrics)
    syncs = samples[one("headrace_wal_fsyncs_total")]
    assert syncs > 0
    assert samples[one("headrace_wal_fsync_latency_us_count")] == syncs
    assert samples[one("headrace_wal_fsync_latency_us_bucket", le="+Inf")] == syncs
    assert samples[one("headrace_wal_fsync_duration_seconds_count")] == syncs
    batches = samples[one("headrace_wal_batches_total")]
    assert samples[one("headrace_wal_commit_batch_records_count")] == batches
    text = metrics.registry.text()
    for bound in FSYNC_MICROS:
        assert f'headrace_wal_fsync_latency_us_bucket{{le="{bound}"}} ' in text


def test_what_goes_is_not_counted_any_more(engine: Engine, metrics: Metrics) -> None:
    engine.append("a", [1, 2, 3]).result()
    engine.append("b", [1]).result()
    engine.delete("a", before_seq=3).result()
    engine.delete_topic("b").result()
    samples = parse(metrics)
    assert samples[one("headrace_topics")] == 1
    assert samples[one("headrace_records_live")] == 1
    assert samples[one("headrace_topic_records_live", topic="a")] == 1
    assert one("headrace_topic_head_seq", topic="b") not in samples


def test_only_so_many_topics_have_series(
    engine: Engine, metrics: Metrics, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(metrics_engine, "TOPICS_SHOWN_MAX", 3)
    for n in range(5):
        engine.append(f"t{n}", [n]).result()
    samples = parse(metrics)
    assert sum(name == "headrace_topic_head_seq" for name, _ in samples) == 3
    assert samples[one("headrace_topics")] == 5
    assert samples[one("headrace_topic_metrics_truncated")] == 1
    assert samples[one("headrace_topic_series_dropped_total")] == 2
    assert value(metrics, "headrace_topic_series_dropped_total") == 4


def test_a_name_with_quotes_stays_one_label(engine: Engine, metrics: Metrics) -> None:
    name = 'a"b\\c'
    engine.append(name, [1]).result()
    assert value(metrics, "headrace_topic_head_seq", topic=name) == 1


def test_during_recovery_nothing_is_walked(runtime: StepRuntime) -> None:
    """Topics are made in another thread then; a scrape must not look at them."""
    engine = Engine(SimDisk(), runtime, Settings(), random=SeededRandom(1))
    metrics = Metrics()
    watch_engine(metrics, engine)
    engine._startup.progress = 0.25
    samples = parse(metrics)
    assert samples[one("headrace_ready")] == 0
    assert samples[one("headrace_recovery_progress")] == 0.25
    assert samples[one("headrace_topics")] == 0
    engine.abandon()


def test_requests_are_counted_by_route_and_status(metrics: Metrics) -> None:
    metrics.request_done(route(), 200, 1_000_000)
    metrics.request_done(route(), 200, 2_000_000)
    metrics.request_done(route(), 429, 1_000)
    metrics.request_done(route("GET", "/v0/watch/{wid}", long_lived=True), 200, 9 * 10**9)
    samples = parse(metrics)
    labels = {"dialect": "native", "method": "POST", "route": "/v0/topics/{topic}"}
    assert samples[one("headrace_http_requests_total", **labels, status="200")] == 2
    assert samples[one("headrace_http_requests_total", **labels, status="429")] == 1
    assert samples[one("headrace_http_request_duration_seconds_count", **labels)] == 3
    total = samples[one("headrace_http_request_duration_seconds_sum", **labels)]
    assert total == pytest.approx(0.003001)
    assert samples[one("headrace_http_rejected_total", reason="throttled")] == 1
    durations = [
        labels for name, labels in samples if name.endswith("request_duration_seconds_sum")
    ]
    assert all(("route", "/v0/watch/{wid}") not in labels for labels in durations)


def test_paths_without_a_route_make_one_series(metrics: Metrics) -> None:
    table = RouteTable([NativeDialect()])
    for path in ("/nowhere", "/v0/topics/t/unknown", ""):
        metrics.request_done(table.unrouted(path), 404, 1_000)
    labels = {"dialect": "native", "method": "", "route": "(none)", "status": "404"}
    assert value(metrics, "headrace_http_requests_total", **labels) == 3


def test_appends_and_reads(metrics: Metrics) -> None:
    metrics.appended("fsync", "native", 100, 20_000, 300_000)
    metrics.appended("fsync", "native", 1, 200, 900_000)
    metrics.appended("disk", "ds", 1, 10, 50_000)
    metrics.read("native", 256, 70_000)
    metrics.read("native", 10, 90_000_000, tier="cold")
    metrics.delivered("native", 5, lag=12)
    samples = parse(metrics)
    labels = {"topic_class": "fsync", "dialect": "native"}
    assert samples[one("headrace_append_records_total", **labels)] == 101
    assert samples[one("headrace_append_bytes_total", **labels)] == 20_200
    of_class = {"topic_class": "fsync"}
    name = "headrace_append_duration_seconds"
    assert samples[one(f"{name}_count", **of_class)] == 2
    assert samples[one(f"{name}_bucket", **of_class, le="0.0004")] == 1
    assert samples[one("headrace_append_batch_records_sum")] == 102
    reads = "headrace_read_records_total"
    assert samples[one(reads, dialect="native", tier="hot")] == 261
    assert samples[one(reads, dialect="native", tier="cold")] == 10
    assert samples[one("headrace_read_duration_seconds_count", tier="cold")] == 1
    assert samples[one("headrace_watch_lag_records_bucket", le="100")] == 1


def test_reads_that_are_counted_together_count_as_each_alone(metrics: Metrics) -> None:
    reads = [(0, 70_000), (256, 90_000_000), (1, 5)]
    metrics.read_all("native", "cold", reads)
    for records, ns in reads:
        metrics.read("native", records, ns, tier="lake")
    samples = parse(metrics)
    of_reads = [name for name in samples if name[0].startswith("headrace_read_")]
    together, alone = (
        {(name, *(label for label in labels if label[0] != "tier")): samples[name, labels]
         for name, labels in of_reads if ("tier", tier) in labels}
        for tier in ("cold", "lake")
    )  # fmt: skip
    assert together == alone
    assert samples[one("headrace_read_records_total", dialect="native", tier="cold")] == 257


def test_gauges_are_asked_when_scraped(metrics: Metrics) -> None:
    open_streams = [0]
    metrics.sources.sse_connections.add(lambda: open_streams[0])
    metrics.sources.ws_connections.add(lambda: 1)  # of one dialect, and of another
    metrics.sources.ws_connections.add(lambda: 3)
    open_streams[0] = 3
    samples = parse(metrics)
    assert samples[one("headrace_sse_connections")] == 3
    assert samples[one("headrace_watch_connections", kind="sse")] == 3
    assert samples[one("headrace_watch_connections", kind="ws")] == 4
    assert samples[one("headrace_watch_connections", kind="longpoll")] == 0


def test_damage_is_counted_by_layer(metrics: Metrics) -> None:
    metrics.failed(SegmentCorrupt("block 3 of a file does not match its hash"))
    metrics.failed(ValueError("something else"))
    assert value(metrics, "headrace_corruption_detected_total", layer="segment") == 1
    assert value(metrics, "headrace_corruption_detected_total", layer="wal") == 0


def test_the_longest_stall_is_forgotten_after_a_minute(
    metrics: Metrics, runtime: StepRuntime
) -> None:
    clock = runtime.clock
    assert isinstance(clock, ManualClock)
    watch = watch_process(metrics, runtime, lambda: 1234)
    watch.loop.start()

    def pass_time(ms: int) -> None:
        clock.advance(ms)
        runtime.run()

    pass_time(TICK_MS)
    assert value(metrics, "headrace_loop_stall_longest_seconds") == 0
    pass_time(TICK_MS + 250)
    assert value(metrics, "headrace_loop_stall_longest_seconds") == pytest.approx(0.25)
    for _ in range(61_000 // TICK_MS):
        pass_time(TICK_MS)
    assert value(metrics, "headrace_loop_stall_longest_seconds") == 0
    assert value(metrics, "headrace_loop_stall_seconds_sum") == pytest.approx(0.25)
    assert value(metrics, "headrace_process_resident_bytes") == 1234
    watch.loop.stop()


def test_collections_are_measured(metrics: Metrics, runtime: StepRuntime) -> None:
    watch = watch_process(metrics, runtime, int)
    watch.collector.start()
    gc.collect()
    watch.collector.stop()
    counted = value(metrics, "headrace_gc_pause_seconds_count", generation="2")
    gc.collect()
    assert counted == 1
    assert value(metrics, "headrace_gc_pause_seconds_count", generation="2") == 1


def test_every_metric_says_what_it_is(metrics: Metrics, runtime: StepRuntime) -> None:
    watch_process(metrics, runtime, int)
    text = metrics.registry.text()
    families = {family.name: family for family in text_string_to_metric_families(text)}
    for described in metrics.registry.described():
        family = families[described.name.removesuffix("_total")]
        assert family.type == described.kind
        assert family.documentation == described.help_text
        for sample in family.samples:
            assert set(sample.labels) - {"le"} == set(described.labels), sample
