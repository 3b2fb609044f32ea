"""`headrace lake sync` as a process with Spark of its own, killed and interrupted as it goes."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from headrace.client import Client
from headrace.lake.tables.layout import Lake
from headrace.lake.tables.tasks import run_inline
from headrace.lake.writing.verify import verify
from headrace.testing.process import ServerProcess
from tests.support.checkout import ROOT
from tests.support.lakes import Bench, accounted, gaps_in, rows_in
from tests.support.sealed_topics import SETTINGS, fill, rows_of
from tests.support.sweeps import Sweep

TOPIC = "orders"


class Filling(threading.Thread):
    """Appends until it is told to stop."""

    def __init__(self, url: str) -> None:
        super().__init__()
        self._url = url
        self._done = threading.Event()
        self.count = 0

    def run(self) -> None:
        with Client(self._url) as client:
            while not self._done.wait(0.05):
                fill(client, TOPIC, 500, self.count + 1)
                self.count += 500

    def stop(self) -> None:
        self._done.set()
        self.join()


def syncing(server: ServerProcess, lake: Lake) -> subprocess.Popen[bytes]:
    words = ["--topics", TOPIC, "--lake", lake.root, "--url", server.url, "--every", "10ms"]
    return subprocess.Popen(
        [sys.executable, "-m", "headrace", "lake", "sync", *words],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT / "src")},
        start_new_session=True,
    )


@pytest.mark.long
@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    "signals",
    [[signal.SIGKILL] * 2, [signal.SIGINT], [signal.SIGTERM]],
    ids=["kill", "int", "term"],
)
def test_the_command_is_killed_and_interrupted(
    tmp_path: Path, sweep: Sweep, signals: list[signal.Signals]
) -> None:
    chance = random.Random(sweep.seed)
    lake = Lake(str(tmp_path / "lake"))
    with ServerProcess(tmp_path / "data", **SETTINGS) as server, Client(server.url) as client:
        client.put_topic(TOPIC, {"retain_until_archived": True, "cap_records": 5_000})
        filling = Filling(server.url)
        filling.start()
        try:
            for number in signals:
                code, said = _ended(syncing(server, lake), number, chance)
                assert code == (-number if number == signal.SIGKILL else 130), said
                # Java ends by SIGTERM as well, and what Spark runs beside it then says so.
                assert number == signal.SIGTERM or b"Traceback" not in said
        finally:
            filling.stop()
        bench = Bench(server, client, lake)
        assert bench.sync(TOPIC).error is None
        table = bench.table(TOPIC)
        assert accounted(table) == client.topic(TOPIC).head_seq == filling.count
        assert gaps_in(table) == [], "retention has waited"
        found = verify(table, run_inline, client, bench.connection)
        assert found.ok, found.findings
        written = rows_of(1, filling.count)["data"].to_pylist()
        assert [row["data"] for row in rows_in(table)] == written


def _ended(
    process: subprocess.Popen[bytes], number: signal.Signals, chance: random.Random
) -> tuple[int, bytes]:
    """Let it commit something, and a little later end it; its exit code, and what it said."""
    try:
        assert process.stdout is not None
        line = process.stdout.readline()
        assert line.startswith(b"orders: seqs "), process.communicate()
        threading.Event().wait(chance.random())
        os.killpg(process.pid, number)  # as a terminal does, and a service manager
        _, said = process.communicate(timeout=120)
        return process.returncode, said
    finally:
        process.kill()
        process.wait()
