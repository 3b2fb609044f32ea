"""Claims: gathered, dealt out, read, leased, logged, answered.

Only this file hands out jobs.  Claims that come within `claim_jitter_ms` of a first one share what
there is, one job each in turn, each under its own lease time.  Jobs are leased when their records
are there to be sent, so that a slow disk takes nothing from the time of a lease.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import msgspec
from pyroaring import BitMap64

from headrace.core.errors import HeadraceError, Throttled, TopicNotFound
from headrace.core.runtime import Ticket
from headrace.engine.core_state import Core
from headrace.engine.queues.answers import LEASE_PREFIX, Claimed, Job, counts_of
from headrace.engine.queues.moves import Mover
from headrace.engine.queues.order import shares
from headrace.engine.queues.rows import read_jobs
from headrace.engine.queues.state import TOKEN_MASK, Grant, QueueState
from headrace.engine.queues.workers import Workers
from headrace.engine.topic import Topic
from headrace.storage.block import Rows
from headrace.storage.frame import ENTRY_QUEUE, EVENT_CLAIM, Held, QueueEvent

# Tokens of one run are this far apart, so that lease ids of different claims do not meet.
TOKEN_STRIDE = 0x9E37_79B9_7F4A_7C15
COHORT_JOBS_MAX = 4_000  # dealt out at a time, so that the loop is not held for long
TRIES_MAX = 16  # of a claim that finds damaged jobs and nothing else

_Record = tuple[int, int, bytes, int, str | None, bytes | None]


class Claim(msgspec.Struct, eq=False):
    ticket: Ticket[Claimed]
    node: str
    want: int
    lease_ms: int
    connection: int | None
    bytes_max: int  # of its jobs, beyond the first
    after: Ticket[None] | None = None  # dead letters to be moved before it is answered
    tries: int = 0  # that found nothing but damaged jobs


class Claims:
    """The claims of one engine."""

    def __init__(
        self,
        core: Core,
        mover: Mover,
        workers: Workers,
        look: Callable[[Topic], QueueState],
    ) -> None:
        self._core = core
        self._mover = mover
        self._workers = workers
        self._look = look  # the queue, with everything overdue taken back
        self._tokens = core.random.u64()
        self._cohorts: dict[int, list[Claim]] = {}

    def claim(self, topic: Topic, claim: Claim) -> None:
        """Answer now, or with the others that come within the topic's window."""
        window_ms = topic.config.claim_jitter_ms
        if not window_ms:
            self._serve(topic, [claim])
            return
        cohort = self._cohorts.get(topic.id)
        if cohort is None:
            self._cohorts[topic.id] = [claim]
            self._core.runtime.later(window_ms, lambda: self._deal(topic))
            return
        claims_max = self._core.settings.claims_waiting_max
        if len(cohort) >= claims_max:
            raise Throttled(
                f"{len(cohort)} claims of {topic.name!r} are waiting",
                fix="retry after a moment, or raise HEADRACE_CLAIMS_WAITING_MAX",
                detail={"limit": "claims_waiting_max", "max": claims_max},
            )
        cohort.append(claim)

    def forget(self, topic: Topic) -> None:
        """A topic was deleted."""
        for claim in self._cohorts.pop(topic.id, ()):
            claim.ticket.fail(TopicNotFound.named(topic.name))

    def _deal(self, topic: Topic) -> None:
        cohort = self._cohorts.pop(topic.id, [])
        waiting = [
            claim
            for claim in cohort
            if not claim.ticket.abandoned and not self._workers.is_gone(claim.connection)
        ]
        if waiting:
            self._serve(topic, waiting)
            self._workers.stir(topic)

    def _serve(self, topic: Topic, claims: list[Claim]) -> None:
        """Deal out what there is among claims that came together."""
        queue = self._look(topic)
        if queue.spent:
            moved = self._mover.bury(topic, queue)
            for claim in claims:
                claim.after = moved
        wanted = sum([claim.want << claim.tries for claim in claims])
        jobs_max = self._core.settings.jobs_out_max
        seqs = queue.take(min(wanted, COHORT_JOBS_MAX), topic.span, jobs_max)
        if not seqs and len(queue.deliveries) >= jobs_max and queue.ready(topic.count) > 0:
            full = Throttled(
                f"{len(queue.deliveries)} jobs of {topic.name!r} are delivered and not done",
                fix="acknowledge jobs, or raise HEADRACE_JOBS_OUT_MAX",
                detail={"limit": "jobs_out_max", "max": jobs_max},
            )
            for claim in claims:
                claim.ticket.fail(full)
            return
        if len(claims) == 1:
            self._read(topic, queue, claims[0], seqs)
            return
        start = 0
        for claim, share in zip(claims, shares(len(seqs), [c.want for c in claims]), strict=True):
            self._read(topic, queue, claim, seqs[start : start + share])
            start += share

    def _read(self, topic: Topic, queue: QueueState, claim: Claim, seqs: Sequence[int]) -> None:
        if not seqs:
            self._answer(topic, claim, [])
            return
        later = False

        def done(rows: list[Rows], damaged: list[int], error: BaseException | None) -> None:
            # What was deleted while files were read is not ours any more.
            mine = list(queue.busy & BitMap64(seqs)) if later else seqs
            if error is None and not topic.live:
                error = TopicNotFound.named(topic.name)
            if error is not None:
                queue.give_back(mine)
                claim.ticket.fail(error)
                return
            if damaged:
                bad = BitMap64(mine) & BitMap64(damaged)
                queue.set_aside(bad, self._core.clock.now_ms())
                self._workers.arm(topic)
                mine = list(BitMap64(mine) - bad)
                if not mine and claim.tries < TRIES_MAX:
                    # Nobody is to come back for jobs that are there; more at a time, since many
                    # may be damaged.
                    claim.tries += 1
                    self._core.runtime.soon(lambda: self._again(topic, claim))
                    return
            if self._workers.is_gone(claim.connection) or claim.ticket.abandoned:
                self._deliver(topic, queue, claim, mine, [])
            else:
                records = self._fitting(rows, set(mine) if later else None, claim.bytes_max)
                self._deliver(topic, queue, claim, mine, records[: claim.want])
            if damaged:
                self._workers.stir(topic)

        later = not read_jobs(self._core, topic, seqs, claim.bytes_max, done)
        if later:
            queue.busy.update(seqs)

    def _again(self, topic: Topic, claim: Claim) -> None:
        if topic.live:
            self._serve(topic, [claim])
        else:
            claim.ticket.fail(TopicNotFound.named(topic.name))

    def _fitting(self, rows: list[Rows], alive: set[int] | None, left: int) -> list[_Record]:
        """The records that go into one answer: those that are alive, up to the bound in bytes."""
        records: list[_Record] = []
        size = 0
        for some in rows:
            count = len(some)
            none = (None,) * count
            stamps = (some.ts,) * count if isinstance(some.ts, int) else some.ts
            kinds = (some.kinds,) * count if isinstance(some.kinds, int) else some.kinds
            metas = some.metas or none
            records.extend(
                zip(some.seqs, stamps, some.data, kinds, some.tags or none, metas, strict=True)
            )
            size += sum(map(len, some.data))
            if some.metas is not None:
                size += sum([len(meta) for meta in some.metas if meta])
        if alive is not None:
            records = [record for record in records if record[0] in alive]
        if size <= left:
            return records
        for index, record in enumerate(records):
            left -= len(record[2]) + len(record[5] or b"")
            if left < 0:
                return records[: max(index, 1)]
        return records

    def _deliver(
        self,
        topic: Topic,
        queue: QueueState,
        claim: Claim,
        seqs: Sequence[int],
        records: list[_Record],
    ) -> None:
        """Lease what was read, log it, answer."""
        core = self._core
        taken = [record[0] for record in records]
        if len(taken) < len(seqs):
            queue.give_back(BitMap64(seqs) - BitMap64(taken))
        if not taken:
            self._answer(topic, claim, [])
            return
        self._tokens = token = (self._tokens + TOKEN_STRIDE) & TOKEN_MASK
        deadline = core.clock.now_ms() + claim.lease_ms
        grant = Grant(token, claim.node, claim.connection, deadline, claim.lease_ms, taken)
        counts = queue.grant(grant)
        jobs = [
            Job(
                seq, f"{LEASE_PREFIX}{(token + seq) & TOKEN_MASK:016x}", deadline, ts, count, data,
                tag, meta, kind,
            )
            for count, (seq, ts, data, kind, tag, meta) in zip(counts, records, strict=True)
        ]  # fmt: skip
        self._workers.arm(topic)
        if not core.is_logged(topic):
            self._answer(topic, claim, jobs)
            return
        same = counts.count(counts[0]) == len(counts)
        core.mark(topic)
        if not topic.config.leases_durable:
            # For the counts alone; where the log takes nothing now, they are not missed.
            if not core.shard_of(topic.id).troubled:
                event = QueueEvent(EVENT_CLAIM, taken, counts[0] if same else counts)
                core.log(topic, ENTRY_QUEUE, event, needs_sync=topic.needs_sync)
            self._answer(topic, claim, jobs)
            return

        def logged(error: HeadraceError | None) -> None:
            if error is not None:
                queue.undo(grant)
                self._workers.stir(topic)
                claim.ticket.fail(error)
            else:
                self._answer(topic, claim, jobs)

        held = Held(token, claim.node, deadline, claim.lease_ms, grant.bound, len(taken))
        event = QueueEvent(EVENT_CLAIM, taken, counts[0] if same else counts, [held])
        core.log(topic, ENTRY_QUEUE, event, needs_sync=topic.needs_sync, done=logged)

    def _answer(self, topic: Topic, claim: Claim, jobs: list[Job]) -> None:
        def answer(_moved: object = None) -> None:
            claim.ticket.resolve(Claimed(topic.name, jobs, *counts_of(topic)))

        if claim.after is None:
            answer()
        else:
            claim.after.when_done(answer)
