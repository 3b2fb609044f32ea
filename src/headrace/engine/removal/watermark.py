"""The watermark of a topic: up to which seq its records are in an archive, too.

Only this file logs it.  The archive, a lake say, reports it once the records are safe there; from
then on retention need not wait for them.  It only goes up, belongs to one epoch, and is on disk
before it counts: what goes on account of it must not come back, nor go before it is there.
"""

from __future__ import annotations

from typing import NamedTuple

from headrace.core.errors import EpochMismatch, HeadraceError, InvalidRequest
from headrace.core.runtime import Ticket
from headrace.engine.appending.admission import check_seq
from headrace.engine.removal import retention
from headrace.engine.state import EngineState, failed
from headrace.engine.topics.topic import Topic
from headrace.storage.wal.frame import ENTRY_ARCHIVED, Archived


class ArchivedTo(NamedTuple):
    """How far a topic is archived, now."""

    topic: str
    epoch: int
    archived_seq: int
    head_seq: int


def raise_archived(state: EngineState, topic: Topic, to_seq: int) -> None:
    """Make a logged watermark true; a lower one changes nothing."""
    topic.raise_archived(to_seq)
    topic.mark_changed()
    state.update_overtaken(topic)


class Archives:
    """Hears how far topics are archived."""

    def __init__(self, state: EngineState) -> None:
        self._state = state

    def told(self, name: str, epoch: int, to_seq: int) -> Ticket[ArchivedTo]:
        """Note that the records of `name` up to `to_seq` are safe in an archive.

        Answers with the watermark that holds: a higher one that was told before stays.
        """
        try:
            return self._told(name, epoch, to_seq)
        except HeadraceError as error:
            return failed(self._state.runtime, error)

    def _told(self, name: str, epoch: int, to_seq: int) -> Ticket[ArchivedTo]:
        state = self._state
        check_seq("epoch", epoch)
        check_seq("to_seq", to_seq)
        topic = state.topic(name)
        if epoch != topic.epoch:
            raise EpochMismatch(
                f"the epoch of {name!r} is {topic.epoch}, not {epoch}",
                fix="the topic was made anew: archive it from its first record under this epoch",
                detail={"topic": name, "epoch": topic.epoch},
            )
        if to_seq > topic.head:
            raise InvalidRequest(
                f"to_seq is {to_seq}, the head of {name!r} is {topic.head}",
                fix="send a seq that was read from the topic",
                detail={"topic": name, "head_seq": topic.head},
            )
        ticket: Ticket[ArchivedTo] = Ticket(state.runtime)
        if to_seq <= topic.archived_seq:
            ticket.resolve(_answer(topic))
            return ticket
        state.refuse_writes(state.shard_of(topic.id))
        topic.begin_archiving(to_seq)

        def done(error: HeadraceError | None) -> None:
            topic.end_archiving(failed=error is not None)
            if error is not None:
                ticket.fail(error)
                return
            raise_archived(state, topic, to_seq)
            if topic.live:
                retention.enforce(state, topic, caps_only=True)
            ticket.resolve(_answer(topic))

        state.log(topic, ENTRY_ARCHIVED, Archived(epoch, to_seq), needs_sync=True, done=done)
        return ticket


def _answer(topic: Topic) -> ArchivedTo:
    return ArchivedTo(topic.name, topic.epoch, topic.archived_seq, topic.head)
