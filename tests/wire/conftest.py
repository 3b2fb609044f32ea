"""A real server process for each module of tests, and two ways to speak to it.

A test that takes `speak` runs twice: over HTTP/1.1, and over HTTP/2 with prior knowledge on the
same port.  A module may set `SETTINGS`, by the names of `Settings`; `servers` starts others.  A
server whose log has a traceback fails its module.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator

import pytest

from headrace.testing.process import ServerProcess
from tests.support.servers import Servers, numbers
from tests.support.speakers import SPEAKERS, Speaker


@pytest.fixture(scope="module")
def servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Servers]:
    directory = tmp_path_factory.mktemp("servers")
    servers = Servers(directory)
    yield servers
    servers.stop_all()
    # Servers make their log files ahead: those of a whole run would take tens of gigabytes.
    shutil.rmtree(directory)


@pytest.fixture(scope="module")
def server(servers: Servers, request: pytest.FixtureRequest) -> ServerProcess:
    """The module's server."""
    return servers.with_settings(**getattr(request.module, "SETTINGS", {}))


@pytest.fixture(params=sorted(SPEAKERS))
def protocol(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture
def speak(servers: Servers, server: ServerProcess, protocol: str) -> Speaker:
    """Requests to the module's server, over each protocol in turn."""
    return servers.speaker(server, protocol)


@pytest.fixture
def speak_to(servers: Servers, protocol: str) -> Callable[..., Speaker]:
    """The same for a server with other settings."""
    return lambda **settings: servers.speaker(servers.with_settings(**settings), protocol)


@pytest.fixture
def topic() -> str:
    """A name that no other test uses."""
    return f"t{next(numbers)}"
