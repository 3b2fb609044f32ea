"""The lake as a server sees it: where it is, and whether this process could read it.

A server has this from its start, and loads nothing of Delta before somebody reads what only the
lake has; `range_reader.py` does the reading.
"""

from __future__ import annotations

import importlib.util
import os.path
from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

from headrace.core.settings import Settings
from headrace.lake.tables.layout import DIRECTORY, Lake
from headrace.storage.archive import ArchivedPart, ArchivedTopic

if TYPE_CHECKING:
    from headrace.lake.serving.range_reader import RangeReader

PACKAGE = "deltalake"
# Somebody waits for a server: it gives up on an object store sooner than a sync does.
SERVING: Final = {
    "connect_timeout": "5s",
    "timeout": "15s",
    "max_retries": "2",
    "retry_timeout": "20s",
}


class ServedLake(Lake):
    """A lake by its root, for a server."""

    def options(self) -> dict[str, str] | None:
        found = super().options()
        return None if found is None else found | SERVING


class LakeArchive:
    """What topics have let go and a lake has.  One thread at a time reads it."""

    def __init__(self, lake: Lake) -> None:
        self._lake = lake
        self._reader: RangeReader | None = None

    def parts(self, kept: ArchivedTopic, first: int, last: int) -> Iterator[ArchivedPart]:
        """All seqs of a range in order, each a row, deleted, or lost for a reason."""
        if self._reader is None:
            from headrace.lake.serving.range_reader import RangeReader

            self._reader = RangeReader(self._lake)
        yield from self._reader.parts(kept, first, last)


def open_lake_archive(settings: Settings) -> LakeArchive | None:
    """The lake of a server; None where the package that it needs is not installed."""
    if importlib.util.find_spec(PACKAGE) is None:
        return None
    return LakeArchive(ServedLake(settings.lake or os.path.join(settings.data_dir, DIRECTORY)))
