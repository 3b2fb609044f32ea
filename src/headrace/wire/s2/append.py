"""`POST /v1/streams/{stream}/records`: append a batch of records.

The requests of a turn are read one by one, and the engine is called once for all of them.  What is
wrong with a request itself is refused first, so that it creates no stream; then come the checks of
the engine.  How an append is put to the engine, and what its ack says, is the same in sessions
(`append_session.py`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from headrace.core.errors import FenceMismatch, HeadMismatch, OutOfResources, TopicNotFound
from headrace.core.limits import seq_max
from headrace.engine.appending.admission import Append
from headrace.engine.appending.pending_append import PendingAppend
from headrace.engine.streams.spec import StreamWrite
from headrace.wire.exchange import JSON, Exchange
from headrace.wire.s2 import json_records, protobuf, protobuf_input
from headrace.wire.s2.catalog.streams import OpenStream
from headrace.wire.s2.ciphers import RecordCipher
from headrace.wire.s2.data_requests import (
    DIALECT,
    PROTOBUF_TYPES,
    DataRequests,
    Target,
    media_type,
    wants_protobuf,
)
from headrace.wire.s2.errors import S2Refusal, stream_deletion_pending
from headrace.wire.s2.names import split_topic
from headrace.wire.s2.records import (
    AppendAck,
    AppendInput,
    Commands,
    Position,
    ack_of,
    batch_of,
    validate,
)
from headrace.wire.s2.requests import check_body_size, check_json_type
from headrace.wire.s2.stream_own import StreamOwn, decode_own

PLAIN_WRITE = StreamWrite()


class _Asked(NamedTuple):
    """A request whose append is on its way."""

    exchange: Exchange
    metered: int


class AppendApi:
    """Appends that are a request each."""

    def __init__(self, data: DataRequests) -> None:
        self._data = data
        self._engine = data.engine
        self._metrics = data.metrics
        self._now_ns = data.engine.runtime.clock.monotonic_ns

    def append_turn(self, exchanges: Sequence[Exchange]) -> None:
        """Append the bodies of all requests that a turn brought, at its end."""
        asked: list[PendingAppend] = []
        for exchange in exchanges:
            try:
                self._take(exchange, asked)
            except MemoryError:
                exchange.fail(OutOfResources.told("nothing"))
            except Exception as error:  # noqa: BLE001 - whatever it is, its client hears of it
                exchange.fail(error)
        if asked:
            self._engine.append_all(asked, self._answer, ends_turn=True)

    def _take(self, exchange: Exchange, asked: list[PendingAppend]) -> None:
        target = self._data.target(exchange)
        given = _decode(exchange)
        validate(given)
        allow_append(target, given.commands, len(given.bodies))
        exchange.body = b""  # its records are in columns now
        taken = False

        def append(opened: OpenStream) -> None:
            cipher = self._data.cipher(exchange, opened)
            pending = pending_append(self._data, opened.topic, opened.own, given, cipher)
            pending.caller = _Asked(exchange, given.metered)
            if taken:
                self._engine.append_all((pending,), self._answer)
            else:
                asked.append(pending)

        self._data.open(exchange, "append", target, append)
        taken = True

    def _answer(self, appends: Sequence[PendingAppend]) -> None:
        """Answer the requests of appends that are done."""
        for pending in appends:
            asked: _Asked = pending.caller
            exchange = asked.exchange
            if exchange.answered:
                continue
            if pending.error is not None:
                exchange.fail(_told(pending))
                continue
            try:
                ack = ack_for(pending)
                if wants_protobuf(exchange):
                    body, kind = protobuf.encode_append_ack(ack), protobuf.CONTENT_TYPE
                else:
                    body, kind = json_records.encode_append_ack(ack), JSON
                exchange.answer(200, body, kind)
                count_append(
                    self._data, pending, asked.metered, self._now_ns() - exchange.started_ns
                )
            except Exception as error:  # noqa: BLE001 - as above
                exchange.fail(error)


def _told(pending: PendingAppend) -> BaseException:
    """Why an append was refused: its stream was there when it came, so that was deleted since."""
    assert pending.error is not None
    if isinstance(pending.error, TopicNotFound):
        return stream_deletion_pending(*split_topic(pending.name))
    return pending.error


def _decode(exchange: Exchange) -> AppendInput:
    """The records of a request."""
    check_body_size(exchange)
    if media_type(exchange, b"content-type") in PROTOBUF_TYPES:
        return protobuf_input.decode_append_input(exchange.body)
    check_json_type(exchange)
    base64 = json_records.is_base64(exchange.headers.get(b"s2-format"))
    return json_records.decode_append_input(exchange.body, base64)


# What sessions do alike


def allow_append(target: Target, commands: Commands, records: int) -> None:
    """Raise unless the caller may append these: records, and each kind of command among them."""
    basin, stream, caller = target
    if records > len(commands.rows):
        caller.allow("append", basin, stream)
    if commands.fence is not None:
        caller.allow("fence", basin, stream)
    if commands.trims:
        caller.allow("trim", basin, stream)


def allow_session(target: Target) -> None:
    """Raise unless the caller may append something: records, or commands."""
    basin, stream, caller = target
    if not any(caller.may(op, basin, stream) for op in ("append", "fence", "trim")):
        caller.allow("append", basin, stream)


def pending_append(
    data: DataRequests,
    topic: str,
    own: StreamOwn,
    given: AppendInput,
    cipher: RecordCipher | None,
) -> PendingAppend:
    """An append of validated records, for the engine."""
    config = own.config
    if cipher is not None:
        seal(given, cipher)
    try:
        batch = batch_of(given, config.mode, config.uncapped, data.engine.clock.now_ms())
    except S2Refusal:
        _refuse_conditions(data, topic, given)
        raise
    write = _stream_write(given)
    how = Append(create=False, expected_head_seq=given.expected_head_seq, stream=write)
    return PendingAppend(data.engine.runtime, topic, batch, how)


def _refuse_conditions(data: DataRequests, name: str, given: AppendInput) -> None:
    """Raise if a condition is not met, which comes before what is wrong with timestamps.

    That is known here of a stream to which nothing is on its way.
    """
    info, topic = data.engine.streams.info(name), data.engine.find(name)
    if topic is None or topic.staged != info.head_seq:
        return
    if given.fencing_token is not None and given.fencing_token != info.state.fence:
        raise FenceMismatch(
            "another fencing token is in force", detail={"fencing_token": info.state.fence}
        )
    if given.match_seq_num is not None and given.match_seq_num != info.head_seq:
        raise HeadMismatch("the next seq_num is another", detail={"head_seq": info.head_seq})


def _stream_write(given: AppendInput) -> StreamWrite:
    """What an append asks of its stream beside its records."""
    commands = given.commands
    if given.fencing_token is None and not commands.rows:
        return PLAIN_WRITE
    trims = [(row, min(below, seq_max)) for row, below in commands.trims]
    row, trim = trims[0] if trims else (None, None)
    return StreamWrite(
        fencing_token=given.fencing_token,
        fence=commands.fence,
        trim=trim,
        trim_row=row,
        more_trims=trims[1:],
    )


def seal(given: AppendInput, cipher: RecordCipher) -> None:
    """Replace all records but commands by sealed ones."""
    commands = frozenset(given.commands.rows)
    headers = given.headers or [None] * len(given.bodies)
    for row, body in enumerate(given.bodies):
        if row not in commands:
            headers[row], given.bodies[row] = cipher.seal(headers[row], body)
    given.headers = headers


def ack_for(pending: PendingAppend) -> AppendAck:
    """What whoever appended is told, once it is stored."""
    block = pending.block
    assert block is not None
    end = Position(block.last_seq, block.ts)
    return ack_of(block.first_seq, block.ts_at(0), block.last_seq, block.ts, end)


def count_append(data: DataRequests, pending: PendingAppend, metered: int, ns: int) -> None:
    """Count an append that was acknowledged."""
    topic, block = pending.topic, pending.block
    assert topic is not None and block is not None
    durability = topic.config.durability
    assert durability is not None  # as every topic has one
    data.metrics.appended(durability, DIALECT, block.count, metered, ns)
    if topic.stream is not None:
        storage_class = decode_own(topic.stream.own).config.storage_class
        data.catalog.usage.appended(split_topic(topic.name)[0], storage_class, metered)
