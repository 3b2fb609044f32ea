"""Scanning all shards of a log in the order in which they were written, with bounded memory."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Mapping

from headrace.storage.fs import Filesystem
from headrace.storage.wal.file import file_path
from headrace.storage.wal.mark import Mark
from headrace.storage.wal.scan import (
    WINDOW_BYTES,
    OnBatch,
    OnEntry,
    ShardScan,
    ShardScanner,
    file_bytes,
)


class _Lane:
    """The files of one shard that were not read to their end yet."""

    def __init__(
        self, scanner: ShardScanner, numbers: list[int], on_read: Callable[[int], None]
    ) -> None:
        self.directory = scanner.result.directory
        self._scanner = scanner
        self._on_read = on_read
        self._file: Iterator[None] | None = None
        self.numbers = deque(numbers)

    def step(self) -> bool:
        """Read a batch; False: that was the end of a file."""
        if self._file is None:
            self._file = self._scanner.scan_file(self.numbers[0], self._on_read)
        for _ in self._file:
            return True
        self._file = None
        self.numbers.popleft()
        return False


class Waiting:
    """What entries of one shard have to wait for entries of another: bytes now, and the most.

    More than the most is kept only when the other log does not have what they wait for.
    """

    def __init__(self, bytes_max: int) -> None:
        self.bytes_max = bytes_max
        self.bytes = 0


def _read(lanes: list[_Lane], waiting: Waiting) -> Iterator[tuple[str, int]]:
    """Read all files by ascending number; yields shard and number of each that is at its end.

    A shard that has put too much aside is left alone until the others have come far enough.
    """
    held: list[_Lane] = []
    while any(lane.numbers for lane in lanes):
        ready = [lane for lane in lanes if lane.numbers and lane not in held]
        if not ready:
            held.clear()
            continue
        lane = min(ready, key=lambda lane: lane.numbers[0])
        number = lane.numbers[0]
        while True:
            before = waiting.bytes
            more = lane.step()
            if not more:
                yield lane.directory, number
            if waiting.bytes > max(before, waiting.bytes_max):
                held.append(lane)
            elif held and waiting.bytes <= waiting.bytes_max:
                held.clear()
            elif more:
                continue
            break


def scan_all(
    fs: Filesystem,
    found: dict[str, list[int]],
    starts: dict[str, int],
    on_entry: OnEntry,
    *,
    marks: Mapping[str, Mark] | None = None,
    must_go_on: bool = False,
    window_bytes: int = WINDOW_BYTES,
    waiting: Waiting | None = None,
    on_progress: Callable[[float], None] = lambda _part: None,
    on_batch: OnBatch = lambda _number, _path, _offset: None,
) -> dict[str, ShardScan]:
    """Scan every shard, oldest file first whichever shard it is of.

    How many shards there were does not matter: file numbers ascend over all of them.  After a
    snapshot that was not a clean exit, every log has to go on (`must_go_on`).  `on_entry` may count
    in `waiting` what it puts aside until another shard has come further.  Each log has to hold what
    `marks` say of it.
    """
    marks = marks or {}
    scanners = {
        directory: ShardScanner(
            fs,
            directory,
            starts.get(directory),
            on_entry,
            window_bytes,
            marks.get(directory),
            on_batch,
        )
        for directory in found.keys() | starts.keys() | marks.keys()
    }
    counted = {d: scanners[d].choose(numbers) for d, numbers in found.items()}
    sizes = {
        (d, n): file_bytes(fs, file_path(d, n)) for d, numbers in counted.items() for n in numbers
    }
    done, total = 0, max(1, sum(sizes.values()))

    def on_read(offset: int) -> None:
        on_progress((done + offset) / total)

    lanes = [_Lane(scanners[d], numbers, on_read) for d, numbers in counted.items()]
    for file in _read(lanes, waiting or Waiting(0)):
        done += sizes[file]
    return {d: scanner.finish(must_go_on=must_go_on) for d, scanner in scanners.items()}
