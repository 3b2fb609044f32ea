"""Lines of `headrace dump`: a record, a topic or a delete as one mapping of plain values."""

from __future__ import annotations

import base64
from collections.abc import Iterator

import msgspec
from pyroaring import BitMap64

from headrace.core.errors import HeadraceError
from headrace.storage.block import Record
from headrace.storage.fs import Filesystem
from headrace.storage.identity import SCRUB_PATH
from headrace.storage.scrub.progress_file import read_progress
from headrace.storage.seq_ranges import ranges_of
from headrace.storage.snapshot.deleted_record import decode_erased
from headrace.storage.snapshot.state import TopicState
from headrace.storage.tools.lost_seqs import holes_of, merged

Line = dict[str, object]
_KINDS = {0: "json", 1: "bytes", 2: "command"}


def text_or_base64(name: str, value: bytes | None) -> Line:
    """Bytes as text where they are UTF-8, else under another name as base64.

    >>> text_or_base64("data", b"{}"), text_or_base64("data", b"\\xff")
    ({'data': '{}'}, {'data_base64': '/w=='})
    """
    if value is None:
        return {}
    try:
        return {name: value.decode()}
    except UnicodeDecodeError:
        return {f"{name}_base64": base64.b64encode(value).decode()}


def record_line(record: Record, file: str, topic_id: int, topic: str | None) -> Line:
    """One record, without the columns it has no value in."""
    line: Line = {"type": "record", "file": file, "topic_id": topic_id, "topic": topic}
    line |= {"seq": record.seq, "ts": record.ts}
    line |= {"kind": _KINDS.get(record.kind, record.kind)}
    line |= {"append_first_seq": record.append_first_seq}
    line |= {n: v for n, v in (("tag", record.tag), ("node", record.node)) if v is not None}
    line |= text_or_base64("meta", record.meta) | text_or_base64("data", record.data)
    if record.headers:
        line["headers"] = [
            text_or_base64("name", name) | text_or_base64("value", value)
            for name, value in record.headers
        ]
    return line


def plain_value(value: object) -> object:
    """Bytes of control entries as text where they are text."""
    if isinstance(value, bytes):
        return next(iter(text_or_base64("", value).values()))
    return value


def file_line(kind: str, fields: Line) -> Line:
    """The fields of something that a file holds, its kind and its file first."""
    return {"type": kind, "file": fields.pop("path"), **fields}


def topic_line(path: str, topic: TopicState) -> Line:
    fields = {n: plain_value(getattr(topic, n)) for n in TopicState.__struct_fields__}
    fields["topic_id"], fields["topic"] = fields.pop("id"), fields.pop("name")
    fields["holes"] = merged(ranges_of(holes_of(topic)))
    if topic.erased:
        erased = decode_erased(topic.erased)
        fields["erased"] = msgspec.structs.asdict(erased) | {"seqs": seq_ranges(erased.seqs)}
    return {"type": "topic", "file": path, **fields}


def scrub_lines(fs: Filesystem) -> Iterator[Line]:
    """When each file was last verified."""
    try:
        for row in read_progress(fs):
            fields = row._asdict()
            del fields["kind"], fields["file_id"]
            yield {"type": "scrubbed_file", "file": SCRUB_PATH, "path": row.path, **fields}
    except HeadraceError as error:
        yield {"type": "damage", "file": SCRUB_PATH, "why": error.message}


def seq_ranges(seqs: bytes) -> list[tuple[int, int]]:
    return list(ranges_of(BitMap64.deserialize(seqs))) if seqs else []
