"""The gap table: the seqs that are no rows, written before the commit that counts on them.

The rule it owns: a topic's table names the version of the gap table that belongs to it.  What a
writer that died, or lost, has put on top of that version is taken back by the next one.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import pyarrow as pa
from deltalake import DeltaTable, Schema
from deltalake.transaction import AddAction, RemoveAction

from headrace.core.clock import Random
from headrace.core.errors import Internal
from headrace.lake.tables.columns import GAPS
from headrace.lake.tables.files import DataFile, parquet_writer, put, read_whole
from headrace.lake.tables.layout import (
    GAPS_SUFFIX,
    NOTE_BATCH,
    NOTE_GAPS,
    Identity,
    Lake,
    file_name,
)
from headrace.lake.tables.seq_sets import Gap
from headrace.lake.tables.table import (
    COMMITS_SEARCHED_MAX,
    adds,
    delta_errors,
    files_of,
    properties,
    removes,
)

# With this many files the next commit makes one of all.
FILES_MAX: Final = 32


def gaps_name(identity: Identity) -> str:
    return identity.table + GAPS_SUFFIX


def read_gaps(lake: Lake, identity: Identity, version: int | None) -> pa.Table:
    """The gaps of a version, in the order of their seqs; none where there is no version."""
    if version is None:
        return GAPS.empty_table()
    name = gaps_name(identity)
    with delta_errors(name):
        delta = DeltaTable(lake.uri(name), version, storage_options=lake.options())
        files = files_of(delta)
    return _rows_of(lake, name, files).sort_by("first")


def _rows_of(lake: Lake, name: str, files: Sequence[DataFile]) -> pa.Table:
    store = lake.store()
    batches = [rows for file in files for rows in read_whole(store, name, file.path, file.size)]
    return pa.Table.from_batches([rows.cast(GAPS) for rows in batches], schema=GAPS)


def record_gaps(
    lake: Lake,
    identity: Identity,
    base: int | None,
    gaps: Sequence[Gap],
    *,
    to_seq: int,
    batch: str,
    now_ms: int,
    random: Random,
) -> int:
    """Put gaps on top of version `base`; returns the version that has exactly both."""
    name = gaps_name(identity)
    delta = _open(lake, identity, name)
    with delta_errors(name):
        known = files_of(delta)
        kept = [] if base is None else files_of(_at(lake, name, base))
    rows = _table_of(gaps, to_seq, now_ms)
    if len(kept) >= FILES_MAX:
        rows = pa.concat_tables([_rows_of(lake, name, kept), rows]).sort_by("first")
        kept = []
    new = _write(lake, name, batch, rows, random)
    there, wanted = {file.path for file in known}, {file.path for file in kept}
    actions: list[AddAction | RemoveAction] = [
        *adds([new, *(file for file in kept if file.path not in there)]),
        *removes([file for file in known if file.path not in wanted]),
    ]
    with delta_errors(name):
        delta.create_write_transaction(
            actions,
            "append",
            delta.schema(),
            commit_properties=properties(
                {identity.app_id: to_seq},
                {NOTE_BATCH: batch, NOTE_GAPS: len(gaps)},
                len(actions),
            ),
        )
        found = _version_of(_at(lake, name, None), batch)
        # The table names this version next, and must not know of one that a power loss took.
        lake.settle(name)
    return found


def _at(lake: Lake, name: str, version: int | None) -> DeltaTable:
    return DeltaTable(lake.uri(name), version, storage_options=lake.options())


def _open(lake: Lake, identity: Identity, name: str) -> DeltaTable:
    with delta_errors(name):
        return DeltaTable.create(
            lake.uri(name),
            Schema.from_arrow(GAPS),
            mode="ignore",
            name=f"gaps of {identity.topic}",
            # A version that a table names must be there however old it is.
            configuration=identity.properties(None) | {"delta.enableExpiredLogCleanup": "false"},
            storage_options=lake.options(),
            raise_if_key_not_exists=False,
        )


def _table_of(gaps: Sequence[Gap], to_seq: int, now_ms: int) -> pa.Table:
    count = len(gaps)
    columns: list[Any] = [
        pa.array([gap.first for gap in gaps], pa.int64()),
        pa.array([gap.last for gap in gaps], pa.int64()),
        pa.array([gap.reason for gap in gaps], pa.utf8()),
        pa.repeat(pa.scalar(to_seq, pa.int64()), count),
        pa.repeat(pa.scalar(now_ms * 1_000, pa.int64()), count).cast(GAPS.field("recorded").type),
    ]
    return pa.Table.from_arrays(columns, schema=GAPS)


def _write(lake: Lake, name: str, batch: str, rows: pa.Table, random: Random) -> DataFile:
    sink = pa.BufferOutputStream()
    with parquet_writer(sink, GAPS) as writer:
        writer.write_table(rows)
    content = sink.getvalue().to_pybytes()
    path = file_name(batch, random, content)
    put(lake.store(), f"{name}/{path}", content)
    return DataFile(path, len(content), rows.num_rows, None, 0, 0, 0, 0)


def _version_of(delta: DeltaTable, batch: str) -> int:
    """Which commit was that of a batch: another writer may have come since."""
    for entry in delta.history(COMMITS_SEARCHED_MAX):
        if entry.get(NOTE_BATCH) == batch:
            return int(entry["version"])
    raise Internal(
        "the commit of the gaps is not in the log of their table", fix="run the same command again"
    )
