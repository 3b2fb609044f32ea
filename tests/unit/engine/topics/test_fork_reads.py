"""What a fork shows: its parent's records up to the fork, then its own, wherever they lie."""

from __future__ import annotations

import pytest

from headrace.core.clock import ManualClock
from headrace.engine.engine import Engine
from headrace.engine.routers.state import RouterOptions
from headrace.storage.block import Batch
from headrace.storage.files.merge_policy import MergePolicy
from headrace.storage.files.store import DirectoryStore
from headrace.storage.segment.run import run_of
from headrace.testing.simdisk import SimDisk
from tests.support.engines import Start
from tests.support.forks import delete, fork

OWN = MergePolicy(fan_in=2, own_rows_min=1, own_bytes_min=1, own_topics_max=1_000)
PLACES = ("memory", "files", "cold")


def append(engine: Engine, name: str, *tags: str) -> None:
    """Append a record for each tag, which says what it is; each a millisecond later."""
    for tag in tags:
        clock = engine.runtime.clock
        assert isinstance(clock, ManualClock)
        clock.advance(1)
        engine.append(name, Batch([b"1"], tags=[tag])).result()


def forget(engine: Engine) -> None:
    engine.checkpoint().result()
    for topic in engine.state.by_id.values():
        engine.state.forget_blocks(topic)


def tags(engine: Engine, name: str, cursor: int = 0) -> list[tuple[int, str]]:
    """What a reader is given, page by page."""
    found: list[tuple[int, str]] = []
    while cursor < engine.state.topic(name).head:
        page = engine.read(name, from_seq=cursor, limit=2).result()
        found += [(record.seq, record.tag or "") for record in page.records]
        cursor = page.next_from_seq
    return found


@pytest.fixture(params=PLACES)
def chain(request: pytest.FixtureRequest, start: Start) -> Engine:
    """`a` of 6 records, `b` forked from it at 4 with 3 of its own, `c` from `b` at 6 with one."""
    cold = SimDisk()
    options: dict[str, object] = {"policy": OWN}
    if request.param == "cold":
        options |= {"cold": DirectoryStore(cold), "hot_retain_segments": 1}
    engine = start(**options)

    def settle() -> None:
        if request.param != "memory":
            forget(engine)

    append(engine, "a", "a1", "a2", "a3")
    settle()
    append(engine, "a", "a4", "a5", "a6")
    settle()
    fork(engine, "a", 4, "b")
    append(engine, "b", "b5", "b6", "b7")
    settle()
    fork(engine, "b", 6, "c")
    append(engine, "c", "c7")
    settle()
    cold.cached = False
    return engine


OF_C = [(1, "a1"), (2, "a2"), (3, "a3"), (4, "a4"), (5, "b5"), (6, "b6"), (7, "c7")]


def test_a_fork_shows_what_it_inherits_and_then_its_own(chain: Engine) -> None:
    assert tags(chain, "c") == OF_C
    assert tags(chain, "c", 5) == OF_C[5:]
    assert tags(chain, "b") == [*OF_C[:6], (7, "b7")]
    assert [tag for _, tag in tags(chain, "a")] == ["a1", "a2", "a3", "a4", "a5", "a6"]
    page = chain.read("c", from_seq=2, limit=3).result()
    assert ([r.seq for r in page.records], page.next_from_seq, page.head_seq) == ([3, 4, 5], 5, 7)
    assert (
        page.earliest_seq == 1 and page.tombstone is None and page.epoch == chain.topic("c").epoch
    )


def test_every_way_to_begin_sees_it(chain: Engine) -> None:
    assert [r.seq for r in chain.read("c", last=5).result().records] == [3, 4, 5, 6, 7]
    stamps = {record.seq: record.ts for record in chain.read("c").result().records}
    for seq, ts in stamps.items():
        found = chain.read("c", from_ts=ts, limit=1).result().records
        assert [record.seq for record in found] == [seq]
    assert chain.read("c", from_ts=max(stamps.values()) + 1).result().records == []
    columns = chain.read("c", columns=True).result()
    assert [s for batch in columns.batches for s in batch.column("seq").to_pylist()] == [
        1, 2, 3, 4, 5, 6, 7,
    ]  # fmt: skip


def test_its_numbers(chain: Engine) -> None:
    info = chain.topic("c")
    assert (info.head_seq, info.earliest_seq, info.count) == (7, 1, 7)
    assert chain.state.topic("c").nth_live(5) == 5
    totals = chain.state.totals
    assert totals.records == 6 + 3 + 1  # each record once, however many topics show it
    assert totals.bytes == sum(chain.state.topic(name).bytes for name in "abc") == 10
    assert info.bytes == 7  # of all that it shows


def test_deletes_by_tag_find_what_is_inherited(chain: Engine) -> None:
    assert chain.delete("c", match="a*").result().deleted == 4
    assert tags(chain, "c") == OF_C[4:]
    assert chain.delete("c", match="b5", before_seq=7).result().deleted == 1
    assert tags(chain, "c") == OF_C[5:]
    assert tags(chain, "b") == [*OF_C[:6], (7, "b7")]


def test_a_file_reader_is_told_where_it_lies(chain: Engine) -> None:
    made = chain.manifests.make("c").result()
    found: list[int] = []
    for told in made.files:
        segment = chain.state.catalog.get(told.file_id)
        run = run_of(segment, told.topic_id)
        assert run is not None
        found += run.rows(0, told.row_count).seqs
    owners = [chain.state.topic(name).id for name in "abc"]
    assert [told.topic_id for told in made.files] == sorted(
        (told.topic_id for told in made.files), key=owners.index
    )
    found += [r.seq for r in chain.read("c", from_seq=made.tail_from_seq - 1).result().records]
    assert found == [1, 2, 3, 4, 5, 6, 7]


def test_unsealed_records_of_the_parent_end_what_is_listed(start: Start) -> None:
    engine = start(policy=OWN)
    append(engine, "a", "a1")
    engine.checkpoint().result()
    append(engine, "a", "a2")
    fork(engine, "a", 2, "b")
    made = engine.manifests.make("b").result()
    assert made.tail_from_seq == 2 and [told.last_seq for told in made.files] == [1]


def test_it_waits_for_its_own_records_alone(start: Start) -> None:
    engine = start()
    append(engine, "a", "a1")
    fork(engine, "a", 1, "b")
    waiting = engine.wait("b", 1)
    append(engine, "a", "a2")
    assert not waiting.done
    append(engine, "b", "b2")
    assert waiting.done and engine.wait("b", 0).done


def test_a_router_copies_what_its_source_inherits(chain: Engine, kill: Start) -> None:
    engine = chain
    engine.routers.put("r", RouterOptions(source="c", dest="copies", backfill=True)).result()
    engine.runtime.run()  # type: ignore[attr-defined]
    expected = [tag for _, tag in OF_C]
    assert [tag for _, tag in tags(engine, "copies")] == expected
    if engine.state.tiers.cold is None:
        engine = kill(engine)
        assert [tag for _, tag in tags(engine, "copies")] == expected
        append(engine, "c", "c8")
        engine.runtime.run()  # type: ignore[attr-defined]
        assert [tag for _, tag in tags(engine, "copies")] == [*expected, "c8"]


def test_a_chain_outlives_its_middle(chain: Engine) -> None:
    delete(chain, "b")
    delete(chain, "a")
    assert tags(chain, "c") == OF_C
    forget(chain)
    assert tags(chain, "c") == OF_C
    delete(chain, "c")
    chain.runtime.drain()
    assert not chain.state.by_id
