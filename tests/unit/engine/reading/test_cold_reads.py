"""Topics that let go what a lake has: readers get it all the same, except what was deleted."""

from __future__ import annotations

import pyarrow as pa
import pytest
from pyroaring import BitMap64

from headrace.core.clock import ManualClock
from headrace.core.errors import ConfigError, InvalidRequest, LakeCorrupt, LakeUnavailable
from headrace.engine.engine import Engine
from headrace.engine.reading.page import Page
from headrace.engine.removal import deleted_seqs as erasing
from headrace.engine.removal.deleted_seqs import DeletedSeqs, restored_deletes, stored_deletes
from headrace.engine.topics.config import make_config
from headrace.storage.block import Batch, Record
from tests.harness.memory_archive import MemoryHistory
from tests.support.engines import Start
from tests.support.seqs import seqs_of

COLD = {"cap_records": 2, "cold_reads": "lake"}
TAGS = ["a", "b", None, "chat-42:x", "chat-420:x"]


@pytest.fixture
def history(engine: Engine) -> MemoryHistory:
    archive = MemoryHistory()
    engine.read_archive_from(archive)
    return archive


def fill(engine: Engine, count: int, name: str = "t", **config: object) -> None:
    for _ in range(count):
        head = engine.state.by_name[name].head if name in engine.state.by_name else 0
        batch = Batch([b'{"n":%d}' % (head + 1)], tags=[TAGS[head % len(TAGS)]])
        engine.append(name, batch, config={**COLD, **config}).result()


def pages(engine: Engine, name: str = "t", cursor: int = 0, **how: object) -> list[Page]:
    """Everything from a cursor on."""
    found = []
    for _ in range(1_000):
        page = engine.read(name, cursor, **how).result()  # type: ignore[arg-type]
        found.append(page)
        if page.next_from_seq >= page.head_seq:
            return found
        assert page.next_from_seq > cursor
        cursor = page.next_from_seq
    raise AssertionError("no end")


def records(engine: Engine, **how: object) -> list[Record]:
    found = pages(engine, **how)  # type: ignore[arg-type]
    return [record for page in found for record in page.records]


def all_seqs(engine: Engine, **how: object) -> list[int]:
    return seqs_of(records(engine, **how))


def told(engine: Engine, **how: object) -> list[tuple[int, int, str, int]]:
    return [
        (t.gap_from, t.gap_to, t.reason, t.earliest_seq)
        for page in pages(engine, **how)  # type: ignore[arg-type]
        if (t := page.tombstone) is not None
    ]


def bare(record: Record) -> Record:
    return record._replace(append_first_seq=0)


# What a reader gets


def test_what_a_cap_took_is_read_from_the_lake(engine: Engine, history: MemoryHistory) -> None:
    fill(engine, 9, cap_records=20)
    before = [bare(record) for record in records(engine)]
    history.archive(engine, "t", 8)
    engine.put_topic("t", COLD).result()
    assert engine.topic("t").earliest_seq == 8
    (page,) = pages(engine)
    assert [bare(record) for record in page.records] == before
    assert (page.lake, page.scanned, page.tombstone, page.earliest_seq) == (7, 9, None, 8)
    assert (engine.state.reads.archive_reads, engine.state.reads.archive_records) == (1, 7)
    assert all_seqs(engine, limit=2) == list(range(1, 10))
    assert all_seqs(engine, bytes_max=1) == list(range(1, 10))
    assert all_seqs(engine, cursor=5) == [6, 7, 8, 9]
    (tail,) = pages(engine, cursor=7)
    assert (tail.lake, tail.count) == (0, 2)


def test_columns_are_the_same(engine: Engine, history: MemoryHistory) -> None:
    fill(engine, 9, cap_records=20)
    (before,) = pages(engine, columns=True)
    history.archive(engine, "t")
    engine.put_topic("t", COLD).result()
    for how in ({}, {"limit": 2}, {"bytes_max": 20}):
        found = pages(engine, columns=True, **how)
        table = pa.Table.from_batches([batch for page in found for batch in page.batches])
        assert table.equals(pa.Table.from_batches(before.batches))
        assert sum(page.lake for page in found) == 7


def test_nodes_are_left_out(engine: Engine, history: MemoryHistory) -> None:
    engine.put_topic("t", COLD).result()
    for n in range(6):
        engine.append("t", Batch([b"%d" % n], nodes="me" if n % 2 else "you")).result()
        history.archive(engine, "t")
    assert all_seqs(engine, nodes="me") == [1, 3, 5]
    assert all_seqs(engine, nodes="me", limit=1) == [1, 3, 5]


def test_what_is_not_archived_is_announced(engine: Engine, history: MemoryHistory) -> None:
    fill(engine, 3)
    history.archive(engine, "t")
    fill(engine, 7)
    assert engine.topic("t").earliest_seq == 9
    assert told(engine) == [(1, 1, "cap", 2), (4, 8, "cap", 9)]
    assert all_seqs(engine) == [2, 3, 9, 10]
    assert told(engine, limit=1) == told(engine), "also when pages end elsewhere"
    assert told(engine, cursor=5) == [(6, 8, "cap", 9)]


def test_losses_that_the_lake_knows_of_are_announced(
    engine: Engine, history: MemoryHistory
) -> None:
    fill(engine, 5)
    history.archive(engine, "t")
    fill(engine, 4)
    history.archive(engine, "t")
    fill(engine, 3)
    assert told(engine) == [(1, 3, "cap", 4), (6, 7, "cap", 8), (10, 10, "cap", 11)]
    assert all_seqs(engine) == [4, 5, 8, 9, 11, 12]
    assert told(engine, cursor=1) == [(2, 3, "cap", 4), *told(engine)[1:]]


def test_a_read_by_time_or_from_the_end_stays_in_the_topic(
    engine: Engine, history: MemoryHistory
) -> None:
    fill(engine, 3)
    history.archive(engine, "t")
    fill(engine, 3)
    assert seqs_of(engine.read("t", last=5).result().records) == [5, 6]
    assert seqs_of(engine.read("t", from_ts=0).result().records) == [5, 6]
    assert engine.state.reads.archive_reads == 0


def test_a_topic_made_anew_has_another_past(engine: Engine, history: MemoryHistory) -> None:
    fill(engine, 3)
    history.archive(engine, "t")
    fill(engine, 3)
    old = engine.topic("t").epoch
    engine.delete_topic("t").result()
    fill(engine, 5)
    assert told(engine) == [(1, 3, "cap", 4)] and all_seqs(engine) == [4, 5]
    page = engine.read("t", 2, epoch=old).result()
    assert page.tombstone is not None and page.tombstone.reason == "recreated"


def test_the_tail_does_not_wait_for_a_lake_that_is_gone(
    engine: Engine, history: MemoryHistory
) -> None:
    fill(engine, 3)
    history.archive(engine, "t")
    fill(engine, 3)
    history.refusal = LakeUnavailable("no answer", fix="wait")
    assert engine.read("t", 1).error is None, "it is on its way"
    with pytest.raises(LakeUnavailable, match="no answer"):
        engine.read("t", 1).result()
    assert seqs_of(engine.read("t", 4).result().records) == [5, 6]
    assert engine.state.reads.archive_errors >= 1
    history.refusal = None
    assert all_seqs(engine, cursor=1) == [2, 3, 5, 6]


def test_a_seq_that_the_lake_does_not_have_is_an_error(
    engine: Engine, history: MemoryHistory
) -> None:
    fill(engine, 3, cap_records=9)
    history.archive(engine, "t")
    fill(engine, 3)
    engine.put_topic("t", COLD).result()
    topic = engine.state.by_name["t"]
    history.life(topic.id, topic.epoch).rows.pop(2)
    with pytest.raises(LakeCorrupt):
        records(engine)


# Deletes


def test_what_was_deleted_before_or_after_it_was_archived_stays_deleted(
    engine: Engine, history: MemoryHistory, again: Start
) -> None:
    fill(engine, 8, cap_records=20)
    engine.delete("t", match="b").result()  # 2, 7
    history.archive(engine, "t")
    engine.delete("t", match="chat-42:*").result()  # 4
    engine.delete("t", before_seq=2).result()
    engine.put_topic("t", COLD).result()
    assert all_seqs(engine) == [3, 5, 6, 8] and told(engine) == []
    engine = again(engine)
    engine.read_archive_from(history)
    assert all_seqs(engine) == [3, 5, 6, 8] and told(engine) == []


def test_a_delete_is_about_what_the_topic_does_not_hold(
    engine: Engine, history: MemoryHistory, again: Start
) -> None:
    fill(engine, 12, cap_records=20)
    history.archive(engine, "t")
    engine.put_topic("t", COLD).result()
    assert engine.topic("t").earliest_seq == 11
    assert engine.delete("t", match="a").result().deleted == 1, "of 1, 6 and 11 it holds one"
    assert all_seqs(engine) == [2, 3, 4, 5, 7, 8, 9, 10, 12]
    assert engine.delete("t", before_seq=4).result().deleted == 0
    assert engine.delete("t", match="chat-42*", before_seq=10).result().deleted == 0
    assert all_seqs(engine) == [7, 8, 10, 12]
    assert all_seqs(engine, limit=1) == [7, 8, 10, 12]
    engine = again(engine)
    engine.read_archive_from(history)
    assert all_seqs(engine) == [7, 8, 10, 12] and told(engine) == []
    fill(engine, 5)  # with tags that were deleted
    history.archive(engine, "t")
    fill(engine, 3)
    assert all_seqs(engine) == [7, 8, 10, 12, 16, 17, 19, 20], "deletes are of what was there then"


def test_a_delete_while_the_cap_moves(engine: Engine, history: MemoryHistory) -> None:
    """What a delete was resolved to is gone from the topic by the time it counts."""
    fill(engine, 6, cap_records=6)
    history.archive(engine, "t")
    ticket = engine.delete("t", match="a")
    fill(engine, 6, cap_records=6)
    assert ticket.result().deleted <= 2
    assert all_seqs(engine) == [2, 3, 4, 5, 7, 8, 9, 10, 11, 12]


def test_deletes_of_a_prefix_are_one_number(engine: Engine, history: MemoryHistory) -> None:
    fill(engine, 9, cap_records=20)
    engine.delete("t", match="a").result()
    history.archive(engine, "t")
    engine.put_topic("t", COLD).result()
    engine.delete("t", before_seq=9).result()
    known = engine.state.by_name["t"].deleted
    assert known is not None and (known.below, len(known.seqs), known.tags) == (8, 0, {})
    reads = engine.state.reads.archive_reads
    assert all_seqs(engine) == [9] and engine.state.reads.archive_reads == reads
    frames = engine.state.shards[0].frames_total
    assert engine.delete("t", before_seq=5).result().deleted == 0
    assert engine.state.shards[0].frames_total == frames, "it says nothing new"


def test_a_crash_gap_is_not_taken_for_a_delete(
    engine: Engine, history: MemoryHistory, power_loss: Start
) -> None:
    engine.put_topic("t", {"cold_reads": "lake"}).result()
    engine.append("t", Batch([b"1"])).result()
    engine = power_loss(engine)
    engine.read_archive_from(history)
    assert engine.topic("t").head_seq > 1 and engine.topic("t").count == 0
    fill(engine, 1)
    engine.put_topic("t", {"cap_records": 1, "cold_reads": "lake"}).result()
    history.archive(engine, "t")
    fill(engine, 1)
    head = engine.topic("t").head_seq
    assert all_seqs(engine) == [head - 1, head]
    assert told(engine)[0][:3] == (1, head - 2, "crash")


def test_a_crash_gap_above_a_delete_is_not_one(
    engine: Engine, history: MemoryHistory, power_loss: Start
) -> None:
    """Switched on when a gap is among the holes: of the two only deletes are silent."""
    engine.put_topic("t", {"durability": "fsync"}).result()
    fill(engine, 4, cold_reads="")
    engine.put_topic("t", {"durability": "disk"}).result()
    fill(engine, 1, cold_reads="")
    engine = power_loss(engine)
    engine.read_archive_from(history)
    first, last = engine.state.by_name["t"].gaps[0]
    engine.delete("t", match="b").result()
    engine.put_topic("t", {"cold_reads": "lake"}).result()
    history.archive(engine, "t")
    fill(engine, 1)
    engine.put_topic("t", {"cap_records": 1, "cold_reads": "lake"}).result()
    assert all_seqs(engine) == [1, 3, 4, last + 1]
    assert [gap[:3] for gap in told(engine)] == [(first, last, "crash")]


# Switching


def test_switched_on_later_it_goes_back_to_where_deletes_are_known(
    engine: Engine, history: MemoryHistory, again: Start
) -> None:
    fill(engine, 6, cold_reads="", cap_records=4)
    engine.delete("t", match="chat-42:x").result()  # 4, which is held
    history.archive(engine, "t")
    engine.put_topic("t", COLD).result()
    fill(engine, 3)
    assert told(engine) == [(1, 2, "cap", 3), (7, 7, "cap", 8)]
    assert all_seqs(engine) == [3, 5, 6, 8, 9]
    assert told(engine, limit=1) == told(engine)
    engine = again(engine)
    engine.read_archive_from(history)
    assert all_seqs(engine) == [3, 5, 6, 8, 9]


def test_switched_off_and_on_it_forgets(
    engine: Engine, history: MemoryHistory, again: Start
) -> None:
    fill(engine, 6)
    history.archive(engine, "t")
    engine.put_topic("t", {"cap_records": 2}).result()
    assert told(engine) == [(1, 4, "cap", 5)]
    engine.delete("t", before_seq=6).result()
    engine.put_topic("t", COLD).result()
    fill(engine, 3)
    assert told(engine) == [(1, 5, "cap", 6), (7, 7, "cap", 8)]
    assert all_seqs(engine) == [6, 8, 9]
    engine = again(engine)
    engine.read_archive_from(history)
    assert all_seqs(engine) == [6, 8, 9]


def test_where_it_cannot_be(engine: Engine) -> None:
    refusal = engine.put_topic("t", COLD).error
    assert isinstance(refusal, ConfigError) and "headrace[cold]" in refusal.fix
    assert isinstance(engine.append("t", [1], config=COLD).error, ConfigError)
    engine.read_archive_from(MemoryHistory())
    for wrong in ({"type": "queue"}, {"durability": "ephemeral"}):
        with pytest.raises(InvalidRequest, match="cold_reads"):
            make_config({**COLD, **wrong})
    engine.put_topic("t", COLD).result()
    engine.read_archive_from(None)
    engine.put_topic("t", {**COLD, "cap_records": 1}).result()


def test_a_server_that_cannot_read_a_lake_says_so(engine: Engine, history: MemoryHistory) -> None:
    fill(engine, 3)
    history.archive(engine, "t")
    fill(engine, 3)
    engine.read_archive_from(None)
    with pytest.raises(LakeUnavailable, match="cannot read one"):
        engine.read("t", 1).result()
    assert all_seqs(engine, cursor=4) == [5, 6]


# The bound


def test_what_is_known_of_deletes_has_a_bound(
    engine: Engine, history: MemoryHistory, monkeypatch: pytest.MonkeyPatch, again: Start
) -> None:
    monkeypatch.setattr(erasing, "erased_bytes_max", 100)
    fill(engine, 60, cap_records=100)
    history.archive(engine, "t")
    for match in ("a", "b", "chat-42:x"):
        engine.delete("t", match=match).result()
    engine.put_topic("t", COLD).result()
    known = engine.state.by_name["t"].deleted
    assert known is not None and known.since > 1 and len(stored_deletes(known)) <= 110
    since = known.since
    assert told(engine) == [(1, since - 1, "cap", since)], "never silently"
    left = [seq for seq in range(since, 61) if seq % 5 not in (1, 2, 4)]
    assert all_seqs(engine) == left
    engine = again(engine)
    engine.read_archive_from(history)
    assert not {seq for seq in all_seqs(engine) if seq % 5 in (1, 2, 4)}


def test_the_bound_counts_tags() -> None:
    known = DeletedSeqs(1)
    for n in range(40_000):
        known.delete(0, None, (f"tag-{n:020}", n % 2 == 0, n + 1))
    assert known.since > 1 and known.tags and len(stored_deletes(known)) <= 1 << 20
    assert min(known.tags.values()) >= known.since
    again = restored_deletes(stored_deletes(known))
    assert (again.since, again.tags) == (known.since, known.tags)


def test_it_comes_back_as_it_was() -> None:
    known = DeletedSeqs(3, BitMap64([5, 9]))
    known.delete(4, None)
    known.delete(0, BitMap64([7]), ("a", True, 8))
    known.delete(0, None, ("a", True, 6))
    known.delete(0, None, ("old", False, 2))
    again = restored_deletes(stored_deletes(known))
    for one in (known, again):
        assert (one.since, one.below, list(one.seqs)) == (3, 4, [5, 7, 9])
        assert one.tags == {("a", True): 8}
    assert stored_deletes(None) == b""
    assert known.knows(4) and known.knows(2) and not known.knows(5)


def test_a_tag_that_begins_like_a_deleted_one(clock: ManualClock) -> None:
    known = DeletedSeqs(1)
    known.delete(0, None, ("ab", True, 5))
    known.delete(0, None, ("x", False, 9))
    tags = ["ab", "a", "abc", None, "x", "abc", "xy", "x", "x", "x"]
    rows = pa.record_batch({"seq": pa.array(range(1, 11), pa.int64()), "tag": pa.array(tags)})
    known.add_tagged(rows)
    assert list(known.seqs) == [1, 3, 5, 8, 9]
