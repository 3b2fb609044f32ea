"""Claims: gathered, dealt out, read, leased, logged, answered.

Only this file hands out jobs.  `Claims.claim` reads from top to bottom.  Claims that come within
`claim_jitter_ms` of a first one share the jobs, one job each in turn, each under its own lease
time.  Jobs are leased when their records are there to be sent, so that a slow disk takes nothing
from the time of a lease.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import msgspec
from pyroaring import BitMap64

from headrace.core.errors import HeadraceError, Throttled, TopicNotFound
from headrace.core.runtime import Ticket
from headrace.core.steps import Steps, turn_end
from headrace.engine.log_steps import logged
from headrace.engine.queues.answers import Claimed, Job, counts_of
from headrace.engine.queues.claim_order import shares
from headrace.engine.queues.dead_letters import DeadLetters
from headrace.engine.queues.grants import TOKEN_MASK, Grant
from headrace.engine.queues.job_records import read_sealed, rows_in_memory
from headrace.engine.queues.requests import LEASE_PREFIX
from headrace.engine.queues.state import QueueState
from headrace.engine.queues.workers import Workers
from headrace.engine.state import EngineState
from headrace.engine.topics.topic import Topic
from headrace.storage.block import Rows
from headrace.storage.wal.frame import ENTRY_QUEUE, EVENT_CLAIM, Held, QueueEvent

# Tokens of one run are this far apart, so that lease ids of different claims do not meet.
TOKEN_STRIDE = 0x9E37_79B9_7F4A_7C15
COHORT_JOBS_MAX = 4_000  # dealt out at a time, so that the loop is not held for long
TRIES_MAX = 16  # of a claim that finds damaged jobs and nothing else

_Record = tuple[int, int, bytes, int, str | None, bytes | None]


class Claim(msgspec.Struct, eq=False):
    """One request for jobs."""

    ticket: Ticket[Claimed]
    node: str
    want: int
    lease_ms: int
    connection: int | None
    bytes_max: int  # of its jobs, beyond the first
    share: Ticket[Sequence[int]] | None = None  # the jobs that it gets of those of a cohort
    after: Ticket[None] | None = None  # dead letters to be moved before it is answered
    tries: int = 0  # that found nothing but damaged jobs


class _Lease(NamedTuple):
    """Jobs that a claim got."""

    jobs: list[Job]
    grant: Grant
    stored: Ticket[None] | None  # None: the answer does not wait for the log


class Claims:
    """The claims of one engine."""

    def __init__(
        self,
        state: EngineState,
        dead_letters: DeadLetters,
        workers: Workers,
        look: Callable[[Topic], QueueState],
    ) -> None:
        self._state = state
        self._dead_letters = dead_letters
        self._workers = workers
        self._look = look  # the queue, with everything overdue taken back
        self._tokens = state.random.u64()
        self._cohorts: dict[int, list[Claim]] = {}

    def claim(self, topic: Topic, claim: Claim) -> Steps[Claimed]:
        """Lease jobs to a claim, now or with the others that come within the topic's window.

        A claim that finds its jobs in memory, of a queue whose leases are not durable, waits for
        nothing: the steps end where they begin.
        """
        if topic.config.claim_jitter_ms:
            seqs: Sequence[int] = yield self._join_cohort(topic, claim)
        else:
            seqs = self._take(topic, [claim])
        queue = topic.queue
        assert queue is not None
        records: list[_Record] = []
        damaged = False
        while seqs:
            rows = rows_in_memory(topic, seqs, claim.bytes_max)
            if rows is not None:
                records = _fitting(rows, claim.bytes_max)
                break
            queue.busy.update(seqs)  # nobody else gets them meanwhile
            seqs, records, damaged = yield from self._read_sealed(topic, queue, claim, seqs)
            if seqs or not damaged or claim.tries == TRIES_MAX:
                break
            # Jobs that can be read may follow the damaged ones: try again, with more at a time, so
            # that the client need not.
            claim.tries += 1
            yield turn_end(self._state.runtime)
            if not topic.live:
                raise TopicNotFound.named(topic.name)
            seqs = self._take(topic, [claim])
        if self._workers.is_gone(claim.connection) or claim.ticket.abandoned:
            records = []
        lease = self._lease(topic, queue, claim, seqs, records[: claim.want])
        if damaged:
            self._workers.wake_soon(topic)
        if lease is not None and lease.stored is not None:
            try:
                yield lease.stored
            except HeadraceError:
                queue.undo(lease.grant)
                self._workers.wake_soon(topic)
                raise
        if claim.after is not None:
            yield claim.after
        return Claimed(topic.name, [] if lease is None else lease.jobs, *counts_of(topic))

    # Whose jobs

    def _join_cohort(self, topic: Topic, claim: Claim) -> Ticket[Sequence[int]]:
        """Wait for the end of the topic's window; return the ticket of the claim's jobs."""
        claim.share = Ticket(self._state.runtime)
        cohort = self._cohorts.get(topic.id)
        if cohort is None:
            self._cohorts[topic.id] = [claim]
            self._state.runtime.later(topic.config.claim_jitter_ms, lambda: self._deal(topic))
            return claim.share
        claims_max = self._state.settings.claims_waiting_max
        if len(cohort) >= claims_max:
            raise Throttled(
                f"{len(cohort)} claims of {topic.name!r} are waiting",
                fix="retry after a moment, or raise HEADRACE_CLAIMS_WAITING_MAX",
                detail={"limit": "claims_waiting_max", "max": claims_max},
            )
        cohort.append(claim)
        return claim.share

    def forget(self, topic: Topic) -> None:
        """Refuse the claims that wait: the topic was deleted."""
        for claim in self._cohorts.pop(topic.id, ()):
            assert claim.share is not None
            claim.share.fail(TopicNotFound.named(topic.name))

    def _deal(self, topic: Topic) -> None:
        """Deal jobs out among the claims that came together."""
        waiting = [
            claim
            for claim in self._cohorts.pop(topic.id, [])
            if not claim.ticket.abandoned and not self._workers.is_gone(claim.connection)
        ]
        if not waiting:
            return
        seqs: Sequence[int] = ()
        refusal: Throttled | None = None
        try:
            seqs = self._take(topic, waiting)
        except Throttled as full:
            refusal = full
        start = 0
        given = shares(len(seqs), [claim.want for claim in waiting])
        for claim, count in zip(waiting, given, strict=True):
            assert claim.share is not None
            if refusal is not None:
                claim.share.fail(refusal)
            else:
                claim.share.resolve(seqs[start : start + count])
            start += count
        self._workers.wake_soon(topic)

    def _take(self, topic: Topic, claims: list[Claim]) -> Sequence[int]:
        """Take jobs for these claims from the queue; have its dead letters moved before."""
        queue = self._look(topic)
        if queue.spent:
            moved = self._dead_letters.bury(topic, queue)
            for claim in claims:
                claim.after = moved
        wanted = sum([claim.want << claim.tries for claim in claims])
        jobs_max = self._state.settings.jobs_out_max
        seqs = queue.take(min(wanted, COHORT_JOBS_MAX), topic.span, jobs_max)
        if not seqs and len(queue.deliveries) >= jobs_max and queue.ready(topic.count) > 0:
            raise Throttled(
                f"{len(queue.deliveries)} jobs of {topic.name!r} are delivered and not done",
                fix="acknowledge jobs, or raise HEADRACE_JOBS_OUT_MAX",
                detail={"limit": "jobs_out_max", "max": jobs_max},
            )
        return seqs

    # Their records

    def _read_sealed(
        self, topic: Topic, queue: QueueState, claim: Claim, seqs: Sequence[int]
    ) -> Steps[tuple[Sequence[int], list[_Record], bool]]:
        """Read busy jobs; return those that can be read, their records, and if some cannot."""
        taken = BitMap64(seqs)
        try:
            found = yield from read_sealed(self._state, topic, seqs, claim.bytes_max)
            if not topic.live:
                raise TopicNotFound.named(topic.name)
        except Exception:
            queue.give_back(queue.busy & taken)
            raise
        # What was deleted while files were read is not ours any more.
        mine = queue.busy & taken
        if found.damaged:
            bad = mine & BitMap64(found.damaged)
            queue.set_aside(bad, self._state.clock.now_ms())
            self._workers.arm(topic)
            mine -= bad
        records = _fitting(found.rows, claim.bytes_max, set(mine))
        return list(mine), records, bool(found.damaged)

    # Their leases

    def _lease(
        self,
        topic: Topic,
        queue: QueueState,
        claim: Claim,
        seqs: Sequence[int],
        records: list[_Record],
    ) -> _Lease | None:
        """Lease and log the jobs whose records are there, give the others back; None: no job."""
        state = self._state
        taken = [record[0] for record in records]
        if len(taken) < len(seqs):
            queue.give_back(BitMap64(seqs) - BitMap64(taken))
        if not taken:
            return None
        self._tokens = token = (self._tokens + TOKEN_STRIDE) & TOKEN_MASK
        deadline = state.clock.now_ms() + claim.lease_ms
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
        if not topic.is_logged:
            return _Lease(jobs, grant, None)
        same = counts.count(counts[0]) == len(counts)
        topic.mark_changed()
        if not topic.config.leases_durable:
            # For the counts alone; where the log takes nothing now, they are not missed.
            if not state.shard_of(topic.id).troubled:
                event = QueueEvent(EVENT_CLAIM, taken, counts[0] if same else counts)
                state.log(topic, ENTRY_QUEUE, event, needs_sync=topic.needs_sync)
            return _Lease(jobs, grant, None)
        held = Held(token, claim.node, deadline, claim.lease_ms, grant.bound, len(taken))
        event = QueueEvent(EVENT_CLAIM, taken, counts[0] if same else counts, [held])
        stored = logged(state, topic, ENTRY_QUEUE, event, needs_sync=topic.needs_sync)
        return _Lease(jobs, grant, stored)


def _fitting(rows: list[Rows], left: int, alive: set[int] | None = None) -> list[_Record]:
    """Return the records of one answer: those that are alive, up to `left` bytes, or one."""
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
