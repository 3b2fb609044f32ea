"""Vacuum: files that no version of the last days needs are removed, orphans of crashes too.

The rule it owns: nothing that a running writer may still commit is removed, so what is young stays.
"""

from __future__ import annotations

from typing import Final

import msgspec
from deltalake import DeltaTable

from headrace.core.errors import ConfigError, NotFound
from headrace.lake.tables.gaps import gaps_name
from headrace.lake.tables.table import Table, delta_errors

KEEP_HOURS: Final = 168
DATA: Final = ".parquet"  # in the name of each file of data, finished or not
# A sync that takes longer between writing a file and committing it would lose the file.
KEEP_HOURS_MIN: Final = 24


class Vacuumed(msgspec.Struct, frozen=True, kw_only=True):
    """What was removed, or would be; paths are relative to the lake."""

    topic: str
    table: str
    files: list[str]
    removed: bool


def checked_hours(hours: int, *, alone: bool) -> int:
    """How long files are kept; less than a day only where nobody writes, which `alone` says."""
    if hours < 0 or (hours < KEEP_HOURS_MIN and not alone):
        raise ConfigError(
            f"to keep files for {hours} hours could remove what a running sync is writing",
            fix=f"keep {KEEP_HOURS_MIN} hours or more, or say --nobody-writes",
        )
    return hours


def vacuum(table: Table, hours: int = KEEP_HOURS, *, dry_run: bool = False) -> Vacuumed:
    """Remove what is not needed any more; with `dry_run` only say what that is."""
    with delta_errors(table.name):
        found = [f"{table.name}/{path}" for path in _run(table.delta, hours, dry_run, [])]
        table.lake.settle(table.name)
    version = table.place.gaps_version
    name = gaps_name(table.identity)
    try:
        with delta_errors(name):
            gaps = DeltaTable(table.lake.uri(name), storage_options=table.lake.options())
            # What the table names stays, also where a writer that died has put more on top.
            keep = [] if version is None else [version]
            found += [f"{name}/{path}" for path in _run(gaps, hours, dry_run, keep)]
            table.lake.settle(name)
    except NotFound:
        pass
    return Vacuumed(
        topic=table.identity.topic, table=table.name, files=sorted(found), removed=not dry_run
    )


def _run(delta: DeltaTable, hours: int, dry_run: bool, keep: list[int]) -> list[str]:
    found = delta.vacuum(
        hours,
        dry_run=dry_run,
        enforce_retention_duration=False,
        full=True,
        keep_versions=keep or None,
    )
    # Object stores keep an empty object for a directory, which counts for nothing.
    return [path for path in found if DATA in path]
