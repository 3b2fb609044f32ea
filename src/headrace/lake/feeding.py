"""Rows back into a topic, each once: chunks under the numbers of a named write.

The rule it owns: where a chunk ends follows from the rows alone, so that a job which runs again
sends the same chunks, and the server stores each once.  JSON stays JSON and bytes stay bytes: a
chunk holds one kind, and rows keep their order within a job.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import groupby, pairwise
from operator import itemgetter
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from headrace.spark.connection import connect
from headrace.spark.options import Connection
from headrace.spark.writing.chunks import CHUNK_BYTES_MAX, CHUNK_ROWS_MAX, Chunk, Cutter
from headrace.spark.writing.sending import Sender, Sending

JSON = "json"
COLUMNS = ("data", "tag", "node", "meta")  # of a record that is written


def send_rows(
    connection: Connection, topic: str, write_id: str, part: int, rows: Iterable[pa.RecordBatch]
) -> int:
    """Append rows that have `kind` and the columns of a record; returns how many there were."""
    with connect(connection) as client:
        sending = Sending(client, Sender(f"spark-write:{write_id}:{part}"), create=True)
        return sending.send_all(chunks_of(rows, topic))


def chunks_of(rows: Iterable[pa.RecordBatch], topic: str) -> Iterator[Chunk]:
    """The chunks of a job: cut where one is full, and wherever the kind changes."""
    parts = (part for batch in rows for part in by_kind(batch))
    for kind, run in groupby(parts, key=itemgetter(0)):
        cutter = Cutter(CHUNK_ROWS_MAX, CHUNK_BYTES_MAX)
        for table in cutter.cut(_as_sent(kind, part) for _, part in run):
            yield Chunk(topic, table)


def by_kind(rows: pa.RecordBatch) -> Iterator[tuple[str, pa.RecordBatch]]:
    """Rows by what their data is, cut wherever that changes: JSON, or anything else as bytes.

    >>> kinds = pa.record_batch({"kind": ["json", "json", "bytes", "command", "json"]})
    >>> [(kind, part.num_rows) for kind, part in by_kind(kinds)]
    [('json', 2), ('bytes', 2), ('json', 1)]
    """
    count = rows.num_rows
    if not count:
        return
    is_json: Any = pc.equal(rows.column("kind"), pa.scalar(JSON))
    if pc.all(is_json).as_py() or not pc.any(is_json).as_py():
        yield (JSON if is_json[0].as_py() else "bytes"), rows
        return
    changes: Any = pc.indices_nonzero(pc.xor(is_json.slice(1), is_json.slice(0, count - 1)))
    starts = [0, *(at + 1 for at in changes.to_pylist()), count]
    for start, stop in pairwise(starts):
        yield (JSON if is_json[start].as_py() else "bytes"), rows.slice(start, stop - start)


def _as_sent(kind: str, rows: pa.RecordBatch) -> pa.RecordBatch:
    """What an append takes: text is JSON, binary is bytes."""
    arrays: list[Any] = []
    for name in COLUMNS:
        to = pa.binary() if name == "data" and kind != JSON else pa.utf8()
        arrays.append(rows.column(name).cast(to))
    return pa.RecordBatch.from_arrays(arrays, names=list(COLUMNS))
