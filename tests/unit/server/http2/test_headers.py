"""Header blocks, against the `hpack` package: read what it writes, write what it reads."""

from __future__ import annotations

import pytest
from h2.exceptions import ProtocolError
from hpack.exceptions import HPACKError
from hpack.hpack import Decoder, Encoder
from hypothesis import given
from hypothesis import strategies as st

from headrace.server.http2.headers import Head, HeadReader, Malformed
from headrace.server.http2.response_heads import HeadWriter, encode_head, encode_whole

names = st.sampled_from([b"accept", b"cookie", b"x-a", b"x-b", b"user-agent", b"etag"])
values = st.one_of(
    st.sampled_from([b"", b"1", b"gzip, deflate", b"v" * 200]), st.binary(max_size=40)
)
blocks = st.lists(st.lists(st.tuples(names, values), min_size=1, max_size=8), max_size=12)


@given(blocks, st.booleans(), st.sampled_from([4096, 0, 64, 300]))
def test_blocks_of_another_encoder_are_read(
    lists: list[list[tuple[bytes, bytes]]], huffman: bool, table_bytes: int
) -> None:
    encoder, reader = Encoder(), HeadReader(1 << 16)
    encoder.header_table_size = table_bytes
    for fields in lists:
        assert list(reader.decode(encoder.encode(fields, huffman=huffman))) == fields


@given(st.lists(st.binary(max_size=60), max_size=6))
def test_noise_is_read_as_another_decoder_reads_it(noise: list[bytes]) -> None:
    decoder, reader = Decoder(1 << 16), HeadReader(1 << 16)
    for block in noise:
        try:
            wanted = [tuple(field) for field in decoder.decode(block, raw=True)]
        except (HPACKError, IndexError, MemoryError, OverflowError):
            with pytest.raises(ProtocolError):
                reader.decode(block)
            return
        assert list(reader.decode(block)) == wanted


@given(
    st.integers(100, 599),
    st.lists(st.tuples(names, values.filter(lambda v: not set(v) & set(b"\r\n"))), max_size=8),
)
def test_heads_are_written_as_another_decoder_reads_them(
    status: int, fields: list[tuple[bytes, bytes]]
) -> None:
    decoder = Decoder()
    read = decoder.decode(encode_head(status, fields), raw=True)
    assert list(read) == [(b":status", b"%d" % status), *fields]
    read = decoder.decode(encode_whole(status, b"text/plain", 12, fields), raw=True)
    start = [(b":status", b"%d" % status), (b"content-type", b"text/plain")]
    assert list(read) == [*start, (b"content-length", b"12"), *fields]


def test_connection_specific_headers_are_left_out() -> None:
    block = encode_head(200, [(b"connection", b"close"), (b"x-a", b"1")])
    assert list(Decoder().decode(block, raw=True)) == [(b":status", b"200"), (b"x-a", b"1")]


def test_a_value_with_a_line_break_is_never_written() -> None:
    with pytest.raises(AssertionError):
        encode_head(200, [(b"x-a", b"1\r\nx-b: 2")])


def test_a_client_that_bounds_the_table_hears_that_it_is_empty() -> None:
    writer, decoder = HeadWriter(), Decoder()
    assert writer.prefix() == b""
    writer.header_table_size = 100
    decoder.max_allowed_table_size = 100
    read = decoder.decode(writer.prefix() + encode_head(200, ()), raw=True)
    assert list(read) == [(b":status", b"200")]
    assert writer.prefix() == b""


def test_what_is_remembered_is_forgotten_when_the_table_changes() -> None:
    first, reader = Encoder(), HeadReader(1 << 16)
    start = [(b":method", b"GET"), (b":scheme", b"http"), (b":authority", b"a")]
    reader.read(first.encode([*start, (b":path", b"/1")]))
    again = first.encode([*start, (b":path", b"/1")])
    assert reader.read(again).path == "/1"
    assert reader.read(again).path == "/1"
    reader.decode(first.encode([(b"x-new", b"moves every index")]))
    moved = first.encode([*start, (b":path", b"/1")])
    assert moved != again
    assert reader.read(moved).path == "/1"
    with pytest.raises(Malformed):
        reader.read(again)


# Heads that differ from those before them in values that vary

START = [(b":method", b"POST"), (b":scheme", b"http"), (b":authority", b"a"), (b":path", b"/1?q")]


@given(
    st.lists(
        st.tuples(
            st.lists(
                st.sampled_from(
                    [
                        b"idempotency-key",
                        b"content-length",
                        b"traceparent",
                        b"authorization",
                        b"x-a",
                    ]
                ),
                max_size=4,
            ),
            st.lists(st.sampled_from([b"", b"1", b"22", b" 1", b"1\r\n2", b"x"]), min_size=4),
        ),
        max_size=12,
    ),
    st.booleans(),
)
def test_a_head_is_the_same_whatever_came_before_it(
    heads: list[tuple[list[bytes], list[bytes]]], indexed: bool
) -> None:
    encoder, reader = Encoder(), HeadReader(1 << 16)
    if not indexed:
        encoder.header_table_size = 0
    for names_of, values_of in heads:
        fields = [*START, *zip(names_of, values_of, strict=False)]
        block = encoder.encode(fields)
        first = HeadReader(1 << 16)
        try:
            wanted = first.read(Encoder().encode(fields))
        except Malformed:
            with pytest.raises(Malformed):
                reader.read(block)
            continue
        head = reader.read(block)
        for name in ("method", "path", "query", "headers", "length", "upgrade", "bytes"):
            assert getattr(head, name) == getattr(wanted, name)


def test_what_handlers_know_is_kept_for_lengths_and_not_for_keys() -> None:
    encoder, reader = Encoder(), HeadReader(1 << 16)

    def head(*more: tuple[bytes, bytes]) -> Head:
        return reader.read(encoder.encode([*START, *more]))

    short, long = head((b"content-length", b"1")), head((b"content-length", b"22"))
    assert short is not long and short.memo is long.memo is not None
    head((b"idempotency-key", b"a"))
    second = head((b"idempotency-key", b"b"))
    assert second.memo is None, "a handler may have looked at the key"
    again = head((b"idempotency-key", b"b"))
    assert again.headers == second.headers and again.memo == {}
    assert head((b"idempotency-key", b"b")).memo is again.memo, "all of it is the same"


@pytest.mark.parametrize(
    ("name", "bad"),
    [
        (b"idempotency-key", b"1\r\nx-a: 2"),
        (b"authorization", b"a\x00"),
        (b"traceparent", b" 1"),
        (b"content-length", b"x"),
        (b"content-length", b"-1"),
    ],
)
def test_values_that_vary_are_checked_in_every_head(name: bytes, bad: bytes) -> None:
    encoder, reader = Encoder(), HeadReader(1 << 16)
    for value in (b"1", b"2"):
        assert reader.read(encoder.encode([*START, (name, value)])).headers[name] == value
    with pytest.raises(Malformed):
        reader.read(encoder.encode([*START, (name, bad)]))
