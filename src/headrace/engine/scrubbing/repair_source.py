"""The backup that damaged files are fetched again from, as the setting names it."""

from __future__ import annotations

from typing import Final

from headrace.core.errors import NotReady
from headrace.storage.files.store import Store, open_store
from headrace.storage.files.store_role import StoreRole
from headrace.storage.fs import RealFilesystem

REPAIR_SOURCE: Final = StoreRole(
    "the backup for repairs",
    "HEADRACE_SCRUB_REPAIR_FROM",
    "backup_unreachable",
    "the damaged file stays as it is",
)


def open_backup(place: str) -> Store | None:
    """The store that the setting names, when it is needed; None: no place is named.

    Not at the start: a backup that is away for a while is no reason to refuse one.  A directory
    that does not exist is not made, as that of a disk that is not mounted.
    """
    if not place:
        return None
    if "://" not in place and not RealFilesystem(place).exists(""):
        raise NotReady(
            f"{REPAIR_SOURCE.name}, {place}, does not exist",
            fix=f"mount the disk, or set {REPAIR_SOURCE.setting} to a backup",
            detail={"reason": REPAIR_SOURCE.unreachable},
        )
    return open_store(place, REPAIR_SOURCE)
