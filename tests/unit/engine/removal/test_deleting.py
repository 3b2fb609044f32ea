"""Rules D: deletes are permanent, immediate, silent, exact, and of the moment of the call."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.api.records import DeleteResult
from headrace.core.clock import ManualClock, SeededRandom
from headrace.core.errors import InvalidRequest, TopicNotFound
from headrace.core.runtime import StepRuntime
from headrace.core.settings import Settings
from headrace.engine.engine import Engine
from headrace.engine.removal.deleting import TagMatch
from headrace.storage.block import Batch
from headrace.storage.files.merge_policy import MergePolicy
from headrace.testing.simdisk import SimDisk
from tests.support.engines import Start
from tests.support.seqs import seqs_of_page, seqs_read

SMALL = Settings(wal_file_bytes=64 << 10, wal_batch_bytes_max=16 << 10)


def tagged(engine: Engine, *tags: str | None) -> None:
    engine.append("t", Batch([b"%d" % n for n in range(len(tags))], tags=list(tags))).result()


def delete(engine: Engine, **how: object) -> int:
    return engine.delete("t", **how).result().deleted  # type: ignore[arg-type]


@pytest.mark.parametrize("durability", ["ephemeral", "memory", "disk", "fsync"])
def test_d1_a_prefix_delete_is_immediate_and_silent(engine: Engine, durability: str) -> None:
    engine.append("t", [b"12", b"3", b"4"], config={"durability": durability}).result()
    result = engine.delete("t", before_seq=3).result()
    assert result == DeleteResult("t", 2, earliest_seq=3, head_seq=3, count=1, bytes=1)
    page = engine.read("t").result()
    assert page.tombstone is None and seqs_of_page(page) == [3]


def test_d1_a_delete_is_permanent(engine: Engine, again: Start) -> None:
    tagged(engine, "a", "b", "a", None, "b")
    assert delete(engine, match="a") == 2
    assert delete(engine, before_seq=3) == 1
    engine = again(engine)
    assert seqs_read(engine) == [4, 5]
    assert delete(engine, match="b") == 1
    engine = again(engine)
    engine = again(engine)
    assert seqs_read(engine) == [4]


def test_d1_a_later_record_with_the_same_tag_survives(engine: Engine, again: Start) -> None:
    tagged(engine, "a", "a")
    assert delete(engine, match="a") == 2
    tagged(engine, "a")
    engine = again(engine)
    assert seqs_read(engine) == [3]


def test_d1_a_delete_means_the_moment_of_the_call(engine: Engine, again: Start) -> None:
    """What is staged, before or after, is not visible yet, so it is not deleted."""
    tagged(engine, "a")
    before = engine.append("t", Batch([b"x"], tags=["a"]))
    ticket = engine.delete("t", match="a")
    after = engine.append("t", Batch([b"y"], tags=["a"]))
    engine.runtime.run()  # type: ignore[attr-defined]
    assert (ticket.result().deleted, before.result().first_seq, after.result().first_seq) == (
        1, 2, 3,
    )  # fmt: skip
    engine = again(engine)
    assert seqs_read(engine) == [2, 3]


@pytest.mark.parametrize("sealed", [False, True])
def test_d2_a_glob_is_a_prefix_and_nothing_else(
    engine: Engine, restart: Start, sealed: bool
) -> None:
    tagged(engine, "chat-42:a", "chat-420:x", "chat-42:", "chat-42", None, "xchat-42:a")
    if sealed:
        engine = restart(engine)
    assert delete(engine, match="chat-42:*") == 2
    assert seqs_read(engine) == [2, 4, 5, 6]


@pytest.mark.parametrize("sealed", [False, True])
def test_d2_equality_is_byte_exact_and_untagged_never_match(
    engine: Engine, restart: Start, sealed: bool
) -> None:
    tagged(engine, "A", "a", "a ", "\u00e9", "e\u0301", "", None, "*", "a*")
    if sealed:
        engine = restart(engine)
    assert delete(engine, match="a") == 1
    assert delete(engine, match="\u00e9") == 1
    assert delete(engine, match="") == 1
    assert delete(engine, match=TagMatch("*")) == 1
    assert seqs_read(engine) == [1, 3, 5, 7, 9]
    assert delete(engine, match="a**") == 1
    assert delete(engine, match="*") == 3
    assert seqs_read(engine) == [7]


@pytest.mark.parametrize("sealed", [False, True])
def test_d3_match_and_before_seq_is_an_and(engine: Engine, restart: Start, sealed: bool) -> None:
    tagged(engine, "a", "b", "a", "b", "a")
    if sealed:
        engine = restart(engine)
    assert delete(engine, match="a", before_seq=5) == 2
    assert seqs_read(engine) == [2, 4, 5]
    assert engine.topic("t").earliest_seq == 2


def test_d3_deleting_the_front_by_tag_advances_earliest(engine: Engine, again: Start) -> None:
    tagged(engine, "a", "b", "a")
    assert engine.delete("t", match="b").result().earliest_seq == 1
    assert engine.delete("t", match="a").result().earliest_seq == 4
    engine = again(engine)
    state = engine.topic("t")
    assert (state.earliest_seq, state.count, state.bytes) == (4, 0, 0)


def test_d4_a_delete_replayed_after_later_appends_means_the_same(
    engine: Engine, kill: Start
) -> None:
    for _ in range(3):
        tagged(engine, "a", "b")
    assert delete(engine, match="a") == 3
    assert delete(engine, before_seq=3) == 1
    tagged(engine, "a", "a")
    live = seqs_read(engine)
    for _ in range(2):
        engine = kill(engine)
        assert seqs_read(engine) == live == [4, 6, 7, 8]


def test_d5_a_delete_of_a_sealed_record_survives_the_loss_of_its_log_entry(
    engine: Engine, kill: Start
) -> None:
    tagged(engine, "a", "b", "c")
    engine.checkpoint().result()
    assert delete(engine, match="b") == 1
    for _ in range(3):
        engine.append("other", [1]).result()
        engine.checkpoint().result()
    engine = kill(engine)
    assert seqs_read(engine) == [1, 3]
    assert engine.topic("t").bytes == 2


def test_d5_deletes_during_a_checkpoint_are_kept(start: Start, kill: Start) -> None:
    """Whatever step of the checkpoint a delete falls into."""
    for steps in range(1, 40):
        engine = start()
        tagged(engine, "a", "b", "c", "d")
        checkpoint = engine.checkpoint()
        for _ in range(steps):
            engine.runtime.step()  # type: ignore[attr-defined]
        finished = checkpoint.done
        first, second = engine.delete("t", match="b"), engine.delete("t", before_seq=2)
        checkpoint.result()
        assert (first.result().deleted, second.result().deleted) == (1, 1)
        engine = kill(engine)
        assert seqs_read(engine) == [3, 4]
        assert engine.topic("t").count == engine.topic("t").bytes == 2
        if finished:
            return
    pytest.fail("the checkpoint never finished")


def test_d6_a_delete_of_a_whole_file_unlinks_it(engine: Engine) -> None:
    disk = engine.state.fs
    engine.append("t", [b"x" * 100] * 20).result()
    engine.checkpoint().result()
    names = set(disk.listdir("segments"))
    assert names
    engine.delete("t", before_seq=21).result()
    for _ in range(3):
        engine.append("other", [1]).result()
        engine.checkpoint().result()
    assert not names & set(disk.listdir("segments"))


def test_d7_a_file_more_than_half_dead_is_rewritten(start: Start, kill: Start) -> None:
    engine = start(policy=MergePolicy(own_rows_min=10, own_bytes_min=1 << 20))
    disk = engine.state.fs
    engine.append(
        "t", Batch([b"x" * 1_000] * 100, tags=["keep" if n % 4 else "drop" for n in range(100)])
    ).result()
    engine.checkpoint().result()
    assert delete(engine, before_seq=61) == 60
    for _ in range(3):
        engine.append("other", [1]).result()
        engine.checkpoint().result()
    size = sum(len(d) for path, d in disk.contents().items() if path.startswith("segments/"))
    assert size < 2 * 40_000 + 20_000
    engine = kill(engine)
    assert seqs_read(engine) == list(range(61, 101))
    assert delete(engine, match="drop") == 10
    assert engine.topic("t").bytes == 30_000


def test_before_seq_at_the_edges(engine: Engine) -> None:
    engine.append("t", [1, 2, 3]).result()
    assert delete(engine, before_seq=0) == 0
    assert delete(engine, before_seq=1) == 0
    assert seqs_read(engine) == [1, 2, 3]
    assert delete(engine, before_seq=10_000) == 3
    assert engine.topic("t").earliest_seq == 4
    assert engine.append("t", [4]).result().first_seq == 4
    assert seqs_read(engine) == [4], "a delete beyond the head does not reach what comes later"


def test_what_a_delete_can_not_mean(engine: Engine) -> None:
    error = engine.delete("absent").error
    assert isinstance(error, InvalidRequest), "checked before the topic is looked up"
    assert isinstance(engine.delete("absent", before_seq=1).error, TopicNotFound)
    assert engine.topics() == []
    engine.append("t", [1]).result()
    for bad in (-1, "1", 1.5, True, 1 << 60):
        refused = engine.delete("t", before_seq=bad)  # type: ignore[arg-type]
        assert isinstance(refused.error, InvalidRequest) and refused.error.fix
    for match in (5, b"x", ["tag"]):
        refused = engine.delete("t", match=match)  # type: ignore[arg-type]
        assert isinstance(refused.error, InvalidRequest) and refused.error.fix
    assert seqs_read(engine) == [1]


def test_a_delete_of_many_tags_is_one_log_entry(engine: Engine) -> None:
    tagged(engine, *(["a", "b"] * 500))
    shard = engine.state.shards[0]
    batches = shard.batches_total
    assert delete(engine, match="a") == 500
    assert shard.batches_total - batches == 1


@settings(max_examples=30)
@given(
    st.lists(
        st.one_of(
            st.tuples(st.just("append"), st.lists(st.sampled_from(["a", "ab", "b", None]))),
            st.tuples(st.just("eq"), st.sampled_from(["a", "ab", "b", "c"])),
            st.tuples(st.just("glob"), st.sampled_from(["", "a", "ab", "b"])),
            st.tuples(st.just("before"), st.integers(0, 40)),
            st.tuples(st.just("both"), st.integers(0, 40)),
            st.tuples(st.just("seal"), st.none()),
            st.tuples(st.just("kill"), st.none()),
        ),
        max_size=25,
    )
)
def test_deletes_agree_with_a_plain_list(steps: list[tuple[str, object]]) -> None:
    disk = SimDisk()
    engine = Engine(disk, StepRuntime(ManualClock()), SMALL, random=SeededRandom(1))
    engine.recover()
    engine.put_topic("t").result()
    live: dict[int, str | None] = {}
    head = 0
    for what, value in steps:
        gone: set[int] = set()
        if what == "append" and value:
            assert isinstance(value, list)
            tagged(engine, *value)
            live |= {head + n + 1: tag for n, tag in enumerate(value)}
            head += len(value)
        elif what == "eq":
            gone = {seq for seq, tag in live.items() if tag == value}
            assert delete(engine, match=value) == len(gone)
        elif what == "glob":
            gone = {seq for seq, tag in live.items() if tag and tag.startswith(str(value))}
            assert delete(engine, match=f"{value}*") == len(gone)
        elif what == "before":
            assert isinstance(value, int)
            gone = {seq for seq in live if seq < value}
            assert delete(engine, before_seq=value) == len(gone)
        elif what == "both":
            assert isinstance(value, int)
            gone = {seq for seq, tag in live.items() if seq < value and tag == "a"}
            assert delete(engine, before_seq=value, match="a") == len(gone)
        elif what == "seal":
            engine.checkpoint().result()
            engine.state.forget_blocks(engine.state.topic("t"))
        elif what == "kill":
            engine.abandon()
            disk = disk.image(disk.position, "all", 0, power_loss=False)
            engine = Engine(disk, StepRuntime(ManualClock()), SMALL, random=SeededRandom(2))
            engine.recover()
        live = {seq: tag for seq, tag in live.items() if seq not in gone}
        state = engine.topic("t")
        assert (state.head_seq, state.count) == (head, len(live))
        assert [(r.seq, r.tag) for r in engine.read("t").result().records] == list(live.items())
    engine.abandon()
