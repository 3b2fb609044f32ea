"""Rules L: coming back from files; what is refused at start, and what can change between runs."""

from __future__ import annotations

import errno

import pytest

from headrace.core.clock import ManualClock, SeededRandom
from headrace.core.errors import (
    CorruptionError,
    DataDirLocked,
    NotReady,
    SegmentCorrupt,
    SnapshotCorrupt,
    UnsupportedFormat,
    WalCorrupt,
)
from headrace.core.runtime import StepRuntime
from headrace.core.settings import Settings
from headrace.engine.appending.producers import ProducerClaim
from headrace.engine.engine import Engine
from headrace.storage.block import Batch
from headrace.storage.wal.frame import (
    FORMAT_VERSION,
    FileHeader,
    decode_file_header,
    encode_file_header,
)
from headrace.testing.faultfs import Fault, FaultFilesystem, FaultPlan
from headrace.testing.simdisk import SimDisk
from tests.support.engines import Start

SMALL = Settings(wal_file_bytes=64 << 10, wal_batch_bytes_max=16 << 10)


def disk_of(engine: Engine) -> SimDisk:
    disk = engine.state.fs
    assert isinstance(disk, SimDisk)
    return disk


def everything(engine: Engine) -> dict[str, object]:
    """Each topic's state and all its records and losses."""
    found: dict[str, object] = {}
    for info in engine.topics():
        records, lost, cursor = [], [], 0
        while True:
            page = engine.read(info.topic, cursor).result()
            records += page.records
            if page.tombstone is not None:
                lost.append(page.tombstone)
            cursor = page.next_from_seq
            if page.caught_up:
                break
        topic = engine.state.topic(info.topic)
        found[info.topic] = (info, records, lost, topic.producers, topic.state)
    return found


def busy(engine: Engine) -> None:
    """A little of everything, with a checkpoint in the middle."""
    engine.put_topic("capped", {"cap_records": 4}).result()
    for part in range(2):
        for n in range(6):
            engine.append("capped", [n]).result()
            engine.append(
                "tagged",
                Batch([b"%d" % n] * 2, tags=[f"t{n % 3}", None]),
                idempotency_key=f"k{part}{n}",
                producer=ProducerClaim("p", part, n),
                state=b"s%d" % n,
            ).result()
            engine.append("synced", [b"x" * 2_000], config={"durability": "fsync"}).result()
        engine.delete("tagged", match="t1").result()
        engine.delete("synced", before_seq=3).result()
        engine.append("gone", [1]).result()
        engine.delete_topic("gone").result()
        if part == 0:
            engine.checkpoint().result()


def fresh(disk: SimDisk, **settings: int) -> Engine:
    chosen = Settings(**{"wal_file_bytes": 64 << 10, "wal_batch_bytes_max": 16 << 10, **settings})
    engine = Engine(disk, StepRuntime(ManualClock()), chosen, random=SeededRandom(7))
    engine.recover()
    return engine


def test_l8_recovering_twice_gives_the_same(engine: Engine, kill: Start) -> None:
    busy(engine)
    before = everything(engine)
    engine = kill(engine)
    once = everything(engine)
    engine = kill(engine)
    assert before == once == everything(engine)


def test_l8_a_snapshot_and_the_log_after_it_say_what_the_whole_log_says(start: Start) -> None:
    """The same calls with and without a checkpoint come back equal."""
    found = []
    for checkpoint in (False, True):
        engine = start()
        for n in range(30):
            engine.append("t", Batch([b"%d" % n], tags=["a" if n % 2 else "b"])).result()
            if n % 7 == 3:
                engine.delete("t", match="a").result()
            if checkpoint and n % 10 == 5:
                engine.checkpoint().result()
        disk = disk_of(engine)
        engine.abandon()
        image = disk.image(disk.position, "all", 0, power_loss=False)
        found.append(everything(start(image)))
    assert found[0] == found[1]


def test_l8_a_config_older_than_the_snapshot_takes_nothing_of_what_came_since(
    engine: Engine, kill: Start
) -> None:
    """Both configs are logged behind the rotation, and the checkpoint captures the topic later."""
    engine.put_topic("t", {"cap_records": 9}).result()
    engine.append("t", [b"x"] * 3).result()
    checkpoint = engine.checkpoint()
    engine.put_topic("t", {"cap_records": 2})
    engine.put_topic("t", {"cap_records": 20})
    engine.append("t", [b"y"] * 5)
    checkpoint.result()
    before = everything(engine)
    assert engine.topic("t").earliest_seq == 2
    assert everything(kill(engine)) == before


@pytest.mark.parametrize("counts", [(8, 3, 1), (1, 4, 2), (2, 1, 5)])
def test_l9_the_number_of_shards_may_change(
    start: Start, kill: Start, restart: Start, counts: tuple[int, int, int]
) -> None:
    engine = start(wal_shards=counts[0])
    for n in range(40):
        engine.append(f"t{n}", [n], config={"durability": "fsync"}).result()
    engine.delete_topic("t7").result()
    before = everything(engine)
    engine = kill(engine, wal_shards=counts[1])
    assert everything(engine) == before
    for n in range(40):
        engine.append(f"t{n}", [-n]).result()
    engine.delete("t3", before_seq=2).result()
    before = everything(engine)
    engine = kill(engine, wal_shards=counts[2])
    assert everything(engine) == before
    engine = restart(engine, wal_shards=counts[0])
    assert everything(engine) == before
    engine.checkpoint().result()
    assert everything(kill(engine, wal_shards=1)) == before


@pytest.mark.parametrize("way", ["delete", "recreate"])
def test_l9_a_name_given_again_in_another_shard(start: Start, kill: Start, way: str) -> None:
    engine = start(wal_shards=4)
    for turn in range(12):
        engine.append("t", [turn]).result()
        engine.delete_topic("t").result()
    if way == "recreate":
        engine.append("t", [b"last"]).result()
    for shards in (4, 1, 3):
        engine = kill(engine, wal_shards=shards)
        found = everything(engine)
        assert list(found) == (["t"] if way == "recreate" else [])
    if way == "recreate":
        assert [r.data for r in engine.read("t").result().records] == [b"last"]


def test_l10_an_error_reading_what_exists_refuses_to_start(start: Start) -> None:
    """At every read of recovery: it fails by raising, never by starting with less."""
    engine = start()
    busy(engine)
    before = everything(engine)
    disk = disk_of(engine)
    engine.abandon()
    disk = disk.image(disk.position, "all", 0, power_loss=False)
    for operation in ("pread", "open"):
        for n in range(1, 500):
            image = disk.copy()
            plan = FaultPlan(Fault(operation, n, "eio"))
            faulty = Engine(
                FaultFilesystem(image, plan), StepRuntime(ManualClock()), SMALL,
                random=SeededRandom(1),
            )  # fmt: skip
            try:
                faulty.recover()
            except (OSError, CorruptionError):
                pass
            else:
                assert everything(faulty) == before, (operation, n)
            fired = plan.fired
            faulty.abandon()
            reopened = fresh(image)  # the lock is free, and nothing was spoilt
            assert everything(reopened) == before
            reopened.abandon()
            if not fired:
                break
        else:
            pytest.fail("recovery reads for ever")


def test_l15_a_clean_exit_leaves_two_snapshots_and_the_next_start_replays_nothing(
    engine: Engine, restart: Start
) -> None:
    busy(engine)
    before = everything(engine)
    engine.close()
    disk = disk_of(engine)
    snapshots = [n for n in disk.listdir("meta") if n.startswith("snapshot-")]
    assert len(snapshots) >= 2
    for name in snapshots:
        spoilt = disk.copy()
        spoilt.flip(f"meta/{name}", 300)
        again = fresh(spoilt)
        assert everything(again) == before
        again.abandon()
    reopened = fresh(disk.copy())
    assert reopened.recovered is not None
    assert reopened.recovered.clean and reopened.recovered.gaps == 0
    assert everything(reopened) == before
    reopened.abandon()


def test_l16_a_second_engine_on_the_directory_is_refused(engine: Engine, start: Start) -> None:
    with pytest.raises(DataDirLocked) as caught:
        start(engine.state.fs)
    assert caught.value.fix
    engine.append("t", [1]).result()
    engine.close()
    assert start(engine.state.fs).topic("t").head_seq == 1


def test_l7_a_bad_newest_snapshot_falls_back_to_the_one_before(start: Start) -> None:
    engine = start()
    busy(engine)
    engine.checkpoint().result()
    engine.append("capped", [1]).result()
    before = everything(engine)
    disk = disk_of(engine)
    engine.abandon()
    disk = disk.image(disk.position, "all", 0, power_loss=False)
    names = sorted(n for n in disk.listdir("meta") if n.startswith("snapshot-"))
    assert len(names) >= 2
    path = f"meta/{names[-1]}"
    for damage in ("flip", "truncate", "zero", "gone"):
        image = disk.copy()
        size = len(image.contents()[path])
        if damage == "flip":
            image.flip(path, 8 * (size // 2))
        elif damage == "truncate":
            image.truncate_to(path, size // 2)
        elif damage == "zero":
            image.zero(path, 0, size)
        else:
            image.unlink(path)
        reopened = fresh(image)
        assert everything(reopened) == before, damage
        assert reopened.recovered is not None
        if damage != "gone":
            assert names[-1] in " ".join(reopened.recovered.problems)
        reopened.abandon()


def test_l7_no_usable_snapshot_is_refused_by_name(start: Start) -> None:
    engine = start()
    busy(engine)
    engine.close()
    disk = disk_of(engine).copy()
    names = [n for n in disk.listdir("meta") if n.startswith("snapshot-")]
    for name in names:
        disk.flip(f"meta/{name}", 8 * 200)
    with pytest.raises(SnapshotCorrupt, match=names[0]):
        start(disk)


def test_a_missing_snapshot_is_not_an_empty_directory(start: Start) -> None:
    """The log does not start at its beginning, so something is missing."""
    engine = start()
    busy(engine)
    engine.close()
    disk = disk_of(engine).copy()
    for name in disk.listdir("meta"):
        disk.unlink(f"meta/{name}")
    with pytest.raises(WalCorrupt):
        start(disk)


def test_a_missing_log_file_is_refused(start: Start) -> None:
    engine = start()
    for _ in range(60):
        engine.append("t", [b"x" * 4_000], config={"durability": "fsync"}).result()
    engine.abandon()
    disk = disk_of(engine).image(disk_of(engine).position, "all", 0, power_loss=False)
    names = disk.listdir("wal")
    assert len(names) >= 4
    for name in names[:-2]:
        image = disk.copy()
        image.unlink(f"wal/{name}")
        with pytest.raises(WalCorrupt) as caught:
            fresh(image)
        assert caught.value.fix


def test_a_log_of_an_older_version_opens_and_goes_on_as_the_newest(start: Start) -> None:
    """L4."""
    engine = start()
    engine.append("t", [1]).result()
    engine.abandon()
    disk = disk_of(engine).image(disk_of(engine).position, "all", 0, power_loss=False)

    def headers() -> dict[str, FileHeader]:
        paths = [f"wal/{name}" for name in disk.listdir("wal")]
        found = {path: decode_file_header(disk.contents()[path][:4096], path) for path in paths}
        return {path: header for path, header in found.items() if header is not None}

    for path, header in headers().items():
        disk.overwrite(path, 0, encode_file_header(header._replace(version=2)))
    reopened = start(disk)
    reopened.append("t", [2]).result()
    assert [record.data for record in reopened.read("t").result().records] == [b"1", b"2"]
    assert {header.version for header in headers().values()} == {2, FORMAT_VERSION}


@pytest.mark.parametrize("kind", ["wal", "snapshot", "segment"])
def test_a_newer_format_is_refused_by_name(start: Start, kind: str) -> None:
    """L4."""
    engine = start()
    engine.append("t", [1]).result()
    engine.checkpoint().result()
    engine.append("t", [2]).result()
    engine.abandon()
    disk = disk_of(engine).image(disk_of(engine).position, "all", 0, power_loss=False)
    if kind == "wal":
        path = f"wal/{disk.listdir('wal')[0]}"
        header = decode_file_header(disk.contents()[path][:4096], path)
        assert isinstance(header, FileHeader)
        disk.overwrite(path, 0, encode_file_header(header._replace(version=99)))
        with pytest.raises(UnsupportedFormat) as caught:
            start(disk)
        assert path in str(caught.value) and "99" in str(caught.value) and caught.value.fix
        return
    directory, first = ("meta", "snapshot-") if kind == "snapshot" else ("segments", "seg-")
    for path in (f"{directory}/{n}" for n in disk.listdir(directory) if n.startswith(first)):
        disk.truncate_to(path, 10)  # what a newer file looks like is the format tests' affair
    if kind == "snapshot":
        with pytest.raises(SnapshotCorrupt):
            start(disk)
    else:
        reopened = start(disk)
        with pytest.raises(SegmentCorrupt, match=path):
            reopened.read("t").result()


def test_a_damaged_log_is_refused_with_file_and_offset(start: Start) -> None:
    engine = start()
    for n in range(30):
        engine.append("t", [b"%d" % n * 100], config={"durability": "fsync"}).result()
    engine.close()  # closes the last window, so every byte before is known durable
    disk = disk_of(engine)
    # The log as it was before the clean snapshot took over.
    position = next(k for k, op in enumerate(disk.trace) if "snapshot" in op.path)
    disk = disk.image(position, "all", 0, power_loss=False)
    needle = b"17" * 100
    path = next(p for p, data in disk.contents().items() if p[:3] == "wal" and needle in data)
    at = disk.contents()[path].index(needle)
    disk.flip(path, 8 * at)
    with pytest.raises(WalCorrupt) as caught:
        start(disk)
    error = caught.value
    assert path in str(error) and "check --repair" in error.fix
    assert error.detail["file"] == path
    offset = error.detail["offset"]
    assert isinstance(offset, int) and 4096 <= offset <= at


def test_writes_before_recovery_are_refused(clock: ManualClock) -> None:
    engine = Engine(SimDisk(), StepRuntime(clock), SMALL, random=SeededRandom(1))
    ticket = engine.append("t", [1])
    assert isinstance(ticket.error, NotReady) and ticket.error.detail == {"reason": "recovering"}
    assert isinstance(engine.put_topic("t").error, NotReady)
    engine.recover()
    assert engine.progress == 1.0
    engine.append("t", [1]).result()
    engine.abandon()


def test_progress_only_grows(start: Start) -> None:
    engine = start()
    for _ in range(60):
        engine.append("t", [b"x" * 4_000]).result()
    engine.abandon()
    disk = disk_of(engine).image(disk_of(engine).position, "all", 0, power_loss=False)
    parts: list[float] = []
    reopened = Engine(disk, StepRuntime(ManualClock()), SMALL, random=SeededRandom(1))
    reopened.recover(parts.append)
    assert parts == sorted(parts) and parts[-1] == 1.0 and len(parts) > 3
    reopened.abandon()


def test_replay_is_bounded_in_memory(start: Start, kill: Start) -> None:
    engine = start(replay_memory_bytes=1 << 20, wal_file_bytes=1 << 20)
    for n in range(60):
        engine.append(f"t{n % 3}", [b"%02d" % n * 50_000]).result()
    before = everything(engine)
    disk = disk_of(engine)
    engine.abandon()
    engine = start(
        disk.image(disk.position, "all", 0, power_loss=False),
        replay_memory_bytes=1 << 20,
        wal_file_bytes=1 << 20,
    )
    assert engine.state.totals.resident_bytes <= (1 << 20) + 200_000
    assert everything(engine) == before
    engine.runtime.run()  # type: ignore[attr-defined]
    assert everything(kill(engine)) == before


def test_l19_a_full_disk_at_the_first_start_is_named(start: Start) -> None:
    """There is nothing to serve yet, so it is refused."""
    with pytest.raises(OSError, match=r"ENOSPC.*meta/owner") as caught:
        start(SimDisk(space_bytes=10))
    assert caught.value.errno == errno.ENOSPC
