"""The records of pipelines: versions of declarations in one topic, reports in another.

The rules this file owns.  A declaration is a job of the topic `_pipelines`, tagged with its name;
its version is its seq, and the newest of a name counts.  Declaring again appends, and then deletes
the versions before, so that a crash in between leaves two, of which the newer wins.  A version that
a worker still holds is not deleted before its lease is over.  Reports go to the capped topic
`_pipelines.progress`, one record each.

Calls that wait for the engine are generators over its tickets (core/steps.py); `store.py` runs them
one after the other.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, TypeVar

import msgspec

from headrace.api.pipelines import Declaration, PipelineReport
from headrace.core.errors import PipelineNotFound, Throttled, UnsupportedFormat
from headrace.core.steps import Steps
from headrace.engine.engine import Engine
from headrace.engine.queues.requests import parse_lease_id
from headrace.engine.reading.page import Page
from headrace.engine.removal.deleting import TagMatch
from headrace.engine.topics.config import TopicConfig
from headrace.storage.block import Batch, Record

T = TypeVar("T")

DECLARATIONS: Final = "_pipelines"
PROGRESS: Final = "_pipelines.progress"
PROGRESS_RECORDS_MAX: Final = 10_000
LEASE_MS: Final = 30_000
# Versions of a pipeline that are kept, because the worker of an earlier one has not stopped yet.
VERSIONS_MAX: Final = 64
PAGE_RECORDS: Final = 1_000

_DECLARATIONS_CONFIG: Final = TopicConfig(
    type="queue", durability="fsync", leases_durable=True, lease_ms=LEASE_MS, max_deliveries=0
)
_PROGRESS_CONFIG: Final = TopicConfig(cap_records=PROGRESS_RECORDS_MAX)


class StoredVersion(msgspec.Struct, frozen=True):
    """The payload of a record of `_pipelines`; without a declaration the pipeline is deleted."""

    pipeline: str
    declaration: Declaration | None = None
    restarts: int = 0
    stateful: bool = True


class Entry:
    """A pipeline: the seqs of its versions that are still records, and the newest of them."""

    __slots__ = ("bytes", "newest", "read", "report", "versions")

    def __init__(self) -> None:
        self.bytes = 0  # of the newest declaration
        self.versions: list[int] = []  # ascending
        self.newest: StoredVersion | None = None
        self.report: PipelineReport | None = None  # of the newest version, the last one
        self.read: dict[str, int] | None = None  # the last that a report said

    def add_version(self, seq: int, stored: StoredVersion) -> None:
        """Take a newer version; what was reported is of an earlier one."""
        self.versions.append(seq)
        self.newest = stored
        self.bytes = 0 if stored.declaration is None else len(stored.declaration.encode())
        self.report = self.read = None

    def add_report(self, report: PipelineReport) -> None:
        """Take a later report."""
        self.report = report
        self.read = report.read or self.read

    @property
    def version(self) -> int:
        """The seq of the newest version."""
        return self.versions[-1]

    @property
    def declaration(self) -> Declaration | None:
        """What the newest version declares; None: the pipeline is deleted."""
        return None if self.newest is None else self.newest.declaration


class PipelineRecords:
    """The records of all pipelines of one engine, by name."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self.entries: dict[str, Entry] = {}
        self.loaded = False

    @property
    def exist(self) -> bool:
        """Whether a pipeline was ever declared."""
        return self._engine.find(DECLARATIONS) is not None

    # Reading

    def load(self) -> Steps[None]:
        """Read both topics after a start, and finish what a crash left half done."""
        if self.loaded:
            return
        entries: dict[str, Entry] = {}

        def take_version(record: Record) -> None:
            stored = _decoded(record, StoredVersion)
            entries.setdefault(stored.pipeline, Entry()).add_version(record.seq, stored)

        def take_report(record: Record) -> None:
            report = _report_in(record)
            found = entries.get(report.pipeline)
            if found is not None and found.version == report.version:
                found.add_report(report)

        yield from self._each(DECLARATIONS, take_version)
        yield from self._each(PROGRESS, take_report)
        self.entries = entries
        self.loaded = True
        for name in list(entries):
            yield from self.sweep(name)

    def _each(self, topic: str, take: Callable[[Record], None]) -> Steps[None]:
        """Call `take` with every record of a topic, a page at a time."""
        cursor = 0
        while self._engine.find(topic) is not None:
            page: Page = yield self._engine.read(topic, cursor, limit=PAGE_RECORDS)
            for record in page.records:
                take(record)
            if page.caught_up:
                break
            cursor = page.next_from_seq

    def find(self, name: str) -> Steps[Entry]:
        """Return a pipeline, or refuse a name that none has."""
        yield from self.load()
        entry = self.entries.get(name)
        if entry is None or entry.declaration is None:
            raise PipelineNotFound.named(name)
        return entry

    def holder(self, version: int) -> str | None:
        """Return the worker that holds a version now."""
        holder = self._engine.queues.holder(DECLARATIONS, version)
        return None if holder is None else holder.node

    def deadline(self, version: int, node: str, lease_id: str) -> int | None:
        """Return until when a worker holds a version by a lease; None: it does not."""
        holder = self._engine.queues.holder(DECLARATIONS, version)
        if holder is None or holder.node != node:
            return None
        asked = parse_lease_id(lease_id)
        return holder.deadline if asked is None or asked == holder.lease_id else None

    # Writing

    def append_version(self, stored: StoredVersion) -> Steps[None]:
        """Append a version of a pipeline, and delete those before that no worker holds."""
        name = stored.pipeline
        known = self.entries.get(name)
        if known is not None and len(known.versions) >= VERSIONS_MAX and stored.declaration:
            yield from self.sweep(name)
            if len(known.versions) >= VERSIONS_MAX:
                raise Throttled(
                    f"{name!r} was changed {VERSIONS_MAX} times, and its worker has not stopped",
                    fix="try again when it has, or when its lease is over",
                    detail={"limit": "versions", "max": VERSIONS_MAX},
                )
        appended = yield self._engine.append(
            DECLARATIONS,
            Batch([msgspec.json.encode(stored)], tags=[name]),
            config=_DECLARATIONS_CONFIG,
        )
        self.entries.setdefault(name, Entry()).add_version(appended.last_seq, stored)
        yield from self.sweep(name)

    def append_report(self, entry: Entry, report: PipelineReport) -> Steps[None]:
        """Append what a worker reports of the newest version of a pipeline."""
        report = msgspec.structs.replace(
            report, ts=self._engine.clock.now_ms(), read=_of_sources(entry, report.read)
        )
        payload = msgspec.json.encode(report.every_field())
        yield self._engine.append(
            PROGRESS,
            Batch([payload], tags=[report.pipeline], nodes=report.node),
            config=_PROGRESS_CONFIG,
        )
        entry.add_report(report)

    def sweep(self, name: str) -> Steps[None]:
        """Delete the versions before the newest that no worker holds any more, oldest first."""
        entry = self.entries[name]
        gone = 0
        while gone < len(entry.versions) - 1 and not self.holder(entry.versions[gone]):
            gone += 1
        deleted = entry.declaration is None and gone == len(entry.versions) - 1
        if deleted:
            yield from self.remove(name)
        elif gone:
            below = entry.versions[gone]
            yield self._engine.delete(DECLARATIONS, before_seq=below, match=TagMatch(name))
            del entry.versions[:gone]

    def remove(self, name: str) -> Steps[None]:
        """Delete every version of a pipeline."""
        yield self._engine.delete(DECLARATIONS, match=TagMatch(name))
        del self.entries[name]


def _decoded(record: Record, kind: type[T]) -> T:
    """Return the struct that a record holds; refuse what this version cannot read."""
    try:
        return msgspec.json.decode(record.data, type=kind)
    except msgspec.MsgspecError as error:
        raise _unreadable(record, str(error)) from None


def _report_in(record: Record) -> PipelineReport:
    report = _decoded(record, PipelineReport)
    # A client makes reports without these, so the struct does not ask for them.
    if not (report.pipeline and report.version and report.state and report.node):
        raise _unreadable(record, "the report does not say of what it is")
    return report


def _unreadable(record: Record, why: str) -> UnsupportedFormat:
    return UnsupportedFormat(
        f"record {record.seq} of the pipelines cannot be read: {why}",
        fix="start the version of headrace that wrote it",
    )


def _of_sources(entry: Entry, read: dict[str, int] | None) -> dict[str, int] | None:
    """What a worker says to have read, of the topics that it was to read."""
    if read is None or entry.declaration is None:
        return None
    return {s.topic: read[s.topic] for s in entry.declaration.sources if s.topic in read}
