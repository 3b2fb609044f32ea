"""A stream that is closed without a record."""

from __future__ import annotations

from headrace.engine.appending.producers import ProducerClaim
from headrace.engine.engine import Engine
from tests.support.engines import Start
from tests.support.stream_calls import close, code_of, create, data_of, write

P = ProducerClaim("p", 3, 0)


def test_a_close_brings_no_record_and_may_be_repeated(engine: Engine, again: Start) -> None:
    create(engine, "s", b"x")
    closed = close(engine, "s").result()
    assert (closed.first_seq, closed.count, closed.head_seq, closed.deduped) == (None, 0, 1, False)
    for _ in range(2):
        assert close(engine, "s").result().deduped
        assert code_of(write(engine, "s", b"y")) == "stream_closed"
        engine = again(engine)
    assert data_of(engine, "s") == [b"x"]


def test_a_producers_number_is_taken_by_a_close(engine: Engine, again: Start) -> None:
    create(engine, "s")
    assert code_of(close(engine, "s", ProducerClaim("p", 3, 1))) == "producer_gap"
    assert not close(engine, "s", P).result().deduped
    for _ in range(2):
        repeat = close(engine, "s", P).result()
        assert repeat.deduped and repeat.producer_sequence == 0 and repeat.first_seq is None
        assert code_of(close(engine, "s", ProducerClaim("p", 3, 1))) == "stream_closed"
        assert close(engine, "s").result().deduped
        engine = again(engine)
    state = engine.streams.info("s").state
    assert state.closed_by == tuple(P)


def test_a_number_that_was_used_does_not_close(engine: Engine) -> None:
    create(engine, "s")
    write(engine, "s", b"x", P).result()
    assert close(engine, "s", P).result().deduped
    assert not engine.streams.info("s").state.closed


def test_closes_that_come_together_are_one(engine: Engine) -> None:
    create(engine, "s")
    tickets = [close(engine, "s", P), close(engine, "s", P), close(engine, "s")]
    assert not any(ticket.done for ticket in tickets)
    assert [ticket.result().deduped for ticket in tickets] == [False, True, True]


def test_an_older_state_in_the_log_does_not_undo_a_newer_one(engine: Engine, kill: Start) -> None:
    """The snapshot has both; the log, from before them, is replayed on top."""
    create(engine, "s")
    write(engine, "s", b"x", sequence="1").result()
    close(engine, "s", sequence="2").result()
    engine.checkpoint().result()
    engine = kill(engine)
    state = engine.streams.info("s").state
    assert state.closed and state.sequence == "2"


def test_waiters_wake_at_a_close(engine: Engine) -> None:
    create(engine, "s")
    woken: list[int] = []
    engine.state.topic("s").wait(lambda: woken.append(1))
    close(engine, "s").result()
    assert woken == [1]


def test_a_close_of_nothing_is_told(engine: Engine) -> None:
    engine.put_topic("native").result()
    assert code_of(close(engine, "s")) == code_of(close(engine, "native")) == "topic_not_found"
