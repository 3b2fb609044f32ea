"""Replay: rows of a table become records of a topic, with the bytes, tags, nodes and metas of then.

The rule it owns: a replay that was cut off goes on as the same replay.  Which version of the table
it reads, and under which name it writes, is noted beside the table until it is done; files are
shared out by that version alone, so that each job is the same again, and stores nothing twice.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any, Final

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
from xxhash import xxh3_64_hexdigest

from headrace.core.clock import Random, SystemRandom
from headrace.lake.feeding import COLUMNS, send_rows
from headrace.lake.files import DataFile, put, read_rows
from headrace.lake.layout import Lake, new_batch
from headrace.lake.table import Table
from headrace.lake.tasks import Failed, Runner
from headrace.spark.options import Connection
from headrace.storage.fs import read_exact

# A job reads about so many bytes of files; another number would be other jobs.
JOB_BYTES: Final = 8 << 20
SEQ_MAX: Final = (1 << 63) - 1
_NOTES: Final = "_replays"


class Wanted(msgspec.Struct, frozen=True):
    """What to bring where: seqs `first` to `last` that fit a condition of Spark SQL."""

    to: str
    first: int = 1
    last: int = SEQ_MAX
    where: str | None = None

    @property
    def key(self) -> str:
        return xxh3_64_hexdigest(msgspec.json.encode(self))


class Note(msgspec.Struct, frozen=True):
    """A replay under way."""

    id: str
    version: int
    wanted: Wanted


class ReplayJob(msgspec.Struct, frozen=True):
    """Some files of the version."""

    lake: Lake
    table: str
    files: list[DataFile]
    wanted: Wanted
    connection: Connection
    write_id: str
    part: int


class Replayed(msgspec.Struct, frozen=True, kw_only=True):
    """What a replay brought; `resumed`: it went on with one that was cut off."""

    topic: str
    to: str
    id: str
    version: int
    rows: int
    resumed: bool


def replay(
    table: Table,
    wanted: Wanted,
    connection: Connection,
    runner: Runner,
    *,
    filtered: Callable[[list[ReplayJob], str], int] | None = None,
    in_order: bool = False,
    random: Random | None = None,
) -> Replayed:
    """Append what is wanted of a table to a topic.

    Jobs run side by side, so that only rows of one job keep their order, unless `in_order`.
    `filtered` runs jobs with a condition, which needs Spark's SQL; see `filtered_on`.
    """
    note, resumed = _noted(table, wanted, random or SystemRandom())
    source = Table(table.lake, table.name, note.version)
    jobs = jobs_of(source, wanted, connection, note.id)
    if wanted.where is not None:
        assert filtered is not None, "a condition needs Spark"
        rounds: Iterable[list[ReplayJob]] = [[job] for job in jobs] if in_order else [jobs]
        rows = sum(filtered(some, wanted.where) for some in rounds)
    elif in_order:
        rows = sum(_rows(runner(replay_part, [job])) for job in jobs)
    else:
        rows = _rows(runner(replay_part, jobs))
    _forget(table, wanted)
    return Replayed(
        topic=table.identity.topic,
        to=wanted.to,
        id=note.id,
        version=note.version,
        rows=rows,
        resumed=resumed,
    )


def _rows(answers: list[int | Failed[ReplayJob]]) -> int:
    total = 0
    for answer in answers:
        if isinstance(answer, Failed):
            raise answer.error
        total += answer
    return total


def jobs_of(table: Table, wanted: Wanted, connection: Connection, write_id: str) -> list[ReplayJob]:
    """The files shared out, in the order of their seqs: the same for the same version."""
    groups: list[list[DataFile]] = []
    for file in table.files():
        if not file.overlaps(wanted.first, wanted.last):
            continue
        if not groups or sum(one.size for one in groups[-1]) + file.size > JOB_BYTES:
            groups.append([])
        groups[-1].append(file)
    return [
        ReplayJob(table.lake, table.name, group, wanted, connection, write_id, part)
        for part, group in enumerate(groups)
    ]


def replay_part(job: ReplayJob) -> int:
    """Read some files, and append their rows."""
    return send_rows(job.connection, job.wanted.to, job.write_id, job.part, rows_of(job))


def rows_of(
    job: ReplayJob, columns: Iterable[str] = (*COLUMNS, "kind")
) -> Iterator[pa.RecordBatch]:
    """The rows of a job, in the order of their seqs, without the condition."""
    names = list(dict.fromkeys(["seq", *columns]))
    store = job.lake.store()
    first, last = job.wanted.first, job.wanted.last
    for file in job.files:
        for rows in read_rows(store, job.table, file.path, names):
            seqs: Any = rows.column("seq")
            if seqs[0].as_py() < first or seqs[-1].as_py() > last:
                after: Any = pc.greater_equal(seqs, pa.scalar(first, pa.int64()))
                before: Any = pc.less_equal(seqs, pa.scalar(last, pa.int64()))
                rows = rows.filter(pc.and_(after, before))
            if rows.num_rows:
                yield rows


# What is noted while a replay runs


def _path(table: Table, wanted: Wanted) -> str:
    return f"{table.name}/{_NOTES}/{wanted.key}.json"


def _noted(table: Table, wanted: Wanted, random: Random) -> tuple[Note, bool]:
    """The replay to go on with, or a new one; and whether it is an old one."""
    store, path = table.lake.store(), _path(table, wanted)
    try:
        opened = store.open_read(path)
        try:
            found = msgspec.json.decode(read_exact(opened, opened.size(), 0), type=Note)
        finally:
            opened.close()
        if found.wanted == wanted:
            return found, True
    except FileNotFoundError:
        pass
    note = Note(f"replay-{table.name}-{new_batch(random)}", table.version, wanted)
    put(store, path, msgspec.json.encode(note))
    return note, False


def _forget(table: Table, wanted: Wanted) -> None:
    table.lake.store().delete(_path(table, wanted))
