"""Keys, scopes and prefixes over the wire (native §1.7, and §1.9 for each key)."""

from __future__ import annotations

import json
import subprocess
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
from websockets.exceptions import InvalidStatus
from websockets.sync.client import connect

from headrace.core.errors import Unreachable
from headrace.testing.process import ServerProcess
from tests.support.warm_processes import ColdServer

KEYS = {
    "root-key": "root-key",
    "reader": "reader:read",
    "writer": "writer:WRITE",
    "deleter": "deleter:del",
    "admin": "admin:a",
    "rw": "rw:rw",
    "both": "both:r+w",
    "orders-only": "orders-only::orders:|bills.",
    "orders-reader": "orders-reader:read:orders:",
}
SETTINGS = {
    "api_keys": " , ".join(KEYS.values()) + ", ,",
    "max_inflight_per_key": 3,
    "max_sse_connections_per_key": 2,
}
RECORD = {"records": [{"data": 1}]}

# Of the server without keys.
OPEN = {
    "max_inflight_per_key": 1,
    "max_sse_connections_per_key": 1,
    "allowed_hosts": "extra.example",
    "cors_origins": "http://page.example",
}


def bearer(key: str) -> dict[str, str]:
    return {"authorization": f"Bearer {key}"}


def call(speak, key: str | None, method: str, path: str, body: object = None, **headers: str):
    credentials = {} if key is None else bearer(key)
    given = {k.replace("_", "-"): v for k, v in headers.items()}
    return speak(method, path, body, {**credentials, **given})


def code(reply) -> tuple[int, str]:
    return reply.status, reply.error["code"]


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("GET", "/v0/topics"),
        ("PUT", "/v0/topics/a"),
        ("POST", "/v0/topics/a"),
        ("POST", "/v0/topics/a/diff"),
        ("POST", "/v0/watch"),
        ("GET", "/v0/metrics"),
        ("GET", "/nowhere"),
        ("PATCH", "/v0/topics/a"),
        ("GET", "/v0/topics/a/segments"),
        ("GET", "/v0/ws"),
    ],
)
def test_without_a_key(speak, method, path) -> None:
    """§1.7: 401 everywhere, even for unknown routes."""
    assert code(speak(method, path)) == (401, "unauthorized")
    assert code(call(speak, "wrong", method, path)) == (401, "unauthorized")


@pytest.mark.parametrize("path", ["/v0/health", "/v0/ready", "/healthz", "/readyz"])
def test_probes_are_open(speak, path) -> None:
    """§1.7: unless `probe_auth` says otherwise."""
    assert speak("GET", path).status == 200


def test_probes_with_auth(speak_to) -> None:
    """§1.7: HEADRACE_PROBE_AUTH."""
    speak = speak_to(api_keys="k:read", probe_auth="true")
    assert code(speak("GET", "/v0/health")) == (401, "unauthorized")
    assert speak("GET", "/v0/health", None, bearer("k")).status == 200


@pytest.mark.parametrize(
    "value",
    ["bearer root-key", "Basic root-key", "root-key", "Bearer", "Bearer root-key x", "Bearer root"],
)
def test_forms_of_the_header_that_are_none(speak, value) -> None:
    """§1.7: the prefix is case-sensitive; the whole key must match."""
    assert code(speak("GET", "/v0/topics", None, {"authorization": value}))[0] == 401


def test_the_token_is_trimmed(speak) -> None:
    """§1.7."""
    reply = speak("GET", "/v0/topics", None, {"authorization": "Bearer   root-key  "})
    assert reply.status == 200


def requests_of(topic: str) -> dict[str, tuple[str, str, object]]:
    """A request for each scope, on a topic that exists."""
    return {
        "admin": ("PUT", f"/v0/topics/{topic}", {}),
        "write": ("POST", f"/v0/topics/{topic}", RECORD),
        "read": ("POST", f"/v0/topics/{topic}/diff", {}),
        "delete": ("POST", f"/v0/topics/{topic}/delete", {"before_seq": 1}),
    }


@pytest.mark.parametrize(
    ("key", "scopes"),
    [
        ("root-key", {"read", "write", "delete", "admin"}),
        ("reader", {"read"}),
        ("writer", {"write"}),
        ("deleter", {"delete"}),
        ("admin", {"admin"}),
        ("rw", {"read", "write"}),
        ("both", {"read", "write"}),
    ],
)
def test_scopes(speak, topic, key, scopes) -> None:
    """§1.7: aliases, upper case; 403 `forbidden` without the scope; an empty list means all."""
    assert call(speak, "root-key", "POST", f"/v0/topics/{topic}", RECORD).status == 201
    for scope, (method, path, body) in requests_of(topic).items():
        reply = call(speak, key, method, path, body)
        if scope in scopes:
            assert reply.status == 200, (key, scope)
        else:
            assert code(reply) == (403, "forbidden"), (key, scope)


def test_more_rows_of_the_table(speak, topic) -> None:
    """§0: the scope of each endpoint."""
    call(speak, "root-key", "PUT", f"/v0/topics/{topic}")
    path = f"/v0/topics/{topic}"
    for method, target in (("GET", path), ("GET", "/v0/topics"), ("GET", "/v0/metrics")):
        assert call(speak, "reader", method, target).status == 200
        assert code(call(speak, "writer", method, target)) == (403, "forbidden")
    assert code(call(speak, "writer", "DELETE", path)) == (403, "forbidden")
    assert call(speak, "deleter", "DELETE", path).status == 200
    watch = {"topics": {topic: {}}}
    assert code(call(speak, "writer", "POST", "/v0/watch", watch)) == (403, "forbidden")


def test_what_is_unknown_is_refused_closed(speak) -> None:
    """§1.7: unknown sub-actions of a topic need write; known routes come first."""
    assert code(call(speak, "reader", "POST", "/v0/topics/a/dance")) == (403, "forbidden")
    assert code(call(speak, "root-key", "POST", "/v0/topics/a/dance")) == (404, "not_found")


def test_prefixes(speak, topic) -> None:
    """§1.7: byte prefixes, with `:` in them; 403 outside; the list is filtered."""
    name = f"orders:{topic}"
    assert call(speak, "orders-only", "POST", f"/v0/topics/{name}", RECORD).status == 201
    assert call(speak, "orders-only", "PUT", f"/v0/topics/bills.{topic}").status == 201
    call(speak, "root-key", "PUT", f"/v0/topics/{topic}")
    assert call(speak, "orders-reader", "GET", f"/v0/topics/{name}").status == 200
    for key in ("orders-only", "orders-reader"):
        reply = call(speak, key, "GET", f"/v0/topics/{topic}")
        assert code(reply) == (403, "forbidden")
    assert code(call(speak, "orders-only", "GET", "/v0/topics/absent")) == (403, "forbidden")
    assert code(call(speak, "orders-reader", "GET", f"/v0/topics/bills.{topic}"))[0] == 403
    listed = call(speak, "orders-only", "GET", "/v0/topics?page_size=1000").json["topics"]
    assert {entry["topic"].startswith(("orders:", "bills.")) for entry in listed} == {True}
    assert name in [entry["topic"] for entry in listed]


def test_pages_of_a_filtered_list(speak, topic) -> None:
    """§1.7: a page is full of what the key may see."""
    for n in range(4):
        call(speak, "root-key", "PUT", f"/v0/topics/nobody-{topic}-{n}")
        call(speak, "root-key", "PUT", f"/v0/topics/orders:{topic}-{n}")
    path = f"/v0/topics?prefix=orders:{topic}&page_size=3"
    page = call(speak, "orders-reader", "GET", path).json
    assert len(page["topics"]) == 3
    path = f"{path}&cursor={page['next_cursor']}"
    assert len(call(speak, "orders-reader", "GET", path).json["topics"]) == 1


def test_a_spelled_out_name_is_no_way_around(speak) -> None:
    """§1.7: prefixes are checked against the decoded name."""
    assert code(call(speak, "orders-only", "GET", "/v0/topics/%6frders-x"))[0] == 403
    assert code(call(speak, "orders-only", "GET", "/v0/topics/secret%2F..%2Forders:"))[0] == 403
    reply = call(speak, "orders-only", "PUT", "/v0/topics/%6frders:spelled")
    assert reply.status in (200, 201)


def test_a_watch_of_what_is_not_allowed(speak, topic) -> None:
    """§1.7: one bad name rejects all, 403."""
    name = f"orders:{topic}"
    call(speak, "root-key", "POST", f"/v0/topics/{name}", RECORD)
    call(speak, "root-key", "POST", f"/v0/topics/{topic}", RECORD)
    both = {"topics": {name: {}, topic: {}}}
    assert code(call(speak, "orders-reader", "POST", "/v0/watch", both)) == (403, "forbidden")
    one = {"topics": {name: {}}}
    assert call(speak, "orders-reader", "POST", "/v0/watch", one).status == 200
    wild = {"topics": {"*": {}}}
    assert call(speak, "orders-reader", "POST", "/v0/watch", wild).status in (400, 403)


def test_the_manifest_needs_a_key_without_prefixes(speak, topic) -> None:
    """§12: shared files hold other topics' rows."""
    name = f"orders:{topic}"
    call(speak, "root-key", "POST", f"/v0/topics/{name}", RECORD)
    reply = call(speak, "orders-reader", "GET", f"/v0/topics/{name}/segments")
    assert code(reply) == (403, "forbidden")
    assert call(speak, "reader", "GET", f"/v0/topics/{name}/segments").status == 200


def test_a_config_needs_admin_where_it_would_create(speak, topic) -> None:
    """§1.7, §3.5: 403 with detail.topic for an absent topic; ignored for an existing one."""
    body = {**RECORD, "config": {"cap_records": 1}}
    reply = call(speak, "writer", "POST", f"/v0/topics/{topic}", body)
    assert code(reply) == (403, "forbidden")
    assert reply.error["detail"]["topic"] == topic
    assert call(speak, "writer", "POST", f"/v0/topics/{topic}", RECORD).status == 201
    assert call(speak, "writer", "POST", f"/v0/topics/{topic}", body).status == 200


# ?token=


def open_watch(speak, key: str, topic: str) -> str:
    call(speak, "root-key", "POST", f"/v0/topics/{topic}", RECORD)
    return call(speak, key, "POST", "/v0/watch", {"topics": {topic: {}}}).json["stream_url"]


def test_a_stream_belongs_to_the_key_that_made_it(speak, topic) -> None:
    """§7.2: by header or `?token=`; anything else 401; an unknown wid is 404 regardless."""
    url = open_watch(speak, "reader", topic)
    with speak.stream(url, authorization="Bearer reader") as stream:
        assert stream.status == 200
        stream.next("caught-up")
    with speak.stream(f"{url}?token=reader") as stream:
        assert stream.status == 200
    for target, key in ((url, None), (url, "root-key"), (f"{url}?token=root-key", None)):
        assert code(call(speak, key, "GET", target)) == (401, "unauthorized")
    assert code(call(speak, None, "GET", f"{url}?token=wrong&token=reader"))[0] == 401
    unknown = "/v0/watch/wid_" + "A" * 22
    for key in (None, "root-key"):
        assert code(call(speak, key, "GET", unknown)) == (404, "not_found")


@pytest.mark.parametrize(
    ("method", "path"),
    [("GET", "/v0/topics"), ("GET", "/v0/metrics"), ("POST", "/v0/watch"), ("GET", "/v0/ws")],
)
def test_a_token_in_the_query_is_for_streams_only(speak, method, path) -> None:
    """§1.7: elsewhere it does nothing."""
    assert code(speak(method, f"{path}?token=root-key")) == (401, "unauthorized")


def test_no_key_reaches_a_log(servers) -> None:
    """A token in a query, or in a header, is in no line of the log, at any level.

    With keys it may also listen beyond this machine (§0).
    """
    server = servers.start(api_keys="hush-hush:read,other", log="debug", host="0.0.0.0")
    for protocol in ("h1", "h2c"):
        speak = servers.speaker(server, protocol)
        speak("PUT", "/v0/topics/t", {}, bearer("other"))
        body = {"topics": {"t": {}}}
        url = speak("POST", "/v0/watch", body, bearer("hush-hush")).json["stream_url"]
        with speak.stream(f"{url}?token=hush-hush") as stream:
            stream.next("caught-up")
        speak("GET", f"{url}?token=hush-hush-wrong")
        speak("GET", "/v0/topics?token=hush-hush")
        speak("GET", "/v0/nowhere?token=hush-hush")
        speak("PATCH", f"{url}?token=hush-hush")
        speak("POST", "/v0/topics/t?token=hush-hush", b"{", bearer("hush-hush"))
    server.stop()
    log = servers.log_of(server)
    assert log and "hush" not in log


# WebSocket


def test_a_socket_needs_a_key_and_each_command_its_scope(server) -> None:
    """§8: valid key at the upgrade, header only; scopes per command; any config needs admin."""
    url = f"ws://{server.address}/v0/ws"
    for target, headers in ((url, {}), (f"{url}?token=root-key", {}), (url, bearer("wrong"))):
        with (
            pytest.raises(InvalidStatus) as caught,
            connect(target, additional_headers=headers, proxy=None),
        ):
            pass
        assert caught.value.response.status_code == 401

    def ask(key: str, **command: object) -> dict:
        with connect(url, additional_headers=bearer(key), proxy=None) as socket:
            socket.send(json.dumps(command))
            return json.loads(socket.recv(20))

    publish = {"op": "publish", "topic": "orders:ws", **RECORD}
    assert ask("writer", **publish)["op"] == "ack"
    assert ask("reader", **publish)["code"] == "forbidden"
    assert ask("writer", **publish, config={})["code"] == "forbidden"
    assert ask("root-key", **publish, config={})["op"] == "ack"
    assert ask("orders-only", **{**publish, "topic": "else"})["code"] == "forbidden"
    subscribe = {"op": "subscribe", "topic": "orders:ws"}
    assert ask("orders-reader", **subscribe)["op"] == "subscribed"
    assert ask("writer", **subscribe)["code"] == "forbidden"
    assert ask("writer", op="unsubscribe", topic="x")["op"] == "unsubscribed"


# Caps of a key


def test_requests_in_flight_of_a_key(speak, topic) -> None:
    """§1.9: the N+1st is 429 without a detail; other keys are not held up; slots come back."""
    call(speak, "root-key", "PUT", f"/v0/topics/{topic}")
    parked = threading.Barrier(4)

    def poll() -> int:
        parked.wait()
        body = {"wait_ms": 30_000}
        while True:  # the slot may be taken by who looks whether all three are parked
            reply = call(speak, "both", "POST", f"/v0/topics/{topic}/diff", body)
            if reply.status != 429:
                return reply.status

    with ThreadPoolExecutor(3) as pool:
        waiting = [pool.submit(poll) for _ in range(3)]
        parked.wait()
        reply = call(speak, "both", "POST", f"/v0/topics/{topic}/diff", {"from_seq": 0})
        while reply.status != 429:  # until all three are parked
            reply = call(speak, "both", "POST", f"/v0/topics/{topic}/diff", {"from_seq": 0})
        assert code(reply) == (429, "throttled")
        assert reply.headers["retry-after"] == "1"
        assert "detail" not in reply.error
        assert call(speak, "root-key", "POST", f"/v0/topics/{topic}", RECORD).status == 200
        assert [future.result() for future in waiting] == [200, 200, 200]
    assert call(speak, "both", "GET", f"/v0/topics/{topic}").status == 200


def test_streams_of_a_key(speak, topic) -> None:
    """§1.9: billed to the session's creating key; long-lived GETs hold no in-flight slot."""
    url = open_watch(speak, "reader", topic)
    with speak.stream(f"{url}?token=reader") as one, speak.stream(f"{url}?token=reader") as two:
        assert (one.status, two.status) == (200, 200)
        one.next("caught-up")
        reply = call(speak, "reader", "GET", url, accept="text/event-stream")
        assert code(reply) == (429, "throttled")
        assert "detail" not in reply.error
        other = open_watch(speak, "rw", topic)
        with speak.stream(f"{other}?token=rw") as third:
            assert third.status == 200
        for _ in range(4):
            assert call(speak, "reader", "GET", f"/v0/topics/{topic}").status == 200
    while True:  # until the server has noticed
        with speak.stream(f"{url}?token=reader") as stream:
            if stream.status == 200:
                return


# Starting


@pytest.mark.parametrize(
    "settings",
    [
        {"api_keys": "k:fly"},
        {"api_keys": "k:read+fly"},
        {"host": "0.0.0.0"},
        {"host": "no.such.host.invalid"},
        {"max_topics": "many"},
    ],
)
def test_servers_that_refuse_to_start(tmp_path, settings) -> None:
    """§1.7, §0, §11: an unknown scope, a bind beyond this machine without keys, nonsense."""
    with pytest.raises(Unreachable), open(tmp_path / "log", "wb") as log:
        ServerProcess(tmp_path / "data", stderr=log, **settings)
    text = (tmp_path / "log").read_text()
    assert text.splitlines()[-1].startswith("headrace: ") and "Traceback" not in text
    assert "fly" not in text or "k:" not in text


def test_a_wider_bind_when_it_is_allowed(servers) -> None:
    """§0: without keys by the flag."""
    server = servers.start(host="0.0.0.0", allow_insecure_no_auth="1")
    assert server.port > 0
    assert server.stop() == 0


def test_a_key_is_not_in_the_process_list(tmp_path) -> None:
    """Keys come by the environment, so a listing of processes does not show them."""
    with ColdServer(tmp_path, api_keys="root-key") as server:
        command = ["ps", "-o", "args=", "-p", str(server.process.pid)]
        done = subprocess.run(command, capture_output=True)
    assert b"headrace" in done.stdout
    assert b"root-key" not in done.stdout


# Without keys


def test_with_auth_off_the_header_is_ignored(speak_to) -> None:
    """§1.7: no keys, no auth; per-key caps do nothing (§1.9)."""
    speak = speak_to(**OPEN)
    with ThreadPoolExecutor(8) as pool:
        headers = bearer("anything")
        statuses = pool.map(lambda _: speak("GET", "/v0/topics", None, headers).status, range(40))
        assert set(statuses) == {200}


@pytest.mark.parametrize(
    ("host", "status"),
    [
        ("localhost:4000", 200),
        ("127.0.0.1", 200),
        ("127.9.9.9:1", 200),
        ("[::1]:4000", 200),
        ("evil.example", 403),
        ("127.0.0.1.evil.example", 403),
        ("extra.example:99", 200),
    ],
)
def test_the_host_is_checked_without_keys(servers, host, status) -> None:
    """§1.10: so that a web page cannot reach a developer's server by another name."""
    speak = servers.speaker(servers.with_settings(**OPEN), "h1")
    reply = speak("GET", "/v0/topics", None, {"host": host})
    assert reply.status == status


def test_simple_requests_of_foreign_pages(servers) -> None:
    """§1.10: refused without keys; a CORS setting allows an origin."""
    speak = servers.speaker(servers.with_settings(**OPEN), "h1")
    foreign = {"origin": "http://evil.example"}
    assert speak("POST", "/v0/topics/x", RECORD, foreign).status == 403
    page = {"origin": "http://page.example"}
    reply = speak("POST", "/v0/topics/x", RECORD, page)
    assert reply.status == 201
    assert reply.headers["access-control-allow-origin"] == "http://page.example"
    assert "access-control-allow-origin" not in speak("GET", "/v0/topics").headers
    asked = {**page, "access-control-request-method": "POST"}
    preflight = speak("OPTIONS", "/v0/topics/x", None, asked)
    assert preflight.status in (200, 204)
    assert "POST" in preflight.headers["access-control-allow-methods"]
