"""The whole way of an event by a user's means: posted, routed, counted, watched, kept, asked for.

The server and the worker are processes, and events, router and watcher speak HTTP.  What runs Spark
after them (`lake`, `sql`) shares the session of the other tests, or with `long` is a process too.
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
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Self

import pytest

from headrace.cli.main import main
from headrace.client import Client
from headrace.testing.process import ServerProcess
from tests.support.pipeline_workers import WAIT_SECONDS, until
from tests.support.sealed_topics import SETTINGS, seal

Headrace = Callable[..., list[dict[str, Any]]]

NOON = datetime(2026, 3, 1, 12, tzinfo=UTC)
EVERY_SECONDS = 7  # between two events
USERS = ("ada", "bob", "cleo")
PIPELINE = """
sql = \"\"\"
select date_format(window.start, 'HH:mm') as minute, count(*) as clicks
from clicks group by window(event_time, '1 minute')
\"\"\"

[dest]
topic = "clicks.per-minute"

[[sources]]
topic = "clicks"
schema = "user STRING, at TIMESTAMP"
watermark = { delay = "1m", column = "data.at" }
"""
# The same from every record that there ever was, and what the pipeline has said.
COUNTED = (
    "select date_format(data:at::timestamp, 'HH:mm') as minute, count(*) as clicks "
    "from clicks group by 1 order by 1"
)
SAID = "select data:minute::string, data:clicks::bigint, origin from `clicks.per-minute` order by 1"


# Means


@pytest.fixture
def server(tmp_path: Path) -> Iterator[ServerProcess]:
    """One of its own, which seals soon, so that the lake is where answers come from."""
    with ServerProcess(tmp_path / "data", **SETTINGS) as running:
        yield running


def ask(server: ServerProcess, method: str, path: str, body: object = None) -> Any:
    """One request as any program would send it; its answer."""
    connection = http.client.HTTPConnection(server.host, server.port, timeout=WAIT_SECONDS)
    with contextlib.closing(connection):
        sent = None if body is None else json.dumps(body)
        connection.request(method, path, sent, {"Content-Type": "application/json"})
        answer = connection.getresponse()
        text = answer.read()
    assert answer.status in (200, 201), text
    return json.loads(text)


class Watcher(threading.Thread):
    """Follows a topic by SSE, and keeps the data of what comes."""

    def __init__(self, server: ServerProcess, topic: str) -> None:
        super().__init__(daemon=True)
        self.seen: list[Any] = []
        session = ask(server, "POST", "/v0/watch", {"topics": {topic: {}}})
        self._connection = http.client.HTTPConnection(
            server.host, server.port, timeout=WAIT_SECONDS
        )
        self._connection.request("GET", session["stream_url"])
        self._stream = self._connection.sock
        self._answer = self._connection.getresponse()
        assert self._answer.status == 200
        self.start()

    def run(self) -> None:
        event = ""
        for line in self._answer:
            name, _, value = line.decode().rstrip("\n").partition(": ")
            if name == "event":
                event = value
            elif name == "data" and event == "record":
                self.seen += [record["data"] for record in json.loads(value)["records"]]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        """Enough was seen."""
        self._stream.shutdown(socket.SHUT_RDWR)
        self.join(WAIT_SECONDS)
        self._answer.close()
        self._connection.close()


def command(*words: str) -> list[str]:
    return [sys.executable, "-m", "headrace", *words]


def said(text: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in text.splitlines()]


@pytest.fixture(params=["session", pytest.param("processes", marks=pytest.mark.long)])
def headrace(request: pytest.FixtureRequest, capsys: pytest.CaptureFixture[str]) -> Headrace:
    """Runs a command of `headrace`; the documents that it prints."""

    def in_the_session(*words: str) -> list[dict[str, Any]]:
        assert main([*words, "--json"]) == 0, capsys.readouterr().err
        return said(capsys.readouterr().out)

    def as_a_process(*words: str) -> list[dict[str, Any]]:
        done = subprocess.run(command(*words, "--json"), capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        return said(done.stdout)

    if request.param == "processes":
        return as_a_process
    request.getfixturevalue("spark")
    return in_the_session


@contextlib.contextmanager
def worker(server: ServerProcess, directory: Path) -> Iterator[None]:
    """`headrace pipelines run` until the block ends; it has to end well."""
    log = directory / "worker.log"
    place = ["--checkpoints", str(directory / "checkpoints"), "--master", "local[2,4]"]
    with open(log, "wb") as output:
        process = subprocess.Popen(
            command("pipelines", "run", "--url", server.url, *place),
            stdout=output,
            stderr=output,
            start_new_session=True,  # so that a kill reaches Java and its Python workers too
        )
    try:
        yield
        process.send_signal(signal.SIGTERM)
        assert process.wait(WAIT_SECONDS) == 0, log.read_text()
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            print(log.read_text())  # something else went wrong, and here may stand why


# The story


class Events:
    """What is posted, and what should come of it."""

    def __init__(self, server: ServerProcess) -> None:
        self._server = server
        self.posted = 0
        self.clicks: Counter[str] = Counter()

    def post(self, first_minute: int, minutes: int) -> None:
        """Clicks and views of some minutes, newest first; only clicks are to be counted."""
        steps = range(first_minute * 60, (first_minute + minutes) * 60, EVERY_SECONDS)
        self._send([NOON + timedelta(seconds=second) for second in reversed(steps)])

    def _send(self, times: list[datetime]) -> None:
        records = []
        for number, at in enumerate(times):
            kind = "view" if number % 4 == 0 else "click"
            if kind == "click":
                self.clicks[f"{at:%H:%M}"] += 1
            user = USERS[number % len(USERS)]
            data = {"user": user, "at": at.isoformat()}
            records.append({"data": data, "tag": f"{kind}:{user}"})
        ask(self._server, "POST", "/v0/topics/web", {"records": records})
        self.posted += len(records)

    def counts(self, minutes: int) -> list[tuple[str, int]]:
        """The first minutes, by the model."""
        return sorted(self.clicks.items())[:minutes]


def pairs(found: list[Any]) -> list[tuple[str, int]]:
    return sorted((one["minute"], one["clicks"]) for one in found)


def state(server: ServerProcess) -> str:
    found: str = ask(server, "GET", "/v0/pipelines/per-minute")["state"]
    return found


@pytest.mark.timeout(900)
def test_the_story(server: ServerProcess, headrace: Headrace, tmp_path: Path) -> None:
    declared = tmp_path / "per-minute.toml"
    declared.write_text(PIPELINE)
    clicks_only = {"source": "web", "dest": "clicks", "filter": "click:*"}
    events = Events(server)
    with contextlib.ExitStack() as stack:
        with worker(server, tmp_path):
            ask(server, "PUT", "/v0/routers/web-clicks", clicks_only)
            ask(server, "PUT", "/v0/topics/clicks.per-minute", {})
            headrace("pipelines", "put", "per-minute", str(declared), "--url", server.url)
            watcher = stack.enter_context(Watcher(server, "clicks.per-minute"))

            # A minute is told as soon as it is over, while events go on.
            events.post(0, 3)
            until(lambda: state(server) == "running", "the worker has it")
            until(lambda: pairs(watcher.seen) == events.counts(1), "the first minute")
            assert state(server) == "running"
            events.post(2, 4)  # of which one minute had begun before
            until(lambda: pairs(watcher.seen) == events.counts(4), "four minutes")
            events.post(10, 1)  # later than all others by more than a minute
            until(lambda: pairs(watcher.seen) == events.counts(6), "all minutes but the last")
        kept_and_asked(server, headrace, events, tmp_path / "lake")
    assert pairs(watcher.seen) == events.counts(6), "each minute came once"


def kept_and_asked(server: ServerProcess, headrace: Headrace, events: Events, lake: Path) -> None:
    """The lake has every record, and answers also when the server has forgotten them."""
    topics = ["clicks", "clicks.per-minute", "web"]
    place = ["--lake", str(lake), "--url", server.url]
    with Client(server.url) as client:
        for topic in topics:
            seal(client, topic)
    (synced,) = headrace("lake", "sync", "--topics", ",".join(topics), *place)
    clicks = sum(events.clicks.values())
    rows = {one["topic"]: one["rows"] for one in synced["topics"]}
    assert rows == {"web": events.posted, "clicks": clicks, "clicks.per-minute": 6}
    (verified,) = headrace("lake", "verify", *place)
    found = {one["topic"]: (one["ok"], one["compared"]) for one in verified["tables"]}
    assert found == {topic: (True, count) for topic, count in rows.items()}

    ask(server, "PUT", "/v0/topics/clicks", {"cap_records": 1})
    until(lambda: ask(server, "GET", "/v0/topics/clicks")["count"] == 1, "the server forgets")
    counted, told = headrace("sql", f"{COUNTED}; {SAID}", "--origin", *place)
    assert [tuple(row) for row in counted["rows"]] == events.counts(7)
    assert [tuple(row) for row in told["rows"]] == [(*row, "lake") for row in events.counts(6)]
