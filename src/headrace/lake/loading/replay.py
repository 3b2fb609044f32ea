"""Replay: rows of a table become records of a topic, with their first bytes, tags, nodes, metas.

The rule it owns: a replay that was cut off goes on as the same replay.  Which version of the table
it reads, and under which name it writes, is noted beside the table until it is done; files are
shared out by that version alone, so that the parts are the same again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final, Protocol

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
from xxhash import xxh3_64_hexdigest

from headrace.core.clock import Random, SystemClock, SystemRandom
from headrace.core.errors import DataLost
from headrace.lake.loading.parallel_sender import Watch, bring
from headrace.lake.loading.producers import COLUMNS, Fed, LoadTarget, Reading, target_of
from headrace.lake.tables.columns import CONTENT_TYPE, HEADERS
from headrace.lake.tables.files import DataFile, put, read_rows, shared_out
from headrace.lake.tables.layout import Lake, new_batch
from headrace.lake.tables.table import Table
from headrace.lake.tables.tasks import Runner
from headrace.spark.options import Connection
from headrace.storage.fs import read_exact

# How many bytes of files a part has, unless that made too many parts.  Each part is a producer of
# the topic for as long as the topic lives, so other numbers would be other parts.
PART_BYTES: Final = 8 << 20
PARTS_MAX: Final = 4_096
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
    """A replay under way; `started` is in milliseconds."""

    id: str
    version: int
    wanted: Wanted
    started: int = 0


class TablePart(msgspec.Struct, frozen=True):
    """Some files of the version, one after the other."""

    run: str
    number: int
    lake: Lake
    table: str
    files: list[DataFile]
    first: int
    last: int

    @property
    def size(self) -> int:
        return sum(file.size for file in self.files)

    def rows(self, reading: Reading) -> Iterator[pa.RecordBatch]:
        for file, rows in self.columns((*COLUMNS, "kind")):
            yield rows
            reading.read(file.size * rows.num_rows // max(1, file.rows))

    def columns(self, names: Sequence[str]) -> Iterator[tuple[DataFile, pa.RecordBatch]]:
        """The rows in the order of their seqs, with the file that they are of."""
        wanted, store = list(dict.fromkeys(["seq", *names])), self.lake.store()
        for file in self.files:
            try:
                for rows in read_rows(store, self.table, file.path, wanted):
                    kept = self._within(file, rows)
                    if kept.num_rows:
                        yield file, kept
            except FileNotFoundError:
                raise DataLost(
                    f"{self.table}/{file.path} is not there any more: `lake vacuum` removes what "
                    "only old versions need",
                    fix="begin again on the newest version, with --restart, into an empty topic",
                    detail={"file": file.path},
                ) from None

    def _within(self, file: DataFile, rows: pa.RecordBatch) -> pa.RecordBatch:
        if self.first <= file.first_seq and file.last_seq <= self.last:
            return rows
        seqs: Any = rows.column("seq")
        after: Any = pc.greater_equal(seqs, pa.scalar(self.first, pa.int64()))
        before: Any = pc.less_equal(seqs, pa.scalar(self.last, pa.int64()))
        return rows.filter(pc.and_(after, before))

    def place(self, row: int) -> str:
        for _, rows in self.columns(()):
            if row < rows.num_rows:
                return f"seq {rows.column(0)[row].as_py()} of {self.table}"
            row -= rows.num_rows
        return f"the end of {self.table}/{self.files[-1].path}"


class Replayed(msgspec.Struct, frozen=True, kw_only=True):
    """What a replay brought, and what not; `resumed`: it went on with one that was cut off."""

    topic: str
    to: str
    id: str
    version: int
    rows: int
    rows_before: int
    resumed: bool
    left_out: list[str] = []  # columns of the table that no append to a topic can carry


class Filtered(Protocol):
    """Sends the rows of parts that fit a condition; see `replay_filter.py`."""

    def check(self, where: str) -> None: ...
    def __call__(self, target: LoadTarget, parts: Sequence[TablePart], where: str) -> Fed: ...


def replay(
    table: Table,
    wanted: Wanted,
    connection: Connection,
    runner: Runner | None = None,
    *,
    filtered: Filtered | None = None,
    in_order: bool = False,
    restart: bool = False,
    workers: int = 1,
    told: Callable[[Note], None] | None = None,
    watch: Watch | None = None,
    random: Random | None = None,
) -> Replayed:
    """Append what is wanted of a table to a topic.

    Parts go side by side, so that only rows of one part keep their order, unless `in_order`.
    Without a runner they are sent from here, by `workers` threads.  `filtered` runs parts with a
    condition, which needs Spark's SQL.  `told` hears of an earlier replay that this one continues;
    `restart` begins another instead.
    """
    if wanted.where is not None:
        assert filtered is not None, "a condition needs Spark"
        filtered.check(wanted.where)
    if restart:
        _forget(table, wanted)
    note, resumed = _noted(table, wanted, random or SystemRandom())
    if resumed and told is not None:
        told(note)
    source = Table(table.lake, table.name, note.version)
    parts = parts_of(source, wanted, note.id)
    target = target_of(connection, wanted.to)
    if wanted.where is not None and filtered is not None:
        fed = Fed()
        for some in [[part] for part in parts] if in_order else [parts]:
            fed.add(filtered(target, some, wanted.where))
    else:
        fed = bring(target, parts, runner, workers=workers, in_order=in_order, watch=watch)
    _forget(table, wanted)
    return Replayed(
        topic=table.identity.topic,
        to=wanted.to,
        id=note.id,
        version=note.version,
        rows=fed.rows,
        rows_before=fed.rows_before,
        resumed=resumed,
        left_out=left_out(source),
    )


def left_out(table: Table) -> list[str]:
    """Columns of a table that a replay leaves behind: a topic has none, a stream its own type."""
    return [CONTENT_TYPE, HEADERS] if table.is_stream else []


def parts_of(table: Table, wanted: Wanted, run: str) -> list[TablePart]:
    """The files shared out, in the order of their seqs: the same for the same version."""
    files = [file for file in table.files() if file.overlaps(wanted.first, wanted.last)]
    most = max(PART_BYTES, -(-sum(file.size for file in files) // PARTS_MAX))
    return [
        TablePart(run, number, table.lake, table.name, group, wanted.first, wanted.last)
        for number, group in enumerate(shared_out(files, most))
    ]


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
    name = f"replay-{table.name}-{new_batch(random)}"
    note = Note(name, table.version, wanted, SystemClock().wall_ms())
    put(store, path, msgspec.json.encode(note))
    return note, False


def _forget(table: Table, wanted: Wanted) -> None:
    table.lake.store().delete(_path(table, wanted))
