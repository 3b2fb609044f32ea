"""How the generator speaks each protocol: ready-made request bytes, and where an answer ends.

Nothing is parsed beyond what tells a good answer from a bad one and where it ends.  A `Wire` is one
connection; `received` says how many answers a piece of data completed, and raises `BadAnswer` for
anything but success, so that no figure is made of refusals, unless a case counts them.
"""

from __future__ import annotations

import json
import re
import socket
from collections import deque
from functools import cache

HOST = "127.0.0.1"
CONNECT_SECONDS = 10.0
DATA_BYTES = 256
NO_CONTENT = b"HTTP/1.1 204"
LAST_CHUNK = b"0\r\n\r\n"  # what nothing comes behind
SUCCESS = (200, 201, 204)
THROTTLED = 429


class BadAnswer(Exception):
    """The server refused, or sent what the protocol does not allow."""


def document(size: int = DATA_BYTES, number: int = 0) -> bytes:
    """A JSON document of exactly `size` bytes."""
    head = b'{"order":%d,"customer":"c-%d","note":"' % (number, number % 97)
    return head + b"x" * (size - len(head) - 2) + b'"}'


class Wire:
    """One connection, and the requests that are on their way."""

    depth = 1  # requests in progress at once

    def __init__(self, port: int) -> None:
        self.socket = socket.create_connection((HOST, port), CONNECT_SECONDS)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.sent: deque[float] = deque()
        self.rest = b""
        self.open()

    def open(self) -> None:
        """What the protocol asks for before the first request."""

    def send_next(self) -> None:
        raise NotImplementedError

    def received(self, buffer: bytearray, size: int) -> int:
        """How many answers are complete with these bytes."""
        raise NotImplementedError

    def close(self) -> None:
        self.socket.close()


class Http(Wire):
    """HTTP/1.1 without pipelining; answers have a Content-Length, or none when they are 204."""

    accepted: tuple[int, ...] = SUCCESS

    def __init__(self, port: int, request: bytes) -> None:
        self.request = request
        self.missing = 0  # bytes of the answer whose head was read
        super().__init__(port)

    def send_next(self) -> None:
        self.socket.sendall(self.request)

    def received(self, buffer: bytearray, size: int) -> int:
        if self.missing:
            self.missing -= size
            assert self.missing >= 0
            return self.missing == 0
        if self.rest or size == 0:
            return self._slowly(bytes(buffer[:size]))
        if buffer.startswith(NO_CONTENT) and buffer.find(b"\r\n\r\n", 0, size) == size - 4 > 0:
            return 1
        head_end = buffer.find(b"\r\n\r\n", 0, size)
        length_at = buffer.find(b"ontent-", 0, head_end)
        while length_at > 0 and buffer[length_at + 8 : length_at + 13] != b"ngth:":
            length_at = buffer.find(b"ontent-", length_at + 7, head_end)
        if length_at < 0 or head_end < 0 or not buffer.startswith(b"HTTP/1.1 20"):
            return self._slowly(bytes(buffer[:size]))
        line_end = buffer.find(b"\r", length_at, head_end + 1)
        missing = head_end + 4 + int(buffer[length_at + 13 : line_end]) - size
        assert missing >= 0, "two answers to one request"
        self.missing = missing
        return missing == 0

    def _slowly(self, data: bytes) -> int:
        """An answer in pieces, one without a body, or a refusal."""
        if not data:
            raise BadAnswer("the connection was closed")
        data = self.rest + data
        head, blank, body = data.partition(b"\r\n\r\n")
        if not blank:
            self.rest = data
            return 0
        self.rest = b""
        status = int(head[9:12])
        if status not in self.accepted:
            raise BadAnswer(data[:500].decode("latin-1"))
        if re.search(rb"(?i)\r\ntransfer-encoding: *chunked", head):
            if body.endswith(LAST_CHUNK):
                return 1
            self.rest = data
            return 0
        length = re.search(rb"(?i)\r\ncontent-length: *(\d+)", head)
        self.missing = (int(length[1]) if length else 0) - len(body)
        assert self.missing >= 0
        return self.missing == 0


class HttpTurns(Http):
    """The same body to one path after another, `{}` in the path being the number of a topic.

    Every request is made before the first is sent, whoever the server is.
    """

    _connections = 0

    def __init__(
        self, port: int, path: str, topics: int, body: str, headers: dict[str, str]
    ) -> None:
        self._requests = _turns(path, topics, body, tuple(headers.items()))
        # Connections are not to meet at the same topic again and again.
        self._turn = HttpTurns._connections * 7
        HttpTurns._connections += 1
        super().__init__(port, b"")

    def send_next(self) -> None:
        self._turn += 1
        self.socket.sendall(self._requests[self._turn % len(self._requests)])


@cache
def _turns(path: str, topics: int, body: str, headers: tuple[tuple[str, str], ...]) -> list[bytes]:
    """The requests of all connections."""
    return [
        http_request("POST", path.format(number), body.encode(), dict(headers))
        for number in range(topics)
    ]


class HttpAppends(Http):
    """Appends to topics in turn, each with the length, the key and the producer it is to have."""

    _connections = 0

    def __init__(
        self,
        port: int,
        topics: int,
        sizes: list[int] | None = None,
        key: str = "",
        producer: bool = False,
        throttled: bool = False,
        records: int = 1,
    ) -> None:
        if throttled:
            self.accepted = (*SUCCESS, THROTTLED)
        headers = {**JSON_HEADERS, **({"Authorization": f"Bearer {key}"} if key else {})}
        self._number = HttpAppends._connections
        HttpAppends._connections += 1
        self._topics = topics
        self._turn = self._number * 7
        self._producer = producer
        self._sent = 0
        bodies = [append_body(records, size) for size in sizes or [DATA_BYTES]]
        self._tails = [_after_line(body, headers) for body in bodies]
        super().__init__(port, b"")

    def send_next(self) -> None:
        self._turn += 1
        tail = self._tails[self._turn % len(self._tails)]
        name = f"t{self._turn % self._topics}"
        line = f"POST /v0/topics/{name} HTTP/1.1\r\n"
        if self._producer:
            # A producer of one topic counts its own appends.
            sequence = self._sent // self._topics
            line += f"Producer-Id: p{self._number}\r\nProducer-Epoch: 0\r\n"
            line += f"Producer-Seq: {sequence}\r\n"
            self._sent += 1
        self.socket.sendall(line.encode() + tail)


def _after_line(body: bytes, headers: dict[str, str]) -> bytes:
    """A request without its first line."""
    return http_request("POST", "/", body, headers).partition(b"\r\n")[2]


def http_request(method: str, path: str, body: bytes, headers: dict[str, str]) -> bytes:
    lines = [f"{method} {path} HTTP/1.1", f"Host: {HOST}", f"Content-Length: {len(body)}"]
    lines += [f"{name}: {value}" for name, value in headers.items()]
    return "\r\n".join([*lines, "", ""]).encode() + body


def append_body(records: int = 1, size: int = DATA_BYTES) -> bytes:
    """The JSON of an append."""
    parts = [b'{"data":%b}' % document(size, n) for n in range(records)]
    return b'{"records":[%b]}' % b",".join(parts)


JSON_HEADERS = {"Content-Type": "application/json"}
ARROW = "application/vnd.apache.arrow.stream"


def append_request(topic: str, records: int = 1, size: int = DATA_BYTES, query: str = "") -> bytes:
    return http_request(
        "POST", f"/v0/topics/{topic}{query}", append_body(records, size), JSON_HEADERS
    )


def diff_request(topic: str, from_seq: int, limit: int) -> bytes:
    body = json.dumps({"from_seq": from_seq, "limit": limit, "max_batch_bytes": 8 << 20}).encode()
    return http_request("POST", f"/v0/topics/{topic}/diff", body, JSON_HEADERS)


def arrow_append_request(topic: str, rows: int, size: int, utf8: bool) -> bytes:
    """Rows of one column `data`, as an Arrow stream."""
    import pyarrow as pa

    kind = pa.utf8() if utf8 else pa.binary()
    values = [document(size, n) for n in range(rows)]
    column = pa.array(values, pa.binary()).cast(kind)
    batch = pa.record_batch([column], names=["data"])
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batch.schema) as writer:
        writer.write_batch(batch)
    body = sink.getvalue().to_pybytes()
    path = f"/v0/topics/{topic}?return_seqs=false"
    return http_request("POST", path, body, {"Content-Type": ARROW})


def arrow_diff_request(topic: str, from_seq: int, limit: int) -> bytes:
    body = json.dumps({"from_seq": from_seq, "limit": limit, "max_batch_bytes": 8 << 20}).encode()
    headers = {**JSON_HEADERS, "Accept": ARROW}
    return http_request("POST", f"/v0/topics/{topic}/diff", body, headers)


def plain_request(method: str, path: str, body: str, content_type: str) -> bytes:
    """For servers that are not ours."""
    return http_request(method, path, body.encode(), {"Content-Type": content_type})
