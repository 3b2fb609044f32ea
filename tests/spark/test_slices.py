"""Parts, read as an executor does: what comes out is what the server would tell, and all of it."""

from __future__ import annotations

import os
import pickle
import sys
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import msgspec
import pyarrow as pa
import pytest
from pyroaring import BitMap64

from headrace.api.segments import ManifestFile
from headrace.client import Client
from headrace.core.errors import NotReady, SegmentCorrupt
from headrace.spark.options import Connection, SourceOptions
from headrace.spark.read_failures import DataLost
from headrace.spark.reading.columns import Shape, shape_of
from headrace.spark.reading.locations import OPEN_FILES_MAX, OpenFiles
from headrace.spark.reading.parts import FileSlice, Gap, HttpSlice, Pin, ReadPart
from headrace.spark.reading.planning import plan
from headrace.spark.reading.pushdown import Filters
from headrace.spark.reading.slice_rows import live_rows
from headrace.spark.reading.slices import BATCH_BYTES_MIN, _Pins, gathered, read_part
from headrace.spark.reading.spans import Span
from headrace.storage.block import Batch
from headrace.storage.block_encoding import encode_block
from headrace.storage.files.block_cache import BlockCache
from headrace.storage.fs import RealFilesystem
from headrace.storage.segment.reader import open_segment
from headrace.storage.segment.run import run_of
from headrace.testing.process import ServerProcess
from tests.support.request_counts import requests_of
from tests.support.sealed_topics import SETTINGS, fill, options_of, seal, span_of
from tests.support.segments import seal as seal_blocks

COLUMNS = ("seq", "ts", "kind", "tag", "node", "meta", "data")


@pytest.fixture
def client(sealing: ServerProcess) -> Iterator[Client]:
    with Client(sealing.url) as found:
        yield found


def read(options: SourceOptions, parts: Iterable[ReadPart], shape: Shape | None = None) -> pa.Table:
    shape = shape or shape_of(options, None)
    batches = []
    for part in parts:
        again = pickle.loads(pickle.dumps(part))
        batches += list(read_part(options, shape, again))
    return pa.Table.from_batches(batches, shape.arrow)


def told(client: Client, topic: str) -> pa.Table:
    """What a reader over HTTP sees."""
    tables, cursor = [], 0
    while True:
        page = client.diff_arrow(topic, cursor)
        tables.append(page.table.replace_schema_metadata(None))
        cursor = page.next_from_seq
        if page.caught_up:
            return pa.concat_tables(tables)


def records(table: pa.Table) -> list[dict[str, object]]:
    rows = table.select([name for name in COLUMNS if name in table.schema.names]).to_pylist()
    kinds = {0: "json", 1: "bytes", 2: "command"}
    for row in rows:
        row["kind"] = kinds.get(row["kind"], row["kind"])
        row["meta"] = row["meta"].decode() if isinstance(row["meta"], bytes) else row["meta"]
    return rows


def test_every_record_as_it_was_written(sealing: ServerProcess, client: Client, topic: str) -> None:
    """Files that are dense, files with holes, deletes that are not in files yet, and a tail."""
    fill(client, topic, 4_000)
    client.delete_records(topic, match="t4")
    seal(client, topic)
    client.delete_records(topic, before_seq=333)
    client.delete_records(topic, match="t5")
    fill(client, topic, 2_000, 4_001)
    seal(client, topic)
    client.delete_records(topic, match="t7")
    with Client(sealing.url) as busy:
        fill(busy, topic, 1_500, 6_001, size=500)
        span = span_of(client, topic)
        expected = records(told(client, topic))
    assert len(expected) > 4_000
    everything = options_of(sealing.url, topic, columns=(*COLUMNS, "topic"))
    for how in ({"direct": "auto"}, {"direct": "false"}, {"direct": "true", "min_partitions": 7}):
        options = msgspec.structs.replace(everything, **how)
        made = plan(client, options, [span])
        table = read(options, made.parts)
        assert records(table) == expected, how
        assert set(table["topic"].to_pylist()) == {topic}
        kinds = {type(one) for part in made.parts for one in part.slices}
        assert (FileSlice in kinds) == (options.direct != "false")
    # A few columns, a few seqs.
    options = options_of(sealing.url, topic, columns=("seq", "data"))
    for first, last in ((334, 334), (3_990, 4_010), (5_000, 7_500), (1, 340)):
        part = plan(client, options, [span._replace(first=first, last=last)]).parts
        rows = [(r["seq"], r["data"]) for r in expected if first <= r["seq"] <= last]
        found = read(options, part)
        assert list(zip(*(found[c].to_pylist() for c in ("seq", "data")), strict=True)) == rows


def test_filters_spare_reading_and_lose_nothing(
    sealing: ServerProcess, client: Client, topic: str
) -> None:
    for first in (1, 1_001, 2_001):
        fill(client, topic, 1_000, first)
        seal(client, topic)
    fill(client, topic, 500, 3_001)
    span = span_of(client, topic)
    options = options_of(sealing.url, topic, columns=("seq", "ts", "tag", "data"))
    expected = read(options, plan(client, options, [span]).parts).to_pylist()
    times = sorted({int(row["ts"].timestamp() * 1_000 + 0.5) for row in expected})
    middle = times[len(times) // 2]
    cases: list[tuple[Filters, Callable[[dict[str, object]], bool]]] = [
        (Filters(tags=("t4", "t5")), lambda row: row["tag"] in ("t4", "t5")),
        (Filters(tag_present=True), lambda row: row["tag"] is not None),
        (Filters(tag_prefixes=("t", "t8")), lambda row: (row["tag"] or "").startswith("t8")),
        (Filters(tags=()), lambda row: False),
        (Filters(10, 2_500, tags=("t1",)), lambda r: r["tag"] == "t1" and 10 <= r["seq"] <= 2_500),
    ]
    for filters, keeps in cases:
        parts = plan(client, options, [span], filters=filters).parts
        assert read(options, parts).to_pylist() == [row for row in expected if keeps(row)]
    # Times: rows of the tail may come along, and no row that passes is missing.
    for filters in (
        Filters(ts_first=middle),
        Filters(ts_last=middle),
        Filters(ts_first=middle + 1),
    ):
        rows = read(options, plan(client, options, [span], filters=filters).parts).to_pylist()
        passing = [row for row in expected if passes(row, filters)]
        assert [row for row in rows if passes(row, filters)] == passing
        assert all(passes(row, filters) for row in rows if row["seq"] <= 3_000)
    outside = Filters(ts_first=times[-1] + 1)
    assert not any(
        isinstance(one, FileSlice)
        for part in plan(client, options, [span], filters=outside).parts
        for one in part.slices
    )


def passes(row: dict[str, object], filters: Filters) -> bool:
    return filters.ts_first <= int(row["ts"].timestamp() * 1_000 + 0.5) <= filters.ts_last


def test_a_file_that_moved_is_found_again_and_one_that_is_gone_is_told(
    sealing: ServerProcess, client: Client, topic: str
) -> None:
    fill(client, topic, 2_000, size=2_000)
    seal(client, topic)
    options = options_of(sealing.url, topic, columns=("seq",))
    (part,) = plan(client, options, [span_of(client, topic)]).parts
    (one,) = part.slices
    assert isinstance(one, FileSlice)
    moved = msgspec.structs.replace(one.file, location=one.file.location + ".elsewhere")
    lapsed = Pin(topic, "pin_of_before_a_restart", 1)
    stale = ReadPart((msgspec.structs.replace(one, file=moved, pin=lapsed),))
    assert read(options, [stale])["seq"].to_pylist() == list(range(1, 2_001))
    location = Path(one.file.location)
    hidden = location.with_name("hidden")
    os.rename(location, hidden)
    try:
        with pytest.raises(NotReady, match="direct=false"):
            read(options, [part])
    finally:
        os.rename(hidden, location)


def test_files_that_topics_share_are_opened_once_and_closed(
    sealing: ServerProcess, client: Client, topic: str
) -> None:
    """Opening one means to verify its whole index: for each of its topics that would take long."""
    names = [f"{topic}-{n}" for n in range(40)]
    for name in names:
        client.append(name, [1, 2, 3])
    seal(client, names[-1])
    options = msgspec.structs.replace(options_of(sealing.url, ""), topics=(), pattern=f"{topic}-.*")
    spans = [span_of(client, name) for name in names]
    (part,) = plan(client, options, spans).parts
    files = {one.file.location for one in part.slices if isinstance(one, FileSlice)}
    assert 0 < len(files) < len(part.slices)
    seen: list[str] = []

    def look(event: str, args: tuple[object, ...]) -> None:
        if looking and event == "open" and args[0] in files:
            seen.append(str(args[0]))

    before = set(os.listdir("/proc/self/fd"))
    looking = True
    sys.addaudithook(look)
    try:
        found = read(options, [part])
    finally:
        looking = False
    assert found.num_rows == 120 and sorted(seen) == sorted(files)
    assert set(os.listdir("/proc/self/fd")) == before


def test_few_files_are_open_at_a_time(tmp_path: Path) -> None:
    fs = RealFilesystem(tmp_path)
    fs.mkdir("segments")
    block = encode_block(Batch([b"1"]), 9, 1, 5, 5)
    made = seal_blocks(fs, [(9, block, 0, 1)], 1 << 20)
    file = ManifestFile(
        made.file_id, str(tmp_path / made.path), "hot", 1, made.size, made.footer_offset,
        f"{made.footer_hash:016x}", made.owner, 1, 1, 0, 1, 1, 1, 5, 5, 1,
    )  # fmt: skip
    others = []
    for n in range(2 * OPEN_FILES_MAX):
        os.link(file.location, f"{file.location}-{n}")
        others.append(msgspec.structs.replace(file, location=f"{file.location}-{n}"))
    before = len(os.listdir("/proc/self/fd"))
    files = OpenFiles()
    for other in (*others, others[-1]):
        run = run_of(files.get(other), 9)
        assert run is not None and run.count == 1
    assert len(os.listdir("/proc/self/fd")) == before + OPEN_FILES_MAX
    assert files.get(others[-1]) is files.get(others[-1])
    files.close()
    assert len(os.listdir("/proc/self/fd")) == before


def test_looking_again_asks_once_for_a_topic_and_leaves_no_pins(
    start_server: Callable[..., ServerProcess],
) -> None:
    """After a restart of the server every file of a task may be missing; pins are few."""
    server = start_server(manifest_pins_max=2, **SETTINGS)
    with Client(server.url, deadline_ms=0) as client:
        fill(client, "a", 2_000, size=2_000)
        seal(client, "a")
        options = options_of(server.url, "a", columns=("seq",))
        options = msgspec.structs.replace(options, connection=Connection(server.url, None, None, 0))
        made = plan(client, options, [span_of(client, "a")])
        (one,) = made.parts[0].slices
        client.release_pin(*made.pins[0])
        moved = msgspec.structs.replace(one.file, location=one.file.location + ".elsewhere")
        stale = msgspec.structs.replace(one, file=moved)
        cuts = tuple(stale.cut(first, first + 99) for first in range(1, 2_001, 100))
        for _ in range(2):
            assert read(options, [ReadPart(cuts)])["seq"].to_pylist() == list(range(1, 2_001))
        # Nor does a task that is ended before it has read everything.
        batches = read_part(options, shape_of(options, None), ReadPart(cuts))
        next(batches)
        batches.close()
        for _ in range(2):
            client.segments("a")


def test_a_damaged_file_is_noticed(sealing: ServerProcess, client: Client, topic: str) -> None:
    fill(client, topic, 2_000, size=2_000)
    seal(client, topic)
    options = options_of(sealing.url, topic, columns=("seq", "data"))
    (part,) = plan(client, options, [span_of(client, topic)]).parts
    (one,) = part.slices
    assert isinstance(one, FileSlice)
    location = Path(one.file.location)
    content = location.read_bytes()
    index = one.file.footer_offset
    everything = options_of(sealing.url, topic, columns=COLUMNS)
    # The Arrow header of a file is not read, and so it may be anything.
    for at in (index // 4, index // 2, index - 9_000, index, index + 100, len(content) - 1):
        location.write_bytes(content[:at] + bytes([content[at] ^ 1]) + content[at + 1 :])
        what = "damaged in block" if at < index else "damaged footer"
        with pytest.raises(SegmentCorrupt, match=what):
            read(everything, [part])
    location.write_bytes(content)
    assert read(options, [part]).num_rows == 2_000


def test_what_does_not_add_up_is_an_error(tmp_path: Path) -> None:
    """A file without the seqs 4 to 6 is right only if somebody says that they are gone."""
    fs = RealFilesystem(tmp_path)
    fs.mkdir("segments")
    block = encode_block(Batch([b"%d" % n for n in range(1, 11)]), 9, 1, 5, 5)
    meta = seal_blocks(fs, [(9, block, 0, 3), (9, block, 6, 10)], 1 << 20)
    segment = open_segment(fs, meta, BlockCache(0))
    file = ManifestFile(
        1, "", "hot", 1, 0, 0, "0", 9, 1, 7, 0, 7, 1, 10, 5, 5, 70
    )  # fmt: skip

    def seqs(first: int, last: int, dead: list[int], topic_id: int = 9) -> list[int]:
        raw = BitMap64(dead).serialize() if dead else b""
        part = FileSlice(Span("t", 1, first, last), file, topic_id, Pin("t", "p", 1), raw)
        return [seq for one in live_rows(segment, part, {"data"}) for seq in one["seq"].to_pylist()]

    assert seqs(1, 10, [4, 5, 6]) == [1, 2, 3, 7, 8, 9, 10]
    assert seqs(5, 8, [5, 6]) == [7, 8]
    assert seqs(5, 6, [5, 6]) == []
    # A delete after the file was sealed.
    assert seqs(1, 10, [1, 4, 5, 6, 9]) == [2, 3, 7, 8, 10]
    for first, last, dead, topic_id in (
        (1, 10, [], 9),
        (1, 10, [4, 5], 9),
        (6, 7, [], 9),
        (1, 11, [4, 5, 6], 9),
        (1, 3, [], 8),
    ):
        with pytest.raises(DataLost, match="should be"):
            seqs(first, last, dead, topic_id)
    segment.close()


# Losses


def gaps(table: pa.Table) -> list[tuple[int, int, str]]:
    return [tuple(gap.values()) for gap in table["gap"].to_pylist() if gap is not None]


@pytest.mark.parametrize("direct", ["auto", "false"])
def test_trimmed_under_a_running_query(
    sealing: ServerProcess, client: Client, topic: str, direct: str
) -> None:
    """The plan saw records that the server no longer has when it is asked for them."""
    topic = f"{topic}-{direct}"
    client.append(topic, list(range(1_000)))
    span = span_of(client, topic)
    failing = options_of(sealing.url, topic, direct="false")
    (part,) = plan(client, failing, [span]).parts
    assert part.slices == (HttpSlice(span, part.slices[0].bytes),)
    client.put_topic(topic, {"cap_records": 300})
    client.append(topic, [1])
    with pytest.raises(DataLost, match=r"seqs 1 to 701 .*\(cap\)"):
        read(failing, [part])
    lenient = options_of(sealing.url, topic, direct=direct, fail_on_data_loss=False)
    for parts in ([part], plan(client, lenient, [span]).parts):
        table = read(lenient, parts)
        assert gaps(table) == [(1, 701, "cap")]
        seqs = [seq for seq in table["seq"].to_pylist() if seq is not None]
        assert seqs == list(range(702, 1_001))
        assert table["topic"].to_pylist() == [topic] * 300
    inner = span._replace(first=600, last=650)
    assert gaps(read(lenient, plan(client, lenient, [inner]).parts)) == [(600, 650, "cap")]
    if direct == "auto":
        with pytest.raises(DataLost, match=r"seqs 600 to 650 .*\(cap\)"):
            plan(client, options_of(sealing.url, topic), [inner])


def test_a_topic_that_is_recreated_or_deleted_under_a_running_query(
    sealing: ServerProcess, client: Client, topic: str
) -> None:
    client.append(topic, list(range(50)))
    span = span_of(client, topic)
    options = options_of(sealing.url, topic)
    lenient = options_of(sealing.url, topic, fail_on_data_loss=False)
    (one,) = plan(client, options, [span]).parts[0].slices
    # The plan had a file of it, which is gone.
    made = client.segments("sealing")
    pin = Pin(topic, "pin_none", 1)
    missing = msgspec.structs.replace(made.files[0], location="/nowhere/seg.arrow")
    parts = [ReadPart((one,)), ReadPart((FileSlice(span, missing, 1, pin),))]
    client.delete_topic(topic)
    for part in parts:
        with pytest.raises(DataLost, match="the topic was deleted"):
            read(options, [part])
        assert gaps(read(lenient, [part])) == [(1, 50, "deleted")]
    client.append(topic, list(range(100)))
    for part in parts:
        with pytest.raises(DataLost, match="created again"):
            read(options, [part])
        table = read(lenient, [part])
        assert gaps(table) == [(1, 50, "recreated")] and table.num_rows == 1
    beyond = span._replace(epoch=client.topic(topic).epoch or 0, first=90, last=120)
    table = read(lenient, [ReadPart((HttpSlice(beyond),))])
    assert table.num_rows == 12 and gaps(table) == [(101, 120, "recreated")]


def test_known_gaps_are_rows_where_they_are_wanted(sealing: ServerProcess, topic: str) -> None:
    gap = Gap(Span(topic, 1, 5, 9), "crash")
    lenient = options_of(sealing.url, topic, fail_on_data_loss=False)
    assert gaps(read(lenient, [ReadPart((gap,))])) == [(5, 9, "crash")]
    with pytest.raises(DataLost, match="crash"):
        read(options_of(sealing.url, topic), [ReadPart((gap,))])


# Pins and batches


@pytest.mark.parametrize(
    ("pin_ms", "age_ms", "asked"),
    [(600_000, 0, 0), (600_000, -5, 0), (600_000, 300_000, 2), (0, 0, 5)],
)
def test_pins_are_renewed_in_time(
    client: Client, topic: str, pin_ms: int, age_ms: int, asked: int
) -> None:
    """A young plan asks nothing; of two pins the lapsed one is no error, and is asked for once."""
    topic = f"{topic}-{pin_ms}-{age_ms}"
    client.append(topic, [1])
    made = client.segments(topic)
    pins = _Pins(client, [Pin(topic, made.pin, pin_ms), Pin(topic, "pin_none", pin_ms)], age_ms)
    before = requests_of(client)
    for _ in range(4):
        pins.keep()
    assert requests_of(client) - before - 1 == asked
    client.release_pin(topic, made.pin)


def test_small_batches_are_put_together() -> None:
    def batch(size: int) -> pa.RecordBatch:
        return pa.record_batch({"data": pa.array([b"x" * size], pa.binary())})

    small, large = BATCH_BYTES_MIN // 4, BATCH_BYTES_MIN
    sizes = [small, small, large, large, small, small, small, small, small, 0]
    batches = [*map(batch, sizes), batch(0).slice(0, 0)]
    found = [one["data"].to_pylist() for one in gathered(batches)]
    assert [len(rows) for rows in found] == [2, 1, 1, 4, 2]
    assert [len(value) for rows in found for value in rows] == sizes


def test_the_part_of_a_plan_without_parts(sealing: ServerProcess, topic: str) -> None:
    from pyspark.sql.datasource import InputPartition

    options = options_of(sealing.url, topic)
    assert list(read_part(options, shape_of(options, None), InputPartition(None))) == []
