"""The wakes of subscriptions: begun, told of, ended when their lease runs out, by themselves.

The rules this file owns.  Whatever happens to a subscription is decided (`rules.py`), kept
(`records.py`) and only then true; so what anybody is told survives a crash.  What has to happen by
itself (a retry, the end of a lease, a wake) follows from what is kept, so a restart goes on where
the last run was.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import partial
from typing import Final

from headrace.core.errors import HeadraceError
from headrace.core.runtime import Ticket
from headrace.core.steps import Steps
from headrace.engine.engine import Engine
from headrace.wire.durable_streams.subscriptions import rules
from headrace.wire.durable_streams.subscriptions.active import ActiveSubscription
from headrace.wire.durable_streams.subscriptions.deliveries import Deliveries, Sent
from headrace.wire.durable_streams.subscriptions.key_file import KeyFile
from headrace.wire.durable_streams.subscriptions.records import SubscriptionRecords
from headrace.wire.durable_streams.subscriptions.rules import StreamEnds
from headrace.wire.durable_streams.subscriptions.state import Acked, Event
from headrace.wire.outbound import OutboundPosts

log = logging.getLogger("headrace.subscriptions")

# When something that happens by itself could not be kept: how soon it is tried again.
AGAIN_MS: Final = 5_000


class Wakes:
    """The wakes of all subscriptions of one server; `count` hears of each that has changed."""

    def __init__(
        self,
        engine: Engine,
        records: SubscriptionRecords,
        keys: KeyFile,
        ends: StreamEnds,
        posts: OutboundPosts,
        count: Callable[[ActiveSubscription], None],
    ) -> None:
        self._engine = engine
        self._records = records
        self._ends = ends
        self._count = count
        self.deliveries = Deliveries(engine, posts, keys, ends, self._sent)
        self._serving = False
        self._draining = False

    def begin(self) -> None:
        """Let things happen by themselves: all subscriptions are there."""
        self._serving = not self._draining

    def drain(self) -> None:
        """Let nothing more happen by itself: the server is stopping."""
        self._serving, self._draining = False, True
        self.deliveries.drain()

    def _now_ms(self) -> int:
        return self._engine.clock.now_ms()

    # Keeping

    def keep(self, active: ActiveSubscription, events: list[Event]) -> Steps[None]:
        """Keep what was decided; only then it has happened."""
        state = active.state
        yield from self._records.append(state.id, active.size, events)
        for event in events:
            state.apply(event)
            if isinstance(event, Acked):
                for path in event.cursors:
                    active.look_at(self._ends, path)
        self._count(active)
        if active.size.is_large:
            yield from self._sum_up(active)
        self.go_on(active)

    def _sum_up(self, active: ActiveSubscription) -> Steps[None]:
        try:
            yield from self._records.rewrite(active.state, active.size)
        except HeadraceError as error:
            # Nothing is lost: what was kept counts, and the next event tries again.
            log.warning("the events of %r cannot be summed up: %s", active.state.id, error)

    # What happens by itself

    def _by_itself(self, active: ActiveSubscription, steps: Steps[None]) -> None:
        """Run what nobody asked for; what fails is tried again a little later."""

        def ended(ticket: Ticket[None]) -> None:
            if ticket.error is None:
                active.stuck = False
                return
            if not active.stuck:
                active.stuck = True
                log.warning("a step of %r could not be taken: %s", active.state.id, ticket.error)
            self._engine.runtime.later(AGAIN_MS, partial(self.go_on, active))

        active.line.run(steps).when_done(ended)

    def go_on(self, active: ActiveSubscription) -> None:
        """Do, or plan, what follows from what a subscription is now."""
        if active.gone or not self._serving:
            return
        state, now_ms = active.state, self._now_ms()
        due_ms = rules.due_ms(state)
        if state.wake is None:
            if active.pending:
                self.has_news(active)
        elif due_ms is None:
            return
        elif due_ms > now_ms:
            self._arm(active, due_ms, now_ms)
        elif state.wake.notified:
            self._by_itself(active, self._expire(active))
        else:
            self.deliveries.send(active)

    def _arm(self, active: ActiveSubscription, due_ms: int, now_ms: int) -> None:
        """Come back at a time, unless that is sooner planned already."""
        if active.armed_ms is not None and active.armed_ms <= due_ms:
            return
        active.armed_ms = due_ms

        def fire() -> None:
            if active.armed_ms == due_ms:
                active.armed_ms = None
            self.go_on(active)

        self._engine.runtime.later(due_ms - now_ms, fire)

    def has_news(self, active: ActiveSubscription) -> None:
        """Wake a subscription that is at rest, once what it is busy with is done."""
        if not active.waking and self._serving:
            active.waking = True
            self._by_itself(active, self._wake(active))

    def _wake(self, active: ActiveSubscription) -> Steps[None]:
        active.waking = False
        if not active.gone and active.state.wake is None and active.has_pending(self._ends):
            yield from self.keep(active, [rules.next_wake(active.state, self._engine.random)])

    def _expire(self, active: ActiveSubscription) -> Steps[None]:
        if not active.gone and rules.is_over(active.state, self._now_ms()):
            pending = active.has_pending(self._ends)
            decided = rules.rest(active.state, self._engine.random, pending)
            yield from self.keep(active, decided.events)

    def _sent(self, active: ActiveSubscription, sent: Sent) -> None:
        if not active.gone and self._serving:
            self._by_itself(active, self._take_sent(active, sent))

    def _take_sent(self, active: ActiveSubscription, sent: Sent) -> Steps[None]:
        """Note what came of telling of a wake, if it is still the present one."""
        state = active.state
        wake = state.wake
        if active.gone or wake is None or wake.id != sent.wake_id:
            self.go_on(active)
            return
        now_ms, random = self._now_ms(), self._engine.random
        events: list[Event] = []
        if sent.failure:
            if not wake.notified:
                if not state.failures:
                    log.warning("the wake of %r did not arrive: %s", state.id, sent.failure)
                events = [rules.failed(state, random, now_ms)]
        elif sent.done:
            events = rules.auto_ack(state, sent.tails, self._ends, random, now_ms, active.pending)
        elif not wake.notified:
            events = [rules.notified(state, now_ms)]
        if events:
            yield from self.keep(active, events)
        else:
            self.go_on(active)
