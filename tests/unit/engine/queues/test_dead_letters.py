"""Jobs that were delivered too often: where they go, what is said of them, what if they cannot."""

from __future__ import annotations

import msgspec
import pytest

from headrace.core.clock import ManualClock
from headrace.core.runtime import StepRuntime
from headrace.engine.appending.producers import ProducerClaim
from headrace.engine.engine import Engine
from headrace.engine.queues.dead_letter_move import RETRY_MS
from headrace.engine.queues.dead_letters import REFUSED_MS
from headrace.storage.block import Batch
from tests.support.engines import Start
from tests.support.queue_calls import add, claim, claimed, contents, counts, make
from tests.support.seqs import seqs_of


def test_h9_a_job_that_was_delivered_too_often_goes_to_the_dead_letters(
    engine: Engine, clock: ManualClock
) -> None:
    make(engine, max_deliveries=2, dead_letter="dead", lease_ms=1_000)
    batch = Batch([b'{"id":1}'], tags=["t"], nodes=["producer"], metas=[b'{"k": 1}'])
    engine.append("jobs", batch).result()
    for _ in range(2):
        assert len(claim(engine)) == 1
        clock.advance(1_001)
    assert counts(engine) == (1, 0, 0, 0)
    answer = claimed(engine)
    assert (answer.jobs, answer.ready) == ([], 0)
    assert counts(engine) == (0, 0, 0, 1)
    assert engine.topic("jobs").count == 0
    (record,) = engine.read("dead").result().records
    assert (record.data, record.tag, record.node) == (b'{"id":1}', "t", "producer")
    assert record.meta is not None
    assert msgspec.json.decode(record.meta) == {
        "k": 1,
        "$dead_letter_from": "jobs",
        "$dead_letter_deliveries": "2",
        "$dead_letter_src_seq": "1",
    }
    assert engine.topic("dead").config.type == "log"


def test_h9_the_claim_that_buries_still_gets_the_other_jobs(
    engine: Engine, clock: ManualClock
) -> None:
    make(engine, max_deliveries=1, dead_letter="dead", lease_ms=1_000)
    add(engine, 5)
    claim(engine, 2)
    clock.advance(1_001)
    answer = claimed(engine, 2)
    assert (seqs_of(answer.jobs), answer.ready) == ([3, 4], 1)
    assert contents(engine, "dead") == [b"1", b"2"]


def test_h9_without_a_dead_letter_topic_a_job_is_delivered_for_ever(engine: Engine) -> None:
    make(engine, max_deliveries=1)
    add(engine, 1)
    for delivery in range(1, 5):
        assert claim(engine)[0].deliveries == delivery
        engine.queues.nack("jobs", "a", [1]).result()


def test_h9_a_bound_that_changes_counts_for_what_waits(engine: Engine) -> None:
    make(engine)
    add(engine, 2)
    claim(engine, 2)
    engine.queues.nack("jobs", "a", [1, 2]).result()
    make(engine, max_deliveries=1, dead_letter="dead")
    assert claim(engine, 5) == []
    assert contents(engine, "dead") == [b"1", b"2"]


def test_h9_a_meta_at_its_limit_does_not_keep_a_job_from_being_buried(engine: Engine) -> None:
    make(engine, max_deliveries=1, dead_letter="dead")
    meta = b'{"k":"%s"}' % (b"x" * (16 * 1024 - 8))
    engine.append("jobs", Batch([b"1", b"2"], metas=[meta, b"not json"])).result()
    claim(engine, 2)
    engine.queues.nack("jobs", "a", [1, 2]).result()
    assert claim(engine, 2) == []
    assert contents(engine, "dead") == [b"1", b"2"]
    metas = [msgspec.json.decode(r.meta or b"") for r in engine.read("dead").result().records]
    assert metas[0]["$dead_letter_src_seq"] == "1"
    assert metas[1]["$dead_letter_meta"] == "not json"


def test_h11_a_job_that_cannot_be_buried_is_where_it_was(engine: Engine) -> None:
    make(engine, max_deliveries=1, dead_letter="dead")
    engine.put_topic("dead", {"cap_records": 1, "discard": "reject"}).result()
    add(engine, 1, "dead")
    add(engine, 2)
    claim(engine)
    engine.queues.nack("jobs", "a", [1]).result()
    assert seqs_of(claim(engine, 5)) == [2]
    assert counts(engine) == (1, 1, 0, 0)
    engine.delete("dead", before_seq=2).result()
    assert claim(engine, 5) == []
    assert counts(engine) == (0, 1, 0, 1)
    assert contents(engine, "dead") == [b"1"]


def test_h11_a_topic_that_refuses_dead_letters_is_not_asked_all_the_time(
    engine: Engine, clock: ManualClock
) -> None:
    make(engine, max_deliveries=1, dead_letter="dead")
    engine.put_topic("dead", {"cap_records": 1, "discard": "reject"}).result()
    add(engine, 1, "dead")
    add(engine, 400)
    engine.queues.nack("jobs", "a", seqs_of(claim(engine, 400))).result()
    (shard,) = engine.state.shards
    claim(engine)
    asked = shard.frames_total
    for _ in range(50):
        assert claim(engine) == []
    assert shard.frames_total == asked
    for wait_ms in (REFUSED_MS, 2 * REFUSED_MS, 4 * REFUSED_MS):
        clock.advance(wait_ms - 1)
        claim(engine)
        assert shard.frames_total == asked
        clock.advance(1)
        claim(engine)
        assert shard.frames_total > asked
        asked = shard.frames_total
    engine.put_topic("dead").result()
    assert claim(engine) == []
    assert len(contents(engine, "dead")) == 401


def test_h11_a_refusal_that_is_not_the_dead_letter_topics_ends_with_time(
    start: Start, clock: ManualClock
) -> None:
    engine = start(max_topics=2)
    make(engine, max_deliveries=1, dead_letter="dead")
    add(engine, 1, "other")
    add(engine, 1)
    claim(engine)
    engine.queues.nack("jobs", "a", [1]).result()
    assert claim(engine) == []
    engine.delete_topic("other").result()
    clock.advance(RETRY_MS)
    assert claim(engine) == []
    assert contents(engine, "dead") == [b"1"]


@pytest.mark.parametrize("durability", ["ephemeral", "disk"])
def test_more_jobs_than_one_move_takes_are_all_buried_by_one_claim(
    engine: Engine, clock: ManualClock, durability: str
) -> None:
    engine.put_topic("dead", {"durability": durability}).result()
    make(engine, max_deliveries=1, dead_letter="dead", lease_ms=1_000, durability=durability)
    add(engine, 2_500)
    for _ in range(3):
        claim(engine, 1_000)
    clock.advance(1_001)
    assert claim(engine) == []
    assert isinstance(engine.runtime, StepRuntime)
    engine.runtime.run()
    assert contents(engine, "dead") == [b"%d" % n for n in range(1, 2_501)]
    assert counts(engine) == (0, 0, 0, 2_500)


def test_a_number_that_somebody_else_has_used_loses_no_job(
    engine: Engine, clock: ManualClock
) -> None:
    make(engine, max_deliveries=1, dead_letter="dead")
    add(engine, 1)
    mine = f"moved-from:{engine.state.topic('jobs').id}"
    engine.append("dead", [0], producer=ProducerClaim(mine, 1, 0)).result()
    claim(engine)
    engine.queues.nack("jobs", "a", [1]).result()
    assert claim(engine) == []
    assert contents(engine, "jobs") == [b"1"]
    clock.advance(REFUSED_MS)
    assert claim(engine) == []
    assert contents(engine, "dead") == [b"0", b"1"]
    assert counts(engine) == (0, 0, 0, 1)


def test_queues_that_come_and_go_leave_room_for_the_dead_letters_of_others(start: Start) -> None:
    engine = start(producers_per_topic_max=3)
    for number in range(8):
        name = f"jobs-{number}"
        make(engine, name, max_deliveries=1, dead_letter="dead")
        add(engine, 1, name)
        claim(engine, name=name)
        engine.queues.nack(name, "a", [1]).result()
        assert claim(engine, name=name) == []
        engine.delete_topic(name).result()
    assert len(contents(engine, "dead")) == 8


def test_two_queues_may_bury_into_each_other(engine: Engine) -> None:
    make(engine, "one", max_deliveries=1, dead_letter="two")
    make(engine, "two", max_deliveries=1, dead_letter="one")
    add(engine, 1, "one")
    for name, other in (("one", "two"), ("two", "one")) * 2:
        (job,) = claim(engine, name=name)
        engine.queues.nack(name, "a", [job.seq]).result()
        assert claim(engine, name=name) == []
        assert (contents(engine, name), contents(engine, other)) == ([], [b"1"])
    (record,) = engine.read("one").result().records
    assert msgspec.json.decode(record.meta or b"")["$dead_letter_from"] == "two"


def test_a_dead_letter_topic_that_was_deleted_is_made_again(engine: Engine) -> None:
    make(engine, max_deliveries=1, dead_letter="dead")
    add(engine, 2)
    for seq in (1, 2):
        claim(engine)
        engine.queues.nack("jobs", "a", [seq]).result()
        claim(engine)
        assert contents(engine, "dead") == [b"%d" % seq]
        engine.delete_topic("dead").result()
