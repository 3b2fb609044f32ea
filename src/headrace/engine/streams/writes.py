"""Writes to streams by their dialect: whether one is taken, and what the stream is after it.

Only this file judges an append or a close by the state of a stream.  The order of the checks is
part of the protocol: gone, closed, type, fence, producer, sequence, head.  What is staged counts;
whoever is refused because of it hears so once it is stored.
"""

from __future__ import annotations

from typing import Any

from msgspec.structs import replace

from headrace.core.errors import (
    FenceMismatch,
    HeadMismatch,
    HeadraceError,
    InvalidRequest,
    StreamConflict,
    TopicNotFound,
)
from headrace.core.runtime import Ticket
from headrace.engine.appending.admission import Append, rows_of
from headrace.engine.appending.pending_append import Appended, PendingAppend
from headrace.engine.appending.producers import ProducerClaim
from headrace.engine.appending.repeats import Repeats, refuse_after, stored_before
from headrace.engine.state import EngineState
from headrace.engine.streams.refusals import closed_error, conflict, deleted_error
from headrace.engine.streams.spec import StreamWrite
from headrace.engine.streams.state import StreamState, encode_stream, media_type
from headrace.engine.streams.trims import StreamTrims
from headrace.engine.topics.topic import Topic


class StreamWrites:
    """Judges what is written to the streams of one engine."""

    def __init__(self, state: EngineState, repeats: Repeats) -> None:
        self._state = state
        self._repeats = repeats
        self._newest = state.staged_streams.newest
        self.trims = StreamTrims(state)

    def admit(self, topic: Topic, pending: PendingAppend) -> bool:
        """Whether an append is to be stored; False: it is answered, or will be.

        What it makes of the stream is in the conditions of the append after that.
        """
        how, write = pending.how, pending.how.stream
        assert write is not None
        after = self.judge(topic, how, write, pending)
        if after is None:
            return False
        if after is topic.stream and write.trim is None:
            return True  # as nearly all leave it
        before, _ = self._newest(topic)
        if write.trim is not None:
            after = _trimmed(after, write, topic.staged, rows_of(pending.batch))
            if after is not before:
                pending.when_done(lambda _done: self.trims.look_at(topic))
        if after is not before:
            pending.stream = after
            pending.how = replace(how, state=encode_stream(after))
        return True

    def judge(
        self,
        topic: Topic,
        how: Append,
        write: StreamWrite,
        ticket: Ticket[Appended],
        *,
        empty: bool = False,
    ) -> StreamState | None:
        """The stream as it is after this write; None: it is answered, or will be.

        Raise where what is stored refuses it, and for another head (`Repeats.refuse_head`).
        `empty`: it brings no record, and only closes the stream.
        """
        stream, first = self._newest(topic)
        try:
            if stream is None:
                raise TopicNotFound.named(topic.name)
            expires = stream.ttl_s is not None or stream.expires_ms is not None
            if expires or stream.deleted:
                self._refuse_gone(topic, stream)
            if stream.closed:
                _answer_closed(topic, stream, first, how.producer, ticket, empty)
                return None
            if write.media_type is not None and write.media_type != media_type(stream.content_type):
                raise _other_type(topic, stream, write.media_type)
            if write.fencing_token is not None and write.fencing_token != stream.fence:
                raise _other_fence(topic, stream)
            if expires:
                self._state.expiry.touch(topic)
            claim = how.producer
            if claim is not None and self._repeats.answer_producer(topic, claim, ticket):
                return None
            if write.sequence is not None:
                _refuse_sequence(topic, stream, write.sequence)
            if how.expected_head_seq is not None:
                refuse_other_head(topic, how)
        except HeadMismatch:
            raise  # what is staged may have moved the head, and comes after `first`
        except HeadraceError as error:
            if first is None:
                raise
            refuse_after(first, error, ticket)
            return None
        if write.sequence is None and write.fence is None and not write.closes:
            return stream  # as most leave it
        return _after(stream, write, claim)

    def _refuse_gone(self, topic: Topic, stream: StreamState) -> None:
        over = self._state.expiry.is_over(topic, stream)
        if stream.deleted or (over and topic.forks):
            raise deleted_error(topic)
        if over:
            raise TopicNotFound.named(topic.name)


def _after(stream: StreamState, write: StreamWrite, producer: ProducerClaim | None) -> StreamState:
    """The stream once this write is stored."""
    changes: dict[str, Any] = {}
    if write.closes:
        by = tuple(producer) if producer is not None else None
        changes = {"closed": True, "closed_by": by}
    if write.sequence is not None:
        changes["sequence"] = write.sequence
    if write.fence is not None:
        changes["fence"] = write.fence
    return replace(stream, **changes)


def _trimmed(stream: StreamState, write: StreamWrite, head: int, rows: int) -> StreamState:
    """The stream once a write behind `head` has trimmed it: never back, never beyond itself.

    Of several trims the one counts that reaches farthest, which only shows behind this head.
    """
    assert write.trim is not None
    row = rows - 1 if write.trim_row is None else write.trim_row
    to = min(write.trim, head + 1 + row)
    for row, seq in write.more_trims:
        to = max(to, min(seq, head + 1 + row))
    return stream if to <= stream.trim_to else replace(stream, trim_to=to)


def _answer_closed(
    topic: Topic,
    stream: StreamState,
    first: Ticket[Any] | None,
    producer: ProducerClaim | None,
    ticket: Ticket[Appended],
    empty: bool,
) -> None:
    """Answer a write to a closed stream: as a repeat of what closed it, or with a refusal."""
    if not (empty if producer is None else stream.closed_by == tuple(producer)):
        raise closed_error(topic)

    def answer() -> None:
        known = topic.producers
        if producer is not None and known is not None and known.newest(producer.id) is not None:
            ticket.resolve(stored_before(topic, producer))
        else:
            ticket.resolve(
                Appended(topic.name, topic.epoch, None, None, topic.head, 0, deduped=True)
            )

    if first is None:
        answer()
        return
    first.when_done(lambda done: answer() if done.error is None else ticket.fail(done.error))


def _refuse_sequence(topic: Topic, stream: StreamState, sequence: str) -> None:
    try:
        given = sequence.encode("latin-1")
    except UnicodeEncodeError:
        raise InvalidRequest("the sequence is not latin-1", fix="send bytes as latin-1") from None
    if stream.sequence is not None and given <= stream.sequence.encode("latin-1"):
        raise StreamConflict(
            f"sequence {sequence!r} is not beyond {stream.sequence!r}",
            fix="send one that is greater, byte by byte",
            detail={"topic": topic.name, "reason": "sequence", "sequence": stream.sequence},
        )


def refuse_other_head(topic: Topic, how: Append) -> None:
    """Raise if an append wants another head than the one that it would stand behind."""
    if how.expected_head_seq is not None and how.expected_head_seq != topic.staged:
        raise HeadMismatch(
            f"the head of {topic.name!r} is {topic.staged}, not {how.expected_head_seq}",
            fix="read on from that head and decide again",
            detail={"topic": topic.name, "head_seq": topic.staged},
        )


def _other_fence(topic: Topic, stream: StreamState) -> FenceMismatch:
    return FenceMismatch(
        f"the fencing token of {topic.name!r} is {stream.fence!r}",
        fix="let the writer that has this token write",
        detail={"topic": topic.name, "fencing_token": stream.fence},
    )


def _other_type(topic: Topic, stream: StreamState, given: str) -> StreamConflict:
    return conflict(
        topic.name,
        "content_type",
        f"{topic.name!r} takes {stream.content_type}, not {given}",
        "send the type that the stream was created with",
    )
