"""What a read asks for: its query, where it starts, and what a resume leaves of it."""

from __future__ import annotations

import pytest

from headrace.wire.s2.errors import RangeNotSatisfiable, S2Refusal
from headrace.wire.s2.read_query import ReadQuery, parse_query
from headrace.wire.s2.records import Position

TAIL = Position(10, 500)


def test_every_field_is_read_and_others_are_left_alone() -> None:
    asked = parse_query(
        "seq_num=18446744073709551615&clamp=true&count=1&bytes=2&until=3&wait=4&x=y"
    )
    assert asked == ReadQuery(seq_num=(1 << 64) - 1, clamp=True, count=1, bytes=2, until=3, wait=4)
    assert parse_query("") == ReadQuery()


@pytest.mark.parametrize(
    ("query", "code"),
    [
        ("seq_num=", "bad_query"),
        ("seq_num=-1", "bad_query"),
        ("seq_num=18446744073709551616", "bad_query"),
        ("seq_num=1.5", "bad_query"),
        ("count=%C2%B2", "bad_query"),
        ("count=%FF", "bad_query"),
        ("wait=4294967296", "bad_query"),
        ("clamp=1", "bad_query"),
        ("count=1&count=2", "bad_query"),
        ("seq_num=1&timestamp=2", "invalid"),
        ("seq_num=1&tail_offset=2", "invalid"),
        ("timestamp=5&until=5", "invalid"),
    ],
)
def test_what_makes_no_sense_is_refused(query: str, code: str) -> None:
    with pytest.raises(S2Refusal) as refused:
        parse_query(query)
    assert refused.value.code == code


@pytest.mark.parametrize(
    ("query", "start"),
    [
        ("seq_num=3", 3),
        ("seq_num=10", 10),
        ("", 10),
        ("tail_offset=4", 6),
        ("tail_offset=11", 0),
        ("timestamp=500", None),
        ("timestamp=501&clamp=true", 10),
        ("seq_num=11&clamp=true", 10),
        ("seq_num=11&clamp=true&count=5&wait=1", 10),
        ("seq_num=10&wait=0", 10),
    ],
)
def test_a_read_begins_where_it_says(query: str, start: int | None) -> None:
    assert parse_query(query).start(TAIL) == start


@pytest.mark.parametrize(
    "query",
    [
        "seq_num=11",
        "timestamp=501",
        "seq_num=10&count=1",
        "seq_num=10&until=900&wait=0",
        "seq_num=11&clamp=true&count=1",
        "tail_offset=0&bytes=5",
    ],
)
def test_a_read_behind_the_tail_is_told_the_tail(query: str) -> None:
    with pytest.raises(RangeNotSatisfiable) as refused:
        parse_query(query).start(TAIL)
    assert (refused.value.seq_num, refused.value.timestamp) == TAIL


def test_a_call_is_always_bounded_and_waits_a_minute_at_most() -> None:
    call = parse_query("wait=100").as_unary()
    assert (call.count, call.bytes, call.wait) == (1_000, 1 << 20, 60)
    assert call.may_follow
    assert not parse_query("").as_unary().may_follow
    assert parse_query("count=0").as_unary().is_spent


def test_a_resume_goes_on_behind_the_last_event_with_what_is_left() -> None:
    rest = parse_query("tail_offset=3&count=5&bytes=100").resumed("9,5,40")
    assert (rest.seq_num, rest.tail_offset, rest.count, rest.bytes) == (10, None, 0, 60)
    assert rest.is_spent


@pytest.mark.parametrize(
    "id", ["", "1,2", "1,2,x", "-1,2,3", "1,2,3,4", "1,2,18446744073709551616"]
)
def test_an_id_that_is_none_is_refused(id: str) -> None:
    with pytest.raises(S2Refusal) as refused:
        ReadQuery().resumed(id)
    assert refused.value.code == "bad_header"
