"""What workers were told about the jobs of one queue, and whether all of it can be true.

Only this file judges a queue over many lives of a server.  It uses no clock but the engine's own,
as far as it was told: a lease begins at its deadline less its length.  The rules: nobody is given a
job while another's lease is live; what a lease that is over asks for is refused; a job that was
acknowledged is never given again; every job ends as done or as one dead letter.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, NamedTuple

from tests.harness.events import Violation

TRACE = "$dead_letter_"


@dataclass(eq=False)
class Grant:
    """One delivery of a job, as its worker knows it.  Times are the engine's, in ms."""

    seq: int
    lease_id: str
    node: str
    life: int  # of the server
    begins: int
    ends: int
    deliveries: int
    bound: bool  # to a connection
    heard: int
    ends_at_most: int = 0  # with extensions whose answers were lost
    released: int | None = None  # when its end was asked for
    used: int = 0  # when the last thing that it was granted was asked for
    back_at: int = 0  # not before: the delay of its nack
    acked: bool = False

    def __post_init__(self) -> None:
        self.ends_at_most = self.ends


class Request(NamedTuple):
    """A request: when it was sent, to which life of the server, and how late it was there then."""

    at: int
    life: int
    known_ms: int  # at least


class Letter(NamedTuple):
    """A dead letter."""

    job: str
    meta: Mapping[str, Any]


@dataclass
class JobLedger:
    """All that is known about one queue."""

    name: str
    durable: bool
    max_deliveries: int
    jobs: dict[str, int] = field(default_factory=dict)  # acknowledged appends -> seq
    sent: set[str] = field(default_factory=set)
    grants: dict[int, list[Grant]] = field(default_factory=dict)
    acked: set[int] = field(default_factory=set)
    maybe_acked: set[int] = field(default_factory=set)
    _names: dict[int, str] = field(default_factory=dict)
    _leases: set[str] = field(default_factory=set)
    _tick: int = 0
    _known_ms: Counter[int] = field(default_factory=Counter)  # life -> the latest time told
    _stopping: dict[int, int] = field(default_factory=dict)  # life -> when it was asked to stop

    # The server

    def stopping(self, life: int) -> None:
        """A clean stop was asked for: connections end from now on."""
        self._stopping[life] = self._now()

    # Jobs

    def appended(self, jobs: Sequence[str], first_seq: int) -> None:
        for seq, job in enumerate(jobs, first_seq):
            self._learn(seq, job)
            self.jobs[job] = seq

    def granted(
        self,
        job: str,
        seq: int,
        lease_id: str,
        node: str,
        *,
        deadline: int,
        lease_ms: int,
        deliveries: int,
        bound: bool,
        life: int,
    ) -> Grant:
        """A worker was given a job."""
        self._learn(seq, job)
        self._check(lease_id not in self._leases, f"{lease_id} was given twice")
        self._leases.add(lease_id)
        begins = deadline - lease_ms
        grant = Grant(seq, lease_id, node, life, begins, deadline, deliveries, bound, self._now())
        self._known_ms[life] = max(self._known_ms[life], begins)
        self.grants.setdefault(seq, []).append(grant)
        limit = self.max_deliveries
        self._check(deliveries >= 1, f"{grant} before its first delivery")
        self._check(not limit or deliveries <= limit, f"{grant} is delivered too often")
        return grant

    def ask(self, life: int) -> Request:
        """A request is about to be sent."""
        return Request(self._now(), life, self._known_ms[life])

    def lost(self, what: str, asked: Request, grants: Iterable[Grant], lease_ms: int = 0) -> None:
        """A request has no answer: it may have been done."""
        for grant in grants:
            if what == "ack":
                self.maybe_acked.add(grant.seq)
            elif what == "nack":
                grant.released = grant.released or asked.at
            else:  # which may make a lease shorter, too
                grant.ends = min(grant.ends, asked.known_ms + lease_ms)
                grant.ends_at_most = 1 << 62

    def done(self, what: str, asked: Request, grants: Sequence[Grant], skipped: list[int]) -> None:
        """An ack or a nack was answered."""
        for grant in grants:
            if grant.seq in skipped:
                continue
            self._used(grant, asked, what)
            if what == "ack":
                self._check(grant.seq not in self.acked, f"{grant} was acknowledged twice")
                self.acked.add(grant.seq)
                grant.acked = True
            else:
                grant.released = grant.released or asked.at

    def delayed(self, asked: Request, grants: Iterable[Grant], skipped: list[int], ms: int) -> None:
        """The delay of a nack that was answered."""
        for grant in grants:
            if grant.seq not in skipped and asked.known_ms:
                grant.back_at = asked.known_ms + ms

    def extended(self, asked: Request, grants: Iterable[Grant], deadlines: dict[int, int]) -> None:
        for grant in grants:
            if grant.seq in deadlines:
                self._used(grant, asked, "extend")
                grant.ends = deadlines[grant.seq]
                grant.ends_at_most = max(grant.ends_at_most, grant.ends)

    def dropped(self, grants: Iterable[Grant]) -> None:
        """A worker hangs up on the connection of these leases."""
        now = self._now()
        for grant in grants:
            grant.released = grant.released or now

    # Judgement

    def settled(self) -> int:
        """Jobs that are done, as far as anybody knows."""
        return len(self.acked | self.maybe_acked)

    def ended(self) -> set[str]:
        """Jobs that are done, or may be, under whatever seq."""
        return {self._names[seq] for seq in self.acked | self.maybe_acked}

    def check_history(self) -> None:
        """Whether all that was told can be true."""
        for seq, grants in self.grants.items():
            grants.sort(key=lambda grant: (grant.life, grant.deliveries))
            for one, two in pairwise(grants):
                self._check_pair(one, two)
            for at, grant in enumerate(grants):
                self._check(not grant.acked or at + 1 == len(grants), f"{seq} was done: {grants}")

    def check_places(self, live: Mapping[int, str], dead: Sequence[Letter]) -> None:
        """Whether the queue and its dead letters hold what they must, at a quiet moment."""
        for seq, job in live.items():
            self._learn(seq, job)
        letters = Counter(letter.job for letter in dead)
        self._check(not letters - Counter(set(letters)), f"dead twice: {letters.most_common(3)}")
        for letter in dead:
            self._check_letter(letter)
        for job, seq in self.jobs.items():
            places = (seq in live) + letters[job]
            if seq in self.acked:
                self._check(not places, f"{job} was acknowledged, and is there")
            elif seq in self.maybe_acked:
                self._check(places <= 1, f"{job} is there and dead")
            else:
                self._check(places == 1, f"{job} is in {places} places; {self.grants.get(seq)}")

    def _check_pair(self, one: Grant, two: Grant) -> None:
        both = f"{one} and {two}"
        exact = self.durable or one.life == two.life or one.life in self._stopping
        self._check(two.deliveries > one.deliveries or not exact, f"deliveries of {both}")
        self._check(not one.used or one.used < two.heard, f"a stale lease was obeyed: {both}")
        forgotten = one.life < two.life and (one.bound or not self.durable)
        if forgotten:
            return
        self._check(two.begins >= one.back_at, f"back before its delay was over: {both}")
        stopping = self._stopping.get(one.life)
        hung_up = one.bound and stopping is not None and stopping < two.heard
        given_up = one.released is not None and one.released < two.heard
        over = two.begins > one.ends
        self._check(over or given_up or hung_up, f"two holders: {both}")

    def _used(self, grant: Grant, asked: Request, what: str) -> None:
        """A lease was obeyed: was it live?"""
        self._check(asked.known_ms <= grant.ends_at_most, f"{what} of {grant} after its end")
        if grant.life != asked.life:
            kept = self.durable and not grant.bound
            self._check(kept, f"{what} of {grant} in life {asked.life}")
        grant.used = asked.at

    def _check_letter(self, letter: Letter) -> None:
        job = letter.job
        self._check(job in self.sent, f"{job} is dead, and nobody sent it")
        meta = dict(letter.meta)
        trace = {key: meta.pop(key, None) for key in [k for k in meta if k.startswith(TRACE)]}
        wanted = {f"{TRACE}from": self.name, f"{TRACE}deliveries": str(self.max_deliveries)}
        if job in self.jobs:
            wanted[f"{TRACE}src_seq"] = str(self.jobs[job])
        else:
            trace.pop(f"{TRACE}src_seq", None)
        self._check(trace == wanted, f"{job} has {letter.meta}, not {wanted}")
        self._check(meta == {"job": job}, f"{job} has {letter.meta}")

    def _learn(self, seq: int, job: str) -> None:
        self._check(job in self.sent, f"nobody sent {job}")
        self._check(self._names.setdefault(seq, job) == job, f"{seq} was {self._names[seq]}: {job}")

    def _now(self) -> int:
        self._tick += 1
        return self._tick

    def _check(self, holds: bool, complaint: str) -> None:
        if not holds:
            raise Violation(f"{self.name}: {complaint}")
