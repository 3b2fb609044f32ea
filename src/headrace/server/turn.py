"""The requests that one turn of the loop brings, for handlers that take them together.

Only this file decides which requests are handled together: those of one route that have been let in
since the last turn ended, in the order in which they came, at most `turn_requests_max` of them and
about `TURN_BYTES_MAX` of bodies.
"""

from __future__ import annotations

from typing import Final

from headrace.core.runtime import Runtime
from headrace.wire.exchange import Exchange
from headrace.wire.routes import Route

# Bodies of requests that wait for the end of their turn.
TURN_BYTES_MAX: Final = 1 << 20


class Turn:
    """What has come since the last turn ended."""

    __slots__ = ("_asked", "_bytes", "_count", "_gathered", "_requests_max", "_runtime")

    def __init__(self, runtime: Runtime, requests_max: int) -> None:
        self._runtime = runtime
        self._requests_max = requests_max
        # By the identity of the route: to hash one takes longer than all the rest.
        self._gathered: dict[int, tuple[Route, list[Exchange]]] = {}
        self._count = 0
        self._bytes = 0
        self._asked = False  # the end of the turn will run it

    def __len__(self) -> int:
        """How many requests wait for the end of the turn."""
        return self._count

    def add(self, route: Route, exchange: Exchange) -> None:
        """Handle a request with the others of its route, when the turn ends."""
        gathered = self._gathered.get(id(route))
        if gathered is None:
            gathered = self._gathered[id(route)] = (route, [])
        if not self._asked and self._requests_max > 1:
            self._runtime.soon(self.run)
            self._asked = True
        gathered[1].append(exchange)
        self._count += 1
        self._bytes += len(exchange.body)
        if self._count >= self._requests_max or self._bytes >= TURN_BYTES_MAX:
            self.run()

    def run(self) -> None:
        """Hand over all that has come so far."""
        self._asked = False  # first of all: whatever fails now, the next request asks again
        if not self._count:
            return
        gathered, self._gathered = self._gathered, {}
        self._count = self._bytes = 0
        for route, exchanges in gathered.values():
            assert route.turn_handler is not None
            try:
                route.turn_handler(exchanges)
            except Exception as error:  # noqa: BLE001 - whatever it is, the clients hear of it
                for exchange in exchanges:
                    if not exchange.answered:
                        exchange.fail(error)
