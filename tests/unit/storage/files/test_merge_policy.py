"""The rules of the merge plan, one at a time, on files that exist only as numbers."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec
import pytest

from headrace.storage.files.merge_policy import FileStats, MergeJob, MergePolicy, TopicShare, plan
from headrace.storage.segment.format import SegmentMeta

MIB = 1 << 20
Spans = dict[int, tuple[int, int]]  # topic -> first and last seq
ROW_BYTES = 1000


class Shares:
    def __init__(self, spans: Spans, floor: int) -> None:
        self.spans = spans
        self.floor = floor

    def of(self, topic_id: int) -> TopicShare | None:
        if topic_id not in self.spans:
            return None
        first, last = self.spans[topic_id]
        rows = max(0, last + 1 - max(first, self.floor))
        return TopicShare(rows, rows * ROW_BYTES, first, last)

    def heavy(self, bytes_min: int) -> Iterator[int]:
        for topic_id in self.spans:
            share = self.of(topic_id)
            if share is not None and share.bytes >= bytes_min:
                yield topic_id


def file(
    file_id: int,
    spans: Spans,
    *,
    owner: int = 0,
    level: int = 0,
    tier: int = 0,
    order: int = 0,
    floor: int = 1,
) -> FileStats:
    rows = sum(last + 1 - first for first, last in spans.values())
    shares = Shares(spans, floor)
    live = sum(share.rows for topic_id in spans if (share := shares.of(topic_id)))
    size = rows * (ROW_BYTES + 50)
    meta = SegmentMeta(
        file_id=file_id, owner=owner, level=level, rows=rows, topics=len(spans), size=size,
        footer_offset=size, footer_hash=0, payload_bytes=rows * ROW_BYTES, min_ts=0, max_ts=0,
        created_ms=0, tier=tier, order=order,
    )  # fmt: skip
    return FileStats(meta, live, live * ROW_BYTES, shares)


def shared(
    file_id: int, topic_id: int, at: int, rows: int = 10, *, level: int = 0, tier: int = 0
) -> FileStats:
    """A shared file with one topic's rows, the `at`-th ten of them."""
    first = at * 10 + 1
    return file(file_id, {topic_id: (first, first + rows - 1)}, level=level, tier=tier)


def inputs(jobs: list[MergeJob]) -> list[tuple[int, ...]]:
    return [job.inputs for job in jobs]


def merges(
    files: list[FileStats], policy: MergePolicy, busy: frozenset[int] = frozenset()
) -> list[tuple[int, ...]]:
    return inputs([job for job in plan(files, policy, busy) if job.reason == "merge"])


TWO = MergePolicy(fan_in=2)


def test_nothing_to_do() -> None:
    assert plan([], MergePolicy()) == []
    assert plan([shared(n, 1, n) for n in range(1, 8)], MergePolicy()) == []


def test_eight_files_of_a_level_make_one_of_the_next() -> None:
    files = [shared(n, 1, n) for n in range(1, 12)]
    assert plan(files, MergePolicy()) == [
        MergeJob(tuple(range(1, 9)), frozenset(), level=1, reason="merge")
    ]
    # The order in which files are listed says nothing.
    assert plan(files[::-1], MergePolicy()) == plan(files, MergePolicy())


def test_a_merged_file_keeps_the_place_of_its_inputs() -> None:
    # File 9 was merged from 1 and 2, so it comes before 3 although its id is higher.
    old = file(9, {1: (1, 20)}, order=1)
    assert merges([shared(3, 1, 2), old, shared(4, 1, 3)], TWO) == [(9, 3)]


@pytest.mark.parametrize("tier", [0, 1])
def test_cold_and_busy_files_are_not_merged_nor_merged_across(tier: int) -> None:
    files = [shared(n, 1, n, tier=tier if n == 3 else 0) for n in range(1, 6)]
    busy = frozenset() if tier else frozenset({3})
    assert merges(files, TWO, busy) == [(1, 2), (4, 5)]
    files = [shared(n, 1, n, tier=tier if n == 2 else 0) for n in range(1, 4)]
    busy = frozenset() if tier else frozenset({2})
    assert merges(files, TWO, busy) == []


def test_no_output_is_planned_beyond_the_bound() -> None:
    policy = MergePolicy(fan_in=4, shared_bytes_max=3 * 10 * 1050)
    files = [shared(n, 1, n) for n in range(1, 9)]
    assert merges(files, policy) == [(1, 2, 3), (4, 5, 6)]
    # A file larger than half the bound is full: it stays, and others go on without it.
    full = file(5, {1: (51, 66)})
    files = [*(shared(n, 2, n) for n in (1, 2, 3, 4, 6, 7, 8, 9)), full]
    assert merges(files, policy) == [(1, 2, 3), (6, 7, 8)]


def test_files_stranded_at_a_lower_level_are_merged_with_their_neighbours() -> None:
    files = [shared(n, 1, n, level=2 if n % 2 else 0) for n in range(1, 10)]
    (job,) = plan(files, MergePolicy(fan_in=9))
    assert (job.inputs, job.level) == (tuple(range(1, 10)), 3)
    # Newer files of a lower level wait for their own.
    files = [shared(n, 1, n, level=2 if n < 4 else 0) for n in range(1, 6)]
    assert merges(files, MergePolicy(fan_in=3)) == [(1, 2, 3)]


def test_shared_files_are_not_merged_around_a_file_of_their_topics_own() -> None:
    own = file(5, {9: (11, 20)}, owner=9)
    older, newer = file(1, {9: (1, 10)}), file(6, {9: (21, 30)})
    assert merges([older, own, newer], TWO) == []
    # Without rows of that topic on both sides nothing is in the way.
    assert merges([older, own, file(6, {8: (1, 10)})], TWO) == [(1, 6)]


def test_own_files_are_not_merged_around_a_shared_file_with_their_topic() -> None:
    own = [
        file(1, {9: (1, 10)}, owner=9),
        file(2, {9: (21, 30)}, owner=9),
        file(3, {9: (31, 40)}, owner=9),
    ]
    between = file(4, {9: (11, 20), 7: (1, 5)})
    assert merges([*own, between], TWO) == [(2, 3)]
    assert merges([*own[:2], between], TWO) == []
    assert merges([*own[:2], file(4, {7: (1, 5)})], TWO) == [(1, 2)]


def test_own_files_are_merged_in_seq_order_up_to_their_bound() -> None:
    files = [file(20 - n, {9: (10 * n + 1, 10 * n + 10)}, owner=9) for n in range(8)]
    (job,) = plan(files, MergePolicy())
    assert job == MergeJob(tuple(range(20, 12, -1)), frozenset({9}), 1, "merge")
    small = MergePolicy(fan_in=8, own_bytes_max=4 * 10 * 1050)
    assert merges(files, small) == [(20, 19, 18, 17)]


def test_a_big_topic_is_split_out_of_a_merge() -> None:
    """M1: by rows or by bytes, it gets segments of its own."""
    policy = MergePolicy(fan_in=2, own_rows_min=100, own_topics_max=4)
    files = [
        file(1, {1: (1, 60), 2: (1, 30), 3: (1, 10)}),
        file(2, {1: (61, 120), 2: (31, 60), 3: (11, 20)}),
    ]
    # Topic 2 is big too, but has too few rows here for a file of its own.
    (job,) = plan(files, policy)
    assert job.own_topics == {1}
    (job,) = plan(files, MergePolicy(fan_in=2, own_bytes_min=60_000, own_topics_max=4))
    assert job.own_topics == {1, 2}
    # Once it has one, its further rows join it.
    (job,) = plan([file(9, {2: (100, 101)}, owner=2), *files], policy)
    assert job.own_topics == {1, 2}


def test_a_topic_that_holds_too_little_of_everything_gets_no_file() -> None:
    policy = MergePolicy(fan_in=2, own_rows_min=10, own_topics_max=4)
    many = dict.fromkeys(range(1, 10), (1, 50))
    more = dict.fromkeys(range(1, 10), (51, 100))
    (job,) = plan([file(1, many), file(2, more)], policy)
    assert job.own_topics == frozenset()


def test_a_topic_near_the_line_keeps_its_files() -> None:
    policy = MergePolicy(fan_in=2, own_rows_min=1, own_topics_max=2)
    # 40 % of everything: too little to get a file, enough to keep adding to one.
    rest = [file(1, {1: (1, 20), 2: (1, 35)}), file(2, {1: (21, 30), 2: (36, 60)})]
    (job,) = plan([*rest, file(3, {8: (1, 10)}, owner=8)], policy)
    assert job.own_topics == {2}
    (job,) = plan([*rest, file(3, {1: (31, 40)}, owner=1)], policy)
    assert job.own_topics == {1, 2}


def test_less_than_half_alive_is_rewritten_at_its_level() -> None:
    files = [file(1, {1: (1, 100)}, level=3, floor=floor) for floor in (50, 52)]
    assert plan(files[:1], MergePolicy()) == []
    assert plan(files[1:], MergePolicy()) == [MergeJob((1,), frozenset(), 3, "rewrite")]
    own = file(1, {1: (1, 100)}, owner=1, floor=90)
    assert plan([own], MergePolicy()) == [MergeJob((1,), frozenset({1}), 0, "rewrite")]
    cold = file(1, {1: (1, 100)}, tier=1, floor=90)
    assert plan([cold], MergePolicy()) == []


def test_a_file_is_in_one_job_only() -> None:
    files = [file(n, {1: (n * 10, n * 10 + 9)}, floor=n * 10 + 8) for n in range(1, 3)]
    assert inputs(plan(files, TWO)) == [(1, 2)]


def test_wholly_dead_files_are_dropped_first_wherever_they_are() -> None:
    hot, cold = file(1, {1: (1, 5)}, floor=6), file(2, {1: (6, 9)}, floor=10, tier=1)
    jobs = plan([hot, cold, shared(3, 2, 1), shared(4, 2, 2)], TWO)
    assert [(job.inputs, job.reason) for job in jobs] == [
        ((1,), "drop"),
        ((2,), "drop"),
        ((3, 4), "merge"),
    ]
    assert plan([hot], TWO, busy={1}) == []


def test_live_size_counts_what_a_rewrite_would_leave() -> None:
    whole = file(1, {1: (1, 100)})
    assert whole.live_size == whole.meta.size == 105_000
    assert file(1, {1: (1, 100)}, floor=76).live_size == 26_250
    empty = whole._replace(live_rows=0, live_bytes=0)
    assert empty.live_size == 0
    # Rows without payload still take room.
    bare = whole._replace(
        meta=msgspec.structs.replace(whole.meta, payload_bytes=0), live_rows=50, live_bytes=0
    )
    assert bare.live_size == 52_500


def test_a_policy_that_makes_no_sense_is_refused() -> None:
    with pytest.raises(AssertionError):
        MergePolicy(fan_in=1)
    with pytest.raises(AssertionError):
        MergePolicy(dead_fraction=0.0)
