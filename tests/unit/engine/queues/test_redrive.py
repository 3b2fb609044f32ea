"""Dead letters go back to where they came from: by filter, in steps, once."""

from __future__ import annotations

import msgspec
import pytest

from headrace.core.errors import TopicFull, TopicNotFound
from headrace.core.runtime import StepRuntime
from headrace.engine.engine import Engine
from headrace.engine.queues.dead_letters import Redrive, Redriven
from headrace.engine.removal.deleting import TagMatch
from headrace.storage.block import Batch
from tests.support.engines import Start
from tests.support.queue_calls import add, claim, contents, counts, make
from tests.support.seqs import seqs_of


def bury(engine: Engine, count: int = 4, name: str = "jobs", **columns: object) -> None:
    make(engine, name, max_deliveries=1, dead_letter="dead")
    data = [b"%s %d" % (name.encode(), n) for n in range(count)]
    engine.append(name, Batch(data, **columns)).result()  # type: ignore[arg-type]
    jobs = claim(engine, count, name=name)
    engine.queues.nack(name, "a", seqs_of(jobs)).result()
    assert claim(engine, name=name) == []
    make(engine, name)  # so that what comes back is not dead at once


def redrive(engine: Engine, **asked: object) -> Redriven:
    return engine.queues.redrive("dead", Redrive(**asked)).result()  # type: ignore[arg-type]


def test_all_of_them_go_back_as_they_were(engine: Engine) -> None:
    metas = [b'{"k":1}', None, None, b"not json"]
    bury(engine, tags=["t", None, None, None], nodes=[None, "n", None, None], metas=metas)
    assert redrive(engine) == Redriven("dead", 4, 0, 4, True)
    assert contents(engine, "dead") == []
    records = engine.read("jobs").result().records
    assert [r.data for r in records] == [b"jobs 0", b"jobs 1", b"jobs 2", b"jobs 3"]
    assert seqs_of(records) == [5, 6, 7, 8]
    assert [r.tag for r in records] == ["t", None, None, None]
    assert [r.node for r in records] == [None, "n", None, None]
    assert [r.meta for r in records] == metas
    assert [job.deliveries for job in claim(engine, 9)] == [1, 1, 1, 1]
    assert counts(engine)[3] == 4  # how many ever died


def test_a_filter_says_which(engine: Engine) -> None:
    metas = [b'{"k":%d}' % (n % 2) for n in range(4)]
    bury(engine, tags=["chat-42:x", "chat-420:x", "other", None], metas=metas)
    bury(engine, 2, "more")
    assert redrive(engine, match=TagMatch.parse("chat-42:*")).moved == 1
    assert contents(engine, "jobs") == [b"jobs 0"]
    assert redrive(engine, meta={"k": 0}) == Redriven("dead", 1, 4, 6, True)
    assert contents(engine, "jobs") == [b"jobs 0", b"jobs 2"]
    assert redrive(engine, source="more").moved == 2
    assert contents(engine, "more") == [b"more 0", b"more 1"]
    assert redrive(engine, meta={"k": 7}).moved == 0
    assert contents(engine, "dead") == [b"jobs 1", b"jobs 3"]


def test_a_step_looks_at_so_many_and_says_where_it_is(engine: Engine) -> None:
    bury(engine, 5)
    assert redrive(engine, limit=2) == Redriven("dead", 2, 0, 2, False)
    assert redrive(engine, limit=2, from_seq=2) == Redriven("dead", 2, 0, 4, False)
    assert redrive(engine, limit=2, from_seq=4) == Redriven("dead", 1, 0, 5, True)
    assert redrive(engine) == Redriven("dead", 0, 0, 5, True)
    assert contents(engine, "jobs") == [b"jobs %d" % n for n in range(5)]


def test_what_has_nowhere_to_go_stays(engine: Engine) -> None:
    bury(engine, 1)
    bury(engine, 1, "gone")
    engine.delete_topic("gone").result()
    engine.append("gone", [1]).result()  # now it is a log
    metas = [None, b'{"$dead_letter_from":7}', b"[]"]
    engine.append("dead", Batch([b"x"] * 3, metas=metas)).result()
    answer = redrive(engine)
    assert (answer.moved, answer.skipped) == (1, 4)
    assert contents(engine, "dead") == [b"gone 0", b"x", b"x", b"x"]
    assert redrive(engine, allowed=lambda _name: False).moved == 0


@pytest.mark.parametrize("value", [b"1e999", b'"\xff"', b"[" * 900 + b"]" * 900])
def test_a_meta_that_makes_no_sense_hinders_nobody(engine: Engine, value: bytes) -> None:
    bury(engine, 1)
    metas: list[bytes | None] = [b'{"$dead_letter_from":%s}' % value, b'{"k":%s}' % value]
    engine.append("dead", Batch([b"x"] * 2, metas=metas)).result()
    assert redrive(engine, meta={"k": 1}).moved == 0
    assert (redrive(engine).moved, contents(engine, "jobs")) == (1, [b"jobs 0"])


def test_a_source_that_is_full_keeps_them_where_they_are(engine: Engine) -> None:
    bury(engine, 2)
    engine.put_topic("jobs", {"type": "queue", "cap_records": 1, "discard": "reject"}).result()
    add(engine, 1)
    with pytest.raises(TopicFull):
        redrive(engine)
    assert contents(engine, "dead") == [b"jobs 0", b"jobs 1"]
    make(engine)
    assert redrive(engine).moved == 2


def test_what_fits_goes_back_though_not_all_of_it_does(engine: Engine) -> None:
    bury(engine, 7)
    engine.put_topic("jobs", {"type": "queue", "cap_records": 2, "discard": "reject"}).result()
    assert redrive(engine).moved == 1
    assert redrive(engine).moved == 1
    assert contents(engine, "jobs") == [b"jobs 0", b"jobs 1"]
    with pytest.raises(TopicFull):
        redrive(engine)
    assert len(contents(engine, "dead")) == 5


def test_a_dead_letter_queue_gives_what_nobody_holds(engine: Engine) -> None:
    make(engine, "dead")
    bury(engine, 5)
    held = claim(engine, 2, name="dead")
    engine.queues.nack("dead", "a", [held[0].seq]).result()
    assert redrive(engine, meta={"$dead_letter_src_seq": "4"}).moved == 1
    assert seqs_of(claim(engine, 9, name="dead")) == [1, 3, 5]
    assert redrive(engine).moved == 0
    assert contents(engine, "jobs") == [b"jobs 3"]


def test_no_dead_letters_no_topic(engine: Engine) -> None:
    with pytest.raises(TopicNotFound):
        redrive(engine)


@pytest.mark.parametrize("steps", range(12))
def test_a_redrive_that_was_killed_is_finished_by_the_next_start(
    engine: Engine, kill: Start, steps: int
) -> None:
    bury(engine, 3)
    engine.queues.redrive("dead")
    for _ in range(steps):
        engine.runtime.step()  # type: ignore[attr-defined]
    engine = kill(engine)
    assert isinstance(engine.runtime, StepRuntime)
    engine.runtime.run()
    assert sorted(contents(engine, "jobs") + contents(engine, "dead")) == [
        b"jobs 0", b"jobs 1", b"jobs 2",
    ]  # fmt: skip
    redrive(engine)
    assert contents(engine, "jobs") == [b"jobs 0", b"jobs 1", b"jobs 2"]
    metas = [r.meta for r in engine.read("jobs").result().records]
    assert metas == [None, None, None]


def test_a_job_that_dies_again_says_so_again(engine: Engine) -> None:
    bury(engine, 1)
    redrive(engine)
    make(engine, max_deliveries=1, dead_letter="dead")
    (job,) = claim(engine)
    engine.queues.nack("jobs", "a", [job.seq]).result()
    claim(engine)
    (record,) = engine.read("dead").result().records
    assert msgspec.json.decode(record.meta or b"")["$dead_letter_src_seq"] == "2"
    assert counts(engine)[3] == 2


def test_beyond_the_last_dead_letter_there_is_nothing(engine: Engine) -> None:
    bury(engine, 2)
    answer = redrive(engine, from_seq=(1 << 64) - 1)
    assert (answer.moved, answer.next_from_seq, answer.done) == (0, 2, True)
    assert len(contents(engine, "dead")) == 2
