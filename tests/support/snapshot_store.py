"""Small snapshots for tests of how they are written, kept and read."""

from __future__ import annotations

import copy

import msgspec

from headrace.storage.fs import Filesystem
from headrace.storage.segment.format import SegmentMeta
from headrace.storage.snapshot.chains import snapshot_path
from headrace.storage.snapshot.files import SnapshotStore
from headrace.storage.snapshot.key_files import KeyFileMeta
from headrace.storage.snapshot.state import SnapshotChange, SnapshotState, TopicState
from headrace.testing.simdisk import SimDisk

BLANK = TopicState(0, "", 1, b"{}", 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, b"", [], {}, b"")


def topic(topic_id: int, head: int = 0) -> TopicState:
    name = f"topic-{topic_id}"
    return msgspec.structs.replace(BLANK, id=topic_id, name=name, head=head, reserved_to=head + 256)


def segment(file_id: int) -> SegmentMeta:
    return SegmentMeta(file_id, 0, 0, 1, 1, 100, 50, 7, 10, 0, 0, 0)


def change_of(stamp: int, **fields: object) -> SnapshotChange:
    scalars: dict[str, object] = {
        "created_ms": stamp,
        "clean": False,
        "generation": 1,
        "next_topic_id": 10**6,
        "next_file_id": 10**6,
        "boot_id": bytes(16),
        "positions": {"wal": 4096 * stamp},
        "key_files": [KeyFileMeta(stamp, 1, 2, 3, 4)],
    }
    return SnapshotChange(**(scalars | fields))  # type: ignore[arg-type]


def opened(fs: Filesystem, chain_max: int = 16) -> SnapshotStore:
    store = SnapshotStore(fs, chain_max=chain_max)
    store.load()
    return store


def names(fs: Filesystem) -> list[str]:
    return fs.listdir("meta")


def flip(disk: SimDisk, number: int, bit: int = 8 * 100) -> None:
    disk.flip(snapshot_path(number), bit)


def three_written(chain_max: int = 16) -> tuple[SimDisk, list[SnapshotState]]:
    """Two full snapshots and a delta on the first; three full ones when `chain_max` is 0."""
    disk = SimDisk()
    store = opened(disk, chain_max)
    states = []
    for n in (1, 2, 3):
        topics = {1: topic(1, head=n)}
        if n == 1:
            topics |= {k: topic(k) for k in range(2, 60)}
        store.write(change_of(n, topics=topics, files={n: segment(n)}))
        states.append(copy.deepcopy(store.latest))
    return disk, states
