"""Spark elsewhere: a standalone cluster of two workers, and Spark Connect, used as any program is.

Each starts a few Java processes, so each is one program that does everything.
"""

from __future__ import annotations

import json
import os
import queue
import re
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyspark
import pytest

from headrace.client import Client
from headrace.spark.java import find_java
from headrace.spark.session import MASTER_VARIABLE, REMOTE_VARIABLE
from headrace.testing.process import ServerProcess
from tests.support.checkout import ROOT
from tests.support.sealed_topics import fill, rows_of, seal
from tests.support.spark_program import TASKS

# Up to six Java processes start, on whatever machine.
pytestmark = [pytest.mark.long, pytest.mark.timeout(900)]

SPARK_CLASS = Path(pyspark.__file__).parent / "bin" / "spark-class"
DEPLOY = "org.apache.spark.deploy"
ROWS = 60_000
WAIT_SECONDS = 200
STOP_SECONDS = 30


def environment(**more: str) -> dict[str, str]:
    """That of a machine which has our package and the wheels, and nothing set up."""
    found = {name: text for name, text in os.environ.items() if not name.startswith("HEADRACE_")}
    found.pop("SPARK_LOCAL_IP", None)
    found |= {"PYTHONPATH": f"{ROOT / 'src'}{os.pathsep}{ROOT}", "PYSPARK_PYTHON": sys.executable}
    find_java(found)
    return found | more


class Daemon:
    """A process of a cluster, which tells in its log how it does."""

    def __init__(self, name: str, *arguments: str) -> None:
        self.name = name
        self._said: queue.SimpleQueue[str] = queue.SimpleQueue()
        self._process = subprocess.Popen(
            [str(SPARK_CLASS), f"{DEPLOY}.{name}", *arguments],
            env=environment(
                SPARK_DAEMON_MEMORY="256m",
                SPARK_DAEMON_JAVA_OPTS=os.environ.get("SPARK_SUBMIT_OPTS", ""),
                SPARK_NO_DAEMONIZE="1",
            ),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        self._listener = threading.Thread(target=self._listen)
        self._listener.start()

    def _listen(self) -> None:
        assert self._process.stdout is not None
        with self._process.stdout as lines:
            for line in lines:
                self._said.put(line)

    def wait_for(self, words: str) -> str:
        """What the log says where the pattern fits."""
        seen = []
        while True:
            try:
                seen.append(self._said.get(timeout=WAIT_SECONDS))
            except queue.Empty:
                pytest.fail(f"{self.name} did not say {words!r}: {''.join(seen)}")
            if match := re.search(words, seen[-1]):
                return match[0]

    def stop(self) -> None:
        self._process.terminate()
        try:
            self._process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
        self._listener.join()


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[str]:
    """The address of a master with two workers of one core each."""
    running: list[Daemon] = []
    try:
        there = ("--host", "127.0.0.1", "--port", "0", "--webui-port", "0")
        running.append(Daemon("master.Master", *there))
        address = running[0].wait_for(r"spark://127\.0\.0\.1:\d+")
        for number in range(2):
            work = ("--work-dir", str(tmp_path / f"worker-{number}"), "--cores", "1")
            running.append(Daemon("worker.Worker", *there, *work, "--memory", "600m", address))
        for worker in running[1:]:
            worker.wait_for("Successfully registered with master")
        yield address
    finally:
        for one in reversed(running):
            one.stop()


@pytest.fixture
def run(
    start_server: Callable[..., ServerProcess], tmp_path: Path
) -> Callable[[dict[str, str]], dict[str, Any]]:
    """The program over sealed records, and what both it and the server have to say."""

    def run(place: dict[str, str]) -> dict[str, Any]:
        server = start_server(checkpoint_age_ms=50, segment_max_events=10_000)
        with Client(server.url) as client:
            fill(client, "source", ROWS, size=20_000)
            seal(client, "source")
            arguments = [server.url, "source", "target", str(tmp_path / "checkpoint")]
            done = subprocess.run(
                [sys.executable, "-m", "tests.support.spark_program", *arguments],
                env=environment(**place),
                cwd=tmp_path,
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
            )
            assert done.returncode == 0, done.stdout + done.stderr[-8_000:]
            assert "Warning" not in done.stderr, done.stderr
            said: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
            check(said, client)
            return said

    return run


def check(said: dict[str, Any], client: Client) -> None:
    assert sum(rows for _, _, rows, _ in said["read"]) == ROWS
    assert sum(seqs for *_, seqs in said["read"]) == ROWS * (ROWS + 1) // 2
    assert {task for task, *_ in said["read"]} == set(range(TASKS))
    for target in ("target", "target-streamed"):
        found: list[int] = []
        page = client.diff_arrow(target)
        while page.table.num_rows:
            found += map(int, page.table["data"].to_pylist())
            page = client.diff_arrow(target, page.next_from_seq)
        assert sorted(found) == list(range(1, ROWS + 1)), target
    assert said["query"] == [
        [f"t{n}", ROWS // 3, sum(range(n or 3, ROWS + 1, 3)), ROWS // 3] for n in range(3)
    ]
    tags = rows_of(11, ROWS - 10)["tag"].to_pylist()
    assert said["filtered"] == tags.count("t1")
    assert "did you mean columns" in said["mistake"]


def test_a_cluster_of_two_workers(
    cluster: str, run: Callable[[dict[str, str]], dict[str, Any]]
) -> None:
    said = run({MASTER_VARIABLE: cluster})
    # Both have read, side by side.
    assert len({executor for _, executor, _, _ in said["read"]}) == 2


def test_spark_connect(run: Callable[[dict[str, str]], dict[str, Any]]) -> None:
    run({REMOTE_VARIABLE: "local[2]"})
