"""`POST /v0/topics/{topic}`: append records.

The hot path of the whole server: the requests of a turn are decoded one by one, and the engine is
called once for all of them.  Order of the refusals: content
type, JSON, the right to configure, then what the engine checks.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Final, NamedTuple

import msgspec

from headrace.api.records import AppendBody, Draft
from headrace.core.errors import Forbidden, InvalidRequest, OutOfResources
from headrace.core.limits import own_topic_prefix
from headrace.core.settings import Settings
from headrace.engine.appending.admission import PLAIN, Append, Records, check_batch
from headrace.engine.appending.pending_append import PendingAppend
from headrace.engine.appending.producers import ProducerClaim
from headrace.engine.engine import Engine
from headrace.metrics.requests import Metrics
from headrace.storage.block import AnyBatch, Batch
from headrace.wire.bodies import check_json_type, decode_json
from headrace.wire.exchange import ARROW_STREAM, JSON, Exchange
from headrace.wire.native.answers import encode
from headrace.wire.native.append_answers import LogTimes, given, log_times, milliseconds
from headrace.wire.native.request_checks import (
    check_dead_letter,
    check_new_name,
    check_not_own,
    check_told_u64,
)
from headrace.wire.native.vocabulary import Vocabulary
from headrace.wire.queries import flag, query_of
from headrace.wire.routes import ADMIN

_DECODER: Final = msgspec.json.Decoder(AppendBody)
_META_DECODER: Final = msgspec.json.Decoder(dict[str, msgspec.Raw])
_NULL: Final = msgspec.Raw(b"null")  # equal to a `Raw` only
_PRODUCER_HEADERS: Final = (b"producer-id", b"producer-epoch", b"producer-seq")
_CONDITION_HEADERS: Final = frozenset((b"idempotency-key", *_PRODUCER_HEADERS))


class _Head(NamedTuple):
    """What the head of an append says."""

    conditional: bool  # its headers have conditions
    with_seqs: bool
    begins: str  # the answer, up to the name


class AppendApi:
    """Appends in one vocabulary."""

    def __init__(
        self, engine: Engine, settings: Settings, metrics: Metrics, vocabulary: Vocabulary
    ) -> None:
        self._engine = engine
        self._settings = settings
        self._metrics = metrics
        self._vocabulary = vocabulary
        self._noun = vocabulary.noun
        self._topics = engine.topics_by_name
        self._runtime = engine.runtime
        self._now_ns = engine.runtime.clock.monotonic_ns

    def append(self, exchange: Exchange) -> None:
        """Append the records of a JSON or an Arrow body."""
        self._append_all((exchange,), ends_turn=False)

    def append_turn(self, exchanges: Sequence[Exchange]) -> None:
        """Append the records of all requests that a turn brought, at its end."""
        self._append_all(exchanges, ends_turn=True)

    def _append_all(self, exchanges: Sequence[Exchange], *, ends_turn: bool) -> None:
        asked = []
        for exchange in exchanges:
            try:
                pending = self._asked(exchange)
                if pending is not None:
                    asked.append(pending)
            except Exception as error:  # noqa: BLE001 - whatever it is, its client hears of it
                exchange.fail(error)
        if asked:
            self._engine.append_all(asked, self._answer, ends_turn=ends_turn)

    def _asked(self, exchange: Exchange) -> PendingAppend | None:
        """What a request asks for; None of columns, which are decoded elsewhere first."""
        memo = exchange.memo
        head = None if memo is None else memo.get(self)
        if head is None:
            head = self._head_of(exchange)
            if head is None:
                self._append_arrow(exchange)
                return None
        assert type(head) is _Head
        body = decode_json(exchange.body, _DECODER)
        name = exchange.params[0]
        how = PLAIN
        if head.conditional or not is_plain(body):
            how = self._conditions(exchange, body, name)
        try:
            batch = self.batch_of(body)
        except MemoryError:
            raise OutOfResources.told("nothing") from None
        if name not in self._topics:
            self.check_new(name, batch, how)
        elif name[0] == own_topic_prefix:
            check_not_own(name)
        return PendingAppend(self._runtime, name, batch, how, (exchange, head))

    def _head_of(self, exchange: Exchange) -> _Head | None:
        """What the head of a request says, kept with it; None: the body has columns."""
        headers = exchange.headers
        if headers.get(b"content-type") != JSON:
            if headers.get(b"content-type", b"").startswith(ARROW_STREAM):
                return None
            check_json_type(exchange)
        with_seqs = not exchange.query or flag(query_of(exchange), "return_seqs", True)
        conditional = not _CONDITION_HEADERS.isdisjoint(headers)
        head = _Head(conditional, with_seqs, self._begins(exchange))
        if exchange.memo is not None:
            exchange.memo[self] = head
        return head

    def _begins(self, exchange: Exchange) -> str:
        """What the answer begins with, up to the name of the topic."""
        return f'{{"{self._noun}":{encode(exchange.params[0]).decode()}'

    def _append_arrow(self, exchange: Exchange) -> None:
        from headrace.wire.native.arrow import decode_append, when_done

        when_done(
            self._engine.runtime,
            exchange,
            len(exchange.body),
            partial(decode_append, exchange.body, self._settings),
            partial(self._append_columns, exchange),
        )

    def _append_columns(self, exchange: Exchange, batch: AnyBatch) -> None:
        name = exchange.params[0]
        query = query_of(exchange)
        how = self._header_conditions(exchange)
        expected = exchange.header(b"expected-head-seq") or query.get("expected_head_seq")
        if expected is not None:
            how = how._replace(expected_head_seq=whole_number("expected_head_seq", expected))
        if "create" in query:
            how = how._replace(create=flag(query, "create", True))
        if flag(query, "disable_backpressure", False):
            how = how._replace(disable_backpressure=True)
        if name not in self._topics:
            self.check_new(name, batch, how)
        elif name[0] == own_topic_prefix:
            check_not_own(name)
        head = _Head(how is not PLAIN, flag(query, "return_seqs", False), self._begins(exchange))
        pending = PendingAppend(self._runtime, name, batch, how, (exchange, head))
        self._engine.append_all([pending], self._answer)

    # What was asked for

    def _conditions(self, exchange: Exchange, body: AppendBody, name: str) -> Append:
        """The conditions of an append, beside its records."""
        how = self._header_conditions(exchange)
        config = None
        if body.config and body.config != _NULL:
            self.check_admin(exchange, name)
            config = self._vocabulary.read_config(bytes(body.config))
            check_dead_letter(config, exchange.key)
        return how._replace(
            config=config,
            create=body.create,
            idempotency_key=body.idempotency_key or how.idempotency_key,
            expected_head_seq=check_told_u64("expected_head_seq", body.expected_head_seq),
            disable_backpressure=bool(body.disable_backpressure),
        )

    def _header_conditions(self, exchange: Exchange) -> Append:
        headers = exchange.headers
        key = headers.get(b"idempotency-key")
        text = None
        # An empty key is none, or all appends with one would count as repeats of the first.
        if key:
            try:
                text = key.decode()
            except UnicodeDecodeError:
                raise InvalidRequest("Idempotency-Key is not UTF-8", fix="send text") from None
        return Append(idempotency_key=text, producer=producer_of(exchange))

    def check_admin(self, exchange: Exchange, name: str) -> None:
        """Refuse a key that may not configure topics to create one with a config of its own."""
        key = exchange.key
        if key is not None and name not in self._topics and not key.allows_scope(ADMIN):
            raise Forbidden(
                "a config needs the scope admin",
                fix="leave `config` out, or use another key",
                detail={"topic": name},
            )

    def check_new(self, name: str, batch: Records, how: Append) -> None:
        """Refuse a bad name where it would be created, after anything that is wrong with a batch.

        The engine checks the batch again; that is paid once in the life of a topic.
        """
        check_batch(self._settings, batch, how)
        auto = True if how.config is None else how.config.auto_create
        if auto if how.create is None else how.create:
            check_new_name(name)

    def batch_of(self, body: AppendBody) -> Records:
        """The columns of the records, or the only one as it came."""
        records = body.records
        if len(records) == 1:
            record = records[0]
            if record.tag is None and record.node is None and body.node is None and not record.meta:
                data: msgspec.Raw = record.data
                return data
        return self._columns(records, body.node)

    def _columns(self, records: list[Draft], node: str | None) -> Batch:
        data = [record.data for record in records]
        count = len(records)
        tags: list[str | None] | None = [record.tag for record in records]
        nodes: list[str | None] | str | None = [record.node for record in records]
        metas = [record.meta for record in records]
        if tags.count(None) == count:  # type: ignore[union-attr]
            tags = None
        if nodes.count(None) == count:  # type: ignore[union-attr, arg-type]
            nodes = node
        elif node is not None:
            nodes = [node if own is None else own for own in nodes]  # type: ignore[union-attr]
        kept = self._metas(metas) if any(metas) else None
        return Batch(data, tags=tags, nodes=nodes, metas=kept)

    def _metas(self, metas: list[msgspec.Raw]) -> list[bytes | None] | None:
        keys_max = self._settings.meta_keys_max
        kept: list[bytes | None] = []
        for meta in metas:
            if not meta or meta == _NULL:
                kept.append(None)
                continue
            value = bytes(meta)
            # An object has at least four bytes a key, so most need no count.
            if value[:1] == b"{" and len(value) > 4 * keys_max:
                keys = len(_META_DECODER.decode(value))
                if keys > keys_max:
                    raise InvalidRequest(
                        f"meta has {keys} keys", fix=f"use at most {keys_max} at its top level"
                    )
            kept.append(value)
        return kept

    # The answer

    def _answer(self, appends: Sequence[PendingAppend]) -> None:
        """Answer the requests of appends that are done."""
        counted: dict[str, list[tuple[int, int, int]]] = {}
        now_ns = self._now_ns()
        said: LogTimes | None = None
        for pending in appends:
            exchange, head = pending.caller
            if exchange.answered:
                continue
            if pending.error is not None:
                exchange.fail(pending.error)
                continue
            try:
                topic = self._topics.get(pending.name)
                durability = None if topic is None else topic.config.durability
                if said is None or said.times is not pending.times or said.of != durability:
                    said = log_times(pending.times, durability)
                ns, size = now_ns - exchange.started_ns, len(exchange.body)
                total = milliseconds(ns)
                body = f"{head.begins}{given(pending, head.with_seqs)}{total}{said.body}"
                timing = f"total;dur={total}{said.timing}"
                exchange.answer(
                    201 if pending.created else 200,
                    body.encode(),
                    JSON,
                    ((b"server-timing", timing.encode()),),
                )
                if durability is not None and not pending.repeats:
                    count = 1 if pending.block is None else pending.block.count
                    counted.setdefault(durability, []).append((count, size, ns))
            except Exception as failure:  # noqa: BLE001 - whatever it is, the client hears of it
                exchange.fail(failure)
        for kind, counts in counted.items():
            self._metrics.appended_all(kind, "native", counts)


def is_plain(body: AppendBody) -> bool:
    """Whether a body has nothing but records."""
    return (
        body.idempotency_key is None
        and body.create is None
        and body.expected_head_seq is None
        and not body.config
        and not body.disable_backpressure
    )


def producer_of(exchange: Exchange) -> ProducerClaim | None:
    """What a producer says of its append in three headers, all or none."""
    values = [exchange.headers.get(name) for name in _PRODUCER_HEADERS]
    if values.count(None) == len(values):
        return None
    if None in values:
        raise InvalidRequest(
            "some Producer headers are missing",
            fix="send Producer-Id, Producer-Epoch and Producer-Seq together",
        )
    producer, epoch, sequence = (exchange.header(name) for name in _PRODUCER_HEADERS)
    return ProducerClaim(
        producer, whole_number("Producer-Epoch", epoch), whole_number("Producer-Seq", sequence)
    )


def whole_number(name: str, text: str) -> int:
    """A number in a header or a query.

    >>> whole_number("Producer-Seq", "12")
    12
    """
    if not (text.isascii() and text.isdigit() and len(text) <= 20):
        raise InvalidRequest(f"{name} is {text[:80]!r}", fix="send a whole number")
    return int(text)
