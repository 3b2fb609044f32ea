"""Calls of Durable Streams for tests, over a speaker: create, append, read, and native names."""

from __future__ import annotations

from urllib.parse import quote

from tests.support.speakers import Reply, Speaker

JSON = "application/json"
TEXT = "text/plain"
OCTETS = "application/octet-stream"
ZERO = "0000000000000000_0000000000000000"


class Streams:
    """The streams of one server."""

    def __init__(self, speak: Speaker) -> None:
        self.speak = speak

    def __call__(self, method: str, path: str, body: bytes | None = None, **headers: str) -> Reply:
        """A request with these headers; `stream_ttl` is `stream-ttl`."""
        sent = {name.replace("_", "-"): value for name, value in headers.items()}
        return self.speak(method, f"/v1/stream/{path}", body, sent)

    def create(
        self, path: str, content_type: str = TEXT, body: bytes | None = None, **headers: str
    ) -> Reply:
        reply = self("PUT", path, body, content_type=content_type, **headers)
        assert reply.status == 201, reply
        return reply

    def append(self, path: str, body: bytes, content_type: str = TEXT, **headers: str) -> Reply:
        reply = self("POST", path, body, content_type=content_type, **headers)
        assert reply.status in (200, 204), reply
        return reply

    def read(self, path: str, query: str = "") -> bytes:
        reply = self("GET", path + query)
        assert reply.status == 200, reply
        return reply.body

    def status(self, method: str, path: str, body: bytes | None = None, **headers: str) -> int:
        return self(method, path, body, **headers).status


def topic_of(path: str) -> str:
    """The topic of a stream, as a segment of a native path."""
    return quote(f"ds:{path}", safe="")


def next_offset(reply: Reply) -> str:
    return reply.headers["stream-next-offset"]
