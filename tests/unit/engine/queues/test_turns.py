"""Claims and acks that come together: each gets what it would have got alone, in its place."""

from __future__ import annotations

import errno
from collections.abc import Sequence
from random import Random
from typing import Any

import msgspec
import pytest

from headrace.core.clock import ManualClock
from headrace.core.errors import HeadraceError, InvalidRequest, Throttled, TopicNotFound
from headrace.core.runtime import Ticket
from headrace.engine.engine import Engine
from headrace.engine.queues.answers import Claimed
from headrace.engine.queues.calls import Ack, Claim
from headrace.storage.block import KIND_BYTES, KIND_JSON, KIND_MIXED, Batch
from headrace.testing.faultfs import Fault, FaultFilesystem, FaultPlan
from headrace.testing.simdisk import SimDisk
from tests.support.engines import Start, open_engines
from tests.support.queue_calls import add, claim, contents, counts, make
from tests.support.seqs import seqs_of

TURNS = 30
NODES = ("a", "b", "c")
QUEUES: dict[str, dict[str, Any]] = {
    "disk": {"durability": "disk", "max_deliveries": 2, "dead_letter": "dead"},
    "fsync": {"durability": "fsync"},
    "durable": {"durability": "fsync", "leases_durable": True, "max_deliveries": 3,
                "dead_letter": "dead"},
    "memory": {"durability": "memory", "leases_durable": True},
    "ephemeral": {"durability": "ephemeral"},
    "capped": {"durability": "disk", "cap_records": 12},
    "shared": {"durability": "disk", "claim_jitter_ms": 5},
}  # fmt: skip
Held = dict[str, list[tuple[str, int, str]]]  # by queue: node, seq, lease id


def drawn_name(dice: Random, busy: Sequence[str]) -> str:
    return dice.choice([*QUEUES, "log", "missing"] if dice.randrange(3) == 0 else busy)


def drawn_claim(dice: Random, engine: Engine, busy: Sequence[str]) -> Claim:
    name = drawn_name(dice, busy)
    node = dice.choice(NODES) if dice.randrange(15) else ""
    bytes_max = dice.choice([None, None, None, 40])
    lease_ms = dice.choice([None, 100, 5_000])
    return Claim(engine.runtime, name, node, dice.randrange(7), lease_ms, bytes_max=bytes_max)


def drawn_jobs(
    dice: Random, held: Held, busy: Sequence[str]
) -> tuple[str, str, list[int], list[str] | None]:
    """Jobs that an ack or a nack names: those of a node, of several leases, of others, twice."""
    name = drawn_name(dice, busy)
    jobs = held.get(name, [])
    node = jobs[dice.randrange(len(jobs))][0] if jobs else "a"
    mine = [job for job in jobs if job[0] == node or not dice.randrange(9)]
    first = dice.randrange(len(mine)) if mine else 0
    mine = mine[first : first + dice.randrange(1, 7)]
    seqs, ids = [seq for _, seq, _ in mine], [lease for _, _, lease in mine]
    kind = dice.randrange(12)
    if kind == 0:
        seqs, ids = [*seqs, *seqs[:1]], [*ids, *ids[:1]]
    elif kind == 1:
        ids = ["" for _ in ids]
    elif kind == 2:
        ids = ["lease_1", *ids[1:]]
    elif kind == 3:
        ids = [*ids, "no lease"]
    elif kind == 4:
        seqs, ids = [*seqs, 10**6], [*ids, ""]
    return name, node, seqs, None if kind == 5 else ids


def said(call: Ticket[Any], about: str) -> object:
    if call.error is not None:
        assert isinstance(call.error, HeadraceError), call.error
        return about, call.error.code, call.error.detail
    answer = call.result()
    if isinstance(answer, Claimed):
        jobs = [msgspec.structs.replace(job, lease_id="") for job in answer.jobs]
        return about, answer.ready, answer.in_flight, jobs  # ids are random
    return about, msgspec.structs.replace(answer, sync_ns=0) if about == "ack" else answer


def run_turns(engine: Engine, clock: ManualClock, seed: int, *, together: bool) -> list[object]:
    """Random calls, turn by turn; what each was told."""
    dice, told, heard = Random(seed), list[object](), list[Ticket[Any]]()
    held: Held = {}
    engine.put_topic("log", {}).result()
    for name, config in QUEUES.items():
        make(engine, name, **config)
    for turn in range(TURNS):
        for name in QUEUES:
            if dice.randrange(3) == 0:
                add(engine, dice.randrange(1, 9), name, first=turn)
        if turn == TURNS // 2:
            engine.checkpoint().result()
            for topic in engine.state.by_name.values():  # the next claims read files
                topic.drop_sealed_blocks(1 << 30, 1 << 20)
        busy = dice.sample([*QUEUES], 2)
        claims = [drawn_claim(dice, engine, busy) for _ in range(dice.randrange(9))]
        acks = [
            Ack(engine.runtime, *drawn_jobs(dice, held, busy)) for _ in range(dice.randrange(9))
        ]
        for call in (*claims, *acks):
            call.answered = heard.extend
        for some in [claims] if together else [[one] for one in claims]:
            engine.queues.claim_all(some)
        for done in [acks] if together else [[one] for one in acks]:
            engine.queues.ack_all(done)
        name, node, seqs, ids = drawn_jobs(dice, held, busy)
        nack = engine.queues.nack(name, node, seqs, dice.choice([0, 0, 50]), ids)
        engine.runtime.run()  # type: ignore[attr-defined]
        clock.advance(dice.choice([5, 20, 90]))
        engine.runtime.run()  # type: ignore[attr-defined]
        assert sorted(map(id, heard)) == sorted(map(id, (*claims, *acks))), "each heard of once"
        heard.clear()
        told += [said(one, "claim") for one in claims] + [said(one, "ack") for one in acks]
        told.append(said(nack, "nack"))
        for one in claims:
            if one.error is None:
                jobs = [(one.node, job.seq, job.lease_id) for job in one.result().jobs]
                held.setdefault(one.name, []).extend(jobs)
        for ack in acks:
            if dice.randrange(4):
                held[ack.name] = [job for job in held.get(ack.name, []) if job[1] not in ack.seqs]
    return told


def state_of(engine: Engine) -> object:
    """All that is known of all jobs."""
    found: list[object] = []
    for name in (*QUEUES, "dead"):
        topic = engine.state.find(name)
        if topic is None or topic.queue is None:
            found.append(None if topic is None else contents(engine, name))
            continue
        queue = topic.queue
        leases = {
            seq: (grant.node, grant.deadline, grant.left)
            for seq, grant in sorted(queue.leases.items())
        }
        delays = {seq: delay.until for seq, delay in sorted(queue.delays.items())}
        places = [list(place) for place in (queue.held, queue.spent, queue.busy)]
        found.append((leases, delays, places, sorted(queue.deliveries.items())))
        found.append((contents(engine, name), counts(engine, name)))
    return found


@pytest.mark.parametrize("seed", range(1, 9))
def test_a_turn_is_the_same_as_its_calls_one_by_one(seed: int) -> None:
    """Answers, the state of every queue, and what a start after a crash makes of the log."""
    found = []
    for together in (True, False):
        clock, disk = ManualClock(), SimDisk()
        with open_engines(clock) as start:
            engine = start(disk, jobs_out_max=25)
            told = run_turns(engine, clock, seed, together=together)
            state = state_of(engine)
            engine.abandon()
            again = start(disk.image(disk.position, "all", 0, power_loss=False))
            found.append((told, state, state_of(again)))
    (told, *states), (told_alone, *states_alone) = found
    assert told == told_alone
    assert states == states_alone
    kinds = {(one[0], type(one[1])) for one in told}  # type: ignore[index]
    assert len(kinds) == 6, "some were refused, and some were not"


# One entry of the log


def claims_of(engine: Engine, *wants: int, **given: Any) -> list[Claim]:
    """Claims of as many nodes, all at once."""
    asked = [
        Claim(engine.runtime, "jobs", node, want, **given)
        for node, want in zip("abcdefgh", wants, strict=False)
    ]
    engine.queues.claim_all(asked)
    return asked


def acks_of(engine: Engine, claims: Sequence[Claim]) -> list[Ack]:
    """An ack of all that each claim got, all at once."""
    asked = []
    for one in claims:
        jobs = one.result().jobs
        ids = [job.lease_id for job in jobs]
        asked.append(Ack(engine.runtime, "jobs", one.node, seqs_of(jobs), ids))
    engine.queues.ack_all(asked)
    return asked


def run(engine: Engine) -> None:
    engine.runtime.run()  # type: ignore[attr-defined]


def entries(engine: Engine) -> int:
    run(engine)
    return engine.state.shards[0].frames_total


@pytest.mark.parametrize("durable", [False, True])
def test_the_claims_of_a_turn_are_one_entry_and_so_are_its_acks(
    engine: Engine, durable: bool
) -> None:
    make(engine, leases_durable=durable)
    add(engine, 9)
    before = entries(engine)
    claims = claims_of(engine, 2, 3, 4)
    assert all(one.done for one in claims) is not durable
    assert entries(engine) == before + 1
    assert [seqs_of(one.result().jobs) for one in claims] == [[1, 2], [3, 4, 5], [6, 7, 8, 9]]
    assert [one.result().ready for one in claims] == [7, 4, 0]
    assert [one.result().in_flight for one in claims] == [2, 5, 9]
    acks = acks_of(engine, claims)
    assert entries(engine) == before + 2
    assert [one.result().acked for one in acks] == [2, 3, 4]
    assert counts(engine) == (0, 0, 0, 0)


def test_each_claim_of_a_turn_has_a_lease_of_its_own(engine: Engine, clock: ManualClock) -> None:
    make(engine)
    add(engine, 4)
    long = Claim(engine.runtime, "jobs", "a", 2, 9_000)
    short = Claim(engine.runtime, "jobs", "a", 2, 1_000)
    engine.queues.claim_all([long, short])
    jobs = [*long.result().jobs, *short.result().jobs]
    now = engine.state.clock.now_ms()
    assert [job.deadline - now for job in jobs] == [9_000, 9_000, 1_000, 1_000]
    assert len({job.lease_id for job in jobs}) == 4
    mixed = [jobs[1].lease_id, jobs[0].lease_id]
    refused = engine.queues.ack("jobs", "a", [1, 2], mixed).result()
    assert (refused.acked, refused.skipped) == (0, [1, 2])
    clock.advance(1_001)
    assert counts(engine) == (2, 2, 0, 0)
    assert (
        engine.queues.ack("jobs", "a", [1, 2], [job.lease_id for job in jobs[:2]]).result().acked
        == 2
    )


def test_the_second_ack_of_a_turn_skips_what_the_first_one_deleted(engine: Engine) -> None:
    make(engine)
    add(engine, 3)
    jobs = claim(engine, 3)
    ids = [job.lease_id for job in jobs]
    asked = [Ack(engine.runtime, "jobs", "a", [1, 2, 3], ids) for _ in range(2)]
    engine.queues.ack_all(asked)
    run(engine)
    assert [(one.result().acked, one.result().skipped) for one in asked] == [
        (3, []),
        (0, [1, 2, 3]),
    ]


def test_what_does_not_fit_one_claim_is_for_the_next(engine: Engine) -> None:
    make(engine)
    engine.append("jobs", Batch([b'"%b"' % (b"x" * 98)] * 6)).result()
    claims = claims_of(engine, 3, 3, 3, bytes_max=200)
    assert [seqs_of(one.result().jobs) for one in claims] == [[1, 2], [3, 4], [5, 6]]


def test_room_for_an_answer_is_asked_for_when_it_is_made(engine: Engine) -> None:
    make(engine)
    engine.append("jobs", Batch([b'"%b"' % (b"x" * 98)] * 6)).result()
    left = 500

    def fit(_asked: int) -> int:
        return left

    def answered(done: Sequence[Claim]) -> None:
        nonlocal left
        left -= sum(len(job.data) for one in done for job in one.result().jobs)

    asked = [Claim(engine.runtime, "jobs", "a", 3, fit=fit, answered=answered) for _ in range(3)]
    engine.queues.claim_all(asked)
    assert [len(one.result().jobs) for one in asked] == [3, 2, 1]


def test_claims_beyond_what_may_be_out_are_refused_and_the_others_served(start: Start) -> None:
    engine = start(jobs_out_max=3)
    make(engine)
    add(engine, 9)
    claims = claims_of(engine, 2, 2, 2)
    assert [len(one.result().jobs) for one in claims[:2]] == [2, 1]
    assert isinstance(claims[2].error, Throttled)


def test_one_callers_mistake_is_not_the_others(engine: Engine) -> None:
    make(engine)
    add(engine, 4)
    runtime = engine.runtime
    good, late = Claim(runtime, "jobs", "a", 2), Claim(runtime, "jobs", "b", 2)
    good.when_done(lambda _: 1 // 0)
    bad = [
        Claim(runtime, "missing", "a"), Claim(runtime, "jobs", ""),
        Claim(runtime, "jobs", "a", -1), Claim(runtime, "jobs", 7),  # type: ignore[arg-type]
    ]  # fmt: skip
    with pytest.raises(ZeroDivisionError):
        engine.queues.claim_all([bad[0], good, *bad[1:], late])
    assert [len(one.result().jobs) for one in (good, late)] == [2, 2]
    assert [type(one.error) for one in bad] == [TopicNotFound] + [InvalidRequest] * 3
    acks = [
        Ack(runtime, "jobs", "a", [1, 2]),
        Ack(runtime, "jobs", "a", [1], 7),  # type: ignore[arg-type]
        Ack(runtime, "jobs", "b", [3, 4]),
    ]
    engine.queues.ack_all(acks)
    run(engine)
    assert isinstance(acks[1].error, TypeError)
    assert [acks[0].result().acked, acks[2].result().acked] == [2, 2]


def test_a_claim_that_nobody_waits_for_gets_nothing(engine: Engine) -> None:
    make(engine)
    add(engine, 2)
    gone = Claim(engine.runtime, "jobs", "a", 2)
    gone.abandon()
    stays = Claim(engine.runtime, "jobs", "b", 2)
    engine.queues.claim_all([gone, stays])
    assert seqs_of(stays.result().jobs) == [1, 2]


def test_jobs_that_were_appended_one_by_one_or_together_come_as_they_are(engine: Engine) -> None:
    make(engine)
    batches = [
        Batch([b"1"]), Batch([b"2"], KIND_BYTES), Batch([b"raw"], KIND_MIXED, kinds=b"\1"),
        Batch([b"4", b"5"], timestamps=[1, 2]),
        Batch([b"6"], tags=["t"]), Batch([b"7"], metas=[b'{"k":1}']), Batch([b"8"]), Batch([b"9"]),
    ]  # fmt: skip
    for batch in batches:
        engine.append("jobs", batch).result()
    first, second = claims_of(engine, 4, 9)
    jobs = [*first.result().jobs, *second.result().jobs]
    assert seqs_of(jobs) == list(range(1, 10))
    assert [job.data for job in jobs] == [b"1", b"2", b"raw", *(b"%d" % n for n in range(4, 10))]
    assert [job.tag for job in jobs] == [None] * 5 + ["t"] + [None] * 3
    assert [job.meta for job in jobs] == [None] * 6 + [b'{"k":1}'] + [None] * 2
    assert [job.kind for job in jobs] == [KIND_JSON] + [KIND_BYTES] * 2 + [KIND_JSON] * 6
    assert all(job.ts for job in jobs)


# Disks that fail in the middle


class Failing:
    """A disk in memory whose writes to the log fail while it is `armed`."""

    def __init__(self, number: int) -> None:
        self.armed = False
        self.number = number
        plan = FaultPlan(Fault("pwritev", 1, "call", forever=True, hook=self._strike))
        self.disk = FaultFilesystem(SimDisk(), plan)

    def _strike(self, _operation: str, path: str) -> None:
        if self.armed and path.startswith("wal/"):
            raise OSError(self.number, "as planned", path)


CODES = {errno.ENOSPC: "not_ready", errno.EIO: "internal"}


def codes_of(calls: Sequence[Ticket[Any]]) -> list[str]:
    assert all(isinstance(one.error, HeadraceError) for one in calls)
    return [one.error.code for one in calls]  # type: ignore[union-attr]


@pytest.mark.parametrize("number", CODES)
def test_h10_a_write_that_failed_fails_every_ack_of_it(
    start: Start, clock: ManualClock, number: int
) -> None:
    failing = Failing(number)
    engine = start(failing.disk)
    make(engine)
    add(engine, 6)
    claims = claims_of(engine, 2, 2, 2)
    run(engine)
    failing.armed = True
    acks = acks_of(engine, claims)
    run(engine)
    assert codes_of(acks) == [CODES[number]] * 3
    assert counts(engine) == (6, 0, 0, 0)
    if number == errno.ENOSPC:
        failing.armed = False
        clock.advance(10_000)
        run(engine)
        assert [job.deliveries for job in claim(engine, 6)] == [2] * 6


@pytest.mark.parametrize("number", CODES)
def test_h13_a_write_that_failed_undoes_every_durable_claim_of_it(
    start: Start, clock: ManualClock, number: int
) -> None:
    failing = Failing(number)
    engine = start(failing.disk)
    make(engine, leases_durable=True)
    add(engine, 6)
    run(engine)
    failing.armed = True
    claims = claims_of(engine, 2, 2, 2)
    assert not any(one.done for one in claims)
    run(engine)
    assert codes_of(claims) == [CODES[number]] * 3
    assert counts(engine) == (6, 0, 0, 0)
    topic = engine.state.topic("jobs")
    assert topic.queue is not None and not topic.queue.deliveries
    if number == errno.ENOSPC:
        failing.armed = False
        clock.advance(10_000)
        run(engine)
        assert [job.deliveries for job in claim(engine, 6)] == [1] * 6


def test_a_write_that_failed_takes_no_job_from_claims_that_do_not_wait_for_it(
    start: Start,
) -> None:
    failing = Failing(errno.ENOSPC)
    engine = start(failing.disk)
    make(engine)
    add(engine, 4)
    run(engine)
    failing.armed = True
    claims = claims_of(engine, 2, 2)
    run(engine)
    assert [len(one.result().jobs) for one in claims] == [2, 2]
    assert counts(engine) == (0, 4, 0, 0)
