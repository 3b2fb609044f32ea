"""Hostile Arrow streams: refused by name or read as what they say, and never worse than that."""

from __future__ import annotations

import random
import struct

import pyarrow as pa
import pytest

from headrace.core.errors import BatchTooLarge, ClientError, InvalidRequest
from headrace.core.settings import Settings
from headrace.storage.block import decode_block
from headrace.storage.block_encoding import BlockPlace, encode_columns
from headrace.wire.arrow_stream import END_OF_STREAM, RECORD_BATCHES_MAX, read_columns
from headrace.wire.native.arrow import decode_append

SETTINGS = Settings(arrow_rows_max=1_000)
ROWS = 40
PLACE = BlockPlace(1, 1, 1, 1)
LARGEST = struct.pack("<q", (1 << 63) - 1)
WORDS = [
    LARGEST, struct.pack("<q", -1), struct.pack("<q", -(1 << 63)), bytes(8),
    struct.pack("<q", 1 << 32), struct.pack("<i", (1 << 31) - 1), struct.pack("<i", -1), bytes(4),
]  # fmt: skip


def stream(columns: dict[str, object], batches: int = 2, **options: object) -> bytes:
    table = pa.table(columns)
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema, **options) as writer:  # type: ignore[arg-type]
        writer.write_table(table, max(1, len(table) // batches))
    return sink.getvalue().to_pybytes()


STREAMS = {
    "binary": {"data": [b"x" * n for n in range(ROWS)]},
    "everything": {
        "data": [f'{{"a":{n}}}' for n in range(ROWS)],
        "tag": pa.array(["a", "b"] * (ROWS // 2)).dictionary_encode(),
        "node": ["n"] * ROWS,
        "meta": [None, "{}"] * (ROWS // 2),
    },
    "views": {
        "data": pa.array(['"%s"' % ("z" * n) for n in range(ROWS)], pa.string_view()),
        "tag": pa.array(["t" * 20, None] * (ROWS // 2), pa.string_view()),
        "node": pa.array([None, "t"] * (ROWS // 2), pa.string_view()),
        "meta": pa.array([b'{"key":"value value"}', None] * (ROWS // 2), pa.binary_view()),
    },
    "large": {
        "data": pa.array([b"x" * n for n in range(ROWS)], pa.large_binary()),
        "tag": pa.array(["t", None] * (ROWS // 2), pa.large_utf8()),
        "meta": pa.array([b'{"k":1}', None] * (ROWS // 2), pa.large_binary()),
    },
}


def take(body: bytes) -> bool:
    """Do all that an append does with a body; whether it was taken.  Anything else is raised."""
    try:
        batch = decode_append(body, SETTINGS)
    except ClientError:
        return False
    block = decode_block(encode_columns(batch, PLACE).raw)
    assert block.count == batch.rows == len(block.rows(0, block.count).records())
    assert block.bytes == batch.bytes
    return True


@pytest.mark.parametrize("name", STREAMS)
def test_every_truncation_is_refused(name) -> None:
    whole = stream(STREAMS[name])
    assert take(whole)
    for length in range(len(whole)):
        assert not take(whole[:length]), length


@pytest.mark.parametrize("name", STREAMS)
def test_what_follows_the_end_is_refused(name) -> None:
    whole = stream(STREAMS[name])
    for more in (b"\0", b"more", END_OF_STREAM, whole):
        assert not take(whole + more), more


@pytest.mark.parametrize("name", STREAMS)
@pytest.mark.parametrize("seed", range(4))
def test_changed_bytes_do_no_harm(name, seed) -> None:
    """Flipped bits, and numbers replaced by the worst there are, wherever they lie."""
    rng = random.Random(f"{name} {seed}")
    whole = stream(STREAMS[name])
    taken = 0
    for _ in range(600):
        body = bytearray(whole)
        for _ in range(rng.choice([1, 1, 2, 5, 20])):
            at = rng.randrange(len(body))
            if rng.random() < 0.5:
                body[at] ^= 1 << rng.randrange(8)
            else:
                word = rng.choice(WORDS)
                at -= at % len(word)
                body[at : at + len(word)] = word
        taken += take(bytes(body))
    assert taken < 600


@pytest.mark.parametrize("name", STREAMS)
def test_every_word_replaced_does_no_harm(name) -> None:
    whole = stream(STREAMS[name])
    for at in range(0, len(whole) - 8, 8):
        body = bytearray(whole)
        body[at : at + 8] = LARGEST
        take(bytes(body))


def test_the_view_of_a_null_leads_nowhere() -> None:
    """Arrow does not validate it, and believes its length: a process died of this body."""
    sent = pa.array(["a", None, "b" * 30], pa.string_view())
    buffers = sent.buffers()
    views = bytearray(buffers[1].to_pybytes()[:48])
    views[16:32] = struct.pack("<iiii", -(1 << 31), 0, 77, 1 << 30)
    hostile = pa.Array.from_buffers(
        pa.string_view(), 3, [buffers[0], pa.py_buffer(bytes(views)), *buffers[2:]]
    )
    for name in ("tag", "node"):
        body = stream({"data": ["1", "2", "3"], name: hostile}, 1)
        batch = decode_append(body, SETTINGS)
        block = encode_columns(batch, PLACE)
        assert getattr(block, name + "s")(0, 3) == ["a", None, "b" * 30]


@pytest.mark.parametrize("codec", ["zstd", "lz4"])
def test_compressed_buffers_are_refused(codec) -> None:
    """A few bytes of them could ask for gigabytes."""
    options = pa.ipc.IpcWriteOptions(compression=codec)
    for columns in (
        STREAMS["binary"],
        {"data": ["1"] * 9, "tag": STREAMS["everything"]["tag"][:9]},
    ):
        body = stream(columns, options=options)
        with pytest.raises(InvalidRequest, match="compressed"):
            decode_append(body, SETTINGS)


def test_a_compressed_dictionary_is_refused() -> None:
    """The dictionary's message alone may be compressed: each says so for itself."""
    tag = pa.array(["long enough to be compressed" * 9] * 9).dictionary_encode()
    plain = stream({"data": [b"1"] * 9, "tag": tag}, 1)
    small = stream(
        {"data": [b"1"] * 9, "tag": tag}, 1, options=pa.ipc.IpcWriteOptions(compression="zstd")
    )

    def messages(body: bytes) -> list[bytes]:
        return [m.serialize().to_pybytes() for m in pa.ipc.MessageReader.open_stream(body)]

    schema, _, batch = messages(plain)
    _, dictionary, _ = messages(small)
    mixed = b"".join((schema, dictionary, batch, END_OF_STREAM))
    assert pa.ipc.open_stream(mixed).read_all()["tag"].to_pylist() == tag.to_pylist()
    with pytest.raises(InvalidRequest, match="compressed"):
        decode_append(mixed, SETTINGS)


def test_too_many_record_batches() -> None:
    rows = RECORD_BATCHES_MAX + 1
    settings = Settings(arrow_rows_max=rows)
    fine = stream({"data": [b"1"] * RECORD_BATCHES_MAX}, RECORD_BATCHES_MAX)
    assert decode_append(fine, settings).rows == RECORD_BATCHES_MAX
    with pytest.raises(InvalidRequest, match="record batches"):
        decode_append(stream({"data": [b"1"] * rows}, rows), settings)


def test_rows_that_are_only_claimed() -> None:
    """The number of rows is refused before anything looks for them."""
    with pytest.raises(BatchTooLarge):
        read_columns(stream({"data": [b"1"] * 11}, 1), lambda _types: None, 10)


def test_two_columns_of_one_name() -> None:
    table = pa.Table.from_arrays([pa.array(["1"]), pa.array(["2"])], names=["data", "data"])
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    with pytest.raises(InvalidRequest, match="same name"):
        decode_append(sink.getvalue().to_pybytes(), SETTINGS)


@pytest.mark.parametrize("body", [b"", b"{}", b"ARROW1\0\0", END_OF_STREAM, bytes(64)])
def test_what_is_no_stream_at_all(body) -> None:
    with pytest.raises(InvalidRequest):
        decode_append(body, SETTINGS)


def test_dictionaries_that_differ_from_batch_to_batch() -> None:
    schema = pa.schema({"data": pa.utf8(), "tag": pa.dictionary(pa.int32(), pa.utf8())})
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, schema) as writer:
        for tags in (["a", "b"], ["c", "a"], [None, "c"]):
            columns = [pa.array(["1", "2"]), pa.array(tags).dictionary_encode()]
            writer.write_batch(pa.record_batch(columns, schema=schema))
    block = encode_columns(decode_append(sink.getvalue().to_pybytes(), SETTINGS), PLACE)
    assert block.tags(0, 6) == ["a", "b", "c", "a", None, "c"]
