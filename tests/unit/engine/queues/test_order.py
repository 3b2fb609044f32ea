"""Which jobs come next, and how they are shared: against the obvious way to say it."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from pyroaring import BitMap64

from headrace.engine.queues.claim_order import Span, live_after, shares, up_to

SEQS = st.integers(0, 60)


@given(st.sets(SEQS), SEQS, SEQS, SEQS, st.integers(1, 20))
def test_the_next_live_seqs_are_those_that_one_finds_by_looking_at_each(
    holes: set[int], base: int, head: int, cursor: int, count: int
) -> None:
    span = Span(base, head, BitMap64(holes) if holes else None)
    cursor = max(cursor, base)
    wanted = [seq for seq in range(cursor + 1, head + 1) if seq not in holes][:count]
    assert list(live_after(cursor, count, span)) == wanted
    alive = [seq for seq in range(70) if base < seq <= head and seq not in holes]
    assert [seq for seq in range(70) if span.alive(seq)] == alive
    assert list(span.between(5, 40)) == [seq for seq in alive if 5 <= seq <= 40]


class CountingSpan(Span):
    """Counts how often it is looked into."""

    looks = 0

    def between(self, first: int, last: int) -> BitMap64:
        CountingSpan.looks += 1
        return super().between(first, last)


def test_a_hundred_million_deleted_jobs_are_passed_by_in_a_few_steps() -> None:
    holes = BitMap64()
    holes.add_range(2, 100_000_000)
    span = CountingSpan(0, 100_000_005, holes)
    assert list(live_after(1, 3, span)) == [100_000_000, 100_000_001, 100_000_002]
    assert CountingSpan.looks <= 2


@given(st.integers(0, 200), st.lists(st.integers(1, 40), min_size=1, max_size=12))
def test_shares_are_those_of_dealing_one_by_one(jobs: int, wants: list[int]) -> None:
    given_out = [0] * len(wants)
    left = jobs
    while left and any(g < w for g, w in zip(given_out, wants, strict=True)):
        for i, want in enumerate(wants):
            if left and given_out[i] < want:
                given_out[i] += 1
                left -= 1
    assert shares(jobs, wants) == given_out


@given(st.sets(SEQS), SEQS)
def test_a_set_up_to_a_seq(seqs: set[int], last: int) -> None:
    assert list(up_to(BitMap64(seqs), last)) == sorted(seq for seq in seqs if seq <= last)
