"""Forks: topics that begin with what another one held, and share its bytes.

Only this file knows what a fork inherits and whose it is.  A fork of a topic at some seq has that
topic's records up to there as its own first ones, under the same seqs, and gives out the seqs
behind.  What of them is alive is the fork's own to say from its creation on: floors, holes and gaps
are copied then, and neither of the two notices what the other one loses later.  The records are
not copied: they stay in the blocks and files of the topic that wrote them, their owner, which
keeps what any living fork inherits, however far down (`kept_base`, `kept_holes`).

A fork counts what it holds itself: inherited records are in its `count`, for a reader sees them,
but neither in its `bytes`, which caps go by, nor in the totals of the engine, where their owner is.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, NamedTuple

from pyroaring import BitMap64

from headrace.engine.topics.live_seqs import LiveSeqs
from headrace.engine.topics.totals import Totals
from headrace.storage.wal.frame import Inherited

if TYPE_CHECKING:
    from headrace.engine.topics.topic import Topic


class Share(NamedTuple):
    """The seqs first..last of a fork, which are in the blocks and files of `owner`."""

    owner: Topic
    first: int
    last: int


class ForkedSeqs(LiveSeqs):
    """The seqs of one topic, by whose records they are."""

    __slots__ = ("_released_to", "_shares", "forks", "parent", "parent_id", "parent_to")

    def __init__(self, name: str, totals: Totals) -> None:
        super().__init__(name, totals)
        self.parent_id = 0  # 0: it is no fork
        self.parent_to = 0  # records up to here are inherited
        self.parent: Topic | None = None  # once it is known, of a fork
        self.forks: dict[int, Topic] | None = None  # of this topic, by id; None: it has none
        self._shares: tuple[Share, ...] | None = None
        self._released_to = 0  # what this one inherited up to here its ancestors were told of

    # What a fork begins with

    def bequest(self, to: int) -> Inherited:
        """What a fork at `to` inherits: which of the seqs up to there are alive, and why not."""
        assert 0 <= to <= self.head, (self.name, to, self.head)
        holes = BitMap64() if self.holes is None else self.holes.copy()
        holes.remove_range(to + 1, self.head + 2)
        return Inherited(
            cap_floor=min(self.cap_floor, to),
            ttl_floor=min(self.ttl_floor, to),
            crash_floor=min(self.crash_floor, to),
            trim_floor=min(self.trim_floor, to),
            delete_floor=min(max(self.delete_floor, self.base), to),
            holes=holes.serialize() if holes else b"",
            gaps=_up_to(self.gaps, to),
            trims=_up_to(self.trims, to),
            last_ts=self._itself.last_ts,
        )

    def _take_bequest(self, parent_id: int, to: int, bequest: Inherited) -> None:
        """Begin as a fork; nothing was there before."""
        assert not self.head and not self.staged and not self.parent_id, self.name
        self.parent_id, self.parent_to = parent_id, to
        self.head = self.staged = to
        self.cap_floor, self.ttl_floor = bequest.cap_floor, bequest.ttl_floor
        self.crash_floor, self.trim_floor = bequest.crash_floor, bequest.trim_floor
        self.delete_floor = bequest.delete_floor
        self.base = max(self.evict_floor, self.delete_floor)
        if bequest.holes:
            self.holes = BitMap64.deserialize(bequest.holes)
        self.gaps = [(first, last) for first, last in bequest.gaps]
        self.trims = [(first, last) for first, last in bequest.trims]

    # Who is whose

    def link(self, parent: Topic) -> None:
        """Be one of the forks of `parent`, which keeps what this one inherits."""
        assert self.parent_id == parent.id and self.parent is None, self.name
        self.parent = parent
        if parent.forks is None:
            parent.forks = {}
        parent.forks[self._itself.id] = self._itself

    def unlink(self) -> None:
        """Be none of them any more: this topic is gone, or was never made."""
        parent = self.parent
        if parent is not None and parent.forks is not None:
            parent.forks.pop(self._itself.id, None)
            parent.forks = parent.forks or None

    @property
    def _itself(self) -> Topic:
        return self  # type: ignore[return-value]  # every one is a topic

    def ancestors(self) -> Iterator[Topic]:
        """The parent, its parent, and so on."""
        topic = self.parent
        while topic is not None:
            yield topic
            topic = topic.parent

    @property
    def shares(self) -> tuple[Share, ...]:
        """Whose the inherited records are, oldest first; together they are 1 to `parent_to`."""
        if not self.parent_to:
            return ()
        if self._shares is None:
            shares: list[Share] = []
            last = self.parent_to
            for owner in self.ancestors():
                if owner.parent_to < last:
                    shares.append(Share(owner, owner.parent_to + 1, last))
                    last = owner.parent_to
            if self.parent is None:
                return ()
            self._shares = tuple(reversed(shares))
        return self._shares

    # What an owner keeps

    @property
    def kept_for_forks(self) -> bool:
        """Whether only forks need the topic: to everybody else it is deleted."""
        stream = self._itself.stream
        return stream is not None and stream.deleted

    @property
    def kept_base(self) -> int:
        """The last seq of the prefix that neither this topic nor a fork of it needs."""
        if self.forks is None:
            return self.base
        kept = self.head if self.kept_for_forks else self.base
        for fork in self.forks.values():
            base = fork.kept_base
            if base < fork.parent_to:
                kept = min(kept, base)
        return kept

    def kept_holes(self) -> BitMap64 | None:
        """The seqs beyond `kept_base` that neither this topic nor a fork of it needs."""
        if self.forks is None:
            return None if self.holes is None else self.holes.copy()
        dead = BitMap64() if self.holes is None else self.holes.copy()
        dead_to = self.head if self.kept_for_forks else self.base
        dead.add_range(min(self.kept_base, dead_to) + 1, dead_to + 1)
        needed = BitMap64()
        for fork in self.forks.values():
            needed |= fork._needed_of(dead)
        return (dead - needed) or None

    def _needed_of(self, seqs: BitMap64) -> BitMap64:
        """Those of `seqs` that this fork inherits and needs, or a fork of it does."""
        inherited = seqs.copy()
        if inherited:
            inherited.remove_range(self.parent_to + 1, max(inherited.max(), self.parent_to) + 1)
        needed = BitMap64()
        if not self.kept_for_forks:
            needed = inherited.copy()
            needed.remove_range(0, self.base + 1)
            if self.holes is not None:
                needed -= self.holes
        for fork in (self.forks or {}).values():
            needed |= fork._needed_of(inherited - needed)
        return needed

    def releases(self) -> bool:
        """Whether ancestors may have to keep less than at the last call, after a removal."""
        before, self._released_to = self._released_to, min(self.base, self.parent_to)
        return before < self.parent_to

    # What a crash took from the owner

    def lose_inherited(self, first: int, last: int) -> None:
        """A crash took these seqs from a topic that this one descends from."""
        first, last = max(first, self.base + 1), min(last, self.parent_to)
        if first > last:
            return
        if self.live_between(first, last):
            holes = self.holes if self.holes is not None else BitMap64()
            holes.add_range(first, last + 1)
            self.holes = holes
            self.gaps = _joined([*self.gaps, (first, last)])
            self._itself.mark_changed()
            self._skip_holes()
        self.lose_in_forks(first, last)

    def lose_in_forks(self, first: int, last: int) -> None:
        """A crash took these seqs: no fork has them either."""
        for fork in (self.forks or {}).values():
            fork.lose_inherited(first, last)

    @property
    def shown_bytes(self) -> int:
        """Data and meta of the live records, about: inherited ones are as large as their owner's.

        Their sizes are in files, and who asks for a state must not wait for those.
        """
        size = self.bytes
        for owner, first, last in self.shares:
            if owner.counted:
                size += self.live_between(first, last) * owner.bytes // owner.counted
        return size

    def recount(self) -> None:
        """Count the live records of its own in the totals, however they have changed."""
        count = self.live_between(self.parent_to + 1, self.head) if self.parent_to else self.count
        self.totals.records += count - self.counted
        self.counted = count


def _joined(ranges: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """In order, with those that touch as one."""
    joined: list[tuple[int, int]] = []
    for first, last in sorted(ranges):
        if joined and first <= joined[-1][1] + 1:
            first, last = joined[-1][0], max(last, joined.pop()[1])
        joined.append((first, last))
    return joined


def _up_to(ranges: list[tuple[int, int]], to: int) -> list[tuple[int, int]]:
    return [(first, min(last, to)) for first, last in ranges if first <= to]
