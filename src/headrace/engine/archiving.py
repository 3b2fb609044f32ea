"""The watermark of a topic: up to which seq its records are kept elsewhere, too.

Only this file moves it.  Whoever keeps them, a lake say, tells it once they are safe there; from
then on retention need not wait for them.  It only goes up, belongs to one epoch, and is on disk
before it counts: what goes on account of it must not come back, nor go before it is there.
"""

from __future__ import annotations

from typing import NamedTuple

from headrace.core.errors import EpochMismatch, HeadraceError, InvalidRequest
from headrace.core.runtime import Ticket
from headrace.engine import retention
from headrace.engine.admission import check_seq
from headrace.engine.core_state import Core, failed
from headrace.engine.topic import Topic
from headrace.storage.frame import ENTRY_ARCHIVED, Archived


class ArchivedTo(NamedTuple):
    """How far a topic is archived, now."""

    topic: str
    epoch: int
    archived_seq: int
    head_seq: int


def raise_archived(core: Core, topic: Topic, to_seq: int) -> None:
    """Make a logged watermark true; a lower one changes nothing."""
    topic.archived_seq = max(topic.archived_seq, to_seq)
    core.note_overtaken(topic)
    core.mark(topic)


class Archives:
    """Hears how far topics are archived."""

    def __init__(self, core: Core) -> None:
        self._core = core

    def told(self, name: str, epoch: int, to_seq: int) -> Ticket[ArchivedTo]:
        """The records of `name` up to `to_seq` are safe elsewhere.

        Answers with the watermark that holds: a higher one that was told before stays.
        """
        try:
            return self._told(name, epoch, to_seq)
        except HeadraceError as error:
            return failed(self._core.runtime, error)

    def _told(self, name: str, epoch: int, to_seq: int) -> Ticket[ArchivedTo]:
        core = self._core
        check_seq("epoch", epoch)
        check_seq("to_seq", to_seq)
        topic = core.topic(name)
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
        ticket: Ticket[ArchivedTo] = Ticket(core.runtime)
        if to_seq <= topic.archived_seq:
            ticket.resolve(_answer(topic))
            return ticket
        core.refuse_writes(core.shard_of(topic.id))
        # What comes behind it in the log counts after it, as it will when the log is replayed.
        topic.unsettled_syncs += 1
        topic.archiving_to = max(topic.archiving_to, to_seq)

        def done(error: HeadraceError | None) -> None:
            topic.unsettled_syncs -= 1
            if error is not None:
                # Everything staged behind this failed with it.
                topic.archiving_to = 0
                ticket.fail(error)
                return
            raise_archived(core, topic, to_seq)
            if topic.live:
                retention.enforce(core, topic, caps_only=True)
            ticket.resolve(_answer(topic))

        core.log(topic, ENTRY_ARCHIVED, Archived(epoch, to_seq), needs_sync=True, done=done)
        return ticket


def _answer(topic: Topic) -> ArchivedTo:
    return ArchivedTo(topic.name, topic.epoch, topic.archived_seq, topic.head)
