"""Five million records, counted and added up right, from files and from the tail."""

from __future__ import annotations

import time
from collections.abc import Callable

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from pyspark.sql import SparkSession

from headrace.api.segments import Manifest
from headrace.client import Client
from headrace.core.limits import MIB
from headrace.spark.options import Connection
from headrace.spark.sql.tables import Tables
from headrace.testing.process import ServerProcess

RECORDS = 5_000_000
RECORDS_FEW = 200_000
BATCHES = 100
KEYS = 10
FILES_MIN = 3
WAIT_SECONDS = 1.0  # after an append; not each one starts a checkpoint


def batch_of(first: int, count: int) -> pa.Table:
    """Records `{"n":seq}`, each with one of ten tags."""
    seqs = pa.arange(first, first + count).cast(pa.int64())
    texts = seqs.cast(pa.string())
    data = pc.binary_join_element_wise('{"n":', texts, "}", "")
    tags = pc.binary_join_element_wise("key-", pc.utf8_slice_codeunits(texts, -1), "")
    return pa.table({"data": data, "tag": tags})


def manifest(client: Client) -> Manifest:
    found = client.segments("many")
    client.release_pin("many", found.pin)
    return found


def wait_for_file(client: Client, files: int) -> int:
    """How many files there are, once there are more than that or no checkpoint seems to run."""
    give_up = time.monotonic() + WAIT_SECONDS
    while (found := len(manifest(client).files)) <= files and time.monotonic() < give_up:
        time.sleep(WAIT_SECONDS / 50)
    return found


@pytest.mark.parametrize("records", [RECORDS_FEW, pytest.param(RECORDS, marks=pytest.mark.slow)])
def test_millions_of_records(
    spark: SparkSession, start_server: Callable[..., ServerProcess], records: int
) -> None:
    server = start_server(checkpoint_wal_bytes=records * 4 * MIB // RECORDS)
    with Client(server.url) as client:
        files, count = 0, records // BATCHES
        for first in range(1, records + 1, count):
            client.append_arrow("many", batch_of(first, count))
            if files < FILES_MIN:  # appends are quicker than checkpoints
                files = wait_for_file(client, files)
        found = manifest(client)
    # Most of it in files, and some of it not.
    assert len(found.files) >= FILES_MIN and 0 < found.tail_from_seq <= found.head_seq == records
    with Tables(spark, Connection(server.url)).query(
        "SELECT tag, count(*), sum(seq), max(seq), sum(data:n::bigint) FROM many GROUP BY tag"
    ) as (frame, _):
        rows = {row[0]: tuple(row)[1:] for row in frame.collect()}
    assert len(rows) == KEYS
    each = records // KEYS
    for digit in range(KEYS):
        first = digit or KEYS
        total = each * first + KEYS * each * (each - 1) // 2
        assert rows[f"key-{digit}"] == (each, total, first + KEYS * (each - 1), total)
