"""The requests that one turn of the loop brings, for handlers that take them together.

Only this file decides which requests are handled together: those of one route that have been let in
since the last turn ended, in the order in which they came, at most `turn_requests_max` of them and
about `TURN_BYTES_MAX` of bodies.
"""

from __future__ import annotations

from operator import attrgetter
from typing import Final

from headrace.core.runtime import Runtime
from headrace.wire.exchange import Exchange, TurnHandler
from headrace.wire.routes import Route

# Bodies of requests that wait for the end of their turn.
TURN_BYTES_MAX: Final = 1 << 20
_ANSWERED: Final = attrgetter("answered")


class TurnGroup:
    """The requests of one route that wait for the end of the turn, in the order of arrival."""

    __slots__ = ("exchanges", "handler")

    def __init__(self, handler: TurnHandler) -> None:
        self.handler = handler
        self.exchanges: list[Exchange] = []


class Turn:
    """What has come since the last turn ended."""

    __slots__ = ("_asked", "_bytes", "_count", "_groups", "_requests_max", "_runtime", "_waiting")

    def __init__(self, runtime: Runtime, requests_max: int) -> None:
        self._runtime = runtime
        self._requests_max = requests_max
        # By the identity of the route, which is kept beside it: to hash one takes longer than all
        # the rest.
        self._groups: dict[int, tuple[Route, TurnGroup]] = {}
        self._waiting: list[TurnGroup] = []  # those that have requests, by their first one
        self._count = 0
        self._bytes = 0
        self._asked = False  # the end of the turn will run it

    def __len__(self) -> int:
        """How many requests wait for the end of the turn."""
        return self._count

    def group_of(self, route: Route) -> TurnGroup:
        """The group of a route that has a handler for turns."""
        found = self._groups.get(id(route))
        if found is None:
            assert route.turn_handler is not None, route.template
            found = self._groups[id(route)] = (route, TurnGroup(route.turn_handler))
        return found[1]

    def add(self, group: TurnGroup, exchange: Exchange) -> None:
        """Handle a request with the others of its group, when the turn ends."""
        exchanges = group.exchanges
        if not exchanges:
            self._waiting.append(group)
            if not self._asked and self._requests_max > 1:
                self._runtime.soon(self.run)
                self._asked = True
        exchanges.append(exchange)
        self._count += 1
        self._bytes += len(exchange.body)
        if self._count >= self._requests_max or self._bytes >= TURN_BYTES_MAX:
            self.run()

    def run(self) -> None:
        """Hand over all that has come so far."""
        self._asked = False  # first of all: whatever fails now, the next request asks again
        if not self._count:
            return
        waiting, self._waiting = self._waiting, []
        self._count = self._bytes = 0
        for group in waiting:
            exchanges, group.exchanges = group.exchanges, []
            try:
                asked = exchanges
                if True in map(_ANSWERED, exchanges):
                    # Without those whose clients went away, as of requests that wait for recovery.
                    asked = [exchange for exchange in exchanges if not exchange.answered]
                if asked:
                    group.handler(asked)
            except Exception as error:  # noqa: BLE001 - whatever it is, the clients hear of it
                for exchange in exchanges:
                    if not exchange.answered:
                        exchange.fail(error)
