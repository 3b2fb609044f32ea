"""The set of routers: put, shown, listed, deleted, brought up to date, and kept across restarts.

Only this file adds to or takes from the set.  A change is in the log of the source's shard and
synced before it counts, and one that is refused leaves nothing behind.  `forwarding.py` does the
copying; `replay.py` brings routers and copies back after a restart.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import NamedTuple

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
from headrace.engine import retention
from headrace.engine.append import Appender
from headrace.engine.core_state import Core, check_name
from headrace.engine.lifecycle import Lifecycle
from headrace.engine.names import NameIndex
from headrace.engine.routers.drain import Drains
from headrace.engine.routers.forwarding import Forwarder, SourceJob
from headrace.engine.routers.puts import (
    changed_state,
    check_router_name,
    refuse_repoint,
    start_of,
)
from headrace.engine.routers.snapshot import RouterParts
from headrace.engine.routers.state import (
    CopiedKeys,
    HopRuns,
    Router,
    RouterInfo,
    RouterOptions,
    find_cycle,
)
from headrace.engine.topic import Topic
from headrace.engine.topic_config import TopicConfig
from headrace.storage.frame import (
    ENTRY_ROUTER,
    ENTRY_ROUTER_DELETE,
    RouterDelete,
    RouterPut,
)

# A record goes round at most eight times, and each pass is bounded.
LAST_DRAINS_MAX = 1_000


class RouterSet(NamedTuple):
    """A router as it is after a put, and whether this call created it."""

    router: RouterInfo
    created: bool


class RouterGone(NamedTuple):
    """Whether there was a router to delete."""

    router: str
    deleted: bool


class RouterPage(NamedTuple):
    """Some routers, and the name after which the next page begins; None: there are no more."""

    routers: list[RouterInfo]
    after: str | None


class Routers:
    """The routers of one engine."""

    def __init__(self, core: Core, lifecycle: Lifecycle, appender: Appender) -> None:
        self._core = core
        self._lifecycle = lifecycle
        self.forwarder = Forwarder(core, appender)
        self._drains = Drains(core, self.forwarder)
        self.forwarder.on_settled = self._drains.wake
        self._parts = RouterParts(core, self)
        self.by_name: dict[str, Router] = {}
        self.by_id: dict[int, Router] = {}  # also those whose delete is on its way
        self.next_id = 1
        self._names = NameIndex()
        self._detached: dict[int, list[Router]] = {}  # by topic that is being deleted
        core.forwarding = self
        core.drain = self.drain_into = self._drains.into

    def __len__(self) -> int:
        return len(self.by_name)

    @property
    def blocked(self) -> int:
        """Routers whose destination takes nothing for now."""
        return len(self.forwarder.retries)

    def drain_all(self, names: Iterable[str]) -> Ticket[None] | None:
        """`drain_into` for several topics."""
        routers = [router for name in names for router in self._drains.upstream(name)]
        return self._drains.run(routers) if routers else None

    # Asking for routers

    def put(self, name: str, options: RouterOptions) -> Ticket[RouterSet]:
        """Create a router, or change the one that is there, in the order of the native API."""
        core = self._core
        core.refuse_unready()
        check_router_name(name)
        if options.source == options.dest:
            raise InvalidRequest(
                f"source and dest are both {options.source!r}", fix="name two topics"
            )
        check_name(options.source)
        check_name(options.dest)
        if not options.create_dest and core.find(options.dest) is None:
            raise TopicNotFound.named(options.dest)
        self._refuse_fan_in(name, options)
        existing = self.by_name.get(name)
        if existing is not None:
            refuse_repoint(existing, options)
        else:
            self._refuse_too_many()
        if not options.allow_cycle:
            self._refuse_cycle(name, options)
        ticket: Ticket[RouterSet] = Ticket(core.runtime)
        if existing is not None:
            self._change(existing, options, ticket)
        else:
            self._create(name, options, ticket)
        return ticket

    def get(self, name: str) -> Ticket[RouterInfo]:
        """A router as it is once it has caught up with its source."""
        router = self.by_name.get(name)
        if router is None or not router.live:
            raise RouterNotFound.named(name)
        ticket: Ticket[RouterInfo] = Ticket(self._core.runtime)

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
        """A page of routers by name, as they are."""
        self._core.refuse_unready()
        found: list[RouterInfo] = []
        for name in self._names.after(after, prefix):
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

    def delete(self, name: str) -> Ticket[RouterGone]:
        """Forward nothing more; copies stay.  Absent is not an error."""
        core = self._core
        core.refuse_unready()
        ticket: Ticket[RouterGone] = Ticket(core.runtime)
        router = self.by_name.get(name)
        if router is None or not router.live:
            ticket.resolve(RouterGone(name, False))
            return ticket
        # What was written before is forwarded.
        waiting = self._drains.run([*self._drains.upstream(router.source.name), router])
        if waiting is None:
            self._delete(router, ticket)
        else:
            waiting.when_done(lambda _: self._delete(router, ticket))
        return ticket

    def _delete(self, router: Router, ticket: Ticket[RouterGone]) -> None:
        core = self._core
        if not router.live:
            ticket.resolve(RouterGone(router.name, False))
            return
        try:
            core.refuse_writes(core.shard_of(router.source.id))
        except HeadraceError as refusal:
            ticket.fail(refusal)
            return
        self._unlink(router)

        def done(error: HeadraceError | None) -> None:
            if error is not None:
                if router.name not in self.by_name:
                    self._link(router)
                ticket.fail(error)
                return
            self._forget(router)
            ticket.resolve(RouterGone(router.name, True))

        entry = RouterDelete(router.id)
        core.log(router.source, ENTRY_ROUTER_DELETE, entry, needs_sync=True, done=done)

    # Refusing

    def _refuse_fan_in(self, name: str, options: RouterOptions) -> None:
        for other in self._core.routed.get(options.dest, ()):
            if other.name != name and other.source.name != options.source:
                raise TopicExistsIncompatible(
                    f"{options.dest!r} is fed from {other.source.name!r} by {other.name!r}",
                    fix="use another destination: one topic is fed from one source",
                    detail={"topic": options.dest, "reason": "router_dest_fan_in"},
                )

    def _refuse_too_many(self) -> None:
        routers_max = self._core.settings.max_routers
        if routers_max and len(self.by_name) >= routers_max:
            raise Throttled(
                f"{len(self.by_name)} routers exist, the most allowed",
                fix="delete routers, or raise HEADRACE_MAX_ROUTERS",
                detail={"limit": "max_routers", "max": routers_max},
            )

    def _refuse_cycle(self, name: str, options: RouterOptions) -> None:
        by_name, sources = self._core.by_name, self.forwarder.sources

        def next_of(topic_name: str) -> Iterable[str]:
            topic = by_name.get(topic_name)
            job = sources.get(topic.id) if topic is not None else None
            return [r.dest.name for r in job.routers if r.name != name] if job else ()

        cycle = find_cycle(next_of, options.source, options.dest)
        if cycle is not None:
            raise RouterCycle(
                f"records would go round: {' -> '.join(cycle)}",
                fix="send allow_cycle if that is meant: a record is forwarded 8 times at most",
                detail={"cycle": cycle},
            )

    # Changing the set

    def _create(self, name: str, options: RouterOptions, ticket: Ticket[RouterSet]) -> None:
        core = self._core
        known = core.find(options.source)
        if known is not None:
            retention.enforce(core, known)
        cursor = start_of(options, known)
        missing = [n for n in (options.source, options.dest) if core.find(n) is None]
        self._lifecycle.check_topics_max(len(missing))
        for shard in core.shards:
            core.refuse_writes(shard)
        # Nothing can be refused any more.
        waiting = [self._lifecycle.put(topic_name, TopicConfig()) for topic_name in missing]
        source, dest = core.find(options.source), core.find(options.dest)
        assert source is not None and dest is not None
        router = Router(self.next_id, name, source, dest)
        router.cursor = cursor
        self.next_id += 1
        router.set_options(changed_state(router, options))
        self._link(router)
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
                self._unlink(router)
                self._forget(router)
                ticket.fail(failures[0])
                return
            router.live = self.by_name.get(name) is router
            self.forwarder.changed.add(router.id)
            ticket.resolve(RouterSet(router.info(), True))
            self._start_jobs([router])

        for put in waiting:
            put.when_done(lambda done: one_done(done.error))
        core.log(source, ENTRY_ROUTER, router.state(), needs_sync=True, done=one_done)

    def _change(self, router: Router, options: RouterOptions, ticket: Ticket[RouterSet]) -> None:
        """Other knobs for a router that keeps its cursor and its totals."""
        self._core.refuse_writes(self._core.shard_of(router.source.id))
        # What was written before is forwarded as it was to be then.
        waiting = self._drains.run([*self._drains.upstream(router.source.name), router])
        if waiting is None:
            self._log_change(router, options, ticket)
        else:
            waiting.when_done(lambda _: self._log_change(router, options, ticket))

    def _log_change(
        self, router: Router, options: RouterOptions, ticket: Ticket[RouterSet]
    ) -> None:
        core = self._core
        try:
            core.refuse_writes(core.shard_of(router.source.id))
            if self.by_name.get(router.name) is not router:
                raise RouterNotFound.named(router.name)  # deleted while this waited
        except HeadraceError as refusal:
            ticket.fail(refusal)
            return
        # Its place is what the other entries say: theirs may not be on disk yet, and this will.
        state = msgspec.structs.replace(changed_state(router, options), cursor=0, forwarded_total=0)

        def done(error: HeadraceError | None) -> None:
            if error is not None:
                ticket.fail(error)
                return
            router.set_options(state)
            self.forwarder.changed.add(router.id)
            ticket.resolve(RouterSet(router.info(), False))

        core.log(router.source, ENTRY_ROUTER, state, needs_sync=True, done=done)

    def _link(self, router: Router) -> None:
        forwarder, source = self.forwarder, router.source
        self.by_id[router.id] = self.by_name[router.name] = router
        self._names.add(router.name)
        self._core.routed.setdefault(router.dest.name, []).append(router)
        job = forwarder.sources.get(source.id)
        if job is None:
            job = forwarder.sources[source.id] = SourceJob(forwarder, source)
        job.routers.append(router)
        router.live = True

    def _unlink(self, router: Router) -> None:
        """From now on it forwards nothing."""
        router.live = False
        del self.by_name[router.name]
        self._names.remove(router.name)
        into = self._core.routed[router.dest.name]
        into.remove(router)
        if not into:
            del self._core.routed[router.dest.name]
        job = self.forwarder.sources[router.source.id]
        job.routers.remove(router)
        if not job.routers:
            job.close()
            del self.forwarder.sources[router.source.id]
            self.forwarder.hops.pop(router.source.id, None)
        self._drains.wake()

    def _forget(self, router: Router) -> None:
        """Its delete is durable."""
        self.by_id.pop(router.id, None)
        self.forwarder.changed.add(router.id)

    def detach(self, topic: Topic) -> list[str]:
        """A topic is being deleted, and every router from or to it with it; their names."""
        job = self.forwarder.sources.get(topic.id)
        found = [*(job.routers if job is not None else ())]
        found += [r for r in self._core.routed.get(topic.name, ()) if r.dest is topic]
        for router in found:
            self._unlink(router)
        if found:
            self._detached[topic.id] = found
        return sorted(router.name for router in found)

    def attach(self, topic: Topic) -> None:
        """It was not deleted after all."""
        for router in self._detached.pop(topic.id, ()):
            if router.name not in self.by_name:
                self._link(router)

    def detached(self, topic: Topic) -> None:
        """It is gone."""
        for router in self._detached.pop(topic.id, ()):
            self._forget(router)
        if self.forwarder.keys.pop(topic.id, None) is not None:
            self.forwarder.keys_changed.add(topic.id)

    def _start_jobs(self, routers: Iterable[Router]) -> None:
        for router in routers:
            job = self.forwarder.sources.get(router.source.id)
            if job is not None and router.cursor < router.source.head:
                self._core.turns.enqueue(job)

    # Checkpoints: nothing is forwarded while topics and cursors are captured together

    def hold(self) -> None:
        self.forwarder.held = True

    def release(self) -> None:
        if self.forwarder.held:
            self.forwarder.held = False
            self._start_jobs(self.by_id.values())
            self._drains.wake()

    def connected(self) -> set[int]:
        return {t.id for r in self.by_id.values() for t in (r.source, r.dest)}

    def capture(self) -> dict[str, bytes]:
        return self._parts.capture()

    def give_back(self, parts: dict[str, bytes]) -> None:
        self._parts.give_back(parts)

    # Coming back

    def adopt(
        self,
        states: Iterable[RouterPut],
        hops: dict[int, HopRuns],
        keys: dict[int, dict[tuple[str, int, int], CopiedKeys]],
        next_id: int,
        stored_parts: set[str],
    ) -> None:
        """After a recovery: these routers are there, as far as their topics are."""
        topics = self._core.by_id
        self.next_id = next_id
        self._parts.stored_before(stored_parts)
        for state in sorted(states, key=lambda state: state.router_id):
            source, dest = topics.get(state.source_id), topics.get(state.dest_id)
            if source is None or dest is None:
                self.forwarder.changed.add(state.router_id)
                continue
            router = Router(state.router_id, state.name, source, dest)
            router.cursor = min(state.cursor, source.head)
            router.forwarded_total = state.forwarded_total
            router.set_options(state)
            self._link(router)
            self.forwarder.changed.add(router.id)
        for topic_id, runs in hops.items():
            job = self.forwarder.sources.get(topic_id)
            if job is not None:
                runs.drop_to(min(router.cursor for router in job.routers))
                self.forwarder.hops[topic_id] = runs
        self.forwarder.keys.update({d: sets for d, sets in keys.items() if d in topics})
        self.forwarder.keys_changed.update(keys)

    def start(self) -> None:
        """The engine takes requests: go on where the last run stopped."""
        self._start_jobs(self.by_id.values())

    def finish(self) -> None:
        """Before a clean exit: forward what is left, as far as the destinations take it."""
        core = self._core
        if not core.ready:
            return
        for _ in range(LAST_DRAINS_MAX):
            waiting = self._drains.run([*self.by_id.values()])
            if waiting is None and not self.forwarder.has_work(self.by_id.values()):
                return
            core.runtime.drain()
