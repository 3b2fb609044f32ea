"""The processes of the soak beside its clients: the server, life after life at one port; a lake
sync; a worker of pipelines."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

from headrace.testing.process import ServerProcess

# Small, so that in an hour there are hundreds of checkpoints and merges, and caches are soon full.
SETTINGS: dict[str, str | int] = {
    "checkpoint_wal_bytes": "512KiB",
    "checkpoint_age_ms": "10s",
    "wal_file_bytes": "2MiB",
    "wal_batch_bytes_max": "1MiB",
    "segment_max_events": 1_000,
    "segment_max_bytes": "1MiB",
    "segment_max_age_ms": "60s",
    "scrub_interval_ms": "60s",
    "memory_budget_bytes": "8MiB",
    "read_cache_bytes": "4MiB",
    "tag_index_bytes_max": "4MiB",
    "disk_reserve_bytes": "4MiB",
    "watch_journal_bytes": "1MiB",
    "ds_long_poll_ms": "10s",
}
SPARK = (
    "--master", "local[1]",
    "--conf", "spark.driver.memory=512m",
    "--conf", "spark.ui.enabled=false",
    "--conf", "spark.sql.shuffle.partitions=1",
)  # fmt: skip
SYNC_EVERY = "30s"
SYNC_SECONDS_MAX = 600.0
TAIL_CHARACTERS = 2_000


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        port: int = found.getsockname()[1]
        return port


class Lives:
    """A server that is stopped or killed, and started again on its directory."""

    def __init__(self, directory: Path) -> None:
        self.data = directory / "data"
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self._log = directory / "server.log"
        self.number = 0
        self._server: ServerProcess | None = None

    @property
    def pid(self) -> int:
        assert self._server is not None
        return self._server.process.pid

    @property
    def alive(self) -> bool:
        return self._server is not None and self._server.process.poll() is None

    def start(self) -> None:
        with open(self._log, "ab") as log:
            settings: Any = {**SETTINGS, "port": self.port}
            self._server = ServerProcess(self.data, stderr=log, **settings)
        self.number += 1

    def kill(self) -> None:
        assert self._server is not None
        self._server.kill()

    def stop(self) -> int:
        """A clean stop; the exit code."""
        assert self._server is not None
        return self._server.stop()

    def end(self) -> None:
        if self.alive:
            self.kill()

    def complaints(self) -> list[str]:
        """What the server logged that it should not have to."""
        text = self._log.read_text(errors="replace")
        return [text[-TAIL_CHARACTERS:]] if "Traceback" in text else []


class Turnover:
    """How many segments came and went: by checkpoints, merges, compaction and retention."""

    def __init__(self, data: Path) -> None:
        self._directory = data / "segments"
        self._known: set[str] = set()
        self.made = 0
        self.removed = 0

    def look(self) -> None:
        names = {name for _, _, names in os.walk(self._directory) for name in names}
        self.made += len(names - self._known)
        self.removed += len(self._known - names)
        self._known = names


class Program:
    """A command of Headrace that goes on beside the server."""

    def __init__(self, directory: Path, name: str, *words: str) -> None:
        self._log = directory / f"{name}.log"
        self.name = name
        with open(self._log, "ab") as log:
            self.process = subprocess.Popen(
                command(*words), stdout=log, stderr=log, stdin=subprocess.DEVNULL, env=variables()
            )

    def stop(self) -> None:
        """Ask it to leave; one that does not is ended."""
        self.process.send_signal(signal.SIGTERM)
        try:
            self.process.wait(60)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()

    def end(self) -> None:
        if self.process.poll() is None:
            self.stop()

    def tail(self) -> str:
        return self._log.read_text(errors="replace")[-TAIL_CHARACTERS:]


def command(*words: str) -> list[str]:
    return [sys.executable, "-P", "-m", "headrace", *words]


def variables() -> dict[str, str]:
    """Those of this process, without what would change a command of Headrace."""
    return {name: value for name, value in os.environ.items() if not name.startswith("HEADRACE_")}


def syncing(directory: Path, url: str, topics: tuple[str, ...]) -> Program:
    words = ("lake", "sync", "--topics", ",".join(topics), "--every", SYNC_EVERY, "--url", url)
    return Program(directory, "lake-sync", *words, "--lake", str(directory / "lake"), *SPARK)


def working(directory: Path, url: str) -> Program:
    places = (
        "--checkpoints",
        str(directory / "checkpoints"),
        "--tables",
        str(directory / "tables"),
    )
    return Program(
        directory, "pipelines", "pipelines", "run", "--url", url, "--lease", "10s", *places, *SPARK
    )


def lake(directory: Path, *words: str) -> tuple[int, object, str]:
    """Run a command of the lake to its end: the exit code, what it says, and its complaints."""
    given = command("lake", *words, "--json", "--lake", str(directory / "lake"), *SPARK)
    done = subprocess.run(given, capture_output=True, timeout=SYNC_SECONDS_MAX, env=variables())
    complaints = done.stderr.decode(errors="replace")[-TAIL_CHARACTERS:]
    lines = done.stdout.decode().strip().splitlines()
    return done.returncode, json.loads(lines[-1]) if lines else None, complaints


def check(data: Path) -> list[str]:
    """Have a data directory checked that nobody uses; what is wrong with it."""
    done = subprocess.run(
        command("check", "--data-dir", str(data)),
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=SYNC_SECONDS_MAX, env=variables(),
    )  # fmt: skip
    if done.returncode == 0:
        return []
    return [
        f"headrace check ended with {done.returncode}: {done.stdout.decode()[-TAIL_CHARACTERS:]}"
    ]
