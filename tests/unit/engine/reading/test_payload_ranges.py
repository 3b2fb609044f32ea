"""Payloads as ranges of sealed files: the bytes that were appended, verified once, kept open."""

from __future__ import annotations

from random import Random

import pytest

from headrace.core.errors import SegmentCorrupt
from headrace.core.runtime import Ticket
from headrace.engine.engine import Engine
from headrace.engine.reading import payload_ranges as ranges_of_payloads
from headrace.engine.reading.page_rows import ReadRequest
from headrace.engine.reading.payload_ranges import PayloadRanges
from headrace.engine.topics.config import make_config
from headrace.storage.files.merge_policy import MergePolicy
from headrace.storage.files.store import DirectoryStore
from headrace.storage.fs import FileRange, read_exact, write_all
from headrace.storage.segment.format import BLOCK_BYTES
from headrace.testing.simdisk import SimDisk
from tests.support.engines import Start

MIB = 1 << 20


@pytest.fixture(autouse=True)
def _from_files(monkeypatch: pytest.MonkeyPatch) -> None:
    """What memory holds as well comes from files, however little it is."""
    monkeypatch.setattr(ranges_of_payloads, "FROM_MEMORY_BYTES_MAX", -1)


def append(engine: Engine, values: list[bytes], name: str = "t") -> None:
    for value in values:
        engine.append(name, [value]).result()


def find(
    engine: Engine, after: int = 0, sealed_max: int = MIB, memory_max: int = MIB, name: str = "t"
) -> PayloadRanges | None:
    found = engine.payload_ranges(name, ReadRequest(after, 1_000, memory_max), sealed_max)
    return found.result() if isinstance(found, Ticket) else found


def content(found: PayloadRanges | None) -> bytes:
    assert found is not None
    return b"".join(
        read_exact(part.file, part.length, part.offset) if isinstance(part, FileRange) else part
        for part in found.parts
    )


def values(count: int, start: int = 0) -> list[bytes]:
    return [b"<%d>" % number for number in range(start, start + count)]


def test_many_small_appends_are_one_range(engine: Engine) -> None:
    append(engine, values(300))
    assert find(engine) is None, "only memory has them"
    engine.checkpoint().result()
    found = find(engine)
    assert found is not None and len(found.parts) == 1
    assert content(found) == b"".join(values(300))
    assert (found.next_seq, found.count, found.sealed) == (300, 300, True)


def test_what_is_not_sealed_yet_follows_from_memory(engine: Engine) -> None:
    append(engine, values(5))
    engine.checkpoint().result()
    append(engine, values(5, start=5))
    found = find(engine, after=2)
    assert content(found) == b"".join(values(10)[2:])
    assert found is not None and (found.next_seq, found.count, found.sealed) == (10, 8, False)
    assert find(engine, after=5) is None
    assert find(engine, after=10) is None


def test_a_little_that_memory_holds_is_not_worth_a_range(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.undo()
    append(engine, [b"x" * 30_000] * 4)
    engine.checkpoint().result()
    assert find(engine, after=0) is not None
    assert find(engine, after=2) is None


@pytest.mark.parametrize("seed", range(6))
def test_windows_are_bounded_and_leave_nothing_out(start: Start, seed: int) -> None:
    random = Random(seed)
    engine = start(policy=MergePolicy(fan_in=2))
    stored: list[bytes] = []
    for _ in range(random.randint(2, 6)):
        more = [random.randbytes(random.choice([1, 9, 400])) for _ in range(random.randint(1, 60))]
        append(engine, more)
        stored += more
        if random.random() < 0.8:
            engine.checkpoint().result()
    after, read = 0, b""
    while after < len(stored):
        bytes_max = random.choice([1, 30, 500, 5_000])
        found = find(engine, after, bytes_max, bytes_max)
        if found is None:
            assert after >= engine.state.topic("t").sealed_to
            break
        assert found.next_seq > after and found.count == found.next_seq - after
        sealed = sum(part.length for part in found.parts if isinstance(part, FileRange))
        if sealed > bytes_max:
            assert found.next_seq == after + 1, "only a record that is larger by itself"
        read += content(found)
        after = found.next_seq
        assert read == b"".join(stored[:after])


def test_blocks_are_verified_once_while_a_file_is_open(engine: Engine) -> None:
    append(engine, [b"x" * 10_000] * 30)
    engine.checkpoint().result()
    request = ReadRequest(0, 1_000, MIB)
    first = engine.payload_ranges("t", request, MIB)
    assert isinstance(first, Ticket), "the file has to be read"
    assert content(first.result()) == b"x" * 300_000
    assert isinstance(engine.payload_ranges("t", request, MIB), PayloadRanges), "at once"


@pytest.mark.parametrize("at", [0, 2 * BLOCK_BYTES + 17])
def test_damaged_bytes_are_never_handed_out(start: Start, at: int) -> None:
    disk = SimDisk()
    engine = start(disk)
    append(engine, [b"x" * 10_000] * 30)
    engine.checkpoint().result()
    (segment,) = engine.state.catalog.segments()
    file = disk.open(segment.meta.path)
    where = file.size() // 4 + at
    write_all(file, [bytes([read_exact(file, 1, where)[0] ^ 1])], where)
    with pytest.raises(SegmentCorrupt):
        find(engine)


def test_a_file_that_is_merged_away_or_deleted_is_still_read(start: Start) -> None:
    engine = start(policy=MergePolicy(fan_in=2))
    append(engine, values(50))
    engine.checkpoint().result()
    found = find(engine)
    before = {segment.meta.path for segment in engine.state.catalog.segments()}
    for number in range(6):
        append(engine, values(50, start=100 * number))
        engine.checkpoint().result()
    now = {segment.meta.path for segment in engine.state.catalog.segments()}
    assert not before & now, "merged away"
    assert content(found) == b"".join(values(50))
    other = find(engine)
    engine.delete_topic("t").result()
    engine.checkpoint().result()
    engine.checkpoint().result()
    assert content(other).startswith(b"".join(values(50)))
    assert content(found) == b"".join(values(50))


def test_a_range_that_is_let_go_is_closed_for_nobody_else(engine: Engine) -> None:
    append(engine, values(50))
    engine.checkpoint().result()
    one, other = find(engine), find(engine)
    assert one is not None
    for part in one.parts:
        assert isinstance(part, FileRange)
        part.file.close()
        part.file.close()
        with pytest.raises(AssertionError):
            part.file.pread(1, 0)
    assert content(other) == content(find(engine)) == b"".join(values(50))


def test_what_needs_a_closer_look_is_left_to_a_page(engine: Engine) -> None:
    append(engine, values(10))
    engine.checkpoint().result()
    request = ReadRequest(0, 1_000, MIB, epoch=engine.topic("t").epoch + 1)
    assert engine.payload_ranges("t", request, MIB) is None, "another topic"
    engine.append("t", [b"tagged"], config=None).result()
    engine.delete("t", before_seq=4).result()
    assert find(engine, after=0) is None, "records were deleted before"
    assert content(find(engine, after=3)) == b"".join(values(10)[3:]) + b"tagged"
    engine.put_topic("t", {"cap_records": 3}).result()
    assert find(engine, after=3) is None, "a loss has to be told"


def test_cold_files_are_left_to_a_page(start: Start) -> None:
    policy = MergePolicy(own_rows_min=1, own_bytes_min=1, own_topics_max=1_000)
    engine = start(cold=DirectoryStore(SimDisk()), policy=policy, hot_retain_segments=1)
    for number in range(3):
        append(engine, values(50, start=50 * number))
        engine.checkpoint().result()
    tiers = [run.segment.meta.tier for run in engine.state.catalog.runs(engine.state.topic("t").id)]
    assert tiers[0] == 1 and tiers[-1] == 0, tiers
    assert find(engine) is None
    page = engine.read("t", limit=1_000).result()
    assert [record.data for record in page.records] == values(150)
    assert content(find(engine, after=100)) == b"".join(values(50, start=100))


def test_a_fork_has_the_ranges_of_its_source_and_its_own(engine: Engine) -> None:
    append(engine, values(20))
    engine.checkpoint().result()
    state, config = engine.state, make_config({"durability": "fsync"})
    engine._lifecycle.fork("fork", config, state.topic("t"), 12).result()
    append(engine, values(5, start=500))
    inherited = b"".join(values(12))
    found = find(engine, name="fork")
    assert content(found) == inherited and found is not None and found.next_seq == 12
    append(engine, values(5, start=100), "fork")
    assert content(find(engine, name="fork")) == inherited + b"".join(values(5, start=100))
    engine.checkpoint().result()
    append(engine, values(5, start=105), "fork")
    own = b"".join(values(10, start=100))
    assert content(find(engine, name="fork")) == inherited + own
    assert content(find(engine, after=13, name="fork")) == b"".join(values(9, start=101))
    engine._lifecycle.fork("third", config, state.topic("fork"), 14).result()
    engine.checkpoint().result()
    assert content(find(engine, name="third")) == inherited + b"".join(values(2, start=100))
    assert content(find(engine)) == b"".join([*values(20), *values(5, start=500)])
