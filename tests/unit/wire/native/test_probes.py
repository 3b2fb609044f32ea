"""Health, ready and metrics: what each says before, during and after serving."""

from __future__ import annotations

import errno
from collections.abc import Callable, Iterator

import pytest

import headrace
from headrace.core.clock import ManualClock, SeededRandom
from headrace.core.errors import Internal, NotReady
from headrace.core.runtime import StepRuntime
from headrace.core.settings import Settings
from headrace.engine.engine import Engine
from headrace.metrics.engine import watch_engine
from headrace.metrics.requests import Metrics
from headrace.testing.faultfs import Fault, FaultFilesystem, FaultPlan
from headrace.testing.simdisk import SimDisk
from headrace.wire.exchange import JSON
from headrace.wire.native.dialect import NativeDialect
from headrace.wire.native.probes import Probes
from headrace.wire.routes import RouteTable
from headrace.wire.server_context import ServerContext
from tests.support.exchanges import AnsweredExchange

SMALL = Settings(wal_file_bytes=64 << 10, wal_batch_bytes_max=16 << 10)


Ask = Callable[..., AnsweredExchange]


@pytest.fixture
def armed() -> list[str]:
    """Operations on log files that are to fail from now on."""
    return []


@pytest.fixture
def engine(disk: SimDisk, armed: list[str], clock: ManualClock) -> Iterator[Engine]:
    def fail(operation: str, path: str) -> None:
        if operation in armed:
            raise OSError(errno.EIO, "injected", path)

    plan = FaultPlan(Fault("*", 1, "call", forever=True, path="wal/*", hook=fail))
    fs = FaultFilesystem(disk, plan)
    engine = Engine(fs, StepRuntime(clock), SMALL, random=SeededRandom(1))
    yield engine
    engine.abandon()


@pytest.fixture
def probes(engine: Engine) -> Probes:
    metrics = Metrics()
    watch_engine(metrics, engine)
    return Probes(engine, metrics)


@pytest.fixture
def ask(probes: Probes) -> Ask:
    return asking(probes)


def asking(probes: Probes) -> Ask:
    table = RouteTable([NativeDialect(probes.routes())])

    def ask(path: str, accept: str = "", method: str = "GET") -> AnsweredExchange:
        exchange = AnsweredExchange(method, path, "", {b"accept": accept.encode()}, 0)
        exchange.route, exchange.params = table.match(method, path)
        try:
            exchange.route.handler(exchange)
        except Exception as error:  # noqa: BLE001 - as a server does
            exchange.fail(error)
        return exchange

    return ask


def error_of(exchange: AnsweredExchange) -> dict[str, object]:
    error = exchange.json["error"]
    assert isinstance(error, dict)
    assert set(error) <= {"code", "message", "detail"}
    return error


@pytest.mark.parametrize("path", ["/v0/health", "/healthz"])
def test_health_says_how_long(path: str, ask: Ask, clock: ManualClock) -> None:
    clock.advance(1_234)
    answer = ask(path)
    assert answer.status == 200
    assert answer.json == {"status": "ok", "version": headrace.__version__, "uptime_ms": 1_234}


@pytest.mark.parametrize("path", ["/v0/ready", "/readyz"])
def test_not_ready_until_recovered(path: str, ask: Ask, engine: Engine) -> None:
    engine._startup.progress = 0.41
    refused = ask(path)
    assert refused.status == 503
    error = error_of(refused)
    assert error["code"] == "not_ready"
    assert error["detail"]["replay_progress"] == 0.41  # type: ignore[index]
    assert refused.reply_headers[b"retry-after"] == b"1"
    assert ask("/v0/health").status == 200

    engine.recover()
    engine.append("a", [1]).result()
    answer = ask(path)
    assert answer.status == 200
    assert answer.json == {"status": "ready", "wal_replay_complete": True, "topics": 1}


def test_a_part_that_does_not_work_is_named(engine: Engine) -> None:
    context = ServerContext(engine, engine.settings, Metrics())
    why = ""
    context.parts.update(fine=lambda: "", s2=lambda: why)
    ask = asking(Probes(engine, context.metrics, problems=context.problems))
    engine.recover()
    figure = b"headrace_degraded_parts"
    assert ask("/v0/ready").json["status"] == "ready"
    assert figure + b" 0\n" in ask("/v0/metrics").reply
    why = "the catalog cannot be read"
    answer = ask("/v0/ready")
    assert answer.status == 200
    assert (answer.json["status"], answer.json["degraded"]) == ("degraded", {"s2": why})
    assert figure + b" 1\n" in ask("/v0/metrics").reply


def test_a_server_that_has_not_gone_live_is_not_ready(
    ask: Ask, engine: Engine, probes: Probes
) -> None:
    engine.recover()
    probes.state = lambda: "starting"
    assert error_of(ask("/v0/ready"))["code"] == "not_ready"


def test_a_draining_server_says_so(ask: Ask, engine: Engine, probes: Probes) -> None:
    engine.recover()
    probes.state = lambda: "draining"
    refused = ask("/v0/ready")
    assert (refused.status, error_of(refused)["code"]) == (503, "shutting_down")
    assert refused.reply_headers[b"retry-after"] == b"1"
    assert ask("/v0/health").status == 200
    assert ask("/v0/metrics").status == 200


def test_a_failed_sync_makes_it_unready_until_a_restart(
    ask: Ask, engine: Engine, armed: list[str]
) -> None:
    engine.recover()
    engine.append("a", [1], config={"durable": True}).result()
    armed.append("sync_data")
    with pytest.raises(Internal):
        engine.append("a", [2]).result()
    refused = ask("/v0/ready")
    assert refused.status == 503
    assert error_of(refused)["detail"]["reason"] == "wal_read_only"  # type: ignore[index]
    assert "headrace_wal_read_only 1\n" in ask("/v0/metrics").reply.decode()
    wal = ask("/v0/metrics", accept="application/json").json["wal"]
    assert isinstance(wal, dict)
    assert wal["read_only"] is True


def test_a_full_disk_makes_it_unready_until_there_is_room(
    ask: Ask, engine: Engine, disk: SimDisk
) -> None:
    engine.recover()
    engine.append("a", [1]).result()
    room, disk.space_bytes = disk.space_bytes, 0

    def fill() -> None:
        while True:
            engine.append("a", ["x" * 10_000]).result()

    with pytest.raises(NotReady):
        fill()
    refused = ask("/v0/ready")
    assert error_of(refused)["detail"]["reason"] == "disk_full"  # type: ignore[index]
    assert refused.reply_headers[b"retry-after"] == b"5"
    assert "headrace_wal_disk_full 1\n" in ask("/v0/metrics").reply.decode()
    # Nobody has to write first: who is not ready is sent no writes.
    disk.space_bytes = room
    assert ask("/v0/ready").status == 200


def test_metrics_are_text_unless_json_is_asked_for(ask: Ask, engine: Engine) -> None:
    engine.recover()
    engine.append("a", [1, 2], config={"durable": True}).result()
    engine.put_topic("q", {"type": "queue", "durability": "memory"}).result()
    text = ask("/v0/metrics", accept="*/*")
    assert text.content_type == b"text/plain; version=0.0.4"
    assert text.reply.startswith(b"# HELP headrace_")

    answer = ask("/v0/metrics", accept="text/html, application/json;q=0.9")
    assert answer.content_type == JSON
    found = answer.json
    wal = found.pop("wal")
    assert isinstance(wal, dict)
    assert found == {
        "topics": 2, "topics_ephemeral": 0, "topics_memory": 1, "topics_disk": 0,
        "topics_fsync": 1, "routers": 0, "records_live": 2, "bytes_live": 2, "queue_topics": 1,
        "queue_leases_in_flight": 0, "sse_connections": 0, "watch_sessions": 0, "ready": True,
        "replay_progress": 1.0, "uptime_ms": 0,
    }  # fmt: skip
    assert set(wal) == {
        "fsyncs", "frames", "batches", "bytes_written", "rotations", "queue_depth",
        "queue_depth_peak", "submit_full_total", "read_only", "fsync_count", "fsync_micros_total",
    }  # fmt: skip
    assert wal["fsync_count"] == wal["fsyncs"] > 0
    assert wal["queue_depth"] == 0


def test_metrics_answer_before_recovery(ask: Ask) -> None:
    answer = ask("/v0/metrics", accept="application/json")
    assert answer.status == 200
    assert answer.json["ready"] is False
    assert b"headrace_ready 0\n" in ask("/v0/metrics").reply


def test_who_may_ask(probes: Probes) -> None:
    for route in probes.routes():
        assert route.unready, route.template
        assert not route.name_param
        assert route.public == (route.template != "/v0/metrics")
        assert route.scopes == (frozenset() if route.public else {"read"})
