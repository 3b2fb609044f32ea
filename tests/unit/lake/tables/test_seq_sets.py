"""Sets of seqs: every one is a row once, or a gap with its reason."""

from __future__ import annotations

from itertools import pairwise

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyroaring import BitMap64

from headrace.core.errors import DataLost
from headrace.lake.tables.seq_sets import (
    DELETED,
    Gap,
    add_rows,
    gaps_between,
    joined,
    ranges_of,
    runs_of,
    whole,
)

SEQS = st.sets(st.integers(1, 60))


@given(SEQS)
def test_ranges_are_the_same_seqs(seqs: set[int]) -> None:
    ranges = ranges_of(BitMap64(sorted(seqs)))
    assert [seq for first, last in ranges for seq in range(first, last + 1)] == sorted(seqs)
    assert all(b + 1 < c for (_, b), (c, _) in pairwise(ranges))
    assert list(runs_of(pa.array(sorted(seqs), pa.int64()))) == ranges


@given(SEQS, st.lists(st.tuples(st.integers(1, 60), st.integers(0, 9), st.sampled_from("ab"))))
def test_each_seq_is_a_row_or_has_one_reason(
    rows: set[int], losses: list[tuple[int, int, str]]
) -> None:
    told = [Gap(first, first + more, reason) for first, more, reason in losses]
    gaps = gaps_between(1, 60, BitMap64(sorted(rows)), told)
    reasons = {seq: gap.reason for gap in gaps for seq in range(gap.first, gap.last + 1)}
    assert len(reasons) == sum(gap.last - gap.first + 1 for gap in gaps)
    assert sorted([*rows, *reasons]) == list(range(1, 61))
    for seq, reason in reasons.items():
        of = [gap.reason for gap in told if gap.first <= seq <= gap.last]
        assert reason == (of[0] if of else DELETED)


def test_rows_ascend() -> None:
    present = BitMap64()
    add_rows(present, pa.array([3, 4, 9], pa.int64()))
    add_rows(present, pa.array([], pa.int64()))
    for wrong in ([9, 10], [12, 11], [10, 10], [10, 12, 11]):
        with pytest.raises(DataLost):
            add_rows(present.copy(), pa.array(wrong, pa.int64()))
    add_rows(present, pa.array([10], pa.int64()))
    assert list(present) == [3, 4, 9, 10]


def test_no_seq_is_in_two_parts() -> None:
    assert joined([whole(1, 3), whole(4, 6)]) == whole(1, 6)
    with pytest.raises(DataLost, match="seq 3 was read twice"):
        joined([whole(1, 3), whole(3, 6)])
    assert not whole(5, 4)
