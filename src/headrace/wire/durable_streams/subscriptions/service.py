"""The subscriptions of one server: loaded after a start, and what clients do with them.

The rules this file owns.  What clients ask of one subscription happens one after the other, and
what is answered has been kept; different subscriptions do not wait for each other.  What happens by
itself is in `wakes.py`.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from functools import partial
from typing import Final, NamedTuple, cast

from headrace.core.bounds import ByteBound
from headrace.core.errors import HeadraceError, Throttled
from headrace.core.runtime import Ticket
from headrace.core.steps import Line, Steps, follow
from headrace.engine.streams.spec import Position
from headrace.metrics.holders import Holder, Holders
from headrace.wire.durable_streams.subscriptions import rules
from headrace.wire.durable_streams.subscriptions.active import ActiveSubscription
from headrace.wire.durable_streams.subscriptions.bodies import ClaimedWake, claimed_wake
from headrace.wire.durable_streams.subscriptions.deliveries import POST_BYTES_MAX, POSTS_MAX
from headrace.wire.durable_streams.subscriptions.key_file import KeyFile
from headrace.wire.durable_streams.subscriptions.links import EngineEnds, Links
from headrace.wire.durable_streams.subscriptions.records import StoredSize, SubscriptionRecords
from headrace.wire.durable_streams.subscriptions.rules import Decision, Refusal, Report
from headrace.wire.durable_streams.subscriptions.signing import SigningKey
from headrace.wire.durable_streams.subscriptions.state import (
    EXPLICIT,
    GLOB,
    WEBHOOK,
    Created,
    Deleted,
    Linked,
    Subscription,
    SubscriptionConfig,
    Unlinked,
    cursor_text,
    link_bytes,
)
from headrace.wire.durable_streams.subscriptions.wakes import Wakes
from headrace.wire.outbound import OutboundPosts
from headrace.wire.server_context import ServerContext

log = logging.getLogger("headrace.subscriptions")

SUBSCRIPTIONS_MAX: Final = 10_000
# Changes that wait for the one in progress.
CHANGES_MAX: Final = 256
LIFE_BYTES: Final = 8


class Put(NamedTuple):
    """A subscription, and whether it is new."""

    active: ActiveSubscription
    created: bool


class Reported(NamedTuple):
    """What came of a report: whether the next wake has begun."""

    next_wake: bool


Checked = Callable[[Subscription], None]  # raises where a caller may not have a subscription
Act = Callable[[ActiveSubscription], Steps[object]]


class Subscriptions:
    """All subscriptions of one server."""

    def __init__(self, context: ServerContext, posts: OutboundPosts) -> None:
        engine = context.engine
        self._engine = engine
        self._active: dict[str, ActiveSubscription] = {}
        self._changes = Line(
            engine.runtime, waiting_max=CHANGES_MAX, what="changes of subscriptions"
        )
        self._records = SubscriptionRecords(engine)
        self.keys = KeyFile(engine)
        self._bytes = ByteBound("subscription", engine.settings, fix="link fewer streams")
        self.ends = EngineEnds(engine)
        self._wakes = Wakes(engine, self._records, self.keys, self.ends, posts, self._count)
        hub = context.open_streams.hub
        self._links = Links(
            engine, hub, self.ends, self._wakes.has_news, self._has_room, self._count
        )
        self._loaded = False
        self._loading = False
        self._problem = ""  # why they cannot be loaded, ever
        context.parts["subscriptions"] = lambda: self._problem
        self._hold(context.metrics.sources.holders)

    def _hold(self, holders: Holders) -> None:
        """Say what subscriptions hold in memory."""
        settings, posts = self._engine.settings, self._wakes.deliveries
        holders.add(
            Holder(
                "subscription", "Subscriptions to streams, with the streams they are linked to.",
                "`SUBSCRIPTIONS_MAX`, `subscription_bytes_max`, `subscriptions_bytes_max`",
                settings.subscription_bytes_max, settings.subscriptions_bytes_max,
                lambda: len(self._active), lambda: self._bytes.held,
            )
        )  # fmt: skip
        holders.add(
            Holder(
                "webhook", "Webhooks under way.", "`POSTS_MAX`; others wait",
                POST_BYTES_MAX, POSTS_MAX * POST_BYTES_MAX,
                lambda: posts.posting, lambda: posts.posting_bytes,
            )
        )  # fmt: skip

    # The server's own calls

    def tick(self, _now_ms: int) -> None:
        """Go on where the last run was, once the engine is there; rotate keys."""
        if self._loading or self._problem or self._engine.loading:
            return
        if not self._loaded and self._records.exist:
            self._loading = True
            self._changes.run(self._load()).when_done(self._load_ended)
        elif self._loaded and self.keys.rotation_is_due():
            self._changes.run(self.keys.prepare(signing=True))

    def drain(self) -> None:
        """Let nothing more happen by itself: the server is stopping."""
        self._wakes.drain()

    def _load_ended(self, ticket: Ticket[None]) -> None:
        self._loading = False
        error = ticket.error
        if error is not None and not (isinstance(error, HeadraceError) and error.retryable):
            # What can be retried, such as a start that is under way, is: at the next tick.
            # Once: whoever asks for one hears of it, and so does a probe.
            self._problem = f"the subscriptions cannot be read: {error}"
            log.error("%s", self._problem)

    # Clients' calls

    def put(
        self, id: str, config: SubscriptionConfig, origin: str, checked: Checked
    ) -> Ticket[Put | Refusal]:
        """Create a subscription; the same one again is fine, for who may have its links."""
        return self._changes.run(self._put(id, config, origin, checked))

    def find(self, id: str, checked: Checked) -> Ticket[ActiveSubscription | Refusal]:
        """Return a subscription."""
        return follow(self._engine.runtime, self._find(id, checked))

    def delete(self, id: str, checked: Checked) -> Ticket[Refusal | None]:
        """Delete a subscription, if there is one."""
        return self._changes.run(self._delete(id, checked))

    def link(self, id: str, paths: list[str], checked: Checked) -> Ticket[Refusal | None]:
        """Link streams by name."""
        return cast("Ticket[Refusal | None]", self._on(id, checked, lambda a: self._link(a, paths)))

    def unlink(self, id: str, path: str, checked: Checked) -> Ticket[Refusal | None]:
        """Take a link by name away, if there is one."""
        return cast(
            "Ticket[Refusal | None]", self._on(id, checked, lambda a: self._unlink(a, path))
        )

    def claim(self, id: str, worker: str, checked: Checked) -> Ticket[ClaimedWake | Refusal]:
        """Give the wake of a subscription to a worker."""
        ticket = self._on(id, checked, lambda active: self._claim(active, worker))
        return cast("Ticket[ClaimedWake | Refusal]", ticket)

    def report(
        self, id: str, token: str, said: Report, kind: str, *, releases: bool = False
    ) -> Ticket[Reported | Refusal]:
        """Take what a receiver or a worker says of a wake of a subscription of this kind."""
        ticket = self._on(
            id, lambda _: None, lambda active: self._report(active, token, said, kind, releases)
        )
        return cast("Ticket[Reported | Refusal]", ticket)

    def jwks(self) -> Ticket[list[SigningKey] | Refusal]:
        """Return the keys to publish."""
        return follow(self._engine.runtime, self._published())

    def _published(self) -> Steps[list[SigningKey] | Refusal]:
        yield from self._ready()
        return self.keys.signing

    # Loading

    def _ready(self) -> Steps[None]:
        if not self._loaded:
            yield self._changes.run(self._load())

    def _load(self) -> Steps[None]:
        if self._loaded:
            return
        yield from self.keys.load()
        known = yield from self._records.load()
        if known:
            webhooks = any(state.config.type == WEBHOOK for state, _ in known.values())
            yield from self.keys.prepare(signing=webhooks)
        for state, size in known.values():
            yield from self._serve(ActiveSubscription(self._engine.runtime, state, size))
        self._loaded = True
        self._wakes.begin()
        for active in list(self._active.values()):
            self._wakes.go_on(active)

    def _serve(self, active: ActiveSubscription) -> Steps[None]:
        self._active[active.state.id] = active
        yield from self._links.add(active)
        self._count(active)

    # Creating and deleting

    def _put(
        self, id: str, config: SubscriptionConfig, origin: str, checked: Checked
    ) -> Steps[Put | Refusal]:
        yield from self._load()
        known = self._active.get(id)
        if known is not None:
            if known.state.config == config:
                checked(known.state)
                return Put(known, created=False)
            message = "The subscription exists with another configuration"
            return Refusal(409, "SUBSCRIPTION_ALREADY_EXISTS", message)
        if len(self._active) >= SUBSCRIPTIONS_MAX:
            raise Throttled(
                f"{SUBSCRIPTIONS_MAX} subscriptions exist, the most allowed",
                fix="delete some",
                detail={"limit": "subscriptions_max", "max": SUBSCRIPTIONS_MAX},
            )
        yield from self.keys.prepare(signing=config.type == WEBHOOK)
        random, now_ms = self._engine.random, self._engine.clock.now_ms()
        created = Created(config, random.bytes(LIFE_BYTES).hex(), now_ms, origin)
        state = Subscription(id, created)
        active = ActiveSubscription(self._engine.runtime, state, StoredSize())
        for path in config.streams:
            state.link(path, EXPLICIT, self.ends.tail(path))
        for path in (yield from self._links.matching(active)):
            state.link(path, GLOB, self.ends.tail(path))
        self._bytes.check(state.bytes)
        yield from self._records.rewrite(state, active.size)
        yield from self._serve(active)
        self._wakes.go_on(active)
        return Put(active, created=True)

    def _find(self, id: str, checked: Checked) -> Steps[ActiveSubscription | Refusal]:
        yield from self._ready()
        active = self._active.get(id)
        if active is None:
            return rules.NOT_FOUND
        checked(active.state)
        return active

    def _delete(self, id: str, checked: Checked) -> Steps[Refusal | None]:
        yield from self._load()
        active = self._active.get(id)
        if active is not None:
            checked(active.state)
            yield active.line.run(self._end(active))
        return None

    def _end(self, active: ActiveSubscription) -> Steps[None]:
        """End a subscription.  Calls that wait in its line come to one that is gone."""
        id = active.state.id
        seq = yield from self._records.append(id, active.size, [Deleted()])
        active.gone = True
        del self._active[id]
        self._links.remove(active)
        self._bytes.add(-active.counted_bytes)
        active.counted_bytes = 0
        yield from self._records.forget(id, seq + 1)

    # What is done with one subscription

    def _on(self, id: str, checked: Checked, act: Act) -> Ticket[object]:
        def steps() -> Steps[object]:
            active = yield from self._find(id, checked)
            if isinstance(active, Refusal):
                return active
            return (yield active.call(act(active)))

        return follow(self._engine.runtime, steps())

    def _link(self, active: ActiveSubscription, paths: list[str]) -> Steps[Refusal | None]:
        state = active.state
        if active.gone:
            return rules.NOT_FOUND
        if state.config.wake_stream in paths:
            return rules.invalid("The wake stream cannot be one of the streams")
        new = sum(link_bytes(path) for path in paths if path not in state.links)
        self._bytes.check(state.bytes + new, instead_of=state.bytes)
        links: list[tuple[str, int, str]] = []
        for path in paths:
            link = state.links.get(path)
            acked = self.ends.tail(path) if link is None else link.acked
            links.append((path, EXPLICIT, cursor_text(acked)))
        yield from self._wakes.keep(active, [Linked(links)])
        for path in paths:
            self._links.linked(active, path)
            active.look_at(self.ends, path)
        return None

    def _unlink(self, active: ActiveSubscription, path: str) -> Steps[Refusal | None]:
        if active.gone:
            return rules.NOT_FOUND
        link = active.state.links.get(path)
        if link is None or not link.kinds & EXPLICIT:
            return None
        yield from self._wakes.keep(active, [Unlinked([path])])
        if path not in active.state.links:
            self._links.unlinked(active, path)
        return None

    def _claim(self, active: ActiveSubscription, worker: str) -> Steps[ClaimedWake | Refusal]:
        if active.gone:
            return rules.NOT_FOUND
        self._links.catch_up()
        pending = active.has_pending(self.ends)
        decided = rules.claim(active.state, worker, self._engine.random, self._now_ms(), pending)
        if isinstance(decided, Refusal):
            return decided
        yield from self._wakes.keep(active, decided.events)
        return claimed_wake(active, self.ends, self.keys.token_secret)

    def _report(
        self, active: ActiveSubscription, token: str, said: Report, kind: str, releases: bool
    ) -> Steps[Reported | Refusal]:
        if active.gone:
            return rules.NOT_FOUND
        if active.state.config.type != kind:
            return rules.invalid(f"The subscription is not {kind}")
        self._links.catch_up()
        decided: Decision | Refusal | None
        if releases:
            state, secret = active.state, self.keys.token_secret
            decided = rules.fence(state, secret, token, said, self._now_ms())
            if decided is None:
                pending = active.has_pending(self.ends)
                decided = rules.rest(state, self._engine.random, pending)
        else:
            decided = rules.report(
                active.state,
                self.keys.token_secret,
                token,
                said,
                self.ends,
                self._engine.random,
                self._now_ms(),
                partial(self._still_pending, active),
            )
        if isinstance(decided, Refusal):
            return decided
        yield from self._wakes.keep(active, decided.events)
        return Reported(decided.next_wake)

    def _still_pending(
        self, active: ActiveSubscription, cursors: Mapping[str, Position | None]
    ) -> bool:
        links = active.state.links
        return any(
            rules.is_pending(self.ends, path, cursors.get(path, links[path].acked))
            for path in active.pending
            if path in links
        )

    # Bounds

    def _count(self, active: ActiveSubscription) -> None:
        self._bytes.add(active.state.bytes - active.counted_bytes)
        active.counted_bytes = active.state.bytes

    def _has_room(self, active: ActiveSubscription, path: str) -> bool:
        """Whether a new stream may be linked; its creation cannot be refused for it."""
        try:
            size = active.state.bytes
            self._bytes.check(size + link_bytes(path), instead_of=active.counted_bytes)
        except HeadraceError as error:
            if not active.full:
                active.full = True
                log.warning("%r is not linked to every stream: %s", active.state.id, error)
            return False
        active.full = False
        self._bytes.add(link_bytes(path))
        active.counted_bytes += link_bytes(path)
        return True

    def _now_ms(self) -> int:
        return self._engine.clock.now_ms()
