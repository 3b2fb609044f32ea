"""One pipeline on a worker: a thread that starts its query, waits for its end, and tries again.

The thread ends when it is told to stop, and by itself when the time is over for which the worker
(`worker.py`) knows that it holds the lease: a call that the worker waits for must not keep a query
running.  What there is to say is left here for the worker to send.
"""

from __future__ import annotations

import contextlib
import logging
import re
import threading
from collections import deque
from typing import TYPE_CHECKING, Any, Final

import msgspec

from headrace.api.pipelines import ClaimedPipeline, Declaration, PipelineReport
from headrace.core.clock import NS_PER_MS, Clock
from headrace.core.errors import (
    CheckpointIncompatible,
    ConfigError,
    DataLost,
    HeadraceError,
    InvalidRequest,
    PlanNotDeterministic,
    RowsRefused,
    SqlRefused,
    StagedRowsLost,
    TopicNotFound,
    WriteFenced,
)
from headrace.pipelines.worker.backoff import LONGEST_MS, pause_ms
from headrace.pipelines.worker.building import WorkerSetup, build
from headrace.pipelines.worker.progress import bad_record_in, newest, report_of
from headrace.spark.sql.failures import explained

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

log = logging.getLogger("headrace.pipelines")

# How often a query is looked at, and a stop is noticed.
LOOK_SECONDS: Final = 0.25
# A batch in progress may end before its query is stopped, for so long.
GRACE_SECONDS: Final = 5.0
# A query that starts has processes to start, which Spark gives ten seconds: few may do so at once.
SETTLE_SECONDS: Final = 15.0
# What waits to be sent: changes of state, and batches since the last report.
REPORTS_MAX: Final = 64
# Batches are reported at most so often; what came in between is summed up.
REPORT_EVERY_MS: Final = 1_000
# A source that is not there costs one request to look for.
MISSING_MS: Final = 5_000
# Errors whose cause is what the sources or the checkpoint hold.
BEGIN_ANEW: Final = (DataLost, PlanNotDeterministic, StagedRowsLost, WriteFenced)
# Errors that the same declaration meets again: tried now and then, since topics come and go.
HOPELESS: Final = (
    CheckpointIncompatible, ConfigError, InvalidRequest, RowsRefused, SqlRefused, *BEGIN_ANEW,
)  # fmt: skip
TRIES: Final = 3
# What Spark says before it says what went wrong.
_WRAPPED: Final = re.compile(r"Query \[id = [^]]*\] terminated with exception: ")


class Run(threading.Thread):
    """A pipeline that this worker holds."""

    def __init__(
        self,
        spark: SparkSession,
        claimed: ClaimedPipeline,
        declaration: Declaration,
        place: WorkerSetup,
        starts: threading.Semaphore,
        until_ms: int,
        clock: Clock,
    ) -> None:
        super().__init__(name=f"pipeline {claimed.pipeline}", daemon=True)
        self.claimed = claimed
        self._declaration = declaration
        self._spark = spark
        self._place = place
        self._starts = starts
        self._until_ms = until_ms
        self._clock = clock
        self._ended = threading.Event()  # asked to
        self._at_once = False
        self._lock = threading.Lock()
        self._changes: deque[PipelineReport] = deque(maxlen=REPORTS_MAX)
        self._batches: deque[PipelineReport] = deque(maxlen=REPORTS_MAX)
        self._batches_sent_ms = 0
        self._newest_batch = ("", "")  # its query's run, and when it began
        self._failures = 0
        self._state = "starting"
        self._topics = {s.table.lower(): s.topic for s in declaration.sources}

    # For the worker

    def end(self, *, at_once: bool) -> None:
        """Stop the query; `is_alive` says when it has stopped."""
        self._at_once = self._at_once or at_once
        self._ended.set()

    def hold(self, until_ms: int) -> None:
        """It may run until then, by the worker's clock."""
        self._until_ms = until_ms

    @property
    def ending(self) -> bool:
        return self._ended.is_set()

    def _is_over(self) -> bool:
        """Whether it is to stop."""
        if not self._ended.is_set() and self._now_ms() > self._until_ms:
            log.warning("%s: the lease was not renewed in time; stopping", self.claimed.pipeline)
            self.end(at_once=True)
        return self._ended.is_set()

    def _now_ms(self) -> int:
        return self._clock.monotonic_ns() // NS_PER_MS

    def next_report(self) -> PipelineReport | None:
        """What is to be said now; changes of state first, then batches as one."""
        now_ms = self._now_ms()
        with self._lock:
            if self._changes:
                return self._changes.popleft()
            if now_ms - self._batches_sent_ms < REPORT_EVERY_MS and self.is_alive():
                return None
            report = newest(self._batches)
            if report is not None:
                self._batches.clear()
                self._batches_sent_ms = now_ms
            return report

    def not_sent(self, report: PipelineReport) -> None:
        """A report did not reach the server: a change of state is kept for later."""
        with self._lock:
            if report.state != "running" and len(self._changes) < REPORTS_MAX:
                self._changes.appendleft(report)

    # The thread

    def run(self) -> None:
        while not self._ended.is_set():
            self._say(PipelineReport(state="starting", failures=self._failures or None))
            try:
                self._run_once()
            except Exception as error:  # noqa: BLE001 - it is told, and tried again
                self._failed(error)
                continue
            if not self._ended.is_set():
                self._say(PipelineReport(state="done"))
                self._ended.wait()

    def _run_once(self) -> None:
        """Until the query ends by itself, fails or is to be stopped."""
        with contextlib.ExitStack() as at_end:
            with self._starts:
                if self._is_over():
                    return
                built = build(self._spark, self.claimed.pipeline, self._declaration, self._place)
                if built.finish_first is not None and not self._is_over():
                    self._finish(built.finish_first())
                if self._is_over():
                    return
                listener, streams = _listener(self), built.session.streams
                streams.addListener(listener)
                at_end.callback(streams.removeListener, listener)
                queries = built.start()
                for query in queries:
                    at_end.callback(query.stop)
                self._say(PipelineReport(state="running", failures=self._failures or None))
                self._settle(queries)
            self._await(queries)

    def _finish(self, query: StreamingQuery) -> None:
        """A batch that was begun with another destination ends with that one."""
        try:
            self._await([query])
        except Exception as error:
            raise CheckpointIncompatible(
                "a batch was begun with the destination before, and does not end with it: "
                f"{in_words(error).message}",
                fix="declare it with that destination until it runs, or with another name as "
                "`checkpoint`: it then begins anew, with what its sources still hold",
            ) from error

    def _settle(self, queries: list[StreamingQuery]) -> None:
        """Until the first batch is done, or long enough: the next pipeline's turn to start."""
        for _ in range(int(SETTLE_SECONDS / LOOK_SECONDS)):
            busy = [query for query in queries if query.isActive and query.lastProgress is None]
            if not busy or self._is_over() or self._ended.wait(LOOK_SECONDS):
                return

    def _await(self, queries: list[StreamingQuery]) -> None:
        """Until all have ended, one has failed, or they are to be stopped."""
        left = list(queries)
        try:
            while left and not self._is_over():
                left = [query for query in left if not _has_ended(query)]
            for query in left:
                self._let_batch_end(query)
        finally:
            for query in queries:
                query.stop()
                # Spark's listener may be a moment behind, and is about to be removed.
                for progress in query.recentProgress:
                    self.batch_done(progress)

    def _let_batch_end(self, query: StreamingQuery) -> None:
        """Wait a moment for a batch to end: the run after this one then has less to do again."""
        for _ in range(int(GRACE_SECONDS / LOOK_SECONDS)):
            if self._at_once or not query.status["isTriggerActive"] or _has_ended(query):
                return

    def batch_done(self, progress: Any) -> None:
        """Count a batch that Spark has finished, once; its listener calls from another thread."""
        if progress.name != self.claimed.pipeline:
            return  # of a query beside it
        report = report_of(progress, self._topics)
        batch = (str(progress.runId), progress.timestamp)
        with self._lock:
            run, began = self._newest_batch
            if batch[0] == run and batch[1] <= began:
                return
            self._newest_batch = batch
            # Spark tells of a batch a moment later, when its query may have ended.
            if self._state in ("running", "done"):
                self._failures = 0
                self._batches.append(msgspec.structs.replace(report, state=self._state))

    def _failed(self, error: Exception) -> None:
        if self._ended.is_set():
            return
        said = in_words(error)
        self._failures += 1
        hopeless = isinstance(said, HOPELESS)
        if isinstance(said, TopicNotFound):
            pause = MISSING_MS
        else:
            hopeless_now = hopeless and self._failures > TRIES
            pause = LONGEST_MS if hopeless_now else pause_ms(self._failures)
        topic, seq = bad_record_in(str(said))
        self._say(
            PipelineReport(
                state="failed" if hopeless else "retrying",
                failures=self._failures,
                retry_ms=pause,
                error=str(said),
                bad_topic=topic,
                bad_seq=seq,
            )
        )
        self._ended.wait(pause / 1_000)

    def _say(self, report: PipelineReport) -> None:
        with self._lock:
            before = newest(self._batches)
            if before is not None:
                self._batches.clear()
                self._changes.append(before)
            self._changes.append(report)
            self._state = report.state


def in_words(error: Exception) -> HeadraceError:
    """The error of a query, with what to do about it in words of a declaration."""
    said = explained(error)
    if not isinstance(said, BEGIN_ANEW):
        return type(said)(_WRAPPED.sub("", said.message), fix=said.fix, detail=said.detail)
    # What the connector advises is about options of a query.
    return type(said)(
        said.message.partition("; start ")[0],
        fix="declare the pipeline with another name as `checkpoint`: it then begins anew, with "
        "what its sources still hold",
    )


def _has_ended(query: StreamingQuery) -> bool:
    """Whether a query ends within a moment; raises why, if it failed."""
    # Its type says whole seconds, and it takes parts of them.
    return bool(query.awaitTermination(LOOK_SECONDS))  # type: ignore[arg-type]


def _listener(run: Run) -> Any:
    from pyspark.sql.streaming.listener import StreamingQueryListener

    class Listener(StreamingQueryListener):
        """Hands batches on."""

        def onQueryStarted(self, event: Any) -> None:
            """The run says so itself."""

        def onQueryProgress(self, event: Any) -> None:
            run.batch_done(event.progress)

        def onQueryIdle(self, event: Any) -> None:
            """There is nothing to say."""

        def onQueryTerminated(self, event: Any) -> None:
            """The run hears of it by itself."""

    return Listener()
