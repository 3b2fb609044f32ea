"""Streams against a model: any interleaving of create, append, read, fork, close, delete, restart.

The model of a stream is its appends, each a list of messages or some bytes, with the offset that
the server gave for the end of each.  Offsets grow with every append, lead to what follows them for
as long as the stream lives, over kills and restarts too, and to nothing else once it was deleted.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import random
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from headrace.testing.process import ServerProcess
from tests.support.stream_http_calls import BYTES, JSON, PREFIX, ZERO, Answer, StreamCalls

NAMES = 6
COLLECTED_SECONDS_MAX = 30.0
BEYOND = "9999999999999999_9999999999999999"
SETTINGS: dict[str, Any] = {
    "log": "error",
    "checkpoint_age_ms": 100,
    "segment_max_events": 1_000,
}


@dataclass
class Stream:
    """What a stream has to be like."""

    name: str
    kind: str
    appends: list[Any] = field(default_factory=list)  # bytes, or lists of messages
    offsets: list[str] = field(default_factory=list)  # before the first append, and after each
    closed: bool = False
    deleted: bool = False  # only its forks live
    source: Stream | None = None
    forks: list[Stream] = field(default_factory=list)
    numbers: dict[str, int] = field(default_factory=dict)  # the next of each producer
    # How much is the first of two appends that are one here, by which: no offset is between them.
    joined: dict[int, int] = field(default_factory=dict)

    def content(self, after: int = 0) -> Any:
        """All that follows so many appends, as a read shows it."""
        if self.kind == BYTES:
            return b"".join(self.appends[after:])
        return [message for append in self.appends[after:] for message in append]


def encoded(kind: str, append: Any) -> bytes:
    return append if kind == BYTES else json.dumps(append).encode()


class Lockstep:
    """Calls go to both; what the server answers, the model must have known."""

    def __init__(self, seed: int, directory: Path) -> None:
        self.chance = random.Random(seed)
        self._directory = directory
        self.live: dict[str, Stream] = {}  # by name; soft-deleted ones too
        self.stale: dict[str, list[str]] = {}  # offsets of deleted incarnations
        self._messages = itertools.count()
        self._server = ServerProcess(directory, **SETTINGS)
        self._port = self._server.port
        self.calls = StreamCalls(self._server.host, self._port)

    def close(self) -> None:
        self.calls.close()
        self._server.kill()

    def run(self, calls: int) -> None:
        actions = (
            [self.create] * 4
            + [self.append] * 10
            + [self.produce] * 4
            + [self.read] * 8
            + [self.look] * 3
            + [self.fork] * 5
            + [self.shut] * 2
            + [self.delete] * 3
            + [self.read_stale]
        )
        for number in range(calls):
            if number % 60 == 59:
                self.restart()
            self.chance.choice(actions)()
        self.restart()

    # Choices

    def some(self) -> Stream | None:
        return self.chance.choice(list(self.live.values())) if self.live else None

    def some_append(self, kind: str) -> Any:
        messages = [f"{next(self._messages)}-ü" for _ in range(self.chance.randrange(1, 4))]
        if kind == BYTES:
            # Some are as large as the blocks that files are made of.
            return "|".join(messages).encode() * self.chance.choice([1, 1, 1, 4_000])
        return [self.chance.choice([text, [text], {"t": text}]) for text in messages]

    def free_name(self) -> str | None:
        names = [name for n in range(NAMES) if (name := f"model/s{n}") not in self.live]
        return self.chance.choice(names) if names else None

    # Calls

    def create(self) -> None:
        name = self.free_name()
        if name is None:
            return
        stream = Stream(name, self.chance.choice([BYTES, JSON]))
        body = None
        if self.chance.random() < 0.4:
            stream.appends.append(self.some_append(stream.kind))
            body = encoded(stream.kind, stream.appends[0])
        answer = self.calls.create(name, stream.kind, body)
        assert answer.status == 201, answer
        self._made(stream, answer, before=[])
        again = self.calls.create(name, stream.kind, b"" if stream.kind == BYTES else b"[]")
        assert (again.status, again.next_offset) == (200, answer.next_offset), again
        other = self.calls.create(name, JSON if stream.kind == BYTES else BYTES)
        assert other.status == 409, other

    def _made(self, stream: Stream, answer: Answer, before: list[str]) -> None:
        """Enter a new stream, of whose offsets only the last is known if it has a body."""
        stream.offsets = [*before, answer.next_offset]
        if len(stream.offsets) == len(stream.appends):  # the start, of which nothing was told
            stream.offsets.insert(0, "-1")
        assert len(stream.offsets) == len(stream.appends) + 1, (stream, answer)
        self.live[stream.name] = stream
        shared = set(stream.offsets) & set(self.stale.get(stream.name, ()))
        # A fork has those of its source, which one before it may have had, too.
        assert stream.source is not None or shared <= {"-1"}, shared

    def append(self) -> None:
        stream = self.some()
        if stream is None:
            return
        append = self.some_append(stream.kind)
        closes = self.chance.random() < 0.05
        headers = {"Content-Type": stream.kind} | ({"Stream-Closed": "true"} if closes else {})
        answer = self.calls.call("POST", stream.name, encoded(stream.kind, append), headers)
        if self._refused(stream, answer):
            return
        assert answer.status == 204, answer
        self._appended(stream, append, answer.next_offset)
        stream.closed = closes

    def _appended(self, stream: Stream, append: Any, offset: str) -> None:
        assert offset > max(stream.offsets), (offset, stream.offsets)
        stream.appends.append(append)
        stream.offsets.append(offset)

    def _refused(self, stream: Stream, answer: Answer) -> bool:
        """Whether it has to be, and was, as it has to be."""
        if stream.deleted:
            assert answer.status == 410, answer
        elif stream.closed:
            assert (answer.status, answer.headers["stream-closed"]) == (409, "true"), answer
            assert answer.next_offset == stream.offsets[-1]
        return stream.deleted or stream.closed

    def produce(self) -> None:
        """An append with a number, often sent twice, and sometimes one that is too early."""
        stream = self.some()
        if stream is None:
            return
        who = self.chance.choice("pq")
        number = stream.numbers.get(who, 0)
        append = self.some_append(stream.kind)
        answer = self._send(stream, who, number, append)
        if self._refused(stream, answer):
            return
        assert answer.status == 200, answer
        self._appended(stream, append, answer.next_offset)
        stream.numbers[who] = number + 1
        again = self._send(stream, who, self.chance.randrange(number + 1), append)
        assert (again.status, again.headers["producer-seq"]) == (204, str(number)), again
        early = self._send(stream, who, number + 2, append)
        assert (early.status, early.headers["producer-expected-seq"]) == (409, str(number + 1))

    def _send(self, stream: Stream, who: str, number: int, append: Any) -> Answer:
        headers = {"Producer-Id": who, "Producer-Epoch": "0", "Producer-Seq": str(number)}
        headers["Content-Type"] = stream.kind
        return self.calls.call("POST", stream.name, encoded(stream.kind, append), headers)

    def read(self) -> None:
        stream = self.some()
        if stream is not None:
            after = self.chance.randrange(len(stream.offsets))
            self._check_read(stream, after)

    def _check_read(self, stream: Stream, after: int) -> None:
        offset: str | None = stream.offsets[after]
        if after == 0:
            offset = self.chance.choice([None, "-1", ZERO, offset])
        pages = list(self.calls.pages(stream.name, offset))
        last = pages[-1]
        if stream.deleted:
            assert last.status == 410, last
            return
        assert last.status == 200, (stream.name, offset, last)
        if stream.kind == BYTES:
            found: Any = b"".join(page.body for page in pages)
        else:
            found = [value for page in pages for value in json.loads(page.body)]
        assert found == stream.content(after), (stream.name, offset)
        assert last.next_offset == stream.offsets[-1]
        assert ("stream-closed" in last.headers) == stream.closed

    def look(self) -> None:
        stream = self.some()
        if stream is None:
            return
        answer = self.calls.call("HEAD", stream.name)
        if stream.deleted:
            assert answer.status == 410, answer
            return
        assert answer.status == 200, answer
        assert answer.headers["content-type"] == stream.kind
        assert answer.next_offset == stream.offsets[-1]
        assert ("stream-closed" in answer.headers) == stream.closed
        beyond = self.calls.call("GET", stream.name, offset=BEYOND)
        assert beyond.status in (400, 410), beyond

    def fork(self) -> None:
        source, name = self.some(), self.free_name()
        if source is None or name is None:
            return
        at = self.chance.randrange(len(source.offsets))
        headers = {"Stream-Forked-From": PREFIX + source.name}
        appends = source.appends[:at]
        offsets = source.offsets[:at]
        anchor = source.offsets[at]
        headers["Stream-Fork-Offset"] = ZERO if anchor == "-1" else anchor
        cut = 0
        if at < len(source.appends) and self.chance.random() < 0.5:
            # A fork can end in the next append only, not in the one behind that.
            whole = source.joined.get(at, len(source.appends[at]))
            cut = self.chance.randrange(1, whole + 1)
            headers["Stream-Fork-Sub-Offset"] = str(cut)
            appends = [*appends, source.appends[at][:cut]]
            offsets.append(anchor)
        fork = Stream(name, source.kind, appends, source=source)
        fork.joined = {place: size for place, size in source.joined.items() if place < at}
        body = None
        if self.chance.random() < 0.3:
            # Where the cut ends is not told if more follows it at once.
            fork.appends.append(self.some_append(source.kind))
            body = encoded(source.kind, fork.appends[-1])
            headers["Content-Type"] = source.kind
            if cut:
                fork.appends[-2:] = [fork.appends[-2] + fork.appends[-1]]
                fork.joined[at] = cut
            else:
                offsets.append(anchor)
        answer = self.calls.call("PUT", name, body, headers)
        if source.deleted:
            assert answer.status == 409, answer
            return
        assert answer.status == 201, (answer, headers)
        if not cut and body is None:
            assert answer.next_offset == anchor or anchor == "-1", "the offset of the fork's point"
        else:
            assert answer.next_offset > anchor
        source.forks.append(fork)
        self._made(fork, answer, offsets)

    def shut(self) -> None:
        stream = self.some()
        if stream is None or self.chance.random() < 0.5:
            return
        answer = self.calls.call("POST", stream.name, headers={"Stream-Closed": "true"})
        if stream.deleted:
            assert answer.status == 410, answer
            return
        assert (answer.status, answer.next_offset) == (204, stream.offsets[-1]), answer
        stream.closed = True

    def delete(self) -> None:
        stream = self.some()
        if stream is None:
            return
        answer = self.calls.call("DELETE", stream.name)
        if stream.deleted:
            assert answer.status == 410, answer
            return
        assert answer.status == 204, answer
        if stream.forks:
            stream.deleted = True
            return
        self._forget(stream)
        assert self.calls.call("HEAD", stream.name).status == 404

    def _forget(self, stream: Stream) -> None:
        """It is gone, and so is a deleted source whose last fork it was."""
        del self.live[stream.name]
        self.stale.setdefault(stream.name, []).extend(stream.offsets)
        source = stream.source
        if source is None:
            return
        source.forks.remove(stream)
        if source.deleted and not source.forks:
            deadline = time.monotonic() + COLLECTED_SECONDS_MAX
            while self.calls.call("HEAD", source.name).status != 404:
                assert time.monotonic() < deadline, "a source without forks is never collected"
                time.sleep(0.01)
            self._forget(source)

    def read_stale(self) -> None:
        """An offset of a stream that was deleted leads to nothing in the one of that name now."""
        names = [name for name in self.stale if name in self.live]
        if not names:
            return
        stream = self.live[self.chance.choice(names)]
        offset = self.chance.choice(self.stale[stream.name])
        owners = {known.partition("_")[0] for known in stream.offsets}
        if stream.deleted or offset == "-1" or offset.partition("_")[0] in owners:
            return
        answer = self.calls.call("GET", stream.name, offset=offset)
        assert answer.status in (400, 410), (stream.name, offset, answer)

    def restart(self) -> None:
        """After it, by kill or by stop, every offset of every stream leads where it did."""
        self.calls.close()
        if self.chance.random() < 0.6:
            self._server.kill()
        else:
            assert self._server.stop() == 0
        self._server = ServerProcess(self._directory, **SETTINGS | {"port": self._port})
        for stream in self.live.values():
            for after in range(len(stream.offsets)):
                self._check_read(stream, after)


@contextlib.contextmanager
def lockstep(seed: int, directory: Path) -> Iterator[Lockstep]:
    run = Lockstep(seed, directory)
    try:
        yield run
    finally:
        run.close()
