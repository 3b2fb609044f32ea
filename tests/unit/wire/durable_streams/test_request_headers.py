"""The grammar of each header of a request."""

from __future__ import annotations

import pytest

from headrace.core.errors import InvalidRequest
from headrace.core.limits import seq_max
from headrace.engine.appending.producers import ProducerClaim
from headrace.wire.durable_streams.request_headers import (
    CONTENT_TYPE_BYTES_MAX,
    STREAM_SEQ_BYTES_MAX,
    closes,
    content_type_of,
    expected_offset,
    expires_at,
    is_media_type,
    matched_tag,
    producer_of,
    stream_seq_of,
    whole_number,
)
from headrace.wire.exchange import Repeated


@pytest.mark.parametrize("sent", [b"0", b"1", b"60", b"%d" % seq_max])
def test_a_whole_number_is_taken(sent: bytes) -> None:
    assert whole_number({b"stream-ttl": sent}, "Stream-TTL") == int(sent)


@pytest.mark.parametrize(
    "sent",
    [b"", b"abc", b"-1", b"+60", b"00060", b"60.5", b"1e3", b" 1", b"1, 1", b"\xb2", b"1" * 17,
     b"%d" % (seq_max + 1)],
)  # fmt: skip
def test_what_is_no_whole_number_is_refused(sent: bytes) -> None:
    with pytest.raises(InvalidRequest):
        whole_number({b"stream-ttl": sent}, "Stream-TTL")


def test_a_number_that_is_not_sent_is_none() -> None:
    assert whole_number({}, "Stream-TTL") is None


@pytest.mark.parametrize(
    ("sent", "at_ms"),
    [
        (b"1970-01-01T00:00:00Z", 0),
        (b"1970-01-01T00:00:01.5Z", 1_500),
        (b"1970-01-01t00:00:01z", 1_000),
        (b"1970-01-01T01:00:00+01:00", 0),
        (b"1969-12-31T23:00:00-01:30", 1_800_000),
        (b"2030-01-31T12:00:00.123456789Z", 1_896_091_200_123),
        (b"2016-12-31T23:59:60Z", 1_483_228_800_000),
        (b"1960-01-01T00:00:00Z", 0),
    ],
)
def test_a_time_is_taken(sent: bytes, at_ms: int) -> None:
    assert expires_at({b"stream-expires-at": sent}) == (at_ms, sent.decode())


@pytest.mark.parametrize(
    "sent",
    [b"", b"tomorrow", b"2030-01-31", b"2030-01-31T12:00:00", b"2030-01-31 12:00:00Z",
     b"2030-02-30T12:00:00Z", b"2030-13-01T12:00:00Z", b"2030-01-31T25:00:00Z",
     b"2030-01-31T12:00:00+0100", b"2030-01-31T12:00:00+24:00", b"1893456000",
     b"0001-01-01T00:00:00+10:00", b"2030-01-31T12:00:00Z, 2030-01-31T12:00:00Z"],
)  # fmt: skip
def test_what_is_no_time_is_refused(sent: bytes) -> None:
    with pytest.raises(InvalidRequest):
        expires_at({b"stream-expires-at": sent})


@pytest.mark.parametrize(
    ("sent", "means"),
    [(b"true", True), (b"TRUE", True), (b"True", True), (b"false", False), (b"1", False),
     (b"", False), (b"yes", False), (b"true, true", False)],
)  # fmt: skip
def test_only_true_closes(sent: bytes, means: bool) -> None:
    assert closes({b"stream-closed": sent}) is means
    assert closes({}) is False


def producer(id: bytes = b"p", epoch: bytes = b"0", sequence: bytes = b"0") -> dict[bytes, bytes]:
    return {b"producer-id": id, b"producer-epoch": epoch, b"producer-seq": sequence}


def test_a_producer_says_three_things_or_none() -> None:
    assert producer_of({}) is None
    assert producer_of(producer(b"p", b"1", b"%d" % seq_max)) == ProducerClaim("p", 1, seq_max)
    for name in producer():
        with pytest.raises(InvalidRequest, match="missing"):
            producer_of({key: value for key, value in producer().items() if key != name})
    with pytest.raises(InvalidRequest, match="empty"):
        producer_of(producer(id=b""))


@pytest.mark.parametrize(
    "sent", [b"", b"-1", b"+1", b"1abc", b"1e3", b"1.0", b"0x1", b"%d" % (seq_max + 1), b"1, 1"]
)
def test_a_producers_numbers_are_whole(sent: bytes) -> None:
    with pytest.raises(InvalidRequest, match="Producer-Epoch"):
        producer_of(producer(epoch=sent))
    with pytest.raises(InvalidRequest, match="Producer-Seq"):
        producer_of(producer(sequence=sent))


def test_a_content_type_is_kept_as_sent_and_compared_without_its_parameters() -> None:
    found = content_type_of({b"content-type": b"Application/JSON; charset=utf-8"})
    assert found is not None and found.is_json
    assert found == ("Application/JSON; charset=utf-8", "application/json")
    assert content_type_of({}) is None
    assert content_type_of({b"content-type": b""}) is None
    with pytest.raises(InvalidRequest):
        content_type_of({b"content-type": b"x" * (CONTENT_TYPE_BYTES_MAX + 1)})


@pytest.mark.parametrize(
    ("text", "valid"),
    [("text/plain", True), ("a/vnd.b+json", True), ("text", False), ("a/b c", False), ("/", False),
     ("a/b/c", False)],
)  # fmt: skip
def test_a_media_type_has_two_parts(text: str, valid: bool) -> None:
    assert is_media_type(text) is valid


def test_a_stream_seq_is_any_text_of_a_bounded_length() -> None:
    assert stream_seq_of({}) is None
    assert stream_seq_of({b"stream-seq": b"\xe4 1"}) == "ä 1"
    assert stream_seq_of({b"stream-seq": b"x" * STREAM_SEQ_BYTES_MAX}) is not None
    for sent in (b"", b"x" * (STREAM_SEQ_BYTES_MAX + 1)):
        with pytest.raises(InvalidRequest):
            stream_seq_of({b"stream-seq": sent})


def test_what_has_one_value_is_sent_once() -> None:
    twice = Repeated(b"true, true")
    for read, name in (
        (closes, b"stream-closed"), (stream_seq_of, b"stream-seq"), (matched_tag, b"if-match"),
        (expires_at, b"stream-expires-at"), (expected_offset, b"stream-expected-offset"),
    ):  # fmt: skip
        with pytest.raises(InvalidRequest, match="more than once"):
            read({name: twice})
    with pytest.raises(InvalidRequest, match="more than once"):
        producer_of(producer(id=twice))
    assert stream_seq_of({b"stream-seq": bytes(twice)}) == "true, true"


def test_a_condition_names_one_offset() -> None:
    assert matched_tag({}) is None
    assert matched_tag({b"if-match": b"*"}) is None
    assert matched_tag({b"if-match": b'"a"'}) == "a"
    for sent in (b"a", b'"a', b'""', b'W/"a"', b'"a", "b"', b""):
        with pytest.raises(InvalidRequest):
            matched_tag({b"if-match": sent})
    assert expected_offset({b"if-match": b'"a"'}) == "a"
    assert expected_offset({b"stream-expected-offset": b"a"}) == "a"
    for more in (
        {b"if-match": b"*", b"stream-expected-offset": b"a"},
        {b"stream-expected-offset": b""},
    ):
        with pytest.raises(InvalidRequest):
            expected_offset(more)
