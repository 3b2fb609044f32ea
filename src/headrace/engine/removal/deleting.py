"""Deleting records on request: permanent, immediate, silent, and as of the moment of the call.

Only this file resolves what a delete means.  A delete below a seq is one number, however much it
covers; a delete by tag is looked up, in memory and in sealed files, never scanned for.  The log
entry lists what was resolved, so that replaying it later, after other appends, means the same.
Where the past of a topic is served from an archive, a delete is about that, too: see
`deleted_seqs.py`.
"""

from __future__ import annotations

from typing import NamedTuple

from pyroaring import BitMap64

from headrace.api.records import DeleteResult
from headrace.core.errors import HeadraceError, InvalidRequest, typed
from headrace.core.runtime import Ticket
from headrace.engine.appending.admission import check_seq
from headrace.engine.removal import retention
from headrace.engine.removal.retention import LANE, fetch_front
from headrace.engine.state import EngineState
from headrace.engine.streams import rules
from headrace.engine.topics.tag_index import TagIndex
from headrace.engine.topics.topic import Topic
from headrace.storage.files.block_cache import WouldBlock
from headrace.storage.files.catalog import runs_in
from headrace.storage.segment.run import Run
from headrace.storage.wal.frame import ENTRY_RECORDS_DELETE, RecordsDelete


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


class _Resolved(NamedTuple):
    """What a delete came to: all up to `floor`, and `seqs` that a tag was looked up for."""

    topic: Topic
    ticket: Ticket[DeleteResult]
    floor: int = 0
    seqs: BitMap64 | None = None
    tagged: tuple[TagMatch, int] | None = None  # the tag, and the last seq that it is about


class Deleter:
    """Deletes records."""

    def __init__(self, state: EngineState) -> None:
        self._state = state

    def delete(
        self, name: str, before_seq: int | None = None, match: TagMatch | None = None
    ) -> Ticket[DeleteResult]:
        """Delete what is below `before_seq`, what matches, or what does both."""
        state = self._state
        state.refuse_unready()
        if before_seq is None and match is None:
            raise InvalidRequest("nothing to delete by", fix="send before_seq, match or both")
        if before_seq is not None:
            check_seq("before_seq", before_seq)
        topic = state.topic(name)
        rules.refuse_change(topic, "delete of records")
        state.refuse_writes(state.shard_of(topic.id), frees=True)
        retention.enforce(state, topic)
        ticket: Ticket[DeleteResult] = Ticket(state.runtime)
        last = topic.head if before_seq is None else min(topic.head, before_seq - 1)
        if match is None:
            self._below(topic, last, ticket)
            return ticket
        found = BitMap64(seq for seq in self._in_memory(topic, match) if seq <= last)
        for owner, first, inherited_to in topic.shares:
            seqs = self._in_memory(owner, match)
            found.update(seq for seq in seqs if first <= seq <= min(inherited_to, last))
        self._in_files(topic, match, last, found, ticket)
        return ticket

    def trim(self, topic: Topic, to: int) -> Ticket[DeleteResult]:
        """Delete the records of a stream up to `to`, as its own dialect asked for it."""
        self._state.refuse_writes(self._state.shard_of(topic.id), frees=True)
        ticket: Ticket[DeleteResult] = Ticket(self._state.runtime)
        self._below(topic, min(topic.head, to), ticket)
        return ticket

    def _below(self, topic: Topic, last: int, ticket: Ticket[DeleteResult]) -> None:
        """Delete up to `last`, whose place in a cold file is looked up first, off the loop."""
        state = self._state
        floor = last if last > topic.base else 0
        if topic.deleted is not None and not topic.deleted.knows(last):
            floor = last
        try:
            if floor and state.tiers.cold is not None:
                topic.size_between(topic.base + 1, floor, state.sealed(topic, wait=False))
        except WouldBlock:
            pass
        else:
            self._log(_Resolved(topic, ticket, floor))
            return
        files, topic_id = state.catalog.files_of(topic.id), topic.id

        def looked(_value: object, error: BaseException | None) -> None:
            if error is not None:
                ticket.fail(typed(error))
            else:
                self._log_if_possible(_Resolved(topic, ticket, floor))

        state.runtime.submit(LANE, lambda: fetch_front(files, topic_id, floor - 1), looked)

    def _log_if_possible(self, resolved: _Resolved) -> None:
        """After a wait the log may not take entries any more."""
        try:
            shard = self._state.shard_of(resolved.topic.id)
            self._state.refuse_writes(shard, frees=True)
        except HeadraceError as refusal:
            resolved.ticket.fail(refusal)
            return
        self._log(resolved)

    def _in_memory(self, topic: Topic, match: TagMatch) -> list[int]:
        state, index = self._state, topic.tags or TagIndex()
        topic.keep_tags(None)
        index.update(topic.blocks)
        found = list(index.find(match.tag, match.prefix))
        # Over the bound the index is built again by the next delete rather than kept.
        if state.totals.tag_index_bytes + index.bytes <= state.settings.tag_index_bytes_max:
            topic.keep_tags(index)
        return found

    def _in_files(
        self,
        topic: Topic,
        match: TagMatch,
        last: int,
        found: BitMap64,
        ticket: Ticket[DeleteResult],
    ) -> None:
        base, catalog = topic.base, self._state.catalog
        # Whose files, and up to which seq its records are part of the topic.
        places = [(owner.id, to) for owner, _, to in topic.shares] + [(topic.id, last)]
        held = [(owner_id, to, catalog.files_of(owner_id)) for owner_id, to in places]
        resolved = _Resolved(topic, ticket, seqs=found, tagged=(match, last))
        if topic.sealed_to <= base:
            self._log(resolved)
            return

        def look(wait: bool) -> BitMap64:
            matches = BitMap64()
            for owner_id, to, files in held:
                runs = runs_in(files, owner_id, wait)
                for file in files:
                    if file.problem is not None:
                        raise file.problem  # it may hold records that match
                matches |= _sealed_matches(runs, match, base, min(to, last), wait)
            return matches

        def looked(value: object, error: BaseException | None) -> None:
            if error is not None:
                ticket.fail(typed(error))
                return
            assert isinstance(value, BitMap64)
            self._log_if_possible(resolved._replace(seqs=found | value))

        try:
            looked(look(False), None)
        except WouldBlock:
            self._state.runtime.submit(LANE, lambda: look(True), looked)
        except (HeadraceError, OSError) as error:
            ticket.fail(typed(error))

    def _log(self, resolved: _Resolved) -> None:
        state, (topic, ticket, floor, seqs, tagged) = self._state, resolved
        if seqs is not None:
            seqs.remove_range(0, topic.base + 1)
            if topic.holes:
                seqs -= topic.holes
        elsewhere = None
        if tagged is not None and topic.deleted is not None:
            match, last = tagged
            last = min(last, topic.base)
            elsewhere = None if topic.deleted.knows(last) else (*match, last)
        if not floor and not seqs and elsewhere is None:
            ticket.resolve(result_of(topic, 0))
            return

        def done(error: HeadraceError | None) -> None:
            if error is not None:
                ticket.fail(typed(error))
            elif not topic.live:
                ticket.resolve(DeleteResult(topic.name, 0, topic.head + 1, topic.head, 0, 0))
            else:
                deleted = apply_delete(state, topic, floor, seqs, elsewhere)
                state.room.freed()
                ticket.resolve(result_of(topic, deleted))

        if not topic.is_logged:
            done(None)
            return
        entry = RecordsDelete(floor, seqs.serialize() if seqs else b"", elsewhere)
        needs_sync = topic.needs_sync or topic.unsettled_syncs > 0
        state.log(topic, ENTRY_RECORDS_DELETE, entry, needs_sync=needs_sync, done=done)


def apply_delete(
    state: EngineState,
    topic: Topic,
    floor: int,
    seqs: BitMap64 | None,
    elsewhere: tuple[str, bool, int] | None = None,
) -> int:
    """Make a logged delete true; returns how many records went.  Applying twice is once."""
    deleted = 0
    if topic.deleted is not None:
        topic.deleted.delete(floor, seqs, elsewhere)
        topic.mark_changed()
    if floor > topic.base:
        deleted += state.despite_damage(topic, lambda rows: topic.delete_to(floor, rows))
        state.records_removed(topic)
    if seqs:
        deleted += state.despite_damage(topic, lambda rows: topic.delete_seqs(seqs, rows))
        state.records_removed(topic)
    return deleted


def result_of(topic: Topic, deleted: int) -> DeleteResult:
    return DeleteResult(
        topic.name, deleted, topic.earliest_seq, topic.head, topic.count, topic.shown_bytes
    )


def _sealed_matches(runs: list[Run], match: TagMatch, base: int, last: int, wait: bool) -> BitMap64:
    found = BitMap64()
    for run in runs:
        if run.has_tags and run.first_seq <= last and run.last_seq > base:
            found.update(
                seq for seq in run.find_tag(match.tag, match.prefix, wait) if base < seq <= last
            )
    return found
