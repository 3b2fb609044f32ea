"""A server with subscriptions on a disk in memory, which tests start again as they like."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from headrace.core.clock import ManualClock
from headrace.testing.simdisk import SimDisk
from tests.support.engines import clock, disk, open_engines
from tests.support.subscribed_servers import SubscribedServer

__all__ = ["clock", "disk"]

StartServer = Callable[..., SubscribedServer]


@pytest.fixture
def start(clock: ManualClock, disk: SimDisk) -> Iterator[StartServer]:
    """Start a server on the test's disk: `start(**settings)`; the one before is killed.

    With `loads=False` it looks for no subscriptions until it is asked for one.
    """
    with open_engines(clock) as open_engine:
        running: list[SubscribedServer] = []

        def started(*, loads: bool = True, **settings: int | str) -> SubscribedServer:
            for before in running:
                before.engine.abandon()
            running.clear()
            server = SubscribedServer(open_engine(disk, **settings), clock)
            if loads:
                server.wait(0)
            running.append(server)
            return server

        yield started


@pytest.fixture
def server(start: StartServer) -> SubscribedServer:
    return start()
