"""Plans: every seq of a span is in exactly one place, and parts are of about the same size."""

from __future__ import annotations

import os
import pickle
from base64 import b64encode
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyroaring import BitMap64

from headrace.api.segments import Floors, Manifest, ManifestFile
from headrace.client import Client
from headrace.core.errors import Forbidden, NotFound, NotReady, Throttled, TopicNotFound
from headrace.spark.options import Position
from headrace.spark.read_failures import DataLost
from headrace.spark.reading.locations import split_url
from headrace.spark.reading.manifests import slices_of
from headrace.spark.reading.parts import FileSlice, Gap, HttpSlice, Pin, Slice
from headrace.spark.reading.planning import PART_BYTES_MAX, PART_BYTES_MIN, parts_of, plan
from headrace.spark.reading.pushdown import Filters
from headrace.spark.reading.spans import Span
from headrace.spark.reading.topics import topic_heads
from headrace.storage.seq_ranges import ranges_of
from headrace.testing.process import ServerProcess
from tests.support.sealed_topics import SETTINGS, fill, options_of, seal, span_of

NO_FLOORS = Floors(0, 0, 0, 0, 0)


def file_of(first: int, last: int, **more: object) -> ManifestFile:
    found = ManifestFile(
        file_id=first, location="/none", tier="hot", format=1, size=1, footer_offset=0, hash="0",
        owner=1, topics=1, rows=1, first_row=0, row_count=last - first + 1, first_seq=first,
        last_seq=last, min_ts=first, max_ts=last, bytes=100 * (last - first + 1),
    )  # fmt: skip
    return msgspec.structs.replace(found, **more)


def manifest_of(head: int, files: list[ManifestFile], tail: int, **more: object) -> Manifest:
    made = Manifest("t", 1, 7, head, 1, tail, NO_FLOORS, [], files, "pin", 1_000, 0, [], None)
    return msgspec.structs.replace(made, **more)


@st.composite
def manifests(draw: st.DrawFn) -> tuple[Manifest, set[int], set[int]]:
    """A topic as the server may describe it, with the seqs that are lost, and that are deleted."""
    head = draw(st.integers(1, 60))
    floor = draw(st.integers(0, head))
    tail = draw(st.integers(floor + 1, head + 1))
    seqs = st.sets(st.integers(1, head))
    crashed = {seq for seq in draw(seqs) if seq > floor}
    deleted = {seq for seq in draw(seqs) if seq > floor and seq not in crashed}
    base = floor
    while base + 1 in crashed | deleted:
        base += 1
    tail = max(tail, base + 1)
    live = [seq for seq in range(base + 1, tail) if seq not in crashed | deleted]
    cuts = sorted(draw(st.sets(st.integers(1, 60))))
    chunks: dict[int, list[int]] = {}
    for seq in live:
        chunks.setdefault(sum(cut <= seq for cut in cuts), []).append(seq)
    files = [file_of(chunk[0], chunk[-1]) for chunk in chunks.values()]
    told = sorted(seq for seq in deleted if base < seq < tail)
    as_bitmap = draw(st.booleans())
    made = manifest_of(
        head,
        files,
        tail,
        earliest_seq=base + 1,
        floors=Floors(floor, 0, 0, 0, base),
        gaps=list(ranges_of(sorted(crashed))),
        deletes=None if as_bitmap else list(ranges_of(told)),
        deletes_bitmap=b64encode(BitMap64(told).serialize()).decode() if as_bitmap else None,
    )
    return made, {*range(1, floor + 1), *crashed}, deleted


@given(manifests(), st.integers(1, 60), st.integers(1, 60), st.booleans())
def test_every_seq_is_read_or_lost_or_deleted(
    described: tuple[Manifest, set[int], set[int]], a: int, b: int, direct: bool
) -> None:
    made, lost, deleted = described
    span = Span("t", 7, min(a, b, made.head_seq), min(max(a, b), made.head_seq))
    seen: list[int] = []
    for one in slices_of(made, span, lambda _file: direct):
        seqs = range(one.span.first, one.span.last + 1)
        if isinstance(one, FileSlice):
            dead = BitMap64.deserialize(one.dead) if one.dead else BitMap64()
            assert set(dead) <= set(seqs)
            assert one.span.last < made.tail_from_seq and direct
            assert one.span.last <= one.file.last_seq
            assert len(seqs) > len(dead)
            seen += [seq for seq in seqs if seq not in dead]
        elif isinstance(one, HttpSlice):
            assert not direct or one.span.first >= made.tail_from_seq
            assert not set(seqs) & lost
            seen += [seq for seq in seqs if seq not in deleted]
        else:
            assert set(seqs) <= lost
            seen += seqs
    expected = set(range(span.first, span.last + 1)) - (deleted - lost)
    assert sorted(seen) == sorted(expected)


def test_live_records_that_no_file_has_are_not_taken_for_deleted_ones() -> None:
    made = manifest_of(10, [file_of(1, 5)], 11)
    with pytest.raises(DataLost, match="seqs 6 to 10"):
        slices_of(made, Span("t", 7, 1, 10), lambda _file: True)


def test_files_of_another_time_are_left_out() -> None:
    made = manifest_of(30, [file_of(1, 10), file_of(11, 20), file_of(21, 30)], 31)
    filters = Filters(ts_first=12, ts_last=15)
    found = slices_of(made, Span("t", 7, 1, 30), lambda _file: True, filters)
    assert [one.span[2:] for one in found] == [(11, 20)]


# Parts


def slice_of(first: int, last: int, size: int, topic: str = "t") -> FileSlice:
    pin = Pin(topic, "p", 1_000)
    return FileSlice(Span(topic, 7, first, last), file_of(first, last), 1, pin, b"", size)


def ranges(parts: list[tuple[Slice, ...]]) -> list[list[tuple[int, int]]]:
    return [[(one.span.first, one.span.last) for one in part] for part in parts]


def test_large_files_are_cut_and_small_ones_put_together() -> None:
    large = parts_of([slice_of(1, 1_000, 10 * PART_BYTES_MAX)], None, 2)
    assert len(large) == 11  # opening a file counts, too
    assert max(one.bytes for part in large for one in part) <= PART_BYTES_MAX
    flat = [seqs for part in ranges(large) for seqs in part]
    assert flat[0][0] == 1 and flat[-1][1] == 1_000
    assert all(a[1] + 1 == b[0] for a, b in pairwise(flat))
    small = [slice_of(n * 10 + 1, n * 10 + 10, 1_000) for n in range(20)]
    assert ranges(parts_of(small, None, 8)) == [[(n * 10 + 1, n * 10 + 10) for n in range(20)]]


def test_as_many_parts_as_processors_unless_they_would_be_tiny() -> None:
    slices = [slice_of(1, 800, 8 * PART_BYTES_MIN)]
    assert len(parts_of(slices, None, 4)) == 4
    assert len(parts_of(slices, None, 100)) == 8
    assert len(parts_of(slices, 100, 4)) == 100
    assert parts_of([], None, 4) == []
    assert len(parts_of([slice_of(1, 3, 300)], 10, 4)) == 3  # no part without a seq
    assert len(parts_of([Gap(Span("t", 7, 1, 9), "cap")], 5, 4)) == 1


@given(
    st.lists(st.tuples(st.integers(1, 50), st.integers(0, 300 << 20)), max_size=12),
    st.one_of(st.none(), st.integers(1, 40)),
)
def test_parts_have_every_seq_once_and_in_order(
    sizes: list[tuple[int, int]], wanted: int | None
) -> None:
    slices, at = [], 1
    for count, size in sizes:
        slices.append(slice_of(at, at + count - 1, size))
        at += count
    flat = [seqs for part in ranges(parts_of(slices, wanted, 4)) for seqs in part]
    assert [seq for a, b in flat for seq in range(a, b + 1)] == list(range(1, at))
    assert all(a <= b for a, b in flat)


def test_a_cut_takes_its_deletes_along() -> None:
    whole = msgspec.structs.replace(slice_of(1, 100, 1_000), dead=BitMap64([5, 60]).serialize())
    first, second, third = whole.cut(1, 50), whole.cut(51, 90), whole.cut(91, 100)
    assert set(BitMap64.deserialize(first.dead)) == {5}
    assert set(BitMap64.deserialize(second.dead)) == {60}
    assert third.dead == b"" and third.bytes == 100
    assert pickle.loads(pickle.dumps(first)) == first


def test_objects_are_found_without_the_secrets_of_the_server() -> None:
    location = "s3://***@bucket/a/segments/b/segments/seg-1.arrow?region=x&endpoint_override=h:1"
    root, path = split_url(location)
    assert root == "s3://bucket/a/segments/b?region=x&endpoint_override=h:1"
    assert path == "segments/seg-1.arrow"


# With a server


@pytest.fixture
def client(sealing: ServerProcess) -> Iterator[Client]:
    with Client(sealing.url) as found:
        yield found


def test_files_are_read_directly_and_the_tail_over_http(
    sealing: ServerProcess, client: Client, topic: str
) -> None:
    fill(client, topic, 3_000)
    seal(client, topic)
    span = span_of(client, topic)
    made = plan(client, options_of(sealing.url, topic), [span])
    (part,) = made.parts
    assert all(isinstance(one, FileSlice) for one in part.slices)
    assert [(pin.topic, pin.pin) for pin in part.pins] == made.pins
    client.release_pin(*made.pins[0])
    over_http = plan(client, options_of(sealing.url, topic, direct="false"), [span])
    assert over_http.pins == []
    assert [type(one) for part in over_http.parts for one in part.slices] == [HttpSlice]
    small = plan(client, options_of(sealing.url, topic), [span], http_rows_max=3_000)
    assert small.pins == [] and isinstance(small.parts[0].slices[0], HttpSlice)
    narrow = plan(client, options_of(sealing.url, topic), [span], filters=Filters(5, 9))
    assert narrow.parts[0].slices[0].span[2:] == (5, 9)
    client.release_pin(*narrow.pins[0])
    nothing = plan(client, options_of(sealing.url, topic), [span], filters=Filters(9, 5))
    assert nothing == ([], [])


def test_files_that_cannot_be_opened_here(
    sealing: ServerProcess, client: Client, topic: str, caplog: pytest.LogCaptureFixture
) -> None:
    fill(client, topic, 2_000, size=2_000)
    seal(client, topic)
    location = Path(client.segments(topic).files[0].location)
    hidden = location.with_name("hidden")
    os.rename(location, hidden)
    try:
        made = plan(client, options_of(sealing.url, topic), [span_of(client, topic)])
        assert [type(one) for one in made.parts[0].slices] == [HttpSlice]
        assert made.pins == []
        assert caplog.text.count("read over HTTP") == 1
        with pytest.raises(NotReady, match="direct=false"):
            plan(client, options_of(sealing.url, topic, direct="true"), [span_of(client, topic)])
    finally:
        os.rename(hidden, location)


def test_a_plan_that_fails_keeps_no_pins(start_server: Callable[..., ServerProcess]) -> None:
    server = start_server(manifest_pins_max=1, **SETTINGS)
    with Client(server.url, deadline_ms=0) as client:
        fill(client, "a", 2_000)
        seal(client, "a")
        span = span_of(client, "a")
        recreated = span._replace(epoch=span.epoch + 1)
        for _ in range(2):
            with pytest.raises(DataLost, match="recreated") as raised:
                plan(client, options_of(server.url, "a"), [recreated])
        expected = {"topic": "a", "first": 1, "last": 2_000, "reason": "recreated"}
        assert raised.value.detail == expected
        assert "failOnDataLoss" in str(raised.value)
        made = plan(client, options_of(server.url, "a"), [span])
        with pytest.raises(Throttled):
            client.segments("a")
        client.release_pin(*made.pins[0])


@pytest.mark.parametrize("direct", ["true", "false"])
def test_the_earliest_record_is_the_one_when_the_plan_is_made(
    sealing: ServerProcess, client: Client, topic: str, direct: str
) -> None:
    """A cap at work between the question where a topic begins and the plan is no loss."""
    topic = f"{topic}-{direct}"
    fill(client, topic, 70_000, size=10_000)
    seal(client, topic)
    for starting, told in (
        (Position("earliest"), ()),
        (Position(seqs={topic: -2}), ()),
        (Position(ts_ms=0), ()),
        (Position(ts_by_topic={topic: 0}), ()),
        (Position(seqs={topic: 1}), ("cap",)),
    ):
        options = options_of(
            sealing.url, topic, direct=direct, starting=starting, fail_on_data_loss=False
        )
        spans = [span_of(client, topic)]
        client.put_topic(topic, {"cap_records": 69_000})
        client.append(topic, [1])
        made = plan(client, options, spans, floating=True)
        slices = [one for part in made.parts for one in part.slices]
        assert tuple(one.reason for one in slices if isinstance(one, Gap)) == told
        left = [one.span for one in slices if not isinstance(one, Gap)]
        assert left[0].first == client.topic(topic).earliest_seq and left[-1].last == spans[0].last
        # A batch of a stream has to have what its offsets say.
        fixed = plan(client, options, spans)
        assert isinstance(fixed.parts[0].slices[0], Gap)
        for pin in made.pins + fixed.pins:
            client.release_pin(*pin)


def test_topics_that_changed_are_losses(sealing: ServerProcess, client: Client, topic: str) -> None:
    client.append(topic, [1, 2, 3])
    span = span_of(client, topic)
    told = options_of(sealing.url, topic, fail_on_data_loss=False)
    for direct in ("auto", "false"):
        how = msgspec.structs.replace(told, direct=direct)
        (part,) = plan(client, how, [span._replace(epoch=0, last=70_000)]).parts
        assert part.slices == (Gap(span._replace(epoch=0, last=70_000), "recreated"),)
    (part,) = plan(client, told, [span._replace(last=5)]).parts
    assert part.slices[1:] == (Gap(span._replace(first=4, last=5), "recreated"),)
    gone = span._replace(topic="never-there")
    assert plan(client, told, [gone]).parts[0].slices == (Gap(gone, "deleted"),)
    with pytest.raises(DataLost, match="deleted"):
        plan(client, options_of(sealing.url, topic), [gone])


def test_a_long_span_over_http_tells_what_is_lost_once(
    sealing: ServerProcess, client: Client, topic: str
) -> None:
    client.put_topic(topic, {"cap_records": 80_000})
    fill(client, topic, 100_000, size=10_000)
    span = span_of(client, topic)
    told = options_of(sealing.url, topic, direct="false", fail_on_data_loss=False, min_partitions=4)
    made = plan(client, told, [span])
    flat = [one for part in made.parts for one in part.slices]
    assert flat[0] == Gap(span._replace(last=20_000), "cap")
    assert len(made.parts) == 4
    assert flat[1].span.first == 20_001


def test_a_key_with_prefixes_reads_over_http(start_server: Callable[..., ServerProcess]) -> None:
    server = start_server(api_keys="root,tenant::tenant-", **SETTINGS)
    with Client(server.url, token="root") as root, Client(server.url, token="tenant") as tenant:
        fill(root, "tenant-a", 2_000, size=2_000)
        seal(root, "tenant-a")
        root.append("other", [1])
        span = span_of(root, "tenant-a")
        made = plan(tenant, options_of(server.url, "tenant-a"), [span, span])
        assert [type(one) for one in made.parts[0].slices] == [HttpSlice, HttpSlice]
        with pytest.raises(Forbidden, match="direct=auto"):
            plan(tenant, options_of(server.url, "tenant-a", direct="true"), [span])
        everything = msgspec.structs.replace(options_of(server.url, ""), topics=(), pattern=".*")
        assert list(topic_heads(tenant, everything)) == ["tenant-a"]
        with pytest.raises(Forbidden):
            topic_heads(tenant, options_of(server.url, "other"))


def test_which_topics(sealing: ServerProcess, client: Client, topic: str) -> None:
    names = [f"{topic}-{n}" for n in range(3)]
    for name in names:
        client.append(name, [1, 2])
    options = options_of(sealing.url, topic)
    found = topic_heads(client, msgspec.structs.replace(options, topics=tuple(names[:2])))
    assert list(found) == names[:2]
    state = client.topic(names[0])
    assert found[names[0]] == (names[0], state.epoch, 1, 2, 1, False)
    pattern = msgspec.structs.replace(options, topics=(), pattern=f"{topic}-[12]")
    assert topic_heads(client, pattern) == {
        name: (name, client.topic(name).epoch, 1, 2, 1, False) for name in names[1:]
    }
    half = msgspec.structs.replace(options, topics=(), pattern=f"{topic}-")
    assert topic_heads(client, half) == {}  # whole names only
    # Rows that a sink keeps aside until they are published are not read as if they were.
    client.append(f"{names[0]}.staged-7", [1])
    everything = msgspec.structs.replace(options, topics=(), pattern=f"{topic}.*")
    assert list(topic_heads(client, everything)) == names
    by_name = msgspec.structs.replace(options, topics=(f"{names[0]}.staged-7", f"{topic}-9"))
    assert list(topic_heads(client, by_name, missing_ok=True)) == [f"{names[0]}.staged-7"]
    with pytest.raises(TopicNotFound, match=f"did you mean '{topic}-1'"):
        topic_heads(client, msgspec.structs.replace(options, topics=(f"{topic}-1x",)))


def test_a_pin_that_was_given_back_is_gone(client: Client, topic: str) -> None:
    client.append(topic, [1])
    made = client.segments(topic)
    client.release_pin(topic, made.pin)
    with pytest.raises(NotFound):
        client.renew_pin(topic, made.pin)
