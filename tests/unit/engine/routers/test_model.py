"""Routers against a model of plain dictionaries, in any order of calls and restarts.

Circles are not in it: what overtakes what in one would be the engine again.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from headrace.core.clock import ManualClock, SeededRandom
from headrace.core.errors import HeadraceError, RecordTooLarge, TopicFull
from headrace.core.runtime import StepRuntime
from headrace.core.settings import Settings
from headrace.engine.engine import Engine
from headrace.engine.removal.deleting import TagMatch
from headrace.engine.routers.state import AT_LEAST_ONCE, EXACTLY_ONCE, RouterOptions
from headrace.storage.block import Batch
from headrace.testing.simdisk import SimDisk

NAMES = ("a", "b", "c", "d", "e")
TAGS = (None, "x", "xy", "z")
FILTERS = (None, TagMatch("x"), TagMatch("x", True), TagMatch("nothing"))
CONFIGS = (
    {},
    {"durability": "fsync"},
    {"cap_records": 4},
    {"cap_records": 3, "discard": "reject"},
)


@dataclass
class Model:
    """A topic: its live records by seq, with what is remembered of each, and its losses."""

    number: int
    cap: int = 0
    reject: bool = False
    head: int = 0
    base: int = 0
    floor: int = 0
    live: dict[int, tuple[bytes, str | None]] = field(default_factory=dict)
    trims: set[int] = field(default_factory=set)
    # router name and source -> seq of the source -> seqs of its copies
    copies: dict[tuple[str, int], dict[int, list[int]]] = field(default_factory=dict)

    def append(self, data: bytes, tag: str | None) -> int:
        self.head += 1
        self.live[self.head] = (data, tag)
        return self.head

    def evict(self) -> None:
        while self.cap and not self.reject and len(self.live) > self.cap:
            self.floor = min(self.live)
            del self.live[self.floor]
        self.skip()

    def skip(self) -> None:
        self.base = max(self.base, self.floor)
        while self.base < self.head and self.base + 1 not in self.live:
            self.base += 1

    def hole(self) -> None:
        self.head += 1
        if self.base + 1 == self.head:
            self.base = self.floor = self.head
        else:
            self.trims.add(self.head)

    def announced(self) -> set[int]:
        return set(range(1, self.floor + 1)) | self.trims

    def full(self) -> bool:
        return self.reject and len(self.live) >= self.cap

    def lost(self, seq: int) -> bool:
        return seq <= self.floor or seq in self.trims


@dataclass
class ModelRouter:
    name: str
    source: str
    dest: str
    cursor: int
    match: TagMatch | None
    keep_tag: bool
    once: bool
    total: int = 0


class RouterMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.clock = ManualClock()
        self.disk = SimDisk()
        self.topics: dict[str, Model] = {}
        self.routers: dict[str, ModelRouter] = {}
        self.made = 0
        self.serial = 0
        self.engine: Engine
        self.open()
        for name, config in zip(NAMES, CONFIGS, strict=False):
            self.create(name, config)
        # From one that evicts, and to one that refuses, because chance seldom finds those.
        self.route("r", "c", "a", None, True, False, False)
        self.route("s", "b", "d", TagMatch("x", True), True, True, False)

    def open(self) -> None:
        small = Settings(wal_file_bytes=1 << 16, wal_batch_bytes_max=1 << 14)
        self.engine = Engine(self.disk, StepRuntime(self.clock), small, random=SeededRandom(1))
        self.engine.recover()

    def topic(self, name: str) -> Model:
        if name not in self.topics:
            self.made += 1
            self.topics[name] = Model(self.made)
        return self.topics[name]

    # What may happen

    @rule(name=st.sampled_from(NAMES), config=st.sampled_from(CONFIGS))
    def create(self, name: str, config: dict[str, object]) -> None:
        if name not in self.topics:
            self.engine.put_topic(name, config).result()
            model = self.topic(name)
            model.cap = config.get("cap_records", 0)  # type: ignore[assignment]
            model.reject = config.get("discard") == "reject"

    @rule(name=st.sampled_from(NAMES), tags=st.lists(st.sampled_from(TAGS), min_size=1, max_size=6))
    def write(self, name: str, tags: list[str | None]) -> None:
        data = []
        for _ in tags:
            self.serial += 1
            data.append(b"%d" % self.serial)
        ticket = self.engine.append(name, Batch(data, tags=tags))
        self.engine.runtime.wait(ticket)
        if ticket.error is not None:
            assert isinstance(ticket.error, TopicFull | RecordTooLarge)
            return
        model = self.topic(name)
        for one, tag in zip(data, tags, strict=True):
            model.append(one, tag)
        model.evict()
        self.settle()

    @rule(rows=st.integers(5, 7))
    def burst(self, rows: int) -> None:
        if "c" in self.topics:
            self.write("c", ["x"] * rows)

    @rule(name=st.sampled_from(NAMES), tag=st.sampled_from(TAGS[1:]))
    def delete_tag(self, name: str, tag: str) -> None:
        if name in self.topics:
            self.engine.delete(name, match=tag).result()
            model = self.topics[name]
            model.live = {seq: r for seq, r in model.live.items() if r[1] != tag}
            model.skip()
            self.settle()

    @rule(name=st.sampled_from(NAMES), ahead=st.integers(0, 4))
    def delete_before(self, name: str, ahead: int) -> None:
        if name in self.topics:
            model = self.topics[name]
            seq = model.base + 1 + ahead
            self.engine.delete(name, before_seq=seq).result()
            model.live = {s: r for s, r in model.live.items() if s >= seq}
            model.base = max(model.base, min(seq - 1, model.head))
            model.skip()
            self.settle()

    @rule(
        name=st.sampled_from(("r", "s", "t", "u")),
        source=st.sampled_from(NAMES),
        dest=st.sampled_from(NAMES),
        match=st.sampled_from(FILTERS),
        keep_tag=st.booleans(),
        once=st.booleans(),
        backfill=st.booleans(),
    )
    def route(
        self,
        name: str,
        source: str,
        dest: str,
        match: TagMatch | None,
        keep_tag: bool,
        once: bool,
        backfill: bool,
    ) -> None:
        twin = any(r.dest == dest and r.name != name for r in self.routers.values())
        if twin and dest in self.topics and self.topics[dest].reject:
            return  # who gets the last place is nobody's business
        asked = RouterOptions(
            source=source,
            dest=dest,
            filter=match,
            preserve_tag=keep_tag,
            guarantee=EXACTLY_ONCE if once else AT_LEAST_ONCE,
            backfill=backfill,
        )
        refusal = self.refusal(name, asked)
        if refusal is not None:
            with pytest.raises(HeadraceError) as refused:
                self.engine.routers.put(name, asked)
            assert refusal == (refused.value.detail.get("reason") or refused.value.code)
            return
        answer = self.engine.routers.put(name, asked).result()
        known = self.routers.get(name)
        assert answer.created == (known is None)
        origin, _ = self.topic(source), self.topic(dest)
        cursor = origin.base if backfill else origin.head
        self.routers[name] = ModelRouter(
            name,
            source,
            dest,
            cursor if known is None else known.cursor,
            match,
            keep_tag,
            once,
            0 if known is None else known.total,
        )
        self.settle()

    def refusal(self, name: str, asked: RouterOptions) -> str | None:
        if asked.source == asked.dest:
            return "invalid_request"
        for other in self.routers.values():
            if other.name != name and other.dest == asked.dest and other.source != asked.source:
                return "router_dest_fan_in"
        known = self.routers.get(name)
        if known is not None and (known.source, known.dest) != (asked.source, asked.dest):
            return "router_repoint_forbidden"
        ahead, seen = [asked.dest], set()
        while ahead:
            at = ahead.pop()
            if at == asked.source:
                return "router_cycle"
            if at not in seen:
                seen.add(at)
                ahead += [r.dest for r in self.routers.values() if r.source == at != name]
        return None

    @precondition(lambda self: self.routers)
    @rule(data=st.data())
    def unroute(self, data: st.DataObject) -> None:
        name = data.draw(st.sampled_from(sorted(self.routers)))
        assert self.engine.routers.delete(name).result().deleted
        del self.routers[name]

    @rule(name=st.sampled_from(NAMES))
    def drop(self, name: str) -> None:
        answer = self.engine.delete_topic(name).result()
        gone = sorted(r.name for r in self.routers.values() if name in (r.source, r.dest))
        assert answer.deleted == (name in self.topics)
        assert list(answer.routers_removed) == gone
        for router in self.routers.values():
            if router.source == name:
                self.announce_rest(router)
        self.topics.pop(name, None)
        for router in gone:
            del self.routers[router]

    def announce_rest(self, router: ModelRouter) -> None:
        """What a full destination did not take before its source went is lost, not deleted."""
        source, dest = self.topics[router.source], self.topics[router.dest]
        for seq in range(router.cursor + 1, source.head + 1):
            if seq in source.live or source.lost(seq):
                dest.hole()
        dest.evict()

    @rule()
    def checkpoint(self) -> None:
        self.engine.checkpoint().result()

    @rule()
    def kill(self) -> None:
        self.engine.abandon()
        self.disk = self.disk.image(self.disk.position, "all", 0, power_loss=False)
        self.open()

    @rule()
    def stop(self) -> None:
        self.engine.close()
        self.disk = self.disk.copy()
        self.open()

    # What must be true

    def settle(self) -> None:
        """Forward in the model whatever can be."""
        moved = True
        while moved:
            moved = False
            for router in self.routers.values():
                moved = self.forward(router) or moved

    def forward(self, router: ModelRouter) -> bool:
        source, dest = self.topics[router.source], self.topics[router.dest]
        moved = False
        losing = source.lost(router.cursor + 1)
        while router.cursor < source.head:
            seq = router.cursor + 1
            if source.lost(seq) != losing:
                break  # another pass, after those of other routers
            if losing:
                dest.hole()
                router.total += 1
            elif seq in source.live:
                data, tag = source.live[seq]
                if self.wanted(router, source, dest, seq, tag):
                    if dest.full():
                        break
                    copy = dest.append(data, tag if router.keep_tag else None)
                    router.total += 1
                    if router.once:
                        known = dest.copies.setdefault((router.name, source.number), {})
                        known.setdefault(seq, []).append(copy)
            router.cursor = seq
            moved = True
        dest.evict()
        return moved

    def wanted(
        self, router: ModelRouter, source: Model, dest: Model, seq: int, tag: str | None
    ) -> bool:
        match = router.match
        text = tag or ""
        fits = match is None or (text.startswith(match.tag) if match.prefix else text == match.tag)
        if not fits:
            return False
        known = dest.copies.get((router.name, source.number), {}) if router.once else {}
        return not any(copy in dest.live for copy in known.get(seq, ()))

    @invariant()
    def agree(self) -> None:
        for name, model in self.topics.items():
            live, announced, cursor = {}, set(), 0
            while True:
                page = self.engine.read(name, cursor).result()
                if page.tombstone is not None:
                    announced.update(range(page.tombstone.gap_from, page.tombstone.gap_to + 1))
                live.update({r.seq: (r.data, r.tag) for r in page.records})
                cursor = page.next_from_seq
                if page.caught_up:
                    break
            assert live == model.live, name
            assert announced == model.announced(), name
            state = self.engine.topic(name)
            assert (state.head_seq, state.earliest_seq) == (model.head, model.base + 1), name
        assert sorted(self.engine.state.by_name) == sorted(self.topics)
        for router in self.routers.values():
            info = self.engine.routers.get(router.name).result()
            assert (info.cursor, info.forwarded_total) == (router.cursor, router.total), router
        assert sorted(self.engine.routers.by_name) == sorted(self.routers)

    def teardown(self) -> None:
        self.engine.abandon()


RouterMachine.TestCase.settings = settings(
    max_examples=60,
    stateful_step_count=30,
    deadline=None,
    suppress_health_check=list(HealthCheck),
)
test_routers_behave_as_the_model_does = RouterMachine.TestCase
