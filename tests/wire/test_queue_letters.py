"""Dead letters, redrive, keys and restarts of queues (native §9.5, §1.7, H)."""

from __future__ import annotations

import signal

import pytest

from tests.support.seqs import json_seqs
from tests.support.wire_queues import claim, claimed_seqs, counts, make, until, work

KEYS = "root,r:read,w:write,d:delete,a:admin,rw:rw,full:rw+a+d,team:rw+a:team,dead:rw+a:team|dead"
LONG_MS = 600_000


def kill(speak, path: str, jobs: int, times: int = 1) -> None:
    """Deliver all jobs so often, and once too often."""
    for _ in range(times):
        given = claimed_seqs(claim(speak, path, jobs))
        speak.ok("POST", f"{path}/nack", {"node": "w", "seqs": given})
    assert claim(speak, path, jobs)["count"] == 0


def bearer(key: str) -> dict[str, str]:
    return {"authorization": f"Bearer {key}"}


# Dead letters


def test_a_dead_letter(speak, topic) -> None:
    """§9.5, H9: the third delivery of two; its data, tag, node and meta are kept."""
    dead = f"{topic}-dead"
    path = make(speak, topic, max_deliveries=2, dead_letter=dead)
    record = {"data": {"a": 1}, "tag": "t", "node": "n", "meta": {"m": 1}}
    speak.ok("POST", path, {"records": [record, {"data": 2}]})
    for deliveries in (1, 2):
        job = claim(speak, path)["claimed"][0]
        assert (job["$seq"], job["deliveries"]) == (1, deliveries)
        speak.ok("POST", f"{path}/nack", {"node": "w", "seqs": [1]})
    assert claimed_seqs(claim(speak, path, 5)) == [2]
    assert counts(speak, topic) == (0, 1, 1)
    assert speak.state(dead)["type"] == "log"
    copy = speak.diff(dead, include_tags=True)["records"][0]
    assert (copy["$seq"], copy["data"], copy["$tag"], copy["$node"]) == (1, {"a": 1}, "t", "n")
    assert copy["meta"] == {
        "m": 1,
        "$dead_letter_from": topic,
        "$dead_letter_deliveries": "2",
        "$dead_letter_src_seq": "1",
    }
    assert json_seqs(speak.diff(topic)) == [2]


def test_lapsed_leases_count_as_deliveries(speak, topic) -> None:
    """§9.5: nobody has to nack."""
    path = make(speak, topic, 1, max_deliveries=1, dead_letter=f"{topic}-dead")
    claim(speak, path, lease_ms=100)
    until(speak, topic, (1, 0, 0))
    assert claim(speak, path)["count"] == 0
    assert counts(speak, topic) == (0, 0, 1)


def test_a_full_dead_letter_topic_loses_nothing(speak, topic) -> None:
    """H11: what cannot be moved stays."""
    dead = f"{topic}-dead"
    speak.ok("PUT", f"/v0/topics/{dead}", {"cap_records": 1, "discard": "reject"})
    speak.append(dead, 1)
    path = make(speak, topic, 1, max_deliveries=1, dead_letter=dead)
    kill(speak, path, 1)
    assert counts(speak, topic) == (1, 0, 0)
    speak.ok("POST", f"/v0/topics/{dead}/delete", {"before_seq": 2})
    assert claim(speak, path)["count"] == 0
    assert counts(speak, topic) == (0, 0, 1)


def test_a_worker_gets_the_next_job_instead(speak, topic) -> None:
    """A stream goes on over dead letters."""
    path = make(speak, topic, 2, max_deliveries=1, dead_letter=f"{topic}-dead")
    with speak.stream(work(path, query="&lease_ms=100")) as stream:
        assert [stream.next("job").data["$seq"] for _ in range(2)] == [1, 2]
        until(speak, topic, (0, 0, 2))


# Redrive


def test_redrive(speak, topic) -> None:
    """Dead letters go back as fresh jobs, with the meta that they had."""
    dead = f"{topic}-dead"
    path = make(speak, topic, max_deliveries=1, dead_letter=dead)
    speak.ok("POST", path, {"records": [{"data": 1, "meta": {"m": 1}}, {"data": 2}]})
    kill(speak, path, 2)
    answer = speak.ok("POST", f"/v0/topics/{dead}/redrive")
    assert isinstance(answer.pop("performance")["server_total_ms"], int | float)
    assert answer == {"topic": dead, "moved": 2, "skipped": 0, "next_from_seq": 2, "done": True}
    assert speak.state(dead)["count"] == 0
    jobs = claim(speak, path, 5)["claimed"]
    assert [(job["$seq"], job["deliveries"], job["data"]) for job in jobs] == [(3, 1, 1), (4, 1, 2)]
    assert jobs[0]["meta"] == {"m": 1} and "meta" not in jobs[1]


def test_which_dead_letters_go_back(speak, topic) -> None:
    """By tag, by meta, by queue; the others are skipped and stay."""
    dead = f"{topic}-dead"
    config = {"max_deliveries": 1, "dead_letter": dead}
    path, other = make(speak, topic, **config), make(speak, f"{topic}-2", **config)
    records = [
        {"data": 1, "tag": "c:7", "meta": {"kind": "mail"}},
        {"data": 2, "tag": "c:71", "meta": {"kind": "mail", "n": 1}},
        {"data": 3, "tag": "d", "meta": {"kind": "call"}},
    ]
    speak.ok("POST", path, {"records": records})
    kill(speak, path, 3)
    speak.append(f"{topic}-2", 4)
    kill(speak, other, 1)
    speak.append(dead, "no dead letter")

    def redrive(**body: object) -> tuple[int, int]:
        answer = speak.ok("POST", f"/v0/topics/{dead}/redrive", body)
        assert answer["done"]
        return answer["moved"], answer["skipped"]

    assert redrive(match="c:7", meta={"kind": "call"}) == (0, 5)
    assert redrive(match="c:7") == (1, 4)
    assert redrive(meta={"n": "1"}) == (0, 4)
    assert redrive(meta={"n": 1, "kind": "mail"}) == (1, 3)
    assert redrive(to=f"{topic}-3") == (0, 3)
    assert redrive(to=f"{topic}-2") == (1, 2)
    assert redrive(match=["tag", "Glob", "*"]) == (1, 1)
    assert [record["data"] for record in speak.diff(dead)["records"]] == ["no dead letter"]
    assert [job["data"] for job in claim(speak, path, 9)["claimed"]] == [1, 2, 3]
    assert [job["data"] for job in claim(speak, other, 9)["claimed"]] == [4]


def test_a_step_at_a_time(speak, topic) -> None:
    """`limit` records are looked at; `next_from_seq` goes on."""
    dead = f"{topic}-dead"
    path = make(speak, topic, 5, max_deliveries=1, dead_letter=dead)
    kill(speak, path, 5)
    moved, body = [], {"limit": 2}
    while True:
        answer = speak.ok("POST", f"/v0/topics/{dead}/redrive", body)
        moved.append(answer["moved"])
        body["from_seq"] = answer["next_from_seq"]
        if answer["done"]:
            break
    assert moved == [2, 2, 1]
    assert counts(speak, topic) == (5, 0, 5)


@pytest.mark.parametrize(
    "body",
    [
        {"limit": -1},
        {"from_seq": 1.5},
        {"from_seq": 1 << 64},
        {"match": 5},
        {"match": ["tag", "Like", "x"]},
        {"match": ["tag", "Glob", "x"]},
        {"meta": []},
        {"to": 5},
    ],
)
def test_bad_redrives(speak, topic, body) -> None:
    """400, before the 404."""
    speak.refused(400, "invalid_request", "POST", f"/v0/topics/{topic}/redrive", body)


def test_redrive_of_boxes(speak, topic) -> None:
    """The older words."""
    dead = f"{topic}-dead"
    path = make(speak, topic, 1, max_deliveries=1, dead_letter=dead)
    kill(speak, path, 1)
    answer = speak.ok("POST", f"/v0/boxes/{dead}/redrive", {})
    assert (answer["box"], answer["moved"]) == (dead, 1)
    speak.refused(404, "box_not_found", "POST", f"/v0/boxes/{topic}-absent/redrive", {})


# Keys


def test_scopes(speak_to, topic) -> None:
    """§0: claim and work need read and write; ack, nack and extend write; redrive admin too."""
    speak = speak_to(api_keys=KEYS)
    path = f"/v0/topics/{topic}"
    body = {"records": [{"data": 1}], "config": {"type": "queue"}}
    assert speak("POST", path, body, bearer("root")).status == 201
    held = {"node": "w", "seqs": [9]}
    calls = {
        ("POST", "claim"): ({"node": "w"}, {"read", "write"}),
        ("POST", "ack"): (held, {"write"}),
        ("POST", "nack"): (held, {"write"}),
        ("POST", "extend"): ({**held, "lease_ms": 100}, {"write"}),
        ("POST", "redrive"): ({}, {"write", "admin"}),
        ("HEAD", "work?node=w"): (None, {"read", "write"}),
    }
    keys = {
        "r": {"read"},
        "w": {"write"},
        "d": {"delete"},
        "a": {"admin"},
        "rw": {"read", "write"},
        "full": {"read", "write", "admin", "delete"},
    }
    for (method, call), (body, needed) in calls.items():
        assert speak(method, f"{path}/{call}", body).status == 401
        for key, scopes in keys.items():
            expected = 200 if needed <= scopes else 403
            reply = speak(method, f"{path}/{call}", body, bearer(key))
            assert reply.status == expected, (call, key)


def test_a_token_in_the_query_is_for_streams_alone(speak_to, topic) -> None:
    """§1.7: `?token=` works on work, and on no call."""
    speak = speak_to(api_keys=KEYS)
    path = f"/v0/topics/{topic}"
    body = {"records": [{"data": 1}], "config": {"type": "queue"}}
    assert speak("POST", path, body, bearer("root")).status == 201
    with speak.stream(work(path, query="&token=rw")) as stream:
        assert stream.next("job").data["$seq"] == 1
    assert speak("HEAD", work(path, query="&token=r")).status == 403
    assert speak("HEAD", work(path, query="&token=wrong")).status == 401
    for call in ("claim", "ack", "nack", "extend", "redrive"):
        reply = speak("POST", f"{path}/{call}?token=root", {"node": "w", "seqs": []})
        assert (reply.status, reply.error["code"]) == (401, "unauthorized")


def test_prefixes(speak_to, topic) -> None:
    """§1.7: 403 for names outside; dead letters go only where the key may write."""
    speak = speak_to(api_keys=KEYS)
    root = bearer("root")
    dead = f"dead-{topic}"
    names = (f"team-{topic}", f"other-{topic}")
    config = {"type": "queue", "max_deliveries": 1, "dead_letter": dead}
    for name in names:
        path = f"/v0/topics/{name}"
        assert speak("PUT", path, config, root).status == 201
        assert speak("POST", path, {"records": [{"data": 1}]}, root).status == 200
        for _ in range(2):
            speak("POST", f"{path}/claim", {"node": "w"}, root)
            speak("POST", f"{path}/nack", {"node": "w", "seqs": [1]}, root)
    other = f"/v0/topics/{names[1]}"
    for call in ("claim", "ack", "nack", "extend", "redrive"):
        reply = speak("POST", f"{other}/{call}", {"node": "w"}, bearer("team"))
        assert (reply.status, reply.error["code"]) == (403, "forbidden")
    assert speak("HEAD", work(other), None, bearer("team")).status == 403
    path = f"/v0/topics/{dead}/redrive"
    assert speak("POST", path, {}, bearer("team")).status == 403
    reply = speak("POST", path, {"to": names[1]}, bearer("dead"))
    assert (reply.status, reply.error["detail"]) == (403, {"topic": names[1]})
    answer = speak("POST", path, {}, bearer("dead")).json
    assert (answer["moved"], answer["skipped"], answer["done"]) == (1, 1, True)
    left = speak("POST", f"/v0/topics/{dead}/diff", {}, root).json["records"]
    assert [record["meta"]["$dead_letter_from"] for record in left] == [names[1]]


def test_streams_of_one_key(speak_to, topic) -> None:
    """§1.9: workers count against their key, and hold no in-flight slot."""
    cap = {"max_sse_connections_per_key": 1, "max_inflight_per_key": 1}
    speak = speak_to(api_keys="k1:rw,k2:rw,root", **cap)
    path = f"/v0/topics/{topic}"
    assert speak("PUT", path, {"type": "queue"}, bearer("root")).status == 201
    with speak.stream(work(path), **bearer("k1")) as stream:
        stream.next("retry")
        reply = speak("GET", work(path), None, bearer("k1"))
        assert (reply.status, reply.error["code"]) == (429, "throttled")
        assert "detail" not in reply.error
        assert speak("POST", f"{path}/claim", {"node": "w"}, bearer("k1")).status == 200
        with speak.stream(work(path), **bearer("k2")) as other:
            assert other.next("retry")


# Restarts


@pytest.mark.parametrize("durable", [False, True])
def test_leases_after_a_crash(servers, protocol, tmp_path, durable) -> None:
    """H12, H13: durable leases are held until their deadline, the others are gone."""
    server = servers.start(data=tmp_path)
    speak = servers.speaker(server, protocol)
    path = make(speak, "jobs", 4, durability="fsync", leases_durable=durable)
    leases = [job["lease_id"] for job in claim(speak, path, 3, lease_ms=LONG_MS)["claimed"]]
    speak.ok("POST", f"{path}/ack", {"node": "w", "seqs": [1]})
    with speak.stream(work(path, "pushed", f"&lease_ms={LONG_MS}")) as stream:
        stream.next("job")
        server.process.send_signal(signal.SIGKILL)
        server.process.wait()
    again = servers.speaker(servers.start(data=tmp_path), protocol)
    body = {"node": "w", "seqs": [2, 3], "lease_ids": leases[1:]}
    if durable:
        assert counts(again, "jobs") == (1, 2, 0)
        assert claimed_seqs(claim(again, path, 9, "other")) == [4]
        assert again.ok("POST", f"{path}/ack", body)["acked"] == 2
    else:
        assert counts(again, "jobs") == (3, 0, 0)
        assert again.ok("POST", f"{path}/ack", body)["skipped"] == [2, 3]
        assert claimed_seqs(claim(again, path, 9, "other")) == [2, 3, 4]


# Routers that feed a queue


def test_a_claim_has_what_routers_are_about_to_bring(speak, topic) -> None:
    """§9.1: feeding routers are drained first."""
    source = f"{topic}-source"
    path = make(speak, topic)
    speak.ok("PUT", f"/v0/routers/{topic}", {"source": source, "dest": topic})
    for n in range(1, 20):
        speak.append(source, n)
        assert [job["data"] for job in claim(speak, path)["claimed"]] == [n]


def test_a_worker_is_pushed_what_routers_bring(speak, topic) -> None:
    source = f"{topic}-source"
    path = make(speak, topic)
    speak.ok("PUT", f"/v0/routers/{topic}", {"source": source, "dest": topic})
    with speak.stream(work(path, query="&max=100")) as stream:
        for n in range(1, 20):
            speak.append(source, n)
            assert stream.next("job").data["data"] == n
