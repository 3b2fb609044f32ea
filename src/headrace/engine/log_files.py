"""The files of the log when an engine comes up: which of them count, and how new ones are numbered.

Only this file knows that numbers ascend over all shards and all runs of a data directory, and that
what was read is made durable before anything is built on it.
"""

from __future__ import annotations

from itertools import count

from headrace.engine.core_state import Core
from headrace.storage.fs import Filesystem
from headrace.storage.scan import ShardScan
from headrace.storage.snapshot import WAL_NUMBER, SnapshotState
from headrace.storage.wal_file import discover, file_path


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


def number_files(core: Core, snapshot: SnapshotState | None) -> None:
    """New log files have higher numbers than any there ever was: replay goes by them."""
    numbers = [n for numbers in discover(core.fs).values() for n in numbers]
    if snapshot is not None:
        numbers.append(_wal_number(snapshot) - 1)
    core.wal_numbers = count(max(numbers, default=0) + 1)


def make_durable(fs: Filesystem, found: dict[str, list[int]], scans: dict[str, ShardScan]) -> None:
    """What was read may still be in the page cache only; what is useless has to go.

    Both before a new file claims that the log goes on from here.
    """
    for directory, numbers in found.items():
        useless = set(scans[directory].useless)
        for number in numbers:
            path = file_path(directory, number)
            if path in useless:
                fs.unlink(path)
                continue
            file = fs.open(path)
            try:
                file.sync_data()
            finally:
                file.close()
        fs.sync_dir(directory)


def _wal_number(snapshot: SnapshotState) -> int:
    return int.from_bytes(snapshot.extra.get(WAL_NUMBER, b""), "little")
