"""Producers: writers that number their appends, and what a topic remembers of each.

Only this file decides whether a producer's append was stored before.  A topic keeps the newest
append of each producer for as long as it lives, so that any repeat is recognised, however late it
comes.  Of the appends before that one it keeps where they are, while there is room: so many of one
producer, and so many of all of them; the topic that producers wrote to longest ago forgets first.
A repeat is answered with its own seqs, or, once they are forgotten, without any.

All of it travels in the log entry of the records it guards, and in the snapshot.
"""

from __future__ import annotations

import struct
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from typing import TYPE_CHECKING, Final, NamedTuple

from headrace.core.errors import InvalidRequest, ProducerFenced, ProducerGap, TopicFull
from headrace.core.settings import Settings
from headrace.storage.snapshot.state import ProducerState

if TYPE_CHECKING:
    from headrace.engine.topics.topic import Topic

# Where an older append is: first seq, count.  On disk (docs/formats/snapshot.md): never change it.
PLACE: Final = struct.Struct("<QI")
PLACE_BYTES: Final = PLACE.size
_pack_place: Final = PLACE.pack


class ProducerClaim(NamedTuple):
    """What a producer says of an append: who it is, its epoch, its sequence number.

    >>> ProducerClaim("etl-1", 0, 7).sequence
    7
    """

    id: str
    epoch: int
    sequence: int


# Makes a claim of its three parts as a tuple, in C: one is made for each append of a producer.
new_claim: Final[Callable[[tuple[str, int, int]], ProducerClaim]] = partial(
    tuple.__new__, ProducerClaim
)


class Place(NamedTuple):
    """The seqs that an append was given."""

    first_seq: int
    records: int


def admit_producer(known: ProducerState | None, claim: ProducerClaim) -> bool:
    """True: append it.  False: a duplicate, already stored.  Otherwise an error with the way out.

    >>> admit_producer(None, ProducerClaim("p", 0, 0))
    True
    >>> admit_producer(ProducerState(0, 4, 1, 1, 1), ProducerClaim("p", 0, 3))
    False
    """
    id, epoch, sequence = claim
    if known is not None and epoch == known.epoch and sequence == known.sequence + 1:
        return True  # as nearly all are
    last = -1  # the sequence of the newest append in this epoch
    if known is not None:
        if epoch == known.epoch:
            last = known.sequence
        elif epoch < known.epoch:
            raise ProducerFenced(
                f"producer {id!r} has epoch {known.epoch}, this append says {epoch}",
                fix="stop this instance, a newer one took over",
                detail={"epoch": known.epoch},
            )
        elif sequence != 0:
            raise InvalidRequest(
                f"producer {id!r} starts epoch {epoch} at sequence {sequence}",
                fix="start a new epoch at sequence 0",
                detail={"expected": 0, "received": sequence},
            )
    if sequence <= last:
        return False
    if sequence != last + 1:
        raise ProducerGap(
            f"producer {id!r} sent sequence {sequence}, {last + 1} is next",
            fix=f"send sequence {last + 1} first",
            detail={"expected": last + 1, "received": sequence},
        )
    return True


def refuse_new_producer(topic: str, known: int, most: int) -> None:
    """Raise unless a topic with this many producers has room for one more."""
    if known < most:
        return
    # Not 429: nothing is forgotten, so that the same call never succeeds later by itself.
    raise TopicFull(
        f"{topic!r} remembers {known} producers, the most allowed",
        fix="use the ids that there are, write to another topic, or raise "
        "HEADRACE_PRODUCERS_PER_TOPIC_MAX",
        detail={"limit": "producers_per_topic_max", "max": most},
    )


def refuse_one_more_producer(topic: str, known: int, most: int) -> None:
    """Raise unless all topics together, with this many producers, have room for one more."""
    if known < most:
        return
    raise TopicFull(
        f"{topic!r} can have no new producer: all topics remember {known}, the most allowed",
        fix="use the ids that there are, delete topics that are done, or raise "
        "HEADRACE_PRODUCERS_MAX",
        detail={"limit": "producers_max", "max": most},
    )


class TopicProducers:
    """What one topic remembers of its producers.

    >>> known = TopicProducers()
    >>> for sequence in range(3):
    ...     _ = known.accept("p", ProducerState(0, sequence, 10 * sequence + 1, 10, 0), 1)
    >>> known.place_of(ProducerClaim("p", 0, 1)), known.place_of(ProducerClaim("p", 0, 0))
    (Place(first_seq=11, records=10), None)
    """

    __slots__ = ("_newest", "_older", "appends", "newest")

    def __init__(
        self, newest: Mapping[str, ProducerState] = {}, older: Mapping[str, bytes] = {}
    ) -> None:
        self._newest = dict(newest)
        self.newest = self._newest.get  # the newest append of a producer, by its id
        # By id, a `PLACE` for each append right before the newest, oldest first.  In the order of
        # the producers' last appends; what is to be forgotten is taken from its front.
        self._older = OrderedDict(older)
        self.appends = sum(map(len, older.values())) // PLACE.size  # in all of `_older`

    def __len__(self) -> int:
        return len(self._newest)

    def __contains__(self, id: str) -> bool:
        return id in self._newest

    def __iter__(self) -> Iterator[str]:
        return iter(self._newest)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, TopicProducers) and self.saved() == other.saved()

    def place_of(self, claim: ProducerClaim) -> Place | None:
        """The seqs of an append that was stored before; None once they are forgotten."""
        newest = self.newest(claim.id)
        if newest is None or newest.epoch != claim.epoch:
            return None
        behind = newest.sequence - claim.sequence
        if not behind:
            return Place(newest.first_seq, newest.count)
        older = self._older.get(claim.id, b"")
        at = len(older) - behind * PLACE.size
        return Place(*PLACE.unpack_from(older, at)) if 0 <= at < len(older) else None

    def accept(self, id: str, producer: ProducerState, older_max: int) -> int:
        """Remember an append as the newest; return how many older ones more that makes."""
        before = self.newest(id)
        self._newest[id] = producer
        if before is None:
            return 0
        known, older = self._older.pop(id, b""), b""
        # Places are found by how far a number is behind the newest: nothing may be missing.
        if before.epoch == producer.epoch and before.sequence + 1 == producer.sequence:
            older = known + _pack_place(before.first_seq, before.count)
            extra = len(older) - older_max * PLACE_BYTES
            if extra > 0:
                older = older[extra:]
            if older:
                self._older[id] = older
        change = len(older) - len(known)
        if change:
            change //= PLACE_BYTES
            self.appends += change
        return change

    def forget_some(self) -> int:
        """Forget the older appends of the producer that was quiet longest; return how many."""
        _, older = self._older.popitem(last=False)
        forgotten = len(older) // PLACE.size
        self.appends -= forgotten
        return forgotten

    def forget(self, id: str) -> int:
        """Forget a producer; return how many older appends went with it."""
        del self._newest[id]
        forgotten = len(self._older.pop(id, b"")) // PLACE.size
        self.appends -= forgotten
        return forgotten

    def saved(self) -> tuple[dict[str, ProducerState], dict[str, bytes]]:
        """Copies of all of it, as a snapshot keeps it."""
        return dict(self._newest), dict(self._older.items())


class ProducerMemory:
    """What all topics remember of producers: how many, and the bound on their older appends."""

    def __init__(self, settings: Settings) -> None:
        self._older_max = settings.appends_per_producer_max - 1  # the newest is always there
        self._appends_max = settings.producer_appends_max
        self._topics: OrderedDict[int, TopicProducers] = OrderedDict()  # those that have some
        self._move_to_end = self._topics.move_to_end
        self.appends = 0
        self.producers = 0

    def accept(self, topic: Topic, id: str, producer: ProducerState) -> None:
        """Remember the append that a producer has had accepted last."""
        known = topic.producers
        if known is None:
            known = topic.make_producers()
        if id not in known:
            self.producers += 1
        more = known.accept(id, producer, self._older_max)
        if more or not known.appends:
            self.appends += more
            self._note(topic.id, known)
        else:  # as many as before, and the newest of all
            self._move_to_end(topic.id)

    def restored(self, topic: Topic) -> None:
        """Count what a snapshot has of a topic."""
        known = topic.producers
        if known is not None:
            self.producers += len(known)
            self.appends += known.appends
            self._note(topic.id, known)

    def forget(self, topic: Topic, ids: Iterable[str]) -> None:
        """Forget these producers of a topic."""
        known = topic.producers
        if known is not None:
            for id in ids:
                self.appends -= known.forget(id)
                self.producers -= 1
            self._note(topic.id, known)

    def forget_topic(self, topic: Topic) -> None:
        """A topic is gone."""
        if topic.producers is not None:
            self.producers -= len(topic.producers)
            assert self.producers >= 0, topic.name
        if self._topics.pop(topic.id, None) is not None:
            assert topic.producers is not None
            self.appends -= topic.producers.appends

    def _note(self, topic_id: int, known: TopicProducers) -> None:
        """What is known of a topic's producers has changed just now."""
        topics = self._topics
        if known.appends:
            topics[topic_id] = known
            topics.move_to_end(topic_id)
        else:
            topics.pop(topic_id, None)
        while self.appends > self._appends_max:
            oldest = next(iter(topics))
            self.appends -= topics[oldest].forget_some()
            if not topics[oldest].appends:
                del topics[oldest]
