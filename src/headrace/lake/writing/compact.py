"""Compaction: many small files of a day become few large ones, with the same rows.

The rules it owns: only files that lie next to each other by their seqs are put together, so that
files still do not overlap; nothing else changes.  Of two compactions at once one is refused.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Sequence
from typing import Final

import msgspec
import pyarrow as pa
from pyroaring import BitMap64

from headrace.core.clock import Random, SystemRandom
from headrace.core.errors import DataLost, HeadraceError, LakeConflict
from headrace.lake.tables.columns import file_schema
from headrace.lake.tables.files import FILE_BYTES_MAX, DataFile, DayFiles, as_stored, read_whole
from headrace.lake.tables.layout import NOTE_BATCH, NOTE_ROWS, Lake, new_batch
from headrace.lake.tables.seq_sets import add_rows
from headrace.lake.tables.table import Table
from headrace.lake.tables.tasks import Failed, Runner

# What one commit puts together, about: what is done again after a crash.
COMMIT_BYTES_MAX: Final = 4 << 30


class MergeJob(msgspec.Struct, frozen=True):
    """Files of one day, in the order of their seqs, that become one."""

    lake: Lake
    table: str
    batch: str
    value_ddl: str | None
    files: list[DataFile]
    stream: bool = False  # the table has the columns of one


class Merged(msgspec.Struct, frozen=True):
    """What became of them; `rows` are the seqs, as a 64-bit Roaring bitmap."""

    files: list[DataFile]
    rows: bytes


class Compacted(msgspec.Struct, frozen=True, kw_only=True):
    """What a compaction did to one table."""

    topic: str
    table: str
    files_before: int
    files_after: int
    rows: int
    bytes: int


def groups_of(files: Iterable[DataFile], target: int = FILE_BYTES_MAX) -> list[list[DataFile]]:
    """Which files to put together: neighbours of one day, each small, together about `target`.

    >>> day = "2026-01-31"
    >>> small = [DataFile(str(n), 10, 5, day, 5 * n + 1, 5 * n + 5, 0, 0) for n in range(5)]
    >>> [[file.path for file in group] for group in groups_of(small, target=30)]
    [['0', '1', '2'], ['3', '4']]
    """
    groups: list[list[DataFile]] = []
    sizes: list[int] = []
    latest: dict[str | None, int] = {}  # the open group of a day
    for file in sorted(files, key=lambda one: (one.day or "", one.first_seq)):
        at = latest.get(file.day)
        if file.size > target // 2:
            latest.pop(file.day, None)
        elif at is not None and sizes[at] + file.size <= target:
            groups[at].append(file)
            sizes[at] += file.size
        else:
            latest[file.day] = len(groups)
            groups.append([file])
            sizes.append(file.size)
    return [group for group in groups if len(group) > 1]


def merge_files(job: MergeJob) -> Merged:
    """Read files and write their rows into one."""
    store = job.lake.store()
    schema = file_schema(job.value_ddl, job.stream)
    written = DayFiles(store, job.table, job.batch, schema, SystemRandom())
    present = BitMap64()
    for rows in _in_order(job, schema):
        add_rows(present, rows.column("seq"))
        written.write(rows)
    return Merged(written.close(), present.serialize())


def _in_order(job: MergeJob, schema: pa.Schema) -> Iterable[pa.RecordBatch]:
    store = job.lake.store()
    for file in job.files:
        # All of it is checked: nothing that has changed since may become a good file.
        for rows in read_whole(store, job.table, file.path, file.size):
            yield as_stored(rows, schema)


def compact(
    table: Table, runner: Runner, random: Random | None = None, target: int = FILE_BYTES_MAX
) -> Compacted | None:
    """Put the small files of a table together; None when there is nothing to do."""
    before = table.files()
    groups = _bounded(groups_of(before, target))
    if not groups:
        return None
    batch = new_batch(random or SystemRandom())
    ddl, stream = table.value_ddl, table.is_stream
    jobs = [MergeJob(table.lake, table.name, batch, ddl, group, stream) for group in groups]
    answers: list[Merged | Failed[MergeJob]] = runner(merge_files, jobs)
    new = [file for answer in answers if isinstance(answer, Merged) for file in answer.files]
    old = [file for group in groups for file in group]
    rows = sum(file.rows for file in new)
    committing = False
    try:
        for group, answer in zip(groups, answers, strict=True):
            _check(table, group, answer)
        committing = True
        table.commit(
            add=new,
            remove=old,
            marks={table.identity.compact_app_id: table.compactions + 1},
            note={NOTE_BATCH: batch, NOTE_ROWS: rows},
            changes_data=False,
        )
    except HeadraceError as error:
        if not committing or isinstance(error, LakeConflict):
            with contextlib.suppress(HeadraceError):  # what stays there vacuum removes
                _discard(table, new, committing)
        raise
    return Compacted(
        topic=table.identity.topic,
        table=table.name,
        files_before=len(before),
        files_after=len(before) - len(old) + len(new),
        rows=rows,
        bytes=sum(file.size for file in new),
    )


def _bounded(groups: list[list[DataFile]]) -> list[list[DataFile]]:
    found, size = [], 0
    for group in groups:
        if size >= COMMIT_BYTES_MAX:
            break
        found.append(group)
        size += sum(file.size for file in group)
    return found


def _check(table: Table, group: Sequence[DataFile], answer: Merged | Failed[MergeJob]) -> None:
    """The rows are those of the files, as the log has them."""
    if isinstance(answer, Failed):
        raise answer.error
    seqs = BitMap64.deserialize(answer.rows)
    rows = sum(file.rows for file in group)
    bounds = (group[0].first_seq, max(file.last_seq for file in group))
    if len(seqs) != rows or (seqs.min(), seqs.max()) != bounds:
        raise DataLost(
            f"{len(group)} files of {table.name} should hold {rows} rows from seq {bounds[0]} to"
            f" {bounds[1]}, and hold {len(seqs)}",
            fix="run `headrace lake verify`, which names what is wrong",
            detail={"table": table.name},
        )


def _discard(table: Table, files: Sequence[DataFile], committing: bool) -> None:
    now = table.fresh()
    if committing and now.compactions == table.compactions:
        return  # nobody else has committed: an answer was lost, and ours may yet arrive
    now.discard(files)
