"""Sync: every seq exactly once, whatever is deleted, lost or killed in between."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable

from headrace.client import Client
from headrace.core.errors import ConfigError
from headrace.lake.tables import gaps
from headrace.lake.tables.layout import Lake
from headrace.lake.tables.table import Table, create_table
from headrace.lake.tables.tasks import run_inline
from headrace.lake.writing.sync import STEPS
from headrace.lake.writing.sync_result import Synced
from headrace.testing.process import ServerProcess
from tests.support.lakes import Bench, Died, accounted, dies_at, gaps_in, rows_in
from tests.support.sealed_topics import fill, rows_of, seal


def data_files(table: Table) -> set[str]:
    """Every data file that lies there, named by a commit or not."""
    root = Path(table.lake.uri(table.name))
    return {str(path.relative_to(root)) for path in root.glob("day=*/*")}


def test_rows_are_what_was_written(bench: Bench, topic: str) -> None:
    fill(bench.client, topic, 2_500)
    seal(bench.client, topic)
    bench.client.append(topic, [{"id": 1}])
    result = bench.sync(topic)
    assert (result.error, result.watermark, result.rows, result.gap_seqs) == (None, 2_501, 2_501, 0)
    table = bench.table(topic)
    found = rows_in(table)
    assert accounted(table) == 2_501
    for row, written in zip(found, rows_of(1, 2_500).to_pylist(), strict=False):
        assert {name: row[name] for name in written} == written
        assert row["kind"] == "bytes"
        assert row["ts"].date() == row["day"]
    assert (found[-1]["kind"], found[-1]["data"]) == ("json", b'{"id":1}')
    page = bench.client.diff(topic, 2_500)
    assert found[-1]["ts"].timestamp() * 1000 == page.records[0].ts
    assert bench.sync(topic).commits == 0, "there is nothing new"


def test_only_what_is_new_is_written(bench: Bench, topic: str) -> None:
    told: list[Synced] = []
    for first in (1, 1_001, 2_001):
        fill(bench.client, topic, 1_000, first)
        bench.writer().run([topic], told.append)
    assert [(done.first_seq, done.last_seq) for done in told] == [
        (1, 1_000), (1_001, 2_000), (2_001, 3_000)
    ]  # fmt: skip
    assert accounted(bench.table(topic)) == 3_000
    assert bench.table(topic).version == 3


def test_a_large_topic_is_several_commits(bench: Bench, topic: str) -> None:
    fill(bench.client, topic, 3_000)
    seal(bench.client, topic)
    result = bench.sync(topic, commit_bytes_max=40_000)
    assert result.commits > 2
    assert accounted(bench.table(topic)) == 3_000


def test_statistics_prune(bench: Bench, topic: str) -> None:
    for first in (1, 1_001, 2_001):
        fill(bench.client, topic, 1_000, first)
        bench.sync(topic)
    table = bench.table(topic)
    assert len(table.files()) == 3
    for condition, count in (("seq > 2500", 1), ("seq < 1", 0), ("seq between 900 and 1100", 2)):
        assert len(table.delta.file_uris(file_pruning_predicate=condition)) == count, condition
    middle = table.files()[1]
    found = rows_in(table)[middle.first_seq - 1 : middle.last_seq]
    stamps = [round(row["ts"].timestamp() * 1000) for row in found]
    assert (middle.min_ts, middle.max_ts) == (min(stamps), max(stamps))


def test_deletes_and_losses_are_recorded(bench: Bench, topic: str) -> None:
    client = bench.client
    fill(client, topic, 2_000)
    seal(client, topic)
    fill(client, topic, 100, 2_001)
    client.delete_records(topic, match="t4")  # in files and in the tail
    client.delete_records(topic, before_seq=11)
    assert bench.sync(topic).error is None
    table = bench.table(topic)
    assert accounted(table) == 2_100
    found = gaps_in(table)
    assert found[0] == (1, 10, "delete")
    assert {first for first, _, _ in found[1:]} == {
        n for n in range(11, 2_101) if n % 10 == 4 and n % 3
    }
    assert {reason for _, _, reason in found} == {"delete"}

    client.put_topic(topic, {"cap_records": 50})
    fill(client, topic, 300, 2_101)
    result = bench.sync(topic)
    assert (result.rows, result.gap_seqs) == (50, 250)
    assert accounted(table) == 2_400
    assert gaps_in(table)[-1] == (2_101, 2_350, "cap")
    assert gaps_in(table)[:-1] == found
    # What is deleted or lost after it was synced stays in the lake.
    assert len(rows_in(table)) == 2_400 - sum(last - first + 1 for first, last, _ in gaps_in(table))


def test_a_commit_may_be_nothing_but_gaps(bench: Bench, topic: str) -> None:
    bench.client.append(topic, list(range(20)))
    bench.client.delete_records(topic, before_seq=21)
    result = bench.sync(topic)
    assert (result.error, result.watermark, result.rows, result.gap_seqs) == (None, 20, 0, 20)
    assert gaps_in(bench.table(topic)) == [(1, 20, "delete")]
    bench.client.append(topic, [1])
    assert bench.sync(topic).rows == 1
    assert accounted(bench.table(topic)) == 21


def test_many_gap_files_become_one(
    bench: Bench, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gaps, "FILES_MAX", 3)
    files = []
    for n in range(8):
        bench.client.append(topic, [1, 2])
        bench.client.delete_records(topic, before_seq=2 * n + 2)
        assert bench.sync(topic).error is None
        name = gaps.gaps_name(bench.table(topic).identity)
        files.append(len(DeltaTable(bench.lake.uri(name)).file_uris()))
    assert files == [1, 2, 3, 1, 2, 3, 1, 2]
    assert accounted(bench.table(topic)) == 16
    assert gaps_in(bench.table(topic)) == [(2 * n + 1, 2 * n + 1, "delete") for n in range(8)]


# A writer that dies


@pytest.mark.parametrize("step", STEPS)
def test_a_writer_dies_and_is_run_again(bench: Bench, topic: str, step: str) -> None:
    client = bench.client
    fill(client, topic, 1_000)
    client.delete_records(topic, match="t4")
    if step != "gaps committed":
        assert bench.sync(topic).error is None  # the crash is then in the middle of a life
    fill(client, topic, 500, 1_001)
    client.delete_records(topic, match="t7")
    with pytest.raises(Died):
        bench.sync(topic, at=dies_at(step))
    # Meanwhile more is deleted, and more comes.
    client.delete_records(topic, match="t1")
    fill(client, topic, 100, 1_501)
    result = bench.sync(topic)
    assert (result.error, result.watermark) == (None, 1_600)
    table = bench.table(topic)
    assert accounted(table) == 1_600
    left = {row["$seq"]: row for row in _source(client, topic)}
    in_lake = {row["seq"]: row for row in rows_in(table)}
    assert left.keys() <= in_lake.keys()


def _source(client: Client, topic: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []
    page = client.diff(topic, 0, limit=1_000)
    while page.records:
        found += [{"$seq": record.seq} for record in page.records]
        page = client.diff(topic, page.next_from_seq, limit=1_000)
    return found


def test_gaps_of_a_writer_that_died_are_taken_back(bench: Bench, topic: str) -> None:
    client = bench.client
    client.append(topic, list(range(10)))
    client.delete_records(topic, before_seq=3)
    with pytest.raises(Died):
        bench.sync(topic, at=dies_at("gaps committed"))
    client.delete_records(topic, before_seq=6)
    client.append(topic, [1])
    assert bench.sync(topic).error is None
    table = bench.table(topic)
    assert gaps_in(table) == [(1, 5, "delete")]
    assert table.place.gaps_version == 2
    assert accounted(table) == 11


@pytest.mark.parametrize("count", [1, 3])
def test_a_writer_dies_again_and_again(bench: Bench, topic: str, count: int) -> None:
    fill(bench.client, topic, 2_000)
    bench.client.delete_records(topic, match="t4")
    for step in STEPS:
        with contextlib.suppress(Died):  # or it is done before
            bench.sync(topic, at=dies_at(step, count), commit_bytes_max=12_000)
    result = bench.sync(topic, commit_bytes_max=12_000)
    assert (result.error, result.watermark) == (None, 2_000)
    assert accounted(bench.table(topic)) == 2_000


# Two writers


@pytest.mark.parametrize("step", STEPS[:-2])
@pytest.mark.parametrize("more", [0, 50])
def test_of_two_writers_one_loses(bench: Bench, topic: str, step: str, more: int) -> None:
    """The other does all of its work while the first is at this step."""
    client = bench.client
    fill(client, topic, 500)
    client.delete_records(topic, match="t4")
    assert bench.sync(topic).error is None
    fill(client, topic, 500, 501)
    client.delete_records(topic, match="t7")
    before: list[str] = []

    def at(done: str) -> None:
        if done != step or before:
            return
        before.append(done)
        client.delete_records(topic, match="t1")
        if more:
            fill(client, topic, more, 1_001)
        other = bench.sync(topic)
        assert (other.error, other.watermark) == (None, 1_000 + more)

    result = bench.sync(topic, at=at)
    table = bench.table(topic)
    # From "gaps committed" on the first one's gaps are below the other's: it must still lose.
    assert result.code == "lake_conflict", result
    assert "another writer" in (result.error or "")
    assert accounted(table) == 1_000 + more
    named = {file.path for file in table.files()}
    assert data_files(table) == named, "the loser has removed its files"
    fill(client, topic, 10, 1_001 + more)
    assert bench.sync(topic).error is None
    assert accounted(table) == 1_010 + more


@pytest.mark.parametrize("early", [False, True])
def test_a_writer_that_slept_wins_with_its_own_gaps(
    bench: Bench, topic: str, early: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The other starts when the first has committed its gaps, and is slower to the end.

    `early`: before the first has looked which version of the gap table it made.
    """
    client = bench.client
    client.append(topic, list(range(10)))
    client.delete_records(topic, before_seq=3)
    outcome = []

    class Slow(BaseException):
        pass

    def other_at(done: str) -> None:
        if done == "gaps committed":
            raise Slow

    def other() -> None:
        if not outcome:
            outcome.append("the other has put its gaps on top")
            client.delete_records(topic, before_seq=6)
            with pytest.raises(Slow):
                bench.sync(topic, at=other_at)

    look = gaps._version_of

    def looked(delta: DeltaTable, batch: str) -> int:
        if early:
            other()
            delta.update_incremental()
        return look(delta, batch)

    monkeypatch.setattr(gaps, "_version_of", looked)
    assert bench.sync(topic, at=lambda done: other() if done == "gaps committed" else None).commits
    table = bench.table(topic)
    assert outcome and gaps_in(table) == [(1, 2, "delete")]
    assert accounted(table) == 10
    client.append(topic, [1])
    client.delete_records(topic, before_seq=12)
    assert bench.sync(topic).error is None
    assert gaps_in(table) == [(1, 2, "delete"), (11, 11, "delete")]
    assert accounted(table) == 11


# Topics that end, and lakes that do not fit


def test_a_topic_that_is_made_anew_has_a_table_of_its_own(bench: Bench, topic: str) -> None:
    bench.client.append(topic, [1, 2, 3])
    bench.sync(topic)
    first = bench.table(topic)
    bench.client.delete_topic(topic)
    bench.client.append(topic, [9])
    assert bench.sync(topic).watermark == 1
    second = bench.table(topic)
    assert first.name != second.name
    assert (accounted(first), accounted(second)) == (3, 1)


@pytest.mark.parametrize("anew", [False, True])
def test_a_topic_that_ends_while_it_is_read(unsealed: Bench, topic: str, anew: bool) -> None:
    client, lake = unsealed.client, unsealed.lake
    client.append(topic, [1, 2, 3])

    def runner(work: Callable[[Any], Any], jobs: Sequence[Any]) -> list[Any]:
        client.delete_topic(topic)
        if anew:
            client.append(topic, [9, 9, 9, 9])
        return run_inline(work, jobs)

    result = unsealed.sync(topic, runner=runner)
    assert (result.code, result.watermark) == ("not_ready", 0)
    assert "made anew" in (result.error or "")
    (name,) = lake.tables()
    table = Table(lake, name)
    assert (table.place.watermark, table.files()) == (0, [])


def test_files_of_a_topic_that_ends_are_read_to_the_end(bench: Bench, topic: str) -> None:
    fill(bench.client, topic, 2_000)
    seal(bench.client, topic)

    def runner(work: Callable[[Any], Any], jobs: Sequence[Any]) -> list[Any]:
        bench.client.delete_topic(topic)
        return run_inline(work, jobs)

    assert bench.sync(topic, runner=runner).watermark == 2_000
    (name,) = bench.lake.tables()
    assert accounted(Table(bench.lake, name)) == 2_000


def test_what_is_wrong_with_one_topic_does_not_stop_another(bench: Bench, topic: str) -> None:
    bench.client.append(topic, [1])
    results = bench.writer().run(["no-such-topic", topic])
    assert [(result.code, result.watermark) for result in results] == [
        ("topic_not_found", 0),
        (None, 1),
    ]


def test_a_lake_of_another_directory_is_refused(bench: Bench, topic: str, tmp_path: Path) -> None:
    bench.client.append(topic, [1])
    bench.sync(topic)
    table = bench.table(topic)
    other = table.identity._replace(topic_id=99)
    with pytest.raises(ConfigError, match="a lake of its own"):
        create_table(bench.lake, other, None)
    table.commit(add=[], marks={table.identity.app_id: 50}, note={})
    result = bench.sync(topic)
    assert result.code == "config_error"
    assert "ends at 1" in (result.error or "")


def test_declared_fields_are_columns(bench: Bench, topic: str) -> None:
    client = bench.client
    client.append(topic, [{"id": 1, "price": 2.5}, {"id": "x"}, {"price": 3}, [1]])
    ddl = "id BIGINT, price DOUBLE"
    assert bench.sync(topic, value_ddl=ddl).error is None
    table = bench.table(topic)
    assert [row["value"] for row in rows_in(table)] == [
        {"id": 1, "price": 2.5}, None, {"id": None, "price": 3.0}, None
    ]  # fmt: skip
    assert rows_in(table)[1]["data"] == b'{"id":"x"}'
    client.append(topic, [{"id": 7}])
    assert bench.sync(topic).error is None, "the table knows its fields"
    assert rows_in(table)[-1]["value"] == {"id": 7, "price": None}
    wrong = bench.sync(topic, value_ddl="id INT")
    assert "was made with" in (wrong.error or "")


@pytest.mark.long
def test_a_restored_directory_starts_new_tables(tmp_path: Path) -> None:
    """An epoch is never used twice, so that other records under old seqs are never mixed in."""
    from headrace.cli.main import main

    lake = Lake(str(tmp_path / "lake"))
    data, backup, again = (str(tmp_path / name) for name in ("data", "backup", "again"))
    with ServerProcess(data) as server, Client(server.url) as client:
        client.append("orders", ["old"] * 3)
    assert main(["backup", backup, "--data-dir", data]) == 0
    with ServerProcess(data) as server, Client(server.url) as client:
        client.append("orders", ["lost"] * 2)
        bench = Bench(server, client, lake)
        assert bench.sync("orders").watermark == 5
        before = bench.table("orders")
    assert main(["restore", backup, "--data-dir", again]) == 0
    with ServerProcess(again) as server, Client(server.url) as client:
        client.append("orders", ["new"])
        bench = Bench(server, client, lake)
        assert bench.sync("orders").watermark == 4
        after = bench.table("orders")
    assert (accounted(before), accounted(after)) == (5, 4)
    assert [row["data"] for row in rows_in(after)] == [b'"old"'] * 3 + [b'"new"']
