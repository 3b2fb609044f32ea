"""Small files that a server keeps in its data directory for itself: secrets, above all.

What is in a topic can be read by everybody who may read; what is here, by nobody but the server.
No backup holds it.
"""

from __future__ import annotations

from typing import Final

from headrace.core.runtime import Runtime, Ticket
from headrace.core.steps import in_lane
from headrace.storage.fs import Filesystem, read_file, write_file_durably

OWN_FILES_LANE: Final = "own-files"


class OwnFiles:
    """The files of one data directory, by name, in `meta/`."""

    def __init__(self, fs: Filesystem, runtime: Runtime) -> None:
        self._fs = fs
        self._runtime = runtime

    def read(self, name: str) -> Ticket[bytes | None]:
        """Return what a file holds; None: there is none."""
        path = f"meta/{name}"

        def work() -> bytes | None:
            return read_file(self._fs, path) if self._fs.exists(path) else None

        return in_lane(self._runtime, OWN_FILES_LANE, work)

    def write(self, name: str, data: bytes) -> Ticket[None]:
        """Replace a file, so that a power loss leaves the old one or the new one."""
        path = f"meta/{name}"

        def work() -> None:
            write_file_durably(self._fs, path, [data], private=True)

        return in_lane(self._runtime, OWN_FILES_LANE, work)
