"""When a worker may run a pipeline, and when it has to stop; without Spark, by a clock of its own.

The server is a real store on a disk in memory; a run is a stand-in that only knows whether it was
told to stop.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any, ClassVar

import msgspec
import pytest

from headrace.api.pipelines import (
    ClaimedPipeline,
    Declaration,
    EntryPoint,
    PipelineDest,
    PipelineHeld,
    PipelineReport,
    PipelineSource,
)
from headrace.core.clock import ManualClock, SeededRandom
from headrace.core.errors import ConfigError, DataLost, InvalidRequest, Unreachable
from headrace.core.runtime import StepRuntime
from headrace.core.settings import Settings
from headrace.engine.engine import Engine
from headrace.pipelines.registry.store import PipelineStore
from headrace.pipelines.worker import worker as worker_module
from headrace.pipelines.worker.backoff import LONGEST_MS, pause_ms
from headrace.pipelines.worker.building import WorkerSetup
from headrace.pipelines.worker.entry_points import entry_of, load_entries
from headrace.pipelines.worker.progress import newest
from headrace.pipelines.worker.runs import Run, in_words
from headrace.pipelines.worker.worker import CLAIM_EVERY_MS, Limits, Worker
from headrace.spark.options import Connection
from headrace.testing.simdisk import SimDisk

LEASE_MS = 30_000
ONE = Declaration([PipelineSource("orders")], PipelineDest("out"), sql="select 1 from orders")
TWO = msgspec.structs.replace(ONE, trigger="10s")


class StandIn:
    """A run that ends when it is told to, once `stops` says so."""

    all: ClassVar[list[StandIn]] = []

    def __init__(
        self, _spark: Any, claimed: ClaimedPipeline, declared: Any, _place: Any, _starts: Any,
        until_ms: int, clock: ManualClock,
    ) -> None:  # fmt: skip
        self.claimed = claimed
        self.declaration = declared
        self.until_ms = until_ms
        self.clock = clock
        self.said: list[PipelineReport] = []
        self.ending = self.at_once = False
        self.stops = True
        StandIn.all.append(self)

    def hold(self, until_ms: int) -> None:
        self.until_ms = until_ms

    def start(self) -> None:
        self.said.append(PipelineReport(state="running", batch=0))

    def end(self, *, at_once: bool) -> None:
        self.ending, self.at_once = True, self.at_once or at_once

    def is_alive(self) -> bool:
        if not self.ending and self.clock.monotonic_ns() // 1_000_000 > self.until_ms:
            self.end(at_once=True)
        return not (self.ending and self.stops)

    def next_report(self) -> PipelineReport | None:
        return self.said.pop(0) if self.said else None

    def not_sent(self, report: PipelineReport) -> None:
        self.said.insert(0, report)


class Direct:
    """A client's calls, made on a store itself; `away` is a server that does not answer."""

    def __init__(self, store: PipelineStore) -> None:
        self.store = store
        self.away = False

    def _check(self) -> None:
        if self.away:
            raise Unreachable("no answer", fix="wait")

    def claim_pipelines(self, node: str, count: int, *, lease_ms: int) -> list[ClaimedPipeline]:
        self._check()
        return [
            ClaimedPipeline(
                one.view.name,
                one.view.version,
                one.lease_id,
                one.deadline,
                msgspec.to_builtins(one.view.declaration),
            )
            for one in self.store.claim(node, count, lease_ms).result()
        ]

    def report_pipeline(
        self, claimed: ClaimedPipeline, node: str, lease_ms: int | None,
        said: PipelineReport | None = None, *, deadline_ms: int | None = None,
    ) -> PipelineHeld:  # fmt: skip
        self._check()
        state = "" if said is None else said.state
        error = None if said is None else said.error
        report = PipelineReport(claimed.pipeline, claimed.version, state, node, error=error)
        held = self.store.report(report, claimed.lease_id, lease_ms, keep=bool(state)).result()
        return held

    def release_pipeline(self, claimed: ClaimedPipeline, node: str, *, delay_ms: int = 0) -> None:
        self._check()
        name, version = claimed.pipeline, claimed.version
        self.store.release(name, node, version, claimed.lease_id, delay_ms).result()


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def store(clock: ManualClock) -> Iterator[PipelineStore]:
    settings = Settings(wal_file_bytes=1 << 16, wal_batch_bytes_max=1 << 14)
    engine = Engine(SimDisk(), StepRuntime(clock), settings, random=SeededRandom(1))
    engine.recover()
    yield PipelineStore(engine)
    engine.abandon()


@pytest.fixture(autouse=True)
def stand_ins(monkeypatch: pytest.MonkeyPatch) -> list[StandIn]:
    monkeypatch.setattr(worker_module, "Run", StandIn)
    StandIn.all = []
    return StandIn.all


def make(store: PipelineStore, clock: ManualClock, node: str = "w1", **entries: Any) -> Worker:
    place = WorkerSetup(Connection("http://x"), "/nowhere", entries)
    limits = Limits(4, LEASE_MS)
    return Worker(None, Direct(store), node, place, limits, clock)  # type: ignore[arg-type]


def client_of(worker: Worker) -> Direct:
    client = worker._client
    assert isinstance(client, Direct)
    return client


def pass_time(clock: ManualClock, ms: int, *workers: Worker, step: int = 500) -> None:
    for _ in range(ms // step):
        clock.advance(step)
        for worker in workers:
            worker.turn()


def test_a_lease_is_renewed_for_as_long_as_it_takes(
    store: PipelineStore, clock: ManualClock, stand_ins: list[StandIn]
) -> None:
    store.put("a", ONE, False).result()
    one, two = make(store, clock), make(store, clock, "w2")
    one.turn()
    pass_time(clock, 5 * LEASE_MS, one, two)
    assert (one.running, two.running) == (["a"], [])
    assert len(stand_ins) == 1 and not stand_ins[0].ending
    shown = store.get("a").result()
    assert shown.holder == "w1"
    assert shown.report is not None and shown.report.state == "running"


def test_a_worker_that_died_is_followed_by_another(
    store: PipelineStore, clock: ManualClock, stand_ins: list[StandIn]
) -> None:
    store.put("a", ONE, False).result()
    one, two = make(store, clock), make(store, clock, "w2")
    one.turn()
    pass_time(clock, LEASE_MS + CLAIM_EVERY_MS + 500, two)
    assert two.running == ["a"]
    # It was only asleep: the first thing that it hears is that it has lost.
    one.turn()
    assert stand_ins[0].ending and stand_ins[0].at_once
    one.turn()
    assert one.running == [] and not stand_ins[1].ending


def test_a_query_has_stopped_before_another_worker_may_have_it(
    store: PipelineStore, clock: ManualClock, stand_ins: list[StandIn]
) -> None:
    """The server is not to be reached from one worker; the other one gets the pipeline."""
    store.put("a", ONE, False).result()
    one, two = make(store, clock), make(store, clock, "w2")
    one.turn()
    client_of(one).away = True
    ended_at = taken_at = None
    for ms in range(0, 2 * LEASE_MS, 500):
        clock.advance(500)
        one.turn()
        two.turn()
        if ended_at is None and stand_ins[0].ending:
            ended_at = ms
        if taken_at is None and two.running:
            taken_at = ms
    assert ended_at is not None and taken_at is not None
    assert taken_at - ended_at >= LEASE_MS // 4, "the rest is the time that a stop may take"
    assert stand_ins[0].at_once
    assert one.running == [], "it does not wait for the server to forget it"


def test_a_query_knows_by_itself_when_its_lease_is_over(clock: ManualClock) -> None:
    """Whatever the worker is waiting for meanwhile."""
    claimed = ClaimedPipeline("a", 1, "lease_1", 0, {})
    place = WorkerSetup(Connection("http://x"), "/nowhere", {})
    starts = threading.Semaphore()
    run = Run(None, claimed, ONE, place, starts, LEASE_MS, clock)  # type: ignore[arg-type]
    start_ms = clock.monotonic_ns() // 1_000_000
    run.hold(start_ms + LEASE_MS)
    clock.advance(LEASE_MS)
    assert not run._is_over()
    run.hold(start_ms + 2 * LEASE_MS)
    clock.advance(LEASE_MS)
    assert not run._is_over()
    clock.advance(1)
    assert run._is_over() and run.ending and run._at_once
    run.run()  # without a query, and without Spark
    assert run.next_report() is None


def test_a_worker_does_not_begin_with_what_it_has_not_ended(
    store: PipelineStore, clock: ManualClock, stand_ins: list[StandIn]
) -> None:
    """The lease is over, the query hangs, and the same worker is offered the pipeline again."""
    store.put("a", ONE, False).result()
    one = make(store, clock)
    one.turn()
    stand_ins[0].stops = False
    client_of(one).away = True
    pass_time(clock, LEASE_MS + 1_000, one)
    client_of(one).away = False
    pass_time(clock, LEASE_MS, one)
    assert len(stand_ins) == 1 and stand_ins[0].at_once
    stand_ins[0].stops = True
    pass_time(clock, 3_000, one)
    assert len(stand_ins) == 2 and one.running == ["a"]


def test_the_last_batches_are_reported_before_a_pipeline_is_given_back(
    store: PipelineStore, clock: ManualClock, stand_ins: list[StandIn]
) -> None:
    store.put("a", ONE, False).result()
    one = make(store, clock)
    one.turn()
    stand_ins[0].said = [
        PipelineReport(state="running", batch=1), PipelineReport(state="done", batch=2),
    ]  # fmt: skip
    stand_ins[0].end(at_once=False)
    one.turn()
    report = store.get("a").result().report
    assert report is not None and report.state == "done"
    assert stand_ins[0].said == [] and len(stand_ins) == 2, "it was given back, and taken again"


def test_a_batch_is_counted_once_and_said_by_a_run_that_has_ended(clock: ManualClock) -> None:
    """The listener and the query itself both tell of the last batch."""
    claimed = ClaimedPipeline("a", 1, "lease_1", 0, {})
    place = WorkerSetup(Connection("http://x"), "/nowhere", {})
    one_at_a_time = threading.Semaphore()
    run = Run(None, claimed, ONE, place, one_at_a_time, LEASE_MS, clock)  # type: ignore[arg-type]
    run._state = "running"
    run.batch_done(progress_of(batch=1, rows=40, second=1))
    assert run.next_report() is not None
    run.batch_done(progress_of(batch=1, rows=40, second=1))
    run.batch_done(progress_of(batch=2, rows=20, second=2))
    run.batch_done(progress_of(batch=2, rows=20, second=2))
    said = run.next_report()
    assert said is not None and (said.batch, said.rows) == (2, 20)
    assert run.next_report() is None


def progress_of(batch: int, rows: int, second: int) -> Any:
    """What Spark says of a batch, as far as a report needs it."""
    return SimpleNamespace(
        name="a",
        runId="r1",
        timestamp=f"2026-01-01T00:00:{second:02}.000Z",
        batchId=batch,
        numInputRows=rows,
        processedRowsPerSecond=1.0,
        stateOperators=[],
        observedMetrics={},
        sources=[],
        eventTime={},
    )


def test_a_server_that_is_away_for_a_moment_changes_nothing(
    store: PipelineStore, clock: ManualClock, stand_ins: list[StandIn]
) -> None:
    store.put("a", ONE, False).result()
    one = make(store, clock)
    one.turn()
    client_of(one).away = True
    stand_ins[0].said.append(PipelineReport(state="retrying", error="x"))
    pass_time(clock, LEASE_MS // 3, one)
    client_of(one).away = False
    pass_time(clock, LEASE_MS, one)
    assert not stand_ins[0].ending
    report = store.get("a").result().report
    assert report is not None and report.state == "retrying", "it was sent later"


@pytest.mark.parametrize("how", ["put", "restart", "delete"])
def test_what_is_changed_is_stopped_given_back_and_begun_anew(
    store: PipelineStore, clock: ManualClock, stand_ins: list[StandIn], how: str
) -> None:
    store.put("a", ONE, False).result()
    one, two = make(store, clock), make(store, clock, "w2")
    one.turn()
    stand_ins[0].stops = False
    if how == "put":
        store.put("a", TWO, False).result()
    elif how == "restart":
        store.restart("a").result()
    else:
        store.delete("a").result()
    pass_time(clock, LEASE_MS // 2, one, two)
    assert stand_ins[0].ending and not stand_ins[0].at_once
    # While it stops it is held, however long that takes.
    pass_time(clock, 3 * LEASE_MS, one, two)
    assert len(stand_ins) == 1 and two.running == []
    stand_ins[0].stops = True
    pass_time(clock, 3_000, one, two)
    assert (one.running + two.running) == ([] if how == "delete" else ["a"])
    if how == "put":
        assert stand_ins[1].declaration == TWO


def test_a_worker_that_stops_gives_back_at_once(
    store: PipelineStore, clock: ManualClock, stand_ins: list[StandIn]
) -> None:
    for name in ("a", "b"):
        store.put(name, ONE, False).result()
    one, two = make(store, clock), make(store, clock, "w2")
    one.turn()
    assert one.running == ["a", "b"]
    one.close()
    assert one.running == [] and [run.ending for run in stand_ins] == [True, True]
    two.turn()
    assert two.running == ["a", "b"]


def test_a_worker_takes_no_more_than_it_may(store: PipelineStore, clock: ManualClock) -> None:
    for n in range(6):
        store.put(f"p{n}", ONE, False).result()
    one, two = make(store, clock), make(store, clock, "w2")
    pass_time(clock, 5_000, one, two)
    assert (len(one.running), len(two.running)) == (4, 2)


def test_functions_are_the_workers_own(
    store: PipelineStore, clock: ManualClock, stand_ins: list[StandIn]
) -> None:
    """A worker without the function says so, and leaves the pipeline to one that has it."""
    declared = msgspec.structs.replace(ONE, sql=None, python=EntryPoint("sessions"))
    store.put("a", declared, True).result()
    one, two = make(store, clock), make(store, clock, "w2", sessions=len)
    one.turn()
    assert one.running == [] and stand_ins == []
    report = store.get("a").result().report
    assert report is not None and report.state == "failed"
    assert "no entry point 'sessions'" in (report.error or "")
    pass_time(clock, LEASE_MS + 1_000, two)
    assert two.running == ["a"]


def test_the_list_of_functions() -> None:
    assert load_entries(["text = json:dumps"])["text"]([1]) == "[1]"
    for text in ("json:dumps", "a=json", "a=json:nothing", "a=no_such_module:f", "a=json:__name__",
                 "a b=json:dumps", "a=os.path:join:x", "a=json:dumps()"):  # fmt: skip
        with pytest.raises(ConfigError):
            load_entries([text])
    with pytest.raises(InvalidRequest, match="it has b, c"):
        entry_of({"c": len, "b": len}, "a")


def test_pauses_and_sums() -> None:
    pauses = [pause_ms(failures) for failures in range(1, 30)]
    assert pauses == sorted(pauses) and pauses[-1] == LONGEST_MS
    first = PipelineReport(
        state="running", batch=1, rows=3, bad_records=1, bad_topic="t", bad_seq=9
    )
    last = PipelineReport(state="running", batch=2, rows=4, lag=7)
    both = newest([first, last])
    assert both is not None
    assert (both.batch, both.rows, both.lag) == (2, 7, 7)
    assert (both.bad_records, both.bad_topic, both.bad_seq) == (1, "t", 9)
    assert newest([]) is None


def test_an_error_is_told_in_words_of_a_declaration() -> None:
    lost = DataLost("seqs 1 to 9 of topic 't' are lost: cap", fix="start a new query, or set x")
    said = in_words(RuntimeError(f"Traceback ...\nheadrace.core.errors.DataLost: {lost}"))
    assert isinstance(said, DataLost)
    assert str(said).startswith("seqs 1 to 9 of topic 't' are lost: cap; declare the pipeline with")
    other = in_words(InvalidRequest("a", fix="b"))
    assert str(other) == "a; b"
    query = "[STREAM_FAILED] Query [id = 1, runId = 2] terminated with exception: no. SQLSTATE: X"
    assert str(in_words(RuntimeError(query))) == "Spark failed: no."
