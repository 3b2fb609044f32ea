"""Topics with `cold_reads`, over the wire: what caps took is read from a real lake, as it was."""

from __future__ import annotations

import json
import os
import re
import threading
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from websockets.sync.client import connect

from headrace.client import Client
from headrace.core.errors import LakeCorrupt, LakeUnavailable
from headrace.lake.tables.layout import Lake
from headrace.testing.process import ServerProcess
from tests.support.lakes import Bench
from tests.support.sealed_topics import fill

COLD = {"cap_records": 5, "cold_reads": "lake"}


class Place:
    """A data directory with its lake, whose server can be stopped and killed."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.lake = Lake(str(directory / "lake"))
        self.open()

    def open(self) -> None:
        self.server = ServerProcess(self.directory, checkpoint_age_ms=50)
        self.client = Client(self.server.url)
        self.bench = Bench(self.server, self.client, self.lake)

    def close(self, *, kill: bool = False) -> None:
        self.client.close()
        if kill:
            self.server.kill()
        else:
            assert self.server.stop() == 0

    def again(self, *, kill: bool) -> None:
        self.close(kill=kill)
        self.open()

    def sync(self, topic: str) -> None:
        result = self.bench.sync(topic)
        assert result.error is None and result.reported, result

    def seqs(self, topic: str, from_seq: int = 0) -> list[int]:
        """All that a reader gets who is told of no loss."""
        found = []
        while True:
            page = self.client.diff(topic, from_seq, limit=40)
            assert page.tombstone is None, page.tombstone
            found += [record.seq for record in page.records]
            if page.caught_up:
                return found
            from_seq = page.next_from_seq


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Place]:
    place = Place(tmp_path / "data")
    try:
        yield place
    finally:
        place.close()


def bodies(place: Place, topic: str) -> list[bytes]:
    """The records of each page, as they are on the wire."""
    found, cursor = [], 0
    while True:
        answer = httpx.post(
            f"{place.server.url}/v0/topics/{topic}/diff",
            json={"from_seq": cursor, "limit": 64, "include_tags": True},
        )
        assert answer.status_code == 200, answer.text
        (records,) = re.findall(rb'"records":(\[.*\]),"next_from_seq"', answer.content)
        found.append(records)
        page = json.loads(answer.content)
        assert page["tombstone"] is None
        if page["caught_up"]:
            return found
        cursor = page["next_from_seq"]


def test_the_same_bytes_as_before(place: Place, topic: str) -> None:
    client = place.client
    client.put_topic(topic, {"cold_reads": "lake"})
    fill(client, topic, 300)
    client.append(topic, [{"a": 1.50, "ü": [None, True]}, "text", 7])
    before, columns = bodies(place, topic), client.diff_arrow(topic, 0)
    place.sync(topic)
    client.put_topic(topic, COLD)
    assert client.topic(topic).earliest_seq == 299
    assert bodies(place, topic) == before
    after = client.diff_arrow(topic, 0)
    assert after.table.replace_schema_metadata(None).equals(
        columns.table.replace_schema_metadata(None)
    )
    page = client.diff(topic, 290, limit=100)
    assert [record.seq for record in page.records] == list(range(291, 304))
    assert page.performance["lake_records_read"] == 8
    assert "lake_records_read" not in client.diff(topic, 298).performance
    metrics = lake_metrics(place)
    assert metrics["headrace_lake_read_records_total"] >= 2 * 298
    assert metrics["headrace_lake_read_errors_total"] == 0


def lake_metrics(place: Place) -> dict[str, float]:
    text = place.client.metrics_text()
    found = re.findall(r"^(headrace_lake\w+) ([0-9.e+]+)$", text, re.MULTILINE)
    return {name: float(value) for name, value in found}


@pytest.mark.parametrize("kill", [False, True])
def test_deletes_restarts_and_kills(place: Place, topic: str, kill: bool) -> None:
    client = place.client
    client.put_topic(topic, {"cold_reads": "lake"})
    fill(client, topic, 100)
    client.delete_records(topic, match="t1")  # before it is archived
    place.sync(topic)
    client.delete_records(topic, match="t2")  # after that
    client.put_topic(topic, COLD)
    client.delete_records(topic, match="t4")  # and of what the server does not hold
    client.delete_records(topic, before_seq=10)
    gone = {n for n in range(1, 101) if (n % 3 and n % 10 in (1, 2, 4)) or n < 10}
    due = [n for n in range(1, 101) if n not in gone]
    assert place.seqs(topic) == due
    place.again(kill=kill)
    assert place.seqs(topic) == due
    fill(place.client, topic, 5, 101)  # pushes out what is left
    assert place.client.topic(topic).earliest_seq == 101
    page = place.client.diff(topic, 0, limit=200)
    assert [record.seq for record in page.records] == [*due, *range(101, 106)]
    place.sync(topic)
    place.again(kill=kill)
    assert place.seqs(topic) == [*due, *range(101, 106)]


def test_streams_from_the_beginning(place: Place, topic: str) -> None:
    client = place.client
    client.put_topic(topic, {"cold_reads": "lake"})
    fill(client, topic, 50)
    place.sync(topic)
    client.put_topic(topic, COLD)
    asked = {"topics": {topic: {"from_seq": 0}}, "limit": 20}
    session = httpx.post(f"{place.server.url}/v0/watch", json=asked).json()
    with httpx.stream("GET", place.server.url + session["stream_url"], timeout=30) as stream:
        assert up_to_50(stream.iter_lines()) == list(range(1, 51))
    with connect(f"ws://{place.server.address}/v0/ws") as socket:
        socket.send(json.dumps({"op": "subscribe", "topic": topic, "from_seq": 0, "limit": 20}))
        assert up_to_50(map(str, socket)) == list(range(1, 51))


def up_to_50(lines: Iterable[str]) -> list[int]:
    """The seqs of records in what a stream says; nothing is announced as lost."""
    seen: list[int] = []
    for line in lines:
        assert "tombstone" not in line and '"error"' not in line, line
        seen += [int(seq) for seq in re.findall(r'"\$seq":(\d+)', line)]
        if seen and seen[-1] >= 50:
            break
    return seen


def test_a_lake_that_is_gone(place: Place, topic: str) -> None:
    client = place.client
    client.put_topic(topic, {"cold_reads": "lake"})
    fill(client, topic, 30)
    place.sync(topic)
    client.put_topic(topic, COLD)
    away = Path(place.lake.root).with_name("away")
    os.rename(place.lake.root, away)
    with Client(place.server.url, deadline_ms=0) as impatient:
        with pytest.raises(LakeUnavailable, match="only in the lake") as wrong:
            impatient.diff(topic, 0)
        assert wrong.value.detail == {"topic": topic, "first_seq": 1}
        assert [record.seq for record in impatient.diff(topic, 25).records] == list(range(26, 31))
        impatient.append(topic, [1])
        os.rename(away, place.lake.root)
        assert impatient.diff(topic, 0, limit=1).records[0].seq == 1


def test_nobody_waits_for_a_read_from_the_lake(place: Place, topic: str) -> None:
    """A file that cannot be opened for as long as we like: a pipe that nobody writes to."""
    client = place.client
    client.put_topic(topic, {"cold_reads": "lake"})
    fill(client, topic, 30)
    place.sync(topic)
    client.put_topic(topic, COLD)
    (file,) = Path(place.lake.root).rglob("day=*/*.parquet")
    content = file.read_bytes()
    file.unlink()
    os.mkfifo(file)
    wrong: list[Exception] = []

    def read() -> None:
        with Client(place.server.url) as other:
            try:
                other.diff(topic, 0)
            except LakeCorrupt as error:
                wrong.append(error)

    thread = threading.Thread(target=read)
    thread.start()
    try:
        for n in range(20):
            client.append(topic, [n])
            assert client.diff(topic, 26 + n).records
        assert thread.is_alive() and not wrong
    finally:
        os.close(os.open(file, os.O_WRONLY))
        thread.join()
    assert len(wrong) == 1 and file.name in str(wrong[0])
    file.unlink()
    file.write_bytes(content)
    assert client.diff(topic, 0, limit=1).records[0].seq == 1


def test_what_is_refused(place: Place) -> None:
    def put(body: dict[str, object]) -> Any:
        return httpx.put(f"{place.server.url}/v0/topics/x", json=body)

    for wrong in ({"type": "queue"}, {"durability": "ephemeral"}, {"cold_reads": "ice"}):
        answer = put({"cold_reads": "lake", **wrong})
        assert (answer.status_code, answer.json()["error"]["code"]) == (400, "invalid_request")
    config = put({"cold_reads": "lake"}).json()["config"]
    assert (config["cold_reads"], config["retain_bytes_max"]) == ("lake", 0)
    assert "cold_reads" not in put({}).json()["config"]
