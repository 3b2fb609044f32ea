"""Verification: a lake that is right passes, and each way to be wrong is found and named."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from headrace.core.clock import SystemRandom
from headrace.lake.accounts import Gap
from headrace.lake.compact import compact
from headrace.lake.gaps import record_gaps
from headrace.lake.table import Table
from headrace.lake.tasks import run_inline
from headrace.lake.verify import Verified, verify
from tests.spark.sealing import fill, seal
from tests.unit.lake.lakes import Bench


@pytest.fixture
def table(bench: Bench, topic: str) -> Table:
    """Three files, with deletes before and after they were written."""
    fill(bench.client, topic, 2_000)
    seal(bench.client, topic)
    bench.client.delete_records(topic, match="t4")
    for first in (2_001, 2_101):
        assert bench.sync(topic).error is None
        fill(bench.client, topic, 100, first)
    assert bench.sync(topic).error is None
    bench.client.delete_records(topic, match="t5")
    return bench.table(topic)


@pytest.fixture
def look(bench: Bench, table: Table) -> Callable[[], Verified]:
    return lambda: verify(table.fresh(), run_inline, bench.client, bench.connection)


def test_a_lake_that_is_right(table: Table, look: Callable[[], Verified], topic: str) -> None:
    found = look()
    assert found.ok, found.findings
    assert (found.topic, found.watermark, found.files, found.source) == (
        topic, 2_200, 3, "compared"
    )  # fmt: skip
    assert found.rows + found.gap_seqs == 2_200
    assert 0 < found.compared < found.rows, "what was deleted since cannot be compared"
    assert compact(table.fresh(), run_inline) is not None
    again = look()
    assert again.ok
    assert (again.files, again.compared) == (1, found.compared)


def test_without_a_source(bench: Bench, table: Table, look: Callable[[], Verified]) -> None:
    alone = verify(table, run_inline)
    assert (alone.ok, alone.source, alone.compared) == (True, "skipped", 0)
    bench.client.delete_topic(table.identity.topic)
    assert (look().ok, look().source) == (True, "deleted")
    bench.client.append(table.identity.topic, [1])
    assert (look().ok, look().source) == (True, "deleted")


def path_of(table: Table, at: int) -> Path:
    return Path(table.lake.uri(table.name)) / table.files()[at].path


def kinds(found: Verified) -> set[str]:
    assert not found.ok
    return {finding.what for finding in found.findings}


def test_a_file_that_is_gone(table: Table, look: Callable[[], Verified]) -> None:
    path_of(table, 1).unlink()
    assert kinds(look()) == {"file missing", "missing", "not in the table"}


def test_a_flipped_byte(table: Table, look: Callable[[], Verified]) -> None:
    path = path_of(table, 0)
    content = bytearray(path.read_bytes())
    content[len(content) // 3] ^= 1
    path.write_bytes(content)
    assert "damaged" in kinds(look())


def rewritten(table: Table, at: int, change: Callable[[pa.Table], pa.Table]) -> None:
    """A file with other rows under the same name, and whole."""
    path = path_of(table, at)
    # Not by its name: `day=…` in the path would become a column.
    rows = pq.ParquetFile(path).read()
    pq.write_table(change(rows), path)


def replaced(rows: pa.Table, name: str, at: int, value: object) -> pa.Table:
    values = rows[name].to_pylist()
    values[at] = value
    column = rows.column_names.index(name)
    return rows.set_column(column, rows.schema.field(name), pa.array(values, rows[name].type))


@pytest.mark.parametrize(
    ("name", "value"), [("data", b"other"), ("tag", None), ("meta", "null"), ("kind", "json")]
)
def test_another_value(
    table: Table, look: Callable[[], Verified], name: str, value: object
) -> None:
    at = 41
    rewritten(table, 1, lambda rows: replaced(rows, name, at, value))
    seq = pq.ParquetFile(path_of(table, 1)).read()["seq"][at].as_py()
    found = look()
    assert [(f.what, f.first, f.last, f.detail) for f in found.findings] == [
        ("differs", seq, seq, name)
    ]


def test_rows_that_are_missing_twice_or_elsewhere(
    table: Table, look: Callable[[], Verified]
) -> None:
    path = path_of(table, 1)
    whole = path.read_bytes()
    rewritten(table, 1, lambda rows: rows.slice(0, 50))
    assert kinds(look()) == {"missing", "statistics", "not in the table"}
    path.write_bytes(whole)
    rewritten(table, 1, lambda rows: pa.concat_tables([rows, rows.slice(0, 1)]))
    assert "order" in kinds(look())
    path.write_bytes(whole)
    rewritten(table, 1, lambda rows: replaced(rows, "seq", 0, 7))
    assert {"row twice", "missing", "statistics"} <= kinds(look())
    path.write_bytes(whole)
    later = pq.ParquetFile(path).read()["ts"][-1].as_py().replace(year=2030)
    rewritten(table, 1, lambda rows: replaced(rows, "ts", rows.num_rows - 1, later))
    assert {"day"} <= kinds(look())
    path.write_bytes(whole)
    assert look().ok


def test_files_that_no_commit_should_name(table: Table, look: Callable[[], Verified]) -> None:
    first = table.files()[0]
    table.commit(add=[msgspec.structs.replace(first, path=_copy(table, first.path))],
                 marks={}, note={})  # fmt: skip
    assert "row twice" in kinds(look())


def _copy(table: Table, path: str) -> str:
    source = Path(table.lake.uri(table.name)) / path
    target = source.with_name("copy.parquet")
    target.write_bytes(source.read_bytes())
    return f"{source.parent.name}/copy.parquet"


@pytest.mark.parametrize(
    ("base", "gap", "what"),
    [
        (True, Gap(1, 1, "cap"), {"row and gap"}),
        (True, Gap(4, 4, "cap"), {"gap twice"}),
        (True, Gap(2_201, 2_300, "cap"), {"beyond the watermark"}),
        (False, Gap(4, 4, "delete"), {"missing"}),
    ],
)
def test_gaps_that_are_wrong(
    table: Table, look: Callable[[], Verified], base: bool, gap: Gap, what: set[str]
) -> None:
    identity = table.identity
    version = record_gaps(
        table.lake,
        identity,
        table.place.gaps_version if base else None,
        [gap],
        to_seq=2_200,
        batch="wrong",
        now_ms=1,
        random=SystemRandom(),
    )
    table.commit(add=[], marks={identity.gaps_app_id: version}, note={})
    assert kinds(look()) == what


def test_a_watermark_that_is_too_high(table: Table, look: Callable[[], Verified]) -> None:
    table.commit(add=[], marks={table.identity.app_id: 2_210}, note={})
    found = look()
    assert [(f.what, f.first, f.last) for f in found.findings] == [("missing", 2_201, 2_210)]


def test_what_the_source_never_lost_is_missed(
    table: Table, look: Callable[[], Verified], bench: Bench
) -> None:
    """Rows that were recorded as gaps, and that the server has all the same."""
    seqs = pq.ParquetFile(path_of(table, 1)).read()["seq"].to_pylist()
    table.commit(add=[], remove=[table.files()[1]], marks={}, note={})
    version = record_gaps(
        table.lake, table.identity, table.place.gaps_version,
        [Gap(seq, seq, "delete") for seq in seqs], to_seq=2_200, batch="b", now_ms=1,
        random=SystemRandom(),
    )  # fmt: skip
    table.fresh().commit(add=[], marks={table.identity.gaps_app_id: version}, note={})
    assert verify(table.fresh(), run_inline).ok
    assert kinds(look()) == {"not in the table"}
