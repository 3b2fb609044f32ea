"""The TypeScript SDK of S2 against a real server, over both of its transports (s2 §1, §9, §10)."""

from __future__ import annotations

from pathlib import Path

import pytest

from headrace.testing.process import ServerProcess
from tests.support.node_programs import run_program

SECONDS_MAX = 90.0
ACCOUNT_STORIES = ("basins", "streams", "tokens")
STREAM_STORIES = ("unary", "conditions", "sessions", "follower", "encryption")


def tell(directory: Path, story: str, url: str, **variables: str) -> None:
    program = "s2_round_trips.mjs"
    done = run_program(directory, program, story, url, seconds=SECONDS_MAX, **variables)
    assert done.code == 0, done.said
    assert done.said.endswith("ok\n"), done.said


@pytest.mark.parametrize("story", ACCOUNT_STORIES)
def test_management(story: str, server: ServerProcess, tmp_path: Path) -> None:
    """§4, §5, §16: HTTP/1.1 and JSON."""
    tell(tmp_path, story, server.url)


@pytest.mark.parametrize("transport", ["s2s", "fetch"])
@pytest.mark.parametrize("story", STREAM_STORIES)
def test_records(story: str, transport: str, server: ServerProcess, tmp_path: Path) -> None:
    """§9, §10: sessions over HTTP/2, and server-sent events over HTTP/1.1."""
    tell(tmp_path, story, server.url, INTEROP_TRANSPORT=transport)


@pytest.mark.slow
@pytest.mark.parametrize("story", ["sessions", "follower"])
def test_compressed_sessions(story: str, server: ServerProcess, tmp_path: Path) -> None:
    """§10: frames in gzip; this SDK has zstd only on a newer Node than the tests ask for."""
    variables = {"INTEROP_TRANSPORT": "s2s", "INTEROP_COMPRESSION": "gzip"}
    tell(tmp_path, story, server.url, **variables)
