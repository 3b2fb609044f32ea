"""Where a query starts and ends, asked of a real server."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from headrace.client import Client
from headrace.core.errors import HeadraceError, InvalidRequest
from headrace.spark.options import Connection, Position, SourceOptions
from headrace.spark.reading.positions import spans_of, starting_seqs
from headrace.spark.reading.topics import TopicHead, topic_heads

EARLIEST, LATEST = Position("earliest"), Position("latest")

Fetch = Callable[..., list[tuple[str, int, int]]]


@pytest.fixture
def topics(client: Client, topic: str) -> tuple[str, str, str]:
    """One with seqs 1 to 6, one whose cap left 4 to 6, and one without records."""
    full, capped, empty = f"{topic}-full", f"{topic}-capped", f"{topic}-none"
    client.put_topic(capped, {"cap_records": 3})
    client.put_topic(empty)
    for name in (full, capped):
        for n in range(1, 7):
            client.append(name, [n])
    return full, capped, empty


def options_of(*topics: str, starting: Position, ending: Position) -> SourceOptions:
    return SourceOptions(
        connection=Connection(url=""), topics=topics, starting=starting, ending=ending
    )


@pytest.fixture
def spans(client: Client) -> Fetch:
    def fetch(
        *topics: str,
        starting: Position = EARLIEST,
        ending: Position = LATEST,
    ) -> list[tuple[str, int, int]]:
        options = options_of(*topics, starting=starting, ending=ending)
        found = spans_of(client, options, topic_heads(client, options))
        assert all(span.epoch == client.topic(span.topic).epoch for span in found)
        return [(span.topic, span.first, span.last) for span in found]

    return fetch


def test_words_and_seqs(spans: Fetch, topics: tuple[str, str, str]) -> None:
    full, capped, empty = topics
    assert spans(*topics) == [(capped, 4, 6), (full, 1, 6), (empty, 1, 0)]
    assert spans(full, starting=LATEST) == [(full, 7, 6)]
    between = {"starting": Position(seqs={full: 2}), "ending": Position(seqs={full: 5})}
    assert spans(full, **between) == [(full, 2, 4)]
    marks = Position(seqs={full: -2, capped: -1, empty: -2})
    assert spans(*topics, starting=marks) == [(capped, 7, 6), (full, 1, 6), (empty, 1, 0)]
    ends = Position(seqs={full: -1, capped: 5, empty: 1})
    assert spans(*topics, ending=ends) == [(capped, 4, 4), (full, 1, 6), (empty, 1, 0)]
    # The edges: nothing to read is no error; 0 is before the first.
    assert spans(full, starting=Position(seqs={full: 7})) == [(full, 7, 6)]
    assert spans(full, ending=Position(seqs={full: 1})) == [(full, 1, 0)]
    assert spans(full, starting=Position(seqs={full: 0})) == [(full, 1, 6)]
    # A seq that the cap has taken stays in the span: whoever plans it has to say so.
    assert spans(capped, starting=Position(seqs={capped: 2})) == [(capped, 2, 6)]


def test_times(client: Client, spans: Fetch, topics: tuple[str, str, str]) -> None:
    full, capped, empty = topics
    ts = [record.ts for record in client.diff(full).records]
    # Two records may have been given one millisecond: the first of them is meant.
    third, fifth = ts.index(ts[2]) + 1, ts.index(ts[4]) + 1
    assert spans(full, starting=Position(ts_ms=ts[2])) == [(full, third, 6)]
    assert spans(full, ending=Position(ts_ms=ts[4])) == [(full, 1, fifth - 1)]
    assert spans(full, starting=Position(ts_ms=ts[-1] + 1)) == [(full, 7, 6)]
    assert spans(full, ending=Position(ts_ms=0)) == [(full, 1, 0)]
    assert spans(full, ending=Position(ts_ms=ts[-1] + 1)) == [(full, 1, 6)]
    # Before what the cap left: times are of what is there, as `earliest` is.
    assert spans(capped, empty, starting=Position(ts_ms=0)) == [(capped, 4, 6), (empty, 1, 0)]
    each = Position(ts_by_topic={full: ts[2], capped: 0})
    assert spans(full, capped, starting=each) == [(capped, 4, 6), (full, third, 6)]


def test_a_place_that_is_not_there_is_an_error(spans: Fetch, topics: tuple[str, str, str]) -> None:
    full, capped, _ = topics
    wrong: list[tuple[dict[str, Position], str]] = [
        ({"starting": Position(seqs={full: 8})}, "seq 8 .* last record is 6.* 1 to 7"),
        ({"ending": Position(seqs={full: 8})}, "seq 8 .* last record is 6"),
        ({"starting": Position(seqs={full: -3})}, "seq -3"),
        ({"starting": Position(seqs={full: 5}), "ending": Position(seqs={full: 4})}, "end before"),
        ({"starting": Position(seqs={full: 1, f"{full}1": 1})}, f"did you mean '{full}'"),
        ({"starting": Position(seqs={})}, "does not say where"),
        ({"ending": Position(ts_by_topic={capped: 1})}, "does not read"),
    ]
    for how, text in wrong:
        with pytest.raises(InvalidRequest, match=text):
            spans(full, **how)
    with pytest.raises(InvalidRequest, match=f"does not say where to be in '{capped}'"):
        spans(full, capped, starting=Position(ts_by_topic={full: 0}))


def test_what_happens_after_the_heads_were_asked_for(client: Client, topic: str) -> None:
    client.append(topic, [1, 2])
    heads = topic_heads(client, options_of(topic, starting=EARLIEST, ending=LATEST))
    client.append(topic, [3])
    later = between = client.diff(topic).records[-1]
    while later.ts == between.ts:
        client.append(topic, [4])
        later = client.diff(topic, last=1).records[-1]
    # A batch ends at its heads; a stream starts at a record that came in between.
    time = Position(ts_ms=later.ts)
    for starting, ending, expected in ((time, LATEST, (3, 2)), (EARLIEST, time, (1, 2))):
        options = options_of(topic, starting=starting, ending=ending)
        [span] = spans_of(client, options, heads)
        assert (span.first, span.last) == expected
    options = options_of(topic, starting=time, ending=LATEST)
    assert later.seq > 3
    assert starting_seqs(client, options, heads)[topic] == later.seq
    client.delete_topic(topic)
    client.append(topic, [1])
    with pytest.raises(HeadraceError, match="made anew"):
        starting_seqs(client, options, heads)


def test_deleted_records_at_the_place_of_a_time_are_passed_over(client: Client, topic: str) -> None:
    client.append(topic, [{"n": n} for n in range(10)])
    ts = client.diff(topic).records[0].ts
    client.delete_records(topic, before_seq=8)
    head = {topic: TopicHead(topic, client.topic(topic).epoch or 0, 8, 10)}
    options = options_of(topic, starting=Position(ts_ms=ts), ending=LATEST)
    assert starting_seqs(client, options, head) == {topic: 8}
