"""Networks that cut, delay and repeat, between our client and a real server.

The property: what was acknowledged is there once, in one piece; what was not acknowledged is there
once or not at all; a request that never arrived whole changes nothing.
"""

from __future__ import annotations

import json
import random
import socket
import threading
import time
from collections import Counter
from collections.abc import Iterator

import httpx
import pyarrow as pa
import pytest

from headrace.client import Client, Producer
from headrace.core.errors import TopicNotFound, Unreachable
from tests.support.proxy import Plan, Proxy

DROPPED = Plan(answer_bytes=0)
RECORDS = [{"n": n, "pad": "x" * 50} for n in range(20)]
TIMEOUT_MS = 20_000
SHORT_MS = 300


@pytest.fixture
def proxy(server) -> Iterator[Proxy]:
    with Proxy(server.host, server.port) as proxy:
        yield proxy


@pytest.fixture
def direct(server) -> Iterator[Client]:
    with Client(server.url) as client:
        yield client


@pytest.fixture
def client(proxy) -> Iterator[Client]:
    with Client(proxy.url, timeout_ms=TIMEOUT_MS) as client:
        yield client


def payloads(client: Client, topic: str) -> list[object]:
    return [record.data for record in client.follow(topic, to_head=True)]


def head(client: Client, topic: str) -> int:
    try:
        return client.topic(topic).head_seq
    except TopicNotFound:
        return 0


# The answer is lost after the commit


@pytest.mark.parametrize("durability", ["memory", "disk", "fsync"])
@pytest.mark.parametrize("plan", [DROPPED, DROPPED._replace(reset=True), Plan(answer_bytes=40)])
def test_a_lost_answer_is_asked_for_again(proxy, client, direct, topic, durability, plan) -> None:
    """The first attempt is stored, its answer lost; the repeat finds the batch and adds none."""
    direct.put_topic(topic, {"durability": durability})
    proxy.plans.append(plan)
    done = client.append(topic, RECORDS)
    assert proxy.connections == 2
    assert done.deduped is True
    assert (done.first_seq, done.last_seq, done.head_seq, done.count) == (1, 20, 20, 20)
    assert payloads(direct, topic) == RECORDS


def test_lost_again_and_again(proxy, client, direct, topic) -> None:
    proxy.plans.extend([DROPPED] * 5)
    done = client.append(topic, RECORDS)
    assert proxy.connections == 6
    assert done.deduped is True
    assert payloads(direct, topic) == RECORDS


def test_a_producer_is_safe_too(proxy, client, direct, topic) -> None:
    for sequence in range(3):
        proxy.plans.append(DROPPED)
        proxy.cut()
        client.append(topic, [sequence], producer=Producer("p", 1, sequence))
    assert payloads(direct, topic) == [0, 1, 2]


def test_columns_are_safe_too(proxy, client, direct, topic) -> None:
    proxy.plans.append(DROPPED)
    table = pa.table({"data": pa.array([json.dumps(n) for n in range(100)], pa.utf8())})
    assert client.append_arrow(topic, table).deduped is True
    assert payloads(direct, topic) == list(range(100))


def test_without_a_key_the_outcome_is_unknown_and_said_to_be(proxy, direct, topic) -> None:
    """It is not repeated: that could store it twice."""
    proxy.plans.append(DROPPED)
    with (
        Client(proxy.url, random_keys=False) as client,
        pytest.raises(Unreachable) as caught,
    ):
        client.append(topic, RECORDS)
    assert caught.value.detail["outcome"] == "unknown"
    assert proxy.connections == 1
    assert payloads(direct, topic) == RECORDS


def test_the_append_that_creates_the_topic(proxy, client, direct, topic) -> None:
    """The repeat tells that it is one, and the topic has the config of the first attempt."""
    proxy.plans.append(DROPPED)
    done = client.append(topic, RECORDS, config={"durability": "fsync"})
    assert (done.deduped, done.created) == (True, False)
    assert direct.topic(topic).config["durability"] == "fsync"
    assert direct.topic(topic).head_seq == len(RECORDS)


def test_the_server_restarts_between_the_attempts(servers, topic, tmp_path) -> None:
    """Keys are as durable as what they belong to."""
    first = servers.start(tmp_path)
    with Proxy(first.host, first.port) as proxy, Client(proxy.url, deadline_ms=60_000) as client:
        client.put_topic(topic, {"durability": "fsync"})
        proxy.cut()
        proxy.usual = DROPPED

        def restart() -> None:
            with Client(first.url) as probe:
                while head(probe, topic) == 0:
                    time.sleep(0.001)
            first.kill()
            second = servers.start(tmp_path)
            proxy.target, proxy.usual = (second.host, second.port), Plan()

        thread = threading.Thread(target=restart)
        thread.start()
        done = client.append(topic, RECORDS)
        thread.join()
        assert done.deduped is True
        assert payloads(client, topic) == RECORDS


# The request does not arrive whole


def test_a_request_cut_anywhere_changes_nothing(proxy, direct, topic) -> None:
    body = json.dumps({"records": [{"data": record} for record in RECORDS]}).encode()
    request = (
        f"POST /v0/topics/{topic} HTTP/1.1\r\nhost: {proxy.url[7:]}\r\n"
        f"content-type: application/json\r\ncontent-length: {len(body)}\r\n\r\n"
    ).encode() + body
    points = [
        *range(1, len(request) - len(body), 7),
        *range(len(request) - len(body), len(request)),
    ]
    for reset in (False, True):
        for cut_at in points[:: 3 if reset else 5]:
            proxy.plans.append(Plan(request_bytes=cut_at, reset=reset))
            with socket.create_connection(("127.0.0.1", proxy.port)) as sock:
                sock.settimeout(TIMEOUT_MS / 1_000)
                try:
                    sock.sendall(request)
                    assert sock.recv(1 << 16) == b""
                except ConnectionError:
                    assert reset
    assert head(direct, topic) == 0
    with pytest.raises(TopicNotFound):
        direct.topic(topic)


def test_a_chunked_request_without_its_end_changes_nothing(proxy, direct, topic) -> None:
    body = json.dumps({"records": [{"data": 1}]}).encode()
    request = (
        f"POST /v0/topics/{topic} HTTP/1.1\r\nhost: {proxy.url[7:]}\r\n"
        f"content-type: application/json\r\ntransfer-encoding: chunked\r\n\r\n"
        f"{len(body):x}\r\n"
    ).encode() + body
    for end in (b"", b"\r", b"\r\n", b"\r\n0", b"\r\n0\r\n", b"\r\n0\r\n\r"):
        with socket.create_connection(("127.0.0.1", proxy.port)) as sock:
            sock.settimeout(TIMEOUT_MS / 1_000)
            sock.sendall(request + end)
            sock.shutdown(socket.SHUT_WR)
            sock.recv(1 << 16)
    assert head(direct, topic) == 0


def test_over_http2_too(proxy, direct, topic) -> None:
    body = {"records": [{"data": "x" * 1_000} for _ in range(50)]}
    for cut_at in (500, 5_000, 20_000, 45_000):
        proxy.plans.append(Plan(request_bytes=cut_at))
        with (
            httpx.Client(http1=False, http2=True, trust_env=False, timeout=20) as client,
            pytest.raises(httpx.TransportError),
        ):
            client.post(f"{proxy.url}/v0/topics/{topic}", json=body)
    assert head(direct, topic) == 0


@pytest.mark.parametrize("cut_at", [1, 100, 500, 1_000])
def test_a_cut_request_is_sent_again(proxy, client, direct, topic, cut_at) -> None:
    """The first attempt left nothing behind, so the second is the first."""
    proxy.plans.append(Plan(request_bytes=cut_at))
    done = client.append(topic, RECORDS)
    assert (proxy.connections, done.deduped) == (2, False)
    assert payloads(direct, topic) == RECORDS


# Late answers, repeated requests


def test_an_answer_that_comes_too_late(proxy, direct, topic) -> None:
    """The attempt is given up, its late answer is nobody's, and the repeat is told of it."""
    proxy.plans.append(Plan(answer_delay_s=10 * SHORT_MS / 1_000))
    with Client(proxy.url, timeout_ms=SHORT_MS, deadline_ms=TIMEOUT_MS) as client:
        done = client.append(topic, RECORDS)
        assert proxy.connections >= 2
        assert done.deduped is True
        assert client.append(topic, [{"n": 20}]).first_seq == 21
    assert payloads(direct, topic) == [*RECORDS, {"n": 20}]


@pytest.mark.parametrize("copies", [2, 5])
def test_one_request_on_several_connections(proxy, client, direct, topic, copies) -> None:
    """As when a proxy between them repeats by itself: one batch, and all get the same answer."""
    direct.put_topic(topic, {"durability": "fsync"})
    for number in range(10):
        proxy.cut()
        proxy.plans.append(Plan(copies=copies))
        done = client.append(topic, [number])
        assert (done.first_seq, done.head_seq) == (number + 1, number + 1)
    assert payloads(direct, topic) == list(range(10))


# Everything at once


def plan_of(draw: random.Random) -> Plan:
    return draw.choice(
        [
            Plan(answer_bytes=draw.randrange(1_500), reset=draw.random() < 0.5),
            Plan(request_bytes=draw.randrange(1, 2_000), reset=draw.random() < 0.5),
            Plan(answer_delay_s=draw.random() / 100, answer_bytes=1_500),
            Plan(copies=draw.randrange(1, 4), answer_bytes=draw.choice([0, 500, 1_500])),
        ]
    )


class Writer:
    """Appends batches with numbers of its own, and remembers which were acknowledged."""

    def __init__(self, url: str, topic: str, number: int) -> None:
        self.acknowledged: set[tuple[int, int]] = set()
        self.sent = 0
        self._url = url
        self._topic = topic
        self._number = number

    def run(self, batches: int) -> None:
        with Client(self._url, timeout_ms=TIMEOUT_MS, deadline_ms=2_000) as client:
            for _ in range(batches):
                batch = self._number, self.sent
                self.sent += 1
                try:
                    client.append(self._topic, [[*batch, part] for part in range(3)])
                    self.acknowledged.add(batch)
                except Unreachable:
                    continue  # nobody knows


def storm(proxy: Proxy, direct: Client, topic: str, seed: int, batches: int) -> int:
    """Writers through a bad network; returns how many batches were stored."""
    draw = random.Random(seed)
    writers = [Writer(proxy.url, topic, number) for number in range(6)]
    threads = [threading.Thread(target=writer.run, args=[batches]) for writer in writers]
    direct.put_topic(topic)
    for thread in threads:
        thread.start()
    while any(thread.is_alive() for thread in threads):
        while len(proxy.plans) < 50:
            proxy.plans.append(plan_of(draw))
        if draw.random() < 0.2:
            proxy.cut()
        time.sleep(0.002)
    proxy.plans.clear()
    stored = payloads(direct, topic)
    batches_stored = list(zip(*[iter(stored)] * 3, strict=True))
    for parts in batches_stored:  # whole, and not mixed with others
        assert parts == tuple([*parts[0][:2], part] for part in range(3)), f"seed {seed}"
    times = Counter((parts[0][0], parts[0][1]) for parts in batches_stored)
    assert set(times.values()) == {1}, f"seed {seed}: {times.most_common(3)}"
    for number, writer in enumerate(writers):
        assert writer.acknowledged <= times.keys(), f"seed {seed}"
        assert all(sent < writer.sent for who, sent in times if who == number)
    return len(times)


def test_a_bad_network(proxy, direct, topic) -> None:
    assert storm(proxy, direct, topic, seed=1, batches=60) > 200
    assert proxy.connections > 100


@pytest.mark.long
def test_a_bad_network_for_long(proxy, direct, topic, sweep) -> None:
    until = time.monotonic() + sweep.seconds
    rounds = 0
    while time.monotonic() < until:
        storm(proxy, direct, f"{topic}-{rounds}", seed=sweep.seed + rounds, batches=100)
        rounds += 1
    print(f"{rounds} rounds")
