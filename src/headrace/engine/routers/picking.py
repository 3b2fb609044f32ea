"""Which records of a pass a router copies, and how many of them its destination takes now.

Only this file decides that.  A record is consumed without a copy when the filter, a delete, the hop
cap or a copy with the same key says so; a record that the destination has no room for stops the
router there.  Nothing here changes anything but what is remembered of hops.
"""

from __future__ import annotations

from collections.abc import Callable

from headrace.core.errors import HeadraceError
from headrace.core.limits import router_hops_max
from headrace.engine import retention
from headrace.engine.admission import check_quota
from headrace.engine.core_state import Core
from headrace.engine.routers.copies import Picked, Window
from headrace.engine.routers.state import CopiedKeys, HopRuns, Router

# More runs of hops than this in a destination, and its router waits for those that read from it.
HOP_RUNS_MAX = 10_000


class Picker:
    """Chooses records; knows what copies are there and how far each record has come."""

    def __init__(self, core: Core, consumed_to: Callable[[int], int]) -> None:
        self._core = core
        self._consumed_to = consumed_to
        self.hops: dict[int, HopRuns] = {}  # of topics that routers read from
        self.keys: dict[int, dict[tuple[str, int, int], CopiedKeys]] = {}  # by destination

    def levels(self, window: Window) -> list[int] | None:
        """How often each record was forwarded; None: never."""
        runs = self.hops.get(window.topic.id)
        if not runs:
            return None
        runs.drop_to(self._consumed_to(window.topic.id))
        levels = runs.of(window.seqs)
        return levels if any(levels) else None

    def pick(
        self, router: Router, window: Window, levels: list[int] | None
    ) -> tuple[Picked, int, BaseException | None]:
        """The records to copy, how far that consumes the source, and what is in the way."""
        dest, last = router.dest, window.last
        picked = window.matching(router.filter)
        if levels is not None:
            picked = window.below(picked, levels, router_hops_max)
        if router.exactly_once:
            picked = self._without_copies(router, window, picked)
        if dest.needs_sync and len(self._core.shards) > 1 and router.durable_to < last:
            if router.durable_to <= window.cursor:
                return (), window.cursor, UNSYNCED
            last = router.durable_to
            picked = window.up_to(picked, last)
        if picked == ():
            return (), last, None
        refusal = self.refusal(router)
        room = 0 if refusal is not None else self._room(router, window, picked)
        if room < (window.count if picked is None else len(picked)):
            chosen = positions(window, picked)
            last = min(last, window.seqs[chosen[room]] - 1)
            picked = tuple(chosen[:room])
            refusal = refusal or FULL
        return picked, last, refusal

    def _without_copies(self, router: Router, window: Window, picked: Picked) -> Picked:
        """Leave out records whose copy, by this router's name, is alive in the destination."""
        dest = router.dest
        keys = self.keys.get(dest.id, {}).get(key_of(router))
        if keys is None or not window.count or not keys.may_have(window.seqs[0]):
            return picked
        seqs = window.seqs
        chosen = positions(window, picked)
        return tuple(
            i for i in chosen if not any(dest.live_between(s, s) for s in keys.copies_of(seqs[i]))
        )

    def refusal(self, router: Router) -> HeadraceError | None:
        """Why nothing can be written to this destination now."""
        core, dest = self._core, router.dest
        try:
            core.refuse_writes(core.shard_of(dest.id))
            check_quota(core, 0)
            if dest.ephemeral:
                core.refuse_ephemeral(0)
        except HeadraceError as error:
            return error
        # Copies leave a part of memory to the writers of sources.
        held = core.unsealed_bytes + core.staged_bytes
        if held * 4 > core.settings.memory_budget_bytes * 3:
            return FULL
        runs = self.hops.get(dest.id)
        return FULL if runs and len(runs) > HOP_RUNS_MAX and self._waits(router, runs) else None

    def _waits(self, router: Router, runs: HopRuns) -> bool:
        """Whether too many records of a destination wait for the routers that read from it.

        Of topics in a circle the one with the most is always read from, so that never all of them
        wait for each other.
        """
        runs.drop_to(self._consumed_to(router.dest.id))
        return len(runs) > max(HOP_RUNS_MAX, len(self.hops.get(router.source.id, ())))

    def _room(self, router: Router, window: Window, picked: Picked) -> int:
        """How many of these records the destination takes now."""
        core, dest = self._core, router.dest
        config = dest.config
        count = window.count if picked is None else len(picked)
        quota = core.settings.max_total_bytes
        rejecting = config.discard == "reject" and (config.cap_records or config.cap_bytes)
        if not rejecting and not quota:
            return count
        retention.enforce(core, dest)
        left = quota - core.total_bytes - core.staged_bytes if quota else 1 << 62
        if rejecting and config.cap_records:
            count = max(0, min(count, config.cap_records - dest.count - dest.staged_count))
        if rejecting and config.cap_bytes:
            left = min(left, config.cap_bytes - dest.bytes - dest.staged_bytes)
        for taken, position in enumerate(positions(window, picked)[:count]):
            left -= window.size(position, router)
            if left < 0:
                return taken
        return count


UNSYNCED = HeadraceError("the source is not on disk yet", fix="wait for that")
FULL = HeadraceError("the destination takes no more records now", fix="make room in it")
ANNOUNCED = HeadraceError(
    "the destination announces as many lost ranges as it can", fix="delete its oldest records"
)


def key_of(router: Router) -> tuple[str, int, int]:
    return router.name, router.source.id, router.source.epoch


def positions(window: Window, picked: Picked) -> range | tuple[int, ...]:
    return range(window.count) if picked is None else picked


def seqs_of(window: Window, picked: Picked) -> list[int]:
    seqs = window.seqs
    return [seqs[i] for i in positions(window, picked)]
