"""What the server is told, and what becomes of a server that is not there to hear it."""

from __future__ import annotations

import pytest

from headrace.client import Client
from headrace.client.message import Response
from headrace.core.errors import HeadraceError
from headrace.lake import sync
from headrace.lake.report import report
from tests.unit.lake.lakes import Bench, accounted


class Asked:
    """A client that answers with a status, and remembers what it was asked."""

    def __init__(self, status: int) -> None:
        self._status = status
        self.seen: list[tuple[str, str, bytes]] = []

    def request(self, method: str, target: str, *, headers: object, body: bytes) -> Response:
        self.seen.append((method, target, body))
        return Response(self._status, {}, b'{"error":{"code":"internal","message":"no"}}', True)


def test_the_watermark_is_told() -> None:
    asked = Asked(200)
    assert report(asked, "a/b", 7, 120)  # type: ignore[arg-type]
    assert asked.seen == [("POST", "/v0/topics/a%2Fb/archived", b'{"epoch":7,"to_seq":120}')]
    for status in (404, 405):
        assert not report(Asked(status), "a", 7, 120)  # type: ignore[arg-type]
    with pytest.raises(HeadraceError):
        report(Asked(500), "a", 7, 120)  # type: ignore[arg-type]


def test_a_sync_does_not_need_to_be_heard(
    bench: Bench, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(client: Client, name: str, epoch: int, to_seq: int) -> bool:
        raise HeadraceError("nobody is there")

    monkeypatch.setattr(sync, "report", fails)
    bench.client.append(topic, [1])
    result = bench.sync(topic)
    assert (result.error, result.rows) == (None, 1)
    assert bench.sync(topic).error is None
    assert accounted(bench.table(topic)) == 1


def test_many_topics_go_in_rounds(
    bench: Bench, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sync, "ROUND_TOPICS_MAX", 2)
    names = [f"{topic}-{n}" for n in range(5)]
    for name in names:
        bench.client.append(name, [1])
    results = bench.writer().run(names)
    assert [(result.topic, result.watermark) for result in results] == [(n, 1) for n in names]
