"""One topic's table: where it is, its files, and commits that count once.

The rule it owns: a commit is made on the state that was looked at.  Delta refuses it when another
writer has committed under the same app id since, and that is a `LakeConflict`; nothing is tried
again on a newer state.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterable, Iterator, Sequence
from datetime import UTC, datetime
from typing import Any, Final, NamedTuple

import pyarrow as pa
from deltalake import DeltaTable, Schema
from deltalake.exceptions import CommitFailedError, DeltaError, TableNotFoundError
from deltalake.transaction import AddAction, CommitProperties, RemoveAction, Transaction

from headrace.core.clock import SystemClock
from headrace.core.errors import ConfigError, HeadraceError, LakeConflict, NotFound, NotReady
from headrace.lake.tables.columns import CONTENT_TYPE, DAY, VALUE, VARIANT, table_schema
from headrace.lake.tables.files import DataFile
from headrace.lake.tables.layout import (
    NOTE_ACTIONS,
    PROPERTY_VALUE,
    Identity,
    Lake,
    identity_of,
)

# How far back a commit of ours is looked for by its batch.
COMMITS_SEARCHED_MAX: Final = 100


class TableExtent(NamedTuple):
    """Where a table is: every seq to `watermark` is in it, with the gaps of that version."""

    watermark: int
    gaps_version: int | None


class Table:
    """A table at one version; `fresh` looks again."""

    def __init__(self, lake: Lake, name: str, version: int | None = None) -> None:
        self.lake = lake
        self.name = name
        with delta_errors(name):
            self.delta = DeltaTable(lake.uri(name), version, storage_options=lake.options())
            self.properties: dict[str, str] = dict(self.delta.metadata().configuration)
        self.identity = identity_of(self.properties, name)

    def fresh(self) -> Table:
        """The same table as it is now."""
        return Table(self.lake, self.name)

    def discard(self, files: Iterable[DataFile]) -> None:
        """Remove those of the files that this version does not name."""
        kept = {file.path for file in self.files()}
        store = self.lake.store()
        for file in files:
            if file.path not in kept:
                store.delete(f"{self.name}/{file.path}")

    @property
    def version(self) -> int:
        return self.delta.version()

    @property
    def value_ddl(self) -> str | None:
        """The fields of the column `value`, if there is one."""
        return self.properties.get(PROPERTY_VALUE)

    @property
    def is_stream(self) -> bool:
        """Whether it has the columns of a stream; no table gets or loses them later."""
        return any(field.name == CONTENT_TYPE for field in self.delta.schema().fields)

    @property
    def place(self) -> TableExtent:
        found = self.delta.transaction_version(self.identity.app_id) or 0
        return TableExtent(found, self.delta.transaction_version(self.identity.gaps_app_id))

    @property
    def compactions(self) -> int:
        return self.delta.transaction_version(self.identity.compact_app_id) or 0

    def files(self) -> list[DataFile]:
        """All files of this version, in the order of their seqs."""
        return files_of(self.delta)

    def commit(
        self,
        *,
        add: Sequence[DataFile],
        remove: Sequence[DataFile] = (),
        marks: dict[str, int],
        note: dict[str, Any],
        changes_data: bool = True,
    ) -> None:
        """Make files visible, and others not, all at once; `marks` are app ids and versions."""
        with delta_errors(self.name):
            self.delta.create_write_transaction(
                [*adds(add, changes_data), *removes(remove, changes_data)],
                "append",
                self.delta.schema(),
                partition_by=[DAY],
                commit_properties=properties(marks, note, len(add) + len(remove)),
            )
            self.lake.settle(self.name)


def open_table(lake: Lake, identity: Identity) -> Table | None:
    """The table of a topic, if there is one."""
    try:
        return _expected(Table(lake, identity.table), identity)
    except NotFound:
        return None


def create_table(
    lake: Lake, identity: Identity, value_ddl: str | None, stream: bool = False
) -> Table:
    """The table of a topic, made if it is not there; of two at once one makes it."""
    there = open_table(lake, identity)
    if there is not None:
        return there
    lake.store()  # makes the directory
    with delta_errors(identity.table):
        DeltaTable.create(
            lake.uri(identity.table),
            _delta_schema(value_ddl, stream),
            mode="ignore",
            partition_by=[DAY],
            name=identity.topic,
            configuration=identity.properties(value_ddl),
            storage_options=lake.options(),
            raise_if_key_not_exists=False,
        )
    return _expected(Table(lake, identity.table), identity)


def _delta_schema(value_ddl: str | None, stream: bool) -> Schema:
    schema = Schema.from_arrow(table_schema(value_ddl, stream))
    if value_ddl != VARIANT:
        return schema
    document = json.loads(schema.to_json())
    document["fields"].append({"name": VALUE, "type": "variant", "nullable": True, "metadata": {}})
    return Schema.from_json(json.dumps(document))


def _expected(table: Table, identity: Identity) -> Table:
    found = table.identity
    if found.agrees(identity):
        return table
    what = (
        f"topic {found.topic!r} (id {found.topic_id}) of another data directory"
        if found[:3] == identity[:3]
        else f"topic {found.topic!r} (id {found.topic_id}), not {identity.topic!r} (id"
        f" {identity.topic_id})"
    )
    raise ConfigError(
        f"{table.name} holds {what}",
        fix="give each data directory a lake of its own",
        detail={"table": table.name},
    )


def adds(files: Sequence[DataFile], changes_data: bool = True) -> list[AddAction]:
    """What Delta's log says of new files."""
    now = SystemClock().wall_ms()
    return [
        AddAction(
            file.path,
            file.size,
            {} if file.day is None else {DAY: file.day},
            now,
            changes_data,
            statistics(file),
        )
        for file in files
    ]


def removes(files: Sequence[DataFile], changes_data: bool = True) -> list[RemoveAction]:
    """What Delta's log says of files that are not part of the table any more."""
    now = SystemClock().wall_ms()
    return [
        RemoveAction(
            path=file.path,
            deletion_timestamp=now,
            data_change=changes_data,
            partition_values={} if file.day is None else {DAY: file.day},
            size=file.size,
        )
        for file in files
    ]


def statistics(file: DataFile) -> str:
    """As JSON; times are in whole milliseconds, which is what a record has."""
    if file.day is None:
        return json.dumps({"numRecords": file.rows})
    return json.dumps(
        {
            "numRecords": file.rows,
            "minValues": {"seq": file.first_seq, "ts": time_text(file.min_ts)},
            "maxValues": {"seq": file.last_seq, "ts": time_text(file.max_ts)},
            "nullCount": {"seq": 0, "ts": 0},
        }
    )


def time_text(ms: int) -> str:
    """
    >>> time_text(1767225600001)
    '2026-01-01T00:00:00.001Z'
    """
    at = datetime.fromtimestamp(ms // 1000, UTC)
    return f"{at:%Y-%m-%dT%H:%M:%S}.{ms % 1000:03d}Z"


def files_of(delta: DeltaTable) -> list[DataFile]:
    """The files of a version by their statistics, in the order of their seqs."""
    actions = pa.table(delta.get_add_actions(flatten=True)).to_pylist()
    found = [_file_of(action) for action in actions]
    return sorted(found, key=lambda file: (file.first_seq, file.path))


def _file_of(action: dict[str, Any]) -> DataFile:
    day = action.get(f"partition.{DAY}")
    low, high = action.get("min.ts"), action.get("max.ts")
    return DataFile(
        action["path"],
        action["size_bytes"],
        action["num_records"] or 0,
        None if day is None else day.isoformat(),
        action.get("min.seq") or 0,
        action.get("max.seq") or 0,
        _ms(low),
        _ms(high),
    )


def _ms(at: datetime | None) -> int:
    return 0 if at is None else round(at.timestamp() * 1000)


def properties(marks: dict[str, int], note: dict[str, Any], files: int) -> CommitProperties:
    """Never tried again on a newer state than the one that was looked at.

    It says how many files and marks it has, so that one that was cut off can be told.
    """
    return CommitProperties(
        custom_metadata=note | {NOTE_ACTIONS: files + len(marks)},
        app_transactions=[Transaction(app_id, version) for app_id, version in marks.items()],
    )


@contextlib.contextmanager
def delta_errors(table: str) -> Iterator[None]:
    """What Delta raises, as errors of ours."""
    try:
        yield
    except CommitFailedError as error:
        raise LakeConflict(
            f"another writer has committed to {table} since this one looked: {error}",
            fix="nothing was changed; one `headrace lake` command per topic at a time is enough",
            detail={"table": table},
        ) from None
    except TableNotFoundError:
        raise NotFound(
            f"there is no table {table} in this lake",
            fix="run `headrace lake sync` first, or name another lake with --lake",
            detail={"table": table},
        ) from None
    except DeltaError as error:
        raise _unusable(table, error) from None
    except OSError as error:
        raise _unusable(table, error) from None


def _unusable(table: str, error: Exception) -> HeadraceError:
    return NotReady(
        f"the table {table} cannot be used: {' '.join(str(error).split())[:300]}",
        fix="check the place of the lake, its room and its permissions, then run this again;"
        " after a power loss run `headrace lake sync`, which puts aside what was cut off",
        detail={"table": table},
    )
