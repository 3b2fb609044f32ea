"""Requests that wait for recovery: which, how many, for how long, and what they are told.

Only this file parks requests.  Before the engine is ready all wait but probes.  While only topics
of class `memory` are missing, those wait that are about one of them, or about no single topic:
lists, watches, WebSockets.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Final

from headrace.core.errors import NotReady
from headrace.core.settings import Settings
from headrace.engine.topics.loading import LoadingTopics
from headrace.server.refusals import no_memory
from headrace.wire.exchange import Exchange
from headrace.wire.routes import Route

# What a body that is arriving may hold, as a multiple of what it leaves to others.
SHARE_OF_REST: Final = 4


class Budget:
    """A number of bytes that all requests share."""

    __slots__ = ("limit", "taken", "used")

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.used = 0
        self.taken = 0  # since the server began

    def take(self, amount: int) -> bool:
        """Take bytes if the limit allows it; whether it did."""
        if self.used + amount > self.limit:
            return False
        self.used += amount
        self.taken += amount
        return True

    def take_more(self, amount: int, held: int) -> bool:
        """Take more for a body that holds `held` already; whether the limit allows it.

        Beside others a body may hold `SHARE_OF_REST` times what it leaves, so that some large ones
        that never end do not keep small ones out.

        >>> budget = Budget(900)
        >>> budget.take(500), budget.take_more(300, 0), budget.take_more(60, 300)
        (True, True, False)
        >>> budget.take_more(60, 0)
        True
        """
        others = self.used - held
        if others and held + amount > SHARE_OF_REST * (self.limit - self.used - amount):
            return False
        return self.take(amount)

    def give(self, amount: int) -> None:
        """Give back bytes that were taken."""
        self.used -= amount
        assert self.used >= 0, self.used


class WaitingRequests:
    """The requests of one server that wait."""

    def __init__(
        self,
        settings: Settings,
        budget: Budget,
        loading: LoadingTopics,
        run: Callable[[Exchange], None],
    ) -> None:
        self._settings = settings
        self._budget = budget
        self._loading = loading
        self._run = run
        self._live = False
        self.none = False  # no request has to wait any more
        # Until when, how many bytes of the budget, and which.
        self._parked: deque[tuple[int, int, Exchange]] = deque()
        loading.when_done(self._go_on)

    def __len__(self) -> int:
        return len(self._parked)

    def wanted_by(self, exchange: Exchange, route: Route) -> bool:
        """Whether a request has to wait."""
        if self._live and not self._loading:
            self.none = True
            return False
        if route.unready or not self._live:
            return not route.unready
        name = route.dialect.engine_name(exchange)
        return name is None or name in self._loading

    def park(self, exchange: Exchange, now_ms: int) -> None:
        """Let a request wait, or raise."""
        if self._loading.failed or len(self._parked) >= self._settings.parked_requests_max:
            raise self._refusal(exchange)
        size = len(exchange.body)
        if not self._budget.take(size):
            raise no_memory(self._budget.limit)
        self._parked.append((now_ms + self._settings.parked_ms_max, size, exchange))

    def go_live(self) -> None:
        """The engine is ready: go on with what waited for it, if it needs nothing else."""
        self._live = True
        self._go_on()

    def _go_on(self) -> None:
        if not self._live:
            return
        for due_ms, size, exchange in self._take(len(self._parked)):
            assert exchange.route is not None
            if self.wanted_by(exchange, exchange.route) and self._budget.take(size):
                self._parked.append((due_ms, size, exchange))
            else:
                self._run(exchange)

    def all(self) -> list[Exchange]:
        """Take out all that wait."""
        return [exchange for _, _, exchange in self._take(len(self._parked))]

    def refuse_late(self, now_ms: int) -> None:
        """Answer those that have waited too long."""
        late = sum(1 for due_ms, _, _ in self._parked if due_ms <= now_ms)
        for _, _, exchange in self._take(late):
            exchange.fail(self._refusal(exchange))

    def _take(self, count: int) -> list[tuple[int, int, Exchange]]:
        """Those that have waited longest, without those whose client went away."""
        left = [self._parked.popleft() for _ in range(count)]
        self._budget.give(sum(size for _, size, _ in left))
        return [parked for parked in left if not parked[2].answered]

    def _refusal(self, exchange: Exchange) -> NotReady:
        if self._live and self._loading and exchange.route is not None:
            name = exchange.route.dialect.engine_name(exchange)
            return self._loading.refusal(name if name in self._loading else None)
        return NotReady("recovery is running", fix="retry", detail={"reason": "recovering"})
