"""Snapshots as bytes: round trip, every flipped bit noticed, versions, the docs' example."""

from __future__ import annotations

import re
import struct
from collections.abc import Callable

import msgspec
import pytest
import xxhash
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.core.errors import SnapshotCorrupt, UnsupportedFormat
from headrace.storage.segment.format import SegmentMeta
from headrace.storage.snapshot import format as snapshot
from headrace.storage.snapshot.format import (
    VERSION,
    decode,
    delta_body,
    encode,
    encode_body,
    full_body,
)
from headrace.storage.snapshot.key_files import KeyFileMeta
from headrace.storage.snapshot.state import (
    ProducerState,
    SnapshotChange,
    TopicState,
    apply_change,
)
from tests.support.checkout import ROOT

DOCS = ROOT / "docs" / "formats" / "snapshot.md"
U63 = st.integers(0, 2**63 - 1)
TOPICS = st.builds(
    TopicState,
    id=st.integers(1, 999),
    name=st.text(min_size=1, max_size=20),
    epoch=U63,
    config=st.binary(max_size=30),
    head=st.integers(0, 2**64 - 1),
    last_ts=st.integers(-(2**63), 2**63 - 1),
    holes=st.binary(max_size=30),
    gaps=st.lists(st.tuples(U63, U63), max_size=3),
    producers=st.dictionaries(
        st.text(max_size=5), st.builds(ProducerState, U63, U63, U63, U63, U63), max_size=3
    ),
    state=st.binary(max_size=30),
    sealed_to=U63,
    created_ms=U63,
    evict_floor_cap=U63,
    evict_floor_ttl=U63,
    evict_floor_crash=U63,
    trim_floor=U63,
    delete_floor=U63,
    reserved_to=U63,
    bytes=U63,
    parent_id=U63,
    parent_to=U63,
    last_write_ms=U63,
    queue=st.binary(max_size=30),
    older_appends=st.dictionaries(st.text(max_size=5), st.binary(max_size=24), max_size=3),
)


def some_topic(topic_id: int, head: int = 0) -> TopicState:
    return TopicState(
        id=topic_id,
        name=f"topic-{topic_id}",
        epoch=1,
        config=b'{"durability":"fsync"}',
        head=head,
        sealed_to=0,
        last_ts=1_700_000_000_000,
        created_ms=1_700_000_000_000,
        evict_floor_cap=0,
        evict_floor_ttl=0,
        evict_floor_crash=0,
        trim_floor=0,
        delete_floor=0,
        reserved_to=head + 256,
        bytes=0,
        holes=b"",
        gaps=[],
        producers={},
        state=b"",
    )


def some_file(file_id: int) -> SegmentMeta:
    return SegmentMeta(
        file_id=file_id,
        owner=0,
        level=0,
        rows=10,
        topics=2,
        size=8192,
        footer_offset=8000,
        footer_hash=2**64 - 1 - file_id,
        payload_bytes=700,
        min_ts=-1,
        max_ts=1,
        created_ms=1_700_000_000_000,
    )


def some_change(**fields: object) -> SnapshotChange:
    scalars: dict[str, object] = {
        "created_ms": 1_700_000_000_000,
        "clean": False,
        "generation": 1,
        "next_topic_id": 1_000_000,
        "next_file_id": 1_000_000,
        "boot_id": bytes(16),
        "positions": {"wal": 4096},
        "key_files": [],
    }
    return SnapshotChange(**(scalars | fields))  # type: ignore[arg-type]


def reader(data: bytes) -> Callable[[int, int], bytes]:
    return lambda length, offset: data[offset : offset + length]


@settings(max_examples=30)
@given(
    st.dictionaries(st.integers(1, 999), TOPICS, max_size=5),
    st.sets(st.integers(1000, 1999), max_size=3),
    st.sets(st.integers(0, 99), max_size=3),
    st.sets(st.integers(100, 199), max_size=3),
    st.dictionaries(st.text(max_size=5), st.binary(max_size=9), max_size=3),
)
def test_a_delta_decodes_to_the_change_it_was_made_of(
    topics: dict[int, TopicState],
    topics_removed: set[int],
    files: set[int],
    files_removed: set[int],
    extra: dict[str, bytes],
) -> None:
    change = some_change(
        topics={topic.id: topic for topic in topics.values()},
        topics_removed=topics_removed,
        files={file_id: some_file(file_id) for file_id in files},
        files_removed=files_removed,
        extra=extra,
        extra_removed={"a name longer than five"},
        key_files=[KeyFileMeta(1, 2, 3, 4, 2**64 - 1)],
        positions={"wal/shard-00": 4096, "wal/shard-01": 2**63},
    )
    data = encode(8, (7, 2**64 - 1), delta_body(change))
    found = decode(reader(data), len(data), "x")
    assert found.change == change
    assert found.header[:4] == (snapshot.DELTA, 8, 7, 2**64 - 1)
    assert found.file_hash == struct.unpack("<Q", data[-8:])[0]


def test_a_full_one_holds_the_state_after_the_change_and_leaves_the_state_alone() -> None:
    first = some_change(
        topics={n: some_topic(n) for n in range(1, 5)},
        files={n: some_file(n) for n in range(3)},
        extra={"a": b"1", "b": b"2"},
    )
    state = apply_change(None, first, 1)
    change = some_change(
        topics={2: some_topic(2, head=9), 7: some_topic(7)},
        topics_removed={3, 99},
        files={5: some_file(5)},
        files_removed={0},
        extra={"b": b"3"},
        extra_removed={"a"},
    )
    data = encode(2, None, full_body(state, change))
    assert state == apply_change(None, first, 1)
    found = decode(reader(data), len(data), "x")
    whole = apply_change(None, found.change, 2)
    assert whole == apply_change(state, change, 2)
    assert sorted(whole.topics) == [1, 2, 4, 7]
    assert whole.topics[2].head == 9
    assert sorted(whole.files) == [1, 2, 5]
    assert whole.extra == {"b": b"3"}


def test_topics_are_encoded_in_bounded_pieces() -> None:
    most = snapshot.CHUNK_ENTRIES_MAX
    many = some_change(topics={n: some_topic(n) for n in range(2 * most + 9)})
    chunks = list(encode_body(delta_body(many)))
    assert [struct.unpack_from("<II", chunk) for chunk in chunks] == [
        (snapshot.SCALARS, 1),
        (snapshot.TOPICS, most),
        (snapshot.TOPICS, most),
        (snapshot.TOPICS, 9),
    ]
    big = bytes(snapshot.CHUNK_BYTES_TARGET // 2)
    large = {n: msgspec.structs.replace(some_topic(n), holes=big) for n in range(4)}
    chunks = list(encode_body(delta_body(some_change(topics=large))))
    assert len(chunks) == 3
    data = encode(1, None, full_body(None, some_change(topics=large)))
    assert decode(reader(data), len(data), "x").change.topics == large
    assert decode(reader(data), len(data), "x", keep_topics=False).change.topics == {}


def test_every_flipped_bit_is_noticed() -> None:
    change = some_change(topics={1: some_topic(1)}, files={1: some_file(1)}, extra={"q": b"1"})
    good = encode(2, (1, 99), delta_body(change))
    for bit in range(8 * len(good)):
        bad = bytearray(good)
        bad[bit // 8] ^= 1 << bit % 8
        with pytest.raises(SnapshotCorrupt, match="the-file"):
            decode(reader(bytes(bad)), len(bad), "the-file")


def test_every_truncation_and_any_growth_is_noticed() -> None:
    good = encode(1, None, full_body(None, some_change(topics={1: some_topic(1)})))
    for length in range(len(good)):
        with pytest.raises(SnapshotCorrupt):
            decode(reader(good[:length]), length, "x")
    with pytest.raises(SnapshotCorrupt):
        decode(reader(good + b"\0"), len(good) + 1, "x")


@given(st.binary(max_size=300), st.booleans())
def test_garbage_is_refused(garbage: bytes, with_magic: bool) -> None:
    data = snapshot.MAGIC + garbage if with_magic else garbage
    with pytest.raises((SnapshotCorrupt, UnsupportedFormat)):
        decode(reader(data), len(data), "x")


def test_a_newer_version_is_told_from_damage() -> None:
    data = bytearray(encode(1, None, full_body(None, some_change())))
    data[8:12] = struct.pack("<I", VERSION + 1)
    with pytest.raises(SnapshotCorrupt):
        decode(reader(bytes(data)), len(data), "the-file")
    data[56:64] = struct.pack("<Q", xxhash.xxh3_64_intdigest(bytes(data[:56])))
    with pytest.raises(UnsupportedFormat, match=r"the-file has snapshot version 5.*up to 4"):
        decode(reader(bytes(data)), len(data), "the-file")


def test_older_versions_are_read_and_version_0_is_none() -> None:
    for version in (3, 2, 1, 0):
        data = bytearray(encode(1, None, full_body(None, some_change())))
        body = bytes(data[64:-16])
        data[8:12] = struct.pack("<I", version)
        data[56:64] = struct.pack("<Q", xxhash.xxh3_64_intdigest(bytes(data[:56])))
        data[-8:] = struct.pack("<Q", xxhash.xxh3_64_intdigest(body + bytes(data[:64])))
        if version:
            assert decode(reader(bytes(data)), len(data), "x").change == some_change()
        else:
            with pytest.raises(SnapshotCorrupt, match="contradicts itself"):
                decode(reader(bytes(data)), len(data), "x")


def test_an_id_that_was_never_given_out_is_refused() -> None:
    for change in (
        some_change(topics={1: some_topic(1)}, next_topic_id=1),
        some_change(files={1: some_file(1)}, next_file_id=1),
    ):
        data = encode(1, None, full_body(None, change))
        with pytest.raises(SnapshotCorrupt, match="never given out"):
            decode(reader(data), len(data), "x")


def test_the_worked_example_of_the_docs() -> None:
    dump = re.search(r"```hex\n(.*?)```", DOCS.read_text(), re.DOTALL)
    assert dump is not None
    data = bytes.fromhex("".join(line[10:58] for line in dump[1].splitlines()))
    change = some_change(
        generation=1,
        next_topic_id=2,
        next_file_id=1,
        boot_id=bytes(range(16)),
        positions={"wal": 8192},
        topics={1: some_topic(1, head=3)},
    )
    assert encode(1, None, full_body(None, change)) == data
    assert decode(reader(data), len(data), "example").change == change
