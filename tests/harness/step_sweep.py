"""Sweeps over programs of steps: a crash at every point, and what has to be there after it.

A step that was answered has happened, one that was not has happened or has not, and taking it again
makes it so, once.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from headrace.core.clock import ManualClock
from headrace.core.errors import HeadraceError
from headrace.core.runtime import StepRuntime, Ticket
from headrace.engine.engine import Engine
from headrace.testing.simdisk import MODES, SimDisk
from tests.support.engines import open_engines

Step = Callable[[Engine], Ticket[object]]
Seen = dict[str, object]


class Program(NamedTuple):
    """Steps, and how to see what they did."""

    steps: Sequence[Step]
    look: Callable[[Engine], Seen]  # what a user could find out
    settle_ms: int  # after this time all has happened that happens by itself
    done_before: frozenset[str]  # codes that refuse a step because it was taken before

    def settle(self, engine: Engine) -> None:
        """Let everything happen that happens by itself."""
        runtime = engine.runtime
        assert isinstance(runtime, StepRuntime) and isinstance(runtime.clock, ManualClock)
        runtime.run()
        runtime.clock.advance(self.settle_ms)
        runtime.run()

    def take(self, engine: Engine, step: Step) -> None:
        """Take a step, which may have been taken before."""
        try:
            step(engine).result()
        except HeadraceError as error:
            if error.code not in self.done_before:
                raise


def step(call: Callable[[Engine], object]) -> Step:
    """A call as a step, whatever it answers."""
    return call  # type: ignore[return-value]


def perform(program: Program, disk: SimDisk, shards: int) -> tuple[list[int], list[Seen]]:
    """Take all steps; where on the disk each was answered, and what was there after it."""
    with open_engines(ManualClock()) as start:
        engine = start(disk, wal_shards=shards)
        answered, seen = [disk.position], [program.look(engine)]
        for call in program.steps:
            call(engine).result()
            answered.append(disk.position)
            program.settle(engine)
            seen.append(program.look(engine))
    return answered, seen


def explore(program: Program, shards: int, *, unseen: int) -> int:
    """Crash a program everywhere, and check it; return how many states a crash left.

    States that are alike to the last byte are checked once.  `unseen`: of so many steps a user sees
    nothing.
    """
    disk, steps = SimDisk(), program.steps
    answered, seen = perform(program, disk, shards)
    assert len({str(state) for state in seen}) == len(steps) + 1 - unseen, "a step shows nothing"
    states = 0
    known: set[tuple[int, object]] = set()
    modes = ("none", "all", "torn") if shards > 1 else MODES
    for crash in disk.images(modes, seed=7, start=answered[0], distinct=True):
        states += 1
        done = max(index for index, position in enumerate(answered) if position <= crash.position)
        state = (done, crash.disk.fingerprint())
        if state in known:
            continue
        known.add(state)
        with open_engines(ManualClock()) as start:
            engine = start(crash.disk, wal_shards=shards)
            program.settle(engine)
            found = program.look(engine)
            after = seen[done + 1] if done < len(steps) else seen[done]
            where = f"position {crash.position}, {crash.mode}, {done} of {len(steps)} answered"
            assert found in (seen[done], after), where
            if done < len(steps):
                program.take(engine, steps[done])
                program.settle(engine)
                assert program.look(engine) == after, where
    return states
