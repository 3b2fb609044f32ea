"""A receiver of webhooks on a real socket: it verifies what it gets, keeps it, and answers."""

from __future__ import annotations

import http.client
import http.server
import json
import queue
import re
import threading
from base64 import urlsafe_b64decode
from typing import Any, NamedTuple, Self

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

SECONDS_MAX = 30.0
SIGNATURE = re.compile(r"t=(\d+),kid=([^,]+),ed25519=([A-Za-z0-9_-]+)")


class Received(NamedTuple):
    """A webhook."""

    path: str
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> dict[str, Any]:
        decoded = json.loads(self.body)
        assert isinstance(decoded, dict)
        return decoded

    def verify(self, keys: list[dict[str, str]]) -> None:
        """Raise unless one of the published keys has signed it."""
        found = SIGNATURE.fullmatch(self.headers["webhook-signature"])
        assert found is not None, self.headers
        (key,) = [key for key in keys if key["kid"] == found[2]]
        public = Ed25519PublicKey.from_public_bytes(_from_base64url(key["x"]))
        public.verify(_from_base64url(found[3]), found[1].encode() + b"." + self.body)


def _from_base64url(text: str) -> bytes:
    return urlsafe_b64decode(text + "=" * (-len(text) % 4))


class WebhookReceiver:
    """Takes webhooks on a port of its own, and answers each as `answer` says then."""

    def __init__(self) -> None:
        self.answer: tuple[int, bytes] = (200, b"{}")
        self._received: queue.Queue[Received] = queue.Queue()
        self._server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), self._handler())
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.01,))

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._server.server_port}/hook"

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_error: object) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()

    @property
    def is_empty(self) -> bool:
        """Whether every webhook has been looked at."""
        return self._received.empty()

    def next(self) -> Received:
        """Return the next webhook, once it is there."""
        return self._received.get(timeout=SECONDS_MAX)

    def _handler(self) -> type[http.server.BaseHTTPRequestHandler]:
        receiver = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["content-length"]))
                headers = {name.lower(): value for name, value in self.headers.items()}
                status, answer = receiver.answer
                receiver._received.put(Received(self.path, headers, body))
                self.send_response(status)
                self.send_header("content-length", str(len(answer)))
                self.end_headers()
                self.wfile.write(answer)

            def log_message(self, *_arguments: object) -> None:
                """Say nothing."""

        return Handler


def call(url: str, body: object, token: str) -> tuple[int, Any]:
    """POST to an address that a webhook brought."""
    _, _, rest = url.partition("://")
    authority, _, path = rest.partition("/")
    connection = http.client.HTTPConnection(authority, timeout=SECONDS_MAX)
    headers = {"content-type": "application/json", "authorization": f"Bearer {token}"}
    try:
        connection.request("POST", "/" + path, json.dumps(body), headers)
        answer = connection.getresponse()
        data = answer.read()
    finally:
        connection.close()
    return answer.status, json.loads(data) if data else None
