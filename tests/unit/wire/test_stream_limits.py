"""Slots of streams: caps in all and for a key."""

from __future__ import annotations

import pytest

from headrace.core.errors import Throttled
from headrace.core.settings import Settings
from headrace.wire.stream_limits import StreamLimits
from tests.support.exchanges import GivenKey


def test_a_cap_admits_exactly_so_many() -> None:
    limits = StreamLimits(Settings(max_sse_connections=3))
    for _ in range(3):
        limits.take(None)
    for _ in range(2):
        with pytest.raises(Throttled) as refused:
            limits.take(None)
        assert not refused.value.detail
    limits.release(None)
    limits.take(None)
    assert limits.open == 3


def test_keys_are_counted_apart() -> None:
    limits = StreamLimits(Settings(max_sse_connections=10, max_sse_connections_per_key=1))
    one, two = GivenKey(), GivenKey()
    limits.take(one)
    limits.take(two)
    with pytest.raises(Throttled):
        limits.take(one)
    assert limits.open == 2, "who is refused holds nothing"
    limits.release(one)
    limits.take(one)


def test_no_key_has_no_cap_of_its_own() -> None:
    limits = StreamLimits(Settings(max_sse_connections_per_key=1))
    for _ in range(5):
        limits.take(None)


def test_zero_is_no_cap() -> None:
    limits = StreamLimits(Settings(max_sse_connections=0, max_sse_connections_per_key=0))
    key = GivenKey()
    for _ in range(50):
        limits.take(key)
    assert limits.open == 50


def test_a_slot_cannot_be_given_back_twice() -> None:
    limits = StreamLimits(Settings())
    limits.take(None)
    limits.release(None)
    with pytest.raises(AssertionError):
        limits.release(None)
