"""The open live streams of one server, of every dialect: what they share, and how they end.

Only this file counts open streams for the metrics, and stops them when the server stops.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from headrace.core.settings import Settings
from headrace.engine.live.hub import LiveHub
from headrace.metrics.requests import Metrics
from headrace.wire.stream_limits import StreamLimits

if TYPE_CHECKING:
    from headrace.wire.live_stream import LiveStream


class OpenStreams:
    """All live streams of a server; its dialects share one."""

    def __init__(self, hub: LiveHub, settings: Settings, metrics: Metrics) -> None:
        self.hub = hub
        self.metrics = metrics
        self.limits = StreamLimits(settings)
        self.slow_timeout_ms = settings.slow_consumer_timeout_ms
        self.of_kind: dict[str, int] = {"sse": 0, "ws": 0}
        self._streams: dict[LiveStream[Any], None] = {}
        metrics.sources.sse_connections.add(lambda: self.of_kind["sse"])
        metrics.sources.ws_connections.add(lambda: self.of_kind["ws"])

    def opened(self, stream: LiveStream[Any]) -> None:
        """Add a stream that the limits have admitted."""
        self._streams[stream] = None
        self.of_kind[stream.kind] += 1

    def closed(self, stream: LiveStream[Any]) -> None:
        """Forget a stream that has ended."""
        del self._streams[stream]
        self.of_kind[stream.kind] -= 1
        self.limits.release(stream.key)

    def stop(self) -> None:
        """Tell every stream that the server stops, and end it."""
        for stream in list(self._streams):
            stream.stop()
