"""Producers against a model: any interleaving of numbers, repeats, epochs, restarts and deletes.

The model is a list for each producer of each topic: what every append of its epoch was given.  A
repeat must get exactly that while it is one of the newest, and nothing once it is not.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest

from headrace.core.clock import ManualClock, SeededRandom, SystemClock
from headrace.core.errors import InvalidRequest, ProducerFenced, ProducerGap
from headrace.core.runtime import StepRuntime, Ticket
from headrace.core.settings import Settings
from headrace.engine.appending.pending_append import Appended
from headrace.engine.appending.producers import ProducerClaim
from headrace.engine.engine import Engine
from headrace.testing.diskmodel import Dice
from headrace.testing.simdisk import SimDisk

SEEDS, CALLS = 6, 120
REMEMBERED = 3
TOPICS = {"disk": "disk", "fsync": "fsync", "gone": "disk"}
NOTHING = (None, None, None)

Given = tuple[int | None, int | None, int | None]


@dataclass
class Epoch:
    """The newest epoch of a producer: what each of its appends was given."""

    number: int
    given: list[Given] = field(default_factory=list)


class Lockstep:
    """Calls go to both; what the engine answers, the model must have known."""

    def __init__(self, seed: int, appends_max: int) -> None:
        self.dice = Dice(seed, 0x9D)
        self.appends_max = appends_max
        self.clock = ManualClock()
        self.known: dict[tuple[str, str], Epoch] = {}
        self.heads = dict.fromkeys(TOPICS, 0)
        self.engine = self._open(SimDisk())

    def _open(self, disk: SimDisk) -> Engine:
        settings = Settings(
            wal_file_bytes=64 << 10,
            wal_batch_bytes_max=16 << 10,
            appends_per_producer_max=REMEMBERED,
            producer_appends_max=self.appends_max,
        )
        random = SeededRandom(self.dice.below(1 << 30))
        engine = Engine(disk, StepRuntime(self.clock), settings, random=random)
        engine.recover()
        for name, durability in TOPICS.items():
            engine.put_topic(name, {"durability": durability}).result()
        return engine

    def run(self) -> None:
        actions = [self.produce] * 12 + [self.plain, self.checkpoint, self.restart, self.recreate]
        for _ in range(CALLS):
            actions[self.dice.below(len(actions))]()
        self.engine.abandon()

    def produce(self) -> None:
        """Some appends at once, so that repeats also find theirs in flight."""
        sent = []
        for _ in range(1 + self.dice.below(4)):
            name, who = tuple(TOPICS)[self.dice.below(3)], "pq"[self.dice.below(2)]
            claim = self._claim(name, who)
            count = 1 + self.dice.below(3)
            due = self._due(name, claim, count)
            ticket = self.engine.append(name, [b"x"] * count, producer=claim)
            sent.append((name, claim, due, ticket))
            if self.dice.coin():
                self.engine.runtime.run()  # type: ignore[attr-defined]
        for name, claim, due, ticket in sent:
            self._check(name, claim, due, ticket)
        memory = self.engine.state.producer_memory
        assert memory.appends <= self.appends_max

    def _claim(self, name: str, who: str) -> ProducerClaim:
        """Mostly the next number or one before it; sometimes a gap, or another epoch."""
        known = self.known.get((name, who), Epoch(0))
        choice = self.dice.below(20)
        if choice == 0:
            return ProducerClaim(who, known.number + 1, 0)
        if choice == 1:
            return ProducerClaim(who, max(0, known.number - 1), self.dice.below(3))
        if choice == 2:
            return ProducerClaim(who, known.number + self.dice.below(2), len(known.given) + 1)
        if choice < 11:
            return ProducerClaim(who, known.number, len(known.given))
        return ProducerClaim(who, known.number, self.dice.below(len(known.given) + 1))

    def _due(self, name: str, claim: ProducerClaim, count: int) -> object:
        """What the model says to this: an error, or (deduped, what it was given)."""
        known = self.known.get((name, claim.id))
        if known is not None and claim.epoch < known.number:
            return ProducerFenced
        if known is None or claim.epoch > known.number:
            if claim.sequence:
                return ProducerGap if known is None else InvalidRequest
            known = self.known[name, claim.id] = Epoch(claim.epoch)
        if claim.sequence > len(known.given):
            return ProducerGap
        if claim.sequence < len(known.given):
            return True, known.given[claim.sequence]
        first = self.heads[name] + 1
        self.heads[name] += count
        known.given.append((first, first + count - 1, count))
        return False, known.given[-1]

    def _check(
        self, name: str, claim: ProducerClaim, due: object, ticket: Ticket[Appended]
    ) -> None:
        self.engine.runtime.run()  # type: ignore[attr-defined]
        if not isinstance(due, tuple):
            assert type(ticket.error) is due, (claim, due, ticket.error)
            return
        assert ticket.error is None, (claim, ticket.error)
        answer = ticket.result()
        given = (answer.first_seq, answer.last_seq, answer.count)
        deduped, right = due
        assert answer.deduped == deduped
        newest = answer.producer_sequence
        assert (newest is not None) == deduped
        if newest is None or newest - claim.sequence < (REMEMBERED if self.whole else 1):
            assert given == right, (claim, answer)
        elif self.whole:
            assert given == NOTHING, (claim, answer)
        else:
            assert given in (right, NOTHING), (claim, answer)
        assert answer.head_seq == right[1] if given != NOTHING else self.heads[name]

    @property
    def whole(self) -> bool:
        """There is room for all that is to be remembered."""
        return self.appends_max >= 2 * len(TOPICS) * REMEMBERED

    def plain(self) -> None:
        name = tuple(TOPICS)[self.dice.below(3)]
        self.engine.append(name, [b"between"]).result()
        self.heads[name] += 1

    def checkpoint(self) -> None:
        ticket = self.engine.checkpoint()
        if self.dice.coin():
            ticket.result()

    def restart(self) -> None:
        """A clean stop, a kill, or a power failure that everything has been synced for."""
        disk = self.engine.state.fs
        assert isinstance(disk, SimDisk)
        how = self.dice.below(3)
        if how == 0:
            self.engine.close()
            self.engine = self._open(disk.copy())
            return
        if how == 1:
            self.engine.checkpoint().result()
        self.engine.abandon()
        self.engine = self._open(disk.image(disk.position, "all", 0, power_loss=how == 1))
        # A power failure may have cost seqs that nobody was given.
        self.heads = {name: self.engine.topic(name).head_seq for name in TOPICS}

    def recreate(self) -> None:
        self.engine.delete_topic("gone").result()
        self.engine.put_topic("gone", {"durability": TOPICS["gone"]}).result()
        self.heads["gone"] = 0
        for key in [key for key in self.known if key[0] == "gone"]:
            del self.known[key]


def run(seed: int, appends_max: int) -> None:
    try:
        Lockstep(seed, appends_max).run()
    except AssertionError as error:
        raise AssertionError(f"seed {seed}, at most {appends_max}: {error}") from error


@pytest.mark.parametrize("appends_max", [1_000, 4], ids=["room", "no-room"])
def test_repeats_get_their_own_seqs_or_none(appends_max: int) -> None:
    """§12g."""
    for seed in range(SEEDS):
        run(seed, appends_max)


@pytest.mark.long
def test_repeats_get_their_own_seqs_or_none_for_long(sweep) -> None:  # type: ignore[no-untyped-def]
    clock = SystemClock()
    deadline_ns = clock.monotonic_ns() + int(sweep.seconds * 1e9)
    seed = sweep.seed * 1_000
    while clock.monotonic_ns() < deadline_ns:
        seed += 1
        run(seed, (1_000, 4)[seed % 2])
    print(f"{seed - sweep.seed * 1_000} runs of {CALLS} calls")
