"""What is said when the log cannot be written or synced, and which of it passes by itself.

Only this file tells a shortage, which ends by itself, from a failure, after which nothing is ever
written again.  It has no state: `shard.py` acts on what is said here.
"""

from __future__ import annotations

import errno

from headrace.core.errors import Internal, NotReady

# What the system says when there is no room: a state that ends by itself, not damage.
NO_ROOM_ERRNOS = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})
# And when the process has used up something that it may get back.
NO_MEANS_ERRNOS = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOMEM})
NO_ROOM_RETRY_SECONDS = 5


def is_passing(error: OSError) -> bool:
    """Whether a write that failed with this may succeed later.

    >>> is_passing(OSError(errno.ENOSPC, "full")), is_passing(OSError(errno.EIO, "broken"))
    (True, False)
    """
    return error.errno in NO_ROOM_ERRNOS or error.errno in NO_MEANS_ERRNOS


def shortage(error: OSError) -> str:
    """What there is too little of, as a reason that clients see.

    >>> shortage(OSError(errno.EMFILE, "too many open files"))
    'out_of_resources'
    """
    return "disk_full" if error.errno in NO_ROOM_ERRNOS else "out_of_resources"


def no_room_error(error: OSError, needed: int, free: int) -> NotReady:
    """Refuse a write while there is no room: `needed` bytes for what failed, `free` are there.

    >>> refusal = no_room_error(OSError(errno.ENOSPC, "full", "wal/wal-1.log"), 8192, 100)
    >>> refusal.message
    "no room: wal/wal-1.log needs 8192 bytes, 100 are free ([Errno 28] full: 'wal/wal-1.log')"
    >>> refusal.detail["reason"], refusal.detail["file"], refusal.detail["bytes_needed"]
    ('disk_full', 'wal/wal-1.log', 8192)
    """
    reason = shortage(error)
    detail = {"reason": reason, "retry_after_s": NO_ROOM_RETRY_SECONDS}
    file = error.filename
    if reason != "disk_full":
        return NotReady(
            f"the log cannot be written: {error}",
            fix="raise the limit on open files or memory; writing resumes by itself, reads go on",
            detail=detail,
        )
    return NotReady(
        f"no room: {file or 'the log'} needs {needed} bytes, {free} are free ({error})",
        fix="free space, or delete records or topics, which the disk reserve pays for; "
        "writing resumes by itself, reads go on",
        detail=detail | {"file": file or "wal", "bytes_needed": needed, "bytes_free": free},
    )


def read_only_error(error: OSError) -> NotReady:
    """Refuse a write for good.

    >>> read_only_error(OSError(errno.EIO, "broken")).detail
    {'reason': 'wal_read_only'}
    """
    return NotReady(
        f"the log is read-only since a sync failed: {error}",
        fix="check the disk, then restart; reads go on",
        detail={"reason": "wal_read_only"},
    )


def unknown_outcome(error: OSError) -> Internal:
    """Answer a write that may or may not be on disk.

    >>> unknown_outcome(OSError(errno.EIO, "broken")).detail
    {'outcome': 'unknown'}
    """
    return Internal(
        f"the log could not be synced: {error}",
        fix="read the topic after the restart to learn whether the write is there",
        detail={"outcome": "unknown"},
    )
