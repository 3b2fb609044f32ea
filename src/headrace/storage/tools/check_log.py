"""Examining the log of a data directory: each batch, each file's length, and what its marks say.

Only this file turns what `audit.py` walks over into findings.  The judge's own word (`scan.py`) is
asked at the end: a log that an engine would refuse must not go unnoticed.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from headrace.core.errors import UnsupportedFormat, WalCorrupt
from headrace.storage.tools.examination import (
    REPAIR_FIX,
    Examination,
    replayed_files,
    replayed_marks,
)
from headrace.storage.tools.lost_seqs import LogHeads
from headrace.storage.wal.audit import ANYWHERE, Damage, Survey, survey
from headrace.storage.wal.file import file_path, index_of, other_file
from headrace.storage.wal.mark import mark_path, marked_directories, read_mark
from headrace.storage.wal.rewrite import Stretch, in_the_way, log_losses, matters
from headrace.storage.wal.scan_shards import scan_all


class LogExaminer:
    """Fills the part of an `Examination` that is about the log."""

    def __init__(self, found: Examination, read: Callable[[str, int], None]) -> None:
        self._found = found
        self._fs = found.fs
        self._read = read

    def run(self) -> None:
        found, fs = self._found, self._fs
        state = found.state
        counted = replayed_files(fs, state)
        found.starts = dict(state.positions) if state is not None else {}
        if found.snapshot_refused:
            return  # Nothing says where replay would begin.
        try:
            found.marks = replayed_marks(fs, state)
            for directory in sorted(counted.keys() | found.starts.keys() | found.marks.keys()):
                self._survey(directory, counted.get(directory, []))
            self._marks()
        except UnsupportedFormat as error:
            found.add("error", error.code, "wal", error.message, fix=error.fix)
            return
        heads = LogHeads(state)
        found.log_lost = log_losses(fs, found.surveys, found.starts, heads)
        found.topic_id_max = heads.topic_id_max
        for directory in found.surveys:
            self._shard(directory, heads)
        self._verdict(counted)

    def _survey(self, directory: str, numbers: list[int]) -> None:
        """Walk what replay reads; and before it what only an older snapshot needs."""
        found, fs = self._found, self._fs
        start = found.starts.get(directory)
        others = {n: text for n in numbers if (text := other_file(fs, file_path(directory, n)))}
        numbers = [n for n in numbers if n not in others]
        holder = 0 if start is None else index_of(fs, directory, numbers, start)
        needed = numbers[holder:]
        read = partial(self._read, directory)
        for number in numbers[:holder]:
            older = survey(fs, directory, [number], ANYWHERE, read)
            found.batches += sum(file.batches for file in older.files)
            for damage in older.damages:
                self._say_obsolete(damage.path, damage.offset, damage.why)
            for tail in older.tails:
                self._say_obsolete(tail.path, tail.offset, "what follows is no batch")
        mark = found.marks.get(directory)
        found.surveys[directory] = survey(fs, directory, needed, start, read, mark)
        found.batches += sum(file.batches for file in found.surveys[directory].files)
        found.files += len(numbers)
        for number, text in others.items():
            found.log_bad.add(directory)
            found.surveys[directory].others.append(file_path(directory, number))
            if found.surveys[directory].end_unknown:
                text += "; what the log held there is gone, and how much is not known"
            fix = "give the files their own names back, or " + REPAIR_FIX
            found.add("error", "wal_damaged", file_path(directory, number), f"it {text}", fix=fix)

    def _say_obsolete(self, path: str, offset: int, why: str) -> None:
        text = f"{why}; the newest snapshot has what was there, so nothing is lost"
        self._found.add("warning", "wal_damaged", path, text, offset=offset)

    def _marks(self) -> None:
        """Files of marks that prove nothing; a start writes new ones."""
        found, fs = self._found, self._fs
        for directory in marked_directories(fs):
            problem = read_mark(fs, directory).problem
            if problem:
                self._bad_mark(directory, problem)
        for directory, shard in found.surveys.items():
            needed = any(f.header is not None and f.header.version > 1 for f in shard.files)
            if needed and shard.end and not fs.exists(mark_path(directory)):
                self._bad_mark(directory, "it is missing")

    def _bad_mark(self, directory: str, problem: str) -> None:
        text = f"{problem}; it would prove that no part of the log is gone"
        self._found.bad_marks.append(directory)
        self._found.add("warning", "mark_damaged", mark_path(directory), text, fix=REPAIR_FIX)

    def _shard(self, directory: str, heads: LogHeads) -> None:
        found = self._found
        shard, start = found.surveys[directory], found.starts.get(directory)
        if shard.overlaps:
            found.log_bad.add(directory)
            text = "a repair of this log was interrupted; it only has to be finished"
            path = shard.overlaps[-1].path
            found.add("error", "wal_repair_interrupted", path, text, fix=REPAIR_FIX)
            return
        if start is not None and shard.reach < start:
            found.log_bad.add(directory)
            text = self._unreached(shard, start)
            found.add("error", "wal_missing", directory, text, fix=REPAIR_FIX)
        for file in shard.cut:
            found.log_bad.add(directory)
            text = f"it is cut to {file.size} bytes, and was made with {file.made_bytes}; what was "
            text += "written and not synced yet may be gone"
            found.add("error", "wal_damaged", file.path, text, fix=REPAIR_FIX, offset=file.size)
        if shard.absent:
            found.log_bad.add(directory)
            text = "the log went on in this file, and it is missing or cut to nothing"
            path = file_path(directory, shard.absent)
            found.add("error", "wal_damaged", path, text, fix=REPAIR_FIX)
        stretches = iter(found.log_lost[directory])
        for damage in shard.damages:
            if in_the_way(shard, damage, start):
                found.log_bad.add(directory)
                took = next(stretches) if matters(shard, damage, start) else None
                self._damaged(damage, took, heads)
            elif shard.promised(damage):
                self._say_obsolete(damage.path, damage.offset, damage.why)
            else:
                text = f"{damage.why}; it was not synced yet, and the log ends there"
                found.add("warning", "wal_torn", damage.path, text, offset=damage.offset)
        for tail in shard.tails:
            text = f"{tail.torn_bytes} bytes after the last whole batch that were not synced yet"
            found.add("warning", "wal_torn", tail.path, text, offset=tail.offset)

    def _unreached(self, shard: Survey, start: int) -> str:
        state = self._found.state
        text = f"the log ends at position {shard.end}, the snapshot goes on at {start}"
        if state is not None and state.clean:
            return text + "; the snapshot was of a clean exit, so nothing is lost"
        return text + "; what was written after the snapshot is gone, and how much is not known"

    def _damaged(self, damage: Damage, took: Stretch | None, heads: LogHeads) -> None:
        text = f"{damage.why} ({damage.length} bytes at position {damage.position})"
        if took is None:
            text += "; no entry was in there, so nothing is lost"
        elif heads.deletes_undone:
            text += "; deletes that were in there come undone"
        for topic_id in took.recovered if took is not None else ():
            text += f"; topic {topic_id}, whose name is lost, becomes {heads.names[topic_id]!r}"
        lost = took.lost if took is not None else []
        self._found.add(
            "error", "wal_damaged", damage.path, text,
            fix=REPAIR_FIX, offset=damage.offset, lost=lost,
        )  # fmt: skip

    def _verdict(self, counted: dict[str, list[int]]) -> None:
        """The judge's own word: an engine that would refuse the log must not go unnoticed."""
        found = self._found
        try:
            nothing = lambda _kind, _entry: None  # noqa: E731
            scan_all(self._fs, counted, found.starts, nothing, marks=found.marks)
        except WalCorrupt as error:
            if not found.log_bad:
                path = str(error.detail.get("file", error.detail.get("directory", "wal")))
                found.log_bad.add(path.rpartition("/")[0] if path.endswith(".log") else path)
                found.add("error", "wal_damaged", path, error.message, fix=error.fix)
