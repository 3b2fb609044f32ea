"""Slots of streams: caps in all and for a key."""

from __future__ import annotations

import pytest

from headrace.core.errors import Throttled
from headrace.core.settings import Settings
from headrace.wire.slots import StreamSlots
from tests.unit.wire.conftest import GivenKey


def test_a_cap_admits_exactly_so_many() -> None:
    slots = StreamSlots(Settings(max_sse_connections=3))
    for _ in range(3):
        slots.take(None)
    for _ in range(2):
        with pytest.raises(Throttled) as refused:
            slots.take(None)
        assert not refused.value.detail
    slots.release(None)
    slots.take(None)
    assert slots.open == 3


def test_keys_are_counted_apart() -> None:
    slots = StreamSlots(Settings(max_sse_connections=10, max_sse_connections_per_key=1))
    one, two = GivenKey(), GivenKey()
    slots.take(one)
    slots.take(two)
    with pytest.raises(Throttled):
        slots.take(one)
    assert slots.open == 2, "who is refused holds nothing"
    slots.release(one)
    slots.take(one)


def test_no_key_has_no_cap_of_its_own() -> None:
    slots = StreamSlots(Settings(max_sse_connections_per_key=1))
    for _ in range(5):
        slots.take(None)


def test_zero_is_no_cap() -> None:
    slots = StreamSlots(Settings(max_sse_connections=0, max_sse_connections_per_key=0))
    key = GivenKey()
    for _ in range(50):
        slots.take(key)
    assert slots.open == 50


def test_a_slot_cannot_be_given_back_twice() -> None:
    slots = StreamSlots(Settings())
    slots.take(None)
    slots.release(None)
    with pytest.raises(AssertionError):
        slots.release(None)
