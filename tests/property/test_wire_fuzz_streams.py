"""Bytes of connections on damaged input: HTTP/1.1 and WebSocket, in pieces that end anywhere.

Nothing but refusals comes out, nothing hangs, nothing stays behind, and where a piece ends makes no
difference.  HTTP/2 has tests of its own in tests/unit/server.
"""

from __future__ import annotations

import random
import re
import time
from collections import Counter
from typing import Any

import pytest
from websockets.frames import Frame, Opcode

from headrace.server.http1.connection import Http1Connection
from headrace.server.http1.heads import KnownHeads
from headrace.wire.websocket_frames import Incoming
from tests.support.memory_transport import MemoryTransport, in_a_loop
from tests.support.wire_fuzz import LOCAL, Damage, World

COMMANDS, FRAMES, CONNECTIONS = 10_000, 10_000, 8_000


# WebSocket

COMMANDS_CORPUS = [
    b'{"op":"subscribe","request_id":1,"topic":"t","from_seq":0,"tail":false,"epoch":1}',
    b'{"op":"subscribe","request_id":[1],"topics":{"t":{"from_seq":1}},"node":"n","limit":5,'
    b'"max_batch_bytes":100,"include_data":false,"include_tags":true,"lenient":true,'
    b'"consistency":"strong","cursor":"eyJ0IjoxfQ"}',
    b'{"op":"unsubscribe","topic":"t","topics":["t","x"]}',
    b'{"op":"publish","request_id":{"a":"b"},"topic":"w","records":[{"data":1,"tag":"x"}],'
    b'"node":"n","idempotency_key":"k","create":true,"config":{"ttl_ms":1},"return_seqs":false}',
    b'{"op":"publish","topic":"w","records":[{"data":{"a":[1,2]}}]}',
    b'{"op":"ping","request_id":"x"}',
]
HANDSHAKE = {
    b"upgrade": b"websocket",
    b"connection": b"upgrade",
    b"sec-websocket-version": b"13",
    b"sec-websocket-key": b"AAAAAAAAAAAAAAAAAAAAAA==",
}


def masked(opcode: Opcode, payload: bytes, fin: bool = True) -> bytes:
    return Frame(opcode, payload, fin).serialize(mask=True)


def open_websocket(world: World) -> Any:
    exchange = world.ask("GET", "/v0/ws", b"", {**LOCAL, **HANDSHAKE}, upgrade=b"websocket")
    assert exchange.status == 101
    return exchange.outlet


def fuzz_commands(world: World, seed: int, count: int, damaged_frames: bool) -> Counter[str]:
    """Damaged commands in right frames, or right commands in damaged frames, in pieces."""
    damage = Damage(seed, COMMANDS_CORPUS)
    draw = damage.draw
    outlet = open_websocket(world)
    said: Counter[str] = Counter()
    for _ in range(count):
        if damaged_frames:
            opcode = draw.choice([Opcode.TEXT, Opcode.BINARY, Opcode.CONT, Opcode.PING])
            payload = draw.choice(COMMANDS_CORPUS)[: 125 if opcode is Opcode.PING else None]
            data = damage.of(masked(opcode, payload, opcode is Opcode.PING or draw.random() < 0.9))
        else:
            data = masked(Opcode.TEXT, damage.next())
        cut = draw.randrange(len(data) + 1)
        for piece in filter(None, (data[:cut], data[cut:])):
            if not outlet.closed:
                outlet.on_data(piece)
            world.runtime.run()
        answer = outlet.take()
        assert b'"code":"internal"' not in answer, (data, answer)
        said.update(op.decode() for op in re.findall(rb'"op":"(\w+)"', answer))
        if outlet.closed or draw.random() < 0.01:
            said["closed"] += 1
            if not outlet.closed:
                outlet.hang_up()
            outlet = open_websocket(world)
    outlet.hang_up()
    assert world.server.app.metrics.sources.ws_connections() == 0
    return said


def test_websocket_commands(world) -> None:
    said = fuzz_commands(world, seed=7, count=COMMANDS, damaged_frames=False)
    assert {"ack", "subscribed", "unsubscribed", "pong", "error", "record"} <= said.keys(), said


def test_websocket_frames(world) -> None:
    said = fuzz_commands(world, seed=8, count=FRAMES, damaged_frames=True)
    assert {"ack", "pong", "error", "closed"} <= said.keys(), said


def test_websocket_frames_split_anywhere() -> None:
    """Where the pieces of a stream of frames end changes nothing."""
    draw = random.Random(9)
    damage = Damage(9, [b"".join(masked(Opcode.TEXT, c) for c in COMMANDS_CORPUS)])
    for _ in range(2_000):
        data = damage.next()
        whole, pieces = Incoming(1_000), Incoming(1_000)
        expected = whole.feed(data)
        found = []
        while data:
            size = draw.randint(1, 40)
            found += pieces.feed(data[:size])
            data = data[size:]
        assert found == expected
        assert pieces.open == whole.open
        assert pieces.to_send() == whole.to_send()


# HTTP/1.1 bytes

MESSAGES = [
    b"GET /v0/health HTTP/1.1\r\nhost: localhost\r\n\r\n",
    b"GET /v0/topics/t?touch=0 HTTP/1.1\r\nHost: localhost\r\nAccept-Encoding: gzip\r\n\r\n",
    b"POST /v0/topics/t HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n"
    b"content-length: 24\r\n\r\n" + b'{"records":[{"data":1}]}',
    b"POST /v0/topics/t HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n"
    b"transfer-encoding: chunked\r\n\r\nc\r\n" + b'{"records":[\r\nc\r\n{"data":1}]}\r\n0\r\n\r\n',
    b"POST /v0/topics/t/diff HTTP/1.1\r\nhost: localhost\r\ncontent-length: 0\r\n"
    b"expect: 100-continue\r\n\r\n",
    b"HEAD /v0/ready HTTP/1.0\r\nhost: localhost\r\nconnection: keep-alive\r\n\r\n",
    b"DELETE /v0/topics/gone HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n",
    b"GET /v0/ws HTTP/1.1\r\nhost: localhost\r\nupgrade: websocket\r\nconnection: upgrade\r\n"
    b"sec-websocket-version: 13\r\nsec-websocket-key: AAAAAAAAAAAAAAAAAAAAAA==\r\n\r\n",
]
CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"
_DEPENDS = re.compile(rb'"message":"[^"]*"|content-length: [0-9]+')
HTTP_WORDS = [
    b"content-length: 5\r\n", b"transfer-encoding: chunked\r\n", b"host: x\r\n", b"\r\n\r\n",
    b"HTTP/1.1", b"HTTP/2.0", b"expect: 100-continue\r\n", b"content-encoding: gzip\r\n",
    b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", b"connection: close\r\n", b"x: " + b"y" * 9_000 + b"\r\n",
]  # fmt: skip


def converse(world: World, pieces: list[bytes]) -> tuple[bytes, bool]:
    """What a connection answers to these bytes, and whether it closes."""
    transport = MemoryTransport()
    transport.protocol = Http1Connection(world.server.app, KnownHeads())
    transport.protocol.connection_made(transport)
    for piece in pieces:
        if transport.closed:
            break
        transport.protocol.data_received(piece)
        world.runtime.run()
    answered = bytes(transport.sent), transport.closed
    transport.protocol.connection_lost(None)
    world.runtime.run()
    assert not world.server.app.connections
    assert world.server.app.budget.used == 0
    return answered


def normal(answer: bytes) -> bytes:
    """An answer without what may depend on the pieces.

    Who has sent the body already is not told to go on, and of two faults in a head the one that is
    met first is named.
    """
    return _DEPENDS.sub(b"", answer.replace(CONTINUE, b""))


def fuzz_connections(world: World, other: World, seed: int, count: int) -> Counter[bytes]:
    """The same bytes in one piece and in many get the same answers.

    From two servers, because what was asked before makes a difference.
    """
    draw = random.Random(seed)
    damage = Damage(seed, MESSAGES, HTTP_WORDS)
    statuses: Counter[bytes] = Counter()
    for _ in range(count):
        data = b"".join(damage.next() for _ in range(draw.randint(1, 3)))
        pieces, rest = [], data
        while rest:
            size = draw.choice([1, 2, 3, 10, 50, 1_000])
            pieces.append(rest[:size])
            rest = rest[size:]
        whole, closes = converse(world, [data])
        split, also_closes = converse(other, pieces)
        assert b"HTTP/1.1 500" not in whole, data
        assert (normal(whole), closes) == (normal(split), also_closes), (data, pieces)
        statuses.update(re.findall(rb"HTTP/1\.1 ([0-9]+)", whole))
    return statuses


def test_http1_bytes_split_anywhere(world) -> None:
    with World() as other:
        statuses = in_a_loop(lambda: fuzz_connections(world, other, 10, CONNECTIONS))
    assert {b"200", b"400", b"404", b"101", b"415"} <= statuses.keys(), statuses


# All of them for longer


def converse_long(seed: int) -> None:
    with World() as world, World() as other:
        in_a_loop(lambda: fuzz_connections(world, other, seed, 1_000))


@pytest.mark.long
def test_streams_for_long(sweep) -> None:
    until = time.monotonic() + sweep.seconds
    rounds = 0
    while time.monotonic() < until:
        seed = sweep.seed * 1_000 + rounds
        with World() as world:
            fuzz_commands(world, seed, 1_000, damaged_frames=False)
            fuzz_commands(world, seed, 1_000, damaged_frames=True)
            converse_long(seed)
        rounds += 1
    print(f"{rounds} rounds of 4,000 executions")
