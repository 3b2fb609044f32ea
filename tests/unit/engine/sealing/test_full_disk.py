"""Rules L12, L19 and L20: a full disk serves reads, takes deletes, and gives their room back."""

from __future__ import annotations

import errno
from collections.abc import Callable
from dataclasses import replace
from functools import partial

import pytest

from headrace.core.clock import ManualClock, SeededRandom
from headrace.core.errors import NotReady
from headrace.core.limits import KIB, MIB
from headrace.core.runtime import StepRuntime
from headrace.core.settings import Settings
from headrace.engine.engine import Engine
from headrace.storage.reserve import RESERVE_PATH
from headrace.testing.faultfs import Fault, FaultFilesystem, FaultPlan
from headrace.testing.simdisk import SimDisk
from tests.support.router_calls import route
from tests.support.wal_logs import Switch

DISK_BYTES = 4 * MIB
SETTINGS = Settings(
    wal_file_bytes=256 * KIB,
    wal_batch_bytes_max=16 * KIB,
    checkpoint_wal_bytes=128 * KIB,
    memory_budget_bytes=2 * MIB,
    replay_memory_bytes=MIB,
    read_cache_bytes=64 * KIB,
    tag_index_bytes_max=64 * KIB,
    disk_reserve_bytes=256 * KIB,
)
RECORD = b"x" * 4_000
Life = Callable[[Engine], Engine]


def opened(disk: SimDisk, settings: Settings = SETTINGS) -> Engine:
    engine = Engine(disk, StepRuntime(ManualClock()), settings, random=SeededRandom(1))
    engine.recover()
    return engine


def settle(engine: Engine) -> None:
    engine.runtime.run()  # type: ignore[attr-defined]


def same(engine: Engine) -> Engine:
    """No restart."""
    return engine


def killed(engine: Engine) -> Engine:
    """The engine after the death of its process."""
    disk = engine.state.fs
    assert isinstance(disk, SimDisk)
    engine.abandon()
    return opened(disk.image(disk.position, "all", 0, power_loss=False), engine.settings)


def stopped(engine: Engine) -> Engine:
    """The engine after a stop that was asked for."""
    disk = engine.state.fs
    assert isinstance(disk, SimDisk)
    engine.close()
    return opened(disk.copy(), engine.settings)


def refused(engine: Engine, topic: str = "full") -> NotReady:
    ticket = engine.append(topic, [RECORD])
    settle(engine)
    assert isinstance(ticket.error, NotReady), ticket.error
    return ticket.error


def fill(engine: Engine, topic: str) -> int:
    """Append until the disk is full for good; return how many were acknowledged.

    After a first refusal a checkpoint looks for room, and mostly finds some.
    """
    acked = engine.topic(topic).head_seq if engine.find(topic) else 0
    refusals = 0
    for _ in range(2_000):
        ticket = engine.append(topic, [RECORD])
        settle(engine)
        if ticket.error is None:
            acked, refusals = acked + 1, 0
            continue
        assert isinstance(ticket.error, NotReady) and ticket.error.detail["reason"] == "disk_full"
        refusals += 1
        if refusals == 2:
            return acked
    raise AssertionError("the disk never filled")


def count(engine: Engine, topic: str) -> int:
    return len(engine.read(topic, limit=1_000, bytes_max=1 << 24).result().records)


def full_disk(durability: str = "disk") -> tuple[Engine, int, int]:
    """An engine whose disk two topics have filled, and how much each holds."""
    engine = opened(SimDisk(space_bytes=DISK_BYTES))
    engine.put_topic("full", {"durability": durability}).result()
    for _ in range(150):
        engine.append("kept", [RECORD]).result()
    settle(engine)
    return engine, fill(engine, "full"), 150


@pytest.mark.parametrize("life", [same, killed, stopped])
@pytest.mark.parametrize("durability", ["fsync", "memory"])
def test_l19_a_full_disk_is_read_also_after_a_start(life: Life, durability: str) -> None:
    """What was acknowledged can be read; writes are refused with file and bytes, then go on."""
    engine, acked, kept = full_disk(durability)
    engine = life(engine)
    acked = fill(engine, "full")
    assert (count(engine, "full"), count(engine, "kept")) == (acked, kept)
    refusal = refused(engine)
    assert refusal.detail["reason"] == "disk_full" and refusal.detail["retry_after_s"] == 5
    assert str(refusal.detail["file"]).startswith(("wal/", "segments"))
    assert refusal.detail["bytes_needed"] >= 4_000  # type: ignore[operator]
    assert str(refusal.detail["bytes_needed"]) in refusal.message
    assert engine.figures.writes_blocked_by == "disk_full"
    disk = engine.state.fs
    assert isinstance(disk, SimDisk)
    disk.space_bytes += MIB
    engine.append("full", [RECORD]).result()
    assert engine.figures.writes_blocked_by == ""
    engine = killed(engine)
    assert (count(engine, "full"), count(engine, "kept")) == (acked + 1, kept)


def test_l19_a_start_that_finds_not_a_byte_free_serves_and_resumes() -> None:
    """Not even a log file can be made; the gaps of a power loss are announced all the same."""
    bare = replace(SETTINGS, disk_reserve_bytes=0)
    engine = opened(SimDisk(space_bytes=500 * KIB), bare)  # too small for a log file in stock
    engine.append("full", [RECORD] * 3).result()
    disk = engine.state.fs
    assert isinstance(disk, SimDisk)
    image = disk.image(disk.position, "none", 0)
    image.space_bytes = sum(len(data) for data in image.contents().values())
    for _ in range(2):
        engine = opened(image.copy(), bare)
        settle(engine)
        assert engine.figures.writes_blocked_by == "disk_full"
        lost = engine.read("full", 3).result().tombstone
        assert lost is not None and lost.reason == "crash"
        head = engine.topic("full").head_seq
        refused(engine)
        engine.close()
    engine = opened(image.copy(), bare)
    grown = engine.state.fs
    assert isinstance(grown, SimDisk)
    grown.space_bytes += 8 * MIB
    assert engine.append("full", [RECORD]).result().first_seq == head + 1
    engine = killed(engine)
    assert engine.topic("full").head_seq == head + 1
    again = engine.read("full", 3).result().tombstone
    assert again is not None and (again.gap_from, again.gap_to) == (lost.gap_from, lost.gap_to)


@pytest.mark.parametrize("shards", [1, 3])
def test_l19_all_shards_open_once_there_is_room(shards: int) -> None:
    """With several shards, too, and the first of them first."""
    settings = replace(SETTINGS, wal_shards=shards, disk_reserve_bytes=0)
    engine = opened(SimDisk(space_bytes=(shards + 1) * 256 * KIB), settings)
    for n in range(8):
        engine.append(f"t{n}", [n]).result()
    disk = engine.state.fs
    assert isinstance(disk, SimDisk)
    engine.abandon()
    image = disk.image(disk.position, "all", 0, power_loss=False)
    image.space_bytes = sum(len(data) for data in image.contents().values()) + 5_000
    engine = opened(image, settings)
    for n in range(8):
        assert count(engine, f"t{n}") == 1
        refused(engine, f"t{n}")
    image.space_bytes += 64 * MIB
    for n in range(8):
        engine.append(f"t{n}", [n]).result()
    again = killed(engine)
    assert [count(again, f"t{n}") for n in range(8)] == [2] * 8


@pytest.mark.parametrize("at", ["full", "deleted", "freed"])
@pytest.mark.parametrize("life", [same, killed, stopped])
def test_l20_deletes_free_a_full_disk(life: Life, at: str) -> None:
    """The reserve pays, the room comes back, the reserve is made again, appends go on."""
    engine, acked, kept = full_disk()
    engine = life(engine) if at == "full" else engine
    acked = fill(engine, "full")
    assert engine.delete_topic("full").result().deleted
    refused_before = engine.state.fs.free_bytes()
    engine = life(engine) if at == "deleted" else engine
    assert engine.find("full") is None
    settle(engine)
    engine = life(engine) if at == "freed" else engine
    settle(engine)
    assert engine.state.fs.free_bytes() > refused_before
    for _ in range(acked // 2):
        engine.append("next", [RECORD]).result()
        settle(engine)
    assert engine.state.reserve.missing == 0 and engine.state.fs.exists(RESERVE_PATH)
    assert (count(engine, "kept"), count(engine, "next")) == (kept, acked // 2)
    engine = killed(engine)
    assert engine.find("full") is None
    assert (count(engine, "kept"), count(engine, "next")) == (kept, acked // 2)


@pytest.mark.parametrize("life", [same, killed])
def test_l20_deletes_of_records_free_a_full_disk(life: Life) -> None:
    """Whole files go, and files of which a part is dead are written again where that fits."""
    engine, acked, kept = full_disk()
    engine = life(engine)
    result = engine.delete("full", before_seq=acked - 4).result()
    assert result.count == 5
    settle(engine)
    for _ in range(acked // 2):
        engine.append("full", [RECORD]).result()
        settle(engine)
    engine = killed(engine)
    assert (count(engine, "kept"), engine.topic("full").count) == (kept, 5 + acked // 2)


def test_l20_without_a_reserve_a_delete_says_what_it_needs() -> None:
    """The refusal names the file and the bytes, as for an append."""
    engine = opened(SimDisk(space_bytes=512 * KIB))
    engine.append("full", [RECORD]).result()
    disk = engine.state.fs
    assert isinstance(disk, SimDisk)
    engine.abandon()
    image = disk.image(disk.position, "all", 0, power_loss=False)
    image.unlink(RESERVE_PATH)
    image.space_bytes = sum(len(data) for data in image.contents().values())
    engine = opened(image)
    settle(engine)
    for delete in (engine.delete_topic, partial(engine.delete, before_seq=2)):
        ticket = delete("full")
        settle(engine)
        error = ticket.error
        assert isinstance(error, NotReady) and error.detail["reason"] == "disk_full"
        assert error.detail["bytes_free"] == 0
        assert f"needs {error.detail['bytes_needed']} bytes" in error.message
    assert count(engine, "full") == 1


def test_l20_the_reserve_is_not_for_appends() -> None:
    """Neither before it is spent, nor after; a start takes what is left of it back at once."""
    engine, acked, _ = full_disk()
    held = engine.state.reserve.bytes
    assert held > DISK_BYTES // 32
    for topic in ("full", "kept", "another"):
        assert refused(engine, topic).detail["reason"] == "disk_full"
    assert engine.state.reserve.bytes == held
    disk = engine.state.fs
    assert isinstance(disk, SimDisk)
    disk.space_bytes -= disk.free_bytes()
    engine.delete("full", before_seq=2).result()
    assert engine.state.reserve.bytes == 0 and disk.free_bytes() > held // 2
    ticket = engine.append("full", [RECORD])
    assert isinstance(ticket.error, NotReady) and ticket.error.detail["reason"] == "disk_full"
    engine.abandon()
    engine = opened(disk.image(disk.position, "all", 0, power_loss=False))
    assert engine.state.reserve.bytes > held // 2
    assert engine.topic("full").head_seq == acked


def test_l20_appends_leave_the_reserve_alone() -> None:
    """The append that finds the disk full is refused, however much is held back."""
    engine = opened(SimDisk(space_bytes=DISK_BYTES))
    engine.append("full", [RECORD]).result()
    disk = engine.state.fs
    assert isinstance(disk, SimDisk)
    disk.space_bytes -= disk.free_bytes()
    held, acked = engine.state.reserve.bytes, 1
    while (ticket := engine.append("full", [RECORD])) and acked < 200:
        engine.flush()
        if engine.state.room.state != "ok":
            break
        acked += 1
    assert engine.state.reserve.bytes == held > 0
    settle(engine)
    assert isinstance(ticket.error, NotReady) and ticket.error.detail["reason"] == "disk_full"


def test_l20_every_crash_between_a_delete_and_the_room_it_frees() -> None:
    """Nothing that was kept is lost, nothing deleted returns, and the disk can be freed after."""
    engine, _, kept = full_disk()
    disk = engine.state.fs
    assert isinstance(disk, SimDisk)
    begun = disk.position
    engine.delete_topic("full").result()
    deleted = disk.position
    settle(engine)
    for at in range(begun, disk.position, 3):
        again = opened(disk.image(at, "all", 0, power_loss=False))
        assert count(again, "kept") == kept
        if at >= deleted:
            assert again.find("full") is None
        again.delete_topic("full").result()
        settle(again)
        for _ in range(10):
            again.append("next", [RECORD]).result()
            settle(again)
        again.abandon()


def test_l20_a_checkpoint_that_does_not_fit_writes_nothing() -> None:
    """Files that no snapshot could list would take the last of the room."""
    engine = opened(SimDisk(space_bytes=DISK_BYTES))
    for _ in range(25):
        engine.append("kept", [RECORD]).result()
    disk = engine.state.fs
    assert isinstance(disk, SimDisk)
    disk.space_bytes -= disk.free_bytes() - 120_000  # the rows fit, the snapshot would not
    before = disk.listdir("segments")
    engine.state.reserve.spend()
    disk.space_bytes -= disk.free_bytes() - 120_000
    failed = engine.checkpoint()
    settle(engine)
    assert failed.error is not None and "checkpoint needs" in str(failed.error)
    assert disk.listdir("segments") == before and count(engine, "kept") == 25


def test_l19_gaps_of_all_shards_are_logged_first() -> None:
    """Whichever shard is written to first: a log of this boot has the gaps of all topics."""
    settings = replace(SETTINGS, wal_shards=3, disk_reserve_bytes=0)
    engine = opened(SimDisk(space_bytes=4 * 256 * KIB), settings)
    for n in range(8):
        engine.append(f"t{n}", [n]).result()
    disk = engine.state.fs
    assert isinstance(disk, SimDisk)
    image = disk.image(disk.position, "none", 0)
    image.space_bytes = sum(len(data) for data in image.contents().values())
    engine = opened(image, settings)
    settle(engine)
    heads = [engine.topic(f"t{n}").head_seq for n in range(8)]
    assert min(heads) > 200
    image.space_bytes += 64 * MIB
    last = engine.state.shards[-1]
    topics = [engine.find(f"t{n}") for n in range(8)]
    written = next(n for n, t in enumerate(topics) if t and engine.state.shard_of(t.id) is last)
    engine.append(f"t{written}", [b"x"]).result()
    heads[written] += 1
    again = killed(engine)
    assert [again.topic(f"t{n}").head_seq for n in range(8)] == heads


@pytest.mark.parametrize("first", ["router", "source"])
def test_l19_a_source_with_a_full_destination_can_be_deleted(first: str) -> None:
    """Also what a router announces, and its delete, are paid by the reserve."""
    engine = opened(SimDisk(space_bytes=DISK_BYTES))
    engine.put_topic("dest", {"cap_records": 5, "discard": "reject"}).result()
    route(engine, "r", "full", "dest")
    acked = fill(engine, "full")
    if first == "router":
        assert engine.routers.delete("r").result()[:3] == ("r", True, acked - 5)
    deleted = engine.delete_topic("full").result()
    assert (deleted.deleted, len(deleted.routers_removed)) == (True, int(first == "source"))
    lost = engine.read("dest", 5).result().tombstone
    if first == "source":
        assert lost is not None and lost[:3] == (6, acked, "source_trim")
    else:
        assert lost is None
    settle(engine)
    engine.append("kept", [RECORD]).result()


@pytest.mark.parametrize("reserve_bytes", [0, 256 * KIB])
def test_l12_a_disk_that_refuses_its_free_bytes_is_not_tried_without_end(
    reserve_bytes: int,
) -> None:
    """No inodes, a quota: each shortage ends at once by the free bytes, and the next write fails.

    The log file that a checkpoint begins is refused, and so is every append; checkpoints have to
    wait between their tries, and everything goes on once the disk writes again.
    """
    switch, clock = Switch(errno.ENOSPC), ManualClock()
    fault = Fault("pwritev", 1, "call", forever=True, path="wal/*", hook=switch)
    disk = FaultFilesystem(SimDisk(), FaultPlan(fault))
    runtime = StepRuntime(clock)
    settings = replace(SETTINGS, disk_reserve_bytes=reserve_bytes)
    engine = Engine(disk, runtime, settings, random=SeededRandom(1))
    engine.recover()
    engine.append("full", [RECORD]).result()
    switch.on = True
    engine.checkpoint()
    for _ in range(5):
        ticket = engine.append("full", [RECORD])
        steps = sum(1 for _ in zip(range(5_000), iter(runtime.step, False), strict=False))
        assert steps < 5_000, "it never rests"
        assert isinstance(ticket.error, NotReady), ticket.error
        clock.advance(100)
    assert engine.checkpointer.failures_total <= 3
    switch.on = False
    clock.advance(6_000)
    settle(engine)
    engine.append("full", [RECORD]).result()
    engine.checkpoint().result()
    assert count(engine, "full") == 2
