"""How many streams may be open at once, in all and for one key.

Only this file counts streams against `max_sse_connections` and `max_sse_connections_per_key`.  A
cap of N admits exactly N; each admitted stream is released exactly once, when it ends.
"""

from __future__ import annotations

from collections.abc import Callable

from headrace.core.errors import Throttled
from headrace.core.settings import Settings
from headrace.wire.exchange import Key, Outlet


class StreamLimits:
    """Counts the open SSE streams and WebSockets.

    >>> limits = StreamLimits(Settings(max_sse_connections=1))
    >>> limits.take(None)
    >>> limits.take(None)
    Traceback (most recent call last):
    headrace.core.errors.Throttled: 1 streams are open, the most allowed; close some, or raise \
HEADRACE_MAX_SSE_CONNECTIONS
    """

    def __init__(self, settings: Settings) -> None:
        self._max = settings.max_sse_connections
        self._per_key_max = settings.max_sse_connections_per_key
        self._of_key: dict[Key, int] = {}
        self.open = 0

    def admit(self, key: Key | None, start: Callable[[], Outlet]) -> Outlet:
        """Count a stream and start it, or raise `Throttled`; one that fails is not counted."""
        self.take(key)
        try:
            return start()
        except BaseException:
            self.release(key)
            raise

    def take(self, key: Key | None) -> None:
        """Count one more stream, or raise `Throttled`."""
        if 0 < self._max <= self.open:
            raise Throttled(
                f"{self._max} streams are open, the most allowed",
                fix="close some, or raise HEADRACE_MAX_SSE_CONNECTIONS",
            )
        if key is not None:
            of_key = self._of_key.get(key, 0)
            if 0 < self._per_key_max <= of_key:
                raise Throttled(
                    f"this key has {self._per_key_max} streams open, the most allowed",
                    fix="close some, or raise HEADRACE_MAX_SSE_CONNECTIONS_PER_KEY",
                )
            self._of_key[key] = of_key + 1
        self.open += 1

    def release(self, key: Key | None) -> None:
        """Count one stream less."""
        self.open -= 1
        assert self.open >= 0
        if key is None:
            return
        left = self._of_key[key] - 1
        if left:
            self._of_key[key] = left
        else:
            del self._of_key[key]
