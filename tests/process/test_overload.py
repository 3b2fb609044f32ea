"""A real server under more load than it can take: what it sheds is time, and it recovers.

Writers send without waiting for answers until the server has stood on every rung of its ladder.
Then everything is compared: what was acknowledged is there, once and in its place, what was refused
is not, and what was delivered live is exactly what is stored.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import re
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest

from headrace.engine.governor import COALESCE_ABOVE, RETRY_AFTER_MS, RUNGS
from headrace.testing.process import ServerProcess

TOPICS = [f"t{number}" for number in range(12)]
LOW = "low"
WRITERS = 12
PIPELINED = 48
# Blobs of a writer that are on their way at once: the server is never short of work.
AHEAD = 4
# Longer than any machine needs; only a server that hangs is waited for so long.
PATIENCE_SECONDS = 60.0
LOOK_SECONDS = 0.05

_ANSWER = re.compile(rb"HTTP/1\.1 (\d+)[^\r]*\r\n(.*?)\r\n\r\n", re.DOTALL)
Reached = Callable[[dict[str, float]], object]

_METRIC = re.compile(r"^(headrace_\w+(?:\{[^}]*\})?) ([\d.e+-]+)$", re.MULTILINE)


class Answer:
    """One answer of many on a connection."""

    def __init__(self, status: int, headers: str, body: bytes) -> None:
        self.status = status
        self.headers = headers.lower()
        self.body: dict[str, Any] = json.loads(body)


class Connection:
    """A connection that sends whatever it is given, and counts answers as they come."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self.writer = writer
        self._rest = b""

    async def answer(self) -> Answer:
        """The next answer."""
        while True:
            head = _ANSWER.match(self._rest)
            if head is not None:
                headers = head[2].decode()
                found = re.search(r"content-length: (\d+)", headers.lower())
                assert found is not None, headers
                end = head.end() + int(found[1])
                if len(self._rest) >= end:
                    body, self._rest = self._rest[head.end() : end], self._rest[end:]
                    return Answer(int(head[1]), headers, body)
            data = await self._reader.read(1 << 18)
            assert data, "the server hung up"
            self._rest += data

    async def ask(self, method: str, path: str, body: object = None) -> Answer:
        self.writer.write(request(method, path, b"" if body is None else json.dumps(body).encode()))
        return await self.answer()

    async def rest(self) -> AsyncIterator[bytes]:
        """Whatever comes, until the end."""
        while data := await self._reader.read(1 << 18):
            yield data


def request(method: str, path: str, body: bytes, more: bytes = b"") -> bytes:
    head = f"{method} {path} HTTP/1.1\r\nhost: localhost\r\ncontent-length: {len(body)}\r\n"
    return head.encode() + b"content-type: application/json\r\n" + more + b"\r\n" + body


class Network:
    """Connections to a server, which are closed in the end."""

    def __init__(self, server: ServerProcess) -> None:
        self._server = server
        self._writers: list[asyncio.StreamWriter] = []

    async def open(self) -> Connection:
        reader, writer = await asyncio.open_connection(self._server.host, self._server.port)
        self._writers.append(writer)
        return Connection(reader, writer)

    async def close(self) -> None:
        for writer in self._writers:
            writer.close()
            with contextlib.suppress(OSError):
                await writer.wait_closed()

    async def figures(self) -> dict[str, float]:
        connection = await self.open()
        connection.writer.write(request("GET", "/v0/metrics", b"", b"connection: close\r\n"))
        text = b"".join([data async for data in connection.rest()]).decode()
        return {name: float(value) for name, value in _METRIC.findall(text)}

    async def wait_for(self, what: str, reached: Reached) -> dict[str, float]:
        """Look until something holds."""
        now: dict[str, float] = {}
        for _ in range(int(PATIENCE_SECONDS / LOOK_SECONDS)):
            now = await self.figures()
            if reached(now):
                return now
            await asyncio.sleep(LOOK_SECONDS)
        told = ("headrace_pressure", "headrace_throttle", "headrace_scheduler")
        pytest.fail(f"{what}: not reached; {[i for i in now.items() if i[0].startswith(told)]}")


class Writer:
    """Sends appends without waiting for answers; the n-th answer is that of the n-th append."""

    def __init__(self, number: int, connection: Connection) -> None:
        self.number = number
        self.sent: list[tuple[str, str]] = []  # topic, data
        self.answers: list[Answer] = []
        self._connection = connection

    async def flood(self, stop: asyncio.Event) -> None:
        under_way = 0
        while not stop.is_set() or under_way:
            while not stop.is_set() and under_way < AHEAD * PIPELINED:
                self._connection.writer.write(self._blob())
                under_way += PIPELINED
            self.answers.append(await self._connection.answer())
            under_way -= 1
        await self._connection.writer.drain()

    def _blob(self) -> bytes:
        requests = []
        for _ in range(PIPELINED):
            count = len(self.sent)
            topic = LOW if count % 50 == 0 else TOPICS[(count + self.number) % len(TOPICS)]
            data = f"{self.number}:{count}"
            self.sent.append((topic, data))
            body = b'{"records":[{"data":"%b"}]}' % data.encode()
            requests.append(request("POST", f"/v0/topics/{topic}", body))
        return b"".join(requests)


class Watcher:
    """Follows topics, and keeps what it is given."""

    def __init__(self) -> None:
        self.records: dict[str, list[tuple[int, str]]] = {}
        self.paced = 0

    async def follow(self, connection: Connection, topics: list[str]) -> None:
        asked = await connection.ask("POST", "/v0/watch", {"topics": {name: {} for name in topics}})
        self.records = {name: [] for name in topics}
        connection.writer.write(request("GET", asked.body["stream_url"], b""))
        rest = b""
        async for data in connection.rest():
            *lines, rest = (rest + data).split(b"\n")
            for line in lines:
                if line.startswith(b"data: {"):
                    self._hear(json.loads(line[6:]))

    def _hear(self, data: dict[str, Any]) -> None:
        if "records" in data:
            found = [(record["$seq"], record["data"]) for record in data["records"]]
            self.records[data["topic"]] += found
        elif data.get("code") == "throttled":
            assert data["status"] == 429 and data["retry_after_ms"] >= 0
            self.paced += 1

    def heads(self) -> dict[str, int]:
        return {name: records[-1][0] if records else 0 for name, records in self.records.items()}


def rung(now: dict[str, float], name: str, kind: str = "entered_total") -> float:
    return now[f'headrace_throttle_{kind}{{rung="{name}"}}']


def all_rungs(now: dict[str, float]) -> bool:
    return all(rung(now, name) for name in RUNGS)


def calm(now: dict[str, float]) -> bool:
    standing = any(rung(now, name, "rung") for name in RUNGS)
    return not standing and now["headrace_pressure"] <= COALESCE_ABOVE


async def read_all(connection: Connection, topic: str) -> list[tuple[int, str]]:
    records: list[tuple[int, str]] = []
    while True:
        at = records[-1][0] if records else 0
        page = await connection.ask(
            "POST", f"/v0/topics/{topic}/diff", {"from_seq": at, "limit": 1_000}
        )
        assert page.status == 200 and page.body["tombstone"] is None
        records += [(record["$seq"], record["data"]) for record in page.body["records"]]
        if page.body["caught_up"]:
            return records


def check_answers(writers: list[Writer]) -> dict[str, dict[int, str]]:
    """What was acknowledged, by topic and seq; everything else was refused in the right way."""
    stored: dict[str, dict[int, str]] = {name: {} for name in (*TOPICS, LOW)}
    for writer in writers:
        assert len(writer.answers) == len(writer.sent)
        for (topic, data), answer in zip(writer.sent, writer.answers, strict=True):
            if answer.status == 200:
                seq = answer.body["first_seq"]
                assert answer.body["topic"] == topic and seq not in stored[topic]
                stored[topic][seq] = data
            else:
                assert answer.status == 429, answer.body
                assert answer.body["error"]["detail"]["retry_after_ms"] == RETRY_AFTER_MS
                assert "retry-after: 1" in answer.headers
    return stored


async def overload(network: Network) -> None:
    control = await network.open()
    for number, name in enumerate(TOPICS):
        config = {"durability": "fsync"} if number % 2 else {}
        await control.ask("PUT", f"/v0/topics/{name}", config)
    await control.ask("PUT", f"/v0/topics/{LOW}", {"priority": -100})
    watchers = [Watcher() for _ in range(6)]
    following = [
        asyncio.create_task(watcher.follow(await network.open(), [*TOPICS, LOW]))
        for watcher in watchers
    ]
    stop = asyncio.Event()
    writers = [Writer(number, await network.open()) for number in range(WRITERS)]
    flooding = [asyncio.create_task(writer.flood(stop)) for writer in writers]
    try:
        await network.wait_for(
            "the last rung",
            lambda now: all_rungs(now) and now["headrace_throttle_refused_total"],
        )
    finally:
        stop.set()
    await asyncio.gather(*flooding)
    after = await network.wait_for("calm", calm)
    assert all_rungs(after)

    stored = check_answers(writers)
    for name, expected in stored.items():
        assert await read_all(control, name) == sorted(expected.items()), name
        assert sorted(expected) == list(range(1, len(expected) + 1)), "no seq is skipped"
    # One more of each, which comes at once now, tells that nothing is held back any longer.
    for name in stored:
        answer = await control.ask("POST", f"/v0/topics/{name}", {"records": [{"data": "last"}]})
        assert answer.status == 200
        stored[name][answer.body["first_seq"]] = "last"
    heads = {name: len(expected) for name, expected in stored.items()}
    await network.wait_for("delivery", lambda _now: all(w.heads() == heads for w in watchers))
    for watcher in watchers:
        for name, expected in stored.items():
            assert watcher.records[name] == sorted(expected.items()), name
    for task in following:
        task.cancel()
    await asyncio.gather(*following, return_exceptions=True)


async def closing(network: Network) -> None:
    try:
        await overload(network)
    finally:
        await network.close()


def test_an_overload_costs_time_and_nothing_else(tmp_path: Path) -> None:
    with ServerProcess(tmp_path, wal_queue_depth_max=8) as server:
        asyncio.run(closing(Network(server)))
