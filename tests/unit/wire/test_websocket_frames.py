"""WebSocket frames: ours are what the other side reads, whatever their length."""

from __future__ import annotations

from random import Random

import pytest
from websockets.frames import Frame, Opcode
from websockets.protocol import CLIENT, OPEN, SERVER, Protocol
from websockets.utils import apply_mask

from headrace.wire.websocket_frames import Incoming, text_frame


@pytest.mark.parametrize("length", [0, 1, 125, 126, 127, 65_535, 65_536, 200_000])
def test_a_frame_is_read_as_it_was_written(length: int) -> None:
    client = Protocol(CLIENT, max_size=1 << 20)
    client.receive_data(text_frame(b"x" * length) + text_frame(b"y"))
    first, second = client.events_received()
    assert isinstance(first, Frame) and isinstance(second, Frame)
    assert (first.opcode, first.fin, bytes(first.data)) == (Opcode.TEXT, True, b"x" * length)
    assert bytes(second.data) == b"y"


@pytest.mark.parametrize("step", [1, 7, 1_000])
def test_messages_arrive_in_pieces(step: int) -> None:
    client, incoming = Protocol(CLIENT), Incoming(1 << 20)
    client.send_text(b"one")
    client.send_binary(b"t", fin=False)
    client.send_continuation(b"wo", fin=True)
    client.send_text(b"three" * 100)
    data = b"".join(client.data_to_send())
    messages = []
    for at in range(0, len(data), step):
        messages += incoming.feed(data[at : at + step])
    assert messages == [(True, b"one"), (False, b"two"), (True, b"three" * 100)]
    assert incoming.to_send() == (b"", False)


def test_fragments_together_are_bounded() -> None:
    client, incoming = Protocol(CLIENT), Incoming(100)
    client.send_text(b"x" * 60, fin=False)
    client.send_continuation(b"x" * 60, fin=True)
    assert incoming.feed(b"".join(client.data_to_send())) == []
    data, ends = incoming.to_send()
    client.receive_data(data)
    assert ends
    assert client.close_rcvd is not None and client.close_rcvd.code == 1009


@pytest.mark.parametrize("bad", [b"\x01\x00", b"\xff\xff\xff", b"\x81\x02hi"])
def test_what_is_no_frame_ends_the_connection(bad: bytes) -> None:
    """A reserved bit, no mask: both are against the protocol."""
    incoming = Incoming(100)
    assert incoming.feed(bad) == []
    _, ends = incoming.to_send()
    assert ends
    assert not incoming.open


# Text messages that are read past the protocol: nothing may differ from what it would have read


class Oracle:
    """What the protocol of `websockets` makes of all that a client sends."""

    def __init__(self, message_bytes_max: int) -> None:
        self._protocol = Protocol(SERVER, max_size=message_bytes_max)
        self._parts: list[Frame] = []

    def feed(self, data: bytes) -> list[tuple[bool, bytes]]:
        self._protocol.receive_data(data)
        messages = []
        for frame in self._protocol.events_received():
            assert isinstance(frame, Frame)
            if frame.opcode in (Opcode.TEXT, Opcode.BINARY, Opcode.CONT):
                self._parts.append(frame)
                if frame.fin:
                    is_text = self._parts[0].opcode is Opcode.TEXT
                    messages.append((is_text, b"".join(bytes(part.data) for part in self._parts)))
                    self._parts.clear()
        return messages

    def to_send(self) -> tuple[bytes, bool]:
        pieces = self._protocol.data_to_send()
        return b"".join(pieces), b"" in pieces

    @property
    def open(self) -> bool:
        return self._protocol.state is OPEN


def frame_of(dice: Random) -> bytes:
    """A frame of a client, now and then one that is wrong in some way."""
    first = dice.choice([0x81] * 6 + [0x82, 0x01, 0x00, 0x80, 0x89, 0x8A])
    mask_bit = 0x80
    size = dice.choice([0, 1, 5, 125, 126, 127, 300])
    if first & 0x08:
        size = min(size, 125)
    if dice.random() < 0.03:
        first, mask_bit, size = dice.choice(
            [
                (0xC1, 0x80, 5),  # a reserved bit
                (0x83, 0x80, 5),  # no such kind
                (0x81, 0, 5),  # no mask
                (0x89, 0x80, 200),  # a ping that is too long
                (0x09, 0x80, 5),  # half a ping
                (0x88, 0x80, 2),  # the end
                (0x81, 0x80, 501),  # too large
                (0x81, 0x80, 70_000),
            ]
        )
    payload = dice.randbytes(size) if first & 0x0F != 0x08 else b"\x03\xe8"
    wide = dice.random() < 0.1  # longer than it need be
    if size < 126 and not wide:
        head = bytes([first, mask_bit | size])
    elif size < 1 << 16:
        head = bytes([first, mask_bit | 126]) + size.to_bytes(2, "big")
    else:
        head = bytes([first, mask_bit | 127]) + size.to_bytes(8, "big")
    if not mask_bit:
        return head + payload
    mask = dice.choice([bytes(4), dice.randbytes(4)])
    return head + mask + apply_mask(payload, mask)


@pytest.mark.parametrize("seed", range(60))
def test_messages_are_those_that_the_protocol_reads(seed: int) -> None:
    dice = Random(seed)
    for _ in range(20):
        incoming, oracle = Incoming(500), Oracle(500)
        data = b"".join(frame_of(dice) for _ in range(dice.randrange(1, 20)))
        data = data[: len(data) - dice.choice([0, 0, dice.randrange(20)])]
        at = 0
        while at < len(data):
            size = dice.choice([1, 2, 3, 9, 100, 1_000, 100_000])
            assert incoming.feed(data[at : at + size]) == oracle.feed(data[at : at + size])
            assert incoming.open == oracle.open
            assert incoming.to_send() == oracle.to_send()
            at += size


def test_a_message_that_comes_byte_by_byte_is_copied_once() -> None:
    """A client that sends little by little must not make the server copy all of it each time."""
    client, incoming = Protocol(CLIENT), Incoming(1 << 20)
    client.send_text(b"x" * 1_000)
    data = b"".join(client.data_to_send())
    for at in range(len(data) - 1):
        assert incoming.feed(data[at : at + 1]) == []
        assert at < 13 or incoming._wanted == len(data)
    assert incoming.feed(data[-1:]) == [(True, b"x" * 1_000)]
    assert not incoming.in_message
