"""WebSocket as bytes: the handshake, messages in, frames out.

Only this file knows frames.  Pings, fragments, the closing handshake and everything that is wrong
are the business of the sans-I/O protocol of `websockets`; a text message that is one whole frame,
as nearly all are, is read here.  A text frame of a server is a short header and the text, so a
message that goes to many connections is framed once.  Compression is not offered: each connection
would have to compress the same message by itself.
"""

from __future__ import annotations

import logging
from base64 import b64decode
from binascii import Error as Base64Error
from typing import Final

from websockets.frames import CloseCode, Opcode
from websockets.frames import apply_mask as _unmask  # type: ignore[attr-defined]
from websockets.protocol import OPEN, SERVER, Protocol
from websockets.utils import accept_key

from headrace.core.errors import InvalidRequest
from headrace.wire.exchange import Exchange, Headers
from headrace.wire.held_pieces import HeldPieces

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


_WHOLE_TEXT: Final = 0x81  # the first byte of a text message that is one frame
_MASKED: Final = 0x80  # in the second byte, as every client has to set it
_OPCODE_BITS: Final = 0x0F
_OPCODES: Final = frozenset(Opcode)


class Incoming:
    """What a client sends, as messages.

    The protocol is given whole frames, so that it is between two of them whenever a text message
    is read past it.  What it refuses by the head of a frame it gets at once, and nothing is read
    any more after that.
    """

    __slots__ = (
        "_bytes_max", "_held", "_parts", "_protocol", "_room", "_text", "_wanted", "cut_messages",
    )  # fmt: skip

    def __init__(self, message_bytes_max: int) -> None:
        self._protocol = Protocol(SERVER, max_size=message_bytes_max, logger=_log)
        self._bytes_max = message_bytes_max
        self._room = message_bytes_max  # beside the parts of a message that have come
        self._held = HeldPieces()  # of a frame that is not whole
        self._wanted = 0  # bytes of it that are worth a look
        self._parts: list[bytes] = []
        self._text = True
        self.cut_messages = 0  # that did not come whole; tells one from the next

    def feed(self, data: bytes) -> list[tuple[bool, bytes]]:
        """Bytes that arrived (b"": their end); returns whole messages, as (is text, payload)."""
        messages: list[tuple[bool, bytes]] = []
        if not data:
            self._held.clear()
            self._protocol.receive_eof()
            self._take_events(messages)
            return messages
        if self._held.size:
            self._held.add(data)
            if self._held.size < self._wanted:
                return messages
            data = self._held.take()
        at, size = 0, len(data)
        while at < size:
            start, end = _frame_at(data, at)
            if end - start > self._room or not self.open or not _is_frame(data, at):
                end = size
            elif end > size:
                if not self._parts:
                    self.cut_messages += 1
                self._held.add(data[at:] if at else data)
                self._wanted = end - at
                break
            elif data[at] == _WHOLE_TEXT and not self._parts:
                messages.append((True, _unmask(data[start:end], data[start - 4 : start])))
                at = end
                continue
            self._protocol.receive_data(data[at:end])
            self._take_events(messages)
            at = end
        return messages

    def _take_events(self, messages: list[tuple[bool, bytes]]) -> None:
        """Add the messages that the protocol has read."""
        failure = self._protocol.parser_exc
        if failure is not None:
            failure.__traceback__ = None  # its frames refer to the protocol, which refers to it
        for frame in self._protocol.events_received():
            opcode = getattr(frame, "opcode", None)
            if opcode not in (Opcode.TEXT, Opcode.BINARY, Opcode.CONT):
                continue  # pings are answered and the close is echoed by the protocol
            if opcode is not Opcode.CONT:
                self._text = opcode is Opcode.TEXT
            part = bytes(frame.data)  # type: ignore[union-attr]
            if part or not self._parts:  # of parts with nothing in them there may be any number
                self._parts.append(part)
            self._room -= len(part)
            if frame.fin:  # type: ignore[union-attr]
                self.cut_messages += 1
                messages.append((self._text, b"".join(self._parts)))
                self._parts.clear()
                self._room = self._bytes_max

    def drop(self) -> None:
        """Forget what has come of a message: the connection is over."""
        self._held.clear()
        self._parts.clear()
        self._room = self._bytes_max

    @property
    def in_message(self) -> bool:
        """Whether a message has begun, or a frame of any kind, and has not ended."""
        return bool(self._held.size or self._parts)

    @property
    def message_bytes(self) -> int:
        """How many bytes of a message that has not ended have come."""
        return self._held.size + self._bytes_max - self._room

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


def _is_frame(data: bytes, at: int) -> bool:
    """Whether the first two bytes of a frame, if they are there, are those of a client's frame."""
    return len(data) - at < 2 or bool(
        data[at + 1] & _MASKED and data[at] & _OPCODE_BITS in _OPCODES
    )


def _frame_at(data: bytes, at: int) -> tuple[int, int]:
    """Where the payload of a masked frame begins and ends; of half a head, where that may end.

    >>> _frame_at(bytes([0x81, 0x83]) + b"mask" + b"abc", 0)
    (6, 9)
    >>> _frame_at(bytes([0x81, 0xFE, 0x01]), 0)
    (4, 4)
    """
    if len(data) - at < 2:
        return at + 2, at + 2
    length, start = data[at + 1] & 0x7F, at + 2
    if length > 125:
        start += 2 if length == 126 else 8
        if start > len(data):
            return start, start
        length = int.from_bytes(data[at + 2 : start], "big")
    return start + 4, start + 4 + length


GOING_AWAY: Final = int(CloseCode.GOING_AWAY)
INVALID_TEXT: Final = int(CloseCode.INVALID_DATA)
TOO_SLOW: Final = int(CloseCode.POLICY_VIOLATION)
TRY_LATER: Final = int(CloseCode.TRY_AGAIN_LATER)
BROKEN: Final = int(CloseCode.INTERNAL_ERROR)
