"""Records that do not fit their schema, copied to a topic of their own, each once.

Beside a pipeline with `on_error: dead_letter` a second query looks for them in each source that has
a schema.  A copy has the data as it was, and its meta says where it came from.  Its chunks are
numbered by batch and place, so that a batch that runs again stores nothing twice; a record that
is gone by then keeps its place with an empty copy.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from typing import TYPE_CHECKING, Any, Final

import msgspec

from headrace.client import Client, Draft, Producer, Record
from headrace.spark.connection import connect
from headrace.spark.options import Connection

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

# Records of one append; part of what a repeat is recognised by, so never to be changed.
CHUNK_RECORDS: Final = 200
COLUMNS: Final = "topic,seq,data"


class DeadLetters:
    """Copies the bad records of one source, batch by batch."""

    def __init__(
        self, connection: Connection, pipeline: str, producer: str, source: str, dest: str
    ) -> None:
        self._connection = connection
        self._pipeline = pipeline
        self._producer = producer
        self._source = source
        self._dest = dest

    def copy(self, batch: DataFrame, number: int) -> None:
        """Called by Spark for each batch; its rows are the records that do not fit."""
        rows = batch.select("seq").orderBy("seq").toLocalIterator()
        seqs = (row["seq"] for row in rows)
        with connect(self._connection) as client:
            for chunk, some in enumerate(_chunks(seqs)):
                drafts = [self._letter(client, seq) for seq in some]
                producer = Producer(self._producer, number, chunk)
                client.append(self._dest, drafts, producer=producer)

    def _letter(self, client: Client, seq: int) -> Draft:
        page = client.diff(self._source, seq - 1, limit=1)
        found = next((record for record in page.records if record.seq == seq), None)
        came = {"pipeline": self._pipeline, "topic": self._source, "seq": seq}
        if found is None:
            return Draft(None, meta={**came, "gone": True})
        return Draft(found.raw, tag=found.tag, node=found.node, meta={**came, **_meta(found)})


def _meta(record: Record) -> dict[str, Any]:
    """The meta of the record, whole, under one key."""
    return {} if record.meta is None else {"meta": msgspec.Raw(bytes(record.raw_meta))}


def _chunks(seqs: Iterator[int]) -> Iterator[list[int]]:
    """
    >>> [len(chunk) for chunk in _chunks(iter(range(450)))]
    [200, 200, 50]
    """
    while chunk := list(islice(seqs, CHUNK_RECORDS)):
        yield chunk
