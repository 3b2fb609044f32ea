"""Selection: which records of a pass a router copies, and how many its destination takes now.

Only this file decides that.  A record is consumed without a copy when the filter, a delete, the hop
cap or a copy with the same key says so; one that the destination has no room for, or as a stream
never takes, stops the router there.  Nothing here changes any state, except that hops no router
needs are dropped.
"""

from __future__ import annotations

from collections.abc import Callable

from headrace.core.error_frames import without_frames
from headrace.core.errors import HeadraceError, Throttled
from headrace.core.limits import router_hops_max
from headrace.engine.appending.admission import check_quota
from headrace.engine.removal import retention
from headrace.engine.routers.copied_records import Picked, Window
from headrace.engine.routers.state import CopiedKeys, HopRuns, Router
from headrace.engine.state import EngineState
from headrace.engine.streams.rules import is_ending, takes_no_more
from headrace.engine.topics.topic import Topic

# A router waits while its destination has more runs of hops than this that are not consumed.
HOP_RUNS_MAX = 10_000


class Picker:
    """Chooses records; knows the keys of copies and how often each record was forwarded."""

    def __init__(self, state: EngineState, consumed_to: Callable[[int], int]) -> None:
        self._state = state
        self._consumed_to = consumed_to
        self.hops: dict[int, HopRuns] = {}  # of topics that routers read from
        self.keys: dict[int, dict[tuple[str, int, int], CopiedKeys]] = {}  # by destination

    def levels(self, window: Window) -> list[int] | None:
        """Return how often each record was forwarded; None: none of them was."""
        runs = self.hops.get(window.topic.id)
        if not runs:
            return None
        runs.drop_to(self._consumed_to(window.topic.id))
        levels = runs.of(window.seqs)
        return levels if any(levels) else None

    def pick(
        self, router: Router, window: Window, levels: list[int] | None
    ) -> tuple[Picked, int, BaseException | None]:
        """Return the records to copy, the seq that consumes the source up to, and what stops it."""
        dest, last = router.dest, window.last
        picked = window.matching(router.filter)
        if levels is not None:
            picked = window.below(picked, levels, router_hops_max)
        if router.exactly_once:
            picked = self._without_copies(router, window, picked)
        if dest.needs_sync and len(self._state.shards) > 1 and router.durable_to < last:
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
            refusal = refusal or (FULL if _kind_fits(dest, window, chosen[room]) else OTHER_KIND)
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

    def log_refusal(self, router: Router, *, frees: bool = True) -> HeadraceError | None:
        """Return why no entry can be written for this destination now; None: one can.

        `frees`: one that a source waits for with its delete.
        """
        state, dest = self._state, router.dest
        try:
            state.refuse_writes(state.shard_of(dest.id), frees=frees)
        except Throttled:
            return PRESSED
        except HeadraceError as error:
            return without_frames(error)
        return CLOSED if dest.closed or is_ending(state, dest) else None

    def refusal(self, router: Router) -> HeadraceError | None:
        """Return why nothing can be written to this destination now; None: it can."""
        refusal = self.log_refusal(router, frees=False)
        if refusal is not None:
            return refusal
        state, dest = self._state, router.dest
        if takes_no_more(dest):
            return ENDED
        try:
            check_quota(state, 0)
            if dest.ephemeral:
                state.refuse_ephemeral(0)
        except HeadraceError as error:
            return without_frames(error)
        # Copies leave a part of memory to the writers of sources.
        held = state.totals.unsealed_bytes + state.totals.staged_bytes
        if held * 4 > state.settings.memory_budget_bytes * 3:
            return PRESSED
        runs = self.hops.get(dest.id)
        return PRESSED if runs and len(runs) > HOP_RUNS_MAX and self._waits(router, runs) else None

    def _waits(self, router: Router, runs: HopRuns) -> bool:
        """Return whether too many records of a destination wait for the routers that read it.

        In a cycle of topics the router out of the one with the most runs never waits, so that they
        cannot all wait for each other.
        """
        runs.drop_to(self._consumed_to(router.dest.id))
        return len(runs) > max(HOP_RUNS_MAX, len(self.hops.get(router.source.id, ())))

    def _room(self, router: Router, window: Window, picked: Picked) -> int:
        """Return how many of these records the destination takes now."""
        state, dest = self._state, router.dest
        config = dest.config
        count = _fitting(dest, window, picked)
        quota = state.settings.max_total_bytes
        rejecting = config.discard == "reject" and (config.cap_records or config.cap_bytes)
        if not rejecting and not quota:
            return count
        retention.enforce(state, dest)
        left = quota - state.totals.bytes - state.totals.staged_bytes if quota else 1 << 62
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
CLOSED = HeadraceError("the destination is being deleted or closed", fix="wait for that")
PRESSED = HeadraceError("memory has no room for copies now", fix="wait for a checkpoint")
ENDED = HeadraceError(
    "the destination is a stream that was closed or deleted",
    fix="delete the router, and put one to another destination with a backfill from copied_to",
)
OTHER_KIND = HeadraceError(
    "the next record is of another kind than the destination, a stream, takes",
    fix="delete that record, or put a router with a filter that leaves it out",
)
FULL = HeadraceError("the destination takes no more records now", fix="make room in it")
ANNOUNCED = HeadraceError(
    "the destination announces as many lost ranges as it can", fix="delete its oldest records"
)


def key_of(router: Router) -> tuple[str, int, int]:
    """Return what the keys of a router's copies are remembered under."""
    return router.name, router.source.id, router.source.epoch


def positions(window: Window, picked: Picked) -> range | tuple[int, ...]:
    """Return the positions of the picked records in their window."""
    return range(window.count) if picked is None else picked


def _fitting(dest: Topic, window: Window, picked: Picked) -> int:
    """Return how many of these records come before the first of a kind that a stream refuses."""
    chosen = positions(window, picked)
    if dest.stream is None or window.kinds == dest.stream.kind:
        return len(chosen)
    others = (n for n, at in enumerate(chosen) if not _kind_fits(dest, window, at))
    return next(others, len(chosen))


def _kind_fits(dest: Topic, window: Window, position: int) -> bool:
    if dest.stream is None:
        return True
    kinds = window.kinds
    return dest.stream.kind == (kinds if isinstance(kinds, int) else kinds[position])


def seqs_of(window: Window, picked: Picked) -> list[int]:
    """Return the seqs of the picked records."""
    seqs = window.seqs
    return [seqs[i] for i in positions(window, picked)]
