"""Blocks: what goes in as columns comes out as columns, and as the same bytes."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from headrace.storage.block import (
    ENTRY_APPEND,
    HEADER_BYTES,
    KIND_BYTES,
    KIND_COMMAND,
    KIND_JSON,
    KIND_MIXED,
    Batch,
    Block,
    Record,
    Rows,
    decode_block,
    single_rows,
)
from headrace.storage.block_encoding import encode_block


def encoded(batch: Batch, **how: int) -> Block:
    chosen = {"topic_id": 7, "first_seq": 11, "ts": 1_000, "arrived_ms": 1_005, **how}
    return encode_block(batch, **chosen)  # type: ignore[arg-type]


def optional(values: st.SearchStrategy[object], count: int) -> st.SearchStrategy[object]:
    """A whole column, or none."""
    column = st.lists(st.one_of(st.none(), values), min_size=count, max_size=count)
    return st.one_of(st.none(), column)


@st.composite
def batches(draw: st.DrawFn) -> Batch:
    count = draw(st.integers(1, 12))
    payload = st.binary(max_size=30)
    header = st.tuples(st.binary(max_size=5), st.binary(max_size=5))
    mixed = draw(st.booleans())
    kinds = st.sampled_from([KIND_JSON, KIND_BYTES, KIND_COMMAND])
    stamps = st.lists(st.integers(0, 1 << 50), min_size=count, max_size=count).map(sorted)
    return Batch(
        draw(st.lists(payload, min_size=count, max_size=count)),
        KIND_MIXED if mixed else draw(kinds),
        draw(optional(st.text(max_size=8), count)),  # type: ignore[arg-type]
        draw(st.one_of(optional(st.text(max_size=8), count), st.text(max_size=8))),
        draw(optional(payload, count)),  # type: ignore[arg-type]
        draw(optional(st.lists(header, max_size=3), count)),  # type: ignore[arg-type]
        bytes(draw(st.lists(kinds, min_size=count, max_size=count))) if mixed else None,
        draw(st.one_of(st.none(), stamps)),
    )


def expected(batch: Batch, first_seq: int, ts: int) -> list[Record]:
    """The records of a batch, the slow way."""
    count = batch.rows
    nodes = [batch.nodes] * count if isinstance(batch.nodes, str) else batch.nodes or [None] * count
    return [
        Record(
            first_seq + n,
            batch.timestamps[n] if batch.timestamps is not None else ts,
            batch.data[n],
            batch.tags[n] if batch.tags is not None else None,
            nodes[n],
            batch.metas[n] if batch.metas is not None else None,
            batch.headers[n] if batch.headers is not None else None,
            batch.kinds[n] if batch.kinds is not None else batch.kind,
            first_seq,
        )
        for n in range(count)
    ]


def plain(records: list[Record]) -> list[Record]:
    return [r._replace(headers=None if r.headers is None else list(r.headers)) for r in records]


@given(batches(), st.integers(1, 1 << 52), st.integers(0, 1 << 50), st.binary(max_size=20))
def test_a_block_gives_back_its_batch(
    batch: Batch, first_seq: int, ts: int, sidecar: bytes
) -> None:
    block = encode_block(batch, 9, first_seq, ts, ts + 1, 77, sidecar)
    again = decode_block(block.raw)
    for one in (block, again):
        assert plain(one.rows(0, one.count).records()) == plain(expected(batch, first_seq, ts))
        assert (one.topic_id, one.first_seq, one.count) == (9, first_seq, batch.rows)
        assert (one.last_seq, one.arrived_ms) == (first_seq + batch.rows - 1, ts + 1)
        assert (one.reserved_to, one.sidecar) == (77, sidecar)
        assert one.has_sidecar == bool(sidecar)
        assert one.ts == (batch.timestamps[-1] if batch.timestamps is not None else ts)
        size = sum(map(len, batch.data)) + sum(len(m) for m in batch.metas or () if m is not None)
        assert one.bytes == one.size_of(0, one.count) == size
    assert len(block.raw) % 8 == 0, "entries are aligned"
    assert block.raw[0] == ENTRY_APPEND
    assert int.from_bytes(block.raw[4:8], "little") == len(block.raw)


@given(batches(), st.data())
def test_any_part_of_a_block_is_that_part_of_the_batch(batch: Batch, data: st.DataObject) -> None:
    block = encoded(batch)
    start = data.draw(st.integers(0, block.count))
    stop = data.draw(st.integers(start, block.count))
    whole = expected(batch, 11, 1_000)
    assert plain(block.rows(start, stop).records()) == plain(whole[start:stop])
    assert block.size_of(start, stop) == sum(
        len(r.data) + len(r.meta or b"") for r in whole[start:stop]
    )
    for row in range(start, stop):
        assert block.ts_at(row) == whole[row].ts


@given(batches(), st.data())
def test_picked_rows_keep_their_columns(batch: Batch, data: st.DataObject) -> None:
    rows = encoded(batch).rows(0, batch.rows)
    picked = sorted(data.draw(st.sets(st.integers(0, batch.rows - 1))))
    whole = rows.records()
    assert plain(rows.pick(picked).records()) == plain([whole[n] for n in picked])


def test_the_header_is_sixty_four_bytes_and_little_endian() -> None:
    """The layout is on disk: a change here breaks every log that exists."""
    block = encoded(Batch([b"ab"], KIND_BYTES), reserved_to=513)
    assert HEADER_BYTES == 64
    assert block.raw.hex(" ", 8) == (
        "0101000050000000 0700000000000000 0b00000000000000 e803000000000000 "
        "ed03000000000000 0102000000000000 0100000000000000 0200000000000000 "
        "0000000002000000 6162000000000000"
    )


def test_a_block_without_options_pays_nothing_for_them() -> None:
    assert len(encoded(Batch([b"x" * 8])).raw) == HEADER_BYTES + 8 + 8
    assert len(encoded(Batch([b"x" * 8] * 100)).raw) <= HEADER_BYTES + 4 * 101 + 800 + 7


def test_columns_that_are_all_absent_are_left_out() -> None:
    bare = encoded(Batch([b"a", b"b"]))
    empty = encoded(Batch([b"a", b"b"], tags=[None, None], nodes=[None, None], metas=[None, None]))
    assert empty.raw == bare.raw
    assert not empty.has_tags and empty.rows(0, 2).tags is None


def test_an_empty_value_is_not_an_absent_one() -> None:
    block = encoded(Batch([b"", b""], tags=["", None], metas=[None, b""], headers=[[], None]))
    first, second = block.rows(0, 2).records()
    assert (first.tag, first.meta) == ("", None) and first.headers is not None
    assert (second.tag, second.meta, second.headers) == (None, b"", None)


def test_one_node_for_all_is_stored_once() -> None:
    many = encoded(Batch([b"x"] * 1_000, nodes="a-rather-long-node-name"))
    assert len(many.raw) - len(encoded(Batch([b"x"] * 1_000)).raw) < 64
    assert many.nodes(3, 5) == ["a-rather-long-node-name"] * 2


def test_buffers_are_views_of_the_block() -> None:
    block = encoded(Batch([b"ab", b"", b"cde"]))
    offsets, values = block.data_buffers()
    assert list(memoryview(offsets).cast("I")) == [0, 2, 2, 5]
    assert bytes(values) == b"abcde"


def test_rows_say_how_many_they_are() -> None:
    rows = Rows(range(3, 5), 9, [b"a", b"b"])
    assert len(rows) == 2
    assert [r.seq for r in rows.records()] == [3, 4] and {r.ts for r in rows.records()} == {9}


# Singles


def singles(*kinds: int, first_seq: int = 11) -> list[Block]:
    """Blocks of one record each, of ten bytes."""
    return [
        encoded(
            Batch([b"%d" % number * 10], kind),
            first_seq=first_seq + number,
            ts=1_000 + number,
        )
        for number, kind in enumerate(kinds)
    ]


def test_a_single_is_one_record_with_nothing_but_data() -> None:
    assert encoded(Batch([b"1"])).is_single and encoded(Batch([b"1"], KIND_BYTES)).is_single
    others = [
        Batch([b"1", b"2"]),
        Batch([b"1"], tags=["t"]),
        Batch([b"1"], nodes="n"),
        Batch([b"1"], metas=[b"{}"]),
        Batch([b"1"], timestamps=[5]),
        Batch([b"1"], KIND_MIXED, kinds=bytes([KIND_JSON])),
    ]
    assert not any(encoded(batch).is_single for batch in others)
    for batch in (Batch([b"1"]), *others):
        block = encoded(batch)
        assert decode_block(block.raw).is_single == block.is_single


def test_a_single_stays_one_whatever_it_is_asked_for() -> None:
    block = encode_block(Batch([b"123"]), 7, 11, 1_000, 1_005, 0, b"sidecar")
    assert block.sidecar == b"sidecar" and block.tags(0, 1) is None
    assert block.is_single and block.data(0, 1) == [b"123"] and block.sidecar == b"sidecar"


def test_a_stretch_of_singles_has_the_columns_of_each() -> None:
    blocks = singles(*[KIND_JSON] * 4)
    rows, size = single_rows(blocks, 1_000)
    assert rows is not None and size == sum(block.bytes for block in blocks)
    assert rows.records() == [record for b in blocks for record in b.rows(0, 1).records()]


def test_a_stretch_ends_at_another_kind_and_at_what_is_no_single() -> None:
    blocks = singles(KIND_BYTES, KIND_BYTES, KIND_JSON)
    rows, size = single_rows(blocks, 1_000)
    assert rows is not None and list(rows.seqs) == [11, 12] and rows.kinds == KIND_BYTES
    assert size == blocks[0].bytes + blocks[1].bytes
    rows, _ = single_rows([blocks[2], encoded(Batch([b"1", b"2"]), first_seq=14)], 1_000)
    assert rows is not None and list(rows.seqs) == [13]


def test_a_stretch_has_as_many_bytes_as_are_allowed() -> None:
    blocks = singles(*[KIND_JSON] * 3)
    assert [block.bytes for block in blocks] == [10, 10, 10]
    for allowed, count in ((9, 0), (10, 1), (19, 1), (20, 2), (29, 2), (30, 3)):
        rows, size = single_rows(blocks, allowed)
        assert (0 if rows is None else len(rows), size) == (count, 10 * count)


def test_a_stretch_may_have_seqs_between_its_records() -> None:
    blocks = [*singles(KIND_JSON, KIND_JSON), *singles(KIND_JSON, first_seq=20)]
    rows, _ = single_rows(blocks, 1_000)
    assert rows is not None and list(rows.seqs) == list(rows.append_firsts) == [11, 12, 20]
