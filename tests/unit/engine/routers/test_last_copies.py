"""The end of a source: what it held is in the destinations of its routers, or announced there."""

from __future__ import annotations

import pytest

from headrace.core.clock import ManualClock
from headrace.core.errors import Throttled, TopicInUse, TopicNotEmpty
from headrace.engine.engine import Engine
from headrace.engine.routers.copied_records import RECORDS_PER_PASS
from headrace.engine.routers.last_copies import LOOK_MS, LOOKS_MAX
from tests.support.engines import Start
from tests.support.router_calls import LITTLE, Restart, data, route, run, write

MANY = 4 * RECORDS_PER_PASS + 904


def append_many(engine: Engine, topic: str, count: int = MANY) -> None:
    """Append, and wait for no router."""
    engine.append(topic, [b"%d" % number for number in range(count)]).result()


@pytest.mark.parametrize("shards", [1, 3])
@pytest.mark.parametrize("durability", ["disk", "fsync"])
def test_i13_a_source_that_is_deleted_is_copied_to_its_end(
    start: Start, durability: str, shards: int
) -> None:
    engine = start(wal_shards=shards)
    engine.put_topic("b", {"durability": durability}).result()
    route(engine, "r", "a", "b")
    append_many(engine, "a")
    deleted = engine.delete_topic("a").result()
    assert (deleted.deleted, deleted.routers_removed) == (True, ["r"])
    assert engine.topic("b").count == MANY
    assert len(data(engine, "b")) == MANY


def test_i13_a_chain_and_a_fan_out_get_all_of_it(engine: Engine) -> None:
    for name, source, dest in (("r", "a", "b"), ("s", "b", "c"), ("t", "b", "d")):
        route(engine, name, source, dest)
    append_many(engine, "a")
    middle, first = engine.delete_topic("b"), engine.delete_topic("a")
    removed = [*middle.result().routers_removed, *first.result().routers_removed]
    assert sorted(removed) == ["r", "s", "t"]
    assert [engine.topic(name).count for name in "cd"] == [MANY, MANY]


def test_i13_what_a_full_destination_does_not_take_is_announced_there(
    engine: Engine, again: Restart
) -> None:
    engine.put_topic("b", {"cap_records": 2, "discard": "reject"}).result()
    route(engine, "r", "a", "b")
    write(engine, "a", *"123456", tags=["x", "x", "x", "gone", "x", "x"])
    engine.delete("a", match="gone").result()
    assert engine.delete_topic("a").result().deleted
    for _ in range(2):
        assert data(engine, "b") == ["1", "2"]
        assert engine.topic("b").head_seq == 5
        lost = engine.read("b", 2).result().tombstone
        assert lost is not None and lost[:3] == (3, 5, "source_trim")
        engine = again(engine)


def test_i13_a_deletion_waits_for_memory_that_a_checkpoint_frees(
    start: Start, clock: ManualClock
) -> None:
    engine = start(**LITTLE)
    route(engine, "r", "a", "b")
    write(engine, "a", *"123")
    run(engine)
    budget = engine.settings.memory_budget_bytes
    engine.state.totals.unsealed_bytes += budget - budget // 5  # for writers, not for copies
    write(engine, "a", *"456")
    deleting = engine.delete_topic("a")
    run(engine)
    assert not deleting.done
    engine.state.totals.unsealed_bytes -= budget - budget // 5
    clock.advance(50)
    assert deleting.result().deleted
    assert data(engine, "b") == [*"123456"]


def test_i13_memory_that_never_comes_is_not_waited_for_for_ever(
    start: Start, clock: ManualClock
) -> None:
    engine = start(**LITTLE)
    route(engine, "r", "a", "b")
    budget = engine.settings.memory_budget_bytes
    engine.state.totals.unsealed_bytes += budget - budget // 5
    write(engine, "a", *"123")
    deleting = engine.delete_topic("a")
    for _ in range(3 * LOOKS_MAX):
        run(engine)
        clock.advance(LOOK_MS)
    assert deleting.result().deleted
    lost = engine.read("b").result().tombstone
    assert lost is not None and lost[:3] == (1, 3, "source_trim")


def test_i13_a_source_that_can_neither_be_copied_nor_announced_stays(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine.put_topic("b", {"cap_records": 1, "discard": "reject"}).result()
    route(engine, "r", "a", "b")
    write(engine, "a", *"123")
    monkeypatch.setattr("headrace.engine.topics.live_seqs.source_trims_max", 0)
    with pytest.raises(Throttled, match="neither copy nor announce"):
        engine.delete_topic("a").result()
    write(engine, "a", "4")  # it is open again
    assert engine.routers.delete("r").result() == ("r", True, 3, 1)
    assert engine.delete_topic("a").result().routers_removed == []
    assert data(engine, "b") == ["1"]


def test_i13_what_is_written_during_a_deletion_is_copied_or_refused(engine: Engine) -> None:
    route(engine, "r", "a", "b")
    append_many(engine, "a")
    deleting = engine.delete_topic("a")
    accepted, refused = MANY, 0
    while not deleting.done:
        ticket = engine.append("a", [b"more"])
        engine.runtime.step()  # type: ignore[attr-defined]
        engine.runtime.wait(ticket)
        if ticket.error is None:
            if not ticket.result().created:
                accepted += 1
        else:
            assert isinstance(ticket.error, Throttled), ticket.error
            refused += 1
    assert deleting.result().deleted
    assert engine.topic("b").count == accepted
    assert refused


def test_i13_two_deletions_at_once_delete_once(engine: Engine) -> None:
    route(engine, "r", "a", "b")
    append_many(engine, "a")
    tickets = [engine.delete_topic("a") for _ in range(2)]
    assert sorted(ticket.result().deleted for ticket in tickets) == [False, True]
    assert engine.topic("b").count == MANY


def test_i13_a_deletion_that_is_refused_leaves_the_topic_open(engine: Engine) -> None:
    route(engine, "r", "a", "b")
    write(engine, "a", "1")
    with pytest.raises(TopicNotEmpty):
        engine.delete_topic("a", if_empty=True).result()
    write(engine, "a", "2")
    assert data(engine, "b") == ["1", "2"]


def test_i13_the_copies_are_on_disk_before_the_delete_is(start: Start, power_loss: Start) -> None:
    """Else a power loss could take the copies, of class disk, and leave the delete."""
    engine = start(wal_shards=3)
    for number in range(8):  # some destinations are in the shard of the source, some are not
        route(engine, f"r{number}", "a", f"b{number}")
    engine.put_topic("a", {"durability": "fsync"}).result()
    engine.append("a", [1, 2, 3])  # copied at the very end
    engine.delete_topic("a").result()
    engine = power_loss(engine)
    assert "a" not in engine.state.by_name
    for number in range(8):
        assert data(engine, f"b{number}") == [*"123"]


def test_i13_a_router_that_is_deleted_says_what_it_left(engine: Engine) -> None:
    engine.put_topic("b", {"cap_records": 2, "discard": "reject"}).result()
    route(engine, "r", "a", "b")
    write(engine, "a", *"12345")
    gone = engine.routers.delete("r").result()
    assert gone == ("r", True, 3, 2)
    engine.delete("b", before_seq=2).result()
    engine.put_topic("b", {}).result()
    route(engine, "r", "a", "b", backfill=gone.copied_to)
    assert data(engine, "b") == [*"2345"]
    assert engine.routers.delete("r").result() == ("r", True, 0, 5)


def test_i14_a_topic_of_foreign_routers_is_not_deleted(engine: Engine) -> None:
    mine = lambda name: name.startswith("my-")  # noqa: E731
    route(engine, "my-r", "my-a", "my-b")
    route(engine, "other", "my-a", "audit")
    route(engine, "my-s", "secret", "my-c")
    for name in ("my-a", "my-c"):
        with pytest.raises(TopicInUse, match="another router uses") as refused:
            engine.delete_topic(name, allowed=mine).result()
        assert refused.value.detail == {"topic": name, "routers": 1}
        assert not any(word in str(refused.value) for word in ("audit", "secret"))
    assert engine.delete_topic("my-b", allowed=mine).result().routers_removed == ["my-r"]
    assert engine.delete_topic("my-a").result().routers_removed == ["other"]


def test_i14_a_foreign_router_that_comes_during_a_deletion_survives(engine: Engine) -> None:
    route(engine, "my-r", "my-a", "my-b")
    append_many(engine, "my-a")
    deleting = engine.delete_topic("my-a", allowed=lambda name: name.startswith("my-"))
    assert not deleting.done
    route(engine, "other", "my-a", "audit")
    with pytest.raises(TopicInUse):
        deleting.result()
    write(engine, "my-a", "more")
    assert data(engine, "audit")[-1] == "more"
