"""Fixtures of the tests of live readers: a clock, a disk, and servers without sockets."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from headrace.core.clock import ManualClock
from headrace.testing.simdisk import SimDisk
from tests.support.engines import clock, disk, open_engines
from tests.support.live_readers import Live, StartLive

__all__ = ["clock", "disk"]


@pytest.fixture
def start(clock: ManualClock) -> Iterator[StartLive]:
    """Start a server: `start(**settings)`."""
    with open_engines(clock) as open_engine:

        def started(disk: SimDisk | None = None, **settings: int | str) -> Live:
            return Live(open_engine(disk, **settings), clock)

        yield started


@pytest.fixture
def live(start: StartLive) -> Live:
    return start()
