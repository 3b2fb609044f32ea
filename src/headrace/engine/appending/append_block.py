"""The block of an append: its records, and what is committed beside them."""

from __future__ import annotations

from typing import Final

import msgspec

from headrace.engine.appending.admission import Append, Records
from headrace.engine.appending.idempotency import Sidecar, digest
from headrace.engine.appending.producers import ProducerClaim
from headrace.storage.block import KIND_JSON, Batch, Block, ColumnBatch, JsonPayloads
from headrace.storage.block_encoding import (
    BlockPlace,
    encode_block,
    encode_columns,
    encode_payloads,
    encode_single,
)

# What `beside_of` returns of most appends.
NOTHING_BESIDE: Final = (None, None, None)


def beside_of(how: Append) -> tuple[str | None, ProducerClaim | None, bytes | None]:
    """What is committed beside the records: idempotency key, producer and state."""
    return how.idempotency_key, how.producer, how.state


def encode_append(batch: Records, how: Append, place: BlockPlace, last_ts: int) -> Block:
    """The records of an append as one block; no timestamp in it is before `last_ts`."""
    sidecar = _sidecar(how)
    if type(batch) is msgspec.Raw:
        return encode_single(batch, KIND_JSON, *place, sidecar)
    if isinstance(batch, ColumnBatch):
        return encode_columns(batch, place, sidecar)
    if isinstance(batch, JsonPayloads):
        return encode_payloads(batch, place, sidecar)
    assert isinstance(batch, Batch)
    if batch.timestamps is not None and batch.timestamps[0] < last_ts:
        stamps = [max(stamp, last_ts) for stamp in batch.timestamps]
        batch = batch._replace(timestamps=stamps)
    return encode_block(batch, *place, sidecar)


def _sidecar(how: Append) -> bytes:
    """What is committed beside the records; empty when there is nothing."""
    beside = key, claim, state = beside_of(how)
    if beside == NOTHING_BESIDE:
        return b""
    return Sidecar(
        b"" if key is None else digest(key),
        claim.id if claim else "",
        claim.epoch if claim else 0,
        claim.sequence if claim else 0,
        state,
    ).encode()
