"""Compaction, vacuum and history: the same rows in fewer files, and nothing removed too early."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from headrace.core.errors import ConfigError, DataLost, LakeConflict, SegmentCorrupt
from headrace.lake.tables.commits import history
from headrace.lake.tables.files import DataFile, read_rows
from headrace.lake.tables.table import Table
from headrace.lake.tables.tasks import run_inline
from headrace.lake.writing.compact import compact, groups_of, merge_files
from headrace.lake.writing.vacuum import checked_hours, vacuum
from tests.support.lakes import Bench, Died, accounted, dies_at, gaps_in, rows_in
from tests.support.sealed_topics import fill


def small(path: str, day: str, first: int, size: int = 10) -> DataFile:
    return DataFile(path, size, 5, day, first, first + 4, 0, 0)


def test_only_neighbours_of_one_day_are_put_together() -> None:
    files = [
        small("a", "2026-01-01", 1),
        small("b", "2026-01-01", 6),
        small("large", "2026-01-01", 11, size=60),
        small("c", "2026-01-01", 16),
        small("d", "2026-01-02", 21),
        small("e", "2026-01-02", 26),
    ]
    names = [[file.path for file in group] for group in groups_of(reversed(files), target=100)]
    assert names == [["a", "b"], ["d", "e"]], "`c` would have to go around `large`"
    assert groups_of(files[:1]) == []


@pytest.fixture
def table(bench: Bench, topic: str) -> Table:
    """A table of eight small files."""
    for n in range(8):
        fill(bench.client, topic, 100, 100 * n + 1)
        bench.client.delete_records(topic, match=f"t{n}")
        assert bench.sync(topic).error is None
    return bench.table(topic)


def test_compaction_keeps_every_row(table: Table, bench: Bench, topic: str) -> None:
    before = rows_in(table)
    done = compact(table, run_inline)
    assert done is not None
    assert (done.files_before, done.files_after, done.rows) == (8, 1, len(before))
    after = table.fresh()
    assert rows_in(after) == before
    assert accounted(after) == 800
    assert after.place == table.place
    assert [(f.first_seq, f.last_seq) for f in after.files()] == [(1, 800)]
    assert compact(after, run_inline) is None
    # What was before is still there, by its version; and syncing goes on.
    assert len(Table(table.lake, table.name, table.version).files()) == 8
    fill(bench.client, topic, 10, 801)
    assert bench.sync(topic).watermark == 810
    assert accounted(table) == 810
    assert [one.what for one in history(after.fresh())][:2] == ["sync", "compact"]


def test_of_two_compactions_one_loses(table: Table) -> None:
    def runner(work: Callable[[Any], Any], jobs: Sequence[Any]) -> list[Any]:
        compact(table.fresh(), run_inline)
        return run_inline(work, jobs)

    with pytest.raises(LakeConflict):
        compact(table, runner)
    assert accounted(table) == 800
    named = {file.path for file in table.fresh().files()}
    old = {file.path for file in table.files()}
    root = Path(table.lake.uri(table.name))
    there = {str(path.relative_to(root)) for path in root.glob("day=*/*")}
    assert there == named | old, "the loser has removed its file"


def test_a_sync_during_a_compaction_is_kept(table: Table, bench: Bench, topic: str) -> None:
    def runner(work: Callable[[Any], Any], jobs: Sequence[Any]) -> list[Any]:
        fill(bench.client, topic, 10, 801)
        assert bench.sync(topic).error is None
        return run_inline(work, jobs)

    assert compact(table, runner) is not None
    assert accounted(table) == 810
    assert len(table.fresh().files()) == 2


def test_a_file_that_holds_less_is_not_put_together(table: Table) -> None:
    def runner(work: Callable[[Any], Any], jobs: Sequence[Any]) -> list[Any]:
        import msgspec

        assert work is merge_files
        return run_inline(work, [msgspec.structs.replace(job, files=job.files[1:]) for job in jobs])

    with pytest.raises(DataLost, match="should hold"):
        compact(table, runner)
    assert accounted(table) == 800


def test_a_damaged_footer_is_not_put_together(table: Table) -> None:
    """Checksums of pages do not see it, and the new file would vouch for what it says."""
    store, file = table.lake.store(), table.files()[3]
    path = Path(table.lake.uri(table.name)) / file.path
    whole = path.read_bytes()
    silent = 0
    for at in range(len(whole) - 9, 0, -1):
        content = bytearray(whole)
        content[at] ^= 1
        path.write_bytes(content)
        with contextlib.suppress(SegmentCorrupt):
            rows = [batch.num_rows for batch in read_rows(store, table.name, file.path)]
            silent += sum(rows) == file.rows
        if silent:
            break
    assert silent, "no byte of a footer goes unnoticed"
    with pytest.raises(SegmentCorrupt, match="not those that were written"):
        compact(table, run_inline)
    path.unlink()
    with pytest.raises(SegmentCorrupt, match=r"does not exist|No such file"):
        compact(table, run_inline)
    path.write_bytes(whole)
    assert compact(table, run_inline) is not None
    assert accounted(table) == 800


def age(table: Table) -> None:
    """Let every file be eight days old."""
    for name in (table.name, f"{table.name}.gaps"):
        for path in Path(table.lake.uri(name)).rglob("*.parquet*"):
            os.utime(path, (path.stat().st_atime, path.stat().st_mtime - 8 * 86_400))


def test_vacuum_removes_what_nothing_names(table: Table, bench: Bench, topic: str) -> None:
    fill(bench.client, topic, 10, 801)
    with pytest.raises(Died):
        bench.sync(topic, at=dies_at("looked again"))
    assert bench.sync(topic).error is None
    age(table)
    fill(bench.client, topic, 10, 811)
    with pytest.raises(Died):
        bench.sync(topic, at=dies_at("looked again"))
    rows, gaps = rows_in(table), gaps_in(table)
    tried = vacuum(table.fresh(), dry_run=True)
    assert not tried.removed
    assert len(tried.files) == 1, "one orphan is eight days old, one is new"
    path = Path(table.lake.root) / tried.files[0]
    assert path.exists()
    assert vacuum(table.fresh()).files == tried.files
    assert not path.exists()
    assert (rows_in(table), gaps_in(table)) == (rows, gaps)
    assert bench.sync(topic).error is None
    assert accounted(table) == 820
    assert vacuum(table.fresh(), 0).files != []


def test_vacuum_keeps_the_gaps_that_the_table_names(bench: Bench, topic: str) -> None:
    client = bench.client
    client.append(topic, list(range(10)))
    client.delete_records(topic, before_seq=3)
    assert bench.sync(topic).error is None
    table = bench.table(topic)
    client.append(topic, list(range(10)))
    client.delete_records(topic, before_seq=15)

    # A writer that lost has taken back the gaps which the table names, and put its own there.
    from headrace.core.clock import SystemRandom
    from headrace.lake.tables.gaps import record_gaps
    from headrace.lake.tables.seq_sets import Gap

    record_gaps(
        bench.lake, table.identity, None, [Gap(1, 14, "delete")], to_seq=20, batch="lost",
        now_ms=1, random=SystemRandom(),
    )  # fmt: skip
    age(table)
    removed = vacuum(table.fresh(), 0)
    assert removed.files == []
    assert gaps_in(table) == [(1, 2, "delete")]
    assert bench.sync(topic).error is None
    assert gaps_in(table) == [(1, 2, "delete"), (11, 14, "delete")]
    assert accounted(table) == 20


def test_files_of_a_running_sync_are_not_vacuumed() -> None:
    assert checked_hours(168, alone=False) == 168
    assert checked_hours(0, alone=True) == 0
    for hours in (0, 23, -1):
        with pytest.raises(ConfigError, match="running sync"):
            checked_hours(hours, alone=False)


def test_history_says_what_each_commit_brought(table: Table) -> None:
    commits = history(table)
    assert [one.version for one in commits] == list(range(8, -1, -1))
    assert [(one.what, one.first_seq, one.last_seq) for one in commits[:-1]] == [
        ("sync", 100 * n + 1, 100 * n + 100) for n in range(7, -1, -1)
    ]
    assert sum(one.rows or 0 for one in commits) == len(rows_in(table))
    assert len(history(table, 3)) == 3


def test_the_watermark_outlives_checkpoints_of_the_log(bench: Bench, topic: str) -> None:
    """Delta puts its log together every hundred commits, and forgets the old ones later."""
    client = bench.client
    client.append(topic, [1, 2])
    client.delete_records(topic, before_seq=2)
    assert bench.sync(topic).error is None
    table = bench.table(topic)
    place = table.place
    table.delta.create_checkpoint()
    log = Path(table.lake.uri(table.name)) / "_delta_log"
    assert list(log.glob("*.checkpoint.parquet"))
    (log / f"{0:020d}.json").unlink()
    assert table.fresh().place == place
    client.append(topic, [3])
    assert bench.sync(topic).error is None
    assert accounted(table) == 3
