"""JSON in Arrow columns: checked all at once, and refused where a row by itself would be."""

from __future__ import annotations

import msgspec
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.core.errors import InvalidRequest
from headrace.core.settings import Settings
from headrace.engine.appending import arrow_batch
from headrace.engine.appending.arrow_batch import batch_of_columns

SETTINGS = Settings()
TEXTS = [pa.utf8(), pa.large_utf8()]
FRAGMENTS = [
    "[", "]", "{", "}", '"', ",", ":", " ", "\n", "\\", "1", "-", ".5", "e3", "null", "true",
    '"a":', "[1", "2]", "{}", "[]", '""', "\u00e9", "\ud7ff", "\x00",
]  # fmt: skip
FRAGMENT_TEXTS = st.lists(st.sampled_from(FRAGMENTS), max_size=5).map("".join)
JSON_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-9, 99) | st.text('a"\\,]}\n\u00e9', max_size=3),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text("ab", max_size=1), inner),
    max_leaves=6,
).map(lambda value: msgspec.json.encode(value).decode())


def first_bad_row(rows: list[str]) -> int | None:
    for row, text in enumerate(rows):
        try:
            msgspec.json.decode(text, type=msgspec.Raw)
        except msgspec.MsgspecError:
            return row
    return None


def check(rows: list[str], kind: pa.DataType) -> None:
    column = pa.array(["x", *rows, "x"], kind)[1:-1]  # a slice, whose offsets do not start at zero
    bad = first_bad_row(rows)
    if bad is None:
        batch = batch_of_columns(SETTINGS, {"data": column})
        assert bytes(batch.data[3]) == "".join(rows).encode()
        return
    with pytest.raises(InvalidRequest, match=f"data of row {bad} is not JSON"):
        batch_of_columns(SETTINGS, {"data": column})


@given(st.lists(FRAGMENT_TEXTS, min_size=1, max_size=6), st.sampled_from(TEXTS))
def test_rows_of_fragments(rows, kind) -> None:
    check(rows, kind)


@st.composite
def cut_elsewhere(draw: st.DrawFn) -> list[str]:
    """Rows that are JSON if they are put together, and were cut where no value ends."""
    values = draw(st.lists(JSON_VALUES, min_size=1, max_size=5))
    joined = draw(st.sampled_from(["", ",", "\n", " ", ", "])).join(values)
    cuts = sorted(draw(st.lists(st.integers(0, len(joined)), max_size=5)))
    return [joined[a:b] for a, b in zip([0, *cuts], [*cuts, len(joined)], strict=True)]


@given(cut_elsewhere(), st.sampled_from(TEXTS))
def test_values_that_were_cut_elsewhere(rows, kind) -> None:
    check(rows, kind)


@given(st.lists(JSON_VALUES, min_size=1, max_size=30), st.sampled_from(TEXTS))
def test_any_json_is_taken_at_once(rows, kind) -> None:
    """Without a look at any row by itself: that is only for what is refused."""
    assert arrow_batch._is_json(pa.array(rows, kind))


@pytest.mark.parametrize(
    "rows",
    [
        ["[1", "2]", "3,4"],
        ["[1,", "2]", "3\n4"],
        ['"a', 'b"', '"c""d"'],
        ["{}{}", ""],
        ["", "{}{}"],
        [""],
        ["", ""],
        ["1,2", "  "],
        ["[", "]1"],
        ["nullnull"],
        ["-", "1"],
        ["1", "2 3", " "],
        ['{"a":[{}', "{}]}"],
        ['"\\', '""'],
    ],
)
def test_rows_that_are_json_only_together(rows) -> None:
    for kind in TEXTS:
        check(rows, kind)


def test_white_space_around_a_value_is_kept() -> None:
    for kind in TEXTS:
        check([" 1", "2 ", "\n{}\t", "3"], kind)
