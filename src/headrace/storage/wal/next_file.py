"""Which log file a shard writes to next, and making it ready while the current one fills.

Only this file creates the files of a shard, in ascending numbers.  A file is prepared ahead of time
in a lane of its own; when a rotation finds none, it gets a bare one at once rather than a stall or
a refusal.  It writes no batches and knows no positions: those are the shard's.
"""

from __future__ import annotations

from collections.abc import Callable

from headrace.core.clock import Random
from headrace.core.runtime import Runtime
from headrace.storage.fs import Filesystem
from headrace.storage.wal.file import WalFile, create_wal_file
from headrace.storage.wal.frame import FORMAT_VERSION, FileHeader

LANE = "prepare"
# A file is prepared where the disk has room for so many of them.
PREPARED_LEAVES = 2


class FileSequence:
    """The files of one shard, one after the other."""

    def __init__(
        self,
        fs: Filesystem,
        runtime: Runtime,
        random: Random,
        directory: str,
        shard: int,
        next_number: Callable[[], int],
        *,
        file_bytes: int,
        zeroed_bytes: int | None = None,
        spare: Callable[[], int] | None = None,
    ) -> None:
        self._fs = fs
        self._runtime = runtime
        self._random = random
        self.directory = directory
        self.shard = shard
        self._next_number = next_number
        self.file_bytes = file_bytes
        self._zeroed_bytes = file_bytes if zeroed_bytes is None else min(file_bytes, zeroed_bytes)
        self._spare = spare or fs.free_bytes  # how much room there is
        self._next: WalFile | None = None
        self._preparing = False
        self._number = 0  # of the file handed out last
        self._closed = False

    def create(self, limit: int, *, zeroed: int) -> WalFile:
        """A file to write to now; its name is the caller's to sync."""
        created = self._create(limit, zeroed)
        self._number = created.number
        return created

    def take(self) -> WalFile | None:
        """The file that was prepared, its name durable; None when none is ready."""
        ready, self._next = self._next, None
        if ready is not None:
            self._number = ready.number
        return ready

    def prepare(self) -> None:
        """Make a file ready for the next rotation, unless one is, or is on its way."""
        if self._next is not None or self._preparing or self._closed:
            return
        if self._spare() < PREPARED_LEAVES * self._zeroed_bytes:
            return  # The last room is for what is written now: a bare file takes no more.
        self._preparing = True

        def make() -> WalFile:
            ready = self._create(self.file_bytes, self._zeroed_bytes)
            self._fs.sync_dir(self.directory)
            return ready

        self._runtime.submit(LANE, make, self._prepared)

    def _prepared(self, ready: object, error: BaseException | None) -> None:
        self._preparing = False
        if not isinstance(ready, WalFile):
            return  # The next rotation makes a bare file, and says so if it cannot.
        if self._closed:
            self._discard(ready)
        elif ready.number < self._number:
            # A bare file overtook it: numbers must ascend, so this one cannot follow.
            self._runtime.submit(LANE, lambda: self._discard(ready), _ignore)
            self.prepare()
        else:
            assert self._next is None
            self._next = ready

    @property
    def preparing(self) -> bool:
        """Whether a file that a rotation could use is on its way."""
        return self._preparing and self._next is None

    def stop_preparing(self) -> None:
        """Prepare no more files; one that is ready can still be taken."""
        self._closed = True

    def close(self) -> None:
        """Remove the file that was prepared and will not be used."""
        self._closed = True
        if self._next is not None:
            self._discard(self._next)

    def _create(self, limit: int, zeroed: int) -> WalFile:
        header = FileHeader(
            FORMAT_VERSION, self._random.u32(), self._next_number(), self._runtime.clock.wall_ms(),
            self.shard, self._fs.boot_id(),
        )  # fmt: skip
        return create_wal_file(self._fs, self.directory, header, limit, zeroed)

    def _discard(self, file: WalFile) -> None:
        file.file.close()
        self._fs.unlink(file.path)


def _ignore(_value: object, _error: BaseException | None) -> None:
    pass
