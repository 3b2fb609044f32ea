"""Queues over the wire: claim, ack, nack, extend (native §9.1 to §9.4)."""

from __future__ import annotations

import re
from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.support.seqs import json_seqs
from tests.support.wire_queues import SECONDS_MAX, claim, claimed_seqs, counts, make, until

CALLS = ("claim", "ack", "nack", "extend")


def body_of(call: str, node: str = "w", **fields: object) -> dict[str, object]:
    """A good body of each call."""
    if call == "claim":
        return {"node": node, **fields}
    more = {"lease_ms": 1_000} if call == "extend" else {}
    return {"node": node, "seqs": [1], **more, **fields}


# What every call refuses, and in which order


@pytest.mark.parametrize("call", [*CALLS, "redrive"])
def test_an_absent_topic(speak, topic, call) -> None:
    """§9: 404; never creates."""
    body = {} if call == "redrive" else body_of(call)
    path = f"/v0/topics/{topic}"
    assert speak.refused(404, "topic_not_found", "POST", f"{path}/{call}", body) == {"topic": topic}
    speak.refused(404, "topic_not_found", "GET", path)


@pytest.mark.parametrize("call", CALLS)
def test_a_log_is_not_a_queue(speak, topic, call) -> None:
    """§9: 409, detail.topic."""
    speak.append(topic, 1)
    path = f"/v0/topics/{topic}/{call}"
    assert speak.refused(409, "not_a_queue", "POST", path, body_of(call)) == {"topic": topic}


def test_an_empty_claim_is_refused_before_the_topic_is_looked_for(speak, topic) -> None:
    """§1.1, §9: 400 whatever the content type and the topic."""
    for headers in ({}, {"content_type": "application/json"}, {"content_type": "text/plain"}):
        path = f"/v0/topics/{topic}/claim"
        speak.refused(400, "invalid_request", "POST", path, b"", **headers)


@pytest.mark.parametrize("call", CALLS)
def test_the_body_comes_before_the_topic(speak, topic, call) -> None:
    """§9: 415, then JSON 400, then 404."""
    path = f"/v0/topics/{topic}/{call}"
    code = "unsupported_media_type"
    speak.refused(415, code, "POST", path, b"{}", content_type="text/plain")
    if call != "claim":
        speak.refused(415, code, "POST", path, b"", content_type="text/plain")
    json = {"content_type": "application/json"}
    for body in (b"{", b"[]", b"{}", b'{"node":5}', b'{"node":null}', b"\xff"):
        speak.refused(400, "invalid_request", "POST", path, body, **json)


@pytest.mark.parametrize(
    ("call", "fields"),
    [
        ("claim", {"max": -1}),
        ("claim", {"max": 1.5}),
        ("claim", {"max": "2"}),
        ("claim", {"max": 1 << 64}),
        ("claim", {"lease_ms": -1}),
        ("claim", {"lease_ms": "1000"}),
        ("ack", {"seqs": None}),
        ("ack", {"seqs": [-1]}),
        ("ack", {"seqs": ["1"]}),
        ("ack", {"seqs": [1 << 64]}),
        ("ack", {"lease_ids": [None]}),
        ("ack", {"lease_ids": "lease_1"}),
        ("nack", {"delay_ms": -1}),
        ("nack", {"delay_ms": 0.5}),
        ("extend", {"lease_ms": None}),
        ("extend", {"lease_ms": -5}),
    ],
)
def test_bad_fields(speak, topic, call, fields) -> None:
    """§1.1: integers are strict; 400 before the 404."""
    path = f"/v0/topics/{topic}/{call}"
    speak.refused(400, "invalid_request", "POST", path, body_of(call, **fields))


@pytest.mark.parametrize("call", ["ack", "nack", "extend"])
@pytest.mark.parametrize("missing", ["node", "seqs", "lease_ms"])
def test_missing_fields(speak, topic, call, missing) -> None:
    """§9: 400 before the 404; lease_ms is of extend only."""
    body = body_of(call)
    if body.pop(missing, None) is not None:
        speak.refused(400, "invalid_request", "POST", f"/v0/topics/{topic}/{call}", body)


def test_the_node_of_a_claim_is_checked_last(speak, topic) -> None:
    """§9: after 404 and 409; empty or longer than 128 bytes is 400."""
    absent = f"/v0/topics/{topic}-absent/claim"
    speak.append(f"{topic}-log", 1)
    path = make(speak, topic, 1)
    for node in ("", "n" * 129, "é" * 65):
        speak.refused(404, "topic_not_found", "POST", absent, {"node": node})
        log = f"/v0/topics/{topic}-log/claim"
        speak.refused(409, "not_a_queue", "POST", log, {"node": node})
        speak.refused(400, "invalid_request", "POST", f"{path}/claim", {"node": node})
    assert claim(speak, path, node="é" * 64)["count"] == 1


@pytest.mark.parametrize("call", ["ack", "nack", "extend"])
def test_the_order_of_checks_of_a_holder(speak, topic, call) -> None:
    """§9: lease token, node, too many seqs, lengths; each before the 404."""
    path = f"/v0/topics/{topic}/{call}"
    many = list(range(1_001))

    def message(**fields: object) -> str:
        reply = speak("POST", path, body_of(call, **fields))
        assert reply.status in (400, 404)
        return reply.error["code"] + " " + reply.error["message"]

    assert "lease id" in message(node="", seqs=many, lease_ids=["x"])
    assert message(node="", seqs=many, lease_ids=["lease_1"]).startswith("invalid_request node")
    assert message(seqs=many, lease_ids=["lease_1"]).startswith("batch_too_large")
    assert "1 lease_ids for 2 seqs" in message(seqs=[1, 2], lease_ids=["lease_1"])
    assert message(seqs=[1, 2], lease_ids=["lease_1", ""]).startswith("topic_not_found")
    detail = speak.refused(400, "batch_too_large", "POST", path, body_of(call, seqs=many))
    assert detail == {"seqs": 1_001, "max": 1_000}


@pytest.mark.parametrize("token", ["lease", "lease_", "lease_xyz", "1", "lease_1_1", "Lease_1"])
def test_malformed_lease_ids(speak, topic, token) -> None:
    """§9: 400."""
    path = f"/v0/topics/{topic}/ack"
    body = {"node": "w", "seqs": [1], "lease_ids": [token]}
    speak.refused(400, "invalid_request", "POST", path, body)


# Claim


def test_the_answer_of_a_claim(speak, topic) -> None:
    """§9.1: every field, `$tag` whenever there is one, no `$node`, ascending seqs."""
    path = make(speak, topic)
    first = {"data": {"a": 1}, "tag": "t", "node": "n", "meta": {"m": 1}}
    speak.ok("POST", path, {"records": [first, {"data": None}]})
    answer = claim(speak, path, 5, lease_ms=60_000)
    assert answer.keys() == {"topic", "claimed", "count", "ready", "performance"}
    assert (answer["topic"], answer["count"], answer["ready"]) == (topic, 2, 0)
    assert isinstance(answer["performance"]["server_total_ms"], int | float)
    full, plain = answer["claimed"]
    more = {"$seq", "lease_id", "deadline", "$ts", "deliveries", "data"}
    assert full.keys() == {*more, "$tag", "meta"} and plain.keys() == more
    assert (full["$seq"], full["$tag"], full["data"], full["meta"]) == (1, "t", {"a": 1}, {"m": 1})
    assert (plain["$seq"], plain["data"], plain["deliveries"]) == (2, None, 1)
    assert re.fullmatch(r"lease_[0-9a-f]+", full["lease_id"])
    assert full["lease_id"] != plain["lease_id"]
    assert full["deadline"] == plain["deadline"]
    # `$ts` is by the clock that the deadline is by; this process may have another.
    assert 60_000 <= full["deadline"] - full["$ts"] <= 60_000 + SECONDS_MAX * 1_000


def test_payloads_come_back_byte_for_byte(speak, topic) -> None:
    """§1.1."""
    path = make(speak, topic)
    body = b'{"records":[{"data":{"b": 1,  "a":1.50, "a":2}}]}'
    speak("POST", path, body, {"content-type": "application/json"})
    reply = speak("POST", f"{path}/claim", {"node": "w"})
    assert b'"data":{"b": 1,  "a":1.50, "a":2}' in reply.body


def test_how_many_jobs_a_claim_gets(speak, topic) -> None:
    """§9.1: max defaults to 1, 0 means 1, more than 1000 means 1000."""
    path = make(speak, topic, 1_005)
    assert claimed_seqs(speak.ok("POST", f"{path}/claim", {"node": "w"})) == [1]
    assert claimed_seqs(claim(speak, path, 0)) == [2]
    assert claimed_seqs(speak.ok("POST", f"{path}/claim", {"node": "w", "max": None})) == [3]
    answer = claim(speak, path, 5_000)
    assert (answer["count"], answer["ready"]) == (1_000, 2)
    assert claimed_seqs(answer) == list(range(4, 1_004))


def test_an_empty_queue(speak, topic) -> None:
    """§9.1: 200, count 0."""
    answer = claim(speak, make(speak, topic))
    assert (answer["claimed"], answer["count"], answer["ready"]) == ([], 0, 0)


def test_leases_are_clamped(speak, topic) -> None:
    """§1.8: 100 ms to a day; by default what the topic says."""
    path = make(speak, topic, 3, lease_ms=5_000)
    slack_ms = SECONDS_MAX * 1_000
    for fields, lease_ms in (({}, 5_000), ({"lease_ms": 1 << 62}, 86_400_000)):
        job = claim(speak, path, **fields)["claimed"][0]
        assert lease_ms <= job["deadline"] - job["$ts"] <= lease_ms + slack_ms
    job = claim(speak, path, lease_ms=0)["claimed"][0]
    assert job["deadline"] >= job["$ts"] + 100
    until(speak, topic, (1, 2, 0))


def test_two_workers_never_hold_the_same_job(speak, topic) -> None:
    """H5, H2."""
    path = make(speak, topic, 4)
    assert claimed_seqs(claim(speak, path, 2, "a")) == [1, 2]
    assert claimed_seqs(claim(speak, path, 9, "b")) == [3, 4]
    assert claimed_seqs(claim(speak, path, 9, "a")) == []


def test_a_cohort_shares_alike(speak, servers, server, topic) -> None:
    """§9.1, H14: 20 jobs, 4 concurrent claims of 10, jitter 120 ms: 5 each."""
    path = make(speak, topic, 20, claim_jitter_ms=120)
    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(lambda n: claim(speak, path, 10, f"w{n}"), range(4)))
    assert sorted(answer["count"] for answer in found) == [5, 5, 5, 5]
    assert sorted(seq for answer in found for seq in claimed_seqs(answer)) == list(range(1, 21))
    for answer in found:
        assert claimed_seqs(answer) == sorted(claimed_seqs(answer))


def test_each_of_a_cohort_has_its_own_lease(speak, topic) -> None:
    """§9.1: not the leader's."""
    path = make(speak, topic, 2, claim_jitter_ms=120)
    leases = (60_000, 600_000)
    with ThreadPoolExecutor(2) as pool:
        found = pool.map(lambda ms: claim(speak, path, 1, f"w{ms}", lease_ms=ms), leases)
    short, long = (answer["claimed"][0]["deadline"] for answer in found)
    assert long - short > 400_000


# Ack


def test_an_ack_deletes(speak, topic) -> None:
    """§9.2, H16: the job is gone for readers, silently; the others are not."""
    path = make(speak, topic, 3)
    claim(speak, path, 2)
    answer = speak.ok("POST", f"{path}/ack", {"node": "w", "seqs": [1]})
    assert answer.pop("performance").keys() == {"server_total_ms"}
    assert answer == {"topic": topic, "acked": 1, "skipped": [], "ready": 1, "in_flight": 1}
    page = speak.diff(topic)
    assert json_seqs(page) == [2, 3]
    assert page["tombstone"] is None


def test_what_an_ack_skips(speak, topic) -> None:
    """§9.2, H6: what the node does not hold, in the order of the request; 200."""
    path = make(speak, topic, 3)
    claim(speak, path, 1, "a")
    claim(speak, path, 1, "b")
    body = {"node": "a", "seqs": [9, 2, 1, 3, 1, (1 << 64) - 1]}
    answer = speak.ok("POST", f"{path}/ack", body)
    assert (answer["acked"], answer["skipped"]) == (1, [9, 2, 3, 1, (1 << 64) - 1])
    assert (answer["ready"], answer["in_flight"]) == (1, 1)


def test_no_seqs_is_fine(speak, topic) -> None:
    """§9.2."""
    path = make(speak, topic, 1)
    for call, word in (("ack", "acked"), ("nack", "nacked"), ("extend", "extended")):
        assert speak.ok("POST", f"{path}/{call}", body_of(call, seqs=[]))[word] == 0


def test_a_lease_id_says_which_lease(speak, topic) -> None:
    """§9.2, H6: a stale one is skipped; an empty one stands for any."""
    path = make(speak, topic, 2)
    stale = [job["lease_id"] for job in claim(speak, path, 2)["claimed"]]
    speak.ok("POST", f"{path}/nack", {"node": "w", "seqs": [1, 2]})
    fresh = claim(speak, path, 2)["claimed"]
    assert [job["deliveries"] for job in fresh] == [2, 2]
    for call, word in (("ack", "acked"), ("nack", "nacked"), ("extend", "extended")):
        body = body_of(call, seqs=[1, 2], lease_ids=stale)
        answer = speak.ok("POST", f"{path}/{call}", body)
        assert (answer[word], answer["skipped"]) == (0, [1, 2])
    ids = [fresh[0]["lease_id"], ""]
    answer = speak.ok("POST", f"{path}/ack", {"node": "w", "seqs": [1, 2], "lease_ids": ids})
    assert (answer["acked"], answer["skipped"]) == (2, [])


def test_a_late_ack_is_skipped(speak, topic) -> None:
    """§9.2, H4: also when nobody has claimed the job again."""
    path = make(speak, topic, 1)
    claim(speak, path, lease_ms=100)
    until(speak, topic, (1, 0, 0))
    answer = speak.ok("POST", f"{path}/ack", {"node": "w", "seqs": [1]})
    assert (answer["acked"], answer["skipped"], answer["ready"]) == (0, [1], 1)
    assert claim(speak, path)["claimed"][0]["deliveries"] == 2


def test_an_ack_tells_what_its_sync_took(speak, topic) -> None:
    """§1.4: `fsync_ms` only when there was one."""
    path = make(speak, topic, 1, durability="fsync")
    claim(speak, path)
    body = {"node": "w", "seqs": [1]}
    assert speak.ok("POST", f"{path}/ack", body)["performance"]["fsync_ms"] > 0
    assert "fsync_ms" not in speak.ok("POST", f"{path}/ack", body)["performance"]


# Nack and extend


def test_a_nack_gives_back_at_once(speak, topic) -> None:
    """§9.3, H8: claimable at once, deliveries one more; before what is fresh (H2)."""
    path = make(speak, topic, 3)
    claim(speak, path, 2)
    answer = speak.ok("POST", f"{path}/nack", {"node": "w", "seqs": [2, 7]})
    assert isinstance(answer.pop("performance")["server_total_ms"], int | float)
    assert answer == {"topic": topic, "nacked": 1, "skipped": [7], "ready": 2, "in_flight": 1}
    again = claim(speak, path, 2, "other")["claimed"]
    assert [(job["$seq"], job["deliveries"]) for job in again] == [(2, 2), (3, 1)]


def test_a_delayed_nack(speak, topic) -> None:
    """§9.3, H8: in neither ready nor in_flight until due."""
    path = make(speak, topic, 1)
    claim(speak, path)
    body = {"node": "w", "seqs": [1], "delay_ms": 300}
    answer = speak.ok("POST", f"{path}/nack", body)
    assert (answer["nacked"], answer["ready"], answer["in_flight"]) == (1, 0, 0)
    assert speak.state(topic)["count"] == 1
    until(speak, topic, (1, 0, 0))
    assert claim(speak, path)["count"] == 1


def test_a_delay_is_clamped_to_a_day(speak, topic) -> None:
    """§1.8."""
    path = make(speak, topic, 1)
    claim(speak, path)
    body = {"node": "w", "seqs": [1], "delay_ms": (1 << 64) - 1}
    assert speak.ok("POST", f"{path}/nack", body)["nacked"] == 1
    assert claim(speak, path)["count"] == 0


def test_extend(speak, topic) -> None:
    """§9.4, H3: a later deadline, the same lease id, the same deliveries."""
    path = make(speak, topic, 2)
    jobs = claim(speak, path, 2, lease_ms=10_000)["claimed"]
    body = {"node": "w", "seqs": [1, 5], "lease_ms": 500_000}
    answer = speak.ok("POST", f"{path}/extend", body)
    assert answer.keys() == {"topic", "extended", "skipped", "deadlines", "performance"}
    assert (answer["topic"], answer["extended"], answer["skipped"]) == (topic, 1, [5])
    assert answer["deadlines"].keys() == {"1"}
    assert answer["deadlines"]["1"] - jobs[0]["deadline"] >= 490_000
    body = {"node": "w", "seqs": [1], "lease_ids": [jobs[0]["lease_id"]]}
    assert speak.ok("POST", f"{path}/ack", body)["acked"] == 1


def test_an_extend_keeps_a_job_from_others(speak, topic) -> None:
    """H4: it runs from the call on, and is clamped."""
    path = make(speak, topic, 2)
    claim(speak, path, 2, lease_ms=400)
    body = {"node": "w", "seqs": [1], "lease_ms": (1 << 64) - 1}
    speak.ok("POST", f"{path}/extend", body)
    until(speak, topic, (1, 1, 0))
    assert claimed_seqs(claim(speak, path, 5, "other")) == [2]


# State and vocabularies


def test_the_state_counts_jobs(speak, topic) -> None:
    """§3.2, H7."""
    path = make(speak, topic, 5)
    assert counts(speak, topic) == (5, 0, 0)
    claim(speak, path, 3)
    assert counts(speak, topic) == (2, 3, 0)
    speak.ok("POST", f"{path}/ack", {"node": "w", "seqs": [1]})
    speak.ok("POST", f"{path}/nack", {"node": "w", "seqs": [2]})
    assert counts(speak, topic) == (3, 1, 0)
    assert speak.state(topic)["count"] == 4


def test_a_claim_is_a_read(speak, topic) -> None:
    """G1: whoever consumes a topic raises its priority."""
    path = make(speak, topic, 1)
    assert speak.state(topic)["effective_priority"] == 0
    claim(speak, path)
    state = speak.state(topic)
    # It is 500 at first, and falls by half in half a minute.
    assert 250 < state["effective_priority"] <= 500 and state["last_read_ts"]


def test_a_delete_takes_a_leased_job(speak, topic) -> None:
    """H18: it leaves the queue silently."""
    path = make(speak, topic, 2)
    claim(speak, path, 2)
    speak.ok("POST", f"{path}/delete", {"before_seq": 2})
    assert counts(speak, topic) == (0, 1, 0)
    answer = speak.ok("POST", f"{path}/ack", {"node": "w", "seqs": [1, 2]})
    assert (answer["acked"], answer["skipped"]) == (1, [1])


def test_boxes(speak, topic) -> None:
    """The older words on the same data."""
    make(speak, topic, 4)
    path = f"/v0/boxes/{topic}"
    answer = claim(speak, path, 3)
    assert "topic" not in answer and answer["box"] == topic and claimed_seqs(answer) == [1, 2, 3]
    for call, word in (("extend", "extended"), ("nack", "nacked")):
        answer = speak.ok("POST", f"{path}/{call}", body_of(call))
        assert (answer["box"], answer[word]) == (topic, 1)
    answer = speak.ok("POST", f"{path}/ack", {"node": "w", "seqs": [2]})
    assert (answer["box"], answer["acked"]) == (topic, 1)
    absent = f"/v0/boxes/{topic}-absent"
    for call in CALLS:
        detail = speak.refused(404, "box_not_found", "POST", f"{absent}/{call}", body_of(call))
        assert detail == {"box": f"{topic}-absent"}
    speak.append(f"{topic}-log", 1)
    log = f"/v0/boxes/{topic}-log/claim"
    assert speak.refused(409, "not_a_queue", "POST", log, {"node": "w"}) == {"box": f"{topic}-log"}
