"""Keys, certificates and web pages, over a real process: who gets in, and what is never written."""

from __future__ import annotations

import contextlib
import gzip
import http.client
import json
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from headrace.testing.process import ServerProcess
from tests.support.certificates import Certificate

PATIENCE_SECONDS = 60.0
KEY = "sesame-key-1"
OTHER = "sesame-key-2"
UNKNOWN = "sesame-unknown"


def client(server: ServerProcess, key: str = "", **options: object) -> httpx.Client:
    headers = {"Authorization": f"Bearer {key}"} if key else {}
    return httpx.Client(
        base_url=server.url, headers=headers, timeout=PATIENCE_SECONDS, trust_env=False, **options
    )


def refusal(response: httpx.Response) -> tuple[int, str]:
    return response.status_code, response.json()["error"]["code"]


# Keys


def test_scopes_prefixes_and_unknown_routes(tmp_path: Path) -> None:
    keys = f"{KEY}:rw:orders.,{OTHER}"
    with (
        ServerProcess(tmp_path, api_keys=keys) as server,
        client(server) as nobody,
        client(server, KEY) as limited,
        client(server, OTHER) as full,
    ):
        assert full.put("/v0/topics/orders.1").status_code == 201
        assert full.put("/v0/topics/secret").status_code == 201
        record = {"records": [{"data": 1}]}
        assert limited.post("/v0/topics/orders.1", json=record).status_code == 200
        assert refusal(limited.post("/v0/topics/secret", json=record)) == (403, "forbidden")
        assert refusal(limited.put("/v0/topics/orders.2")) == (403, "forbidden")
        listed = [topic["topic"] for topic in limited.get("/v0/topics").json()["topics"]]
        assert listed == ["orders.1"]
        for path in ("/v0/topics", "/v0/metrics", "/nowhere", f"/v0/topics?token={OTHER}"):
            response = nobody.get(path)
            assert refusal(response) == (401, "unauthorized")
        assert refusal(limited.get("/nowhere")) == (404, "not_found")
        assert refusal(limited.post("/v0/topics/orders.1/unknown")) == (404, "not_found")
        assert refusal(limited.post("/v0/topics/secret/unknown")) == (403, "forbidden")
        assert nobody.get("/v0/health").status_code == 200
        assert nobody.get("/v0/ready").status_code == 200
        assert full.get("/v0/metrics").status_code == 200


def test_a_cap_on_requests_in_progress_is_exact(tmp_path: Path) -> None:
    keys = f"{KEY},{OTHER}"
    with (
        ServerProcess(tmp_path, api_keys=keys, max_inflight_per_key=2) as server,
        client(server, OTHER) as other,
        client(server, KEY) as same,
    ):
        assert other.put("/v0/topics/t").status_code == 201
        body = b'{"wait_ms":30000}'
        request = (
            b"POST /v0/topics/t/diff HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer %b\r\n"
            b"Content-Type: application/json\r\nContent-Length: %d\r\n\r\n%b"
            % (KEY.encode(), len(body), body)
        )
        waiting = [socket.create_connection((server.host, server.port)) for _ in range(3)]
        answers = []
        for one in waiting:
            one.settimeout(PATIENCE_SECONDS)
            one.sendall(request)
        # One of the three, whichever came last, is refused; the others hold their slots.
        while not answers:
            for one in waiting:
                with contextlib.suppress(TimeoutError):
                    one.settimeout(0.05)
                    answers.append(one.recv(1 << 16))
        assert len(answers) == 1
        assert answers[0].startswith(b"HTTP/1.1 429") and b"retry-after: 1" in answers[0].lower()
        assert refusal(same.get("/v0/topics/t")) == (429, "throttled")
        assert other.get("/v0/topics/t").status_code == 200
        for one in waiting:
            one.close()
        while (status := same.get("/v0/topics/t").status_code) != 200:
            assert status == 429


# What is never written


def test_no_key_and_no_token_reaches_a_log(tmp_path: Path) -> None:
    with (tmp_path / "err").open("w+b") as errors:
        with ServerProcess(
            tmp_path / "data", api_keys=f"{KEY},{OTHER}:r", log="debug", stderr=errors
        ) as server:
            for http2 in (False, True):
                options = {"http1": not http2, "http2": http2}
                with client(server, KEY, **options) as good, client(server, **options) as bad:
                    _use_credentials(good, bad)
            for head in _hostile_heads():
                _send(server, head)
        errors.seek(0)
        said = errors.read().decode()
    assert "stopped" in said  # at a level that shows everything of ours
    assert "sesame" not in said


def _use_credentials(good: httpx.Client, bad: httpx.Client) -> None:
    assert good.put("/v0/topics/t").status_code in (200, 201)
    watch = good.post("/v0/watch", json={"topics": {"t": {}}}).json()
    for token in (KEY, OTHER, UNKNOWN):
        with bad.stream("GET", f"{watch['stream_url']}?token={token}") as stream:
            assert stream.status_code == (200 if token == KEY else 401)
        assert bad.get(f"/v0/topics/t?token={token}").status_code == 401
        assert bad.get(f"/v0/nowhere/{token}?token={token}").status_code == 401
    unknown = {"Authorization": f"Bearer {UNKNOWN}"}
    assert bad.get("/v0/topics/t", headers=unknown).status_code == 401
    assert good.get(f"/v0/topics/t?token={OTHER}&touch=1").status_code == 200
    broken = good.post(f"/v0/topics/t?token={OTHER}", content=b"{", headers=unknown | {})
    assert broken.status_code == 401


def _hostile_heads() -> Iterator[bytes]:
    secret = UNKNOWN.encode()
    yield b"GET /v0/watch/w?token=%b HTTP/9.9\r\n\r\n" % secret
    yield b"GET /v0/watch/w?token=%b\r\n\r\n" % secret
    yield b"GET /v0/topics HTTP/1.1\r\nAuthorization: Bearer %b\r\n\r\n" % secret
    yield b"GET / HTTP/1.1\r\nHost: h\r\nAuthorization : Bearer %b\r\n\r\n" % secret
    yield (
        b"GET /v0/ws?token=%b HTTP/1.1\r\nHost: h\r\nAuthorization: Bearer %b\r\nUpgrade: "
        b"websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Version: 13\r\n"
        b"Sec-WebSocket-Key: x\r\n\r\n" % (secret, KEY.encode())
    )


def _send(server: ServerProcess, head: bytes) -> None:
    with socket.create_connection((server.host, server.port), PATIENCE_SECONDS) as sent:
        sent.sendall(head)
        sent.shutdown(socket.SHUT_WR)
        while sent.recv(1 << 16):
            pass


@pytest.mark.parametrize("form", [[], ["--json"], ["--origin"], ["--json", "--origin"]])
def test_config_show_hides_the_keys(form: list[str]) -> None:
    command = [sys.executable, "-m", "headrace", "config", "show", *form, "--api-keys", KEY]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert "api_keys" in done.stdout and "(secret)" in done.stdout
    assert KEY not in done.stdout + done.stderr


# Web pages


def test_a_page_cannot_use_a_server_on_loopback(tmp_path: Path) -> None:
    with ServerProcess(tmp_path) as server, client(server) as page:
        evil = {"Origin": "http://evil.example"}
        assert refusal(page.put("/v0/topics/t", headers=evil)) == (403, "forbidden")
        assert refusal(page.get("/v0/topics", headers={"Host": "evil.example"})) == (
            403,
            "forbidden",
        )
        upgrade = {
            "Connection": "Upgrade",
            "Upgrade": "websocket",
            "Sec-WebSocket-Version": "13",
            "Sec-WebSocket-Key": "AAAAAAAAAAAAAAAAAAAAAA==",
        }
        assert refusal(page.get("/v0/ws", headers=evil | upgrade)) == (403, "forbidden")
        own = {"Origin": server.url}
        assert page.put("/v0/topics/t", headers=own).status_code == 201
        answer = page.get("/v0/topics/t", headers=evil)
        assert not [name for name in answer.headers if name.startswith("access-control")]


@pytest.mark.parametrize("keys", ["", KEY])
@pytest.mark.parametrize("http2", [False, True])
def test_a_listed_page_may_use_it(tmp_path: Path, keys: str, http2: bool) -> None:
    origin = {"Origin": "http://app.example"}
    settings = {"cors_origins": "http://app.example", "api_keys": keys}
    with (
        ServerProcess(tmp_path, **settings) as server,
        client(server, http1=not http2, http2=http2) as page,
    ):
        preflight = page.options(
            "/v0/topics/t", headers=origin | {"Access-Control-Request-Method": "PUT"}
        )
        assert (preflight.status_code, preflight.content) == (204, b"")
        assert preflight.headers["access-control-allow-origin"] == "http://app.example"
        assert "authorization" in preflight.headers["access-control-allow-headers"].lower()
        key = {"Authorization": f"Bearer {keys}"} if keys else {}
        answer = page.put("/v0/topics/t", headers=origin | key)
        assert answer.status_code == 201
        assert answer.headers["access-control-allow-origin"] == "http://app.example"
        # An error can be read by the page as well.
        missing = page.get("/nowhere", headers=origin | key)
        assert missing.headers["access-control-allow-origin"] == "http://app.example"
        other = page.get("/v0/topics/t", headers={"Origin": "http://other.example"} | key)
        assert "access-control-allow-origin" not in other.headers
        assert "origin" in other.headers["vary"].lower()


# Compressed bodies


@pytest.mark.parametrize("coding", ["gzip", "zstd"])
def test_compressed_bodies_both_ways(tmp_path: Path, coding: str) -> None:
    from headrace.server.compression import decode_body, encode_body

    with ServerProcess(tmp_path) as server, client(server) as http:
        records = {"records": [{"data": "x" * 1_000} for _ in range(200)]}
        for size in (1, 200):
            body = json.dumps({"records": records["records"][:size]}).encode()
            sent = http.post(
                "/v0/topics/t",
                content=encode_body(body, coding),
                headers={"Content-Encoding": coding, "Content-Type": "application/json"},
            )
            assert sent.json()["count"] == size
        with http.stream(
            "POST", "/v0/topics/t/diff", json={}, headers={"Accept-Encoding": coding}
        ) as answer:
            assert answer.headers["content-encoding"] == coding
            assert "accept-encoding" in answer.headers["vary"].lower()
            packed = b"".join(answer.iter_raw())
        found = json.loads(decode_body(packed, coding, 1 << 30))
        assert len(found["records"]) == 201
        # Small answers are left as they are.
        small = http.get("/v0/health", headers={"Accept-Encoding": coding})
        assert "content-encoding" not in small.headers


def test_a_bomb_is_refused(tmp_path: Path) -> None:
    bomb = gzip.compress(bytes(64 << 20))
    headers = {"Content-Encoding": "gzip", "Content-Type": "application/json"}
    with (
        ServerProcess(tmp_path, body_bytes_max=8 << 20) as server,
        client(server) as http,
    ):
        sent = http.post("/v0/topics/t", content=bomb, headers=headers)
        assert refusal(sent) == (413, "payload_too_large")
        assert http.get("/v0/health").status_code == 200


# Certificates


@pytest.mark.parametrize(("http2", "version"), [(False, "HTTP/1.1"), (True, "HTTP/2")])
def test_tls_round_trip(tmp_path: Path, http2: bool, version: str) -> None:
    pair = Certificate(tmp_path)
    settings = {"tls_cert": str(pair.cert), "tls_key": str(pair.key)}
    with (
        ServerProcess(tmp_path / "data", **settings) as server,
        client(server, verify=pair.trusted(), http2=http2) as http,
    ):
        assert server.url.startswith("https://")
        big = "x" * 500_000
        sent = http.post("/v0/topics/t", json={"records": [{"data": big}]})
        assert (sent.status_code, sent.http_version) == (201, version)
        assert http.post("/v0/topics/t/diff", json={}).json()["records"][0]["data"] == big
        # A stop does not wait for a goodbye that never comes.
        raw = socket.create_connection((server.host, server.port), PATIENCE_SECONDS)
        quiet = pair.trusted().wrap_socket(raw, server_hostname="localhost")
        with contextlib.closing(quiet):
            assert server.stop() == 0


def test_plain_http_on_a_tls_port_gets_nothing(tmp_path: Path) -> None:
    pair = Certificate(tmp_path)
    settings = {"tls_cert": str(pair.cert), "tls_key": str(pair.key)}
    with ServerProcess(tmp_path / "data", **settings) as server:
        plain = http.client.HTTPConnection(server.address, timeout=PATIENCE_SECONDS)
        with contextlib.closing(plain):
            plain.request("GET", "/v0/health")
            with pytest.raises((OSError, http.client.HTTPException)):
                plain.getresponse()
        with client(server, verify=pair.trusted()) as encrypted:
            assert encrypted.get("/v0/health").status_code == 200


def test_a_key_with_a_password_is_refused_without_a_question(tmp_path: Path) -> None:
    pair = Certificate(tmp_path, password=b"hush")
    command = [sys.executable, "-m", "headrace", "serve", "--port", "0"]
    command += ["--tls-cert", str(pair.cert), "--tls-key", str(pair.key)]
    command += ["--data-dir", str(tmp_path / "data")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_SECONDS)
    assert done.returncode == 2
    assert "encrypted" in done.stderr and done.stderr.count("\n") == 1
