"""Clients of S2 sessions on real sockets, full-duplex over HTTP/1.1 and over HTTP/2.

They do only what they are told: a body goes on until it is ended, and an answer is read meanwhile.
"""

from __future__ import annotations

import socket

from headrace.testing.process import ServerProcess
from tests.support import http2_client
from tests.support.s2_servers import SentFrame

SECONDS_MAX = 30.0


class SessionClient:
    """One session."""

    def __init__(self) -> None:
        self._frames = b""

    def send(self, data: bytes) -> None:
        """Send a piece of the body."""
        raise NotImplementedError

    def end(self) -> None:
        """End the body."""
        raise NotImplementedError

    def status(self) -> int:
        """Wait for the head of the answer."""
        raise NotImplementedError

    def _more(self) -> bytes:
        """Wait for more of the answer; b"" at its end."""
        raise NotImplementedError

    def next(self) -> SentFrame | None:
        """Wait for the next frame; None: the answer has ended."""
        while True:
            held = self._frames
            end = 3 + int.from_bytes(held[:3], "big")
            if len(held) >= 3 and len(held) >= end:
                self._frames = held[end:]
                return SentFrame(held[3], held[4:end])
            more = self._more()
            if not more:
                assert not held, held
                return None
            self._frames += more

    def close(self) -> None:
        raise NotImplementedError


class Http1Session(SessionClient):
    """A session over HTTP/1.1, with a chunked body and a chunked answer."""

    def __init__(self, server: ServerProcess, method: str, path: str, headers: dict[str, str]):
        super().__init__()
        self.sock = socket.create_connection((server.host, server.port), SECONDS_MAX)
        self._file = self.sock.makefile("rb")
        lines = [f"{method} {path} HTTP/1.1", f"host: localhost:{server.port}"]
        lines += [f"{name}: {value}" for name, value in headers.items()]
        if method == "POST":
            lines.append("transfer-encoding: chunked")
        self.sock.sendall("\r\n".join([*lines, "", ""]).encode())
        self._status = 0
        self.headers: dict[str, str] = {}

    def send(self, data: bytes) -> None:
        self.sock.sendall(b"%x\r\n%b\r\n" % (len(data), data))

    def end(self) -> None:
        self.sock.sendall(b"0\r\n\r\n")

    def status(self) -> int:
        if not self._status:
            self._status = int(self._file.readline().split()[1])
            while (line := self._file.readline()) != b"\r\n":
                name, _, value = line.decode().partition(":")
                self.headers[name.lower()] = value.strip()
        return self._status

    def body(self) -> bytes:
        """The whole of an answer that is none of a session."""
        self.status()
        return self._file.read(int(self.headers["content-length"]))

    def _more(self) -> bytes:
        self.status()
        size = int(self._file.readline(), 16)
        data = self._file.read(size)
        assert self._file.read(2) == b"\r\n"
        return data

    def close(self) -> None:
        self._file.close()
        self.sock.close()


class _Address:
    def __init__(self, server: ServerProcess) -> None:
        self._server = server

    def connect(self) -> socket.socket:
        return socket.create_connection((self._server.host, self._server.port), SECONDS_MAX)


class Http2Session(SessionClient):
    """A session over HTTP/2."""

    def __init__(self, server: ServerProcess, method: str, path: str, headers: dict[str, str]):
        super().__init__()
        self.client = http2_client.Client(_Address(server))
        fields = [(name.encode(), value.encode()) for name, value in headers.items()]
        ends = method == "GET"
        self.id = self.client.start(method.encode(), path.encode(), fields, end=ends)
        self.stream = self.client.streams[self.id]
        self._taken = 0

    def send(self, data: bytes) -> None:
        self.client.send(self.id, data)

    def end(self) -> None:
        self.client.h2.end_stream(self.id)
        self.client.flush()

    def status(self) -> int:
        self.client.until(lambda: self.stream.status != 0)
        return self.stream.status

    def body(self) -> bytes:
        """The whole of an answer that is none of a session."""
        return self.client.finish(self.id).data

    def _more(self) -> bytes:
        stream = self.stream
        self.client.until(lambda: len(stream.data) > self._taken or stream.over)
        data, self._taken = stream.data[self._taken :], len(stream.data)
        return data

    def close(self) -> None:
        self.client.sock.close()


SESSIONS: dict[str, type[Http1Session] | type[Http2Session]] = {
    "h1": Http1Session,
    "h2c": Http2Session,
}
