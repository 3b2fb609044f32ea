"""Fixtures of tests of lakes: a server, and an empty lake for each test."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from headrace.client import Client
from headrace.lake.tables.layout import Lake
from headrace.testing.process import ServerProcess
from tests.support.lakes import Bench
from tests.support.sealed_topics import SETTINGS


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    directory = tmp_path_factory.mktemp("server")
    with ServerProcess(directory, **SETTINGS) as running:  # type: ignore[arg-type]
        yield running


@pytest.fixture
def bench(server: ServerProcess, tmp_path: Path) -> Iterator[Bench]:
    with Client(server.url) as client:
        yield Bench(server, client, Lake(str(tmp_path / "lake")))


@pytest.fixture(scope="module")
def unsealed_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    with ServerProcess(tmp_path_factory.mktemp("unsealed")) as running:
        yield running


@pytest.fixture
def unsealed(unsealed_server: ServerProcess, tmp_path: Path) -> Iterator[Bench]:
    """The same with a server that has everything in memory."""
    with Client(unsealed_server.url) as client:
        yield Bench(unsealed_server, client, Lake(str(tmp_path / "lake")))


@pytest.fixture
def topic(request: pytest.FixtureRequest) -> str:
    """A name that no other test uses."""
    name: str = request.node.name
    return "t-" + name.translate({ord(c): "-" for c in "[]/ :"})
