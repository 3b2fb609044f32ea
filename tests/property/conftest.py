"""A server without sockets, for the tests of the HTTP layer."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.wire_fuzz import World


@pytest.fixture
def world() -> Iterator[World]:
    with World() as world:
        yield world
