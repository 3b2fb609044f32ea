"""Requests without sockets: an exchange keeps its answer, a stream keeps what is written to it.

A stream is full, or gone, when a test says so.  `Exchange` and `Outlet` are those of the server;
only what would be bytes on a socket is a list here.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from headrace.core.clock import ManualClock
from headrace.storage.fs import read_exact
from headrace.wire.exchange import JSON, Exchange, FileRange, Headers, Outlet, Part


class ListOutlet(Outlet):
    """A stream that keeps what is written to it."""

    __slots__ = ("clock", "closed", "full_since_ms", "written")

    def __init__(self, clock: ManualClock) -> None:
        super().__init__()
        self.clock = clock
        self.written: list[bytes] = []
        self.closed = False
        self.full_since_ms: int | None = None

    @property
    def room(self) -> bool:
        return self.full_since_ms is None and not self.closed

    @property
    def stuck_ms(self) -> int:
        if self.full_since_ms is None:
            return 0
        return self.clock.monotonic_ns() // 1_000_000 - self.full_since_ms

    def write(self, data: bytes) -> None:
        if not self.closed:
            self.written.append(data)

    def close(self) -> None:
        self.closed = True

    # What a test does with it

    def fill(self) -> None:
        """The client takes nothing any more."""
        self.full_since_ms = self.clock.monotonic_ns() // 1_000_000

    def drain(self) -> None:
        """The client has taken everything."""
        self.full_since_ms = None
        if self.on_room is not None:
            self.on_room()

    def hang_up(self) -> None:
        """The client goes away."""
        self.closed = True
        if self.on_closed is not None:
            self.on_closed()

    def take(self) -> bytes:
        """What was written since the last time."""
        data = b"".join(self.written)
        self.written.clear()
        return data


class AnsweredExchange(Exchange):
    """A request whose answer is kept."""

    __slots__ = ("content_type", "reply", "reply_headers", "status")

    def __init__(self, *request: Any) -> None:
        super().__init__(*request)
        self.status = 0
        self.reply = b""
        self.content_type = b""
        self.reply_headers: dict[bytes, bytes] = {}

    def answer(
        self, status: int, body: bytes, content_type: bytes = JSON, headers: Headers = ()
    ) -> None:
        assert not self.answered
        self.answered = True
        self.status, self.reply, self.content_type = status, body, content_type
        self.reply_headers = dict(headers)

    def answer_parts(
        self, status: int, parts: Sequence[Part], content_type: bytes = JSON, headers: Headers = ()
    ) -> None:
        body = b""
        for part in parts:
            if isinstance(part, FileRange):
                body += read_exact(part.file, part.length, part.offset)
                part.file.close()
            else:
                body += part
        self.answer(status, body, content_type, headers)

    @property
    def json(self) -> dict[str, Any]:
        assert self.content_type == JSON
        decoded = json.loads(self.reply)
        assert isinstance(decoded, dict)
        return decoded

    @property
    def code(self) -> str:
        """The error's code."""
        return str(self.json["error"]["code"])


class ListExchange(AnsweredExchange):
    """A request whose answer may also be a stream or a tunnel, which keeps what is written."""

    __slots__ = ("clock", "outlet", "upgraded")

    def __init__(self, clock: ManualClock, *request: Any) -> None:
        super().__init__(*request)
        self.clock = clock
        self.outlet: ListOutlet | None = None
        self.upgraded = b""

    def stream(self, content_type: bytes, headers: Headers = ()) -> Outlet:
        self.answer(200, b"", content_type, headers)
        self.outlet = ListOutlet(self.clock)
        return self.outlet

    def tunnel(self, headers: Headers = ()) -> Outlet:
        self.answer(101, b"", b"", headers)
        self.outlet = ListOutlet(self.clock)
        return self.outlet

    @property
    def upgrade(self) -> bytes:
        return self.upgraded


class GivenKey:
    """A key with scopes and prefixes."""

    def __init__(self, scopes: str = "read write delete admin", *prefixes: str) -> None:
        self._scopes = scopes.split()
        self._prefixes = prefixes

    def allows_scope(self, scope: str) -> bool:
        return scope in self._scopes

    def allows_name(self, name: str) -> bool:
        return not self._prefixes or name.startswith(self._prefixes)

    @property
    def has_prefixes(self) -> bool:
        return bool(self._prefixes)
