"""The scrub's memory and its repairs, cut short at every disk call (native §10d, §10g)."""

from __future__ import annotations

from headrace.core.clock import ManualClock
from headrace.storage.files.store import DirectoryStore
from headrace.storage.files.tier import COLD, Tiers
from headrace.storage.scrub.progress_file import (
    SEGMENT,
    FileProgress,
    read_progress,
    write_progress,
)
from headrace.storage.scrub.refetch import refetch
from headrace.storage.tools.backup_manifest import segment_file
from headrace.testing.diskmodel import MODES
from headrace.testing.simdisk import SimDisk
from tests.support.engines import open_engines
from tests.support.scrubbing import SCRUBBED, flip, seal

SEEDS = range(3)


def test_its_memory_is_that_before_or_after() -> None:
    """§10d: never a mixture, and never one that does not read."""
    disk = SimDisk()
    disk.mkdir("meta")
    versions: list[list[FileProgress]] = [[]]
    durable_at = [disk.position]
    for number in range(1, 4):
        versions.append([FileProgress(SEGMENT, n, False, n, number, 0) for n in range(number * 20)])
        write_progress(disk, versions[-1])
        durable_at.append(disk.position)
    states = 0
    for position in range(durable_at[0], disk.position + 1):
        done = max(at for at, when in enumerate(durable_at) if when <= position)
        for mode in MODES:
            for seed in SEEDS:
                found = read_progress(disk.image(position, mode, seed))
                assert found in versions[done : done + 2], (position, mode, seed)
                states += 1
    assert states > 200


def test_a_repair_leaves_the_damaged_file_or_the_whole_one() -> None:
    """§10g: and from every state it can be done again."""
    hot, cold, copies = SimDisk(), SimDisk(), SimDisk()
    with open_engines(ManualClock()) as start:
        engine = start(hot, cold=DirectoryStore(cold), **SCRUBBED)
        seal(engine, "a")
        seal(engine, "a")
        identity = engine.state.identity
        (meta,) = [meta for meta in engine.state.catalog.metas() if meta.tier == COLD]
    whole = cold.contents()[meta.path]
    copies.mkdir("segments")
    copies.create(segment_file(meta).path).pwritev([whole], 0)
    flip(cold, meta.path, 70_000)
    cold.settle()
    damaged = cold.contents()[meta.path]
    backup = DirectoryStore(copies)

    first = cold.position
    assert refetch(meta, Tiers(DirectoryStore(hot), DirectoryStore(cold)), backup, identity)
    found = set()
    for position in range(first, cold.position + 1):
        for mode in MODES:
            for seed in SEEDS:
                image = cold.image(position, mode, seed)
                content = image.contents()[meta.path]
                assert content in (damaged, whole), (position, mode, seed)
                found.add(content == whole)
                tiers = Tiers(DirectoryStore(hot), DirectoryStore(image))
                refetch(meta, tiers, backup, identity)
                assert image.contents()[meta.path] == whole
    assert found == {False, True}
    assert cold.image(cold.position, "none", 0).contents()[meta.path] == whole, "it is durable"
