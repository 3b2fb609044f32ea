"""The catalog of the S2 API: what is kept, what a start finds, what is refused (s2 §4)."""

from __future__ import annotations

import errno
from collections.abc import Iterator

import pytest

from headrace.core.clock import ManualClock
from headrace.core.errors import ConfigError, UnsupportedFormat
from headrace.core.runtime import Ticket
from headrace.storage.block import Batch
from headrace.testing.faultfs import Fault, FaultFilesystem, FaultPlan
from headrace.testing.simdisk import SimDisk
from headrace.wire.s2.catalog.entries import ENCODER, Basin, Token
from headrace.wire.s2.catalog.records import TOPIC
from headrace.wire.s2.catalog.streams import PORTION
from headrace.wire.s2.configs import BasinConfig, OptionalStreamConfig, StreamConfig
from headrace.wire.s2.errors import S2Refusal
from headrace.wire.s2.token_scopes import TokenScope
from tests.support.engines import open_engines
from tests.support.s2_catalogs import BASIN, CatalogServer, StartCatalog, after_power_loss


@pytest.fixture
def serve(clock: ManualClock) -> Iterator[StartCatalog]:
    """Start a catalog: `serve(disk, **settings)`."""
    with open_engines(clock) as open_engine:
        yield lambda disk=None, **settings: CatalogServer(open_engine(disk, **settings), clock)


@pytest.fixture
def server(serve: StartCatalog) -> CatalogServer:
    """A catalog with a basin."""
    server = serve()
    server.create_basin()
    return server


def refused(ticket: object, code: str) -> None:
    with pytest.raises(S2Refusal) as refusal:
        ticket.result()  # type: ignore[attr-defined]
    assert refusal.value.code == code


def token(id: str, **fields: object) -> Token:
    return Token(id, "", TokenScope(ops=["read"]), **fields)  # type: ignore[arg-type]


def test_what_was_answered_is_there_after_a_power_loss(serve: StartCatalog, disk: SimDisk) -> None:
    """§4e: basins, streams, tokens and the default location."""
    first = serve(disk, s2_locations="here,there")
    first.create_basin("kept-basin", create_stream_on_append=True)
    first.create_basin("gone-basin")
    first.catalog.delete_basin("gone-basin").result()
    handed_out = first.catalog.issue(token("t", expires_ms=1_900_000_000_000)).result()
    first.catalog.set_default_location("there").result()
    first.create_stream("s", "kept-basin")
    first.run()
    second = serve(after_power_loss(disk), s2_locations="here,there")
    assert second.failures == [None]
    assert second.basins() == ["kept-basin"]
    assert second.catalog.basin("kept-basin").config.create_stream_on_append
    assert second.streams("kept-basin") == ["s"]
    assert second.catalog.default_location == "there"
    kept = second.catalog.tokens.find("t")
    assert kept is not None and handed_out not in repr(kept)
    assert kept.expires_ms == 1_900_000_000_000


def test_each_entry_has_one_record(server: CatalogServer) -> None:
    """The topic does not grow with changes, and what is gone leaves none."""
    for size in range(5):
        default = OptionalStreamConfig(storage_class=f"c{size}")
        server.catalog.ensure_basin(BASIN, BasinConfig(default), None).result()
    assert server.engine.topic(TOPIC).count == 1
    server.catalog.issue(token("t")).result()
    server.catalog.revoke("t").result()
    server.catalog.delete_basin(BASIN).result()
    server.run()
    assert server.engine.topic(TOPIC).count == 0


def test_of_two_records_of_a_key_the_newer_counts(serve: StartCatalog, disk: SimDisk) -> None:
    """A crash between the append and the delete of what was before leaves two."""
    first = serve(disk)
    first.create_basin()
    kept = first.catalog.basin(BASIN)
    newer = Basin(BASIN, kept.created_ms, BasinConfig(create_stream_on_read=True), "local")
    batch = Batch([ENCODER.encode(newer)], tags=[newer.key])
    first.engine.append(TOPIC, batch).result()
    second = serve(after_power_loss(disk))
    assert second.catalog.basin(BASIN) == newer
    assert second.engine.topic(TOPIC).count == 1


class FillingDisk:
    """A disk in memory whose log takes so many more writes, and then has no room."""

    def __init__(self) -> None:
        self.room: int | None = None
        self.disk = SimDisk()
        plan = FaultPlan(Fault("pwritev", 1, "call", forever=True, hook=self._strike))
        self.fs = FaultFilesystem(self.disk, plan)

    def _strike(self, _operation: str, _path: str) -> None:
        if self.room is not None:
            self.room -= 1
            if self.room < 0:
                raise OSError(errno.ENOSPC, "no space left on the device")


def test_what_is_on_disk_is_in_force_whatever_comes_behind_it(serve: StartCatalog) -> None:
    """A basin would be used on, and be deleted by the next start with all that was stored in it."""
    filling = FillingDisk()
    first = serve(filling.fs)
    first.create_basin()
    first.create_stream("s")
    filling.room = 1  # for the entry, and not for what takes the older one away
    first.catalog.delete_basin(BASIN)
    first.run()
    filling.room = None
    refused(first.catalog.streams.ensure(BASIN, "new", None), "basin_deletion_pending")
    first.pass_time(30_000)
    assert first.basins() == []
    assert serve(after_power_loss(filling.disk)).basins() == []


@pytest.mark.parametrize(
    "record", [b"{", b'{"kind":"pool","name":"x"}', b'{"kind":"default_location","name":"x"}']
)
def test_what_cannot_be_read_stops_the_api(
    serve: StartCatalog, disk: SimDisk, record: bytes
) -> None:
    first = serve(disk)
    first.create_basin()
    first.engine.append(TOPIC, Batch([record], tags=["default_locatio"])).result()
    second = serve(after_power_loss(disk))
    (failure,) = second.failures
    assert isinstance(failure, UnsupportedFormat) and TOPIC in str(failure)
    assert not second.catalog.loaded
    second.pass_time(5_000)
    again: list[BaseException | None] = []
    second.catalog.when_ready(again.append)
    assert again == [failure]
    assert str(failure) in second.catalog.problem


def test_a_repeated_creation_is_known_by_its_key(server: CatalogServer) -> None:
    create = server.catalog.create_basin
    assert create("other-basin", BasinConfig(), None, "k").result().result == "created"
    assert create("other-basin", BasinConfig(), None, "k").result().result == "noop"
    refused(create("other-basin", BasinConfig(), None, "l"), "resource_already_exists")
    refused(create("other-basin", BasinConfig(), None, ""), "resource_already_exists")
    refused(create(BASIN, BasinConfig(), None, ""), "resource_already_exists")
    changed = BasinConfig(create_stream_on_append=True)
    assert server.catalog.ensure_basin("other-basin", changed, None).result().result == "updated"
    assert server.catalog.ensure_basin("other-basin", changed, None).result().result == "noop"
    assert create("other-basin", BasinConfig(), None, "k").result().result == "noop"


def test_a_basin_never_moves(server: CatalogServer) -> None:
    create = server.catalog.create_basin("other-basin", BasinConfig(), "aws:us-east-1", "")
    assert create.result().basin.location == "aws:us-east-1"
    ensure = server.catalog.ensure_basin
    refused(ensure("other-basin", BasinConfig(), "elsewhere"), "invalid")
    assert ensure("other-basin", BasinConfig(), "aws:us-east-1").result().result == "noop"


def test_a_deleted_basin_takes_nothing_and_goes_with_its_streams(server: CatalogServer) -> None:
    """§14d: its name is free again after that."""
    for number in range(600):
        server.create_stream(f"s{number}")
    catalog = server.catalog
    catalog.delete_basin(BASIN).result()
    assert catalog.find_basin(BASIN).deleted_ms
    with pytest.raises(S2Refusal, match="is being deleted"):
        catalog.basin(BASIN)
    refused(catalog.streams.create(BASIN, "new", None, b""), "basin_deletion_pending")
    refused(catalog.create_basin(BASIN, BasinConfig(), None, ""), "basin_deletion_pending")
    refused(catalog.ensure_basin(BASIN, BasinConfig(), None), "basin_deletion_pending")
    server.run()
    assert server.basins() == [] and server.engine.topics("s2:") == []
    refused(catalog.delete_basin(BASIN), "basin_not_found")
    server.create_basin()
    assert server.streams() == []


def test_a_start_goes_on_with_the_delete_of_a_basin(serve: StartCatalog, disk: SimDisk) -> None:
    """§14d: with what a stop interrupted."""
    first = serve(disk)
    first.create_basin()
    for number in range(PORTION + 3):
        first.create_stream(f"s{number}")
    first.catalog.delete_basin(BASIN).result()
    assert first.streams(), "they are deleted in portions"
    second = serve(after_power_loss(disk))
    assert second.basins() == [] and second.engine.topics("s2:") == []
    assert second.engine.topic(TOPIC).count == 0


def test_a_creation_in_flight_does_not_outlive_its_basin(server: CatalogServer) -> None:
    creating = server.catalog.streams.create(BASIN, "late", None, b"")
    deleting = server.catalog.delete_basin(BASIN)
    assert creating.result().result == "created"
    deleting.result()
    server.run()
    assert server.basins() == [] and server.engine.topics("s2:") == []


def test_streams_are_created_once_by_whoever_comes_first(serve: StartCatalog) -> None:
    """§4f, §18a: and as that one asks for."""
    server = serve()
    server.create_basin(create_stream_on_append=True)
    open_for = server.catalog.open_for
    header = b'{"retention_policy":{"age":%d}}'
    asked = [open_for("append", BASIN, "s", header % age) for age in (10, 20, 30)]
    for opened in asked:
        assert isinstance(opened, Ticket)
        assert opened.result().own.config.retention_secs == 10
    with pytest.raises(S2Refusal, match="not found"):
        open_for("read", BASIN, "other", None)
    with pytest.raises(S2Refusal) as refusal:
        open_for("append", BASIN, "bad", b'{"retention_policy":{"age":0}}')
    assert refusal.value.code == "bad_header" and server.streams() == ["s"]


def test_two_changes_at_once_both_count(server: CatalogServer) -> None:
    server.create_stream("s")

    def aged(current: StreamConfig, _basin: Basin) -> StreamConfig:
        return StreamConfig(current.storage_class, 60, current.mode, current.uncapped)

    def uncapped(current: StreamConfig, _basin: Basin) -> StreamConfig:
        return StreamConfig(current.storage_class, current.retention_secs, current.mode, True)

    change = server.catalog.streams.change
    tickets = [change(BASIN, "s", aged), change(BASIN, "s", uncapped)]
    assert [ticket.result().result for ticket in tickets] == ["updated", "updated"]
    opened = server.catalog.stream(BASIN, "s")
    assert (opened.own.config.retention_secs, opened.own.config.uncapped) == (60, True)
    assert opened.info.config.ttl_ms == 60_000


def test_a_stream_that_is_being_deleted_is_pending(server: CatalogServer) -> None:
    """§14c: until its delete is on disk."""
    server.create_stream("s")
    streams = server.catalog.streams
    deleting = [streams.delete(BASIN, "s"), streams.delete(BASIN, "s")]
    with pytest.raises(S2Refusal) as refusal:
        server.catalog.stream(BASIN, "s")
    assert refusal.value.code == "stream_deletion_pending"
    provisioned = [
        streams.create(BASIN, "s", None, b""),
        streams.ensure(BASIN, "s", None),
        streams.change(BASIN, "s", lambda config, _basin: config),
    ]
    for change in provisioned:
        assert change.done, "it is told at once"
        refused(change, "stream_deletion_pending")
    assert not any(ticket.done for ticket in deleting)
    for ticket in deleting:
        ticket.result()
    refused(streams.delete(BASIN, "s"), "stream_not_found")
    assert streams.create(BASIN, "s", None, b"").result().result == "created"


def test_a_stream_that_is_being_deleted_is_not_created_by_its_use(server: CatalogServer) -> None:
    """§14c: not where a basin creates streams, either."""
    server.create_basin("creating", create_stream_on_append=True)
    catalog = server.catalog
    catalog.streams.create("creating", "s", None, b"").result()
    deleting = catalog.streams.delete("creating", "s")
    with pytest.raises(S2Refusal, match="is being deleted"):
        catalog.open_for("append", "creating", "s", None)
    deleting.result()
    opened = catalog.open_for("append", "creating", "s", None)
    assert isinstance(opened, Ticket)
    opened.result()


def test_basins_and_tokens_are_counted(serve: StartCatalog) -> None:
    server = serve(s2_basins_max=2, s2_tokens_max=1)
    server.create_basin("basin-one")
    server.create_basin("basin-two")
    refused(server.catalog.create_basin("basin-3rd", BasinConfig(), None, ""), "quota_exhausted")
    server.catalog.issue(token("a")).result()
    refused(server.catalog.issue(token("b")), "quota_exhausted")
    refused(server.catalog.issue(token("a")), "resource_already_exists")


def test_tokens_that_have_expired_are_forgotten(serve: StartCatalog, clock: ManualClock) -> None:
    server = serve(s2_tokens_max=1)
    server.catalog.issue(token("a", expires_ms=clock.wall_ms() + 5_000)).result()
    server.pass_time(4_000)
    assert server.catalog.tokens.find("a") is not None
    server.pass_time(120_000)
    assert server.catalog.tokens.find("a") is None
    assert server.engine.topic(TOPIC).count == 0


@pytest.mark.parametrize("locations", ["", " , ", "a b"])
def test_locations_have_to_be_names(serve: StartCatalog, locations: str) -> None:
    with pytest.raises(ConfigError, match="s2_locations"):
        serve(s2_locations=locations)
