"""What a dead letter says of where it comes from, and how that is taken off again.

Only this file knows the names of those fields.  Pure functions of records.
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from headrace.engine.removal.deleting import TagMatch
from headrace.storage.block import KIND_MIXED, Batch, Record

DEAD_FROM = "$dead_letter_from"
DEAD_DELIVERIES = "$dead_letter_deliveries"
DEAD_SEQ = "$dead_letter_src_seq"
DEAD_META = "$dead_letter_meta"  # what was there and is no object


def batch_of(records: list[Record], metas: list[bytes | None]) -> Batch:
    """Records as they are, with other metas."""
    kinds = bytes(record.kind for record in records)
    one = kinds.count(kinds[0]) == len(kinds)
    tags = [record.tag for record in records]
    nodes = [record.node for record in records]
    headers = [record.headers for record in records]
    return Batch(
        [record.data for record in records],
        kinds[0] if one else KIND_MIXED,
        tags if any(tag is not None for tag in tags) else None,
        nodes if any(node is not None for node in nodes) else None,
        metas if any(meta is not None for meta in metas) else None,
        headers if any(header is not None for header in headers) else None,
        None if one else kinds,
    )


def meta_fields(meta: bytes | None) -> dict[str, msgspec.Raw] | None:
    """The top-level fields of a meta, none of them decoded; None: it is no object."""
    if meta is None:
        return {}
    try:
        return msgspec.json.decode(meta, type=dict[str, msgspec.Raw])
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None


def dead_meta(record: Record, source: str, deliveries: int) -> bytes:
    """The meta of a dead letter: what it had, and where it comes from.

    >>> dead_meta(Record(7, 0, b"{}", meta=b'{"a":1}'), "jobs", 2)[:36]
    b'{"a":1,"$dead_letter_from":"jobs","$'
    """
    fields: dict[str, object] = {}
    had = meta_fields(record.meta)
    if had is not None:
        fields.update(had)
    elif record.meta is not None:
        fields[DEAD_META] = record.meta.decode(errors="replace")
    trace = {DEAD_FROM: source, DEAD_DELIVERIES: str(deliveries), DEAD_SEQ: str(record.seq)}
    return msgspec.json.encode(fields | trace)


def live_meta(meta: bytes | None) -> bytes | None:
    """What a dead letter had as its meta before it was one."""
    fields = meta_fields(meta)
    if not fields:
        return meta
    had = fields.pop(DEAD_META, None)
    if had is not None:
        return str(_value(had)).encode()
    kept = {k: v for k, v in fields.items() if k not in (DEAD_FROM, DEAD_DELIVERIES, DEAD_SEQ)}
    return msgspec.json.encode(kept) if kept else None


def source_of(record: Record, match: TagMatch | None, wanted: Mapping[str, object]) -> str | None:
    """Where a dead letter comes from; None: it is none, or has not this tag and these values.

    >>> letter = Record(7, 0, b"{}", meta=b'{"$dead_letter_from":"jobs","a":1}')
    >>> source_of(letter, None, {"a": 1}), source_of(letter, None, {"a": 2})
    ('jobs', None)
    """
    meta = meta_fields(record.meta)
    if meta is None or (match is not None and not _has_tag(record.tag, match)):
        return None
    for key, value in wanted.items():
        if key not in meta or _value(meta[key]) != value:
            return None
    source = _value(meta[DEAD_FROM]) if DEAD_FROM in meta else None
    return source if isinstance(source, str) else None


def _value(raw: msgspec.Raw) -> object:
    """A value of a meta; one that is no JSON after all is equal to none that is."""
    try:
        return msgspec.json.decode(raw)
    except (ValueError, RecursionError):
        return raw


def _has_tag(tag: str | None, match: TagMatch) -> bool:
    if tag is None:
        return False
    return tag.startswith(match.tag) if match.prefix else tag == match.tag
