"""Tools on a directory with forks: what they inherit lies in the files of another topic."""

from __future__ import annotations

import pytest

from headrace.core.clock import ManualClock, SeededRandom
from headrace.core.errors import StreamConflict
from headrace.core.runtime import StepRuntime
from headrace.core.settings import Settings
from headrace.engine.engine import Engine
from headrace.storage.files.merge_policy import MergePolicy
from headrace.storage.files.store import DirectoryStore
from headrace.storage.tools.backup import freeze_directory, write_backup
from headrace.storage.tools.check import check
from headrace.storage.tools.repair import repair
from headrace.storage.tools.restore import restore
from headrace.testing.simdisk import SimDisk
from tests.support import stream_calls
from tests.support.forks import fork

SETTINGS = Settings(wal_file_bytes=64 << 10, wal_batch_bytes_max=16 << 10)
OWN = MergePolicy(own_rows_min=1, own_bytes_min=1, own_topics_max=1_000)
Records = list[tuple[int, bytes]]


def opened(disk: SimDisk) -> Engine:
    runtime = StepRuntime(ManualClock())
    engine = Engine(disk, runtime, SETTINGS, random=SeededRandom(1), policy=OWN)
    engine.recover()
    return engine


def read(engine: Engine, name: str) -> Records:
    page = engine.read(name, limit=1_000).result()
    return [(record.seq, bytes(record.data)) for record in page.records]


@pytest.fixture(params=["sealed", "in the log"])
def disk(request: pytest.FixtureRequest) -> SimDisk:
    """`source` of 4 records that has lost two, `fork` of it at 3 with one of its own."""
    disk = SimDisk()
    engine = opened(disk)
    for number in range(1, 5):
        engine.append("source", [b"s%d" % number]).result()
    if request.param == "sealed":
        engine.checkpoint().result()
    fork(engine, "source", 3, "fork")
    engine.append("fork", [b"f4"]).result()
    engine.delete("source", before_seq=3).result()
    if request.param == "sealed":
        engine.checkpoint().result()
    engine.abandon()
    return disk.image(disk.position, "all", 0, power_loss=False)


OF_FORK = [(1, b"s1"), (2, b"s2"), (3, b"s3"), (4, b"f4")]
OF_SOURCE = [(3, b"s3"), (4, b"s4")]


def both(disk: SimDisk) -> tuple[Records, Records]:
    engine = opened(disk)
    found = read(engine, "source"), read(engine, "fork")
    engine.abandon()
    return found


def test_a_whole_directory_is_found_whole(disk: SimDisk) -> None:
    report = check(disk)
    assert report.ok and report.findings == []
    assert repair(disk, clock=ManualClock()).ok
    assert both(disk) == (OF_SOURCE, OF_FORK)


def test_a_backup_brings_forks_back(disk: SimDisk) -> None:
    target, after = SimDisk(), SimDisk()
    write_backup(freeze_directory(disk), DirectoryStore(target), ManualClock())
    restore(DirectoryStore(target), after, SeededRandom(3), ManualClock())
    assert both(after) == (OF_SOURCE, OF_FORK)
    engine = opened(after)
    source, forked = engine.state.topic("source"), engine.state.topic("fork")
    assert forked.parent is source and forked.epoch > source.epoch
    engine.abandon()


def test_a_stream_that_was_forked_is_the_same_one_after_a_restore() -> None:
    """By the offset that its creator knew, and by the one that its source has now."""
    disk, target, after = SimDisk(), SimDisk(), SimDisk()
    engine = opened(disk)
    stream_calls.create(engine, "ds:source", b"a")
    known = engine.streams.info("ds:source").tail
    stream_calls.fork(engine, "ds:fork", "ds:source", known)
    stream_calls.write(engine, "ds:source", b"b").result()
    engine.abandon()
    disk = disk.image(disk.position, "all", 0, power_loss=False)
    write_backup(freeze_directory(disk), DirectoryStore(target), ManualClock())
    restore(DirectoryStore(target), after, SeededRandom(3), ManualClock())
    engine = opened(after)
    now = engine.streams.info("ds:fork").tail
    assert now.seq == known.seq and now.incarnation > known.incarnation
    for at in (known, now):
        assert stream_calls.fork(engine, "ds:fork", "ds:source", at).created is False
    with pytest.raises(StreamConflict, match="fork_offset"):
        stream_calls.fork(engine, "ds:fork", "ds:source", now._replace(seq=now.seq + 1))
    assert stream_calls.data_of(engine, "ds:fork") == [b"a"]
    engine.abandon()


@pytest.mark.parametrize("inherited", [0, 1, 2, 3])
@pytest.mark.parametrize("sealed_before", [False, True])
def test_what_only_a_deleted_source_had_is_not_missed(inherited: int, sealed_before: bool) -> None:
    """No file keeps it, and nobody can read it: a check must not call that a loss."""
    disk = SimDisk()
    engine = opened(disk)
    stream_calls.create(engine, "ds:source")
    for number in range(3):
        if number == inherited:
            stream_calls.fork(engine, "ds:fork", "ds:source")
        stream_calls.write(engine, "ds:source", b"%d" % number).result()
    if inherited == 3:
        stream_calls.fork(engine, "ds:fork", "ds:source")
    if sealed_before:
        engine.checkpoint().result()
    engine.streams.delete("ds:source").result()
    for _ in range(2):
        stream_calls.write(engine, "ds:fork", b"of its own").result()
        engine.checkpoint().result()
        engine.abandon()
        disk = disk.image(disk.position, "all", 0, power_loss=False)
        report = check(disk)
        assert report.ok and report.findings == []
        engine = opened(disk)
    found = stream_calls.data_of(engine, "ds:fork")
    assert found == [*(b"%d" % n for n in range(inherited)), b"of its own", b"of its own"]
    engine.abandon()


def test_a_lost_file_of_the_source_is_announced_by_the_fork() -> None:
    disk = SimDisk()
    engine = opened(disk)
    for number in range(1, 5):
        engine.append("source", [b"s%d" % number]).result()
    engine.checkpoint().result()
    (told,) = engine.manifests.make("source").result().files
    fork(engine, "source", 3, "fork")
    engine.append("fork", [b"f4"]).result()
    engine.delete("source", before_seq=3).result()
    engine.checkpoint().result()
    assert engine.state.catalog.find(told.file_id) is not None
    path = engine.state.catalog.get(told.file_id).meta.path
    engine.abandon()
    disk = disk.image(disk.position, "all", 0, power_loss=False)
    disk.unlink(path)
    report = check(disk)
    lost = {(one.topic, one.first, one.last) for found in report.findings for one in found.lost}
    assert lost == {("source", 3, 4), ("fork", 1, 3)}
    assert repair(disk, clock=ManualClock()).ok
    engine = opened(disk)
    page = engine.read("fork").result()
    assert page.tombstone is not None and page.tombstone[:3] == (1, 3, "crash")
    assert [(record.seq, bytes(record.data)) for record in page.records] == [(4, b"f4")]
    engine.append("fork", [b"f5"]).result()
    assert read(engine, "fork") == [(4, b"f4"), (5, b"f5")]
    engine.abandon()
