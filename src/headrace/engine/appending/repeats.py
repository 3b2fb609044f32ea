"""Appends that come again: what is on its way to the log counts as much as what is stored.

Only this file knows which idempotency keys and which numbers of producers are in flight.  A second
append with one of them is answered as the first, once that has landed; and what is refused because
of one in flight, or of the head that it makes, is refused once that is stored, so that no answer
tells of what a crash could undo.
"""

from __future__ import annotations

import msgspec

from headrace.core.errors import HeadMismatch, HeadraceError
from headrace.core.runtime import Ticket
from headrace.engine.appending.admission import Append
from headrace.engine.appending.idempotency import digest
from headrace.engine.appending.pending_append import Appended, Beside, PendingAppend
from headrace.engine.appending.producers import (
    ProducerClaim,
    admit_producer,
    refuse_new_producer,
    refuse_one_more_producer,
)
from headrace.engine.state import EngineState
from headrace.engine.topics.topic import Topic
from headrace.storage.snapshot.state import ProducerState
from headrace.storage.wal.commit import ControlCommit

# What a producer will have had accepted, and the append of it that is in flight.  A plain tuple,
# as one is made for each append, and all of a producer's, the oldest first.
_Coming = tuple[ProducerState, Ticket[Appended]]


class Repeats:
    """The keys and producers of the appends that are in flight."""

    def __init__(self, state: EngineState) -> None:
        self._state = state
        # Appends in flight that a second one with the same key, or number, has to wait for.  The
        # last of a producer is what it will have had accepted once all of them have landed.
        self._keys_in_flight: dict[tuple[int, bytes], Ticket[Appended]] = {}
        self._claims: dict[tuple[int, str], list[_Coming]] = {}

    # Before an append is staged

    def refuse_key_if_full(self) -> None:
        """Raise unless one more idempotency key can be remembered."""
        state = self._state
        state.keys.refuse_if_full(state.clock.now_ms(), len(self._keys_in_flight))

    def answer(self, topic: Topic, how: Append, ticket: Ticket[Appended]) -> bool:
        """Settle the ticket from what is known of this key or producer; False: append it."""
        state = self._state
        if how.idempotency_key is not None:
            now, key = state.clock.now_ms(), digest(how.idempotency_key)
            first = self._keys_in_flight.get((topic.id, key))
            if first is not None:
                _join(first, topic, None, ticket)
                return True
            row = state.keys.find(topic.id, key, topic.config.idempotency_window_ms, now)
            if row is not None:
                last = row.first_seq + row.records - 1
                ticket.resolve(
                    Appended(
                        topic.name, topic.epoch, row.first_seq, last, row.head, row.records,
                        deduped=True,
                    )
                )  # fmt: skip
                return True
            self.refuse_key_if_full()
        claim = how.producer
        return claim is not None and self.answer_producer(topic, claim, ticket)

    def answer_producer(self, topic: Topic, claim: ProducerClaim, ticket: Ticket[Appended]) -> bool:
        """Settle the ticket if the producer's number is a repeat, or out of order; False: append.

        What is stored refuses at once, by raising; what is in flight, once it is stored.
        """
        id = claim[0]
        coming = self._claims.get((topic.id, id))
        known: ProducerState | None = None
        if coming is not None:
            known = coming[-1][0]
        elif topic.producers is not None:
            known = topic.producers.newest(id)
        try:
            admitted = admit_producer(known, claim)
        except HeadraceError as error:
            if coming is None:
                raise
            refuse_after(coming[-1][1], error, ticket)
            return True
        if admitted:
            if known is None:
                self._refuse_if_full(topic)
            return False
        first = None if coming is None else _in_flight(coming, claim)
        if first is not None:
            _join(first, topic, claim, ticket)
        else:
            ticket.resolve(stored_before(topic, claim))
        return True

    def _refuse_if_full(self, topic: Topic) -> None:
        """Refuse a new producer where the topic remembers, or will, as many as it may."""
        settings = self._state.settings
        everywhere = self._state.producer_memory.producers
        if everywhere + len(self._claims) >= settings.producers_max:
            everywhere += sum(not self._is_known(*place) for place in self._claims)
            refuse_one_more_producer(topic.name, everywhere, settings.producers_max)
        most = settings.producers_per_topic_max
        known = topic.producers or ()
        if len(known) + len(self._claims) < most:
            return
        coming = sum(owner == topic.id and id not in known for owner, id in self._claims)
        refuse_new_producer(topic.name, len(known) + coming, most)

    def _is_known(self, topic_id: int, id: str) -> bool:
        """Whether a topic remembers a producer already."""
        topic = self._state.by_id.get(topic_id)
        return topic is not None and topic.producers is not None and id in topic.producers

    def refuse_head(self, topic: Topic, mismatch: HeadMismatch, ticket: Ticket[Appended]) -> None:
        """Refuse a write because of the topic's head: at once, or when that is stored.

        All that is staged of the topic is in its shard.
        """
        if topic.staged == topic.head and not topic.stream_changes:
            raise mismatch
        runtime = self._state.runtime

        def settled(error: HeadraceError | None) -> None:
            if error is None:
                ticket.fail(mismatch)
            else:
                # Later, so that all that failed is back before a caller tries again.
                runtime.soon(lambda: ticket.fail(error))

        waits = topic.needs_sync or topic.unsettled_syncs > 0 or topic.stream_changes > 0
        barrier = ControlCommit(b"", waits, settled)
        self._state.shard_of(topic.id).stage(barrier, follows=True)

    # In flight

    def track(self, topic: Topic, pending: PendingAppend, last: int) -> None:
        """Note what goes to the log beside the records of an append, whose last seq is given."""
        how, block = pending.how, pending.block
        assert block is not None
        claim, key, producer = how.producer, b"", None
        if claim is not None:
            id, epoch, sequence = claim
            producer = ProducerState(epoch, sequence, block.first_seq, block.count, last)
            self.track_producer(topic.id, id, producer, pending)
        stream = pending.stream
        if stream is not None:
            self._state.staged_streams.begin(topic, stream, pending)
        if how.idempotency_key is not None:
            key = digest(how.idempotency_key)
            self._keys_in_flight[topic.id, key] = pending
        pending.beside = Beside(claim, producer, key, how.state, stream is not None)

    def track_producer(
        self, topic_id: int, id: str, producer: ProducerState, ticket: Ticket[Appended]
    ) -> None:
        """Note that a producer's number goes to the log."""
        place = topic_id, id
        coming = self._claims.get(place)
        if coming is None:
            self._claims[place] = [(producer, ticket)]
        else:
            coming.append((producer, ticket))

    def landed(self, topic: Topic, pending: PendingAppend, beside: Beside) -> None:
        """Forget that an append was in flight."""
        claim, key = beside.claim, beside.key
        if claim is not None:
            self.producer_landed(topic.id, claim[0], pending)
        if key:
            self._keys_in_flight.pop((topic.id, key), None)
        if beside.is_stream:
            self._state.staged_streams.end(topic, pending)

    def producer_landed(self, topic_id: int, id: str, ticket: Ticket[Appended]) -> None:
        """Forget that a producer's number was in flight: the one that has been for longest."""
        coming = self._claims[topic_id, id]
        assert coming[0][1] is ticket, (topic_id, id)
        if len(coming) == 1:
            del self._claims[topic_id, id]
        else:
            del coming[0]


def _in_flight(coming: list[_Coming], claim: ProducerClaim) -> Ticket[Appended] | None:
    """The append of a producer that has this number, which is one of its epoch that were admitted.

    What is in flight of an epoch has the numbers up to that of the last one, without a gap.
    """
    behind = coming[-1][0].sequence - claim.sequence
    if behind >= len(coming):
        return None
    known, ticket = coming[-1 - behind]
    return ticket if known.epoch == claim.epoch else None


def stored_before(topic: Topic, claim: ProducerClaim) -> Appended:
    """The answer to a number that the topic has of this producer: its own seqs, or none."""
    known = topic.producers
    assert known is not None
    newest, place = known.newest(claim.id), known.place_of(claim)
    assert newest is not None
    first = last = count = None
    head = topic.head
    if place is not None:
        first, count = place
        head = last = first + count - 1
    if count == 0:  # it closed a stream
        first = last = None
    return Appended(
        topic.name, topic.epoch, first, last, head, count, deduped=True,
        producer_sequence=newest.sequence,
    )  # fmt: skip


def refuse_after(first: Ticket[Appended], error: HeadraceError, ticket: Ticket[Appended]) -> None:
    """Refuse an append because of one in flight, when that has landed."""
    first.when_done(lambda done: ticket.fail(done.error if done.error is not None else error))


def _join(
    first: Ticket[Appended], topic: Topic, claim: ProducerClaim | None, ticket: Ticket[Appended]
) -> None:
    """Answer an append as the same one that is in flight, when that has landed."""

    def copy_answer(done: Ticket[Appended]) -> None:
        if done.error is not None:
            ticket.fail(done.error)
            return
        newest = topic.producers.newest(claim.id) if claim and topic.producers else None
        ticket.resolve(
            msgspec.structs.replace(
                done.result(), created=False, deduped=True,
                producer_sequence=newest.sequence if newest is not None else None,
            )
        )  # fmt: skip

    first.when_done(copy_answer)
