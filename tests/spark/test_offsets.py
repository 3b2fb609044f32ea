"""Offsets, shares and targets: pure functions, so every rule is tried on values."""

from __future__ import annotations

import json
from random import Random
from typing import Any

import pytest

from headrace.core.errors import InvalidRequest
from headrace.spark.reading.limits import share_out
from headrace.spark.reading.offsets import Offset, RunEnd, TopicOffset, ahead_of, decode, step
from headrace.spark.reading.parts import Gap
from headrace.spark.reading.spans import Span
from headrace.spark.reading.topics import TopicHead


def at(**places: tuple[int, int]) -> Offset:
    return Offset(topics={name: TopicOffset(*place) for name, place in places.items()})


def heads(**given: tuple[int, int, int]) -> dict[str, TopicHead]:
    return {name: TopicHead(name, *head) for name, head in given.items()}


def everything(_topic: str) -> bool:
    return True


def test_an_offset_comes_back_as_it_was_and_equal_ones_are_spelt_alike() -> None:
    one = Offset(
        topics={"b": TopicOffset(2, 9), "a": TopicOffset(1 << 33, 0)},
        came_from={"a": TopicOffset(7, 3)},
        turn="b",
    )
    other = Offset(
        topics={"a": TopicOffset(1 << 33, 0), "b": TopicOffset(2, 9)},
        came_from={"a": TopicOffset(7, 3)},
        turn="b",
    )
    text = json.dumps(one.to_json())
    assert decode(json.loads(text)) == one
    assert json.dumps(other.to_json()) == text
    parted = Offset(topics={}, parts=3)
    assert decode(parted.to_json()) == parted
    assert at(t=(1, 5)).to_json() == {"topics": {"t": {"epoch": 1, "seq": 5}}}


@pytest.mark.parametrize(
    "said",
    [
        {},
        {"topics": 1},
        {"topics": {"t": 5}},
        {"topics": {"t": {"epoch": 1}}},
        {"topics": {"t": {"epoch": 1, "seq": "5"}}},
        {"topics": {"t": {"epoch": 1, "seq": -1}}},
        {"topics": {"t": {"epoch": -1, "seq": 1}}},
        {"topics": {"t": {"epoch": 1, "seq": 1, "more": 2}}},
        {"topics": {}, "from": {"t": {"epoch": 1, "seq": -3}}},
        {"topics": {}, "partition": 0},
        {"topics": {}, "parts": 0},
    ],
)
def test_what_this_source_did_not_write_is_refused(said: dict[str, Any]) -> None:
    with pytest.raises(InvalidRequest, match="checkpoint"):
        decode(said)


def test_a_step_is_what_lies_between_two_offsets() -> None:
    start = at(same=(1, 5), grown=(2, 5), anew=(3, 5), gone=(4, 5))
    end = at(same=(1, 5), grown=(2, 9), anew=(8, 2), fresh=(9, 3), empty=(10, 0))
    assert step(start, end) == (
        [Span("anew", 8, 1, 2), Span("fresh", 9, 1, 3), Span("grown", 2, 6, 9)],
        [Gap(Span("anew", 3, 6, 5), "recreated"), Gap(Span("gone", 4, 6, 5), "deleted")],
    )
    # The same name and epoch, but shorter than what was read: it cannot be the same topic.
    assert step(at(t=(1, 5)), at(t=(1, 2))) == (
        [Span("t", 1, 1, 2)],
        [Gap(Span("t", 1, 6, 5), "recreated")],
    )


def test_the_first_batch_does_not_depend_on_when_its_start_is_asked_for() -> None:
    begun = Offset(topics={"t": TopicOffset(1, 5)}, new=True)
    first = ahead_of(begun, heads(t=(1, 1, 8)), everything, None).offset
    asked_again = Offset(topics={"t": TopicOffset(1, 8)}, new=True)
    assert step(begun, first) == step(asked_again, first) == ([Span("t", 1, 6, 8)], [])
    # The next one does not carry it along.
    second = ahead_of(first, heads(t=(1, 1, 9)), everything, None).offset
    assert second == at(t=(1, 9))
    # A first batch is made even when it is empty: only then is the start in the checkpoint.
    nothing = ahead_of(begun, heads(t=(1, 1, 5)), everything, None).offset
    assert nothing != begun and step(asked_again, nothing) == ([], [])
    assert ahead_of(nothing, heads(t=(1, 1, 5)), everything, None).offset is nothing


def test_ahead_follows_topics_as_they_come_and_go() -> None:
    start = at(a=(1, 5), b=(2, 5))
    assert ahead_of(start, heads(a=(1, 1, 5), b=(2, 1, 5)), everything, None).offset is start
    # An empty topic makes no batch; one with records is read from the first.
    grown = heads(a=(1, 1, 5), b=(2, 1, 5), c=(3, 1, 0))
    assert ahead_of(start, grown, everything, None).offset is start
    grown["c"] = TopicHead("c", 3, 1, 4)
    ahead = ahead_of(start, grown, everything, None)
    assert ahead == (at(a=(1, 5), b=(2, 5), c=(3, 4)), 4)
    # Deleted, and made anew with nothing in it.
    ahead = ahead_of(start, heads(b=(7, 1, 0)), everything, None)
    assert ahead == (at(b=(7, 0)), 0)
    # No longer subscribed to: it stays where it is, and is nobody's loss.
    ahead = ahead_of(start, heads(b=(2, 1, 6)), lambda name: name == "b", None)
    assert ahead == (at(a=(1, 5), b=(2, 6)), 1)
    assert step(start, ahead.offset).gaps == []
    # A head behind what was read is another topic's, whatever its epoch.
    ahead = ahead_of(start, heads(a=(1, 1, 4), b=(2, 1, 5)), everything, None)
    assert ahead == (at(a=(1, 4), b=(2, 5)), 4)


def test_what_was_trimmed_is_one_step_whatever_the_limit() -> None:
    start = at(t=(1, 5))
    ahead = ahead_of(start, heads(t=(1, 1_000_001, 1_000_050)), everything, 10)
    assert ahead == (at(t=(1, 1_000_010)), 10)
    assert step(start, ahead.offset).spans == [Span("t", 1, 6, 1_000_010)]
    # All of it: the loss is told although there is nothing to read.
    ahead = ahead_of(start, heads(t=(1, 101, 100)), everything, 10)
    assert step(start, ahead.offset).spans == [Span("t", 1, 6, 100)]


def test_a_limit_is_shared_in_proportion_and_by_turns() -> None:
    random = Random(4)
    for _ in range(2_000):
        lags = {
            f"t{n}": random.choice((0, 1, 5, 1_000, 10**9)) for n in range(random.randint(1, 9))
        }
        most = random.choice((1, 2, 3, 10, 1_000, 10**7))
        shares, turn = share_out(lags, most, random.choice(("", "t3", "zz")))
        behind = {name for name, lag in lags.items() if lag}
        assert sum(shares.values()) == min(most, sum(lags.values())), (lags, most)
        assert all(0 < count <= lags[name] for name, count in shares.items()), (lags, most)
        assert bool(turn) == (most < len(behind))
        if most >= len(behind):
            assert shares.keys() == behind
            assert sorted(shares, key=lambda n: (lags[n], shares[n])) == sorted(
                shares, key=lambda n: (shares[n], lags[n])
            )


def test_no_topic_starves_when_the_limit_is_below_their_number() -> None:
    tops = {f"t{n}": 100 if n == 2 else 10**6 for n in range(5)}
    offset = at(**dict.fromkeys(tops, (1, 0)))
    now = heads(**{name: (1, 1, top) for name, top in tops.items()})
    served = dict.fromkeys(tops, 0)
    for batch in range(1, 51):
        after = ahead_of(offset, now, everything, 2).offset
        again = ahead_of(decode(offset.to_json()), now, everything, 2).offset
        assert again == after
        for span in step(offset, after).spans:
            served[span.topic] += span.last - span.first + 1
        offset = after
        assert sum(served.values()) == 2 * batch
    assert set(served.values()) == {20}


def test_available_now_ends_whatever_happens_to_its_topics() -> None:
    target = RunEnd(heads(grows=(1, 1, 5), anew=(2, 1, 9), gone=(3, 1, 4), quiet=(4, 1, 2)))
    offset = at(grows=(1, 0), anew=(2, 3), gone=(3, 1), quiet=(4, 2), before=(5, 1))
    read: dict[str, int] = {}
    gaps: list[tuple[str, str]] = []
    for batch in range(100):
        # Everything moves all the time, and `anew` is another topic at every look.
        now = heads(
            grows=(1, 1, 6 + batch),
            anew=(100 + batch, 1, 50),
            quiet=(4, 1, 2 + batch),
            fresh=(9, 1, 8),
            before=(50 + batch, 1, 8),
        )
        after = ahead_of(offset, target.cut(now, offset), everything, 2).offset
        if after is offset:
            break
        between = step(offset, after)
        gaps += [(gap.span.topic, gap.reason) for gap in between.gaps]
        for span in between.spans:
            read[span.topic] = read.get(span.topic, 0) + span.last - span.first + 1
        offset = after
    else:
        pytest.fail("the run does not end")
    assert read == {"grows": 5}
    assert sorted(gaps) == [("anew", "recreated"), ("before", "deleted"), ("gone", "deleted")]
    assert offset.topics["anew"] == TopicOffset(100, 0)


def test_a_start_beyond_the_target_of_available_now_is_no_other_topic() -> None:
    begun = Offset(topics={"t": TopicOffset(1, 7)}, new=True)
    target = RunEnd(heads(t=(1, 1, 5)))
    now = target.cut(heads(t=(1, 1, 9)), begun)
    first = ahead_of(begun, now, everything, None).offset
    assert step(begun, first) == ([], [])
    assert ahead_of(first, target.cut(heads(t=(1, 1, 9)), first), everything, None).seqs == 0
