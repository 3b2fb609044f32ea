"""The lake as a server sees it: where it is, and whether this process could read it.

A server has this from its start, and loads nothing of Delta before somebody reads what only the
lake has; `past.py` does the reading.
"""

from __future__ import annotations

import importlib.util
import os.path
from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

from headrace.core.settings import Settings
from headrace.lake.layout import DIRECTORY, Lake
from headrace.storage.history import Kept, Part

if TYPE_CHECKING:
    from headrace.lake.past import Past

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


class ColdLake:
    """What topics have let go and a lake has.  One thread at a time reads it."""

    def __init__(self, lake: Lake) -> None:
        self._lake = lake
        self._past: Past | None = None

    def parts(self, kept: Kept, first: int, last: int) -> Iterator[Part]:
        """All seqs of a range in order, each a row, deleted, or lost for a reason."""
        if self._past is None:
            from headrace.lake.past import Past

            self._past = Past(self._lake)
        yield from self._past.parts(kept, first, last)


def cold_lake(settings: Settings) -> ColdLake | None:
    """The lake of a server; None where the package that it needs is not installed."""
    if importlib.util.find_spec(PACKAGE) is None:
        return None
    return ColdLake(ServedLake(settings.lake or os.path.join(settings.data_dir, DIRECTORY)))
