"""Positions in streams: what of an offset a stream owns, and what is not there any more.

Only this file says which stream a seq belongs to.  Seqs that a fork inherits are those of the
stream that wrote them, so that a fork and its source name the same place alike.
"""

from __future__ import annotations

from headrace.core.errors import InvalidRequest, OffsetGone
from headrace.engine.streams.spec import START, Position
from headrace.engine.topics.topic import Topic


def position_of(topic: Topic, seq: int) -> Position:
    """The position behind a seq of a stream."""
    owner = topic
    while seq <= owner.parent_to and owner.parent is not None:
        owner = owner.parent
    return Position(owner.epoch, seq)


def resolve(topic: Topic, at: Position) -> int:
    """The seq that a position of a stream stands behind."""
    if at == START:
        return 0
    if at.incarnation > topic.epoch:
        raise _unknown(topic, at)
    owner, last = topic, topic.head
    while owner.epoch != at.incarnation:
        if owner.parent is None:
            raise OffsetGone(
                f"the offset is of another stream that was named {topic.name!r}",
                fix="read from the start",
                detail={"topic": topic.name, "reason": "incarnation"},
            )
        owner, last = owner.parent, min(last, owner.parent_to)
    if at.seq > last or (at.seq <= owner.parent_to and owner.parent is not None):
        raise _unknown(topic, at)
    if at.seq < max(topic.cap_floor, topic.ttl_floor):
        raise OffsetGone(
            f"what {topic.name!r} held behind this offset is gone",
            fix="read from the start, which is the earliest record that is left",
            detail={"topic": topic.name, "reason": "retention"},
        )
    return at.seq


def _unknown(topic: Topic, at: Position) -> InvalidRequest:
    return InvalidRequest(
        f"{topic.name!r} has no offset {at.incarnation}_{at.seq}",
        fix="send an offset that this stream has given out",
        detail={"topic": topic.name},
    )
