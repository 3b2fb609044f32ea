"""Pages cut at what is on disk."""

from __future__ import annotations

from headrace.engine.engine import Engine
from headrace.engine.live.pages import up_to
from tests.support.seqs import seqs_of_page


def test_a_page_is_cut(engine: Engine) -> None:
    engine.append("jobs", [1, 2, 3, 4, 5]).result()
    page = engine.read("jobs").result()
    for last in range(6):
        cut = up_to(page, last)
        assert seqs_of_page(cut) == list(range(1, last + 1))
        assert (cut.next_from_seq, cut.head_seq) == (last, last)
    assert up_to(page, 5) is page


def test_a_page_that_ends_before_the_cut_is_not_caught_up(engine: Engine) -> None:
    engine.append("jobs", [1, 2, 3, 4, 5]).result()
    cut = up_to(engine.read("jobs", limit=2).result(), 4)
    assert (cut.next_from_seq, cut.head_seq, cut.caught_up) == (2, 4, False)


def test_what_is_gone_is_told_however_much_is_on_disk(engine: Engine) -> None:
    for value in range(6):
        engine.append("capped", [value], config={"cap_records": 2}).result()
    page = engine.read("capped").result()
    cut = up_to(page, 2)
    assert cut.tombstone is not None and cut.tombstone.gap_to == 4
    assert (cut.next_from_seq, cut.head_seq, cut.records) == (4, 4, [])
