"""Commits that a power loss cut off are put aside by the next sync; damage is left to people."""

from __future__ import annotations

from pathlib import Path

import pytest

from headrace.core.errors import NotReady
from headrace.lake.tables.cut_off import SUFFIX, CutOff, look_for_cut_off, put_aside
from headrace.lake.tables.layout import LOG
from headrace.lake.tables.table import Table
from headrace.lake.tables.tasks import run_inline
from headrace.lake.writing.verify import verify
from tests.support.lakes import Bench, Died, accounted, dies_at, rows_in


def log_of(bench: Bench, suffix: str = "") -> Path:
    (name,) = bench.lake.tables()
    return Path(bench.lake.root) / f"{name}{suffix}" / LOG


def commit(log: Path, version: int) -> Path:
    return log / f"{version:020d}.json"


def untold(bench: Bench, topic: str, *records: object) -> None:
    """Append, and commit it to the lake; the server does not hear of that."""
    bench.client.append(topic, list(records))
    with pytest.raises(Died):
        bench.sync(topic, at=dies_at("committed"))


def synced_whole(bench: Bench, topic: str, count: int) -> None:
    """The next sync is right, and every seq is there once."""
    result = bench.sync(topic)
    assert (result.error, result.reported) == (None, True)
    table = bench.table(topic)
    assert accounted(table) == count == len(rows_in(table))
    assert verify(table, run_inline, bench.client, bench.connection).ok
    assert bench.client.topic(topic).archived_seq == count


def lines_but_the_last(content: bytes) -> bytes:
    return content.rpartition(b"\n")[0]


@pytest.mark.parametrize(
    "cut",
    [
        lambda content: b"",
        lambda content: content[:100],
        lambda content: bytes(len(content)),
        lines_but_the_last,
    ],
    ids=["empty", "begun", "zeros", "whole-lines"],
)
def test_the_newest_commit(bench: Bench, topic: str, cut) -> None:  # type: ignore[no-untyped-def]
    bench.client.append(topic, [1, 2, 3])
    bench.sync(topic)
    untold(bench, topic, 4, 5)
    newest = commit(log_of(bench), 2)
    left = cut(newest.read_bytes())
    newest.write_bytes(left)
    synced_whole(bench, topic, 5)
    assert (newest.parent / f"{newest.name}{SUFFIX}").read_bytes() == left
    untold(bench, topic, 6)
    synced_whole(bench, topic, 6)


def test_what_stands_on_a_commit_that_was_cut_off(bench: Bench, topic: str) -> None:
    """Later commits name what it brought; the disk may have kept them and not it."""
    bench.client.append(topic, [1, 2, 3])
    bench.sync(topic)
    untold(bench, topic, 4, 5)
    untold(bench, topic, 6)
    log = log_of(bench)
    commit(log, 2).write_bytes(b"")
    synced_whole(bench, topic, 6)
    aside = sorted(path.name for path in log.glob(f"*{SUFFIX}"))
    assert aside == [f"{commit(log, version).name}{SUFFIX}" for version in (2, 3)]


def test_the_first_commit(bench: Bench, topic: str) -> None:
    """A table that was hardly made is made again, and its message says who does that."""
    untold(bench, topic, 1, 2)
    log = log_of(bench)
    commit(log, 1).unlink()
    commit(log, 0).write_bytes(b"")
    with pytest.raises(NotReady, match="after a power loss run `headrace lake sync`"):
        Table(bench.lake, log.parent.name)
    synced_whole(bench, topic, 2)


def test_the_gaps(bench: Bench, topic: str) -> None:
    """A commit of gaps that no commit of the table names yet."""
    bench.client.append(topic, [1, 2, 3])
    bench.sync(topic)
    bench.client.append(topic, [4, 5])
    bench.client.delete_records(topic, before_seq=5)
    with pytest.raises(Died):
        bench.sync(topic, at=dies_at("gaps committed"))
    commit(log_of(bench, ".gaps"), 1).write_bytes(b"")
    assert bench.sync(topic).error is None
    assert accounted(bench.table(topic)) == 5


@pytest.mark.parametrize("damaged", ["checkpoint", "pointer"])
def test_a_checkpoint(bench: Bench, topic: str, damaged: str) -> None:
    """It repeats what the commits say, and can be done without."""
    bench.client.append(topic, [1, 2, 3])
    bench.sync(topic)
    bench.table(topic).delta.create_checkpoint()
    untold(bench, topic, 4)
    log = log_of(bench)
    name = f"{1:020d}.checkpoint.parquet" if damaged == "checkpoint" else "_last_checkpoint"
    (log / name).write_bytes(b"")
    synced_whole(bench, topic, 4)
    assert (log / f"{name}{SUFFIX}").exists()


def test_what_the_server_was_told_of_is_never_put_aside(bench: Bench, topic: str) -> None:
    """It may have forgotten the records: that is damage, and what is left may be of use."""
    bench.client.append(topic, [1, 2, 3])
    bench.sync(topic)
    log = log_of(bench)
    newest = commit(log, 1)
    whole = newest.read_bytes()
    newest.write_bytes(whole[:50])
    result = bench.sync(topic)
    assert result.code == "lake_corrupt"
    assert newest.read_bytes() == whole[:50] and not list(log.glob(f"*{SUFFIX}"))
    newest.write_bytes(whole)
    synced_whole(bench, topic, 3)


def test_only_what_was_looked_at_is_put_aside(bench: Bench, topic: str) -> None:
    """Another sync may have mended the log and committed since."""
    untold(bench, topic, 1, 2)
    log = log_of(bench)
    content = commit(log, 1).read_bytes()
    commit(log, 1).write_bytes(b"")
    name = log.parent.name
    cut = look_for_cut_off(bench.lake, name)
    assert cut == CutOff(name, [commit(log, 1).name], 1)
    commit(log, 1).write_bytes(content)
    assert not put_aside(bench.lake, name, cut)
    assert commit(log, 1).read_bytes() == content
    assert look_for_cut_off(bench.lake, name) is None
