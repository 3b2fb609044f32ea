"""The open live streams of one server, of every dialect: what they share, and how they end.

Only this file counts open streams for the metrics, and stops them when the server stops.  How the
same bytes are written to many of them is the server's business (`server/fan_out.py`); without one
they are written one by one.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from headrace.core.settings import Settings
from headrace.engine.live.hub import LiveHub
from headrace.metrics.requests import Metrics
from headrace.wire.exchange import Key, Outlet
from headrace.wire.request_memory import Budget
from headrace.wire.stream_limits import StreamLimits


class OpenStream(Protocol):
    """A stream or a session that lasts."""

    @property
    def kind(self) -> str: ...
    @property
    def key(self) -> Key | None: ...
    def stop(self) -> None:
        """End: the server stops."""
        ...


def write_one_by_one(outlets: Sequence[Outlet], data: bytes) -> None:
    """Write the same bytes to all of these."""
    for outlet in outlets:
        outlet.write(data)


class OpenStreams:
    """All live streams of a server; its dialects share one."""

    def __init__(
        self,
        hub: LiveHub,
        settings: Settings,
        metrics: Metrics,
        request_memory: Budget | None = None,
    ) -> None:
        self.hub = hub
        self.metrics = metrics
        self.limits = StreamLimits(settings)
        self.settings = settings
        # For messages of which only a part has come.
        self.request_memory = request_memory or Budget(settings.request_memory_bytes_max)
        self.slow_timeout_ms = settings.slow_consumer_timeout_ms
        self.write_to_all: Callable[[Sequence[Outlet], bytes], None] = write_one_by_one
        self.of_kind: dict[str, int] = {"sse": 0, "ws": 0, "session": 0}
        self._streams: dict[OpenStream, None] = {}
        metrics.sources.sse_connections.add(lambda: self.of_kind["sse"])
        metrics.sources.ws_connections.add(lambda: self.of_kind["ws"])
        metrics.sources.session_connections.add(lambda: self.of_kind["session"])

    def opened(self, stream: OpenStream) -> None:
        """Add a stream that the limits have admitted."""
        self._streams[stream] = None
        self.of_kind[stream.kind] += 1

    def closed(self, stream: OpenStream) -> None:
        """Forget a stream that has ended."""
        del self._streams[stream]
        self.of_kind[stream.kind] -= 1
        self.limits.release(stream.key)

    def stop(self) -> None:
        """Tell every stream that the server stops, and end it."""
        for stream in list(self._streams):
            stream.stop()
