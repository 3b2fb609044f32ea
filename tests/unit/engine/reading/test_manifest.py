"""Manifests: what a reader of files is told is enough to read exactly what the server reads."""

from __future__ import annotations

from base64 import b64decode

import pytest
from pyroaring import BitMap64

from headrace.api.segments import Manifest
from headrace.core.clock import ManualClock
from headrace.core.errors import NotFound, SegmentCorrupt, Throttled, TopicNotFound
from headrace.engine.engine import Engine
from headrace.engine.reading.manifest import DELETE_RANGES_MAX, Manifests
from headrace.engine.reading.page import Page
from headrace.engine.removal.deleted_seqs import DeletedSeqs
from headrace.storage.block import Batch
from headrace.storage.files.block_cache import BlockCache
from headrace.storage.files.merge_policy import MergePolicy
from headrace.storage.files.store import DirectoryStore
from headrace.storage.segment.format import SegmentMeta, segment_path
from headrace.storage.segment.reader import Segment
from headrace.storage.segment.run import run_of
from headrace.testing.simdisk import SimDisk
from tests.support.engines import Start

OWN = MergePolicy(own_rows_min=1, own_bytes_min=1, own_topics_max=1_000)
PIN_MS = 600_000


def manifests_of(engine: Engine) -> Manifests:
    return Manifests(engine.state, engine.checkpointer.files)


def manifest(engine: Engine, name: str = "t") -> Manifest:
    return manifests_of(engine).make(name).result()


def append(engine: Engine, *data: bytes, name: str = "t", tag: str | None = None) -> None:
    engine.append(name, Batch(list(data), tags=None if tag is None else [tag] * len(data))).result()


def forget(engine: Engine) -> None:
    for topic in engine.state.by_id.values():
        engine.state.forget_blocks(topic)


def deleted(made: Manifest) -> set[int]:
    if made.deletes_bitmap is not None:
        assert made.deletes is None
        return set(BitMap64.deserialize(b64decode(made.deletes_bitmap)))
    assert made.deletes is not None
    return {seq for first, last in made.deletes for seq in range(first, last + 1)}


def read_as_told(engine: Engine, made: Manifest, cold: SimDisk | None = None) -> list[object]:
    """Read like somebody who has the manifest and the files, and the server for the tail."""
    dead = deleted(made)
    records = []
    for told in made.files:
        disk = engine.state.fs if told.tier == "hot" else cold
        assert isinstance(disk, SimDisk)
        path = segment_path(told.file_id)
        assert told.location.endswith(path)
        file = disk.open_read(path)
        assert file.size() == told.size
        meta = SegmentMeta(
            told.file_id, told.owner, 0, told.rows, told.topics, told.size, told.footer_offset,
            int(told.hash, 16), 0, 0, 0, 0,
        )  # fmt: skip
        segment = Segment(meta, file, BlockCache(1 << 20))
        segment.verify()
        run = run_of(segment, made.topic_id)
        assert run is not None
        assert (run.first_row, run.first_seq) == (told.first_row, told.first_seq)
        rows = run.rows(0, told.row_count)
        assert rows.seqs[-1] == told.last_seq < made.tail_from_seq
        records += [r for r in rows.records() if r.seq >= made.earliest_seq and r.seq not in dead]
        segment.close()
    tail: Page = engine.read("t", made.tail_from_seq - 1, limit=10_000).result()
    return [*records, *tail.records]


def all_records(engine: Engine) -> list[object]:
    records: list[object] = []
    from_seq = 0
    while True:
        page = engine.read("t", from_seq, limit=1_000).result()
        records += page.records
        from_seq = page.next_from_seq
        if page.caught_up:
            return records


def segments_on(disk: SimDisk) -> set[str]:
    return {name for name in disk.listdir("segments") if name.endswith(".arrow")}


# What it says


def test_an_empty_topic(engine: Engine) -> None:
    engine.put_topic("t").result()
    made = manifest(engine)
    assert (made.head_seq, made.earliest_seq, made.tail_from_seq) == (0, 1, 1)
    assert (made.files, made.gaps, made.deletes) == ([], [], [])
    assert made.epoch == engine.topic("t").epoch


def test_a_topic_that_is_not_there(engine: Engine) -> None:
    with pytest.raises(TopicNotFound):
        manifests_of(engine).make("t")


@pytest.mark.parametrize("shared", [True, False])
def test_files_and_tail_are_the_topic(start: Start, shared: bool) -> None:
    engine = start(policy=None if shared else OWN)
    for part in range(4):
        append(engine, *(b"%d" % n for n in range(part, part + 5)), tag=f"x{part % 2}")
        append(engine, b"other", name="other")
        if part < 3:
            engine.checkpoint().result()
    engine.delete("t", match="x1").result()
    engine.delete("t", before_seq=3).result()
    made = manifest(engine)
    assert made.tail_from_seq == 16
    assert made.earliest_seq == 3
    assert made.floors.delete == 2
    assert {file.owner == 0 for file in made.files} == {shared}
    assert read_as_told(engine, made) == all_records(engine)
    forget(engine)
    assert read_as_told(engine, manifest(engine)) == all_records(engine)


def test_many_deletes_are_a_bitmap(start: Start) -> None:
    engine = start()
    count = 2 * DELETE_RANGES_MAX + 10
    batch = Batch([b"1"] * count, tags=["a", "b"] * (count // 2))
    engine.append("t", batch).result()
    engine.checkpoint().result()
    assert manifest(engine).deletes == []
    engine.delete("t", match="b").result()
    made = manifest(engine)
    assert made.deletes_bitmap is not None
    assert len(deleted(made)) == count // 2
    assert read_as_told(engine, made) == all_records(engine)


def test_deletes_of_what_only_a_lake_has_are_told(engine: Engine) -> None:
    append(engine, b"1", b"2", b"3", b"4", tag="a")
    engine.checkpoint().result()
    assert manifest(engine).erased is None
    topic = engine.state.by_name["t"]
    topic.deleted = DeletedSeqs(1, BitMap64([4]))
    topic.deleted.delete(2, None, ("gone", True, 3))
    made = manifest(engine).erased
    assert made is not None
    assert (made.since, made.below, made.tags) == (1, 2, [("gone", True, 3)])
    assert set(BitMap64.deserialize(b64decode(made.seqs))) == {4}


def test_deletes_beyond_the_files_are_the_tail_s(engine: Engine) -> None:
    append(engine, b"1", b"2", tag="a")
    engine.checkpoint().result()
    append(engine, b"3", tag="gone")
    append(engine, b"4")
    engine.delete("t", match="gone").result()
    assert manifest(engine).deletes == []


def test_what_a_crash_took_is_a_gap_and_no_delete(start: Start, power_loss: Start) -> None:
    engine = start()
    engine.put_topic("t", {"durability": "disk"}).result()
    append(engine, b"1", b"2")
    engine.checkpoint().result()
    append(engine, b"3")
    again = power_loss(engine)
    append(again, b"after")
    made = manifest(again)
    assert made.gaps == again.state.by_name["t"].gaps
    assert made.gaps
    assert made.deletes == []
    assert read_as_told(again, made)[:2] == all_records(again)[:2]


def test_caps_move_a_floor(start: Start) -> None:
    engine = start()
    engine.put_topic("t", {"cap_records": 4}).result()
    for n in range(6):
        append(engine, b"%d" % n)
        engine.checkpoint().result()
    made = manifest(engine)
    assert (made.floors.cap, made.earliest_seq) == (2, 3)
    assert read_as_told(engine, made) == all_records(engine)


def test_ephemeral_records_are_all_tail(engine: Engine) -> None:
    engine.put_topic("t", {"durability": "ephemeral"}).result()
    append(engine, b"1", b"2")
    engine.checkpoint().result()
    made = manifest(engine)
    assert (made.files, made.tail_from_seq) == ([], 1)


def test_a_file_that_is_damaged_is_not_left_out_in_silence(start: Start) -> None:
    engine = start(policy=OWN)
    append(engine, b"1")
    engine.checkpoint().result()
    forget(engine)
    disk = engine.state.fs
    assert isinstance(disk, SimDisk)
    (segment,) = engine.state.catalog.segments()
    file = disk.open(segment.meta.path)
    file.pwritev([b"?"], segment.meta.footer_offset + 20)
    reopened = Segment(segment.meta, disk.open_read(segment.meta.path), engine.state.cache)
    engine.state.catalog.remove(segment.meta.file_id)
    engine.state.catalog.add(reopened)
    manifests = manifests_of(engine)
    with pytest.raises(SegmentCorrupt):
        manifests.make("t").result()
    assert len(engine.checkpointer.files.pins) == 0


# Pins


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


def pass_ms(engine: Engine, clock: ManualClock, ms: int) -> None:
    clock.advance(ms)
    engine.runtime.run()  # type: ignore[attr-defined]


def test_a_pin_holds_files_that_a_merge_replaced(start: Start, clock: ManualClock) -> None:
    engine = start()
    disk = engine.state.fs
    assert isinstance(disk, SimDisk)
    for n in range(5):
        append(engine, b"%d" % n)
        engine.checkpoint().result()
    manifests = manifests_of(engine)
    made = manifests.make("t").result()
    told = {segment_path(file.file_id).rpartition("/")[2] for file in made.files}
    before = all_records(engine)
    for n in range(20):
        append(engine, b"more %d" % n)
        engine.checkpoint().result()
    now = {segment.meta.path.rpartition("/")[2] for segment in engine.state.catalog.segments()}
    assert told - now, "nothing was merged: the test tests nothing"
    assert told <= segments_on(disk)
    assert read_as_told(engine, made)[: len(before)] == before
    pass_ms(engine, clock, PIN_MS - 1)
    assert told <= segments_on(disk)
    pass_ms(engine, clock, 2)
    assert len(manifests) == 0
    assert not (told - now) & segments_on(disk), "what nobody needs is gone without a checkpoint"
    assert now <= segments_on(disk)


def test_a_pin_holds_the_files_of_a_deleted_topic(start: Start, clock: ManualClock) -> None:
    engine = start(policy=OWN)
    disk = engine.state.fs
    assert isinstance(disk, SimDisk)
    append(engine, b"1")
    engine.checkpoint().result()
    manifests = manifests_of(engine)
    made = manifests.make("t").result()
    engine.delete_topic("t").result()
    for n in range(3):
        append(engine, b"%d" % n, name="other")
        engine.checkpoint().result()
    assert engine.state.catalog.find(made.files[0].file_id) is None
    assert disk.open_read(segment_path(made.files[0].file_id)).size() == made.files[0].size
    manifests.release("t", made.pin)
    engine.runtime.drain()
    with pytest.raises(FileNotFoundError):
        disk.open_read(segment_path(made.files[0].file_id))


def test_a_pin_holds_the_hot_copy_of_a_file_that_moves(start: Start, clock: ManualClock) -> None:
    cold = SimDisk()
    engine = start(cold=DirectoryStore(cold), policy=OWN, hot_retain_segments=1)
    disk = engine.state.fs
    assert isinstance(disk, SimDisk)
    append(engine, b"x" * 100)
    engine.checkpoint().result()
    manifests = manifests_of(engine)
    made = manifests.make("t").result()
    (told,) = made.files
    assert told.tier == "hot"
    for _ in range(3):
        append(engine, b"y" * 100)
        engine.checkpoint().result()
    later = manifests.make("t").result()
    moved = next(file for file in later.files if file.file_id == told.file_id)
    assert moved.tier == "cold"
    name = segment_path(told.file_id).rpartition("/")[2]
    assert name in segments_on(disk)
    assert name in segments_on(cold)
    assert read_as_told(engine, made)[:1] == read_as_told(engine, later, cold)[:1]
    manifests.release("t", made.pin)
    manifests.release("t", later.pin)
    engine.runtime.drain()
    assert name not in segments_on(disk)
    assert name in segments_on(cold)
    assert read_as_told(engine, manifest(engine), cold) == all_records(engine)


def test_a_restart_forgets_pins_and_sweeps_what_they_held(start: Start, kill: Start) -> None:
    engine = start()
    for n in range(20):
        append(engine, b"%d" % n)
        engine.checkpoint().result()
        if n == 5:
            made = manifest(engine)
    again = kill(engine)
    disk = again.state.fs
    assert isinstance(disk, SimDisk)
    listed = {segment.meta.path.rpartition("/")[2] for segment in again.state.catalog.segments()}
    retained = again.checkpointer.files.snapshots.retained_files()
    assert segments_on(disk) <= listed | {
        segment_path(file_id).rpartition("/")[2] for file_id in retained
    }
    with pytest.raises(NotFound):
        manifests_of(again).renew("t", made.pin)
    assert read_as_told(again, manifest(again)) == all_records(again)


def test_pins_are_renewed_and_lapse(start: Start, clock: ManualClock) -> None:
    engine = start()
    append(engine, b"1")
    engine.checkpoint().result()
    manifests = manifests_of(engine)
    made = manifests.make("t").result()
    assert made.pin_ms == PIN_MS
    assert made.pin_expires_ms == engine.state.clock.now_ms() + PIN_MS
    for _ in range(3):
        pass_ms(engine, clock, PIN_MS - 1)
        assert manifests.renew("t", made.pin) == engine.state.clock.now_ms() + PIN_MS
    assert len(engine.checkpointer.files.pins) == len(made.files) == 1
    pass_ms(engine, clock, PIN_MS)
    assert len(engine.checkpointer.files.pins) == 0
    with pytest.raises(NotFound):
        manifests.renew("t", made.pin)


def test_a_pin_belongs_to_its_topic(engine: Engine) -> None:
    append(engine, b"1")
    append(engine, b"1", name="other")
    manifests = manifests_of(engine)
    made = manifests.make("t").result()
    with pytest.raises(NotFound):
        manifests.renew("other", made.pin)
    with pytest.raises(NotFound):
        manifests.release("other", made.pin)
    manifests.release("t", made.pin)
    with pytest.raises(NotFound):
        manifests.release("t", made.pin)


def test_pins_are_bounded(start: Start, clock: ManualClock) -> None:
    engine = start(manifest_pins_max=2)
    append(engine, b"1")
    manifests = manifests_of(engine)
    first = manifests.make("t")
    second = manifests.make("t")
    with pytest.raises(Throttled) as refused:
        manifests.make("t")
    assert refused.value.detail == {"limit": "manifest_pins_max", "max": 2}
    assert first.result().pin != second.result().pin
    with pytest.raises(Throttled):
        manifests.make("t")
    manifests.release("t", first.result().pin)
    manifests.make("t").result()
    with pytest.raises(Throttled):
        manifests.make("t")
    pass_ms(engine, clock, PIN_MS)
    assert manifests.make("t").result().pin
    assert len(manifests) == 1
