"""Which files the scrub knows, and which of them it reads next.

Pure functions of what is listed, what is known and the time.  The order is that of due times: a
file is due when it is first seen and one interval after it was last found whole, so that neither
new files nor large ones keep others waiting for ever.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from headrace.storage.scrub.checking import ScrubTarget
from headrace.storage.scrub.progress_file import KEY_FILE, SEGMENT, SNAPSHOT, FileProgress, Key
from headrace.storage.segment.format import SegmentMeta
from headrace.storage.snapshot.key_files import KeyFileMeta

Rows = dict[Key, FileProgress]
Targets = dict[Key, ScrubTarget]


class Listed(NamedTuple):
    """The files that are needed now, beside sealed ones."""

    snapshots: list[int]
    key_files: list[KeyFileMeta]


class Plan(NamedTuple):
    """All files, what is known of each, and those that are due, the most urgent first."""

    targets: Targets
    rows: Rows  # in the order of their keys
    due: list[Key]
    next_ms: int | None  # when the first of the others is due; None: there are none


def targets_of(segments: Iterable[SegmentMeta], listed: Listed) -> Targets:
    """Every file that is to be verified, in the order of the keys."""
    targets = {
        (SEGMENT, meta.file_id): ScrubTarget((SEGMENT, meta.file_id), segment=meta)
        for meta in sorted(segments, key=lambda meta: meta.file_id)
    }
    for number in sorted(listed.snapshots):
        targets[SNAPSHOT, number] = ScrubTarget((SNAPSHOT, number))
    for key_file in sorted(listed.key_files, key=lambda meta: meta.file_id):
        key = KEY_FILE, key_file.file_id
        targets[key] = ScrubTarget(key, key_file=key_file)
    return targets


def plan(
    targets: Targets,
    known: Mapping[Key, FileProgress],
    not_before: Mapping[Key, int],
    now_ms: int,
    interval_ms: int,
) -> Plan:
    """What is to be done now; `not_before` puts single files off, or brings them forward."""
    rows: Rows = {}
    due: list[tuple[int, Key]] = []
    next_ms: int | None = None
    for key in targets:
        row = known.get(key) or FileProgress(*key, False, now_ms, 0, 0)
        rows[key] = row
        at = not_before.get(key)
        if at is None:
            at = due_ms(row, interval_ms)
        if at <= now_ms:
            due.append((at, key))
        elif next_ms is None or at < next_ms:
            next_ms = at
    due.sort()
    return Plan(targets, rows, [key for _, key in due], next_ms)


def due_ms(row: FileProgress, interval_ms: int) -> int:
    """When a file is to be verified; a damaged one at any time.

    >>> due_ms(FileProgress(SEGMENT, 7, False, 1_000, 0, 0), 500)
    1000
    >>> due_ms(FileProgress(SEGMENT, 7, False, 1_000, 2_000, 0), 500)
    2500
    """
    if row.damaged or not row.verified_ms:
        return row.seen_ms
    return row.verified_ms + interval_ms


def restored(rows: Iterable[FileProgress], now_ms: int) -> Rows:
    """What was written before a stop; a clock that was set back makes no file younger than now."""
    return {
        row.key: row._replace(
            seen_ms=min(row.seen_ms, now_ms), verified_ms=min(row.verified_ms, now_ms)
        )
        for row in rows
    }


def pause_ms(read: int, bytes_per_second: int) -> int:
    """How long nothing is read after so many bytes.

    >>> pause_ms(1 << 20, 4 << 20)
    250
    >>> pause_ms(1, 4 << 20)
    1
    """
    return -(-read * 1_000 // bytes_per_second)
