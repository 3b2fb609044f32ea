"""Queues of the native API: claim jobs, acknowledge them, give them back, hold them longer.

Only this file decides how these calls look and in which order their parts are checked.  A claim: an
empty body, the body, the topic, the node.  The others: the body, lease ids, the node, the number of
seqs, then the topic.  The engine decides which node gets which job; the stream of jobs is in
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
from headrace.engine.queues.answers import Acked, Claimed, Extended, Job, Nacked
from headrace.engine.queues.dead_letters import MOVE_JOBS_MAX, Redrive, Redriven
from headrace.metrics.requests import Metrics
from headrace.wire.bodies import decode
from headrace.wire.exchange import Exchange, Key
from headrace.wire.failures import answering
from headrace.wire.native.answers import Timing, answer_object, encode
from headrace.wire.native.record_json import payload_and_meta
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
Parts = Sequence[tuple[str, int]]


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

    # Jobs

    def claim(self, exchange: Exchange) -> None:
        """Lease jobs to a node."""
        if not exchange.body:
            raise InvalidRequest("the body is empty", fix='send at least {"node":"..."}')
        body = decode(exchange, _CLAIM)
        check_not_own(exchange.params[0])
        lease_ms = check_u64("lease_ms", body.lease_ms)
        most = check_u64("max", body.max)
        ticket = self._queues.claim(
            exchange.params[0],
            body.node,
            1 if most is None else most,
            lease_ms,
            bytes_max=self._memory.fit(self._engine.settings.claim_bytes_max),
        )

        def fields(done: Claimed) -> dict[str, object]:
            jobs = done.jobs
            self._metrics.jobs("claimed", len(jobs))
            topic = self._engine.find(done.topic)
            if jobs and topic is not None:
                self._engine.touch(topic)
            claimed = [job_out(job) for job in jobs]
            return {"claimed": claimed, "count": len(jobs), "ready": done.ready}

        topic = self._engine.find(exchange.params[0])
        if not ticket.done and topic is not None and topic.config.claim_jitter_ms:
            # It waits for other claims to share with: a client that goes away gets no lease.
            exchange.on_abort = ticket.abandon
        self._answer(exchange, ticket, fields)

    def ack(self, exchange: Exchange) -> None:
        """Delete jobs that are done."""
        body = decode(exchange, _ACK)
        check_not_own(exchange.params[0])
        ticket = self._queues.ack(exchange.params[0], body.node, _seqs(body.seqs), body.lease_ids)

        def fields(done: Acked) -> dict[str, object]:
            self._metrics.jobs("acked", done.acked)
            return {
                "acked": done.acked,
                "skipped": done.skipped,
                "ready": done.ready,
                "in_flight": done.in_flight,
            }

        def parts(done: Acked) -> Parts:
            return (("fsync", done.sync_ns),) if done.sync_ns else ()

        self._answer(exchange, ticket, fields, parts)

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
        parts: Callable[[T], Parts] = lambda _done: (),
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
            answer_object(exchange, 200, body, Timing(exchange, self._clock, parts(done)))

        ticket.when_done(answering(exchange, answer))


def job_out(job: Job) -> api.JobOut:
    """Return a job as it is shown."""
    data, meta = payload_and_meta(job.data, job.meta, job.kind)
    tag = msgspec.UNSET if job.tag is None else job.tag
    return api.JobOut(job.seq, job.lease_id, job.deadline, job.ts, job.deliveries, data, tag, meta)


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
        ),
        Route(
            "POST", one + "/ack", queue.ack, write,
            "Jobs are done: delete them",
            request=api.AckBody, response=api.Acked, hidden=hidden,
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
