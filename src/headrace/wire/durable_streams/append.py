"""`POST /v1/stream/{path}`: append to a stream, close it, or both at once.

The hot path of this dialect: the requests of a turn are read one by one, and the engine is called
once for all of them.  What is wrong with the form of a request is refused first (400), then what
the engine checks, and last a body of JSON that is none.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Final

from headrace.core.error_frames import without_frames
from headrace.core.errors import (
    BatchTooLarge,
    HeadraceError,
    InvalidRequest,
    OffsetGone,
    OutOfResources,
)
from headrace.core.limits import seq_max
from headrace.core.runtime import Ticket
from headrace.engine.appending.admission import Append
from headrace.engine.appending.pending_append import Appended, PendingAppend
from headrace.engine.appending.producers import ProducerClaim
from headrace.engine.streams.spec import Position, StreamWrite
from headrace.wire.durable_streams.append_answers import (
    closed_headers,
    repeat_headers,
    stored_answers,
)
from headrace.wire.durable_streams.append_head import AppendHead
from headrace.wire.durable_streams.messages import messages_of
from headrace.wire.durable_streams.offsets import parse_offset
from headrace.wire.durable_streams.request_headers import (
    expected_offset,
    producer_of,
    producer_seq,
    stream_seq_of,
)
from headrace.wire.exchange import Exchange
from headrace.wire.failures import answering, failed
from headrace.wire.producer_headers import ProducerHeaders
from headrace.wire.server_context import ServerContext

_NO_SEQ: Final = seq_max  # no stream gets that far


class AppendApi:
    """Appends to streams."""

    def __init__(self, context: ServerContext, dialect: str) -> None:
        self._dialect = dialect  # a label of metrics
        self._engine = context.engine
        self._streams = context.engine.streams
        self._metrics = context.metrics
        self._messages_max = context.settings.records_per_append_max
        self._runtime = context.engine.runtime
        self._now_ns = context.engine.runtime.clock.monotonic_ns
        self._claim_of = ProducerHeaders(producer_of, producer_seq).claim_of

    def append(self, exchange: Exchange) -> None:
        """Append the body of a request, or close its stream."""
        self._append_all((exchange,), ends_turn=False)

    def append_turn(self, exchanges: Sequence[Exchange]) -> None:
        """Append the bodies of all requests that a turn brought, at its end."""
        self._append_all(exchanges, ends_turn=True)

    def check_head(self, exchange: Exchange) -> None:
        """Refuse what the head alone shows to be wrong."""
        head, headers = AppendHead(exchange), exchange.headers
        producer_of(headers)
        stream_seq_of(headers)
        expected_offset(headers)
        if head.media_type is None and not head.closes:
            raise _no_content_type()

    def _append_all(self, exchanges: Sequence[Exchange], *, ends_turn: bool) -> None:
        asked, runtime, claim_of = list[PendingAppend](), self._runtime, self._claim_of
        most = self._messages_max
        for exchange in exchanges:
            try:
                memo = exchange.memo
                known = None if memo is None else memo.get(self)
                head: AppendHead | None = known  # type: ignore[assignment]
                if head is None:
                    head = AppendHead(exchange)
                    if memo is not None:
                        memo[self] = head
                how, body = head.how, exchange.body
                if head.conditional:
                    how = self._conditions(exchange, head)
                elif head.numbered:
                    claim = claim_of(exchange.headers)
                    how = Append(None, False, None, claim, None, None, False, False, head.write)
                try:
                    records = messages_of(body, most) if body and head.is_json else body
                    if records is None:
                        raise InvalidRequest("an array without messages", fix="send at least one")
                except (BatchTooLarge, InvalidRequest) as error:
                    asked = self._append_before(asked)
                    self._answer_unread(exchange, head, how, without_frames(error))
                    continue
                if body:
                    if head.media_type is None:
                        raise _no_content_type()
                    asked.append(PendingAppend(runtime, head.name, records, how, (exchange, head)))
                    continue
                if not head.closes:
                    raise InvalidRequest(
                        "an append without a body", fix="send one, or `Stream-Closed: true`"
                    )
                asked = self._append_before(asked)
                self._close(exchange, head, how)
            except MemoryError:
                exchange.fail(OutOfResources.told("nothing"))
            except Exception as error:  # noqa: BLE001 - whatever it is, its client hears of it
                exchange.fail(error)
        if asked:
            self._engine.append_all(asked, self._answer, ends_turn=ends_turn)

    def _append_before(self, asked: list[PendingAppend]) -> list[PendingAppend]:
        """Append what came before something that is judged by it; return the list to go on with."""
        if not asked:
            return asked
        self._engine.append_all(asked, self._answer)
        return []

    # What was asked for

    def _conditions(self, exchange: Exchange, head: AppendHead) -> Append:
        """The conditions of an append whose values are its own."""
        headers = exchange.headers
        claim = self._claim_of(headers)
        write = StreamWrite(head.media_type, stream_seq_of(headers), head.closes)
        expected = self._expected(exchange, head.name)
        return Append(None, False, None, claim, expected, None, False, False, write)

    def _expected(self, exchange: Exchange, name: str) -> int | None:
        """The seq at which the stream has to end, if the append says so.

        One that no stream ends at stands for an offset of no place: whether that matters the engine
        says, which knows of what comes first, as a closed stream and a repeat do.
        """
        text = expected_offset(exchange.headers)
        if text is None:
            return None
        try:
            at = parse_offset(text)
            if isinstance(at, Position):
                return self._streams.resolve(name, at)
        except (InvalidRequest, OffsetGone):
            pass
        return _NO_SEQ

    def _answer_unread(
        self, exchange: Exchange, head: AppendHead, how: Append, error: HeadraceError
    ) -> None:
        """Answer an append whose body cannot be read: as any other one, if the stream takes none.

        So a repeat of what closed a stream is one, whatever its body is.
        """
        claim = how.producer
        assert how.stream is not None
        ticket = self._streams.answer_unread(head.name, how.stream, claim)
        if ticket is None:
            raise error

        def answer(ticket: Ticket[Appended]) -> None:
            if not failed(exchange, ticket):
                assert claim is not None  # nothing else tells a repeat
                self._answer_repeat(exchange, head.name, ticket.result(), claim)

        ticket.when_done(answering(exchange, answer))

    # Closing

    def _close(self, exchange: Exchange, head: AppendHead, how: Append) -> None:
        """Close a stream without a record."""
        claim, write = how.producer, how.stream
        assert write is not None
        if write.media_type is not None:  # there is nothing that it could be the type of
            write = StreamWrite(None, write.sequence, True)
        ticket = self._streams.close(head.name, write, claim, how.expected_head_seq)
        ticket.when_done(answering(exchange, partial(self._closed, exchange, head.name, claim)))

    def _closed(
        self, exchange: Exchange, name: str, claim: ProducerClaim | None, ticket: Ticket[Appended]
    ) -> None:
        if failed(exchange, ticket):
            return
        done = ticket.result()
        tail = self.tail(name) or Position(done.epoch, done.head_seq)
        if done.deduped and claim is not None:
            headers = repeat_headers(done, claim, tail)
        else:
            headers = closed_headers(claim, tail)
        exchange.answer(204, b"", b"", headers)

    # The answer

    def _answer(self, appends: Sequence[PendingAppend]) -> None:
        """Answer the requests of appends that are done."""
        stored, others = stored_answers(appends, self._now_ns())
        for answers in stored:
            answers.send(self._metrics, self._dialect)
        for pending in others:
            self._answer_other(pending)

    def _answer_other(self, pending: PendingAppend) -> None:
        """Answer an append that was refused, or had been stored before."""
        exchange: Exchange = pending.caller[0]
        if exchange.answered:
            return
        if pending.error is not None:
            exchange.fail(pending.error)
            return
        try:
            claim = pending.how.producer
            assert claim is not None  # nothing else tells a repeat
            self._answer_repeat(exchange, pending.name, pending.result(), claim)
        except Exception as failure:  # noqa: BLE001 - whatever it is, the client hears of it
            exchange.fail(failure)

    def _answer_repeat(
        self, exchange: Exchange, name: str, done: Appended, claim: ProducerClaim
    ) -> None:
        # Only what closed a stream is a repeat there: the rest is refused.
        state = self._engine.topics_by_name[name].stream
        tail = self.tail(name) if state is not None and state.closed else None
        exchange.answer(204, b"", b"", repeat_headers(done, claim, tail))

    def tail(self, name: str) -> Position | None:
        """Where a stream ends; None: it is not there."""
        try:
            return self._streams.info(name).tail
        except HeadraceError:
            return None


def _no_content_type() -> InvalidRequest:
    return InvalidRequest("no Content-Type", fix="send that of the stream")
