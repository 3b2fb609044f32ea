"""The calls of streams: create, look, close, delete, and what a position of one means.

Appends and reads of streams are those of topics.
"""

from __future__ import annotations

import msgspec

from headrace.core.errors import HeadraceError, TopicNotFound
from headrace.core.runtime import Ticket
from headrace.core.steps import Steps, follow_at_once
from headrace.engine.appending.admission import Append, Records, check_conditions, check_timestamp
from headrace.engine.appending.append import Appender
from headrace.engine.appending.pending_append import Appended
from headrace.engine.appending.producers import ProducerClaim
from headrace.engine.reading.seek import seek_ts
from headrace.engine.removal import retention
from headrace.engine.state import EngineState, failed
from headrace.engine.streams import rules
from headrace.engine.streams.changes import StreamChanges
from headrace.engine.streams.creation import StreamCreation
from headrace.engine.streams.positions import position_of, resolve
from headrace.engine.streams.refusals import deleted_error
from headrace.engine.streams.removal import StreamRemoval
from headrace.engine.streams.spec import Position, StreamSpec, StreamWrite
from headrace.engine.streams.state import StreamState
from headrace.engine.topics.config import TopicConfig
from headrace.engine.topics.lifecycle import Lifecycle
from headrace.engine.topics.topic import Topic


class StreamInfo(msgspec.Struct, frozen=True):
    """A stream as it is now."""

    name: str
    epoch: int
    head_seq: int
    earliest_seq: int
    state: StreamState
    config: TopicConfig
    tail: Position
    last_ts: int = 0  # of its last record, there or not any more; 0: it never had one
    written_ms: int = 0  # when that arrived, or when the stream was created


class StreamCreated(msgspec.Struct, frozen=True):
    """A stream, and whether this call made it."""

    created: bool
    info: StreamInfo


class Streams:
    """The streams of one engine.  What a call refuses is the error of its ticket."""

    def __init__(self, state: EngineState, lifecycle: Lifecycle, appender: Appender) -> None:
        self._state = state
        self._writes = appender.stream_writes
        self._trims = appender.stream_writes.trims
        self._changes = StreamChanges(state, lifecycle, appender.repeats, appender.stream_writes)
        self._removal = StreamRemoval(state, lifecycle, self._changes)
        self._creation = StreamCreation(state, lifecycle, self._removal)

    def start(self) -> None:
        """Watch over the streams that recovery brought back."""
        self._removal.start()
        self._trims.start()

    def info(self, name: str) -> StreamInfo:
        """A stream, now; `TopicNotFound` or `StreamDeleted` where there is none."""
        topic = self._find(name)
        retention.enforce(self._state, topic)
        return _info_of(topic)

    def touch(self, name: str) -> None:
        """Begin the time anew after which an unused stream expires."""
        self._state.expiry.touch(self._find(name))

    def create(
        self, name: str, spec: StreamSpec, records: Records | None = None
    ) -> Ticket[StreamCreated]:
        """Create a stream with its first records, in one commit; the same one again is fine."""
        return follow_at_once(self._state.runtime, self._create(name, spec, records))

    def _create(self, name: str, spec: StreamSpec, records: Records | None) -> Steps[StreamCreated]:
        created, topic = yield from self._creation.create(name, spec, records)
        return StreamCreated(created, _info_of(topic))

    def close(
        self,
        name: str,
        write: StreamWrite,
        producer: ProducerClaim | None = None,
        expected_head_seq: int | None = None,
    ) -> Ticket[Appended]:
        """Close a stream without a record."""
        try:
            assert write.closes
            topic = self._written_to(name, producer)
            return self._changes.close(topic, write, producer, expected_head_seq)
        except HeadraceError as error:
            return failed(self._state.runtime, error)

    def answer_unread(
        self, name: str, write: StreamWrite, producer: ProducerClaim | None
    ) -> Ticket[Appended] | None:
        """Answer a write whose records cannot be read; None: the stream would take other ones.

        Raise where the stream refuses it, whatever its records are.
        """
        topic = self._written_to(name, producer)
        ticket: Ticket[Appended] = Ticket(self._state.runtime)
        after = self._writes.judge(topic, Append(producer=producer), write, ticket)
        return ticket if after is None else None

    def _written_to(self, name: str, producer: ProducerClaim | None) -> Topic:
        """The stream of this name for a write, which is judged by what is staged."""
        state = self._state
        state.refuse_unready()
        state.loading.refuse(name)
        topic = state.find(name)
        if topic is None or topic.stream is None:
            raise TopicNotFound.named(name)
        check_conditions(state.settings, Append(producer=producer))
        return topic

    def update(
        self, name: str, *, config: TopicConfig | None = None, own: bytes | None = None
    ) -> Ticket[None]:
        """Replace the config of a stream, what its dialect keeps, or both in one commit."""
        try:
            topic = self._find(name)
            if rules.is_ending(self._state, topic):
                raise deleted_error(topic)
            return self._changes.update(topic, config, own)
        except HeadraceError as error:
            return failed(self._state.runtime, error)

    def seek_ts(self, name: str, ts: int) -> Ticket[int]:
        """The first record that is there and has this timestamp or a later one.

        It is the seq behind the head where there is none.
        """
        try:
            check_timestamp(ts)
            return seek_ts(self._state, self._find(name), ts)
        except HeadraceError as error:
            return failed(self._state.runtime, error)

    def delete(self, name: str, *, if_empty: bool = False) -> Ticket[None]:
        """Delete a stream; what its forks inherit is kept for them.

        `if_empty`: one that holds records, or gets some meanwhile, is refused (`TopicNotEmpty`).
        """
        try:
            topic = self._find(name)
        except HeadraceError as error:
            return failed(self._state.runtime, error)
        return follow_at_once(self._state.runtime, self._removal.delete(topic, if_empty=if_empty))

    def check_destination(self, name: str) -> None:
        """Raise unless a topic, stream or not, takes copies of JSON records."""
        rules.refuse_copies(self._state, None, self._state.topic(name))

    def resolve(self, name: str, at: Position) -> int:
        """The seq that a position stands behind."""
        topic = self._find(name)
        retention.enforce(self._state, topic)
        return resolve(topic, at)

    def position(self, name: str, seq: int) -> Position:
        """The position behind a seq."""
        return position_of(self._find(name), seq)

    def _find(self, name: str) -> Topic:
        """The stream of this name that its users can see."""
        state = self._state
        state.refuse_unready()
        if state.loading:
            state.loading.refuse(name)
        topic = state.find(name)
        if topic is None or not topic.live or topic.stream is None:
            raise TopicNotFound.named(name)
        if state.expiry.hides(topic):
            if topic.stream.deleted or topic.forks:
                raise deleted_error(topic)
            raise TopicNotFound.named(name)
        return topic


def _info_of(topic: Topic) -> StreamInfo:
    assert topic.stream is not None
    return StreamInfo(
        topic.name,
        topic.epoch,
        topic.head,
        topic.earliest_seq,
        topic.stream,
        topic.config,
        position_of(topic, topic.head),
        topic.blocks.last_ts,
        max(topic.created_ms, topic.last_write_ms),
    )
