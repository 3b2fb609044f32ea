"""S2 streams: appends as JSON, as protobuf and in sessions, trims, fences; reads in all ways.

The record with seq_num s is number s + 1 of the stream's name, unless s is one of the places where
a command stands; so every reader knows what has to come.
"""

from __future__ import annotations

import asyncio
import base64
import time
from collections.abc import AsyncIterator, Callable
from typing import Any, NamedTuple

import msgspec

from tests.campaigns.soaking.content import payload
from tests.campaigns.soaking.ledger import Sequence
from tests.campaigns.soaking.site import TRY_SECONDS, Client, Site
from tests.campaigns.soaking.wire import Answer, Connection, Cut, events
from tests.support.s2_messages import AppendAck, AppendInput, ReadBatch

BASIN = "soak-basin"
KEPT = 3_000  # records that a trim leaves
TRIM_EVERY, TRIM_AT = 500, 250
FENCE_EVERY, FENCE_AT = 200, 100
STREAM_SECONDS = 25.0
PROTOBUF = "application/protobuf"
SESSION = "s2s/proto"
SESSION_APPENDS = 200
TERMINAL = 0x80


class Command(NamedTuple):
    name: str
    body: bytes


def command(seq: int) -> Command | None:
    """The command that stands at a seq_num."""
    if seq % TRIM_EVERY == TRIM_AT and seq > KEPT:
        return Command("trim", (seq - KEPT).to_bytes(8, "big"))
    if seq % FENCE_EVERY == FENCE_AT:
        return Command("fence", f"token-{seq}".encode())
    return None


def token(seq: int) -> str:
    """The fencing token that holds for an append at a seq_num."""
    last = (seq - 1 - FENCE_AT) // FENCE_EVERY * FENCE_EVERY + FENCE_AT
    while last >= 0:
        found = command(last)
        if found is not None and found.name == "fence":
            return found.body.decode()
        last -= FENCE_EVERY
    return ""


def trimmed(seq: int) -> int:
    """What the trims before a seq_num allow to be gone: everything below."""
    last = (seq - 1 - TRIM_AT) // TRIM_EVERY * TRIM_EVERY + TRIM_AT
    return max(0, last - KEPT)


class S2Stream:
    """A stream with one writer."""

    def __init__(self, site: Site, name: str) -> None:
        self.site, self.name = site, name
        self.next = 0  # the seq_num of the next record
        self.sent = 0  # below it all may have been written
        self.path = f"/v1/streams/{name}/records"
        self.headers = {"s2-basin": BASIN}

    def account(self, who: str) -> Sequence:
        return Sequence(
            self.site.ledger, f"{who} of S2 stream {self.name}", self.name, self._may_miss
        )

    def _may_miss(self, place: int) -> bool:
        return place - 1 < trimmed(self.sent)

    def batch(self, many: int) -> list[tuple[Command | None, bytes]]:
        """What comes next: so many records, or one command."""
        first = command(self.next)
        if first is not None:
            return [(first, first.body)]
        found: list[tuple[Command | None, bytes]] = []
        for seq in range(self.next, self.next + many):
            if command(seq) is not None:
                break
            found.append((None, payload(self.name, seq + 1)))
        self.sent = max(self.sent, self.next + len(found))
        return found

    def took(
        self, account: Sequence, seq: int, names: list[tuple[bytes, bytes]], body: bytes
    ) -> None:
        """A reader has read a record."""
        stands = command(seq)
        if stands is None:
            account.take(seq + 1, body)
        elif account.other(seq + 1) and (names, body) != (
            [(b"", stands.name.encode())],
            stands.body,
        ):
            self.site.ledger.wrong(f"S2 stream {self.name}: {seq} is not {stands}: {body!r}")


def as_json(stream: S2Stream, batch: list[tuple[Command | None, bytes]], fence: str) -> bytes:
    """The body of an append, in base64."""
    records = []
    for named, body in batch:
        record: dict[str, Any] = {"body": base64.b64encode(body).decode()}
        if named is not None:
            record["headers"] = [["", base64.b64encode(named.name.encode()).decode()]]
        records.append(record)
    given = {"records": records, "match_seq_num": stream.next, "fencing_token": fence}
    return msgspec.json.encode(given)


def as_protobuf(stream: S2Stream, batch: list[tuple[Command | None, bytes]], fence: str) -> bytes:
    given = AppendInput(match_seq_num=stream.next, fencing_token=fence)
    for named, body in batch:
        record = given.records.add(body=body)
        if named is not None:
            record.headers.add(name=b"", value=named.name.encode())
    encoded: bytes = given.SerializeToString()
    return encoded


async def append_unary(stream: S2Stream, *, protobuf: bool, many: int, every: float) -> None:
    """Append batches, each at the place where it has to be, under the token that holds."""
    site, client = stream.site, stream.site.client()
    type = PROTOBUF if protobuf else "application/json"
    headers = {**stream.headers, "Content-Type": type, "Accept": type, "s2-format": "base64"}
    encode = as_protobuf if protobuf else as_json
    turn = 0
    while not site.stopping.is_set():
        turn += 1
        batch = stream.batch(1 + turn % many)
        stream.sent = max(stream.sent, stream.next + len(batch))
        if turn % 37 == 0:
            answer = await client.ask(
                "POST", stream.path, encode(stream, batch, "another token"), headers
            )
            site.ledger.expect(
                answer.status == 412 and b"fencing_token_mismatch" in answer.body,
                f"S2 stream {stream.name}: a wrong token was told {answer}",
            )
        begun = time.monotonic()
        body = encode(stream, batch, token(stream.next))
        try:
            answer = await client.once("POST", stream.path, body, headers)
        except Cut:
            await resolve(stream, client, len(batch))
            continue
        assert answer.status == 200, (stream.name, answer)
        site.latencies.add(time.monotonic() - begun)
        check_ack(stream, answer, protobuf, len(batch))
        site.counts[f"records appended: S2, {'protobuf' if protobuf else 'JSON'}"] += len(batch)
        await site.pause(every)


def check_ack(stream: S2Stream, answer: Answer, protobuf: bool, many: int) -> None:
    if protobuf:
        ack = AppendAck.FromString(answer.body)
        start, end = ack.start.seq_num, ack.end.seq_num
    else:
        said = msgspec.json.decode(answer.body)
        start, end = said["start"]["seq_num"], said["end"]["seq_num"]
    acknowledge(stream, start, end, many)


def acknowledge(stream: S2Stream, start: int, end: int, many: int) -> None:
    stream.site.ledger.expect(
        (start, end) == (stream.next, stream.next + many),
        f"S2 stream {stream.name}: {many} records at {stream.next} were told {start} to {end}",
    )
    stream.next = end


async def resolve(stream: S2Stream, client: Client, many: int) -> None:
    """After a cut: the tail says whether the appends of before were done."""
    answer = await client.ask("GET", f"{stream.path}/tail", b"", stream.headers)
    assert answer.status == 200, (stream.name, answer)
    tail = msgspec.json.decode(answer.body)["tail"]["seq_num"]
    stream.site.ledger.expect(
        stream.next <= tail <= stream.next + many,
        f"S2 stream {stream.name}: its tail is {tail}; {stream.next} were acknowledged",
    )
    stream.next = tail


def frame(payload: bytes) -> bytes:
    return (len(payload) + 1).to_bytes(3, "big") + b"\0" + payload


async def frames(chunks: AsyncIterator[bytes]) -> AsyncIterator[tuple[int, bytes]]:
    """The frames of a session: flag and payload."""
    held = b""
    async for chunk in chunks:
        held += chunk
        while len(held) >= 4 and len(held) >= (end := 3 + int.from_bytes(held[:3], "big")):
            yield held[3], held[4:end]
            held = held[end:]


async def append_session(stream: S2Stream, many: int, every: float) -> None:
    """Append in sessions, one after the other."""
    site, client = stream.site, stream.site.client()
    headers = {**stream.headers, "Content-Type": SESSION}
    while not site.stopping.is_set():
        connection = Connection(site.port)
        try:
            await connection.send_head("POST", stream.path, headers, None)
            status, _ = await connection.head()
            if status != 200:
                await asyncio.sleep(TRY_SECONDS)
                continue
            site.counts["streams opened: S2 append sessions"] += 1
            await _session(stream, connection, many, every)
        except (OSError, EOFError, TimeoutError):
            await asyncio.sleep(TRY_SECONDS)
            await resolve(stream, client, many)
        finally:
            await connection.close()


async def _session(stream: S2Stream, connection: Connection, many: int, every: float) -> None:
    site = stream.site
    answers = frames(connection.chunks())
    for turn in range(SESSION_APPENDS):
        if site.stopping.is_set():
            break
        batch = stream.batch(1 + turn % many)
        stream.sent = max(stream.sent, stream.next + len(batch))
        await connection.send_chunk(frame(as_protobuf(stream, batch, token(stream.next))))
        flag, body = await anext(answers, (TERMINAL, b""))
        if flag & TERMINAL:
            if body and int.from_bytes(body[:2], "big") != 503:
                raise AssertionError(f"a session of {stream.name} was told {body!r}")
            raise EOFError
        ack = AppendAck.FromString(body)
        acknowledge(stream, ack.start.seq_num, ack.end.seq_num, len(batch))
        site.counts["records appended: S2, sessions"] += len(batch)
        await site.pause(every)
    await connection.send_chunk(b"")


async def read_on(stream: S2Stream, how: Callable[..., Any]) -> None:
    """Read a stream in one way, from where it was, until all of it is read."""
    account = stream.account(how.__name__)
    client = stream.site.client()
    while True:
        last = stream.site.quiet.is_set()
        connection = Connection(stream.site.port)
        try:
            async with asyncio.timeout(STREAM_SECONDS):
                await how(stream, account, connection)
        except TimeoutError:
            pass
        except (OSError, EOFError):
            await asyncio.sleep(TRY_SECONDS)
        finally:
            await connection.close()
        if last:
            answer = await client.ask("GET", f"{stream.path}/tail", b"", stream.headers)
            tail = msgspec.json.decode(answer.body)["tail"]["seq_num"]
            if account.seq >= tail:
                return


async def _open(connection: Connection, path: str, headers: dict[str, str]) -> bool:
    await connection.send_head("GET", path, headers, 0)
    status, _ = await connection.head()
    if status == 416:
        await asyncio.sleep(TRY_SECONDS)
        return False
    if status == 503:
        raise EOFError
    assert status == 200, (path, status)
    return True


async def by_session(stream: S2Stream, account: Sequence, connection: Connection) -> None:
    path = f"{stream.path}?seq_num={account.seq}&wait=5"
    if not await _open(connection, path, {**stream.headers, "Content-Type": SESSION}):
        return
    async for flag, body in frames(connection.chunks()):
        if flag & TERMINAL:
            return
        for record in ReadBatch.FromString(body).records:
            names = [(header.name, header.value) for header in record.headers]
            stream.took(account, record.seq_num, names, record.body)
            stream.site.counts["records read: S2, sessions"] += 1


def _json(stream: S2Stream, account: Sequence, batch: dict[str, Any], how: str) -> None:
    for record in batch["records"]:
        names = [
            (base64.b64decode(name), base64.b64decode(value))
            for name, value in record.get("headers", [])
        ]
        body = base64.b64decode(record.get("body", ""))
        stream.took(account, record["seq_num"], names, body)
        stream.site.counts[f"records read: S2, {how}"] += 1


async def by_events(stream: S2Stream, account: Sequence, connection: Connection) -> None:
    headers = {**stream.headers, "Accept": "text/event-stream", "s2-format": "base64"}
    if not await _open(connection, f"{stream.path}?seq_num={account.seq}&wait=5", headers):
        return
    async for event in events(connection.chunks()):
        if event.name == "batch":
            _json(stream, account, msgspec.json.decode(event.data), "events")


async def by_pages(stream: S2Stream, account: Sequence, connection: Connection) -> None:
    path = f"{stream.path}?seq_num={account.seq}&count=500&wait=3"
    try:
        answer = await connection.ask("GET", path, b"", {**stream.headers, "s2-format": "base64"})
    except Cut as cut:
        raise EOFError from cut
    if answer.status in (416, 503):
        await asyncio.sleep(TRY_SECONDS)
        return
    assert answer.status == 200, (stream.name, answer)
    _json(stream, account, msgspec.json.decode(answer.body), "unary")
