"""What a program hands to `Engine.append`: lists of payloads made into a batch.

Only this file encodes values for in-process callers; dialects make their batches themselves.
Whether a batch may be stored is decided later, by `admission.py`.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from headrace.core.errors import InvalidRequest
from headrace.storage.block import KIND_BYTES, KIND_JSON, Batch

# One payload: bytes as they are, or a value that is encoded as JSON.
Payload = bytes | str | int | float | bool | None | list[object] | dict[str, object]


def make_batch(records: Sequence[Payload]) -> Batch:
    """Payloads as a batch: bytes stay bytes, anything else becomes JSON.

    >>> make_batch([{"a": 1}]).data
    [b'{"a":1}']
    """
    if isinstance(records, (bytes, str)) or not isinstance(records, Sequence):
        raise InvalidRequest("records is not a list", fix="send a list of payloads")
    if all(isinstance(record, bytes) for record in records):
        return Batch(records, KIND_BYTES)  # type: ignore[arg-type]
    if any(isinstance(record, bytes) for record in records):
        raise InvalidRequest("bytes and values in one append", fix="send one kind at a time")
    try:
        return Batch([msgspec.json.encode(record) for record in records], KIND_JSON)
    except (TypeError, msgspec.MsgspecError, UnicodeEncodeError, RecursionError) as error:
        raise InvalidRequest(f"a payload is not JSON: {error}", fix="send JSON values") from None
