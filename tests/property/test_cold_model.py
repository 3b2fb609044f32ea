"""Topics with `cold_reads` against a dictionary: what is served, announced, or silent."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.core.clock import ManualClock, SeededRandom
from headrace.core.runtime import StepRuntime
from headrace.core.settings import Settings
from headrace.engine.engine import Engine
from headrace.storage.block import Batch
from headrace.testing.simdisk import SimDisk
from tests.harness.memory_archive import MemoryHistory

SMALL = Settings(wal_file_bytes=64 << 10, wal_batch_bytes_max=16 << 10)
TAGS = ("a", "ab", "b", None)
CAPS = {"cap_records": 3, "cold_reads": "lake"}

STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("append"), st.lists(st.sampled_from(TAGS), min_size=1, max_size=3)),
        st.tuples(st.just("archive"), st.integers(0, 3)),
        st.tuples(st.just("match"), st.sampled_from(("a", "a*", "b"))),
        st.tuples(st.just("before"), st.integers(0, 8)),
        st.tuples(st.just("switch"), st.booleans()),
        st.tuples(st.sampled_from(("checkpoint", "kill")), st.none()),
    ),
    max_size=30,
)


class Pair:
    """An engine, and what is known of it without looking."""

    def __init__(self) -> None:
        self.history = MemoryHistory()
        self.clock = ManualClock()
        self.tags: dict[int, str | None] = {}
        self.deleted: set[int] = set()
        self.switched = False
        self.open(SimDisk())
        self.engine.put_topic("t", CAPS).result()

    def open(self, disk: SimDisk) -> None:
        self.disk = disk
        runtime = StepRuntime(self.clock)
        self.engine = Engine(disk, runtime, SMALL, random=SeededRandom(1))
        self.engine.recover()
        self.engine.read_archive_from(self.history)

    def step(self, what: str, value: object) -> None:
        engine = self.engine
        topic = engine.state.by_name["t"]
        if what == "append":
            assert isinstance(value, list)
            first = engine.append("t", Batch([b"1"] * len(value), tags=value)).result().first_seq
            self.tags |= dict(enumerate(value, first))
        elif what == "archive":
            assert isinstance(value, int)
            self.history.archive(engine, "t", max(0, topic.head - value))
        elif what == "match":
            assert isinstance(value, str)
            engine.delete("t", match=value).result()
            tagged = {seq: tag for seq, tag in self.tags.items() if tag is not None}
            prefix = value.endswith("*")
            self.deleted |= {
                seq
                for seq, tag in tagged.items()
                if (tag.startswith(value[:-1]) if prefix else tag == value)
            }
        elif what == "before":
            assert isinstance(value, int)
            before = max(1, topic.head - value)
            engine.delete("t", before_seq=before).result()
            self.deleted |= {seq for seq in self.tags if seq < before}
        elif what == "switch":
            self.switched = True
            engine.put_topic("t", CAPS if value else {"cap_records": 3}).result()
        elif what == "checkpoint":
            engine.checkpoint().result()
        else:
            engine.abandon()
            self.open(self.disk.image(self.disk.position, "all", 0, power_loss=False))

    def check(self) -> None:
        engine = self.engine
        topic = engine.state.by_name["t"]
        served, told, cursor = set(), set(), 0
        while cursor < topic.head:
            page = engine.read("t", cursor, limit=2).result()
            if page.tombstone is not None:
                told |= set(range(page.tombstone.gap_from, page.tombstone.gap_to + 1))
            served |= {record.seq for record in page.records}
            assert page.next_from_seq > cursor
            cursor = page.next_from_seq
        assert not served & self.deleted
        assert not served & told
        assert set(self.tags) - served - told <= self.deleted
        live = {seq for seq in self.tags if topic.live_between(seq, seq)}
        kept: set[int] = set()
        if topic.deleted is not None:
            assert topic.deleted.since == 1 or self.switched
            rows = self.history.life(topic.id, topic.epoch).rows
            kept = {seq for seq in rows if topic.deleted.since <= seq <= topic.archived_seq}
        assert served == (live | kept) - self.deleted


@settings(max_examples=150, deadline=None)
@given(STEPS)
def test_it_is_as_the_dictionary_says(steps: list[tuple[str, object]]) -> None:
    pair = Pair()
    try:
        for what, value in steps:
            pair.step(what, value)
            pair.check()
    finally:
        pair.engine.abandon()
