"""What tools say about a data directory: findings, and the report that holds them.

Plain values for people and for `--json`.  `check.py` makes them, `repair.py` adds what it did.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

import msgspec

from headrace.storage.tools.lost_seqs import Lost

LOST_SHOWN_MAX = 8

# error: the engine refuses to start, or records are lost.  warning: the next start puts it right
# by itself, and nothing is lost.  note: nothing is wrong, and a person may want to know.
Severity = Literal["error", "warning", "note"]

# What is being read, bytes done, bytes in all.
Progress = Callable[[str, int, int], None]


def silent(_what: str, _done: int, _of: int) -> None:
    """Show no progress."""


class Finding(msgspec.Struct):
    """One thing about one file.  `action` is what a repair did about it."""

    severity: Severity
    code: str
    file: str
    message: str
    fix: str = ""
    offset: int | None = None
    lost: list[Lost] = []
    action: str = ""

    def __str__(self) -> str:
        where = self.file if self.offset is None else f"{self.file} at offset {self.offset}"
        text = f"{self.severity}: {where}: {self.message}"
        if self.lost:
            shown = ", ".join(str(lost) for lost in self.lost[:LOST_SHOWN_MAX])
            more = len(self.lost) - LOST_SHOWN_MAX
            text += f"; gone: {shown}" + (f" and {more} more" if more > 0 else "")
        if self.action:
            return f"{text}; {self.action}"
        return f"{text}; {self.fix}" if self.fix else text


class Report(msgspec.Struct):
    """What an examination found, and how much it read."""

    directory: str
    findings: list[Finding]
    files: int
    bytes: int
    topics: int
    records: int  # rows in sealed files
    batches: int  # in the log
    repaired: bool = False
    left: list[Finding] = []  # after a repair: what it could not mend

    @property
    def ok(self) -> bool:
        """Whether an engine can open the directory with nothing missing."""
        found = self.left if self.repaired else self.findings
        return not any(finding.severity == "error" for finding in found)
