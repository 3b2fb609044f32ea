"""What requests may say beside the common cases: empty keys, the order of refusals, odd numbers."""

from __future__ import annotations

import pytest

RECORD = {"records": [{"data": 1}]}


@pytest.mark.parametrize("way", ["header", "body"])
def test_an_empty_key_is_no_key(speak, topic, way) -> None:
    """§3.5: else all who send an empty key would be taken for repeating each other."""
    headers = {"idempotency-key": ""} if way == "header" else {}
    body = RECORD if way == "header" else {**RECORD, "idempotency_key": ""}
    path = f"/v0/topics/{topic}"
    replies = [speak("POST", path, body, headers).json for _ in range(3)]
    assert [reply["first_seq"] for reply in replies] == [1, 2, 3]
    assert not any(reply["deduped"] for reply in replies)


def test_an_empty_key_of_a_body_leaves_the_header(speak, topic) -> None:
    """§3.5: the header counts where the body has no key."""
    body = {**RECORD, "idempotency_key": ""}
    path = f"/v0/topics/{topic}"
    first, again = (speak("POST", path, body, {"idempotency-key": "k"}).json for _ in range(2))
    assert (first["deduped"], again["deduped"], again["seqs"]) == (False, True, [1])


@pytest.mark.parametrize(
    ("body", "code"),
    [
        ({"records": [{"data": 1}] * 10_001}, "batch_too_large"),
        ({"records": [{"data": "x" * (1 << 20)}]}, "record_too_large"),
    ],
)
def test_records_are_looked_at_before_the_name(speak, body, code) -> None:
    """§3.5: record count, key length and record limits; then the name."""
    speak.refused(400, code, "POST", "/v0/topics/no%20good", body)
    speak.refused(404, "topic_not_found", "GET", "/v0/topics/no%20good")


@pytest.mark.parametrize("size", ["-1", "1_0", "+1", " 1", "1.0", "%D9%A3", "x", "9" * 30, ""])
def test_a_page_size_that_is_no_number_is_the_default(speak_to, topic, size) -> None:
    """§1.8: unparsable ⇒ the default."""
    speak = speak_to(page_size_default=2, page_size_max=4)
    for n in range(5):
        speak.ok("PUT", f"/v0/topics/{topic}-{n}")
    page = speak.ok("GET", f"/v0/topics?prefix={topic}-&page_size={size.replace(' ', '%20')}")
    assert len(page["topics"]) == 2


def test_a_null_in_a_config_is_nothing(speak, topic) -> None:
    """§1.1: `null` for an optional field = absent, in a config too."""
    nothing = dict.fromkeys(("type", "ttl_ms", "discard", "durable", "auto_create", "lease_ms"))
    answer = speak.ok("PUT", f"/v0/topics/{topic}", {**nothing, "cap_records": 7})
    assert (answer["config"]["type"], answer["config"]["cap_records"]) == ("log", 7)


def test_a_small_body_alone_is_a_setting(speak_to, topic) -> None:
    """§1.1: the one limit that existing deployments set; smaller than a record's limit."""
    speak = speak_to(body_bytes_max=1024)
    speak.ok("POST", f"/v0/topics/{topic}", RECORD)
    body = {"records": [{"data": "x" * 4096}]}
    speak.refused(413, "payload_too_large", "POST", f"/v0/topics/{topic}", body)
    assert speak.state(topic)["head_seq"] == 1


def test_caps_in_the_older_words(speak_to, topic) -> None:
    """§0.1: `max_topics` is `max_boxes` where a topic is a box."""
    speak = speak_to(max_topics=1)
    names = [reply["topic"] for reply in speak.ok("GET", "/v0/topics")["topics"]]
    for name in names:
        speak.ok("DELETE", f"/v0/topics/{name}")
    assert speak.ok("PUT", f"/v0/boxes/{topic}")["box"] == topic
    for words, cap in (("boxes", "max_boxes"), ("topics", "max_topics")):
        told = speak.refused(429, "throttled", "PUT", f"/v0/{words}/{topic}-2")
        assert told == {"limit": cap, "max": 1}


@pytest.mark.parametrize(
    ("text", "half"),
    [
        (r"\ud800", r"\ud800"),
        (r"ok \ud83d\ude00 \ude00", r"\ude00"),
        (r"\\\\ud800 \uDBFF\n", r"\uDBFF"),
        (r"\ud800\ud83d\ude00", r"\ud800"),
    ],
)
def test_half_of_a_surrogate_pair_is_named(speak, topic, text, half) -> None:
    """§1.1b: and where it is; a parser alone takes what follows for missing."""
    for method, path, body in (
        ("POST", f"/v0/topics/{topic}", f'{{"records":[{{"data":"{text}"}}]}}'),
        ("POST", f"/v0/topics/{topic}", f'{{"records":[{{"data":1,"tag":"{text}"}}]}}'),
        ("PUT", f"/v0/topics/{topic}", f'{{"dead_letter":"{text}"}}'),
        ("POST", "/v0/watch", f'{{"topics":{{"{text}":{{}}}}}}'),
    ):
        reply = speak(method, path, body.encode(), AS_JSON)
        assert (reply.status, reply.error["code"]) == (400, "invalid_request")
        place = body.rindex(half) if half != r"\ud800" else body.index(half)
        assert reply.error["message"].startswith(f"{half} at byte {place} of the body is half of")
    whole = rb'{"records":[{"data":"\ud83d\ude00 \\ud800"}]}'
    assert speak("POST", f"/v0/topics/{topic}", whole, AS_JSON).status == 201


AS_JSON = {"content-type": "application/json"}
BEYOND = (1 << 64) - 1


def test_numbers_are_told_as_they_were_sent(speak, topic) -> None:
    """§1.1e: a number beyond the last possible seq counts as that, and is shown as it came."""
    numbers = b"[1e3,1.0,-0,1E+2,0.10,123456789012345678901234567890,1e400]"
    body = b'{"records":[{"data":%b,"meta":{"n":%b}},{"data":-0,"meta":1.0}]}' % (numbers, numbers)
    assert speak("POST", f"/v0/topics/{topic}", body, AS_JSON).status == 201
    assert speak("POST", f"/v0/topics/{topic}/diff", {}).body.count(numbers) == 2
    told = speak.ok("POST", "/v0/watch", {"topics": {topic: {"from_seq": BEYOND}}})
    assert told["topics"][topic]["from_seq"] == BEYOND
    source = {"topic": topic, "max_records": BEYOND}
    sql = f"select seq from {topic}"
    declared = {"sources": [source], "dest": {"topic": f"{topic}-o"}, "sql": sql}
    told = speak.ok("PUT", f"/v0/pipelines/{topic}", declared)
    assert told["declaration"]["sources"][0]["max_records"] == BEYOND
    speak.ok("DELETE", f"/v0/pipelines/{topic}")
    append = {"records": [{"data": 1}], "expected_head_seq": BEYOND}
    for status, path, sent in (
        (409, f"/v0/topics/{topic}", append),
        (409, f"/v0/topics/{topic}/archived", {"epoch": BEYOND, "to_seq": 1}),
        (409, f"/v0/topics/{topic}-none", append),
        (400, f"/v0/topics/{topic}", {**append, "expected_head_seq": BEYOND + 1}),
    ):
        reply = speak("POST", path, sent)
        assert reply.status == status, reply
        assert str(BEYOND)[:-1] in reply.error["message"], reply
    router = {"source": topic, "dest": f"{topic}-d", "backfill": BEYOND}
    reply = speak("PUT", f"/v0/routers/{topic}", router)
    assert (reply.status, str(BEYOND) in reply.error["message"]) == (400, True)


@pytest.mark.parametrize(
    "name", ["Idempotency-Key", "Producer-Id", "Producer-Epoch", "Producer-Seq"]
)
def test_a_header_that_has_one_value_is_sent_once(speak, topic, name) -> None:
    producer = {"Producer-Id": "p", "Producer-Epoch": "0", "Producer-Seq": "0"}
    others = producer if name in producer else {}
    sent = {**others, name: "1", name.upper(): "1"}
    for _ in range(2):  # a head that repeats is known
        refused = speak("POST", f"/v0/topics/{topic}", RECORD, sent)
        assert (refused.status, refused.json["error"]["code"]) == (400, "invalid_request")
    speak.refused(404, "topic_not_found", "GET", f"/v0/topics/{topic}")
