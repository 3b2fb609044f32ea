"""Verification: a lake that is right passes, and each way to be wrong is found and named."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from headrace.core.clock import SystemRandom
from headrace.core.errors import SegmentCorrupt
from headrace.lake.tables.gaps import gaps_name, record_gaps
from headrace.lake.tables.layout import file_name
from headrace.lake.tables.seq_sets import Gap
from headrace.lake.tables.table import Table
from headrace.lake.tables.tasks import run_inline
from headrace.lake.writing.compact import compact
from headrace.lake.writing.verify import Verified, verify
from tests.support.lakes import Bench
from tests.support.sealed_topics import fill, seal


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


def flip(path: Path, at: int) -> None:
    content = bytearray(path.read_bytes())
    content[at] ^= 1
    path.write_bytes(content)


def test_a_file_that_is_gone(table: Table, look: Callable[[], Verified]) -> None:
    path_of(table, 1).unlink()
    assert kinds(look()) == {"file missing", "missing", "not in the table"}


def test_a_flipped_byte(table: Table, look: Callable[[], Verified]) -> None:
    """In its rows, in the statistics of its footer, in the length at its end."""
    path = path_of(table, 0)
    whole = path.read_bytes()
    for part in (0.3, 0.6, 0.9, 0.999):
        flip(path, int(len(whole) * part))
        assert "damaged" in kinds(look())
        with pytest.raises(SegmentCorrupt):
            compact(table.fresh(), run_inline)  # it must not become a good file
        path.write_bytes(whole)
    assert look().ok


@pytest.mark.parametrize("how", ["gone", "flipped", "no table"])
def test_gaps_that_cannot_be_read(table: Table, look: Callable[[], Verified], how: str) -> None:
    root = Path(table.lake.uri(gaps_name(table.identity)))
    (path, *_) = root.glob("*.parquet")
    if how == "gone":
        path.unlink()
    elif how == "flipped":
        flip(path, path.stat().st_size - 50)
    else:
        shutil.rmtree(root)
    what = "damaged" if how == "flipped" else "file missing"
    assert kinds(look()) == {what, "missing"}


def test_another_file_of_the_same_name(table: Table, look: Callable[[], Verified]) -> None:
    path_of(table, 1).write_bytes(path_of(table, 2).read_bytes())
    assert kinds(look()) >= {"damaged", "missing"}


def rewritten(
    table: Table, at: int, change: Callable[[pa.Table], pa.Table], **said: Any
) -> Callable[[], None]:
    """Let a file have other rows, and a log that knows of it; returns what takes it back."""
    table = table.fresh()
    old = table.files()[at]
    root = Path(table.lake.uri(table.name))
    sink = pa.BufferOutputStream()
    # Not by its name: `day=…` in the path would become a column.
    pq.write_table(change(pq.ParquetFile(root / old.path).read()), sink)
    content = sink.getvalue().to_pybytes()
    path = f"day={old.day}/{file_name('b', SystemRandom(), content)}"
    (root / path).write_bytes(content)
    new = msgspec.structs.replace(old, **({"path": path, "size": len(content)} | said))
    table.commit(add=[new], remove=[old], marks={}, note={})
    return lambda: table.fresh().commit(add=[old], remove=[new], marks={}, note={})


def replaced(rows: pa.Table, name: str, at: int, value: object) -> pa.Table:
    values = rows[name].to_pylist()
    values[at] = value
    column = rows.column_names.index(name)
    return rows.set_column(column, rows.schema.field(name), pa.array(values, rows[name].type))


def seq_at(table: Table, file: int, row: int) -> int:
    return int(pq.ParquetFile(path_of(table.fresh(), file)).read()["seq"][row].as_py())


def test_another_value(table: Table, look: Callable[[], Verified]) -> None:
    seq = seq_at(table, 1, 41)
    wrong = {"data": b"other", "tag": None, "meta": "null", "kind": "json"}
    for name, value in wrong.items():
        back = rewritten(table, 1, partial(replaced, name=name, at=41, value=value))
        assert [(f.what, f.first, f.last, f.detail) for f in look().findings] == [
            ("differs", seq, seq, name)
        ]
        back()
    assert look().ok


def test_a_field_that_was_made_wrong(bench: Bench, topic: str) -> None:
    records = [{"id": n, "at": "2026-01-31T00:00:00Z", "tags": ["a"], "odd": n} for n in range(50)]
    bench.client.append(topic, [*records, {"id": "no number"}, [1]])
    assert bench.sync(topic, value_ddl="id BIGINT, at TIMESTAMP, tags ARRAY<STRING>").error is None
    table = bench.table(topic)
    good = verify(table, run_inline, bench.client, bench.connection)
    assert (good.ok, good.compared) == (True, 52), good.findings
    rewritten(table, 0, lambda rows: replaced(rows, "value", 7, None))
    found = verify(table.fresh(), run_inline, bench.client, bench.connection)
    assert [(f.what, f.first, f.detail) for f in found.findings] == [("differs", 8, "value")]


def test_rows_that_are_missing_twice_or_elsewhere(
    table: Table, look: Callable[[], Verified]
) -> None:
    def one_less(rows: pa.Table) -> pa.Table:
        return pa.concat_tables([rows.slice(0, 50), rows.slice(51)])

    dropped = seq_at(table, 1, 50)
    back = rewritten(table, 1, one_less)
    found = look()
    assert kinds(found) == {"missing", "statistics", "not in the table"}
    assert {(f.first, f.last) for f in found.findings if f.what != "statistics"} == {
        (dropped, dropped)
    }
    back()
    back = rewritten(table, 1, lambda rows: pa.concat_tables([rows, rows.slice(0, 1)]))
    assert kinds(look()) == {"order", "row twice", "statistics"}
    back()
    back = rewritten(table, 1, lambda rows: replaced(rows, "seq", 0, 7))
    assert {"row twice", "missing", "statistics"} <= kinds(look())
    back()
    later = pq.ParquetFile(path_of(table, 1)).read()["ts"][-1].as_py().replace(year=2030)
    back = rewritten(table, 1, lambda rows: replaced(rows, "ts", rows.num_rows - 1, later))
    assert {"day", "statistics", "differs"} <= kinds(look())
    back()
    assert look().ok


def test_a_log_that_says_something_else(table: Table, look: Callable[[], Verified]) -> None:
    """Readers leave files out by what the log says, so that has to be right."""
    for name in ("rows", "first_seq", "last_seq", "min_ts", "max_ts", "size"):
        wrong = getattr(table.files()[1], name) + 1
        back = rewritten(table, 1, lambda rows: rows, **{name: wrong})
        assert kinds(look()) >= {"damaged" if name == "size" else "statistics"}
        back()
    assert look().ok


def test_files_that_no_commit_should_name(table: Table, look: Callable[[], Verified]) -> None:
    """Every row of a file once more, in another file."""
    first = table.files()[0]
    root = Path(table.lake.uri(table.name))
    content = (root / first.path).read_bytes()
    path = f"day={first.day}/{file_name('b', SystemRandom(), content)}"
    (root / path).write_bytes(content)
    table.commit(add=[msgspec.structs.replace(first, path=path)], marks={}, note={})
    assert kinds(look()) == {"row twice"}


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
