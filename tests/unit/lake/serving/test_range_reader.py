"""Ranges of seqs out of a lake, for readers of a topic: all of them accounted for, or an error."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest

from headrace.core.errors import LakeCorrupt, LakeUnavailable
from headrace.core.lru import LruMap
from headrace.core.settings import Settings
from headrace.lake.serving import lake_archive as cold
from headrace.lake.serving import range_reader as reading
from headrace.lake.serving.lake_archive import LakeArchive, open_lake_archive
from headrace.lake.serving.range_reader import RangeReader
from headrace.lake.tables.layout import Lake
from headrace.lake.tables.table import Table
from headrace.lake.tables.tasks import run_inline
from headrace.lake.writing.compact import compact
from headrace.lake.writing.vacuum import vacuum
from headrace.storage.archive import ArchivedPart, ArchivedTopic
from headrace.storage.segment.page_columns import PAGE_SCHEMA
from tests.support.lakes import Bench, gaps_in
from tests.support.sealed_topics import fill


def kept_of(table: Table) -> ArchivedTopic:
    return ArchivedTopic(*table.identity)


def seqs_of_parts(parts: list[ArchivedPart]) -> list[int]:
    return [seq for part in parts if part.rows for seq in part.rows.column("seq").to_pylist()]


def check(parts: list[ArchivedPart], first: int, last: int) -> None:
    """Every seq is in one part, and every row where its part says."""
    at = first
    for part in parts:
        assert part.first == at and part.last >= at
        assert (part.rows is None) == bool(part.reason)
        if part.rows is not None:
            assert part.rows.schema == PAGE_SCHEMA
            seqs = part.rows.column("seq").to_pylist()
            assert seqs == sorted(seqs) and all(part.first <= seq <= part.last for seq in seqs)
        at = part.last + 1
    assert at == last + 1


@pytest.fixture(params=[4_096, 7])
def small_parts(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> int:
    monkeypatch.setattr(reading, "PART_ROWS_MAX", request.param)
    return int(request.param)


@pytest.fixture
def table(bench: Bench, topic: str) -> Table:
    """Three syncs with deletes and losses before and between them."""
    client = bench.client
    client.put_topic(topic, {"cap_records": 60})
    fill(client, topic, 100)  # 1 to 40 are lost
    client.delete_records(topic, match="t1")
    assert bench.sync(topic).error is None
    fill(client, topic, 90, 101)  # of 101 to 190, some are lost
    assert bench.sync(topic).error is None
    client.delete_records(topic, before_seq=180)
    fill(client, topic, 10, 191)
    assert bench.sync(topic).error is None
    return bench.table(topic)


def test_every_range_is_accounted_for(table: Table, bench: Bench, small_parts: int) -> None:
    past, mark = RangeReader(bench.lake), table.place.watermark
    stored = table.delta.to_pyarrow_table().sort_by("seq")
    lost = {s for a, b, why in gaps_in(table) if why != "delete" for s in range(a, b + 1)}
    assert mark == 200 and lost and any(why == "delete" for _, _, why in gaps_in(table))
    for first, last in ((1, 200), (1, 1), (40, 41), (95, 160), (200, 200), (101, 130)):
        parts = list(past.parts(kept_of(table), first, last))
        check(parts, first, last)
        here = stored.filter((pa.compute.field("seq") >= first) & (pa.compute.field("seq") <= last))
        assert seqs_of_parts(parts) == here.column("seq").to_pylist()
        gone = {s for part in parts if part.reason for s in range(part.first, part.last + 1)}
        assert gone == lost & set(range(first, last + 1))
        rows = pa.Table.from_batches([part.rows for part in parts if part.rows], PAGE_SCHEMA)
        for name in ("tag", "node", "data"):
            assert rows.column(name).to_pylist() == here.column(name).to_pylist()
        assert rows.column("ts").to_pylist() == here.column("ts").to_pylist()
        assert rows.column("meta").to_pylist() == [
            None if meta is None else meta.encode() for meta in here.column("meta").to_pylist()
        ]


def test_files_that_are_replaced_and_removed_meanwhile(table: Table, bench: Bench) -> None:
    past, kept = RangeReader(bench.lake), kept_of(table)
    parts: Iterator[ArchivedPart] = past.parts(kept, 1, 200)
    found = [next(parts)]
    assert compact(table, run_inline) is not None
    old = {file.path for file in table.files()}
    vacuum(table.fresh(), 0)
    root = Path(table.lake.uri(table.name))
    assert old and not any((root / path).exists() for path in old)
    past._cache = LruMap(1)
    found += parts
    check(found, 1, 200)
    assert (
        seqs_of_parts(found)
        == table.fresh().delta.to_pyarrow_table().column("seq").sort().to_pylist()
    )


def test_a_longer_table_is_looked_for(table: Table, bench: Bench, topic: str) -> None:
    past, kept = RangeReader(bench.lake), kept_of(table)
    list(past.parts(kept, 200, 200))
    fill(bench.client, topic, 5, 201)
    with pytest.raises(LakeUnavailable, match=r"seq 201 .* ends at seq 200") as wrong:
        list(past.parts(kept, 199, 205))
    assert wrong.value.detail == {"topic": topic, "first_seq": 201}
    assert bench.sync(topic).error is None
    check(list(past.parts(kept, 199, 205)), 199, 205)


def test_a_file_that_is_gone_or_damaged(table: Table, bench: Bench, topic: str) -> None:
    kept, root = kept_of(table), Path(table.lake.uri(table.name))
    path = root / table.files()[-1].path
    content = path.read_bytes()
    path.unlink()
    with pytest.raises(LakeCorrupt, match=path.name) as wrong:
        list(RangeReader(bench.lake).parts(kept, 1, 200))
    assert wrong.value.detail["topic"] == topic and wrong.value.fix
    for at in (30, len(content) // 3, len(content) - 6):
        damaged = bytearray(content)
        damaged[at] ^= 0x10
        path.write_bytes(damaged)
        with pytest.raises(LakeCorrupt, match=path.name):
            list(RangeReader(bench.lake).parts(kept, 1, 200))
    path.write_bytes(content[: len(content) // 2])
    with pytest.raises(LakeCorrupt, match=path.name):
        list(RangeReader(bench.lake).parts(kept, 1, 200))
    path.write_bytes(content)
    past = RangeReader(bench.lake)
    check(list(past.parts(kept, 1, 200)), 1, 200)
    # Also when it is damaged after it was found whole, and is read again.
    for key in [key for key in past._cache if len(key) == 3]:
        past._cache.pop(key)
    path.write_bytes(bytes(byte ^ 0x10 for byte in content[:-1_000]) + content[-1_000:])
    with pytest.raises(LakeCorrupt, match=path.name):
        list(past.parts(kept, 1, 200))


def test_another_file_under_the_name_is_noticed(table: Table, bench: Bench) -> None:
    root = Path(table.lake.uri(table.name))
    one, other = (root / file.path for file in table.files()[:2])
    shutil.copyfile(one, other)
    with pytest.raises(LakeCorrupt, match="bytes"):
        list(RangeReader(bench.lake).parts(kept_of(table), 1, 200))


def test_a_gap_that_is_gone_is_an_error(table: Table, bench: Bench) -> None:
    shutil.rmtree(table.lake.uri(f"{table.name}.gaps"))
    with pytest.raises((LakeCorrupt, LakeUnavailable)) as wrong:
        list(RangeReader(bench.lake).parts(kept_of(table), 1, 200))
    assert wrong.value.detail["first_seq"] == 1
    assert wrong.value.fix


def test_a_table_that_is_not_there_or_of_somebody_else(table: Table, bench: Bench) -> None:
    kept = kept_of(table)
    past = RangeReader(bench.lake)
    for other in (kept._replace(epoch=99), kept._replace(topic="another")):
        with pytest.raises(LakeUnavailable, match="there is no table") as wrong:
            list(past.parts(other, 1, 200))
        assert "HEADRACE_LAKE" in wrong.value.fix
    for other in (kept._replace(directory="0" * 32), kept._replace(topic_id=99)):
        with pytest.raises(LakeUnavailable, match="holds"):
            list(past.parts(other, 1, 200))
    away = Path(bench.lake.root).with_name("away")
    os.rename(bench.lake.root, away)
    with pytest.raises(LakeUnavailable):
        list(RangeReader(bench.lake).parts(kept, 1, 200))
    os.rename(away, bench.lake.root)
    check(list(RangeReader(bench.lake).parts(kept, 1, 200)), 1, 200)


def test_what_is_kept_has_bounds(table: Table, bench: Bench, monkeypatch) -> None:
    monkeypatch.setattr(reading, "CACHE_BYTES_MAX", 1)
    monkeypatch.setattr(reading, "TABLES_MAX", 1)
    past, kept = RangeReader(bench.lake), kept_of(table)
    for _ in range(2):
        check(list(past.parts(kept, 1, 200)), 1, 200)
        assert len(past._cache) == 1 and len(past._tables) == 1
    assert len(RangeReader(Lake(bench.lake.root))._tables) == 0


def test_a_server_loads_nothing_of_it_before_it_is_read(tmp_path: Path) -> None:
    program = (
        "import sys, headrace.cli.serve\n"
        "from headrace.core.settings import Settings\n"
        "from headrace.lake.serving.lake_archive import open_lake_archive\n"
        f"assert open_lake_archive(Settings(data_dir={str(tmp_path)!r})) is not None\n"
        "print(sorted({'deltalake', 'pyarrow.parquet', 'pyspark'} & sys.modules.keys()))\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (0, "[]\n"), done.stderr


def test_a_server_without_the_package_has_no_lake(monkeypatch: pytest.MonkeyPatch) -> None:
    assert isinstance(open_lake_archive(Settings(lake="somewhere")), LakeArchive)
    monkeypatch.setattr(cold, "PACKAGE", "a_package_that_is_not_there")
    assert open_lake_archive(Settings()) is None
