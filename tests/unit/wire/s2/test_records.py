"""Records of S2: metering, what no stream takes, commands, timestamps, and how a read is cut."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.engine.reading.page import Page
from headrace.storage.block import KIND_BYTES, KIND_COMMAND, KIND_MIXED
from headrace.storage.rows import Rows
from headrace.wire.s2.errors import S2Refusal
from headrace.wire.s2.records import (
    TIMESTAMP_MAX,
    AppendInput,
    HeaderColumn,
    Position,
    ReadBatch,
    batch_of,
    cut,
    metered_of,
    metered_sizes,
    read_batch,
    validate,
)

NOW = 1_700_000_000_000
PREFER, REQUIRE, ARRIVAL = "client-prefer", "client-require", "arrival"


def command(name: bytes, body: bytes) -> AppendInput:
    return AppendInput([body], [[(b"", name)]])


def refused(given: AppendInput) -> str:
    with pytest.raises(S2Refusal) as caught:
        validate(given)
    assert (caught.value.code, caught.value.status) == ("invalid", 422)
    return str(caught.value)


# Metering


def test_a_record_is_metered_by_its_body_its_headers_and_itself() -> None:
    assert metered_of([b""]) == 8
    headers: HeaderColumn = [[(b"ab", b"c"), (b"", b"")], None, []]
    bodies = [b"body", b"x", b""]
    assert metered_sizes(bodies, headers) == [8 + 4 + 2 + 3 + 2, 9, 8]
    assert metered_of(bodies, headers) == 36 == AppendInput(bodies, headers).metered


# What no stream takes


def test_a_batch_has_1_to_1000_records() -> None:
    validate(AppendInput([b""] * 1000))
    assert "0 records" in refused(AppendInput([]))
    assert "1001 records" in refused(AppendInput([b""] * 1001))


def test_a_batch_has_at_most_a_mebibyte() -> None:
    validate(AppendInput([bytes(1_048_576 - 8)]))
    validate(AppendInput([bytes(1_048_576 - 8 - 5)], [[(b"k", b"vv")]]))
    assert "1048577" in refused(AppendInput([bytes(1_048_576 - 8 + 1)]))
    assert "1048577" in refused(AppendInput([bytes(1_048_576 - 8 - 4)], [[(b"k", b"vv")]]))


def test_a_timestamp_is_at_most_2_63_less_1() -> None:
    validate(AppendInput([b"", b""], None, [TIMESTAMP_MAX, None]))
    assert "2^63-1" in refused(AppendInput([b"", b""], None, [None, TIMESTAMP_MAX + 1]))


def test_a_fencing_token_has_at_most_36_bytes() -> None:
    validate(AppendInput([b""], fencing_token="\u00e9" * 18))
    assert "36 bytes" in refused(AppendInput([b""], fencing_token="\u00e9" * 18 + "x"))


@pytest.mark.parametrize(
    "given",
    [
        command(b"", b""),
        command(b"Fence", b""),
        command(b"delete", b""),
        command(b"fence", b"x" * 37),
        command(b"fence", b"\xff"),
        command(b"trim", b"\0" * 7),
        command(b"trim", b"\0" * 9),
        AppendInput([b""], [[(b"", b"fence"), (b"a", b"b")]]),
        AppendInput([b""], [[(b"a", b"b"), (b"", b"fence")]]),
        AppendInput([b"", b""], [None, [(b"", b"nothing")]]),
    ],
)
def test_an_empty_header_name_is_that_of_a_command(given: AppendInput) -> None:
    refused(given)


# Commands


def test_the_last_fence_counts_and_every_trim_with_its_row() -> None:
    trims = [(99).to_bytes(8, "big"), (5).to_bytes(8, "big")]
    given = AppendInput(
        [b"one", trims[0], b"data", b"two", trims[1]],
        [
            [(b"", b"fence")],
            [(b"", b"trim")],
            [(b"k", b"fence")],
            [(b"", b"fence")],
            [(b"", b"trim")],
        ],
    )
    validate(given)
    assert given.commands.fence == "two"
    assert list(given.commands.trims) == [(1, 99), (4, 5)]
    assert list(given.commands.rows) == [0, 1, 3, 4]


def test_an_empty_fence_clears_and_no_fence_does_not() -> None:
    given = command(b"fence", b"")
    validate(given)
    assert given.commands.fence == ""
    plain = AppendInput([b"x"], [[(b"k", b"v")]])
    validate(plain)
    assert plain.commands.fence is None and not plain.commands.trims


def test_commands_are_stored_as_such() -> None:
    alone = command(b"fence", b"t")
    validate(alone)
    batch = batch_of(alone, PREFER, False, NOW)
    assert (batch.kind, batch.kinds) == (KIND_COMMAND, None)
    assert batch.headers == [[(b"", b"fence")]] and batch.data == [b"t"]
    mixed = AppendInput([b"x", b"t", b"y"], [None, [(b"", b"fence")], [(b"k", b"v")]])
    validate(mixed)
    batch = batch_of(mixed, PREFER, False, NOW)
    assert batch.kind == KIND_MIXED
    assert batch.kinds == bytes([KIND_BYTES, KIND_COMMAND, KIND_BYTES])
    plain = AppendInput([b"x"])
    validate(plain)
    assert batch_of(plain, PREFER, False, NOW).kind == KIND_BYTES


def test_a_match_beyond_every_seq_still_matches_nothing() -> None:
    assert AppendInput([b""], match_seq_num=7).expected_head_seq == 7
    assert AppendInput([b""], match_seq_num=(1 << 64) - 1).expected_head_seq == (1 << 53) - 1
    assert AppendInput([b""]).expected_head_seq is None


# Timestamps


def expected_stamps(
    given: list[int | None] | None, mode: str, uncapped: bool, count: int
) -> list[int] | None:
    """The rule, record by record; None: refused."""
    found: list[int] = []
    for row in range(count):
        stamp = None if given is None else given[row]
        if mode == REQUIRE and stamp is None:
            return None
        chosen = NOW if mode == ARRIVAL or stamp is None else stamp
        chosen = chosen if uncapped or mode == ARRIVAL else min(chosen, NOW)
        found.append(max(chosen, found[-1] if found else 0))
    return found


STAMPS = st.one_of(
    st.none(), st.integers(0, TIMESTAMP_MAX), st.integers(NOW - 3, NOW + 3), st.just(0)
)


@given(
    st.lists(STAMPS, min_size=1, max_size=6),
    st.sampled_from([PREFER, REQUIRE, ARRIVAL]),
    st.booleans(),
)
@settings(max_examples=150, deadline=None)
def test_timestamps_are_those_of_the_rule(
    stamps: list[int | None], mode: str, uncapped: bool
) -> None:
    columns: list[list[int | None] | None] = [stamps]
    if all(stamp is None for stamp in stamps):
        columns.append(None)
    for column in columns:
        given = AppendInput([b""] * len(stamps), None, column)
        validate(given)
        wanted = expected_stamps(column, mode, uncapped, len(stamps))
        if wanted is None:
            with pytest.raises(S2Refusal) as caught:
                batch_of(given, mode, uncapped, NOW)
            assert caught.value.code == "invalid"
            continue
        found = batch_of(given, mode, uncapped, NOW).timestamps
        assert (list(found) if found is not None else [NOW] * len(stamps)) == wanted


# Reads


def page(*rows: Rows) -> Page:
    return Page("s2:my-basin/x", 1, rows, 9, 9, 1, None, 0)


def test_seqs_of_a_page_are_seq_nums_from_zero() -> None:
    read = read_batch(page(Rows(range(1, 4), 50, [b"a", b"b", b"c"])), Position(3, 50))
    assert list(read.seq_nums) == [0, 1, 2] and list(read.timestamps) == [50] * 3
    assert (read.last_seq_num, len(read), read.tail, read.headers) == (2, 3, Position(3, 50), None)


def test_pieces_of_a_page_are_joined_with_the_headers_that_some_have() -> None:
    read = read_batch(
        page(
            Rows([1, 3], [5, 6], [b"a", b"b"]),
            Rows(range(4, 6), 7, [b"c", b"d"], headers=[[(b"k", b"v")], None]),
            Rows([9], 8, [b"e"]),
        )
    )
    assert list(read.seq_nums) == [0, 2, 3, 4, 8]
    assert list(read.timestamps) == [5, 6, 7, 7, 8]
    assert list(read.bodies) == [b"a", b"b", b"c", b"d", b"e"]
    assert read.headers == [None, None, [(b"k", b"v")], None, None]
    assert read_batch(page()).bodies == [] and len(read_batch(page())) == 0


@st.composite
def batches(draw: st.DrawFn) -> ReadBatch:
    bodies = draw(st.lists(st.binary(max_size=6), max_size=6))
    count = len(bodies)
    stamps = sorted(draw(st.lists(st.integers(0, 9), min_size=count, max_size=count)))
    some = st.lists(st.tuples(st.binary(max_size=3), st.binary(max_size=3)), max_size=2)
    headers: Any = draw(st.none() | st.lists(st.none() | some, min_size=count, max_size=count))
    return ReadBatch(range(3, 3 + count), stamps, bodies, headers, Position(99, 99))


LIMIT = st.none() | st.integers(0, 60)


@given(batches(), LIMIT, LIMIT, st.none() | st.integers(0, 10))
@settings(max_examples=150, deadline=None)
def test_a_read_ends_before_the_record_that_would_pass_a_limit(
    batch: ReadBatch, count: int | None, bytes_max: int | None, until: int | None
) -> None:
    taken = size = 0
    for stamp, one in zip(
        batch.timestamps, metered_sizes(batch.bodies, batch.headers), strict=True
    ):
        if (
            (count is not None and taken + 1 > count)
            or (bytes_max is not None and size + one > bytes_max)
            or (until is not None and stamp >= until)
        ):
            break
        taken, size = taken + 1, size + one
    found, metered = cut(batch, count, bytes_max, until)
    assert (len(found), metered) == (taken, size)
    assert list(found.bodies) == list(batch.bodies[:taken])
    assert list(found.seq_nums) == list(batch.seq_nums[:taken])
    assert metered == metered_of(found.bodies, found.headers)
    # The tail tells that a reader has everything: what was cut has not.
    assert found.tail == (batch.tail if taken == len(batch) else None)
    assert all(a <= b for a, b in pairwise(found.timestamps))
