"""Who may have which job of a queue: leases, deliveries, delays, and what comes next.

Pure: time is an argument, nothing waits or writes, and which records are alive is told to it.  A
job is in at most one place: *leased*, *delayed*, *free* (was handed out, or passed by, and can be
claimed again), *spent* (free, and its deliveries are used up), *busy* (being read, acknowledged or
moved), *unreadable* (its record is damaged: it is passed over until it is tried again), or beyond
`cursor`: fresh, of which nothing is kept at all.

Leases have no timers.  All jobs of one claim share a `Grant`; a heap of grants by deadline is
looked at when somebody asks.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Sequence
from itertools import islice
from typing import NamedTuple

from pyroaring import BitMap64

from headrace.engine.queues.order import Span, live_after, up_to
from headrace.storage.queue_record import MoveState

TOKEN_MASK = (1 << 64) - 1
# Grants and delays that are over stay in their heap until there are this many more than needed, and
# jobs that are done in the list of their grant.
STALE_MIN = 64
# How long jobs whose records are damaged are passed over, in case that they are restored.
UNREADABLE_MS = 60_000


class Grant:
    """The jobs of one claim: one holder, one deadline."""

    __slots__ = ("bound", "connection", "deadline", "held_ms", "left", "node", "seqs", "token")

    def __init__(
        self,
        token: int,
        node: str,
        connection: int | None,
        deadline: int,
        held_ms: int,
        seqs: Sequence[int],
        bound: bool = False,
    ) -> None:
        self.token = token
        self.node = node
        self.connection = connection  # whose end is the end of the leases
        self.deadline = deadline
        self.held_ms = held_ms
        self.seqs = seqs
        self.left = len(seqs)  # of them are still held under this grant
        self.bound = bound or connection is not None

    def lease_id(self, seq: int) -> int:
        """Differs from every other lease of this job."""
        return (self.token + seq) & TOKEN_MASK


class Delay:
    """Jobs that were given back for later."""

    __slots__ = ("held_ms", "left", "seqs", "until")

    def __init__(self, until: int, held_ms: int, seqs: Sequence[int]) -> None:
        self.until = until
        self.held_ms = held_ms
        self.seqs = seqs
        self.left = len(seqs)


class Found(NamedTuple):
    """What an ack, nack or extend found: jobs it may act on, and the others in their order."""

    seqs: list[int]
    skipped: list[int]
    connections: set[int]


class QueueState:
    """The state of one queue."""

    __slots__ = (
        "_delay_heap",
        "_grant_count",
        "_grant_heap",
        "_pushes",
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
        self.relieved: set[int] = set()  # connections whose jobs are gone, until somebody asks
        self._grant_heap: list[tuple[int, int, Grant]] = []
        self._grant_count = 0  # grants that hold something
        self._delay_heap: list[tuple[int, int, Delay]] = []
        self._pushes = 0
        self._unreadable_until = 0

    # Counts

    @property
    def in_flight(self) -> int:
        return len(self.leases)

    @property
    def delayed(self) -> int:
        return len(self.delays)

    def ready(self, live: int) -> int:
        """Of so many live jobs, those that are neither held nor on their way out nor damaged."""
        return live - len(self.leases) - len(self.delays) - len(self.busy) - len(self.unreadable)

    def held_by(self, connection: int) -> int:
        """Jobs that this connection holds."""
        return sum(grant.left for grant in self.connections.get(connection, ()))

    # Time

    def advance(self, now: int) -> set[int] | None:
        """Take back what is overdue; returns the connections that lost something, None: nothing.

        A lease is live while now <= deadline, a delay over when now >= until.
        """
        grants, delays = self._grant_heap, self._delay_heap
        connections, self.relieved = self.relieved, set()
        moved = bool(connections)
        while grants and grants[0][0] < now:
            grant = heapq.heappop(grants)[2]
            if grant.left and grant.deadline < now:
                moved = True
                if grant.connection is not None:
                    connections.add(grant.connection)
                self.set_free(self.drop_grant(grant))
        while delays and delays[0][0] <= now:
            delay = heapq.heappop(delays)[2]
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
        """When `advance` has something to do next, at the earliest."""
        due = [self._grant_heap[0][0] + 1] if self._grant_heap else []
        if self._delay_heap:
            due.append(self._delay_heap[0][0])
        if self.unreadable:
            due.append(self._unreadable_until)
        return min(due, default=None)

    def limit_deliveries(self, deliveries: int) -> None:
        """From now on a job with so many deliveries is spent; 0: none ever is."""
        if deliveries == self.max_deliveries:
            return
        self.max_deliveries = deliveries
        waiting = self.free | self.spent
        self.free, self.spent = BitMap64(), BitMap64()
        self.set_free(waiting)

    def set_free(self, seqs: Iterable[int]) -> None:
        """These can be claimed again, unless they have been delivered too often."""
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
        """Up to `count` jobs, reclaimed before fresh, each time the lowest seq first.

        They are nowhere after this: `grant` or `give_back` them.  At most `out_max` jobs are
        delivered and not done at a time; what was delivered before counts already.
        """
        seqs: list[int] = []
        room = out_max - len(self.deliveries)
        if self.free:
            seqs = self._first_free(count, room)
            self.free -= BitMap64(seqs)
            room -= sum([seq not in self.deliveries for seq in seqs]) if room < count else 0
        count = min(count - len(seqs), room)
        if count <= 0:
            return seqs
        fresh = live_after(max(self.cursor, span.base), count, span)
        self.cursor = fresh[-1] if len(fresh) == count else max(self.cursor, span.head)
        return [*seqs, *fresh] if seqs else fresh

    def _first_free(self, count: int, room: int) -> list[int]:
        """The lowest jobs that came back; of those that were only passed by, what `room` allows."""
        seqs = list(islice(self.free, count))
        deliveries = self.deliveries
        if room < count and sum([seq not in deliveries for seq in seqs]) > room:
            known = self.free & BitMap64(deliveries)
            passed = list(islice(self.free - known, max(room, 0)))
            seqs = sorted([*islice(known, count), *passed])[:count]
        return seqs

    def take_spent(self, count: int) -> list[int]:
        """Up to `count` jobs that have been delivered too often; they are busy from now on."""
        seqs = list(islice(self.spent, count))
        self.spent -= BitMap64(seqs)
        self.busy.update(seqs)
        return seqs

    def give_back(self, seqs: Iterable[int]) -> None:
        """Jobs that were taken, or busy, can be claimed again."""
        seqs = BitMap64(seqs)
        self.busy -= seqs
        self.set_free(seqs)

    def set_aside(self, seqs: Iterable[int], now: int) -> None:
        """Jobs that were taken, or busy, cannot be read: pass them over for a while."""
        seqs = BitMap64(seqs)
        self.busy -= seqs
        self.unreadable |= seqs
        self._unreadable_until = now + UNREADABLE_MS

    def grant(self, grant: Grant) -> list[int]:
        """Deliver the jobs of a grant; returns how often each has been delivered now."""
        seqs, leases, deliveries = grant.seqs, self.leases, self.deliveries
        self.held.update(seqs)
        if self.busy:
            self.busy.difference_update(BitMap64(seqs))
        counts = []
        for seq in seqs:
            leases[seq] = grant
            deliveries[seq] = count = deliveries.get(seq, 0) + 1
            counts.append(count)
        self._push_grant(grant)
        return counts

    def adopt(self, grant: Grant) -> None:
        """Hold jobs that were delivered before."""
        for seq in grant.seqs:
            self.leases[seq] = grant
        self.held.update(grant.seqs)
        self._push_grant(grant)

    def undo(self, grant: Grant) -> None:
        """The grant could not be told to anybody: as if it had not been."""
        seqs = self.drop_grant(grant)
        for seq in seqs:
            count = self.deliveries[seq] - 1
            if count:
                self.deliveries[seq] = count
            else:
                del self.deliveries[seq]
        self.set_free(seqs)

    def reserve(self, seqs: BitMap64, span: Span | None) -> BitMap64:
        """Make those of these jobs busy that nobody holds; returns them.  None: of a log."""
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

    def find(self, node: str, seqs: Sequence[int], ids: Sequence[int | None] | None) -> Found:
        """Which of these the node holds, by these leases where they are named."""
        mine: list[int] = []
        skipped: list[int] = []
        connections: set[int] = set()
        seen: set[int] = set()
        leases = self.leases
        for index, seq in enumerate(seqs):
            grant = leases.get(seq)
            if grant is None or grant.node != node or seq in seen:
                skipped.append(seq)
                continue
            if ids is not None:
                wanted = ids[index]
                if wanted is not None and wanted != (grant.token + seq) & TOKEN_MASK:
                    skipped.append(seq)
                    continue
            seen.add(seq)
            mine.append(seq)
            if grant.connection is not None:
                connections.add(grant.connection)
        return Found(mine, skipped, connections)

    def finish(self, seqs: BitMap64) -> None:
        """Held jobs are done: busy until they are deleted."""
        self.unlease(seqs)
        self.busy |= seqs

    def release(self, seqs: Iterable[int], until: int = 0, held_ms: int = 0) -> None:
        """Held jobs can be claimed again, from `until` on."""
        seqs = BitMap64(seqs)
        self.unlease(seqs)
        if not until:
            self.set_free(seqs)
            return
        delay = Delay(until, held_ms, list(seqs))
        self.held |= seqs
        for seq in delay.seqs:
            self.delays[seq] = delay
        self._push_delay(delay)

    def extend(self, seqs: Sequence[int], deadline: int, held_ms: int) -> None:
        """Held jobs stay with their holders, under the same leases, until another time."""
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
        """A connection has ended: what it held can be claimed at once."""
        seqs: list[int] = []
        for grant in list(self.connections.get(connection, ())):
            seqs.extend(self.drop_grant(grant))
        self.set_free(seqs)
        return seqs

    # What happens to the records

    def dropped(self, seqs: BitMap64) -> None:
        """These records are gone, and with them whatever was known of the jobs."""
        for place in (self.busy, self.free, self.spent, self.held, self.unreadable):
            part = place & seqs if place else None
            if part:
                place.difference_update(part)
                self._forget(part)

    def dropped_to(self, base: int) -> None:
        """The same for everything up to `base`."""
        for place in (self.busy, self.free, self.spent, self.held, self.unreadable):
            if place and place.min() <= base:
                part = [*up_to(place, base)]
                place.remove_range(0, base + 1)
                self._forget(part)

    def _forget(self, seqs: Iterable[int]) -> None:
        leases, delays, deliveries = self.leases, self.delays, self.deliveries
        for seq in seqs:
            deliveries.pop(seq, None)
            if seq in leases:
                grant = leases.pop(seq)
                if grant.connection is not None:
                    self.relieved.add(grant.connection)
                self._shrink(grant, 1)
            elif seq in delays:
                self._shrink_delay(delays.pop(seq))

    # Grants and delays

    def unlease(self, seqs: BitMap64) -> None:
        """Whoever holds these, or had them delayed, does not any more."""
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
        """Nobody holds anything, and nothing is delayed."""
        for grant in dict.fromkeys(self.leases.values()):
            self.set_free(self.drop_grant(grant))
        delayed = BitMap64(self.delays)
        self.unlease(delayed)
        self.set_free(delayed)

    def _push_grant(self, grant: Grant) -> None:
        self._pushes += 1
        self._grant_count += 1
        heapq.heappush(self._grant_heap, (grant.deadline, self._pushes, grant))
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
        if len(self._grant_heap) > 2 * self._grant_count + STALE_MIN:
            self._grant_heap = [item for item in self._grant_heap if item[2].left]
            heapq.heapify(self._grant_heap)

    def _push_delay(self, delay: Delay) -> None:
        self._pushes += 1
        heapq.heappush(self._delay_heap, (delay.until, self._pushes, delay))

    def _shrink_delay(self, delay: Delay) -> None:
        delay.left -= 1
        if delay.left and len(delay.seqs) > 2 * delay.left + STALE_MIN:
            delay.seqs = [seq for seq in delay.seqs if self.delays.get(seq) is delay]
        if not delay.left and len(self._delay_heap) > 2 * len(self.delays) + STALE_MIN:
            self._delay_heap = [item for item in self._delay_heap if item[2].left]
            heapq.heapify(self._delay_heap)
