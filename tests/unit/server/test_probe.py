"""The probes of a serving process, over a real one."""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

START_SECONDS_MAX = 30


@contextlib.contextmanager
def serving(directory: Path) -> Iterator[tuple[str, subprocess.Popen[bytes]]]:
    port_file = directory / "port"
    port_file.unlink(missing_ok=True)
    process = subprocess.Popen(
        [sys.executable, "-m", "headrace", "serve", "--json"],
        env={
            **os.environ,
            "HEADRACE_DATA_DIR": str(directory / "data"),
            "HEADRACE_PORT": "0",
            "HEADRACE_PORT_FILE": str(port_file),
        },
        stdout=subprocess.PIPE,
    )
    try:
        deadline = time.monotonic() + START_SECONDS_MAX
        while not port_file.exists():
            assert process.poll() is None, "the server ended before it was ready"
            assert time.monotonic() < deadline, "the server did not become ready"
            time.sleep(0.02)
        yield port_file.read_text(), process
    finally:
        if process.poll() is None:
            process.kill()
        process.wait()
        if process.stdout is not None:
            process.stdout.close()


def get(address: str, path: str, method: str = "GET") -> tuple[int, dict[str, object]]:
    connection = http.client.HTTPConnection(address, timeout=10)
    try:
        connection.request(method, path)
        response = connection.getresponse()
        body = response.read()
        return response.status, json.loads(body) if body else {}
    finally:
        connection.close()


def test_health_and_ready_answer(tmp_path: Path) -> None:
    with serving(tmp_path) as (address, _):
        status, health = get(address, "/v0/health")
        assert (status, health["status"]) == (200, "ok")
        assert get(address, "/v0/ready?x=1") == (
            200,
            {"status": "ready", "wal_replay_complete": True, "topics": 0},
        )
        assert get(address, "/v0/ready", "HEAD") == (200, {})


@pytest.mark.parametrize(
    ("method", "path", "status", "code"),
    [
        ("GET", "/nowhere", 404, "not_found"),
        ("POST", "/v0/health", 405, "method_not_allowed"),
    ],
)
def test_anything_else_is_refused(
    tmp_path: Path, method: str, path: str, status: int, code: str
) -> None:
    with serving(tmp_path) as (address, _):
        got, body = get(address, path, method)
        error = body["error"]
        assert isinstance(error, dict)
        assert (got, error["code"]) == (status, code)


def test_sigterm_leaves_one_clean_snapshot_and_the_port_is_free_again(tmp_path: Path) -> None:
    for _ in range(2):
        with serving(tmp_path) as (_, process):
            process.send_signal(signal.SIGTERM)
            assert process.wait(timeout=START_SECONDS_MAX) == 0
        assert len(list((tmp_path / "data" / "meta").glob("snapshot-*.bin"))) == 1


def test_a_second_server_on_the_directory_fails_by_name(tmp_path: Path) -> None:
    with serving(tmp_path) as (_, process):
        second = subprocess.run(
            [sys.executable, "-m", "headrace", "serve", "--port", "0"],
            env={**os.environ, "HEADRACE_DATA_DIR": str(tmp_path / "data")},
            capture_output=True,
            text=True,
            timeout=START_SECONDS_MAX,
            check=False,
        )
        assert second.returncode == 1
        assert f"in use by process {process.pid}" in second.stderr
        assert "Traceback" not in second.stderr
