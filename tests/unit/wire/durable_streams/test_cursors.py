"""Cursors: the interval of the time, and always beyond what the client had."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.core.clock import SeededRandom
from headrace.wire.durable_streams.cursors import EPOCH_MS, INTERVAL_MS, next_cursor

NOW_MS = EPOCH_MS + 1_000 * INTERVAL_MS + 7


def test_intervals_begin_at_the_protocols_day() -> None:
    assert datetime(2024, 10, 9, tzinfo=UTC).timestamp() * 1000 == EPOCH_MS


@pytest.mark.parametrize("sent", ["", "x", "-5", "1.5", "999", "9" * 40, "٣"])
def test_a_client_that_is_behind_gets_the_interval(sent: str) -> None:
    assert next_cursor(NOW_MS, sent, SeededRandom(0)) == 1_000


@given(st.integers(1_000, 10**17), st.integers(0, 10**6))
def test_a_client_that_is_not_behind_is_led_on(sent: int, seed: int) -> None:
    found = next_cursor(NOW_MS, str(sent), SeededRandom(seed))
    assert sent < found <= sent + 180


def test_the_way_on_is_not_always_the_same() -> None:
    assert len({next_cursor(NOW_MS, "1000", SeededRandom(seed)) for seed in range(20)}) > 5
