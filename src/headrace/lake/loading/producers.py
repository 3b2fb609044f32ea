"""Rows back into a topic, each once: the parts of a run, each a producer of the topic.

The rule it owns: which chunks a part has, and so the number of each, follows from its rows alone.
So a part that runs again is known by its numbers, and sends what is not stored yet.  Nothing else
says what is stored: if the topic has lost it, or was created again, it is sent again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from functools import partial
from itertools import groupby, pairwise
from operator import itemgetter
from typing import Any, Final, Protocol

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from headrace.api.records import Appended
from headrace.client import Client
from headrace.core.errors import (
    Forbidden,
    HeadraceError,
    PlanNotDeterministic,
    RowsRefused,
    TopicNotFound,
)
from headrace.spark.connection import connect
from headrace.spark.options import Connection
from headrace.spark.writing.chunks import CHUNK_BYTES_MAX, CHUNK_ROWS_MAX, Chunk, Cutter
from headrace.spark.writing.sending import Sender, Sending

# A chunk has a number if one of its first rows is surely taken: JSON, or bytes, of a few.
_SURE_ROWS: Final = 8
_SURE_BYTES: Final = 1 << 10

# How many of the rows that were left out are named.
BAD_NAMED_MAX: Final = 100

JSON: Final = "json"
COLUMNS: Final = ("data", "tag", "node", "meta")  # of a record that is written


class LoadTarget(msgspec.Struct, frozen=True):
    """Where rows go; `skip_bad`: one that no topic takes is left out, and told."""

    connection: Connection
    topic: str
    skip_bad: bool = False
    create: bool = True


def target_of(connection: Connection, topic: str, *, skip_bad: bool = False) -> LoadTarget:
    """Do not create a topic again that existed and was deleted meanwhile."""
    with connect(connection) as client:
        try:
            client.topic(topic, touch=False)
        except (Forbidden, TopicNotFound):
            return LoadTarget(connection, topic, skip_bad)
    return LoadTarget(connection, topic, skip_bad, create=False)


class Fed(msgspec.Struct):
    """What became of rows: stored now, found stored, left out."""

    rows: int = 0
    rows_before: int = 0
    bad: int = 0
    bad_named: list[str] = msgspec.field(default_factory=list)
    read_bytes: int = 0

    def add(self, other: Fed) -> None:
        self.rows += other.rows
        self.rows_before += other.rows_before
        self.bad += other.bad
        self.bad_named = [*self.bad_named, *other.bad_named][:BAD_NAMED_MAX]
        self.read_bytes += other.read_bytes


class Reading:
    """What a part tells while it is read."""

    def __init__(self, fed: Fed, skip_bad: bool) -> None:
        self._fed = fed
        self._skip_bad = skip_bad

    def read(self, count: int) -> None:
        """Take note that this many of its bytes were read."""
        self._fed.read_bytes += count

    def refuse(self, place: Callable[[], str], why: str) -> None:
        """A row cannot be a record: it is left out, or the end of all.

        Only a row that is named is looked for: to find one takes reading.
        """
        if not self._skip_bad:
            at = place()
            raise RowsRefused(
                f"{at}: {why}",
                fix="with --bad-rows skip the same command goes on, and leaves such rows out",
                detail={"place": at},
            )
        self._fed.bad += 1
        if len(self._fed.bad_named) < BAD_NAMED_MAX:
            self._fed.bad_named.append(f"{place()}: {why}")


class Part(Protocol):
    """Some rows of a run: always the same, however often they are read."""

    @property
    def run(self) -> str: ...
    @property
    def number(self) -> int: ...
    @property
    def size(self) -> int: ...  # bytes to read, about

    def rows(self, reading: Reading) -> Iterator[pa.RecordBatch]:
        """Batches with `data`, the other columns of a record, and `kind` where that varies."""
        ...

    def place(self, row: int) -> str:
        """What people call a row, counted from 0."""
        ...


def feed_part(
    client: Client,
    target: LoadTarget,
    part: Part,
    fed: Fed,
    check: Callable[[], None] | None = None,
) -> None:
    """Send what is not stored yet of a part; `check` is called before each chunk."""
    _Feeding(client, target, part, fed, check or (lambda: None)).run()


class Parts(msgspec.Struct, frozen=True):
    """A job for a task of Spark: parts that are sent in their order."""

    target: LoadTarget
    parts: list[Any]


def feed_parts(job: Parts) -> Fed:
    """Send parts one after the other."""
    fed = Fed()
    with connect(job.target.connection) as client:
        for part in job.parts:
            feed_part(client, job.target, part, fed)
    return fed


class _Feeding:
    """One part on its way."""

    def __init__(
        self, client: Client, target: LoadTarget, part: Part, fed: Fed, check: Callable[[], None]
    ) -> None:
        self._client = client
        self._target = target
        self._part = part
        self._fed = fed
        self._check = check
        self._reading = Reading(fed, target.skip_bad)
        self._row = 0  # of the part: the first that is not in a chunk yet
        self._number = 0  # of the next chunk

    def run(self) -> None:
        topic, producer = self._target.topic, f"{self._part.run}:{self._part.number}"
        sending = Sending(self._client, Sender(producer), create=self._target.create)
        stored = 0  # chunks that need no sending; the last that is stored is sent, to be compared
        chunks = chunks_of(self._part.rows(self._reading), topic)
        try:
            for chunk in chunks:
                self._check()
                if self._number < stored and has_number(chunk.rows):
                    sending.skip(topic)
                    self._over(chunk.rows, was_there=True)
                    self._row += chunk.rows.num_rows
                else:
                    answer = self._send(sending, chunk)
                    if answer is not None and self._number == 1:
                        stored = answer.producer_seq or 0
            sending.check_end()
        except PlanNotDeterministic as other:
            raise PlanNotDeterministic(
                f"{self._part.place(max(0, self._row - 1))} and the rows before it are not what "
                f"they were when this began: {other.detail['difference']}",
                fix="they, or a limit of the server, were changed meanwhile: bring all of it into "
                "another topic",
                detail=other.detail,
            ) from None

    def _over(self, rows: pa.Table, *, was_there: bool) -> None:
        """A chunk is stored, and has a number."""
        self._number += 1
        if was_there:
            self._fed.rows_before += rows.num_rows
        else:
            self._fed.rows += rows.num_rows

    def _send(self, sending: Sending, chunk: Chunk) -> Appended | None:
        """Send a chunk, without the rows that are refused if that is wanted; None: all were."""
        first, count = self._row, chunk.rows.num_rows
        self._row += count
        bad = dict.fromkeys(_nulls(chunk.rows), "it is no record, or not UTF-8")
        self._refuse(bad, first)
        rows = _left(chunk.rows, bad) if bad else chunk.rows
        while rows.num_rows:
            try:
                answer = sending.send(Chunk(chunk.topic, rows))
            except RowsRefused as refused:
                found = bad_rows(chunk.rows, refused)
                if found.keys() <= bad.keys():
                    raise self._all_refused(first, count, refused) from None
                self._refuse({row: found[row] for row in found.keys() - bad.keys()}, first)
                bad |= found
                rows = _left(chunk.rows, bad)
                continue
            self._over(rows, was_there=answer.deduped)
            return answer
        return None

    def _refuse(self, bad: dict[int, str], first: int) -> None:
        """Tell of bad rows of a chunk."""
        for row in sorted(bad):
            self._reading.refuse(partial(self._part.place, first + row), bad[row])

    def _all_refused(self, first: int, count: int, refused: HeadraceError) -> HeadraceError:
        """The refusal of rows none of which is bad by itself."""
        at = self._part.place(first)
        return RowsRefused(
            f"{at} and up to {count - 1} rows after it are refused: {refused.message}",
            fix=refused.fix,
            detail={**refused.detail, "place": at},
        )


# Rows that no topic takes


def bad_rows(rows: pa.Table, refused: HeadraceError) -> dict[int, str]:
    """Which rows a refusal is about, as far as each can be looked at by itself, and why."""
    code = refused.detail.get("code")
    if code == "record_too_large":
        most: Any = refused.detail["max"]
        sizes: Any = pc.binary_length(rows["data"]).cast(pa.int64())
        if "meta" in rows.column_names:
            nothing: Any = pa.scalar(0, pa.int64())
            metas: Any = pc.binary_length(rows["meta"]).cast(pa.int64())
            sizes = pc.add(sizes, pc.fill_null(metas, nothing))
        large: Any = pc.indices_nonzero(pc.greater(sizes, pa.scalar(most, pa.int64())))
        return {
            row: f"a record of {sizes[row].as_py()} bytes, and the server takes {most}"
            for row in large.to_pylist()
        }
    found: dict[int, str] = {}
    if code == "invalid_request" and refused.detail.get("column") in ("data", "meta"):
        for row, text in enumerate(rows[str(refused.detail["column"])].to_pylist()):
            try:
                if text is not None:
                    _JSON.decode(text)
            except (msgspec.MsgspecError, RecursionError) as error:
                found[row] = f"{refused.detail['column']} is not JSON: {error}"
    return found


_JSON: Final = msgspec.json.Decoder(msgspec.Raw)


def _nulls(rows: pa.Table) -> list[int]:
    data = rows["data"]
    if not data.null_count:
        return []
    found: Any = pc.indices_nonzero(data.is_null())
    places: list[int] = found.to_pylist()
    return places


def _left(rows: pa.Table, bad: Iterable[int]) -> pa.Table:
    without = set(bad)
    return rows.filter(pa.array([row not in without for row in range(rows.num_rows)]))


# Chunks


def has_number(rows: pa.Table) -> bool:
    """Whether some row of a chunk is taken for sure: one with none that is taken has no number."""
    for row in rows.slice(0, _SURE_ROWS).to_pylist():
        data = row["data"]
        if data is None or len(data) + len(row.get("meta") or "") > _SURE_BYTES:
            continue
        if isinstance(data, bytes) or _is_json(data):
            return True
    return False


def _is_json(text: str) -> bool:
    try:
        _JSON.decode(text)
    except (msgspec.MsgspecError, RecursionError):
        return False
    return True


def chunks_of(rows: Iterable[pa.RecordBatch], topic: str) -> Iterator[Chunk]:
    """The chunks of a part: cut where one is full, and wherever the kind changes."""
    parts = (part for batch in rows for part in by_kind(batch))
    for kind, run in groupby(parts, key=itemgetter(0)):
        cutter = Cutter(CHUNK_ROWS_MAX, CHUNK_BYTES_MAX)
        for table in cutter.cut(_as_sent(kind, part) for _, part in run):
            yield Chunk(topic, _said(table))


def by_kind(rows: pa.RecordBatch) -> Iterator[tuple[str, pa.RecordBatch]]:
    """Rows by what their data is, cut wherever that changes: JSON, or anything else as bytes.

    Without a column `kind` text is JSON.

    >>> kinds = pa.record_batch({"kind": ["json", "json", "bytes", "command", "json"]})
    >>> [(kind, part.num_rows) for kind, part in by_kind(kinds)]
    [('json', 2), ('bytes', 2), ('json', 1)]
    """
    count = rows.num_rows
    if not count:
        return
    if "kind" not in rows.schema.names:
        yield (JSON if is_text(rows.schema.field("data").type) else "bytes"), rows
        return
    same: Any = pc.equal(rows.column("kind"), pa.scalar(JSON))
    is_json: Any = pc.fill_null(same, pa.scalar(False))
    if pc.all(is_json).as_py() or not pc.any(is_json).as_py():
        yield (JSON if is_json[0].as_py() else "bytes"), rows
        return
    changes: Any = pc.indices_nonzero(pc.xor(is_json.slice(1), is_json.slice(0, count - 1)))
    starts = [0, *(at + 1 for at in changes.to_pylist()), count]
    for start, stop in pairwise(starts):
        yield (JSON if is_json[start].as_py() else "bytes"), rows.slice(start, stop - start)


def is_text(kind: Any) -> bool:
    return bool(
        pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_string_view(kind)
    )


def _as_sent(kind: str, rows: pa.RecordBatch) -> pa.RecordBatch:
    """What an append takes: text is JSON, binary is bytes; what is no text is a null."""
    names: list[str] = [name for name in COLUMNS if name in rows.schema.names]
    arrays: list[Any] = []
    for name in names:
        to = pa.binary() if name == "data" and kind != JSON else pa.utf8()
        column: Any = rows.column(name)
        try:
            arrays.append(column.cast(to))
        except pa.ArrowInvalid:
            arrays.append(pa.array([decoded(value) for value in column.to_pylist()], to))
    return pa.RecordBatch.from_arrays(arrays, names=names)


def decoded(value: bytes | None) -> str | None:
    """
    >>> decoded(b"a"), decoded(b"\\xff"), decoded(None)
    ('a', None, None)
    """
    try:
        return None if value is None else value.decode()
    except UnicodeDecodeError:
        return None


def _said(table: pa.Table) -> pa.Table:
    """Without the columns that say nothing of any row."""
    empty = [
        name
        for name in table.column_names
        if name != "data" and table[name].null_count == table.num_rows
    ]
    return table.drop_columns(empty) if empty else table
