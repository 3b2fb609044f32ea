"""The live half of the native API: watches, workers and WebSockets, and how they end.

Only this file puts the hub, the slots and the protocols together.  At a stop every open stream is
told `server_shutting_down`, and ends; its clients come back to whoever serves then.
"""

from __future__ import annotations

from typing import Final

from headrace.core.limits import heartbeat_ms_min
from headrace.core.settings import Settings
from headrace.engine.engine import Engine
from headrace.engine.live import LiveHub
from headrace.wire.live_stream import Common
from headrace.wire.metrics import Metrics
from headrace.wire.native import TOPICS, encode
from headrace.wire.native_live_types import WatchAnswer, WatchBody
from headrace.wire.native_queue_work import WorkApi, WorkStream
from headrace.wire.native_watch import Views, WatchApi
from headrace.wire.native_watch_stream import WatchStream
from headrace.wire.native_ws import WebSocketApi
from headrace.wire.routes import READ, Route
from headrace.wire.slots import StreamSlots
from headrace.wire.websocket_frames import GOING_AWAY

_SHUTTING_DOWN: Final = encode(
    {"code": "server_shutting_down", "message": "the server is stopping; reconnect"}
)[1:]


class LiveApi:
    """Watches, streams of workers and WebSockets of one engine.

    `shortest_heartbeat_ms` is for tests that cannot wait a second.
    """

    def __init__(
        self,
        engine: Engine,
        settings: Settings,
        metrics: Metrics,
        *,
        shortest_heartbeat_ms: int = heartbeat_ms_min,
    ) -> None:
        self.hub = LiveHub(engine)
        self.slots = StreamSlots(settings)
        common = Common(self.hub, metrics, settings.slow_consumer_timeout_ms)
        views = Views(self.hub, settings)
        shortest = min(max(shortest_heartbeat_ms, 1), heartbeat_ms_min)
        self.watches = WatchApi(common, settings, self.slots, views, shortest)
        self.work = WorkApi(common, settings, self.slots, shortest)
        self.websockets = WebSocketApi(common, settings, metrics, self.slots, views)
        self._metrics = metrics
        metrics.sources.sse_connections = lambda: self.sse_connections
        metrics.sources.ws_connections = lambda: self.ws_connections
        metrics.sources.watch_sessions = lambda: self.watch_sessions

    def routes(self) -> list[Route]:
        """The rows of the route table."""
        return [
            Route(
                "POST", "/v0/watch", self.watches.create, TOPICS, frozenset({READ}),
                "Create a watch session over many topics",
                request=WatchBody, response=WatchAnswer, query=("lenient",), name_param=False,
            ),
            Route(
                "GET", "/v0/watch/{wid}", self.watches.open, TOPICS,
                summary="The events of a watch, as server-sent events", query=("token",),
                own_auth=True, token_query=True, name_param=False, long_lived=True,
            ),
            Route(
                "GET", "/v0/ws", self.websockets.open, TOPICS,
                summary="Follow and publish over a WebSocket",
                name_param=False, long_lived=True,
            ),
            *self.work.routes(),
        ]  # fmt: skip

    # Gauges

    @property
    def sse_connections(self) -> int:
        return len(self.watches.streams) + len(self.work.streams)

    @property
    def ws_connections(self) -> int:
        return len(self.websockets.connections)

    @property
    def watch_sessions(self) -> int:
        return len(self.watches.sessions)

    # The end

    def tick(self) -> None:
        """Now and then: forget sessions that nobody uses."""
        self.watches.sessions.reclaim(self.hub.turns.now_ms)

    def drain(self) -> None:
        """The server is stopping: tell every stream, and end it."""
        streams: list[WatchStream | WorkStream] = [*self.watches.streams, *self.work.streams]
        for stream in streams:
            self._metrics.watch_dropped("shutdown")
            stream.say_error(_SHUTTING_DOWN)
        for connection in list(self.websockets.connections):
            self._metrics.watch_dropped("shutdown")
            connection.say_error(_SHUTTING_DOWN, GOING_AWAY)
