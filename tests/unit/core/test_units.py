"""Sizes and durations: what is read is what is written, and nothing else is read."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.core.units import format_duration_ms, format_size, parse_duration_ms, parse_size


@given(st.integers(0, 1 << 62))
def test_formatting_is_exact(count: int) -> None:
    assert parse_size(format_size(count)) == count
    assert parse_duration_ms(format_duration_ms(count)) == count


@pytest.mark.parametrize("text", ["", "-1", "1.5GiB", "64 MiBs", "MiB", "1e3", "0x10", "64  MiB"])
@pytest.mark.parametrize("parse", [parse_size, parse_duration_ms])
def test_anything_else_is_refused(parse: Callable[[str], int], text: str) -> None:
    with pytest.raises(ValueError, match="such as"):
        parse(text)


def test_units_of_the_other_kind_are_refused() -> None:
    with pytest.raises(ValueError, match="64MiB"):
        parse_size("30s")
    with pytest.raises(ValueError, match="30s"):
        parse_duration_ms("64MiB")
