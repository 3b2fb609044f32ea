"""Refusals: the status, and what programs are told in headers."""

from __future__ import annotations

import pytest

from headrace.core.errors import (
    BatchTooLarge,
    HeadMismatch,
    HeadraceError,
    InvalidRequest,
    MethodNotAllowed,
    OffsetGone,
    ProducerFenced,
    ProducerGap,
    RecordTooLarge,
    StreamClosed,
    StreamConflict,
    StreamDeleted,
    Throttled,
    TopicNotFound,
    Unauthorized,
)
from headrace.engine.streams.spec import Position
from headrace.wire.durable_streams.errors import failure_reply

OFFSET = b"0000000000000003_0000000000000009"


def told(error: HeadraceError) -> tuple[int, dict[bytes, bytes]]:
    status, _, _, headers = failure_reply(error, lambda: Position(3, 9))
    return status, dict(headers)


@pytest.mark.parametrize(
    ("error", "status", "more"),
    [
        (InvalidRequest("x"), 400, {}),
        (TopicNotFound.named("ds:a"), 404, {}),
        (StreamConflict("x"), 409, {}),
        (StreamDeleted("x"), 410, {}),
        (OffsetGone("x"), 410, {}),
        (RecordTooLarge("x"), 413, {}),
        (BatchTooLarge("x"), 413, {}),
        (HeadMismatch("x"), 412, {b"stream-next-offset": OFFSET}),
        (StreamConflict("x", detail={"reason": "sequence"}), 409, {b"stream-next-offset": OFFSET}),
        (
            StreamClosed("x"),
            409,
            {b"stream-closed": b"true", b"stream-next-offset": OFFSET},
        ),
        (ProducerFenced("x", detail={"epoch": 7}), 403, {b"producer-epoch": b"7"}),
        (
            ProducerGap("x", detail={"expected": 2, "received": 5}),
            409,
            {b"producer-expected-seq": b"2", b"producer-received-seq": b"5"},
        ),
        (Throttled("x"), 429, {b"retry-after": b"1"}),
        (Unauthorized("x"), 401, {b"www-authenticate": b"Bearer"}),
        (MethodNotAllowed("x", detail={"allow": ["GET"]}), 405, {b"allow": b"GET"}),
    ],
)
def test_an_error_has_a_status_and_headers(
    error: HeadraceError, status: int, more: dict[bytes, bytes]
) -> None:
    assert told(error) == (status, {b"cache-control": b"no-store", **more})


def test_an_offset_that_was_expected_is_a_conflict() -> None:
    error = HeadMismatch("x", detail={"head_seq": 9})
    status, body, _, headers = failure_reply(error, lambda: Position(3, 9), expected=True)
    assert (status, body) == (409, b"Expected offset conflict")
    assert dict(headers)[b"stream-next-offset"] == OFFSET
    other = failure_reply(StreamDeleted("x"), lambda: None, expected=True)
    assert other[:2] == (410, b"x")


def test_a_stream_that_is_gone_has_no_offset() -> None:
    _, _, _, headers = failure_reply(StreamClosed("x"), lambda: None)
    assert b"stream-next-offset" not in dict(headers)


def test_people_get_one_line() -> None:
    error = InvalidRequest("two\nlines", fix="write\r\none")
    _, body, content_type, _ = failure_reply(error, lambda: None)
    assert body == b"two lines; write one"
    assert content_type.startswith(b"text/plain")
