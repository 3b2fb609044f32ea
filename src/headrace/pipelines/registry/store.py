"""The pipelines of a server: declared, changed, leased to workers and reported on.

Only this file decides who runs a pipeline: the next version of one is not handed out while an
earlier one is held, so that no two workers run the same pipeline, whatever was declared, deleted
and declared again.  The calls run one after the other.  `records.py` has what is stored.
"""

from __future__ import annotations

from typing import Final, NamedTuple

import msgspec

from headrace.api.pipelines import Declaration, PipelineHeld, PipelineReport
from headrace.core.bounds import ByteBound
from headrace.core.errors import CheckpointIncompatible, Throttled
from headrace.core.limits import pipelines_max
from headrace.core.runtime import Ticket
from headrace.core.steps import Line, Steps
from headrace.engine.engine import Engine
from headrace.engine.queues.answers import Claimed, Extended, Job
from headrace.pipelines.registry.declaration import plan_of, reads_of
from headrace.pipelines.registry.records import (
    DECLARATIONS,
    Entry,
    PipelineRecords,
    StoredVersion,
)

# When a worker is still to give up the version before: how soon the next one is offered again.
HANDOVER_MS: Final = 500
# Changes that wait for the one in progress.
WAITING_MAX: Final = 256

WAITING: Final = "waiting"
STARTING: Final = "starting"
# Of a pipeline: the first is the server's own word, the others are said by workers.
STATES: Final = (WAITING, STARTING, "running", "retrying", "failed", "done", "stopped")


class PipelineView(NamedTuple):
    """A pipeline as a reader sees it; `holder` is the worker that has it."""

    name: str
    version: int
    declaration: Declaration
    restarts: int
    holder: str | None
    report: PipelineReport | None
    read: dict[str, int] | None

    @property
    def state(self) -> str:
        """What is known of its state: without a worker it waits, whatever the last one said."""
        if self.holder is None:
            return WAITING
        return STARTING if self.report is None else self.report.state


class DeclaredPipeline(NamedTuple):
    """A pipeline that was just declared, and whether it is new."""

    view: PipelineView
    created: bool


class LeasedPipeline(NamedTuple):
    """A pipeline that a worker may run until `deadline`."""

    view: PipelineView
    lease_id: str
    deadline: int


class PipelineStore:
    """The pipelines of one engine."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._line = Line(engine.runtime, waiting_max=WAITING_MAX, what="changes of pipelines")
        self._records = PipelineRecords(engine)
        self._bytes = ByteBound("pipeline", engine.settings, fix="declare less")

    def __len__(self) -> int:
        """How many pipelines are declared; 0 until they are loaded."""
        return len(self._records.entries)

    @property
    def bytes(self) -> int:
        """What the declarations of all pipelines hold; 0 until they are loaded."""
        return sum(entry.bytes for entry in self._records.entries.values())

    # Calls

    def put(self, name: str, declaration: Declaration, stateful: bool) -> Ticket[DeclaredPipeline]:
        """Declare a pipeline, or change what one does."""
        return self._line.run(self._put(name, declaration, stateful))

    def restart(self, name: str) -> Ticket[PipelineView]:
        """Declare a pipeline again as it is, so that its worker restarts it."""
        return self._line.run(self._restart(name))

    def delete(self, name: str) -> Ticket[bool]:
        """Delete a pipeline; return whether there was one."""
        return self._line.run(self._delete(name))

    def get(self, name: str) -> Ticket[PipelineView]:
        """Return a pipeline."""
        return self._line.run(self._get(name))

    def all(self) -> Ticket[list[PipelineView]]:
        """Return all pipelines, by name."""
        return self._line.run(self._all())

    def now(self) -> list[PipelineView] | None:
        """Return all pipelines without waiting; None: they are not loaded, which begins now."""
        if not self._records.exist:
            return []
        if not self._records.loaded:
            self.all()
            return None
        return self._views()

    def claim(self, node: str, count: int, lease_ms: int | None) -> Ticket[list[LeasedPipeline]]:
        """Lease pipelines to a worker; none is an answer too."""
        return self._line.run(self._claim(node, count, lease_ms))

    def report(
        self, report: PipelineReport, lease_id: str, lease_ms: int | None, *, keep: bool
    ) -> Ticket[PipelineHeld]:
        """Hold a pipeline longer by `lease_ms`; with `keep`, keep what its worker says of it."""
        self._bytes.check_one(len(msgspec.json.encode(report)), "report")
        return self._line.run(self._report(report, lease_id, lease_ms, keep))

    def release(self, name: str, node: str, version: int, lease: str, delay: int) -> Ticket[bool]:
        """Give a pipeline back, to be claimed after a delay; return whether it was held."""
        return self._line.run(self._release(name, node, version, lease, delay))

    # Their steps

    def _put(self, name: str, declaration: Declaration, stateful: bool) -> Steps[DeclaredPipeline]:
        records = self._records
        yield from records.load()
        entry = records.entries.get(name)
        before = None if entry is None or entry.declaration is None else entry.newest
        if before is None:
            self._check_count()
        elif before.declaration == declaration:
            assert entry is not None
            return DeclaredPipeline(self._view(name, entry), False)
        else:
            _check_change(name, before, declaration, stateful)
        self._bytes.count(self.bytes)
        self._bytes.check(len(declaration.encode()), instead_of=0 if entry is None else entry.bytes)
        restarts = 0 if before is None else before.restarts
        yield from records.append_version(StoredVersion(name, declaration, restarts, stateful))
        return DeclaredPipeline(self._view(name, records.entries[name]), before is None)

    def _restart(self, name: str) -> Steps[PipelineView]:
        entry = yield from self._records.find(name)
        assert entry.newest is not None
        yield from self._records.append_version(
            msgspec.structs.replace(entry.newest, restarts=entry.newest.restarts + 1)
        )
        return self._view(name, entry)

    def _delete(self, name: str) -> Steps[bool]:
        records = self._records
        yield from records.load()
        entry = records.entries.get(name)
        if entry is None or entry.declaration is None:
            return False
        if any(records.holder(version) for version in entry.versions):
            yield from records.append_version(StoredVersion(name))
        else:
            yield from records.remove(name)
        return True

    def _get(self, name: str) -> Steps[PipelineView]:
        entry = yield from self._records.find(name)
        yield from self._records.sweep(name)
        return self._view(name, entry)

    def _all(self) -> Steps[list[PipelineView]]:
        yield from self._records.load()
        return sorted(self._views(), key=lambda view: view.name)

    def _claim(self, node: str, count: int, lease_ms: int | None) -> Steps[list[LeasedPipeline]]:
        yield from self._records.load()
        if not self._records.exist:
            return []
        for name in list(self._records.entries):
            yield from self._records.sweep(name)
        leased: list[LeasedPipeline] = []
        while len(leased) < count:
            left = count - len(leased)
            claimed: Claimed = yield self._engine.queues.claim(DECLARATIONS, node, left, lease_ms)
            if not claimed.jobs:
                break
            for job in claimed.jobs:
                found = self._hand_out(job)
                if found is not None:
                    leased.append(found)
                    continue
                yield self._engine.queues.nack(
                    DECLARATIONS, node, [job.seq], HANDOVER_MS, [job.lease_id]
                )
        return leased

    def _hand_out(self, job: Job) -> LeasedPipeline | None:
        """Return the job as a pipeline to run; None if it, or one that is still held, is old."""
        entry = self._records.entries.get(job.tag or "")
        if entry is None or entry.declaration is None or entry.version != job.seq:
            return None
        if any(self._records.holder(version) for version in entry.versions[:-1]):
            return None
        return LeasedPipeline(self._view(job.tag or "", entry), job.lease_id, job.deadline)

    def _report(
        self, report: PipelineReport, lease_id: str, lease_ms: int | None, keep: bool
    ) -> Steps[PipelineHeld]:
        name, version = report.pipeline, report.version
        yield from self._records.load()
        entry = self._records.entries.get(name)
        if entry is None or version not in entry.versions:
            return PipelineHeld(name, held=False, current=False, deadline=0)
        current = entry.version == version and entry.declaration is not None
        if lease_ms is not None:
            extended: Extended = yield self._engine.queues.extend(
                DECLARATIONS, report.node, [version], lease_ms, [lease_id]
            )
            deadline = extended.deadlines.get(version)
        else:
            deadline = self._records.deadline(version, report.node, lease_id)
        if deadline is None:
            return PipelineHeld(name, held=False, current=current, deadline=0)
        if keep and current:
            yield from self._records.append_report(entry, report)
        return PipelineHeld(name, held=True, current=current, deadline=deadline)

    def _release(self, name: str, node: str, version: int, lease: str, delay: int) -> Steps[bool]:
        yield from self._records.load()
        entry = self._records.entries.get(name)
        if entry is None or version not in entry.versions:
            return False
        nacked = yield self._engine.queues.nack(DECLARATIONS, node, [version], delay, [lease])
        yield from self._records.sweep(name)
        return bool(nacked.nacked)

    # Shared

    def _views(self) -> list[PipelineView]:
        return [
            self._view(name, entry)
            for name, entry in self._records.entries.items()
            if entry.declaration is not None
        ]

    def _view(self, name: str, entry: Entry) -> PipelineView:
        stored = entry.newest
        assert stored is not None and stored.declaration is not None
        return PipelineView(
            name,
            entry.version,
            stored.declaration,
            stored.restarts,
            self._records.holder(entry.version),
            entry.report,
            entry.read,
        )

    def _check_count(self) -> None:
        if len(self._records.entries) >= pipelines_max:
            raise Throttled(
                f"{pipelines_max} pipelines exist, the most allowed",
                fix="delete some",
                detail={"limit": "pipelines_max", "max": pipelines_max},
            )


def _check_change(name: str, before: StoredVersion, after: Declaration, stateful: bool) -> None:
    """Refuse a change that the checkpoint would not survive."""
    old = before.declaration
    assert old is not None
    if old.checkpoint != after.checkpoint or plan_of(old) == plan_of(after):
        return
    reads = reads_of(old) != reads_of(after)
    if not (reads or before.stateful or stateful):
        return
    what = "reads other sources" if reads else "keeps another state"
    raise CheckpointIncompatible(
        f"the new {name!r} {what}, and cannot go on from the checkpoint {old.checkpoint!r}",
        fix="send another name as `checkpoint`: the pipeline then begins anew, with what its "
        "sources still hold",
        detail={"pipeline": name, "checkpoint": old.checkpoint},
    )
