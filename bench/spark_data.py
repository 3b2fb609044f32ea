"""Topics of sealed records for Spark to read, and the same records as files of other formats.

Records are JSON documents of exactly 142 bytes, each another one.  They are appended by the client
as Arrow, and `sealed` waits until every one of them lies in a file and no file changes any more.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from headrace.api.segments import Manifest
from headrace.client import Client

RECORD_BYTES = 142
APPEND_ROWS = 10_000
FILE_APPENDS = 40  # appends whose rows make one file of the other formats
SEALED_SECONDS = 300.0
POLL_SECONDS = 0.25
CALM_SECONDS = 2.0
# Files as large as by default; only the last rows do not wait ten minutes to be sealed, and few are
# enough for a file of the topic's own, since the bare source would read those of others as well.
SEALING: dict[str, Any] = {"checkpoint_age_ms": 2_000, "segment_max_events": 1_000}
SEALING_QUICK: dict[str, Any] = {**SEALING, "checkpoint_age_ms": 50}

# What a reader of JSON lines is told, so that it need not look for itself.
FIELDS = "order BIGINT, customer STRING, amount DOUBLE, note STRING"

_MIX = 0x9E3779B97F4A7C15
_WORD = (1 << 64) - 1


def record(number: int) -> str:
    """The document with this number; its note does not compress to nothing, as `xxxx` would."""
    head = f'{{"order":{number},"customer":"c-{number % 9973}","amount":{number % 997}.25,"note":"'
    word, note = number + 1, ""
    for _ in range(6):
        word = (word ^ word >> 29) * _MIX & _WORD
        note += f"{word:016x}"
    return head + note[: RECORD_BYTES - len(head) - 2] + '"}'


def records(first: int, count: int) -> pa.Array[Any]:
    """Documents as a column."""
    return pa.array([record(number) for number in range(first, first + count)], pa.utf8())


def batches(rows: int) -> Iterator[tuple[int, pa.Array[Any]]]:
    """(number of the first, documents) of each append that `rows` take."""
    for first in range(0, rows, APPEND_ROWS):
        yield first, records(first, min(APPEND_ROWS, rows - first))


def fill(url: str, topic: str, rows: int, others: str | None = None) -> list[str]:
    """Append records and wait until they are sealed; the files they lie in.

    With `others` the same records are written there, too: JSON lines in `lines`, and (seq, data) as
    Parquet in `parquet`.
    """
    held: list[tuple[int, pa.Array[Any]]] = []
    with Client(url) as client:
        for first, column in batches(rows):
            client.append_arrow(topic, pa.table({"data": column}))
            held.append((first, column))
            if others is not None and (len(held) == FILE_APPENDS or first + len(column) == rows):
                _write(Path(others), held)
                held = []
        files = sealed(client, topic).files
    assert all(file.topics == 1 for file in files), "a file is shared with other topics"
    return [file.location for file in files]


def _write(directory: Path, held: list[tuple[int, pa.Array[Any]]]) -> None:
    first = held[0][0]
    data = pa.chunked_array([column for _, column in held])
    for kind in ("lines", "parquet"):
        (directory / kind).mkdir(parents=True, exist_ok=True)
    with (directory / "lines" / f"part-{first:09d}.json").open("w") as lines:
        for _, column in held:
            lines.writelines(f"{document}\n" for document in column.to_pylist())
    seqs = pa.array(range(first + 1, first + 1 + len(data)), pa.int64())
    rows = pa.table({"seq": seqs, "data": data.cast(pa.binary())})
    pq.write_table(rows, directory / "parquet" / f"part-{first:09d}.parquet", compression="zstd")


def sealed(client: Client, topic: str) -> Manifest:
    """Wait until no record is outside of files, and files have stopped to be merged."""
    end = time.monotonic() + SEALED_SECONDS
    known: list[int] = []
    since = time.monotonic()
    while True:
        manifest = client.segments(topic)
        client.release_pin(topic, manifest.pin)
        ids = [file.file_id for file in manifest.files]
        now = time.monotonic()
        if ids != known or manifest.tail_from_seq <= manifest.head_seq:
            known, since = ids, now
            # A checkpoint that comes by age needs something to happen.
            client.append("sealing", [1])
        elif now - since > CALM_SECONDS:
            return manifest
        if now > end:
            raise TimeoutError(f"{topic} is not sealed after {SEALED_SECONDS:.0f} s")
        time.sleep(POLL_SECONDS)


def settings(quick: bool) -> dict[str, Any]:
    """How a server seals soon."""
    return SEALING_QUICK if quick else SEALING
