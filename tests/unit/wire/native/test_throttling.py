"""What clients see of a busy server: answers that say so, paced streams, 429 at last."""

from __future__ import annotations

import msgspec
import pyarrow as pa
import pytest

from headrace.core.errors import Throttled
from headrace.engine.scheduling.bands import AGE_CAP_MS
from headrace.engine.scheduling.governor import DEFER_AFTER_MS, RETRY_AFTER_MS
from headrace.metrics.engine import watch_engine
from headrace.wire.exchange import ARROW_STREAM
from headrace.wire.native.dialect import NativeDialect
from headrace.wire.native.routes import topic_routes
from headrace.wire.native.vocabulary import TOPICS
from headrace.wire.routes import RouteTable
from tests.support.exchanges import ListExchange
from tests.support.live_readers import Live, StartLive, record_seqs
from tests.support.websocket_client import Client

MIB = 1 << 20


class Busy:
    """A server whose pressure is what a test says."""

    def __init__(self, live: Live) -> None:
        self.live = live
        routes = [*topic_routes(live.context), *live.api.routes()]
        live.table = RouteTable([NativeDialect(routes)])

    def under(self, pressure: float) -> None:
        """So much pressure, for long enough."""
        for _ in range(DEFER_AFTER_MS // 100 + 2):
            self.live.engine.state.throttle.govern(pressure)
            self.live.wait(100)

    def post(self, topic: str = "t", query: str = "", **body: object) -> ListExchange:
        """Append a record; nothing runs yet."""
        sent = {"records": [{"data": 1}], **body}
        return self.live.ask("POST", f"/v0/topics/{topic}{query}", sent)

    def fill(self) -> None:
        """As much as the log should have to take."""
        for _ in range(self.live.engine.settings.wal_queue_depth_max):
            self.post()


@pytest.fixture
def busy(start: StartLive) -> Busy:
    live = start(wal_queue_depth_max=2)
    live.append("t", 0)
    return Busy(live)


def test_a_healthy_server_says_nothing_of_waiting(busy: Busy) -> None:
    busy.live.engine.put_topic("t", {"durability": "fsync"}).result()
    asked = busy.post()
    busy.live.run()
    assert set(asked.json["performance"]) == {"server_total_ms", "wal_append_ms", "fsync_ms"}
    assert b"throttle" not in asked.reply_headers[b"server-timing"]


def test_throttle_wait_ms_is_reported(busy: Busy) -> None:
    busy.live.engine.put_topic("t", {"durability": "fsync"}).result()
    busy.under(0.5)
    asked = busy.post()
    busy.live.run()
    assert not asked.answered
    busy.live.wait(10)
    assert asked.status == 200
    performance = asked.json["performance"]
    assert 0 < performance["throttle_wait_ms"] <= performance["server_total_ms"]
    assert b"throttle_wait;dur=" in asked.reply_headers[b"server-timing"]


def test_throttle_wait_ms_is_reported_over_a_websocket(busy: Busy) -> None:
    busy.live.engine.put_topic("t", {"durability": "fsync"}).result()
    client = Client(busy.live)
    busy.under(0.5)
    client.send("publish", topic="t", records=[{"data": 1}])
    busy.live.run()
    busy.live.wait(10)
    [ack] = client.read()
    assert ack["performance"]["throttle_wait_ms"] > 0


def test_429_says_when_to_try_again(busy: Busy) -> None:
    busy.under(1.0)
    busy.fill()
    refused = busy.post()
    assert (refused.status, refused.code) == (429, "throttled")
    assert refused.json["error"]["detail"] == {
        "limit": "wal_queue_depth_max",
        "max": 2,
        "retry_after_ms": RETRY_AFTER_MS,
    }
    assert refused.reply_headers[b"retry-after"] == b"1"
    assert set(refused.json["error"]) == {"code", "message", "detail"}
    busy.live.run()
    accepted = busy.post()
    busy.live.run()
    assert accepted.status == 200


def test_disable_backpressure_in_a_body(busy: Busy) -> None:
    busy.under(1.0)
    busy.fill()
    assert busy.post(disable_backpressure=False).status == 429
    accepted = busy.post(disable_backpressure=True)
    busy.live.run()
    assert accepted.status == 200


@pytest.mark.parametrize(
    ("ms", "seconds"), [(0, b"1"), (1, b"1"), (1_000, b"1"), (1_001, b"2"), (2_500, b"3")]
)
def test_the_header_has_whole_seconds_and_is_never_too_early(ms: int, seconds: bytes) -> None:
    refused = Throttled("busy", fix="wait", detail={"retry_after_ms": ms})
    status, body, _, headers = TOPICS.failure(refused)
    assert status == 429 and dict(headers)[b"retry-after"] == seconds
    assert msgspec.json.decode(body)["error"]["detail"]["retry_after_ms"] == ms


def test_a_cap_says_to_try_again_in_a_second(start: StartLive) -> None:
    busy = Busy(start(max_topics=1))
    busy.live.append("t", 0)
    refused = busy.post("another")
    assert (refused.status, refused.reply_headers[b"retry-after"]) == (429, b"1")


@pytest.mark.parametrize("sent", [None, False, True])
def test_disable_backpressure_of_an_arrow_append(busy: Busy, sent: bool | None) -> None:
    sink = pa.BufferOutputStream()
    table = pa.table({"data": ["1"]})
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write(table)
    busy.under(1.0)
    busy.fill()
    query = "" if sent is None else f"?disable_backpressure={str(sent).lower()}"
    body = sink.getvalue().to_pybytes()
    asked = busy.live.ask("POST", f"/v0/topics/t{query}", body, content_type=ARROW_STREAM.decode())
    busy.live.run()
    assert asked.status == (200 if sent else 429)


def test_disable_backpressure_over_a_websocket(busy: Busy, monkeypatch: pytest.MonkeyPatch) -> None:
    # Not at the end of the turn, which comes when the log has written what fills it.
    monkeypatch.setattr("headrace.wire.turn_appends.TURN_BYTES_MAX", 1)
    client = Client(busy.live)
    busy.under(1.0)
    busy.fill()
    client.send("publish", request_id=1, topic="t", records=[{"data": 1}])
    client.send(
        "publish", request_id=2, topic="t", records=[{"data": 1}], disable_backpressure=True
    )
    refused, accepted = sorted(client.read(), key=lambda answer: answer["request_id"])
    assert (refused["op"], refused["code"]) == ("error", "throttled")
    assert refused["retry_after_ms"] == RETRY_AFTER_MS, "there is no header to say it in"
    assert accepted["op"] == "ack"


def test_a_stream_under_pressure_gets_fewer_and_longer_batches(busy: Busy) -> None:
    live = busy.live
    watcher = live.watch("t")
    watcher.events()
    busy.under(0.6)
    for value in range(4):
        live.append("t", value)
    assert watcher.events() == []
    live.wait(20)
    record, caught_up = watcher.events()
    assert record.seqs == [2, 3, 4, 5] and caught_up.event == "caught-up"


def test_a_paced_stream_is_told_so_and_goes_on(busy: Busy) -> None:
    live = busy.live
    live.engine.put_topic("low", {"priority": -1}).result()
    watcher = live.watch("low t")
    before = watcher.events()[-1].cursors
    busy.under(0.9)
    live.append("low", 1)
    live.wait(100)
    busy.under(0.9)
    [told] = watcher.events()
    assert told.event == "error"
    assert told.cursors == before, "nothing was delivered"
    message = told.data.pop("message")
    waiting_ms = told.data.pop("retry_after_ms")
    assert told.data == {"code": "throttled", "status": 429, "topic": "low"}
    assert "later" in message and 0 < waiting_ms <= AGE_CAP_MS
    assert not watcher.outlet.closed
    busy.under(0.0)
    assert record_seqs(watcher.events()) == [1]


def test_a_paced_websocket_is_told_so_and_goes_on(busy: Busy) -> None:
    live = busy.live
    live.engine.put_topic("low", {"priority": -1}).result()
    client = Client(live)
    client.send("subscribe", topic="low")
    client.read()
    busy.under(0.9)
    live.append("low", 1)
    live.wait(100)
    busy.under(0.9)
    [told] = client.read()
    assert (told["op"], told["code"], told["status"], told["topic"]) == (
        "error", "throttled", 429, "low",
    )  # fmt: skip
    busy.under(0.0)
    assert [message["op"] for message in client.read()] == ["record", "caught_up"]


def test_a_stream_that_takes_nothing_is_not_told_either(busy: Busy) -> None:
    live = busy.live
    live.engine.put_topic("low", {"priority": -1}).result()
    watcher = live.watch("low")
    watcher.events()
    watcher.outlet.fill()
    busy.under(0.9)
    live.append("low", 1)
    live.wait(100)
    busy.under(0.9)
    assert watcher.events() == []


def test_catching_up_is_never_held_back(busy: Busy) -> None:
    live = busy.live
    live.engine.put_topic("low", {"priority": -1}).result()
    live.append("low", 1, 2, 3)
    busy.under(1.0)
    assert record_seqs(live.watch("low").events()) == [1, 2, 3]


def test_every_rung_has_its_metrics(busy: Busy) -> None:
    live = busy.live
    watch_engine(live.metrics, live.engine)
    live.engine.put_topic("low", {"priority": -1}).result()
    live.engine.put_topic("sure", {"durability": "fsync"}).result()
    watcher = live.watch("low t")
    watcher.events()
    busy.under(1.0)
    for topic in ("low", "t", "sure"):
        busy.post(topic)
        live.run()
    live.wait(200)
    busy.under(1.0)
    busy.fill()
    busy.post()
    busy.post(disable_backpressure=True)
    text = live.metrics.registry.text()
    lines = dict(line.rsplit(" ", 1) for line in text.splitlines() if line[0] != "#")
    figures = {name: float(value) for name, value in lines.items()}
    assert figures["headrace_pressure"] == 1
    assert figures['headrace_scheduler_ready{band="b0"}'] == 1
    assert figures["headrace_throttle_held"] == 1
    assert figures["headrace_throttle_coalesce_seconds"] == pytest.approx(0.02)
    assert figures["headrace_throttle_window_seconds"] == pytest.approx(0.01)
    assert figures["headrace_throttle_windows_total"] == 1
    assert figures["headrace_throttle_refused_total"] == 1
    assert figures["headrace_throttle_bypassed_total"] == 1
    assert figures["headrace_throttle_coalesced_total"] >= 2
    assert figures["headrace_watch_paced_total"] == 1
    for rung in ("coalesce", "widen", "defer", "shed"):
        assert figures[f'headrace_throttle_rung{{rung="{rung}"}}'] == 1
        assert figures[f'headrace_throttle_entered_total{{rung="{rung}"}}'] == 1
    busy.under(0.0)
    text = live.metrics.registry.text()
    assert 'headrace_throttle_rung{rung="shed"} 0\n' in text
    assert "headrace_throttle_window_seconds 0\n" in text
