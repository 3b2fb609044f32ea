"""Offsets: what is written is read again, sorts as its position, and nothing else is taken."""

from __future__ import annotations

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from headrace.core.errors import InvalidRequest
from headrace.engine.streams.spec import Position
from headrace.wire.durable_streams.offsets import (
    NOW,
    NUMBER_MAX,
    START,
    ZERO,
    offset_text,
    parse_offset,
)

NUMBERS = st.integers(0, NUMBER_MAX)
POSITIONS = st.builds(Position, NUMBERS, NUMBERS)


@given(POSITIONS)
@example(Position(0, 0))
@example(Position(NUMBER_MAX, NUMBER_MAX))
def test_an_offset_comes_back_as_its_position(position: Position) -> None:
    assert parse_offset(offset_text(position).decode()) == position


@given(POSITIONS, POSITIONS)
def test_offsets_sort_as_positions(one: Position, other: Position) -> None:
    assert (offset_text(one) < offset_text(other)) == (one < other)


def test_places_without_a_number() -> None:
    assert parse_offset("-1") is START
    assert parse_offset("now") is NOW
    assert parse_offset("0000000000000000_0000000000000000") == ZERO


GOOD = "0000000000000001_0000000000000002"


@pytest.mark.parametrize(
    "text",
    [
        "",
        " ",
        "-2",
        "-1 ",
        "NOW",
        "Now",
        "0",
        "1_2",
        GOOD + "\n",
        GOOD + "\0",
        "\r\n" + GOOD,
        " " + GOOD,
        GOOD + ",",
        GOOD + "/..",
        GOOD.replace("_", "-"),
        GOOD + "0",
        GOOD[1:],
        GOOD.replace("1", "a"),
        GOOD.replace("1", "١"),  # a digit, but not one of ours  # noqa: RUF001
        "../" + GOOD,
    ],
)
def test_what_is_no_offset_is_refused(text: str) -> None:
    with pytest.raises(InvalidRequest):
        parse_offset(text)


@given(st.text())
def test_text_is_refused_unless_it_is_an_offset(text: str) -> None:
    try:
        found = parse_offset(text)
    except InvalidRequest:
        return
    if isinstance(found, Position):
        assert offset_text(found).decode() == text
    else:
        assert found.value == text
