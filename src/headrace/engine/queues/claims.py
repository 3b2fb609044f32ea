"""Claims: gathered, dealt out, read, leased, logged, answered; those of a turn together.

Only this file hands out jobs.  Claims of one topic that come together are served in their order,
from one look at the queue, and are one entry of the log.  Those that come within `claim_jitter_ms`
of a first one share the jobs, one job each in turn.  Each has its own token and lease time.  Jobs
are leased when their records are there to be sent, so that a slow disk takes nothing from the time
of a lease; a claim whose records are in files goes on by itself, and the others do not wait for it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial

from pyroaring import BitMap64

from headrace.core.errors import HeadraceError, Throttled, TopicNotFound
from headrace.core.runtime import Ticket
from headrace.core.steps import Steps, follow_at_once, turn_end
from headrace.engine.queues.answers import Claimed, JobColumns, Leased, counts_of
from headrace.engine.queues.calls import Claim, fail_all, resolve_all
from headrace.engine.queues.claim_order import shares
from headrace.engine.queues.dead_letters import DeadLetters
from headrace.engine.queues.grants import Grant
from headrace.engine.queues.job_records import columns_of, fitting, read_sealed, rows_in_memory
from headrace.engine.queues.jobs_out import JobsOut
from headrace.engine.queues.requests import TOKEN_MASK
from headrace.engine.queues.state import QueueState
from headrace.engine.queues.workers import Workers
from headrace.engine.state import EngineState
from headrace.engine.topics.topic import Topic
from headrace.storage.wal.frame import ENTRY_QUEUE, EVENT_CLAIM, Held, QueueEvent

# Tokens of one run are this far apart, so that lease ids of different claims do not meet.
TOKEN_STRIDE = 0x9E37_79B9_7F4A_7C15
COHORT_JOBS_MAX = 4_000  # dealt out at a time, so that the loop is not held for long
TRIES_MAX = 16  # of a claim that finds damaged jobs and nothing else

_NO_JOBS = JobColumns([], (), (), 0)


class Claims:
    """The claims of one engine."""

    def __init__(
        self,
        state: EngineState,
        dead_letters: DeadLetters,
        workers: Workers,
        look: Callable[[Topic], QueueState],
        count_out: Callable[[], int],
    ) -> None:
        self._state = state
        self._dead_letters = dead_letters
        self._workers = workers
        self._look = look  # the queue, with everything overdue taken back
        self._out = JobsOut(state, count_out)
        self._tokens = state.random.u64()
        self._cohorts: dict[int, list[Claim]] = {}

    def claim_all(self, topic: Topic, claims: Sequence[Claim]) -> None:
        """Lease jobs to claims, now or with the others that come within the topic's window."""
        if topic.config.claim_jitter_ms:
            for claim in claims:
                self._join_cohort(topic, claim)
            return
        gone = [claim for claim in claims if self._is_gone(claim)]
        if gone:
            resolve_all(gone, [Claimed(topic.name, *counts_of(topic))] * len(gone))
            claims = [claim for claim in claims if not claim.done]
        for some in _portions(claims):
            try:
                seqs = self._take(topic, some)
            except Throttled as full:
                fail_all(some, full)
                continue
            for claim in some:
                claim.share = claim.want
            self._hand_out(topic, some, seqs)

    def _is_gone(self, claim: Claim) -> bool:
        """Whether nobody waits for the jobs any more."""
        return claim.abandoned or self._workers.is_gone(claim.connection)

    # Whose jobs

    def _join_cohort(self, topic: Topic, claim: Claim) -> None:
        """Have a claim wait for the end of the topic's window."""
        cohort = self._cohorts.get(topic.id)
        if cohort is None:
            self._cohorts[topic.id] = [claim]
            self._state.runtime.later(topic.config.claim_jitter_ms, lambda: self._deal(topic))
            return
        claims_max = self._state.settings.claims_waiting_max
        if len(cohort) >= claims_max:
            refusal = Throttled(
                f"{len(cohort)} claims of {topic.name!r} are waiting",
                fix="retry after a moment, or raise HEADRACE_CLAIMS_WAITING_MAX",
                detail={"limit": "claims_waiting_max", "max": claims_max},
            )
            fail_all([claim], refusal)
            return
        cohort.append(claim)

    def forget(self, topic: Topic) -> None:
        """Refuse the claims that wait: the topic was deleted."""
        fail_all(self._cohorts.pop(topic.id, ()), TopicNotFound.named(topic.name))

    def _deal(self, topic: Topic) -> None:
        """Deal jobs out among the claims that came together."""
        waiting = [claim for claim in self._cohorts.pop(topic.id, ()) if not self._is_gone(claim)]
        if not waiting:
            return
        try:
            seqs = self._take(topic, waiting)
        except Throttled as full:
            fail_all(waiting, full)
        else:
            given = shares(len(seqs), [claim.want for claim in waiting])
            for claim, count in zip(waiting, given, strict=True):
                claim.share = count
            self._hand_out(topic, waiting, seqs)
        self._workers.wake_soon(topic)

    def _take(self, topic: Topic, claims: Sequence[Claim]) -> Sequence[int]:
        """Take jobs for these claims from the queue; have its dead letters moved before."""
        queue = self._look(topic)
        if queue.spent:
            moved = self._dead_letters.bury(topic, queue)
            for claim in claims:
                claim.after = moved
        wanted = sum([claim.want << claim.tries for claim in claims])
        wanted = min(wanted, COHORT_JOBS_MAX)
        out = len(queue.deliveries)
        jobs_max = min(self._state.settings.jobs_out_max, out + self._out.room(wanted))
        seqs = queue.take(wanted, topic.span, jobs_max)
        self._out.took(len(seqs))
        if not seqs:
            refusal = self._refusal(topic, queue)
            if refusal is not None:
                raise refusal
        return seqs

    def _refusal(self, topic: Topic, queue: QueueState) -> Throttled | None:
        """Return why a claim gets no job although there are some; None: there are none."""
        jobs_max = self._state.settings.jobs_out_max
        if queue.ready(topic.count) <= 0:
            return None
        if len(queue.deliveries) < jobs_max:
            return self._out.refusal()
        return Throttled(
            f"{len(queue.deliveries)} jobs of {topic.name!r} are delivered and not done",
            fix="acknowledge jobs, or raise HEADRACE_JOBS_OUT_MAX",
            detail={"limit": "jobs_out_max", "max": jobs_max},
        )

    # Their records

    def _hand_out(self, topic: Topic, claims: Sequence[Claim], seqs: Sequence[int]) -> None:
        """Lease jobs that were taken to claims in their order, to each as many as its share."""
        queue = topic.queue
        assert queue is not None
        bytes_max = min([claim.bytes_left for claim in claims])
        rows = rows_in_memory(topic, seqs, bytes_max) if seqs else []
        jobs = None if rows is None else columns_of(rows)
        if jobs is not None and (len(jobs.seqs) == len(seqs) or len(claims) == 1):
            if len(jobs.seqs) < len(seqs):
                queue.give_back(seqs[len(jobs.seqs) :])
            self._lease(topic, queue, claims, jobs)
            return
        # Some are in files, or more than one may have: one claim after the other.
        start = 0
        try:
            for claim in claims:
                mine = seqs[start : start + claim.share]
                rows = rows_in_memory(topic, mine, claim.bytes_left) if mine else []
                if rows is None:
                    start += len(mine)
                    self._follow(claim, self._read_and_lease(topic, queue, claim, mine))
                else:
                    jobs = columns_of(rows)
                    start += len(jobs.seqs)
                    self._lease(topic, queue, [claim], jobs)
        finally:
            queue.give_back(seqs[start:])

    def _follow(self, claim: Claim, steps: Steps[None]) -> None:
        """Take the steps of a claim by itself, and refuse it for what they raise."""
        whole: Ticket[None] = Ticket(self._state.runtime)

        def ended(done: Ticket[None]) -> None:
            if done.error is not None:
                fail_all([claim], done.error)

        whole.when_done(ended)
        follow_at_once(self._state.runtime, steps, whole)

    def _read_and_lease(
        self, topic: Topic, queue: QueueState, claim: Claim, seqs: Sequence[int]
    ) -> Steps[None]:
        """Read jobs of which some are in files, and lease them."""
        jobs, damaged = _NO_JOBS, False
        while seqs:
            rows = rows_in_memory(topic, seqs, claim.bytes_left)
            if rows is not None:
                jobs = columns_of(rows)
                break
            queue.busy.update(seqs)  # nobody else gets them meanwhile
            seqs, jobs, damaged = yield from self._read_sealed(topic, queue, claim, seqs)
            if seqs or not damaged or claim.tries == TRIES_MAX:
                break
            # Jobs that can be read may follow the damaged ones: try again, with more at a time, so
            # that the client need not.
            claim.tries += 1
            yield turn_end(self._state.runtime)
            if not topic.live:
                raise TopicNotFound.named(topic.name)
            seqs = self._take(topic, [claim])
        jobs = _NO_JOBS if self._is_gone(claim) else jobs.part(0, claim.want)
        if len(jobs.seqs) < len(seqs):
            queue.give_back(BitMap64(seqs) - BitMap64(jobs.seqs))
        claim.share = len(jobs.seqs)
        self._lease(topic, queue, [claim], jobs)
        if damaged:
            self._workers.wake_soon(topic)

    def _read_sealed(
        self, topic: Topic, queue: QueueState, claim: Claim, seqs: Sequence[int]
    ) -> Steps[tuple[Sequence[int], JobColumns, bool]]:
        """Read busy jobs; return those that can be read, their records, and if some cannot."""
        taken = BitMap64(seqs)
        bytes_max = claim.bytes_left
        try:
            found = yield from read_sealed(self._state, topic, seqs, bytes_max)
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
        jobs = fitting(columns_of(found.rows), bytes_max, mine)
        return list(mine), jobs, bool(found.damaged)

    # Their leases

    def _lease(
        self, topic: Topic, queue: QueueState, claims: Sequence[Claim], jobs: JobColumns
    ) -> None:
        """Lease and log jobs whose records are there, and answer the claims they are for."""
        now, start, total = self._state.clock.now_ms(), 0, len(jobs.seqs)
        grants: list[Grant] = []
        shared: list[tuple[Claim, int, int, Grant | None, JobColumns]] = []
        for claim in claims:
            stop = min(start + claim.share, total)
            grant, mine = None, _NO_JOBS
            if stop > start:
                mine = jobs.part(start, stop)
                self._tokens = token = (self._tokens + TOKEN_STRIDE) & TOKEN_MASK
                held_ms = claim.held_ms
                grant = Grant(
                    token, claim.node, claim.connection, now + held_ms, held_ms, mine.seqs
                )
                grants.append(grant)
            shared.append((claim, start, stop, grant, mine))
            start = stop
        counts = queue.grant(grants, jobs.seqs) if grants else []
        ready, in_flight = counts_of(topic)
        for claim, start, stop, grant, mine in shared:
            leased = None
            if grant is not None:
                leased = Leased(grant.token, grant.deadline, counts[start:stop], mine)
            # As many as there were before the claims behind it.
            behind = total - stop
            claim.given = Claimed(topic.name, ready + behind, in_flight - behind, leased)
        if len(grants) < len(claims):
            claims = self._refuse_if_full(topic, queue, claims)
        if grants:
            self._workers.arm(topic)
            event = QueueEvent(EVENT_CLAIM, jobs.seqs, _short(counts))
            self._log(topic, queue, claims, grants, event)
        else:
            self._finish(claims)

    def _refuse_if_full(
        self, topic: Topic, queue: QueueState, claims: Sequence[Claim]
    ) -> Sequence[Claim]:
        """Refuse the claims that got nothing because too many jobs are out; return the others."""
        refusal = self._refusal(topic, queue)
        if refusal is None:
            return claims
        # One that has no share got what there was for it: its turn did not come.
        empty = [one for one in claims if one.share and one.given and one.given.leased is None]
        fail_all(empty, refusal)
        return [claim for claim in claims if not claim.done]

    def _log(
        self,
        topic: Topic,
        queue: QueueState,
        claims: Sequence[Claim],
        grants: Sequence[Grant],
        event: QueueEvent,
    ) -> None:
        """Log leases and answer their claims, after that where leases are durable."""
        state = self._state
        if topic.is_logged:
            topic.mark_changed()
        if not (topic.is_logged and topic.config.leases_durable):
            # For the counts alone; where the log takes nothing now, they are not missed.
            if topic.is_logged and not state.shard_of(topic.id).troubled:
                state.log(topic, ENTRY_QUEUE, event, needs_sync=topic.needs_sync)
            self._finish(claims)
            return
        held = [
            Held(one.token, one.node, one.deadline, one.held_ms, one.bound, len(one.seqs))
            for one in grants
        ]
        event = QueueEvent(event.what, event.seqs, event.counts, held)

        def stored(error: HeadraceError | None) -> None:
            if error is None:
                self._finish(claims)
                return
            for grant in grants:
                queue.undo(grant)
            self._workers.wake_soon(topic)
            fail_all(claims, error)

        state.log(topic, ENTRY_QUEUE, event, needs_sync=topic.needs_sync, done=stored)

    def _finish(self, claims: Sequence[Claim]) -> None:
        """Answer claims whose leases are as durable as they have to be."""
        now = [claim for claim in claims if claim.after is None or claim.after.done]
        for claim in claims:
            if claim.after is not None and not claim.after.done:
                claim.after.when_done(partial(self._finish_one, claim))
        resolve_all(now, [claim.given for claim in now])

    def _finish_one(self, claim: Claim, _moved: Ticket[None]) -> None:
        resolve_all([claim], [claim.given])


def _portions(claims: Sequence[Claim]) -> Iterator[Sequence[Claim]]:
    """Cut claims into portions that want about as many jobs as are dealt out at a time."""
    some: list[Claim] = []
    wanted = 0
    for claim in claims:
        if some and wanted + claim.want > COHORT_JOBS_MAX:
            yield some
            some, wanted = [], 0
        some.append(claim)
        wanted += claim.want
    if some:
        yield some


def _short(counts: list[int]) -> int | list[int]:
    """Return delivery counts as the log has them: one number where all are the same."""
    return counts[0] if counts.count(counts[0]) == len(counts) else counts
