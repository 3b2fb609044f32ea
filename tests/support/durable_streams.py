"""Durable Streams for tests: one stream by one protocol, and its events as a client reads them."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple
from urllib.parse import urlencode

from tests.support.speakers import Reply, Speaker

OFFSET = re.compile(r"[0-9]{16}_[0-9]{16}")
ZERO = "0000000000000000_0000000000000000"
BEYOND = "9999999999999999_9999999999999999"


class SentEvent(NamedTuple):
    """An event: its name, and its data lines joined as a client joins them."""

    name: str
    data: str

    @property
    def control(self) -> dict[str, Any]:
        assert self.name == "control", self
        found = json.loads(self.data)
        assert isinstance(found, dict)
        return found


def parse_events(text: str) -> list[SentEvent]:
    """Whole events, as the WHATWG specification reads them."""
    events, name, data = [], "", list[str]()
    for line in re.split("\r\n|\r|\n", text):
        if not line:
            if data:
                events.append(SentEvent(name, "\n".join(data)))
            name, data = "", []
            continue
        field, _, value = line.partition(":")
        value = value.removeprefix(" ")
        if field == "event":
            name = value
        elif field == "data":
            data.append(value)
    return events


def events_in(chunks: Iterable[bytes]) -> Iterator[SentEvent]:
    """Events as they come."""
    pending = b""
    for chunk in chunks:
        pending += chunk
        while b"\n\n" in pending:
            block, _, pending = pending.partition(b"\n\n")
            yield from parse_events(block.decode() + "\n\n")
    assert pending == b"", pending


class DurableStream:
    """One stream, by one protocol."""

    def __init__(self, speak: Speaker, name: str, type: str = "text/plain") -> None:
        self.speak = speak
        self.path = f"/v1/stream/{name}"
        self.type = type

    def __call__(
        self, method: str, body: bytes | None = None, query: str = "", **headers: str
    ) -> Reply:
        sent = {name.replace("_", "-"): value for name, value in headers.items()}
        reply = self.speak.send(method, self.path + query, body, sent)
        assert reply.headers["x-content-type-options"] == "nosniff"
        return reply

    def put(self, body: bytes | None = None, **headers: str) -> Reply:
        reply = self("PUT", body, **{"content-type": self.type, **headers})
        assert reply.status in (200, 201), reply
        return reply

    def post(self, body: bytes, **headers: str) -> str:
        """Append, and return the next offset."""
        reply = self("POST", body, **{"content-type": self.type, **headers})
        assert reply.status in (200, 204), reply
        return reply.headers["stream-next-offset"]

    def close(self) -> None:
        assert self("POST", b"", stream_closed="true").status == 204

    def get(self, headers: dict[str, str] | None = None, /, **query: str) -> Reply:
        return self("GET", None, f"?{urlencode(query)}" if query else "", **(headers or {}))

    @property
    def tail(self) -> str:
        return self("HEAD").headers["stream-next-offset"]


class StreamMaker:
    """Creates streams by one protocol, under one name unless another is given."""

    def __init__(self, speak: Speaker, name: str) -> None:
        self.speak, self.name = speak, name

    def __call__(
        self, type: str = "text/plain", body: bytes | None = None, name: str | None = None
    ) -> DurableStream:
        stream = DurableStream(self.speak, self.name if name is None else name, type)
        stream.put(body)
        return stream
