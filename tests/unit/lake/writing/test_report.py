"""What the server is told of the lake, what retention makes of it, and a server that is deaf."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from headrace.client import Client
from headrace.core.errors import Forbidden, HeadraceError, MethodNotAllowed, NotFound, Unreachable
from headrace.lake.writing import sync
from headrace.lake.writing.watermark_report import report
from headrace.storage.fs import RealFile
from headrace.testing.process import ServerProcess
from tests.support.lakes import Bench, Died, accounted, dies_at, gaps_in, rows_in

KEPT = {"cap_records": 10, "retain_until_archived": True}


def test_retention_waits_for_the_lake(bench: Bench, topic: str) -> None:
    client = bench.client
    client.put_topic(topic, KEPT)
    client.append(topic, list(range(50)))
    assert client.topic(topic).earliest_seq == 1, "nothing of it is in the lake yet"
    result = bench.sync(topic)
    assert (result.error, result.rows, result.gap_seqs) == (None, 50, 0)
    assert (result.reported, result.report_error) == (True, None)
    state = client.topic(topic)
    assert (state.archived_seq, state.earliest_seq, state.overtaken_seq) == (50, 41, 0)
    client.append(topic, list(range(5)))
    assert client.topic(topic).earliest_seq == 46, "what is in the lake may go"
    assert bench.sync(topic).rows == 5
    table = bench.table(topic)
    assert (accounted(table), len(rows_in(table)), gaps_in(table)) == (55, 55, [])


@pytest.mark.parametrize("step", ["looked again", "committed"])
def test_retention_waits_for_a_writer_that_died(bench: Bench, topic: str, step: str) -> None:
    """Until somebody tells the server, whoever that is, and whether there is anything new."""
    client = bench.client
    client.put_topic(topic, KEPT)
    client.append(topic, list(range(50)))
    with pytest.raises(Died):
        bench.sync(topic, at=dies_at(step))
    client.append(topic, list(range(5)))
    state = client.topic(topic)
    assert (state.archived_seq, state.earliest_seq) == (0, 1)
    if step == "committed":
        client.delete_records(topic, before_seq=51)  # there is nothing new but what is deleted
    assert bench.sync(topic).reported
    assert client.topic(topic).archived_seq == 55
    table = bench.table(topic)
    assert (accounted(table), len(rows_in(table))) == (55, 55)


def test_a_sync_with_nothing_new_tells_it_too(bench: Bench, topic: str) -> None:
    bench.client.append(topic, [1, 2, 3])
    with pytest.raises(Died):
        bench.sync(topic, at=dies_at("committed"))
    assert bench.client.topic(topic).archived_seq == 0
    result = bench.sync(topic)
    assert (result.commits, result.reported) == (0, True)
    assert bench.client.topic(topic).archived_seq == 3


def test_nothing_is_told_that_a_power_loss_could_take(
    bench: Bench, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The commits of both tables are durable: those of gaps first, the report last."""
    happened: list[str] = []
    sync_file: Callable[[RealFile], None] = RealFile.sync
    told: Callable[..., bool] = report

    def synced(file: RealFile) -> None:
        sync_file(file)
        if file.path.endswith(".json"):
            happened.append(file.path)

    def reported(*how: Any) -> bool:
        happened.append("told")
        return told(*how)

    monkeypatch.setattr(RealFile, "sync", synced)
    monkeypatch.setattr(sync, "report", reported)
    bench.client.append(topic, [1, 2, 3])
    bench.client.delete_records(topic, before_seq=2)
    bench.sync(topic)
    name = bench.table(topic).name
    gaps = happened.index(f"{name}.gaps/_delta_log/{1:020d}.json")
    rows = happened.index(f"{name}/_delta_log/{1:020d}.json")
    assert gaps < rows < happened.index("told")

    bench.client.append(topic, [4])
    with pytest.raises(Died):
        bench.sync(topic, at=dies_at("looked again"))
    bench.client.delete_records(topic, before_seq=5)
    with pytest.raises(Died):
        bench.sync(topic, at=dies_at("committed"))
    happened.clear()
    assert bench.sync(topic).commits == 0  # whoever committed may have died before it was durable
    assert happened.index(f"{name}/_delta_log/{2:020d}.json") < happened.index("told")
    assert f"{name}.gaps/_delta_log/{2:020d}.json" in happened
    happened.clear()
    assert bench.sync(topic).reported
    assert happened == [], "it is known"


class Deaf:
    """A client whose server does not take reports."""

    def __init__(self, error: HeadraceError) -> None:
        self._error = error

    def archived(self, topic: str, epoch: int, to_seq: int) -> None:
        raise self._error


def test_a_server_that_is_too_old_is_no_fault() -> None:
    for error in (NotFound("no such route"), MethodNotAllowed("not this")):
        assert not report(Deaf(error), "a", 7, 120)  # type: ignore[arg-type]
    for fault in (Unreachable("nobody is there"), Forbidden("not with this key")):
        with pytest.raises(type(fault)):
            report(Deaf(fault), "a", 7, 120)  # type: ignore[arg-type]


def test_a_topic_that_is_another_is_not_told(bench: Bench, topic: str) -> None:
    client = bench.client
    client.append(topic, [1, 2])
    epoch = client.topic(topic).epoch or 0
    assert not report(client, topic, epoch + 1, 2)
    assert not report(client, f"{topic}-gone", epoch, 2)
    with pytest.raises(HeadraceError, match="the head of"):
        report(client, topic, epoch, 3)


def test_a_sync_that_is_not_heard_says_so(
    bench: Bench, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(client: Client, name: str, epoch: int, to_seq: int) -> bool:
        raise Unreachable("nobody is there")

    bench.client.append(topic, [1])
    with monkeypatch.context() as patched:
        patched.setattr(sync, "report", fails)
        result = bench.sync(topic)
    assert (result.error, result.rows) == (None, 1)
    assert (result.reported, result.report_error) == (False, "nobody is there")
    again = bench.sync(topic)
    assert (again.reported, again.report_error) == (True, None)
    assert accounted(bench.table(topic)) == 1


def test_a_key_that_may_not_tell(tmp_path_factory: pytest.TempPathFactory, bench: Bench) -> None:
    place = tmp_path_factory.mktemp("keys")
    with (
        ServerProcess(place, api_keys="root-key,reader:rw") as server,
        Client(server.url, token="root-key") as root,
        Client(server.url, token="reader") as reader,
    ):
        root.append("orders", [1, 2])
        other = Bench(server, reader, bench.lake, token="reader")
        result = other.sync("orders")
        assert (result.watermark, result.reported) == (2, False)
        assert "scope" in (result.report_error or "")


def test_many_topics_go_in_rounds(
    bench: Bench, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sync, "ROUND_TOPICS_MAX", 2)
    names = [f"{topic}-{n}" for n in range(5)]
    for name in names:
        bench.client.append(name, [1])
    results = bench.writer().run(names)
    assert [(result.topic, result.watermark) for result in results] == [(n, 1) for n in names]
