"""Hostile clients: what each kind does to a server, bounded in number, rate and time.

For tests and measurements of what others notice of them, on loopback only.  A kind holds up to
`count` connections and does a little at each `step`; a `Crowd` lets several kinds step beside each
other, each in a thread of its own and `rate` times a second, until it is told to leave.  Being
refused or closed is part of the game and is counted; an answer of 500 is a failure of the server,
and anything else that goes wrong one of the attack, which must not pass for a quiet one.
"""

from __future__ import annotations

import json
import socket
import threading
import time
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import ClassVar, NamedTuple

LOOPBACK = "127.0.0.1"
SECONDS_MAX = 20.0  # for an answer, and for a connection
JOIN_SECONDS_MAX = 60.0
SMALL_BUFFER_BYTES = 4_096  # of a client that is not going to read
INTERNAL_ERROR = 500
JSON_FIELDS = {"Content-Type": "application/json"}


class Target(NamedTuple):
    """Where the server is."""

    port: int
    host: str = LOOPBACK


def request(
    method: str, path: str, body: object = None, headers: dict[str, str] | None = None
) -> bytes:
    """An HTTP/1.1 request; a body that is not bytes becomes JSON."""
    data = body if isinstance(body, bytes) else b"" if body is None else json.dumps(body).encode()
    fields = {"Host": "localhost", **(headers or {})}
    if body is not None:
        fields = {**JSON_FIELDS, **fields, "Content-Length": str(len(data))}
    lines = [f"{method} {path} HTTP/1.1", *(f"{name}: {value}" for name, value in fields.items())]
    return "\r\n".join([*lines, "", ""]).encode() + data


def connect(target: Target, *, reads: bool = True) -> socket.socket:
    """A connection; one that is not going to be read has a small buffer."""
    connection = socket.socket()
    if not reads:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, SMALL_BUFFER_BYTES)
    connection.settimeout(SECONDS_MAX)
    try:
        connection.connect((target.host, target.port))
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    except OSError:
        connection.close()
        raise
    return connection


class Reply(NamedTuple):
    """An answer."""

    status: int
    body: bytes


class Pipe:
    """A connection on which many requests are sent at once; it connects again when it has to."""

    def __init__(self, target: Target) -> None:
        self._target = target
        self._socket: socket.socket | None = None
        self._held = b""

    def ask(self, requests: Sequence[bytes]) -> list[Reply]:
        """Send all of them, then read the answers; fewer if the server closes."""
        found: list[Reply] = []
        try:
            if self._socket is None:
                self._socket, self._held = connect(self._target), b""
            self._socket.sendall(b"".join(requests))
            while len(found) < len(requests):
                found.append(self._reply())
        except OSError:
            self.close()
        return found

    def _reply(self) -> Reply:
        head = self._until(b"\r\n\r\n")
        fields = dict(
            line.lower().split(": ", 1) for line in head.decode("latin-1").split("\r\n")[1:] if line
        )
        if "chunked" in fields.get("transfer-encoding", ""):
            return Reply(int(head[9:12]), self._until(b"0\r\n\r\n"))
        size = int(fields.get("content-length", "0"))
        while len(self._held) < size:
            self._receive()
        body, self._held = self._held[:size], self._held[size:]
        return Reply(int(head[9:12]), body)

    def _until(self, end: bytes) -> bytes:
        while end not in self._held:
            self._receive()
        found, _, self._held = self._held.partition(end)
        return found

    def _receive(self) -> None:
        assert self._socket is not None
        data = self._socket.recv(1 << 16)
        if not data:
            raise ConnectionResetError("the server has closed")
        self._held += data

    def close(self) -> None:
        if self._socket is not None:
            self._socket.close()
            self._socket = None


class Hostile:
    """One kind of hostile client, with at most `count` connections."""

    name: ClassVar[str]
    holds: ClassVar = False  # its first steps are connections that stay

    def __init__(self, target: Target, count: int) -> None:
        self.target = target
        self.count = count
        self.steps = 0
        self.answers: Counter[int] = Counter()
        self.held: list[socket.socket] = []
        self.pipe = Pipe(target)
        self.begun = False

    def begin(self) -> None:
        """Make what the attack needs."""

    def settle(self) -> None:
        """Take the connections that this kind holds for long, without a pause."""
        for _ in range(self.count if self.holds else 0):
            self.step()

    def step(self) -> None:
        """Do a little."""
        raise NotImplementedError

    def leave(self) -> None:
        """Close everything."""
        self.pipe.close()
        for connection in self.held:
            connection.close()
        self.held.clear()

    # What the kinds share

    def ask(self, *requests: bytes) -> list[Reply]:
        """Send requests at once and count what each was answered."""
        replies = self.pipe.ask(requests)
        self.answers.update(reply.status for reply in replies)
        return replies

    def hold(self, first: bytes, *, reads: bool = False) -> socket.socket | None:
        """Open a connection, send its first bytes, and keep it; the oldest of too many goes."""
        while len(self.held) >= self.count:
            self.held.pop(0).close()
        try:
            connection = connect(self.target, reads=reads)
            self.held.append(connection)
            connection.sendall(first)
        except OSError:
            return None  # the server has had enough
        return connection

    def drip(self, data: bytes) -> None:
        """Send a little on every connection that still takes it, and forget the others."""
        kept = []
        for connection in self.held:
            try:
                connection.settimeout(0.0)
                connection.send(data)
            except BlockingIOError:
                pass
            except OSError:
                connection.close()
                continue
            kept.append(connection)
        self.held[:] = kept


class Crowd:
    """Several kinds at once: `with Crowd(kinds, rate=50):` attacks until the block ends."""

    def __init__(self, kinds: Iterable[Hostile], rate: float) -> None:
        self.kinds = list(kinds)
        self.failures: list[str] = []
        self._pause = 1.0 / rate
        self._told = threading.Event()
        self._threads = [threading.Thread(target=self._run, args=(kind,)) for kind in self.kinds]

    def begin(self) -> None:
        """Make what the attacks need, once."""
        for kind in self.kinds:
            if not kind.begun:
                kind.begin()
                kind.begun = True

    def __enter__(self) -> Crowd:
        self.begin()
        try:
            for kind in self.kinds:
                kind.settle()
            for thread in self._threads:
                thread.start()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self._told.set()
        for thread in self._threads:
            if thread.ident is not None:
                thread.join(JOIN_SECONDS_MAX)
        for kind in self.kinds:
            kind.leave()

    def _run(self, kind: Hostile) -> None:
        due = time.monotonic()
        while not self._told.is_set():
            try:
                kind.step()
            except Exception as error:  # noqa: BLE001 - an attack that broke is no quiet one
                self.failures.append(f"{kind.name}: {error!r}")
                return
            kind.steps += 1
            # One that is behind does not catch up: the rate is a bound.
            due = max(due + self._pause, time.monotonic())
            self._told.wait(max(0.0, due - time.monotonic()))

    def problems(self) -> list[str]:
        """What went wrong with the attack itself, and answers of 500."""
        wrong = [f"{kind.name}: 500" for kind in self.kinds if kind.answers[INTERNAL_ERROR]]
        idle = [f"{kind.name} did nothing" for kind in self.kinds if not kind.steps]
        return self.failures + wrong + idle
