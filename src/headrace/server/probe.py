"""The probes of a serving process: is it alive, is it ready.

Only `GET` and `HEAD` of `/v0/health` and `/v0/ready` are answered, over HTTP/1.1; everything else
is refused in the error form of the native API.  The API itself is not here.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final, cast

import httptools
import msgspec

HEADER_BYTES_MAX: Final = 16 * 1024
_REASONS: Final = {
    200: "OK",
    400: "Bad Request",
    404: "Not Found",
    405: "Method Not Allowed",
    503: "Service Unavailable",
}

# What a probe answers: a status and a JSON document.
Answer = tuple[int, dict[str, object]]
Probe = Callable[[], Answer]


class ProbeProtocol(asyncio.Protocol):
    """One connection."""

    def __init__(self, probes: dict[str, Probe]) -> None:
        self._probes = probes
        self._parser = httptools.HttpRequestParser(self)
        self._transport: asyncio.Transport | None = None
        self._path = b""
        self._taken = 0  # bytes of the request that is being read

    # asyncio's side

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # Not an isinstance check: uvloop's transports are no subclass of asyncio's.
        self._transport = cast("asyncio.Transport", transport)

    def data_received(self, data: bytes) -> None:
        self._taken += len(data)
        try:
            if self._taken > HEADER_BYTES_MAX:
                raise httptools.HttpParserError("request too large")
            self._parser.feed_data(data)
        except httptools.HttpParserError as error:
            message = f"not a request this port answers: {error}"
            self._send(400, error_body("invalid_request", message), close=True)

    # httptools' side

    def on_message_begin(self) -> None:
        self._path = b""

    def on_url(self, url: bytes) -> None:
        self._path += url

    def on_message_complete(self) -> None:
        self._taken = 0
        path = self._path.split(b"?", 1)[0].decode("latin-1")
        method = self._parser.get_method()
        probe = self._probes.get(path)
        if probe is None:
            status, body = 404, error_body("not_found", f"no route {path}; see /v0/health")
        elif method not in (b"GET", b"HEAD"):
            status, body = 405, error_body("method_not_allowed", "use GET")
        else:
            status, body = probe()
        close = not self._parser.should_keep_alive()
        self._send(status, body, close=close, head=method == b"HEAD")

    def _send(
        self, status: int, body: dict[str, object], *, close: bool = False, head: bool = False
    ) -> None:
        if self._transport is None or self._transport.is_closing():
            return
        payload = msgspec.json.encode(body)
        lines = [
            f"HTTP/1.1 {status} {_REASONS[status]}",
            "Content-Type: application/json",
            f"Content-Length: {len(payload)}",
        ]
        if status == 503:
            lines.append("Retry-After: 1")
        if close:
            lines.append("Connection: close")
        head_bytes = "\r\n".join([*lines, "", ""]).encode("latin-1")
        self._transport.write(head_bytes + (b"" if head else payload))
        if close:
            self._transport.close()


def error_body(code: str, message: str) -> dict[str, object]:
    """An error in the form of the native API.

    >>> error_body("not_found", "no route")
    {'error': {'code': 'not_found', 'message': 'no route'}}
    """
    return {"error": {"code": code, "message": message}}
