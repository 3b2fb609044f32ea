"""What each rung of the ladder does to an engine, and how its load is measured."""

from __future__ import annotations

import msgspec
import pytest

from headrace.core.clock import ManualClock
from headrace.core.errors import Throttled
from headrace.core.runtime import StepRuntime
from headrace.engine.appending.admission import Append
from headrace.engine.appending.pending_append import PendingAppend
from headrace.engine.engine import Engine
from headrace.engine.live.follower import Follower, Position, Subscription
from headrace.engine.live.hub import LiveHub
from headrace.engine.live.pages import SharedPage
from headrace.engine.scheduling import governor as ladder
from headrace.engine.scheduling.bands import AGE_CAP_MS
from headrace.engine.scheduling.governor import (
    COALESCE_MS_MAX,
    LOOK_MS,
    RETRY_AFTER_MS,
    SHED_FROM,
    WINDOW_MS_MAX,
    Load,
)
from headrace.engine.scheduling.turns import Job
from headrace.storage.block import Batch
from tests.support.engines import Start
from tests.support.queue_calls import add, claim, make
from tests.support.seqs import seqs_of_page

LITTLE = 0.01


class Reader(Follower[None]):
    """Takes at once whatever it is handed, and remembers in how many pages."""

    __slots__ = ("delayed_ms", "pages")

    def __init__(self, hub: LiveHub) -> None:
        super().__init__(hub)
        self.pages: list[list[int]] = []
        self.delayed_ms: list[int] = []

    @property
    def ready(self) -> bool:
        return True

    def deliver(self, subscription: Subscription[None], shared: SharedPage) -> None:
        if shared.page.count:
            self.pages.append(seqs_of_page(shared.page))

    def topic_delayed(self, subscription: Subscription[None], ms_max: int) -> None:
        self.delayed_ms.append(ms_max)


def run(engine: Engine, ms: int = 0) -> None:
    assert isinstance(engine.runtime, StepRuntime)
    assert isinstance(engine.runtime.clock, ManualClock)
    engine.runtime.clock.advance(ms)
    engine.runtime.run()


def follow(engine: Engine, hub: LiveHub, name: str, **config: object) -> Reader:
    engine.put_topic(name, config).result()
    reader = Reader(hub)
    topic = engine.state.by_name[name]
    options = hub.page_options(1_000, 1 << 20, ())
    reader.follow(Position(name, topic.epoch, 0), options, None, topic)
    run(engine)
    return reader


def sustain(engine: Engine, pressure: float) -> None:
    """So much pressure, for as long as it takes."""
    for _ in range(ladder.DEFER_AFTER_MS // LOOK_MS + 1):
        engine.state.throttle.govern(pressure)
        run(engine, LOOK_MS)


def test_g5_without_pressure_every_append_is_delivered_at_once(engine: Engine) -> None:
    reader = follow(engine, LiveHub(engine), "t")
    for value in range(3):
        engine.append("t", [value]).result()
        run(engine)
    assert reader.pages == [[1], [2], [3]]
    assert engine.state.turns.coalesced_total == 0


def test_g5_first_rung_deliveries_are_put_together(engine: Engine) -> None:
    reader = follow(engine, LiveHub(engine), "t")
    engine.state.throttle.govern(0.6)
    assert engine.state.turns.coalesce_ms == 10
    for value in range(5):
        engine.append("t", [value]).result()
        run(engine, 1)
    assert reader.pages == []
    run(engine, 10)
    assert reader.pages == [[1, 2, 3, 4, 5]]
    assert engine.state.turns.coalesced_total == 1
    engine.state.throttle.govern(0.1)
    engine.append("t", [5]).result()
    run(engine)
    assert reader.pages[1:] == [[6]]


def test_what_is_put_together_goes_out_although_the_pressure_fell_meanwhile(engine: Engine) -> None:
    reader = follow(engine, LiveHub(engine), "t")
    engine.state.throttle.govern(1.0)
    engine.append("t", [0]).result()
    run(engine)
    engine.state.throttle.govern(0.0)
    engine.append("t", [1]).result()
    run(engine, COALESCE_MS_MAX)
    assert [seq for page in reader.pages for seq in page] == [1, 2]


def test_g5_second_rung_a_sync_waits_for_more_to_join_it(engine: Engine) -> None:
    engine.put_topic("t", {"durability": "fsync"}).result()
    shard = engine.state.shards[0]
    syncs = shard.syncs_total
    engine.state.throttle.govern(0.5)
    assert shard.window_ms == 5
    tickets = []
    for value in range(4):
        tickets.append(engine.append("t", [value]))
        run(engine, 1)
        assert not tickets[-1].done and engine.topic("t").head_seq == 0, "not before the sync (A7)"
    run(engine, 5)
    assert [ticket.result().last_seq for ticket in tickets] == [1, 2, 3, 4]
    assert shard.syncs_total == syncs + 1
    waited_ms = [ticket.result().throttle_ns // 1_000_000 for ticket in tickets]
    assert waited_ms == [8, 7, 6, 5], "each since it was written"
    assert shard.windows_total == 1


def test_g5_below_the_second_rung_an_append_waits_for_nothing(engine: Engine) -> None:
    engine.put_topic("t", {"durability": "fsync"}).result()
    engine.state.throttle.govern(ladder.WIDEN_ABOVE)
    ticket = engine.append("t", [1])
    run(engine)
    assert ticket.result().throttle_ns == 0 and ticket.result().sync_ns >= 0


@pytest.mark.parametrize("durability", ["disk", "memory", "ephemeral"])
def test_classes_that_wait_for_no_sync_wait_for_no_window(engine: Engine, durability: str) -> None:
    engine.append("t", [1], config={"durability": durability}).result()
    engine.state.throttle.govern(1.0)
    ticket = engine.append("t", [2])
    run(engine)
    assert ticket.done and ticket.result().throttle_ns == 0


def test_g6_what_is_acknowledged_in_a_wide_window_survives(
    engine: Engine, power_loss: Start
) -> None:
    engine.put_topic("t", {"durability": "fsync"}).result()
    engine.append("other", [0]).result()  # has begun a lazy sync
    engine.state.throttle.govern(1.0)
    acknowledged = [engine.append("t", [value]) for value in range(10)]
    run(engine)
    assert not any(ticket.done for ticket in acknowledged)
    run(engine, round(WINDOW_MS_MAX))
    assert all(ticket.done for ticket in acknowledged)
    late = engine.append("t", [10])
    run(engine)
    assert not late.done
    survivor = power_loss(engine, "none")
    assert survivor.topic("t").head_seq == 10


def test_a_window_that_is_open_closes_when_the_pressure_ends(engine: Engine) -> None:
    engine.put_topic("t", {"durability": "fsync"}).result()
    engine.state.throttle.govern(1.0)
    ticket = engine.append("t", [1])
    run(engine)
    assert not ticket.done
    engine.state.throttle.govern(0.0)
    run(engine)
    assert ticket.done


def test_a_clean_stop_waits_for_no_window(engine: Engine, restart: Start) -> None:
    engine.put_topic("t", {"durability": "fsync"}).result()
    engine.state.throttle.govern(1.0)
    ticket = engine.append("t", [1])
    run(engine)
    again = restart(engine)
    assert ticket.done and ticket.error is None
    assert again.topic("t").head_seq == 1


def test_g5_third_rung_negative_priorities_wait_and_can_be_read(engine: Engine) -> None:
    hub = LiveHub(engine)
    low = follow(engine, hub, "low", priority=-1)
    plain = follow(engine, hub, "plain", priority=0)
    sustain(engine, 0.9)
    for name in ("low", "plain"):
        engine.append(name, [1]).result()
    run(engine, COALESCE_MS_MAX)
    assert plain.pages == [[1]] and low.pages == []
    assert engine.read("low").result().count == 1, "what is not pushed can be read (G6)"
    engine.state.throttle.govern(ladder.DEFER_UNTIL_BELOW)
    run(engine, COALESCE_MS_MAX)
    assert low.pages == [], "not before the pressure is below the lower bound"
    engine.append("low", [2]).result()
    engine.state.throttle.govern(ladder.DEFER_UNTIL_BELOW - LITTLE)
    run(engine, COALESCE_MS_MAX)
    assert low.pages == [[1, 2]]


def test_g4_what_is_put_off_is_delivered_after_ten_seconds_at_the_latest(engine: Engine) -> None:
    low = follow(engine, LiveHub(engine), "low", priority=-1_000)
    sustain(engine, 1.0)
    engine.append("low", [1]).result()
    for _ in range(AGE_CAP_MS // LOOK_MS - 1):
        engine.state.throttle.govern(1.0)
        run(engine, LOOK_MS)
        assert low.pages == []
    for _ in range(3):
        engine.state.throttle.govern(1.0)
        run(engine, LOOK_MS)
    assert low.pages == [[1]]


def test_readers_of_what_is_put_off_are_told_once(engine: Engine) -> None:
    low = follow(engine, LiveHub(engine), "low", priority=-1)
    sustain(engine, 0.9)
    engine.append("low", [1]).result()
    run(engine, COALESCE_MS_MAX)
    for _ in range(5):
        engine.state.throttle.govern(0.9)
        run(engine)
    assert len(low.delayed_ms) == 1
    assert 0 < low.delayed_ms[0] <= AGE_CAP_MS


class Drain(Job):
    """Background work, as a router's drain is."""

    __slots__ = ("steps",)
    background = True
    priority = 0

    def __init__(self) -> None:
        super().__init__()
        self.steps = 0

    def step(self) -> bool:
        self.steps += 1
        return False


def test_g5_background_work_is_put_one_band_down_and_goes_on(engine: Engine) -> None:
    turns = engine.state.turns
    sustain(engine, 1.0)
    drain = Drain()
    turns.enqueue(drain)
    run(engine)
    assert drain.steps == 1
    Drain.priority = 600  # type: ignore[assignment]
    try:
        before = list(turns.bands.served_total)
        turns.enqueue(drain)
        run(engine)
    finally:
        Drain.priority = 0  # type: ignore[assignment]
    assert turns.bands.served_total[2] == before[2] + 1


# The last rung


def fill(engine: Engine, count: int) -> None:
    for value in range(count):
        engine.append("t", [value])


def test_g5_last_rung_refuses_appends_to_a_full_log(start: Start) -> None:
    engine = start(wal_queue_depth_max=3)
    engine.append("t", [0]).result()
    sustain(engine, 1.0)
    fill(engine, 3)
    with pytest.raises(Throttled) as refused:
        engine.append("t", ["refused"]).result()
    assert refused.value.detail["retry_after_ms"] == RETRY_AFTER_MS
    assert engine.state.throttle.refused_total == 1
    run(engine)
    assert engine.append("t", [4]).result().last_seq == 5, "a refused append takes no seq (A3)"


def test_g5_appends_of_one_call_count_before_they_are_in_the_log(start: Start) -> None:
    engine = start(wal_queue_depth_max=3)
    engine.append("t", [0]).result()
    sustain(engine, 1.0)
    fill(engine, 1)
    asked = [PendingAppend(engine.runtime, "t", msgspec.Raw(b"1")) for _ in range(4)]
    engine.append_all(asked, lambda _done: None)
    assert [isinstance(one.error, Throttled) for one in asked] == [False, False, True, True]
    assert engine.state.throttle.refused_total == 2
    run(engine)
    assert engine.topic("t").head_seq == 4


def test_g5_nothing_is_refused_before_work_was_put_off(start: Start) -> None:
    engine = start(wal_queue_depth_max=3)
    engine.append("t", [0]).result()
    engine.state.throttle.govern(1.0)
    assert not engine.state.turns.deferring
    fill(engine, 10)
    run(engine)
    assert engine.topic("t").head_seq == 11


def test_g5_a_full_log_alone_refuses_nothing(start: Start) -> None:
    engine = start(wal_queue_depth_max=3)
    engine.append("t", [0]).result()
    sustain(engine, SHED_FROM - LITTLE)
    fill(engine, 10)
    run(engine)
    assert engine.topic("t").head_seq == 11
    assert engine.state.throttle.refused_total == 0


def test_g5_pressure_alone_refuses_nothing(start: Start) -> None:
    engine = start(wal_queue_depth_max=3)
    engine.append("t", [0]).result()
    sustain(engine, 1.0)
    fill(engine, 2)
    assert engine.append("t", [1]).result().last_seq == 4


def test_g5_disable_backpressure_is_honoured(start: Start) -> None:
    engine = start(wal_queue_depth_max=3)
    engine.append("t", [0]).result()
    sustain(engine, 1.0)
    fill(engine, 3)
    bypassing = Append(disable_backpressure=True)
    ticket = engine.append_batch("t", Batch([b"1"]), bypassing)
    same = engine.append("t", [1], disable_backpressure=True)
    assert isinstance(engine.append("t", [1]).error, Throttled)
    assert (ticket.result().last_seq, same.result().last_seq) == (5, 6)
    assert engine.state.throttle.bypassed_total == 2


def test_a_refused_append_creates_no_topic(start: Start) -> None:
    engine = start(wal_queue_depth_max=3)
    engine.append("t", [0]).result()
    sustain(engine, 1.0)
    fill(engine, 3)
    refused = engine.append("new", [1])
    assert isinstance(refused.error, Throttled)
    run(engine)
    assert [topic.topic for topic in engine.topics()] == ["t"]
    bypassing = Append(disable_backpressure=True)
    fill(engine, 3)
    created = engine.append_batch("new", Batch([b"1"]), bypassing)
    run(engine)
    run(engine, round(WINDOW_MS_MAX))
    assert created.result().created


def test_a_job_is_buried_however_great_the_pressure(start: Start, clock: ManualClock) -> None:
    """It is the queue's own doing, and no client could wait and try again."""
    engine = start(wal_queue_depth_max=1)
    make(engine, max_deliveries=1, dead_letter="dead", lease_ms=1_000)
    add(engine, 1)
    for name in ("dead", "t"):
        engine.append(name, [0]).result()
    claim(engine)
    clock.advance(1_001)
    sustain(engine, 1.0)
    left = 50

    def fill_again(_: object = None) -> None:
        nonlocal left
        left -= 1
        if left:
            engine.append("t", [1], disable_backpressure=True).when_done(fill_again)

    fill_again()  # so the log is full as long as it lasts
    assert engine.queues.claim("jobs", "a", 1).result().jobs == []
    assert left > 0
    assert engine.queues.counts("jobs").dead_lettered == 1
    assert engine.topic("dead").head_seq == 2


def test_a_repeat_is_answered_however_great_the_pressure(start: Start) -> None:
    engine = start(wal_queue_depth_max=1)
    engine.append("t", [0], idempotency_key="k").result()
    sustain(engine, 1.0)
    fill(engine, 1)
    repeated = engine.append("t", [0], idempotency_key="k")
    assert repeated.result().deduped


# Measuring


def test_an_idle_engine_has_no_pressure(engine: Engine) -> None:
    engine.govern()
    for _ in range(10):
        run(engine, LOOK_MS)
    assert engine.state.throttle.governor.pressure == 0


def test_g5_requests_that_wait_for_their_turn_are_load(engine: Engine) -> None:
    engine.govern()
    throttle = engine.state.throttle
    throttle.waiting_requests = lambda: ladder.DEPTH_FULL // 2
    run(engine, LOOK_MS)
    assert throttle.governor.depth == 0.5
    throttle.waiting_requests = int
    run(engine, LOOK_MS)
    assert throttle.governor.depth == 0


def test_the_loop_is_measured(engine: Engine, clock: ManualClock) -> None:
    engine.govern()
    governor = engine.state.throttle.governor
    for _ in range(50):
        clock.work(LOOK_MS)
        for value in range(2 * ladder.DEPTH_FULL):
            engine.append("t", [value])
        engine.state.turns.ask()
        clock.advance(2 * round(ladder.LATENCY_FULL_MS))  # the turn comes so late
        run(engine, LOOK_MS - 2 * round(ladder.LATENCY_FULL_MS))
    assert governor.busy == pytest.approx(1.0)
    assert governor.depth > 0.5
    assert governor.latency > 0.9
    assert governor.pressure > ladder.DEFER_ABOVE
    for _ in range(50):
        run(engine, LOOK_MS)
    assert governor.pressure < ladder.COALESCE_ABOVE
    assert not any(governor.rungs().values())


def test_a_process_that_slept_is_calm_within_a_second_and_refuses_nothing(
    engine: Engine, clock: ManualClock
) -> None:
    engine.govern()
    run(engine, LOOK_MS)
    engine.state.turns.ask()
    clock.advance(3_600_000)  # stopped, or without a processor
    run(engine)
    governor = engine.state.throttle.governor
    assert not governor.rungs()["defer"] and not governor.rungs()["shed"]
    for _ in range(10):
        run(engine, LOOK_MS)
    assert not any(governor.rungs().values())


@pytest.mark.parametrize("jump_ms", [-10_000_000, 10_000_000])
def test_a_jump_of_the_wall_clock_is_no_pressure_and_changes_no_priority(
    engine: Engine, clock: ManualClock, jump_ms: int
) -> None:
    engine.append("t", [1]).result()
    engine.touch("t")
    engine.govern()
    run(engine, LOOK_MS)
    before = engine.topic("t").effective_priority
    clock.jump(jump_ms)
    run(engine)
    assert engine.topic("t").effective_priority == before > 0
    run(engine, LOOK_MS)
    assert engine.state.throttle.governor.pressure == 0
    assert engine.state.throttle.governor.entered_total["coalesce"] == 0


def test_looks_go_on_although_one_has_failed(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else a server that refuses appends would refuse them for ever."""
    engine.govern()
    looks: list[Load] = []

    def apply(load: Load) -> None:
        looks.append(load)
        raise RuntimeError("broken on purpose")

    monkeypatch.setattr(engine.state.throttle, "apply", apply)
    for _ in range(3):
        with pytest.raises(RuntimeError):
            run(engine, LOOK_MS)
    assert len(looks) == 3


def test_nothing_is_governed_after_the_end(start: Start) -> None:
    engine = start()
    engine.govern()
    engine.state.throttle.stop()
    pending = engine.state.throttle.governor.entered_total.copy()
    run(engine, 10 * LOOK_MS)
    assert engine.state.throttle.governor.entered_total == pending
