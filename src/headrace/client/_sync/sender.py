# Written by tools/unasync.py from _async/sender.py: change that, then run it.
"""The sender of a client for asyncio: its connections, and the attempts of each call.

The rule it owns: each call is tried until it is answered, is refused for good, or its deadline is
over (`retry.py` decides).
"""

from __future__ import annotations

import ssl
from collections.abc import Mapping
from typing import Final, Self

from headrace.client._sync.net import pause
from headrace.client._sync.pool import Pool
from headrace.client.answers import failure
from headrace.client.calls import Call
from headrace.client.message import Address, Heads, Response
from headrace.client.retry import left_ms, next_pause, retry_after_ms
from headrace.client.tls import context
from headrace.core.clock import NS_PER_MS, SystemClock, SystemRandom
from headrace.core.errors import HeadraceError, Unreachable

CONNECTIONS_MAX: Final = 100
TIMEOUT_MS: Final = 30_000
DEADLINE_MS: Final = 30_000


class Sender:
    """Sends calls to one server, and repeats those that may be repeated."""

    def __init__(
        self,
        url: str,
        *,
        token: str | None = None,
        tls: ssl.SSLContext | str | None = None,
        timeout_ms: int = TIMEOUT_MS,
        deadline_ms: int = DEADLINE_MS,
        connections_max: int = CONNECTIONS_MAX,
        random_keys: bool = True,
    ) -> None:
        address = Address.of(url)
        self._prefix = address.prefix
        self._heads = Heads(address.authority, token)
        self._pool = Pool(address, context(tls) if address.tls else None, connections_max)
        self._timeout_ms = timeout_ms
        self._deadline_ms = deadline_ms
        self._random_keys = random_keys
        self._random = SystemRandom()
        self._now_ns = SystemClock.monotonic_ns

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the connections that are kept."""
        self._pool.close()

    def request(
        self,
        method: str,
        target: str,
        *,
        headers: Mapping[str, str] | None = None,
        body: bytes = b"",
    ) -> Response:
        """One request, one attempt, and the answer whatever its status."""
        head = self._heads.head(method, self._prefix + target, headers or {}, len(body))
        return self._pool.exchange(head, body, self._timeout_ms)

    def _send(self, call: Call, deadline_ms: int | None = None) -> Response:
        """The answer to a call, however many attempts it takes, or the error that is final."""
        head = self._heads.head(
            call.method, self._prefix + call.target, call.headers, len(call.body)
        )
        limit_ms = self._deadline_ms if deadline_ms is None else deadline_ms
        deadline_ns = self._now_ns() + (limit_ms + call.wait_ms) * NS_PER_MS
        attempt = 0
        while True:
            attempt += 1
            after_ms = 0
            error: HeadraceError
            try:
                timeout_ms = self._timeout_ms + call.wait_ms
                response = self._pool.exchange(head, call.body, timeout_ms)
                if response.status < 300:
                    return response
                error = failure(response)
                after_ms = retry_after_ms(response.headers, error.detail)
            except Unreachable as lost:
                error = lost
            until = next_pause(
                error,
                attempt=attempt,
                repeatable=call.repeatable,
                retry_after_ms=after_ms,
                left_ms=left_ms(deadline_ns, self._now_ns()),
                random=self._random,
            )
            if until is None:
                raise error
            pause(until.ms)
