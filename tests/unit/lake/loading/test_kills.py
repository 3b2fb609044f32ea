"""The real commands, killed in the middle, and started again: every row is there exactly once."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.compute as pc
import pytest

from headrace.client import Client
from headrace.core.errors import TopicNotFound
from headrace.lake.tables.layout import Lake
from headrace.testing.process import ServerProcess
from tests.support.checkout import SOURCES
from tests.support.lakes import Bench
from tests.support.sealed_topics import SETTINGS

TOPIC = "orders"
FILES = 5


def write(place: Path, rows: int) -> list[str]:
    """Files of numbered rows with as many bytes as an order has."""
    paths = []
    for number in range(FILES):
        path = place / f"part-{number}.jsonl"
        first, last = rows * number // FILES, rows * (number + 1) // FILES
        with path.open("w") as file:
            for start in range(first, last, 10_000):
                numbers = range(start, min(last, start + 10_000))
                file.writelines(f'{{"n":{n},"x":"{n * 7:0120d}"}}\n' for n in numbers)
        paths.append(str(path))
    return paths


def command(*words: str) -> subprocess.Popen[bytes]:
    package = str(SOURCES)
    environment = {**os.environ, "PYTHONPATH": package}
    return subprocess.Popen(
        [sys.executable, "-P", "-m", "headrace", *words, "--json"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=environment,
    )


def count_of(client: Client, topic: str) -> int:
    try:
        return client.topic(topic, touch=False).count
    except TopicNotFound:
        return 0


def started(client: Client, topic: str, count: int, words: list[str]) -> subprocess.Popen[bytes]:
    """The command, once the topic has more than so many records."""
    process = command(*words)
    while count_of(client, topic) <= count:
        assert process.poll() is None, process.communicate()
        time.sleep(0.002)
    return process


def killed_at(client: Client, topic: str, count: int, words: list[str]) -> int:
    """Kill the command in the middle; how many records the topic has then."""
    process = started(client, topic, count, words)
    process.kill()
    process.communicate()
    assert process.returncode == -9, "it was done before it could be killed"
    return count_of(client, topic)


def done(words: list[str]) -> Any:
    process = command(*words)
    out, err = process.communicate()
    assert process.returncode == 0, err
    return json.loads(out)


def numbers(client: Client, topic: str) -> Any:
    """The numbers of all records, in their order."""
    found, seq = [], 0
    while True:
        page = client.diff_arrow(topic, seq, limit=50_000, max_batch_bytes=8 << 20)
        texts: Any = page.table["data"].cast("string")
        numbers: Any = pc.struct_field(pc.extract_regex(texts, r'"n":(?P<n>\d+)'), "n")
        found.append(numbers.cast("int64").to_numpy())
        if page.caught_up:
            return np.concatenate(found)
        seq = page.next_from_seq


def check(client: Client, topic: str, rows: int) -> None:
    """Every number once; those of one file in their order."""
    found = numbers(client, topic)
    counts = np.bincount(found, minlength=rows)
    assert (len(found), counts.min(), counts.max()) == (rows, 1, 1)
    if rows < 1_000_000:  # a file is one part
        for number in range(FILES):
            first, last = rows * number // FILES, rows * (number + 1) // FILES
            of_file = found[(found >= first) & (found < last)]
            assert (np.diff(of_file) > 0).all()


def import_killed(place: Path, rows: int, kills: int) -> list[int]:
    paths = write(place, rows)
    with ServerProcess(place / "data") as server, Client(server.url) as client:
        words = ["import", *paths, "--to", TOPIC, "--url", server.url]
        at = [
            killed_at(client, TOPIC, rows * kill // (2 * kills - 2), words) for kill in range(kills)
        ]
        last = done(words)
        assert last["rows_before"] >= at[-1]
        assert last["rows"] + last["rows_before"] == rows
        check(client, TOPIC, rows)
        assert done(words)["rows"] == 0
        return at


def test_import_is_killed(tmp_path: Path) -> None:
    at = import_killed(tmp_path, 120_000, kills=3)
    assert max(at) < 120_000


@pytest.mark.long
def test_import_of_five_million_rows_is_killed(tmp_path: Path) -> None:
    at = import_killed(tmp_path, 5_000_000, kills=3)
    assert 2_500_000 < max(at) < 5_000_000


def test_the_server_is_killed_meanwhile(tmp_path: Path) -> None:
    """The command waits for it, and goes on by itself."""
    rows, paths = 120_000, write(tmp_path, 120_000)
    server = ServerProcess(tmp_path / "data")
    words = ["import", *paths, "--to", TOPIC, "--url", server.url]
    try:
        with Client(server.url) as client:
            process = started(client, TOPIC, rows // 4, words)
            server.kill()
            server = ServerProcess(tmp_path / "data", port=int(server.url.rpartition(":")[2]))
            out, err = process.communicate()
            assert process.returncode == 0, err
            assert json.loads(out)["rows"] > 0
            check(client, TOPIC, rows)
    finally:
        server.kill()


@pytest.mark.slow
def test_two_at_once_and_one_is_interrupted(tmp_path: Path) -> None:
    rows, paths = 120_000, write(tmp_path, 120_000)
    with ServerProcess(tmp_path / "data") as server, Client(server.url) as client:
        words = ["import", *paths, "--to", TOPIC, "--url", server.url]
        first = started(client, TOPIC, 0, words)
        second = command(*words)
        first.send_signal(signal.SIGINT)
        _, err = first.communicate()
        assert first.returncode == 130, err
        assert b"the same command goes on" in err
        third = command(*words)
        found = [json.loads(process.communicate()[0]) for process in (second, third)]
        assert [one["rows"] + one["rows_before"] for one in found] == [rows, rows]
        check(client, TOPIC, rows)


@pytest.mark.slow
def test_replay_is_killed(tmp_path: Path) -> None:
    """Into a topic in order: the bytes and the order of then."""
    rows, to = 120_000, "again"
    paths = write(tmp_path, rows)
    with ServerProcess(tmp_path / "data", **SETTINGS) as server, Client(server.url) as client:
        done(["import", *paths, "--to", TOPIC, "--url", server.url])
        lake = Lake(str(tmp_path / "lake"))
        assert Bench(server, client, lake).sync(TOPIC).error is None
        words = ["lake", "replay", TOPIC, "--to", to, "--lake", lake.root, "--url", server.url]
        words += ["--in-order"]
        killed_at(client, to, 0, words)
        killed_at(client, to, rows // 2, words)
        last = done(words)
        assert last["resumed"]
        assert (numbers(client, to) == numbers(client, TOPIC)).all()
        check(client, to, rows)
