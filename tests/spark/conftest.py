"""One Spark session for every test here, and servers to read from and write to."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from headrace.client import Client
from headrace.spark import spark_session
from headrace.testing.process import ServerProcess
from tests.support import spark_classes
from tests.support.checkout import ROOT
from tests.support.object_stores import endpoint
from tests.support.sealed_topics import SETTINGS

__all__ = ["endpoint"]


# Of the Java of the session, and of those in the processes of tests.
os.environ[spark_classes.VARIABLE] = spark_classes.options()

# What Spark does to run large queries well, and only costs time in small ones: it compiles code for
# each, and plans them again as they run.  The guide runs with what a user has.
FOR_USERS = {
    "spark.sql.adaptive.enabled": "true",
    "spark.sql.codegen.wholeStage": "true",
    "spark.sql.codegen.factoryMode": "FALLBACK",
}
FOR_TESTS = {
    "spark.sql.adaptive.enabled": "false",
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
}
DAEMON = {"spark.python.daemon.module": "tests.support.spark_daemon"}


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    """The one session: two threads, tasks tried once more; workers have their imports already."""
    before = os.environ.get("PYTHONPATH", "")
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [before, str(ROOT)]))
    session = spark_session(DAEMON | FOR_TESTS, master="local[2,2]")
    os.environ["PYTHONPATH"] = before  # Java has it
    yield session
    session.stop()


@pytest.fixture
def users_spark(spark: SparkSession) -> Iterator[SparkSession]:
    """The same session, as a user has it."""
    for name, value in FOR_USERS.items():
        spark.conf.set(name, value)
    yield spark
    for name, value in FOR_TESTS.items():
        spark.conf.set(name, value)


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """A server that all tests share: each uses topics of its own."""
    with ServerProcess(tmp_path_factory.mktemp("server")) as running:
        yield running


@pytest.fixture(scope="module")
def sealing(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """A server that seals quickly, so that its topics lie in files."""
    with ServerProcess(tmp_path_factory.mktemp("sealing"), **SETTINGS) as running:
        yield running


@pytest.fixture
def client(server: ServerProcess) -> Iterator[Client]:
    with Client(server.url) as found:
        yield found


@pytest.fixture
def topic(request: pytest.FixtureRequest) -> str:
    """A name that no other test uses."""
    return "t-" + request.node.nodeid.rpartition("::")[2].translate({ord(c): "-" for c in "[]/ :"})


@pytest.fixture
def start_server(tmp_path: Path) -> Iterator[Callable[..., ServerProcess]]:
    """Servers of one test: `start_server(HEADRACE_X="1")`, or by settings of `ServerProcess`."""
    running: list[ServerProcess] = []

    def start(directory: Path | None = None, **how: object) -> ServerProcess:
        process = ServerProcess(directory or tmp_path / "data", **how)  # type: ignore[arg-type]
        running.append(process)
        return process

    yield start
    for process in running:
        process.kill()
