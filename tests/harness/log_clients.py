"""The three dialects as clients of one log: native topics, Durable Streams, S2.

Each says only how its dialect appends, asks for a condition, reads and looks at the tail.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
from base64 import b64decode, b64encode
from collections.abc import Sequence
from typing import Any

import msgspec

from headrace.api.records import Draft
from headrace.client import AsyncClient
from headrace.core.errors import HeadMismatch
from headrace.testing.process import ServerProcess
from tests.harness.events import Violation
from tests.harness.kill_area import Caller, as_json
from tests.harness.log_crowd import Elsewhere, Fenced, LogClient, Outcome, Shown, Stored
from tests.support.server_lives import Lost, heard

PAGE = 1_000
CLASSES = ("memory", "disk", "fsync")


class NativeClient(LogClient):
    """A topic; `expected_head_seq` is its condition."""

    dialect = "native"

    async def create(self, chance: random.Random) -> str:
        await self.client.put_topic("log", {"durability": chance.choice(CLASSES)})
        return "log"

    def record(self, text: str) -> bytes:
        return msgspec.json.encode(text)

    async def append(
        self, records: Sequence[bytes], *, after: int | None, token: bytes | None, fences: bool
    ) -> Outcome:
        drafts = [Draft(msgspec.Raw(record)) for record in records]
        try:
            done = await heard(self.client.append(self.log, drafts, expected_head_seq=after))
        except HeadMismatch as error:
            return Elsewhere(int(str(error.detail["head_seq"])))
        assert done.first_seq is not None
        return Stored(done.first_seq)

    async def read(self, place: int, limit: int | None = None) -> Shown:
        page = await heard(self.client.diff(self.log, place, limit=limit or PAGE))
        seqs = [record.seq for record in page.records]
        if page.tombstone is not None or seqs != list(range(place + 1, place + 1 + len(seqs))):
            raise Violation(f"a read behind {place} shows {page.tombstone}, {seqs}")
        return Shown([bytes(record.raw) for record in page.records], page.caught_up)

    async def tail(self) -> int:
        return (await heard(self.client.topic(self.log))).head_seq


class StreamClient(LogClient):
    """A stream of JSON messages; `If-Match` and `Stream-Expected-Offset` are its conditions.

    The second number of an offset is the place of a message among all.
    """

    dialect = "durable-streams"
    path = "/v1/stream/log"
    json = {"content-type": "application/json"}  # noqa: RUF012 - nobody changes it
    next = "stream-next-offset"

    def __init__(self, client: AsyncClient, server: ServerProcess, log: str) -> None:
        super().__init__(client, server, log)
        self._calls = Caller(client)

    async def create(self, chance: random.Random) -> str:
        answer = await self._calls.call("PUT", self.path, b"[]", self.json)
        _expect(answer.status == 201, answer)
        return answer.headers[self.next].partition("_")[0]

    def record(self, text: str) -> bytes:
        return msgspec.json.encode(text)

    def _offset(self, place: int) -> str:
        return f"{self.log}_{place:016d}"

    def _place(self, headers: dict[str, str]) -> int:
        epoch, _, place = headers[self.next].partition("_")
        _expect(epoch == self.log, headers)
        return int(place)

    async def append(
        self, records: Sequence[bytes], *, after: int | None, token: bytes | None, fences: bool
    ) -> Outcome:
        headers, refusal = dict(self.json), 0
        if after is not None and after % 2:
            headers["if-match"], refusal = f'"{self._offset(after)}"', 412
        elif after is not None:
            headers["stream-expected-offset"], refusal = self._offset(after), 409
        body = b"[" + b",".join(records) + b"]"
        answer = await self._calls.call("POST", self.path, body, headers)
        if refusal and answer.status == refusal:
            return Elsewhere(self._place(answer.headers))
        _expect(answer.status == 204, answer)
        return Stored(self._place(answer.headers) - len(records) + 1)

    async def read(self, place: int, limit: int | None = None) -> Shown:
        offset = self._offset(place) if place else "-1"
        answer = await self._calls.call("GET", f"{self.path}?offset={offset}")
        _expect(answer.status == 200, answer)
        records = [bytes(raw) for raw in msgspec.json.decode(answer.body, type=list[msgspec.Raw])]
        _expect(self._place(answer.headers) == place + len(records), answer.headers)
        return Shown(records, "stream-up-to-date" in answer.headers)

    async def tail(self) -> int:
        return self._place(await head_of(self.server, self.path))


class S2Client(LogClient):
    """An S2 stream; `match_seq_num` and fencing tokens are its conditions."""

    dialect = "s2"
    fencing = True
    path = "/v1/streams/log/records"
    headers = {"s2-basin": "log-basin", "s2-format": "base64"}  # noqa: RUF012

    def __init__(self, client: AsyncClient, server: ServerProcess, log: str) -> None:
        super().__init__(client, server, log)
        self._calls = Caller(client)

    async def create(self, chance: random.Random) -> str:
        basin = await self._calls.call("PUT", "/v1/basins/log-basin")
        _expect(basin.status == 201, basin)
        made = await self._calls.call("POST", "/v1/streams", {"stream": "log"}, self.headers)
        _expect(made.status == 201, made)
        return "log"

    def record(self, text: str) -> bytes:
        return text.encode()

    async def append(
        self, records: Sequence[bytes], *, after: int | None, token: bytes | None, fences: bool
    ) -> Outcome:
        rows: list[dict[str, object]] = [{"body": b64encode(body).decode()} for body in records]
        if fences:
            rows[0]["headers"] = [["", b64encode(b"fence").decode()]]
        body: dict[str, object] = {"records": rows}
        if after is not None:
            body["match_seq_num"] = after
        if token is not None:
            body["fencing_token"] = token.decode()
        answer = await self._calls.call("POST", self.path, body, self.headers)
        told = as_json(answer)
        if answer.status == 412:
            if "seq_num_mismatch" in told:
                return Elsewhere(told["seq_num_mismatch"])
            return Fenced(told["fencing_token_mismatch"].encode())
        _expect(answer.status == 200, answer)
        _expect(told["end"]["seq_num"] - told["start"]["seq_num"] == len(records), told)
        return Stored(told["start"]["seq_num"] + 1)

    async def read(self, place: int, limit: int | None = None) -> Shown:
        query = f"{self.path}?seq_num={place}&count={limit or PAGE}"
        answer = await self._calls.call("GET", query, None, self.headers)
        told = as_json(answer)
        if answer.status == 416:
            _expect(told["tail"]["seq_num"] == place, told)
            return Shown([], True)
        _expect(answer.status == 200, answer)
        rows: list[dict[str, Any]] = told["records"]
        seqs = [row["seq_num"] for row in rows]
        _expect(seqs == list(range(place, place + len(rows))), f"at {place}: {seqs}")
        records = [b64decode(row["body"]) for row in rows]
        tail = told.get("tail", {"seq_num": -1})["seq_num"]
        return Shown(records, tail == place + len(rows))

    async def tail(self) -> int:
        answer = await self._calls.call("GET", f"{self.path}/tail", None, self.headers)
        _expect(answer.status == 200, answer)
        tail = as_json(answer)["tail"]["seq_num"]
        assert isinstance(tail, int)
        return tail


async def head_of(server: ServerProcess, path: str) -> dict[str, str]:
    """The headers of the answer to HEAD, which has no body whatever they say."""
    try:
        reader, writer = await asyncio.open_connection(server.host, server.port)
    except OSError:
        raise Lost(unknown=False) from None
    try:
        writer.write(
            f"HEAD {path} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n".encode()
        )
        status, *lines = (await reader.readuntil(b"\r\n\r\n")).decode().strip().split("\r\n")
    except (OSError, asyncio.IncompleteReadError):
        raise Lost(unknown=False) from None
    finally:
        writer.close()
        with contextlib.suppress(OSError):
            await writer.wait_closed()
    if status.split()[1] in ("429", "503"):
        raise Lost(unknown=False)
    _expect(status.split()[1] == "200", status)
    return {name.lower(): value for name, _, value in (line.partition(": ") for line in lines)}


def _expect(right: bool, wrong: object) -> None:
    if not right:
        raise Violation(f"{wrong!r:.1000}")


DIALECTS: tuple[type[LogClient], ...] = (NativeClient, StreamClient, S2Client)
