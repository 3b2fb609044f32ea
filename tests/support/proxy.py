"""A TCP proxy between a client and a server, for what networks do: cut, delay, repeat.

Each connection takes the next of `plans`, or `usual` when there is none.  The proxy knows
nothing of what passes through it.
"""

from __future__ import annotations

import contextlib
import socket
import struct
import threading
from collections import deque
from typing import NamedTuple, Self

RECEIVE_BYTES = 64 << 10
JOIN_SECONDS_MAX = 30
# Closing a socket that has this set sends a reset, as a dying host or a firewall does.
RESET = struct.pack("ii", 1, 0)


class Plan(NamedTuple):
    """What happens to one connection."""

    request_bytes: int | None = None  # so many go to the server, then both sides are cut
    answer_bytes: int | None = None  # so many come back, then both sides are cut
    answer_delay_s: float = 0.0
    copies: int = 1  # connections on which the server gets the same bytes
    reset: bool = False  # cut by a reset instead of an end


class Link:
    """One client's connection, and those to the server that belong to it."""

    def __init__(self, client: socket.socket, servers: list[socket.socket], plan: Plan) -> None:
        self.client = client
        self.servers = servers
        self._plan = plan
        self._cut = threading.Event()
        self.threads = [threading.Thread(target=self._upward, daemon=True)]
        self.threads += [
            threading.Thread(target=self._downward, args=[server, first], daemon=True)
            for server, first in zip(servers, [True] + [False] * len(servers), strict=False)
        ]

    def start(self) -> None:
        for thread in self.threads:
            thread.start()

    def cut(self) -> None:
        """Both sides find the connection gone."""
        if self._cut.is_set():
            return
        self._cut.set()
        for side in (self.client, *self.servers):
            with contextlib.suppress(OSError):
                if self._plan.reset:
                    side.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
                # Wakes the thread that reads from it; an end is sent only if both ways are shut.
                side.shutdown(socket.SHUT_RD if self._plan.reset else socket.SHUT_RDWR)
        if self._plan.reset:
            self.close()

    def close(self) -> None:
        for side in (self.client, *self.servers):
            side.close()

    def _upward(self) -> None:
        left = self._plan.request_bytes
        with contextlib.suppress(OSError):
            while data := self.client.recv(RECEIVE_BYTES):
                passed = data if left is None else data[:left]
                for server in self.servers:
                    server.sendall(passed)
                if left is not None:
                    left -= len(passed)
                    if left == 0:
                        break
        self.cut()

    def _downward(self, server: socket.socket, first: bool) -> None:
        left = self._plan.answer_bytes
        with contextlib.suppress(OSError):
            while data := server.recv(RECEIVE_BYTES):
                if not first:
                    continue  # one answer is enough
                if self._plan.answer_delay_s:
                    self._cut.wait(self._plan.answer_delay_s)
                passed = data if left is None else data[:left]
                self.client.sendall(passed)
                if left is not None:
                    left -= len(passed)
                    if left == 0:
                        break
        self.cut()


class Proxy:
    """`with Proxy(server.host, server.port) as proxy: Client(proxy.url)`"""

    def __init__(self, host: str, port: int) -> None:
        self.target = host, port  # may be changed while it runs
        self.plans: deque[Plan] = deque()
        self.usual = Plan()
        self.connections = 0
        self._links: list[Link] = []
        self._lock = threading.Lock()
        self._listener = socket.create_server(("127.0.0.1", 0), backlog=256)
        self.port: int = self._listener.getsockname()[1]
        self.url = f"http://127.0.0.1:{self.port}"
        self._thread = threading.Thread(target=self._accept, daemon=True)
        self._thread.start()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            plan = self.plans.popleft() if self.plans else self.usual
            servers: list[socket.socket] = []
            try:
                for _ in range(plan.copies):
                    servers.append(socket.create_connection(self.target))
            except OSError:  # nobody is there: hang up
                for side in (client, *servers):
                    side.close()
                continue
            link = Link(client, servers, plan)
            with self._lock:
                self.connections += 1
                self._links.append(link)
                link.start()

    def cut(self) -> None:
        """Cut every connection that is open now."""
        with self._lock:
            links, self._links = self._links, []
        for link in links:
            link.cut()
        for link in links:
            for thread in link.threads:
                thread.join(JOIN_SECONDS_MAX)
            link.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        # On Linux, closing alone does not wake a thread that waits in accept.
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self._thread.join(JOIN_SECONDS_MAX)
        self.cut()
