"""The worker: claims pipelines, runs them while it holds them, and stops what it does not hold.

The rule this file owns: a query runs only while its lease is known to be held.  A lease is renewed
every third of its time, and each renewal counts from before it was sent.  A pipeline whose renewal
has failed for two thirds of the time stops, by its own clock, so that it has ended when another
worker may begin with it.  A worker that is told of a newer version stops, and gives back what
it had.  A worker that was asleep for longer than its lease finds that what it did last is not taken
any more: batches have numbers (`building.py`), and Spark's checkpoint keeps each of them once.
"""

from __future__ import annotations

import logging
import os
import threading
from typing import TYPE_CHECKING, Final, NamedTuple

import msgspec

from headrace.api.pipelines import ClaimedPipeline, Declaration, PipelineReport
from headrace.client import Client
from headrace.core.clock import Clock, SystemClock
from headrace.core.errors import HeadraceError
from headrace.pipelines.worker.building import WorkerSetup
from headrace.pipelines.worker.runs import Run

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

log = logging.getLogger("headrace.pipelines")

LEASE_MS: Final = 30_000
PIPELINES_MAX: Final = 8
CLAIM_EVERY_MS: Final = 1_000
TURN_SECONDS: Final = 0.1
# How soon the worker that runs a pipeline notices that it was changed or deleted.
ASK_EVERY_MS: Final = 2_000
# A server that is away is asked again after so long, and each time for no longer.
AWAY_MS: Final = 1_000
REPORTS_PER_TURN: Final = 4
CORES_A_START: Final = 2
# A pipeline that cannot be given back is, when its lease is over.
STOP_SECONDS_MAX: Final = 60.0


class Limits(NamedTuple):
    """How much one worker does, and how long it holds it."""

    pipelines_max: int = PIPELINES_MAX
    lease_ms: int = LEASE_MS


class Holding:
    """A run, and until when it may run."""

    __slots__ = ("asked_ms", "renewed_ms", "run")

    def __init__(self, run: Run, now_ms: int) -> None:
        self.run = run
        self.asked_ms = self.renewed_ms = now_ms


class Worker:
    """Runs pipelines until it is told to stop.  `turn` is called by one thread only."""

    def __init__(
        self,
        spark: SparkSession,
        client: Client,
        node: str,
        place: WorkerSetup,
        limits: Limits | None = None,
        clock: Clock | None = None,
    ) -> None:
        self._spark = spark
        self._client = client
        self._node = node
        self._place = place
        self._limits = limits or Limits()
        self._clock = clock or SystemClock()
        self._held: dict[str, Holding] = {}
        self._starts = threading.Semaphore(max(len(os.sched_getaffinity(0)) // CORES_A_START, 1))
        self._claim_at_ms = 0
        self._away_until_ms = -AWAY_MS
        self.reports_total = 0
        self.started_total = 0

    @property
    def running(self) -> list[str]:
        """The pipelines that it has, by name."""
        return sorted(self._held)

    def run(self, stop: threading.Event) -> None:
        """Work until `stop` is set; then stop every query and give everything back."""
        try:
            while not stop.is_set():
                self.turn()
                stop.wait(TURN_SECONDS)
        finally:
            self.close()

    def turn(self) -> None:
        """One look at everything that is held, and a claim if there is room."""
        for holding in list(self._held.values()):
            self._look_after(holding)
        now_ms = self._now_ms()
        room = self._limits.pipelines_max - len(self._held)
        if room > 0 and now_ms >= max(self._claim_at_ms, self._away_until_ms):
            self._claim_at_ms = now_ms + CLAIM_EVERY_MS
            self._claim(room)

    def close(self) -> None:
        """Stop all queries and give the pipelines back."""
        for holding in self._held.values():
            holding.run.end(at_once=False)
        deadline_ms = self._now_ms() + int(STOP_SECONDS_MAX * 1_000)
        while self._held and self._now_ms() < deadline_ms:
            for holding in list(self._held.values()):
                self._look_after(holding)
            threading.Event().wait(TURN_SECONDS)

    # Claiming

    def _claim(self, room: int) -> None:
        asked_ms = self._now_ms()
        try:
            claimed = self._client.claim_pipelines(self._node, room, lease_ms=self._limits.lease_ms)
        except HeadraceError as error:
            self._away(error)
            return
        for one in claimed:
            self._start(one, asked_ms)

    def _start(self, claimed: ClaimedPipeline, asked_ms: int) -> None:
        try:
            declaration = msgspec.convert(claimed.declaration, Declaration)
        except msgspec.ValidationError as error:
            log.error("%s cannot be read by this version: %s", claimed.pipeline, error)
            self._give_back(claimed, delay_ms=self._limits.lease_ms)
            return
        entry = declaration.python
        if entry is not None and entry.entry not in self._place.entries:
            known = ", ".join(sorted(self._place.entries)) or "none"
            self._refuse(
                claimed,
                f"{self._node} has no entry point {entry.entry!r}; it has {known}. Start a worker "
                f"with --entry {entry.entry}=module:function",
            )
            return
        if claimed.pipeline in self._held:
            # The lease of the version before is over, and its query has not ended here.
            self._give_back(claimed, delay_ms=CLAIM_EVERY_MS)
            return
        log.info("starting %s, version %d", claimed.pipeline, claimed.version)
        self.started_total += 1
        run = Run(
            self._spark, claimed, declaration, self._place, self._starts,
            self._until_ms(asked_ms), self._clock,
        )  # fmt: skip
        self._held[claimed.pipeline] = Holding(run, asked_ms)
        run.start()

    def _until_ms(self, asked_ms: int) -> int:
        """Until when a query may run whose lease was asked for then: the rest is for its stop."""
        return asked_ms + self._limits.lease_ms * 2 // 3

    def _refuse(self, claimed: ClaimedPipeline, why: str) -> None:
        """Another worker may have what this one lacks: say so, and give it back for a while."""
        said = PipelineReport(state="failed", error=why, retry_ms=self._limits.lease_ms)
        try:
            self._client.report_pipeline(claimed, self._node, self._limits.lease_ms, said)
        except HeadraceError as error:
            self._away(error)
        self._give_back(claimed, delay_ms=self._limits.lease_ms)

    # Holding

    def _look_after(self, holding: Holding) -> None:
        run, now_ms = holding.run, self._now_ms()
        if not run.is_alive():
            self._ended(holding)
            return
        lease_ms = self._limits.lease_ms
        if now_ms >= self._away_until_ms:
            for _ in range(REPORTS_PER_TURN):
                report = run.next_report()
                due = now_ms >= holding.renewed_ms + lease_ms // 3
                asks = now_ms >= holding.asked_ms + ASK_EVERY_MS
                if report is None and not due and not asks:
                    break
                if not self._tell(holding, report, lease_ms if due else None):
                    break

    def _tell(self, holding: Holding, report: PipelineReport | None, lease_ms: int | None) -> bool:
        """Say how it goes, and hold it longer; whether more can be said now."""
        run = holding.run
        asked_ms = holding.asked_ms = self._now_ms()
        try:
            answer = self._client.report_pipeline(
                run.claimed, self._node, lease_ms, report, deadline_ms=0
            )
        except HeadraceError as error:
            if report is not None:
                run.not_sent(report)
            self._away(error)
            return False
        self.reports_total += report is not None
        if report is not None and report.state != "running":
            _log(run.claimed.pipeline, report)
        if not answer.held:
            log.warning("%s is held by another worker; stopping", run.claimed.pipeline)
            run.end(at_once=True)
            return False
        if lease_ms is not None:
            holding.renewed_ms = asked_ms
            run.hold(self._until_ms(asked_ms))
        if not answer.current and not run.ending:
            log.info("%s was changed or deleted; stopping", run.claimed.pipeline)
            run.end(at_once=False)
        return answer.current

    def _ended(self, holding: Holding) -> None:
        """Report the last batches of a query that has stopped, and give its pipeline back."""
        while self._now_ms() >= self._away_until_ms:
            report = holding.run.next_report()
            if report is None or not self._tell(holding, report, None):
                break
        del self._held[holding.run.claimed.pipeline]
        self._give_back(holding.run.claimed)
        self._claim_at_ms = 0

    def _give_back(self, claimed: ClaimedPipeline, delay_ms: int = 0) -> None:
        try:
            self._client.release_pipeline(claimed, self._node, delay_ms=delay_ms)
        except HeadraceError as error:
            self._away(error)

    def _away(self, error: HeadraceError) -> None:
        now_ms = self._now_ms()
        if now_ms > self._away_until_ms + AWAY_MS:  # said once, while it goes on
            log.warning("%s", error)
        self._away_until_ms = now_ms + AWAY_MS

    def _now_ms(self) -> int:
        return self._clock.monotonic_ns() // 1_000_000


def _log(pipeline: str, report: PipelineReport) -> None:
    if report.error is None:
        log.info("%s is %s", pipeline, report.state)
    else:
        log.warning(
            "%s is %s, again in %s ms: %s", pipeline, report.state, report.retry_ms, report.error
        )
