"""A server's life: start, stop, crash, start again (native §0, §7.6, §10, §11)."""

from __future__ import annotations

import json
import socket
import ssl
import subprocess
import threading
import time
from pathlib import Path

import httpx
import pytest

from headrace.client import Client
from headrace.core.errors import InvalidRequest, Unreachable
from headrace.testing.process import ServerProcess

SECONDS_MAX = 30


@pytest.fixture
def data(tmp_path) -> Path:
    return tmp_path / "data"


@pytest.mark.parametrize("end", ["stop", "kill"])
def test_what_was_acknowledged_is_there_afterwards(servers, data, protocol, end) -> None:
    """F1, F2, F4, §3.5: records, tags, configs, keys and producers survive."""
    server = servers.start(data)
    speak = servers.speaker(server, protocol)
    producer = {"producer-id": "p", "producer-epoch": "0", "producer-seq": "0"}
    before = {}
    for durability in ("ephemeral", "memory", "disk", "fsync"):
        config = {"durability": durability, "idempotency_window_ms": 600_000}
        speak.ok("PUT", f"/v0/topics/{durability}", config)
        record = {"data": {"of": durability}, "tag": "t", "node": "n", "meta": {"m": 1}}
        body = {"records": [record] * 3, "idempotency_key": "k"}
        speak.ok("POST", f"/v0/topics/{durability}", body)
        speak("POST", f"/v0/topics/{durability}", {"records": [record]}, producer)
        second = {**producer, "producer-seq": "1"}
        speak("POST", f"/v0/topics/{durability}", {"records": [record]}, second)
        speak.ok("POST", f"/v0/topics/{durability}/delete", {"before_seq": 2})
        before[durability] = (
            speak.diff(durability, include_tags=True)["records"],
            speak.state(durability),
        )
    server.stop() if end == "stop" else server.kill()
    speak = servers.speaker(servers.start(data), protocol)
    for durability, (records, state) in before.items():
        found = speak.state(durability)
        assert found["config"] == state["config"]
        assert found["epoch"] == state["epoch"]
        if durability == "ephemeral":
            assert found["count"] == 0
            assert found["head_seq"] >= 4
            continue
        assert speak.diff(durability, include_tags=True)["records"] == records
        for field in ("head_seq", "earliest_seq", "count", "bytes"):
            assert found[field] == state[field], (durability, field)
        assert speak.append(durability, 1, idempotency_key="k")["deduped"] is True
        repeat = speak("POST", f"/v0/topics/{durability}", {"records": [{"data": 1}]}, producer)
        assert (repeat.json["deduped"], repeat.json["first_seq"]) == (True, 4)
        assert speak.append(durability, 1)["first_seq"] == 6


def test_deletes_survive(servers, data, protocol) -> None:
    """D1, E6: of records, and of topics."""
    server = servers.start(data)
    speak = servers.speaker(server, protocol)
    speak.append("gone", 1)
    epoch = speak.state("gone")["epoch"]
    speak.ok("DELETE", "/v0/topics/gone")
    server.kill()
    speak = servers.speaker(servers.start(data), protocol)
    speak.refused(404, "topic_not_found", "GET", "/v0/topics/gone")
    assert speak.append("gone", 1)["first_seq"] == 1
    assert speak.state("gone")["epoch"] != epoch


def test_the_port_file(tmp_path, data) -> None:
    """§0: `host:port`, written whole, once the server is ready."""
    port_file = tmp_path / "port"
    with ServerProcess(data, port_file=str(port_file)) as server:
        assert port_file.read_text().strip() == server.address
        assert [p.name for p in tmp_path.iterdir() if "port" in p.name] == ["port"]


def test_one_process_for_a_directory(tmp_path, data) -> None:
    """§0: a second one fails to start, and the first goes on."""
    with ServerProcess(data) as server, Client(server.url) as client:
        with pytest.raises(Unreachable), open(tmp_path / "log", "wb") as log:
            ServerProcess(data, stderr=log)
        text = (tmp_path / "log").read_text()
        assert "headrace: " in text and "Traceback" not in text
        assert client.append("t", [1]).first_seq == 1


def test_a_clean_stop_leaves_two_snapshots(servers, data) -> None:
    """L15: and with the newer a quick start."""
    server = servers.start(data)
    with Client(server.url) as client:
        client.append("t", [1, 2, 3])
    assert server.stop() == 0
    assert len(list((data / "meta").glob("snapshot-*.bin"))) == 2


def test_a_stop_tells_every_stream(servers, data, protocol) -> None:
    """§7.6: an `error` frame with `server_shutting_down`, then the end, in good time."""
    server = servers.start(data)
    speak = servers.speaker(server, protocol)
    speak.append("t", 1)
    url = speak.ok("POST", "/v0/watch", {"topics": {"t": {}}})["stream_url"]
    with speak.stream(url) as stream:
        stream.next("caught-up")
        server.process.terminate()
        last = stream.next("error")
        assert last.data["code"] == "server_shutting_down"
        assert list(stream.events()) == []
    assert server.process.wait(SECONDS_MAX) == 0


def test_a_stop_answers_what_is_waiting(servers, data, protocol) -> None:
    """§0: long polls end with an answer, not with a broken connection."""
    server = servers.start(data)
    speak = servers.speaker(server, protocol)
    speak.append("t", 1)
    answers = []

    def poll() -> None:
        answers.append(speak("POST", "/v0/topics/t/diff", {"from_seq": 1, "wait_ms": 30_000}))

    thread = threading.Thread(target=poll)
    thread.start()
    while speak.state("t")["last_read_ts"] is None:
        time.sleep(0.002)
    server.process.terminate()
    thread.join()
    assert answers[0].status in (200, 503)
    if answers[0].status == 503:
        assert answers[0].error["code"] == "shutting_down"
    assert server.process.wait(SECONDS_MAX) == 0


def wait_for_drain(server) -> None:
    """Until it takes no connections any more."""
    while True:
        try:
            socket.create_connection((server.host, server.port)).close()
        except ConnectionError:
            return


def test_readiness_while_draining(servers, data) -> None:
    """§10: 503 `shutting_down` while a request holds the drain up."""
    server = servers.start(data)
    slow = socket.create_connection((server.host, server.port))
    # A request whose body does not come: the drain waits for it.
    slow.sendall(
        b"POST /v0/topics/t HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n"
        b"content-length: 30\r\n\r\n{"
    )
    with Client(server.url, deadline_ms=0) as client:
        client.health()
        kept = socket.create_connection((server.host, server.port))
        kept.sendall(b"GET /v0/ready HTTP/1.1\r\nhost: localhost\r\n\r\n")
        assert kept.recv(65_536).startswith(b"HTTP/1.1 200")
        kept.sendall(b"GET /v0/ready HTTP/1.1\r\nhost: loc")
        for _ in range(2):
            client.health()  # so that the server has read the half of it
        server.process.terminate()
        wait_for_drain(server)
        kept.sendall(b"alhost\r\n\r\n")
        answer = kept.recv(65_536)
    assert answer.startswith(b"HTTP/1.1 503"), answer
    head, _, body = answer.partition(b"\r\n\r\n")
    assert b"retry-after: 1" in head.lower()
    assert json.loads(body)["error"]["code"] == "shutting_down"
    slow.close()
    kept.close()
    assert server.process.wait(SECONDS_MAX) == 0


def test_recovery_is_visible_and_requests_wait_for_it(servers, data) -> None:
    """§10: the socket is bound first; a request is parked, then answered."""
    server = servers.start(data)
    with Client(server.url) as client:
        for _ in range(20):
            client.append("t", ["x" * 1_000] * 5_000)
    server.kill()
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    started: list[ServerProcess] = []
    thread = threading.Thread(target=lambda: started.append(servers.start(data, port=port)))
    thread.start()
    url = f"http://127.0.0.1:{port}"
    seen = []
    with Client(url, deadline_ms=20_000) as client:
        while not started:
            try:
                reply = client.request("GET", "/v0/ready")
            except Unreachable:
                continue
            seen.append(reply)
            if reply.status == 503 and len(seen) == 1:
                assert client.topic("t").head_seq == 100_000  # parked until it can be answered
        thread.join()
    for reply in seen:
        if reply.status == 503:
            error = json.loads(reply.body)["error"]
            assert error["code"] == "not_ready"
            assert 0 <= error["detail"]["replay_progress"] <= 1
            assert reply.headers["retry-after"] == "1"
    with Client(url) as client:
        assert client.topic("t").head_seq == 100_000


def test_a_second_signal_does_not_wait(servers, data) -> None:
    """A stop that is asked for twice is at once."""
    server = servers.start(data)
    slow = socket.create_connection((server.host, server.port))
    slow.sendall(b"POST /v0/topics/t HTTP/1.1\r\nhost: x\r\ncontent-length: 30\r\n\r\n{")
    with Client(server.url) as client:
        client.health()
    server.process.terminate()
    while server.process.poll() is None:
        time.sleep(0.05)
        server.process.terminate()
    slow.close()


def test_tls(servers, data, tmp_path) -> None:
    """By `tls_cert` and `tls_key`: HTTP/1.1, and HTTP/2 by ALPN; large answers too."""
    cert, key = tmp_path / "cert.pem", tmp_path / "key.pem"
    made = subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj",
         "/CN=localhost", "-addext", "subjectAltName=DNS:localhost,IP:127.0.0.1",
         "-keyout", str(key), "-out", str(cert)],
        capture_output=True,
    )  # fmt: skip
    if made.returncode != 0:
        pytest.skip("there is no openssl to make a certificate with")
    server = servers.start(data, tls_cert=str(cert), tls_key=str(key))
    trust = ssl.create_default_context(cafile=str(cert))
    with Client(server.url, tls=trust) as client:
        assert client.append("t", [{"a": 1}]).first_seq == 1
        assert [record.data for record in client.follow("t", to_head=True)] == [{"a": 1}]
        client.append("large", ["x" * 900_000] * 7)
        assert len(client.diff("large", max_batch_bytes=8 << 20).records) == 7
    with Client(server.url, tls=str(cert)) as client:
        assert client.topic("t").head_seq == 1
    for wrong in (tmp_path / "nowhere.pem", key):
        with pytest.raises(InvalidRequest, match="not a file of certificates"):
            Client(server.url, tls=str(wrong))
    with httpx.Client(http2=True, verify=trust, trust_env=False) as modern:
        for path in ("/v0/health", "/v0/topics/t", "/v0/topics"):
            reply = modern.get(f"{server.url}{path}")
            assert (reply.status_code, reply.http_version) == (200, "HTTP/2")
    # What no repeat can mend is told at once, long before the deadline.
    with (
        Client(server.url, deadline_ms=10**9) as stranger,
        pytest.raises(Unreachable, match=r"certificate .* is not trusted: .*tls=") as caught,
    ):
        stranger.health()
    assert caught.value.detail["reason"] == "setup"
    plain = server.url.replace("https:", "http:")
    with (
        Client(plain, deadline_ms=0) as stranger,
        pytest.raises(Unreachable, match="https:// if it serves TLS"),
    ):
        stranger.health()
