"""The scrub: reads every live file in time and at a bounded rate, and says which are damaged.

Only this file decides what follows from damage: an error in the log, a figure, a problem that
`/v0/ready` shows until the file is whole or gone, and for a sealed file the attempt to fetch it
again.  It reads in a lane of its own, some bytes a step, and rests after each step as the setting
says; the loop thread only hears of it.

A file that is merged away, moved or dropped while it is read is no damage: whatever goes wrong,
what is listed is looked up again before anything is said.
"""

from __future__ import annotations

import errno
import logging
from collections.abc import Callable, Iterator
from typing import Final

from headrace.core.errors import CorruptionError, HeadraceError
from headrace.core.runtime import Ticket
from headrace.core.steps import Steps, follow_at_once, in_lane, pause
from headrace.engine.scrubbing.repair_source import open_backup
from headrace.engine.scrubbing.schedule import (
    Listed,
    Plan,
    Rows,
    Targets,
    pause_ms,
    plan,
    restored,
    targets_of,
)
from headrace.engine.sealing.sealed_files import SealedFiles
from headrace.engine.state import EngineState
from headrace.storage.files.store import Store
from headrace.storage.scrub.checking import FileCheck, ScrubTarget, open_check
from headrace.storage.scrub.progress_file import (
    FileProgress,
    Key,
    path_of,
    read_progress,
    write_progress,
)
from headrace.storage.scrub.refetch import refetch
from headrace.storage.segment.format import BLOCK_BYTES, SegmentMeta
from headrace.storage.segment.reader import Segment

log = logging.getLogger("headrace.scrub")

LANE: Final = "scrub"
CHECKPOINT_LANE: Final = "work"  # what is asked there does not meet a snapshot half-written
STEP_BYTES_MAX: Final = 1 << 20
LOOK_MS_MAX: Final = 10_000  # how long files that have come or gone meanwhile are not known
SAVE_MS: Final = 60_000
# When a file is looked at again that was damaged, or that could not be read.
AGAIN_MS: Final = 60_000
PROBLEMS_SHOWN_MAX: Final = 4


class Scrub:
    """The scrub of one engine.  All of it belongs to the loop thread, but the work in the lanes."""

    def __init__(
        self,
        state: EngineState,
        files: SealedFiles,
        backup: Callable[[], Store | None] | None = None,
    ) -> None:
        settings = state.settings
        self._state = state
        self._files = files
        self.bytes_per_second = settings.scrub_bytes_per_second
        self.interval_ms = settings.scrub_interval_ms
        step = min(STEP_BYTES_MAX, self.bytes_per_second)
        self._step_bytes = max(step, BLOCK_BYTES)
        self._backup = backup or (lambda: open_backup(settings.scrub_repair_from))
        self._started = False
        self._rows: Rows = {}
        self._targets: Targets = {}
        self._why: dict[Key, str] = {}  # of damaged files
        self._not_before: dict[Key, int] = {}  # of files to be looked at again soon
        self._saved_ms = 0
        self._unsaved = False
        self.verified_bytes_total = 0
        self.verified_files_total = 0
        self.damaged_files_total = 0
        self.repaired_files_total = 0

    # What others see

    @property
    def on(self) -> bool:
        """Whether files are verified by and by."""
        return self._started

    def files(self) -> Iterator[tuple[FileProgress, ScrubTarget | None]]:
        """What is known of every file, by kind and number."""
        return ((row, self._targets.get(key)) for key, row in self._rows.items())

    @property
    def files_count(self) -> int:
        return len(self._rows)

    @property
    def damaged_files(self) -> int:
        return sum(row.damaged for row in self._rows.values())

    @property
    def oldest_verification_ms(self) -> int:
        """How long ago the file was verified, or first seen, that waits the longest; 0: none."""
        times = [row.verified_ms or row.seen_ms for row in self._rows.values()]
        return max(0, self._state.clock.now_ms() - min(times)) if times else 0

    def why(self, row: FileProgress) -> str:
        """What is wrong with a file; "" for one that is not known to be damaged."""
        if not row.damaged:
            return ""
        return self._why.get(row.key) or f"{row.path} was found damaged at offset {row.offset}"

    def problem(self) -> str:
        """Which files are damaged, and how; "" when none is known to be."""
        found = [self.why(row) for row in self._rows.values() if row.damaged]
        more = len(found) - PROBLEMS_SHOWN_MAX
        shown = "; ".join(found[:PROBLEMS_SHOWN_MAX])
        return f"{shown}; and {more} more" if more > 0 else shown

    # The work

    def start(self) -> None:
        """Verify files from now on, unless the settings switch it off.  The engine is ready."""
        if self.bytes_per_second and not self._started:
            self._started = True
            follow_at_once(self._state.runtime, self._all())

    def _all(self) -> Steps[None]:
        yield from self._load()
        while not self._state.closing:
            try:
                wait_ms = yield from self._round()
            except (HeadraceError, OSError, MemoryError) as error:
                log.warning("the scrub goes on later: %s", error)
                wait_ms = LOOK_MS_MAX
            yield pause(self._state.runtime, wait_ms)

    def _round(self) -> Steps[int]:
        """Verify what is due while the list of files is fresh; return how long to rest."""
        found = yield from self._look()
        until_ms = self._now() + LOOK_MS_MAX
        for key in found.due:
            yield from self._verify(key)
            if self._state.closing or self._now() >= until_ms:
                return 1
        yield from self._save()
        rest_ms = min(LOOK_MS_MAX, self.interval_ms)
        if found.next_ms is not None:
            rest_ms = min(rest_ms, found.next_ms - self._now())
        return max(1, rest_ms)

    def _now(self) -> int:
        return self._state.clock.now_ms()

    def _load(self) -> Steps[None]:
        """Take up what was known before the stop; without it the scrub starts over."""
        self._saved_ms = self._now()
        try:
            rows: list[FileProgress] = yield self._in_lane(lambda: read_progress(self._state.fs))
        except (HeadraceError, OSError) as error:
            log.warning("the scrub starts over: %s", error)
            return
        self._rows = restored(rows, self._now())

    def _listed(self) -> Steps[Targets]:
        """Every file that is needed now."""
        metas = [segment.meta for segment in self._state.catalog.segments()]
        listed: Listed = yield in_lane(
            self._state.runtime, CHECKPOINT_LANE, lambda: Listed(*self._files.listed_beside())
        )
        targets: Targets = yield self._in_lane(lambda: targets_of(metas, listed))
        return targets

    def _look(self) -> Steps[Plan]:
        """See which files there are, forget those that are gone, and plan."""
        targets = yield from self._listed()
        known, not_before, now = self._rows, self._not_before, self._now()
        found: Plan = yield self._in_lane(
            lambda: plan(targets, known, not_before, now, self.interval_ms)
        )
        for key in self._why.keys() - targets.keys():
            log.info("%s, which was damaged, is gone", path_of(key))
            self._unsaved = True
        self._why = {key: why for key, why in self._why.items() if key in targets}
        self._not_before = {k: at for k, at in not_before.items() if k in targets}
        self._targets, self._rows = found.targets, found.rows
        return found

    def _in_lane(self, work: Callable[[], object]) -> Ticket[object]:
        return in_lane(self._state.runtime, LANE, work)

    # One file

    def _verify(self, key: Key) -> Steps[None]:
        target = self._targets[key]
        try:
            whole = yield from self._read(target)
        except CorruptionError as error:
            yield from self._damaged(target, error)
        except (HeadraceError, OSError, MemoryError) as error:
            if isinstance(error, OSError) and error.errno == errno.EIO:
                yield from self._damaged(target, error)
            else:
                # A tier that is away, say: that is said where it is used, and is no damage.
                log.info("%s is verified later: %s", target.path, error)
                self._not_before[key] = self._again_ms()
        else:
            if whole:
                yield from self._whole(target)

    def _read(self, target: ScrubTarget) -> Steps[bool]:
        """Read a file to its end; False if the engine closes before."""
        state, row = self._state, self._rows[target.key]
        offset = 0 if row.damaged else row.offset
        check: FileCheck = yield self._in_lane(
            lambda: open_check(state.fs, state.tiers, target, state.identity, offset)
        )
        try:
            while not state.closing:
                read: int = yield self._in_lane(lambda: check.step(self._step_bytes))
                if not read:
                    return True
                self.verified_bytes_total += read
                if not row.damaged and check.offset:
                    self._note(row._replace(offset=check.offset))
                yield pause(state.runtime, pause_ms(read, self.bytes_per_second))
                if self._now() - self._saved_ms >= SAVE_MS:
                    yield from self._save()
            return False
        finally:
            check.close()

    def _note(self, row: FileProgress) -> None:
        self._rows[row.key] = row
        self._unsaved = True

    def _whole(self, target: ScrubTarget) -> Steps[None]:
        """Note that a file is whole; of one that was not, tell readers."""
        key = target.key
        row = self._rows[key]
        self.verified_files_total += 1
        self._not_before.pop(key, None)
        self._note(row._replace(damaged=False, verified_ms=self._now(), offset=0))
        if row.damaged:
            self._why.pop(key, None)
            log.warning("%s is whole again", target.path)
            if target.segment is not None:
                yield from self._reopen(target.segment)
            yield from self._save()

    def _damaged(self, target: ScrubTarget, error: CorruptionError | OSError) -> Steps[None]:
        """Say that a file is damaged, if it is still needed, and try to fetch it again."""
        listed = yield from self._listed()
        key = target.key
        if listed.get(key) != target:
            return
        row = self._rows[key]
        detail = error.detail if isinstance(error, HeadraceError) else {}
        offset = detail.get("offset")
        why = error.message if isinstance(error, HeadraceError) else f"{target.path}: {error}"
        if not row.damaged:
            self.damaged_files_total += 1
        is_news = key not in self._why
        if is_news:
            log.error("the scrub found damage: %s", why)
        self._why[key] = why
        self._not_before[key] = self._again_ms()
        self._note(row._replace(damaged=True, offset=offset if isinstance(offset, int) else 0))
        yield from self._save()
        if target.segment is not None:
            yield from self._fetch_again(target, target.segment, is_news)

    def _again_ms(self) -> int:
        return self._now() + min(AGAIN_MS, self.interval_ms)

    def _fetch_again(self, target: ScrubTarget, meta: SegmentMeta, is_news: bool) -> Steps[None]:
        state = self._state
        try:
            source: str | None = yield self._in_lane(
                lambda: refetch(meta, state.tiers, self._backup(), state.identity)
            )
        except (HeadraceError, OSError) as error:
            # Once: it is tried again every minute, in case a place comes back.
            log.log(logging.WARNING if is_news else logging.DEBUG, "no repair: %s", error)
            return
        if source is not None:
            self.repaired_files_total += 1
            log.warning("%s was fetched again from %s", target.path, source)
        yield from self._whole(target)

    def _reopen(self, meta: SegmentMeta) -> Steps[None]:
        """Let readers use the file that is there now under the name."""
        segment: Segment = yield self._in_lane(lambda: self._files.open(meta))
        self._files.reopened(segment)

    # Its memory

    def _save(self) -> Steps[None]:
        """Write down what is known, if that has changed."""
        if not self._unsaved or self._state.room.short:
            return
        self._unsaved = False
        self._saved_ms = self._now()
        rows = list(self._rows.values())
        try:
            yield self._in_lane(lambda: write_progress(self._state.fs, rows))
        except OSError as error:
            self._unsaved = True
            log.warning("what the scrub knows was not saved: %s", error)
