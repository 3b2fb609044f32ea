"""Queues of the native API: claim jobs, acknowledge them, give them back, hold them longer.

Only this file decides how these calls look and in which order their parts are checked.  A claim: an
empty body, the body, the topic, the node.  The others: the body, lease ids, the node, the number of
seqs, then the topic.  Claims and acks of a turn are decoded one by one, and the engine is called
once for all of them.  It decides which node gets which job; the stream of jobs is in
`queue_work.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Final, TypeVar

import msgspec

from headrace.api import queues as api
from headrace.core.errors import Forbidden, InvalidRequest
from headrace.core.limits import own_topic_prefix
from headrace.core.runtime import Ticket
from headrace.engine.engine import Engine
from headrace.engine.queues.answers import Extended, Nacked
from headrace.engine.queues.calls import Ack, Claim
from headrace.engine.queues.dead_letters import MOVE_JOBS_MAX, Redrive, Redriven
from headrace.metrics.requests import Metrics
from headrace.wire.bodies import decode, decode_json
from headrace.wire.exchange import JSON, Exchange, Key
from headrace.wire.failures import answering
from headrace.wire.native.answers import Timing, answer_object, encode, milliseconds
from headrace.wire.native.job_json import jobs_out
from headrace.wire.native.request_checks import U64_MAX, check_not_own, check_u64
from headrace.wire.native.topics import parse_match
from headrace.wire.native.vocabulary import BOXES, TOPICS, Vocabulary
from headrace.wire.response_memory import ResponseMemory
from headrace.wire.routes import ADMIN, READ, WRITE, Route

_CLAIM: Final = msgspec.json.Decoder(api.ClaimBody)
_ACK: Final = msgspec.json.Decoder(api.AckBody)
_NACK: Final = msgspec.json.Decoder(api.NackBody)
_EXTEND: Final = msgspec.json.Decoder(api.ExtendBody)
_REDRIVE: Final = msgspec.json.Decoder(api.RedriveBody)
_ALL: Final = api.RedriveBody()

T = TypeVar("T")


class QueueApi:
    """Queues in one vocabulary."""

    def __init__(
        self,
        engine: Engine,
        metrics: Metrics,
        memory: ResponseMemory,
        vocabulary: Vocabulary,
    ) -> None:
        self._engine = engine
        self._memory = memory
        self._queues = engine.queues
        self._metrics = metrics
        self._vocabulary = vocabulary
        self._clock = engine.runtime.clock
        self._runtime = engine.runtime

    # Jobs

    def claim(self, exchange: Exchange) -> None:
        """Lease jobs to a node."""
        self.claim_turn((exchange,))

    def claim_turn(self, exchanges: Sequence[Exchange]) -> None:
        """Lease jobs to all who asked for some in a turn, in their order."""
        asked = []
        for exchange in exchanges:
            if exchange.answered:
                continue  # its client left: nobody would do these jobs
            try:
                asked.append(self._claim_of(exchange))
            except Exception as error:  # noqa: BLE001 - whatever it is, its client hears of it
                exchange.fail(error)
        self._queues.claim_all(asked)
        for claim in asked:
            if not claim.done:
                topic = self._engine.find(claim.name)
                if topic is not None and topic.config.claim_jitter_ms:
                    # It waits for others to share with: a client that goes away gets no lease.
                    claim.caller[0].on_abort = claim.abandon

    def _claim_of(self, exchange: Exchange) -> Claim:
        """What a request for jobs asks for."""
        if not exchange.body:
            raise InvalidRequest("the body is empty", fix='send at least {"node":"..."}')
        begins, body = self._read(exchange, _CLAIM)
        lease_ms = check_u64("lease_ms", body.lease_ms)
        most = check_u64("max", body.max)
        return Claim(
            self._runtime,
            exchange.params[0],
            body.node,
            1 if most is None else most,
            lease_ms,
            fit=self._memory.fit,
            answered=self._claimed,
            caller=(exchange, begins),
        )

    def _claimed(self, claims: Sequence[Claim]) -> None:
        """Answer claims that are done."""
        now_ns, total = self._clock.monotonic_ns(), 0
        touched: set[str] = set()
        for claim in claims:
            exchange, begins = claim.caller
            claim.caller = None  # which may refer to the claim
            if exchange.answered:
                continue
            if claim.error is not None:
                exchange.fail(claim.error)
                continue
            try:
                done, count, jobs = claim.result(), 0, b"[]"
                if done.leased is not None:
                    count, jobs = len(done.leased.deliveries), encode(jobs_out(done.leased))
                    touched.add(done.topic)
                    total += count
                took = milliseconds(now_ns - exchange.started_ns)
                ends = (
                    f',"count":{count},"ready":{done.ready},'
                    f'"performance":{{"server_total_ms":{took}}}}}'
                )
                timing = (b"server-timing", f"total;dur={took}".encode())
                body = b'%b,"claimed":%b%b' % (begins, jobs, ends.encode())
                exchange.answer(200, body, JSON, (timing,))
            except Exception as failure:  # noqa: BLE001 - whatever it is, the client hears of it
                exchange.fail(failure)
        self._metrics.jobs("claimed", total)
        for name in touched:
            topic = self._engine.find(name)
            if topic is not None:
                self._engine.touch(topic)

    def ack(self, exchange: Exchange) -> None:
        """Delete jobs that are done."""
        self.ack_turn((exchange,))

    def ack_turn(self, exchanges: Sequence[Exchange]) -> None:
        """Delete the jobs of all acks that came in a turn, in their order."""
        asked = []
        for exchange in exchanges:
            try:
                begins, body = self._read(exchange, _ACK)
                asked.append(
                    Ack(
                        self._runtime, exchange.params[0], body.node, _seqs(body.seqs),
                        body.lease_ids, answered=self._acked, caller=(exchange, begins),
                    )
                )  # fmt: skip
            except Exception as error:  # noqa: BLE001 - whatever it is, its client hears of it
                exchange.fail(error)
        self._queues.ack_all(asked)

    def _acked(self, acks: Sequence[Ack]) -> None:
        """Answer acks that are done."""
        now_ns, total = self._clock.monotonic_ns(), 0
        for ack in acks:
            exchange, begins = ack.caller
            if exchange.answered:
                continue
            if ack.error is not None:
                exchange.fail(ack.error)
                continue
            try:
                done = ack.result()
                total += done.acked
                took = milliseconds(now_ns - exchange.started_ns)
                timing, synced = f"total;dur={took}", ""
                if done.sync_ns:
                    sync = milliseconds(done.sync_ns)
                    timing, synced = f"{timing}, fsync;dur={sync}", f',"fsync_ms":{sync}'
                skipped = encode(done.skipped).decode() if done.skipped else "[]"
                ends = (
                    f',"acked":{done.acked},"skipped":{skipped},"ready":{done.ready},'
                    f'"in_flight":{done.in_flight},'
                    f'"performance":{{"server_total_ms":{took}{synced}}}}}'
                )
                headers = ((b"server-timing", timing.encode()),)
                exchange.answer(200, begins + ends.encode(), JSON, headers)
            except Exception as failure:  # noqa: BLE001 - whatever it is, the client hears of it
                exchange.fail(failure)
        self._metrics.jobs("acked", total)

    def _read(self, exchange: Exchange, decoder: msgspec.json.Decoder[T]) -> tuple[bytes, T]:
        """What the answer to a request begins with, up to the name of the topic, and its body.

        What its head says is looked at once for all requests that have it.
        """
        memo = exchange.memo
        begins = None if memo is None else memo.get(self)
        if begins is not None:
            assert isinstance(begins, bytes)
            return begins, decode_json(exchange.body, decoder)
        body = decode(exchange, decoder)
        name = exchange.params[0]
        check_not_own(name)
        begins = f'{{"{self._vocabulary.noun}":'.encode() + encode(name)
        if memo is not None:
            memo[self] = begins
        return begins, body

    def nack(self, exchange: Exchange) -> None:
        """Give jobs back."""
        body = decode(exchange, _NACK)
        check_not_own(exchange.params[0])
        ticket = self._queues.nack(
            exchange.params[0],
            body.node,
            _seqs(body.seqs),
            check_u64("delay_ms", body.delay_ms) or 0,
            body.lease_ids,
        )

        def fields(done: Nacked) -> dict[str, object]:
            self._metrics.jobs("nacked", done.nacked)
            return {
                "nacked": done.nacked,
                "skipped": done.skipped,
                "ready": done.ready,
                "in_flight": done.in_flight,
            }

        self._answer(exchange, ticket, fields)

    def extend(self, exchange: Exchange) -> None:
        """Hold jobs longer."""
        body = decode(exchange, _EXTEND)
        check_not_own(exchange.params[0])
        lease_ms = check_u64("lease_ms", body.lease_ms)
        assert lease_ms is not None
        ticket = self._queues.extend(
            exchange.params[0], body.node, _seqs(body.seqs), lease_ms, body.lease_ids
        )

        def fields(done: Extended) -> dict[str, object]:
            self._metrics.jobs("extended", done.extended)
            return {
                "extended": done.extended,
                "skipped": done.skipped,
                "deadlines": done.deadlines,
            }

        self._answer(exchange, ticket, fields)

    # Dead letters

    def redrive(self, exchange: Exchange) -> None:
        """Move dead letters back to where they came from, a step at a time."""
        body = decode(exchange, _REDRIVE) if exchange.body else _ALL
        check_not_own(exchange.params[0])
        key = exchange.key
        if key is not None and body.to is not None and not key.allows_name(body.to):
            raise Forbidden(
                f"this key may not write to {body.to!r}",
                fix="name a queue with one of its prefixes",
                detail={"topic": body.to},
            )
        asked = Redrive(
            match=None if body.match is None else parse_match(body.match),
            meta=body.meta or {},
            source=body.to,
            from_seq=check_u64("from_seq", body.from_seq) or 0,
            limit=check_u64("limit", body.limit) or MOVE_JOBS_MAX,
        )
        asked = msgspec.structs.replace(asked, allowed=partial(_may_get, key))

        def fields(done: Redriven) -> dict[str, object]:
            self._metrics.jobs("redriven", done.moved)
            return {
                "moved": done.moved,
                "skipped": done.skipped,
                "next_from_seq": done.next_from_seq,
                "done": done.done,
            }

        self._answer(exchange, self._queues.redrive(exchange.params[0], asked), fields)

    def _answer(
        self,
        exchange: Exchange,
        ticket: Ticket[T],
        fields: Callable[[T], dict[str, object]],
    ) -> None:
        name = exchange.params[0]

        def answer(ticket: Ticket[T]) -> None:
            if exchange.answered:
                return
            if ticket.error is not None:
                exchange.fail(ticket.error)
                return
            done = ticket.result()
            body = encode({self._vocabulary.noun: name, **fields(done)})
            answer_object(exchange, 200, body, Timing(exchange, self._clock))

        ticket.when_done(answering(exchange, answer))


def _may_get(key: Key | None, name: str) -> bool:
    """Return whether dead letters may go to this queue, whatever source they name."""
    return not name.startswith(own_topic_prefix) and (key is None or key.allows_name(name))


def _seqs(seqs: list[int]) -> list[int]:
    """Return seqs as they were sent; refuse those beyond 64 bits."""
    if seqs and max(seqs) > U64_MAX:
        raise InvalidRequest(f"a seq is {max(seqs)}", fix="send whole numbers of 64 bits")
    return seqs


def queue_routes(engine: Engine, metrics: Metrics, memory: ResponseMemory) -> list[Route]:
    """Return the rows of the route table, in both vocabularies."""
    return [
        route
        for vocabulary in (TOPICS, BOXES)
        for route in _routes(QueueApi(engine, metrics, memory, vocabulary), vocabulary)
    ]


def _routes(queue: QueueApi, vocabulary: Vocabulary) -> list[Route]:
    one = f"/v0/{vocabulary.plural}/{{{vocabulary.noun}}}"
    write = frozenset({WRITE})
    hidden = vocabulary is not TOPICS
    return [
        Route(
            "POST", one + "/claim", queue.claim, frozenset({READ, WRITE}),
            "Lease jobs of a queue to a node",
            request=api.ClaimBody, response=api.Claimed, hidden=hidden,
            turn_handler=queue.claim_turn,
        ),
        Route(
            "POST", one + "/ack", queue.ack, write,
            "Jobs are done: delete them",
            request=api.AckBody, response=api.Acked, hidden=hidden, turn_handler=queue.ack_turn,
        ),
        Route(
            "POST", one + "/nack", queue.nack, write,
            "Give jobs back, at once or after a delay",
            request=api.NackBody, response=api.Nacked, hidden=hidden,
        ),
        Route(
            "POST", one + "/extend", queue.extend, write,
            "Hold jobs longer",
            request=api.ExtendBody, response=api.Extended, hidden=hidden,
        ),
        Route(
            "POST", one + "/redrive", queue.redrive, frozenset({ADMIN, WRITE}),
            "Move dead letters back to their queues",
            request=api.RedriveBody, response=api.Redriven, hidden=hidden,
        ),
    ]  # fmt: skip
