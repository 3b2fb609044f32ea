"""Jobs that were delivered too often: where they go, what is said of them, what if they cannot."""

from __future__ import annotations

import msgspec

from headrace.core.clock import ManualClock
from headrace.engine.engine import Engine
from headrace.storage.block import Batch
from tests.unit.engine.queue_help import add, claim, claimed, contents, counts, make, seqs


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
    assert (seqs(answer.jobs), answer.ready) == ([3, 4], 1)
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
    assert seqs(claim(engine, 5)) == [2]
    assert counts(engine) == (1, 1, 0, 0)
    engine.delete("dead", before_seq=2).result()
    assert claim(engine, 5) == []
    assert counts(engine) == (0, 1, 0, 1)
    assert contents(engine, "dead") == [b"1"]
