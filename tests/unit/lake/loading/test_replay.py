"""Replay: the bytes of then, each once, however often it is cut off."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

from headrace.core.errors import DataLost
from headrace.lake.loading import producers as feeding
from headrace.lake.loading import replay as replaying
from headrace.lake.loading.producers import chunks_of
from headrace.lake.loading.replay import Wanted, parts_of, replay
from headrace.lake.tables.table import Table
from headrace.lake.tables.tasks import run_inline
from headrace.lake.writing.compact import compact
from headrace.lake.writing.vacuum import vacuum
from tests.support.lakes import Bench, Died, records, rows_in
from tests.support.sealed_topics import rows_of


@pytest.fixture
def table(bench: Bench, topic: str, monkeypatch: pytest.MonkeyPatch) -> Table:
    """Three files, each a part: bytes, JSON as it was spelt, and both."""
    monkeypatch.setattr(replaying, "PART_BYTES", 1)
    client = bench.client
    client.append_arrow(topic, rows_of(1, 500))
    assert bench.sync(topic).error is None
    client.append_arrow(topic, pa.table({"data": ['{"a":  1.50}', "null", '"é"'] * 100}))
    assert bench.sync(topic).error is None
    for n in range(10):
        client.append(topic, [{"n": n}])
        client.append_arrow(topic, rows_of(n, 3))
    assert bench.sync(topic).error is None
    return bench.table(topic)


def go(bench: Bench, table: Table, runner: Any = None, **how: Any) -> Any:
    settings = {name: how.pop(name) for name in ("in_order", "restart", "told") if name in how}
    wanted = Wanted(f"{table.identity.topic}-again", **how)
    return replay(table, wanted, bench.connection, runner, **{"in_order": True, **settings})


@pytest.mark.parametrize("runner", [None, run_inline])
def test_a_replay_gives_the_original_records(
    bench: Bench, table: Table, topic: str, runner: Any
) -> None:
    to = f"{topic}-again"
    done = go(bench, table, runner)
    assert (done.rows, done.resumed, done.version) == (840, False, 3)
    assert records(bench.client, to) == records(bench.client, topic)
    again = go(bench, table, runner)
    assert (again.rows, again.resumed) == (840, False), "another replay is another one"
    assert bench.client.topic(to).count == 2 * 840


def test_a_range(bench: Bench, table: Table, topic: str) -> None:
    assert go(bench, table, first=400, last=612).rows == 213
    assert records(bench.client, f"{topic}-again") == records(bench.client, topic)[399:612]


def dies_after(parts: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """The sender ends once, when it has sent so many parts."""
    left, real = [parts], feeding._Feeding.run

    def run(self: Any) -> None:
        left[0] -= 1
        if left[0] == -1:
            raise Died
        real(self)

    monkeypatch.setattr(feeding._Feeding, "run", run)


@pytest.mark.parametrize("after", [0, 1, 2])
def test_one_that_was_cut_off_goes_on(
    bench: Bench, table: Table, topic: str, after: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Even though the table has been synced and compacted since."""
    dies_after(after, monkeypatch)
    with pytest.raises(Died):
        go(bench, table)
    before = records(bench.client, topic)
    bench.client.append(topic, ["later"])
    assert bench.sync(topic).error is None
    assert compact(table.fresh(), run_inline) is not None
    told: list[Any] = []
    done = go(bench, table.fresh(), told=told.append)
    assert (done.resumed, done.version, done.rows + done.rows_before) == (True, 3, 840)
    assert done.rows_before == [0, 500, 800][after]
    assert [note.version for note in told] == [3]
    assert records(bench.client, f"{topic}-again") == before
    assert rows_in(table)[-1]["data"] == b'"later"'


def test_one_whose_files_are_gone(
    bench: Bench, table: Table, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It cannot go on, and says what to do; then the same command begins anew."""
    dies_after(1, monkeypatch)
    with pytest.raises(Died):
        go(bench, table)
    assert compact(table.fresh(), run_inline) is not None
    vacuum(table.fresh(), 0)
    with pytest.raises(DataLost, match="--restart"):
        go(bench, table.fresh())
    done = go(bench, table.fresh(), restart=True)
    assert (done.rows, done.resumed) == (840, False)
    assert bench.client.topic(f"{topic}-again").count == 500 + 840


def test_parts_follow_from_the_version(table: Table) -> None:
    def files() -> list[str]:
        parts = parts_of(Table(table.lake, table.name, 2), Wanted("x"), "id")
        assert sum(file.rows for part in parts for file in part.files) == 800
        return [file.path for part in parts for file in part.files]

    before = files()
    assert compact(table, run_inline) is not None
    assert files() == before


def test_parts_are_not_too_many(table: Table, monkeypatch: pytest.MonkeyPatch) -> None:
    parts = parts_of(table, Wanted("x"), "id")
    assert len(parts) == 3
    assert parts[1].place(2) == f"seq 503 of {table.name}"
    monkeypatch.setattr(replaying, "PARTS_MAX", 1)
    (whole,) = parts_of(table, Wanted("x"), "id")
    assert whole.place(502) == parts[1].place(2)


def test_a_chunk_is_of_one_kind() -> None:
    kinds = ["json"] * 3 + ["bytes"] * 2 + ["json"]
    rows = pa.record_batch(
        {
            "kind": kinds,
            "data": pa.array([b"1"] * 6, pa.binary()),
            **{name: pa.nulls(6, pa.utf8()) for name in ("tag", "node", "meta")},
        }
    )
    for cut in (1, 2, 3, 6):
        batches = [rows.slice(at, cut) for at in range(0, 6, cut)]
        chunks = [(c.rows.num_rows, c.rows["data"].type) for c in chunks_of(batches, "t")]
        assert chunks == [(3, pa.utf8()), (2, pa.binary()), (1, pa.utf8())]
