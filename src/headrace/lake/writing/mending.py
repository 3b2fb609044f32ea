"""What a sync does first about a table whose newest commits a power loss cut off.

The rule it owns: nothing that the server was told of is put aside.  The server forgets what it was
told is in the lake, so a log that does not reach so far any more has not lost power, it is damaged:
that is an error, and stays as it is.
"""

from __future__ import annotations

import logging

from headrace.client import Client
from headrace.core.errors import LakeCorrupt
from headrace.lake.tables.cut_off import SUFFIX, CutOff, look_for_cut_off, put_aside
from headrace.lake.tables.gaps import gaps_name
from headrace.lake.tables.layout import Identity, Lake
from headrace.lake.tables.table import Table, open_table

log = logging.getLogger("headrace.lake")


def mend(client: Client, lake: Lake, identity: Identity) -> None:
    """Put aside what a power loss left half done of a topic's tables."""
    cut = look_for_cut_off(lake, identity.table)
    if cut is not None:
        before = None if not cut.version else Table(lake, identity.table, cut.version - 1)
        if before is not None and not before.identity.agrees(identity):
            return  # of another topic, which whoever opens it is told
        state = client.topic(identity.topic, touch=False)
        told = state.archived_seq if state.epoch == identity.epoch else 0
        reached = 0 if before is None else before.place.watermark
        _put_aside(lake, cut, told <= reached or cut.version is None)
    gaps = look_for_cut_off(lake, gaps_name(identity))
    if gaps is not None:
        table = open_table(lake, identity)
        named = None if table is None else table.place.gaps_version
        _put_aside(lake, gaps, named is None or gaps.version is None or named < gaps.version)


def _put_aside(lake: Lake, cut: CutOff, untold: bool) -> None:
    if not untold:
        raise LakeCorrupt(
            f"commits of {cut.table} from version {cut.version} on are damaged, and the server was"
            " told of them: no power loss does that",
            fix="restore its `_delta_log` from a copy of the lake, or sync into a new lake",
            detail={"table": cut.table, "files": cut.files},
        )
    if put_aside(lake, cut.table, cut):
        log.warning(
            "a power loss has cut off %s of %s; they are kept with the suffix %s, and what was in"
            " them is synced again", ", ".join(cut.files), cut.table, SUFFIX,
        )  # fmt: skip
