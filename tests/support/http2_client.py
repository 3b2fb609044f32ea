"""A client of HTTP/2 on a real socket that does only what it is told, and can break every rule."""

from __future__ import annotations

import socket
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from struct import pack
from typing import NamedTuple, Protocol

from h2.config import H2Configuration
from h2.connection import H2Connection
from h2.errors import ErrorCodes
from h2.events import (
    ConnectionTerminated,
    DataReceived,
    Event,
    InformationalResponseReceived,
    ResponseReceived,
    StreamEnded,
    StreamReset,
)
from h2.settings import SettingCodes

Fields = Sequence[tuple[bytes, bytes]]


class Connects(Protocol):
    """A server, wherever it runs: `Served` is one in this process."""

    def connect(self) -> socket.socket: ...


def frame(kind: int, flags: int, stream_id: int, body: bytes = b"") -> bytes:
    """A frame, right or wrong."""
    return pack(">I", len(body))[1:] + bytes([kind, flags]) + pack(">I", stream_id) + body


@dataclass
class Stream:
    """What has come back."""

    status: int = 0
    interim: list[int] = field(default_factory=list)
    headers: dict[bytes, bytes] = field(default_factory=dict)
    data: bytes = b""
    ended: bool = False
    reset: int | None = None

    @property
    def over(self) -> bool:
        return self.ended or self.reset is not None


# The head of a request that opens a tunnel.
CONNECT = (
    (b":method", b"CONNECT"),
    (b":protocol", b"websocket"),
    (b":scheme", b"http"),
    (b":authority", b"localhost"),
    (b":path", b"/tunnel"),
)


class Client:
    """`with Client(served) as client: ...`"""

    def __init__(self, served: Connects, window: int | None = None, greedy: bool = True) -> None:
        self.sock = served.connect()
        self.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        # The checks of `h2` are off: some tests send what they forbid.
        self.h2 = H2Connection(
            H2Configuration(
                client_side=True,
                header_encoding=None,
                validate_outbound_headers=False,
                normalize_outbound_headers=False,
            )
        )
        self.streams: dict[int, Stream] = {}
        self.greedy = greedy  # gives back the window of what arrives
        self.goaway: int | None = None
        self.closed = False
        if window is not None:
            self.h2.local_settings[SettingCodes.INITIAL_WINDOW_SIZE] = window
            self.h2.local_settings.acknowledge()
        self.h2.initiate_connection()
        self.flush()

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *_: object) -> None:
        self.sock.close()

    def flush(self) -> None:
        self.raw(self.h2.data_to_send())

    def raw(self, data: bytes) -> None:
        """Send bytes as they are; a server that has closed is for the reader to notice."""
        try:
            self.sock.sendall(data)
        except (ConnectionError, BrokenPipeError):
            self.closed = True

    def start(
        self,
        method: bytes,
        path: bytes,
        headers: Fields = (),
        end: bool = True,
        pseudo: Fields | None = None,
    ) -> int:
        """Send a request head; the number of its stream."""
        stream_id = self.h2.get_next_available_stream_id()
        if pseudo is None:
            pseudo = (
                (b":method", method),
                (b":scheme", b"http"),
                (b":authority", b"localhost"),
                (b":path", path),
            )
        self.streams[stream_id] = Stream()
        self.h2.send_headers(stream_id, [*pseudo, *headers], end_stream=end)
        self.flush()
        return stream_id

    def send(self, stream_id: int, data: bytes, end: bool = False) -> None:
        """Send a body, as the windows allow; a stream that the server resets takes no more."""
        stream = self.streams[stream_id]
        while data:
            self.until(
                lambda: stream.reset is not None or self.h2.local_flow_control_window(stream_id) > 0
            )
            if stream.reset is not None:
                return
            size = min(
                len(data),
                self.h2.local_flow_control_window(stream_id),
                self.h2.max_outbound_frame_size,
            )
            self.h2.send_data(stream_id, data[:size])
            data = data[size:]
            self.flush()
        if end:
            self.h2.end_stream(stream_id)
            self.flush()

    def until(self, condition: Callable[[], bool]) -> None:
        """Read until it holds."""
        while not condition():
            assert self.read(), f"closed; goaway {self.goaway}, streams {self.streams}"

    def read(self) -> bool:
        """Read once; False at the end of the connection."""
        try:
            data = self.sock.recv(1 << 16)
        except ConnectionResetError:
            data = b""
        if not data:
            self.closed = True
            return False
        for event in self.h2.receive_data(data):
            self._note(event)
        self.flush()
        return True

    def _note(self, event: Event) -> None:
        if isinstance(event, ConnectionTerminated):
            self.goaway = event.error_code
            return
        stream = self.streams.get(getattr(event, "stream_id", None) or 0)
        if stream is None:
            return
        if isinstance(event, InformationalResponseReceived):
            stream.interim.append(int(dict(event.headers)[b":status"]))
        elif isinstance(event, ResponseReceived):
            stream.headers = dict(event.headers)
            stream.status = int(stream.headers[b":status"])
        elif isinstance(event, DataReceived):
            stream.data += event.data
            if self.greedy:
                size = event.flow_controlled_length
                self.h2.acknowledge_received_data(size, event.stream_id)
        elif isinstance(event, StreamEnded):
            stream.ended = True
        elif isinstance(event, StreamReset):
            stream.reset = event.error_code

    def finish(self, stream_id: int) -> Stream:
        """Read until a stream is over."""
        stream = self.streams[stream_id]
        self.until(lambda: stream.over)
        return stream

    def get(self, path: bytes, headers: Fields = ()) -> Stream:
        return self.finish(self.start(b"GET", path, headers))

    def post(self, path: bytes, body: bytes, headers: Fields = ()) -> Stream:
        stream_id = self.start(b"POST", path, headers, end=False)
        self.send(stream_id, body, end=True)
        return self.finish(stream_id)

    def expect_goaway(self) -> ErrorCodes:
        """Read to the end of the connection; why it was closed."""
        while self.read():
            pass
        assert self.goaway is not None
        return ErrorCodes(self.goaway)


class Frame(NamedTuple):
    kind: int
    flags: int
    stream_id: int
    body: bytes


def frames(data: bytes) -> list[Frame]:
    """The frames in what a server sent."""
    found = []
    while data:
        length = int.from_bytes(data[:3], "big")
        stream_id = int.from_bytes(data[5:9], "big")
        found.append(Frame(data[3], data[4], stream_id, data[9 : 9 + length]))
        data = data[9 + length :]
    return found


def read_to_end(sock: socket.socket) -> list[Frame]:
    """All frames until the server closes."""
    data = b""
    try:
        while piece := sock.recv(1 << 16):
            data += piece
    except ConnectionResetError:
        pass
    return frames(data)
