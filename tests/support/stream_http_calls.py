"""Calls to streams of Durable Streams over one HTTP/1.1 connection, for tests that kill servers."""

from __future__ import annotations

import contextlib
import http.client
import time
from collections.abc import Iterator
from typing import NamedTuple
from urllib.parse import urlencode

PREFIX = "/v1/stream/"
BYTES = "application/octet-stream"
JSON = "application/json"
ZERO = "0000000000000000_0000000000000000"
NEXT = "stream-next-offset"
CALL_SECONDS_MAX = 60.0
PATIENCE_SECONDS = 120.0
READS_MAX = 10_000
# What a server that is gone, going or coming says, or does not.
NOT_NOW = frozenset({429, 503})


class Answer(NamedTuple):
    """Of one call; names of headers are in lower case."""

    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def next_offset(self) -> str:
        return self.headers[NEXT]


class Gone(Exception):
    """There was no answer: whether the call was done is not known."""


class StreamCalls:
    """Connects when it has to; not for two threads at once."""

    def __init__(self, host: str, port: int) -> None:
        self._host, self._port = host, port
        self._connection: http.client.HTTPConnection | None = None

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def call(
        self,
        method: str,
        path: str,
        body: bytes | None = None,
        headers: dict[str, str] | None = None,
        **query: str,
    ) -> Answer:
        """Make one call, once; `Gone` if there is no whole answer."""
        target = PREFIX + path + (f"?{urlencode(query)}" if query else "")
        try:
            if self._connection is None:
                self._connection = http.client.HTTPConnection(
                    self._host, self._port, timeout=CALL_SECONDS_MAX
                )
            self._connection.request(method, target, body, headers or {})
            response = self._connection.getresponse()
            content = response.read()
        except (OSError, http.client.HTTPException):
            self.close()
            raise Gone from None
        fields = {name.lower(): value for name, value in response.getheaders()}
        return Answer(response.status, fields, content)

    def insist(
        self,
        method: str,
        path: str,
        body: bytes | None = None,
        headers: dict[str, str] | None = None,
        **query: str,
    ) -> Answer:
        """Make the call until it is answered, over any number of lives of the server."""
        deadline = time.monotonic() + PATIENCE_SECONDS
        while time.monotonic() < deadline:
            with contextlib.suppress(Gone):
                answer = self.call(method, path, body, headers, **query)
                if answer.status not in NOT_NOW:
                    return answer
            time.sleep(0.01)
        raise AssertionError(f"{method} {path} was never answered")

    def create(
        self, path: str, content_type: str, body: bytes | None = None, **headers: str
    ) -> Answer:
        fields = {name.replace("_", "-"): value for name, value in headers.items()}
        return self.call("PUT", path, body, {"Content-Type": content_type, **fields})

    def pages(self, path: str, offset: str | None) -> Iterator[Answer]:
        """Every answer of a catch-up read, to the tail; the first that is no 200 ends it."""
        for _ in range(READS_MAX):
            query = {} if offset is None else {"offset": offset}
            answer = self.insist("GET", path, None, None, **query)
            yield answer
            if answer.status != 200 or "stream-up-to-date" in answer.headers:
                return
            assert offset is None or answer.next_offset > offset or offset == "-1", (
                f"a read from {offset} leads to {answer.next_offset}"
            )
            offset = answer.next_offset
        raise AssertionError(f"the tail of {path} never came")
