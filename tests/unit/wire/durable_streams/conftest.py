"""Servers of streams without sockets."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from headrace.core.clock import ManualClock
from tests.support.engines import open_engines
from tests.support.stream_readers import StreamServer


@pytest.fixture
def serve(clock: ManualClock) -> Iterator[Callable[..., StreamServer]]:
    """Start a server of streams: `serve(**settings)`."""
    clock.set_wall(1_800_000_000_000)  # behind the day from which cursors are counted
    with open_engines(clock) as open_engine:
        yield lambda **settings: StreamServer(open_engine(**settings), clock)


@pytest.fixture
def streams(serve: Callable[..., StreamServer]) -> StreamServer:
    return serve()
