"""A real server under more load than it can take: what it sheds is time, and it recovers.

Writers send without waiting for answers until the server has stood on every rung of its ladder,
and all the while somebody reads.  Rungs come into use in their order.  Then everything is compared:
what was acknowledged is there, once and in its place, what was refused is not, and what was read
and delivered meanwhile is exactly what is stored.  Nothing here depends on how fast the machine is.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import re
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from headrace.engine.scheduling.governor import COALESCE_ABOVE, RETRY_AFTER_MS, RUNGS
from headrace.testing.process import ServerProcess

TOPICS = [f"t{number}" for number in range(12)]
SURE = TOPICS[1::2]  # of class `fsync`
LOW = "low"
OWN = "own"
WRITERS = 12
PIPELINED = 48
# Blobs of a writer that are on their way at once: the server is never short of work.
AHEAD = 4
DEPTH_MAX = 8  # of the log, beyond which an overloaded server refuses
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
        now = {name: float(value) for name, value in _METRIC.findall(text)}
        check_order(now)
        return now

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


class Careful:
    """Writes what must not be refused, more at once than the log should take, and reads it."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self.written: list[tuple[int, str]] = []
        self.seen: dict[str, list[tuple[int, str]]] = {}  # what it read of the others' topics

    async def go_on(self, stop: asyncio.Event) -> None:
        ask = self._connection.ask
        while not stop.is_set() or not self.written:
            sent = [f"own:{len(self.written) + more}" for more in range(2 * DEPTH_MAX)]
            for data in sent:
                body = {"records": [{"data": data}], "disable_backpressure": True}
                encoded = json.dumps(body).encode()
                self._connection.writer.write(request("POST", f"/v0/topics/{OWN}", encoded))
            for data in sent:
                answer = await self._connection.answer()
                assert answer.status in (200, 201), answer.body
                self.written.append((answer.body["first_seq"], data))
            page = await ask("POST", f"/v0/topics/{OWN}/diff", {"limit": 1_000, "last": 20})
            assert records_of(page) == self.written[-20:], "it reads what it has written"
            name = TOPICS[len(self.written) // len(sent) % len(TOPICS)]
            seen = self.seen.setdefault(name, [])
            body = {"from_seq": len(seen), "limit": 100}
            seen += records_of(await ask("POST", f"/v0/topics/{name}/diff", body))
            assert [seq for seq, _ in seen] == list(range(1, len(seen) + 1)), name


class Watcher:
    """Follows topics, and keeps what it is given."""

    def __init__(self) -> None:
        self.records: dict[str, list[tuple[int, str]]] = {}
        self.longest = 0  # how many appends came together
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
            self.longest = max(self.longest, len(found))
        elif data.get("code") == "throttled":
            assert data["status"] == 429 and data["retry_after_ms"] >= 0
            self.paced += 1

    def heads(self) -> dict[str, int]:
        return {name: records[-1][0] if records else 0 for name, records in self.records.items()}


def rung(now: dict[str, float], name: str, kind: str = "entered_total") -> float:
    return now[f'headrace_throttle_{kind}{{rung="{name}"}}']


def check_order(now: dict[str, float]) -> None:
    """No rung is, or ever was, in use without all those before it; the last is what refuses."""
    for kind in ("rung", "entered_total"):
        used = [rung(now, name, kind) > 0 for name in RUNGS]
        assert used == sorted(used, reverse=True), (kind, dict(zip(RUNGS, used, strict=True)))
    assert rung(now, RUNGS[-1]) or not now["headrace_throttle_refused_total"]


def at_the_end(now: dict[str, float]) -> bool:
    """Every rung has done what it is for."""
    done = ("coalesced", "windows", "refused", "bypassed")
    return (
        all(rung(now, name) for name in RUNGS)
        and all(now[f"headrace_throttle_{name}_total"] for name in done)
        and now["headrace_watch_paced_total"] > 0
    )


def calm(now: dict[str, float]) -> bool:
    standing = any(rung(now, name, "rung") for name in RUNGS)
    return not standing and now["headrace_pressure"] <= COALESCE_ABOVE


def records_of(page: Answer) -> list[tuple[int, str]]:
    assert page.status == 200 and page.body["tombstone"] is None, page.body
    return [(record["$seq"], record["data"]) for record in page.body["records"]]


async def read_all(connection: Connection, topic: str) -> list[tuple[int, str]]:
    records: list[tuple[int, str]] = []
    while True:
        at = records[-1][0] if records else 0
        body = {"from_seq": at, "limit": 1_000}
        page = await connection.ask("POST", f"/v0/topics/{topic}/diff", body)
        records += records_of(page)
        if page.body["caught_up"]:
            return records


Stored = dict[str, dict[int, str]]


def check_answers(writers: list[Writer]) -> Stored:
    """What was acknowledged, by topic and seq; everything else was refused in the right way."""
    stored: Stored = {name: {} for name in (*TOPICS, LOW)}
    for writer in writers:
        for (topic, data), answer in zip(writer.sent, writer.answers, strict=False):
            if answer.status == 200:
                seq = answer.body["first_seq"]
                assert answer.body["topic"] == topic and seq not in stored[topic]
                stored[topic][seq] = data
            else:
                assert answer.status == 429, answer.body
                assert answer.body["error"]["detail"]["retry_after_ms"] == RETRY_AFTER_MS
                assert "retry-after: 1" in answer.headers
    return stored


def waits(writers: list[Writer], topics: list[str]) -> list[float]:
    """How long appends to these topics were put off on purpose."""
    return [
        answer.body["performance"]["throttle_wait_ms"]
        for writer in writers
        for (topic, _), answer in zip(writer.sent, writer.answers, strict=False)
        if topic in topics and "throttle_wait_ms" in answer.body.get("performance", ())
    ]


class Flood:
    """Everybody who loads the server, and everybody who looks on."""

    def __init__(self, network: Network, control: Connection) -> None:
        self.control = control
        self.writers: list[Writer] = []
        self.watchers = [Watcher() for _ in range(6)]
        self.low = Watcher()  # has nothing else to read
        self._network = network
        self._stop = asyncio.Event()
        self._following: list[asyncio.Task[None]] = []
        self._working: list[asyncio.Task[None]] = []

    async def begin(self) -> None:
        for name in TOPICS:
            config = {"durability": "fsync"} if name in SURE else {}
            await self.control.ask("PUT", f"/v0/topics/{name}", config)
        await self.control.ask("PUT", f"/v0/topics/{LOW}", {"priority": -100})
        for watcher in (*self.watchers, self.low):
            topics = [LOW] if watcher is self.low else [*TOPICS, LOW]
            following = watcher.follow(await self._network.open(), topics)
            self._following.append(asyncio.create_task(following))
        self.careful = Careful(await self._network.open())
        self._working.append(asyncio.create_task(self.careful.go_on(self._stop)))
        for number in range(WRITERS):
            self.writers.append(Writer(number, await self._network.open()))
            self._working.append(asyncio.create_task(self.writers[-1].flood(self._stop)))

    async def until(self, what: str, reached: Reached) -> None:
        """Let it go on until something holds; if somebody fails meanwhile, that is told first."""
        looking = asyncio.create_task(self._network.wait_for(what, reached))
        await asyncio.wait([looking, *self._working], return_when=asyncio.FIRST_COMPLETED)
        for task in self._working:
            if task.done():
                looking.cancel()
                task.result()
        await looking

    async def end(self) -> None:
        """Send nothing more, and hear all answers."""
        self._stop.set()
        await asyncio.gather(*self._working)

    async def leave(self) -> None:
        """Whatever is left of it."""
        for task in (*self._working, *self._following):
            task.cancel()
        await asyncio.gather(*self._working, *self._following, return_exceptions=True)


async def overload(network: Network, flood: Flood) -> None:
    await flood.begin()
    await flood.until("the last rung", at_the_end)
    await flood.end()
    after = await network.wait_for("calm", calm)
    assert after["headrace_throttle_held"] == 0, "nothing is held back any longer"

    control, writers, careful = flood.control, flood.writers, flood.careful
    assert all(len(writer.answers) == len(writer.sent) for writer in writers)
    stored = check_answers(writers)
    for name, expected in stored.items():
        assert await read_all(control, name) == sorted(expected.items()), name
        assert sorted(expected) == list(range(1, len(expected) + 1)), "no seq is skipped"
    assert await read_all(control, OWN) == careful.written
    for name, seen in careful.seen.items():
        assert seen == sorted(stored[name].items())[: len(seen)], "what was read stays as it was"
    # What was shed is time, and those who waited for it were told.
    assert max(waits(writers, SURE)) > 0
    assert max(watcher.longest for watcher in flood.watchers) > 1
    assert flood.low.paced > 0
    # One more of each, which comes at once now, tells that nothing is held back any longer.
    for name in stored:
        answer = await control.ask("POST", f"/v0/topics/{name}", {"records": [{"data": "last"}]})
        assert answer.status == 200
        stored[name][answer.body["first_seq"]] = "last"
    for watcher in (*flood.watchers, flood.low):
        heads = {name: len(stored[name]) for name in watcher.records}
        await network.wait_for("delivery", lambda _, w=watcher, h=heads: w.heads() == h)
        for name, records in watcher.records.items():
            assert records == sorted(stored[name].items()), name


async def on(server: ServerProcess, play: Callable[[Network, Flood], Awaitable[None]]) -> Flood:
    network = Network(server)
    flood = Flood(network, await network.open())
    try:
        await play(network, flood)
    finally:
        await flood.leave()
        await network.close()
    return flood


def test_an_overload_costs_time_and_nothing_else(tmp_path: Path) -> None:
    with ServerProcess(tmp_path, wal_queue_depth_max=DEPTH_MAX) as server:
        asyncio.run(on(server, overload))


def test_what_was_acknowledged_under_pressure_survives_a_kill(tmp_path: Path) -> None:
    with ServerProcess(tmp_path, wal_queue_depth_max=DEPTH_MAX) as server:

        async def killed(_network: Network, flood: Flood) -> None:
            await flood.begin()
            await flood.until("putting off", lambda now: rung(now, "defer", "rung"))
            server.kill()

        flood = asyncio.run(on(server, killed))
    stored = check_answers(flood.writers)
    assert any(stored.values())
    sent = {(topic, data) for writer in flood.writers for topic, data in writer.sent}

    async def look(_network: Network, flood_after: Flood) -> None:
        for name, expected in stored.items():
            records = await read_all(flood_after.control, name)
            found = dict(records)
            assert {seq: found.get(seq) for seq in expected} == expected, name
            assert len({data for _, data in records}) == len(records), "none is there twice"
            assert {(name, data) for _, data in records} <= sent
        own = await read_all(flood_after.control, OWN)
        assert own[: len(flood.careful.written)] == flood.careful.written

    with ServerProcess(tmp_path) as server:
        asyncio.run(on(server, look))
