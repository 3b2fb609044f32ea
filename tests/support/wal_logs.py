"""A shard of the log on a disk in memory, with commits that remember when they were settled."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence

from headrace.core.clock import Clock, ManualClock, SeededRandom
from headrace.core.errors import HeadraceError
from headrace.core.runtime import Done, StepRuntime
from headrace.storage.fs import Filesystem
from headrace.storage.wal.file import discover
from headrace.storage.wal.frame import (
    ENTRY_STATE,
    State,
    decode_control,
    encode_control,
)
from headrace.storage.wal.next_file import FileSequence
from headrace.storage.wal.scan_shards import scan_all
from headrace.storage.wal.shard import WalShard
from headrace.testing.faultfs import Fault, FaultFilesystem, FaultPlan
from headrace.testing.simdisk import SimDisk


class Entry:
    """A commit that remembers when it was settled, and how."""

    def __init__(self, log: Log, number: int, needs_sync: bool, size: int) -> None:
        self._log = log
        self.number = number
        self.needs_sync = needs_sync
        payload = b"%d," % number + b"x" * size
        entry = encode_control(ENTRY_STATE, number, State(payload))
        self.entries: Sequence[bytes] = (entry,) if size >= 0 else ()
        self.settled = False
        self.error: HeadraceError | None = None

    def settle(self, error: HeadraceError | None) -> None:
        assert not self.settled, "settled twice"
        self.settled, self.error = True, error
        self._log.settled.append(self.number)


class LateNewsRuntime(StepRuntime):
    """What a lane has done is heard of a step later, as with real threads."""

    def submit(self, lane: str, work: Callable[[], object], done: Done) -> None:
        super().submit(lane, work, lambda value, error: self.soon(lambda: done(value, error)))


class IdleRuntime(StepRuntime):
    """Nothing else waits for the loop, unless a test has said otherwise of the next question."""

    def __init__(self, clock: Clock | None = None) -> None:
        super().__init__(clock)
        self.answers: deque[bool] = deque()

    def idle(self) -> bool:
        return self.answers.popleft() if self.answers else True


class Log:
    """A shard on a disk, with the entries staged so far."""

    def __init__(
        self,
        fs: Filesystem | None = None,
        *,
        file_bytes: int = 64 << 10,
        runtime: type[StepRuntime] = StepRuntime,
        inline_sync_us_max: int = 0,
        batch_bytes_max: int = 16 << 10,
    ) -> None:
        self.disk = fs or SimDisk()
        self.clock = ManualClock()
        self.runtime = runtime(self.clock)
        self.entries: list[Entry] = []
        self.settled: list[int] = []
        self._number = 0
        files = FileSequence(
            self.disk, self.runtime, SeededRandom(3), "wal", 0, self._next, file_bytes=file_bytes
        )
        self.shard = WalShard(
            self.disk, self.runtime, files,
            batch_bytes_max=batch_bytes_max, pending_bytes_max=1 << 20, sync_interval_ms=50,
            inline_sync_us_max=inline_sync_us_max,
        )  # fmt: skip
        self.shard.start(0, [])
        self.runtime.run()

    def _next(self) -> int:
        self._number += 1
        return self._number

    def stage(self, *, sync: bool = False, size: int = 100, follows: bool = False) -> Entry:
        entry = Entry(self, len(self.entries), sync, size)
        self.entries.append(entry)
        self.shard.stage(entry, follows=follows)
        return entry

    def turn(self, *, sync: bool) -> Entry:
        """A commit, and the end of its turn."""
        entry = Entry(self, len(self.entries), sync, 100)
        self.entries.append(entry)
        self.shard.stage(entry, flushes=True)
        self.shard.flush()
        self.runtime.step()
        return entry

    def begin_sync(self) -> None:
        """Run until a sync is handed to the lane: what is written from now on is for the next."""
        while not self.shard.syncs.running:
            assert self.runtime.step(), "no sync was asked for"

    def run(self, ms: int = 0) -> None:
        self.runtime.run()
        if ms:
            self.clock.advance(ms)
            self.runtime.run()


def numbers(fs: Filesystem) -> list[int]:
    """The entries that a scan of the disk delivers."""
    found: list[int] = []

    def on_entry(kind: int, entry: bytes) -> None:
        assert kind == ENTRY_STATE
        topic_id, state = decode_control(entry, State)
        assert state.state.startswith(b"%d," % topic_id)
        found.append(topic_id)

    scan_all(fs, discover(fs), {}, on_entry)
    return found


def survivors(log: Log, mode: str = "none", seed: int = 0) -> list[int]:
    disk = log.disk
    assert isinstance(disk, SimDisk)
    return numbers(disk.image(disk.position, mode, seed))  # type: ignore[arg-type]


def kinds(log: Log, since: int) -> list[str]:
    assert isinstance(log.disk, SimDisk)
    return [op.kind for op in log.disk.trace[since:]]


class Switch:
    """Raises this error in every call that it is hooked into, while it is on."""

    def __init__(self, code: int) -> None:
        self.code = code
        self.on = False

    def __call__(self, operation: str, path: str) -> None:
        if self.on:
            raise OSError(self.code, "injected", path)


def switched(operation: str, code: int) -> tuple[Log, Switch, SimDisk]:
    switch = Switch(code)
    disk = SimDisk()
    plan = FaultPlan(Fault(operation, 1, "call", forever=True, hook=switch))
    return Log(FaultFilesystem(disk, plan)), switch, disk
