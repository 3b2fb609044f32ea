"""Data files: days, order, statistics, and bytes that are not what they were."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from headrace.core.clock import SeededRandom
from headrace.core.errors import NotReady, SegmentCorrupt
from headrace.lake.tables import files as lake_files
from headrace.lake.tables.columns import NAMES, file_schema
from headrace.lake.tables.files import DataFile, DayFiles, by_day, read_rows, read_whole
from headrace.lake.tables.table import statistics
from headrace.storage.files.store import open_store

DAY_MS = 86_400_000
START_MS = 1_767_225_600_000  # the first of January 2026


def rows(first: int, times_ms: list[int]) -> pa.RecordBatch:
    count = len(times_ms)
    columns: dict[str, Any] = {
        "seq": pa.array(range(first, first + count), pa.int64()),
        "ts": pa.array([ms * 1000 for ms in times_ms], pa.timestamp("us", "UTC")),
        "data": pa.array([b'{"n":%d}' % n for n in range(count)], pa.binary()),
        "kind": pa.array(["json"] * count),
    }
    arrays = [columns.get(name, pa.nulls(count, pa.utf8())) for name in NAMES]
    return pa.RecordBatch.from_arrays(arrays, schema=file_schema(None))


def write(root: Path, *batches: pa.RecordBatch) -> list[DataFile]:
    store = open_store(str(root))
    files = DayFiles(store, "7-t", "batch", file_schema(None), SeededRandom(7))
    for batch in batches:
        files.write(batch)
    return files.close()


def test_a_file_is_one_day_and_says_what_it_holds(tmp_path: Path) -> None:
    times = [START_MS + 1, START_MS + 5, START_MS + DAY_MS - 1, START_MS + DAY_MS]
    found = write(tmp_path, rows(1, times), rows(5, [START_MS + DAY_MS]))
    assert [(f.day, f.rows, f.first_seq, f.last_seq) for f in found] == [
        ("2026-01-01", 3, 1, 3),
        ("2026-01-02", 2, 4, 5),
    ]
    assert statistics(found[0]) == (
        '{"numRecords": 3, "minValues": {"seq": 1, "ts": "2026-01-01T00:00:00.001Z"}, '
        '"maxValues": {"seq": 3, "ts": "2026-01-01T23:59:59.999Z"}, '
        '"nullCount": {"seq": 0, "ts": 0}}'
    )
    for file in found:
        path = tmp_path / "7-t" / file.path
        assert path.parent.name == f"day={file.day}"
        assert path.stat().st_size == file.size
        meta = pq.read_metadata(path)
        assert meta.row_group(0).column(0).compression == "ZSTD"
        assert meta.row_group(0).sorting_columns[0].column_index == 0
        assert "day" not in meta.schema.names
        kind = json.loads(meta.schema.column(1).logical_type.to_json())
        assert (kind["Type"], kind["isAdjustedToUTC"], kind["timeUnit"]) == (
            "Timestamp", True, "microseconds"
        )  # fmt: skip
    assert len(list((tmp_path / "7-t").rglob("*"))) == 4, "two days, two files, nothing else"


def test_rows_come_back(tmp_path: Path) -> None:
    batches = [rows(1 + 100 * n, [START_MS + n] * 100) for n in range(5)]
    (file,) = write(tmp_path, *batches)
    store = open_store(str(tmp_path))
    found = pa.Table.from_batches(list(read_rows(store, "7-t", file.path)))
    assert found.cast(file_schema(None)) == pa.Table.from_batches(batches)
    few = pa.Table.from_batches(list(read_rows(store, "7-t", file.path, ["seq"])))
    assert few.column_names == ["seq"]
    with pytest.raises(FileNotFoundError):
        list(read_rows(store, "7-t", "day=2026-01-01/none.parquet"))


def test_a_large_file_is_closed_and_row_groups_are_bounded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lake_files, "ROW_GROUP_ROWS", 150)
    monkeypatch.setattr(lake_files, "FILE_BYTES_MAX", 5_000)
    found = write(tmp_path, *(rows(1 + 100 * n, [START_MS] * 100) for n in range(40)))
    assert len(found) > 1
    assert sum(file.rows for file in found) == 4_000
    assert [a.last_seq + 1 for a in found[:-1]] == [b.first_seq for b in found[1:]]
    meta = pq.read_metadata(tmp_path / "7-t" / found[0].path)
    assert meta.num_row_groups > 1
    assert meta.row_group(0).num_rows == 200


def test_a_flipped_byte_is_noticed(tmp_path: Path) -> None:
    (file,) = write(tmp_path, rows(1, [START_MS] * 1_000))
    path, store = tmp_path / "7-t" / file.path, open_store(str(tmp_path))
    whole = path.read_bytes()
    assert sum(batch.num_rows for batch in read_whole(store, "7-t", file.path, file.size)) == 1_000
    for at in range(0, len(whole), 97):
        content = bytearray(whole)
        content[at] ^= 1 << at % 8
        path.write_bytes(content)
        with pytest.raises(SegmentCorrupt, match="cannot be read"):
            list(read_whole(store, "7-t", file.path, file.size))
    # Readers of some columns notice it in the pages they read.
    content = bytearray(whole)
    content[len(content) // 3] ^= 1
    path.write_bytes(content)
    with pytest.raises(SegmentCorrupt, match="cannot be read"):
        list(read_rows(store, "7-t", file.path))


def test_a_file_that_is_cut_off_or_gone(tmp_path: Path) -> None:
    (file,) = write(tmp_path, rows(1, [START_MS] * 1_000))
    path, store = tmp_path / "7-t" / file.path, open_store(str(tmp_path))
    whole = path.read_bytes()
    for content in (whole[:-1], whole + b"x", b""):
        path.write_bytes(content)
        with pytest.raises(SegmentCorrupt, match="bytes, not"):
            list(read_whole(store, "7-t", file.path, file.size))
    path.unlink()
    with pytest.raises(SegmentCorrupt) as caught:
        list(read_whole(store, "7-t", file.path, file.size))
    assert caught.value.detail["reason"] == "file missing"


def test_a_place_without_room_is_named(tmp_path: Path) -> None:
    (tmp_path / "7-t").write_text("not a directory")
    with pytest.raises(NotReady, match="could not be written"):
        write(tmp_path, rows(1, [START_MS]))


def test_days_that_go_back_are_kept_apart() -> None:
    days = by_day(rows(1, [START_MS, START_MS + DAY_MS, START_MS, START_MS]))
    assert [(day, part.num_rows) for day, part in days] == [
        ("2026-01-01", 1),
        ("2026-01-02", 1),
        ("2026-01-01", 2),
    ]
    assert list(by_day(rows(1, []))) == []
