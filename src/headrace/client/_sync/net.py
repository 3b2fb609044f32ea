"""Connections, slots and pauses on blocking sockets: what `_async/net.py` does for asyncio.

Only this file and its twin touch the network.  A connection carries one request at a time.  Once
something went wrong on it, it is closed: a late answer must not be taken for the next one.
"""

from __future__ import annotations

import contextlib
import select
import socket
import ssl
import threading

from headrace.client.connection_failures import closed_early, not_connected, unreachable
from headrace.client.message import Address, Response, ResponseReader
from headrace.core.clock import NS_PER_MS, SystemClock

# Up to here head and body are one write; above, copying costs more than a second write.
JOINED_BYTES_MAX = 64 << 10
RECEIVE_BYTES = 256 << 10

_now_ns = SystemClock.monotonic_ns
_never = threading.Event()


class Connection:
    """One connection to the server."""

    def __init__(self, sock: socket.socket) -> None:
        self._socket = sock
        self._reader = ResponseReader()
        self._arrivals = select.poll()
        self._arrivals.register(sock.fileno(), select.POLLIN)
        self._closed = False

    @property
    def alive(self) -> bool:
        """Whether a request may be sent on it: an idle connection has nothing to read."""
        return not self._closed and not self._arrivals.poll(0)

    def exchange(self, head: bytes, body: bytes, timeout_ms: int) -> Response:
        """Send a request and wait for its answer."""
        deadline_ns = _now_ns() + timeout_ms * NS_PER_MS
        try:
            self._socket.settimeout(timeout_ms / 1_000)
            self._write(head, body)
            return self._read(deadline_ns)
        except TimeoutError:
            self.close()
            raise unreachable(f"no answer within {timeout_ms} ms", "unknown") from None
        except OSError as error:
            self.close()
            raise closed_early(error) from None
        except BaseException:
            self.close()
            raise

    def _write(self, head: bytes, body: bytes) -> None:
        # A server that refuses a body answers before it has all of it, and hangs up.
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            if len(body) <= JOINED_BYTES_MAX:
                self._socket.sendall(head + body)
            else:
                self._socket.sendall(head)
                self._socket.sendall(body)

    def _read(self, deadline_ns: int) -> Response:
        while True:
            data = self._socket.recv(RECEIVE_BYTES)
            if not data:
                raise ConnectionResetError("the server closed it")
            response = self._reader.feed(data)
            if response is not None:
                return response
            left_ns = deadline_ns - _now_ns()
            if left_ns <= 0:
                raise TimeoutError
            self._socket.settimeout(left_ns / 1e9)

    def close(self) -> None:
        self._closed = True
        self._socket.close()


def connect(address: Address, tls: ssl.SSLContext | None, timeout_ms: int) -> Connection:
    """Open a connection."""
    try:
        sock = socket.create_connection((address.host, address.port), timeout_ms / 1_000)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if tls is not None:
            try:
                sock = tls.wrap_socket(sock, server_hostname=address.host)
            except BaseException:
                sock.close()
                raise
    except TimeoutError:
        raise unreachable(
            f"{address.authority} was not there in {timeout_ms} ms", "nothing"
        ) from None
    except OSError as error:
        raise not_connected(address, error) from None
    return Connection(sock)


class Slots:
    """At most `count` at a time; the others wait in line."""

    def __init__(self, count: int) -> None:
        self._semaphore = threading.Semaphore(count)

    def take(self, timeout_ms: int) -> bool:
        """Take a slot; return whether one was free in time."""
        return self._semaphore.acquire(timeout=timeout_ms / 1_000)

    def give(self) -> None:
        self._semaphore.release()


def pause(ms: int) -> None:
    """Let time pass."""
    _never.wait(ms / 1_000)
