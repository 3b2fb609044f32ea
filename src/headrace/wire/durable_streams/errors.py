"""Refusals in the form of Durable Streams: a status, headers for programs, a line for people.

Only this file decides which status an error has here, and what a client is told beside it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from headrace.core.errors import (
    BatchTooLarge,
    HeadMismatch,
    HeadraceError,
    ProducerFenced,
    ProducerGap,
    RecordTooLarge,
    StreamClosed,
    StreamConflict,
    TopicNotFound,
)
from headrace.engine.streams.spec import Position
from headrace.wire.durable_streams.offsets import offset_text
from headrace.wire.exchange import Header, Reply
from headrace.wire.failures import error_headers

TEXT: Final = b"text/plain; charset=utf-8"
NEXT_OFFSET: Final = b"stream-next-offset"
CLOSED: Final[Header] = (b"stream-closed", b"true")
NO_STORE: Final[Header] = (b"cache-control", b"no-store")
PRODUCER_EPOCH: Final = b"producer-epoch"
PRODUCER_SEQ: Final = b"producer-seq"
# The publisher's own words, which its suite compares.
EXPECTED_CONFLICT: Final = "Expected offset conflict"
SEQUENCE_CONFLICT: Final = "Sequence conflict"
_NO_STREAM: Final = "there is no such stream; create it with PUT"
_ENDS_ELSEWHERE: Final = "the stream ends elsewhere; read what has come since"

# Where the protocol has another one than the native API.
_STATUSES: Final = {
    RecordTooLarge.code: 413,
    BatchTooLarge.code: 413,
    HeadMismatch.code: 412,
}


def failure_reply(
    error: HeadraceError, tail: Callable[[], Position | None], *, expected: bool = False
) -> Reply:
    """The answer that tells of an error; `tail` says where the stream ends, if it knows.

    `expected`: the request has `Stream-Expected-Offset`, whose refusal is a conflict, not a failed
    precondition.

    No cache keeps it: a stream that is not there now may be there the next moment.

    >>> status, body, _, headers = failure_reply(StreamClosed("closed"), lambda: Position(1, 2))
    >>> status, body, headers[-1]
    (409, b'closed', (b'stream-next-offset', b'0000000000000001_0000000000000002'))
    """
    headers: list[Header] = [NO_STORE, *error_headers(error)]
    detail = error.detail
    if isinstance(error, ProducerFenced):
        headers.append((PRODUCER_EPOCH, str(detail["epoch"]).encode()))
    elif isinstance(error, ProducerGap):
        headers.append((b"producer-expected-seq", str(detail["expected"]).encode()))
        headers.append((b"producer-received-seq", str(detail["received"]).encode()))
    of_sequence = isinstance(error, StreamConflict) and detail.get("reason") == "sequence"
    if of_sequence or isinstance(error, StreamClosed | HeadMismatch):
        if isinstance(error, StreamClosed):
            headers.append(CLOSED)
        at = tail()
        if at is not None:
            headers.append((NEXT_OFFSET, offset_text(at)))
    status, line = _STATUSES.get(error.code, error.status), " ".join(str(error).split())
    if expected and isinstance(error, HeadMismatch):
        status, line = error.status, EXPECTED_CONFLICT
    elif isinstance(error, HeadMismatch) and "head_seq" in detail:
        line = _ENDS_ELSEWHERE  # seqs are no words of this dialect
    elif of_sequence:
        line = SEQUENCE_CONFLICT
    elif isinstance(error, TopicNotFound):
        line = _NO_STREAM  # an append would not make it one, as it does a topic
    return status, line.encode(), TEXT, tuple(headers)
