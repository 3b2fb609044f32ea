"""What native live streams say, as JSON: records, a gap, the tail, a topic that is gone.

Only this file knows the fields of these messages.  `watch_events.py` and `websocket.py` wrap them
in their own frames: each message here lacks its opening brace, so that a WebSocket can put its `op`
in front.
"""

from __future__ import annotations

import logging
from typing import Final, NamedTuple

from headrace.core.errors import HeadraceError, Internal, Throttled, typed
from headrace.engine.live.pages import PageOptions
from headrace.engine.reading.page import Page
from headrace.wire.native.answers import encode
from headrace.wire.native.record_json import encode_rows
from headrace.wire.native.vocabulary import Vocabulary

log = logging.getLogger("headrace.wire")

STOPPING: Final = encode(
    {"code": "server_shutting_down", "message": "the server is stopping; reconnect"}
)[1:]


# What a node that a reader leaves out takes beside its name.
NODE_BYTES: Final = 64

# What happens to a topic that cannot be read: nothing more on this stream, or another try.
_NEXT: Final = (
    "nothing more of it comes on this stream: reconnect to try again, or begin at a later seq",
    "it is tried again",
)


class View:
    """What a stream reads and how it shows it.  Equal views are one object (`Views.of`)."""

    __slots__ = (
        "__weakref__",
        "data",
        "metas",
        "noun",
        "of_events",
        "of_messages",
        "options",
        "tags",
        "vocabulary",
    )

    def __init__(
        self, options: PageOptions, vocabulary: Vocabulary, tags: bool, metas: bool, data: bool
    ) -> None:
        self.options = options
        self.vocabulary = vocabulary
        self.noun = vocabulary.noun.encode()
        self.tags = tags
        self.metas = metas
        self.data = data
        # By which subscriptions of event streams, and of WebSockets, with this view are alike.
        self.of_events = object()
        self.of_messages = object()

    @property
    def bytes(self) -> int:
        """What it makes a reader hold: the nodes that are left out."""
        nodes = self.options.nodes
        return sum(map(len, nodes)) + NODE_BYTES * len(nodes)


class Messages(NamedTuple):
    """A page as messages, in this order; b"" for one that it does not have."""

    tombstone: bytes
    after_tombstone: int  # the cursor of a client that has read no further than the tombstone
    record: bytes
    caught_up: bytes


def messages_of(page: Page, view: View, from_seq: int, reason: str = "") -> Messages:
    """Return a page as messages; `reason` replaces the one of its tombstone."""
    name = b'"%b":%b' % (view.noun, encode(page.topic))
    tombstone, record, caught_up = b"", b"", b""
    after = from_seq
    lost = page.tombstone
    if lost is not None:
        # A topic that was created again is read from its first record.
        recreated = lost.reason == "recreated"
        after = page.earliest_seq - 1 if recreated else lost.gap_to
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
        record = b'%b,"records":%b,"from_seq":%d,"to_seq":%d,"head_seq":%d}' % (
            name, records, from_seq, page.next_from_seq, page.head_seq,
        )  # fmt: skip
    if page.next_from_seq == page.head_seq:
        caught_up = b'%b,"head_seq":%d}' % (name, page.head_seq)
    return Messages(tombstone, after, record, caught_up)


def deleted_message(name: str, head_seq: int, vocabulary: Vocabulary) -> bytes:
    """Return that a topic was deleted."""
    noun = vocabulary.noun
    return f'"{noun}":'.encode() + encode(name) + b',"head_seq":%d,"reason":"deleted"}' % head_seq


def delayed_message(name: str, ms_max: int, vocabulary: Vocabulary) -> bytes:
    """Return that new records of a topic are held back for a while; the stream goes on.

    >>> from headrace.wire.native.vocabulary import TOPICS
    >>> delayed_message("logs", 9_000, TOPICS)[:59]
    b'"code":"throttled","status":429,"topic":"logs","retry_after'
    """
    fields = {
        "code": "throttled",
        "status": Throttled.status,
        vocabulary.noun: name,
        "retry_after_ms": ms_max,
        "message": "the server is busy, and this topic has a low priority: its records come later, "
        "and can be read meanwhile",
    }
    return encode(fields)[1:]


def failed_message(
    name: str, cursor: int, error: BaseException, retry_ms: int, vocabulary: Vocabulary
) -> bytes:
    """Return that a topic cannot be read after `cursor`; the stream goes on with the others.

    >>> from headrace.wire.native.vocabulary import TOPICS
    >>> failed_message("logs", 7, Throttled("busy"), 5_000, TOPICS)[:61]
    b'"code":"throttled","status":429,"topic":"logs","from_seq":7,"'
    """
    known = _known(error)
    described = vocabulary.describe(known)
    fields = {
        "code": described.pop("code"),
        "status": known.status,
        vocabulary.noun: name,
        "from_seq": cursor,
        **({"retry_after_ms": retry_ms} if retry_ms else {}),
        "message": f"{described.pop('message')}; {_NEXT[retry_ms > 0]}",
        **described,
    }
    return encode(fields)[1:]


def error_message(error: BaseException, vocabulary: Vocabulary) -> bytes:
    """Return why a stream ends."""
    known = _known(error)
    return encode({"code": vocabulary.word(known.code), "message": str(known)})[1:]


def _known(error: BaseException) -> HeadraceError:
    known = typed(error)
    if isinstance(known, HeadraceError):
        return known
    log.error("a live stream failed", exc_info=error)
    return Internal("the server met an error of its own", fix="see the server's log")
