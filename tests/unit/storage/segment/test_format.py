"""The format of segments is what docs/formats/segment.md says it is."""

from __future__ import annotations

import re
from pathlib import Path

import pyarrow as pa
from xxhash import xxh3_64_intdigest

from headrace.storage.block import Batch
from headrace.storage.block_encoding import encode_block
from headrace.storage.fs import RealFilesystem
from headrace.storage.segment.format import (
    OPTIONAL_COLUMNS,
    buffer_slots,
    decode_index,
    encode_index,
    schema_of,
)
from headrace.storage.segment.writer import SegmentWriter, batch_of_blocks
from tests.support.checkout import ROOT

DOCS = ROOT / "docs" / "formats" / "segment.md"


def documented_index() -> bytes:
    found = re.search(r"```hex\n(.*?)```", DOCS.read_text(encoding="utf-8"), re.DOTALL)
    assert found
    return b"".join(bytes.fromhex(line[10:57]) for line in found[1].splitlines())


def written_segment(root: Path) -> bytes:
    """The segment of the documented example."""
    fs = RealFilesystem(root)
    fs.mkdir("segments")
    data = [b'{"id":1}', b'{"id":2}']
    block = encode_block(Batch(data), 5, 41, 1_700_000_000_000, 1_700_000_000_000)
    writer = SegmentWriter(fs, 7, 0, 0, 1_700_000_001_000, columns=None)
    writer.add(batch_of_blocks([(5, block, 0, 2)]))
    return (root / writer.finish().path).read_bytes()


def test_the_documented_index_is_what_the_code_writes(tmp_path: Path) -> None:
    """L2."""
    index = documented_index()
    data = written_segment(tmp_path)
    at = data.index(b"HEADRIDX")
    assert data[at : at + len(index)].hex(" ", 8) == index.hex(" ", 8)
    assert encode_index(decode_index(index, "the example")) == index


def test_the_documented_index_says_what_the_text_says() -> None:
    raw = documented_index()
    index = decode_index(raw, "the example")
    assert (index.file_id, index.owner, index.level, index.columns) == (7, 0, 0, frozenset())
    assert (index.rows, index.groups, index.payload_bytes) == (2, 1, 16)
    assert (index.min_ts, index.max_ts) == (1_700_000_000_000, 1_700_000_000_000)
    assert (index.created_ms, index.footer_offset) == (1_700_000_001_000, 0x448)
    assert list(index.spans[:6]) == [0x200, 0x240, 0, 0, 0x3C0, 0x10]
    assert list(index.spans[-6:]) == [0, 0, 0x418, 0x18, 0x430, 0x10]
    directory = index.directory
    assert list(directory.topic_ids) == [5]
    assert (directory.first_seqs[0], directory.last_seqs[0]) == (41, 42)
    assert (list(directory.first_rows), bytes(directory.flags)) == ([0, 2], b"\x01")
    assert int.from_bytes(raw[-16:-8], "little") == len(raw)
    assert int.from_bytes(raw[-8:], "little") == xxh3_64_intdigest(raw[:-8])


def test_the_index_finds_every_byte_of_the_example(tmp_path: Path) -> None:
    data = written_segment(tmp_path)
    index = decode_index(documented_index(), "the example")
    assert list(index.hashes) == [xxh3_64_intdigest(data[: index.footer_offset])]
    assert data[0x430:0x440] == b'{"id":1}{"id":2}'
    assert data[: index.footer_offset].endswith(b"\xff\xff\xff\xff\0\0\0\0")
    place = f"{index.footer_offset} {len(documented_index())}".encode()
    with pa.ipc.open_file(pa.py_buffer(data)) as file:
        assert file.metadata == {b"headrace.index": place}


def test_every_buffer_arrow_writes_has_its_place() -> None:
    """The count of buffers follows from the columns alone: a reader relies on it."""
    names = sorted(OPTIONAL_COLUMNS)
    for bits in range(1 << len(names)):
        columns = {name for i, name in enumerate(names) if bits >> i & 1}
        schema = schema_of(columns)
        batch = pa.RecordBatch.from_arrays([pa.array([], t) for t in schema.types], schema=schema)
        buffers = [len(column.buffers()) for column in batch.columns]
        slots, count = buffer_slots(columns)
        assert list(slots) == schema.names
        assert count == sum(buffers)
        assert list(slots.values()) == [sum(buffers[:i]) for i in range(len(buffers))]
