"""The throttle: measures the load every `LOOK_MS`, and does what the governor decides.

Only this file connects the governor with what it governs: the turns of live delivery and of
background work, the syncs of the log, and the refusal of appends.  A healthy engine pays nothing
for it beyond one look in a tenth of a second: what the load is follows from figures that are kept
anyway.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import TYPE_CHECKING

from headrace.core.clock import NS_PER_MS
from headrace.core.errors import Throttled
from headrace.engine.scheduling.governor import (
    LOOK_MS,
    RETRY_AFTER_MS,
    SEALED_PER_SECOND,
    SMOOTHING,
    WAIT_ABOVE_MEMORY,
    Governor,
    Load,
    write_wait_ms,
)
from headrace.engine.scheduling.turns import Turns
from headrace.storage.wal.shard import WalShard

if TYPE_CHECKING:
    from headrace.engine.state import EngineState


# A timer that is later than this was delayed by work in the loop; timers are exact to 1 ms.
LATE_NS = 2 * NS_PER_MS
# What is sealed in smaller pieces says little about how fast it could be.
SEALED_BYTES_MIN = 4 << 20


class Throttle:
    """Applies the governor to one engine; nothing happens before `start`."""

    def __init__(self, state: EngineState, turns: Turns) -> None:
        self.governor = Governor()
        self.shedding = False  # read at every append
        # Read at every append: beyond so many bytes that are not sealed they wait for the log.
        self.wait_above_bytes = sys.maxsize
        self._sealed_per_second = float(SEALED_PER_SECOND)
        self.refused_total = 0
        self.bypassed_total = 0  # appends that asked not to be refused
        self._state = state
        self._turns = turns
        self._running = False
        self._looked_ns = 0
        self._due_ns = 0  # the next look
        self._worked_ns = 0  # CPU time of the loop's thread at the last look
        self._frames = 0
        self._batches = 0
        # Requests that have arrived and are not handed over, which whoever serves them counts.
        self.waiting_requests: Callable[[], int] = int

    # Looking

    def start(self) -> None:
        """Look every `LOOK_MS` from now on.  To be called on the loop thread."""
        self._running = True
        budget = self._state.settings.memory_budget_bytes
        self.wait_above_bytes = int(budget * WAIT_ABOVE_MEMORY)
        self._measure()
        self._look_later()

    def _look_later(self) -> None:
        self._due_ns = self._state.runtime.clock.monotonic_ns() + LOOK_MS * NS_PER_MS
        self._state.runtime.later(LOOK_MS, self._look)

    def stop(self) -> None:
        """Stop looking, and end every delay."""
        self._running = False
        self.wait_above_bytes = sys.maxsize
        self.govern(0.0)

    def _look(self) -> None:
        if not self._running:
            return
        load = self._measure()
        self._look_later()  # first: whatever happens now, pressure must be able to fall again
        self.apply(load)
        self._turns.ask()  # so that a wait is measured, although nobody is live

    def _measure(self) -> Load:
        """Return the load since the last look."""
        clock, turns, shards = self._state.runtime.clock, self._turns, self._state.shards
        now_ns, worked_ns = clock.monotonic_ns(), clock.thread_ns()
        elapsed_ns, used_ns = now_ns - self._looked_ns, worked_ns - self._worked_ns
        self._looked_ns, self._worked_ns = now_ns, worked_ns
        frames = sum(shard.frames_total for shard in shards)
        batches = sum(shard.batches_total for shard in shards)
        # Appends wait for the log until the end of a turn: this is their mean number per batch.
        staged = (frames - self._frames) / max(batches - self._batches, 1)
        self._frames, self._batches = frames, batches
        return Load(
            turns.depth + staged + self.waiting_requests(),
            turns.mean_wait_ns() / NS_PER_MS,
            used_ns / max(elapsed_ns, 1),
            now_ns - self._due_ns >= LATE_NS,
        )

    # Doing

    def apply(self, load: Load) -> None:
        """Do what follows from a measurement."""
        self.governor.look(load, self._turns.now_ms)
        self._apply_rungs()

    def govern(self, pressure: float) -> None:
        """Do what follows from a given pressure, without a measurement."""
        self.governor.set_pressure(pressure, self._turns.now_ms)
        self._apply_rungs()

    def _apply_rungs(self) -> None:
        governor, turns = self.governor, self._turns
        turns.coalesce_ms = governor.coalesce_ms
        window_ms = round(governor.window_ms)
        for shard in self._state.shards:
            if shard.window_ms != window_ms:
                shard.widen(window_ms)
        self.shedding = governor.shedding
        if turns.deferring != governor.deferring:
            turns.defer(governor.deferring)
        elif governor.deferring:
            turns.look_after_held()

    # Waiting

    def sealed(self, size: int, elapsed_ns: int) -> None:
        """Take into account how long it took to seal `size` bytes, for which there is room now."""
        if size >= SEALED_BYTES_MIN:
            rate = size * 1e9 / max(elapsed_ns, 1)
            self._sealed_per_second += (rate - self._sealed_per_second) * SMOOTHING
        for shard in self._state.shards:
            shard.delayed_flush.end()

    def write_wait_ms(self, size: int) -> int:
        """Return how long appends of `size` bytes wait for the log, so that sealing keeps up."""
        state = self._state
        memory = (state.totals.unsealed_bytes + size) / state.settings.memory_budget_bytes
        return write_wait_ms(memory, size, self._sealed_per_second)

    # Refusing

    def refuse_if_full(
        self, shard: WalShard, disable_backpressure: bool, gathered: int = 0
    ) -> None:
        """Refuse an append under full pressure, when as many wait for the log as may.

        `gathered` appends wait for it beside those that the shard knows of.
        """
        depth_max = self._state.settings.wal_queue_depth_max
        depth = shard.depth + gathered
        if not self.shedding or depth < depth_max:
            return
        if disable_backpressure:
            self.bypassed_total += 1
            return
        self.refused_total += 1
        shard.submit_full_total += 1
        raise Throttled(
            f"the server is overloaded and {depth} appends wait for the log",
            fix=f"retry after {RETRY_AFTER_MS} ms, or send `disable_backpressure`",
            detail={
                "limit": "wal_queue_depth_max",
                "max": depth_max,
                "retry_after_ms": RETRY_AFTER_MS,
            },
        )
