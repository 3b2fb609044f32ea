"""Wall clocks that jump, while the engine runs and across a restart.

Engine time is the wall clock at start plus monotonic time: while it runs, no jump expires, reorders
or revives anything.  Across a restart a jump forward cannot be told from time that has passed, so
it may expire what has a time to live, and says so; a jump back changes nothing.
"""

from __future__ import annotations

import pytest

from headrace.core.clock import ManualClock, SeededRandom
from headrace.core.runtime import StepRuntime
from headrace.engine.engine import Engine
from headrace.engine.reading.page import Page
from headrace.testing.simdisk import SimDisk
from tests.harness.traffic import small_settings
from tests.support.seqs import seqs_of_page

HOUR_MS = 3_600_000
YEARS_MS = 10 * 365 * 24 * HOUR_MS
JUMPS = {"+1h": HOUR_MS, "-1h": -HOUR_MS, "+10y": YEARS_MS, "-10y": -YEARS_MS}
TTL_MS = 60_000
PLAIN, SHORT = "plain", "short"
CONFIGS = {PLAIN: {}, SHORT: {"ttl_ms": TTL_MS}}

jumps = pytest.mark.parametrize("jump_ms", JUMPS.values(), ids=JUMPS)
stops = pytest.mark.parametrize("stop", ["close", "abandon"])


def opened(disk: SimDisk, clock: ManualClock) -> Engine:
    engine = Engine(disk, StepRuntime(clock), small_settings(), random=SeededRandom(1))
    engine.recover()
    return engine


def append(engine: Engine, key: str | None = None) -> None:
    """One record in each topic."""
    for name, config in CONFIGS.items():
        engine.append(name, [b"x"], config=config, idempotency_key=key).result()


def read(engine: Engine, name: str) -> Page:
    page = engine.read(name).result()
    stamps = [record.ts for record in page.records]
    assert stamps == sorted(stamps), stamps
    return page


def all_there(engine: Engine, count: int) -> None:
    for name in CONFIGS:
        assert seqs_of_page(read(engine, name)) == list(range(1, count + 1))
        assert read(engine, name).tombstone is None


@jumps
def test_a_jump_while_running_changes_nothing(jump_ms: int) -> None:
    disk, clock = SimDisk(), ManualClock()
    engine = opened(disk, clock)
    engine_clock = engine.state.clock
    for turn in range(4):
        append(engine, key=f"k{turn}")
        clock.advance(10)
        before = engine_clock.now_ms()
        clock.jump(jump_ms if turn % 2 == 0 else -jump_ms)
        assert engine_clock.now_ms() == before
        assert engine_clock.check_jump() == (jump_ms if turn % 2 == 0 else -jump_ms)
        assert engine_clock.check_jump() is None
        engine.runtime.run()
        all_there(engine, turn + 1)
        engine.checkpoint().result()
        all_there(engine, turn + 1)
    # A key is remembered for as long as before.
    again = engine.append(PLAIN, [b"x"], idempotency_key="k0").result()
    assert again.deduped and again.first_seq == 1
    stamps = [record.ts for record in read(engine, PLAIN).records]
    assert stamps == [stamps[0] + 10 * turn for turn in range(4)]


@jumps
def test_time_to_live_runs_on_through_a_jump(jump_ms: int) -> None:
    disk, clock = SimDisk(), ManualClock()
    engine = opened(disk, clock)
    append(engine)
    clock.jump(jump_ms)
    clock.advance(TTL_MS)
    append(engine)
    all_there(engine, 2)
    clock.advance(1)
    page = read(engine, SHORT)
    assert seqs_of_page(page) == [2]
    assert page.tombstone is not None and page.tombstone[:3] == (1, 1, "ttl")
    assert seqs_of_page(read(engine, PLAIN)) == [1, 2]


@stops
@pytest.mark.parametrize("jump_ms", [-HOUR_MS, -YEARS_MS], ids=["-1h", "-10y"])
def test_a_jump_back_across_a_restart(jump_ms: int, stop: str) -> None:
    disk, clock = SimDisk(), ManualClock()
    engine = opened(disk, clock)
    for turn in range(3):
        append(engine, key=f"k{turn}")
        clock.advance(1_000)
    getattr(engine, stop)()
    clock.jump(jump_ms)
    engine = opened(disk, clock)
    all_there(engine, 3)
    again = engine.append(SHORT, [b"x"], idempotency_key="k1").result()
    assert again.deduped and again.first_seq == 2
    append(engine, key="k3")
    all_there(engine, 4)
    clock.jump(-jump_ms)
    engine.runtime.run()
    all_there(engine, 4)


@stops
@pytest.mark.parametrize("jump_ms", [HOUR_MS, YEARS_MS], ids=["+1h", "+10y"])
def test_a_jump_forward_across_a_restart_is_announced_and_stays(jump_ms: int, stop: str) -> None:
    disk, clock = SimDisk(), ManualClock()
    engine = opened(disk, clock)
    append(engine)
    append(engine)
    getattr(engine, stop)()
    clock.jump(jump_ms)
    engine = opened(disk, clock)
    # As if that time had passed: what has no time to live is there, the loss of the rest is told.
    assert seqs_of_page(read(engine, PLAIN)) == [1, 2]
    page = read(engine, SHORT)
    assert page.records == [] and page.head_seq == 2
    assert page.tombstone is not None and page.tombstone[:3] == (1, 2, "ttl")
    append(engine)
    getattr(engine, stop)()
    # The clock is put right again: what is gone stays gone, what is there stays there.
    clock.jump(-jump_ms)
    engine = opened(disk, clock)
    assert seqs_of_page(read(engine, PLAIN)) == [1, 2, 3]
    page = read(engine, SHORT)
    assert seqs_of_page(page) == [3]
    assert page.tombstone is not None and page.tombstone[:3] == (1, 2, "ttl")
    append(engine)
    assert seqs_of_page(read(engine, PLAIN)) == [1, 2, 3, 4]
    assert seqs_of_page(read(engine, SHORT)) == [3, 4]


@jumps
def test_a_jump_during_a_checkpoint(jump_ms: int) -> None:
    """The wall clock is in headers of files; none of them decides anything."""
    disk, clock = SimDisk(), ManualClock()
    engine = opened(disk, clock)
    for _ in range(3):
        append(engine)
        ticket = engine.checkpoint()
        for _ in range(2):
            engine.runtime.step()
        clock.jump(jump_ms)
        ticket.result()
        clock.jump(-jump_ms)
    engine.abandon()
    all_there(opened(disk, clock), 3)
