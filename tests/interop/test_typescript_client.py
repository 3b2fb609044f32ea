"""The publisher's TypeScript client against a real server: what goes in comes out.

Plainly; over TLS; and a producer whose server is killed while it sends.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from headrace.testing.process import ServerProcess
from tests.support.certificates import Certificate
from tests.support.killed_on_request import KilledOnRequest
from tests.support.node_programs import run_program
from tests.support.servers import Servers, numbers
from tests.support.stream_suites import SETTINGS

SECONDS_MAX = 60.0
STORIES = (
    "json",
    "binary",
    "live_long_poll",
    "live_sse",
    "live_binary_sse",
    "producer",
    "fenced_producer",
    "closed",
)


def tell(directory: Path, story: str, url: str, **variables: str) -> None:
    done = run_program(directory, "round_trips.mjs", story, url, seconds=SECONDS_MAX, **variables)
    assert done.code == 0, done.said
    assert done.said.endswith("ok\n"), done.said


@pytest.mark.parametrize("story", STORIES)
def test_round_trip(story: str, stream_url: str, tmp_path: Path) -> None:
    tell(tmp_path, story, stream_url)


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Certificate:
    return Certificate(tmp_path_factory.mktemp("certificate"))


@pytest.fixture(scope="module")
def secret_server(servers: Servers, pair: Certificate) -> ServerProcess:
    return servers.start(tls_cert=str(pair.cert), tls_key=str(pair.key), **SETTINGS)


@pytest.mark.slow
@pytest.mark.parametrize("story", STORIES)
def test_round_trip_over_tls(
    story: str, secret_server: ServerProcess, pair: Certificate, tmp_path: Path
) -> None:
    url = f"{secret_server.url}/v1/stream/interop/s{next(numbers)}"
    tell(tmp_path, story, url, NODE_EXTRA_CA_CERTS=str(pair.cert))


@pytest.mark.slow
def test_a_producer_whose_server_is_killed(servers: Servers, tmp_path: Path) -> None:
    site = KilledOnRequest(servers, tmp_path / "data", SETTINGS)
    work = tmp_path / "work"
    work.mkdir()
    url = f"{site.server.url}/v1/stream/interop/killed"
    with site.asked_at() as restarting:
        tell(work, "killed_producer", url, INTEROP_RESTART_URL=restarting)
    assert site.kills >= 3
