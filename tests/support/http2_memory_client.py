"""A client of HTTP/2 without a socket: it makes frames, and a test says what each read brings."""

from __future__ import annotations

import json
from typing import Any, NamedTuple

from h2.errors import ErrorCodes
from hpack.hpack import Decoder, Encoder

from headrace.server.http2 import limits
from headrace.server.http2.connection import PREFACE, Http2Connection
from tests.support.http2_client import Frame, frame, frames
from tests.support.memory_transport import MemoryTransport
from tests.support.wire_fuzz import World

WINDOW = (1 << 31) - 1


class CountedTransport(MemoryTransport):
    """Counts how often it was written to."""

    writes = 0

    def write(self, data: bytes | bytearray | memoryview) -> None:
        self.writes += 1
        super().write(data)


class Answer(NamedTuple):
    """What has come back on a stream; `reset` is None if it was not."""

    status: int = 0
    headers: tuple[tuple[bytes, bytes], ...] = ()
    body: bytes = b""
    ended: bool = False
    reset: int | None = None

    @property
    def json(self) -> Any:
        return json.loads(self.body)


class Http2Client:
    """The other end of a connection: it makes frames, and sends what it is told to."""

    def __init__(self, world: World, window: int = WINDOW) -> None:
        self.world = world
        self.connection = Http2Connection(world.server.app)
        self.transport = CountedTransport()
        self.transport.protocol = self.connection
        self.connection.connection_made(self.transport)
        self.encoder, self.decoder = Encoder(), Decoder()
        self.answers: dict[int, Answer] = {}
        self.other: list[Frame] = []
        self.stream_id = -1
        self.send(PREFACE + frame(limits.SETTINGS, 0, 0, b"\x00\x04" + window.to_bytes(4, "big")))
        self.take()
        self.other.clear()

    def send(self, data: bytes) -> None:
        """What one read brings."""
        self.connection.data_received(data)

    def request(
        self, path: bytes, body: bytes | None = None, *headers: tuple[bytes, bytes]
    ) -> tuple[bytes, bytes]:
        """The frames of a request: its head, and its body if it has one."""
        self.stream_id += 2
        method = b"GET" if body is None else b"POST"
        fields = [
            (b":method", method),
            (b":scheme", b"http"),
            (b":authority", b"localhost"),
            (b":path", path),
            *headers,
        ]
        if body is None:
            return frame(1, 5, self.stream_id, self.encoder.encode(fields)), b""
        block = self.encoder.encode([*fields, (b"content-type", b"application/json")])
        return frame(1, 4, self.stream_id, block), frame(0, 1, self.stream_id, body)

    def append(self, topic: bytes, number: int, *headers: tuple[bytes, bytes]) -> bytes:
        body = b'{"records":[{"data":%d}]}' % number
        return b"".join(self.request(b"/v0/topics/" + topic, body, *headers))

    def take(self) -> dict[int, Answer]:
        """All answers by stream, with those that have come now."""
        self.world.runtime.run()
        came = frames(bytes(self.transport.sent))
        self.transport.sent.clear()
        for kind, flags, stream_id, body in came:
            answer = self.answers.get(stream_id, Answer())
            if kind == limits.HEADERS:
                fields = [(bytes(n), bytes(v)) for n, v in self.decoder.decode(body, raw=True)]
                answer = answer._replace(status=int(fields[0][1]), headers=tuple(fields[1:]))
            elif kind == limits.DATA:
                answer = answer._replace(body=answer.body + body)
            elif kind == limits.RST_STREAM:
                if answer.reset is None:  # frames that were on their way are refused again
                    answer = answer._replace(reset=int.from_bytes(body, "big"))
            else:
                self.other.append(Frame(kind, flags, stream_id, body))
                continue
            ended = answer.ended or bool(flags & limits.END_STREAM and kind <= limits.HEADERS)
            self.answers[stream_id] = answer._replace(ended=ended)
        self.answers = dict(sorted(self.answers.items()))
        return self.answers

    def goaway(self) -> str:
        """Why the connection was closed."""
        self.take()
        return ErrorCodes(int.from_bytes(self.other[-1].body[4:8], "big")).name
