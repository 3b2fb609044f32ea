"""Reads as server-sent events: batches with resumable ids, pings, errors, and the clean end.

Only this file knows these events and what an id says.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from headrace.core.errors import HeadraceError
from headrace.wire import sse
from headrace.wire.s2.errors import failure_body
from headrace.wire.s2.json_records import encode_position, encode_read_batch
from headrace.wire.s2.records import Position, ReadBatch

# The last event of a read that ended by itself.
DONE: Final = sse.split_event(b"", b"[DONE]")


class EventId(NamedTuple):
    """How far a read has come: its last record, and all that it was given over its reconnects."""

    seq_num: int
    records: int
    metered: int

    def encode(self) -> bytes:
        """The id as an event has it.

        >>> EventId(41, 3, 120).encode()
        b'41,3,120'
        """
        return b"%d,%d,%d" % self


def batch_event(batch: ReadBatch, id: EventId, base64: bool) -> bytes:
    """A batch of records; `id` counts them in.

    >>> batch_event(ReadBatch([7], [5], [b""]), EventId(7, 1, 8), base64=True)
    b'event: batch\\nid: 7,1,8\\ndata: {"records":[{"seq_num":7,"timestamp":5}]}\\n\\n'
    """
    return b"event: batch\nid: %b\ndata: %b\n\n" % (id.encode(), encode_read_batch(batch, base64))


def ping_event(now_ms: int, tail: Position) -> bytes:
    """What is sent while there is nothing to send.

    >>> ping_event(9, Position(3, 8))
    b'event: ping\\ndata: {"timestamp":9,"tail":{"seq_num":3,"timestamp":8}}\\n\\n'
    """
    return sse.event(b"ping", b'{"timestamp":%d,"tail":%b}' % (now_ms, encode_position(tail)))


def error_event(error: HeadraceError) -> bytes:
    """The last event of a read that failed."""
    return sse.event(b"error", failure_body(error)[1])
