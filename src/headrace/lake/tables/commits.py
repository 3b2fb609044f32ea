"""History: the commits of a table, newest first, by what each of them brought."""

from __future__ import annotations

from typing import Any, Final

import msgspec

from headrace.lake.tables.layout import NOTE_BATCH, NOTE_FIRST, NOTE_GAPS, NOTE_LAST, NOTE_ROWS
from headrace.lake.tables.table import Table, delta_errors

COMMITS_SHOWN: Final = 20


class Commit(msgspec.Struct, frozen=True, kw_only=True):
    """One commit; `what` is sync, compact, or what Delta calls it."""

    version: int
    ts: int  # milliseconds
    what: str
    first_seq: int | None = None
    last_seq: int | None = None
    rows: int | None = None
    gaps: int | None = None


def history(table: Table, limit: int = COMMITS_SHOWN) -> list[Commit]:
    """The last commits of a table."""
    with delta_errors(table.name):
        return [_commit_of(entry) for entry in table.delta.history(limit)]


def _commit_of(entry: dict[str, Any]) -> Commit:
    what = str(entry.get("operation", "")).lower()
    if NOTE_BATCH in entry:
        what = "sync" if NOTE_LAST in entry else "compact"
    return Commit(
        version=entry["version"],
        ts=entry.get("timestamp", 0),
        what=what,
        first_seq=entry.get(NOTE_FIRST),
        last_seq=entry.get(NOTE_LAST),
        rows=entry.get(NOTE_ROWS),
        gaps=entry.get(NOTE_GAPS),
    )
