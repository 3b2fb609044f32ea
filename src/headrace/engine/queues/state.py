"""The state of a queue's jobs: leases, deliveries, delays, and which job is handed out next.

Pure: time is an argument, nothing waits or writes, and which records are alive is told to it.  A
job is in at most one place: *leased*, *delayed*, *free* (was handed out, or passed by, and can be
claimed again), *spent* (free, and its deliveries are used up), *busy* (being read, acknowledged or
moved), *unreadable* (its record is damaged: it is passed over until it is tried again), or beyond
`cursor`: fresh, of which nothing is kept at all.

Leases have no timers.  All jobs of one claim share a `Grant`; a heap of grants by deadline is
looked at when the queue is used.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterable, Sequence
from itertools import islice, repeat

from pyroaring import BitMap64

from headrace.engine.queues.claim_order import Span, first_free, live_after, up_to
from headrace.engine.queues.grants import STALE_MIN, Deadlines, Delay, Grant
from headrace.storage.snapshot.queue_record import MoveState

# How long jobs whose records are damaged are passed over, in case that they are restored.
UNREADABLE_MS = 60_000


class QueueState:
    """The state of one queue."""

    __slots__ = (
        "_delay_deadlines",
        "_grant_count",
        "_grant_deadlines",
        "_unreadable_until",
        "busy",
        "connections",
        "cursor",
        "dead_lettered",
        "delays",
        "deliveries",
        "durable",
        "free",
        "held",
        "leases",
        "max_deliveries",
        "moves",
        "moving",
        "relieved",
        "spent",
        "unreadable",
    )

    def __init__(self) -> None:
        self.leases: dict[int, Grant] = {}
        self.delays: dict[int, Delay] = {}
        self.held = BitMap64()  # the seqs of both
        self.free = BitMap64()
        self.spent = BitMap64()
        self.busy = BitMap64()
        self.unreadable = BitMap64()
        self.durable = False  # the log knows of every lease and delay
        self.deliveries: dict[int, int] = {}  # of jobs that were delivered and are not done
        self.cursor = 0  # fresh jobs are beyond it
        self.dead_lettered = 0
        self.max_deliveries = 0  # 0: no bound, or nowhere to put what exceeds it
        self.moves = 0  # the number of the last move
        self.moving: dict[int, MoveState] = {}
        self.connections: dict[int, dict[Grant, None]] = {}
        self.relieved: set[int] = set()  # connections whose jobs are gone, until `advance`
        self._grant_deadlines: Deadlines[Grant] = Deadlines()
        self._grant_count = 0  # grants that hold something
        self._delay_deadlines: Deadlines[Delay] = Deadlines()
        self._unreadable_until = 0

    # Counts

    @property
    def in_flight(self) -> int:
        return len(self.leases)

    @property
    def delayed(self) -> int:
        return len(self.delays)

    def ready(self, live: int) -> int:
        """Return how many of `live` jobs are neither held nor busy nor damaged."""
        return live - len(self.leases) - len(self.delays) - len(self.busy) - len(self.unreadable)

    def held_by(self, connection: int) -> int:
        """Return how many jobs this connection holds."""
        return sum(grant.left for grant in self.connections.get(connection, ()))

    # Time

    def advance(self, now: int) -> set[int] | None:
        """Take back what is overdue; returns the connections that lost something, None: nothing.

        A lease is live while now <= deadline, a delay over when now >= until.
        """
        connections, self.relieved = self.relieved, set()
        moved = bool(connections)
        while (grant := self._grant_deadlines.pop_over(now)) is not None:
            if grant.left and grant.deadline < now:
                moved = True
                if grant.connection is not None:
                    connections.add(grant.connection)
                self.set_free(self.drop_grant(grant))
        while (delay := self._delay_deadlines.pop_over(now)) is not None:
            if delay.left:
                moved = True
                due = [seq for seq in delay.seqs if self.delays.get(seq) is delay]
                for seq in due:
                    del self.delays[seq]
                self.held -= BitMap64(due)
                self.set_free(due)
        if self.unreadable and self._unreadable_until <= now:
            moved = True
            damaged, self.unreadable = self.unreadable, BitMap64()
            self.set_free(damaged)
        return connections if moved else None

    def next_due(self) -> int | None:
        """Return when `advance` has something to do next, at the earliest."""
        due = [self._grant_deadlines.next, self._delay_deadlines.next]
        if self.unreadable:
            due.append(self._unreadable_until)
        return min([time for time in due if time is not None], default=None)

    def limit_deliveries(self, deliveries: int) -> None:
        """Set how many deliveries make a job spent; 0: none ever is."""
        if deliveries == self.max_deliveries:
            return
        self.max_deliveries = deliveries
        waiting = self.free | self.spent
        self.free, self.spent = BitMap64(), BitMap64()
        self.set_free(waiting)

    def set_free(self, seqs: Iterable[int]) -> None:
        """Let these be claimed again, except those that have been delivered too often."""
        most = self.max_deliveries
        if not most:
            self.free.update(seqs)
            return
        seqs, deliveries = BitMap64(seqs), self.deliveries
        if len(seqs) <= len(deliveries):
            spent = BitMap64(seq for seq in seqs if deliveries.get(seq, 0) >= most)
        else:
            # Jobs that were passed by may be many more than those that were delivered.
            spent = BitMap64(seq for seq, count in deliveries.items() if count >= most) & seqs
        self.spent |= spent
        self.free |= seqs - spent

    # Handing out

    def take(self, count: int, span: Span, out_max: int) -> Sequence[int]:
        """Take up to `count` jobs, reclaimed before fresh, each time the lowest seq first.

        They are nowhere after this: `grant` or `give_back` them.  At most `out_max` jobs are
        delivered and not done at a time; what was delivered before counts already.
        """
        seqs: list[int] = []
        room = out_max - len(self.deliveries)
        if self.free:
            seqs = first_free(self.free, self.deliveries, count, room)
            self.free -= BitMap64(seqs)
            room -= sum([seq not in self.deliveries for seq in seqs]) if room < count else 0
        count = min(count - len(seqs), room)
        if count <= 0:
            return seqs
        fresh = live_after(max(self.cursor, span.base), count, span)
        self.cursor = fresh[-1] if len(fresh) == count else max(self.cursor, span.head)
        return [*seqs, *fresh] if seqs else fresh

    def take_spent(self, count: int) -> list[int]:
        """Make up to `count` jobs that were delivered too often busy, and return them."""
        seqs = list(islice(self.spent, count))
        self.spent -= BitMap64(seqs)
        self.busy.update(seqs)
        return seqs

    def give_back(self, seqs: Iterable[int]) -> None:
        """Let jobs that were taken, or busy, be claimed again."""
        seqs = BitMap64(seqs)
        self.busy -= seqs
        self.set_free(seqs)

    def set_aside(self, seqs: Iterable[int], now: int) -> None:
        """Pass jobs that were taken, or busy, over for a while: they cannot be read."""
        seqs = BitMap64(seqs)
        self.busy -= seqs
        self.unreadable |= seqs
        self._unreadable_until = now + UNREADABLE_MS

    def grant(self, grants: Iterable[Grant], seqs: Sequence[int]) -> list[int]:
        """Deliver the jobs of these grants, which are `seqs` in the order of the grants.

        Returns how often each has been delivered now.
        """
        leases, deliveries = self.leases, self.deliveries
        self.held.update(seqs)
        if self.busy:
            self.busy.difference_update(BitMap64(seqs))
        for grant in grants:
            leases.update(dict.fromkeys(grant.seqs, grant))
            self._push_grant(grant)
        if deliveries.keys().isdisjoint(seqs):
            deliveries.update(dict.fromkeys(seqs, 1))
            return [1] * len(seqs)
        counts = [deliveries.get(seq, 0) + 1 for seq in seqs]
        deliveries.update(zip(seqs, counts, strict=True))
        return counts

    def adopt(self, grant: Grant) -> None:
        """Hold jobs that were delivered before."""
        for seq in grant.seqs:
            self.leases[seq] = grant
        self.held.update(grant.seqs)
        self._push_grant(grant)

    def undo(self, grant: Grant) -> None:
        """Undo a grant whose claim was not answered: its deliveries do not count."""
        seqs = self.drop_grant(grant)
        for seq in seqs:
            count = self.deliveries[seq] - 1
            if count:
                self.deliveries[seq] = count
            else:
                del self.deliveries[seq]
        self.set_free(seqs)

    def reserve(self, seqs: BitMap64, span: Span | None) -> BitMap64:
        """Make the jobs that nobody holds busy, and return them.  No span: the topic is a log."""
        seqs = seqs - self.held - self.busy - self.unreadable
        if span is not None and seqs and seqs.max() > self.cursor:
            # What is passed by has to be found again.
            self.set_free(span.between(self.cursor + 1, seqs.max()))
            self.cursor = seqs.max()
        self.free -= seqs
        self.spent -= seqs
        self.busy |= seqs
        return seqs

    # Giving back

    def let_go(self, seqs: Iterable[int]) -> None:
        """End the leases of these jobs, which are done; `finish` all that came together then."""
        grants = list(map(self.leases.pop, seqs))
        if grants.count(grants[0]) == len(grants):  # nearly always
            self._shrink(grants[0], len(grants))
            return
        for grant, count in Counter(grants).items():
            self._shrink(grant, count)

    def finish(self, seqs: BitMap64) -> None:
        """Make jobs whose leases were let go busy, until they are deleted."""
        self.held -= seqs
        self.busy |= seqs

    def release(self, seqs: Iterable[int], until: int = 0, held_ms: int = 0) -> None:
        """Let held jobs be claimed again, from `until` on."""
        seqs = BitMap64(seqs)
        self.unlease(seqs)
        if not until:
            self.set_free(seqs)
            return
        delay = Delay(until, held_ms, list(seqs))
        self.held |= seqs
        for seq in delay.seqs:
            self.delays[seq] = delay
        self._delay_deadlines.add(until, delay)

    def extend(self, seqs: Sequence[int], deadline: int, held_ms: int) -> None:
        """Leave held jobs with their holders, under the same leases, until another deadline."""
        by_grant: dict[Grant, list[int]] = {}
        for seq in seqs:
            by_grant.setdefault(self.leases[seq], []).append(seq)
        for old, some in by_grant.items():
            grant = Grant(
                old.token, old.node, old.connection, deadline, held_ms, some, bound=old.bound
            )
            for seq in some:
                self.leases[seq] = grant
            self._shrink(old, len(some))
            self._push_grant(grant)

    def disconnect(self, connection: int) -> list[int]:
        """Free what a connection that has ended held; return the jobs."""
        seqs: list[int] = []
        for grant in list(self.connections.get(connection, ())):
            seqs.extend(self.drop_grant(grant))
        self.set_free(seqs)
        return seqs

    # What happens to the records

    def dropped(self, seqs: BitMap64) -> None:
        """Forget these jobs: their records are gone."""
        for place in (self.busy, self.free, self.spent, self.held, self.unreadable):
            part = place & seqs if place else None
            if part:
                place.difference_update(part)
                self._forget(part, was_held=place is self.held)

    def dropped_to(self, base: int) -> None:
        """Forget all jobs up to `base`: their records are gone."""
        for place in (self.busy, self.free, self.spent, self.held, self.unreadable):
            if place and place.min() <= base:
                part = [*up_to(place, base)]
                place.remove_range(0, base + 1)
                self._forget(part, was_held=place is self.held)

    def _forget(self, seqs: Iterable[int], *, was_held: bool) -> None:
        """Forget how often these were delivered and, if they were held, by whom."""
        leases, delays, deliveries = self.leases, self.delays, self.deliveries
        deque(map(deliveries.pop, seqs, repeat(None)), maxlen=0)  # without a step for each
        if not was_held:
            return
        for seq in seqs:
            if seq in leases:
                grant = leases.pop(seq)
                if grant.connection is not None:
                    self.relieved.add(grant.connection)
                self._shrink(grant, 1)
            elif seq in delays:
                self._shrink_delay(delays.pop(seq))

    # Grants and delays

    def unlease(self, seqs: BitMap64) -> None:
        """End the leases and delays of these jobs."""
        leases = self.leases
        for seq in seqs:
            grant = leases.pop(seq, None)
            if grant is not None:
                self._shrink(grant, 1)
            elif seq in self.delays:
                self._shrink_delay(self.delays.pop(seq))
        self.held -= seqs

    def drop_grant(self, grant: Grant) -> list[int]:
        """End every lease of a grant; returns the jobs."""
        leases = self.leases
        seqs = [seq for seq in grant.seqs if leases.get(seq) is grant]
        for seq in seqs:
            del leases[seq]
        self.held -= BitMap64(seqs)
        self._shrink(grant, len(seqs))
        return seqs

    def forget_leases(self) -> None:
        """End every lease and every delay."""
        for grant in dict.fromkeys(self.leases.values()):
            self.set_free(self.drop_grant(grant))
        delayed = BitMap64(self.delays)
        self.unlease(delayed)
        self.set_free(delayed)

    def _push_grant(self, grant: Grant) -> None:
        self._grant_count += 1
        self._grant_deadlines.add(grant.deadline + 1, grant)
        if grant.connection is not None:
            self.connections.setdefault(grant.connection, {})[grant] = None

    def _shrink(self, grant: Grant, by: int) -> None:
        grant.left -= by
        if grant.left:
            if len(grant.seqs) > 2 * grant.left + STALE_MIN:
                grant.seqs = [seq for seq in grant.seqs if self.leases.get(seq) is grant]
            return
        if not by:
            return
        self._grant_count -= 1
        mine = self.connections.get(grant.connection) if grant.connection is not None else None
        if mine is not None and grant.connection is not None:
            mine.pop(grant, None)
            if not mine:
                del self.connections[grant.connection]
        self._grant_deadlines.drop_ended(self._grant_count)

    def _shrink_delay(self, delay: Delay) -> None:
        delay.left -= 1
        if delay.left and len(delay.seqs) > 2 * delay.left + STALE_MIN:
            delay.seqs = [seq for seq in delay.seqs if self.delays.get(seq) is delay]
        if not delay.left:
            self._delay_deadlines.drop_ended(len(self.delays))
