"""The records of the catalog: an entry each, in the server's own topic `_s2`.

The rules this file owns.  A record holds one entry, whole, and is tagged with its key; of several
the newest counts.  The topic is of class fsync, so what is answered is on disk.  The records before
the newest are deleted behind it; a crash in between, or a full disk, leaves both, and the next
change or start finishes that.
An entry that is no more has no record.
"""

from __future__ import annotations

import logging
from typing import Final

import msgspec

from headrace.core.errors import HeadraceError, UnsupportedFormat
from headrace.core.steps import Steps
from headrace.engine.appending.pending_append import Appended
from headrace.engine.engine import Engine
from headrace.engine.reading.page import Page
from headrace.engine.removal.deleting import TagMatch
from headrace.engine.topics.config import TopicConfig
from headrace.storage.block import Batch, Record
from headrace.wire.s2.catalog.entries import DECODER, ENCODER, Entry

log = logging.getLogger("headrace.s2")

TOPIC: Final = "_s2"
PAGE_RECORDS: Final = 1_000

_CONFIG: Final = TopicConfig(durability="fsync")


class CatalogRecords:
    """The records of the catalog of one engine."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    @property
    def exist(self) -> bool:
        """Whether anything was ever kept."""
        return self._engine.find(TOPIC) is not None

    def load(self) -> Steps[list[Entry]]:
        """Return the entries after a start; finish deletes that a crash cut short."""
        newest: dict[str, tuple[int, Entry]] = {}
        twice: dict[str, int] = {}  # keys with older records, and where the newest one is
        cursor = 0
        while self.exist:
            page: Page = yield self._engine.read(TOPIC, cursor, limit=PAGE_RECORDS)
            for record in page.records:
                entry = _decoded(record)
                if entry.key in newest:
                    twice[entry.key] = record.seq
                newest[entry.key] = record.seq, entry
            if page.caught_up:
                break
            cursor = page.next_from_seq
        for key, seq in twice.items():
            yield self._engine.delete(TOPIC, before_seq=seq, match=TagMatch(key))
        return [entry for _, entry in newest.values()]

    def put(self, entry: Entry) -> Steps[None]:
        """Keep an entry, in place of the one that had its key."""
        appended: Appended = yield self._engine.append(
            TOPIC,
            Batch([ENCODER.encode(entry)], tags=[entry.key]),
            config=_CONFIG,
            disable_backpressure=True,
        )
        try:
            yield self._engine.delete(
                TOPIC, before_seq=appended.last_seq, match=TagMatch(entry.key)
            )
        except HeadraceError as error:
            # The entry is on disk, and counts: to say otherwise would be true until a restart.
            log.warning("older records of %r stay in %r for now: %s", entry.key, TOPIC, error)

    def remove(self, entry: Entry) -> Steps[None]:
        """Keep an entry no more."""
        yield self._engine.delete(TOPIC, match=TagMatch(entry.key))


def _decoded(record: Record) -> Entry:
    try:
        entry = DECODER.decode(record.data)
    except msgspec.MsgspecError as error:
        raise _unreadable(record, str(error)) from None
    if entry.key != record.tag:
        raise _unreadable(record, "its tag is not the key of its entry")
    return entry


def _unreadable(record: Record, why: str) -> UnsupportedFormat:
    return UnsupportedFormat(
        f"record {record.seq} of {TOPIC!r} cannot be read: {why}",
        fix="start the version of headrace that wrote it",
    )
