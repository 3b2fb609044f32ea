"""Deleting records on request: permanent, immediate, silent, and as of the moment of the call.

Only this file resolves what a delete means.  A delete below a seq is one number, however much it
covers; a delete by tag is looked up, in memory and in sealed files, never scanned for.  The log
entry lists what was resolved, so that replaying it later, after other appends, means the same.
Where the past of a topic is served from elsewhere, a delete is about that, too: see `erased.py`.
"""

from __future__ import annotations

from typing import NamedTuple

import msgspec
from pyroaring import BitMap64

from headrace.core.errors import HeadraceError, InvalidRequest, typed
from headrace.core.runtime import Ticket
from headrace.engine import retention
from headrace.engine.admission import check_seq
from headrace.engine.core_state import Core
from headrace.engine.retention import LANE, fetch_front
from headrace.engine.tagindex import TagIndex
from headrace.engine.topic import Topic
from headrace.storage.cache import WouldBlock
from headrace.storage.catalog import runs_in
from headrace.storage.frame import ENTRY_RECORDS_DELETE, RecordsDelete
from headrace.storage.segment_reader import Run


class TagMatch(NamedTuple):
    """Records whose tag equals `tag`, or starts with it.

    >>> TagMatch.parse("chat-42:*")
    TagMatch(tag='chat-42:', prefix=True)
    """

    tag: str
    prefix: bool = False

    @classmethod
    def parse(cls, text: str) -> TagMatch:
        """`"x"` is equality, `"x*"` a prefix; only the last `*` has a meaning."""
        if not isinstance(text, str):
            raise InvalidRequest(f"match is {text!r}", fix='send "tag" or "prefix*"')
        return cls(text[:-1], True) if text.endswith("*") else cls(text)


class DeleteResult(msgspec.Struct, frozen=True):
    """How many records went, and what is left."""

    topic: str
    deleted: int
    earliest_seq: int
    head_seq: int
    count: int
    bytes: int


class Deleter:
    """Deletes records."""

    def __init__(self, core: Core) -> None:
        self._core = core

    def delete(
        self, name: str, before_seq: int | None = None, match: TagMatch | None = None
    ) -> Ticket[DeleteResult]:
        """Delete what is below `before_seq`, what matches, or what does both."""
        core = self._core
        core.refuse_unready()
        if before_seq is None and match is None:
            raise InvalidRequest("nothing to delete by", fix="send before_seq, match or both")
        if before_seq is not None:
            check_seq("before_seq", before_seq)
        topic = core.topic(name)
        core.refuse_writes(core.shard_of(topic.id))
        retention.enforce(core, topic)
        ticket: Ticket[DeleteResult] = Ticket(core.runtime)
        last = topic.head if before_seq is None else min(topic.head, before_seq - 1)
        if match is None:
            self._below(topic, last, ticket)
            return ticket
        found = BitMap64(seq for seq in self._in_memory(topic, match) if seq <= last)
        self._in_files(topic, match, last, found, ticket)
        return ticket

    def _below(self, topic: Topic, last: int, ticket: Ticket[DeleteResult]) -> None:
        """Delete up to `last`, whose place in a cold file is looked up first, off the loop."""
        core = self._core
        floor = last if last > topic.base else 0
        if topic.erased is not None and not topic.erased.knows(last):
            floor = last
        try:
            if floor and core.tiers.cold is not None:
                topic.size_between(topic.base + 1, floor, core.sealed(topic, wait=False))
        except WouldBlock:
            pass
        else:
            self._log(topic, floor, None, ticket)
            return
        files, topic_id = core.catalog.files_of(topic.id), topic.id

        def looked(_value: object, error: BaseException | None) -> None:
            if error is not None:
                ticket.fail(typed(error))
            else:
                self._log_if_possible(topic, floor, None, ticket)

        core.runtime.submit(LANE, lambda: fetch_front(files, topic_id, floor - 1), looked)

    def _log_if_possible(
        self,
        topic: Topic,
        floor: int,
        seqs: BitMap64 | None,
        ticket: Ticket[DeleteResult],
        tagged: tuple[TagMatch, int] | None = None,
    ) -> None:
        """After a wait the log may not take entries any more."""
        try:
            self._core.refuse_writes(self._core.shard_of(topic.id))
        except HeadraceError as refusal:
            ticket.fail(refusal)
            return
        self._log(topic, floor, seqs, ticket, tagged)

    def _in_memory(self, topic: Topic, match: TagMatch) -> list[int]:
        core, index = self._core, topic.tags or TagIndex()
        if topic.tags is not None:
            core.tag_index_bytes -= index.bytes
            topic.tags = None
        index.update(topic.blocks)
        found = list(index.find(match.tag, match.prefix))
        # Over the bound the index is built again by the next delete rather than kept.
        if core.tag_index_bytes + index.bytes <= core.settings.tag_index_bytes_max:
            core.tag_index_bytes += index.bytes
            topic.tags = index
        return found

    def _in_files(
        self,
        topic: Topic,
        match: TagMatch,
        last: int,
        found: BitMap64,
        ticket: Ticket[DeleteResult],
    ) -> None:
        base, files = topic.base, self._core.catalog.files_of(topic.id)
        tagged = match, last
        if topic.sealed_to <= base:
            self._log(topic, 0, found, ticket, tagged)
            return

        def look(wait: bool) -> BitMap64:
            runs = runs_in(files, topic.id, wait)
            for file in files:
                if file.problem is not None:
                    raise file.problem  # it may hold records that match
            return _sealed_matches(runs, match, base, last, wait)

        def looked(value: object, error: BaseException | None) -> None:
            if error is not None:
                ticket.fail(typed(error))
                return
            assert isinstance(value, BitMap64)
            self._log_if_possible(topic, 0, found | value, ticket, tagged)

        try:
            looked(look(False), None)
        except WouldBlock:
            self._core.runtime.submit(LANE, lambda: look(True), looked)
        except (HeadraceError, OSError) as error:
            ticket.fail(typed(error))

    def _log(
        self,
        topic: Topic,
        floor: int,
        seqs: BitMap64 | None,
        ticket: Ticket[DeleteResult],
        tagged: tuple[TagMatch, int] | None = None,
    ) -> None:
        core = self._core
        if seqs is not None:
            seqs.remove_range(0, topic.base + 1)
            if topic.holes:
                seqs -= topic.holes
        elsewhere = None
        if tagged is not None and topic.erased is not None:
            match, last = tagged
            last = min(last, topic.base)
            elsewhere = None if topic.erased.knows(last) else (*match, last)
        if not floor and not seqs and elsewhere is None:
            ticket.resolve(result_of(topic, 0))
            return

        def done(error: HeadraceError | None) -> None:
            if error is not None:
                ticket.fail(typed(error))
            elif not topic.live:
                ticket.resolve(DeleteResult(topic.name, 0, topic.head + 1, topic.head, 0, 0))
            else:
                deleted = apply_delete(core, topic, floor, seqs, elsewhere)
                ticket.resolve(result_of(topic, deleted))

        if not core.is_logged(topic):
            done(None)
            return
        entry = RecordsDelete(floor, seqs.serialize() if seqs else b"", elsewhere)
        needs_sync = topic.needs_sync or topic.unsettled_syncs > 0
        core.log(topic, ENTRY_RECORDS_DELETE, entry, needs_sync=needs_sync, done=done)


def apply_delete(
    core: Core,
    topic: Topic,
    floor: int,
    seqs: BitMap64 | None,
    elsewhere: tuple[str, bool, int] | None = None,
) -> int:
    """Make a logged delete true; returns how many records went.  Applying twice is once."""
    deleted = 0
    if topic.erased is not None:
        topic.erased.delete(floor, seqs, elsewhere)
        core.mark(topic)
    if floor > topic.base:
        deleted += topic.live_between(topic.base + 1, floor)
        topic.delete_floor = max(topic.delete_floor, min(floor, topic.head))
        freed = core.despite_damage(topic, lambda rows: topic.raise_base(floor, rows))
        core.free(topic, freed)
    if seqs:
        count, freed = core.despite_damage(topic, lambda rows: topic.add_holes(seqs, rows))
        deleted += count
        core.free(topic, freed)
    return deleted


def result_of(topic: Topic, deleted: int) -> DeleteResult:
    return DeleteResult(
        topic.name, deleted, topic.earliest_seq, topic.head, topic.count, topic.bytes
    )


def _sealed_matches(runs: list[Run], match: TagMatch, base: int, last: int, wait: bool) -> BitMap64:
    found = BitMap64()
    for run in runs:
        if run.has_tags and run.first_seq <= last and run.last_seq > base:
            found.update(
                seq for seq in run.find_tag(match.tag, match.prefix, wait) if base < seq <= last
            )
    return found
