"""What is refused for its head is refused before its body is unpacked (native §1.1a, §1.7c)."""

from __future__ import annotations

import gzip
import json

import pytest

from headrace.api.records import AppendBody
from headrace.core.settings import Settings
from headrace.server import app
from headrace.wire.exchange import Exchange
from headrace.wire.routes import WRITE, Route
from tests.support.served_app import Response, Served, read_response

READS, WRITES = "only-reads", "writes"
SETTINGS = Settings(api_keys=f"{READS}:read,{WRITES}:read+write")
PACKED = gzip.compress(json.dumps({"records": []}).encode())


def answer_body(exchange: Exchange) -> None:
    exchange.answer(200, exchange.body)


ROUTES = [
    Route("POST", "/appended", answer_body, frozenset({WRITE}), request=AppendBody),
    Route("POST", "/configured", answer_body, frozenset({WRITE}), request=dict),
]


def post(server: Served, path: str, key: str, content_type: str) -> Response:
    head = (
        f"POST {path} HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {key}\r\n"
        f"Content-Type: {content_type}\r\nContent-Encoding: gzip\r\n"
        f"Content-Length: {len(PACKED)}\r\n\r\n"
    )
    with server.connect() as sock:
        sock.sendall(head.encode() + PACKED)
        return read_response(sock)


@pytest.fixture
def unpacked(monkeypatch: pytest.MonkeyPatch) -> list[bytes]:
    """The bodies that were unpacked."""
    unpacked = []
    decode_body = app.decode_body

    def count(body: bytes, encoding: str, bytes_max: int) -> bytes:
        unpacked.append(body)
        return decode_body(body, encoding, bytes_max)

    monkeypatch.setattr(app, "decode_body", count)
    return unpacked


@pytest.mark.parametrize(
    ("status", "path", "key", "content_type", "count"),
    [
        (200, "/appended", WRITES, "application/json", 1),
        (200, "/appended", WRITES, "application/vnd.apache.arrow.stream", 1),
        (403, "/appended", READS, "application/json", 0),
        (401, "/appended", "another", "application/json", 0),
        (404, "/nothing", WRITES, "application/json", 0),
        (415, "/appended", WRITES, "text/plain", 0),
        (415, "/configured", WRITES, "application/vnd.apache.arrow.stream", 0),
    ],
)
def test_what_is_unpacked(
    unpacked: list[bytes], status: int, path: str, key: str, content_type: str, count: int
) -> None:
    with Served(SETTINGS, ROUTES) as server:
        assert post(server, path, key, content_type).status == status
    assert len(unpacked) == count
