"""What live streams say, as JSON: a batch of records, a gap, the tail, a topic that is gone.

Only this file knows the fields of these messages.  SSE and WebSocket wrap them in their own frames:
each message here lacks its opening brace, so that a WebSocket can put its `op` in front.
"""

from __future__ import annotations

import logging
from typing import NamedTuple

from headrace.core.errors import HeadraceError, Internal, Throttled, typed
from headrace.engine.live import Wishes
from headrace.engine.reading import Page
from headrace.wire.native import Vocabulary, encode
from headrace.wire.record_json import encode_rows

log = logging.getLogger("headrace.wire")


class View:
    """What a stream reads and how it shows it.  Equal views are one object (`LiveApi.view`)."""

    __slots__ = ("__weakref__", "data", "metas", "tags", "vocabulary", "wishes")

    def __init__(
        self, wishes: Wishes, vocabulary: Vocabulary, tags: bool, metas: bool, data: bool
    ) -> None:
        self.wishes = wishes
        self.vocabulary = vocabulary
        self.tags = tags
        self.metas = metas
        self.data = data


class Messages(NamedTuple):
    """What a page is to a stream, in this order; b"" for what there is none of."""

    tombstone: bytes
    after_tombstone: int  # the cursor then
    record: bytes
    caught_up: bytes


def messages_of(page: Page, view: View, from_seq: int, reason: str = "") -> Messages:
    """A page as messages; `reason` replaces the one of its tombstone."""
    noun = view.vocabulary.noun
    name = f'"{noun}":'.encode() + encode(page.topic)
    tombstone, record, caught_up = b"", b"", b""
    after = from_seq
    lost = page.tombstone
    if lost is not None:
        # A topic that was made anew is read from its first record.
        anew = lost.reason == "recreated"
        after = page.earliest_seq - 1 if anew else lost.gap_to
        from_seq = min(from_seq, after)
        tombstone = (
            name
            + (
                f',"reason":"{reason or lost.reason}","gap_from":{lost.gap_from},'
                f'"gap_to":{lost.gap_to},"earliest_seq":{lost.earliest_seq},'
                f'"head_seq":{lost.head_seq}}}'
            ).encode()
        )
    if page.rows:
        records = encode_rows(page.rows, tags=view.tags, metas=view.metas, data=view.data)
        place = f',"from_seq":{from_seq},"to_seq":{page.next_from_seq},"head_seq":{page.head_seq}}}'
        record = b"".join((name, b',"records":', records, place.encode()))
    if page.caught_up:
        caught_up = name + b',"head_seq":%d}' % page.head_seq
    return Messages(tombstone, after, record, caught_up)


def deleted_message(name: str, head_seq: int, vocabulary: Vocabulary) -> bytes:
    """A topic is gone."""
    noun = vocabulary.noun
    return f'"{noun}":'.encode() + encode(name) + b',"head_seq":%d,"reason":"deleted"}' % head_seq


def paced_message(name: str, ms_max: int, vocabulary: Vocabulary) -> bytes:
    """What is new in a topic is held back for a while; the stream goes on.

    >>> from headrace.wire.native import TOPICS
    >>> paced_message("logs", 9_000, TOPICS)[:59]
    b'"code":"throttled","status":429,"topic":"logs","retry_after'
    """
    told = {
        "code": "throttled",
        "status": Throttled.status,
        vocabulary.noun: name,
        "retry_after_ms": ms_max,
        "message": "the server is busy, and this topic has a low priority: its records come later, "
        "and can be read meanwhile",
    }
    return encode(told)[1:]


def error_message(error: BaseException, vocabulary: Vocabulary) -> bytes:
    """Why a stream ends."""
    known = typed(error)
    if not isinstance(known, HeadraceError):
        log.error("a live stream failed", exc_info=error)
        known = Internal("the server met an error of its own", fix="see the server's log")
    return encode({"code": vocabulary.word(known.code), "message": str(known)})[1:]
