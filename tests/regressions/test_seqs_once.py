"""No acknowledged seq is ever given out again, whatever is lost, however often.

Class `disk` acknowledges before a sync; what bounds the loss is the reservation, which has to be
durable first, has to outlive the log that holds it, and has to be kept when it was announced.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest

from headrace.core.clock import ManualClock
from headrace.core.errors import NotReady
from headrace.core.runtime import StepRuntime
from headrace.engine.appending.producers import ProducerClaim
from headrace.engine.engine import Engine
from headrace.testing.simdisk import SimDisk

Start = Callable[..., Engine]
CLASSES = ("memory", "disk", "ephemeral")


def disk_of(engine: Engine) -> SimDisk:
    assert isinstance(engine.state.fs, SimDisk)
    return engine.state.fs


def without_power(engine: Engine) -> SimDisk:
    """What is left of the disk when only what was synced is left."""
    return disk_of(engine).image(disk_of(engine).position, "none", 0)


def killed(engine: Engine) -> SimDisk:
    engine.abandon()
    return disk_of(engine).image(disk_of(engine).position, "all", 0, power_loss=False)


def told(engine: Engine) -> list[tuple[int, int]]:
    """Every range announced as lost, from the first record to the head."""
    ranges = []
    cursor = 0
    while True:
        page = engine.read("t", cursor).result()
        if page.tombstone is not None:
            ranges.append((page.tombstone.gap_from, page.tombstone.gap_to))
        cursor = page.next_from_seq
        if page.caught_up:
            return ranges


@pytest.mark.parametrize("durability", CLASSES)
@pytest.mark.parametrize("checkpoint", [False, True])
def test_a_head_that_was_acknowledged_is_never_gone_below(
    start: Start, durability: str, checkpoint: bool
) -> None:
    """Past the end of one reservation after the other, with no time for a sync between."""
    engine = start()
    engine.put_topic("t", {"durability": durability}).result()
    for n in range(60):
        head = engine.append("t", [n] * 11).result().head_seq
        if checkpoint and n in (2, 30):
            engine.checkpoint().result()
        lost = start(without_power(engine))
        assert lost.topic("t").head_seq >= head, n
        assert lost.append("t", [0]).result().first_seq > head


@pytest.mark.parametrize("durability", CLASSES)
def test_a_loss_that_was_announced_is_announced_after_the_next_crash(
    start: Start, durability: str
) -> None:
    engine = start()
    engine.put_topic("t", {"durability": durability}).result()
    engine.append("t", [1]).result()
    engine = start(without_power(engine))
    head, lost = engine.topic("t").head_seq, told(engine)
    assert head > 1 and lost == [(1, head)]
    for end in (killed, without_power, killed):
        engine = start(end(engine))
        assert engine.topic("t").head_seq >= head
        assert told(engine)[0][0] == 1
    assert engine.append("t", [2]).result().first_seq > head


@pytest.mark.parametrize("durability", ["memory", "disk", "fsync"])
def test_a_kill_right_after_a_power_loss_costs_nothing(start: Start, durability: str) -> None:
    """Whatever a start has announced, it has not announced it in vain."""
    engine = start()
    engine.put_topic("t", {"durability": durability}).result()
    engine.append("t", [1]).result()
    engine = start(without_power(engine))
    head = engine.topic("t").head_seq
    engine.append("t", [2]).result()
    for _ in range(3):
        engine = start(killed(engine))
        assert engine.topic("t").head_seq == head + 1
        assert [r.data for r in engine.read("t", head).result().records] == [b"2"]


def test_what_was_read_after_a_kill_survives_a_power_loss_later(start: Start) -> None:
    """The page cache outlived the process; whoever starts next has to make it durable."""
    engine = start()
    engine.put_topic("t", {"durability": "disk"}).result()
    engine.append("t", [1]).result()
    engine = start(killed(engine))
    assert [r.data for r in engine.read("t").result().records] == [b"1"]
    engine = start(without_power(engine))
    assert [r.data for r in engine.read("t").result().records] == [b"1"]


def test_time_passes_and_the_reservation_is_renewed(start: Start, clock: ManualClock) -> None:
    """A steady writer: the same promise at every instant, also between two syncs."""
    engine = start()
    engine.put_topic("t", {"durability": "disk"}).result()
    runtime = engine.runtime
    assert isinstance(runtime, StepRuntime)
    for n in range(40):
        head = engine.append("t", [n] * 50).result().head_seq
        clock.advance(20)
        if n % 3:
            runtime.run()
        assert start(without_power(engine)).topic("t").head_seq >= head


def test_a_key_counts_for_its_whole_window(start: Start, clock: ManualClock) -> None:
    """Also one that came late in a generation of keys, whose first ones are long out of it."""
    engine = start()
    engine.put_topic("t", {"idempotency_window_ms": 10_000}).result()
    for n in range(12):
        engine.append("t", [n], idempotency_key=f"key-{n}").result()
        clock.advance(800)
    clock.advance(1_200)
    for n in range(12):
        age_ms = (12 - n) * 800 + 1_200
        again = engine.append("t", [n], idempotency_key=f"key-{n}").result()
        assert again.deduped == (age_ms <= 10_000), n


@pytest.mark.parametrize("durability", ["disk", "fsync", "ephemeral"])
def test_a_clean_stop_and_idle_kills_cost_no_seq(start: Start, durability: str) -> None:
    engine = start()
    engine.append("t", [1, 2], config={"durability": durability}).result()
    engine.close()
    engine = start(disk_of(engine).copy())
    head = engine.topic("t").head_seq
    assert head == 2
    for _ in range(3):
        engine = start(killed(engine))
        assert engine.topic("t").head_seq == head


def test_the_number_of_shards_may_change_at_any_start(start: Start) -> None:
    """After a clean stop or a kill; what is written next is found by the start after that."""
    engine = start()
    written = 0
    for shards in (1, 3, 2, 2, 1, 4, 1):
        for clean in (True, False, False):
            if clean:
                engine.close()
            engine = start(killed(engine), wal_shards=shards)
            for name in ("t", "u", "v"):
                engine.append(name, [written], config={"durability": "fsync"}).result()
            written += 1
            for name in ("t", "u", "v"):
                assert engine.topic(name).head_seq == written


def test_a_change_of_class_takes_no_seq_back(start: Start) -> None:
    """Seqs of records that are never stored stay used once the topic stores."""
    for durability in ("memory", "disk", "fsync"):
        engine = start()
        engine.append("t", [1, 2, 3], config={"durability": "ephemeral"}).result()
        engine.put_topic("t", {"durability": durability}).result()
        engine = start(killed(engine))
        assert engine.append("t", [4]).result().first_seq >= 4


def test_what_a_cap_took_stays_gone_when_the_cap_is_lifted_in_the_same_turn(start: Start) -> None:
    engine = start()
    engine.append("t", [1, 2, 3], config={"cap_records": 3}).result()
    append = engine.append("t", [4, 5])
    lifted = engine.put_topic("t", {"cap_records": 0})
    append.result()
    disk = disk_of(engine)
    told_at = disk.position
    assert engine.topic("t").earliest_seq == 3
    lifted.result()
    for position in range(told_at, disk.crash_points):
        image = disk.image(position, "all", 0, power_loss=False)
        assert start(image).topic("t").earliest_seq == 3


def test_an_append_that_failed_is_stored_when_it_is_sent_again(start: Start) -> None:
    """Nothing may remember a key or a producer's sequence whose records are not there."""
    disk = SimDisk()
    engine = start(disk)
    engine.append("t", [0]).result()
    space_bytes = disk.space_bytes
    how = {"idempotency_key": "k", "producer": ProducerClaim("p", 0, 0)}
    for _ in range(2):
        disk.space_bytes = space_bytes - disk.free_bytes()
        refused = engine.append("t", [b"x" * 100_000], **how)  # type: ignore[arg-type]
        with pytest.raises(NotReady):
            refused.result()
        disk.space_bytes = space_bytes
    stored = engine.append("t", [1], **how).result()  # type: ignore[arg-type]
    assert (stored.first_seq, stored.deduped) == (2, False)
    again = engine.append("t", [1], **how).result()  # type: ignore[arg-type]
    assert (again.first_seq, again.deduped) == (2, True)
    assert engine.topic("t").count == 2
