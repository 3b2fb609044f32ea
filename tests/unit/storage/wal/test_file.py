"""Log files: their names, which of them a directory holds, and which nothing needs any more."""

from __future__ import annotations

from headrace.storage.wal.file import (
    discover,
    file_path,
    first_position,
    removable,
    shard_directory,
)
from headrace.testing.simdisk import SimDisk
from tests.support.wal_logs import Log


def test_shards_have_their_directories() -> None:
    assert shard_directory(0, 1) == "wal"
    assert [shard_directory(n, 3) for n in range(3)] == [
        "wal/shard-00", "wal/shard-01", "wal/shard-02",
    ]  # fmt: skip
    assert file_path("wal/shard-01", 42) == "wal/shard-01/wal-0000000000000042.log"


def test_discover_finds_log_files_and_nothing_else() -> None:
    disk = SimDisk()
    assert discover(disk) == {}
    disk.mkdir("wal/shard-02")
    for path in ("wal/wal-0000000000000007.log", "wal/wal-7.log", "wal/x.tmp"):
        disk.create(path)
    disk.create("wal/shard-02/wal-0000000000000010.log")
    disk.create("wal/shard-02/wal-0000000000000009.log")
    assert discover(disk) == {"wal": [7], "wal/shard-02": [9, 10]}


def test_only_files_before_the_replay_position_are_removable() -> None:
    log = Log()
    for _ in range(30):
        log.stage(sync=True, size=8_000)
        log.run()
    paths = [file_path("wal", n) for n in discover(log.disk)["wal"]]
    bases = [first_position(log.disk, path) for path in paths]
    used = [(path, base) for path, base in zip(paths, bases, strict=True) if base is not None]
    assert removable(log.disk, {"wal": 0}, 0) == []
    for index, (_, base) in enumerate(used):
        assert removable(log.disk, {"wal": base}, 0) == [path for path, _ in used[:index]]
    assert removable(log.disk, {}, 3) == paths[:2]
