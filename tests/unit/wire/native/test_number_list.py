"""Numbers that are listed fast are the numbers that any encoder lists."""

from __future__ import annotations

import msgspec
import pytest

from headrace.core.limits import seq_max
from headrace.wire.native.number_list import listed


@pytest.mark.parametrize("first", [0, 1, 9, 99, 500, 998, 999, 1_000, 1_001, 8_999, 123_456_789])
@pytest.mark.parametrize("count", [1, 2, 3, 10, 999, 1_000, 1_001, 2_500])
def test_consecutive_numbers(first, count) -> None:
    encoded = msgspec.json.encode([*range(first, first + count)]).decode()
    assert f"[{listed(first, first + count - 1)}]" == encoded


def test_the_last_seqs_there_are() -> None:
    assert listed(seq_max - 1, seq_max) == f"{seq_max - 1},{seq_max}"
