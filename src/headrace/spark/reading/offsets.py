"""Where a streaming query is: how far each topic was read, and what lies between two such places.

Spark keeps an offset as JSON in the checkpoint and compares it as text, so equal offsets are always
spelt alike.  The rule this file owns: the rows of a micro-batch follow from its start and its end
alone, so that a batch that is run again, in another process, gives the same rows.

    {"topics": {"orders": {"epoch": 7, "seq": 120}}}

`seq` is the last one that was read.  More fields are there when they are needed.  `new` marks the
offset a query starts from, and `from` in the end of its first batch repeats it: Spark does not keep
that one, and would ask for another when it has to run the first batch again.  `turn` is whose turn
it was when a limit was too small for all topics.  `parts` is how many tasks read the batch that
ends here, when that is more than one (stream_parts.py).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import msgspec

from headrace.core.errors import InvalidRequest
from headrace.spark.reading.limits import share_out
from headrace.spark.reading.parts import Gap
from headrace.spark.reading.spans import Span
from headrace.spark.reading.topics import TopicHead

RECREATED = "recreated"
DELETED = "deleted"


class TopicOffset(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The last seq that was read of a topic; `epoch` says which topic of that name."""

    epoch: int
    seq: int


class Offset(
    msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True, kw_only=True
):
    """Where a query is, in all its topics."""

    topics: dict[str, TopicOffset]
    new: bool = False
    came_from: dict[str, TopicOffset] | None = msgspec.field(name="from", default=None)
    turn: str = ""
    parts: int = 1

    def to_json(self) -> dict[str, Any]:
        """What Spark keeps.

        >>> Offset(topics={"b": TopicOffset(1, 5), "a": TopicOffset(2, 0)}).to_json()
        {'topics': {'a': {'epoch': 2, 'seq': 0}, 'b': {'epoch': 1, 'seq': 5}}}
        """
        said: dict[str, Any] = msgspec.to_builtins(self, order="deterministic")
        return said


class Step(NamedTuple):
    """What is between two offsets.

    A gap begins with the first seq that the query will never see; how many there were nobody knows
    any more, so its span is empty.
    """

    spans: list[Span]
    gaps: list[Gap]


def decode(said: Mapping[str, Any]) -> Offset:
    """An offset that Spark gives back; what this connector did not write is an error."""
    try:
        offset = msgspec.convert(said, Offset)
    except msgspec.ValidationError as error:
        raise _not_ours(str(error)) from None
    if offset.parts < 1:
        raise _not_ours(f"{offset.parts} parts")
    for places in (offset.topics, offset.came_from or {}):
        for name, place in places.items():
            if place.epoch < 0 or place.seq < 0:
                raise _not_ours(f"epoch {place.epoch}, seq {place.seq} of {name!r} is below 0")
    return offset


def _not_ours(why: str) -> InvalidRequest:
    return InvalidRequest(
        f"the checkpoint holds an offset that this source did not write: {why}",
        fix="use the checkpoint of this query, or a new checkpointLocation",
    )


def step(start: Offset, end: Offset) -> Step:
    """The seqs to read from `start` to `end`, and what is known to be lost on the way.

    >>> a, b = Offset(topics={"t": TopicOffset(1, 4)}), Offset(topics={"t": TopicOffset(1, 6)})
    >>> step(a, b)
    Step(spans=[Span(topic='t', epoch=1, first=5, last=6)], gaps=[])
    """
    before = start.topics if end.came_from is None else end.came_from
    spans, gaps = [], []
    for name, place in sorted(end.topics.items()):
        known = before.get(name)
        if known is not None and (known.epoch != place.epoch or place.seq < known.seq):
            gaps.append(_after(name, known, RECREATED))
            known = None
        # A topic that was not known is read from its beginning, and not from what is left of it.
        first = 1 if known is None else known.seq + 1
        if first <= place.seq:
            spans.append(Span(name, place.epoch, first, place.seq))
    for name in sorted(before.keys() - end.topics.keys()):
        gaps.append(_after(name, before[name], DELETED))
    return Step(spans, gaps)


def _after(name: str, place: TopicOffset, reason: str) -> Gap:
    return Gap(Span(name, place.epoch, place.seq + 1, place.seq), reason)


class Ahead(NamedTuple):
    """Where a query would be next, and how many seqs that is."""

    offset: Offset
    seqs: int


def ahead_of(
    start: Offset,
    heads: Mapping[str, TopicHead],
    wanted: Callable[[str], bool],
    seqs_max: int | None,
) -> Ahead:
    """The offset to read to from `start`, when topics are as `heads` says.

    A topic of `start` that is `wanted` and has no head was deleted and leaves the offset.  One that
    is not wanted stays where it is, for a query that subscribes to it again.
    """
    places = {name: at for name, at in start.topics.items() if name in heads or not wanted(name)}
    lags: dict[str, int] = {}
    for name, head in heads.items():
        place = places.get(name)
        if place is None and head.head == 0:
            continue  # it begins with its first record
        if place is None or place.epoch != head.epoch or place.seq > head.head:
            place = TopicOffset(head.epoch, 0)
        # What was trimmed takes no part in the share: it is one gap, however many seqs it has.
        reached = max(place.seq, min(head.earliest - 1, head.head))
        lags[name] = head.head - reached
        places[name] = place if lags[name] else TopicOffset(head.epoch, head.head)
    shares = share_out(lags, seqs_max, start.turn)
    for name, count in shares.seqs.items():
        places[name] = TopicOffset(heads[name].epoch, heads[name].head - lags[name] + count)
    if places == start.topics and not start.new:
        return Ahead(start, 0)
    came_from = start.topics if start.new else None
    offset = Offset(topics=places, came_from=came_from, turn=shares.turn)
    return Ahead(offset, sum(shares.seqs.values()))


class RunEnd:
    """Where an AvailableNow run ends: the heads at its beginning.

    A topic that is created again during the run is at its end then, and stays there, so that a run
    comes to an end whatever happens to its topics.
    """

    def __init__(self, heads: Mapping[str, TopicHead]) -> None:
        self._heads = heads
        self._anew: set[str] = set()  # at most the topics of `heads`

    def cut(self, heads: Mapping[str, TopicHead], before: Offset) -> dict[str, TopicHead]:
        """The topics of `heads` that take part in the run, none beyond its end."""
        found = {}
        for name in self._heads.keys() & heads.keys():
            target, head, place = self._heads[name], heads[name], before.topics.get(name)
            if head.epoch == target.epoch:
                # A query that starts at the latest may start beyond a target that is older.
                reached = place.seq if place is not None and place.epoch == head.epoch else 0
                found[name] = head._replace(head=min(head.head, max(target.head, reached)))
            elif name not in self._anew:
                self._anew.add(name)
                found[name] = TopicHead(name, head.epoch, 1, 0)
            elif place is not None:
                found[name] = TopicHead(name, place.epoch, place.seq + 1, place.seq)
        return found
