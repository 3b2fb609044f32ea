"""A server that handles every request it can together with others, and waits for them.

A turn ends `HOLD_MS` after its first request, so that requests of several connections really meet
and a lone one waits as if it were among others; one that goes past the turn fails.
"""

from __future__ import annotations

from typing import Any, cast

from headrace.cli import compose
from headrace.core.runtime import Runtime, Thunk
from headrace.server import app
from headrace.server.turn import Turn
from headrace.wire.dialect import Dialect
from headrace.wire.exchange import Exchange
from headrace.wire.native import websocket_publish
from headrace.wire.routes import Route, RouteTable
from headrace.wire.turn_appends import TurnAppends

# Long enough for the next request of a client that has just been answered.
HOLD_MS = 3


class LateEnds:
    """A runtime whose turns end `HOLD_MS` later."""

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime

    def __getattr__(self, name: str) -> Any:
        return getattr(self._runtime, name)

    def soon(self, thunk: Thunk) -> None:
        """Call it after a while, in which more may come."""
        self._runtime.later(HOLD_MS, thunk)


class HeldTurn(Turn):
    """What has come since the last turn ended, and what comes while it is held."""

    __slots__ = ()

    def __init__(self, runtime: Runtime, *rest: Any, **more: Any) -> None:
        super().__init__(cast(Runtime, LateEnds(runtime)), *rest, **more)


class HeldAppends(TurnAppends):
    """Appends that messages bring, and those that come while they are held."""

    __slots__ = ()

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self._runtime = cast(Runtime, LateEnds(self._runtime))


class StrictRoutes(RouteTable):
    """Routes whose requests come with their turn, or fail."""

    def add(self, route: Route, dialect: Dialect) -> None:
        """Add a row of a dialect."""
        if route.turn_handler is not None:
            route = route._replace(handler=past_its_turn)
        super().add(route, dialect)


def past_its_turn(exchange: Exchange) -> None:
    """Fail: this is called in the place of the handler of all requests of a turn."""
    raise AssertionError(f"{exchange.method} {exchange.path} went past its turn")


def force() -> None:
    """Have every server that this process starts from now on handle requests together."""
    app.Turn = HeldTurn  # type: ignore[attr-defined]
    compose.RouteTable = StrictRoutes  # type: ignore[attr-defined]
    websocket_publish.TurnAppends = HeldAppends  # type: ignore[attr-defined, assignment]
