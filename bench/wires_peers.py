"""Redis and NATS for the generator: the few commands that do what our own requests do."""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import cache
from types import MappingProxyType

from bench.wires import BadAnswer, Wire, document


def command(*parts: bytes) -> bytes:
    """A Redis command."""
    return b"*%d\r\n" % len(parts) + b"".join(b"$%d\r\n%b\r\n" % (len(p), p) for p in parts)


class RedisAppend(Wire):
    """XADD of one field; its answer is one short string, the id."""

    def __init__(self, port: int, topic: str) -> None:
        self.command = command(b"XADD", topic.encode(), b"*", b"data", document())
        super().__init__(port)

    def send_next(self) -> None:
        self.socket.sendall(self.command)

    def received(self, buffer: bytearray, size: int) -> int:
        data = self.rest + buffer[:size]
        if not data.startswith(b"$"):
            raise BadAnswer(data[:200].decode("latin-1"))
        done = data.count(b"\r\n") == 2 and data.endswith(b"\r\n")
        self.rest = b"" if done else data
        return done


class RedisAppends(RedisAppend):
    """XADD to one stream after another."""

    _connections = 0

    def __init__(self, port: int, topics: int) -> None:
        self.commands = xadds(topics)
        # Connections are not to meet at the same stream again and again.
        self.turn = RedisAppends._connections * 7
        RedisAppends._connections += 1
        super().__init__(port, "")

    def send_next(self) -> None:
        self.turn += 1
        self.socket.sendall(self.commands[self.turn % len(self.commands)])


@cache
def xadds(topics: int) -> list[bytes]:
    return [command(b"XADD", b"t%d" % n, b"*", b"data", document()) for n in range(topics)]


class RedisRead(Wire):
    """XREAD from the start.  Each answer is as long as the first, which is read as a whole."""

    def __init__(self, port: int, topic: str, limit: int) -> None:
        count = b"%d" % limit
        self.command = command(b"XREAD", b"COUNT", count, b"STREAMS", topic.encode(), b"0")
        self.missing = 0
        super().__init__(port)

    def open(self) -> None:
        self.socket.sendall(self.command)
        data = b""
        while (end := whole(data, 0)) is None:
            piece = self.socket.recv(1 << 20)
            if not piece:
                raise BadAnswer("the connection was closed")
            data += piece
        assert end == len(data)
        self.size = end

    def send_next(self) -> None:
        self.missing = self.size
        self.socket.sendall(self.command)

    def received(self, buffer: bytearray, size: int) -> int:
        if size == 0:
            raise BadAnswer("the connection was closed")
        self.missing -= size
        assert self.missing >= 0
        return self.missing == 0


def whole(data: bytes, at: int) -> int | None:
    """Where the Redis value that starts at `at` ends; None when part of it is missing."""
    line_end = data.find(b"\r\n", at)
    if line_end < 0:
        return None
    kind, rest = data[at : at + 1], data[at + 1 : line_end]
    if kind == b"-":
        raise BadAnswer(rest.decode("latin-1"))
    if kind == b"$":
        end = line_end + 2 + int(rest) + 2
        return end if end <= len(data) else None
    if kind != b"*":
        return line_end + 2
    end = line_end + 2
    for _ in range(int(rest)):
        inner = whole(data, end)
        if inner is None:
            return None
        end = inner
    return end


class Nats(Wire):
    """A NATS connection with an inbox for answers."""

    INBOX = b"_INBOX.bench"
    OPTIONS: Mapping[str, object] = MappingProxyType({})

    def open(self) -> None:
        self.line()  # INFO
        options: dict[str, object] = {
            "verbose": False,
            "pedantic": False,
            "lang": "bench",
            "version": "0",
        }
        options |= self.OPTIONS
        hello = b"CONNECT %b\r\nPING\r\n" % json.dumps(options).encode()
        # One subject a connection, since an inbox is shared by all of an account.
        self.inbox = b"%b.%d" % (self.INBOX, self.socket.getsockname()[1])
        self.socket.sendall(hello + b"SUB %b 1\r\n" % self.inbox)
        if self.line() != b"PONG":
            raise BadAnswer("no PONG")

    def line(self) -> bytes:
        while b"\r\n" not in self.rest:
            self.rest += self.socket.recv(65_536)
        line, _, self.rest = self.rest.partition(b"\r\n")
        return line

    def publish(self, subject: bytes, payload: bytes) -> bytes:
        return b"PUB %b %b %d\r\n%b\r\n" % (subject, self.inbox, len(payload), payload)

    def ask(self, subject: str, document: Mapping[str, object]) -> dict[str, object]:
        """One request to JetStream's own API."""
        self.socket.sendall(self.publish(subject.encode(), json.dumps(document).encode()))
        if not self.line().startswith(b"MSG "):
            raise BadAnswer("no answer")
        answer: dict[str, object] = json.loads(self.line())
        if "error" in answer:
            raise BadAnswer(str(answer["error"]))
        return answer


class NatsPublish(Nats):
    """Publishes that JetStream acknowledges."""

    def __init__(self, port: int, topic: str) -> None:
        self.topic = topic.encode()
        super().__init__(port)

    def open(self) -> None:
        super().open()
        self.message = self.publish(self.topic, document())

    def send_next(self) -> None:
        self.socket.sendall(self.message)

    def received(self, buffer: bytearray, size: int) -> int:
        if size == 0:
            raise BadAnswer("the connection was closed")
        data = self.rest + buffer[:size]
        answers = 0
        while (line_end := data.find(b"\r\n")) >= 0:
            end = line_end + 2
            if data.startswith(b"MSG "):
                end += int(data[data.rindex(b" ", 0, line_end) + 1 : line_end]) + 2
                if end > len(data):
                    break
                if b'"seq"' not in data[line_end:end]:
                    raise BadAnswer(data[:end].decode("latin-1"))
                answers += 1
            elif data.startswith(b"PING"):
                self.socket.sendall(b"PONG\r\n")
            else:
                raise BadAnswer(data[:end].decode("latin-1"))
            data = data[end:]
        self.rest = bytes(data)
        return answers
