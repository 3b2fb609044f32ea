"""Streams as they will be: changes of their state that are on their way to the log.

Only this file knows what of a stream's state is staged.  A write is judged by it, because it will
stand in the log behind what is staged; what is refused because of it is refused once it is stored.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from headrace.core.runtime import Ticket
from headrace.engine.streams.state import StreamState
from headrace.engine.topics.topic import Topic


class StagedStream(NamedTuple):
    """A stream's newest state that is not stored yet, and the ticket of who changes it."""

    stream: StreamState
    ticket: Ticket[Any]


class StagedStreams:
    """The changes of streams that are in flight, of one engine."""

    def __init__(self) -> None:
        self._staged: dict[int, StagedStream] = {}

    def newest(self, topic: Topic) -> tuple[StreamState | None, Ticket[Any] | None]:
        """The state that the next entry of a topic is judged by; with a ticket: it is staged."""
        if topic.stream_changes:
            return self._staged[topic.id]
        return topic.stream, None

    def begin(self, topic: Topic, stream: StreamState, ticket: Ticket[Any]) -> None:
        """A new state goes to the log."""
        topic.begin_stream_change()
        self._staged[topic.id] = StagedStream(stream, ticket)

    def end(self, topic: Topic, ticket: Ticket[Any]) -> None:
        """It is stored; or it failed, and with it all that was staged behind it."""
        topic.end_stream_change()
        if not topic.stream_changes:
            assert self._staged[topic.id].ticket is ticket, topic.name
            del self._staged[topic.id]
