"""The accounts of the soak notice a loss, a record that comes twice, and bytes that differ."""

from __future__ import annotations

from collections.abc import Callable
from itertools import count
from pathlib import Path

import msgspec
import pyarrow as pa
import pytest
from deltalake import write_deltalake

from tests.campaigns.soaking import ledger, s2
from tests.campaigns.soaking.content import origin, payload
from tests.campaigns.soaking.jobs import Queue, dies
from tests.campaigns.soaking.lake_account import compare
from tests.campaigns.soaking.ledger import Chain, Ledger, Merged, Once, Sequence, Writers
from tests.campaigns.soaking.readers import Page, Row, Tombstone, enter
from tests.campaigns.soaking.site import Site
from tests.campaigns.soaking.topics import GROUP, Deletes, Line

Read = Callable[[Sequence], None]


def record(seq: int) -> tuple[int, bytes]:
    return seq, payload("t", seq)


def take(
    account: Sequence, *seqs: int, gone: tuple[int, int] | None = None, to: int | None = None
) -> None:
    """Read these, then a tombstone, then that there is nothing up to `to`."""
    for seq in seqs:
        account.take(*record(seq))
    if gone is not None:
        account.gone(*gone)
    if to is not None:
        account.pass_by(to)


def test_a_record_names_its_writer_and_number() -> None:
    data = payload("shared-2", 4711)
    assert origin(data) == ("shared-2", 4711)
    assert msgspec.json.decode(data)["n"] == 4711
    assert payload("shared-1", 4711) != data != payload("shared-2", 4712)


def test_all_read_once_is_right() -> None:
    book = Ledger()
    account = Sequence(book, "reader", "t", lambda seq: seq == 6, lambda: 3)
    account.gone(1, 3)
    take(account, 4, 5, 7)
    account.pass_by(7)
    assert (account.read, account.announced, account.missed) == (3, 3, 1)
    assert not book.findings


@pytest.mark.parametrize(
    ("what", "read", "said"),
    [
        ("a loss", lambda a: take(a, 1, 2, 4), "from 3 to 3 did not come"),
        ("a loss at the end", lambda a: take(a, 1, 2, to=4), "from 3 to 4 did not come"),
        ("a repeat", lambda a: take(a, 1, 2, 2), "seq 2 came after 2"),
        ("another order", lambda a: take(a, 1, 3, 2), "seq 2 came after 3"),
        ("other bytes", lambda a: a.take(1, payload("t", 2)), "seq 1 holds"),
        ("bytes of another topic", lambda a: a.take(1, payload("u", 1)), "seq 1 holds"),
        ("a loss before a gap", lambda a: take(a, 1, gone=(3, 4)), "from 2 to 2 did not come"),
        ("a gap of what is kept", lambda a: a.gone(1, 6), "only those up to 5 can be"),
    ],
)
def test_a_reader_notices(what: str, read: Read, said: str) -> None:
    book = Ledger()
    read(Sequence(book, "reader", "t", may_go=lambda: 5))
    assert any(said in finding for finding in book.findings), (what, book.findings)


def test_what_a_page_says_is_entered() -> None:
    book = Ledger()
    account = Sequence(book, "reader", "t", may_go=lambda: 10)
    rows = [Row(seq, msgspec.Raw(payload("t", seq))) for seq in (11, 12)]
    enter(account, Page(rows, 12, 12, 11, True, Tombstone(1, 10, "cap")))
    assert (account.seq, book.findings) == (12, [])
    enter(account, Page([], 14, 14, 11, True, None))
    assert "13 to 14 did not come" in book.findings[0]


class Shared:
    """Two writers of one topic, as they and a reader saw it."""

    def __init__(self) -> None:
        self.book = Ledger()
        self.reader = Merged(self.book, "shared")
        self.writers = Writers()
        self.records = [("a", 1), ("b", 1), ("a", 2), ("a", 3), ("b", 2)]
        for seq, (of, n) in enumerate(self.records, start=1):
            self.writers.acked(of, n, seq)

    def read(self, *places: int) -> list[str]:
        for seq, place in enumerate(places, start=1):
            self.reader.take(seq, payload(*self.records[place]))
        self.reader.compare(self.writers)
        return self.book.findings


def test_writers_of_one_topic_are_told_apart() -> None:
    assert not Shared().read(0, 1, 2, 3, 4)


@pytest.mark.parametrize(
    ("what", "places"),
    [
        ("a loss at the end", (0, 1, 2, 3)),
        ("a loss in the middle", (0, 1, 3, 4)),
        ("a repeat", (0, 1, 2, 2, 3, 4)),
        ("another order of one writer", (0, 1, 3, 2, 4)),
        ("each in order, and none where it was acknowledged", (1, 0, 2, 3, 4)),
    ],
)
def test_a_reader_of_several_writers_notices(what: str, places: tuple[int, ...]) -> None:
    assert Shared().read(*places), what


def test_a_reader_of_several_writers_notices_a_missing_seq_and_other_bytes() -> None:
    shared = Shared()
    shared.reader.take(1, payload("a", 1))
    shared.reader.take(3, payload("b", 1))
    assert "seq 3 came after 1" in shared.book.findings[0]
    shared.reader.take(4, payload("a", 2) + b" ")
    assert "seq 4 holds" in shared.book.findings[-1]
    shared.reader.gone(5, 6)
    assert "announced as gone" in shared.book.findings[-1]


@pytest.mark.parametrize("copied", [(1, 2), (1, 2, 3, 3), (1, 3, 2), (1, 2, 4)])
def test_a_copy_that_is_not_its_source_is_noticed(copied: tuple[int, ...]) -> None:
    book = Ledger()
    source, copy = Chain(book, "source"), Chain(book, "copy")
    for n in (1, 2, 3):
        source.add(payload("t", n))
    for seq, n in enumerate(copied, start=1):
        copy.take(seq, payload("t", n))
    assert not book.findings
    copy.compare(source)
    assert "are not the 3 of source" in book.findings[0]


def test_a_number_that_comes_twice_or_not_is_noticed() -> None:
    book = Ledger()
    once = Once(book, "evens", count(2, 2))
    for n in (2, 6, 4, 10):
        once.take(n)
    once.finish(7)
    assert "10 came, which is none of them" in book.findings.pop()
    once.finish(10)
    assert "8 did not come" in book.findings.pop()
    for n in (6, 10, 3):  # done, ahead, and no even number
        once.take(n)
        assert f"{n} came twice, or was not to come" in book.findings.pop()
    once.take(8)
    once.finish(11)
    assert not book.findings


def test_an_account_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ledger, "AHEAD_MAX", 10)
    book = Ledger()
    once = Once(book, "numbers", count(1))
    for n in range(2, 14):
        once.take(n)
    assert "1 did not come for long" in book.findings[0]
    for _ in range(2 * ledger.FINDINGS_MAX):
        book.wrong("again")
    assert len(book.findings) == ledger.FINDINGS_MAX
    assert book.counts["findings"] > ledger.FINDINGS_MAX


def test_only_what_was_deleted_may_be_missing() -> None:
    deletes = Deletes(Ledger())
    before = deletes.seen()
    deletes.begun, deletes.before_begun = 2, GROUP
    tagged, plain = 2 * GROUP + 1, 2 * GROUP + 5
    assert deletes.may_miss(tagged) and deletes.may_miss(GROUP - 1)
    assert not deletes.may_miss(plain) and not deletes.may_miss(tagged + GROUP)
    # What is being deleted may still be read; what was deleted before a read began may not.
    assert not before(tagged) and not deletes.seen()(tagged)
    deletes.done, deletes.before_done = 2, GROUP
    assert deletes.seen()(tagged) and deletes.seen()(GROUP - 1)
    assert not before(tagged) and not deletes.seen()(plain)


def test_a_dead_letter_counts_once() -> None:
    site = Site(0, Ledger())
    queue = Queue(site, "jobs", "jobs-dead", Line())

    def dead(n: int) -> list[str]:
        meta = {"$dead_letter_src_seq": str(n)}
        queue.bury(Row(1, msgspec.Raw(payload("jobs", n)), meta=meta))
        return site.ledger.findings

    assert dies(57) and not dies(8)
    assert not dead(57)
    assert not dead(8)  # its workers were too late; then nobody can have done it
    assert "8 came twice" in dead(8)[-1]
    assert "57 came twice" in dead(57)[-1]


def test_commands_of_s2_stand_where_they_have_to() -> None:
    site = Site(0, Ledger())
    stream = s2.S2Stream(site, "json")
    account = stream.account("reader")
    for seq in range(s2.FENCE_AT):
        stream.took(account, seq, [], payload("json", seq + 1))
    fence = s2.command(s2.FENCE_AT)
    assert fence is not None and s2.token(s2.FENCE_AT) == ""
    assert s2.token(s2.FENCE_AT + 1) == fence.body.decode()
    stream.took(account, s2.FENCE_AT, [(b"", b"fence")], fence.body)
    assert not site.ledger.findings
    other = s2.FENCE_AT + s2.FENCE_EVERY
    stream.took(account, other, [(b"", b"fence")], fence.body)
    assert [words for words in site.ledger.findings if f"{other} is not" in words]
    assert [words for words in site.ledger.findings if "did not come" in words]


def test_only_what_a_trim_took_may_be_missing_of_s2() -> None:
    stream = s2.S2Stream(Site(0, Ledger()), "json")
    trim = next(seq for seq in count() if (c := s2.command(seq)) and c.name == "trim")
    stream.sent = trim
    assert s2.trimmed(trim) == 0
    stream.sent = trim + 1
    account = stream.account("reader")
    account.pass_by(trim - s2.KEPT)
    assert not stream.site.ledger.findings
    account.pass_by(trim - s2.KEPT + 1)
    assert stream.site.ledger.findings


@pytest.mark.parametrize(
    ("rows", "said"),
    [
        ([1, 2, 3], ""),
        ([1, 3], "1 of 3 rows are missing, the first is 2"),
        ([1, 2, 2, 3], "seq 2, which is beyond 3, or twice"),
        ([1, 2, 3, 4], "seq 4, which is beyond 3, or twice"),
        ([1, 2, -3], "1 rows do not hold what was appended"),
    ],
)
def test_rows_of_the_lake_are_compared(tmp_path: Path, rows: list[int], said: str) -> None:
    """A negative seq stands for a row whose bytes differ."""
    data = [payload("t", n) for n in rows]
    table = pa.table({"seq": pa.array(map(abs, rows), pa.int64()), "data": pa.array(data)})
    write_deltalake(str(tmp_path / "1-t"), table)
    found = compare(tmp_path / "1-t", "t", 3)
    assert (said in found[0]) if said else not found
