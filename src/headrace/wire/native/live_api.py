"""The live half of the native API: watches, workers and WebSockets.

Only this file puts these protocols together, and has the rows of their routes.
"""

from __future__ import annotations

from typing import Final

from headrace.api.watch import WatchBody, WatchCreated
from headrace.core.limits import KIB, heartbeat_ms_min
from headrace.metrics.holders import Holder
from headrace.wire.native.queue_work import WorkApi
from headrace.wire.native.watch import Views, WatchApi
from headrace.wire.native.websocket import WebSocketApi
from headrace.wire.routes import READ, Route
from headrace.wire.server_context import ServerContext

# A session, beside what its topics and nodes take.
WATCH_SESSION_BYTES: Final = 2 * KIB
SESSIONS_UNBOUNDED: Final = 100_000  # what is reckoned with where `max_watch_sessions` is 0


class LiveApi:
    """Watches, streams of workers and WebSockets of one server.

    `shortest_heartbeat_ms` is for tests that cannot wait a second.
    """

    def __init__(
        self, server: ServerContext, *, shortest_heartbeat_ms: int = heartbeat_ms_min
    ) -> None:
        settings = server.settings
        self._open_streams = open_streams = server.open_streams
        views = Views(open_streams.hub, settings)
        shortest = min(max(shortest_heartbeat_ms, 1), heartbeat_ms_min)
        self.watches = WatchApi(open_streams, settings, views, shortest)
        self.work = WorkApi(open_streams, settings, shortest)
        self.websockets = WebSocketApi(open_streams, settings, views, self.watches.sessions.bytes)
        server.metrics.sources.holders.add(
            Holder(
                "watch_session", "Topics and nodes of watch sessions and WebSockets.",
                "`max_watch_sessions`, `watch_session_bytes_max`, `watch_sessions_bytes_max`",
                WATCH_SESSION_BYTES + settings.watch_session_bytes_max,
                WATCH_SESSION_BYTES * (settings.max_watch_sessions or SESSIONS_UNBOUNDED)
                + settings.watch_sessions_bytes_max,
                lambda: self.watch_sessions,
                lambda: self.watches.sessions.bytes.held,
            )
        )  # fmt: skip
        server.metrics.sources.watch_sessions.add(lambda: self.watch_sessions)

    def routes(self) -> list[Route]:
        """The rows of the route table."""
        return [
            Route(
                "POST", "/v0/watch", self.watches.create, frozenset({READ}),
                "Create a watch session over many topics",
                request=WatchBody, response=WatchCreated, query=("lenient",), name_param=False,
            ),
            Route(
                "GET", "/v0/watch/{wid}", self.watches.open,
                summary="The events of a watch, as server-sent events", query=("token",),
                own_auth=True, token_query=True, name_param=False, long_lived=True,
            ),
            Route(
                "GET", "/v0/ws", self.websockets.open,
                summary="Follow and publish over a WebSocket",
                name_param=False, long_lived=True,
            ),
            *self.work.routes(),
        ]  # fmt: skip

    @property
    def watch_sessions(self) -> int:
        """How many watch sessions are kept."""
        return len(self.watches.sessions)

    def tick(self) -> None:
        """Forget sessions that nobody uses; called from time to time."""
        self.watches.sessions.reclaim(self._open_streams.hub.turns.now_ms)
