"""Appends that came together, on their way into one commit of the log.

The rule this file owns: entries stand in the log in the order in which their appends got their
seqs.  So what has been gathered is staged before any other entry that an append brings (the
creation of a topic, a reservation), and nothing that could call back happens in between.
"""

from __future__ import annotations

import logging
from operator import attrgetter
from typing import Final

from headrace.core.errors import HeadraceError
from headrace.engine.appending.pending_append import (
    Answered,
    AppendCommit,
    InFlight,
    PendingAppend,
)
from headrace.engine.state import EngineState
from headrace.storage.wal.frame import ENTRY_RESERVE, Reserve
from headrace.storage.wal.shard import WalShard

log = logging.getLogger("headrace.append")

# Of an append that has its seqs.
_ENTRY: Final = attrgetter("block.raw")
_NEEDS_SYNC: Final = attrgetter("needs_sync")


class GatheredAppends:
    """The appends of one call that have their seqs and are not staged yet."""

    __slots__ = (
        "_answered", "_flushes", "_in_flight", "_state", "_unlogged", "appends", "room", "shard",
        "syncs",
    )  # fmt: skip

    def __init__(
        self, state: EngineState, in_flight: InFlight, answered: Answered | None, *, flushes: bool
    ) -> None:
        self._state = state
        self._in_flight = in_flight
        self._answered = answered
        self._flushes = flushes  # the log is written when all have been staged
        # An append that has its seqs is put here for the shard that is open, in their order; the
        # one who does so takes the bytes of its entry from `room`.
        self.appends: list[PendingAppend] = []
        self._unlogged: list[tuple[WalShard, PendingAppend]] = []
        self.shard: WalShard | None = None  # which has those that are gathered
        self.room = 0  # bytes that may be gathered before the log has to be looked at
        self.syncs = False  # one of them has to be synced itself, not only what came before it

    def open(self, shard: WalShard) -> None:
        """Raise if nothing can be written to this shard; otherwise gather for it."""
        self.stage()
        room = self._state.room_in(shard)
        self.shard = shard
        self.room = min(shard.batch_bytes_max, room)

    def begin(self, shard: WalShard) -> None:
        """Gather the next append for this shard, which has been looked at; nothing waits."""
        assert not self.appends
        self.shard = shard

    def add_unlogged(self, pending: PendingAppend, shard: WalShard) -> None:
        """Gather an append whose records never reach the log, where only its seqs are reserved."""
        pending.logged = False
        self._unlogged.append((shard, pending))

    def stage(self) -> None:
        """Stage everything that has been gathered."""
        if self.appends:
            self._stage_logged()
        if self._unlogged:
            unlogged, self._unlogged = self._unlogged, []
            for shard, pending in unlogged:
                self._stage_unlogged(shard, pending)

    def _stage_logged(self) -> None:
        shard, appends = self.shard, self.appends
        assert shard is not None
        self.appends, self.room = [], 0
        follows, self.syncs = not self.syncs, False
        entries = list(map(_ENTRY, appends))
        waits = set(map(_NEEDS_SYNC, appends))
        if len(waits) == 1:
            commit = self._commit(shard, appends, entries, waits.pop())
            shard.stage(commit, flushes=self._flushes, follows=follows)
            return
        at_once = [pending for pending in appends if not pending.needs_sync]
        synced = [pending for pending in appends if pending.needs_sync]
        shard.stage(self._commit(shard, at_once, entries, False), flushes=self._flushes)
        # Their entries are in the log by then: the sync is all that they wait for.
        commit = self._commit(shard, synced, (), True)
        shard.stage(commit, flushes=self._flushes, follows=follows)

    def _stage_unlogged(self, shard: WalShard, pending: PendingAppend) -> None:
        topic, reserve = pending.topic, pending.reserve
        assert topic is not None
        pending.reserve = 0
        if reserve:

            def reserved(error: HeadraceError | None) -> None:
                if error is None:
                    topic.reservation.written(reserve, shard)
                else:
                    topic.reservation.failed()

            self._state.log(topic, ENTRY_RESERVE, Reserve(reserve), needs_sync=False, done=reserved)
        commit = self._commit(shard, [pending], (), pending.needs_sync)
        if pending.needs_sync:
            shard.stage(commit)
            return
        try:
            commit.settle(None)
        except Exception:  # each append has been told what became of it
            log.exception("appends that are not logged could not be settled")

    def _commit(
        self,
        shard: WalShard,
        appends: list[PendingAppend],
        entries: list[bytes] | tuple[()],
        needs_sync: bool,
    ) -> AppendCommit:
        return AppendCommit(
            self._state, shard, self._in_flight, appends, entries, needs_sync, self._answered
        )
