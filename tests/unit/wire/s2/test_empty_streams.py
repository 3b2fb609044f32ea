"""Streams that go when they are empty: when, and when not (s2 §14)."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from headrace.core.clock import ManualClock
from headrace.core.errors import TopicNotEmpty
from headrace.storage.block import KIND_BYTES, Batch
from headrace.testing.simdisk import SimDisk
from headrace.wire.s2.configs import DeleteOnEmpty, OptionalStreamConfig, RetentionPolicy
from headrace.wire.s2.empty_streams import STALE_MIN
from tests.support.engines import open_engines
from tests.support.s2_catalogs import BASIN, CatalogServer, StartCatalog, after_power_loss


@pytest.fixture
def serve(clock: ManualClock) -> Iterator[StartCatalog]:
    """Start a catalog with a basin: `serve(disk)`."""
    with open_engines(clock) as open_engine:
        yield lambda disk=None: CatalogServer(open_engine(disk), clock)


@pytest.fixture
def server(serve: StartCatalog) -> CatalogServer:
    server = serve()
    server.create_basin()
    return server


def ensure(server: CatalogServer, stream: str, age: int) -> None:
    given = OptionalStreamConfig(delete_on_empty=DeleteOnEmpty(age))
    server.catalog.streams.ensure(BASIN, stream, given).result()


def test_one_that_was_never_written_goes_after_its_age(server: CatalogServer) -> None:
    """§14e: counted from its creation."""
    server.create_stream("goes", min_age_secs=10)
    server.create_stream("stays")
    server.pass_time(9_000)
    assert server.streams() == ["goes", "stays"]
    server.pass_time(2_000)
    assert server.streams() == ["stays"]


def test_one_with_records_stays_until_they_are_gone(server: CatalogServer) -> None:
    """§14e: however long that takes."""
    given = OptionalStreamConfig(delete_on_empty=DeleteOnEmpty(10))
    server.catalog.streams.create(BASIN, "s", given, b"").result()
    server.append("s")
    server.pass_time(60_000)
    assert server.streams() == ["s"]
    # The last record is as old as the default retention lets it be.
    server.pass_time(7 * 86_400_000, step_ms=3_600_000)
    server.pass_time(70_000)
    assert server.streams() == []


def test_a_write_restarts_the_time(server: CatalogServer) -> None:
    given = OptionalStreamConfig(
        retention_policy=RetentionPolicy.of(1), delete_on_empty=DeleteOnEmpty(20)
    )
    server.catalog.streams.create(BASIN, "s", given, b"").result()
    server.pass_time(15_000)
    server.append("s")
    server.pass_time(15_000)
    assert server.streams() == ["s"]
    server.pass_time(30_000)
    assert server.streams() == []


def test_a_change_of_the_age_counts_at_once(server: CatalogServer) -> None:
    server.create_stream("s", min_age_secs=1_000)
    ensure(server, "s", 5)
    server.pass_time(7_000)
    assert server.streams() == []
    server.create_stream("t", min_age_secs=5)
    ensure(server, "t", 0)
    server.pass_time(20_000)
    assert server.streams() == ["t"]


def test_what_is_left_of_an_earlier_stream_does_nothing(server: CatalogServer) -> None:
    server.create_stream("s", min_age_secs=10)
    server.pass_time(5_000)
    server.catalog.streams.delete(BASIN, "s").result()
    server.create_stream("s", min_age_secs=10)
    server.pass_time(8_000)
    assert server.streams() == ["s"]
    server.pass_time(4_000)
    assert server.streams() == []


def test_a_start_goes_on_watching(serve: StartCatalog, disk: SimDisk) -> None:
    first = serve(disk)
    first.create_basin()
    first.create_stream("s", min_age_secs=10)
    second = serve(after_power_loss(disk))
    second.pass_time(12_000)
    assert second.streams() == []


def test_a_record_that_comes_meanwhile_is_not_lost(server: CatalogServer) -> None:
    """A delete of what is empty is refused once a record is on its way to the log."""
    server.create_stream("s", min_age_secs=10)
    name = f"s2:{BASIN}/s"
    appended = server.engine.append(name, Batch([b"x"], KIND_BYTES))
    deleted = server.engine.streams.delete(name, if_empty=True)
    assert appended.result().last_seq == 1
    with pytest.raises(TopicNotEmpty):
        deleted.result()
    assert server.streams() == ["s"]


def test_many_changes_leave_few_entries(server: CatalogServer) -> None:
    server.create_stream("s")
    for _ in range(STALE_MIN * 3):
        ensure(server, "s", 1_000_000)
        ensure(server, "s", 0)
    empty = server.catalog.streams._empty
    assert len(empty) == 0 and len(empty._due) <= STALE_MIN + 1


def test_what_is_deleted_is_watched_no_more(server: CatalogServer) -> None:
    """However long it was to be kept: names come and go without an end."""
    for number in range(STALE_MIN * 3):
        server.create_stream(f"s{number}", min_age_secs=1 << 60)
        server.catalog.streams.delete(BASIN, f"s{number}").result()
    empty = server.catalog.streams._empty
    assert len(empty) == 0 and len(empty._due) <= STALE_MIN + 1


def test_one_that_is_told_to_stay_meanwhile_stays(server: CatalogServer) -> None:
    """The change is on its way to the log when the stream is looked at, and is stored first."""
    server.create_stream("s", min_age_secs=10)
    server.pass_time(9_000)
    changed = server.catalog.streams.ensure(BASIN, "s", None)
    assert not changed.done
    server.pass_time(1_000)
    assert changed.result().own.config.min_age_secs == 0
    server.pass_time(60_000)
    assert server.streams() == ["s"]


def test_one_that_is_created_again_meanwhile_stays(server: CatalogServer) -> None:
    server.create_stream("s", min_age_secs=10)
    server.pass_time(9_000)
    streams, given = server.catalog.streams, OptionalStreamConfig(delete_on_empty=DeleteOnEmpty(10))
    # The delete waits for the change, and the creation for the delete.
    waiting = [
        streams.ensure(BASIN, "s", OptionalStreamConfig(storage_class="standard")),
        streams.delete(BASIN, "s"),
        streams.create(BASIN, "s", given, b""),
    ]
    server.pass_time(1_000)
    for ticket in waiting:
        ticket.result()
    assert server.streams() == ["s"]
    server.pass_time(8_000)
    assert server.streams() == ["s"]
    server.pass_time(4_000)
    assert server.streams() == []
