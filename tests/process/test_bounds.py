"""The largest requests of every type of every dialect, as many as are allowed, held: memory keeps
to the budget of docs/operate/memory.md, metrics say who holds it, and all of it is given back.
"""

from __future__ import annotations

import json
import select
import socket
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

import pytest

from headrace.core.settings import Settings
from headrace.server.transport_exchange import FREE_BODY_BYTES
from headrace.testing.process import ServerProcess
from tests.support.checkout import ROOT
from tests.support.largest_requests import LARGEST, TEXT_TYPE, Sent
from tests.support.processes import resident_bytes
from tests.support.swept_servers import UNTOLD_BYTES_MAX, Sweep, ask, status_of

KIB, MIB = 1 << 10, 1 << 20
SMALL: dict[str, Any] = {
    "body_bytes_max": 256 * KIB,
    "record_bytes_max": 256 * KIB,
    "header_bytes_max": 16 * KIB,
    "websocket_message_bytes_max": 256 * KIB,
    "request_memory_bytes_max": MIB,
    "response_memory_bytes_max": MIB,
    "memory_budget_bytes": 32 * MIB,
    "read_cache_bytes": MIB,
    "tag_index_bytes_max": MIB,
    "max_connections": 200,
    "max_sse_connections": 6,
    "max_long_polls": 6,
    "max_watch_sessions": 6,
    "watch_session_ttl_ms": 1_000,
    "ds_webhook_loopback": "true",
    "max_topics": 40,
    "max_routers": 6,
    "idempotency_entries_max": 6,
    "producers_max": 6,
    "all_jobs_out_max": 6,
    "s2_basins_max": 4,
    "s2_tokens_max": 6,
    "subscriptions_bytes_max": 64 * KIB,
    "subscription_bytes_max": 64 * KIB,
}


def routes() -> list[tuple[str, str, str]]:
    """Dialect, method and template of every row of the route table, in one vocabulary."""
    sys.path.insert(0, str(ROOT / "tools"))
    try:
        from memory_page import served  # type: ignore[import-not-found]
    finally:
        sys.path.remove(str(ROOT / "tools"))
    return [
        (route.dialect.name, route.method, route.template)
        for route in served(Settings()).app.routes.routes
        if not route.template.startswith("/v0/boxes") and route.method != "OPTIONS"
    ]


@pytest.fixture(scope="module")
def sweep(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Sweep]:
    with ServerProcess(tmp_path_factory.mktemp("bounds"), **SMALL) as server:
        sweep = Sweep(server, SMALL)
        sweep.check_memory("at rest")
        yield sweep


# Every request type


def test_every_route_has_an_entry() -> None:
    table = {(method, template) for _, method, template in routes()}
    assert table - LARGEST.keys() == set(), "give the new route an entry of LARGEST"
    assert LARGEST.keys() - table == set()


def head_of(method: str, sent: Sent, length: int) -> bytes:
    lines = [f"{method} {sent.path} HTTP/1.1", "Host: localhost"]
    lines += [f"{name}: {value}" for name, value in sent.headers.items()]
    if sent.document is not None:
        lines += [f"Content-Type: {sent.content_type}", f"Content-Length: {length}"]
    return "\r\n".join(lines).encode() + b"\r\n"


def hold_bodies(
    sweep: Sweep, stack: ExitStack, request: bytes, size: int
) -> tuple[list[socket.socket], socket.socket]:
    """Send a request that is not whole on ever more connections, until one is refused.

    Those that are held, and the one that was refused.
    """
    held: list[socket.socket] = []
    while True:
        before = sweep.bytes("request_body")
        sock = stack.enter_context(sweep.connect())
        with suppress(ConnectionError):  # it is refused before it has sent all
            sock.sendall(request)
        least = before + size - 1 - FREE_BODY_BYTES
        while not is_answered(sock) and sweep.bytes("request_body") < least:
            time.sleep(0.02)
        if is_answered(sock):
            return held, sock
        held.append(sock)


def is_answered(sock: socket.socket) -> bool:
    """Whether there is something to be read."""
    return bool(select.select([sock], [], [], 0)[0])


def send_largest(sweep: Sweep, method: str, sent: Sent) -> None:
    """Have as many held as are allowed, one more refused, and the others answered."""
    size = sweep.settings["body_bytes_max"]
    if method == "PUT" and sent.content_type == TEXT_TYPE:
        size //= 2
    with ExitStack() as stack:
        if sent.document is None:
            pad = sweep.settings["header_bytes_max"] - 1_024
            head = head_of(method, sent, 0) + b"X-Pad: " + b"x" * pad + b"\r\n"
            held = [stack.enter_context(sweep.connect()) for _ in range(4)]
            for sock in held:
                sock.sendall(head)
            assert sweep.objects("connection") >= len(held)
            rest = b"\r\n"
        else:
            head, body = head_of(method, sent, size) + b"\r\n", sent.body(size)
            held, one_more = hold_bodies(sweep, stack, head + body[:-1], size)
            assert status_of(one_more) == 429, sent
            # The last of them would have left the others too little.
            assert len(held) >= sweep.settings["request_memory_bytes_max"] // size - 1
            rest = body[-1:]
        sweep.check_memory(f"{method} {sent.path}")
        for sock in held:
            sock.sendall(rest)
            status = status_of(sock)
            assert status in sent.statuses, (method, sent.path, status)
    sweep.wait(lambda: sweep.bytes("request_body") == 0)


@pytest.mark.parametrize("dialect", ["native", "durable_streams", "s2"])
def test_the_largest_of_every_type(sweep: Sweep, dialect: str) -> None:
    own = {(method, template) for name, method, template in routes() if name == dialect}
    for (method, template), sent in LARGEST.items():
        if (method, template) in own:
            send_largest(sweep, method, sent)
    sweep.check_memory(f"all of {dialect}")


# As many as are allowed


def drop_topics(sweep: Sweep, *names: str) -> None:
    for name in names:
        assert sweep.call("DELETE", f"/v0/topics/{name}")[0] in (200, 404)


JSON_LINE = "Content-Type: application/json"


def native_poll(_sweep: Sweep) -> bytes:
    body = json.dumps({"from_seq": 1, "wait_ms": 20_000}).encode()
    return ask("POST", "/v0/topics/polled/diff", JSON_LINE, body=body)


def stream_poll(_sweep: Sweep) -> bytes:
    return ask("GET", "/v1/stream/empty?offset=now&live=long-poll")


def s2_poll(_sweep: Sweep) -> bytes:
    return ask("GET", "/v1/streams/empty/records?seq_num=0&wait=20", "S2-Basin: my-basin")


def native_events(sweep: Sweep) -> bytes:
    made = b""

    def create() -> bool:  # once those of earlier tests are forgotten
        nonlocal made
        status, made = sweep.call("POST", "/v0/watch", {"topics": {"polled": {}}})
        return status < 300

    sweep.wait(create)
    return ask("GET", f"/v0/watch/{json.loads(made)['wid']}", "Accept: text/event-stream")


def stream_events(_sweep: Sweep) -> bytes:
    return ask("GET", "/v1/stream/empty?offset=-1&live=sse")


def s2_events(_sweep: Sweep) -> bytes:
    headers = ("S2-Basin: my-basin", "Accept: text/event-stream")
    return ask("GET", "/v1/streams/empty/records?seq_num=0", *headers)


def worker(_sweep: Sweep) -> bytes:
    return ask("GET", "/v0/topics/jobs/work?node=n", "Accept: text/event-stream")


def websocket(_sweep: Sweep) -> bytes:
    upgrade = ("Upgrade: websocket", "Connection: Upgrade", "Sec-WebSocket-Version: 13")
    return ask("GET", "/v0/ws", *upgrade, "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==")


def s2_append_session(_sweep: Sweep) -> bytes:
    kind = ("Content-Type: s2s/proto", "Transfer-Encoding: chunked")
    return ask("POST", "/v1/streams/empty/records", "S2-Basin: my-basin", *kind)


def s2_read_session(_sweep: Sweep) -> bytes:
    kind = ("Content-Type: s2s/proto", "Accept: s2s/proto")
    return ask("GET", "/v1/streams/empty/records?seq_num=0", "S2-Basin: my-basin", *kind)


WAITING = {
    "long_poll": ("max_long_polls", [native_poll, stream_poll, s2_poll]),
    "sse": ("max_sse_connections", [native_events, stream_events, s2_events, worker]),
    "ws": ("max_sse_connections", [websocket]),
    "session": ("max_sse_connections", [s2_append_session, s2_read_session]),
}


@pytest.fixture(scope="module")
def filled(sweep: Sweep) -> Sweep:
    """The server with something to read, in every dialect."""
    assert sweep.call("POST", "/v0/topics/polled", {"records": [{"data": 1}]})[0] in (200, 201)
    assert sweep.call("PUT", "/v0/topics/jobs", {"type": "queue"})[0] in (200, 201)
    assert sweep.call("PUT", "/v1/stream/empty", content_type="text/plain")[0] in (200, 201)
    assert sweep.call("POST", "/v1/basins", {"basin": "my-basin"})[0] in (201, 409)
    made = sweep.call("POST", "/v1/streams", {"stream": "empty"}, s2_basin="my-basin")
    assert made[0] in (201, 409), made
    return sweep


@pytest.mark.parametrize(
    ("kind", "setting", "request_of"),
    [
        pytest.param(kind, setting, request_of, id=request_of.__name__)
        for kind, (setting, all_of) in WAITING.items()
        for request_of in all_of
    ],
)
def test_readers_and_sessions(
    filled: Sweep, kind: str, setting: str, request_of: Callable[[Sweep], bytes]
) -> None:
    sweep, most = filled, SMALL[setting]
    before = sweep.objects(kind)
    assert before == 0
    with ExitStack() as stack:
        for number in range(most):
            sock = stack.enter_context(sweep.connect())
            sock.sendall(request_of(sweep))
            sweep.wait(lambda count=number + 1: sweep.objects(kind) == count)
        assert sweep.bytes(kind) > 0
        sweep.check_memory(kind)
        one_more = stack.enter_context(sweep.connect())
        request = request_of(sweep) if request_of is not native_events else stream_events(sweep)
        one_more.sendall(request)
        assert status_of(one_more) == 429
        assert sweep.objects(kind) == most
    sweep.wait(lambda: sweep.objects(kind) == 0)


def test_messages_in_part(filled: Sweep) -> None:
    size = SMALL["websocket_message_bytes_max"]
    frame = bytes([0x81, 0xFF]) + size.to_bytes(8, "big") + b"mask" + bytes(size - 1)
    with ExitStack() as stack:
        socks = [stack.enter_context(filled.connect()) for _ in range(6)]
        for sock in socks:
            sock.sendall(websocket(filled))
            assert status_of(sock) == 101
            sock.sendall(frame)
        # Of the six, five fit; the other one is told and closed.
        filled.wait(lambda: filled.objects("ws") == 5)
        assert 4 * size > filled.bytes("request_body") > 3 * size
        filled.check_memory("messages")
    filled.wait(lambda: filled.bytes("request_body") == 0)


# What is kept


def append(sweep: Sweep, topic: str, **headers: str) -> int:
    return sweep.call("POST", f"/v0/topics/{topic}", {"records": [{"data": 1}]}, **headers)[0]


def producer(sweep: Sweep, number: int) -> int:
    claim = {"producer_id": f"p{number}", "producer_epoch": "0", "producer_seq": "0"}
    return append(sweep, "kept", **claim)


def stream_producer(sweep: Sweep, number: int) -> int:
    claim = {"producer_id": f"p{number}", "producer_epoch": "0", "producer_seq": "0"}
    return sweep.call("POST", "/v1/stream/kept", b"x", content_type="text/plain", **claim)[0]


def key(sweep: Sweep, number: int) -> int:
    return append(sweep, "kept", idempotency_key=f"k{number}")


def job(sweep: Sweep, _number: int) -> int:
    append(sweep, "jobs")
    return sweep.call("POST", "/v0/topics/jobs/claim", {"node": "n", "max": 1})[0]


def router(sweep: Sweep, number: int) -> int:
    declared = {"source": "polled", "dest": f"copied{number}"}
    return sweep.call("PUT", f"/v0/routers/r{number}", declared)[0]


def basin(sweep: Sweep, number: int) -> int:
    return sweep.call("POST", "/v1/basins", {"basin": f"basin-{number}00000"})[0]


def token(sweep: Sweep, number: int) -> int:
    scope = {"basins": {"prefix": "x" * 512}, "ops": ["list-basins"]}
    return sweep.call("POST", "/v1/access-tokens", {"id": f"t{number}", "scope": scope})[0]


def topic(sweep: Sweep, number: int) -> int:
    return sweep.call("PUT", f"/v0/topics/kept{number}", {})[0]


def stream(sweep: Sweep, number: int) -> int:
    return sweep.call("PUT", f"/v1/stream/kept{number}", content_type="text/plain")[0]


def fork(sweep: Sweep, number: int) -> int:
    headers = {"content_type": "text/plain", "stream_forked_from": "/v1/stream/empty"}
    return sweep.call("PUT", f"/v1/stream/fork{number}", **headers)[0]


def subscription(sweep: Sweep, number: int) -> int:
    wanted = {
        "type": "pull-wake",
        "pattern": "none/*",
        "wake_stream": "w",
        "description": "x" * 4_096,
    }
    return sweep.call("PUT", f"/v1/stream/__ds/subscriptions/s{number}", wanted)[0]


def forget(sweep: Sweep, template: str) -> None:
    for number in range(60):
        sweep.call("DELETE", template.format(number))


Make = Callable[[Sweep, int], int]
# What one more is answered with, and how all of them are deleted.
KEPT: dict[Make, tuple[str, int, Callable[[Sweep], None]]] = {
    producer: ("producer", 422, lambda s: drop_topics(s, "kept")),
    stream_producer: ("producer", 422, lambda s: forget(s, "/v1/stream/kept")),
    key: ("idempotency_key", 429, lambda s: drop_topics(s, "kept")),
    job: ("job_out", 429, lambda s: drop_topics(s, "jobs")),
    router: ("router", 429, lambda s: forget(s, "/v0/routers/r{}")),
    basin: ("s2_basin", 403, lambda s: forget(s, "/v1/basins/basin-{}00000")),
    token: ("s2_token", 403, lambda s: forget(s, "/v1/access-tokens/t{}")),
    topic: ("topic", 429, lambda s: forget(s, "/v0/topics/kept{}")),
    stream: ("topic", 429, lambda s: forget(s, "/v1/stream/kept{}")),
    fork: ("fork", 429, lambda s: forget(s, "/v1/stream/fork{}")),
    subscription: ("subscription", 429, lambda s: forget(s, "/v1/stream/__ds/subscriptions/s{}")),
}


@pytest.mark.parametrize("make", KEPT, ids=lambda make: make.__name__)
def test_what_is_kept(filled: Sweep, make: Make) -> None:
    kind, refused, drop = KEPT[make]
    if make is stream_producer:
        assert filled.call("PUT", "/v1/stream/kept", content_type="text/plain")[0] == 201
    if make is job:
        assert filled.call("PUT", "/v0/topics/jobs", {"type": "queue"})[0] in (200, 201)
    before = filled.objects(kind)
    for number in range(60):
        status = make(filled, number)
        if status >= 400:
            break
        if kind != "topic":
            assert filled.objects(kind) == before + number + 1
    else:
        raise AssertionError("there is no bound")
    assert status == refused
    assert filled.bytes(kind) > 0
    filled.check_memory(kind)
    drop(filled)
    filled.wait(lambda: filled.objects(kind) <= before)


def test_watch_sessions(filled: Sweep) -> None:
    def create() -> int:
        return filled.call("POST", "/v0/watch", {"topics": {"polled": {}}})[0]

    statuses = [create() for _ in range(SMALL["max_watch_sessions"] + 1)]
    assert statuses[-1] == 429
    assert filled.objects("watch_session") == SMALL["max_watch_sessions"]
    assert filled.bytes("watch_session") > 0
    filled.wait(lambda: create() < 300)  # those that nobody used are forgotten


def test_fences(filled: Sweep) -> None:
    path = "/v1/streams/empty/records"
    for fence, count in (("mine", 1), ("yours", 1), ("", 0)):
        sent = {"records": [{"headers": [["", "fence"]], "body": fence}]}
        status, told = filled.call("POST", path, sent, s2_basin="my-basin")
        assert status == 200, told
        assert filled.objects("fence") == count
    kept = json.dumps({"records": [{"headers": [["", "fence"]], "body": "x" * 36}]}).encode()
    assert (
        filled.call("POST", path, kept, s2_basin="my-basin", content_type="application/json")[0]
        == 200
    )
    assert filled.objects("fence") == 1
    assert filled.call("DELETE", "/v1/streams/empty", s2_basin="my-basin")[0] == 202
    filled.wait(lambda: filled.objects("fence") == 0)


def test_webhooks_under_way(filled: Sweep) -> None:
    """A receiver that never answers holds one until it is given up."""
    with socket.create_server(("127.0.0.1", 0)) as receiver:
        url = f"http://127.0.0.1:{receiver.getsockname()[1]}/"
        made = filled.call(
            "PUT",
            "/v1/stream/__ds/subscriptions/hook",
            {"type": "webhook", "pattern": "hooked/*", "webhook": {"url": url}},
        )
        assert made[0] == 201, made
        told = filled.call("PUT", "/v1/stream/hooked/a", b"x", content_type="text/plain")
        assert told[0] == 201, told
        filled.wait(lambda: filled.objects("webhook") == 1)
        assert filled.bytes("webhook") > 0
    assert filled.call("DELETE", "/v1/stream/__ds/subscriptions/hook")[0] in (200, 204)
    filled.wait(lambda: filled.objects("webhook") == 0)


# The limits that a server has by itself


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_the_default_limits(tmp_path: Path) -> None:
    """All bodies that may be held at once, of each dialect; then messages of WebSockets."""
    defaults = Settings()
    settings = {
        "body_bytes_max": defaults.body_bytes_max,
        "request_memory_bytes_max": defaults.request_memory_bytes_max,
    }
    sent = {
        "POST": LARGEST["POST", "/v0/topics/{topic}"],
        "PUT": Sent("/v1/stream/large", (201, 200, 409, 413), "", {}, TEXT_TYPE),
    }
    with ServerProcess(tmp_path / "data") as server:
        sweep = Sweep(server, settings)
        sweep.check_memory("at rest")
        first, pid = sweep.first, server.process.pid

        def given_back() -> bool:
            return resident_bytes(pid) - first <= UNTOLD_BYTES_MAX

        for method, one in sent.items():
            send_largest(sweep, method, one)
            sweep.wait(given_back)
        size = defaults.websocket_message_bytes_max
        frame = bytes([0x81, 0xFF]) + size.to_bytes(8, "big") + b"mask" + bytes(size - 1)
        with ExitStack() as stack:
            for _ in range(8):
                sock = stack.enter_context(sweep.connect())
                sock.sendall(websocket(sweep))
                assert status_of(sock) == 101
                sock.sendall(frame)
            sweep.wait(lambda: sweep.bytes("request_body") > 7 * size)
            sweep.check_memory("messages")
        sweep.wait(lambda: sweep.bytes("request_body") == 0)
        sweep.wait(given_back)
