"""What the dialect of a stream forbids to callers that do not speak it.

Only this file refuses a call because the topic is a stream; every part that could change one for
other callers asks here first.  Reads are free.
"""

from __future__ import annotations

from headrace.core.errors import StreamConflict, Throttled, TopicNotFound
from headrace.engine.appending.admission import Records
from headrace.engine.state import EngineState
from headrace.engine.streams.refusals import closed_error, conflict
from headrace.engine.topics.topic import Topic
from headrace.storage.block import KIND_BYTES, KIND_JSON, Batch, ColumnBatch


def refuse_append(state: EngineState, topic: Topic, records: Records) -> None:
    """Raise unless a stream takes these records from a caller of the native API."""
    _refuse_write(state, topic, kinds_of(records))


def refuse_copies(state: EngineState, source: Topic | None, dest: Topic | None) -> None:
    """Raise unless a router may copy from one topic to the other; None: it is created for that."""
    for topic in (source, dest):
        if topic is not None and state.expiry.hides(topic):
            raise TopicNotFound.named(topic.name)
    if dest is not None and dest.stream is not None:
        stream = source.stream if source is not None else None
        _refuse_write(state, dest, frozenset((KIND_JSON if stream is None else stream.kind,)))


def is_ending(state: EngineState, topic: Topic) -> bool:
    """Whether a close or a delete of a stream is on its way: what comes has to wait for it."""
    if not topic.stream_changes:
        return False
    stream, _ = state.staged_streams.newest(topic)
    return stream is not None and (stream.closed or stream.deleted)


def takes_no_more(topic: Topic) -> bool:
    """Whether a topic is a stream that nothing will ever be added to."""
    stream = topic.stream
    return stream is not None and (stream.closed or stream.deleted)


def refuse_change(topic: Topic, what: str) -> None:
    """Raise if the topic is a stream: only its dialect may do this to it."""
    if topic.stream is not None:
        raise _forbidden(topic, f"{what} of a stream")


def kinds_of(records: Records) -> frozenset[int]:
    """The kinds of the records of an append."""
    if isinstance(records, Batch | ColumnBatch):
        if isinstance(records, Batch) and records.kinds is not None:
            return frozenset(records.kinds)
        return frozenset((records.kind,))
    return frozenset((KIND_BYTES if type(records) is bytes else KIND_JSON,))


def _refuse_write(state: EngineState, topic: Topic, kinds: frozenset[int]) -> None:
    stream, _ = state.staged_streams.newest(topic)
    assert stream is not None
    if is_ending(state, topic):
        raise Throttled(
            f"{topic.name!r} is being closed or deleted",
            fix="send it again in a moment, to hear what became of that",
            detail={"topic": topic.name},
        )
    if stream.deleted or state.expiry.is_over(topic, stream):
        raise TopicNotFound.named(topic.name)
    if stream.closed:
        raise closed_error(topic)
    if stream.sealed:
        raise _forbidden(topic, "record that is not encrypted")
    if not kinds <= {stream.kind}:
        raise _forbidden(topic, "record of another kind than the stream takes")
    state.expiry.touch(topic)


def _forbidden(topic: Topic, what: str) -> StreamConflict:
    stream = topic.stream
    assert stream is not None
    return conflict(
        topic.name,
        "dialect",
        f"{topic.name!r} is a stream of the dialect {stream.dialect!r}: no {what}",
        "use the calls of that dialect, or another topic",
    )
