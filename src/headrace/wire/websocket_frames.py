"""WebSocket as bytes: the handshake, messages in, frames out.

Only this file knows frames.  Parsing, pings, fragments and the closing handshake are the sans-I/O
protocol of `websockets`; a text frame of a server is a short header and the text, so a message that
goes to many connections is framed once.  Compression is not offered: each connection would have to
compress the same message by itself.
"""

from __future__ import annotations

import logging
from base64 import b64decode
from binascii import Error as Base64Error
from typing import Final

from websockets.frames import CloseCode, Opcode
from websockets.protocol import OPEN, SERVER, Protocol
from websockets.utils import accept_key

from headrace.core.errors import InvalidRequest
from headrace.wire.exchange import Exchange, Headers

_VERSION: Final = b"13"
_KEY_BYTES: Final = 16


def handshake(exchange: Exchange) -> Headers:
    """The headers that accept a handshake, or a refusal."""
    if exchange.upgrade != b"websocket":
        raise InvalidRequest(
            "this is a WebSocket", fix="connect to it with ws:// or wss://, not as a plain request"
        )
    headers = exchange.headers
    if headers.get(b"sec-websocket-version", b"").strip() != _VERSION:
        raise InvalidRequest(
            "the WebSocket version is not 13", fix="send `Sec-WebSocket-Version: 13`"
        )
    if b"upgrade" not in headers:
        return ()  # HTTP/2 has a handshake of its own, without keys
    key = exchange.header(b"sec-websocket-key").strip()
    try:
        valid = len(b64decode(key, validate=True)) == _KEY_BYTES
    except (Base64Error, ValueError):
        valid = False
    if not valid:
        raise InvalidRequest("Sec-WebSocket-Key is not a key", fix="send 16 bytes as base64")
    return ((b"sec-websocket-accept", accept_key(key).encode()),)


def text_frame(text: bytes) -> bytes:
    """A message of a server.

    >>> text_frame(b"{}")
    b'\\x81\\x02{}'
    """
    length = len(text)
    if length < 126:
        return b"\x81%c%b" % (length, text)
    if length < 1 << 16:
        return b"\x81\x7e%b%b" % (length.to_bytes(2, "big"), text)
    return b"\x81\x7f%b%b" % (length.to_bytes(8, "big"), text)


class _Unexpected(logging.Filter):
    """Lets nothing be said of a lack of memory, which is an answer and no bug."""

    def filter(self, record: logging.LogRecord) -> bool:
        error = record.exc_info[1] if record.exc_info else None
        return not isinstance(error, MemoryError)


_log: Final = logging.getLogger("headrace.websocket")
_log.addFilter(_Unexpected())


class Incoming:
    """What a client sends, as messages."""

    __slots__ = ("_parts", "_protocol", "_text")

    def __init__(self, message_bytes_max: int) -> None:
        self._protocol = Protocol(SERVER, max_size=message_bytes_max, logger=_log)
        self._parts: list[bytes] = []
        self._text = True

    def feed(self, data: bytes) -> list[tuple[bool, bytes]]:
        """Bytes that arrived (b"": their end); returns whole messages, as (is text, payload)."""
        if data:
            self._protocol.receive_data(data)
        else:
            self._protocol.receive_eof()
        failure = self._protocol.parser_exc
        if failure is not None:
            failure.__traceback__ = None  # its frames refer to the protocol, which refers to it
        messages = []
        for frame in self._protocol.events_received():
            opcode = getattr(frame, "opcode", None)
            if opcode not in (Opcode.TEXT, Opcode.BINARY, Opcode.CONT):
                continue  # pings are answered and the close is echoed by the protocol
            if opcode is not Opcode.CONT:
                self._text = opcode is Opcode.TEXT
            self._parts.append(bytes(frame.data))  # type: ignore[union-attr]
            if frame.fin:  # type: ignore[union-attr]
                messages.append((self._text, b"".join(self._parts)))
                self._parts.clear()
        return messages

    @property
    def out_of_memory(self) -> bool:
        """Whether the protocol ended because there was no memory for a message."""
        return isinstance(self._protocol.parser_exc, MemoryError)

    def to_send(self) -> tuple[bytes, bool]:
        """What the protocol itself has to send, and whether that is the end."""
        pieces = self._protocol.data_to_send()
        return b"".join(pieces), b"" in pieces

    @property
    def open(self) -> bool:
        """Whether messages may still be sent."""
        return self._protocol.state is OPEN

    def ping(self) -> None:
        """Ask the client whether it is there."""
        self._protocol.send_ping(b"")

    def close(self, code: int, reason: str) -> None:
        """Begin the closing handshake."""
        if self.open:
            self._protocol.send_close(code, reason)


GOING_AWAY: Final = int(CloseCode.GOING_AWAY)
INVALID_TEXT: Final = int(CloseCode.INVALID_DATA)
TOO_SLOW: Final = int(CloseCode.POLICY_VIOLATION)
BROKEN: Final = int(CloseCode.INTERNAL_ERROR)
