"""Replay: the bytes of then, each once, however often it is cut off."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pyarrow as pa
import pytest

from headrace.client import Client
from headrace.lake import replay as replaying
from headrace.lake.compact import compact
from headrace.lake.feeding import chunks_of
from headrace.lake.replay import Wanted, jobs_of, replay
from headrace.lake.table import Table
from headrace.lake.tasks import run_inline
from tests.spark.sealing import rows_of
from tests.unit.lake.lakes import Bench, Died, rows_in

Record = tuple[Any, ...]


def records(client: Client, topic: str) -> list[Record]:
    """Kind, data, tag, node and meta of each record, in order."""
    found: list[Record] = []
    seq = 0
    while True:
        page = client.diff_arrow(topic, seq)
        for row in page.table.to_pylist():
            found.append((row["kind"], row["data"], row["tag"], row["node"], row["meta"]))
        if page.caught_up:
            return found
        seq = page.next_from_seq


@pytest.fixture
def table(bench: Bench, topic: str) -> Table:
    """Three files: bytes, JSON as it was spelt, and both."""
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


def go(bench: Bench, table: Table, runner: Any = run_inline, **how: Any) -> Any:
    in_order = how.pop("in_order", True)
    wanted = Wanted(f"{table.identity.topic}-again", **how)
    return replay(table, wanted, bench.connection, runner, in_order=in_order)


def test_a_replay_gives_the_original_records(
    bench: Bench, table: Table, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(replaying, "JOB_BYTES", 1)  # a job for each file
    done = go(bench, table)
    assert (done.rows, done.resumed, done.version) == (840, False, 3)
    assert records(bench.client, f"{topic}-again") == records(bench.client, topic)
    again = go(bench, table)
    assert (again.rows, again.resumed) == (840, False), "another replay is another one"
    assert bench.client.topic(f"{topic}-again").count == 2 * 840


def test_a_range(bench: Bench, table: Table, topic: str) -> None:
    assert go(bench, table, first=400, last=612).rows == 213
    assert records(bench.client, f"{topic}-again") == records(bench.client, topic)[399:612]


@pytest.mark.parametrize("after", [0, 1, 2])
def test_one_that_was_cut_off_goes_on(
    bench: Bench, table: Table, topic: str, after: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Even though the table has been synced and compacted since."""
    monkeypatch.setattr(replaying, "JOB_BYTES", 1)
    left = [after]

    def dies(work: Callable[[Any], Any], jobs: Sequence[Any]) -> list[Any]:
        found = []
        for job in jobs:
            if not left[0]:
                raise Died
            left[0] -= 1
            found += run_inline(work, [job])
        return found

    with pytest.raises(Died):
        go(bench, table, dies, in_order=False)
    before = records(bench.client, topic)
    bench.client.append(topic, ["later"])
    assert bench.sync(topic).error is None
    assert compact(table.fresh(), run_inline) is not None
    done = go(bench, table.fresh())
    assert (done.resumed, done.version, done.rows) == (True, 3, 840)
    assert records(bench.client, f"{topic}-again") == before
    assert rows_in(table)[-1]["data"] == b'"later"'


def test_jobs_follow_from_the_version(bench: Bench, table: Table) -> None:
    def files() -> list[list[str]]:
        version = Table(table.lake, table.name, 2)
        jobs = jobs_of(version, Wanted("x"), bench.connection, "id")
        assert sum(file.rows for job in jobs for file in job.files) == 800
        return [[file.path for file in job.files] for job in jobs]

    before = files()
    assert compact(table, run_inline) is not None
    assert files() == before


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
