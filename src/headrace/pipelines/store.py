"""Where a server keeps pipelines: a queue of declarations, and a log of what workers report.

The rules this file owns.  A declaration is a job of the topic `_pipelines`, tagged with its name;
its version is its seq, and the newest of a name counts.  Declaring again appends, and then deletes
what was there, so that a crash in between leaves two of which the newer wins.  A version that a
worker still holds is not deleted before its lease is over: the next one is not handed out while
an earlier one is held, so that no two workers run the same pipeline, whatever was declared, deleted
and declared again.  Reports go to the capped topic `_pipelines.progress`, one record each.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, NamedTuple, TypeVar

import msgspec

from headrace.core.errors import (
    CheckpointIncompatible,
    PipelineNotFound,
    Throttled,
    UnsupportedFormat,
)
from headrace.core.limits import pipelines_max
from headrace.core.runtime import Ticket
from headrace.engine.deleting import TagMatch
from headrace.engine.engine import Engine
from headrace.engine.queues.answers import Claimed, Extended, Job, parse_lease_id
from headrace.engine.reading import Page
from headrace.engine.topic_config import TopicConfig
from headrace.pipelines.declaration import Declaration, plan_of, reads_of
from headrace.pipelines.steps import Line, Steps
from headrace.storage.block import Batch, Record

T = TypeVar("T")

DECLARATIONS: Final = "_pipelines"
PROGRESS: Final = "_pipelines.progress"
PROGRESS_RECORDS_MAX: Final = 10_000
LEASE_MS: Final = 30_000
# When a worker is still to give up the version before: how soon the next one is offered again.
HANDOVER_MS: Final = 500
# Versions of a pipeline that are kept, because the worker of an earlier one has not stopped yet.
VERSIONS_MAX: Final = 64
PAGE_RECORDS: Final = 1_000

WAITING: Final = "waiting"
STARTING: Final = "starting"
# Of a pipeline: the first is the server's own word, the others are said by workers.
STATES: Final = (WAITING, STARTING, "running", "retrying", "failed", "done", "stopped")

_DECLARATIONS_CONFIG: Final = TopicConfig(
    type="queue", durability="fsync", leases_durable=True, lease_ms=LEASE_MS, max_deliveries=0
)
_PROGRESS_CONFIG: Final = TopicConfig(cap_records=PROGRESS_RECORDS_MAX)


class Kept(msgspec.Struct, frozen=True):
    """What a record of `_pipelines` holds; without a declaration the pipeline is deleted."""

    pipeline: str
    declaration: Declaration | None = None
    restarts: int = 0
    stateful: bool = True


class Report(msgspec.Struct, frozen=True):
    """What a worker says of a pipeline, and what a record of `_pipelines.progress` holds."""

    pipeline: str
    version: int
    state: str
    node: str
    ts: int = 0
    batch: int | None = None
    rows: int | None = None
    rows_per_s: float | None = None
    lag: int | None = None
    read: dict[str, int] | None = None
    state_rows: int | None = None
    state_bytes: int | None = None
    watermark: str | None = None
    bad_records: int | None = None
    bad_topic: str | None = None
    bad_seq: int | None = None
    failures: int | None = None
    retry_ms: int | None = None
    error: str | None = None


class Entry:
    """A pipeline: its versions that are still records, and the newest of them."""

    __slots__ = ("kept", "read", "report", "versions")

    def __init__(self) -> None:
        self.versions: list[int] = []  # ascending
        self.kept: Kept | None = None
        self.report: Report | None = None
        self.read: dict[str, int] | None = None  # as it was said last

    def heard(self, report: Report) -> None:
        self.report = report
        self.read = report.read or self.read

    @property
    def version(self) -> int:
        return self.versions[-1]

    @property
    def declaration(self) -> Declaration | None:
        return None if self.kept is None else self.kept.declaration


class Shown(NamedTuple):
    """A pipeline as a reader sees it; `holder` is the worker that has it."""

    name: str
    version: int
    declaration: Declaration
    restarts: int
    holder: str | None
    report: Report | None
    read: dict[str, int] | None

    @property
    def state(self) -> str:
        """What is known of it now: without a worker it waits, whatever the last one said."""
        if self.holder is None:
            return WAITING
        return STARTING if self.report is None else self.report.state


class Put(NamedTuple):
    shown: Shown
    created: bool


class Handed(NamedTuple):
    """A pipeline that a worker may run until `deadline`."""

    shown: Shown
    lease_id: str
    deadline: int


class Held(NamedTuple):
    """Whether a worker still holds a version, and whether there is a newer one."""

    held: bool
    current: bool
    deadline: int


class PipelineStore:
    """The pipelines of one engine."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._line = Line(engine.runtime)
        self._entries: dict[str, Entry] = {}
        self._loaded = False

    # Calls

    def put(self, name: str, declaration: Declaration, stateful: bool) -> Ticket[Put]:
        """Declare a pipeline, or change what one does."""
        return self._line.run(self._put(name, declaration, stateful))

    def restart(self, name: str) -> Ticket[Shown]:
        """Declare a pipeline again as it is, so that whoever runs it begins anew."""
        return self._line.run(self._restart(name))

    def delete(self, name: str) -> Ticket[bool]:
        """Whether there was one."""
        return self._line.run(self._delete(name))

    def get(self, name: str) -> Ticket[Shown]:
        return self._line.run(self._get(name))

    def all(self) -> Ticket[list[Shown]]:
        """All of them, by name."""
        return self._line.run(self._all())

    def now(self) -> list[Shown] | None:
        """All of them without waiting; None: they are still to be loaded, which begins now."""
        if self._engine.core.find(DECLARATIONS) is None:
            return []
        if not self._loaded:
            self.all()
            return None
        return [
            self._shown(name, entry)
            for name, entry in self._entries.items()
            if entry.declaration is not None
        ]

    def claim(self, node: str, count: int, lease_ms: int | None) -> Ticket[list[Handed]]:
        """Lease pipelines to a worker; none is an answer too."""
        return self._line.run(self._claim(node, count, lease_ms))

    def report(
        self, report: Report, lease_id: str, lease_ms: int | None, *, kept: bool
    ) -> Ticket[Held]:
        """Keep what a worker says of its pipeline, if `kept`, and hold it longer by `lease_ms`."""
        return self._line.run(self._report(report, lease_id, lease_ms, kept))

    def release(self, name: str, node: str, version: int, lease: str, delay: int) -> Ticket[bool]:
        """Give a pipeline back, to be claimed after a delay; whether it was held."""
        return self._line.run(self._release(name, node, version, lease, delay))

    # Their steps

    def _put(self, name: str, declaration: Declaration, stateful: bool) -> Steps[Put]:
        yield from self._load()
        entry = self._entries.get(name)
        before = None if entry is None or entry.declaration is None else entry.kept
        if before is None:
            self._check_count()
        elif before.declaration == declaration:
            assert entry is not None
            return Put(self._shown(name, entry), False)
        else:
            _check_change(name, before, declaration, stateful)
        restarts = 0 if before is None else before.restarts
        yield from self._append(name, Kept(name, declaration, restarts, stateful))
        return Put(self._shown(name, self._entries[name]), before is None)

    def _restart(self, name: str) -> Steps[Shown]:
        entry = yield from self._find(name)
        assert entry.kept is not None
        yield from self._append(
            name, msgspec.structs.replace(entry.kept, restarts=entry.kept.restarts + 1)
        )
        return self._shown(name, entry)

    def _delete(self, name: str) -> Steps[bool]:
        yield from self._load()
        entry = self._entries.get(name)
        if entry is None or entry.declaration is None:
            return False
        if any(self._holder(seq) for seq in entry.versions):
            yield from self._append(name, Kept(name))
        else:
            yield self._engine.delete(DECLARATIONS, match=TagMatch(name))
            del self._entries[name]
        return True

    def _get(self, name: str) -> Steps[Shown]:
        entry = yield from self._find(name)
        yield from self._sweep(name)
        return self._shown(name, entry)

    def _all(self) -> Steps[list[Shown]]:
        yield from self._load()
        return [
            self._shown(name, entry)
            for name, entry in sorted(self._entries.items())
            if entry.declaration is not None
        ]

    def _claim(self, node: str, count: int, lease_ms: int | None) -> Steps[list[Handed]]:
        yield from self._load()
        if self._engine.core.find(DECLARATIONS) is None:
            return []
        for name in list(self._entries):
            yield from self._sweep(name)
        handed: list[Handed] = []
        while len(handed) < count:
            left = count - len(handed)
            claimed: Claimed = yield self._engine.queues.claim(DECLARATIONS, node, left, lease_ms)
            if not claimed.jobs:
                break
            for job in claimed.jobs:
                found = self._hand_out(job)
                if found is not None:
                    handed.append(found)
                    continue
                yield self._engine.queues.nack(
                    DECLARATIONS, node, [job.seq], HANDOVER_MS, [job.lease_id]
                )
        return handed

    def _hand_out(self, job: Job) -> Handed | None:
        """The job as a pipeline to run; None if it is an old one, or an old one is still held."""
        entry = self._entries.get(job.tag or "")
        if entry is None or entry.declaration is None or entry.version != job.seq:
            return None
        if any(self._holder(seq) for seq in entry.versions[:-1]):
            return None
        return Handed(self._shown(job.tag or "", entry), job.lease_id, job.deadline)

    def _report(
        self, report: Report, lease_id: str, lease_ms: int | None, kept: bool
    ) -> Steps[Held]:
        yield from self._load()
        entry = self._entries.get(report.pipeline)
        if entry is None or report.version not in entry.versions:
            return Held(False, False, 0)
        current = entry.version == report.version and entry.declaration is not None
        if lease_ms is not None:
            extended: Extended = yield self._engine.queues.extend(
                DECLARATIONS, report.node, [report.version], lease_ms, [lease_id]
            )
            deadline = extended.deadlines.get(report.version)
        else:
            deadline = self._deadline(report, lease_id)
        if deadline is None:
            return Held(False, current, 0)
        if kept and current:
            report = msgspec.structs.replace(
                report, ts=self._engine.core.clock.now_ms(), read=_of_sources(entry, report.read)
            )
            yield self._engine.append(
                PROGRESS,
                Batch([msgspec.json.encode(report)], tags=[report.pipeline], nodes=report.node),
                config=_PROGRESS_CONFIG,
            )
            entry.heard(report)
        return Held(True, current, deadline)

    def _deadline(self, report: Report, lease_id: str) -> int | None:
        """Until when this worker holds this version; None: it does not."""
        holder = self._engine.queues.holder(DECLARATIONS, report.version)
        if holder is None or holder.node != report.node:
            return None
        asked = parse_lease_id(lease_id)
        return holder.deadline if asked is None or asked == holder.lease_id else None

    def _release(self, name: str, node: str, version: int, lease: str, delay: int) -> Steps[bool]:
        yield from self._load()
        entry = self._entries.get(name)
        if entry is None or version not in entry.versions:
            return False
        nacked = yield self._engine.queues.nack(DECLARATIONS, node, [version], delay, [lease])
        yield from self._sweep(name)
        return bool(nacked.nacked)

    # Records

    def _append(self, name: str, kept: Kept) -> Steps[None]:
        known = self._entries.get(name)
        if known is not None and len(known.versions) >= VERSIONS_MAX and kept.declaration:
            yield from self._sweep(name)
            if len(known.versions) >= VERSIONS_MAX:
                raise Throttled(
                    f"{name!r} was changed {VERSIONS_MAX} times, and its worker has not stopped",
                    fix="try again when it has, or when its lease is over",
                    detail={"limit": "versions", "max": VERSIONS_MAX},
                )
        appended = yield self._engine.append(
            DECLARATIONS,
            Batch([msgspec.json.encode(kept)], tags=[name]),
            config=_DECLARATIONS_CONFIG,
        )
        entry = self._entries.setdefault(name, Entry())
        entry.versions.append(appended.last_seq)
        entry.kept = kept
        entry.report = entry.read = None
        yield from self._sweep(name)

    def _sweep(self, name: str) -> Steps[None]:
        """Delete the versions before the newest that nobody holds any more, oldest first."""
        entry = self._entries[name]
        gone = 0
        while gone < len(entry.versions) - 1 and not self._holder(entry.versions[gone]):
            gone += 1
        deleted = entry.declaration is None and gone == len(entry.versions) - 1
        if deleted:
            yield self._engine.delete(DECLARATIONS, match=TagMatch(name))
            del self._entries[name]
        elif gone:
            below = entry.versions[gone]
            yield self._engine.delete(DECLARATIONS, before_seq=below, match=TagMatch(name))
            del entry.versions[:gone]

    def _load(self) -> Steps[None]:
        """After a start: what the topics hold, and an end to what a crash left half done."""
        if self._loaded:
            return
        entries: dict[str, Entry] = {}

        def declared(record: Record) -> None:
            kept = _decoded(record, Kept)
            entry = entries.setdefault(kept.pipeline, Entry())
            entry.versions.append(record.seq)
            entry.kept = kept

        def reported(record: Record) -> None:
            report = _decoded(record, Report)
            found = entries.get(report.pipeline)
            if found is not None and found.version == report.version:
                found.heard(report)

        yield from self._each(DECLARATIONS, declared)
        yield from self._each(PROGRESS, reported)
        self._entries = entries
        self._loaded = True
        for name in list(entries):
            yield from self._sweep(name)

    def _each(self, topic: str, take: Callable[[Record], None]) -> Steps[None]:
        """Call `take` with every record of a topic, a page at a time."""
        cursor = 0
        while self._engine.core.find(topic) is not None:
            page: Page = yield self._engine.read(topic, cursor, limit=PAGE_RECORDS)
            for record in page.records:
                take(record)
            if page.caught_up:
                break
            cursor = page.next_from_seq

    def _find(self, name: str) -> Steps[Entry]:
        yield from self._load()
        entry = self._entries.get(name)
        if entry is None or entry.declaration is None:
            raise PipelineNotFound.named(name)
        return entry

    def _shown(self, name: str, entry: Entry) -> Shown:
        kept = entry.kept
        assert kept is not None and kept.declaration is not None
        holder = self._holder(entry.version)
        return Shown(
            name, entry.version, kept.declaration, kept.restarts, holder, entry.report, entry.read
        )

    def _holder(self, seq: int) -> str | None:
        holder = self._engine.queues.holder(DECLARATIONS, seq)
        return None if holder is None else holder.node

    def _check_count(self) -> None:
        if len(self._entries) >= pipelines_max:
            raise Throttled(
                f"{pipelines_max} pipelines exist, the most allowed",
                fix="delete some",
                detail={"limit": "pipelines_max", "max": pipelines_max},
            )


def _decoded(record: Record, kind: type[T]) -> T:
    """What a record holds; what this version cannot read is named, and not passed over."""
    try:
        return msgspec.json.decode(record.data, type=kind)
    except msgspec.MsgspecError as error:
        raise UnsupportedFormat(
            f"record {record.seq} of the pipelines cannot be read: {error}",
            fix="start the version of headrace that wrote it",
        ) from None


def _of_sources(entry: Entry, read: dict[str, int] | None) -> dict[str, int] | None:
    """What a worker says to have read, of the topics that it was to read."""
    if read is None or entry.declaration is None:
        return None
    return {s.topic: read[s.topic] for s in entry.declaration.sources if s.topic in read}


def _check_change(name: str, before: Kept, after: Declaration, stateful: bool) -> None:
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
