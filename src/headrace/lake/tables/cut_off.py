"""Commits that a power loss cut off: what of a table's log is not whole, and how it is put aside.

The rules it owns.  delta-rs shows a commit only when its file is complete, so a file that is not
was in memory when the power went.  `Lake.settle` makes the newest files durable together before
anybody is told of a commit: so nobody was told of one that is cut off, nor of any behind it.  What
is put aside keeps its bytes under another name, which readers of Delta pass over.
"""

from __future__ import annotations

import contextlib
import json
import re
from typing import Final, NamedTuple

from headrace.core.errors import DataDirLocked
from headrace.lake.tables.layout import LOG, LOG_FILES_SETTLED, NOTE_ACTIONS, Lake
from headrace.storage.fs import RealFilesystem, read_exact

SUFFIX: Final = ".cut-off"
LOCK: Final = ".cut-off.lock"  # of a lake; held while files are put aside
LAST_CHECKPOINT: Final = "_last_checkpoint"
_COMMIT: Final = re.compile(r"([0-9]{20})\.json")
_CHECKPOINT: Final = re.compile(r"([0-9]{20})\.checkpoint\.parquet")
_COUNTED: Final = ("add", "remove", "txn")
_FIRST_HAS: Final = {"protocol", "metaData"}
_MAGIC: Final = b"PAR1"


class CutOff(NamedTuple):
    """What of a table's log is not whole, or stands on what is not; the newest first."""

    table: str
    files: list[str]
    version: int | None  # the first that is gone with it; None: only checkpoints are


def look_for_cut_off(lake: Lake, table: str) -> CutOff | None:
    """What a power loss left half done among the newest files of a log, if anything."""
    if lake.is_remote:
        return None
    fs, log = RealFilesystem(lake.root), f"{table}/{LOG}"
    names = fs.listdir(log)
    commits = {int(found[1]): found[0] for name in names if (found := _COMMIT.fullmatch(name))}
    checkpoints = {
        int(found[1]): found[0] for name in names if (found := _CHECKPOINT.fullmatch(name))
    }
    newest = set(names[-LOG_FILES_SETTLED:])
    cut = min(
        (
            version
            for version, name in commits.items()
            if name in newest and not is_whole_commit(_read(fs, f"{log}/{name}"), version)
        ),
        default=None,
    )
    gone = {
        version
        for version, name in checkpoints.items()
        if (cut is not None and version >= cut)
        or (name in newest and not _is_parquet(_read(fs, f"{log}/{name}")))
    }
    if not _can_do_without(gone, checkpoints.keys() - gone, set(commits)):
        return None  # an error that somebody has to look at
    files = [checkpoints[version] for version in gone]
    if cut is not None:
        files += [name for version, name in commits.items() if version >= cut]
    if LAST_CHECKPOINT in names:
        pointed = _pointed_at(_read(fs, f"{log}/{LAST_CHECKPOINT}"))
        if pointed is None or pointed in gone:
            files.append(LAST_CHECKPOINT)
    return CutOff(table, sorted(files, reverse=True), cut) if files else None


def put_aside(lake: Lake, table: str, expected: CutOff) -> bool:
    """Rename what is cut off; False if it is not what was expected, or somebody else does it."""
    fs, log = RealFilesystem(lake.root), f"{table}/{LOG}"
    try:
        lock = fs.lock(LOCK)
    except DataDirLocked:
        return False
    try:
        # Again: a writer that came first may have put them aside, and committed since.
        if look_for_cut_off(lake, table) != expected:
            return False
        # The newest first, so that a log that is cut again has no hole.
        for name in expected.files:
            fs.rename(f"{log}/{name}", f"{log}/{name}{SUFFIX}")
            fs.sync_dir(log)
    finally:
        lock.release()
    return True


def is_whole_commit(content: bytes, version: int) -> bool:
    """Whether this is all of a commit, as far as it says itself what all is.

    >>> is_whole_commit(b'{"commitInfo":{"headrace.actions":1}}\\n{"add":{}}', 7)
    True
    >>> is_whole_commit(b'{"commitInfo":{"headrace.actions":1}}', 7), is_whole_commit(b"", 7)
    (False, False)
    """
    try:
        actions = [json.loads(line) for line in content.decode().splitlines()]
    except ValueError:
        return False
    if not actions or not all(isinstance(action, dict) for action in actions):
        return False
    kinds = [kind for action in actions for kind in action]
    if version == 0 and not set(kinds) >= _FIRST_HAS:
        return False
    notes: dict[str, object] = next(
        (action["commitInfo"] for action in actions if "commitInfo" in action), {}
    )
    counted = sum(kind in _COUNTED for kind in kinds)
    return notes.get(NOTE_ACTIONS) in (None, counted)


def _can_do_without(gone: set[int], left: set[int], commits: set[int]) -> bool:
    """Whether the commits behind an older checkpoint, or all of them, are there."""
    return all(0 in commits or any(version < one for version in left) for one in gone)


def _is_parquet(content: bytes) -> bool:
    return len(content) > 2 * len(_MAGIC) and content[:4] == content[-4:] == _MAGIC


def _pointed_at(content: bytes) -> int | None:
    with contextlib.suppress(ValueError, KeyError, TypeError):
        return int(json.loads(content)["version"])
    return None


def _read(fs: RealFilesystem, path: str) -> bytes:
    file = fs.open_read(path)
    try:
        return bytes(read_exact(file, file.size(), 0))
    finally:
        file.close()
