"""`kill -9` of a server of Durable Streams: every acknowledged byte is there once, none twice.

Producers repeat what was not answered, with the same number, until it is.  A reader that follows
goes on from its last offset, whichever life of the server gave it that.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import random
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from headrace.testing.process import ServerProcess
from tests.support.stream_http_calls import (
    BYTES,
    JSON,
    PATIENCE_SECONDS,
    Answer,
    StreamCalls,
)

PRODUCERS = 6
STREAMS = {"kill/bytes": BYTES, "kill/json": JSON, "kill/other bytes": BYTES}
CYCLES = 30
CYCLES_FEW = 4
ANSWERS = (30, 120)  # that a life of the server gives before it ends
SETTINGS = {"log": "error", "ds_long_poll_ms": 500}


class Site:
    """A server on one directory and one port, which is killed and started again."""

    def __init__(self, directory: Path, **settings: str | int) -> None:
        self._directory = directory
        self._settings: dict[str, str | int] = SETTINGS | settings
        self.server = ServerProcess(directory, **self._settings)
        self.host, self.port = self.server.host, self.server.port
        self.done = threading.Event()
        self._answers = threading.Semaphore(0)
        self._failed: list[BaseException] = []

    def kill_and_start(self) -> None:
        self.server.kill()
        self.server = ServerProcess(self._directory, **self._settings | {"port": self.port})

    def answered(self) -> None:
        """One more call was; a life ends after some."""
        self._answers.release()

    def calls(self) -> contextlib.closing[StreamCalls]:
        return contextlib.closing(StreamCalls(self.host, self.port))

    def live(self, cycles: int, works: list[Callable[[], None]]) -> None:
        """Do all work beside a server that lives so many times; every failure is told."""
        chance = random.Random(cycles)
        threads = [threading.Thread(target=self._guarded, args=(work,)) for work in works]
        for thread in threads:
            thread.start()
        try:
            for _ in range(cycles):
                for _ in range(chance.randrange(*ANSWERS)):
                    assert self._answers.acquire(timeout=PATIENCE_SECONDS), self._failed[:3]
                self.kill_and_start()
        finally:
            self.done.set()
            for thread in threads:
                thread.join(180)
        assert not self._failed, self._failed[:3]

    def _guarded(self, work: Callable[[], None]) -> None:
        try:
            work()
        except BaseException as error:  # noqa: BLE001 - told by the thread that waits
            self._failed.append(error)


@contextlib.contextmanager
def site_on(directory: Path, **settings: str | int) -> Iterator[Site]:
    site = Site(directory, **settings)
    try:
        yield site
    finally:
        site.server.kill()


def quoted(path: str) -> str:
    return path.replace(" ", "%20")


def message(kind: str, producer: str, number: int) -> bytes:
    text = f"{producer}:{number}"
    return json.dumps([text, [text]]).encode() if kind == JSON else f"{text};".encode()


class Producer:
    """Numbers its appends, and repeats each until it is answered; then closes its own stream."""

    def __init__(self, site: Site, name: str) -> None:
        self.name = name
        self.sent = dict.fromkeys(STREAMS, 0)
        self.final = ""
        self._site = site
        self._offsets: dict[str, str] = {}

    def work(self) -> None:
        with self._site.calls() as calls:
            own = f"kill/own-{self.name}"
            self._insist_created(calls, own)
            for path in itertools.cycle(STREAMS):
                if self._site.done.is_set():
                    break
                self._append(calls, path, STREAMS[path], self.sent[path])
                self.sent[path] += 1
            self._close(calls, own)

    def _insist_created(self, calls: StreamCalls, path: str) -> None:
        answer = calls.insist("PUT", path, headers={"Content-Type": BYTES})
        assert answer.status in (200, 201), answer

    def _headers(self, number: int, kind: str) -> dict[str, str]:
        return {
            "Content-Type": kind,
            "Producer-Id": self.name,
            "Producer-Epoch": "3",
            "Producer-Seq": str(number),
        }

    def _append(self, calls: StreamCalls, path: str, kind: str, number: int) -> Answer:
        body = message(kind, self.name, number)
        answer = calls.insist("POST", quoted(path), body, self._headers(number, kind))
        assert answer.status in (200, 204), answer
        assert answer.headers["producer-seq"] == str(number)
        self._site.answered()
        if answer.status == 200:
            assert answer.next_offset > self._offsets.get(path, ""), "an offset went back"
            self._offsets[path] = answer.next_offset
        return answer

    def _close(self, calls: StreamCalls, path: str) -> None:
        for number in range(3):
            self._append(calls, path, BYTES, number)
        headers = self._headers(3, BYTES) | {"Stream-Closed": "true"}
        answer = calls.insist("POST", path, b"the end", headers)
        assert answer.status in (200, 204) and answer.headers["stream-closed"] == "true", answer


class Follower:
    """Long polls a stream from its start, and goes on from the last offset it was given."""

    def __init__(self, site: Site, path: str) -> None:
        self.path = path
        self.found: list[bytes] = []
        self.offset = "-1"
        self._site = site

    def work(self) -> None:
        with self._site.calls() as calls:
            while not self._site.done.is_set():
                self.read(
                    calls.insist("GET", quoted(self.path), offset=self.offset, live="long-poll")
                )

    def read(self, answer: Answer) -> None:
        assert answer.status in (200, 204), answer
        if answer.status == 200:
            assert answer.next_offset > self.offset, "an offset went back"
            self.found.append(answer.body)
        self.offset = answer.next_offset


def texts_of(kind: str, bodies: list[bytes]) -> list[str]:
    """The messages of answers, without the copy that each JSON message has."""
    if kind == BYTES:
        return b"".join(bodies).decode().split(";")[:-1]
    values = [value for body in bodies for value in json.loads(body)]
    assert values[1::2] == [[text] for text in values[::2]], "half of an append"
    return values[::2]


@pytest.mark.timeout(240)
@pytest.mark.parametrize("cycles", [CYCLES_FEW, pytest.param(CYCLES, marks=pytest.mark.slow)])
def test_every_acknowledged_byte_is_there_once(tmp_path: Path, cycles: int) -> None:
    with site_on(tmp_path) as site, site.calls() as calls:
        for path, kind in STREAMS.items():
            assert calls.create(quoted(path), kind).status == 201
        producers = [Producer(site, f"p{number}") for number in range(PRODUCERS)]
        followers = [Follower(site, path) for path in STREAMS]
        site.live(cycles, [one.work for one in (*producers, *followers)])
        site.kill_and_start()
        for follower in followers:
            path, kind = follower.path, STREAMS[follower.path]
            pages = list(calls.pages(quoted(path), "-1"))
            texts = texts_of(kind, [page.body for page in pages])
            for producer in producers:
                numbers = [text for text in texts if text.startswith(f"{producer.name}:")]
                assert numbers == [f"{producer.name}:{n}" for n in range(producer.sent[path])]
            assert len(texts) == sum(producer.sent[path] for producer in producers)
            for page in calls.pages(quoted(path), follower.offset):
                follower.found.append(page.body)
            assert texts_of(kind, follower.found) == texts
        for producer in producers:
            (page,) = calls.pages(f"kill/own-{producer.name}", None)
            wanted = [message(BYTES, producer.name, number) for number in range(3)]
            assert page.body == b"".join(wanted) + b"the end"
            assert page.headers["stream-closed"] == "true"
