"""Claims that come together: an even share for each, each under its own lease time."""

from __future__ import annotations

import pytest

from headrace.core.clock import ManualClock
from headrace.core.errors import (
    Throttled,
    TopicNotFound,
)
from headrace.core.runtime import StepRuntime
from headrace.engine.engine import Engine
from headrace.engine.queues.answers import Claimed
from tests.support.engines import Start
from tests.support.queue_calls import add, counts, make
from tests.support.seqs import seqs_of


def run(engine: Engine) -> None:
    assert isinstance(engine.runtime, StepRuntime)
    engine.runtime.run()


def ask(engine: Engine, node: str, count: int, lease_ms: int | None = None) -> list[Claimed]:
    found: list[Claimed] = []
    ticket = engine.queues.claim("jobs", node, count, lease_ms)
    ticket.when_done(lambda done: found.append(done.result()))
    return found


def test_h14_claims_that_come_together_share_evenly(engine: Engine, clock: ManualClock) -> None:
    make(engine, claim_jitter_ms=120)
    add(engine, 20)
    answers = []
    for node in "abcd":
        answers.append(ask(engine, node, 10))
        clock.advance(20)
        run(engine)
    assert answers == [[], [], [], []]
    clock.advance(40)
    run(engine)
    assert [len(found[0].jobs) for found in answers] == [5, 5, 5, 5]
    assert sorted(s for found in answers for s in seqs_of(found[0].jobs)) == list(range(1, 21))


def test_h14_nobody_starves_while_others_take_more(engine: Engine, clock: ManualClock) -> None:
    make(engine, claim_jitter_ms=100)
    add(engine, 10)
    answers = [ask(engine, node, count) for node, count in (("a", 1_000), ("b", 2), ("c", 1_000))]
    clock.advance(100)
    run(engine)
    assert [len(found[0].jobs) for found in answers] == [4, 2, 4]


def test_h14_each_claimer_keeps_its_own_lease_time(engine: Engine, clock: ManualClock) -> None:
    make(engine, claim_jitter_ms=50)
    add(engine, 4)
    answers = [ask(engine, "a", 2, 1_000), ask(engine, "b", 2, 9_000)]
    clock.advance(50)
    run(engine)
    now = engine.state.clock.now_ms()
    deadlines = [{job.deadline - now for job in found[0].jobs} for found in answers]
    assert deadlines == [{1_000}, {9_000}]
    clock.advance(1_001)
    assert counts(engine) == (2, 2, 0, 0)


def test_h14_a_claimer_that_gave_up_gets_nothing(engine: Engine, clock: ManualClock) -> None:
    make(engine, claim_jitter_ms=50)
    add(engine, 4)
    gone = engine.queues.claim("jobs", "a", 4)
    stays = ask(engine, "b", 4)
    gone.abandon()
    clock.advance(50)
    run(engine)
    assert len(stays[0].jobs) == 4


def test_h14_a_worker_whose_connection_has_ended_takes_no_share(
    engine: Engine, clock: ManualClock
) -> None:
    make(engine, claim_jitter_ms=50)
    add(engine, 4)
    connection = engine.queues.connect("jobs", lambda: False)
    engine.queues.claim("jobs", "a", 4, connection=connection)
    stays = ask(engine, "b", 4)
    engine.queues.disconnect(connection)
    clock.advance(50)
    run(engine)
    assert len(stays[0].jobs) == 4


def test_the_claims_that_wait_are_bounded(start: Start) -> None:
    engine = start(claims_waiting_max=2)
    make(engine, claim_jitter_ms=50)
    ask(engine, "a", 1)
    ask(engine, "b", 1)
    with pytest.raises(Throttled) as refused:
        engine.queues.claim("jobs", "c").result()
    assert refused.value.detail == {"limit": "claims_waiting_max", "max": 2}


def test_a_topic_that_is_deleted_fails_the_claims_that_wait(
    engine: Engine, clock: ManualClock
) -> None:
    make(engine, claim_jitter_ms=50)
    ticket = engine.queues.claim("jobs", "a")
    engine.delete_topic("jobs").result()
    with pytest.raises(TopicNotFound):
        ticket.result()
