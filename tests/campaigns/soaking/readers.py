"""Readers of topics: diffs that wait, diffs from the start, Arrow, a watch, a WebSocket.

Each has an account of its own, in which every seq is read once or announced as gone.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Mapping
from itertools import count
from typing import Any, Protocol

import msgspec
import pyarrow as pa
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import WebSocketException

from tests.campaigns.soaking.content import payload
from tests.campaigns.soaking.ledger import Sequence
from tests.campaigns.soaking.site import TRY_SECONDS, Client, Site
from tests.campaigns.soaking.topics import ARROW, Line
from tests.campaigns.soaking.wire import Connection, events


class Account(Protocol):
    """What a reader tells what he reads."""

    seq: int  # the last one that is accounted for

    def take(self, seq: int, data: bytes) -> None: ...
    def gone(self, first: int, last: int) -> None: ...
    def pass_by(self, to: int) -> None: ...


WAIT_MS = 5_000
PAGE = 500
LATE_SECONDS = 20.0
BREATH_SECONDS = 0.25  # between two long polls, so that each brings several records
STREAM_SECONDS = 25.0  # then the connection is cut and made again


class Row(msgspec.Struct, rename={"seq": "$seq", "tag": "$tag"}):
    seq: int
    data: msgspec.Raw
    tag: str | None = None
    meta: dict[str, Any] | None = None


class Tombstone(msgspec.Struct):
    gap_from: int
    gap_to: int
    reason: str


class Page(msgspec.Struct):
    records: list[Row]
    next_from_seq: int
    head_seq: int
    earliest_seq: int
    caught_up: bool
    tombstone: Tombstone | None


class Frame(msgspec.Struct):
    """A message of a watch or of a WebSocket."""

    topic: str = ""
    op: str = ""
    records: list[Row] = []
    to_seq: int = 0
    head_seq: int = 0
    gap_from: int = 0
    gap_to: int = 0
    code: str = ""
    first_seq: int = 0
    last_seq: int = 0
    request_id: int | None = None


async def page(site: Site, client: Client, topic: str, after: int, wait_ms: int = 0) -> Page:
    body = {"from_seq": after, "limit": PAGE, "wait_ms": wait_ms, "include_tags": True}
    answer = await client.ask(
        "POST",
        f"/v0/topics/{topic}/diff",
        msgspec.json.encode(body),
        {"Content-Type": "application/json"},
    )
    if answer.status != 200:
        raise AssertionError(f"diff of {topic}: {answer}")
    found = msgspec.json.decode(answer.body, type=Page)
    site.counts["records read: diff"] += len(found.records)
    return found


def enter(account: Account, found: Page) -> None:
    """Account for what a page says."""
    if found.tombstone is not None:
        account.gone(found.tombstone.gap_from, found.tombstone.gap_to)
    for row in found.records:
        account.take(row.seq, bytes(row.data))
    account.pass_by(found.next_from_seq)


async def follow(
    site: Site,
    topic: str,
    account: Account,
    *,
    gone: Callable[[], Callable[[int], bool]] | None = None,
    each: Callable[[Row], None] | None = None,
    client: Client | None = None,
) -> None:
    """Read a topic by long polls, to its end once nobody writes; `gone` knows what is deleted."""
    client = client or site.client()
    while True:
        last = site.quiet.is_set()
        must_miss = gone() if gone is not None else None
        found = await page(site, client, topic, account.seq, 0 if last else WAIT_MS)
        enter(account, found)
        for row in found.records:
            if must_miss is not None and must_miss(row.seq):
                site.ledger.wrong(f"{topic}: seq {row.seq} was read after it was deleted")
            if each is not None:
                each(row)
        if last and found.caught_up:
            return
        if found.caught_up:
            await asyncio.sleep(BREATH_SECONDS)


async def follow_columns(site: Site, topic: str, account: Account) -> None:
    """The same, as Arrow."""
    client = site.client()
    while True:
        last = site.quiet.is_set()
        body = {"from_seq": account.seq, "limit": 5_000, "wait_ms": 0 if last else WAIT_MS}
        answer = await client.ask(
            "POST",
            f"/v0/topics/{topic}/diff",
            msgspec.json.encode(body),
            {"Content-Type": "application/json", "Accept": ARROW},
        )
        if answer.status != 200:
            raise AssertionError(f"diff of {topic}: {answer}")
        with pa.ipc.open_stream(answer.body) as stream:
            facts = {k.decode(): v.decode() for k, v in (stream.schema.metadata or {}).items()}
            table = stream.read_all()
        said = json.loads(facts.get("headrace.tombstone", facts.get("tombstone", "null")))
        if said:
            account.gone(said["gap_from"], said["gap_to"])
        seqs: list[Any] = table["seq"].to_pylist()
        for seq, data in zip(seqs, table["data"].to_pylist(), strict=True):
            account.take(seq, data if isinstance(data, bytes) else str(data).encode())
        site.counts["records read: Arrow"] += len(table)
        if last and not len(table):
            return


async def read_late(
    site: Site, topic: str, account: Callable[[str, str], Sequence], cap: int
) -> None:
    """Read a topic with a cap or a TTL from its start, again and again."""
    client = site.client()
    while not site.stopping.is_set():
        await site.pause(LATE_SECONDS)
        await read_all(site, client, topic, account("late reader", topic))
        state = await client.json("GET", f"/v0/topics/{topic}")
        if cap and state["count"] > cap:
            site.ledger.wrong(f"{topic} holds {state['count']} records, and may hold {cap}")
        site.counts["reads from the start"] += 1


async def read_all(site: Site, client: Client, topic: str, account: Account) -> int:
    """Read a topic from where the account is to its head; which is then returned."""
    while True:
        found = await page(site, client, topic, account.seq)
        enter(account, found)
        if found.caught_up:
            return found.head_seq


async def all_read(client: Client, accounts: Mapping[str, Account]) -> bool:
    """Whether readers have come to the heads of all their topics."""
    for topic, account in accounts.items():
        state = await client.json("GET", f"/v0/topics/{topic}")
        if account.seq < state["head_seq"]:
            return False
    return True


class Watch:
    """A watch of several topics, which is cut and resumed."""

    def __init__(self, site: Site, accounts: Mapping[str, Account]) -> None:
        self._site, self._accounts = site, accounts
        self._client = site.client()
        self._wid = ""
        self._last_id = ""

    async def run(self) -> None:
        for turn in count():
            if not self._wid:
                topics = {name: {"from_seq": a.seq} for name, a in self._accounts.items()}
                asked = {"topics": topics, "heartbeat_ms": 5_000}
                self._wid = (await self._client.json("POST", "/v0/watch", asked))["wid"]
                self._last_id = ""
            if await self._stream(STREAM_SECONDS + turn % 7):
                return

    async def _stream(self, seconds: float) -> bool:
        """One connection; whether there is nothing more to come."""
        connection = Connection(self._site.port)
        headers = {"Accept": "text/event-stream"}
        if self._last_id:
            headers["Last-Event-ID"] = self._last_id
        try:
            async with asyncio.timeout(seconds):
                await connection.send_head("GET", f"/v0/watch/{self._wid}", headers, 0)
                status, _ = await connection.head()
                if status != 200:
                    self._wid = ""  # the server has started again, and knows no sessions
                    await asyncio.sleep(TRY_SECONDS)
                    return False
                self._site.counts["streams opened: watch"] += 1
                async for event in events(connection.chunks()):
                    self._take(event.name, msgspec.json.decode(event.data, type=Frame))
                    self._last_id = event.id or self._last_id
        except TimeoutError:
            pass
        except (OSError, EOFError):
            await asyncio.sleep(TRY_SECONDS)
        finally:
            await connection.close()
        return self._site.quiet.is_set() and await all_read(self._client, self._accounts)

    def _take(self, name: str, frame: Frame) -> None:
        if name == "record":
            account = self._accounts[frame.topic]
            for row in frame.records:
                account.take(row.seq, bytes(row.data))
            account.pass_by(frame.to_seq)
            self._site.counts["records read: watch"] += len(frame.records)
        elif name == "tombstone":
            self._accounts[frame.topic].gone(frame.gap_from, frame.gap_to)
        elif name == "caught-up":
            self._accounts[frame.topic].pass_by(frame.head_seq)


class Socket:
    """A WebSocket that follows topics, and publishes to one of its own."""

    def __init__(self, site: Site, accounts: Mapping[str, Account], topic: str, line: Line) -> None:
        self._site, self._accounts = site, accounts
        self._topic, self._line = topic, line
        self._client = site.client()

    async def run(self) -> None:
        url = f"ws://127.0.0.1:{self._site.port}/v0/ws"
        while True:
            try:
                async with asyncio.timeout(STREAM_SECONDS):
                    async with connect(url, max_size=None, compression=None) as socket:
                        self._site.counts["streams opened: WebSocket"] += 1
                        await self._talk(socket)
            except (TimeoutError, OSError, EOFError, WebSocketException):
                await asyncio.sleep(TRY_SECONDS)
            if self._site.quiet.is_set() and await all_read(self._client, self._accounts):
                return

    async def _talk(self, socket: ClientConnection) -> None:
        topics = {name: {"from_seq": account.seq} for name, account in self._accounts.items()}
        await socket.send(json.dumps({"op": "subscribe", "topics": topics}))
        await self._publish(socket)
        async for text in socket:
            frame = msgspec.json.decode(text, type=Frame)
            if frame.op == "record":
                account = self._accounts[frame.topic]
                for row in frame.records:
                    account.take(row.seq, bytes(row.data))
                account.pass_by(frame.to_seq)
                self._site.counts["records read: WebSocket"] += len(frame.records)
            elif frame.op == "tombstone":
                self._accounts[frame.topic].gone(frame.gap_from, frame.gap_to)
            elif frame.op == "ack":
                if frame.first_seq != self._line.head + 1:
                    self._site.ledger.wrong(
                        f"{self._topic}: told seq {frame.first_seq} after {self._line.head}"
                    )
                self._line.head = frame.last_seq
                self._site.counts["records appended: WebSocket"] += 1
                await self._site.pause(0.2)
                await self._publish(socket)
            elif frame.op == "error" and frame.code not in ("server_shutting_down", "not_ready"):
                self._site.ledger.wrong(f"a WebSocket was told {text[:300]!r}")

    async def _publish(self, socket: ClientConnection) -> None:
        if self._site.stopping.is_set():
            return
        n = self._line.head + 1
        data = payload(self._topic, n).decode()
        await socket.send(
            f'{{"op":"publish","topic":"{self._topic}","idempotency_key":"{n}",'
            f'"records":[{{"data":{data}}}]}}'
        )
