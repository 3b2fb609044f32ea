"""S2 on a server that is killed: basins, streams, configs, tokens, conditional appends, fences.

Each client has a basin of its own and knows all that is in it.  Trims take effect later, so that
records below a trim point may be there or not; all others are.
"""

from __future__ import annotations

from base64 import b64decode, b64encode
from collections.abc import Coroutine
from typing import Any, NamedTuple

from headrace.client.message import Response
from tests.harness.kill_area import Area, Caller, Owner, all_judge, as_json, caller

OWNERS = 3
STREAMS_MAX = 4
EXTRA_BASINS_MAX = 2
TOKENS_MAX = 3
RECORDS_MAX = 300  # then the stream is deleted
BASE64 = {"s2-format": "base64"}
NOBODYS_TOKEN = "nobody has this one"
PAGE = 1_000


class Row(NamedTuple):
    """A record: its body, and what it commands if it does."""

    body: bytes
    command: bytes = b""


class Stream(NamedTuple):
    """What is known of a stream; records from the first."""

    age: int
    records: tuple[Row, ...] = ()
    trim: int = 0
    token: str = ""
    first: int = 0  # of the records that were found


State = dict[tuple[str, str], object]  # kind and name


class S2Owner(Owner[State]):
    """One client and its basin."""

    def __init__(self, area: Area, name: str) -> None:
        super().__init__(area, name, {})
        self._count = 0
        self._in = BASE64 | {"s2-basin": name}

    async def create(self, calls: Caller) -> None:
        answer = await calls.call("PUT", f"/v1/basins/{self.name}")
        self.area.want(answer.status == 201, answer)
        self.state = {("basin", self.name): False}

    def _next(self) -> int:
        self._count += 1
        return self._count

    def _names(self, kind: str) -> list[str]:
        return [name for of, name in self.state if of == kind]

    async def act(self, calls: Caller) -> None:
        streams = self._names("stream")
        chance = self.chance.random()
        if not streams or (chance < 0.05 and len(streams) < STREAMS_MAX):
            await self._create_stream(calls)
        elif chance < 0.17:
            await self._catalog(calls, chance)
        else:
            name = self.chance.choice(streams)
            stream = self.state["stream", name]
            assert isinstance(stream, Stream)
            if len(stream.records) > RECORDS_MAX or chance < 0.2:
                await self._drop(
                    "stream", name, calls.call("DELETE", f"/v1/streams/{name}", None, self._in), 202
                )
            elif chance < 0.26:
                await self._reconfigure(calls, name, stream)
            elif chance < 0.34:
                await self._refused(calls, name, stream)
            elif chance < 0.42:
                await self._fence(calls, name, stream)
            elif chance < 0.48 and stream.records:
                await self._trim(calls, name, stream)
            else:
                rows = [self._row() for _ in range(self.chance.randint(1, 4))]
                await self._append(calls, name, stream, rows)

    def _row(self) -> Row:
        text = f"{self.name} {self._next()} " + "x" * self.chance.randrange(150)
        return Row(text.encode())

    async def _set(
        self,
        kind: str,
        name: str,
        value: object,
        call: Coroutine[None, None, Response],
        *codes: int,
    ) -> Response:
        return await self.change(
            f"{kind} {name}", {**self.state, (kind, name): value}, call, *codes
        )

    async def _drop(
        self, kind: str, name: str, call: Coroutine[None, None, Response], *codes: int
    ) -> None:
        after = {key: value for key, value in self.state.items() if key != (kind, name)}
        await self.change(f"delete {kind} {name}", after, call, *codes)

    # The catalog

    async def _catalog(self, calls: Caller, chance: float) -> None:
        basins = [name for name in self._names("basin") if name != self.name]
        tokens = self._names("token")
        if chance < 0.08 and len(basins) < EXTRA_BASINS_MAX:
            name = f"{self.name}-extra-{self._next()}"
            await self._set("basin", name, False, calls.call("PUT", f"/v1/basins/{name}"), 201)
        elif chance < 0.1 and basins:
            name = basins[0]
            await self._drop("basin", name, calls.call("DELETE", f"/v1/basins/{name}"), 202)
        elif chance < 0.13:
            name = self.chance.choice([self.name, *basins])
            value = not self.state["basin", name]
            body = {"create_stream_on_read": value}
            await self._set(
                "basin", name, value, calls.call("PATCH", f"/v1/basins/{name}", body), 200
            )
        elif len(tokens) < TOKENS_MAX:
            name = f"{self.name}-token-{self._next()}"
            asked = {"id": name, "scope": {"ops": ["list-basins"], "basins": {"exact": name}}}
            await self._set(
                "token", name, True, calls.call("POST", "/v1/access-tokens", asked), 201
            )
        else:
            name = self.chance.choice(tokens)
            call = calls.call("DELETE", f"/v1/access-tokens/{name}")
            await self._drop("token", name, call, 204)

    async def _create_stream(self, calls: Caller) -> None:
        name, age = f"s{self._next()}", self.chance.randrange(10_000, 99_999)
        body = {"stream": name, "config": {"retention_policy": {"age": age}}}
        await self._set(
            "stream", name, Stream(age), calls.call("POST", "/v1/streams", body, self._in), 201
        )

    async def _reconfigure(self, calls: Caller, name: str, stream: Stream) -> None:
        age = self.chance.randrange(10_000, 99_999)
        body = {"retention_policy": {"age": age}}
        call = calls.call("PATCH", f"/v1/streams/{name}", body, self._in)
        await self._set("stream", name, stream._replace(age=age), call, 200)

    # Records

    async def _append(
        self, calls: Caller, name: str, stream: Stream, rows: list[Row], **changes: Any
    ) -> None:
        body: dict[str, object] = {"records": [_sent(row) for row in rows]}
        if self.chance.random() < 0.5:
            body["match_seq_num"] = len(stream.records)
        if self.chance.random() < 0.5:
            body["fencing_token"] = stream.token
        after = stream._replace(records=(*stream.records, *rows), **changes)
        call = calls.call("POST", f"/v1/streams/{name}/records", body, self._in)
        told = as_json(await self._set("stream", name, after, call, 200))
        places = [told[at]["seq_num"] for at in ("start", "end", "tail")]
        wanted = [len(stream.records), len(after.records), len(after.records)]
        self.area.want(places == wanted, f"{name}: {told}, not {wanted}")

    async def _fence(self, calls: Caller, name: str, stream: Stream) -> None:
        token = f"{self.name[-8:]}-{self._next()}"
        await self._append(calls, name, stream, [Row(token.encode(), b"fence")], token=token)

    async def _trim(self, calls: Caller, name: str, stream: Stream) -> None:
        point = self.chance.randint(1, len(stream.records))
        row = Row(point.to_bytes(8, "big"), b"trim")
        await self._append(calls, name, stream, [row], trim=max(stream.trim, point))

    async def _refused(self, calls: Caller, name: str, stream: Stream) -> None:
        """Conditions that do not hold; the answer says what would."""
        tail = len(stream.records)
        rows = [_sent(self._row())]
        path = f"/v1/streams/{name}/records"
        body = {"records": rows, "match_seq_num": tail + self.chance.choice((-1, 1)) if tail else 1}
        answer = await calls.call("POST", path, body, self._in)
        told = (answer.status, as_json(answer))
        self.area.want(told == (412, {"seq_num_mismatch": tail}), f"{name}: {told}, not {tail}")
        self.area.want(
            await self._token(calls, name) == stream.token, f"{name}: not {stream}"[:300]
        )

    async def _token(self, calls: Caller, name: str) -> str:
        body = {"records": [_sent(Row(b""))], "fencing_token": NOBODYS_TOKEN}
        answer = await calls.call("POST", f"/v1/streams/{name}/records", body, self._in)
        self.area.want(answer.status == 412, answer)
        token = as_json(answer)["fencing_token_mismatch"]
        assert isinstance(token, str)
        return token

    # Judgement

    async def look(self, calls: Caller) -> State:
        found: State = {}
        for basin in await self._listed(calls, f"/v1/basins?prefix={self.name}", "basins"):
            if basin["state"] == "active":
                config = as_json(await calls.call("GET", f"/v1/basins/{basin['name']}"))
                found["basin", basin["name"]] = config["create_stream_on_read"]
        for token in await self._listed(
            calls, f"/v1/access-tokens?prefix={self.name}-", "access_tokens"
        ):
            found["token", token["id"]] = True
        for stream in await self._listed(calls, "/v1/streams", "streams"):
            if stream["deleted_at"] is None:
                found["stream", stream["name"]] = await self._stream(calls, stream["name"])
        return found

    async def _listed(self, calls: Caller, path: str, what: str) -> list[dict[str, Any]]:
        answer = await calls.call("GET", path, None, self._in)
        self.area.want(answer.status == 200, answer)
        told = as_json(answer)
        assert not told["has_more"]
        items: list[dict[str, Any]] = told[what]
        return items

    async def _stream(self, calls: Caller, name: str) -> Stream:
        path = f"/v1/streams/{name}"
        config = as_json(await calls.call("GET", path, None, self._in))
        tail = as_json(await calls.call("GET", f"{path}/records/tail", None, self._in))
        end = tail["tail"]["seq_num"]
        rows: list[Row] = []
        first = place = 0
        while place < end:
            query = f"{path}/records?seq_num={place}&count={PAGE}"
            answer = await calls.call("GET", query, None, self._in)
            self.area.want(answer.status == 200, answer)
            page = as_json(answer)["records"]
            if not rows and page:
                first = place = page[0]["seq_num"]
            seqs = [record["seq_num"] for record in page]
            wanted = list(range(place, place + len(page)))
            self.area.want(bool(page) and seqs == wanted, f"{name}: {seqs} at {place} of {end}")
            rows += [_row(record) for record in page]
            place += len(page)
        age = config["retention_policy"]["age"]
        return Stream(age, tuple(rows), token=await self._token(calls, name), first=first)

    def fits(self, found: State, state: State) -> bool:
        return found.keys() == state.keys() and all(
            _fits(one, state[key]) for key, one in found.items()
        )

    def weight(self) -> int:
        streams = [stream for stream in self.state.values() if isinstance(stream, Stream)]
        return len(self.state) + sum(len(stream.records) for stream in streams)


def _fits(found: object, wanted: object) -> bool:
    if not isinstance(found, Stream) or not isinstance(wanted, Stream):
        return found == wanted
    return (
        (found.age, found.token) == (wanted.age, wanted.token)
        and found.first <= wanted.trim
        and found.records == wanted.records[found.first :]
    )


def _sent(row: Row) -> dict[str, object]:
    sent: dict[str, object] = {"body": b64encode(row.body).decode()}
    if row.command:
        sent["headers"] = [["", b64encode(row.command).decode()]]
    return sent


def _row(record: dict[str, Any]) -> Row:
    headers = record.get("headers", [])
    command = b64decode(headers[0][1]) if headers else b""
    return Row(b64decode(record.get("body", "")), command)


class S2Load(Area):
    """Some clients of S2."""

    name = "S2"

    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        self._owners = [S2Owner(self, f"kill-basin-{number}") for number in range(OWNERS)]

    async def create(self) -> None:
        async with caller(self.site, patient=True) as calls:
            for owner in self._owners:
                await owner.create(calls)

    def workers(self) -> list[Coroutine[None, None, None]]:
        return [owner.work() for owner in self._owners]

    async def check(self) -> None:
        await all_judge(self._owners)

    async def last(self) -> None:
        await self.check()
