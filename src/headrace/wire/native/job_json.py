"""Jobs as JSON, the way every native answer shows them: claims, and streams of workers.

The keys and their order are those of `JobOut`.  Payloads are shown as `record_json.py` shows them.
"""

from __future__ import annotations

from itertools import repeat

from msgspec import UNSET, Raw, UnsetType

from headrace.api.queues import JobOut
from headrace.engine.queues.answers import Leased
from headrace.storage.block import KIND_JSON
from headrace.wire.native.record_json import payload_and_meta


def jobs_out(leased: Leased) -> list[JobOut]:
    """Return the jobs of a claim as they are shown."""
    rows = leased.rows
    seqs, kinds, metas = rows.seqs, rows.kinds, rows.metas
    ids, deadline, deliveries = leased.lease_ids, repeat(leased.deadline), leased.deliveries
    if kinds == KIND_JSON and rows.tags is None and metas is None:
        payloads = map(Raw, rows.data)
        return list(map(JobOut, seqs, ids, deadline, rows.stamps, deliveries, payloads))
    each_kind = repeat(kinds) if isinstance(kinds, int) else kinds
    tags: list[str | UnsetType] = [UNSET] * len(seqs)
    if rows.tags is not None:
        tags = [UNSET if tag is None else tag for tag in rows.tags]
    shown = map(payload_and_meta, rows.data, metas or repeat(None), each_kind)
    return [
        JobOut(seq, lease_id, until, ts, count, data, tag, meta)
        for seq, lease_id, until, ts, count, tag, (data, meta) in zip(
            seqs, ids, deadline, rows.stamps, deliveries, tags, shown, strict=False
        )
    ]
