"""Changes of a stream that bring no record: a close, another config, a delete that forks outlive.

Only this file logs the state of a stream by itself, with the producer whose number it took.  The
stream is what the entry says once that is as durable as the stream's class wants it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from msgspec.structs import replace

from headrace.core.errors import HeadMismatch, HeadraceError
from headrace.core.runtime import Ticket
from headrace.engine.appending.admission import Append
from headrace.engine.appending.idempotency import Sidecar
from headrace.engine.appending.pending_append import Appended
from headrace.engine.appending.producers import ProducerClaim
from headrace.engine.appending.repeats import Repeats
from headrace.engine.state import EngineState
from headrace.engine.streams.spec import StreamWrite
from headrace.engine.streams.state import StreamState, encode_stream
from headrace.engine.streams.writes import StreamWrites
from headrace.engine.topics.config import TopicConfig
from headrace.engine.topics.lifecycle import Lifecycle, Put
from headrace.engine.topics.topic import Topic
from headrace.storage.snapshot.state import ProducerState
from headrace.storage.wal.frame import ENTRY_STATE, State

T = TypeVar("T")


class StreamChanges:
    """Changes streams of one engine without a record."""

    def __init__(
        self, state: EngineState, lifecycle: Lifecycle, repeats: Repeats, writes: StreamWrites
    ) -> None:
        self._state = state
        self._lifecycle = lifecycle
        self._repeats = repeats
        self._writes = writes

    def close(
        self,
        topic: Topic,
        write: StreamWrite,
        producer: ProducerClaim | None,
        expected_head_seq: int | None,
    ) -> Ticket[Appended]:
        """Close a stream; one that is closed already may be closed again, by nobody in particular.

        A producer's number is taken as if the close were an append.
        """
        ticket: Ticket[Appended] = Ticket(self._state.runtime)
        how = Append(producer=producer, expected_head_seq=expected_head_seq)
        try:
            after = self._writes.judge(topic, how, write, ticket, empty=True)
        except HeadMismatch as mismatch:
            self._repeats.refuse_head(topic, mismatch, ticket)
            return ticket
        if after is None:
            return ticket
        self._state.refuse_writes(self._state.shard_of(topic.id))
        head = topic.staged
        accepted: ProducerState | None = None
        sidecar = b""
        if producer is not None:
            accepted = ProducerState(producer.epoch, producer.sequence, head + 1, 0, head)
            self._repeats.track_producer(topic.id, producer.id, accepted, ticket)
            id, epoch, sequence = producer
            sidecar = Sidecar(b"", id, epoch, sequence).encode()

        def landed(stored: bool) -> None:
            if producer is None or accepted is None:
                return
            if stored:
                self._state.producer_memory.accept(topic, producer.id, accepted)
            self._repeats.producer_landed(topic.id, producer.id, ticket)

        answer = Appended(topic.name, topic.epoch, None, None, head, 0)
        self._log(topic, after, ticket, answer, sidecar, landed)
        return ticket

    def change(self, topic: Topic, after: StreamState) -> Ticket[None]:
        """Make a stream what `after` says."""
        self._state.refuse_writes(self._state.shard_of(topic.id), frees=True)
        ticket: Ticket[None] = Ticket(self._state.runtime)
        self._log(topic, after, ticket, None)
        return ticket

    def update(self, topic: Topic, config: TopicConfig | None, own: bytes | None) -> Ticket[None]:
        """Give a stream another config, and what its dialect keeps: both, or neither of the two."""
        state = self._state
        stream, _ = state.staged_streams.newest(topic)
        assert stream is not None
        after = stream if own is None else replace(stream, own=own)
        ticket: Ticket[None] = Ticket(state.runtime)
        if config is None or (config == topic.config and not topic.changing):
            if own is None:
                ticket.resolve(None)
            else:
                state.refuse_writes(state.shard_of(topic.id))
                self._log(topic, after, ticket, None)
            return ticket
        staged = None if own is None else encode_stream(after)
        put = self._lifecycle.change_stream(topic, config, staged)
        if own is not None:
            state.staged_streams.begin(topic, after, put)

        def done(answer: Ticket[Put]) -> None:
            if own is not None:
                state.staged_streams.end(topic, put)
            if answer.error is None:
                ticket.resolve(None)
            else:
                failure = answer.error
                state.runtime.soon(lambda: ticket.fail(failure))

        put.when_done(done)
        return ticket

    def _log(
        self,
        topic: Topic,
        after: StreamState,
        ticket: Ticket[T],
        answer: T,
        sidecar: bytes = b"",
        landed: Callable[[bool], None] = lambda _stored: None,
    ) -> None:
        state, data = self._state, encode_stream(after)
        # What is acknowledged before an earlier entry of the topic would be seen before it.
        needs_sync = topic.needs_sync or topic.unsettled_syncs > 0
        if needs_sync:
            topic.begin_sync()
        state.staged_streams.begin(topic, after, ticket)

        def done(error: HeadraceError | None) -> None:
            if needs_sync:
                topic.end_sync()
            if error is None:
                topic.set_state(data)
                topic.mark_changed()
            landed(error is None)
            state.staged_streams.end(topic, ticket)
            if error is None:
                ticket.resolve(answer)
                topic.wake_waiters()
            else:
                # Later, so that all that is staged behind it is back before a caller tries again.
                failure = error
                state.runtime.soon(lambda: ticket.fail(failure))

        entry = State(data, sidecar)
        state.log(topic, ENTRY_STATE, entry, needs_sync=needs_sync, done=done)
