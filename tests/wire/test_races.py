"""Many at once (native §1.9): a cap of N admits exactly N, and one of many creates.

Every test lets all its threads go at the same moment, over connections that are open already.
"""

from __future__ import annotations

import contextlib
import json
import socket
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

import pytest
from websockets.exceptions import InvalidStatus
from websockets.sync.client import ClientConnection
from websockets.sync.client import connect as connect_websocket

from tests.support.speakers import Reply, Speaker

T = TypeVar("T")
THREADS = 32
CAP = 7
RECORD = {"records": [{"data": 1}]}
KEYS = "one,two"
# §1.9: a slot is free again when so long has passed.
RELEASE_SECONDS = 0.2


def together(count: int, work: Callable[[int], T]) -> list[T]:
    """The results of `work(0)`, `work(1)`, ..., all begun at the same moment."""
    ready = threading.Barrier(count)

    def run(number: int) -> T:
        ready.wait()
        return work(number)

    with ThreadPoolExecutor(count) as pool:
        return list(pool.map(run, range(count)))


def settle(speak: Speaker) -> None:
    """Let slots be released; a server that got no processor meanwhile is waited for."""
    time.sleep(RELEASE_SECONDS)
    speak("GET", "/v0/health")


def check_exactly(replies: list[Reply], admitted: set[int], cap: int, detail: object) -> None:
    refused = [reply for reply in replies if reply.status not in admitted]
    assert len(replies) - len(refused) == cap, Counter(reply.status for reply in replies)
    for reply in refused:
        assert (reply.status, reply.error["code"]) == (429, "throttled")
        assert reply.headers["retry-after"] == "1"
        assert reply.error.get("detail") == detail


def authorized(key: str) -> dict[str, str]:
    return {"authorization": f"Bearer {key}"}


# Topics and sessions


@pytest.mark.parametrize("how", ["put", "append", "both", "websocket"])
def test_topics(servers, protocol, how) -> None:
    """However topics come to be."""
    speak = servers.speaker(servers.start(max_topics=CAP), protocol)
    if how == "websocket":
        url = f"ws://{speak.server.address}/v0/ws"
        with contextlib.ExitStack() as stack:
            sockets = [stack.enter_context(connect_websocket(url)) for _ in range(THREADS)]
            said = together(THREADS, lambda n: publish(sockets[n], f"t{n}"))
        assert Counter(said) == {"ack": CAP, "throttled": THREADS - CAP}
    else:

        def create(number: int) -> Reply:
            if how == "put" or (how == "both" and number % 2):
                return speak("PUT", f"/v0/topics/t{number}")
            return speak("POST", f"/v0/topics/t{number}", RECORD)

        replies = together(THREADS, create)
        check_exactly(replies, {201}, CAP, {"limit": "max_topics", "max": CAP})
    listed = [each["topic"] for each in speak.ok("GET", "/v0/topics")["topics"]]
    assert len(listed) == CAP
    # Deleting and creating at once never makes more than the cap.
    together(CAP, lambda n: speak("DELETE", f"/v0/topics/{listed[n]}"))
    replies = together(THREADS, lambda n: speak("PUT", f"/v0/topics/again{n}"))
    check_exactly(replies, {201}, CAP, {"limit": "max_topics", "max": CAP})


def publish(sock: ClientConnection, topic: str) -> str:
    sock.send(json.dumps({"op": "publish", "topic": topic, **RECORD}))
    answer = str(sock.recv(30))
    return "ack" if '"op":"ack"' in answer else "throttled" if '"throttled"' in answer else answer


def test_watch_sessions(servers, protocol, topic) -> None:
    speak = servers.speaker(servers.start(max_watch_sessions=CAP), protocol)
    speak.append(topic, 1)
    body = {"topics": {topic: {}}}
    replies = together(THREADS, lambda _: speak("POST", "/v0/watch", body))
    check_exactly(replies, {200}, CAP, {"limit": "max_watch_sessions", "max": CAP})
    assert len({reply.json["wid"] for reply in replies if reply.status == 200}) == CAP


@pytest.mark.parametrize("durability", ["ephemeral", "memory", "disk", "fsync"])
def test_one_of_many_creates(speak, topic, durability) -> None:
    """§3.1: of 16 that create one name at once, one is told that it did."""
    config = {"durability": durability}
    for round_ in range(5):
        name = f"{topic}-{round_}"
        replies = together(16, lambda _, n=name: speak("PUT", f"/v0/topics/{n}", config))
        assert Counter(reply.status for reply in replies) == {201: 1, 200: 15}
        assert [reply.json["created"] for reply in replies].count(True) == 1
        assert len({reply.json["epoch"] for reply in replies}) == 1


def test_one_of_many_appends_creates(speak, topic) -> None:
    replies = together(16, lambda n: speak("POST", f"/v0/topics/{topic}", RECORD))
    assert [reply.json["created"] for reply in replies].count(True) == 1
    assert sorted(reply.json["first_seq"] for reply in replies) == list(range(1, 17))


# Appends


@pytest.mark.parametrize("durability", ["ephemeral", "memory", "disk", "fsync"])
def test_one_key_is_one_batch(speak, topic, durability) -> None:
    """§3.5: also while the first is still on its way to the disk."""
    speak.ok("PUT", f"/v0/topics/{topic}", {"durability": durability})
    for round_ in range(10):
        body = {**RECORD, "idempotency_key": f"k{round_}"}
        replies = together(8, lambda _, b=body: speak("POST", f"/v0/topics/{topic}", b))
        answers = [reply.json for reply in replies]
        assert [answer["deduped"] for answer in answers].count(False) == 1
        assert {answer["first_seq"] for answer in answers} == {round_ + 1}
        assert {answer["head_seq"] for answer in answers} == {round_ + 1}
    assert speak.state(topic)["head_seq"] == 10


def test_one_key_creates_one_topic_with_one_batch(speak, topic) -> None:
    body = {**RECORD, "idempotency_key": "k", "config": {"durability": "fsync"}}
    replies = together(8, lambda _: speak("POST", f"/v0/topics/{topic}", body))
    assert Counter(reply.status for reply in replies) == {201: 1, 200: 7}
    assert speak.state(topic)["head_seq"] == 1


def test_the_head_moves_once(speak, topic) -> None:
    """§12: of many who expect the same head, one appends."""
    speak.ok("PUT", f"/v0/topics/{topic}", {"durability": "fsync"})
    for head in range(10):
        body = {**RECORD, "expected_head_seq": head}
        replies = together(8, lambda _, b=body: speak("POST", f"/v0/topics/{topic}", b))
        assert Counter(reply.status for reply in replies) == {200: 1, 409: 7}
    assert speak.state(topic)["head_seq"] == 10


def test_a_full_topic_takes_exactly_its_cap(speak, topic) -> None:
    """§3.5: `reject` never holds more than its cap, and uses no seq for a refusal."""
    speak.ok("PUT", f"/v0/topics/{topic}", {"cap_records": 10, "discard": "reject"})
    replies = together(THREADS, lambda _: speak("POST", f"/v0/topics/{topic}", RECORD))
    assert Counter(reply.status for reply in replies) == {200: 10, 422: THREADS - 10}
    assert speak.state(topic)["head_seq"] == 10


# Streams


class Streams:
    """Streams that are opened at once and held."""

    def __init__(self, speak: Speaker, wids: list[str], keys: list[str] | None = None) -> None:
        self._speak = speak
        self._wids = wids
        self._keys = keys
        self._lock = threading.Lock()
        self._held: list[Any] = []
        self.statuses: list[int] = []

    def open(self, count: int) -> Counter[int]:
        self.statuses.clear()
        together(count, self._open)
        return Counter(self.statuses)

    def _open(self, number: int) -> None:
        headers = {"accept": "text/event-stream"}
        if self._keys is not None:
            headers |= authorized(self._keys[number % len(self._keys)])
        wid = self._wids[number % len(self._wids)]
        opened = self._speak.open("GET", f"/v0/watch/{wid}", headers)
        stream = opened.__enter__()
        with self._lock:
            self.statuses.append(stream.status)
            self._held.append(opened)

    def close(self) -> None:
        for opened in self._held:
            opened.__exit__(None, None, None)
        self._held.clear()


@contextlib.contextmanager
def streams(speak: Speaker, wids: list[str], keys: list[str] | None = None) -> Iterator[Streams]:
    held = Streams(speak, wids, keys)
    try:
        yield held
    finally:
        held.close()


def session(speak: Speaker, topic: str, key: str | None = None) -> str:
    headers = {} if key is None else authorized(key)
    reply = speak("POST", "/v0/watch", {"topics": {topic: {}}}, headers)
    assert reply.status == 200, reply
    return str(reply.json["wid"])


def test_streams(servers, protocol, topic) -> None:
    """N at once; all their slots are free within 200 ms after they are gone, again and again."""
    speak = servers.speaker(servers.start(max_sse_connections=CAP), protocol)
    speak.append(topic, 1)
    wid = session(speak, topic)
    for _ in range(3):
        with streams(speak, [wid]) as held:
            assert held.open(THREADS) == {200: CAP, 429: THREADS - CAP}
        settle(speak)


def test_one_slot_is_free_as_soon_as_its_stream_is_gone(servers, protocol, topic) -> None:
    speak = servers.speaker(servers.start(max_sse_connections=1), protocol)
    speak.append(topic, 1)
    wid = session(speak, topic)
    for _ in range(5):
        with speak.stream(f"/v0/watch/{wid}") as stream:
            assert stream.status == 200
            with speak.stream(f"/v0/watch/{wid}") as second:
                assert second.status == 429
        settle(speak)


def test_websockets_and_streams_share_the_cap(servers, topic) -> None:
    speak = servers.speaker(servers.start(max_sse_connections=CAP), "h1")
    speak.append(topic, 1)
    wid = session(speak, topic)
    url = f"ws://{speak.server.address}/v0/ws"
    stack = contextlib.ExitStack()

    def upgrade(_: int) -> int:
        try:
            stack.enter_context(connect_websocket(url))
            return 101
        except InvalidStatus as refused:
            return refused.response.status_code

    with stack, streams(speak, [wid]) as held:
        assert held.open(3) == {200: 3}
        statuses = Counter(together(THREADS, upgrade))
        assert statuses == {101: CAP - 3, 429: THREADS - (CAP - 3)}
        assert held.open(5) == {429: 5}
    settle(speak)
    with streams(speak, [wid]) as held:
        assert held.open(THREADS) == {200: CAP, 429: THREADS - CAP}


def test_streams_of_one_key(servers, protocol, topic) -> None:
    """A stream is billed to the key that made its session."""
    settings = {"api_keys": KEYS, "max_sse_connections_per_key": CAP}
    speak = servers.speaker(servers.start(**settings), protocol)
    speak("POST", f"/v0/topics/{topic}", RECORD, authorized("one"))
    wids = [session(speak, topic, key) for key in ("one", "two")]
    with streams(speak, wids, ["one", "two"]) as held:
        # Even numbers are the first key's, odd ones the second's.
        assert held.open(THREADS) == {200: 2 * CAP, 429: THREADS - 2 * CAP}
    settle(speak)
    with streams(speak, wids[:1], ["one"]) as held:
        assert held.open(THREADS) == {200: CAP, 429: THREADS - CAP}


def test_a_reset_gives_the_slot_back(servers, topic) -> None:
    """Also when the client goes without a word."""
    speak = servers.speaker(servers.start(max_sse_connections=1), "h1")
    speak.append(topic, 1)
    wid = session(speak, topic)
    for _ in range(5):
        with socket.create_connection((speak.server.host, speak.server.port)) as sock:
            sock.sendall(f"GET /v0/watch/{wid} HTTP/1.1\r\nhost: localhost\r\n\r\n".encode())
            assert sock.recv(12) == b"HTTP/1.1 200"
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
        settle(speak)


# Requests in progress


def test_requests_of_one_key(servers, protocol, topic) -> None:
    """Exactly N long polls of a key are in progress; another key is not affected."""
    settings = {"api_keys": KEYS, "max_inflight_per_key": CAP}
    speak = servers.speaker(servers.start(**settings), protocol)
    path = f"/v0/topics/{topic}"
    assert speak("POST", path, RECORD, authorized("one")).status == 201
    polls = {"from_seq": 1, "wait_ms": 20_000}
    answered: list[Reply] = []
    lock = threading.Lock()
    refused = threading.Event()

    def poll(_: int) -> None:
        reply = speak("POST", f"{path}/diff", polls, authorized("one"))
        with lock:
            answered.append(reply)
            if len(answered) == THREADS - CAP:
                refused.set()

    with ThreadPoolExecutor(1) as pool:
        running = pool.submit(together, THREADS, poll)
        assert refused.wait(20)
        # The others wait, and hold their slots; the second key has slots of its own.
        assert {reply.status for reply in answered} == {429}
        assert all("detail" not in reply.error for reply in answered)
        assert speak("GET", path, None, authorized("one")).status == 429
        assert speak("POST", path, RECORD, authorized("two")).status == 200  # wakes them
        running.result()
    assert Counter(reply.status for reply in answered) == {429: THREADS - CAP, 200: CAP}
    assert speak("GET", path, None, authorized("one")).status == 200


def test_a_poll_that_is_given_up_holds_no_slot(servers, topic) -> None:
    settings = {"api_keys": KEYS, "max_inflight_per_key": 1}
    speak = servers.speaker(servers.start(**settings), "h1")
    path = f"/v0/topics/{topic}"
    assert speak("POST", path, RECORD, authorized("one")).status == 201
    body = b'{"from_seq":1,"wait_ms":20000}'
    request = (
        f"POST {path}/diff HTTP/1.1\r\nhost: localhost\r\nauthorization: Bearer one\r\n"
        f"content-type: application/json\r\ncontent-length: {len(body)}\r\n\r\n"
    ).encode() + body
    for _ in range(5):
        with socket.create_connection((speak.server.host, speak.server.port)) as sock:
            sock.sendall(request)
            deadline = time.monotonic() + 20
            while speak("GET", path, None, authorized("one")).status != 429:
                assert time.monotonic() < deadline
        settle(speak)
        assert speak("GET", path, None, authorized("one")).status == 200


def test_without_keys_the_caps_of_keys_do_nothing(servers, protocol, topic) -> None:
    settings = {"max_inflight_per_key": 1, "max_sse_connections_per_key": 1}
    speak = servers.speaker(servers.start(**settings), protocol)
    speak.append(topic, 1)
    wid = session(speak, topic)
    with streams(speak, [wid]) as held:
        assert held.open(CAP) == {200: CAP}
        replies = together(THREADS, lambda _: speak("POST", f"/v0/topics/{topic}", RECORD))
        assert {reply.status for reply in replies} == {200}
