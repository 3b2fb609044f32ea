"""Merges under way: they run beside checkpoints, so that sealing never waits for them.

Only this file carries out planned merges, one after the other, each a step at a time in a lane of
its own.  It changes nothing that readers or snapshots see: outputs are synced, with their
directory, and kept here until a checkpoint takes them (`take_merged`) and puts them in the place of
the inputs, before its snapshot.  Until that snapshot is durable they are orphans, which a start
removes, and the inputs stay listed.

The checkpoint that begins merges waits for their end, or for `hurry`, when the next one is due.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

from headrace.core.errors import CorruptionError
from headrace.core.runtime import Ticket
from headrace.core.steps import Steps, follow_at_once, in_lane
from headrace.engine.sealing.sealed_files import Merged, PlannedMerge, SealedFiles
from headrace.engine.state import EngineState
from headrace.storage.files.merge_run import MergeRun, give_back_memory
from headrace.storage.segment.reader import Segment

log = logging.getLogger("headrace.checkpoint")

LANE = "merge"
# What a merge takes: of each of eight inputs a row group and its bytes, the rows that are sorted,
# and the row group that is written.  So much less is kept in memory of what files hold.
MERGE_MEMORY_BYTES = 48 << 20


class Merging:
    """The merges of one engine.  All of it belongs to the loop thread, but the work in the lane."""

    def __init__(
        self, state: EngineState, files: SealedFiles, ended: Callable[[], None] = lambda: None
    ) -> None:
        self._state = state
        self._files = files
        self._ended = ended  # is told when merges have ended for which no checkpoint waits
        self._merged: list[Merged] = []  # not shown yet
        self._waiting: Ticket[None] | None = None
        self.under_way = False
        self.inputs: set[int] = set()  # of the merges under way and of those not shown yet

    def begin(self, planned: list[PlannedMerge]) -> None:
        """Begin to carry out merges."""
        assert not self.under_way and not self._merged
        if planned:
            self.under_way = True
            self.inputs = {file_id for one in planned for file_id in one.job.inputs}
            self._state.sealed_blocks.reserve(MERGE_MEMORY_BYTES)
            follow_at_once(self._state.runtime, self._all(planned))

    def end_or_hurry(self) -> Ticket[None]:
        """Return the ticket of the end of the merges under way, or of `hurry` before it."""
        assert self.under_way and self._waiting is None
        self._waiting = Ticket(self._state.runtime)
        return self._waiting

    @property
    def waited_for(self) -> bool:
        """Whether a checkpoint waits for the end of the merges."""
        return self._waiting is not None

    def hurry(self) -> None:
        """Let the checkpoint that waits, if any, go on when the turn ends."""
        self._state.runtime.soon(self._answer)

    def _answer(self) -> None:
        if self._waiting is not None:
            waiting, self._waiting = self._waiting, None
            waiting.resolve(None)

    def take_merged(self) -> list[Merged]:
        """Return what merges have made since the last call: the caller shows it to readers."""
        merged, self._merged = self._merged, []
        self.inputs.difference_update(*[one.inputs for one in merged])
        return merged

    def _all(self, planned: list[PlannedMerge]) -> Steps[None]:
        """Carry out merges until one fails for another reason than damage, or the engine closes."""
        try:
            for one in planned:
                try:
                    yield from self._one(one)
                except CorruptionError as error:
                    log.error("a file cannot be merged: %s", error)
                    self._files.leave_alone(one.job.inputs)
                if self._state.closing:
                    break
            yield in_lane(self._state.runtime, LANE, give_back_memory)
        except Exception as error:  # noqa: BLE001 - whatever it is
            # The files before the merge are all there and say the same.
            log.warning("merging stopped, its inputs are kept: %s", error)
        self.under_way = False
        self._state.sealed_blocks.reserve(0)
        self.inputs = {file_id for merged in self._merged for file_id in merged.inputs}
        if self._waiting is not None:
            self._answer()
        else:
            self._ended()

    def _one(self, planned: PlannedMerge) -> Steps[None]:
        runtime, files = self._state.runtime, self._files
        run: MergeRun = yield in_lane(runtime, LANE, lambda: files.start_merge(planned))
        while run.done is None:
            if self._state.closing:
                yield in_lane(runtime, LANE, run.abort)
                return
            yield in_lane(runtime, LANE, run.step)
        metas = run.done
        outputs: list[Segment] = yield in_lane(runtime, LANE, lambda: files.open_merged(metas))
        self._merged.append(Merged(planned.job.inputs, outputs))
