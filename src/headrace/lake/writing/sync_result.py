"""What a sync reports: how far each topic came, and what became rows, gaps or an error."""

from __future__ import annotations

import msgspec

from headrace.core.errors import (
    HeadraceError,
)


class Synced(msgspec.Struct, frozen=True, kw_only=True):
    """One commit of one topic: seqs `first_seq` to `last_seq` are in the lake since."""

    topic: str
    table: str
    first_seq: int
    last_seq: int
    rows: int
    gap_seqs: int
    files: int
    bytes: int


class Result(msgspec.Struct, kw_only=True):
    """What a sync did for one topic.  `error` says why it is not at `target`, if it is not.

    `reported`: the server knows that it may forget records up to `watermark`; `report_error` says
    why it could not be told, where that is a fault.
    """

    topic: str
    table: str = ""
    watermark: int = 0
    target: int = 0
    commits: int = 0
    rows: int = 0
    gap_seqs: int = 0
    files: int = 0
    bytes: int = 0
    error: str | None = None
    code: str | None = None
    reported: bool = False
    report_error: str | None = None

    def fail(self, error: HeadraceError) -> None:
        self.error, self.code = str(error), error.code


def count_done(result: Result, done: Synced) -> None:
    result.watermark = done.last_seq
    result.commits += 1
    result.rows += done.rows
    result.gap_seqs += done.gap_seqs
    result.files += done.files
    result.bytes += done.bytes
