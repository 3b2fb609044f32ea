"""Forks against lists: chains, appends, deletes, limits, merges and restarts in any order.

A topic is a dictionary of seqs.  A fork begins with a copy of it, so that whatever either loses
later is its own affair; the engine shares the records instead, and must not be told apart.
"""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.core.clock import ManualClock, SeededRandom
from headrace.core.runtime import StepRuntime
from headrace.core.settings import Settings
from headrace.engine.engine import Engine
from headrace.storage.block import Batch
from headrace.storage.files.merge_policy import MergePolicy
from headrace.storage.segment.run import run_of
from headrace.testing.simdisk import SimDisk
from tests.support.forks import delete, fork

TAGS = ("a", "ab", None)
POLICY = MergePolicy(fan_in=2, own_rows_min=1, own_bytes_min=1, own_topics_max=1_000)
TTL_MS = 20

WHICH = st.integers(0, 7)
STEPS = st.lists(
    st.one_of(
        st.tuples(
            st.just("append"), WHICH, st.lists(st.sampled_from(TAGS), min_size=1, max_size=4)
        ),
        st.tuples(
            st.just("append"), WHICH, st.lists(st.sampled_from(TAGS), min_size=1, max_size=4)
        ),
        st.tuples(st.just("fork"), WHICH, st.integers(0, 9)),
        st.tuples(st.just("before"), WHICH, st.integers(0, 8)),
        st.tuples(st.just("match"), WHICH, st.sampled_from(("a", "a*"))),
        st.tuples(st.just("cap"), WHICH, st.integers(1, 5)),
        st.tuples(st.just("ttl"), WHICH, st.none()),
        st.tuples(st.just("free"), WHICH, st.none()),
        st.tuples(st.just("delete"), WHICH, st.none()),
        st.tuples(st.just("wait"), st.just(0), st.integers(1, 30)),
        st.tuples(
            st.sampled_from(("checkpoint", "forget", "kill", "restart")), st.just(0), st.none()
        ),
    ),
    min_size=8,
    max_size=40,
)


class Model:
    """What one topic shows."""

    def __init__(self, records: dict[int, tuple[int, str | None]], head: int) -> None:
        self.records = dict(records)  # seq -> ts, tag
        self.head = head
        self.cap = self.ttl_ms = 0

    def look(self, now: int) -> None:
        if self.ttl_ms:
            self.records = {s: r for s, r in self.records.items() if r[0] >= now - self.ttl_ms}
        if self.cap:
            self.records = dict(sorted(self.records.items())[-self.cap :])


class Pair:
    """An engine, and what is known of it without looking."""

    def __init__(self, shards: int) -> None:
        self.clock = ManualClock()
        self.settings = Settings(
            wal_file_bytes=64 << 10, wal_batch_bytes_max=16 << 10, wal_shards=shards
        )
        self.open(SimDisk())
        self.models: dict[str, Model] = {"t0": Model({}, 0)}
        self.made = 1
        self.engine.put_topic("t0").result()

    def open(self, disk: SimDisk) -> None:
        self.disk = disk
        self.engine = Engine(
            disk, StepRuntime(self.clock), self.settings, random=SeededRandom(1), policy=POLICY
        )
        self.engine.recover()

    def step(self, what: str, which: int, value: object) -> None:
        engine = self.engine
        self.clock.advance(1)
        if what in ("checkpoint", "forget", "kill", "restart", "wait"):
            self._all(what, value)
            return
        if not self.models:
            return
        name = sorted(self.models)[which % len(self.models)]
        model = self.models[name]
        if what == "append":
            assert isinstance(value, list)
            added = engine.append(name, Batch([b"1"] * len(value), tags=value)).result()
            assert added.first_seq == model.head + 1
            now = self.engine.clock.now_ms()
            model.records |= {added.first_seq + i: (now, tag) for i, tag in enumerate(value)}
            model.head += len(value)
        elif what == "fork":
            assert isinstance(value, int)
            to = max(0, model.head - value)
            engine.topic(name)  # what is due goes first
            model.look(self.engine.clock.now_ms())
            inherited = {seq: kept for seq, kept in model.records.items() if seq <= to}
            fork(engine, name, to, f"t{self.made}", durability="disk")
            self.models[f"t{self.made}"] = Model(inherited, to)
            self.made += 1
        elif what == "before":
            assert isinstance(value, int)
            before = max(1, model.head - value)
            engine.delete(name, before_seq=before).result()
            model.records = {s: r for s, r in model.records.items() if s >= before}
        elif what == "match":
            assert isinstance(value, str)
            engine.delete(name, match=value).result()
            gone = ("a", "ab") if value == "a*" else ("a",)
            model.records = {s: r for s, r in model.records.items() if r[1] not in gone}
        elif what == "delete":
            delete(engine, name)
            del self.models[name]
        else:
            model.cap = value if what == "cap" and isinstance(value, int) else 0
            model.ttl_ms = TTL_MS if what == "ttl" else 0
            limits = {"cap_records": model.cap} if model.cap else {}
            limits |= {"ttl_ms": TTL_MS} if model.ttl_ms else {}
            engine.put_topic(name, {"durability": "disk", **limits}).result()

    def _all(self, what: str, value: object) -> None:
        engine = self.engine
        if what == "wait":
            assert isinstance(value, int)
            self.clock.advance(value)
        elif what == "checkpoint":
            engine.checkpoint().result()
        elif what == "forget":
            engine.checkpoint().result()
            for topic in list(engine.state.by_id.values()):
                engine.state.forget_blocks(topic)
        else:
            if what == "kill":
                engine.abandon()
                self.open(self.disk.image(self.disk.position, "all", 0, power_loss=False))
            else:
                engine.close()
                self.open(self.disk.copy())

    def check(self) -> None:
        engine, now = self.engine, self.engine.clock.now_ms()
        for name, model in self.models.items():
            model.look(now)
            seqs = sorted(model.records)
            info = engine.topic(name)
            assert (info.head_seq, info.count) == (model.head, len(seqs)), name
            assert not seqs or info.earliest_seq == seqs[0], name
            assert self._read(name) == [(seq, *model.records[seq]) for seq in seqs], name
            last = engine.read(name, last=3).result()
            assert [record.seq for record in last.records] == seqs[-3:], name
            if seqs:
                ts = model.records[seqs[len(seqs) // 2]][0]
                found = engine.read(name, from_ts=ts, limit=1).result().records[0]
                assert found.seq == min(s for s in seqs if model.records[s][0] >= ts), name
            page = engine.read(name, columns=True, limit=1_000).result()
            found_seqs = [seq for batch in page.batches for seq in batch.column("seq").to_pylist()]
            assert found_seqs == seqs, name
            assert self._read_files(name) == seqs, name
        # Every record is counted once, however many topics show it.
        totals = engine.state.totals
        topics = list(engine.state.by_id.values())
        assert totals.records == sum(t.live_between(t.parent_to + 1, t.head) for t in topics)
        assert totals.bytes == sum(t.bytes for t in topics) >= 0
        if not self.models:
            assert not topics

    def _read_files(self, name: str) -> list[int]:
        """The seqs that a reader of the files finds, with the server for the tail."""
        made = self.engine.manifests.make(name).result()
        dead = {seq for first, last in made.deletes or () for seq in range(first, last + 1)}
        found: list[int] = []
        for told in made.files:
            run = run_of(self.engine.state.catalog.get(told.file_id), told.topic_id)
            assert run is not None
            rows = run.rows(0, told.row_count).seqs
            assert rows[-1] == told.last_seq < made.tail_from_seq
            found += [seq for seq in rows if seq >= made.earliest_seq and seq not in dead]
        self.engine.manifests.release(name, made.pin)
        tail = self.engine.read(name, made.tail_from_seq - 1, limit=1_000).result()
        return found + [record.seq for record in tail.records]

    def _read(self, name: str) -> list[tuple[int, int, str | None]]:
        found: list[tuple[int, int, str | None]] = []
        cursor, head = 0, self.models[name].head
        while cursor < head:
            page = self.engine.read(name, from_seq=cursor, limit=3).result()
            found += [(record.seq, record.ts, record.tag) for record in page.records]
            assert page.next_from_seq > cursor, name
            cursor = page.next_from_seq
        return found


@settings(deadline=None)
@given(shards=st.sampled_from((1, 3)), steps=STEPS)
def test_forks_are_what_copies_would_be(shards: int, steps: list[tuple[str, int, object]]) -> None:
    pair = Pair(shards)
    for what, which, value in steps:
        pair.step(what, which, value)
        pair.check()
    pair.engine.abandon()
