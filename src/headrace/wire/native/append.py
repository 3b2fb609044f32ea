"""`POST /v0/topics/{topic}`: append records.

The hot path of the whole server: the requests of a turn are decoded one by one, and the engine is
called once for all of them.  Order of the refusals: content
type, JSON, the right to configure, then what the engine checks.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from operator import attrgetter
from typing import Final

import msgspec
from msgspec.structs import replace

from headrace.api.records import AppendBody
from headrace.core.errors import Forbidden, InvalidRequest, OutOfResources
from headrace.core.limits import own_topic_prefix
from headrace.core.settings import Settings
from headrace.engine.appending.admission import PLAIN, Append, Records, check_batch
from headrace.engine.appending.pending_append import PendingAppend
from headrace.engine.appending.producers import ProducerClaim
from headrace.engine.engine import Engine
from headrace.metrics.requests import Metrics
from headrace.storage.block import AnyBatch
from headrace.wire.bodies import check_json_type
from headrace.wire.exchange import ARROW_STREAM, JSON, Exchange, sent_once
from headrace.wire.native.answers import SERVER_TIMING, encode, milliseconds
from headrace.wire.native.append_answers import (
    AppendHead,
    log_times,
    repeat_body,
    stored_answers,
)
from headrace.wire.native.append_records import batch_of, decode_append
from headrace.wire.native.request_checks import (
    check_dead_letter,
    check_new_name,
    check_not_own,
    check_told_u64,
)
from headrace.wire.native.vocabulary import Vocabulary
from headrace.wire.producer_headers import PRODUCER_HEADERS, ProducerHeaders
from headrace.wire.queries import flag, query_of
from headrace.wire.routes import ADMIN

_NULL: Final = msgspec.Raw(b"null")  # equal to a `Raw` only
_CONDITION_HEADERS: Final = frozenset((b"idempotency-key", *PRODUCER_HEADERS))
# What a body may have beside its records, and what that is of most bodies: see `is_plain`.
_BESIDE: Final = attrgetter(
    "idempotency_key", "create", "expected_head_seq", "config", "disable_backpressure"
)
_NOTHING: Final = (None,) * 5


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
        self._claim_of = ProducerHeaders(producer_of, _producer_seq).claim_of

    def append(self, exchange: Exchange) -> None:
        """Append the records of a JSON or an Arrow body."""
        self._append_all((exchange,), ends_turn=False)

    def append_turn(self, exchanges: Sequence[Exchange]) -> None:
        """Append the records of all requests that a turn brought, at its end."""
        self._append_all(exchanges, ends_turn=True)

    def _append_all(self, exchanges: Sequence[Exchange], *, ends_turn: bool) -> None:
        asked, topics, runtime = list[PendingAppend](), self._topics, self._runtime
        meta_keys_max = self._settings.meta_keys_max
        records_max = self._settings.records_per_append_max
        for exchange in exchanges:
            try:
                memo = exchange.memo
                known = None if memo is None else memo.get(self)
                head: AppendHead | None = known  # type: ignore[assignment]
                if head is None:
                    head = self._head_of(exchange)
                    if head is None:  # columns, which are decoded elsewhere first
                        self._append_arrow(exchange)
                        continue
                body = decode_append(exchange.body, records_max)
                name, how = head.name, PLAIN
                if head.conditional or (_BESIDE(body) != _NOTHING and not is_plain(body)):
                    how = self._conditions(exchange, body, name)
                batch = batch_of(body, meta_keys_max)
                if name not in topics:
                    self.check_new(name, batch, how)
                elif name[0] == own_topic_prefix:
                    check_not_own(name)
                asked.append(PendingAppend(runtime, name, batch, how, (exchange, head)))
            except MemoryError:
                exchange.fail(OutOfResources.told("nothing"))
            except Exception as error:  # noqa: BLE001 - whatever it is, its client hears of it
                exchange.fail(error)
        if asked:
            self._engine.append_all(asked, self._answer, ends_turn=ends_turn)

    def _head_of(self, exchange: Exchange) -> AppendHead | None:
        """What the head of a request says, kept with it; None: the body has columns."""
        headers = exchange.headers
        if headers.get(b"content-type") != JSON:
            if headers.get(b"content-type", b"").startswith(ARROW_STREAM):
                return None
            check_json_type(exchange)
        with_seqs = not exchange.query or flag(query_of(exchange), "return_seqs", True)
        conditional = not _CONDITION_HEADERS.isdisjoint(headers)
        name = exchange.params[0]
        head = AppendHead(name, self._begins(name), conditional=conditional, with_seqs=with_seqs)
        if exchange.memo is not None:
            exchange.memo[self] = head
        return head

    def _begins(self, name: str) -> str:
        """What the answer begins with, up to the name of the topic."""
        return f'{{"{self._noun}":{encode(name).decode()}'

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
        headers = exchange.headers
        how = Append(idempotency_key=key_of(headers), producer=producer_of(headers))
        expected = exchange.header(b"expected-head-seq") or query.get("expected_head_seq")
        if expected is not None:
            how = replace(how, expected_head_seq=whole_number("expected_head_seq", expected))
        if "create" in query:
            how = replace(how, create=flag(query, "create", True))
        if flag(query, "disable_backpressure", False):
            how = replace(how, disable_backpressure=True)
        if name not in self._topics:
            self.check_new(name, batch, how)
        elif name[0] == own_topic_prefix:
            check_not_own(name)
        with_seqs = flag(query, "return_seqs", False)
        head = AppendHead(
            name, self._begins(name), conditional=how is not PLAIN, with_seqs=with_seqs
        )
        pending = PendingAppend(self._runtime, name, batch, how, (exchange, head))
        self._engine.append_all([pending], self._answer)

    # What was asked for

    def _conditions(self, exchange: Exchange, body: AppendBody, name: str) -> Append:
        """The conditions of an append, beside its records."""
        headers = exchange.headers
        key = key_of(headers)
        producer = self._claim_of(headers)
        config = None
        if body.config and body.config != _NULL:
            self.check_admin(exchange, name)
            config = self._vocabulary.read_config(bytes(body.config))
            check_dead_letter(config, exchange.key)
        expected = body.expected_head_seq
        if expected is not None:
            expected = check_told_u64("expected_head_seq", expected)
        # By their places: names cost half of what it takes.
        return Append(
            config, body.create, body.idempotency_key or key, producer, expected, None,
            bool(body.disable_backpressure),
        )  # fmt: skip

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
        """The columns of the records of a body, or the only one as it came."""
        return batch_of(body, self._settings.meta_keys_max)

    # The answer

    def _answer(self, appends: Sequence[PendingAppend]) -> None:
        """Answer the requests of appends that are done."""
        stored, others = stored_answers(appends, self._now_ns())
        for answers in stored:
            answers.send(self._metrics)
        for pending in others:
            self._answer_other(pending)

    def _answer_other(self, pending: PendingAppend) -> None:
        """Answer an append that was refused, or had been stored before."""
        exchange, head = pending.caller
        if exchange.answered:
            return
        if pending.error is not None:
            exchange.fail(pending.error)
            return
        try:
            topic = self._topics.get(pending.name)
            said = log_times(pending.times, None if topic is None else topic.config.durability)
            total = milliseconds(self._now_ns() - exchange.started_ns)
            timing = f"total;dur={total}{said.timing}".encode()
            body = repeat_body(pending, head, total, said)
            exchange.answer(200, body, JSON, ((SERVER_TIMING, timing),))
        except Exception as failure:  # noqa: BLE001 - whatever it is, the client hears of it
            exchange.fail(failure)


def is_plain(body: AppendBody) -> bool:
    """Whether a body has nothing but records."""
    return (
        body.idempotency_key is None
        and body.create is None
        and body.expected_head_seq is None
        and not body.config
        and not body.disable_backpressure
    )


def key_of(headers: Mapping[bytes, bytes]) -> str | None:
    """The idempotency key of an append, by its header."""
    key = sent_once(headers, "Idempotency-Key")
    if not key:  # an empty key is none, or all appends with one would count as repeats of the first
        return None
    try:
        return key.decode()
    except UnicodeDecodeError:
        raise InvalidRequest("Idempotency-Key is not UTF-8", fix="send text") from None


def producer_of(headers: Mapping[bytes, bytes]) -> ProducerClaim | None:
    """What a producer says of its append in three headers, all or none."""
    id, epoch, sequence = map(headers.get, PRODUCER_HEADERS)
    if id is None or epoch is None or sequence is None:
        if id is epoch is sequence:
            return None
        raise InvalidRequest(
            "some Producer headers are missing",
            fix="send Producer-Id, Producer-Epoch and Producer-Seq together",
        )
    sent_once(headers, "Producer-Id")  # the others are no numbers if there are two of them
    number = whole_number("Producer-Epoch", epoch.decode("latin-1"))
    return ProducerClaim(id.decode("latin-1"), number, _producer_seq(sequence))


def _producer_seq(sent: bytes) -> int:
    if sent.isdigit() and len(sent) <= 20:
        return int(sent)
    return whole_number("Producer-Seq", sent.decode("latin-1"))


def whole_number(name: str, text: str) -> int:
    """A number in a header or a query.

    >>> whole_number("Producer-Seq", "12")
    12
    """
    if not (text.isascii() and text.isdigit() and len(text) <= 20):
        raise InvalidRequest(f"{name} is {text[:80]!r}", fix="send a whole number")
    return int(text)
