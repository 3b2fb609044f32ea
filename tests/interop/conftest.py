"""Servers with the settings that the publishers' suites want, and their SDKs."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from headrace.testing.process import ServerProcess
from tests.support.s2_sdk import Account
from tests.support.servers import Servers, numbers
from tests.support.stream_suites import SETTINGS


@pytest.fixture(scope="module")
def servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Servers]:
    servers = Servers(tmp_path_factory.mktemp("servers"))
    yield servers
    servers.stop_all()


@pytest.fixture(scope="module")
def server(servers: Servers) -> ServerProcess:
    """The module's server."""
    return servers.with_settings(**SETTINGS)


@pytest.fixture
def stream_url(server: ServerProcess) -> str:
    """The address of a stream that no other test uses."""
    return f"{server.url}/v1/stream/interop/s{next(numbers)}"


@pytest.fixture
def account(server: ServerProcess) -> Account:
    """The module's server for the Python SDK of S2."""
    return Account(server.url)
