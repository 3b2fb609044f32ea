"""Hostile clients of every kind at once: others are served as ever, memory is bounded, all ends.

How much slower the others become is measured, not asserted (`./run bench http_hostile`).
"""

from __future__ import annotations

import contextlib
import http.client
import json
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from headrace.testing.process import ServerProcess
from tests.support.hostile_clients import Crowd, Target
from tests.support.hostile_kinds import KINDS
from tests.support.processes import resident_bytes

# Of memory beside what metrics say is held: in all, and for each client, whose connection has
# tables and buffers.
UNTOLD_BYTES_MAX = 64 << 20
UNTOLD_OF_CLIENT_BYTES_MAX = 256 << 10
PATIENCE_SECONDS = 60.0
BASIN = {"s2-basin": "well-behaved"}
JSON = {"content-type": "application/json"}
TEXT = {"content-type": "text/plain"}
# What the hostile ones must have let go of when they have left.
LET_GO = (
    'headrace_watch_connections{kind="sse"}',
    'headrace_watch_connections{kind="ws"}',
    'headrace_watch_connections{kind="session"}',
    'headrace_watch_connections{kind="longpoll"}',
    "headrace_sse_connections",
)


class WellBehaved:
    """A client of all three dialects: each call is answered as if nobody else were there."""

    def __init__(self, server: ServerProcess) -> None:
        self._place = server.host, server.port
        self._connection = http.client.HTTPConnection(*self._place, timeout=PATIENCE_SECONDS)
        self.appended = 0
        self.call("POST", "/v1/basins", {"basin": "well-behaved"})
        self.call("POST", "/v1/streams", {"stream": "s"}, BASIN)
        self.call("PUT", "/v1/stream/well-behaved", None, TEXT)

    def close(self) -> None:
        self._connection.close()

    def call(
        self, method: str, path: str, body: object = None, headers: dict[str, str] | None = None
    ) -> bytes:
        """Make a call, once; it is not refused."""
        sent = body if isinstance(body, bytes | None) else json.dumps(body).encode()
        kind = JSON if body is not None else {}
        self._connection.request(method, path, sent, {**kind, **(headers or {})})
        answer = self._connection.getresponse()
        content = answer.read()
        assert answer.status < 300, (method, path, answer.status, content)
        return content

    def round(self) -> None:
        """Append and read in each dialect, make and delete of each sort, and look at all of it."""
        number = self.appended
        self.appended += 1
        topic, stream, records = (
            "/v0/topics/mine",
            "/v1/stream/well-behaved",
            "/v1/streams/s/records",
        )
        appended = json.loads(self.call("POST", topic, {"records": [{"data": number}]}))
        assert appended["last_seq"] == number + 1
        diff = json.loads(self.call("POST", topic + "/diff", {"from_seq": number}))
        assert [record["data"] for record in diff["records"]] == [number]
        self.call("POST", stream, b"%06d;" % number, TEXT)
        assert self.call("GET", stream + "?offset=-1").endswith(b"%06d;" % number)
        written = {"records": [{"body": str(number)}]}
        ack = json.loads(self.call("POST", records, written, BASIN))
        assert ack["start"]["seq_num"] == number
        read = json.loads(self.call("GET", f"{records}?seq_num={number}&count=1", None, BASIN))
        assert [record["body"] for record in read["records"]] == [str(number)]
        self.call("PUT", f"/v1/stream/fork-{number}", None, {"Stream-Forked-From": stream})
        self.call("DELETE", f"/v1/stream/fork-{number}")
        wakes = {"type": "pull-wake", "streams": ["well-behaved"], "wake_stream": "wakes"}
        subscription = f"/v1/stream/__ds/subscriptions/mine-{number}"
        self.call("PUT", subscription, wakes)
        self.call("DELETE", subscription)
        self._watch(number)

    def _watch(self, number: int) -> None:
        """See a record over SSE."""
        watch = {"topics": {"mine": {"from_seq": number}}}
        wid = json.loads(self.call("POST", "/v0/watch", watch))["wid"]
        with contextlib.closing(
            http.client.HTTPConnection(*self._place, timeout=PATIENCE_SECONDS)
        ) as stream:
            stream.request("GET", f"/v0/watch/{wid}")
            answer = stream.getresponse()
            assert answer.status == 200, answer.read()
            while (line := answer.readline()) != b"event: record\n":
                assert line, "the stream was closed"
            assert b'"data":%d' % number in answer.readline()
            answer.close()

    def metrics(self) -> dict[str, float]:
        lines = self.call("GET", "/v0/metrics").decode().splitlines()
        pairs = (line.rsplit(" ", 1) for line in lines if not line.startswith("#"))
        return {name: float(value) for name, value in pairs}

    def told_bytes(self) -> int:
        """What the server says that it holds: each kind of it has its own bound."""
        held = (v for name, v in self.metrics().items() if name.startswith("headrace_held_bytes{"))
        return int(sum(held))

    def wait(self, condition: Callable[[dict[str, float]], bool]) -> None:
        """Wait until the metrics say so."""
        deadline = time.monotonic() + PATIENCE_SECONDS
        while not condition(found := self.metrics()):
            assert time.monotonic() < deadline, {name: found[name] for name in LET_GO}
            time.sleep(0.05)


def attacked(directory: Path, count: int, rate: float, rounds: int) -> None:
    """Serve the well-behaved beside all kinds of hostile clients."""
    settings = {"ds_webhook_loopback": "true", "ds_durability": "disk", "s2_durability": "disk"}
    with (
        ServerProcess(directory, log="error", **settings) as server,
        contextlib.closing(WellBehaved(server)) as good,
    ):
        hostile = [kind(Target(server.port), count) for kind in KINDS.values()]
        crowd = Crowd(hostile, rate)
        crowd.begin()
        good.round()
        before, largest = resident_bytes(server.process.pid) - good.told_bytes(), 0
        with crowd:
            while good.appended < rounds or not all(kind.steps for kind in hostile):
                good.round()
                told = good.told_bytes()
                largest = max(largest, resident_bytes(server.process.pid) - told - before)
                assert not crowd.failures
        assert not crowd.problems()
        # Only the one that asks is left.
        good.wait(lambda found: found["headrace_http_connections"] == 1)
        good.wait(lambda found: not any(found[name] for name in LET_GO))
        good.round()
        untold = UNTOLD_BYTES_MAX + count * len(hostile) * UNTOLD_OF_CLIENT_BYTES_MAX
        assert largest <= untold, f"{largest / 2**20:.0f} MiB that nobody tells of"


def test_a_few_of_every_kind_at_once(tmp_path: Path) -> None:
    attacked(tmp_path, count=2, rate=2.0, rounds=4)


@pytest.mark.slow
@pytest.mark.timeout(180)
def test_many_of_every_kind_at_once(tmp_path: Path) -> None:
    attacked(tmp_path, count=30, rate=10.0, rounds=30)
