"""Fetching a damaged file again (native §10g): only whole bytes, and never over a whole copy."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from headrace.core.clock import ManualClock
from headrace.core.errors import CorruptionError, NotReady, SegmentCorrupt
from headrace.engine.engine import Engine
from headrace.engine.scrubbing.repair_source import open_backup
from headrace.engine.sealing.backup import backup
from headrace.storage.files.store import DirectoryStore
from headrace.storage.files.tier import COLD, HOT, OWNER_PATH
from headrace.storage.scrub.refetch import VerifiedSource, refetch
from headrace.storage.segment.format import SegmentMeta
from headrace.testing.simdisk import SimDisk
from tests.support.engines import Start
from tests.support.scrubbing import SCRUBBED, flip, pass_time, scrub_with, seal


class Places:
    """An engine with a hot and a cold file, and a backup of it."""

    def __init__(self, start: Start) -> None:
        self.hot, self.cold, self.copies = SimDisk(), SimDisk(), SimDisk()
        self.backup = DirectoryStore(self.copies)
        self.engine: Engine = start(self.hot, cold=DirectoryStore(self.cold), **SCRUBBED)
        seal(self.engine, "a")
        seal(self.engine, "a")
        metas = {meta.tier: meta for meta in self.engine.state.catalog.metas()}
        self.cold_meta, self.hot_meta = metas[COLD], metas[HOT]
        backup(self.engine, self.backup).result()

    def refetch(self, meta: SegmentMeta, store: DirectoryStore | None) -> str | None:
        state = self.engine.state
        return refetch(meta, state.tiers, store, state.identity)


@pytest.fixture
def places(start: Start, clock: ManualClock) -> Places:
    return Places(start)


def test_a_damaged_cold_file_comes_back_from_a_backup(
    places: Places, clock: ManualClock, caplog: pytest.LogCaptureFixture
) -> None:
    path = places.cold_meta.path
    whole = places.cold.contents()[path]
    flip(places.cold, path, 70_000)
    scrub = scrub_with(places.engine, places.backup)
    pass_time(places.engine, clock, 60_000)
    assert places.cold.contents()[path] == whole
    assert (scrub.problem(), scrub.damaged_files_total, scrub.repaired_files_total) == ("", 1, 1)
    assert "was fetched again from" in caplog.text
    assert len(places.engine.read("a", limit=100).result().records) == 24


def test_a_damaged_hot_file_comes_back_too(places: Places) -> None:
    path = places.hot_meta.path
    whole = places.hot.contents()[path]
    flip(places.hot, path, 70_000)
    assert places.refetch(places.hot_meta, places.backup)
    assert places.hot.contents()[path] == whole


def test_a_hot_copy_that_is_still_there_is_taken_first(places: Places) -> None:
    path = places.cold_meta.path
    whole = places.cold.contents()[path]
    places.hot.create(path).pwritev([whole], 0)
    places.cold.unlink(path)
    where = places.refetch(places.cold_meta, None)
    assert where == places.hot.describe(path)
    assert places.cold.contents()[path] == whole


def test_a_whole_copy_is_never_replaced(places: Places) -> None:
    before = places.cold.position
    assert places.refetch(places.cold_meta, places.backup) is None
    assert places.cold.position == before, "nothing was written"


@pytest.mark.parametrize("at", [100, 70_000, -20])
def test_a_damaged_source_is_not_copied(places: Places, at: int) -> None:
    """Not a byte of it: what is there may be less damaged."""
    path = places.cold_meta.path
    flip(places.cold, path, 130_000)
    before = places.cold.contents()
    (copy,) = [n for n in places.copies.contents() if f"{places.cold_meta.file_id:016d}-" in n]
    flip(places.copies, copy, at if at >= 0 else len(places.copies.contents()[copy]) + at)
    with pytest.raises(SegmentCorrupt, match="cannot be fetched again"):
        places.refetch(places.cold_meta, places.backup)
    assert places.cold.contents() == before
    with pytest.raises(SegmentCorrupt, match="does not exist"):
        places.refetch(places.cold_meta, None)


def test_a_cold_tier_that_is_not_mounted_is_left_alone(places: Places) -> None:
    places.cold.unlink(places.cold_meta.path)
    places.cold.unlink(OWNER_PATH)
    before = places.cold.position
    with pytest.raises(NotReady):
        places.refetch(places.cold_meta, places.backup)
    assert places.cold.position == before
    places.engine.scrub.start()
    places.engine.runtime.drain()
    assert places.engine.scrub.damaged_files_total == 0


def test_a_write_that_went_wrong_is_noticed(places: Places) -> None:
    """The disk took other bytes than it was given: the file is damaged as before."""

    class Garbling(DirectoryStore):
        def put(self, path: str, source: object, size: int) -> None:
            super().put(path, source, size)  # type: ignore[arg-type]
            flip(places.cold, path, 5)

    tiers = places.engine.state.tiers
    tiers.cold = Garbling(places.cold)
    flip(places.cold, places.cold_meta.path)
    with pytest.raises(SegmentCorrupt, match="is damaged in block 0"):
        places.refetch(places.cold_meta, places.backup)


def test_a_source_gives_out_only_what_matches(places: Places) -> None:
    meta = places.cold_meta
    whole = places.cold.contents()[meta.path]

    def read(steps: Sequence[int]) -> bytes:
        source, parts, at = VerifiedSource(meta, places.cold.open_read(meta.path)), b"", 0
        for step in steps:
            parts += source.pread(step, at)
            at = len(parts)
        source.close()
        return parts

    size = len(whole)
    assert read([size] * 2) == whole
    assert read([10, 65_536, 3, size, size]) == whole
    flip(places.cold, meta.path, size - 3)
    with pytest.raises(CorruptionError):
        read([size] * 2)


def test_a_backup_that_is_away_is_not_made(tmp_path_factory: pytest.TempPathFactory) -> None:
    place = tmp_path_factory.mktemp("repair") / "missing"
    assert open_backup("") is None
    with pytest.raises(NotReady, match="does not exist"):
        open_backup(str(place))
    assert not place.exists()
    place.mkdir()
    assert open_backup(str(place)) is not None
