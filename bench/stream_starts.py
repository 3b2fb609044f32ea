"""The servers of Durable Streams for `--peers durable_streams`: each started, and filled.

A start yields the server and the plan of the load, as those of `peer_starts.py`.
"""

from __future__ import annotations

import contextlib
import http.client
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from bench import peer_servers
from bench.measure import QUICK_VARIABLE, step
from bench.peer_starts import Started
from bench.served import Served, ServerFailed, free_port, serving, started
from bench.streams import raise_file_limit
from bench.wires import HOST, BadAnswer, Http, document, http_request
from bench.wires_durable_streams import JSON_STREAM

WRITERS = 64
CREATORS = 32
STREAMS_QUICK = 20
CATCH_UP_BYTES = 16 << 20
CATCH_UP_QUICK = 1 << 20
PIECE_BYTES = 256 << 10
EVENT_BYTES = 1_024
# The newest rows do not wait ten minutes to be sealed.
SEALED_SOON: dict[str, Any] = {"checkpoint_age_ms": 500, "segment_max_events": 1_000}
SEALING_SECONDS = 3.0
STREAM = peer_servers.STREAM
NGINX = """
daemon off; master_process off; pid {directory}/nginx.pid; error_log {directory}/errors;
events {{ worker_connections 4096; }}
http {{
  access_log off; sendfile on; tcp_nopush on; keepalive_requests 1000000000;
  client_body_temp_path {directory}/body; proxy_temp_path {directory}/proxy;
  fastcgi_temp_path {directory}/fastcgi; uwsgi_temp_path {directory}/uwsgi;
  scgi_temp_path {directory}/scgi;
  server {{ listen {host}:{port}; root {directory}/files; }}
}}
"""


def is_quick() -> bool:
    return QUICK_VARIABLE in os.environ


def of_size(count: int, quick: int) -> int:
    return min(count, quick) if is_quick() else count


@contextlib.contextmanager
def server_of(kind: str, directory: str, mode: str, **settings: Any) -> Iterator[Served]:
    """A server of the protocol without streams; `mode` is how its maker calls what it promises."""
    raise_file_limit()  # before it starts, which it is passed on to
    if kind == "headrace":
        with serving(directory, ds_durability=mode, **settings) as server:
            yield server
    elif kind == "rust":
        with peer_servers.durable_streams_rust(directory, mode, []) as server:
            yield server
    else:
        with peer_servers.durable_streams(directory, stored=mode == "file") as server:
            yield server


# Appends


@contextlib.contextmanager
def appended(directory: str, kind: str, mode: str, streams: int) -> Iterator[Started]:
    """Streams that are empty, and producers that append to them."""
    count = of_size(streams, STREAMS_QUICK)
    with server_of(kind, directory, mode) as server:
        make_streams(server, count)
        yield (
            server,
            {
                "wire": "stream_appends",
                "path": STREAM.format("t{}"),
                "streams": count,
                "writers": WRITERS,
            },
        )


@contextlib.contextmanager
def resting(directory: str, kind: str, mode: str, streams: int) -> Iterator[Started]:
    """Streams with one message each, and nobody who asks for any."""
    count = of_size(streams, STREAMS_QUICK)
    with server_of(kind, directory, mode) as server:
        make_streams(server, count, filled=True)
        yield server, {}


def make_streams(server: Served, count: int, filled: bool = False) -> None:
    """Make streams; a server that refuses to hold as many is not measured with them."""
    refused = step("stream_starts:create", port=server.port, count=count, filled=filled)
    if refused:
        raise peer_servers.NotOffered(f"it refuses {count:,} streams: {refused}")


def create(port: int, count: int, filled: bool = False) -> str:
    """A step: make streams, some connections at once; `filled`: each with a message.

    Return what a server says that makes no more, or nothing.
    """
    try:
        _create_all(port, count, filled)
    except BadAnswer as refused:
        return str(refused).splitlines()[-1]
    return ""


def _create_all(port: int, count: int, filled: bool) -> None:
    body = document() if filled else b""
    wires = [Http(port, b"") for _ in range(min(CREATORS, count))]
    buffer = bytearray(1 << 16)
    for first in range(0, count, len(wires)):
        busy = wires[: min(len(wires), count - first)]
        for number, wire in enumerate(busy, start=first):
            path = STREAM.format(f"t{number}")
            wire.socket.sendall(http_request("PUT", path, body, JSON_STREAM))
        for wire in busy:
            while not wire.received(buffer, wire.socket.recv_into(buffer)):
                pass
    for wire in wires:
        wire.close()


# Readers


def written_bytes() -> bytes:
    """What a stream of bytes holds: nothing that a disk or a network could make shorter."""
    return os.urandom(of_size(CATCH_UP_BYTES, CATCH_UP_QUICK))


def written_events(count: int) -> list[bytes]:
    return [document(EVENT_BYTES, number) for number in range(count)]


@contextlib.contextmanager
def caught_up(directory: str, kind: str, mode: str, events: int = 0) -> Iterator[Started]:
    """A stream of 16 MiB, or of so many events, and readers of all of it."""
    count = of_size(events, STREAMS_QUICK)
    if events:
        content_type, pieces = JSON_STREAM["Content-Type"], written_events(count)
    else:
        content_type, data = "application/octet-stream", written_bytes()
        pieces = [data[at : at + PIECE_BYTES] for at in range(0, len(data), PIECE_BYTES)]
    size = 0 if events else sum(map(len, pieces))
    if kind == "nginx":
        whole = b"[%b]" % b",".join(pieces) if events else b"".join(pieces)
        with nginx(directory, whole) as server:
            yield server, {"wire": "catch_up", "path": "/stream", "size": size}
        return
    with server_of(kind, directory, mode, **SEALED_SOON) as server:
        path = STREAM.format("read")
        fill(server.port, path, content_type, pieces)
        if kind == "headrace":
            seal(server)
        yield server, {"wire": "catch_up", "path": path, "size": size}


def fill(port: int, path: str, content_type: str, pieces: list[bytes]) -> None:
    """A stream with these messages, an append each."""
    connection = http.client.HTTPConnection(HOST, port, timeout=30)
    headers = {"Content-Type": content_type}
    for method, body in (("PUT", b""), *(("POST", piece) for piece in pieces)):
        connection.request(method, path, body, headers)
        answer = connection.getresponse()
        text = answer.read()
        if answer.status not in (200, 201, 204):
            raise ServerFailed(f"{method} {path}: {answer.status} {text[:200]!r}")
    connection.close()


def seal(server: Served) -> None:
    """Give a server of ours the time to seal; a checkpoint by age needs something to happen."""
    end = time.monotonic() + SEALING_SECONDS
    while time.monotonic() < end:
        server.call("POST", "/v0/topics/sealing", {"records": [{"data": 1}]})
        time.sleep(0.1 if is_quick() else 0.5)
        if is_quick():
            return


@contextlib.contextmanager
def nginx(directory: str, content: bytes) -> Iterator[Served]:
    """The same bytes as a file, sent by the kernel."""
    raise_file_limit()
    files = Path(directory, "files")
    files.mkdir()
    (files / "stream").write_bytes(content)
    port = free_port()
    config = Path(directory, "nginx.conf")
    config.write_text(NGINX.format(directory=directory, host=HOST, port=port))
    command = [str(peer_servers.program("nginx")), "-p", directory, "-c", str(config)]
    with started(command, port, directory) as server:
        yield server


# Watchers


@contextlib.contextmanager
def watched(directory: str, kind: str, mode: str) -> Iterator[Started]:
    """One stream that is watched over SSE."""
    with server_of(kind, directory, mode) as server:
        if kind != "node":  # whose server comes with it
            peer_servers.put_stream(server.port)
        yield server, {"watch": "durable-streams"}
