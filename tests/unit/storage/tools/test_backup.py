"""Backups: what is restored is what was there at one instant, whatever went on meanwhile."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import boto3
import pytest

from headrace.core.clock import ManualClock, SeededRandom, SystemClock
from headrace.core.errors import (
    ConfigError,
    CorruptionError,
    HeadraceError,
    InvalidRequest,
    UnsupportedFormat,
)
from headrace.engine.engine import Engine
from headrace.engine.sealing.backup import backup
from headrace.storage.epochs import EPOCHS_PER_GENERATION
from headrace.storage.files.merge_policy import MergePolicy
from headrace.storage.files.store import DirectoryStore, open_store
from headrace.storage.fs import RealFilesystem
from headrace.storage.tools.backup import freeze_directory, write_backup
from headrace.storage.tools.backup_manifest import MANIFEST_PATH, read_manifest
from headrace.storage.tools.check import check
from headrace.storage.tools.restore import restore
from headrace.testing.simdisk import SimDisk
from tests.support.object_stores import s3_thread

Lab = Any  # the fixture of conftest.py


def offline(disk: SimDisk, target: SimDisk, **options: bool) -> Any:
    return write_backup(freeze_directory(disk), DirectoryStore(target), ManualClock(), **options)


def restored(target: SimDisk, disk: SimDisk | None = None) -> SimDisk:
    disk = disk if disk is not None else SimDisk()
    restore(DirectoryStore(target), disk, SeededRandom(3), ManualClock())
    return disk


def contents(lab: Lab, engine: Engine) -> dict[str, Any]:
    """What readers see, apart from epochs."""
    return {
        info.topic: (lab.read_all(engine, info.topic), info.head_seq, info.bytes, info.config)
        for info in engine.topics()
    }


def test_an_offline_backup_brings_everything_back(lab: Lab) -> None:
    disk, target = lab.world().disk.copy(), SimDisk()
    report = offline(disk, target)
    assert report.files == report.files_copied > 5 and report.topics == 3
    before = lab.start(disk)
    after = lab.start(restored(target))
    assert contents(lab, after) == contents(lab, before)
    assert after.append("keyed", [b"once"], idempotency_key="k").result().first_seq == 1


def test_a_backup_is_not_served(lab: Lab) -> None:
    """It would be an empty server, which takes writes."""
    target = SimDisk()
    offline(lab.world().disk.copy(), target)
    before = target.contents()
    with pytest.raises(ConfigError, match=r"is a backup.*headrace restore"):
        lab.start(target)
    assert target.contents() == before
    assert lab.start(restored(target)).topics()


def test_a_restore_gives_every_topic_a_new_epoch(lab: Lab) -> None:
    disk, target = lab.world().disk.copy(), SimDisk()
    offline(disk, target)
    once = restored(target)
    engine = lab.start(once)
    for info in engine.topics():
        (topic_id,) = (t.id for t in engine.state.by_id.values() if t.name == info.topic)
        assert info.epoch == EPOCHS_PER_GENERATION + topic_id
    page = engine.read("d", 1, epoch=5).result()
    assert page.tombstone is not None and page.tombstone.reason == "recreated"
    fresh = engine.put_topic("fresh").result().epoch
    assert fresh > EPOCHS_PER_GENERATION
    engine.close()
    again = SimDisk()
    offline(once, again)
    twice = lab.start(restored(again))
    assert twice.topic("a").epoch == 2 * EPOCHS_PER_GENERATION + 1


@pytest.mark.parametrize("sealed", [False, True])
def test_a_restored_topic_is_not_archived_yet(lab: Lab, sealed: bool) -> None:
    """Its epoch is another one: what an archive holds of the old one may end elsewhere."""
    engine = lab.start(SimDisk())
    config = {"cap_records": 2, "retain_until_archived": True, "retain_bytes_max": 2}
    epoch = engine.put_topic("t", config).result().epoch
    engine.append("t", [b"x"] * 6).result()
    engine.archives.told("t", epoch, 3).result()
    assert (engine.topic("t").archived_seq, engine.topic("t").earliest_seq) == (3, 4)
    if sealed:
        engine.checkpoint().result()
    engine.flush()
    target = SimDisk()
    offline(lab.killed(engine), target)
    after = lab.start(restored(target)).topic("t")
    assert (after.archived_seq, after.overtaken_seq, after.earliest_seq) == (0, 2, 4)


def test_no_gap_is_announced_after_a_restore_on_another_machine(lab: Lab) -> None:
    """Seqs that were only reserved belong to the old epochs."""
    disk, target = lab.world().disk.copy(), SimDisk()
    offline(disk, target)
    new = restored(target)
    rebooted = new.image(new.position, "none", 0)
    engine = lab.start(rebooted)
    assert engine.recovered is not None and engine.recovered.gaps == 0
    assert lab.read_all(engine, "b") == lab.world().seen["b"]
    assert engine.topic("b").head_seq == 25


def test_the_second_backup_copies_what_is_new(lab: Lab) -> None:
    target = SimDisk()
    engine = lab.start(SimDisk())
    lab.fill(engine, "a", 100)
    first = backup(engine, DirectoryStore(target)).result()
    sealed = {name for name in target.contents() if name.startswith("segments/")}
    lab.fill(engine, "a", 1)
    second = backup(engine, DirectoryStore(target)).result()
    again = backup(engine, DirectoryStore(target)).result()
    assert again.files_removed <= second.files_removed, (
        "what was removed is not remembered for ever"
    )
    assert first.files_copied == first.files
    assert second.files_copied < second.files and second.files_removed > 0
    assert sealed <= set(target.contents())
    listed = read_manifest(DirectoryStore(target))
    assert listed is not None
    assert {file.path for file in listed.files()} | {MANIFEST_PATH} == set(target.contents())
    assert len(lab.read_all(lab.start(restored(target)), "a")[0]) == 101


def test_an_online_backup_is_of_one_instant(lab: Lab) -> None:
    """What is written while the copy runs is not in it; what was acknowledged before is."""
    target = SimDisk()
    engine = lab.start(SimDisk(), wal_shards=3)
    for name in ("a", "b", "c"):
        lab.fill(engine, name, 20, "disk")
    ticket = backup(engine, DirectoryStore(target))
    seen: list[dict[str, Any]] = []
    while not ticket.done:
        for name in ("a", "b", "c"):
            lab.fill(engine, name, 1, "disk")
        seen.append(contents(lab, engine))
        engine.runtime.step()  # type: ignore[attr-defined]
    assert len(seen) > 2
    after = contents(lab, lab.start(restored(target)))
    heads = [after[name][1] for name in ("a", "b", "c")]
    assert max(heads) - min(heads) <= 1 and heads == sorted(heads, reverse=True)
    assert 20 <= min(heads) < engine.topic("a").head_seq


def test_files_stay_while_a_backup_needs_them(lab: Lab) -> None:
    """Merges and checkpoints during the copy remove nothing that it still has to read."""
    engine = lab.start(SimDisk(), policy=MergePolicy(own_rows_min=10_000, fan_in=2))
    for _ in range(3):
        lab.fill(engine, "a", 30)
        engine.checkpoint().result()
    target = SimDisk()
    ticket = backup(engine, DirectoryStore(target))
    for _ in range(6):
        lab.fill(engine, "a", 5)
        engine.checkpoint()
    report = ticket.result()
    assert report.files_copied == report.files
    records, gaps = lab.read_all(lab.start(restored(target)), "a")
    assert len(records) >= 90 and not gaps
    engine.checkpoint().result()
    engine.checkpoint().result()
    listed = [name for name in engine.state.fs.listdir("segments") if name.endswith(".arrow")]
    assert len(listed) <= 6, "what was pinned is removed afterwards"


def test_real_threads_under_load(tmp_path: Path) -> None:
    with Engine.open(tmp_path / "data") as engine:
        stop, acked = threading.Event(), []
        engine.append("t", [b"0"]).result()
        tickets = [backup(engine, str(tmp_path / "target")) for _ in range(1)]
        while not tickets[0].done:
            acked.append(engine.append("t", [b"x" * 100] * 10).result().last_seq)
        assert tickets[0].result().topics == 1 and not stop.is_set()
    report = restore(
        open_store(str(tmp_path / "target")), RealFilesystem(tmp_path / "new"),
        SeededRandom(1), SystemClock(),
    )  # fmt: skip
    assert report.generation == 1
    with Engine.open(tmp_path / "new") as again:
        head = again.topic("t").head_seq
        assert again.read("t", limit=1000).result().count == min(head, 256, 1000) or head > 256
        assert head == 1 or head in acked


def test_cold_files_are_in_the_backup_and_hot_after_a_restore(lab: Lab) -> None:
    cold = SimDisk()
    engine = lab.start(
        SimDisk(), DirectoryStore(cold), MergePolicy(own_rows_min=40, fan_in=100),
        hot_retain_segments=1,
    )  # fmt: skip
    for _ in range(3):
        lab.fill(engine, "a", 50)
        engine.checkpoint().result()
    engine.runtime.run()  # type: ignore[attr-defined]
    assert any(name.startswith("segments/") for name in cold.contents())
    target = SimDisk()
    backup(engine, DirectoryStore(target)).result()
    new = restored(target)
    assert check(new).ok
    assert len(lab.read_all(lab.start(new), "a")[0]) == 150


def test_a_directory_without_a_snapshot(lab: Lab) -> None:
    engine = lab.start(SimDisk())
    lab.fill(engine, "a", 7)
    disk, target = lab.killed(engine), SimDisk()
    offline(disk, target)
    assert len(lab.read_all(lab.start(restored(target)), "a")[0]) == 7


# Refusals


def test_another_directory_s_backup_is_not_overwritten(lab: Lab) -> None:
    target = SimDisk()
    offline(lab.world().disk.copy(), target)
    other = SimDisk()
    engine = Engine(other, lab.start(SimDisk()).runtime, random=SeededRandom(9))
    engine.recover()
    engine.append("z", [b"1"]).result()
    engine.close()
    before = target.contents()
    with pytest.raises(InvalidRequest, match="another data directory"):
        offline(other, target)
    assert target.contents() == before
    assert offline(other, target, replace=True).topics == 1
    assert [info.topic for info in lab.start(restored(target)).topics()] == ["z"]


def test_only_places_for_backups_are_taken(lab: Lab) -> None:
    disk = lab.world().disk.copy()
    with pytest.raises(InvalidRequest, match="is a data directory"):
        offline(disk, lab.world().disk.copy())
    cold = SimDisk()
    cold.create("headrace-cold-tier").close()
    with pytest.raises(InvalidRequest, match="is a cold tier"):
        offline(disk, cold)


def test_a_restore_needs_a_backup_and_an_empty_directory(lab: Lab) -> None:
    with pytest.raises(InvalidRequest, match="holds no backup"):
        restored(SimDisk())
    target = SimDisk()
    offline(lab.world().disk.copy(), target)
    full = SimDisk()
    full.create("something").close()
    with pytest.raises(InvalidRequest, match="not empty"):
        restored(target, full)


def test_a_damaged_source_is_not_backed_up(lab: Lab) -> None:
    disk, target = lab.world().disk.copy(), SimDisk()
    offline(disk, target)
    before = target.contents()
    lab.damage(disk, lab.used_log(disk), lab.batch_of(disk, b"a 84") + 60)
    with pytest.raises(HeadraceError, match="damaged"):
        offline(disk, target)
    disk = lab.world().disk.copy()
    lab.damage(disk, lab.own_file(disk, "a"), 500)
    fresh = SimDisk()
    with pytest.raises(CorruptionError, match="headrace check"):
        offline(disk, fresh)
    assert read_manifest(DirectoryStore(fresh)) is None
    assert target.contents() == before


@pytest.mark.parametrize("prefix", ["segments/", "meta/snapshot", "meta/keys", "wal/", "headrace"])
def test_a_damaged_backup_is_not_restored(lab: Lab, prefix: str) -> None:
    target = SimDisk()
    offline(lab.world().disk.copy(), target)
    path = next(name for name in target.contents() if name.startswith(prefix))
    lab.damage(target, path, len(target.contents()[path]) // 2)
    new = SimDisk()
    with pytest.raises(CorruptionError):
        restored(target, new)
    assert not lab.opens(new) or not new.contents(), "a half-restored directory is refused"


def test_a_missing_file_of_a_backup_is_named(lab: Lab) -> None:
    target = SimDisk()
    offline(lab.world().disk.copy(), target)
    path = next(name for name in target.contents() if name.startswith("segments/"))
    target.unlink(path)
    with pytest.raises(CorruptionError, match=path):
        restored(target)
    assert offline(lab.world().disk.copy(), target).files_copied == 1, "it is copied again"
    restored(target)


def test_a_newer_backup_is_refused_by_name(lab: Lab) -> None:
    target = SimDisk()
    offline(lab.world().disk.copy(), target)
    data = target.contents()[MANIFEST_PATH]
    target.overwrite(MANIFEST_PATH, 0, data.replace(b"headrace-backup 1", b"headrace-backup 7"))
    with pytest.raises(UnsupportedFormat, match="version 7"):
        restored(target)


# Interruptions


def test_an_interrupted_backup_leaves_the_one_before(lab: Lab) -> None:
    engine = lab.start(SimDisk())
    lab.fill(engine, "a", 60)
    target = SimDisk()
    backup(engine, DirectoryStore(target)).result()
    lab.fill(engine, "a", 50)
    first = target.position
    backup(engine, DirectoryStore(target)).result()
    counts = set()
    for crash in target.images(["none", "all", "subset"], start=first):
        new = restored(crash.disk)
        records, gaps = lab.read_all(lab.start(new), "a")
        assert not gaps
        counts.add(len(records))
        disk = lab.killed(engine)
        offline(disk, crash.disk)
        listed = read_manifest(DirectoryStore(crash.disk))
        assert listed is not None
        known = {file.path for file in listed.files()} | {MANIFEST_PATH}
        left = {name for name in crash.disk.contents() if not name.endswith(".tmp")} - known
        assert not left, "the next backup removes what an interrupted one left"
    assert counts == {60, 110}


def test_an_interrupted_restore_is_refused(lab: Lab) -> None:
    target = SimDisk()
    offline(lab.world().disk.copy(), target)
    new = restored(target)
    whole = 0
    for crash in new.images(["none", "all"]):
        begun = [name for name in crash.disk.contents() if not name.endswith((".lock", ".tmp"))]
        if not begun or not lab.opens(crash.disk):
            continue
        assert lab.read_all(lab.start(crash.disk), "a") == lab.world().seen["a"]
        whole += 1
    assert 1 <= whole <= 8, "only the very end of a restore is a directory"


# An object store


@pytest.fixture(scope="module")
def endpoint() -> Iterator[str]:
    with s3_thread() as address:
        yield address


def test_an_object_store_as_target(lab: Lab, endpoint: str) -> None:
    client = boto3.client("s3", endpoint_url=f"http://{endpoint}", region_name="us-east-1")
    client.create_bucket(Bucket="backups")
    url = f"s3://backups/one?endpoint_override={endpoint}&scheme=http&region=us-east-1"
    store = open_store(url)
    frozen = freeze_directory(lab.world().disk.copy())
    first = write_backup(frozen, store, ManualClock())
    second = write_backup(freeze_directory(lab.world().disk.copy()), store, ManualClock())
    assert first.files_copied == first.files and second.files_copied == 0
    new = SimDisk()
    restore(store, new, SeededRandom(3), ManualClock())
    assert contents(lab, lab.start(new)).keys() == lab.world().seen.keys()
