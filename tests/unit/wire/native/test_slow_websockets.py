"""WebSockets whose clients leave a message unfinished, or answer no ping; time is the test's."""

from __future__ import annotations

import json

import pytest
from websockets.frames import Frame, Opcode

from tests.support.live_readers import Live, StartLive
from tests.support.websocket_client import Client

ALLOWED_MS = 30_000
RATE = 256
LEAST = ALLOWED_MS * RATE // 1_000
STEP_MS = 1_000
PATIENCE_MS = 300_000


@pytest.fixture
def live(start: StartLive) -> Live:
    return start(body_timeout_ms=ALLOWED_MS, body_bytes_per_second_min=RATE)


def sent_by(client: Client, data: bytes) -> None:
    """Send bytes as they are."""
    assert client.outlet.on_data is not None
    client.outlet.on_data(data)


def framed(opcode: Opcode, data: bytes, *, fin: bool = True) -> bytes:
    return Frame(opcode, data, fin).serialize(mask=True)


def closed_for(client: Client) -> tuple[int, str]:
    client.read()
    closed = client.protocol.close_rcvd
    assert closed is not None and client.outlet.closed
    return closed.code, closed.reason


def answer_pings(client: Client) -> None:
    """What every client does that reads."""
    client.read()
    client._flush()


FRAGMENT = framed(Opcode.CONT, b"x", fin=False)


BEGUN = framed(Opcode.TEXT, b"x", fin=False)


@pytest.mark.parametrize(
    ("begun", "piece"),
    [
        (framed(Opcode.TEXT, b"x" * 100_000)[:20], b"y"),
        (BEGUN, FRAGMENT),
        (BEGUN, framed(Opcode.CONT, b"", fin=False)),
        (framed(Opcode.TEXT, b"", fin=False), framed(Opcode.PONG, b"")),
        (BEGUN + FRAGMENT[:1], b""),
    ],
    ids=["bytes", "fragments", "nothing", "pongs", "half a head"],
)
def test_a_message_that_does_not_end_closes_the_connection(
    live: Live, begun: bytes, piece: bytes
) -> None:
    client = Client(live)
    sent_by(client, begun)
    for _ in range(PATIENCE_MS // STEP_MS):
        live.wait(STEP_MS)
        if client.outlet.closed:
            break
        if piece:
            sent_by(client, piece)
    assert closed_for(client) == (1008, "a message did not arrive in time")
    assert live.streams.of_kind["ws"] == 0
    assert 'rejected_total{reason="message_' in live.metrics.registry.text()


def test_fragments_of_nothing_are_not_kept(live: Live) -> None:
    client = Client(live)
    sent_by(client, framed(Opcode.TEXT, b"", fin=False))
    for _ in range(1_000):
        sent_by(client, framed(Opcode.CONT, b"", fin=False))
    (stream,) = live.streams._streams
    assert len(stream._incoming._parts) == 1  # type: ignore[attr-defined]
    sent_by(client, framed(Opcode.CONT, b'{"op":"ping"}'))
    assert [message["op"] for message in client.read()] == ["pong"]


@pytest.mark.parametrize("fragments", [True, False])
def test_a_slow_message_above_the_rate_is_taken(live: Live, fragments: bool) -> None:
    client = Client(live)
    text = json.dumps({"op": "publish", "topic": "t", "records": [{"data": "x" * 5 * LEAST}]})
    data = text.encode()
    step = RATE + 64
    pieces = [data[at : at + step] for at in range(0, len(data), step)]
    if fragments:
        kinds = [Opcode.TEXT] + [Opcode.CONT] * (len(pieces) - 1)
        whole = [
            framed(kind, piece, fin=at == len(pieces) - 1)
            for at, (kind, piece) in enumerate(zip(kinds, pieces, strict=True))
        ]
    else:
        sent = framed(Opcode.TEXT, data)
        whole = [sent[at : at + step] for at in range(0, len(sent), step)]
    for piece in whole:  # no ping is answered meanwhile: who sends is there
        sent_by(client, piece)
        live.wait(STEP_MS)
    assert [message["op"] for message in client.read()] == ["ack"]
    assert not client.outlet.closed


def test_messages_that_every_look_finds_cut_are_not_one_that_does_not_end(live: Live) -> None:
    client = Client(live)
    ping = framed(Opcode.TEXT, b'{"op":"ping"}')
    sent_by(client, ping[:4])
    for _ in range(120):
        live.wait(STEP_MS)
        sent_by(client, ping[4:] + ping[:4])
        assert [message["op"] for message in client.read()] == ["pong"]


def test_a_message_that_the_server_does_not_read_is_not_late(live: Live) -> None:
    """A client that does not take its answers is not read from meanwhile, for as long as it may."""
    client = Client(live)
    sent_by(client, framed(Opcode.TEXT, b"x", fin=False))
    for _ in range(4):
        client.outlet.fill()
        live.wait(ALLOWED_MS - 5_000)
        client.outlet.drain()
        live.wait(1_000)
        answer_pings(client)
        assert not client.outlet.closed


def test_who_answers_no_ping_is_closed(start: StartLive) -> None:
    live = start(idle_timeout_ms=40_000)
    dead, there = Client(live), Client(live)
    for _ in range(120):
        live.wait(STEP_MS)
        answer_pings(there)
    assert closed_for(dead) == (1008, "no ping was answered")
    assert not there.outlet.closed
    assert live.streams.of_kind["ws"] == 1
    assert 'rejected_total{reason="ping_timeout"} 1' in live.metrics.registry.text()
