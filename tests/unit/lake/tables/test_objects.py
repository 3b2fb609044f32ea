"""A lake in an object store: the same commits, without a jar or a directory."""

from __future__ import annotations

import pytest

from headrace.core.errors import ConfigError, NotReady
from headrace.lake.loading.replay import Wanted, replay
from headrace.lake.serving.lake_archive import ServedLake
from headrace.lake.serving.range_reader import RangeReader
from headrace.lake.tables.commits import history
from headrace.lake.tables.layout import Lake
from headrace.lake.tables.table import Table
from headrace.lake.tables.tasks import run_inline
from headrace.lake.writing.compact import compact
from headrace.lake.writing.vacuum import vacuum
from headrace.lake.writing.verify import verify
from headrace.storage.archive import ArchivedTopic
from headrace.testing.process import ServerProcess
from tests.support.lakes import Bench, Died, dies_at
from tests.support.object_stores import BUCKET
from tests.support.sealed_topics import fill


@pytest.fixture
def remote(
    bench: Bench,
    server: ServerProcess,
    endpoint: str,
    topic: str,
    monkeypatch: pytest.MonkeyPatch,
) -> Bench:
    """The same bench with a lake of objects."""
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    query = f"endpoint_override={endpoint}&scheme=http&region=us-east-1"
    return Bench(server, bench.client, Lake(f"s3://key:secret@{BUCKET}/some/{topic}?{query}"))


def test_all_of_it(remote: Bench, topic: str) -> None:
    client = remote.client
    fill(client, topic, 1_000)
    client.delete_records(topic, match="t4")
    assert remote.sync(topic).error is None
    fill(client, topic, 100, 1_001)
    with pytest.raises(Died):
        remote.sync(topic, at=dies_at("looked again"))
    assert remote.sync(topic).error is None
    (name,) = remote.lake.tables()
    table = Table(remote.lake, name)
    assert "secret" not in repr(remote.lake)
    found = verify(table, run_inline, client, remote.connection)
    assert (found.ok, found.watermark, found.files) == (True, 1_100, 2)
    assert compact(table, run_inline) is not None
    assert verify(table.fresh(), run_inline, client, remote.connection).ok
    assert len(vacuum(table.fresh(), 0).files) == 3, "two that are put together, and an orphan"
    assert verify(table.fresh(), run_inline).ok
    done = replay(table.fresh(), Wanted(f"{topic}-2"), remote.connection, run_inline)
    assert done.rows == client.topic(f"{topic}-2").count == found.rows
    assert [one.what for one in history(table.fresh())][-2:] == ["sync", "create table"]


def test_a_store_that_cannot_be_used_is_the_lakes() -> None:
    """Nothing of a cold tier, which is another place."""
    query = "endpoint_override=127.0.0.1:9&scheme=http&region=us-east-1"
    with pytest.raises(NotReady, match=r"^the lake did not answer") as caught:
        Lake(f"s3://key:secret@{BUCKET}/p?{query}").tables()
    assert caught.value.detail["reason"] == "lake_unreachable"
    with pytest.raises(ConfigError, match=r"^the lake .* cannot be used") as refused:
        Lake(f"s3://key:secret@{BUCKET}/p?nonsense=1").store()
    assert refused.value.detail["setting"] == "HEADRACE_LAKE"
    for error in (caught.value, refused.value):
        assert "cold" not in str(error) + repr(error.detail)
        assert "secret" not in str(error) + repr(error.detail)


def test_of_two_writers_one_loses(remote: Bench, topic: str) -> None:
    remote.client.append(topic, [1, 2, 3])

    def at(step: str) -> None:
        if step == "looked again":
            assert remote.sync(topic).error is None

    assert remote.sync(topic, at=at).code == "lake_conflict"
    (name,) = remote.lake.tables()
    assert verify(Table(remote.lake, name), run_inline).ok


def test_a_server_reads_ranges_of_it(remote: Bench, topic: str) -> None:
    fill(remote.client, topic, 100)
    remote.client.delete_records(topic, before_seq=11)
    assert remote.sync(topic).error is None
    table = remote.table(topic)
    parts = list(
        RangeReader(ServedLake(remote.lake.root)).parts(ArchivedTopic(*table.identity), 5, 90)
    )
    assert (parts[0].first, parts[-1].last) == (5, 90)
    rows = [seq for part in parts if part.rows for seq in part.rows.column("seq").to_pylist()]
    assert rows == list(range(11, 91))
