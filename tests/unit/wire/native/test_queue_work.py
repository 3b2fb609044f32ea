"""Streams of workers and claims, without sockets: slow clients, and clients that go."""

from __future__ import annotations

from typing import Any

from headrace.engine.queues.answers import QueueCounts
from headrace.storage.block import KIND_BYTES, Batch
from headrace.wire.native.queue_work import RETRY_MS, STEP_JOBS_MAX
from headrace.wire.native.queues import queue_routes
from headrace.wire.response_memory import ResponseMemory
from tests.support.exchanges import ListExchange
from tests.support.live_readers import Live, StartLive, Watcher
from tests.support.seqs import job_event_seqs


def make(live: Live, jobs: int = 0, **config: Any) -> None:
    for route in queue_routes(live.engine, live.metrics, ResponseMemory(1 << 30)):
        live.table.add(route, live.table.dialects[0])
    live.engine.put_topic("jobs", {"type": "queue", **config}).result()
    if jobs:
        live.append("jobs", *range(1, jobs + 1))


def work(live: Live, query: str = "") -> Watcher:
    asked = live.ask("GET", f"/v0/topics/jobs/work?node=w{query}")
    assert asked.status == 200, asked.reply
    return Watcher(live, asked)


def call(live: Live, what: str, **body: Any) -> ListExchange:
    asked = live.ask("POST", f"/v0/topics/jobs/{what}", {"node": "w", **body})
    live.run()
    return asked


def job_seqs(worker: Watcher) -> list[int]:
    return job_event_seqs(event for event in worker.events() if event.event == "job")


def counts(live: Live) -> tuple[int, int]:
    found: QueueCounts = live.engine.queues.counts("jobs")
    return found.ready, found.in_flight


def test_a_client_that_reads_nothing_is_leased_nothing(live: Live) -> None:
    make(live)
    worker = work(live, "&max=10")
    worker.outlet.fill()
    live.append("jobs", 1, 2)
    assert job_seqs(worker) == []
    assert counts(live) == (2, 0)
    worker.outlet.drain()
    assert job_seqs(worker) == [1, 2]


def test_another_worker_gets_what_a_slow_one_does_not_take(live: Live) -> None:
    make(live)
    slow, quick = work(live, "&max=10"), work(live, "&max=10")
    live.run()
    slow.outlet.fill()
    live.append("jobs", 1, 2, 3)
    assert (job_seqs(quick), job_seqs(slow)) == ([1, 2, 3], [])


def test_a_client_that_is_stuck_is_told_and_loses_its_jobs(start: StartLive) -> None:
    live = start(slow_consumer_timeout_ms=2_000)
    make(live, 1)
    worker = work(live)
    assert job_seqs(worker) == [1]
    worker.outlet.fill()
    live.wait(3_000)
    assert [event.data["code"] for event in worker.events()] == ["throttled"]
    assert worker.outlet.closed
    assert counts(live) == (1, 0)
    assert live.streams.limits.open == 0


def test_a_worker_with_much_room_is_sent_a_little_at_a_time(live: Live) -> None:
    """What waits in a transport is leased already."""
    make(live, 3 * STEP_JOBS_MAX)
    worker = work(live, "&max=1000")
    assert counts(live)[1] == STEP_JOBS_MAX
    worker.outlet.fill()
    live.run()
    assert counts(live)[1] == STEP_JOBS_MAX
    worker.outlet.drain()
    assert job_seqs(worker) == list(range(1, 3 * STEP_JOBS_MAX + 1))


def test_a_refusal_that_passes_does_not_end_a_stream(start: StartLive) -> None:
    live = start(jobs_out_max=1)
    make(live, 2)
    assert call(live, "claim", node="other").json["count"] == 1
    worker = work(live)
    live.wait(RETRY_MS * 2)
    assert job_seqs(worker) == []
    assert call(live, "ack", node="other", seqs=[1]).json["acked"] == 1
    live.wait(RETRY_MS * 2)
    assert job_seqs(worker) == [2]
    refused = call(live, "claim", node="other")
    assert refused.json["count"] == 0


def test_too_many_jobs_out(start: StartLive) -> None:
    """A queue at its bound is a 429, which names the bound."""
    live = start(jobs_out_max=1)
    make(live, 2)
    call(live, "claim")
    refused = call(live, "claim")
    assert (refused.status, refused.code) == (429, "throttled")
    assert refused.json["error"]["detail"] == {"limit": "jobs_out_max", "max": 1}


def test_a_claim_whose_client_has_gone_leases_nothing(live: Live) -> None:
    make(live, 1, claim_jitter_ms=100)
    asked = live.ask("POST", "/v0/topics/jobs/claim", {"node": "w"})
    assert not asked.answered and asked.on_abort is not None
    asked.on_abort()
    live.wait(200)
    assert counts(live) == (1, 0)
    assert not asked.answered


def test_a_worker_that_goes_while_its_claim_waits_holds_nothing(live: Live) -> None:
    make(live, 1, claim_jitter_ms=100)
    worker = work(live)
    live.run()
    worker.outlet.hang_up()
    live.wait(200)
    assert counts(live) == (1, 0)
    assert (live.streams.limits.open, live.streams.of_kind["sse"]) == (0, 0)


def test_jobs_that_come_while_a_claim_is_under_way_are_not_missed(live: Live) -> None:
    """A claim that has found nothing but dead letters is answered when these have moved."""
    make(live, 1, max_deliveries=1, dead_letter="dead", durability="fsync")
    call(live, "claim")
    call(live, "nack", seqs=[1])
    worker = work(live)
    appended = live.engine.append("jobs", [2])
    assert job_seqs(worker) == [2]
    assert appended.done
    assert live.engine.queues.counts("jobs").dead_lettered == 1


def test_a_lapsed_lease_and_a_heartbeat(start: StartLive) -> None:
    live = start(heartbeat_ms_default=1_000)
    make(live, 1)
    worker = work(live, "&lease_ms=500")
    assert job_seqs(worker) == [1]
    live.wait(520)
    assert [event.data["deliveries"] for event in worker.events()] == [2]
    call(live, "ack", seqs=[1])
    live.wait(1_100)
    assert ": hb " in worker.text()


def test_a_stop_tells_workers(live: Live) -> None:
    make(live, 1)
    worker = work(live)
    assert job_seqs(worker) == [1]
    live.context.drain()
    (event,) = worker.events()
    assert (event.event, event.data["code"]) == ("error", "server_shutting_down")
    assert worker.outlet.closed
    assert counts(live) == (1, 0)
    assert live.streams.of_kind["sse"] == 0


def test_bytes_are_shown_as_base64(live: Live) -> None:
    """A payload that is not JSON: as every read shows it."""
    make(live)
    live.engine.append("jobs", Batch([b"hi"], KIND_BYTES)).result()
    job = call(live, "claim").json["claimed"][0]
    assert (job["data"], job["meta"]) == ("aGk=", {"$encoding": "base64"})
