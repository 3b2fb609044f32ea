"""What can be asked of routers: put, get, page, delete, and bring destinations up to date.

A change is in the log of the source's shard and synced before it counts, and one that is refused
leaves nothing behind.  `directory.py` holds the routers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Final, NamedTuple

import msgspec

from headrace.core.errors import (
    HeadraceError,
    InvalidRequest,
    RouterCycle,
    RouterNotFound,
    Throttled,
    TopicExistsIncompatible,
    TopicNotFound,
)
from headrace.core.runtime import Ticket
from headrace.core.steps import Steps, follow_at_once
from headrace.engine.removal import retention
from headrace.engine.routers.directory import RouterDirectory
from headrace.engine.routers.requested_router import (
    changed_state,
    check_router_name,
    held_bytes,
    refuse_repoint,
    router_bytes,
    start_of,
)
from headrace.engine.routers.state import (
    Router,
    RouterInfo,
    RouterOptions,
    find_cycle,
)
from headrace.engine.state import EngineState
from headrace.engine.streams import rules
from headrace.engine.topics.config import TopicConfig
from headrace.engine.topics.lifecycle import Lifecycle
from headrace.engine.topics.names import check_name
from headrace.storage.wal.frame import ENTRY_ROUTER, ENTRY_ROUTER_DELETE, RouterDelete

Allowed = Callable[[str], bool]


class RouterPutResult(NamedTuple):
    """A router as it is after a put, and whether this call created it."""

    router: RouterInfo
    created: bool


class RouterDeleteResult(NamedTuple):
    """The answer to a delete: the name, and whether there was a router to delete.

    `left` records of the source, those after the seq `copied_to`, were not copied: the destination
    takes no more.
    """

    router: str
    deleted: bool
    left: int = 0
    copied_to: int = 0


class RouterPage(NamedTuple):
    """Some routers, and the name after which the next page begins; None: there are no more."""

    routers: list[RouterInfo]
    after: str | None


class Routers:
    """Operations on the routers of one engine."""

    def __init__(
        self, state: EngineState, lifecycle: Lifecycle, directory: RouterDirectory
    ) -> None:
        self._state = state
        self._lifecycle = lifecycle
        self.directory = directory
        self._drains = directory.drains
        # Live or being created; for looking up, never for changing.
        self.by_name: Final[Mapping[str, Router]] = directory.by_name
        self.drain_into = self._drains.into

    def drain_all(self, names: Iterable[str]) -> Ticket[None] | None:
        """Bring several topics up to date; None: they are.  See `Drains.into`."""
        routers = [router for name in names for router in self._drains.upstream(name)]
        return self._drains.run(routers) if routers else None

    # Asking for routers

    def put(
        self, name: str, options: RouterOptions, *, allowed: Allowed = lambda _name: True
    ) -> Ticket[RouterPutResult]:
        """Create or change a router; errors are checked in the order of the native API.

        `allowed`: the names that the caller may hear of.
        """
        state = self._state
        state.refuse_unready()
        for connected in (options.source, options.dest):
            state.loading.refuse(connected)
        check_router_name(name)
        if options.source == options.dest:
            raise InvalidRequest(
                f"source and dest are both {options.source!r}", fix="name two topics"
            )
        check_name(options.source)
        check_name(options.dest)
        if not options.create_dest and state.find(options.dest) is None:
            raise TopicNotFound.named(options.dest)
        rules.refuse_copies(state, state.find(options.source), state.find(options.dest))
        self._refuse_fan_in(name, options, allowed)
        existing = self.by_name.get(name)
        if existing is not None:
            refuse_repoint(existing, options)
        else:
            self._refuse_too_many()
        held = 0 if existing is None else held_bytes(existing)
        self.directory.bytes.check(router_bytes(name, options), instead_of=held)
        if not options.allow_cycle:
            self._refuse_cycle(name, options, allowed)
        ticket: Ticket[RouterPutResult] = Ticket(state.runtime)
        if existing is not None:
            self._change(existing, options, ticket)
        else:
            self._create(name, options, ticket)
        return ticket

    def get(self, name: str) -> Ticket[RouterInfo]:
        """Return a router once it has caught up with its source."""
        router = self.by_name.get(name)
        if router is None or not router.live:
            raise RouterNotFound.named(name)
        ticket: Ticket[RouterInfo] = Ticket(self._state.runtime)

        def answer(_: object = None) -> None:
            if router.live:
                ticket.resolve(router.info())
            else:
                ticket.fail(RouterNotFound.named(name))

        waiting = self._drains.run([*self._drains.upstream(router.source.name), router])
        if waiting is None:
            answer()
        else:
            waiting.when_done(answer)
        return ticket

    def page(
        self,
        prefix: str = "",
        after: str = "",
        limit: int = 100,
        *,
        source: str | None = None,
        dest: str | None = None,
        allowed: Callable[[RouterInfo], bool] | None = None,
    ) -> RouterPage:
        """Return a page of routers by name, without waiting for them to catch up."""
        self._state.refuse_unready()
        found: list[RouterInfo] = []
        for name in self.directory.names.after(after, prefix):
            router = self.by_name[name]
            if not router.live:
                continue
            if source not in (None, router.source.name) or dest not in (None, router.dest.name):
                continue
            info = router.info()
            if allowed is not None and not allowed(info):
                continue
            if len(found) == limit:
                return RouterPage(found, found[-1].router if found else after)
            found.append(info)
        return RouterPage(found, None)

    def delete(self, name: str) -> Ticket[RouterDeleteResult]:
        """Delete a router once it has copied what its destination takes; its copies stay.

        Absent is not an error.
        """
        state = self._state
        state.refuse_unready()
        ticket: Ticket[RouterDeleteResult] = Ticket(state.runtime)
        router = self.by_name.get(name)
        if router is None or not router.live:
            ticket.resolve(RouterDeleteResult(name, False))
            return ticket
        follow_at_once(state.runtime, self._delete_after_copies(router), ticket)
        return ticket

    def _delete_after_copies(self, router: Router) -> Steps[RouterDeleteResult]:
        yield from self.directory.last_copies.of_router(router)
        ticket: Ticket[RouterDeleteResult] = Ticket(self._state.runtime)
        self._delete(router, ticket)
        result: RouterDeleteResult = yield ticket
        return result

    def _delete(self, router: Router, ticket: Ticket[RouterDeleteResult]) -> None:
        state = self._state
        if not router.live:
            ticket.resolve(RouterDeleteResult(router.name, False))
            return
        try:
            state.refuse_writes(state.shard_of(router.source.id), frees=True)
        except HeadraceError as refusal:
            ticket.fail(refusal)
            return
        self.directory.unlink(router)
        source, copied_to = router.source, router.cursor
        left = source.live_between(copied_to + 1, source.head)

        def done(error: HeadraceError | None) -> None:
            if error is not None:
                if router.name not in self.by_name:
                    self.directory.link(router)
                ticket.fail(error)
                return
            self.directory.forget(router)
            ticket.resolve(RouterDeleteResult(router.name, True, left, copied_to))

        entry = RouterDelete(router.id)
        state.log(router.source, ENTRY_ROUTER_DELETE, entry, needs_sync=True, done=done)

    # Refusing

    def _refuse_fan_in(self, name: str, options: RouterOptions, allowed: Allowed) -> None:
        for other in self._state.routed.get(options.dest, ()):
            if other.name != name and other.source.name != options.source:
                fed = f"from {other.source.name!r} by {other.name!r}"
                raise TopicExistsIncompatible(
                    f"{options.dest!r} is fed "
                    + (fed if all(map(allowed, other.names)) else "by another router"),
                    fix="use another destination: one topic is fed from one source",
                    detail={"topic": options.dest, "reason": "router_dest_fan_in"},
                )

    def _refuse_too_many(self) -> None:
        routers_max = self._state.settings.max_routers
        if routers_max and len(self.by_name) >= routers_max:
            raise Throttled(
                f"{len(self.by_name)} routers exist, the most allowed",
                fix="delete routers, or raise HEADRACE_MAX_ROUTERS",
                detail={"limit": "max_routers", "max": routers_max},
            )

    def _refuse_cycle(self, name: str, options: RouterOptions, allowed: Allowed) -> None:
        by_name, sources = self._state.by_name, self.directory.forwarder.sources

        def next_of(topic_name: str) -> Iterable[str]:
            topic = by_name.get(topic_name)
            job = sources.get(topic.id) if topic is not None else None
            return [r.dest.name for r in job.routers if r.name != name] if job else ()

        cycle = find_cycle(next_of, options.source, options.dest)
        if cycle is None:
            return
        shown = [topic_name for topic_name in cycle if allowed(topic_name)]
        detail: dict[str, object] = {"cycle": shown}
        way = " -> ".join(shown)
        hidden = len(cycle) - len(shown)
        if hidden:
            detail["others"] = hidden
            way = f"{options.source!r} and {len(cycle) - 2} others, {hidden} of them not this key's"
        raise RouterCycle(
            f"records would go round: {way}",
            fix="send allow_cycle if that is meant: a record is forwarded 8 times at most",
            detail=detail,
        )

    # Changing the set

    def _create(self, name: str, options: RouterOptions, ticket: Ticket[RouterPutResult]) -> None:
        state = self._state
        known = state.find(options.source)
        if known is not None:
            retention.enforce(state, known)
        cursor = start_of(options, known)
        missing = [n for n in (options.source, options.dest) if state.find(n) is None]
        self._lifecycle.check_topics_max(len(missing))
        for shard in state.shards:
            state.refuse_writes(shard)
        # Nothing can be refused any more.
        waiting = [self._lifecycle.put(topic_name, TopicConfig()) for topic_name in missing]
        source, dest = state.find(options.source), state.find(options.dest)
        assert source is not None and dest is not None
        router = Router(self.directory.take_id(), name, source, dest)
        router.cursor = cursor
        router.set_options(changed_state(router, options))
        self.directory.link(router)
        router.live = False
        failures: list[BaseException] = []
        left = 1 + len(waiting)

        def one_done(error: BaseException | None) -> None:
            nonlocal left
            left -= 1
            if error is not None:
                failures.append(error)
            if left:
                return
            if failures:
                self.directory.unlink(router)
                self.directory.forget(router)
                ticket.fail(failures[0])
                return
            router.live = self.by_name.get(name) is router
            self.directory.forwarder.changed.add(router.id)
            ticket.resolve(RouterPutResult(router.info(), True))
            self.directory.start_jobs([router])

        for put in waiting:
            put.when_done(lambda done: one_done(done.error))
        state.log(source, ENTRY_ROUTER, router.state(), needs_sync=True, done=one_done)

    def _change(
        self, router: Router, options: RouterOptions, ticket: Ticket[RouterPutResult]
    ) -> None:
        """Change the options of a router, which keeps its cursor and its totals."""
        self._state.refuse_writes(self._state.shard_of(router.source.id))
        # What was written before the change is forwarded with the old options.
        waiting = self._drains.run([*self._drains.upstream(router.source.name), router])
        if waiting is None:
            self._log_change(router, options, ticket)
        else:
            waiting.when_done(lambda _: self._log_change(router, options, ticket))

    def _log_change(
        self, router: Router, options: RouterOptions, ticket: Ticket[RouterPutResult]
    ) -> None:
        state = self._state
        try:
            state.refuse_writes(state.shard_of(router.source.id))
            if self.by_name.get(router.name) is not router:
                raise RouterNotFound.named(router.name)  # deleted while this waited
        except HeadraceError as refusal:
            ticket.fail(refusal)
            return
        # The entry carries no cursor: the copies before it may reach the disk later than it does.
        entry = msgspec.structs.replace(changed_state(router, options), cursor=0, forwarded_total=0)

        def done(error: HeadraceError | None) -> None:
            if error is not None:
                ticket.fail(error)
                return
            self.directory.change(router, entry)
            self.directory.forwarder.changed.add(router.id)
            ticket.resolve(RouterPutResult(router.info(), False))

        state.log(router.source, ENTRY_ROUTER, entry, needs_sync=True, done=done)
