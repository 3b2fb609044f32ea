"""Reads: by seq, by time, the last N; limits and byte budgets; the same from every tier."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import NamedTuple

import pytest

from headrace.core.clock import ManualClock
from headrace.core.errors import InvalidRequest, TopicNotFound
from headrace.core.runtime import Ticket
from headrace.engine.engine import Engine
from headrace.engine.reading.page import Page
from headrace.engine.reading.page_rows import ReadRequest
from headrace.storage.block import Batch
from headrace.storage.files.merge_policy import MergePolicy
from headrace.storage.files.store import DirectoryStore
from headrace.testing.simdisk import SimDisk
from tests.support.engines import Start
from tests.support.seqs import seqs_of, seqs_of_page

START_MS = 1_700_000_000_000
TIERS = ["memory", "hot", "hot, not cached", "cold", "cold and hot and memory"]


def read(engine: Engine, from_seq: int = 0, **how: object) -> Page:
    return engine.read("t", from_seq, **how).result()  # type: ignore[arg-type]


class Lab(NamedTuple):
    """An engine whose records lie in one of the tiers, or across all of them."""

    make: Callable[[Callable[[Engine, int], None], int], Engine]
    tier: str


def forget(engine: Engine, cached: bool = True) -> None:
    """Take sealed records out of memory."""
    for topic in engine.state.by_id.values():
        engine.state.forget_blocks(topic)
    for segment in engine.state.catalog.segments():
        engine.state.cache.drop(segment.meta.file_id, 100)
    disk = engine.state.fs
    assert isinstance(disk, SimDisk)
    disk.cached = cached


def in_tier(start: Start, tier: str, fill: Callable[[Engine, int], None], parts: int) -> Engine:
    """Call `fill(engine, part)` for each part, and put it where `tier` says."""
    cold_disk = SimDisk()
    if "cold" not in tier:
        engine = start()
    else:
        policy = MergePolicy(own_rows_min=1, own_bytes_min=1, own_topics_max=1_000)
        engine = start(
            cold=DirectoryStore(cold_disk),
            policy=policy,
            hot_retain_segments=1,
        )
    for part in range(parts):
        fill(engine, part)
        if tier == "memory" or (tier == "cold and hot and memory" and part == parts - 1):
            continue
        engine.checkpoint().result()
        forget(engine, tier != "hot, not cached")
    if "cold" in tier:
        cold_disk.cached = False
        tiers = {meta.tier for meta in engine.state.catalog.metas()}
        assert 1 in tiers, tiers
    return engine


@pytest.fixture(params=TIERS)
def lab(request: pytest.FixtureRequest, start: Start) -> Lab:
    tier = request.param
    return Lab(lambda fill, parts: in_tier(start, tier, fill, parts), tier)


def fill_tens(engine: Engine, part: int) -> None:
    """Ten records a part, 1 to 10 bytes long, one millisecond apart."""
    clock = engine.runtime.clock
    assert isinstance(clock, ManualClock)
    for n in range(10):
        engine.append("t", [bytes([65 + part]) * (n + 1)]).result()
        clock.advance(1)


# By seq


def test_m4_reads_across_tiers_are_contiguous(lab: Lab) -> None:
    engine = lab.make(fill_tens, 4)
    cursor, found = 0, []
    while True:
        page = read(engine, cursor, limit=7)
        assert page.count <= 7 and page.tombstone is None
        found += page.records
        assert page.next_from_seq == (found[-1].seq if found else 0)
        assert page.lag == 40 - page.next_from_seq
        cursor = page.next_from_seq
        if page.caught_up:
            break
    assert seqs_of(found) == list(range(1, 41))
    assert [r.data for r in found] == [
        bytes([65 + p]) * (n + 1) for p in range(4) for n in range(10)
    ]
    assert [r.ts for r in found] == [START_MS + n for n in range(40)]
    state = engine.topic("t")
    assert (state.head_seq, state.earliest_seq, state.count, state.bytes) == (40, 1, 40, 220)


@pytest.mark.parametrize("limit", [1, 9, 10, 11, 40, 100])
def test_a_page_holds_at_most_the_limit(lab: Lab, limit: int) -> None:
    engine = lab.make(fill_tens, 4)
    for cursor in (0, 5, 9, 10, 11, 38, 39, 40):
        expected = list(range(cursor + 1, 41))[:limit]
        page = read(engine, cursor, limit=limit)
        assert seqs_of_page(page) == expected
        assert page.next_from_seq == (expected[-1] if expected else 40)
        assert page.caught_up == (page.next_from_seq == 40)


def test_a_page_holds_at_most_the_bytes_but_at_least_one_record(lab: Lab) -> None:
    engine = lab.make(fill_tens, 3)
    sizes = {seq: (seq - 1) % 10 + 1 for seq in range(1, 31)}
    for budget in (0, 1, 2, 3, 10, 27, 55, 56, 165, 1_000):
        for cursor in (0, 4, 9, 19, 29):
            page = read(engine, cursor, bytes_max=budget)
            taken: list[int] = []
            for seq in range(cursor + 1, 31):
                if taken and sum(sizes[s] for s in taken) + sizes[seq] > budget:
                    break
                taken.append(seq)
            assert seqs_of_page(page) == taken, (budget, cursor)
            assert page.next_from_seq == taken[-1]


def test_bytes_of_meta_count(lab: Lab) -> None:
    def fill(engine: Engine, part: int) -> None:
        engine.append("t", Batch([b"12"] * 4, metas=[b"345", None, b"6", b"7890"])).result()

    engine = lab.make(fill, 3)
    assert engine.topic("t").bytes == 48
    assert seqs_of_page(read(engine, bytes_max=10)) == [1, 2, 3]
    assert seqs_of_page(read(engine, bytes_max=9)) == [1, 2]
    assert seqs_of_page(read(engine, 3, bytes_max=11)) == [4, 5]


def test_all_columns_come_back_from_every_tier(lab: Lab) -> None:
    def fill(engine: Engine, part: int) -> None:
        batch = Batch(
            [b"1", b"2", b"3"],
            tags=["x", None, ""],
            nodes=[None, "n", "m"],
            metas=[b"{}", None, None],
            headers=[None, [(b"a", b"1"), (b"a", b"2")], []],
        )
        engine.append("t", batch).result()
        engine.append("t", [b"plain"]).result()

    engine = lab.make(fill, 3)
    rows = [
        (r.data, r.tag, r.node, r.meta, None if r.headers is None else list(r.headers))
        for r in read(engine).records
    ]
    assert rows == 3 * [
        (b"1", "x", None, b"{}", None),
        (b"2", None, "n", None, [(b"a", b"1"), (b"a", b"2")]),
        (b"3", "", "m", None, []),
        (b"plain", None, None, None, None),
    ]
    assert [r.append_first_seq for r in read(engine).records] == [
        1,
        1,
        1,
        4,
        5,
        5,
        5,
        8,
        9,
        9,
        9,
        12,
    ]


def test_deleted_records_are_skipped_in_every_tier(lab: Lab) -> None:
    def fill(engine: Engine, part: int) -> None:
        engine.append("t", Batch([b"x"] * 6, tags=["a", "b", "c", "a", "b", "c"])).result()

    engine = lab.make(fill, 3)
    assert engine.delete("t", match="b").result().deleted == 6
    live = [seq for seq in range(1, 19) if seq % 3 != 2]
    assert seqs_of_page(read(engine)) == live
    assert seqs_of_page(read(engine, limit=5)) == live[:5]
    assert seqs_of_page(read(engine, 4, bytes_max=3)) == [6, 7, 9]
    assert engine.delete("t", before_seq=10).result().deleted == 6
    page = read(engine)
    assert seqs_of_page(page) == [seq for seq in live if seq >= 10] and page.tombstone is None


# The last N


def test_the_last_n(lab: Lab) -> None:
    engine = lab.make(fill_tens, 3)
    for last in (0, 1, 5, 10, 11, 30, 31, 1_000):
        page = read(engine, last=last)
        assert seqs_of_page(page) == list(range(1, 31))[30 - min(last, 30) :]
        assert page.caught_up and page.tombstone is None
    engine.delete("t", before_seq=28).result()
    assert seqs_of_page(read(engine, last=5)) == [28, 29, 30]


def test_the_last_n_are_live_ones(lab: Lab) -> None:
    def fill(engine: Engine, part: int) -> None:
        engine.append("t", Batch([b"x"] * 4, tags=["a", "b", "a", "b"])).result()

    engine = lab.make(fill, 3)
    engine.delete("t", match="b").result()
    assert seqs_of_page(read(engine, last=3)) == [7, 9, 11]
    assert seqs_of_page(read(engine, last=3, limit=2)) == [7, 9]


# By time


def test_from_a_time(lab: Lab) -> None:
    engine = lab.make(fill_tens, 3)
    for at in (0, START_MS, START_MS + 1, START_MS + 10, START_MS + 29):
        first = max(0, at - START_MS) + 1
        page = read(engine, from_ts=at)
        assert seqs_of_page(page) == list(range(first, 31)) and page.tombstone is None
    page = read(engine, from_ts=START_MS + 30)
    assert (seqs_of_page(page), page.next_from_seq, page.caught_up) == ([], 30, True)


def test_from_a_time_within_an_append(lab: Lab) -> None:
    def fill(engine: Engine, part: int) -> None:
        at = START_MS + 100 * (part + 1)
        engine.append("t", Batch([b"x"] * 4, timestamps=[at, at + 1, at + 1, at + 5])).result()

    engine = lab.make(fill, 3)
    for part in range(3):
        at, first = START_MS + 100 * (part + 1), 4 * part + 1
        assert seqs_of_page(read(engine, from_ts=at))[0] == first
        assert seqs_of_page(read(engine, from_ts=at + 1))[0] == first + 1
        assert seqs_of_page(read(engine, from_ts=at + 2))[0] == first + 3
    assert seqs_of_page(read(engine, from_ts=START_MS + 306)) == []


def test_from_a_time_starts_at_a_live_record(lab: Lab) -> None:
    """Whatever the tier, what was evicted before the reader asked is not told to it."""
    engine = lab.make(fill_tens, 3)
    engine.put_topic("t", {"cap_records": 14}).result()
    page = read(engine, from_ts=START_MS + 2)
    assert seqs_of_page(page) == list(range(17, 31))
    assert page.tombstone is None
    engine.delete("t", before_seq=20).result()
    assert seqs_of_page(read(engine, from_ts=START_MS + 2)) == list(range(20, 31))


# Node filter


def test_j1_own_records_are_left_out_silently(lab: Lab) -> None:
    def fill(engine: Engine, part: int) -> None:
        engine.append("t", Batch([b"x"] * 4, nodes=["a", "ab", None, "A"])).result()

    engine = lab.make(fill, 3)
    page = read(engine, nodes=["a"])
    assert seqs_of_page(page) == [2, 3, 4, 6, 7, 8, 10, 11, 12]
    assert page.caught_up and page.tombstone is None and page.next_from_seq == 12
    assert seqs_of_page(read(engine, nodes=["a", "ab", "A"])) == [3, 7, 11]
    assert seqs_of_page(read(engine, nodes=["a"], limit=4)) == [2, 3, 4, 6]
    assert seqs_of_page(read(engine, 1, nodes=["ab"], limit=3)) == [3, 4, 5]
    assert read(engine, nodes=["a"]).scanned == 12


def test_j1_one_name_is_one_node(lab: Lab) -> None:
    def fill(engine: Engine, part: int) -> None:
        engine.append("t", Batch([b"x"] * 3, nodes=["a", "ab", "b"])).result()

    engine = lab.make(fill, 3)
    assert seqs_of_page(read(engine, nodes="ab")) == [1, 3, 4, 6, 7, 9]


def test_j1_a_topic_of_own_records_is_caught_up_with_none(lab: Lab) -> None:
    def fill(engine: Engine, part: int) -> None:
        engine.append("t", Batch([b"x" * 100] * 50, nodes="me")).result()

    engine = lab.make(fill, 3)
    page = read(engine, nodes=["me"], limit=3, bytes_max=10)
    assert (page.count, page.next_from_seq, page.caught_up) == (0, 150, True)


def test_j3_a_topic_can_switch_the_filter_off(lab: Lab) -> None:
    def fill(engine: Engine, part: int) -> None:
        engine.append("t", Batch([b"x"] * 2, nodes="me"), config={"dedupe_node": False}).result()

    engine = lab.make(fill, 3)
    assert seqs_of_page(read(engine, nodes=["me"])) == [1, 2, 3, 4, 5, 6]


# A page at once, or a ticket of it


def test_what_memory_holds_is_a_page_at_once(engine: Engine) -> None:
    engine.append("t", [1, 2]).result()
    engine.append("t", [3]).result()
    page = engine.consume("t", ReadRequest(1))
    assert isinstance(page, Page) and seqs_of_page(page) == [2, 3]
    with pytest.raises(TopicNotFound):
        engine.consume("nowhere", ReadRequest())


def test_what_a_disk_holds_is_a_ticket_first(start: Start) -> None:
    engine = start()
    engine.append("t", [1, 2]).result()
    engine.checkpoint().result()
    forget(engine, cached=False)
    engine.append("t", [3]).result()
    found = engine.consume("t", ReadRequest())
    assert isinstance(found, Ticket) and not found.done
    assert seqs_of_page(found.result()) == [1, 2, 3]
    again = engine.consume("t", ReadRequest())  # by now the cache has it
    assert isinstance(again, Page) and again.records == found.result().records


def test_a_topic_that_ends_while_a_disk_is_read_is_gone(start: Start) -> None:
    engine = start()
    engine.append("t", [1]).result()
    engine.checkpoint().result()
    forget(engine, cached=False)
    found = engine.consume("t", ReadRequest())
    assert isinstance(found, Ticket)
    topic = engine.state.topic("t")
    engine.state.topics.release_name(topic)
    engine.state.forget(topic)
    engine.runtime.run()
    assert isinstance(found.error, TopicNotFound)


def test_consuming_counts_for_the_priority_of_a_topic(engine: Engine, clock: ManualClock) -> None:
    engine.append("t", [1]).result()
    clock.advance(50)
    engine.read("t").result()
    topic = engine.state.topic("t")
    assert topic.last_read_ms < engine.state.clock.now_ms()
    engine.consume("t", ReadRequest())
    assert topic.last_read_ms == engine.state.clock.now_ms()


# Waiting


def test_a_waiting_reader_is_woken_by_a_record_beyond_its_cursor(engine: Engine) -> None:
    engine.append("t", [1]).result()
    assert engine.wait("t", 0).done
    waiting, further = engine.wait("t", 1), engine.wait("t", 2)
    assert not waiting.done
    engine.append("t", [2]).result()
    assert waiting.done and not further.done
    engine.append("t", [3]).result()
    assert further.done
    assert seqs_of_page(read(engine, 1)) == [2, 3]


def test_a_wake_up_means_the_record_can_be_read(engine: Engine) -> None:
    engine.append("t", [1], config={"durability": "fsync"}).result()
    found: list[list[int]] = []
    engine.wait("t", 1).when_done(lambda _: found.append(seqs_of_page(read(engine, 1))))
    engine.append("t", [2, 3]).result()
    assert found == [[2, 3]]


def test_a_thousand_waiters_are_woken_once(engine: Engine) -> None:
    engine.put_topic("t").result()
    waiting = [engine.wait("t", 0) for _ in range(1_000)]
    engine.append("t", [1]).result()
    assert all(ticket.done for ticket in waiting)
    assert engine.state.topic("t").waiters is None


@pytest.mark.parametrize("after_seq", [-1, "x", 1.5, None, True, 1 << 60])
def test_a_bad_cursor_to_wait_at_is_refused(engine: Engine, after_seq: object) -> None:
    engine.append("t", [1]).result()
    assert isinstance(engine.wait("t", after_seq).error, InvalidRequest)  # type: ignore[arg-type]


# Bad requests


@pytest.mark.parametrize("what", ["from_seq", "limit", "bytes_max", "from_ts", "last", "epoch"])
@pytest.mark.parametrize("value", [-1, "1", 1.5, True, 1 << 60])
def test_a_bad_read_is_refused(engine: Engine, what: str, value: object) -> None:
    engine.append("t", [1]).result()
    error = engine.read("t", **{what: value}).error  # type: ignore[arg-type]
    assert isinstance(error, InvalidRequest) and what in error.message and error.fix


def test_only_one_start(engine: Engine) -> None:
    engine.append("t", [1]).result()
    assert isinstance(engine.read("t", 1, last=1).error, InvalidRequest)
    assert isinstance(engine.read("t", from_ts=1, last=1).error, InvalidRequest)
    assert isinstance(engine.read("t", 1, from_ts=1).error, InvalidRequest)


# Everything at once


def fill_at_random(engines: list[Engine], dice: random.Random) -> int:
    """The same calls to both; the second one seals after each."""
    count = 0
    for _ in range(dice.randint(1, 12)):
        size = dice.randint(1, 6)
        nodes = [dice.choice(["a", "b", None]) for _ in range(size)]
        payloads = [b"x" * dice.randint(0, 9) for _ in range(size)]
        engines[0].runtime.clock.advance(dice.randint(0, 2))  # type: ignore[attr-defined]
        count += size
        below = dice.randint(0, count) if dice.random() < 0.5 else None
        for number, engine in enumerate(engines):
            engine.append("t", Batch(payloads, nodes=nodes, tags=nodes)).result()
            if below is not None:
                engine.delete("t", before_seq=below, match="a").result()
            if number:
                engine.checkpoint().result()
                forget(engine, cached=bool(count % 2))
    return count


@pytest.mark.parametrize("seed", range(40))
def test_a_page_is_the_same_from_memory_and_from_files(start: Start, seed: int) -> None:
    dice = random.Random(seed)
    engines = [start(), start()]
    count = fill_at_random(engines, dice)
    for _ in range(8):
        how: dict[str, object] = {
            "limit": dice.randint(1, 9),
            "bytes_max": dice.randint(0, 40),
            "nodes": dice.choice([(), ("a",), ("a", "b")]),
        }
        where = dice.choice(["last", "from_ts", "from_seq"])
        how[where] = dice.randint(0, count) + (START_MS if where == "from_ts" else 0)
        memory, files = (engine.read("t", **how).result() for engine in engines)
        assert memory.records == files.records, (seed, how)
        assert memory.tombstone == files.tombstone
        # How many filtered records a full page skips is its own affair; reading on is not.
        rest = [
            engine.read("t", page.next_from_seq, nodes=how["nodes"], limit=1_000).result().records
            for engine, page in zip(engines, (memory, files), strict=True)
        ]
        assert rest[0] == rest[1], (seed, how)
