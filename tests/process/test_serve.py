"""A serving process: how it starts, what it says while it recovers, and how it stops."""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO

import pyarrow as pa
import pytest

import headrace
from headrace.core.settings import Settings
from headrace.engine.engine import Engine
from tests.support.warm_processes import WarmPopen

SOURCES = Path(headrace.__file__).parent.parent
# Long enough for a busy machine; only a process that hangs is waited for so long.
PATIENCE_SECONDS = 60.0
LOOK_SECONDS = 0.01
# More topics take longer to recover than a test takes to ask.
MANY_TOPICS = 30_000


class Serving:
    """One `headrace serve`, its port and what it has written to stderr."""

    def __init__(
        self, directory: Path, errors: IO[bytes], settings: dict[str, object], cold: bool = False
    ) -> None:
        self._errors = errors
        self.port_file = directory / "port"
        given = {"data_dir": directory / "data", "port": 0, "port_file": self.port_file} | settings
        environment = {k: v for k, v in os.environ.items() if not k.startswith("HEADRACE_")}
        environment |= {f"HEADRACE_{name.upper()}": str(value) for name, value in given.items()}
        popen = subprocess.Popen if cold else WarmPopen
        self.process = popen(
            [sys.executable, "-P", "-m", "headrace", "serve"],
            env=environment | {"PYTHONPATH": str(SOURCES)},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=errors,
        )

    def until(self, met: Callable[[], object], what: str) -> None:
        deadline = time.monotonic() + PATIENCE_SECONDS
        while not met():
            assert self.process.poll() is None, (what, self.said())
            assert time.monotonic() < deadline, (what, self.said())
            time.sleep(LOOK_SECONDS)

    @property
    def address(self) -> str:
        """Where it serves, once it is ready."""
        self.until(self.port_file.exists, "ready")
        return self.port_file.read_text()

    def said(self) -> str:
        self._errors.seek(0)
        return self._errors.read().decode()

    def ask_to_stop(self, number: int = signal.SIGTERM) -> None:
        """Send the signal, and wait until it has been heard."""
        self.process.send_signal(number)
        self.until(lambda: "stopping" in self.said(), "stopping")

    def end(self) -> int:
        """The exit code; it must end by itself."""
        return self.process.wait(PATIENCE_SECONDS)

    def discard(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        self._errors.close()


Serve = Callable[..., Serving]


@pytest.fixture
def serve(tmp_path: Path) -> Iterator[Serve]:
    made: list[Serving] = []

    def start(*, cold: bool = False, **settings: object) -> Serving:
        """`cold`: as from a shell, rather than forked with its imports done."""
        (tmp_path / "port").unlink(missing_ok=True)
        errors = (tmp_path / f"err-{len(made)}").open("w+b")
        made.append(Serving(tmp_path, errors, settings, cold))
        return made[-1]

    yield start
    for one in made:
        one.discard()


def ask(
    address: str, method: str, path: str, body: object = None, **headers: str
) -> tuple[int, dict[str, object], dict[str, str]]:
    """Status, document and headers of one request on a connection of its own."""
    connection = http.client.HTTPConnection(address, timeout=PATIENCE_SECONDS)
    with contextlib.closing(connection):
        data = None if body is None else json.dumps(body)
        more = {"Content-Type": "application/json"} if data else {}
        connection.request(method, path, data, more | headers)
        response = connection.getresponse()
        content = response.read()
        document = json.loads(content) if content else {}
        return response.status, document, {k.lower(): v for k, v in response.getheaders()}


def code_of(document: dict[str, object]) -> object:
    error = document["error"]
    assert isinstance(error, dict)
    return error["code"]


def free_port() -> int:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        return int(taken.getsockname()[1])


def connected(address: str) -> socket.socket:
    host, _, port = address.rpartition(":")
    return socket.create_connection((host.strip("[]"), int(port)), PATIENCE_SECONDS)


def rest_of(stream: socket.socket) -> bytes:
    """Everything up to the end that the other side sends."""
    pieces = []
    while piece := stream.recv(1 << 16):
        pieces.append(piece)
    return b"".join(pieces)


@pytest.fixture(scope="module")
def long_log(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory whose log takes a while to replay."""
    directory = tmp_path_factory.mktemp("long")
    settings = Settings(data_dir=str(directory), checkpoint_wal_bytes=1 << 30)
    engine = Engine.open(directory, settings)
    tickets = [engine.append(f"t{n}", [b"x"]) for n in range(MANY_TOPICS)]
    for ticket in tickets:
        ticket.result()
    engine.abandon()
    return directory


@pytest.fixture
def long_recovery(long_log: Path, tmp_path: Path) -> Path:
    """The data directory of the servers of a test is a copy of that one."""
    return Path(shutil.copytree(long_log, tmp_path / "data"))


# Starting


def test_it_serves_and_says_where(serve: Serve) -> None:
    server = serve(cold=True)
    address = server.address
    assert address.startswith("127.0.0.1:")
    assert ask(address, "GET", "/v0/health")[1]["status"] == "ok"
    status, ready, _ = ask(address, "GET", "/v0/ready")
    assert (status, ready) == (200, {"status": "ready", "wal_replay_complete": True, "topics": 0})
    for path in ("/healthz", "/readyz", "/v0/ready?x=1"):
        assert ask(address, "GET", path)[0] == 200
        assert ask(address, "HEAD", path)[:2] == (200, {})
    assert f"http://{address}" in server.said()


def test_columns_do_not_bring_pandas(serve: Serve) -> None:
    """It is installed here, and pyarrow would import it with everybody waiting."""
    server = serve(cold=True)
    rows = pa.record_batch({"data": ["1", "2"]})
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, rows.schema) as writer:
        writer.write_batch(rows)
    connection = http.client.HTTPConnection(server.address, timeout=PATIENCE_SECONDS)
    with contextlib.closing(connection):
        kind = {"Content-Type": "application/vnd.apache.arrow.stream"}
        connection.request("POST", "/v0/topics/t", sink.getvalue().to_pybytes(), kind)
        assert connection.getresponse().status == 201
    assert "/pandas/" not in Path(f"/proc/{server.process.pid}/maps").read_text()


@pytest.mark.parametrize(
    ("method", "path", "status", "code"),
    [
        ("GET", "/nowhere", 404, "not_found"),
        ("GET", "/v0/health/", 404, "not_found"),
        ("POST", "/v0/health", 405, "method_not_allowed"),
        ("OPTIONS", "/v0/topics/t", 405, "method_not_allowed"),
    ],
)
def test_what_nothing_serves(serve: Serve, method: str, path: str, status: int, code: str) -> None:
    got, document, _ = ask(serve().address, method, path)
    assert (got, code_of(document)) == (status, code)


def test_probes_answer_during_recovery_and_requests_wait_for_it(
    serve: Serve, long_recovery: Path
) -> None:
    port = free_port()
    server = serve(port=port, parked_ms_max=600_000)
    address = f"127.0.0.1:{port}"

    def listening() -> bool:
        with contextlib.suppress(ConnectionRefusedError):
            connected(address).close()
            return True
        return False

    server.until(listening, "listening")
    status, document, headers = ask(address, "GET", "/v0/ready")
    assert (status, code_of(document)) == (503, "not_ready")
    assert headers["retry-after"] == "1"
    detail = document["error"]["detail"]  # type: ignore[index]
    assert 0 <= detail["replay_progress"] <= 1
    assert ask(address, "GET", "/v0/health")[0] == 200
    assert not server.port_file.exists()

    with connected(address) as reader, connected(address) as writer:
        reader.sendall(
            b"GET /v0/topics/t7 HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"
        )
        body = b'{"records":[{"data":1}]}'
        writer.sendall(
            b"POST /v0/topics/t7 HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n"
            b"Content-Type: application/json\r\nContent-Length: %d\r\n\r\n%b" % (len(body), body)
        )
        assert rest_of(reader).startswith(b"HTTP/1.1 200")
        assert b'"first_seq":2' in rest_of(writer)
    assert server.address == address
    assert ask(address, "GET", "/v0/ready")[1]["topics"] == MANY_TOPICS


def test_requests_that_may_not_wait_are_refused_during_recovery(
    serve: Serve, long_recovery: Path
) -> None:
    port = free_port()
    server = serve(port=port, parked_requests_max=0)
    seen: list[object] = []

    def refused() -> bool:
        with contextlib.suppress(ConnectionRefusedError):
            status, document, headers = ask(f"127.0.0.1:{port}", "GET", "/v0/topics/t7")
            if status == 503:
                seen.append((code_of(document), headers["retry-after"]))
            return True
        return False

    server.until(refused, "refused")
    assert seen == [("not_ready", "1")]


def test_a_signal_ends_a_recovery_and_nothing_is_lost(serve: Serve, long_recovery: Path) -> None:
    port = free_port()
    server = serve(port=port)

    def recovering() -> bool:
        with contextlib.suppress(ConnectionRefusedError):
            return ask(f"127.0.0.1:{port}", "GET", "/v0/ready")[0] == 503
        return False

    server.until(recovering, "recovering")
    server.process.send_signal(signal.SIGTERM)
    assert server.end() == 0
    assert not server.port_file.exists()
    assert "Traceback" not in server.said()
    again = serve()
    assert ask(again.address, "GET", "/v0/ready")[1]["topics"] == MANY_TOPICS


def test_a_recovery_that_fails_is_one_line_and_exit_1(serve: Serve, tmp_path: Path) -> None:
    first = serve()
    assert first.address
    first.ask_to_stop()
    assert first.end() == 0
    for snapshot in (tmp_path / "data" / "meta").glob("snapshot-*.bin"):
        snapshot.write_bytes(b"damaged" + snapshot.read_bytes()[7:])
    second = serve(log="error")
    assert second.end() == 1
    said = second.said()
    assert said.startswith("headrace: ") and said.count("\n") == 1, said
    assert "snapshot" in said
    assert not second.port_file.exists()


def test_a_second_server_on_the_directory_fails_by_name(serve: Serve) -> None:
    first = serve()
    address = first.address
    second = serve(log="error")
    assert second.end() == 1
    assert f"in use by process {first.process.pid}" in second.said()
    assert "Traceback" not in second.said()
    assert ask(address, "GET", "/v0/ready")[0] == 200


@pytest.mark.parametrize(
    "settings",
    [
        {"host": "0.0.0.0"},
        {"host": "::"},
        {"host": "no-such-host.invalid"},
        {"host": "no-such-host.invalid", "api_keys": "k"},
        {"api_keys": "sesame:nonsense"},
        {"api_keys": "sesame:read,:admin"},
        {"tls_cert": "no-such-file", "tls_key": "no-such-file"},
    ],
)
def test_what_cannot_be_served_is_one_line_and_exit_2(
    serve: Serve, tmp_path: Path, settings: dict[str, object]
) -> None:
    server = serve(log="error", **settings)
    assert server.end() == 2
    said = server.said()
    assert said.startswith("headrace: ") and said.count("\n") == 1, said
    assert "sesame" not in said and "nonsense" not in said
    # Refused before anybody could take it for a server that had run.
    assert not (tmp_path / "data" / "meta").exists()


def test_a_port_that_is_taken_is_named(serve: Serve, tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        server = serve(port=port, log="error")
        assert server.end() == 2
        assert str(port) in server.said() and server.said().count("\n") == 1
    # The directory was given back.
    assert serve().address


@pytest.mark.parametrize(
    "settings",
    [{"api_keys": "k"}, {"allow_insecure_no_auth": 1}, {"allow_insecure_no_auth": "true"}],
)
def test_the_network_is_served_with_keys_or_on_demand(
    serve: Serve, settings: dict[str, object]
) -> None:
    address = serve(host="0.0.0.0", **settings).address
    assert address.startswith("0.0.0.0:")
    port = address.rpartition(":")[2]
    headers = {"Authorization": "Bearer k", "Host": "anything.example"}
    assert ask(f"127.0.0.1:{port}", "GET", "/v0/topics", **headers)[0] == 200


def has_ipv6() -> bool:
    with contextlib.suppress(OSError), socket.socket(socket.AF_INET6) as made:
        made.bind(("::1", 0))
        return True
    return False


@pytest.mark.skipif(not has_ipv6(), reason="this machine has no IPv6 loopback")
@pytest.mark.parametrize("host", ["::1", "[::1]"])
def test_ipv6(serve: Serve, host: str) -> None:
    address = serve(host=host).address
    assert address.startswith("[::1]:")
    assert ask(address, "GET", "/v0/topics")[0] == 200


def test_every_address_of_a_name_is_served(serve: Serve) -> None:
    address = serve(host="localhost").address
    port = address.rpartition(":")[2]
    found = socket.getaddrinfo("localhost", int(port), type=socket.SOCK_STREAM)
    for family, _, _, _, (host, *_) in found:
        if family == socket.AF_INET or has_ipv6():
            shown = f"[{host}]:{port}" if family == socket.AF_INET6 else f"{host}:{port}"
            assert ask(shown, "GET", "/v0/health")[0] == 200


def test_host_and_port_in_one_setting(tmp_path: Path) -> None:
    port = free_port()
    with (tmp_path / "err").open("w+b") as errors:
        server = Serving(tmp_path, errors, {"host": f"127.0.0.1:{port}", "port": port})
        try:
            assert server.address == f"127.0.0.1:{port}"
        finally:
            server.discard()


# Stopping


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_leaves_a_clean_snapshot_and_frees_the_port(
    serve: Serve, tmp_path: Path, number: int
) -> None:
    port = free_port()
    for turn in range(2):
        server = serve(port=port)
        body = {"records": [{"data": turn}]}
        assert ask(server.address, "POST", "/v0/topics/t", body)[1]["head_seq"] == turn + 1
        server.process.send_signal(number)
        assert server.end() == 0
        assert len(list((tmp_path / "data" / "meta").glob("snapshot-*.bin"))) == 2
        assert "Traceback" not in server.said()


def test_a_stop_does_not_wait_for_idle_connections(serve: Serve) -> None:
    server = serve(drain_timeout_ms=600_000)
    with connected(server.address) as idle, connected(server.address) as used:
        used.sendall(b"GET /v0/health HTTP/1.1\r\nHost: localhost\r\n\r\n")
        assert used.recv(1 << 16).startswith(b"HTTP/1.1 200")
        server.process.send_signal(signal.SIGTERM)
        assert server.end() == 0
        assert rest_of(used) == b""
        assert rest_of(idle) == b""


def test_a_stop_tells_who_is_in_the_middle_of_a_request(serve: Serve) -> None:
    server = serve(drain_timeout_ms=600_000)
    address = server.address
    with connected(address) as slow:
        slow.sendall(b"GET /v0/ready HTTP/1.1\r\nHost: localhost\r\n")
        # An answer on a later connection: the first bytes above have been read by then.
        assert ask(address, "GET", "/v0/health")[0] == 200
        server.ask_to_stop()
        with pytest.raises(ConnectionRefusedError):
            connected(address)
        slow.sendall(b"\r\n")
        answer = rest_of(slow)
    assert answer.startswith(b"HTTP/1.1 503") and b"shutting_down" in answer
    assert b"retry-after: 1" in answer.lower()
    assert server.end() == 0


def test_a_stop_waits_no_longer_than_it_may(serve: Serve, tmp_path: Path) -> None:
    server = serve(drain_timeout_ms=50)
    with connected(server.address) as slow:
        slow.sendall(b"GET /v0/ready HTTP/1.1\r\n")
        assert ask(server.address, "GET", "/v0/health")[0] == 200
        server.process.send_signal(signal.SIGTERM)
        assert server.end() == 0
    assert "did not end" in server.said()
    assert len(list((tmp_path / "data" / "meta").glob("snapshot-*.bin"))) == 2


def test_a_stop_ends_streams_and_says_so(serve: Serve) -> None:
    server = serve(drain_timeout_ms=600_000)
    address = server.address
    assert ask(address, "PUT", "/v0/topics/t")[0] == 201
    watch = ask(address, "POST", "/v0/watch", {"topics": {"t": {}}})[1]
    with connected(address) as stream:
        target = str(watch["stream_url"]).encode()
        stream.sendall(b"GET %b HTTP/1.1\r\nHost: localhost\r\n\r\n" % target)
        heard = b""
        while b"caught-up" not in heard:
            heard += stream.recv(1 << 16)
        server.process.send_signal(signal.SIGTERM)
        heard += rest_of(stream)
    assert b"server_shutting_down" in heard
    assert server.end() == 0


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
def test_a_second_signal_ends_it_at_once(serve: Serve, number: int, code: int) -> None:
    server = serve(drain_timeout_ms=600_000)
    with connected(server.address) as slow:
        slow.sendall(b"GET /v0/ready HTTP/1.1\r\n")
        assert ask(server.address, "GET", "/v0/health")[0] == 200
        server.ask_to_stop()
        server.process.send_signal(number)
        assert server.end() == code
    assert ask(serve().address, "GET", "/v0/ready")[0] == 200
