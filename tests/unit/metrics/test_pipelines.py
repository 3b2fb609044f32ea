"""Metrics of pipelines: counted by state, and compared with the heads of now."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from headrace.api.pipelines import (
    Declaration,
    PipelineDest,
    PipelineReport,
    PipelineSource,
)
from headrace.core.clock import ManualClock, SeededRandom
from headrace.core.runtime import StepRuntime
from headrace.core.settings import Settings
from headrace.core.telemetry import Registry
from headrace.engine.engine import Engine
from headrace.metrics import pipelines as metrics_pipelines
from headrace.metrics.pipelines import watch_pipelines
from headrace.pipelines.registry.store import LeasedPipeline, PipelineStore
from headrace.testing.simdisk import SimDisk

READS_TWO = Declaration(
    [PipelineSource("orders"), PipelineSource("payments")],
    PipelineDest("out"),
    sql="select 1 from orders",
)

Samples = dict[str, float]


def started(disk: SimDisk, clock: ManualClock) -> Engine:
    settings = Settings(wal_file_bytes=1 << 16, wal_batch_bytes_max=1 << 14)
    return Engine(disk, StepRuntime(clock), settings, random=SeededRandom(1))


@pytest.fixture
def engine(disk: SimDisk, clock: ManualClock) -> Iterator[Engine]:
    engine = started(disk, clock)
    engine.recover()
    yield engine
    engine.abandon()


@pytest.fixture
def store(engine: Engine) -> PipelineStore:
    return PipelineStore(engine)


def scrape(engine: Engine, store: PipelineStore) -> Samples:
    """Every sample, by its name and labels as they are written; none may come twice."""
    registry = Registry()
    watch_pipelines(registry, engine, store)
    samples: Samples = {}
    for family in text_string_to_metric_families(registry.text()):
        for sample in family.samples:
            labels = ",".join(sample.labels.values())
            key = sample.name.removeprefix("headrace_pipeline") + (f"[{labels}]" if labels else "")
            assert key not in samples, key
            samples[key] = sample.value
    return samples


def claim(store: PipelineStore, name: str) -> LeasedPipeline:
    (handed,) = store.claim("w1", 1, None).result()
    assert handed.view.name == name
    return handed


def say(store: PipelineStore, handed: LeasedPipeline, state: str, **said: Any) -> None:
    report = PipelineReport(handed.view.name, handed.view.version, state, "w1", **said)
    assert store.report(report, handed.lease_id, None, keep=True).result().held


def test_without_pipelines_there_are_zeros(engine: Engine, store: PipelineStore) -> None:
    samples = scrape(engine, store)
    assert samples.pop("s") == 0
    states = ("waiting", "starting", "running", "retrying", "failed", "done", "stopped")
    assert samples == {f"s_by_state[{state}]": 0 for state in states} | {"_metrics_truncated": 0}


def test_a_pipeline_from_its_declaration_to_its_failure(
    engine: Engine, store: PipelineStore, clock: ManualClock
) -> None:
    engine.append("orders", [1, 2, 3]).result()
    engine.append("payments", [1]).result()
    store.put("p", READS_TWO, False).result()
    samples = scrape(engine, store)
    assert (samples["s"], samples["s_by_state[waiting]"], samples["_state[p,waiting]"]) == (1, 1, 1)
    assert (samples["_failures[p]"], samples["_restarts[p]"]) == (0, 0)
    for nothing in ("_lag_records", "_batch", "_rows_per_second", "_progress_age_seconds"):
        assert f"{nothing}[p]" not in samples, "nobody has said anything"

    handed = claim(store, "p")
    assert scrape(engine, store)["_state[p,starting]"] == 1
    read = {"orders": 2, "payments": 1, "of somebody else": 7}
    say(store, handed, "running", batch=4, rows=3, rows_per_s=2.5, lag=1, read=read)
    clock.advance(1_500)
    engine.append("payments", [2, 3]).result()
    samples = scrape(engine, store)
    assert samples["s_by_state[running]"] == samples["_state[p,running]"] == 1
    assert (samples["_batch[p]"], samples["_rows_per_second[p]"]) == (4, 2.5)
    assert samples["_lag_records[p]"] == 3, "as it is now, not as it was said"
    assert samples["_progress_age_seconds[p]"] == 1.5
    assert store.get("p").result().read == {"orders": 2, "payments": 1}

    say(store, handed, "retrying", failures=2, retry_ms=1_000, error="no such column")
    samples = scrape(engine, store)
    assert (samples["_failures[p]"], samples["_state[p,retrying]"]) == (2, 1)
    assert samples["_lag_records[p]"] == 3, "what was read before still is"
    assert samples["_progress_age_seconds[p]"] == 0
    say(store, handed, "failed", failures=4)
    assert scrape(engine, store)["s_by_state[failed]"] == 1

    store.restart("p").result()
    samples = scrape(engine, store)
    assert (samples["_restarts[p]"], samples["_state[p,waiting]"]) == (1, 1)
    store.release("p", "w1", handed.view.version, handed.lease_id, 0).result()
    store.delete("p").result()
    assert scrape(engine, store)["s"] == 0


def test_what_a_restart_finds_is_loaded_by_the_first_scrape(
    engine: Engine, store: PipelineStore, disk: SimDisk, clock: ManualClock
) -> None:
    """A pipeline without a worker has to be seen although nobody asks for pipelines."""
    engine.append("orders", [1, 2, 3]).result()
    store.put("p", READS_TWO, False).result()
    handed = claim(store, "p")
    say(store, handed, "running", batch=4, read={"orders": 1})
    say(store, handed, "starting")
    engine.close()

    again = started(disk, clock)
    fresh = PipelineStore(again)
    assert scrape(again, fresh) == {}, "recovery is at work on the topics"
    again.recover()
    assert scrape(again, fresh) == {}, "a count would be a guess"
    again.runtime.drain()
    samples = scrape(again, fresh)
    assert (samples["s"], samples["_state[p,starting]"]) == (1, 1)
    assert samples["_lag_records[p]"] == 2
    again.abandon()


def test_only_so_many_have_series(
    engine: Engine, store: PipelineStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(metrics_pipelines, "PIPELINES_SHOWN_MAX", 2)
    for name in ("c", "a", "b"):
        store.put(name, READS_TWO, False).result()
    samples = scrape(engine, store)
    assert (samples["s"], samples["s_by_state[waiting]"]) == (3, 3)
    assert [key for key in samples if key.startswith("_state")] == [
        "_state[a,waiting]",
        "_state[b,waiting]",
    ]
    assert samples["_metrics_truncated"] == 1
