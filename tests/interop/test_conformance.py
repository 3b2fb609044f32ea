"""The publisher's conformance suite of Durable Streams, in full, against a real server process.

No test is left out or tried twice.  Plainly; over TLS; and with `kill -9` and a start on the same
directory between its groups of tests.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from headrace.testing.process import ServerProcess
from tests.support.certificates import Certificate
from tests.support.killed_on_request import KilledOnRequest
from tests.support.servers import Servers
from tests.support.stream_suites import SETTINGS, TESTS, Found, run_conformance_suite

GROUPS = 34


def assert_all_passed(found: Found) -> None:
    assert not found.others, "\n".join([f"{found.passed} passed; these did not:", *found.others])
    assert found.passed == TESTS


def test_every_test_passes(server: ServerProcess, tmp_path: Path) -> None:
    assert_all_passed(run_conformance_suite(tmp_path, server.url))


@pytest.mark.slow
def test_every_test_passes_over_tls(servers: Servers, tmp_path: Path) -> None:
    pair = Certificate(tmp_path)
    server = servers.start(tls_cert=str(pair.cert), tls_key=str(pair.key), **SETTINGS)
    assert server.url.startswith("https://")
    found = run_conformance_suite(tmp_path, server.url, NODE_EXTRA_CA_CERTS=str(pair.cert))
    assert_all_passed(found)


@pytest.mark.slow
def test_every_test_passes_with_kills_between_the_groups(servers: Servers, tmp_path: Path) -> None:
    site = KilledOnRequest(servers, tmp_path / "data", SETTINGS)
    work = tmp_path / "work"
    work.mkdir()
    with site.asked_at() as restarting:
        found = run_conformance_suite(work, site.server.url, INTEROP_RESTART_URL=restarting)
    assert_all_passed(found)
    assert site.kills == GROUPS - 1
