"""Routes that show what HTTP/1.1 does, on a real socket."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.served_app import Served
from tests.support.transport_routes import HTTP1_SETTINGS, Handlers, http1_handlers


@pytest.fixture
def handlers() -> Handlers:
    return http1_handlers()


@pytest.fixture
def served(handlers: Handlers) -> Iterator[Served]:
    with Served(HTTP1_SETTINGS, handlers.routes()) as server:
        yield server
