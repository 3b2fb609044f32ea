"""Filters of Spark: what they say is never more than what they mean."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql.datasource import (
    EqualNullSafe,
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    IsNotNull,
    IsNull,
    LessThan,
    LessThanOrEqual,
    Not,
    StringContains,
    StringStartsWith,
)

from headrace.spark.reading.pushdown import SEQ_MAX, TS_MAX, TS_MIN, Filters

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
COMPARISONS = {
    EqualTo: lambda a, b: a == b,
    GreaterThan: lambda a, b: a > b,
    GreaterThanOrEqual: lambda a, b: a >= b,
    LessThan: lambda a, b: a < b,
    LessThanOrEqual: lambda a, b: a <= b,
    In: lambda a, b: a in b,
}


@st.composite
def comparisons(draw: st.DrawFn, column: str, values: st.SearchStrategy[object]) -> Filter:
    kind = draw(st.sampled_from(list(COMPARISONS)))
    if kind is In:
        return In((column,), tuple(draw(st.lists(values, min_size=1, max_size=3))))
    return kind((column,), draw(values))


def passes(one: Filter, value: object) -> bool:
    return bool(COMPARISONS[type(one)](value, one.value))


@given(st.lists(comparisons("seq", st.integers(-3, 20)), max_size=4), st.integers(1, 15))
def test_no_seq_that_passes_is_left_out(filters: list[Filter], seq: int) -> None:
    found = Filters.of(filters)
    inside = found.seq_first <= seq <= found.seq_last
    assert inside or not all(passes(one, seq) for one in filters)
    if len(filters) == 1 and not isinstance(filters[0], In):
        assert inside == passes(filters[0], seq)


TIMES = st.integers(-5_000, 9_000).map(lambda micros: EPOCH + timedelta(microseconds=micros))


@given(st.lists(comparisons("ts", TIMES), max_size=4), st.integers(-4, 8))
def test_no_time_that_passes_is_left_out(filters: list[Filter], ms: int) -> None:
    found = Filters.of(filters)
    inside = found.ts_first <= ms <= found.ts_last
    time = EPOCH + timedelta(milliseconds=ms)
    assert inside or not all(passes(one, time) for one in filters)
    if len(filters) == 1 and not isinstance(filters[0], In):
        assert inside == passes(filters[0], time)


def test_times_of_other_zones() -> None:
    zone = datetime.fromisoformat("2026-01-01T12:00:00.001+02:00")
    expected = int(datetime(2026, 1, 1, 10, tzinfo=UTC).timestamp() * 1_000) + 1
    assert Filters.of([EqualTo(("ts",), zone)]).ts_first == expected
    naive = datetime(2026, 1, 1, 10, 0, 0, 1_000)
    assert Filters.of([EqualTo(("ts",), naive)]).ts_last == expected


TAGS: list[str | None] = [None, "", "a", "ab", "b", "abc"]
TAG_FILTERS: list[tuple[list[Filter], list[str | None]]] = [
    ([EqualTo(("tag",), "ab")], ["ab"]),
    ([In(("tag",), ("a", "b", "x"))], ["a", "b"]),
    ([In(("tag",), ("a", "b")), EqualTo(("tag",), "b")], ["b"]),
    ([EqualTo(("tag",), "a"), EqualTo(("tag",), "b")], []),
    ([StringStartsWith(("tag",), "ab")], ["ab", "abc"]),
    ([StringStartsWith(("tag",), "a"), In(("tag",), ("ab", "b"))], ["ab"]),
    ([IsNotNull(("tag",))], ["", "a", "ab", "b", "abc"]),
]


@pytest.mark.parametrize(("filters", "kept"), TAG_FILTERS)
def test_tags(filters: list[Filter], kept: list[str | None]) -> None:
    found = Filters.of(filters)
    assert found.on_tags
    column = pa.array(TAGS, pa.utf8())
    assert column.filter(found.tag_mask(column)).to_pylist() == kept


def test_what_is_not_understood_is_left_to_spark() -> None:
    filters = [
        Not(EqualTo(("seq",), 5)),
        IsNotNull(("seq",)),
        IsNull(("tag",)),
        EqualNullSafe(("tag",), "a"),
        StringContains(("tag",), "a"),
        EqualTo(("data",), b"x"),
        EqualTo(("data", "seq"), 5),
        EqualTo(("seq",), "5"),
        EqualTo(("seq",), True),
        EqualTo(("ts",), 5),
    ]
    assert Filters.of(filters) == Filters(0, SEQ_MAX, TS_MIN, TS_MAX)
    assert not Filters.of(filters).on_tags and not Filters.of(filters).on_ts
