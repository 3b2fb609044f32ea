"""Health, readiness and metrics over the wire (native §10), each on a server of its own."""

from __future__ import annotations

import pytest
from prometheus_client.parser import text_string_to_metric_families

import headrace
from headrace.client import Client


def series(speak) -> dict[str, float]:
    """Every sample of the text form, by its literal name and labels."""
    reply = speak("GET", "/v0/metrics")
    assert reply.status == 200
    assert reply.headers["content-type"].startswith("text/plain; version=0.0.4")
    text = reply.body.decode()
    list(text_string_to_metric_families(text))  # a parser of others reads it
    lines = [line for line in text.splitlines() if line and not line.startswith("#")]
    pairs = [line.rsplit(" ", 1) for line in lines]
    assert len({name for name, _ in pairs}) == len(pairs), "a series twice"
    return {name: float(value) for name, value in pairs}


def document(speak) -> dict:
    reply = speak("GET", "/v0/metrics", None, {"accept": "application/json"})
    assert (reply.status, "error" in reply.json) == (200, False)
    return reply.json


@pytest.mark.parametrize("path", ["/v0/health", "/healthz"])
def test_health(speak, path) -> None:
    """§10: exactly these; §1.4: no performance block; §0: the alias."""
    found = speak("GET", path)
    assert found.status == 200
    assert found.json.keys() == {"status", "version", "uptime_ms"}
    assert found.json["status"] == "ok"
    assert found.json["version"] == headrace.__version__
    assert isinstance(found.json["uptime_ms"], int)


@pytest.mark.parametrize("path", ["/v0/ready", "/readyz"])
def test_ready(speak, topic, path) -> None:
    """§10: exactly these, with the number of topics."""
    before = speak("GET", path)
    assert before.status == 200
    assert before.json.keys() == {"status", "wal_replay_complete", "topics"}
    assert (before.json["status"], before.json["wal_replay_complete"]) == ("ready", True)
    speak.ok("PUT", f"/v0/topics/{topic}")
    assert speak("GET", path).json["topics"] == before.json["topics"] + 1


@pytest.mark.parametrize("reader", ["h1", "h2c"])
def test_metrics_are_exact(servers, reader) -> None:
    """§10: counts after 2 topics and 2 records; the class line literally; queue depth 0."""
    server = servers.with_settings(wait_ms_max=30_001)  # of its own
    writer = servers.speaker(server, "h1")
    speak = servers.speaker(server, reader)
    if not writer.ok("GET", "/v0/topics")["topics"]:
        for name in ("one", "two"):
            writer.ok("PUT", f"/v0/topics/{name}", {"durability": "fsync"})
            writer.append(name, "12345")
    found = series(speak)
    text = speak("GET", "/v0/metrics").body.decode()
    assert '\nheadrace_topics_by_class{class="fsync"} 2\n' in text
    for name, value in {
        "headrace_topics": 2,
        'headrace_topics_by_class{class="ephemeral"}': 0,
        'headrace_topics_by_class{class="memory"}': 0,
        'headrace_topics_by_class{class="disk"}': 0,
        "headrace_routers": 0,
        "headrace_records_live": 2,
        "headrace_bytes_live": 14,
        'headrace_topic_head_seq{topic="one"}': 1,
        'headrace_topic_earliest_seq{topic="two"}': 1,
        'headrace_topic_records_live{topic="one"}': 1,
        'headrace_topic_bytes_live{topic="two"}': 7,
        "headrace_topic_metrics_truncated": 0,
        "headrace_queue_topics": 0,
        "headrace_queue_leases_in_flight": 0,
        "headrace_sse_connections": 0,
        "headrace_watch_sessions": 0,
        "headrace_ready": 1,
        "headrace_recovery_progress": 1,
        "headrace_wal_queue_depth": 0,
        "headrace_wal_read_only": 0,
        "headrace_wal_submit_full_total": 0,
    }.items():
        assert found.get(name) == value, name
    assert not [name for name in found if name.startswith("headrace_topic_queue_")]
    assert found["headrace_uptime_ms"] >= 0
    assert found["headrace_wal_frames_total"] >= 4
    assert found["headrace_wal_batches_total"] >= 1
    assert found["headrace_wal_bytes_written_total"] > 14
    assert found["headrace_wal_fsyncs_total"] >= 2
    assert found["headrace_wal_queue_depth_peak"] >= 1


def test_the_latency_of_syncs(speak, topic) -> None:
    """§10: `_count` equals the fsyncs; the buckets, cumulative, end at +Inf."""
    speak.ok("PUT", f"/v0/topics/{topic}", {"durability": "fsync"})
    for _ in range(5):
        speak.append(topic, 1)
    found = series(speak)
    name = "headrace_wal_fsync_latency_us"
    bounds = ["50", "100", "250", "500", "1000", "5000", "10000", "50000", "100000", "+Inf"]
    counts = [found[f'{name}_bucket{{le="{bound}"}}'] for bound in bounds]
    assert counts == sorted(counts)
    assert counts[-1] == found[f"{name}_count"] == found["headrace_wal_fsyncs_total"]
    assert found[f"{name}_sum"] > 0


def test_metrics_follow_what_happens(servers) -> None:
    """§10, C8: live figures fall with eviction, deletes and deleted topics."""
    server = servers.start()
    for protocol in ("h1", "h2c"):
        speak = servers.speaker(server, protocol)
        speak.ok("PUT", "/v0/topics/capped", {"cap_records": 2, "durability": "ephemeral"})
        speak.append("capped", 1, 2, 3)
        speak.append("plain", 1, 2, 3, 4)
        speak.ok("POST", "/v0/topics/plain/delete", {"before_seq": 3})
        found = document(speak)
        assert (found["topics"], found["records_live"], found["bytes_live"]) == (2, 4, 4)
        assert (found["topics_ephemeral"], found["topics_disk"]) == (1, 1)
        speak.ok("DELETE", "/v0/topics/plain")
        found = document(speak)
        assert (found["topics"], found["records_live"], found["bytes_live"]) == (1, 2, 2)
        assert 'headrace_topic_head_seq{topic="plain"}' not in series(speak)


def test_metrics_as_json(speak, topic) -> None:
    """§10: when Accept has application/json; exactly these keys at least."""
    speak.append(topic, 1)
    found = document(speak)
    assert found.keys() >= {
        "topics",
        "topics_ephemeral",
        "topics_memory",
        "topics_disk",
        "topics_fsync",
        "routers",
        "records_live",
        "bytes_live",
        "queue_topics",
        "queue_leases_in_flight",
        "sse_connections",
        "watch_sessions",
        "ready",
        "replay_progress",
        "uptime_ms",
        "wal",
    }
    assert found["wal"].keys() >= {
        "fsyncs",
        "frames",
        "batches",
        "bytes_written",
        "rotations",
        "queue_depth",
        "queue_depth_peak",
        "submit_full_total",
        "read_only",
        "fsync_count",
        "fsync_micros_total",
    }
    assert found["wal"]["fsync_count"] == found["wal"]["fsyncs"]
    assert (found["wal"]["queue_depth"], found["wal"]["read_only"]) == (0, False)


def test_queues_have_series_of_their_own(speak, topic) -> None:
    """§10: `headrace_topic_queue_*` on queues only."""
    speak.ok("PUT", f"/v0/topics/{topic}", {"type": "queue"})
    speak.ok("PUT", f"/v0/topics/{topic}-log")
    speak.append(topic, 1, 2)
    found = series(speak)
    assert found[f'headrace_topic_queue_ready{{topic="{topic}"}}'] == 2
    assert found[f'headrace_topic_queue_in_flight{{topic="{topic}"}}'] == 0
    assert f'headrace_topic_queue_ready{{topic="{topic}-log"}}' not in found
    assert found["headrace_queue_topics"] >= 1


def test_series_of_topics_are_bounded(servers) -> None:
    """§10: at most 1000 topics have series of their own, and the rest is announced."""
    server = servers.start()
    with Client(server.url) as client:
        for n in range(1_003):
            client.append(f"t{n:04}", [1], config={"durability": "ephemeral"})
    for protocol in ("h1", "h2c"):
        found = series(servers.speaker(server, protocol))
        assert sum(name.startswith("headrace_topic_head_seq{") for name in found) == 1_000
        assert found["headrace_topic_metrics_truncated"] in (1, 3)
        assert found["headrace_topics"] == 1_003
