"""Servers of the S2 API without sockets."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from headrace.core.clock import ManualClock
from tests.support.engines import open_engines
from tests.support.s2_servers import S2Server


@pytest.fixture
def serve_s2(clock: ManualClock) -> Iterator[Callable[..., S2Server]]:
    """Start a server whose basin has this config: `serve_s2(**config)`."""
    with open_engines(clock) as open_engine:
        yield lambda **config: S2Server(open_engine(), clock, **config)


@pytest.fixture
def s2(serve_s2: Callable[..., S2Server]) -> S2Server:
    """A server with an empty stream `s`."""
    server = serve_s2()
    server.create()
    return server
