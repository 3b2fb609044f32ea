"""Appends to streams: the order of the checks, and what is staged counts."""

from __future__ import annotations

import msgspec
import pytest

from headrace.core.errors import HeadMismatch, HeadraceError, StreamConflict
from headrace.engine.appending.producers import ProducerClaim
from headrace.engine.engine import Engine
from headrace.engine.streams.spec import StreamWrite
from headrace.storage.block import KIND_BYTES, KIND_JSON
from tests.support.engines import Start
from tests.support.stream_calls import JSON, FullDisk, close, code_of, create, data_of, write

P = ProducerClaim("p", 0, 0)


def test_an_append_is_a_record_of_the_streams_kind(engine: Engine) -> None:
    create(engine, "b")
    create(engine, "j", content_type=JSON)
    assert write(engine, "b", b"\x00\xff", media_type="text/plain").result().last_seq == 1
    assert write(engine, "j", msgspec.Raw(b'{"a":1}')).result().last_seq == 1
    assert data_of(engine, "b") == [b"\x00\xff"]
    kinds = [engine.read(name).result().records[0].kind for name in ("b", "j")]
    assert kinds == [KIND_BYTES, KIND_JSON]


def test_what_is_not_there_is_not_created(engine: Engine) -> None:
    assert code_of(write(engine, "s", b"x")) == "topic_not_found"
    engine.put_topic("native").result()
    assert code_of(write(engine, "native", b"x")) == "topic_not_found"
    assert engine.find("s") is None


def test_another_type_is_refused_whatever_its_parameters(engine: Engine) -> None:
    create(engine, "s", content_type="Text/Plain; charset=utf-8")
    assert code_of(write(engine, "s", b"x", media_type="text/html")) == "stream_conflict"
    assert code_of(write(engine, "s", b"x", media_type="text/plain")) == ""
    assert code_of(write(engine, "s", b"x")) == ""


@pytest.mark.parametrize(
    ("last", "given", "taken"),
    [
        ("2", "10", False),
        ("09", "10", True),
        ("a", "a", False),
        ("a", "B", False),
        ("a", "\xe9", 1),
    ],
)
def test_sequences_grow_byte_by_byte(
    engine: Engine, last: str, given: str, taken: int, again: Start
) -> None:
    create(engine, "s")
    assert code_of(write(engine, "s", b"x", sequence=last)) == ""
    engine = again(engine)
    refused = write(engine, "s", b"y", sequence=given)
    assert code_of(refused) == ("" if taken else "stream_conflict")
    assert data_of(engine, "s") == ([b"x", b"y"] if taken else [b"x"])


def test_of_two_with_one_sequence_the_second_hears_when_the_first_is_stored(
    engine: Engine,
) -> None:
    create(engine, "s")
    first, second = (write(engine, "s", data, sequence="1") for data in (b"x", b"y"))
    assert not first.done and not second.done
    assert code_of(second) == "stream_conflict" and first.done
    assert data_of(engine, "s") == [b"x"]


def test_the_producer_is_judged_before_the_sequence_and_a_repeat_passes(engine: Engine) -> None:
    create(engine, "s")
    assert write(engine, "s", b"x", P, sequence="1").result().first_seq == 1
    repeat = write(engine, "s", b"x", P, sequence="1").result()
    assert repeat.deduped and repeat.first_seq == 1
    late = ProducerClaim("p", 0, 5)
    assert code_of(write(engine, "s", b"x", late, sequence="1")) == "producer_gap"
    assert code_of(write(engine, "s", b"x", late, media_type="a/b")) == "stream_conflict"


def test_what_a_producer_in_flight_refuses_is_refused_once_it_is_stored(engine: Engine) -> None:
    create(engine, "s")
    newer = write(engine, "s", b"x", ProducerClaim("p", 1, 0))
    older = write(engine, "s", b"y", ProducerClaim("p", 0, 0))
    gap = write(engine, "s", b"y", ProducerClaim("p", 1, 2))
    assert not older.done and not gap.done
    assert [code_of(older), code_of(gap)] == ["producer_fenced", "producer_gap"]
    assert newer.done


def test_an_append_can_close(engine: Engine, again: Start) -> None:
    create(engine, "s")
    assert write(engine, "s", b"x", closes=True).result().last_seq == 1
    for _ in range(2):
        assert engine.streams.info("s").state.closed
        assert code_of(write(engine, "s", b"y")) == "stream_closed"
        assert code_of(write(engine, "s", b"y", media_type="a/b")) == "stream_closed"
        engine = again(engine)
    assert data_of(engine, "s") == [b"x"]


def test_a_write_behind_a_close_that_is_staged_waits_for_it(engine: Engine) -> None:
    create(engine, "s")
    closing = write(engine, "s", b"x", closes=True)
    late = write(engine, "s", b"y")
    assert not late.done
    with pytest.raises(HeadraceError) as caught:
        late.result()
    assert closing.done and caught.value.code == "stream_closed"
    assert caught.value.detail["head_seq"] == 1


def test_what_closed_a_stream_may_come_again(engine: Engine, again: Start) -> None:
    create(engine, "s")
    first = write(engine, "s", b"x", P, closes=True)
    in_flight = write(engine, "s", b"other", P, closes=True)
    assert in_flight.result().deduped and not first.result().deduped
    for _ in range(2):
        repeat = write(engine, "s", b"another body", P).result()
        assert repeat.deduped and repeat.head_seq == 1 and repeat.producer_sequence == 0
        assert code_of(write(engine, "s", b"y", ProducerClaim("p", 0, 1))) == "stream_closed"
        engine = again(engine)
    assert data_of(engine, "s") == [b"x"]


def test_the_head_can_be_a_condition(engine: Engine) -> None:
    create(engine, "s", b"x")
    assert code_of(write(engine, "s", b"y", expected_head_seq=0)) == "head_mismatch"
    assert code_of(write(engine, "s", b"y", expected_head_seq=1)) == ""


def test_a_head_that_is_not_stored_yet_refuses_once_it_is(engine: Engine) -> None:
    create(engine, "s", b"x")
    first = write(engine, "s", b"y", expected_head_seq=1)
    wrong = StreamWrite(closes=True)
    late = [
        write(engine, "s", b"z", expected_head_seq=1),
        engine.append("s", [b"z"], expected_head_seq=1),
        engine.streams.close("s", wrong, None, 1),
    ]
    order: list[int] = []
    for number, ticket in enumerate([first, *late]):
        ticket.when_done(lambda _, number=number: order.append(number))  # type: ignore[misc]
    assert not first.done and not any(ticket.done for ticket in late)
    assert [code_of(ticket) for ticket in late] == ["head_mismatch"] * 3
    assert order == [0, 1, 2, 3]
    for ticket in late:
        assert isinstance(ticket.error, HeadMismatch)
        assert ticket.error.detail["head_seq"] == engine.topic("s").head_seq == 2
    assert write(engine, "s", b"z", expected_head_seq=1).done  # nothing is on its way
    assert code_of(write(engine, "s", b"z", expected_head_seq=2)) == ""


def test_a_head_that_is_never_stored_refuses_with_what_became_of_it(start: Start) -> None:
    disk = FullDisk()
    engine = start(disk.fs)
    create(engine, "s", b"x")
    disk.full = True
    first = write(engine, "s", b"y", expected_head_seq=1)
    second = write(engine, "s", b"z", expected_head_seq=1)
    assert not second.done
    assert code_of(first) == code_of(second) != "head_mismatch"
    assert engine.topic("s").head_seq == 1


def test_a_write_that_fails_takes_the_staged_state_back(start: Start) -> None:
    disk = FullDisk()
    engine = start(disk.fs)
    create(engine, "s")
    topic = engine.state.topic("s")
    disk.full = True
    tickets = [
        write(engine, "s", b"x", P, sequence="5"),
        close(engine, "s", ProducerClaim("p", 0, 1)),
        write(engine, "s", b"y"),
    ]
    codes = [code_of(ticket) for ticket in tickets]
    assert codes == ["not_ready"] * 3
    assert not topic.stream_changes and topic.staged == 0 and not topic.unsettled_syncs
    assert engine.streams.info("s").state.sequence is None
    repeats = engine._appender.repeats
    assert not repeats._claims


def test_a_refusal_says_why(engine: Engine) -> None:
    create(engine, "s")
    write(engine, "s", b"x", sequence="1").result()
    with pytest.raises(StreamConflict) as caught:
        write(engine, "s", b"x", sequence="1").result()
    assert caught.value.detail["reason"] == "sequence" and caught.value.fix
