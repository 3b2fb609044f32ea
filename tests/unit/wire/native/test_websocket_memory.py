"""WebSocket messages that are arriving: they count as bodies do, and are given back."""

from __future__ import annotations

from tests.support.live_readers import StartLive
from tests.support.websocket_client import Client

MIB = 1 << 20


def test_a_part_of_a_message_counts(start: StartLive) -> None:
    """Messages share what bodies have; one without room is refused, and its client may retry."""
    live = start(
        request_memory_bytes_max=MIB,
        body_bytes_max=MIB,
        record_bytes_max=MIB // 2,
        websocket_message_bytes_max=MIB,
    )
    memory = live.streams.request_memory
    first, second = Client(live), Client(live)
    whole = first.protocol
    whole.send_text(b" " * (600 * 1024))
    (frame,) = whole.data_to_send()
    first.outlet.on_data(frame[:-1])
    assert 500 * 1024 < memory.used <= 600 * 1024
    second.outlet.on_data(frame[:-1])
    (told,) = second.read()
    assert (told["op"], told["code"]) == ("error", "throttled"), told
    assert second.protocol.close_rcvd is not None and second.protocol.close_rcvd.code == 1013
    assert 500 * 1024 < memory.used <= 600 * 1024
    first.outlet.on_data(frame[-1:])
    assert memory.used == 0
    assert first.read()[0]["op"] == "error"  # it was no command, and is over
    first.outlet.on_data(frame[:-1])
    assert memory.used > 0
    first.outlet.hang_up()
    assert memory.used == 0
