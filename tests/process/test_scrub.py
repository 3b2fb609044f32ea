"""A server whose stored bytes rot while it is down (native §10): it says so, and mends it."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from headrace.cli.main import main
from headrace.client import Client
from headrace.storage.fs import RealFilesystem
from headrace.storage.scrub.progress_file import SEGMENT, FileProgress, read_progress
from headrace.testing.process import ServerProcess

HOUR_MS = 3_600_000
QUICK = {"scrub_bytes_per_second": 64 << 20, "scrub_interval_ms": 1_000}
PATIENCE_SECONDS = 60
T = TypeVar("T")


def eventually(look: Callable[[], T | None]) -> T:
    """What `look` finds, as soon as it finds something."""
    deadline = time.monotonic() + PATIENCE_SECONDS
    while (found := look()) is None:
        assert time.monotonic() < deadline, "it never came"
        time.sleep(0.05)
    return found


def sealed_file(data: Path) -> Path:
    """The one sealed file of a server that has stored a little, and stopped."""
    with ServerProcess(data) as server, Client(server.url) as client:
        client.append("orders", [{"id": number} for number in range(50)])
    (path,) = (data / "segments").glob("*.arrow")
    return path


def flip(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[1_000] ^= 4
    path.write_bytes(content)


def figure(client: Client, name: str) -> float:
    lines = client.metrics_text().splitlines()
    return float(next(line for line in lines if line.startswith(f"{name} ")).split()[1])


def known_of(data: Path) -> FileProgress | None:
    """What is on disk of the sealed file."""
    rows = read_progress(RealFilesystem(data))
    return next((row for row in rows if row.kind == SEGMENT), None)


def test_rot_is_said_until_the_file_is_put_back_and_times_survive_a_kill(tmp_path: Path) -> None:
    """§10d, §10e: log, metric and ready; after `kill -9` what was verified is not read again."""
    data = tmp_path / "data"
    path = sealed_file(data)
    flip(path)
    name = f"segments/{path.name}"
    with (tmp_path / "log").open("wb") as log:
        server = ServerProcess(data, stderr=log, **QUICK)
        with Client(server.url) as client:
            ready = eventually(lambda: ((r := client.ready()).degraded and r) or None)
            assert ready.status == "degraded"
            assert f"{name} is damaged in block 0 at 0" in ready.degraded["storage"]
            assert figure(client, "headrace_scrub_damaged_files") == 1
            assert figure(client, "headrace_scrub_damage_found_total") == 1
            page = client.scrubbed_files()
            assert (page.enabled, page.damaged) == (True, 1)
            (damaged,) = [file for file in page.files if file.damaged]
            assert (damaged.file, damaged.tier, bool(damaged.why)) == (name, "hot", True)

            flip(path)
            eventually(lambda: client.ready().status == "ready" or None)
            assert figure(client, "headrace_scrub_damaged_files") == 0
            assert len(client.diff("orders").records) == 50
        eventually(lambda: ((row := known_of(data)) is not None and not row.damaged) or None)
        server.kill()
    said = (tmp_path / "log").read_text()
    errors = [line for line in said.splitlines() if " ERROR " in line]
    assert len(errors) == 1 and name in errors[0] and "block 0" in errors[0]
    assert f"{name} is whole again" in said

    saved = known_of(data)
    assert saved is not None and saved.verified_ms
    with ServerProcess(data, scrub_interval_ms=HOUR_MS) as again, Client(again.url) as client:
        page = eventually(lambda: ((p := client.scrubbed_files()).total and p) or None)
        (file,) = [file for file in page.files if file.file == name]
        assert file.verified_ms == saved.verified_ms


def test_a_server_mends_a_file_from_its_backup(tmp_path: Path) -> None:
    """§10g: without anybody's help, and a reader gets the records."""
    data, copy = tmp_path / "data", tmp_path / "copy"
    path = sealed_file(data)
    whole = path.read_bytes()
    assert main(["backup", str(copy), "--data-dir", str(data)]) == 0
    flip(path)
    with (
        ServerProcess(data, log="error", scrub_repair_from=str(copy), **QUICK) as server,
        Client(server.url) as client,
    ):
        eventually(lambda: figure(client, "headrace_scrub_repaired_files_total") or None)
        eventually(lambda: client.ready().status == "ready" or None)
        assert len(client.diff("orders").records) == 50
    assert path.read_bytes() == whole
