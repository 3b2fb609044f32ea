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
    """§3.5 [CODE]: record count, key length and record limits; then the name."""
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
    """The opening of native-api.md: `max_topics` is `max_boxes` where a topic is a box."""
    speak = speak_to(max_topics=1)
    names = [reply["topic"] for reply in speak.ok("GET", "/v0/topics")["topics"]]
    for name in names:
        speak.ok("DELETE", f"/v0/topics/{name}")
    assert speak.ok("PUT", f"/v0/boxes/{topic}")["box"] == topic
    for words, cap in (("boxes", "max_boxes"), ("topics", "max_topics")):
        told = speak.refused(429, "throttled", "PUT", f"/v0/{words}/{topic}-2")
        assert told == {"limit": cap, "max": 1}
