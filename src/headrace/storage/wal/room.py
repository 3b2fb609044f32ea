"""Whether the log has room: what it lacked when it had none, and when it has enough again.

Only this file decides that a shortage has begun or ended, for all shards of an engine at once, as
they share a disk.  It ends when there is room for the disk reserve, where that was spent, and for
two batches more, so that writing does not stop again at once; if a checkpoint had no room, for what
it was to write.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from headrace.core.error_frames import without_frames
from headrace.core.errors import NotReady
from headrace.storage.fs import Filesystem
from headrace.storage.reserve import DiskReserve
from headrace.storage.wal.failures import is_passing, no_room_error, shortage
from headrace.storage.wal.frame import (
    ENTRY_FORWARD,
    ENTRY_RECORDS_DELETE,
    ENTRY_ROUTER_DELETE,
    ENTRY_TOPIC_DELETE,
    FORWARD_LOST,
    PAGE_BYTES,
    Forward,
    decode_control,
)

# Entries after which a checkpoint frees more than they take, or which may stand in their way.
FREEING_ENTRIES = frozenset((ENTRY_TOPIC_DELETE, ENTRY_RECORDS_DELETE, ENTRY_ROUTER_DELETE))

# Less than so many times what ends a shortage is little.
LOW_MARGINS = 4


class LogRoom:
    """The room that the shards of one engine have."""

    def __init__(self, fs: Filesystem, reserve: DiskReserve, batch_bytes_max: int) -> None:
        self._fs = fs
        self.reserve = reserve
        self._margin = 2 * batch_bytes_max
        self._error: OSError | None = None
        self._needed = 0
        self._sealing = 0  # what a checkpoint had no room for
        self._wanted = False
        self._listeners: list[Callable[[], None]] = []

    def listen(self, changed: Callable[[], None]) -> None:
        """Call this when a shortage begins or ends."""
        self._listeners.append(changed)

    @property
    def state(self) -> str:
        """`ok`, `disk_full` or `out_of_resources`."""
        return "ok" if self._error is None else shortage(self._error)

    @property
    def short(self) -> bool:
        """Whether there is none, or soon will be: what can be freed is freed at once."""
        return self._error is not None or self.spare() <= LOW_MARGINS * self._margin

    def lack(self, error: OSError, body_bytes: int) -> None:
        """Note that there was no room for a batch, in a new file perhaps."""
        assert is_passing(error), error
        begins = self._error is None
        self._error = without_frames(error)
        self._needed = 2 * PAGE_BYTES + body_bytes + -body_bytes % PAGE_BYTES
        if begins:
            self._tell()

    def lack_for_sealing(self, error: OSError, size: int) -> None:
        """Note that a checkpoint had no room: more records would only make it larger."""
        self._sealing = size
        self.lack(error, size)

    def sealed(self) -> None:
        """Note that a checkpoint had all the room it needed."""
        self._sealing = 0

    def refusal(self, pending_bytes: int) -> NotReady | None:
        """Why nothing can be written now; None, from then on, once there is room again."""
        if self._error is None:
            return None
        if self.spare() <= pending_bytes + max(self._margin, self._sealing):
            return self.said()
        self._error = None
        self.reserve.fill()
        self._tell()
        return None

    def spare(self) -> int:
        """The room that is neither taken nor the reserve's."""
        return self._fs.free_bytes() - self.reserve.missing

    def said(self) -> NotReady:
        """The refusal of a write for which there was no room."""
        assert self._error is not None
        return no_room_error(self._error, self._needed, self._fs.free_bytes())

    def freed(self) -> None:
        """A delete is logged: where room is short, a checkpoint is to make some of it."""
        if self.short:
            self.want()

    def want(self) -> None:
        """Have the next checkpoint start at once."""
        self._wanted = True

    def was_wanted(self) -> bool:
        """Whether a checkpoint is to free room; the caller sees to it now."""
        wanted, self._wanted = self._wanted, False
        return wanted

    def pays_for(self, entries: Sequence[bytes]) -> bool:
        """Spend the reserve, if it is there and one of these entries frees more."""
        return any(map(_frees, entries)) and self.reserve.spend()

    def _tell(self) -> None:
        for listener in self._listeners:
            listener()


def _frees(raw: bytes) -> bool:
    """Whether room comes free after an entry.

    What routers announce as lost is gone, or goes with the source whose delete waits for it.
    """
    if raw[0] != ENTRY_FORWARD:
        return raw[0] in FREEING_ENTRIES
    return bool(decode_control(raw, Forward)[1].flags & FORWARD_LOST)
