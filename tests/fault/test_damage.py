"""Sealed files that rotted: an explicit error for their range, and nothing else for anybody else.

Never other data, never fewer records than there are, and topics whose rows lie elsewhere do not
notice.
"""

from __future__ import annotations

import random
from typing import NamedTuple

import pytest

from headrace.core.clock import ManualClock, SeededRandom
from headrace.core.errors import SegmentCorrupt
from headrace.core.runtime import StepRuntime
from headrace.core.settings import Settings
from headrace.engine.engine import Engine
from headrace.storage.block import Batch
from headrace.storage.files.merge_policy import MergePolicy
from headrace.testing.simdisk import SimDisk
from tests.support.engine_reads import all_data

SETTINGS = Settings(wal_file_bytes=64 << 10, wal_batch_bytes_max=16 << 10)


def open_engine(disk: SimDisk) -> Engine:
    engine = Engine(disk, StepRuntime(ManualClock()), SETTINGS, random=SeededRandom(1))
    engine.recover()
    return engine


class Damaged(NamedTuple):
    """A directory to spoil, what it holds, and which topics have rows in which file."""

    disk: SimDisk
    expected: dict[str, list[bytes]]
    topics_of: dict[str, set[str]]


@pytest.fixture
def lab() -> Damaged:
    """Three topics with files of their own, and two that share some; all sealed, cleanly closed."""
    disk = SimDisk()
    policy = MergePolicy(own_rows_min=20, own_bytes_min=1 << 20, own_topics_max=1_000)
    engine = Engine(
        disk, StepRuntime(ManualClock()), SETTINGS, random=SeededRandom(1), policy=policy
    )
    engine.recover()
    for part in range(2):
        for topic, rows in (("a", 30), ("b", 30), ("c", 30), ("small", 3), ("tiny", 1)):
            payloads = [b"%s-%d-%d-" % (topic.encode(), part, n) * 5 for n in range(rows)]
            tags = [f"tag{n % 4}" for n in range(rows)]
            engine.append(topic, Batch(payloads, tags=tags, nodes="n")).result()
        engine.checkpoint().result()
    names = {engine.state.topic(info.topic).id: info.topic for info in engine.topics()}
    topics_of = {
        segment.meta.path: {names[topic_id] for topic_id in segment.directory().topic_ids}
        for segment in engine.state.catalog.segments()
    }
    expected = {name: all_data(engine, name) for name in names.values()}
    engine.close()
    assert {"a"} in topics_of.values() and {"small", "tiny"} in topics_of.values()
    return Damaged(disk.copy(), expected, topics_of)


def hurt_topics(engine: Engine, lab: Damaged, path: str) -> set[str]:
    """The topics that cannot be read in full; each either says so or gives everything."""
    hurt: dict[str, SegmentCorrupt] = {}
    for topic, payloads in lab.expected.items():
        try:
            assert all_data(engine, topic) == payloads
        except SegmentCorrupt as caught:
            hurt[topic] = caught
    for error in hurt.values():
        assert path in str(error) and error.fix and error.code == "segment_corrupt"
    return set(hurt)


@pytest.mark.parametrize("seed", range(6))
def test_l6_a_flipped_bit_in_a_segment_is_an_error_or_harmless(lab: Damaged, seed: int) -> None:
    """Never other data, never fewer records; and topics in other files do not notice."""
    dice = random.Random(seed)
    noticed = 0
    for _ in range(25):
        image = lab.disk.copy()
        path = dice.choice(sorted(lab.topics_of))
        image.flip(path, dice.randrange(8 * len(image.contents()[path])))
        engine = open_engine(image)
        hurt = hurt_topics(engine, lab, path)
        assert hurt <= lab.topics_of[path]
        noticed += bool(hurt)
        for topic, payloads in lab.expected.items():
            head = len(payloads)
            assert engine.append(topic, [b"goes on"]).result().first_seq == head + 1
            assert engine.read(topic, head).result().records[0].data == b"goes on"
        engine.abandon()
    assert noticed == 25, "every byte of a segment is covered by a hash"


@pytest.mark.parametrize("shared", [False, True], ids=["own", "shared"])
@pytest.mark.parametrize("damage", ["missing", "empty", "short", "zeroed", "swapped"])
def test_l6_a_spoilt_segment_file_hurts_only_its_own_range(
    lab: Damaged, damage: str, shared: bool
) -> None:
    disk = lab.disk
    inside = {"small", "tiny"} if shared else {"a"}
    path = next(path for path, topics in lab.topics_of.items() if topics == inside)
    size = len(disk.contents()[path])
    hurt = set(inside)
    if damage == "missing":
        disk.unlink(path)
        with pytest.raises(SegmentCorrupt, match=path):
            open_engine(disk)
        return
    if damage == "empty":
        disk.truncate_to(path, 0)
    elif damage == "short":
        disk.truncate_to(path, size - 1)
    elif damage == "zeroed":
        disk.zero(path, 0, size)
    else:
        other = next(path for path, topics in lab.topics_of.items() if topics == {"b"})
        disk.swap(path, other)
        hurt.add("b")
    engine = open_engine(disk)
    assert hurt_topics(engine, lab, "seg-") == hurt
    engine.abandon()


def test_l6_the_range_before_and_after_the_damage_is_served(lab: Damaged) -> None:
    """Topic `a` has thirty records in each of two files; the second one is damaged."""
    disk = lab.disk
    own = sorted(path for path, topics in lab.topics_of.items() if topics == {"a"})
    if len(own) < 2:
        pytest.skip("its files were merged into one")
    disk.zero(own[1], 0, 3_000)
    engine = open_engine(disk)
    page = engine.read("a", 0, limit=30).result()
    assert [record.data for record in page.records] == lab.expected["a"][:30]
    with pytest.raises(SegmentCorrupt):
        engine.read("a", 30).result()
    engine.append("a", [b"after"]).result()
    assert [r.data for r in engine.read("a", 60).result().records] == [b"after"]
    engine.abandon()


def test_damage_in_one_topic_wedges_no_other(lab: Damaged) -> None:
    """A cap that has to look into a damaged file, in the same turn as other appends."""
    engine = open_engine(lab.disk)
    for topic in ("a", "b"):
        engine.put_topic(topic, {"cap_records": len(lab.expected[topic])}).result()
    engine.abandon()
    disk = lab.disk.image(lab.disk.position, "all", 0, power_loss=False)
    for path in [path for path, topics in lab.topics_of.items() if topics == {"a"}]:
        disk.zero(path, 0, len(disk.contents()[path]))
    engine = open_engine(disk)
    tickets = [engine.append(topic, [b"more"]) for topic in ("a", "b", "c", "a", "b")]
    engine.runtime.run()  # type: ignore[attr-defined]
    assert all(ticket.done for ticket in tickets)
    assert [tickets[n].error for n in (1, 2, 4)] == [None, None, None]
    assert all_data(engine, "b") == [*lab.expected["b"][2:], b"more", b"more"]
    assert all_data(engine, "c") == [*lab.expected["c"], b"more"]
    for ticket in (tickets[0], tickets[3]):
        assert ticket.error is None or isinstance(ticket.error, SegmentCorrupt)
    engine.abandon()
