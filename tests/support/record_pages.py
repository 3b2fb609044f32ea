"""Pages as the server and the sealed files give them, made by hand for tests."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pyarrow as pa

from headrace.storage.segment.page_columns import PAGE_SCHEMA

TS_MS = 1_767_225_600_123


def page(
    data: Sequence[bytes], *, kind: int | Sequence[int] = 0, first_seq: int = 1
) -> pa.RecordBatch:
    """One record for each of `data`, with seqs from `first_seq` on."""
    count = len(data)
    kinds = [kind] * count if isinstance(kind, int) else list(kind)
    seqs = range(first_seq, first_seq + count)
    columns: dict[str, list[Any]] = {
        "seq": list(seqs),
        "ts": [TS_MS + seq for seq in seqs],
        "kind": kinds,
        "tag": [None if seq % 2 else f"tag-{seq}" for seq in seqs],
        "node": [f"node-{seq}" for seq in seqs],
        "meta": [None if seq % 3 else b'{"m": 1}' for seq in seqs],
        "headers": [[{"name": b"k", "value": b"\xff"}] if seq % 4 == 0 else None for seq in seqs],
        "data": list(data),
    }
    arrays = [pa.array(columns[field.name], field.type) for field in PAGE_SCHEMA]
    return pa.RecordBatch.from_arrays(arrays, schema=PAGE_SCHEMA)
