"""A server in a process of its own, on 127.0.0.1: started, asked, measured from outside, stopped.

CPU and memory come from /proc, so that they are those of the server alone, all threads included.
Only this file starts servers; each is stopped when its block ends, however it ends.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from bench.measure import QUICK_FILE_BYTES, QUICK_VARIABLE, ROOT, die_with_parent, step
from bench.wires import HOST

READY_SECONDS = 60.0
STOP_SECONDS = 20.0
POLL_SECONDS = 0.02

Round = dict[str, float]  # what one round of the generator reports; see `load.Window.report`


class ServerFailed(Exception):
    """A server did not start, or ended by itself; the message carries its last words."""


class Served:
    """A server that answers on a port."""

    def __init__(self, process: subprocess.Popen[bytes], port: int) -> None:
        self.process = process
        self.port = port
        self.pid = process.pid

    @property
    def resident_mb(self) -> float:
        return self._status_kb("VmRSS") * 1024 / 1e6

    @property
    def peak_mb(self) -> float:
        return self._status_kb("VmHWM") * 1024 / 1e6

    def reset_peak(self) -> None:
        Path(f"/proc/{self.pid}/clear_refs").write_text("5")

    def keep_on(self, core: int) -> None:
        """Give all its threads, and those that they start, this one processor."""
        for task in os.listdir(f"/proc/{self.pid}/task"):
            with contextlib.suppress(ProcessLookupError):
                os.sched_setaffinity(int(task), {core})

    @property
    def cpu_ns(self) -> int:
        """CPU of the threads that live now, to the nanosecond."""
        total = 0
        for task in os.listdir(f"/proc/{self.pid}/task"):
            with contextlib.suppress(OSError):
                total += int(Path(f"/proc/{self.pid}/task/{task}/schedstat").read_text().split()[0])
        return total

    def metrics(self, *names: str) -> list[float]:
        """Values of /v0/metrics, each by its name and labels."""
        lines = self.call("GET", "/v0/metrics", accept="text/plain").splitlines()
        found = dict(line.rsplit(" ", 1) for line in lines if not line.startswith("#"))
        return [float(found[name]) for name in names]

    def _status_kb(self, field: str) -> int:
        for line in Path(f"/proc/{self.pid}/status").read_text().splitlines():
            if line.startswith(field + ":"):
                return int(line.split()[1])
        raise LookupError(field)

    def call(
        self, method: str, path: str, document: Any = None, accept: str = "", key: str = ""
    ) -> Any:
        """One HTTP request; the JSON of its answer, or its text."""
        connection = http.client.HTTPConnection(HOST, self.port, timeout=READY_SECONDS)
        headers = {"Accept": accept} if accept else {}
        if key:
            headers["Authorization"] = f"Bearer {key}"
        if document is not None:
            headers["Content-Type"] = "application/json"
        try:
            body = None if document is None else json.dumps(document).encode()
            connection.request(method, path, body, headers)
            answer = connection.getresponse()
            text = answer.read()
        finally:
            connection.close()
        if answer.status >= 300:
            raise ServerFailed(f"{method} {path}: {answer.status} {text[:500].decode()}")
        is_json = (answer.getheader("Content-Type") or "").startswith("application/json")
        return json.loads(text) if is_json else text.decode()

    def load(
        self,
        plan: Mapping[str, Any],
        connections: int,
        seconds: float,
        rounds: int = 1,
        rate: float = 0.0,
        warm_up: float = 0.5,
    ) -> list[Round]:
        """Let the generator, a process of its own, send what the plan says."""
        found: list[Round] = step(
            "load:drive",
            plan=dict(plan),
            port=self.port,
            pids=[self.pid],
            connections=connections,
            seconds=seconds,
            rounds=rounds,
            rate=rate,
            warm_up=warm_up,
        )
        return found

    def stop(self) -> None:
        """Ask, wait, and only then insist."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
            try:
                self.process.wait(STOP_SECONDS)
            except subprocess.TimeoutExpired:
                self.process.kill()
        self.process.wait()


@contextlib.contextmanager
def started(
    command: Sequence[str], port: int, directory: str, environment: Mapping[str, str] | None = None
) -> Iterator[Served]:
    """A process that listens on `port` soon; its output goes to a file of the directory."""
    os.makedirs(directory, exist_ok=True)
    output = Path(directory, "server.out")
    with output.open("wb") as sink:
        process = subprocess.Popen(
            command,
            cwd=directory,
            env={**os.environ, **(environment or {})},
            stdin=subprocess.DEVNULL,
            stdout=sink,
            stderr=subprocess.STDOUT,
            preexec_fn=die_with_parent,
        )
    server = Served(process, port)
    try:
        wait_until(server, output, lambda: answers(port))
        yield server
    finally:
        server.stop()


SERVE = ("-P", "-m", "headrace", "serve")


@contextlib.contextmanager
def serving(directory: str, program: Sequence[str] = SERVE, **settings: Any) -> Iterator[Served]:
    """`headrace serve` on an empty directory and a free port."""
    os.makedirs(directory, exist_ok=True)
    output, port_file = Path(directory, "server.out"), Path(directory, "port")
    if QUICK_VARIABLE in os.environ:
        settings = {"wal_file_bytes": QUICK_FILE_BYTES, **settings}
    with output.open("wb") as sink:
        process = subprocess.Popen(
            [sys.executable, *program, "--data-dir", f"{directory}/data"],
            env={
                **os.environ,
                "PYTHONPATH": os.pathsep.join(
                    [str(ROOT / "src"), os.environ.get("PYTHONPATH", "")]
                ),
                "HEADRACE_HOST": HOST,
                "HEADRACE_PORT": "0",
                "HEADRACE_PORT_FILE": str(port_file),
                "HEADRACE_LOG": "warning",
                **{f"HEADRACE_{name.upper()}": str(value) for name, value in settings.items()},
            },
            stdin=subprocess.DEVNULL,
            stdout=sink,
            stderr=subprocess.STDOUT,
            preexec_fn=die_with_parent,
        )
    server = Served(process, 0)
    try:
        wait_until(server, output, port_file.exists)
        server.port = int(port_file.read_text().strip().rpartition(":")[2])
        yield server
    finally:
        ended = process.poll()
        server.stop()
        if ended is not None:
            # Whatever else went wrong, this is why.
            raise ServerFailed(f"the server ended with {ended}\n{last_words(output)}")


def wait_until(server: Served, output: Path, condition: Any) -> None:
    end = time.monotonic() + READY_SECONDS
    while not condition():
        if server.process.poll() is not None:
            raise ServerFailed(f"{server.process.args!r} ended at once\n{last_words(output)}")
        if time.monotonic() > end:
            raise ServerFailed(f"{server.process.args!r} is not ready\n{last_words(output)}")
        time.sleep(POLL_SECONDS)


def last_words(output: Path) -> str:
    return output.read_text(errors="replace")[-2_000:]


def answers(port: int) -> bool:
    with contextlib.suppress(OSError), socket.create_connection((HOST, port), 1.0):
        return True
    return False


def two_cores() -> tuple[int, int]:
    """One processor for a server, one for all else; the same where there is only one."""
    cores = sorted(os.sched_getaffinity(0))
    return cores[0], cores[-1]


def free_port() -> int:
    """A port nobody listens on now; for servers that cannot tell which one they took."""
    with socket.socket() as probe:
        probe.bind((HOST, 0))
        port: int = probe.getsockname()[1]
        return port


def column(rounds: Sequence[Round], name: str) -> list[float]:
    return [one[name] for one in rounds]
