"""`kill -9` of the driver and of the server under a query: every record arrives exactly once."""

from __future__ import annotations

import contextlib
import json
import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from headrace.client import Client
from headrace.testing.process import ServerProcess
from tests.support.checkout import ROOT
from tests.support.spark_copying import BATCH_SEQS, TASKS, copy
from tests.support.sweeps import Sweep

SOURCES = ("a", "b")
TARGET = "copied"
WAIT_SECONDS = 240
DELAY_SECONDS_MAX = 0.5
# Files are sealed and merged while the query runs, so that a batch is planned anew over others.
SETTINGS: dict[str, str | int] = {"checkpoint_age_ms": 300, "segment_max_events": 8_000}


class Story:
    """Two topics that grow, a query that copies them, and who is killed when."""

    def __init__(self, directory: Path, seed: int) -> None:
        self.directory = directory
        self.random = random.Random(seed)
        self.server = ServerProcess(directory / "data", **SETTINGS)
        self.client = Client(self.server.url, deadline_ms=WAIT_SECONDS * 1_000)
        self.heads = dict.fromkeys(SOURCES, 0)
        self.checkpoint = str(directory / "checkpoint")
        self.driver: subprocess.Popen[bytes] | None = None
        for topic in (*SOURCES, TARGET):
            self.client.put_topic(topic, {"durability": "disk"})

    def close(self) -> None:
        self.kill_driver()
        self.client.close()
        self.server.kill()

    def grow(self, records: int) -> None:
        for topic in SOURCES:
            count = records + self.random.randrange(1_000)
            self.client.append_arrow(topic, pa.table({"data": ["{}"] * count}))
            self.heads[topic] += count

    @property
    def copied(self) -> int:
        return self.client.topic(TARGET).head_seq

    @property
    def left(self) -> int:
        return sum(self.heads.values()) - self.copied

    def start_driver(self) -> None:
        arguments = [self.server.url, ",".join(SOURCES), TARGET, self.checkpoint]
        with (self.directory / "driver.log").open("ab") as log:
            self.driver = subprocess.Popen(
                [sys.executable, "-m", "tests.support.spark_copying", *arguments],
                cwd=ROOT,
                env={**os.environ, "PYTHONPATH": str(ROOT / "src")},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    def wait_for_some(self) -> None:
        """Until more is copied, but not all, and then a moment of any length."""
        wanted = self.copied + self.random.randrange(self.left // 2)
        deadline = time.monotonic() + WAIT_SECONDS
        while (head := self.copied) <= wanted:
            assert time.monotonic() < deadline, "the query copies nothing"
            assert self.driver is None or self.driver.poll() is None, self.said()
            self.client.diff(TARGET, head, wait_ms=2_000, limit=1)
        time.sleep(self.random.random() * DELAY_SECONDS_MAX)

    def said(self) -> str:
        return (self.directory / "driver.log").read_text()[-4_000:]

    def kill_driver(self) -> None:
        """Python, and the Java it started; those who work for that find out."""
        if self.driver is not None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.driver.pid, signal.SIGKILL)
            self.driver.wait()
            self.driver = None

    def kill_server(self) -> None:
        port = self.server.port
        self.server.kill()
        self.server = ServerProcess(self.directory / "data", port=port, **SETTINGS)

    def finish(self, spark: SparkSession, kills: int = 0) -> None:
        """Copy what is left in this process, while the server is killed so many times."""

        def kill() -> None:
            for _ in range(kills):
                self.wait_for_some()
                self.kill_server()

        query = copy(
            spark, self.server.url, ",".join(SOURCES), TARGET, self.checkpoint, to_the_end=True
        )
        killer = threading.Thread(target=kill)
        killer.start()
        try:
            assert query.awaitTermination(WAIT_SECONDS), "the query does not end"
        finally:
            query.stop()
            killer.join()

    def check(self) -> None:
        """Every record once; what one task writes, batch after batch, is in order."""
        found: dict[str, list[int]] = {topic: [] for topic in SOURCES}
        last: dict[tuple[str, int], int] = {}
        page = self.client.diff_arrow(TARGET)
        while page.table.num_rows:
            for text in page.table["data"].to_pylist():
                topic, seq, task = json.loads(text)
                assert last.get((topic, task), 0) < seq
                last[topic, task] = seq
                found[topic].append(seq)
            page = self.client.diff_arrow(TARGET, page.next_from_seq)
        for topic, head in self.heads.items():
            assert sorted(found[topic]) == list(range(1, head + 1))
        assert {task for _, task in last} == set(range(TASKS))


@pytest.fixture
def make_story(tmp_path: Path) -> Iterator[Callable[[int], Story]]:
    made: list[Story] = []

    def make(seed: int) -> Story:
        made.append(Story(tmp_path, seed))
        return made[-1]

    yield make
    for story in made:
        story.close()


@pytest.mark.slow  # it starts Spark twice
@pytest.mark.timeout(900)  # it waits for two starts of Spark, on whatever machine
def test_the_driver_and_the_server_are_killed(
    spark: SparkSession, make_story: Callable[[int], Story]
) -> None:
    story = make_story(1)
    story.grow(3 * BATCH_SEQS)
    story.start_driver()
    story.wait_for_some()
    story.kill_driver()
    # It was in the middle of its work, or this proves nothing.
    assert story.copied > 0 and story.left > 0
    story.grow(BATCH_SEQS)
    story.finish(spark, kills=1)
    story.check()


@pytest.mark.long
def test_the_driver_and_the_server_are_killed_for_long(
    spark: SparkSession, make_story: Callable[[int], Story], sweep: Sweep
) -> None:
    deadline = time.monotonic() + sweep.seconds
    story = make_story(sweep.seed)
    kills = 0
    while time.monotonic() < deadline:
        story.grow(3 * BATCH_SEQS)
        story.start_driver()
        if story.random.random() < 0.5:
            story.wait_for_some()
            story.kill_server()
        story.wait_for_some()
        story.kill_driver()
        kills += 1
    story.finish(spark)
    story.check()
    print(f"{kills} drivers killed, {sum(story.heads.values())} records copied, each once")
