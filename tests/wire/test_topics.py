"""Topics over the wire: create, look, list, delete (native §2, §3.1 to §3.4)."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.support.expected_answers import TOPIC_DEFAULTS


def test_a_put_without_a_body_creates_with_the_exact_defaults(speak, topic) -> None:
    """§2: the default echo, all 17 fields; §3.1: 201 and `created`, then 200; §1.1: no body."""
    reply = speak("PUT", f"/v0/topics/{topic}")
    assert reply.status == 201
    assert reply.json["config"] == TOPIC_DEFAULTS
    assert (reply.json["topic"], reply.json["created"]) == (topic, True)
    again = speak("PUT", f"/v0/topics/{topic}", {})
    assert (again.status, again.json["created"]) == (200, False)
    assert again.json["config"] == TOPIC_DEFAULTS


def test_a_put_echoes_what_it_stored(speak, topic) -> None:
    """§2: every field; `durability` wins over `durable`; priority is stored as sent."""
    sent = {
        "ttl_ms": 60_000,
        "cap_records": 7,
        "cap_bytes": 70_000,
        "discard": "reject",
        "durable": False,
        "durability": "fsync",
        "priority": -5_000,
        "auto_priority": False,
        "auto_create": False,
        "idempotency_window_ms": 1,
        "dedupe_node": False,
        "lease_ms": 500,
        "claim_jitter_ms": 20,
        "max_deliveries": 3,
        "dead_letter": "graveyard",
        "leases_durable": True,
    }
    found = speak.ok("PUT", f"/v0/topics/{topic}", sent)["config"]
    assert found == {**TOPIC_DEFAULTS, **sent, "durable": True}
    assert speak.state(topic)["config"] == found
    assert speak.ok("GET", f"/v0/topics/{topic}")["effective_priority"] == -1_000


@pytest.mark.parametrize(
    ("sent", "durability", "durable"),
    [
        ({"durable": True}, "fsync", True),
        ({"durable": False}, "disk", False),
        ({"durable": True, "durability": "memory"}, "memory", False),
        ({"durability": "ephemeral"}, "ephemeral", False),
        ({"durable": None, "durability": None}, "disk", False),
    ],
)
def test_durable_is_an_alias(speak, topic, sent, durability, durable) -> None:
    """§2: true means fsync and false means disk, where `durability` is absent or null."""
    config = speak.ok("PUT", f"/v0/topics/{topic}", sent)["config"]
    assert (config["durability"], config["durable"]) == (durability, durable)


def test_lease_and_jitter_are_clamped_when_stored(speak, topic) -> None:
    """§2, §1.8: lease_ms in [100, 86400000], claim_jitter_ms at most 5000."""
    low = {"type": "queue", "lease_ms": 1, "claim_jitter_ms": 9_999}
    config = speak.ok("PUT", f"/v0/topics/{topic}", low)["config"]
    assert (config["lease_ms"], config["claim_jitter_ms"]) == (100, 5_000)
    high = {"type": "queue", "lease_ms": 99_999_999_999}
    assert speak.ok("PUT", f"/v0/topics/{topic}", high)["config"]["lease_ms"] == 86_400_000


def test_a_put_replaces_the_whole_config(speak, topic) -> None:
    """§3.1: what is omitted returns to its default."""
    speak.ok("PUT", f"/v0/topics/{topic}", {"durable": True, "ttl_ms": 5_000})
    assert speak.ok("PUT", f"/v0/topics/{topic}", {})["config"] == TOPIC_DEFAULTS


def test_the_type_cannot_change(speak, topic) -> None:
    """§3.1: 409 `topic_exists_incompatible` with its detail; also by leaving `type` out."""
    speak.ok("PUT", f"/v0/topics/{topic}", {"type": "queue"})
    for body in ({"type": "log"}, {"lease_ms": 500}):
        detail = speak.refused(409, "topic_exists_incompatible", "PUT", f"/v0/topics/{topic}", body)
        assert detail == {"topic": topic, "existing_type": "queue", "requested_type": "log"}
    assert speak.state(topic)["type"] == "queue"


def test_tightened_caps_hold_at_once(speak, topic) -> None:
    """§3.1: ttl and caps are enforced immediately."""
    speak.append(topic, 1, 2, 3, 4, 5)
    speak.ok("PUT", f"/v0/topics/{topic}", {"cap_records": 2})
    state = speak.state(topic)
    assert (state["head_seq"], state["earliest_seq"], state["count"]) == (5, 4, 2)


@pytest.mark.parametrize(
    "body",
    [
        {"type": "stack"},
        {"ttl_ms": -1},
        {"ttl_ms": "5"},
        {"ttl_ms": 1.5},
        {"discard": "new"},
        {"durability": "tape"},
        {"durable": 1},
        {"dead_letter": "no good"},
        {"priority": 2**31},
        [],
        "x",
    ],
)
def test_a_bad_config_is_refused_and_creates_nothing(speak, topic, body) -> None:
    """§3.1: 400 for a field or a dead_letter name."""
    speak.refused(400, "invalid_request", "PUT", f"/v0/topics/{topic}", body)
    speak.refused(404, "topic_not_found", "GET", f"/v0/topics/{topic}")


def test_a_queue_is_not_its_own_dead_letter(speak, topic) -> None:
    """§2: 400 on a queue."""
    body = {"type": "queue", "dead_letter": topic}
    speak.refused(400, "invalid_request", "PUT", f"/v0/topics/{topic}", body)


def test_unknown_fields_are_ignored(speak, topic) -> None:
    """§1.1: everywhere, in a config too."""
    assert speak.ok("PUT", f"/v0/topics/{topic}", {"colour": "red"})["config"] == TOPIC_DEFAULTS


def test_of_many_creators_one_creates(speak, topic) -> None:
    """§3.1: 16 concurrent creates of one name: exactly one `created:true`."""
    with ThreadPoolExecutor(16) as pool:
        replies = list(pool.map(lambda _: speak("PUT", f"/v0/topics/{topic}"), range(16)))
    assert sorted(reply.status for reply in replies) == [200] * 15 + [201]
    assert sum(reply.json["created"] for reply in replies) == 1


def test_the_state_of_a_fresh_topic(speak, topic) -> None:
    """§3.2: head 0, earliest 1, next 1, nothing in it; no `queue` on a log."""
    speak.ok("PUT", f"/v0/topics/{topic}")
    state = speak.state(topic)
    assert isinstance(state.pop("performance")["server_total_ms"], float)
    assert isinstance(state.pop("epoch"), int)
    assert state == {
        "topic": topic,
        "type": "log",
        "head_seq": 0,
        "earliest_seq": 1,
        "next_seq": 1,
        "count": 0,
        "bytes": 0,
        "config": TOPIC_DEFAULTS,
        "effective_priority": 0,
        "last_write_ts": None,
        "last_read_ts": None,
    }


def test_a_queue_shows_its_jobs(speak, topic) -> None:
    """§3.2: `queue` with ready, in_flight, dead_lettered, on queues only."""
    speak.ok("PUT", f"/v0/topics/{topic}", {"type": "queue"})
    speak.append(topic, 1, 2)
    assert speak.state(topic)["queue"] == {"ready": 2, "in_flight": 0, "dead_lettered": 0}


def test_bytes_are_data_and_meta_as_sent(speak, topic) -> None:
    """§3.2: the bytes of data and meta, spaces included; tag and node do not count."""
    body = b'{"records":[{"data": {"a":  1}, "meta":{"m":1}, "tag":"tttt", "node":"nnnn"}]}'
    speak("POST", f"/v0/topics/{topic}", body, {"content-type": "application/json"})
    assert speak.state(topic)["bytes"] == len('{"a":  1}') + len('{"m":1}')


def test_a_look_counts_as_a_read_unless_told_otherwise(speak, topic) -> None:
    """§3.2: touch=false leaves last_read_ts and priority alone; a default GET shows 500."""
    speak.append(topic, 1)
    for _ in range(2):
        state = speak.ok("GET", f"/v0/topics/{topic}?touch=false")
        assert (state["last_read_ts"], state["effective_priority"]) == (None, 0)
    state = speak.ok("GET", f"/v0/topics/{topic}?touch=maybe")  # anything else is the default
    assert state["effective_priority"] == 500
    assert state["last_read_ts"] >= state["last_write_ts"] > 1_700_000_000_000
    assert speak.ok("GET", f"/v0/topics/{topic}?touch=0")["last_read_ts"] == state["last_read_ts"]


def test_a_look_never_creates(speak, topic) -> None:
    """§3.2: 404 `topic_not_found` with detail.topic, and still absent afterwards."""
    for _ in range(2):
        detail = speak.refused(404, "topic_not_found", "GET", f"/v0/topics/{topic}")
        assert detail == {"topic": topic}


def test_head_is_get_without_a_body(speak, topic) -> None:
    """§0: GET routes also answer HEAD."""
    speak.ok("PUT", f"/v0/topics/{topic}")
    reply = speak("HEAD", f"/v0/topics/{topic}")
    assert (reply.status, reply.body) == (200, b"")
    assert reply.headers["content-type"] == "application/json"
    assert speak("HEAD", "/v0/topics/absent-one").status == 404


def test_the_list_is_sorted_and_says_as_much_as_it_should(speak, topic) -> None:
    """§3.3: byte-sorted by name; the fields of each; no next_cursor on the last page."""
    names = [f"{topic}-{end}" for end in ("b", "B", "a.1", "a-1", "a:1", "10", "9", "_")]
    for name in names:
        speak.ok("PUT", f"/v0/topics/{name}", {"durable": name.endswith("B")})
    speak.append(f"{topic}-b", 12345)
    found = speak.ok("GET", f"/v0/topics?prefix={topic}-")
    assert [entry["topic"] for entry in found["topics"]] == sorted(names, key=str.encode)
    assert "next_cursor" not in found
    assert found["topics"][-1] == {
        "topic": f"{topic}-b",
        "head_seq": 1,
        "earliest_seq": 1,
        "count": 1,
        "bytes": 5,
        "durable": False,
        "effective_priority": 0,
        "epoch": speak.state(f"{topic}-b")["epoch"],
    }
    assert [e["durable"] for e in found["topics"] if e["topic"].endswith("B")] == [True]


def test_a_list_counts_as_a_read_only_when_asked(speak, topic) -> None:
    """§3.3: `touch` is false by default."""
    speak.append(topic, 1)
    speak.ok("GET", f"/v0/topics?prefix={topic}")
    assert speak.state(topic)["last_read_ts"] is None
    speak.ok("GET", f"/v0/topics?prefix={topic}&touch=true")
    assert speak.state(topic)["last_read_ts"] is not None


def test_pages_of_a_list(speak, topic) -> None:
    """§1.6: opaque cursors that survive a raw query string; pages cover all, once."""
    names = sorted(f"{topic}-{n:02}" for n in range(11))
    for name in names:
        speak.ok("PUT", f"/v0/topics/{name}")
    seen, query = [], ""
    for _ in range(4):
        page = speak.ok("GET", f"/v0/topics?prefix={topic}-&page_size=3{query}")
        seen.append([entry["topic"] for entry in page["topics"]])
        query = f"&cursor={page.get('next_cursor')}"
    assert [len(found) for found in seen] == [3, 3, 3, 2]
    assert [name for found in seen for name in found] == names
    assert "next_cursor" not in page
    exact = speak.ok("GET", f"/v0/topics?prefix={topic}-&page_size=11")
    assert "next_cursor" not in exact and len(exact["topics"]) == 11
    assert speak.ok("GET", f"/v0/topics?prefix={topic}-&cursor=")["topics"] == exact["topics"]


@pytest.mark.parametrize("cursor", ["!!!", "YWJj", "eyJhZnRlciI6NX0"])
def test_a_cursor_that_is_none_is_refused(speak, cursor) -> None:
    """§1.6: undecodable: 400."""
    speak.refused(400, "invalid_request", "GET", f"/v0/topics?cursor={cursor}")


def test_page_sizes_are_clamped(speak, topic) -> None:
    """§1.8: default 100, clamped to 1..1000, unparsable is 100."""
    for n in range(101):
        speak.ok("PUT", f"/v0/topics/{topic}-{n}")

    def page(query: str) -> int:
        return len(speak.ok("GET", f"/v0/topics?prefix={topic}-{query}")["topics"])

    assert page("") == 100
    assert page("&page_size=0") == 1
    assert page("&page_size=2") == 2
    assert page("&page_size=many") == 100
    assert page("&page_size=99999") == 101


def test_delete_and_again(speak, topic) -> None:
    """§3.4: 200 for an absent topic too; a new one starts at 1 with another epoch."""
    speak.append(topic, 1, 2)
    epoch = speak.state(topic)["epoch"]
    first = speak.ok("DELETE", f"/v0/topics/{topic}")
    assert (first["deleted"], first["routers_removed"]) == (True, [])
    again = speak.ok("DELETE", f"/v0/topics/{topic}")
    assert (again["deleted"], again["routers_removed"]) == (False, [])
    speak.refused(404, "topic_not_found", "GET", f"/v0/topics/{topic}")
    assert speak.append(topic, 3)["first_seq"] == 1
    assert speak.state(topic)["epoch"] != epoch


def test_delete_only_if_empty(speak, topic) -> None:
    """§3.4: 409 `topic_not_empty` with its detail, and nothing happens."""
    speak.append(topic, 1, 2)
    detail = speak.refused(409, "topic_not_empty", "DELETE", f"/v0/topics/{topic}?if_empty=true")
    assert detail == {"topic": topic, "count": 2}
    assert speak.state(topic)["count"] == 2
    speak.ok("POST", f"/v0/topics/{topic}/delete", {"before_seq": 3})
    assert speak.ok("DELETE", f"/v0/topics/{topic}?if_empty=true")["deleted"] is True


def test_a_delete_forgets_keys(speak, topic) -> None:
    """§3.4: dedupe state goes with the topic."""
    speak.append(topic, 1, idempotency_key="k")
    speak.ok("DELETE", f"/v0/topics/{topic}")
    assert speak.append(topic, 2, idempotency_key="k")["deduped"] is False


def test_puts_report_no_server_time_of_their_own_but_a_number(speak, topic) -> None:
    """§1.4: `server_total_ms` is a number on every success; `Server-Timing` beside it."""
    reply = speak("PUT", f"/v0/topics/{topic}")
    assert isinstance(reply.json["performance"]["server_total_ms"], int | float)
    assert "total;dur=" in reply.headers["server-timing"]
    for found in (
        speak.ok("GET", "/v0/topics"),
        speak.state(topic),
        speak.ok("DELETE", f"/v0/topics/{topic}"),
    ):
        assert isinstance(found["performance"]["server_total_ms"], int | float)
