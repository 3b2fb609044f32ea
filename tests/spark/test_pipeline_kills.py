"""Workers as processes that are killed, stopped and put to sleep: no result is lost or doubled.

Every output mode and every kind of destination at once, against a model's answer.
"""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from headrace.client import Client, Draft
from headrace.testing.process import ServerProcess
from tests.support.pipeline_workers import all_records, rows_of_table, until
from tests.support.sweeps import Sweep

pytestmark = pytest.mark.long

LEASE_MS = 8_000
KILLS_MIN = 2
KILLS_MAX = 40
START = datetime(2026, 1, 31, 12, tzinfo=UTC)
SCHEMA = "n BIGINT, at TIMESTAMP"


def at(number: int) -> datetime:
    """When an event was: ten seconds after the one before."""
    return START + timedelta(seconds=10 * number)


# Groups of pipelines that run together; the last one of each says how far it is by itself.
GROUPS = (("each", "totals", "all-table"), ("once", "all", "minutes", "each-table"))


class Work:
    """Pipelines over one topic, what was appended to it, and what should come of it."""

    def __init__(self, client: Client, topic: str, tables: Path, group: tuple[str, ...]) -> None:
        self.client, self.topic, self.tables, self.group = client, topic, tables, group
        self.count = 0
        self.names = [f"{topic}.{what}" for what in group]
        client.put_topic(topic)
        source: dict[str, Any] = {"topic": topic, "alias": "t", "schema": SCHEMA}
        late = {**source, "watermark": {"delay": "1m", "column": "data.at"}}
        each = "select seq as source_seq, data.n, tag as of from t"
        totals = "select tag as of, count(*) as n, sum(data.n) as sum from t group by tag"
        minutes = (
            "select date_format(window.start, 'HH:mm') as minute, count(*) as n from t "
            "group by window(event_time, '1 minute')"
        )
        for what in group:
            sql = {
                "each": each,
                "each-table": each,
                "minutes": minutes,
                "once": "select data.n from t",
            }
            mode = {"totals": "update", "all": "complete", "all-table": "complete"}
            reads = late if what in ("once", "minutes") else source
            declared = {
                "sources": [{**reads, "unique_by": ["data.n"]} if what == "once" else reads],
                "sql": sql.get(what, totals),
                "output_mode": mode.get(what, "append"),
                "dest": {"table": f"{topic}.{what}"}
                if "table" in what
                else {"topic": f"{topic}.{what}.out"},
            }
            client.put_pipeline(f"{topic}.{what}", declared)

    def append(self, count: int) -> None:
        """So many events, each of them twice."""
        self._send([n for n in range(self.count, self.count + count) for _ in range(2)])
        self.count += count

    def _send(self, numbers: list[int]) -> None:
        drafts = [
            Draft({"n": n, "at": at(n).strftime("%Y-%m-%dT%H:%M:%SZ")}, tag=f"t{n % 3}")
            for n in numbers
        ]
        self.client.append(self.topic, drafts)

    def out(self, what: str) -> list[Any]:
        if "table" in what:
            return rows_of_table(self.tables / f"{self.topic}.{what}")
        return all_records(self.client, f"{self.topic}.{what}.out")

    def counted(self) -> int:
        """Records that the last of the group has read: when it has begun, all have."""
        rows = self.out(self.group[-1])
        return len(rows) if self.group[-1] == "each-table" else sum(row["n"] for row in rows)

    def check(self) -> None:
        """Wait for everything, and see that it came once."""
        last = self.count + 1_000
        self._send([last])  # much later: it ends every minute before it
        events = [n for n in range(self.count) for _ in range(2)]
        for what in self.group:
            if what.startswith("each"):
                self._check_each(what, [*events, last])
            elif what == "once":
                self._check_rows(what, "n", [*range(self.count), last])
            elif what == "minutes":
                self._check_minutes(events)
            else:
                self._check_totals(what, [*events, last])

    def _check_rows(self, what: str, column: str, expected: list[int]) -> None:
        until(lambda: len(self.out(what)) >= len(expected), f"all rows of {what}")
        assert sorted(row[column] for row in self.out(what)) == expected, what

    def _check_each(self, what: str, events: list[int]) -> None:
        self._check_rows(what, "source_seq", list(range(1, len(events) + 1)))
        assert all(row["n"] == events[row["source_seq"] - 1] for row in self.out(what)), what

    def _check_minutes(self, events: list[int]) -> None:
        expected = Counter(at(n).strftime("%H:%M") for n in events)
        until(lambda: len(self.out("minutes")) >= len(expected), "all minutes")
        rows = self.out("minutes")
        assert {row["minute"]: row["n"] for row in rows} == expected
        assert len(rows) == len(expected), "a minute came twice"

    def _check_totals(self, what: str, events: list[int]) -> None:
        """The last word on each tag; an update that came twice is an error."""
        expected: dict[str, tuple[int, int]] = {}
        for n in events:
            count, total = expected.get(f"t{n % 3}", (0, 0))
            expected[f"t{n % 3}"] = count + 1, total + n

        def seen() -> dict[str, tuple[int, int]]:
            found: dict[str, tuple[int, int]] = {}
            for row in self.out(what):
                before = found.get(row["of"], (0, 0))[0]
                assert row["n"] > before or (what == "all" and row["n"] == before), "it went back"
                found[row["of"]] = row["n"], row["sum"]
            return found

        until(lambda: seen() == expected, f"the last of {what}")
        if what == "all-table":
            assert len(self.out(what)) == len(expected)


class WorkerProcess:
    """`headrace pipelines run` as a process of its own, and of its own group."""

    def __init__(self, url: str, directory: Path, number: int) -> None:
        self.log = directory / f"worker-{number}.log"
        words = ["--url", url, "--lease", f"{LEASE_MS}ms", "--node", f"w{number}", "--json"]
        words += ["--checkpoints", str(directory / "checkpoints"), "--tables", str(directory)]
        words += ["--master", "local[2,4]", "--conf", "spark.sql.shuffle.partitions=2"]
        with open(self.log, "wb") as stderr:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "headrace", "pipelines", "run", *words],
                stderr=stderr,
                stdout=subprocess.PIPE,
                start_new_session=True,  # so that a signal reaches Java and its Python workers too
                env=os.environ,
            )

    def send(self, number: int) -> None:
        os.killpg(self.process.pid, number)

    def kill(self) -> None:
        self.send(signal.SIGKILL)
        self._reap()

    def stop(self, number: int = signal.SIGTERM, *, group: bool = False) -> int:
        if group:
            self.send(number)
        else:
            self.process.send_signal(number)
        return self._reap()

    def _reap(self) -> int:
        code = self.process.wait(120)
        assert self.process.stdout is not None
        self.process.stdout.close()
        return code


@pytest.fixture(params=GROUPS, ids=lambda group: group[0])
def work(
    request: pytest.FixtureRequest, client: Client, topic: str, tmp_path: Path
) -> Iterator[Work]:
    found = Work(client, topic, tmp_path, request.param)
    yield found
    for name in found.names:
        client.delete_pipeline(name)


@pytest.fixture
def workers() -> Iterator[list[WorkerProcess]]:
    """Those that run; what is left of them at the end is killed."""
    running: list[WorkerProcess] = []
    yield running
    for process in running:
        process.kill()


# Its first kills are due whatever its share: each is followed by another start of Spark, which
# takes a minute on a busy machine.
@pytest.mark.timeout(600)
def test_a_worker_is_killed_again_and_again(
    server: ServerProcess, work: Work, workers: list[WorkerProcess], sweep: Sweep, tmp_path: Path
) -> None:
    chance = random.Random(sweep.seed)
    deadline = time.monotonic() + sweep.seconds
    for number in range(KILLS_MAX):
        if number >= KILLS_MIN and time.monotonic() > deadline:
            break
        workers.append(WorkerProcess(server.url, tmp_path, number))
        work.append(20)
        until(lambda: work.counted() >= 2 * work.count, f"all rows by {number}")
        # Somewhere in the batches that follow.
        for _ in range(chance.randrange(6)):
            work.append(5)
            time.sleep(chance.random() / 2)
        workers.pop().kill()
    workers.append(WorkerProcess(server.url, tmp_path, KILLS_MAX))
    work.append(20)
    work.check()
    last = workers.pop()
    # As Ctrl-C does it: everything that runs in the terminal hears of it.
    assert last.stop(signal.SIGINT, group=True) == 0, last.log.read_text()
    for name in work.names:
        assert work.client.pipeline(name).worker is None, "it was given back"


def test_a_worker_that_slept_for_longer_than_its_lease(
    server: ServerProcess, work: Work, workers: list[WorkerProcess], tmp_path: Path
) -> None:
    """Stopped in the middle of everything; when it goes on, another one has its pipelines."""
    workers.append(WorkerProcess(server.url, tmp_path, 0))
    work.append(20)
    until(lambda: work.counted() >= 40, "the first rows")
    for _ in range(10):
        work.append(5)
        time.sleep(0.1)
    workers[0].send(signal.SIGSTOP)
    try:
        workers.append(WorkerProcess(server.url, tmp_path, 1))
        work.append(20)
        for name in work.names:
            until(lambda n=name: work.client.pipeline(n).worker == "w1", f"{name} has another")
        until(lambda: work.counted() >= 2 * work.count, "it goes on")
    finally:
        workers[0].send(signal.SIGCONT)
    for _ in range(10):
        work.append(5)
        time.sleep(0.1)
    work.check()
    assert {work.client.pipeline(name).worker for name in work.names} == {"w1"}
    assert b"stopping" in workers[0].log.read_bytes(), "the first one noticed"
    for process in reversed(list(workers)):
        assert process.stop() == 0, process.log.read_text()
        workers.remove(process)
