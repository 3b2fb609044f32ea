"""HTTP/2 and WebSocket for the generator: frames made by hand, since libraries cost more than ours.

HTTP/2 as a client that sends the same request again does it: its header fields are in the
compression table after the first request.
"""

from __future__ import annotations

import base64
import struct

from bench.wires import HOST, BadAnswer, Wire, append_body, document

# HTTP/2 frame types and flags.
DATA, HEADERS, RST_STREAM, SETTINGS, PING, GOAWAY, WINDOW_UPDATE = 0, 1, 3, 4, 6, 7, 8
END_STREAM = ACK = 1
END_HEADERS = 4
WINDOW_MAX = (1 << 31) - 1
STATUS_200 = 0x88  # the whole field as one byte of HPACK
TABLE_SIZE = range(0x20, 0x40)  # a change of the table's size comes before the fields


def frame(kind: int, flags: int, stream: int, payload: bytes) -> bytes:
    return struct.pack(">I", len(payload))[1:] + struct.pack(">BBI", kind, flags, stream) + payload


def literal(index: int, value: str) -> bytes:
    """A field whose name is in the static table, to be kept in the dynamic one."""
    assert index < 63 and len(value) < 127
    return bytes([0x40 | index, len(value)]) + value.encode()


class Http2Append(Wire):
    """Appends over HTTP/2 with prior knowledge, `streams` of them at once."""

    def __init__(self, port: int, topic: str, streams: int) -> None:
        self.depth = streams
        self.body = append_body()
        self.fields = [
            (4, f"/v0/topics/{topic}"),
            (1, f"{HOST}:{port}"),
            (31, "application/json"),
            (28, str(len(self.body))),
        ]
        self.stream = -1
        self.window = 65_535  # bytes the server lets us send on the connection
        super().__init__(port)

    def open(self) -> None:
        settings = struct.pack(">HI", 4, WINDOW_MAX)
        more = struct.pack(">I", WINDOW_MAX - 65_535)
        self.socket.sendall(
            b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
            + frame(SETTINGS, 0, 0, settings)
            + frame(WINDOW_UPDATE, 0, 0, more)
        )
        buffer = bytearray(1 << 16)
        while self.window == 65_535:  # until it is known what the server grants
            self.received(buffer, self.socket.recv_into(buffer))

    def send_next(self) -> None:
        self.stream += 2
        if self.stream == 1:
            block = b"\x83\x86" + b"".join(literal(*field) for field in self.fields)
        else:
            block = b"\x83\x86\xc1\xc0\xbf\xbe"
        self.window -= len(self.body)
        if self.window < 0:
            raise BadAnswer("the server gives no more window")
        self.socket.sendall(
            frame(HEADERS, END_HEADERS, self.stream, block)
            + frame(DATA, END_STREAM, self.stream, self.body)
        )

    def received(self, buffer: bytearray, size: int) -> int:
        if size == 0:
            raise BadAnswer("the connection was closed")
        data = self.rest + buffer[:size]
        at = answers = 0
        while len(data) - at >= 9:
            length = int.from_bytes(data[at : at + 3], "big")
            if len(data) - at < 9 + length:
                break
            kind, flags = data[at + 3], data[at + 4]
            answers += self._frame(kind, flags, data[at + 9 : at + 9 + length])
            at += 9 + length
        self.rest = bytes(data[at:])
        return answers

    def _frame(self, kind: int, flags: int, payload: bytes) -> int:
        """1 when it ends an answer."""
        if kind == HEADERS:
            at = after_table_sizes(payload)
            if payload[at] != STATUS_200:
                raise BadAnswer(f"an answer whose header block starts with {payload[:20]!r}")
        elif kind == SETTINGS and not flags & ACK:
            self.socket.sendall(frame(SETTINGS, ACK, 0, b""))
        elif kind == PING and not flags & ACK:
            self.socket.sendall(frame(PING, ACK, 0, payload))
        elif kind == WINDOW_UPDATE:
            # Those of single streams never matter: a body is smaller than any first window.
            self.window += int.from_bytes(payload, "big")
        elif kind in (RST_STREAM, GOAWAY):
            raise BadAnswer(f"frame {kind} of {payload!r}")
        return kind in (DATA, HEADERS) and flags & END_STREAM


def after_table_sizes(block: bytes) -> int:
    """Where the fields of a header block begin."""
    at = 0
    while block[at] in TABLE_SIZE:
        more = block[at] == TABLE_SIZE[-1]  # then the number goes on, seven bits a byte
        at += 1
        while more:
            more = block[at] >= 0x80
            at += 1
    return at


def masked(payload: bytes, opcode: int = 1) -> bytes:
    """A client's frame; its mask is zero, which is as good as any here."""
    size = len(payload)
    if size < 126:
        head = struct.pack(">BB", 0x80 | opcode, 0x80 | size)
    elif size < 65_536:
        head = struct.pack(">BBH", 0x80 | opcode, 0x80 | 126, size)
    else:
        head = struct.pack(">BBQ", 0x80 | opcode, 0x80 | 127, size)
    return head + bytes(4) + payload


class WebSocket(Wire):
    """A WebSocket to /v0/ws; what its messages mean is up to subclasses."""

    def open(self) -> None:
        key = base64.b64encode(bytes(16)).decode()
        self.socket.sendall(
            f"GET /v0/ws HTTP/1.1\r\nHost: {HOST}\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
            f"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: {key}\r\n\r\n".encode()
        )
        data = b""
        while b"\r\n\r\n" not in data:
            piece = self.socket.recv(65_536)
            if not piece:
                raise BadAnswer(data.decode("latin-1"))
            data += piece
        head, _, self.rest = data.partition(b"\r\n\r\n")
        if b" 101 " not in head.partition(b"\r\n")[0]:
            raise BadAnswer(data[:500].decode("latin-1"))

    def messages(self, data: bytes) -> list[bytes]:
        """Whole text messages; pings are answered on the way."""
        if not data:
            raise BadAnswer("the connection was closed")
        data = self.rest + data
        found = []
        while len(data) >= 2:
            start, size = 2, data[1]
            if size == 126:
                start, size = 4, int.from_bytes(data[2:4], "big")
            elif size == 127:
                start, size = 10, int.from_bytes(data[2:10], "big")
            if len(data) < start + size:
                break
            payload, opcode = data[start : start + size], data[0] & 15
            data = data[start + size :]
            if opcode == 9:
                self.socket.sendall(masked(payload, 10))
            elif opcode == 8:
                raise BadAnswer(f"closed: {payload!r}")
            else:
                found.append(payload)
        self.rest = data
        return found


class WebSocketPublish(WebSocket):
    """Publishes of one record; an answer is its ack."""

    def __init__(self, port: int, topic: str) -> None:
        self.message = masked(
            b'{"op":"publish","topic":"%b","request_id":1,"records":[{"data":%b}]}'
            % (topic.encode(), document())
        )
        super().__init__(port)

    def send_next(self) -> None:
        self.socket.sendall(self.message)

    def received(self, buffer: bytearray, size: int) -> int:
        answers = 0
        for message in self.messages(bytes(buffer[:size])):
            if b'"op":"ack"' in message:
                answers += 1
            elif b'"op":"error"' in message:
                raise BadAnswer(message.decode())
        return answers
