"""What an examination of a data directory found, for the tools that act on it.

`check.py` fills an `Examination`; repair, backup and dump read it.  Here is also the lock
that keeps a server away meanwhile.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from headrace.core.errors import InvalidRequest
from headrace.storage.files.tier import Tiers
from headrace.storage.fs import LOCK_PATH, Filesystem, Lock
from headrace.storage.snapshot.chains import LoadedSnapshot
from headrace.storage.snapshot.format import Decoded
from headrace.storage.snapshot.key_files import KeyFileMeta
from headrace.storage.snapshot.state import WAL_NUMBER, SnapshotState
from headrace.storage.tools.check_segments import SegmentState
from headrace.storage.tools.findings import Finding, Report, Severity
from headrace.storage.tools.lost_seqs import Range
from headrace.storage.wal.audit import Survey
from headrace.storage.wal.file import discover
from headrace.storage.wal.mark import Mark, marks_that_count
from headrace.storage.wal.rewrite import Stretch

REPAIR_FIX = "run `headrace check --repair`, which keeps a copy, or restore a backup"


@dataclass
class Examination:
    """Everything a repair has to know."""

    fs: Filesystem
    tiers: Tiers
    loaded: LoadedSnapshot | None = None
    snapshots: dict[int, Decoded] = field(default_factory=dict)  # every file that decodes
    bad_snapshots: list[int] = field(default_factory=list)
    snapshot_refused: bool = False
    surveys: dict[str, Survey] = field(default_factory=dict)
    starts: dict[str, int] = field(default_factory=dict)
    marks: dict[str, Mark] = field(default_factory=dict)  # what the logs have to hold
    bad_marks: list[str] = field(default_factory=list)  # logs whose file of marks proves nothing
    log_bad: set[str] = field(default_factory=set)  # directories to repair
    log_lost: dict[str, list[Stretch]] = field(default_factory=dict)
    topic_id_max: int = 0
    segments: dict[int, SegmentState] = field(default_factory=dict)
    lost: dict[int, list[Range]] = field(default_factory=dict)  # sealed records, by topic
    bad_keys: list[KeyFileMeta] = field(default_factory=list)
    orphans: list[str] = field(default_factory=list)
    identity_bad: bool = False
    cold_owner: str = ""  # whose the cold tier says it is
    findings: list[Finding] = field(default_factory=list)
    files: int = 0
    bytes: int = 0
    batches: int = 0

    @property
    def state(self) -> SnapshotState | None:
        return self.loaded.state if self.loaded is not None else None

    def add(self, severity: Severity, code: str, path: str, message: str, **more: object) -> None:
        where = self.fs.describe(path)
        finding = Finding(severity, code, where, message, **more)  # type: ignore[arg-type]
        self.findings.append(finding)

    def report(self) -> Report:
        state = self.state
        return Report(
            directory=self.fs.describe(""),
            findings=self.findings,
            files=self.files,
            bytes=self.bytes,
            topics=len(state.topics) if state is not None else 0,
            records=sum(meta.rows for meta in state.files.values()) if state is not None else 0,
            batches=self.batches,
        )


def lock_directory(fs: Filesystem, what: str) -> Lock:
    """Lock a data directory for a tool; `InvalidRequest` when there is none."""
    if not any(fs.exists(name) for name in ("meta", "wal", "segments")):
        raise InvalidRequest(
            f"{fs.describe('')} is not a data directory: it has no meta, wal or segments",
            fix=f"name the directory to {what} with --data-dir",
        )
    return fs.lock(LOCK_PATH)


def replayed_files(fs: Filesystem, state: SnapshotState | None) -> dict[str, list[int]]:
    """The log files that count: of directories the snapshot does not replay, only newer ones."""
    found = discover(fs)
    if state is None:
        return found
    number_min = _wal_number(state)
    return {
        directory: counted
        for directory, numbers in found.items()
        if (counted := [n for n in numbers if directory in state.positions or n >= number_min])
    }


def replayed_marks(fs: Filesystem, state: SnapshotState | None) -> dict[str, Mark]:
    """The marks that count, by directory: what those logs have to hold."""
    if state is None:
        return marks_that_count(fs, None, 0)
    return marks_that_count(fs, state.positions, _wal_number(state))


def _wal_number(state: SnapshotState) -> int:
    return int.from_bytes(state.extra.get(WAL_NUMBER, b""), "little")
