"""Five million records, counted and added up right, from files and from the tail."""

from __future__ import annotations

from collections.abc import Callable

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import SparkSession

from headrace.client import Client
from headrace.core.limits import MIB
from headrace.spark.options import Connection
from headrace.spark.sql.tables import Tables
from headrace.testing.process import ServerProcess

RECORDS = 5_000_000
BATCH = 50_000
KEYS = 10


def batch_of(first: int) -> pa.Table:
    """Records `{"n":seq}`, each with one of ten tags."""
    seqs = pa.arange(first, first + BATCH).cast(pa.int64())
    texts = seqs.cast(pa.string())
    data = pc.binary_join_element_wise('{"n":', texts, "}", "")
    tags = pc.binary_join_element_wise("key-", pc.utf8_slice_codeunits(texts, -1), "")
    return pa.table({"data": data, "tag": tags})


def test_five_million_records(
    spark: SparkSession, start_server: Callable[..., ServerProcess]
) -> None:
    server = start_server(checkpoint_wal_bytes=16 * MIB)
    with Client(server.url) as client:
        for first in range(1, RECORDS + 1, BATCH):
            client.append_arrow("many", batch_of(first))
        found = client.segments("many")
        client.release_pin("many", found.pin)
    # Most of it in files, and some of it not.
    assert len(found.files) > 2 and 0 < found.tail_from_seq <= found.head_seq == RECORDS
    with Tables(spark, Connection(server.url)).query(
        "SELECT tag, count(*), sum(seq), max(seq), sum(data:n::bigint) FROM many GROUP BY tag"
    ) as (frame, _):
        rows = {row[0]: tuple(row)[1:] for row in frame.collect()}
    assert len(rows) == KEYS
    each = RECORDS // KEYS
    for digit in range(KEYS):
        first = digit or KEYS
        total = each * first + KEYS * each * (each - 1) // 2
        assert rows[f"key-{digit}"] == (each, total, first + KEYS * (each - 1), total)
