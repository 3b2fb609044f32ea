"""A micro-batch is cut the same way whenever it is planned: who reads a seq does not change."""

from __future__ import annotations

from collections.abc import Callable

from hypothesis import given
from hypothesis import strategies as st

from headrace.client import Client
from headrace.spark.options import source_options
from headrace.spark.reading.columns import shape_of
from headrace.spark.reading.parts import Gap, HttpSlice, ReadPart, Slice
from headrace.spark.reading.planning import PART_BYTES_MAX, PART_BYTES_MIN
from headrace.spark.reading.spans import Span
from headrace.spark.reading.stream_parts import cut_by_seqs, tasks_of
from headrace.spark.reading.stream_source import HTTP_SEQS_MAX, StreamReader
from headrace.spark.reading.topics import TopicHead
from headrace.testing.process import ServerProcess
from tests.support.sealed_topics import SETTINGS, fill, seal

SPANS = st.lists(st.tuples(st.integers(1, 50), st.integers(1, 30)), min_size=1, max_size=4).map(
    lambda found: [Span(f"t{n}", 1, a, a + size - 1) for n, (a, size) in enumerate(found)]
)


def owners(parts: list[tuple[Slice, ...]]) -> dict[tuple[str, int], int]:
    """Which part has a seq, and that none has it twice."""
    found: dict[tuple[str, int], int] = {}
    for number, part in enumerate(parts):
        for one in part:
            for seq in range(one.span.first, one.span.last + 1):
                assert found.setdefault((one.span.topic, seq), number) == number
    assert len(found) == sum(one.span.length for part in parts for one in part)
    return found


@given(SPANS, st.integers(1, 9), st.sets(st.integers(1, 80)))
def test_the_parts_do_not_follow_the_files(spans: list[Span], count: int, ends: set[int]) -> None:
    total = sum(span.length for span in spans)
    count = min(count, total)
    whole = cut_by_seqs(spans, [HttpSlice(span) for span in spans], count)
    pieces = []
    for span in spans:
        first = span.first
        for end in sorted({e for e in ends if span.first <= e < span.last} | {span.last}):
            pieces.append(HttpSlice(span._replace(first=first, last=end)))
            first = end + 1
    assert owners(cut_by_seqs(spans, pieces, count)) == owners(whole)
    # All of it, in order, and no part has more than its share.
    assert len(whole) == count
    assert [key for part in whole for key in owners([part])] == [
        (span.topic, seq) for span in spans for seq in range(span.first, span.last + 1)
    ]
    assert max(len(owners([part])) for part in whole) <= -(-total // count)


def test_a_part_without_records_keeps_its_number_and_a_gap_is_whole() -> None:
    span = Span("t", 1, 1, 30)
    gap, live = Gap(span._replace(last=14), "cap"), HttpSlice(span._replace(first=21))
    assert cut_by_seqs([span], [gap, live], 3) == [(gap,), (), (live,)]
    assert cut_by_seqs([], [], 3) == []


def test_how_many_tasks() -> None:
    span = Span("t", 1, 1, 1_000_000)
    for row_bytes, wanted, tasks in (
        (0, None, 4),
        (PART_BYTES_MAX // 100_000, None, 11),
        (0, 7, 7),
        (0, 2_000_000, 1_000_000),
    ):
        heads = {"t": TopicHead("t", 1, 1, 1_000_000, row_bytes)}
        assert tasks_of([span], heads, wanted, 4) == tasks
    # What is lost is not read.
    heads = {"t": TopicHead("t", 1, 1_000_000, 1_000_000, PART_BYTES_MIN)}
    assert tasks_of([span], heads, None, 4) == 1
    assert tasks_of([], heads, 5, 4) == 1


def test_a_batch_that_is_planned_again_after_files_were_sealed(
    start_server: Callable[..., ServerProcess],
) -> None:
    server = start_server(**SETTINGS)
    count = 2 * HTTP_SEQS_MAX

    def reader() -> StreamReader:
        given = {"url": server.url, "subscribe": "a,b", "minPartitions": "3"}
        options = source_options(given, streaming=True)
        return StreamReader(options, shape_of(options, None))

    def parts_of(reads: StreamReader) -> list[tuple[Slice, ...]]:
        found = reads.partitions(start, end)
        assert all(isinstance(part, ReadPart) for part in found)
        return [part.slices for part in found]

    with Client(server.url) as client:
        for topic in ("a", "b"):
            fill(client, topic, count)
        first = reader()
        start = first.initialOffset()
        end = first.latestOffset(start, first.getDefaultReadLimit())
        assert end["parts"] == 3
        before = parts_of(first)
        for topic in ("a", "b"):
            client.append(topic, ["x" * 100_000] * 100)
            seal(client, topic)
        second = reader()
        after = parts_of(second)
        kinds = {type(one).__name__ for part in after for one in part}
        assert kinds == {"FileSlice"}
        assert owners(after) == owners(before) and len(owners(after)) == 2 * count
        for one in (first, second):
            one.stop()
