"""The block of an append: its records, and what is committed beside them."""

from __future__ import annotations

from typing import Final

import msgspec

from headrace.engine.appending.admission import Append, Records
from headrace.engine.appending.idempotency import Sidecar, digest, encode_sidecar
from headrace.engine.appending.producers import ProducerClaim
from headrace.storage.block import KIND_BYTES, KIND_JSON, Batch, Block, ColumnBatch, JsonPayloads
from headrace.storage.block_encoding import (
    BlockPlace,
    encode_block,
    encode_columns,
    encode_payloads,
    encode_single,
)

# The kind of a record that comes alone and has nothing but data, by the type it comes as.
SINGLE_KINDS: Final[dict[type, int]] = {msgspec.Raw: KIND_JSON, bytes: KIND_BYTES}
_NOBODY: Final = ProducerClaim("", 0, 0)


def encode_append(batch: Records, sidecar: bytes, place: BlockPlace, last_ts: int) -> Block:
    """The records of an append as one block; no timestamp in it is before `last_ts`."""
    if isinstance(batch, msgspec.Raw | bytes):
        return encode_single(batch, SINGLE_KINDS.get(type(batch), KIND_BYTES), *place, sidecar)
    if isinstance(batch, ColumnBatch):
        return encode_columns(batch, place, sidecar)
    if isinstance(batch, JsonPayloads):
        return encode_payloads(batch, place, sidecar)
    assert isinstance(batch, Batch)
    if batch.timestamps is not None and batch.timestamps[0] < last_ts:
        stamps = [max(stamp, last_ts) for stamp in batch.timestamps]
        batch = batch._replace(timestamps=stamps)
    return encode_block(batch, *place, sidecar)


def sidecar_of(how: Append) -> bytes:
    """What is committed beside the records: key, producer and state; empty if there is nothing."""
    key, claim, state = how.idempotency_key, how.producer, how.state
    if claim is None:
        if key is None and state is None:
            return b""
        claim = _NOBODY
    id, epoch, sequence = claim
    return encode_sidecar(Sidecar(b"" if key is None else digest(key), id, epoch, sequence, state))
