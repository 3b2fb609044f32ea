"""Protobuf messages, compared with what the library makes of the same bytes (s2 §11)."""

from __future__ import annotations

import random
from typing import Any

import pytest
from google.protobuf.message import DecodeError  # type: ignore[import-untyped]
from hypothesis import example, given, settings
from hypothesis import strategies as st

from headrace.wire.s2 import protobuf, protobuf_input
from headrace.wire.s2.errors import REFUSALS
from headrace.wire.s2.records import (
    BATCH_HEADERS_MAX,
    BATCH_RECORDS_MAX,
    AppendAck,
    AppendInput,
    HeaderColumn,
    Position,
    ReadBatch,
    validate,
)
from tests.support import s2_messages

U64 = st.integers(0, (1 << 64) - 1) | st.sampled_from([0, 1, 127, 128, 16383, 16384, 1 << 63])
STAMP = U64 | st.integers(1_700_000_000_000, 1_700_000_000_009)
BLOB = st.binary(max_size=5) | st.sampled_from([bytes(59), bytes(60), bytes(127), bytes(128)])
BODY = BLOB | st.sampled_from([bytes(16_383), bytes(16_384), bytes(70_000)])
HEADERS = st.lists(st.tuples(BLOB, BLOB), max_size=3)
POSITION = st.builds(Position, U64, STAMP)

Seen = tuple[list[bytes], list[Any], list[int | None], int | None, str | None]


def by_library(data: bytes) -> Seen | None:
    """What the library reads; None: it refuses."""
    try:
        message = s2_messages.AppendInput.FromString(data)
    except DecodeError:
        return None
    return (
        [record.body for record in message.records],
        [[(header.name, header.value) for header in record.headers] for record in message.records],
        [r.timestamp if r.HasField("timestamp") else None for r in message.records],
        message.match_seq_num if message.HasField("match_seq_num") else None,
        message.fencing_token if message.HasField("fencing_token") else None,
    )


def by_hand(data: bytes) -> Seen | None:
    """What our codec reads; None: it refuses."""
    try:
        found = protobuf_input.decode_append_input(data)
    except REFUSALS["bad_proto"]:
        return None
    count = len(found.bodies)
    headers = [list(pairs or ()) for pairs in found.headers or [None] * count]
    stamps = found.timestamps or [None] * count
    return found.bodies, headers, stamps, found.match_seq_num, found.fencing_token


def written_input(
    records: list[tuple[int | None, list[tuple[bytes, bytes]], bytes]],
    match_seq_num: int | None = None,
    fencing_token: str | None = None,
) -> bytes:
    message = s2_messages.AppendInput(match_seq_num=match_seq_num, fencing_token=fencing_token)
    for stamp, headers, body in records:
        record = message.records.add(timestamp=stamp, body=body)
        for name, value in headers:
            record.headers.add(name=name, value=value)
    written: bytes = message.SerializeToString()
    return written


@given(
    st.lists(st.tuples(st.none() | STAMP, HEADERS, BODY), max_size=4),
    st.none() | U64,
    st.none() | st.text(max_size=9),
)
@settings(max_examples=150, deadline=None)
def test_an_input_is_what_the_library_wrote(
    records: list[tuple[int | None, list[tuple[bytes, bytes]], bytes]],
    match_seq_num: int | None,
    token: str | None,
) -> None:
    data = written_input(records, match_seq_num, token)
    wanted = by_library(data)
    assert wanted is not None and by_hand(data) == wanted
    assert wanted[3:] == (match_seq_num, token)


def test_absent_and_zero_are_two_things() -> None:
    """§11: absent is not zero."""
    zero = protobuf_input.decode_append_input(written_input([(0, [], b"")], 0, ""))
    assert (zero.timestamps, zero.match_seq_num, zero.fencing_token) == ([0], 0, "")
    none = protobuf_input.decode_append_input(written_input([(None, [], b"")]))
    assert (none.timestamps, none.match_seq_num, none.fencing_token) == (None, None, None)
    assert none.headers is None and none.bodies == [b""]


def test_a_longer_timestamp_is_not_taken_for_its_first_six_bytes() -> None:
    """Its seventh byte looks like the tag of a body, and the bytes behind it like that body."""
    record: tuple[int | None, list[tuple[bytes, bytes]], bytes] = (0x1A << 42 | 5, [], b"x" * 25)
    data = written_input([record] * 2)
    assert by_hand(data) == by_library(data)
    assert protobuf_input.decode_append_input(data).bodies == [b"x" * 25] * 2


FIELDS = {
    "record": "0a 04 1a 02 6869",
    "record, body first": "0a 0a 1a 02 6869 08 05 12 02 0a00",
    "record, body twice": "0a 06 1a 01 61 1a 01 62",
    "record, timestamp twice": "0a 04 08 05 08 06",
    "record, unknown fields": "0a 0f 20 01 29 0102030405060708 1a 02 6869",
    "record, fixed32": "0a 09 3d 01020304 1a 02 6869",
    "record, long length": "0a 84 80 80 00 1a 02 6869",
    "record, body of another type": "0a 02 18 05",
    "header, value first": "0a 08 12 06 12 01 76 0a 01 6e",
    "header, name only": "0a 05 12 03 0a 01 6e",
    "header, unknown field": "0a 07 12 05 0a 01 6e 18 01",
    "header, empty": "0a 02 12 00",
    "empty record": "0a 00",
    "match": "10 ac02",
    "match, eleven bytes": "10 ffffffffffffffffffff01",
    "match, ten bytes": "10 ffffffffffffffffff01",
    "token": "1a 01 74",
    "token, not UTF-8": "1a 01 ff",
    "long tag": "8a 00 04 1a 02 6869",
    "field zero": "00 01",
    "end of group": "0c",
    "unknown": "a2 06 03 616263",
    "too long": "0a 7f 1a 02 6869",
    "body too long": "0a 04 1a 05 6869",
    "header too long": "0a 04 12 05 6869",
    "cut in a length": "0a 80",
    "cut in a timestamp": "0a 03 08 ff ff",
}


@pytest.mark.parametrize("first", FIELDS)
def test_any_form_of_an_input_is_read_as_the_library_does(first: str) -> None:
    """Alone, and before and behind every other field."""
    for second in FIELDS.values():
        for data in (
            bytes.fromhex(FIELDS[first]),
            bytes.fromhex(FIELDS[first] + second),
            bytes.fromhex(second + FIELDS[first]),
        ):
            assert by_hand(data) == by_library(data), data.hex(" ")


def has_groups(data: bytes) -> bool:
    """Whether a byte may begin or end a group, which we refuse and the library skips."""
    return any(byte & 7 in (3, 4) for byte in data)


@pytest.mark.parametrize("seed", range(4))
def test_damaged_inputs_are_read_as_the_library_does_or_refused(seed: int) -> None:
    chance = random.Random(seed)
    refused = 0
    for _ in range(1_000):
        whole = bytearray.fromhex("".join(chance.choices(list(FIELDS.values()), k=3)))
        for _ in range(chance.randrange(4)):
            place = chance.randrange(len(whole))
            if chance.random() < 0.5:
                whole[place] = chance.randrange(256)
            else:
                del whole[place : place + chance.randrange(1, 3)]
            whole = whole or bytearray(1)
        data = bytes(whole)
        found, wanted = by_hand(data), by_library(data)
        assert found == wanted or (found is None and has_groups(data)), data.hex(" ")
        refused += found is None
    assert 100 < refused < 980


@given(POSITION, POSITION, POSITION)
@example(Position(0, 0), Position(0, 0), Position(0, 0))
@settings(max_examples=100, deadline=None)
def test_an_ack_is_what_the_library_reads(start: Position, end: Position, tail: Position) -> None:
    for ack in (AppendAck(start, end, tail), AppendAck(start, end, end)):
        message = s2_messages.AppendAck.FromString(protobuf.encode_append_ack(ack))
        read = [(p.seq_num, p.timestamp) for p in (message.start, message.end, message.tail)]
        assert read == list(ack)
        assert all(message.HasField(name) for name in ("start", "end", "tail"))


@st.composite
def read_batches(draw: st.DrawFn) -> ReadBatch:
    bodies = draw(st.lists(BODY, max_size=5))
    count = len(bodies)
    first = draw(st.sampled_from([0, 1, 125, 126, 16_380, 1_000_000, (1 << 53) - 9]))
    gaps = draw(st.lists(st.integers(1, 3), min_size=count, max_size=count))
    seq_nums = [first + sum(gaps[:row]) for row in range(count)]
    stamps = draw(st.lists(STAMP, min_size=count, max_size=count))
    headers: Any = draw(st.none() | st.lists(st.none() | HEADERS, min_size=count, max_size=count))
    return ReadBatch(seq_nums, stamps, bodies, headers, draw(st.none() | POSITION))


@given(read_batches())
@settings(max_examples=150, deadline=None)
def test_a_batch_is_byte_for_byte_what_the_library_writes(batch: ReadBatch) -> None:
    message = s2_messages.ReadBatch()
    columns = zip(
        batch.seq_nums,
        batch.timestamps,
        batch.bodies,
        batch.headers or [None] * len(batch),
        strict=True,
    )
    for seq_num, stamp, body, headers in columns:
        record = message.records.add(seq_num=seq_num, timestamp=stamp, body=body)
        for name, value in headers or ():
            record.headers.add(name=name, value=value)
    if batch.tail is not None:
        message.tail.SetInParent()
        message.tail.seq_num, message.tail.timestamp = batch.tail
    assert protobuf.encode_read_batch(batch) == message.SerializeToString()


def test_a_thousand_records_in_a_row_are_what_the_library_writes() -> None:
    """The seq_nums pass from one byte to two and on, with and without headers."""
    bodies = [bytes(n // 7 % 5) for n in range(1000)]
    stamps = [1_700_000_000_000 + n // 100 for n in range(1000)]
    columns: list[HeaderColumn] = [None, [[(b"n", bytes(n % 3))] for n in range(1000)]]
    for headers in columns:
        for first in (0, 100, 16_000, 2_096_900):
            batch = ReadBatch(range(first, first + 1000), stamps, bodies, headers)
            message = s2_messages.ReadBatch.FromString(protobuf.encode_read_batch(batch))
            # One by one: the difference of two lists of a thousand takes pytest minutes to tell.
            for record, *expected in zip(
                message.records, batch.seq_nums, stamps, bodies, strict=True
            ):
                assert [record.seq_num, record.timestamp, record.body] == expected
            assert message.ByteSize() == len(protobuf.encode_read_batch(batch))


def test_reading_what_was_written_meters_the_same() -> None:
    records: list[tuple[int | None, list[tuple[bytes, bytes]], bytes]] = [
        (5, [(b"name", b"value")], b"body"),
        (None, [], b""),
    ]
    assert (
        protobuf_input.decode_append_input(written_input(records)).metered
        == AppendInput([b"body", b""], [[(b"name", b"value")], None]).metered
    )


# What is much from few bytes


def field(number: int, value: bytes) -> bytes:
    return protobuf.varint(number << 3 | 2) + protobuf.varint(len(value)) + value


RECORD = field(1, b"")
HEADER = field(2, b"")
MANY_HEADERS = BATCH_HEADERS_MAX + 1


@pytest.mark.parametrize(
    ("message", "says"),
    [
        (RECORD * (BATCH_RECORDS_MAX + 1), "records"),
        # In another form than the usual, from the first or from some record on.
        (b"\x10\x05" + RECORD * (BATCH_RECORDS_MAX + 1), "records"),
        (RECORD * 600 + b"\x10\x05" + RECORD * 600, "records"),
        (field(1, HEADER * MANY_HEADERS), "headers"),
        (field(1, HEADER * (MANY_HEADERS // 2)) + field(1, HEADER * MANY_HEADERS), "headers"),
        (field(1, field(3, b"") + HEADER * MANY_HEADERS), "headers"),
    ],
)
def test_no_more_is_made_than_a_batch_may_have(message: bytes, says: str) -> None:
    with pytest.raises(REFUSALS["invalid"], match=f"more than .* {says}"):
        validate(protobuf_input.decode_append_input(message))


def test_a_batch_of_as_many_as_there_may_be() -> None:
    message = field(1, HEADER * BATCH_HEADERS_MAX) + RECORD * (BATCH_RECORDS_MAX - 1)
    found = protobuf_input.decode_append_input(message)
    assert len(found.bodies) == BATCH_RECORDS_MAX
    assert found.headers is not None and len(found.headers[0] or ()) == BATCH_HEADERS_MAX


def test_fields_that_nobody_knows_are_bounded() -> None:
    unknown = b"\x20\x01"
    assert by_hand(RECORD + unknown * 1_000) == by_library(RECORD)
    assert by_hand(RECORD + unknown * 100_000) is None


def test_many_headers_are_written_as_few_are() -> None:
    pairs = [(b"name", b"value")] * 5_000
    batch = ReadBatch([7], [5], [b"body"], [pairs])
    found = s2_messages.ReadBatch.FromString(protobuf.encode_read_batch(batch))
    assert [(header.name, header.value) for header in found.records[0].headers] == pairs
