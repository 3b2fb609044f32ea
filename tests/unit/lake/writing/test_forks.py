"""A fork in the lake: what it inherits is there with the rest, from whoever's files."""

from __future__ import annotations

import json
from urllib.request import Request, urlopen

from headrace.lake.tables.tasks import run_inline
from headrace.lake.writing.verify import verify
from headrace.testing.process import ServerProcess
from tests.support.lakes import Bench, accounted, rows_in
from tests.support.sealed_topics import seal

JSON = "application/json"


def stream(server: ServerProcess, method: str, name: str, body: object, **headers: str) -> None:
    """Create a stream, or append to it, with these messages."""
    sent = {"content-type": JSON} | {key.replace("_", "-"): value for key, value in headers.items()}
    data = json.dumps(body).encode()
    request = Request(f"{server.url}/v1/stream/{name}", data, sent, method=method)
    with urlopen(request, timeout=30) as answer:
        assert answer.status in (200, 201, 204)


def numbers(first: int, last: int) -> list[dict[str, int]]:
    return [{"n": number} for number in range(first, last + 1)]


def test_a_fork_is_synced_with_what_it_inherits(
    bench: Bench, server: ServerProcess, topic: str
) -> None:
    source, forked = f"{topic}-source", f"{topic}-fork"
    stream(server, "PUT", source, numbers(1, 1_500))
    seal(bench.client, f"ds:{source}")
    stream(server, "POST", source, numbers(1_501, 1_600))
    stream(server, "PUT", forked, [], stream_forked_from=f"/v1/stream/{source}")
    stream(server, "POST", source, [{"n": -1}])
    stream(server, "POST", forked, numbers(1_601, 1_700))
    seal(bench.client, f"ds:{forked}")
    manifest = bench.client.segments(f"ds:{forked}")
    bench.client.release_pin(f"ds:{forked}", manifest.pin)
    owners = {bench.client.segments(f"ds:{name}").topic_id for name in (source, forked)}
    assert {file.topic_id for file in manifest.files} == owners
    result = bench.sync(f"ds:{forked}")
    assert (result.error, result.watermark, result.rows) == (None, 1_700, 1_700)
    table = bench.table(f"ds:{forked}")
    assert accounted(table) == 1_700
    assert [json.loads(row["data"])["n"] for row in rows_in(table)] == list(range(1, 1_701))
    assert verify(table.fresh(), run_inline, bench.client, bench.connection).ok
