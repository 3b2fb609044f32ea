"""The routers of one engine: found by name and id, tied to their topics, kept across restarts.

Only this file adds a router to the directory or takes one out.  `operations.py` decides which, and
logs it; `forwarding.py` does the copying; `replay.py` reads routers and copies back after a restart
and hands them over here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from headrace.core.bounds import ByteBound
from headrace.core.steps import Steps
from headrace.engine.routers.drain import Drains
from headrace.engine.routers.forwarding import Forwarder
from headrace.engine.routers.last_copies import LastCopies
from headrace.engine.routers.requested_router import held_bytes
from headrace.engine.routers.snapshot import RouterParts
from headrace.engine.routers.source_job import SourceJob
from headrace.engine.routers.state import CopiedKeys, HopRuns, Router
from headrace.engine.state import EngineState
from headrace.engine.topics.names import NameIndex
from headrace.engine.topics.topic import Topic
from headrace.storage.wal.frame import RouterPut

# A record is forwarded at most `router_hops_max` times, and each pass is bounded.
LAST_DRAINS_MAX = 1_000


class RouterDirectory:
    """The routers of one engine, and what forwards and drains them."""

    def __init__(self, state: EngineState) -> None:
        self._state = state
        self.forwarder = Forwarder(state)
        self.drains = Drains(state, self.forwarder)
        self.forwarder.on_settled = self.drains.wake
        self.last_copies = LastCopies(state, self.forwarder, self.drains)
        self._parts = RouterParts(state, self)
        self.by_name: dict[str, Router] = {}
        self.by_id: dict[int, Router] = {}  # also those whose delete is not durable yet
        self.next_id = 1
        self.names = NameIndex()
        self.bytes = ByteBound("router", state.settings, fix="use shorter names")  # of `by_name`
        self._detached: dict[int, list[Router]] = {}  # by topic that is being deleted
        state.connect_routers(self, self.drains.into)

    def __len__(self) -> int:
        return len(self.by_name)

    @property
    def blocked(self) -> int:
        """Routers whose destination takes nothing for now."""
        return len(self.forwarder.retries)

    # Adding and removing

    def take_id(self) -> int:
        """Return the id of a new router; no router has had it."""
        router_id = self.next_id
        self.next_id += 1
        return router_id

    def link(self, router: Router) -> None:
        """Add a router that forwards from now on."""
        forwarder, source = self.forwarder, router.source
        self.by_id[router.id] = self.by_name[router.name] = router
        self.bytes.add(held_bytes(router))
        self.names.add(router.name)
        self._state.add_route(router)
        job = forwarder.sources.get(source.id)
        if job is None:
            job = forwarder.sources[source.id] = SourceJob(forwarder, source)
        job.routers.append(router)
        router.live = True

    def unlink(self, router: Router) -> None:
        """Take a router out of use: from now on it forwards nothing."""
        router.live = False
        del self.by_name[router.name]
        self.bytes.add(-held_bytes(router))
        self.names.remove(router.name)
        self._state.remove_route(router)
        job = self.forwarder.sources[router.source.id]
        job.routers.remove(router)
        if not job.routers:
            job.close()
            del self.forwarder.sources[router.source.id]
            self.forwarder.hops.pop(router.source.id, None)
        self.drains.wake()

    def change(self, router: Router, state: RouterPut) -> None:
        """Give a router other options."""
        before = held_bytes(router)
        router.set_options(state)
        if self.by_name.get(router.name) is router:
            self.bytes.add(held_bytes(router) - before)

    def forget(self, router: Router) -> None:
        """Forget a router whose delete is durable."""
        self.by_id.pop(router.id, None)
        self.forwarder.changed.add(router.id)

    def _of(self, topic: Topic) -> list[Router]:
        """Return every router from or to a topic."""
        job = self.forwarder.sources.get(topic.id)
        found = [*(job.routers if job is not None else ())]
        return found + [r for r in self._state.routed.get(topic.name, ()) if r.dest is topic]

    def count_foreign(self, topic: Topic, allowed: Callable[[str], bool]) -> int:
        """Return how many routers from or to a topic have a name in them that is not allowed."""
        return sum(not all(map(allowed, r.names)) for r in self._of(topic))

    def is_source(self, topic: Topic) -> bool:
        """Return whether a router reads from this topic."""
        return topic.id in self.forwarder.sources

    def copy_open(self, topic: Topic) -> Steps[None]:
        """Return the steps that copy what a topic holds, while writers may go on."""
        return self.last_copies.of_open(topic)

    def copy_closed(self, topic: Topic) -> Steps[None]:
        """Return the steps that copy the last of it, or announce it, when there are no writers."""
        return self.last_copies.of_closed(topic)

    def detach(self, topic: Topic) -> list[str]:
        """Unlink every router from or to a topic that is being deleted; return their names."""
        found = self._of(topic)
        for router in found:
            self.unlink(router)
        if found:
            self._detached[topic.id] = found
        return sorted(router.name for router in found)

    def attach(self, topic: Topic) -> None:
        """Link them again: the topic was not deleted after all."""
        for router in self._detached.pop(topic.id, ()):
            if router.name not in self.by_name:
                self.link(router)

    def detached(self, topic: Topic) -> None:
        """Forget them: the topic is gone."""
        for router in self._detached.pop(topic.id, ()):
            self.forget(router)
        if self.forwarder.keys.pop(topic.id, None) is not None:
            self.forwarder.keys_changed.add(topic.id)

    def start_jobs(self, routers: Iterable[Router]) -> None:
        """Ask for a turn of every source that these routers have not read to its end."""
        for router in routers:
            job = self.forwarder.sources.get(router.source.id)
            if job is not None and router.cursor < router.source.head:
                self._state.turns.enqueue(job)

    # Checkpoints: nothing is forwarded while topics and cursors are captured together

    def hold(self) -> None:
        """Begin no pass until `release`."""
        self.forwarder.held = True

    def release(self) -> None:
        """Go on after `hold`."""
        if self.forwarder.held:
            self.forwarder.held = False
            self.start_jobs(self.by_id.values())
            self.drains.wake()

    def connected(self) -> set[int]:
        """Return the ids of all topics that routers read from or write to."""
        return {t.id for r in self.by_id.values() for t in (r.source, r.dest)}

    def capture(self) -> dict[str, bytes]:
        """Return the parts of a snapshot that changed, by name; empty: gone."""
        return self._parts.capture()

    def give_back(self, parts: dict[str, bytes]) -> None:
        """Capture these parts once more: their snapshot was not written."""
        self._parts.give_back(parts)

    # Start and end

    def adopt(
        self,
        states: Iterable[RouterPut],
        hops: dict[int, HopRuns],
        keys: dict[int, dict[tuple[str, int, int], CopiedKeys]],
        next_id: int,
        stored_parts: set[str],
    ) -> None:
        """Take over the routers that recovery found, except those whose topics are gone."""
        topics = self._state.by_id
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
            self.link(router)
            self.forwarder.changed.add(router.id)
        for topic_id, runs in hops.items():
            job = self.forwarder.sources.get(topic_id)
            if job is not None:
                runs.drop_to(min(router.cursor for router in job.routers))
                self.forwarder.hops[topic_id] = runs
        self.forwarder.keys.update({d: sets for d, sets in keys.items() if d in topics})
        self.forwarder.keys_changed.update(keys)

    def start(self) -> None:
        """Go on where the last run stopped: the engine takes requests."""
        self.start_jobs(self.by_id.values())

    def finish(self) -> None:
        """Forward what is left before a clean exit, as far as the destinations take it."""
        state = self._state
        if not state.ready:
            return
        for _ in range(LAST_DRAINS_MAX):
            waiting = self.drains.run([*self.by_id.values()])
            if waiting is None and not self.forwarder.has_work(self.by_id.values()):
                return
            state.runtime.drain()
            if waiting is not None and not waiting.done:
                return  # it waits for what does not come without the loop
