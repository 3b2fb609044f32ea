"""Rows that several readers are given: only while they are what a read would find."""

from __future__ import annotations

import pytest

from headrace.engine.engine import Engine
from headrace.engine.reading import recent_pages
from headrace.engine.reading.page import Page
from headrace.engine.reading.page_rows import ReadRequest
from headrace.storage.block import Batch
from tests.support.engines import Start
from tests.support.seqs import seqs_of_page


def consume(engine: Engine, from_seq: int = 0, limit: int = 256, **more: object) -> Page:
    page = engine.consume("t", ReadRequest(from_seq, limit, **more))  # type: ignore[arg-type]
    assert isinstance(page, Page)
    return page


def is_shared(first: Page, second: Page) -> bool:
    return first.rows is second.rows


def test_who_asks_for_the_same_is_given_the_same_rows(engine: Engine) -> None:
    engine.append("t", [1, 2, 3, 4]).result()
    first = consume(engine, 1, 2)
    assert seqs_of_page(first) == [2, 3]
    assert is_shared(first, consume(engine, 1, 2))
    others = (
        consume(engine, 0, 2),
        consume(engine, 1, 1),
        consume(engine, 1, 2, bytes_max=1),
        consume(engine, 1, 2, nodes=("n",)),
    )
    assert not any(is_shared(first, page) for page in others)
    assert [seqs_of_page(page) for page in others] == [[1, 2], [2], [2], [2, 3]]


def test_a_full_page_stays_while_the_head_moves_on(engine: Engine) -> None:
    engine.append("t", [1, 2, 3]).result()
    first = consume(engine, 0, 2)
    engine.append("t", [4]).result()
    second = consume(engine, 0, 2)
    assert is_shared(first, second)
    assert (first.head_seq, second.head_seq, second.lag) == (3, 4, 2)


def test_a_page_that_reached_the_head_goes_on_from_there(engine: Engine) -> None:
    engine.append("t", [1, 2]).result()
    first = consume(engine)
    assert is_shared(first, consume(engine))
    engine.append("t", [3]).result()
    assert seqs_of_page(consume(engine)) == [1, 2, 3]


def test_what_was_removed_is_not_given_to_anybody(engine: Engine) -> None:
    engine.append("t", Batch([b"1", b"2", b"3", b"4"], tags=["a", "b", "a", "b"])).result()
    assert seqs_of_page(consume(engine, 0, 3)) == [1, 2, 3]
    assert seqs_of_page(consume(engine, 2, 2)) == [3, 4]
    engine.delete("t", before_seq=2).result()
    assert seqs_of_page(consume(engine, 0, 3)) == [2, 3, 4]
    engine.delete("t", match="a").result()
    assert seqs_of_page(consume(engine, 2, 2)) == [4]


def test_a_topic_that_is_created_again_has_its_own_rows(engine: Engine) -> None:
    engine.append("t", [1, 2]).result()
    consume(engine, 0, 2)
    engine.delete_topic("t").result()
    engine.append("t", [3, 4]).result()
    assert [record.data for record in consume(engine, 0, 2).records] == [b"3", b"4"]


def test_a_cap_is_told_of_whoever_read_before_it(start: Start) -> None:
    engine = start()
    engine.put_topic("t", {"cap_records": 2}).result()
    engine.append("t", [1, 2]).result()
    assert seqs_of_page(consume(engine, 0, 2)) == [1, 2]
    engine.append("t", [3]).result()
    page = consume(engine, 0, 2)
    assert page.tombstone is not None and page.tombstone.gap_to == 1
    assert seqs_of_page(page) == [2, 3]


def test_the_bytes_that_are_kept_are_bounded(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(recent_pages, "RECENT_BYTES_MAX", 4_000)
    monkeypatch.setattr(recent_pages, "RECENT_PAGE_BYTES_MAX", 1_600)
    engine.append("t", [b"x" * 500] * 4).result()
    first, second = consume(engine, 0, 1), consume(engine, 1, 1)
    assert is_shared(first, consume(engine, 0, 1))
    consume(engine, 2, 1)  # there is room for two
    assert not is_shared(first, consume(engine, 0, 1))
    assert not is_shared(second, consume(engine, 1, 1))
    large = consume(engine, 0, 3)
    assert not is_shared(large, consume(engine, 0, 3))


def test_small_records_count_with_what_is_around_them(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(recent_pages, "RECENT_PAGE_BYTES_MAX", 5_000)
    for n in range(50):
        engine.append("t", [n]).result()
    assert is_shared(consume(engine, 0, 5), consume(engine, 0, 5))
    assert not is_shared(consume(engine, 0, 50), consume(engine, 0, 50))
