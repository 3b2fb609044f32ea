"""A server that refuses large requests of every kind: what they held is free when it has answered.

It hardly ever collects, so a body stays if anything of its request is in a circle.
"""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from typing import Any, NamedTuple

import pytest
from websockets.sync.client import connect

from headrace.testing.process import ServerProcess
from tests.support.memory_growth import COUNTS, Growth
from tests.support.speakers import JSON_TYPE, SPEAKERS, Speaker

SECONDS_MAX = 30
BODY_BYTES = 2 << 20
BODY_BYTES_MAX = 3 << 20
LARGE_BYTES = 60_000_000
RECORD_BYTES = 1_000_000
ALL, READS = "all-scopes", "only-reads"
KEYS = f"{ALL}:read+write+delete+admin,{READS}:read"


class Refusal(NamedTuple):
    """A request that is refused, whatever it costs to find that out."""

    status: int
    code: str
    path: str
    body: bytes
    headers: dict[str, str]
    method: str


def large(document: object, size: int = BODY_BYTES) -> bytes:
    """A document as JSON of this size: blanks may be anywhere in it."""
    text = json.dumps(document).encode()
    return text[:-1] + b" " * (size - len(text)) + text[-1:]


def records(**fields: object) -> dict[str, object]:
    data = "x" * RECORD_BYTES
    return {"records": [{"data": data}] * (BODY_BYTES // RECORD_BYTES), **fields}


def refusal(
    status: int,
    code: str,
    path: str,
    body: bytes,
    key: str = ALL,
    *,
    packed: bool = True,
    method: str = "POST",
    **headers: str,
) -> Refusal:
    sent = {**JSON_TYPE, **({"authorization": f"Bearer {key}"} if key else {})}
    if packed:
        sent["content-encoding"] = "gzip"
        body = gzip.compress(body, 1)
    sent |= {name.replace("_", "-"): value for name, value in headers.items()}
    return Refusal(status, code, path, body, sent, method)


APPEND = json.dumps(records()).encode()
PRODUCER = {"producer_id": "p", "producer_epoch": "1", "producer_seq": "7"}
UNREAD = "too large as sent"
REFUSALS = {
    "no key": refusal(401, "unauthorized", "/v0/topics/t", APPEND, ""),
    "no scope": refusal(403, "forbidden", "/v0/topics/t", APPEND, READS),
    "no route": refusal(404, "not_found", "/v0/nothing/t", APPEND),
    "no method": refusal(405, "method_not_allowed", "/v0/topics", APPEND),
    "no topic": refusal(404, "topic_not_found", "/v0/topics/none/diff", large({"limit": 1}), READS),
    "not created": refusal(
        404, "topic_not_found", "/v0/topics/none", json.dumps(records(create=False)).encode()
    ),
    "another head": refusal(
        409, "head_mismatch", "/v0/topics/t", json.dumps(records(expected_head_seq=9)).encode()
    ),
    "a gap": refusal(409, "producer_gap", "/v0/topics/t", APPEND, **PRODUCER),
    "no events": refusal(
        406, "not_acceptable", "/v0/topics/t/work?node=n", APPEND,
        method="GET", accept="application/json",
    ),
    "no queue": refusal(409, "not_a_queue", "/v0/topics/t/claim", large({"node": "n"})),
    "too large": refusal(413, "payload_too_large", "/v0/topics/t", b" " * (BODY_BYTES_MAX + 1)),
    UNREAD: refusal(
        413, "payload_too_large", "/v0/topics/t", b" " * (BODY_BYTES_MAX + 1), packed=False
    ),
    "no JSON": refusal(400, "invalid_request", "/v0/topics/t", b"{" + b" " * BODY_BYTES),
    "no UTF-8": refusal(400, "invalid_request", "/v0/topics/t", b'"\xff' + b"x" * BODY_BYTES),
    "no records": refusal(400, "invalid_request", "/v0/topics/t", large({"records": []})),
    "wrong types": refusal(400, "invalid_request", "/v0/topics/t", large({"records": 5})),
    "no gzip": refusal(
        400, "invalid_request", "/v0/topics/t", b"x" * BODY_BYTES,
        packed=False, content_encoding="gzip",
    ),
    "a large record": refusal(
        400, "record_too_large", "/v0/topics/t",
        json.dumps({"records": [{"data": "x" * BODY_BYTES}]}).encode(),
    ),
    "not JSON": refusal(
        415, "unsupported_media_type", "/v0/topics/t", APPEND, content_type="text/plain"
    ),
    "a full topic": refusal(422, "topic_full", "/v0/topics/full", APPEND),
    "too many topics": refusal(429, "throttled", "/v0/topics/one-more", APPEND),
}  # fmt: skip
# Those that a WebSocket hears of, too, and what it sends for them.
PUBLISHED = {
    "no scope": ("forbidden", READS, "t", {}),
    "not created": ("topic_not_found", ALL, "none", {"create": False}),
    "another head": ("head_mismatch", ALL, "t", {"expected_head_seq": 9}),
    "no records": ("invalid_request", ALL, "t", {"records": [], "more": "x" * BODY_BYTES}),
    "a full topic": ("topic_full", ALL, "full", {}),
    "too many topics": ("throttled", ALL, "one-more", {}),
    "wrong types": ("invalid_json", ALL, "t", {"records": "x" * BODY_BYTES}),
}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    directory = tmp_path_factory.mktemp("refused")
    settings: dict[str, Any] = {"body_bytes_max": BODY_BYTES_MAX, "max_topics": 2, "api_keys": KEYS}
    with ServerProcess(directory, **settings) as server:
        speak = SPEAKERS["h1"](server)
        admin = {"authorization": f"Bearer {ALL}"}
        assert speak("PUT", "/v0/topics/t", {}, admin).status == 201
        reject = {"cap_records": 2, "discard": "reject"}
        assert speak("PUT", "/v0/topics/full", reject, admin).status == 201
        for topic in ("t", "full"):
            assert (
                speak("POST", f"/v0/topics/{topic}", {"records": [{"data": 1}]}, admin).status
                == 200
            )
        speak.close()
        yield server


def ask(speak: Speaker, refusal: Refusal) -> None:
    reply = speak.send(refusal.method, refusal.path, refusal.body, refusal.headers)
    assert (reply.status, reply.error["code"]) == (refusal.status, refusal.code), reply


@pytest.mark.parametrize("count", COUNTS)
@pytest.mark.parametrize("protocol", sorted(SPEAKERS))
def test_refused_requests_leave_nothing(server: ServerProcess, protocol: str, count: int) -> None:
    with closing(SPEAKERS[protocol](server)) as speak:
        # A client of HTTP/2 that sends on although it was refused: test_refused_connections.py.
        kinds = {k: v for k, v in REFUSALS.items() if protocol == "h1" or k != UNREAD}
        for refusal in kinds.values():
            ask(speak, refusal)
        growth = Growth(server)
        for name, refusal in kinds.items():
            for _ in range(count):
                ask(speak, refusal)
            growth.look(name)
    growth.check()


@pytest.mark.parametrize("count", COUNTS)
def test_refused_messages_leave_nothing(server: ServerProcess, count: int) -> None:
    publish(server, 1)
    growth = Growth(server)
    for name in PUBLISHED:
        publish(server, count, name)
        growth.look(name)
    growth.check()


def publish(server: ServerProcess, count: int, *names: str) -> None:
    """Publish what is refused, `count` times over one connection for each kind."""
    url = f"ws://{server.address}/v0/ws"
    for name in names or PUBLISHED:
        code, key, topic, fields = PUBLISHED[name]
        message = json.dumps({"op": "publish", "topic": topic, **records(), **fields})
        headers = {"authorization": f"Bearer {key}"}
        with connect(url, additional_headers=headers, max_size=None, compression=None) as socket:
            for _ in range(count):
                socket.send(message)
                answer = json.loads(socket.recv(SECONDS_MAX))
                assert (answer["op"], answer["code"]) == ("error", code), answer


# Bodies that are nearly as large as they may be


@pytest.fixture(scope="module")
def spacious(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """A server that takes bodies as large as usual."""
    with ServerProcess(tmp_path_factory.mktemp("large"), api_keys=KEYS) as server:
        admin = {"authorization": f"Bearer {ALL}"}
        with closing(SPEAKERS["h1"](server)) as speak:
            assert speak("PUT", "/v0/topics/t", {}, admin).status == 201
        yield server


def large_read() -> Refusal:
    """60 KB that become 60 MB."""
    body = large({"limit": 1}, LARGE_BYTES)
    return refusal(404, "topic_not_found", "/v0/topics/none/diff", body, READS)


def large_append() -> Refusal:
    """60 MB as they are."""
    rows = [{"data": "x" * RECORD_BYTES}] * (LARGE_BYTES // RECORD_BYTES)
    body = json.dumps({"records": rows, "expected_head_seq": 9}).encode()
    return refusal(409, "head_mismatch", "/v0/topics/t", body, packed=False)


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("senders", [1, 8])
@pytest.mark.parametrize(("make", "count"), [(large_read, 16), (large_append, 24)])
@pytest.mark.parametrize("protocol", sorted(SPEAKERS))
def test_large_bodies_leave_nothing(
    spacious: ServerProcess,
    protocol: str,
    make: Callable[[], Refusal],
    count: int,
    senders: int,
) -> None:
    """Whether they come one after the other or several at once."""
    refused, growth = make(), Growth(spacious)

    def send(times: int) -> None:
        with closing(SPEAKERS[protocol](spacious)) as speak:
            for _ in range(times):
                ask(speak, refused)

    with ThreadPoolExecutor(senders) as pool:
        for sent in [pool.submit(send, count // senders) for _ in range(senders)]:
            sent.result()
    growth.look_at_rest(make.__name__)
    growth.check()
