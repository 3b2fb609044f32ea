"""WebSocket frames: ours are what the other side reads, whatever their length."""

from __future__ import annotations

import pytest
from websockets.frames import Frame, Opcode
from websockets.protocol import CLIENT, Protocol

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
