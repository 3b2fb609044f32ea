"""Sync: what a source does meanwhile: it evicts, deletes, moves files, restarts, is another one."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from headrace.api.records import Draft
from headrace.client import Client
from headrace.core.errors import Internal, LakeConflict, NotReady
from headrace.lake.tables.layout import Lake
from headrace.lake.tables.table import Table
from headrace.lake.tables.tasks import run_inline
from headrace.lake.writing.sync import SILENT_MAX, Sync
from headrace.lake.writing.verify import verify
from headrace.spark.options import Connection
from headrace.testing.process import ServerProcess
from tests.support.lakes import ODD_JSON, Bench, accounted, gaps_in, rows_in
from tests.support.sealed_topics import fill, seal

Run = Callable[[Callable[[Any], Any], Sequence[Any]], list[Any]]


def after(change: Callable[[], None]) -> Run:
    """Reads what was planned when something has happened since."""

    def runner(work: Callable[[Any], Any], jobs: Sequence[Any]) -> list[Any]:
        change()
        return run_inline(work, jobs)

    return runner


def checked(bench: Bench, topic: str) -> Table:
    table = bench.table(topic)
    found = verify(table, run_inline, bench.client, bench.connection)
    assert found.ok, found.findings
    assert accounted(table) == bench.client.topic(topic).head_seq
    return table


def test_a_cap_evicts_while_a_sync_reads_from_memory(unsealed: Bench, topic: str) -> None:
    client = unsealed.client
    client.append(topic, list(range(100)))

    def evict() -> None:
        client.put_topic(topic, {"cap_records": 10})
        client.append(topic, [1])

    result = unsealed.sync(topic, runner=after(evict))
    assert (result.error, result.rows, result.gap_seqs) == (None, 9, 91)
    assert gaps_in(unsealed.table(topic)) == [(1, 91, "cap")]
    assert unsealed.sync(topic).error is None
    checked(unsealed, topic)


def test_a_cap_evicts_while_a_sync_reads_files(bench: Bench, topic: str) -> None:
    """Its files are pinned, so what was planned is read, gone or not."""
    client = bench.client
    fill(client, topic, 2_000)
    seal(client, topic)

    def evict() -> None:
        client.put_topic(topic, {"cap_records": 10})
        client.append(topic, [1])

    result = bench.sync(topic, runner=after(evict))
    assert (result.error, result.rows, result.gap_seqs) == (None, 2_000, 0)
    assert bench.sync(topic).rows == 1
    checked(bench, topic)


def test_files_go_while_a_sync_waits(bench: Bench, topic: str) -> None:
    """A pin lapses, and the files of the plan are removed: what is left is planned again."""
    client = bench.client
    fill(client, topic, 3_000)
    seal(client, topic)

    def runner(work: Callable[[Any], Any], jobs: Sequence[Any]) -> list[Any]:
        files = [one.file for job in jobs for one in job.part.slices]
        for pin in {pin for job in jobs for pin in job.part.pins}:
            client.release_pin(pin.topic, pin.pin)
        client.put_topic(topic, {"cap_records": 100})
        client.append(topic, [1])
        client.delete_records(topic, before_seq=2_951)
        while any(Path(file.location).exists() for file in files):
            client.append("sealing", [1])
        return run_inline(work, jobs)

    result = bench.sync(topic, runner=runner)
    assert (result.error, result.watermark, result.rows) == (None, 3_000, 50)
    assert bench.sync(topic).error is None
    table = checked(bench, topic)
    # However many rows of gaps that took.
    *caps, deleted = gaps_in(table)
    assert [first for first, _, _ in caps] == [1, *(last + 1 for _, last, _ in caps[:-1])]
    assert caps[-1][1:] == (2_901, "cap") and {reason for _, _, reason in caps} == {"cap"}
    assert deleted == (2_902, 2_950, "delete")


def test_deletes_while_a_sync_reads(bench: Bench, unsealed: Bench, topic: str) -> None:
    for one in (bench, unsealed):
        fill(one.client, topic, 1_500)
        if one is bench:
            seal(one.client, topic)
        delete = lambda client=one.client: client.delete_records(topic, match="t4")  # noqa: E731
        assert one.sync(topic, runner=after(delete)).error is None
        table = checked(one, topic)
        assert {reason for _, _, reason in gaps_in(table)} <= {"delete"}


@pytest.mark.parametrize("kill", [True, pytest.param(False, marks=pytest.mark.long)])
def test_the_server_restarts_between_syncs(tmp_path: Path, kill: bool) -> None:
    """No seq of a table may ever mean another record, whatever a topic forgets."""
    lake = Lake(str(tmp_path / "lake"))
    server = ServerProcess(tmp_path / "data")
    classes = ("ephemeral", "memory", "disk", "fsync")
    try:
        with Client(server.url) as client:
            for name in classes:
                client.put_topic(name, {"durability": name})
                client.append(name, ["before"] * 3)
                assert Bench(server, client, lake).sync(name).watermark == 3
        server.kill() if kill else server.stop()
        server = ServerProcess(tmp_path / "data")
        with Client(server.url) as client:
            bench = Bench(server, client, lake)
            for name in classes:
                client.append(name, ["after"] * 2)
                assert bench.sync(name).error is None
                rows = [row["data"] for row in rows_in(checked(bench, name))]
                kept = [] if name == "ephemeral" and len(rows) == 2 else [b'"before"'] * 3
                assert rows == [*kept, *[b'"after"'] * 2]
    finally:
        server.kill()


def test_another_data_directory_is_refused(tmp_path: Path) -> None:
    """Its topics have the same names, ids, epochs and seqs, and are others all the same."""
    lake = Lake(str(tmp_path / "lake"))
    for name, count, refused in (("one", 3, False), ("two", 5, True)):
        with ServerProcess(tmp_path / name) as server, Client(server.url) as client:
            client.append("orders", [name] * count)
            result = Bench(server, client, lake).sync("orders")
            assert (result.code == "config_error") == refused, result
            if refused:
                assert "another data directory" in (result.error or "")
                assert client.topic("orders").archived_seq == 0
    (table,) = [Table(lake, name) for name in lake.tables()]
    assert accounted(table) == 3
    assert {row["data"] for row in rows_in(table)} == {b'"one"'}


# Data


def test_every_kind_of_data(bench: Bench, topic: str) -> None:
    client = bench.client
    odd = [b"", b"\x00", bytes(range(256)), b"{", b"\xff" * 900_000, b"\n", "é".encode()]
    client.append_arrow(topic, pa.table({"data": pa.array(odd, pa.binary())}))
    values: list[Any] = [None, "", {}, [], 0, "\x00", {"a": None}, "x" * 900_000, [[[[]]]]]
    client.append(topic, [Draft(value, tag="", node="é", meta={"a": [1]}) for value in values])
    for ddl in (None, "a STRING, n BIGINT"):
        lake = Lake(f"{bench.lake.root}-{ddl is None}")
        one = Bench(bench.server, client, lake)
        assert one.sync(topic, value_ddl=ddl).error is None
        rows = rows_in(checked(one, topic))
        assert [row["data"] for row in rows[: len(odd)]] == odd
        assert [row["kind"] for row in rows] == ["bytes"] * len(odd) + ["json"] * len(values)
        assert {(row["tag"], row["node"], row["meta"]) for row in rows[len(odd) :]} == {
            (client.diff(topic, len(odd)).records[0].tag, "é", '{"a":[1]}')
        }
        if ddl is not None:
            assert rows[len(odd) + 2]["value"] == {"a": None, "n": None}
            assert rows[3]["value"] is None


DDL = (
    "n BIGINT, a STRING, at TIMESTAMP, d DECIMAL(20, 4), l ARRAY<BIGINT>, m MAP<STRING, BIGINT>, "
    "f FLOAT"
)


def test_no_json_stops_a_table_with_fields(bench: Bench, topic: str) -> None:
    """What does not fit is null, between records that do; each of them is a row."""
    mixed = [one for bad in ODD_JSON for one in (b'{"n":7}', bad)]
    # JSON that the server has checked, and bytes that look like it, or like none.
    bytes_ = [*mixed, b'{"a": "\\ud800"}', b'{"n":', b"\xff{}"]
    bench.client.append_arrow(topic, pa.table({"data": pa.array(map(bytes.decode, mixed))}))
    bench.client.append_arrow(topic, pa.table({"data": pa.array(bytes_, pa.binary())}))
    assert bench.sync(topic, value_ddl=DDL).error is None
    found = rows_in(checked(bench, topic))
    assert [row["data"] for row in found] == mixed + bytes_
    assert {row["value"]["n"] for row in found[0 : 2 * len(mixed) : 2]} == {7}
    assert [row["value"] for row in found[-3:]] == [None] * 3


# Answers that are lost


@pytest.mark.parametrize("error", [LakeConflict, NotReady])
@pytest.mark.parametrize("arrived", [True, False])
def test_a_commit_whose_answer_is_lost(
    bench: Bench,
    topic: str,
    error: type[LakeConflict | NotReady],
    arrived: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It may be there, or arrive later: its files have to stay."""
    bench.client.append(topic, [1, 2, 3])
    commit = Table.commit
    late: list[Callable[[], None]] = []

    def loses(table: Table, **how: Any) -> None:
        late.append(lambda: commit(table, **how))
        if arrived:
            late.pop()()
        raise error("no answer came")

    with monkeypatch.context() as patched:
        patched.setattr(Table, "commit", loses)
        assert bench.sync(topic).code == error.code
    for arrives in late:
        arrives()
    assert bench.sync(topic).error is None
    checked(bench, topic)


def test_a_topic_that_no_task_survives_does_not_stop_the_others(bench: Bench, topic: str) -> None:
    """Their parts are read together, and Spark gives up all of them."""
    names = [f"{topic}-{n}" for n in range(4)]
    for name in names:
        bench.client.append(name, [1, 2])

    def runner(work: Callable[[Any], Any], jobs: Sequence[Any]) -> list[Any]:
        if any(job.topic == names[1] for job in jobs):
            raise Internal("Spark failed: a worker was killed")
        return run_inline(work, jobs)

    results = bench.writer(runner=runner).run(names)
    assert [result.code for result in results] == [None, "internal", None, None]
    assert [result.watermark for result in results] == [2, 0, 2, 2]
    assert bench.sync(names[1]).error is None
    for name in names:
        assert accounted(bench.table(name)) == 2


def test_a_server_that_is_away_is_not_asked_for_each_topic(tmp_path: Path) -> None:
    asked: list[str] = []

    class Counting(Client):
        def segments(self, topic: str) -> Any:
            asked.append(topic)
            return super().segments(topic)

    url = "http://127.0.0.1:9"
    with Counting(url, deadline_ms=0) as client:
        sync = Sync(client, Connection(url), Lake(str(tmp_path)), run_inline)
        results = sync.run([f"t{n}" for n in range(20)])
    assert {result.code for result in results} == {"unreachable"}
    assert len(asked) == SILENT_MAX
