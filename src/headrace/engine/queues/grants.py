"""Grants and delays: jobs that one claim holds, jobs that were given back for later, by deadline.

Nothing here has timers: `Deadlines` says what is over when it is asked.  Only this file decides
whether a node, or a lease id, may act on a job.
"""

from __future__ import annotations

import heapq
from collections.abc import Mapping, Sequence
from typing import Generic, NamedTuple, TypeVar

from headrace.engine.queues.requests import TOKEN_MASK, lease_ids

# Grants and delays that are over stay in their heap until there are this many more than needed, and
# jobs that are done in the list of their grant.
STALE_MIN = 64


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


class Found(NamedTuple):
    """What an ack, nack or extend may act on, and the other jobs it named, in their order."""

    seqs: list[int]
    skipped: list[int]
    connections: set[int]


def whole_grant(
    leases: Mapping[int, Grant], node: str, seqs: Sequence[int], ids: Sequence[str] | None
) -> Grant | None:
    """Return the grant that has exactly these jobs, all of them held by this node and these ids.

    None: not so, or to be found out job by job.
    """
    grant = leases.get(seqs[0]) if seqs else None
    if grant is None or grant.node != node or grant.left != len(seqs) or grant.seqs != seqs:
        return None
    return grant if ids is None or ids == lease_ids(grant.token, seqs) else None


def find_held(
    leases: Mapping[int, Grant],
    node: str,
    seqs: Sequence[int],
    ids: Sequence[int | None] | None,
) -> Found:
    """Return which of these jobs the node holds, by these lease ids where they are given."""
    mine: list[int] = []
    skipped: list[int] = []
    connections: set[int] = set()
    seen: set[int] = set()
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


class Delay:
    """Jobs that were given back for later."""

    __slots__ = ("held_ms", "left", "seqs", "until")

    def __init__(self, until: int, held_ms: int, seqs: Sequence[int]) -> None:
        self.until = until
        self.held_ms = held_ms
        self.seqs = seqs
        self.left = len(seqs)


T = TypeVar("T", Grant, Delay)


class Deadlines(Generic[T]):
    """Grants or delays by the time at which they are over; those that hold nothing go in time."""

    __slots__ = ("_added", "_heap")

    def __init__(self) -> None:
        self._heap: list[tuple[int, int, T]] = []
        self._added = 0

    def __len__(self) -> int:
        """How many are kept, also of those that hold nothing any more."""
        return len(self._heap)

    def add(self, over_at: int, item: T) -> None:
        self._added += 1
        heapq.heappush(self._heap, (over_at, self._added, item))

    def pop_over(self, now: int) -> T | None:
        """Take out and return the next one that is over; None: there is none."""
        heap = self._heap
        return heapq.heappop(heap)[2] if heap and heap[0][0] <= now else None

    @property
    def next(self) -> int | None:
        """When `pop_over` returns something, at the earliest; None: never."""
        return self._heap[0][0] if self._heap else None

    def drop_ended(self, active: int) -> None:
        """Forget those that hold nothing, if they are many more than `active`, the others."""
        if len(self._heap) > 2 * active + STALE_MIN:
            self._heap = [item for item in self._heap if item[2].left]
            heapq.heapify(self._heap)
