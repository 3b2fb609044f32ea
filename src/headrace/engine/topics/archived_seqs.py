"""What an archive has of a topic: up to which seq, and what of it may be served from there.

Only this file moves the watermark of a topic, and says which seqs that are gone can be read from an
archive.  When the watermark is told and logged is in `removal/watermark.py`.
"""

from __future__ import annotations

from pyroaring import BitMap64

from headrace.engine.removal.deleted_seqs import DeletedSeqs, restored_deletes
from headrace.engine.topics.config import TopicConfig
from headrace.engine.topics.live_seqs import Lost
from headrace.engine.topics.stored_blocks import StoredBlocks
from headrace.engine.topics.totals import Totals
from headrace.storage.snapshot.state import TopicState


class ArchivedSeqs(StoredBlocks):
    """The seqs of one topic, by whether an archive has them."""

    __slots__ = ("archived_seq", "config", "deleted", "overtaken_seq")

    def __init__(self, name: str, config: TopicConfig, totals: Totals) -> None:
        super().__init__(name, totals)
        self.config = config
        self.archived_seq = 0  # records up to here are in an archive, too
        self.overtaken_seq = 0  # the last record that retention took before it was archived
        # What was deleted, of a topic whose past is served from an archive.
        self.deleted: DeletedSeqs | None = DeletedSeqs(1) if config.cold_reads else None

    def _restore_archived(self, saved: TopicState) -> None:
        """Take over what a snapshot says, once everything else of it is there."""
        self.archived_seq, self.overtaken_seq = saved.archived_seq, saved.overtaken_seq
        if self.deleted is not None:
            stored = saved.erased
            self.deleted = restored_deletes(stored) if stored else self._deletes_held()

    def serve_archive(self, served: bool) -> None:
        """Know of deletes what serving the past from an archive needs, or forget it."""
        if not served:
            self.deleted = None
        elif self.deleted is None:
            self.deleted = self._deletes_held()

    def _deletes_held(self) -> DeletedSeqs:
        """The deletes that are known of what the topic holds, and so no further back."""
        deleted = BitMap64() if self.holes is None else self.holes.copy()
        for first, last in (*self.gaps, *self.trims):
            deleted.remove_range(first, last + 1)
        return DeletedSeqs(self.base + 1, deleted)

    def raise_archived(self, to_seq: int) -> None:
        """Note that records up to `to_seq` are in an archive; a lower seq changes nothing."""
        self.archived_seq = max(self.archived_seq, to_seq)

    def overtake(self, to_seq: int) -> None:
        """Note that records up to `to_seq` went before they were archived."""
        self.overtaken_seq = max(self.overtaken_seq, to_seq)

    @property
    def is_overtaken(self) -> bool:
        """Whether records are gone that were to be archived first, and never were."""
        return self.config.retain_until_archived and self.overtaken_seq > self.archived_seq

    @property
    def all_held(self) -> bool:
        """Whether caps and TTL may take nothing at all, whatever they want."""
        config = self.config
        if not config.retain_until_archived or self.archived_seq > self.base:
            return False
        return not config.retain_bytes_max or self.bytes <= config.retain_bytes_max

    def archived_after(self, cursor: int) -> int:
        """Up to where what is gone after `cursor` can be read from an archive; 0: it cannot."""
        if self.deleted is None or cursor + 1 < self.deleted.since:
            return 0
        last = min(self.archived_seq, self.evict_floor)
        return last if cursor < last else 0

    def unless_archived(self, lost: Lost) -> Lost | None:
        """Of what is lost, the first stretch that no archive has; None: it begins archived."""
        if self.deleted is None or lost.first > self.evict_floor:
            return lost
        if self.archived_after(lost.first - 1):
            return None
        since = self.deleted.since
        if lost.first < since and self.archived_after(since - 1):
            return lost._replace(last=since - 1)
        return lost
