"""Rules F: what each class survives, when it acknowledges, and how a loss is announced."""

from __future__ import annotations

import pytest

from headrace.core.clock import ManualClock
from headrace.storage.block import Batch
from headrace.testing.simdisk import MODES
from tests.support.durability import CLASSES, disk_of, filled, log_calls, settle, told
from tests.support.engine_reads import all_records
from tests.support.engines import Start
from tests.support.seqs import seqs_of

RESERVE = 256


# When a class acknowledges


@pytest.mark.parametrize(
    ("durability", "calls"),
    [
        ("ephemeral", []),
        ("memory", ["write"]),
        ("disk", ["write"]),
        ("fsync", ["write", "sync_data"]),
    ],
)
def test_f_the_acknowledgement_waits_for_exactly_its_class(
    start: Start, clock: ManualClock, durability: str, calls: list[str]
) -> None:
    engine = filled(start, durability, 3)
    settle(engine, clock)
    since = disk_of(engine).position
    appended = engine.append("t", [1]).result()
    assert log_calls(engine, since) == calls
    assert (appended.sync_ns > 0) <= (durability == "fsync")


def test_f_records_of_an_ephemeral_topic_never_reach_the_log(start: Start) -> None:
    engine = filled(start, "ephemeral")
    engine.append("t", [b"needle"] * 600).result()
    engine.checkpoint().result()
    engine.close()
    assert not any(b"needle" in data for data in disk_of(engine).contents().values())


@pytest.mark.parametrize("durability", ["memory", "disk"])
def test_f6_unsynced_classes_are_synced_soon_by_themselves(
    start: Start, clock: ManualClock, power_loss: Start, durability: str
) -> None:
    engine = filled(start, durability)
    clock.advance(engine.settings.sync_interval_ms)
    engine.runtime.run()  # type: ignore[attr-defined]
    engine = power_loss(engine, "none")
    assert seqs_of(all_records(engine)) == [1, 2, 3, 4, 5]


# What a class survives


@pytest.mark.parametrize("durability", ["memory", "disk", "fsync"])
def test_f0_a_killed_process_loses_nothing_and_the_head_is_exact(
    start: Start, kill: Start, durability: str
) -> None:
    engine = filled(start, durability, 300)
    before = all_records(engine)
    for _ in range(3):
        engine = kill(engine)
        assert all_records(engine) == before
        assert engine.topic("t").head_seq == 300
        assert told(engine) == []
    assert engine.append("t", [1]).result().first_seq == 301


@pytest.mark.parametrize("durability", ["memory", "disk", "fsync"])
def test_f_a_clean_restart_keeps_everything(start: Start, restart: Start, durability: str) -> None:
    engine = filled(start, durability, 300)
    before = all_records(engine)
    for _ in range(3):
        engine = restart(engine)
        assert all_records(engine) == before and engine.topic("t").head_seq == 300
        assert told(engine) == []
        assert engine.recovered is not None and engine.recovered.clean


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("durability", ["memory", "disk"])
def test_f0_after_power_loss_a_prefix_is_left_and_the_rest_is_announced(
    start: Start, power_loss: Start, clock: ManualClock, durability: str, mode: str
) -> None:
    for seed in range(6):
        engine = filled(start, durability)
        settle(engine, clock)
        for n in range(40):
            engine.append("t", [n, n]).result()
        acked = 85
        before = all_records(engine)
        engine = power_loss(engine, mode, seed)
        after = all_records(engine)
        assert after == before[: len(after)] and len(after) >= 5
        head = engine.topic("t").head_seq
        assert acked <= head <= acked + 2 * RESERVE, "no seq is used twice"
        assert told(engine) == [(len(after) + 1, head, "crash")]
        assert engine.append("t", [1]).result().first_seq == head + 1


@pytest.mark.parametrize("mode", MODES)
def test_f1_acknowledged_fsync_records_survive_power_loss_as_they_were(
    start: Start, power_loss: Start, mode: str
) -> None:
    for seed in range(6):
        engine = start()
        engine.put_topic("t", {"durability": "fsync"}).result()
        for n in range(10):
            batch = Batch([b'{"n": %d }' % n] * 2, tags=["a", None], nodes="n1", metas=[b"1", None])
            engine.append("t", batch).result()
        before = all_records(engine)
        in_flight = engine.append("t", [b"maybe"])
        engine.runtime.step()  # type: ignore[attr-defined]
        assert not in_flight.done
        engine = power_loss(engine, mode, seed)
        after = all_records(engine)
        assert after[:20] == before
        assert [r.data for r in after[20:]] in ([], [b"maybe"])
        assert engine.topic("t").head_seq == len(after), "exact: no reservation for this class"
        assert told(engine) == []


def test_f2_a_kill_during_a_burst_leaves_exactly_the_written_records(
    start: Start, kill: Start
) -> None:
    engine = start()
    engine.append("t", [0]).result()
    disk = disk_of(engine)
    for n in range(1, 120):
        engine.append("t", [n]).result()
        disk.mark(n + 1)
    for k in range(0, disk.crash_points, 7):
        image = disk.image(k, "all", 0, power_loss=False)
        acked = max([0, *(m for m in disk.marks_until(k) if isinstance(m, int))])
        reopened = start(image)
        if not reopened.topics():
            assert acked == 0
            continue
        found = seqs_of(all_records(reopened))
        head = reopened.topic("t").head_seq
        assert found == list(range(1, len(found) + 1)) and acked <= len(found)
        assert len(found) <= head <= len(found) + RESERVE
        assert reopened.append("t", [1]).result().first_seq == head + 1


def test_f3_memory_recovers_a_subset_and_its_config(start: Start, power_loss: Start) -> None:
    engine = start()
    config = {"durability": "memory", "cap_records": 77}
    engine.put_topic("t", config).result()
    for n in range(20):
        engine.append("t", [n]).result()
    before = all_records(engine)
    for mode in MODES:
        image = disk_of(engine).image(disk_of(engine).position, mode, 3)
        reopened = start(image)
        assert set(all_records(reopened)) <= set(before)
        assert reopened.topic("t").config.cap_records == 77


@pytest.mark.parametrize("snapshot", [False, True])
def test_f4_ephemeral_keeps_head_and_config_and_nothing_else(
    start: Start, restart: Start, kill: Start, snapshot: bool
) -> None:
    engine = start()
    engine.append("t", [1] * 7, config={"durability": "ephemeral", "ttl_ms": 9_000}).result()
    if snapshot:
        engine = restart(engine)
        assert engine.topic("t").head_seq == 7
    else:
        engine = kill(engine)
    state = engine.topic("t")
    assert state.head_seq >= 7 and (state.count, state.bytes) == (0, 0)
    assert (state.config.durability, state.config.ttl_ms) == ("ephemeral", 9_000)
    assert told(engine) == [(1, state.head_seq, "crash")]
    assert engine.append("t", [1]).result().first_seq == state.head_seq + 1
    assert seqs_of(all_records(engine)) == [state.head_seq + 1]


@pytest.mark.parametrize("durability", CLASSES)
@pytest.mark.parametrize("mode", MODES)
def test_f_config_and_existence_survive_everything(
    start: Start, power_loss: Start, durability: str, mode: str
) -> None:
    engine = start()
    engine.put_topic("t", {"durability": durability}).result()
    engine.put_topic("t", {"durability": durability, "cap_records": 9}).result()
    engine.put_topic("gone").result()
    engine.delete_topic("gone").result()
    engine = power_loss(engine, mode, 1)
    assert [info.topic for info in engine.topics()] == ["t"]
    assert engine.topic("t").config.cap_records == 9


# No seq twice, through several crashes


@pytest.mark.parametrize("durability", CLASSES)
def test_f0_no_seq_is_ever_used_twice(
    start: Start, power_loss: Start, kill: Start, restart: Start, durability: str
) -> None:
    engine = start()
    engine.put_topic("t", {"durability": durability}).result()
    given: set[int] = set()
    ways = [power_loss, kill, restart, power_loss, power_loss, kill, power_loss]
    for turn, way in enumerate(ways):
        for n in range(turn + 2):
            appended = engine.append("t", [n] * (n + 1)).result()
            fresh = set(range(appended.first_seq, appended.last_seq + 1))
            assert not fresh & given
            given |= fresh
        engine = way(engine)
        assert engine.topic("t").head_seq >= max(given)


def test_f0_a_writer_that_goes_on_does_not_wait_for_syncs(start: Start, clock: ManualClock) -> None:
    """Its seqs are reserved in the background, long before it has used up what it has."""
    engine = start()
    waited = []
    for n in range(60):
        ticket = engine.append("t", [0] * 1_000)
        engine.flush()
        waited += [] if ticket.done else [n]
        ticket.result()
        clock.advance(10)
        engine.runtime.run()  # type: ignore[attr-defined]
    assert waited and max(waited) < 12, waited  # until its rate is known


def test_f0_an_append_that_waits_for_a_sync_does_not_make_the_next_ones_call_for_more(
    start: Start,
) -> None:
    engine = start()
    engine.append("t", [0]).result()
    engine.runtime.run()  # type: ignore[attr-defined]
    topic, (shard,) = engine.state.topic("t"), engine.state.shards
    syncs = shard.syncs_total
    tickets = [engine.append("t", [0] * (topic.reservation.valid_to + 1))]
    engine.flush()
    while not shard.syncs.running:  # until then it would be one for all that follow, too
        assert engine.runtime.step()  # type: ignore[attr-defined]
    topic.reservation.raise_to(10_000)
    for _ in range(5):
        tickets.append(engine.append("t", [0]))
        engine.flush()
    assert not any(ticket.done for ticket in tickets)
    while not tickets[0].done:
        assert engine.runtime.step()  # type: ignore[attr-defined]
    assert all(ticket.done for ticket in tickets)
    assert shard.syncs_total - syncs == 1


def test_f2_a_reservation_is_bounded_by_the_rate(
    start: Start, clock: ManualClock, power_loss: Start
) -> None:
    """256 ahead, or twice what the last 100 ms acknowledged."""
    engine = start()
    engine.append("t", [1]).result()
    lost = power_loss(engine)
    assert lost.topic("t").head_seq <= 1 + RESERVE
    engine = start()
    for _ in range(20):
        engine.append("t", [0] * 1_000).result()
        clock.advance(10)
        engine.runtime.run()  # type: ignore[attr-defined]
    assert engine.state.topic("t").reservation.valid_to <= 20_000 + 2 * 10_000 + RESERVE
    lost = power_loss(engine, "all")
    assert 20_000 <= lost.topic("t").head_seq <= 20_000 + 2 * 10_000 + RESERVE


def test_f0_the_reservation_is_off_the_path_of_an_acknowledgement(
    start: Start, clock: ManualClock
) -> None:
    """A steady writer of class disk never waits for a sync after its topic exists."""
    engine = start()
    engine.append("t", [0]).result()
    settle(engine, clock)
    for n in range(2_000):
        appended = engine.append("t", [n])
        engine.flush()
        assert appended.done, n
        clock.advance(1)
        engine.runtime.run()  # type: ignore[attr-defined]


def test_f_the_boot_id_decides_whether_the_kernel_kept_its_pages(start: Start) -> None:
    """The same bytes on disk: exact after a process death, announced after another boot."""
    engine = filled(start, "disk")
    disk = disk_of(engine)
    engine.abandon()
    same_boot = start(disk.image(disk.position, "all", 0, power_loss=False))
    assert told(same_boot) == [] and same_boot.topic("t").head_seq == 5
    other_boot = start(disk.image(disk.position, "all", 0))
    head = other_boot.topic("t").head_seq
    assert told(other_boot) == [(6, head, "crash")] and 5 < head <= 5 + 1 + RESERVE


def test_f_a_loss_once_announced_stays_announced(
    start: Start, power_loss: Start, kill: Start, restart: Start
) -> None:
    engine = filled(start, "disk")
    engine = power_loss(engine)
    lost = told(engine)
    assert len(lost) == 1
    engine.append("t", [1]).result()
    engine = kill(engine)
    assert told(engine) == lost
    engine.checkpoint().result()
    engine = kill(engine)
    assert told(engine) == lost
    engine = restart(engine)
    assert told(engine) == lost
    assert seqs_of(all_records(engine))[-1] == lost[0][1] + 1


def test_f_a_crash_range_below_a_cap_is_told_with_it(
    start: Start, power_loss: Start, restart: Start
) -> None:
    engine = filled(start, "disk")
    engine = power_loss(engine)
    for n in range(5):
        engine.append("t", [n]).result()
    engine.put_topic("t", {"cap_records": 2}).result()
    engine = restart(engine)
    head = engine.topic("t").head_seq
    assert seqs_of(all_records(engine)) == [head - 1, head]
    ranges = told(engine)
    assert ranges[0][0] == 1 and ranges[-1][1] == head - 2


# What else follows the class


@pytest.mark.parametrize("durability", ["memory", "disk", "fsync"])
def test_f_deletes_follow_the_class_of_the_topic(
    start: Start, clock: ManualClock, power_loss: Start, durability: str
) -> None:
    engine = filled(start, durability)
    settle(engine, clock)
    since = disk_of(engine).position
    engine.delete("t", before_seq=4).result()
    assert ("sync_data" in log_calls(engine, since)) == (durability == "fsync")
    if durability == "fsync":
        for mode in MODES:
            image = disk_of(engine).image(disk_of(engine).position, mode, 2)
            assert [r.seq for r in all_records(start(image))] == [4, 5]


def test_f5_a_batch_is_all_there_or_not_at_all(start: Start) -> None:
    engine = start()
    engine.put_topic("t", {"durability": "fsync"}).result()
    disk = disk_of(engine)
    disk.settle()
    for _ in range(4):
        engine.append("t", [b"x" * 700] * 7).result()
    for crash in disk.images(seed=5):
        found = all_records(start(crash.disk))
        assert len(found) % 7 == 0
