"""Sync: what topics have beyond their watermarks becomes rows and gaps, each seq exactly once.

The order it owns, for each topic: mend what a power loss cut off, look at the watermark, plan,
write files, look again, commit the gaps, commit the table, tell the server.  A writer may die
between any two of these steps: what counts is the commit of the table, and the next sync starts
from there.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable
from typing import Final

import msgspec

from headrace.api.segments import Manifest
from headrace.client import Client
from headrace.core.clock import Clock, Random, SystemClock, SystemRandom
from headrace.core.errors import (
    ConfigError,
    DataLost,
    HeadraceError,
    LakeConflict,
    NotReady,
    Unreachable,
)
from headrace.lake.tables.files import DataFile
from headrace.lake.tables.gaps import gaps_name, record_gaps
from headrace.lake.tables.layout import (
    NOTE_BATCH,
    NOTE_FIRST,
    NOTE_GAPS,
    NOTE_LAST,
    NOTE_ROWS,
    Identity,
    Lake,
    new_batch,
)
from headrace.lake.tables.seq_sets import ENDED, Gap, gaps_between, joined
from headrace.lake.tables.table import Table, create_table, delta_errors
from headrace.lake.tables.tasks import Failed, Runner
from headrace.lake.writing.copy_task import Copied, CopyJob, copy_part, source_options
from headrace.lake.writing.mending import mend
from headrace.lake.writing.sync_result import Result, Synced, count_done
from headrace.lake.writing.variants import Copier
from headrace.lake.writing.watermark_report import report
from headrace.spark.connection import give_back
from headrace.spark.options import Connection, SourceOptions
from headrace.spark.reading.manifests import row_bytes
from headrace.spark.reading.parts import Gap as LostSlice
from headrace.spark.reading.planning import Plan, plan
from headrace.spark.reading.spans import Span

# What one commit of a topic reads, about: what is done again after a crash.
COMMIT_BYTES_MAX: Final = 1 << 30
# What the commits of one job of Spark read together, about, and how many there are: the files of
# each are pinned on the server.
ROUND_BYTES_MAX: Final = 1 << 30
ROUND_TOPICS_MAX: Final = 1_000
# After this many topics in a row without an answer, the server is not asked for the rest.
SILENT_MAX: Final = 3

# Where a test may stop a writer, in their order.
STEPS: Final = (
    "looked",
    "planned",
    "files written",
    "looked again",
    "gaps committed",
    "committed",
    "reported",
)


class _Work(msgspec.Struct, frozen=True):
    """One commit under way."""

    table: Table
    identity: Identity
    batch: str
    span: Span
    plan: Plan
    jobs: list[CopyJob]


class Sync:
    """Brings topics into a lake.  `at` is called with the name of each step that is done.

    `copier` does what `runner` would, also for tables with a VARIANT; see `variants.copy_on`.
    """

    def __init__(
        self,
        client: Client,
        connection: Connection,
        lake: Lake,
        runner: Runner,
        *,
        copier: Copier | None = None,
        value_ddl: str | None = None,
        commit_bytes_max: int = COMMIT_BYTES_MAX,
        clock: Clock | None = None,
        random: Random | None = None,
        at: Callable[[str], None] = lambda step: None,
    ) -> None:
        self._client = client
        self._options = source_options(SourceOptions(connection))
        self._lake = lake
        self._copy = copier or (lambda jobs: runner(copy_part, jobs))
        self._value_ddl = value_ddl
        self._commit_bytes_max = commit_bytes_max
        self._clock = clock or SystemClock()
        self._random = random or SystemRandom()
        self._at = at

    def run(
        self, topics: Iterable[str], told: Callable[[Synced], None] = lambda done: None
    ) -> list[Result]:
        """Sync each topic up to its head of now; `told` hears of each commit.

        What goes wrong with one topic is in its result, and the others go on.
        """
        results = {topic: Result(topic=topic) for topic in topics}
        pending = list(results)
        while pending:
            works, pending = self._next_round([results[topic] for topic in pending])
            try:
                pending += self._do(works, results, told)
            finally:
                give_back(self._client, (pin for work in works for pin in work.plan.pins))
        return list(results.values())

    def _do(
        self, works: list[_Work], results: dict[str, Result], told: Callable[[Synced], None]
    ) -> list[str]:
        """Copy and commit; returns the topics that have more."""
        try:
            answers = iter(self._copy([job for work in works for job in work.jobs]))
        except HeadraceError as error:
            if len(works) > 1:  # one topic that no task survives must not stop the others
                return [topic for work in works for topic in self._do([work], results, told)]
            results[works[0].identity.topic].fail(error)
            return []
        self._at("files written")
        more = []
        for work in works:
            own = [next(answers) for _ in work.jobs]
            result = results[work.identity.topic]
            try:
                done = self._finish(work, own)
            except HeadraceError as error:
                result.fail(error)
                continue
            self._at("committed")
            count_done(result, done)
            self._report(work.identity, result)
            self._at("reported")
            told(done)
            if result.watermark < result.target:
                more.append(result.topic)
        return more

    # Planning

    def _next_round(self, results: list[Result]) -> tuple[list[_Work], list[str]]:
        """What is copied together now, and the topics whose turn comes later."""
        works: list[_Work] = []
        size = 0
        silent = 0
        for at, result in enumerate(results):
            if size >= ROUND_BYTES_MAX or len(works) >= ROUND_TOPICS_MAX:
                return works, [later.topic for later in results[at:]]
            try:
                work = self._plan(result)
            except HeadraceError as error:
                silent = silent + 1 if isinstance(error, Unreachable) else 0
                left = results[at:] if silent == SILENT_MAX else [result]
                for one in left:
                    one.fail(error)
                if silent == SILENT_MAX:
                    break
                continue
            silent = 0
            if work is not None:
                works.append(work)
                size += sum(job.part.bytes for job in work.jobs)
        return works, []

    def _plan(self, result: Result) -> _Work | None:
        """The next commit of a topic; None when there is nothing to do."""
        manifest = self._client.segments(result.topic)
        give_back(self._client, [(manifest.topic, manifest.pin)])
        identity = Identity.of(manifest)
        result.target = result.target or manifest.head_seq
        result.table = identity.table
        if not manifest.head_seq:
            return None
        mend(self._client, self._lake, identity)
        is_stream = manifest.content_type is not None
        table = create_table(self._lake, identity, self._value_ddl, is_stream)
        self._check_schema(table)
        mark = table.place.watermark
        self._at("looked")
        result.watermark = mark
        if mark > manifest.head_seq:
            raise ConfigError(
                f"{table.name} has seqs to {mark}, and the topic ends at {manifest.head_seq}",
                fix="give each data directory a lake of its own",
                detail={"table": table.name},
            )
        if mark >= result.target:
            self._tell_again(table, result)
            return None
        span = Span(result.topic, identity.epoch, mark + 1, self._last(manifest, mark, result))
        options = self._options_of(result.topic)
        made = plan(self._client, options, [span])
        slices = [one for part in made.parts for one in part.slices]
        if any(isinstance(one, LostSlice) and one.reason in ENDED for one in slices):
            give_back(self._client, made.pins)
            raise _ended(result.topic)
        self._at("planned")
        batch = new_batch(self._random)
        jobs = [
            CopyJob(
                self._lake, table.name, batch, result.topic, options, part, table.value_ddl,
                table.is_stream,
            )
            for part in made.parts
        ]  # fmt: skip
        return _Work(table, identity, batch, span, made, jobs)

    def _options_of(self, topic: str) -> SourceOptions:
        return msgspec.structs.replace(self._options, topics=(topic,))

    def _last(self, manifest: Manifest, mark: int, result: Result) -> int:
        """The last seq of the next commit: about as much as a commit may read."""
        start = max(mark + 1, manifest.earliest_seq)
        count = max(1, self._commit_bytes_max // row_bytes(manifest))
        return min(result.target, start + count - 1)

    def _check_schema(self, table: Table) -> None:
        if self._value_ddl is not None and self._value_ddl != table.value_ddl:
            has = "no schema" if table.value_ddl is None else f"the schema {table.value_ddl!r}"
            raise ConfigError(
                f"{table.name} was made with {has}, not {self._value_ddl!r}",
                fix="leave --schema out, or sync into another lake",
                detail={"table": table.name},
            )

    # Committing

    def _finish(self, work: _Work, answers: list[Copied | Failed[CopyJob]]) -> Synced:
        """Commit what the tasks wrote, or remove it."""
        copied = [answer for answer in answers if isinstance(answer, Copied)]
        files = [file for answer in copied for file in answer.files]
        committing = False
        try:
            for answer in answers:
                if isinstance(answer, Failed):
                    raise answer.error
            gaps = self._account(work, copied, files)
            table = work.table.fresh()
            if table.place != work.table.place:
                raise LakeConflict(
                    f"another writer has brought {table.name} to seq {table.place.watermark}",
                    fix="nothing was changed; one sync of a topic at a time is enough",
                    detail={"table": table.name},
                )
            self._at("looked again")
            marks = self._record(work, table, gaps)
            committing = True
            table.commit(add=files, marks=marks, note=_note(work, files, gaps))
        except HeadraceError as error:
            if not committing or isinstance(error, LakeConflict):
                with contextlib.suppress(HeadraceError):  # what stays there vacuum removes
                    self._discard(work, files, committing)
            raise
        return Synced(
            topic=work.span.topic,
            table=work.table.name,
            first_seq=work.span.first,
            last_seq=work.span.last,
            rows=sum(file.rows for file in files),
            gap_seqs=sum(gap.last - gap.first + 1 for gap in gaps),
            files=len(files),
            bytes=sum(file.size for file in files),
        )

    def _account(self, work: _Work, copied: list[Copied], files: list[DataFile]) -> list[Gap]:
        told = [Gap(*gap) for answer in copied for gap in answer.told]
        if any(gap.reason in ENDED for gap in told):
            raise _ended(work.span.topic)
        present = joined(answer.present for answer in copied)
        rows = sum(file.rows for file in files)
        inside = not present or (
            work.span.first <= present.min() and present.max() <= work.span.last
        )
        if rows != len(present) or not inside:
            raise DataLost(
                f"seqs {work.span.first} to {work.span.last} of topic {work.span.topic!r} gave"
                f" {len(present)} rows, and their files hold {rows}",
                fix="run the same command again; if it stays, run `headrace check`",
                detail={"topic": work.span.topic},
            )
        return gaps_between(work.span.first, work.span.last, present, told)

    def _record(self, work: _Work, table: Table, gaps: list[Gap]) -> dict[str, int]:
        """Commit the gaps; returns what the commit of the table has to say."""
        identity, last = work.identity, work.span.last
        marks = {identity.app_id: last}
        if gaps:
            marks[identity.gaps_app_id] = record_gaps(
                self._lake,
                identity,
                table.place.gaps_version,
                gaps,
                to_seq=last,
                batch=work.batch,
                now_ms=self._clock.wall_ms(),
                random=self._random,
            )
            self._at("gaps committed")
        return marks

    def _tell_again(self, table: Table, result: Result) -> None:
        """Report the table again: the sync that wrote it may have died before its report."""
        state = self._client.topic(result.topic, touch=False)
        if (state.epoch, state.archived_seq) == (table.identity.epoch, result.watermark):
            result.reported = True
            return
        with delta_errors(table.name):
            if table.place.gaps_version is not None:
                self._lake.settle(gaps_name(table.identity))
            self._lake.settle(table.name)
        self._report(table.identity, result)

    def _report(self, identity: Identity, result: Result) -> None:
        """Tell the server; what is committed is, and the next sync tells it as well."""
        try:
            result.reported = report(self._client, identity.topic, identity.epoch, result.watermark)
            result.report_error = None
        except HeadraceError as error:
            result.reported, result.report_error = False, str(error)

    def _discard(self, work: _Work, files: list[DataFile], committing: bool) -> None:
        """Remove files that no commit names, nor ever will."""
        now = work.table.fresh()
        if committing and now.place == work.table.place:
            return  # nobody else has committed: an answer was lost, and ours may yet arrive
        now.discard(files)


def _note(work: _Work, files: list[DataFile], gaps: list[Gap]) -> dict[str, object]:
    return {
        NOTE_BATCH: work.batch,
        NOTE_FIRST: work.span.first,
        NOTE_LAST: work.span.last,
        NOTE_ROWS: sum(file.rows for file in files),
        NOTE_GAPS: len(gaps),
    }


def _ended(topic: str) -> NotReady:
    return NotReady(
        f"topic {topic!r} was deleted, or made anew, while it was read",
        fix="run the same command again: a new topic gets a table of its own",
        detail={"topic": topic},
    )
