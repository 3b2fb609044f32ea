"""Routes that show what HTTP/2 does, on a real socket."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.served_app import Served
from tests.support.transport_routes import HTTP2_SETTINGS, Handlers, http2_handlers


@pytest.fixture
def handlers() -> Handlers:
    return http2_handlers()


@pytest.fixture
def served(handlers: Handlers) -> Iterator[Served]:
    with Served(HTTP2_SETTINGS, handlers.routes()) as server:
        yield server
