"""Requests for which memory runs out, wherever it does: 503, and the connection ends (§1.3d)."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any

import pytest

from headrace.core.settings import Settings
from headrace.server.http1.answer import Http1Exchange
from headrace.server.http1.connection import Http1Connection
from headrace.server.http2.receiving import Receiver
from headrace.server.http2.stream import Http2Exchange
from headrace.server.served_exchange import ServedExchange
from headrace.wire.exchange import Exchange
from headrace.wire.routes import READ, WRITE, Route
from tests.support.http2_client import Client
from tests.support.served_app import Served, read_response

UNKNOWN, NOTHING = {"outcome": "unknown"}, {"outcome": "nothing"}


def no_memory(*_: object) -> None:
    raise MemoryError


def once(method: Callable[..., Any], times: int = 1) -> Callable[..., Any]:
    """A method for which there is no memory the first time, or the first few times."""
    left = [None] * times

    def call(*arguments: Any) -> Any:
        if left:
            left.pop()
            raise MemoryError
        return method(*arguments)

    return call


def answer(exchange: Exchange) -> None:
    exchange.answer(200, b"{}")


ROUTES = [
    Route("POST", "/changes", no_memory, frozenset({WRITE})),
    Route("POST", "/reads", no_memory, frozenset({READ})),
    Route("POST", "/answers", answer, frozenset({WRITE})),
]


@pytest.fixture
def server() -> Iterator[Served]:
    with Served(Settings(), ROUTES) as served:
        yield served


def post1(server: Served, path: str, body: bytes = b"1") -> tuple[int, dict[str, Any]]:
    """The answer, and that it was the last one of its connection."""
    head = f"POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(body)}\r\n\r\n"
    with server.connect() as sock:
        sock.sendall(head.encode() + body)
        response = read_response(sock)
        assert response.headers[b"connection"] == b"close"
        assert sock.recv(1) == b""
        return response.status, json.loads(response.body)["error"]


def post2(server: Served, path: str) -> tuple[int, dict[str, Any]]:
    """The answer, and that its connection went away after it."""
    with Client(server) as client:
        stream_id = client.start(b"POST", path.encode(), end=False)
        client.send(stream_id, b"1", end=True)
        return outcome2(client, stream_id)


def outcome2(client: Client, stream_id: int) -> tuple[int, dict[str, Any]]:
    stream = client.streams[stream_id]
    client.until(lambda: stream.over)
    client.until(lambda: client.goaway is not None)
    return stream.status, json.loads(stream.data)["error"]


@pytest.mark.parametrize("post", [post1, post2])
@pytest.mark.parametrize(("path", "detail"), [("/changes", UNKNOWN), ("/reads", NOTHING)])
def test_in_a_handler(server: Served, post: Any, path: str, detail: dict[str, str]) -> None:
    status, error = post(server, path)
    assert (status, error["code"], error["detail"]) == (503, "out_of_resources", detail)


@pytest.mark.parametrize(("post", "kind"), [(post1, Http1Exchange), (post2, Http2Exchange)])
def test_for_an_answer(
    server: Served, post: Any, kind: type[ServedExchange], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kind, "_send", once(kind._send))
    status, error = post(server, "/answers")
    assert (status, error["code"], error["detail"]) == (503, "out_of_resources", UNKNOWN)


@pytest.mark.parametrize("kind", [Http1Exchange, Http2Exchange])
def test_not_even_for_a_refusal(
    server: Served, kind: type[ServedExchange], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The client sees the end, and is not left to wait."""
    monkeypatch.setattr(kind, "_send", once(kind._send, times=2))
    if kind is Http1Exchange:
        with server.connect() as sock:
            sock.sendall(b"POST /answers HTTP/1.1\r\nHost: localhost\r\nContent-Length: 0\r\n\r\n")
            with suppress(ConnectionResetError):
                assert sock.recv(1) == b""
    else:
        with Client(server) as client:
            stream = client.streams[client.start(b"POST", b"/answers")]
            client.until(lambda: stream.over)
            assert stream.reset is not None
    server.wait(lambda: server.app.budget.used == 0)


def test_while_a_request_is_read(server: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Http1Connection, "_feed", once(Http1Connection._feed))
    status, error = post1(server, "/answers")
    assert (status, error["code"], error["detail"]) == (503, "out_of_resources", NOTHING)


def test_while_a_body_is_put_together(server: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    """The request that has arrived is the one that is answered."""
    done = Http1Connection.on_message_complete
    monkeypatch.setattr(Http1Connection, "on_message_complete", once(done))
    status, error = post1(server, "/answers", b"x" * 200_000)
    assert (status, error["code"], error["detail"]) == (503, "out_of_resources", NOTHING)
    assert server.app.budget.used == 0


def test_while_frames_are_read(server: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every stream that is arriving is answered; one that had arrived goes on."""
    with Client(server) as client:
        first = client.start(b"POST", b"/answers", end=False)
        second = client.start(b"POST", b"/answers", end=False)
        server.wait(
            lambda: any(len(getattr(c, "streams", ())) == 2 for c in server.app.connections)
        )
        monkeypatch.setattr(Receiver, "take_frames", once(Receiver.take_frames))
        client.send(first, b"1")
        for stream_id in (first, second):
            status, error = outcome2(client, stream_id)
            assert (status, error["code"]) == (503, "out_of_resources")
            assert error["detail"] == NOTHING
    server.wait(lambda: not server.app.connections)
    assert server.app.budget.used == 0
