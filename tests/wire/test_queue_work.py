"""Jobs that are pushed: `GET /v0/topics/{topic}/work` (native §9.6)."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.support.seqs import job_event_seqs
from tests.support.wire_queues import claim, counts, make, until, work

# A stream that is not woken would hear of jobs at its next heartbeat, too late for any test.
SETTINGS = {"heartbeat_ms_default": 60_000, "stream_pending_bytes": 65_536}
SHUTDOWN_SECONDS_MAX = 5


def jobs(stream, count: int) -> list:
    return [stream.next("job") for _ in range(count)]


def ack(speak, path: str, *jobs: int, node: str = "w"):
    return speak.ok("POST", f"{path}/ack", {"node": node, "seqs": list(jobs)})


# Refusals


def test_the_order_of_refusals(speak, topic) -> None:
    """§9: Accept 406, the query 400, the topic 404, 409."""
    path = f"/v0/topics/{topic}"
    speak.refused(406, "not_acceptable", "GET", f"{path}/work", accept="application/json")
    for query in ("", "?node=", "?max=2", f"?node={'n' * 129}", "?node=w&max=x", "?node=w&max=-1"):
        speak.refused(400, "invalid_request", "GET", f"{path}/work{query}")
    for query in ("&lease_ms=x", "&lease_ms=", "&max=1.5", "&max="):
        speak.refused(400, "invalid_request", "GET", work(path, query=query))
    assert speak.refused(404, "topic_not_found", "GET", work(path)) == {"topic": topic}
    speak.refused(404, "topic_not_found", "GET", path)
    speak.append(topic, 1)
    assert speak.refused(409, "not_a_queue", "GET", work(path)) == {"topic": topic}


@pytest.mark.parametrize("accept", ["*/*", "text/event-stream", "text/html, */*;q=0.1"])
def test_what_is_accepted(speak, topic, accept) -> None:
    """§7.2."""
    path = make(speak, topic)
    with speak.stream(work(path), accept=accept) as stream:
        assert stream.status == 200


def test_head_opens_no_stream(speak, topic) -> None:
    """§0: GET routes also answer HEAD."""
    path = make(speak, topic, 1)
    reply = speak("HEAD", work(path))
    assert (reply.status, reply.headers["content-type"]) == (200, "text/event-stream")
    assert counts(speak, topic) == (1, 0, 0)


def test_web_pages_of_other_sites(speak, topic) -> None:
    """Without keys no page of another origin may change anything: it would lease the jobs."""
    path = work(make(speak, topic, 1))
    own = f"http://{speak.server.address}"
    for headers in (
        {"origin": "http://evil.example"},
        {"origin": "null"},
        {"sec_fetch_site": "cross-site"},
        {"sec_fetch_site": "same-site"},
    ):
        speak.refused(403, "forbidden", "GET", path, **headers)
    assert counts(speak, topic) == (1, 0, 0)
    for headers in ({"origin": own}, {"sec_fetch_site": "same-origin"}, {"sec_fetch_site": "none"}):
        with speak.stream(path, **headers) as stream:
            assert stream.next("job").data["$seq"] == 1
        until(speak, topic, (1, 0, 0))


def test_web_pages_that_may(speak_to, topic) -> None:
    """HEADRACE_CORS_ORIGINS."""
    speak = speak_to(cors_origins="http://app.example")
    path = work(make(speak, topic, 1))
    with speak.stream(path, origin="http://app.example", sec_fetch_site="cross-site") as stream:
        assert stream.headers["access-control-allow-origin"] == "http://app.example"
        assert stream.next("job").data["$seq"] == 1
    speak.refused(403, "forbidden", "GET", path, origin="http://evil.example")


# Jobs


def test_the_frames(speak, topic) -> None:
    """§9.6: the headers of a watch, `retry: 2000`, then the literal `event: job`, `id: <seq>`."""
    path = make(speak, topic)
    record = {"data": {"a": 1}, "tag": "t", "node": "n", "meta": {"m": 1}}
    speak.ok("POST", path, {"records": [record]})
    with speak.stream(work(path, query="&lease_ms=60000")) as stream:
        assert stream.status == 200
        assert stream.headers["content-type"] == "text/event-stream"
        assert stream.headers["cache-control"] == "no-store"
        assert stream.headers["x-accel-buffering"] == "no"
        retry, job = stream.until("job")
        assert retry.text == "retry: 2000"
        assert "event: job" in job.text.split("\n") and "id: 1" in job.text.split("\n")
        assert f'"topic":"{topic}"' in job.text and '"$seq":1' in job.text
        assert job.data.keys() == {
            "topic", "$seq", "lease_id", "deadline", "$ts", "$tag", "deliveries", "data", "meta",
        }  # fmt: skip
        assert job.data["data"] == {"a": 1} and job.data["deliveries"] == 1
        body = {"node": "w", "seqs": [1], "lease_ids": [job.data["lease_id"]]}
        assert speak.ok("POST", f"{path}/ack", body)["acked"] == 1


def test_line_breaks_in_a_payload_do_not_break_a_frame(speak, topic) -> None:
    path = make(speak, topic)
    body = b'{"records":[{"data":{\n"a":\r\n1}}]}'
    speak("POST", path, body, {"content-type": "application/json"})
    with speak.stream(work(path)) as stream:
        assert stream.next("job").data["data"] == {"a": 1}


def test_an_ack_is_followed_by_the_next_job(speak, topic) -> None:
    """§9.6: the ack itself wakes the stream; at most one job at a time by default."""
    path = make(speak, topic, 20)
    with speak.stream(work(path)) as stream:
        for seq in range(1, 21):
            assert job_event_seqs(jobs(stream, 1)) == [seq]
            answer = ack(speak, path, seq)
            assert (answer["acked"], answer["in_flight"]) == (1, 0)
    assert counts(speak, topic) == (0, 0, 0)


def test_it_holds_no_more_than_max(speak, topic) -> None:
    """H15."""
    path = make(speak, topic, 10)
    with speak.stream(work(path, query="&max=3")) as stream:
        assert job_event_seqs(jobs(stream, 3)) == [1, 2, 3]
        assert counts(speak, topic) == (7, 3, 0)
        ack(speak, path, 1, 3)
        assert job_event_seqs(jobs(stream, 2)) == [4, 5]
        assert counts(speak, topic) == (5, 3, 0)
        speak.ok("POST", f"{path}/nack", {"node": "w", "seqs": [2], "delay_ms": 60_000})
        assert job_event_seqs(jobs(stream, 1)) == [6]


@pytest.mark.parametrize(("most", "held"), [("0", 1), ("5000", 1_000), ("007", 7)])
def test_bounds_of_max(speak, topic, most, held) -> None:
    """§1.8, §9.1: 0 is 1, more than 1000 is 1000."""
    path = make(speak, topic, 1_010)
    with speak.stream(work(path, query=f"&max={most}")) as stream:
        assert job_event_seqs(jobs(stream, held)) == list(range(1, held + 1))
        assert counts(speak, topic) == (1_010 - held, held, 0)


def test_appends_are_pushed(speak, topic) -> None:
    """§9.6: refilled by appends."""
    path = make(speak, topic)
    with speak.stream(work(path, query="&max=10")) as stream:
        assert stream.next("retry")
        for n in range(1, 6):
            speak.append(topic, n)
            assert job_event_seqs(jobs(stream, 1)) == [n]


def test_what_comes_back_is_pushed(speak, topic) -> None:
    """A nack of another worker, and a lease of its own that ran out."""
    path = make(speak, topic, 1)
    claim(speak, path, node="other")
    with speak.stream(work(path, query="&lease_ms=100")) as stream:
        speak.ok("POST", f"{path}/nack", {"node": "other", "seqs": [1]})
        found = jobs(stream, 3)
        assert job_event_seqs(found) == [1, 1, 1]
        assert [event.data["deliveries"] for event in found] == [2, 3, 4]
        assert len({event.data["lease_id"] for event in found}) == 3


def test_a_deleted_job_makes_room(speak, topic) -> None:
    """H18: at the latest when the worker acknowledges it."""
    path = make(speak, topic, 2)
    with speak.stream(work(path)) as stream:
        assert job_event_seqs(jobs(stream, 1)) == [1]
        speak.ok("POST", f"{path}/delete", {"before_seq": 2})
        assert ack(speak, path, 1)["skipped"] == [1]
        assert job_event_seqs(jobs(stream, 1)) == [2]


def test_two_workers_share(speak, topic) -> None:
    """H5: no job goes to both."""
    path = make(speak, topic)
    with speak.stream(work(path, "a")) as one, speak.stream(work(path, "b")) as other:
        one.next("retry")
        other.next("retry")
        speak.append(topic, 1, 2)
        first, second = one.next("job").data, other.next("job").data
        assert {first["$seq"], second["$seq"]} == {1, 2}
        assert counts(speak, topic) == (0, 2, 0)


def test_many_workers_do_each_job_once(speak, topic) -> None:
    """H5: jobs that are acknowledged in time are delivered once, whoever gets them."""
    path = make(speak, topic, 200)
    done: list[int] = []

    def serve(node: str) -> None:
        with speak.stream(work(path, node, "&max=3")) as stream:
            for event in stream.events():
                if event.event == "job":
                    assert event.data["deliveries"] == 1
                    assert ack(speak, path, event.data["$seq"], node=node)["acked"] == 1
                    done.append(event.data["$seq"])
                elif event.event == "error":
                    return

    with ThreadPoolExecutor(4) as pool:
        served = [pool.submit(serve, f"w{n}") for n in range(4)]
        until(speak, topic, (0, 0, 0))
        speak.ok("DELETE", path)
        for each in served:
            each.result()
    assert sorted(done) == list(range(1, 201))


def test_a_large_backlog_of_large_jobs(speak, topic) -> None:
    """More than may wait in a connection: all of it comes, in order, as it is read."""
    path = make(speak, topic)
    for _ in range(4):
        speak.append(topic, *["x" * 20_000] * 25)
    with speak.stream(work(path, query="&max=100")) as stream:
        assert job_event_seqs(jobs(stream, 100)) == list(range(1, 101))


# The end


def test_a_disconnect_releases_at_once(speak, topic) -> None:
    """§9.6, H15: ready and in_flight are back; only its own leases."""
    path = make(speak, topic, 5)
    claim(speak, path, 1, "other", lease_ms=600_000)
    with speak.stream(work(path, query="&max=2&lease_ms=600000")) as stream:
        assert job_event_seqs(jobs(stream, 2)) == [2, 3]
        claim(speak, path, 1, "w", lease_ms=600_000)
        assert counts(speak, topic) == (1, 4, 0)
    until(speak, topic, (3, 2, 0))
    again = claim(speak, path, 9, "next")["claimed"]
    assert [(job["$seq"], job["deliveries"]) for job in again] == [(2, 2), (3, 2), (5, 1)]


def test_a_disconnect_feeds_the_others(speak, topic) -> None:
    path = make(speak, topic, 1)
    with speak.stream(work(path, "a")) as one, speak.stream(work(path, "b", "&max=5")) as other:
        assert job_event_seqs(jobs(one, 1)) == [1]
        with speak.stream(work(path, "c")) as idle:
            idle.next("retry")
        speak.append(topic, 2)
        assert job_event_seqs(jobs(other, 1)) == [2]
    with speak.stream(work(path, "b")) as other:
        assert [event.data["deliveries"] for event in jobs(other, 1)] == [2]


def test_the_topic_is_gone(speak, topic) -> None:
    """§9.6: `{code:409,error,topic}`, then the end; also of a worker that is full."""
    path = make(speak, topic, 3)
    with speak.stream(work(path, "full")) as full, speak.stream(work(path, "w", "&max=9")) as free:
        full.next("job")
        free.next("job")
        speak.ok("DELETE", path)
        for stream in (full, free):
            error = stream.next("error").data
            assert (error["code"], error["error"], error["topic"]) == (
                409, "topic_not_found", topic,
            )  # fmt: skip
            assert list(stream.events()) == []


def test_another_topic_of_the_same_name_has_its_own_workers(speak, topic) -> None:
    path = make(speak, topic, 1)
    with speak.stream(work(path)) as stream:
        stream.next("job")
        speak.ok("DELETE", path)
        make(speak, topic, 1)
        assert stream.next("error").data["code"] == 409
    assert counts(speak, topic) == (1, 0, 0)


def test_a_heartbeat(speak_to, topic) -> None:
    """§9.6: a comment when there is nothing to say; not fixed at 15 s, but a setting."""
    speak = speak_to(heartbeat_ms_default=1_000)
    path = make(speak, topic)
    with speak.stream(work(path)) as stream:
        for _ in range(2):
            assert stream.next("comment").text.startswith(": hb ")


def test_a_deleted_job_makes_room_by_itself(speak_to, topic) -> None:
    """H18: with the next heartbeat, whatever the worker does."""
    speak = speak_to(heartbeat_ms_default=1_000)
    path = make(speak, topic, 2)
    with speak.stream(work(path)) as stream:
        assert job_event_seqs(jobs(stream, 1)) == [1]
        speak.ok("POST", f"{path}/delete", {"before_seq": 2})
        assert job_event_seqs(jobs(stream, 1)) == [2]


def test_a_shutdown(servers, protocol, tmp_path) -> None:
    """§7.6: `server_shutting_down`, then the end, in less than 5 s; leases are released."""
    server = servers.start(data=tmp_path)
    speak = servers.speaker(server, protocol)
    path = make(speak, "jobs", 2, leases_durable=True)
    with speak.stream(work(path, query="&lease_ms=600000")) as stream:
        stream.next("job")
        server.process.terminate()
        error = stream.next("error")
        assert error.data["code"] == "server_shutting_down" and error.data["message"]
        assert list(stream.events()) == []
    assert server.process.wait(SHUTDOWN_SECONDS_MAX) == 0
    again = servers.speaker(servers.start(data=tmp_path), protocol)
    assert counts(again, "jobs") == (2, 0, 0)
    assert [job["deliveries"] for job in claim(again, path, 2)["claimed"]] == [2, 1]


def test_boxes(speak, topic) -> None:
    """The older words."""
    make(speak, topic, 1)
    path = f"/v0/boxes/{topic}"
    with speak.stream(work(path)) as stream:
        job = stream.next("job").data
        assert job["box"] == topic and "topic" not in job
        speak.ok("DELETE", path)
        error = stream.next("error").data
        assert (error["error"], error["box"]) == ("box_not_found", topic)
    speak.refused(404, "box_not_found", "GET", work(path))


# Caps


def test_the_cap_of_streams(speak_to) -> None:
    """§1.9: watch, work and ws together; exactly N; the slot is free when a stream ends."""
    speak = speak_to(max_sse_connections=2)
    path = make(speak, f"jobs-{speak.name}", 1)
    watch = {"topics": {f"jobs-{speak.name}": {}}}
    url = speak.ok("POST", "/v0/watch", watch)["stream_url"]
    with speak.stream(work(path, "a")) as first:
        first.next("job")
        with speak.stream(url) as watched:
            watched.next("retry")
            assert speak.refused(429, "throttled", "GET", work(path, "b")) == {}
        deadline = time.monotonic() + 5
        while speak("HEAD", work(path, "b")).status == 200 and time.monotonic() < deadline:
            with speak.stream(work(path, "b")) as second:
                if second.status == 200:
                    second.next("retry")
                    break
            time.sleep(0.02)
        else:
            raise AssertionError("no slot was given back")
        assert counts(speak, f"jobs-{speak.name}") == (0, 1, 0)


def test_the_404_and_409_come_before_the_cap(speak_to) -> None:
    """§9: caps are the last."""
    speak = speak_to(max_sse_connections=1)
    path = make(speak, f"jobs-{speak.name}")
    speak.append(f"log-{speak.name}", 1)
    with speak.stream(work(path)) as stream:
        stream.next("retry")
        speak.refused(404, "topic_not_found", "GET", work("/v0/topics/absent"))
        speak.refused(409, "not_a_queue", "GET", work(f"/v0/topics/log-{speak.name}"))
        speak.refused(429, "throttled", "GET", work(path))


def test_metrics(servers, protocol) -> None:
    """§10: leases, and the counts of each queue; streams of workers are SSE connections."""
    speak = servers.speaker(servers.start(), protocol)
    path = make(speak, "jobs", 5)
    speak.append("log", 1)
    with speak.stream(work(path, query="&max=2")) as stream:
        jobs(stream, 2)
        claim(speak, path, 1, "other")
        speak.ok("POST", f"{path}/nack", {"node": "other", "seqs": [3], "delay_ms": 600_000})
        figures = speak("GET", "/v0/metrics", None, {"accept": "application/json"}).json
        assert (figures["queue_topics"], figures["queue_leases_in_flight"]) == (1, 2)
        assert figures["sse_connections"] == 1
        text = speak("GET", "/v0/metrics").body.decode()
        for line in (
            "headrace_queue_topics 1",
            "headrace_queue_leases_in_flight 2",
            "headrace_sse_connections 1",
            'headrace_topic_queue_ready{topic="jobs"} 2',
            'headrace_topic_queue_in_flight{topic="jobs"} 2',
            'headrace_topic_queue_delayed{topic="jobs"} 1',
            'headrace_topic_queue_dead_lettered{topic="jobs"} 0',
            'headrace_topic_queue_unreadable{topic="jobs"} 0',
            'headrace_queue_jobs_total{event="pushed"} 2',
            'headrace_queue_jobs_total{event="claimed"} 1',
            'headrace_queue_jobs_total{event="nacked"} 1',
        ):
            assert f"{line}\n" in text, line
        assert 'headrace_topic_queue_ready{topic="log"}' not in text
