"""What a topic keeps for the dialect that owns it, and who may append to it because of that.

Only this file changes the state of a topic that is a stream, and says whether an append has to be
looked at more closely than one to an ordinary topic.
"""

from __future__ import annotations

from typing import Final

from headrace.engine.streams.state import StreamState, decode_stream
from headrace.engine.topics.archived_seqs import ArchivedSeqs
from headrace.engine.topics.config import TopicConfig
from headrace.engine.topics.totals import Totals

_UNKNOWN: Final = (-1, 0)


class StreamedTopic(ArchivedSeqs):
    """The seqs of one topic, and the stream that it is, if it is one."""

    __slots__ = (
        "bounded",
        "closed",
        "ephemeral",
        "oldest",
        "ordinary",
        "state",
        "stream",
        "stream_changes",
    )

    def __init__(self, name: str, config: TopicConfig, totals: Totals) -> None:
        super().__init__(name, config, totals)
        self.bounded = self.ephemeral = False  # as the config says
        self.closed = 0  # deletes that copy the last records, so that no more may come
        self.state = b""
        self.stream: StreamState | None = None  # what `state` says, if the topic is a stream
        self.stream_changes = 0  # new states on their way to the log
        self.ordinary = True
        self.oldest = _UNKNOWN  # of a stream: its base, and when the first record behind arrived

    def set_state(self, state: bytes) -> None:
        """Keep the state that a writer committed, with its records or without any."""
        before = self.stream
        self.state = state
        self.stream = decode_stream(state)
        self.totals.restated(before, self.stream)
        self._look_whether_ordinary()

    def note_oldest(self, arrived_ms: int) -> None:
        """Remember when the first record of a stream arrived; 0: it is not known."""
        if self.stream is not None:
            self.oldest = (self.base, arrived_ms) if arrived_ms else _UNKNOWN

    def is_young(self, now_ms: int) -> bool:
        """Whether it is known that neither a TTL nor a cap takes anything of a stream now."""
        base, arrived_ms = self.oldest
        config = self.config
        return (
            base == self.base
            and arrived_ms >= now_ms - config.ttl_ms
            and not (config.cap_records or config.cap_bytes)
        )

    def begin_stream_change(self) -> None:
        """A new state goes to the log, by which appends behind it are judged already."""
        self.stream_changes += 1
        self._look_whether_ordinary()

    def end_stream_change(self) -> None:
        """That state is on disk, or failed."""
        assert self.stream_changes > 0, self.name
        self.stream_changes -= 1
        self._look_whether_ordinary()

    def close_to_writers(self) -> None:
        """Take no more records: a delete copies the last ones to where routers lead."""
        self.closed += 1
        self._look_whether_ordinary()

    def open_to_writers(self) -> None:
        """Take records again: that delete failed."""
        self.closed -= 1
        self._look_whether_ordinary()

    def _look_whether_ordinary(self) -> None:
        # Nothing about the topic itself can refuse an append.
        stream = self.stream
        self.ordinary = not (self.closed or self.ephemeral or self.bounded) and (
            stream is None or (stream.takes_any_json and not self.stream_changes)
        )
