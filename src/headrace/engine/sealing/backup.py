"""Backing up a running engine: a checkpoint, one instant of the log, and files held meanwhile.

Writers and readers go on.  The copy is of one instant for all topics together: the snapshot of the
checkpoint, plus the log from its replay position to where every shard had got in one turn of the
loop.  What the snapshot needs is pinned until the copy is done.
"""

from __future__ import annotations

import msgspec

from headrace.core.errors import HeadraceError, NotReady
from headrace.core.runtime import Ticket
from headrace.engine.engine import Engine
from headrace.storage.files.store import Store, open_store
from headrace.storage.snapshot.chains import Retained
from headrace.storage.snapshot.state import SnapshotState
from headrace.storage.tools.backup import (
    BackupReport,
    Frozen,
    frozen_log,
    identity_of,
    write_backup,
)
from headrace.storage.tools.examination import replayed_files
from headrace.storage.tools.findings import Progress

COPY_LANE = "backup"
WORK_LANE = "work"  # of checkpoints: what is done there cannot meet one half-way


def backup(
    engine: Engine,
    target: Store | str,
    *,
    replace: bool = False,
    progress: Progress = lambda _what, _done, _of: None,
) -> Ticket[BackupReport]:
    """Bring a backup up to date with a running engine.

    `target` is a directory, an object-store URL, or an open store.  `progress` is called from
    another thread.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as data, tempfile.TemporaryDirectory() as copy:
    ...     with Engine.open(data) as engine:
    ...         appended = engine.append("orders", [{"id": 1}]).result()
    ...         report = backup(engine, copy).result()
    >>> report.topics, report.records
    (1, 1)
    """
    run = _Backup(engine, target, replace, progress)
    run.begin()
    return run.ticket


class _Backup:
    """One backup under way."""

    def __init__(
        self, engine: Engine, target: Store | str, replace: bool, progress: Progress
    ) -> None:
        self.ticket: Ticket[BackupReport] = Ticket(engine.runtime)
        self._engine = engine
        self._state = engine.state
        self._runtime = engine.runtime
        self._target = target
        self._replace = replace
        self._progress = progress
        self._pinned: Retained | None = None

    def begin(self) -> None:
        self._engine.checkpoint().when_done(self._checkpointed)

    def _checkpointed(self, done: Ticket[None]) -> None:
        if done.error is not None:
            self._fail(done.error)
        else:
            self._runtime.submit(WORK_LANE, self._hold, self._held)

    def _hold(self) -> SnapshotState:
        """Pin what the newest snapshot needs, and take its state, which later ones replace."""
        store = self._engine.checkpointer.files.snapshots
        self._pinned = store.pin()
        latest = store.latest
        assert latest.number == self._pinned.number
        return msgspec.structs.replace(
            latest,
            positions=dict(latest.positions),
            topics=dict(latest.topics),
            files=dict(latest.files),
            key_files=list(latest.key_files),
            extra=dict(latest.extra),
        )

    def _held(self, value: object, error: BaseException | None) -> None:
        if error is not None:
            self._fail(error)
            return
        assert isinstance(value, SnapshotState)
        state = value
        # One instant: what is acknowledged by now is in the log before these positions.
        self._engine.flush()
        ends = {shard.directory: shard.written for shard in self._state.shards}
        self._runtime.submit(COPY_LANE, lambda: self._copy(state, ends), self._copied)

    def _copy(self, state: SnapshotState, ends: dict[str, int]) -> BackupReport:
        fs = self._state.fs
        target = self._target
        store = open_store(target) if isinstance(target, str) else target
        log = frozen_log(fs, replayed_files(fs, state), state.positions, ends)
        tiers = self._state.tiers
        frozen = Frozen(identity_of(fs), fs.describe(""), state, log, tiers.open, fs.open_read)
        try:
            clock = self._runtime.clock
            return write_backup(frozen, store, clock, self._progress, replace=self._replace)
        except OSError as error:
            raise NotReady(
                f"the backup was not made: {error}",
                fix="check the target's disk and its room; the backup before this one is whole",
                detail={"reason": "backup_failed"},
            ) from error
        finally:
            for part in log:
                part.file.close()

    def _copied(self, value: object, error: BaseException | None) -> None:
        def let_go() -> None:
            assert self._pinned is not None
            self._engine.checkpointer.files.snapshots.unpin(self._pinned)

        self._runtime.submit(WORK_LANE, let_go, lambda _value, _error: self._end(value, error))

    def _end(self, value: object, error: BaseException | None) -> None:
        if error is not None:
            self._fail(error)
        else:
            assert isinstance(value, BackupReport)
            self.ticket.resolve(value)

    def _fail(self, error: BaseException) -> None:
        if not isinstance(error, HeadraceError):
            error.add_note("while a backup was made")
        self.ticket.fail(error)
