"""What headers of requests say: one grammar for each, and a refusal that says how to write it.

Only this file reads them.  Nothing here changes anything, so that a request with a header that is
wrong has changed nothing when it is refused.
"""

from __future__ import annotations

import re
from typing import Final, NamedTuple

from headrace.core.errors import InvalidRequest
from headrace.core.limits import seq_max
from headrace.engine.appending.producers import ProducerClaim
from headrace.engine.streams.state import media_type
from headrace.wire.exchange import Repeated, sent_once
from headrace.wire.producer_headers import PRODUCER_HEADERS, Sent
from headrace.wire.rfc3339 import parse_rfc3339

JSON_TYPE: Final = "application/json"
DEFAULT_TYPE: Final = "application/octet-stream"
EXPECTED_OFFSET: Final = "Stream-Expected-Offset"
CONTENT_TYPE_BYTES_MAX: Final = 255
STREAM_SEQ_BYTES_MAX: Final = 256
SECONDS_MAX: Final = seq_max // 1_000

_TOKEN: Final = r"[!#$%&'*+.^_`|~0-9A-Za-z-]+"
_is_media_type = re.compile(rf"{_TOKEN}/{_TOKEN}").fullmatch
_is_whole = re.compile(r"0|[1-9][0-9]{0,15}").fullmatch
_digits = re.compile(rb"[0-9]{1,16}").fullmatch


class ContentType(NamedTuple):
    """A content type: as it was sent, and what is compared of it."""

    text: str
    media_type: str

    @property
    def is_json(self) -> bool:
        return self.media_type == JSON_TYPE


def content_type_of(headers: Sent) -> ContentType | None:
    """The content type that was sent, if any was."""
    sent = headers.get(b"content-type")
    if not sent:
        return None
    text = sent.decode("latin-1")
    if len(text) > CONTENT_TYPE_BYTES_MAX:
        raise InvalidRequest(
            f"a Content-Type of {len(text)} bytes", fix=f"use at most {CONTENT_TYPE_BYTES_MAX}"
        )
    return ContentType(text, media_type(text))


def is_media_type(text: str) -> bool:
    """Whether a media type is written as one.

    >>> is_media_type("text/plain"), is_media_type("invalid")
    (True, False)
    """
    return _is_media_type(text) is not None


def closes(headers: Sent) -> bool:
    """Whether the stream is to be closed: any other value than `true` counts as none.

    >>> closes({b"stream-closed": b"True"}), closes({b"stream-closed": b"yes"})
    (True, False)
    """
    sent = sent_once(headers, "Stream-Closed")
    return sent is not None and sent.lower() == b"true"


def whole_number(headers: Sent, name: str, high: int = seq_max) -> int | None:
    """A number without a sign, a fraction or zeros in front; None: the header is not there.

    >>> whole_number({b"stream-ttl": b"60"}, "Stream-TTL")
    60
    >>> whole_number({b"stream-ttl": b"060"}, "Stream-TTL")
    Traceback (most recent call last):
    headrace.core.errors.InvalidRequest: Stream-TTL is '060'; send a whole number, with no sign \
and no zero in front
    """
    sent = sent_once(headers, name)
    if sent is None:
        return None
    text = sent.decode("latin-1")
    if _is_whole(text) is None:
        raise InvalidRequest(
            f"{name} is {text[:40]!r}", fix="send a whole number, with no sign and no zero in front"
        )
    if int(text) > high:
        raise InvalidRequest(f"{name} is {text}", fix=f"send at most {high}")
    return int(text)


def expires_at(headers: Sent) -> tuple[int, str] | None:
    """When a stream ends: milliseconds since 1970, and the text as it was sent."""
    sent = sent_once(headers, "Stream-Expires-At")
    if sent is None:
        return None
    text = sent.decode("latin-1")
    at_ms = parse_rfc3339(text)
    if at_ms is None:
        raise InvalidRequest(
            f"Stream-Expires-At is {text[:40]!r}", fix="send a time like 2030-01-31T12:00:00Z"
        )
    # Before 1970 is as long ago as it can be.
    return max(at_ms, 0), text


def producer_of(headers: Sent) -> ProducerClaim | None:
    """What a producer says of its append, in three headers, all or none."""
    id, epoch, sequence = map(headers.get, PRODUCER_HEADERS)
    if id is None or epoch is None or sequence is None:
        if id is epoch is sequence:
            return None
        raise InvalidRequest(
            "some Producer headers are missing",
            fix="send Producer-Id, Producer-Epoch and Producer-Seq together",
        )
    if not id or type(id) is Repeated:
        raise InvalidRequest(
            f"Producer-Id {'more than once' if id else 'is empty'}",
            fix="send the name of the producer once",
        )
    return ProducerClaim(
        id.decode("latin-1"),
        _producer_number("Producer-Epoch", epoch),
        producer_seq(sequence),
    )


def producer_seq(sent: bytes) -> int:
    """A producer's number of an append.

    >>> producer_seq(b"007")
    7
    """
    if len(sent) < 16 and sent.isdigit():
        return int(sent)  # as nearly all are
    return _producer_number("Producer-Seq", sent)


def _producer_number(name: str, sent: bytes) -> int:
    if _digits(sent) is not None:
        number = int(sent)
        if number <= seq_max:
            return number
    raise InvalidRequest(
        f"{name} is {sent[:40].decode('latin-1')!r}",
        fix=f"send a whole number from 0 to {seq_max}",
    )


def stream_seq_of(headers: Sent) -> str | None:
    """The place of an append in the order that its writers keep."""
    sent = sent_once(headers, "Stream-Seq")
    if sent is None:
        return None
    if not 1 <= len(sent) <= STREAM_SEQ_BYTES_MAX:
        raise InvalidRequest(
            f"a Stream-Seq of {len(sent)} bytes", fix=f"use 1 to {STREAM_SEQ_BYTES_MAX}"
        )
    return sent.decode("latin-1")


def matched_tag(headers: Sent) -> str | None:
    """The offset that `If-Match` names, without its quotes; None: any will do.

    >>> matched_tag({b"if-match": b'"0000000000000001_0000000000000002"'})
    '0000000000000001_0000000000000002'
    """
    sent = sent_once(headers, "If-Match")
    if sent is None or sent == b"*":
        return None
    text = sent.decode("latin-1")
    if len(text) < 3 or text[0] != '"' or text[-1] != '"' or '"' in text[1:-1]:
        raise InvalidRequest(
            f"If-Match is {text[:80]!r}", fix='send one Stream-Next-Offset in quotes, or "*"'
        )
    return text[1:-1]


def expected_offset(headers: Sent) -> str | None:
    """The offset at which the stream has to end, however that is asked for; None: anywhere.

    >>> expected_offset({b"stream-expected-offset": b"0000000000000001_0000000000000002"})
    '0000000000000001_0000000000000002'
    """
    tag, sent = matched_tag(headers), sent_once(headers, EXPECTED_OFFSET)
    if sent is None:
        return tag
    if not sent or b"if-match" in headers:
        raise InvalidRequest(
            f"{EXPECTED_OFFSET} {'beside If-Match' if sent else 'is empty'}",
            fix="send a Stream-Next-Offset in one of the two",
        )
    return sent.decode("latin-1")


def wants_new(headers: Sent) -> bool:
    """Whether a stream is to be created only if there is none: `If-None-Match: *`.

    >>> wants_new({b"if-none-match": b"*"}), wants_new({})
    (True, False)
    """
    sent = sent_once(headers, "If-None-Match")
    if sent is None or sent == b"*":
        return sent is not None
    raise InvalidRequest("If-None-Match is no `*`", fix="send that, or leave it out")


def refuse_condition(headers: Sent, name: str, *, unless: bytes = b"") -> None:
    """Refuse a condition that is not looked at here, but for a value that always holds."""
    sent = headers.get(name.lower().encode())
    if sent is not None and sent != unless:
        raise InvalidRequest(f"{name} is no condition of this call", fix="leave it out")
