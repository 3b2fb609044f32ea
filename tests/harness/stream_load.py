"""Durable Streams on a server that is killed: create, append, close, fork, delete, make anew.

Each client has streams of its own and knows their bytes; a producer repeats what a kill cut off.
"""

from __future__ import annotations

from collections.abc import Coroutine
from typing import Any, NamedTuple

from headrace.client.message import Response
from tests.harness.kill_area import Area, Caller, Owner, all_judge

ROOT = "/v1/stream/"
BYTES = {"content-type": "application/octet-stream"}
OWNERS = 3
STREAMS_MAX = 6
NAMES = 10  # of each client; a name is used again after a delete
CONTENT_BYTES_MAX = 20_000  # then the stream is deleted
NEXT = "stream-next-offset"
PAGES_MAX = 1_000


class Stream(NamedTuple):
    """What is known of a stream."""

    content: bytes
    closed: bool = False


State = dict[str, Stream]


class Numbered(NamedTuple):
    """An append with a producer's number."""

    path: str
    number: int
    body: bytes


class StreamOwner(Owner[State]):
    """One client and its streams."""

    def __init__(self, area: Area, name: str) -> None:
        super().__init__(area, name, {})
        self._count = 0
        self._numbers: dict[str, int] = {}  # the next of each stream
        self._offsets: dict[str, dict[int, str]] = {}  # by the length that has them
        self._sources: set[str] = set()  # what a fork may still hang on
        self._repeat: tuple[Numbered, bool | None] | None = None  # and whether it is stored

    async def act(self, calls: Caller) -> None:
        if self._repeat is not None:
            await self._again(calls)
        open_ones = [path for path, stream in self.state.items() if not stream.closed]
        chance = self.chance.random()
        if not open_ones or (chance < 0.06 and len(self.state) < STREAMS_MAX):
            await self._create(calls)
        elif chance < 0.12 and len(self.state) < STREAMS_MAX:
            await self._fork(calls, self.chance.choice(list(self.state)))
        elif chance < 0.18:
            await self._close(calls, self.chance.choice(open_ones))
        elif chance < 0.24 or len(self.state) >= STREAMS_MAX:
            await self._delete(calls, self.chance.choice(list(self.state)))
        else:
            path = self.chance.choice(open_ones)
            if len(self.state[path].content) > CONTENT_BYTES_MAX:
                await self._delete(calls, path)
            elif chance < 0.6:
                await self._append(calls, path)
            else:
                await self._numbered(calls, path)

    def _body(self) -> bytes:
        self._count += 1
        return b"%s.%d;" % (self.name.encode(), self._count) + b"x" * self.chance.randrange(200)

    def _with(self, path: str, stream: Stream | None) -> State:
        after = {**self.state}
        if stream is None:
            del after[path]
        else:
            after[path] = stream
        return after

    async def _put(
        self,
        what: str,
        path: str,
        stream: Stream | None,
        call: Coroutine[None, None, Response],
        *statuses: int,
    ) -> Response:
        answer = await self.change(f"{what} {path}", self._with(path, stream), call, *statuses)
        if stream is not None:
            self._learn(path, len(stream.content), answer.headers[NEXT])
        return answer

    def _learn(self, path: str, length: int, offset: str) -> None:
        known = self._offsets.setdefault(path, {}).setdefault(length, offset)
        self.area.want(known == offset, f"{path}: the offset of {length} was {known}: {offset}")

    def _free_name(self) -> str | None:
        names = [f"{self.name}/{number}" for number in range(NAMES)]
        free = [n for n in names if n not in self.state and n not in self._sources]
        return self.chance.choice(free) if free else None

    async def _create(self, calls: Caller) -> None:
        path = self._free_name()
        if path is None:  # all names are of sources that were deleted: take no such name again
            self._count += 1
            path = f"{self.name}/more-{self._count}"
        body = self._body() if self.chance.random() < 0.5 else b""
        self._forget(path)
        await self._put(
            "create", path, Stream(body), calls.call("PUT", ROOT + path, body, BYTES), 201
        )

    def _forget(self, path: str) -> None:
        self._offsets.pop(path, None)
        self._numbers.pop(path, None)

    async def _append(self, calls: Caller, path: str) -> None:
        body = self._body()
        stream = Stream(self.state[path].content + body)
        await self._put("append", path, stream, calls.call("POST", ROOT + path, body, BYTES), 204)

    async def _numbered(self, calls: Caller, path: str) -> None:
        number = self._numbers.get(path, 0)
        self._numbers[path] = number + 1
        self._repeat = (Numbered(path, number, self._body()), None)
        await self._send_numbered(calls, self._repeat[0], 200)

    async def _send_numbered(self, calls: Caller, given: Numbered, status: int) -> None:
        headers = BYTES | {
            "producer-id": self.name, "producer-epoch": "1", "producer-seq": str(given.number),
        }  # fmt: skip
        call = calls.call("POST", ROOT + given.path, given.body, headers)
        if status == 204:  # it is stored, and is not stored again
            answer = await call
            self.area.want(answer.status == 204, f"{given} again: {answer}")
        else:
            stream = Stream(self.state[given.path].content + given.body)
            await self._put("numbered append", given.path, stream, call, status)
        self._repeat = None

    async def _again(self, calls: Caller) -> None:
        """Send once more what has no answer, as a producer does."""
        assert self._repeat is not None
        given, stored = self._repeat
        await self._send_numbered(calls, given, 204 if stored else 200)

    def settled(self, *, done: bool) -> None:
        if self._repeat is not None:
            # Once it is known to be stored it stays so, whatever else is interrupted.
            self._repeat = (self._repeat[0], done or bool(self._repeat[1]))

    async def _close(self, calls: Caller, path: str) -> None:
        body = self._body() if self.chance.random() < 0.5 else b""
        stream = Stream(self.state[path].content + body, closed=True)
        call = calls.call("POST", ROOT + path, body, BYTES | {"stream-closed": "true"})
        await self._put("close", path, stream, call, 204)

    async def _fork(self, calls: Caller, source: str) -> None:
        path = self._free_name()
        known = self._offsets.get(source)
        if path is None or not known:
            return
        length, offset = self.chance.choice(list(known.items()))
        headers = BYTES | {"stream-forked-from": ROOT + source, "stream-fork-offset": offset}
        self._forget(path)
        self._sources.add(source)
        stream = Stream(self.state[source].content[:length])
        await self._put("fork", path, stream, calls.call("PUT", ROOT + path, b"", headers), 201)

    async def _delete(self, calls: Caller, path: str) -> None:
        await self._put("delete", path, None, calls.call("DELETE", ROOT + path), 204)

    async def look(self, calls: Caller) -> State:
        names = {*self.state, *(f"{self.name}/{number}" for number in range(NAMES))}
        found: State = {}
        for path in sorted(names):
            stream = await self._read(calls, path)
            if stream is not None:
                found[path] = stream
        return found

    async def _read(self, calls: Caller, path: str) -> Stream | None:
        content, offset = b"", "-1"
        for _ in range(PAGES_MAX):
            answer = await calls.call("GET", f"{ROOT}{path}?offset={offset}")
            if answer.status in (404, 410):
                return None
            self.area.want(answer.status == 200, f"{path}: {answer}")
            content += answer.body
            offset = answer.headers[NEXT]
            if "stream-up-to-date" in answer.headers:
                if path in self.state:
                    self._learn(path, len(content), offset)
                return Stream(content, "stream-closed" in answer.headers)
        raise AssertionError(f"the tail of {path} never came")

    def weight(self) -> int:
        return NAMES + sum(stream.content.count(b";") for stream in self.state.values())


class StreamLoad(Area):
    """Some clients of Durable Streams."""

    name = "streams"

    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        self._owners = [StreamOwner(self, f"kill-{number}") for number in range(OWNERS)]

    async def create(self) -> None:
        """Clients create their streams."""

    def workers(self) -> list[Coroutine[None, None, None]]:
        return [owner.work() for owner in self._owners]

    async def check(self) -> None:
        await all_judge(self._owners)

    async def last(self) -> None:
        await self.check()
