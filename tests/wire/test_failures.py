"""What a client sees when the disk fails (native §3.5): the truth, and reads."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

RECORD = {"records": [{"data": "lost?"}]}


@contextmanager
def failing(server, calls: str, error: str) -> Iterator[None]:
    """Every one of these system calls of the server fails, until the block ends."""
    if shutil.which("strace") is None:
        pytest.skip("there is no strace")
    strace = subprocess.Popen(
        ["strace", "-f", "-p", str(server.process.pid), "-e", f"inject={calls}:error={error}"],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert strace.stderr is not None
    try:
        said = strace.stderr.readline()
        if "attached" not in said:
            pytest.skip(f"strace may not attach here: {said}")
        yield
    finally:
        strace.terminate()
        strace.wait()
        strace.stderr.close()


def test_a_failed_sync(servers, protocol) -> None:
    """§3.5: 500 with `outcome: unknown`, nothing visible; then 503 `wal_read_only`; reads go on."""
    server = servers.start()
    speak = servers.speaker(server, protocol)
    speak.ok("PUT", "/v0/topics/ledger", {"durability": "fsync"})
    speak.append("ledger", 1)
    speak.append("feed", 1)
    with failing(server, "fdatasync,fsync", "EIO"):
        detail = speak.refused(500, "internal", "POST", "/v0/topics/ledger", RECORD)
        assert detail["outcome"] == "unknown"
    for topic in ("ledger", "feed", "another"):
        detail = speak.refused(503, "not_ready", "POST", f"/v0/topics/{topic}", RECORD)
        assert detail["reason"] == "wal_read_only"
    assert [record["data"] for record in speak.diff("ledger")["records"]] == [1]
    assert speak.state("ledger")["head_seq"] == 1
    detail = speak.refused(503, "not_ready", "GET", "/v0/ready")
    assert detail["reason"] == "wal_read_only"
    metrics = speak("GET", "/v0/metrics").body.decode()
    assert "\nheadrace_wal_read_only 1\n" in metrics
    server.kill()


def test_a_full_disk(servers, protocol) -> None:
    """§3.5: 503 `disk_full`, `Retry-After: 5`, and it resumes by itself."""
    server = servers.start()
    speak = servers.speaker(server, protocol)
    speak.append("feed", 1)
    with failing(server, "pwrite64,pwritev,pwritev2,fallocate", "ENOSPC"):
        reply = speak("POST", "/v0/topics/feed", RECORD)
        assert (reply.status, reply.error["code"]) == (503, "not_ready")
        assert reply.error["detail"]["reason"] == "disk_full"
        assert reply.headers["retry-after"] == "5"
        assert [record["data"] for record in speak.diff("feed")["records"]] == [1]
    while speak("POST", "/v0/topics/feed", {"records": [{"data": 2}]}).status != 200:
        pass
    assert [record["data"] for record in speak.diff("feed")["records"]] == [1, 2]
