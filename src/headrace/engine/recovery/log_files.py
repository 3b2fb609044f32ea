"""The files of the log when an engine comes up: which of them count, and how new ones are numbered.

Only this file knows that numbers ascend over all shards and all runs of a data directory, and that
what was read is made durable before anything is built on it.
"""

from __future__ import annotations

import logging

from headrace.engine.state import EngineState
from headrace.storage.fs import Filesystem
from headrace.storage.snapshot.state import WAL_NUMBER, SnapshotState
from headrace.storage.wal.failures import NO_ROOM_ERRNOS
from headrace.storage.wal.file import discover, file_path
from headrace.storage.wal.mark import (
    Mark,
    mark_path,
    marked_directories,
    marks_that_count,
    read_mark,
    write_mark,
)
from headrace.storage.wal.scan import ShardScan

log = logging.getLogger("headrace.recovery")


def log_files(fs: Filesystem, snapshot: SnapshotState | None) -> dict[str, list[int]]:
    """The files that count: of directories the snapshot does not replay, only newer ones."""
    found = discover(fs)
    if snapshot is None:
        return found
    number_min = _wal_number(snapshot)
    counted = {}
    for directory, numbers in found.items():
        if directory not in snapshot.positions:
            numbers = [n for n in numbers if n >= number_min]
        if numbers:
            counted[directory] = numbers
    return counted


def log_marks(fs: Filesystem, snapshot: SnapshotState | None) -> dict[str, Mark]:
    """What the logs have to hold; a file of marks that is damaged proves nothing, and is named."""
    for directory in marked_directories(fs):
        problem = read_mark(fs, directory).problem
        if problem:
            path = fs.describe(mark_path(directory))
            log.warning("%s is damaged and proves nothing of the log: %s", path, problem)
    if snapshot is None:
        return marks_that_count(fs, None, 0)
    return marks_that_count(fs, snapshot.positions, _wal_number(snapshot))


def number_files(state: EngineState, snapshot: SnapshotState | None) -> None:
    """New log files have higher numbers than any there ever was: replay goes by them."""
    numbers = [n for numbers in discover(state.fs).values() for n in numbers]
    numbers += [mark.file_no for mark in marks_that_count(state.fs, None, 0).values()]
    if snapshot is not None:
        numbers.append(_wal_number(snapshot) - 1)
    state.number_log_files_from(max(numbers, default=0) + 1)


def make_durable(fs: Filesystem, found: dict[str, list[int]], scans: dict[str, ShardScan]) -> None:
    """What was read may still be in the page cache only; what is useless has to go.

    Both before a new file claims that the log goes on from here.
    """
    for directory, numbers in found.items():
        scan = scans[directory]
        paths = [file_path(directory, number) for number in numbers]
        for path in paths:
            if path not in scan.useless:
                file = fs.open(path)
                try:
                    file.sync_data()
                finally:
                    file.close()
        fs.sync_dir(directory)
        if not scan.useless:
            continue
        if fs.exists(mark_path(directory)):
            # It may say that the log was begun in a file that has to go.
            try:
                write_mark(fs, directory, scan.last_number, scan.end)
            except OSError as error:
                if error.errno not in NO_ROOM_ERRNOS:
                    raise
                continue  # the next start finds them useless, too
        for path in scan.useless:
            fs.unlink(path)
        fs.sync_dir(directory)


def _wal_number(snapshot: SnapshotState) -> int:
    return int.from_bytes(snapshot.extra.get(WAL_NUMBER, b""), "little")
