"""Files of the cold tier, a directory or an object store, are read where they lie."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from headrace.api.segments import Manifest
from headrace.client import Client
from headrace.core.clock import NS_PER_MS, SystemClock
from headrace.spark.options import SourceOptions
from headrace.spark.reading.columns import shape_of
from headrace.spark.reading.parts import FileSlice
from headrace.spark.reading.planning import plan
from headrace.spark.reading.slices import read_part
from headrace.testing.process import ServerProcess
from tests.support.object_stores import s3_thread
from tests.support.sealed_topics import SETTINGS, fill, options_of, seal, span_of

MOVED_WITHIN_MS = 60_000


@pytest.fixture
def endpoint() -> Iterator[str]:
    with s3_thread() as address:
        yield address


def with_cold_files(client: Client, topic: str) -> Manifest:
    """Three files, the oldest of which have left the hot tier."""
    for first in (1, 2_001, 4_001):
        fill(client, topic, 2_000, first)
        seal(client, topic)
    deadline_ns = SystemClock.monotonic_ns() + MOVED_WITHIN_MS * NS_PER_MS
    while True:
        found = client.segments(topic)
        client.release_pin(topic, found.pin)
        if found.files[0].tier == "cold":
            return found
        assert SystemClock.monotonic_ns() < deadline_ns, "nothing leaves the hot tier"
        client.append("moving", [1])


def seqs_and_tiers(
    options: SourceOptions, client: Client, topic: str
) -> tuple[list[int], set[str]]:
    made = plan(client, options, [span_of(client, topic)])
    shape = shape_of(options, None)
    rows = [seq for part in made.parts for batch in read_part(options, shape, part)
            for seq in batch.column("seq").to_pylist()]  # fmt: skip
    slices = [one for part in made.parts for one in part.slices]
    return rows, {one.file.tier for one in slices if isinstance(one, FileSlice)}


def test_a_directory(start_server: Callable[..., ServerProcess], tmp_path: Path) -> None:
    cold = tmp_path / "cold"
    server = start_server(cold_url=str(cold), hot_retain_segments=1, **SETTINGS)
    with Client(server.url) as client:
        found = with_cold_files(client, "a")
        assert found.files[0].location.startswith(str(cold))
        options = options_of(server.url, "a", columns=("seq", "data"), direct="true")
        assert seqs_and_tiers(options, client, "a") == (list(range(1, 6_001)), {"hot", "cold"})


def test_an_object_store(
    start_server: Callable[..., ServerProcess], endpoint: str, caplog: pytest.LogCaptureFixture
) -> None:
    query = f"endpoint_override={endpoint}&scheme=http&region=us-east-1"
    url = f"s3://key:secret@bucket/tier?{query}&allow_bucket_creation=true"
    server = start_server(cold_url=url, hot_retain_segments=1, **SETTINGS)
    with Client(server.url) as client:
        found = with_cold_files(client, "a")
        assert found.files[0].location.startswith("s3://")
        assert "secret" not in found.files[0].location
        for direct in ("auto", "true"):
            options = options_of(server.url, "a", columns=("seq", "data"), direct=direct)
            assert seqs_and_tiers(options, client, "a") == (list(range(1, 6_001)), {"hot", "cold"})
        assert not [record for record in caplog.records if record.name == "headrace.spark"]
