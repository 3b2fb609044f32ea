"""The bytes of the log: headers that believe only themselves, entries that come back."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.core.errors import UnsupportedFormat
from headrace.storage.block import ENTRY_APPEND, Batch
from headrace.storage.block_encoding import encode_block
from headrace.storage.wal import frame
from headrace.storage.wal.frame import (
    BATCH_HEADER_BYTES,
    BATCH_MAGIC,
    ENTRY_STATE,
    ENTRY_TYPES,
    FORMAT_VERSION,
    PAGE_BYTES,
    Archived,
    FileHeader,
    Floor,
    Gap,
    Held,
    QueueEvent,
    RecordsDelete,
    Reserve,
    State,
    TopicConfig,
    TopicCreate,
    TopicDelete,
    decode_batch_header,
    decode_control,
    decode_file_header,
    encode_batch_header,
    encode_control,
    encode_file_header,
    entry_topic,
    split_entries,
)

FILE = FileHeader(FORMAT_VERSION, 0xABCD, 12, 1_700_000_000_000, 3, bytes(range(16)), 8192, 5)
CONTROLS = [
    TopicCreate("orders", 4, b"{}", 256, 99, 1, 2, b"state"),
    TopicConfig(b"{}", 512),
    TopicDelete(9),
    RecordsDelete(5, b"\x01\x02"),
    RecordsDelete(0, b"", ("chat-42:", True, 7)),
    Floor(3, 4),
    Floor(3, 4, 2),
    Archived(1 << 32, 7),
    Reserve(1 << 52),
    Gap(7, 9),
    State(b"abc", b"side"),
    QueueEvent(1, [7, 9], [1, 2], [Held(1 << 63, "w", 99, 98, True, 2)], 5, 6, 7, "dead"),
    QueueEvent(2, []),
]


def test_a_file_header_comes_back() -> None:
    page = encode_file_header(FILE)
    assert len(page) == PAGE_BYTES
    assert decode_file_header(page, "f") == FILE
    assert decode_file_header(page + b"more", "f") == FILE


def test_a_file_header_with_any_bit_flipped_is_none() -> None:
    page = encode_file_header(FILE)
    for bit in [*range(8 * 80), *range(8 * 80, 8 * PAGE_BYTES, 997)]:
        bad = bytearray(page)
        bad[bit // 8] ^= 1 << bit % 8
        assert decode_file_header(bytes(bad), "f") is None, bit


@pytest.mark.parametrize(
    "page", [b"", b"HRWALOG\0", bytes(PAGE_BYTES), encode_file_header(FILE)[:-1]]
)
def test_what_is_not_a_file_header_is_none(page: bytes) -> None:
    assert decode_file_header(page, "f") is None


def test_a_file_of_version_1_says_nothing_of_its_length() -> None:
    old = FILE._replace(version=1)
    page = encode_file_header(old)
    assert not any(page[64:])
    assert decode_file_header(page, "f") == old._replace(made_bytes=0, marks_answered=0)


def test_a_newer_file_is_refused_by_name() -> None:
    page = encode_file_header(FILE._replace(version=FORMAT_VERSION + 1))
    with pytest.raises(UnsupportedFormat) as caught:
        decode_file_header(page, "wal/wal-7.log")
    error = caught.value
    assert "wal/wal-7.log" in str(error) and error.fix
    assert error.detail == {
        "file": "wal/wal-7.log",
        "version": FORMAT_VERSION + 1,
        "supported": FORMAT_VERSION,
    }


@given(
    st.integers(0, (1 << 32) - 1),
    st.integers(0, 1 << 60),
    st.integers(0, 1 << 60),
    st.integers(0, (1 << 32) - 1),
    st.binary(max_size=64),
    st.integers(0, 1 << 20),
)
def test_a_batch_header_comes_back(
    salt: int, one: int, two: int, ordinal: int, body: bytes, entries: int
) -> None:
    durable, position = sorted((one, two))
    body += bytes(-len(body) % 8)
    raw = encode_batch_header(salt, position, durable, ordinal, body, entries)
    assert len(raw) == BATCH_HEADER_BYTES == 56
    header = decode_batch_header(b"before" + raw + b"after", 6)
    assert header is not None
    assert header[:6] == (salt, position, durable, ordinal, len(body), entries)
    assert header.body_hash
    apart = [body[:8], body[8:]]
    assert encode_batch_header(salt, position, durable, ordinal, apart, entries) == raw


def test_a_batch_header_with_any_bit_flipped_is_none() -> None:
    raw = encode_batch_header(1, 8192, 4096, 5, b"x" * 64, 2)
    for bit in range(8 * len(raw)):
        bad = bytearray(raw)
        bad[bit // 8] ^= 1 << bit % 8
        assert decode_batch_header(bytes(bad), 0) is None, bit


def test_a_batch_header_that_is_cut_is_none() -> None:
    raw = encode_batch_header(1, 8192, 4096, 5, b"", 0)
    assert decode_batch_header(raw[:-1], 0) is None
    assert decode_batch_header(raw, 1) is None
    assert decode_batch_header(b"", 0) is None
    assert decode_batch_header(BATCH_MAGIC * 14, 0) is None


def test_a_batch_cannot_claim_more_than_there_is() -> None:
    with pytest.raises(AssertionError):
        encode_batch_header(1, 10, 11, 0, b"", 0)
    with pytest.raises(AssertionError):
        encode_batch_header(1, 10, 10, 0, b"123", 1)


@pytest.mark.parametrize("control", CONTROLS, ids=lambda control: type(control).__name__)
def test_a_control_entry_comes_back(control: frame.Control) -> None:
    entry = encode_control(ENTRY_STATE, 1 << 60, control)
    assert len(entry) % 8 == 0
    assert entry_topic(entry) == 1 << 60
    assert decode_control(entry, type(control)) == (1 << 60, control)


def test_control_entries_of_an_older_writer_lack_the_newer_fields() -> None:
    """Fields are only ever added, with a default."""
    older = msgspec.msgpack.encode(["orders", 4, b"{}", 256, 99])
    assert msgspec.msgpack.decode(older, type=TopicCreate) == TopicCreate(
        "orders", 4, b"{}", 256, 99
    )


def test_a_body_splits_into_its_entries() -> None:
    block = encode_block(Batch([b"abc"]), 5, 1, 2, 3)
    entries = [encode_control(ENTRY_STATE, n, c) for n, c in enumerate(CONTROLS)] + [block.raw]
    body = b"".join(entries)
    found = list(split_entries(body, len(entries), "f"))
    assert [entry for _, entry in found] == entries
    assert [kind for kind, _ in found] == [ENTRY_STATE] * len(CONTROLS) + [ENTRY_APPEND]
    assert entry_topic(block.raw) == 5


def test_an_unknown_entry_is_refused_by_name() -> None:
    entry = bytearray(encode_control(ENTRY_STATE, 1, CONTROLS[0]))
    entry[0] = max(ENTRY_TYPES) + 1
    with pytest.raises(UnsupportedFormat, match="wal-3") as caught:
        list(split_entries(bytes(entry), 1, "wal-3"))
    assert caught.value.fix


def test_the_on_disk_numbers_never_change() -> None:
    names = [name for name in vars(frame) if name.startswith("ENTRY_") and name != "ENTRY_TYPES"]
    assert {name: getattr(frame, name) for name in names} == {
        "ENTRY_APPEND": 1,
        "ENTRY_TOPIC_CREATE": 2,
        "ENTRY_TOPIC_CONFIG": 3,
        "ENTRY_TOPIC_DELETE": 4,
        "ENTRY_RECORDS_DELETE": 5,
        "ENTRY_FLOOR": 6,
        "ENTRY_RESERVE": 7,
        "ENTRY_GAP": 8,
        "ENTRY_STATE": 9,
        "ENTRY_QUEUE": 10,
        "ENTRY_ROUTER": 11,
        "ENTRY_ROUTER_DELETE": 12,
        "ENTRY_FORWARD": 13,
        "ENTRY_ARCHIVED": 14,
    }
    events = [name for name in vars(frame) if name.startswith("EVENT_")]
    assert {name: getattr(frame, name) for name in events} == {
        "EVENT_CLAIM": 1,
        "EVENT_RELEASE": 2,
        "EVENT_EXTEND": 3,
        "EVENT_BURY": 4,
        "EVENT_REVIVE": 5,
        "EVENT_MOVED": 6,
        "EVENT_STAYED": 7,
    }
    assert (FORMAT_VERSION, PAGE_BYTES, BATCH_MAGIC) == (4, 4096, b"HRWB")
