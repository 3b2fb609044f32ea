"""The answer to a read of a stream: its headers, its tag, how long caches may keep it, its body.

Only this file decides what a cache may do.  An offset of the stream's own incarnation names the
same bytes for ever, so an answer from there that ends where a sealed file's rows do never changes.
Other offsets (`-1`, none, the zero offset, one of a fork's source) lead to other bytes once the
stream is deleted and made again, so caches have to ask each time; the tag tells the two apart.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from headrace.engine.reading.page import Page
from headrace.engine.streams.operations import StreamInfo
from headrace.engine.streams.spec import Position
from headrace.storage.rows import KIND_JSON
from headrace.wire.durable_streams.errors import CLOSED, NEXT_OFFSET
from headrace.wire.durable_streams.errors import NO_STORE as NO_STORE
from headrace.wire.durable_streams.offsets import NOW, Offset, offset_text
from headrace.wire.exchange import Header

DIALECT: Final = "durable_streams"  # in metrics
UP_TO_DATE: Final = (b"stream-up-to-date", b"true")
_ALWAYS_ASK: Final = b"no-cache"
_NEVER_CHANGES: Final = b"max-age=31536000, immutable"
_CHANGES: Final = b"max-age=60, stale-while-revalidate=300"


class Extent(NamedTuple):
    """What an answer covers."""

    after: int  # the seq that it begins behind
    next: int  # the last seq that it has, or skips
    head: int  # of the stream
    closed: bool  # nothing follows the head
    sealed: bool = False  # it ends among rows of sealed files

    @property
    def up_to_date(self) -> bool:
        return self.next >= self.head

    @property
    def final(self) -> bool:
        """Whether it reaches the end of a closed stream."""
        return self.closed and self.next >= self.head


def etag(epoch: int, extent: Extent) -> bytes:
    """The tag of the bytes of an extent.

    >>> etag(7, Extent(0, 5, 5, closed=True))
    b'"7:0:5:c"'
    """
    return b'"%d:%d:%d%b"' % (epoch, extent.after, extent.next, b":c" if extent.final else b"")


def matches(if_none_match: bytes, tag: bytes) -> bool:
    """Whether a client has what the tag stands for.

    >>> matches(b'W/"1:0:2", "1:0:5"', b'"1:0:5"'), matches(b'"1:0:2"', b'"1:0:5"')
    (True, False)
    """
    for known in if_none_match.split(b","):
        known = known.strip()
        if known.removeprefix(b"W/") == tag or known == b"*":
            return True
    return False


def caching(offset: Offset, epoch: int, extent: Extent, *, private: bool) -> Header:
    """What caches may do with an answer to a read from this offset."""
    if offset is NOW:
        return NO_STORE
    own = isinstance(offset, Position) and offset.incarnation == epoch
    if not own:
        how = _ALWAYS_ASK
    elif extent.sealed and (extent.final or not extent.up_to_date):
        how = _NEVER_CHANGES
    else:
        how = _CHANGES
    return (b"cache-control", (b"private, " if private else b"public, ") + how)


def place(next_offset: Position, extent: Extent) -> list[Header]:
    """The headers that say how far an answer goes."""
    headers: list[Header] = [(NEXT_OFFSET, offset_text(next_offset))]
    if extent.up_to_date:
        headers.append(UP_TO_DATE)
    if extent.final:
        headers.append(CLOSED)
    return headers


def content_type(info: StreamInfo) -> bytes:
    """The type of a stream, as it was given."""
    return info.state.content_type.encode("latin-1")


def empty_body(kind: int) -> bytes:
    """The body of an answer without a record."""
    return b"[]" if kind == KIND_JSON else b""


def body_of(page: Page, kind: int) -> bytes:
    """The records of a page as a body, made once for all who are given these rows."""
    recent = page.recent
    form = (_BODY, kind)
    if recent is not None and recent.encoded_as == form:
        return recent.encoded
    body = joined([value for rows in page.rows for value in rows.data], kind)
    if recent is not None:
        recent.encoded_as, recent.encoded = form, body
    return body


def lost(page: Page) -> bool:
    """Whether records are missing before a page that its reader had not seen.

    What a crash took was never promised to last: the reader goes on behind it.
    """
    return page.tombstone is not None and page.tombstone.reason != "crash"


def joined(payloads: list[bytes], kind: int) -> bytes:
    """Payloads as one body: an array of JSON, or bytes one after another.

    >>> from headrace.storage.rows import KIND_BYTES
    >>> joined([b"1", b'"a"'], KIND_JSON), joined([b"a", b"b"], KIND_BYTES)
    (b'[1,"a"]', b'ab')
    """
    if kind == KIND_JSON:
        return b"[%b]" % b",".join(payloads)
    return payloads[0] if len(payloads) == 1 else b"".join(payloads)


_BODY: Final = object()  # so that no other dialect's form is taken for this one
