"""Readers that do not keep up (native §7.3): they lose time, never a record."""

from __future__ import annotations

import re
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from headrace.client import Client
from tests.support.seqs import json_seqs

PAYLOAD = "x" * 10_000
RECORDS = 1_500  # far more than sockets and the server hold for a stream


@pytest.fixture
def filled(speak, topic) -> str:
    """A topic with more than a stream may have pending."""
    for _ in range(RECORDS // 500):
        speak.append(topic, *([PAYLOAD] * 500))
    return topic


def seqs_until(stream, last: int) -> list[int]:
    seen: list[int] = []
    while not seen or seen[-1] < last:
        seen += json_seqs(stream.next("record").data)
    return seen


def watch(speak, topic: str, **fields: object) -> str:
    return speak.ok("POST", "/v0/watch", {"topics": {topic: {}}, **fields})["stream_url"]


def test_a_reader_that_pauses_gets_everything(speak, filled) -> None:
    """§7.3: it reads the log at its own pace."""
    with speak.stream(watch(speak, filled)) as stream:
        stream.next("record")
        for _ in range(3):
            speak.append(filled, *([PAYLOAD] * 100))
            time.sleep(0.05)  # nobody reads meanwhile
        seen = seqs_until(stream, RECORDS + 300)
    assert seen == list(range(seen[0], RECORDS + 301))


def test_what_a_cap_took_from_a_slow_reader_is_told(speak, topic) -> None:
    """§7.3: only what is really gone becomes a tombstone, and there is no silent hole."""
    speak.ok("PUT", f"/v0/topics/{topic}", {"cap_records": 50})
    with speak.stream(watch(speak, topic)) as stream:
        stream.next("caught-up")
        for _ in range(40):
            speak.append(topic, *([PAYLOAD] * 50))
        cursor = 0
        while cursor < 2_000:
            event = next(e for e in stream.events() if e.event in ("record", "tombstone"))
            if event.event == "tombstone":
                assert event.data["gap_from"] == cursor + 1
                cursor = event.data["gap_to"]
                continue
            found = json_seqs(event.data)
            assert found == list(range(cursor + 1, found[-1] + 1))
            cursor = found[-1]


@contextmanager
def deaf(server, url: str) -> Iterator[socket.socket]:
    """A connection that asks for a stream and does not read it."""
    with socket.socket() as sock:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4_096)
        sock.settimeout(30)
        sock.connect((server.host, server.port))
        head = f"GET {url} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n"
        sock.sendall(head.encode())
        yield sock


def streams(client: Client) -> int:
    return client.metrics()["sse_connections"]


def test_a_stuck_reader_is_let_go_and_can_resume(servers, topic) -> None:
    """§7.3: after `slow_consumer_timeout`; its session goes on where it was."""
    server = servers.with_settings(slow_consumer_timeout_ms=300)
    speak = servers.speaker(server, "h1")
    with Client(server.url) as client:
        client.append(topic, [PAYLOAD] * 1_000)
        url = watch(speak, topic)
        with deaf(server, url) as sock:
            while streams(client) == 0:
                time.sleep(0.01)
            while streams(client) == 1:
                time.sleep(0.01)
            received = b""
            while part := sock.recv(65_536):
                received += part
        assert b"event: error" in received
        ids = re.findall(rb"^id: (.+)$", received, re.MULTILINE)
        with speak.stream(url, last_event_id=ids[-1].decode()) as stream:
            seen = seqs_until(stream, 1_000)
    delivered = [int(seq) for seq in re.findall(rb'"\$seq":(\d+)', received)]
    assert delivered + seen == list(range(1, 1_001))


def test_stuck_readers_do_not_hold_up_the_others(servers, topic) -> None:
    """§7.3, K6: writers and other watchers go on."""
    server = servers.with_settings(slow_consumer_timeout_ms=60_000)
    speak = servers.speaker(server, "h1")
    with Client(server.url) as client:
        client.append(topic, [PAYLOAD] * 1_000)
        with (
            deaf(server, watch(speak, topic)),
            deaf(server, watch(speak, topic)),
            speak.stream(watch(speak, topic)) as stream,
        ):
            assert len(seqs_until(stream, 1_000)) == 1_000
            for n in range(20):
                seq = client.append(topic, [n]).first_seq
                assert seqs_until(stream, seq) == [seq]
            assert streams(client) == 3
