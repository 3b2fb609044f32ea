"""Appends over the wire (native §3.5)."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.support.expected_answers import two_appended

JSON_TYPE = {"content-type": "application/json"}
# White space at the end makes a body large, and large ones are decoded another way.
SIZES = pytest.mark.parametrize("padding", [b"", b" " * 4_096], ids=["small", "large"])


def test_the_answer_of_a_creating_append(speak, topic) -> None:
    """§3.5: 201 iff created; every field; count is the batch's."""
    body = {"records": [{"data": 1}, {"data": 2}]}
    reply = speak("POST", f"/v0/topics/{topic}", body)
    assert reply.status == 201
    answer = reply.json
    performance = answer.pop("performance")
    assert isinstance(answer.pop("epoch"), int)
    assert answer == two_appended(topic)
    assert performance.keys() >= {"server_total_ms", "wal_append_ms", "fsync_ms"}
    second = speak("POST", f"/v0/topics/{topic}", body)
    assert (second.status, second.json["created"], second.json["seqs"]) == (200, False, [3, 4])


@pytest.mark.parametrize("durability", ["ephemeral", "memory", "disk", "fsync"])
def test_fsync_ms_is_zero_unless_it_was_waited_for(speak, topic, durability) -> None:
    """§1.4: exactly 0.0 unless the class is fsync, above 0 there; also in Server-Timing."""
    speak.ok("PUT", f"/v0/topics/{topic}", {"durability": durability})
    for _ in range(3):
        reply = speak("POST", f"/v0/topics/{topic}", {"records": [{"data": 1}]})
        fsync_ms = reply.json["performance"]["fsync_ms"]
        assert (fsync_ms > 0) if durability == "fsync" else (fsync_ms == 0.0)
        assert isinstance(reply.json["performance"]["wal_append_ms"], float)
        assert "server-timing" in reply.headers


@SIZES
def test_payloads_come_back_byte_for_byte(speak, topic, padding) -> None:
    """§1.1: key order, duplicate keys, number spelling and spaces are kept."""
    payloads = [
        b'{"z":1,"a":2,"z":3}',
        b'{ "spaced" : [ 1 , 2 ] }',
        b"1.0",
        b"1e2",
        b"123456789012345678901234567890",
        b'"\\u00e9\\ud83d\\ude00"',
        '"é😀"'.encode(),
        b"null",
        b"[]",
        b'"\\u0000"',
        b"-0.0",
    ]
    body = b'{"records":[' + b",".join(b'{"data":' + p + b"}" for p in payloads) + b"]}"
    assert speak("POST", f"/v0/topics/{topic}", body + padding, JSON_TYPE).status == 201
    found = speak("POST", f"/v0/topics/{topic}/diff", b"").body
    for payload in payloads:
        assert b'"data":' + payload in found, payload
    assert len(json.loads(found)["records"]) == len(payloads)


def test_a_record_has_the_keys_it_was_given(speak, topic) -> None:
    """§1.2: `$node` and `meta` only if there; `$tag` only when asked for; batch node, own node."""
    body = {
        "node": "batch",
        "records": [
            {"data": None},
            {"data": {"x": 1}, "tag": "t", "node": "own", "meta": {"k": "v"}},
            {"data": 3, "tag": None, "node": None, "meta": None},
            {"data": 4, "meta": "not an object"},
        ],
    }
    speak.ok("POST", f"/v0/topics/{topic}", body)
    records = speak.diff(topic, include_tags=True)["records"]
    stamps = {record.pop("$ts") for record in records}
    assert len(stamps) == 1  # a batch shares one
    assert records == [
        {"$seq": 1, "$node": "batch", "data": None},
        {"$seq": 2, "$node": "own", "$tag": "t", "data": {"x": 1}, "meta": {"k": "v"}},
        {"$seq": 3, "$node": "batch", "data": 3},
        {"$seq": 4, "$node": "batch", "data": 4, "meta": "not an object"},
    ]
    assert all("$tag" not in record for record in speak.diff(topic)["records"])


def test_return_seqs_is_a_matter_of_the_query(speak, topic) -> None:
    """§3.5: the query decides, a body field of that name is ignored."""
    body = {"records": [{"data": 1}], "return_seqs": False}
    assert speak.ok("POST", f"/v0/topics/{topic}", body)["seqs"] == [1]
    assert "seqs" not in speak.ok("POST", f"/v0/topics/{topic}?return_seqs=false", body)
    assert "seqs" not in speak.ok("POST", f"/v0/topics/{topic}?return_seqs=0", body)
    assert speak.ok("POST", f"/v0/topics/{topic}?return_seqs=no", body)["seqs"] == [4]


@pytest.mark.parametrize(
    "body",
    [
        {},
        {"records": []},
        {"records": None},
        {"records": {"data": 1}},
        {"records": [{}]},
        {"records": [{"tag": "x"}]},
        {"records": [1]},
        {"records": [{"data": 1, "tag": 5}]},
        {"records": [{"data": 1, "node": ["n"]}]},
        {"records": [{"data": 1}], "node": 1},
        {"records": [{"data": 1}], "idempotency_key": 1},
        {"records": [{"data": 1}], "create": "yes"},
        {"records": [{"data": 1}], "config": []},
        {"records": [{"data": 1}], "config": {"ttl_ms": -1}},
        {"records": [{"data": 1}], "expected_head_seq": -1},
        {"records": [{"data": 1}], "expected_head_seq": 1.5},
        [],
        "records",
    ],
)
def test_bad_bodies_are_refused_and_create_nothing(speak, topic, body) -> None:
    """§3.5, §1.1: missing or ill-typed fields: 400, before the topic is looked up."""
    small = speak("POST", f"/v0/topics/{topic}", body)
    assert (small.status, small.error["code"]) == (400, "invalid_request")
    padded = json.dumps(body).encode() + b" " * 4_096
    large = speak("POST", f"/v0/topics/{topic}", padded, JSON_TYPE)
    assert (large.status, large.error) == (400, small.error)
    speak.refused(404, "topic_not_found", "GET", f"/v0/topics/{topic}")


@pytest.mark.parametrize("body", [b"{", b'{"records":[{"data":1}]', b"\xff", b"nul", b"[" * 90_000])
def test_what_is_not_json_is_refused(speak, topic, body) -> None:
    """§1.1: malformed JSON: 400."""
    reply = speak("POST", f"/v0/topics/{topic}", body, JSON_TYPE)
    assert (reply.status, reply.error["code"]) == (400, "invalid_request")


@pytest.mark.parametrize("payload", [b'"\xff"', b'"\xed\xa0\x80"', b'{"a":"\xc0\xaf"}'])
@SIZES
def test_what_is_not_utf8_is_refused(speak, topic, payload, padding) -> None:
    """§1.1: a body that would poison every reader."""
    body = b'{"records":[{"data":' + payload + b"}]}" + padding
    reply = speak("POST", f"/v0/topics/{topic}", body, JSON_TYPE)
    assert (reply.status, reply.error["code"]) == (400, "invalid_request")


def test_one_bad_record_refuses_the_batch(speak, topic) -> None:
    """§3.5: atomic; no seq is consumed."""
    speak.append(topic, 1)
    body = {"records": [{"data": 2}, {"data": 3, "tag": "x" * 257}]}
    speak.refused(400, "invalid_request", "POST", f"/v0/topics/{topic}", body)
    assert speak.append(topic, 4)["first_seq"] == 2


def test_create_false_does_not_create(speak, topic) -> None:
    """§3.5: 404; inline `auto_create:false` says the same; `create:true` wins over it."""
    path = f"/v0/topics/{topic}"
    record = [{"data": 1}]
    speak.refused(404, "topic_not_found", "POST", path, {"records": record, "create": False})
    config = {"auto_create": False}
    speak.refused(404, "topic_not_found", "POST", path, {"records": record, "config": config})
    body = {"records": record, "config": config, "create": True}
    assert speak.ok("POST", path, body)["created"] is True
    assert speak.ok("POST", path, {"records": record, "create": False})["first_seq"] == 2


def test_an_inline_config_is_for_the_creating_append(speak, topic) -> None:
    """§3.5: applied only when this write creates."""
    speak.append(topic, 1, config={"cap_records": 5, "durability": "fsync"})
    speak.append(topic, 2, config={"cap_records": 1})
    config = speak.state(topic)["config"]
    assert (config["cap_records"], config["durability"]) == (5, "fsync")


def test_disable_backpressure_is_accepted(speak, topic) -> None:
    """§3.5: the field is part of the contract."""
    assert speak.append(topic, 1, disable_backpressure=True)["count"] == 1


def test_a_topic_that_rejects_when_full(speak, topic) -> None:
    """§3.5: 422 with its detail, nothing appended, no seq used; room makes it work again."""
    speak.ok("PUT", f"/v0/topics/{topic}", {"cap_records": 3, "discard": "reject"})
    speak.append(topic, 1, 2)
    body = {"records": [{"data": 3}, {"data": 4}]}
    detail = speak.refused(422, "topic_full", "POST", f"/v0/topics/{topic}", body)
    assert detail == {
        "topic": topic,
        "cap_records": 3,
        "cap_bytes": 0,
        "head_seq": 2,
        "earliest_seq": 1,
    }
    assert speak.state(topic)["count"] == 2
    assert speak.append(topic, 3)["first_seq"] == 3
    speak.ok("POST", f"/v0/topics/{topic}/delete", {"before_seq": 3})
    assert speak.ok("POST", f"/v0/topics/{topic}", body)["seqs"] == [4, 5]


def test_a_batch_that_can_never_fit(speak, topic) -> None:
    """§3.5: over a cap by itself: 400 `record_too_large`."""
    path = f"/v0/topics/{topic}"
    speak.ok("PUT", path, {"cap_records": 2, "cap_bytes": 10, "discard": "reject"})
    three = {"records": [{"data": 1}] * 3}
    speak.refused(400, "record_too_large", "POST", path, three)
    speak.refused(400, "record_too_large", "POST", path, {"records": [{"data": "x" * 9}]})
    assert speak.append(topic, "x" * 8)["count"] == 1


def test_a_topic_that_discards_the_old(speak, topic) -> None:
    """§3.5: always admits; a batch larger than the cap evicts part of itself."""
    speak.ok("PUT", f"/v0/topics/{topic}", {"cap_records": 3})
    assert speak.append(topic, 1, 2, 3, 4, 5)["seqs"] == [1, 2, 3, 4, 5]
    state = speak.state(topic)
    assert (state["earliest_seq"], state["count"]) == (3, 3)


def test_a_key_is_stored_once(speak, topic) -> None:
    """§3.5: a repeat answers as the first did, head included; its payload does not matter."""
    first = speak.append(topic, "a", "b", idempotency_key="k1")
    speak.append(topic, "c")
    reply = speak(
        "POST", f"/v0/topics/{topic}", {"records": [{"data": "other"}], "idempotency_key": "k1"}
    )
    again = reply.json
    assert (reply.status, again["deduped"], again["created"]) == (200, True, False)
    for field in ("seqs", "first_seq", "last_seq", "head_seq", "count"):
        assert again[field] == first[field], field
    assert speak.state(topic)["head_seq"] == 3


@pytest.mark.parametrize("count", [1, 2_000])
def test_the_header_is_used_when_the_body_has_no_key(speak, topic, count) -> None:
    """§3.5: `Idempotency-Key`."""
    path, body = f"/v0/topics/{topic}", {"records": [{"data": 1}] * count}
    assert speak.ok("POST", path, body, idempotency_key="h1")["deduped"] is False
    assert speak.ok("POST", path, body, idempotency_key="h1")["deduped"] is True
    both = {**body, "idempotency_key": "b1"}
    assert speak.ok("POST", path, both, idempotency_key="h1")["deduped"] is False
    assert speak.ok("POST", path, both)["deduped"] is True


def test_keys_belong_to_a_topic(speak, topic) -> None:
    """§3.5: another topic has never heard of it."""
    speak.append(topic, 1, idempotency_key="k")
    assert speak.append(f"{topic}-2", 1, idempotency_key="k")["deduped"] is False


def test_two_at_once_with_one_key_are_one_batch(speak, topic) -> None:
    """§3.5: concurrent same-key writes produce one batch."""
    speak.ok("PUT", f"/v0/topics/{topic}", {"durability": "fsync"})
    with ThreadPoolExecutor(8) as pool:
        keys = [f"k{n % 4}" for n in range(32)]
        answers = list(pool.map(lambda key: speak.append(topic, 1, idempotency_key=key), keys))
    assert sum(not answer["deduped"] for answer in answers) == 4
    assert speak.state(topic)["head_seq"] == 4


def test_a_refused_append_leaves_no_key_behind(speak, topic) -> None:
    """§3.5: a key is remembered with the data, or not at all."""
    path = f"/v0/topics/{topic}"
    speak.ok("PUT", path, {"cap_records": 1, "discard": "reject"})
    speak.append(topic, 1)
    body = {"records": [{"data": 2}], "idempotency_key": "k"}
    speak.refused(422, "topic_full", "POST", path, body)
    speak.ok("POST", f"{path}/delete", {"before_seq": 2})
    assert speak.ok("POST", path, body)["deduped"] is False


def test_a_key_is_forgotten_after_its_window(speak, topic) -> None:
    """§3.5: an entry lives while now - created is at most the window."""
    speak.ok("PUT", f"/v0/topics/{topic}", {"idempotency_window_ms": 1})
    assert speak.append(topic, 1, idempotency_key="k")["deduped"] is False
    while speak.append(topic, 1, idempotency_key="k")["deduped"]:
        pass
    assert speak.state(topic)["head_seq"] == 2


def test_writers_at_once_get_every_seq_once(speak, topic) -> None:
    """§3.5: contiguous seqs for each batch, and together no hole (A1, A2)."""
    speak.ok("PUT", f"/v0/topics/{topic}", {"durability": "fsync"})
    with ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(lambda n: speak.append(topic, *range(n % 5 + 1)), range(64)))
    for answer in answers:
        first, last = answer["first_seq"], answer["last_seq"]
        assert answer["seqs"] == list(range(first, last + 1))
    together = sorted(seq for answer in answers for seq in answer["seqs"])
    assert together == list(range(1, len(together) + 1))
    assert speak.state(topic)["head_seq"] == len(together)


def test_a_name_is_checked_where_it_is_created(speak) -> None:
    """§1.5, §3.5: a lazily created name too, after the records."""
    body = {"records": [{"data": 1}]}
    speak.refused(400, "invalid_request", "POST", "/v0/topics/no%20good", body)
    speak.refused(400, "invalid_request", "POST", "/v0/topics/ds:reserved", body)
