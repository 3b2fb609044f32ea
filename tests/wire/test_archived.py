"""How far a topic is archived, over the wire, and topics that wait for it."""

from __future__ import annotations

import pytest

KEPT = {"cap_records": 2, "retain_until_archived": True}


def archived(speak, topic: str, to_seq: int, epoch: int | None = None):
    epoch = speak.state(topic)["epoch"] if epoch is None else epoch
    return speak.ok("POST", f"/v0/topics/{topic}/archived", {"epoch": epoch, "to_seq": to_seq})


@pytest.mark.parametrize(("plural", "noun"), [("topics", "topic"), ("boxes", "box")])
def test_the_answer_and_the_state(speak, topic, plural: str, noun: str) -> None:
    speak.append(topic, 1, 2, 3)
    path = f"/v0/{plural}/{topic}"
    state = speak.ok("GET", path)
    assert not {"archived_seq", "overtaken_seq"} & state.keys()
    answer = speak.ok("POST", f"{path}/archived", {"epoch": state["epoch"], "to_seq": 2})
    assert isinstance(answer.pop("performance")["server_total_ms"], float)
    assert answer == {noun: topic, "epoch": state["epoch"], "archived_seq": 2, "head_seq": 3}
    lower = speak.ok("POST", f"{path}/archived", {"epoch": state["epoch"], "to_seq": 1})
    assert lower["archived_seq"] == 2
    assert speak.ok("GET", path)["archived_seq"] == 2


def test_what_is_refused(speak, topic) -> None:
    speak.append(topic, 1, 2, 3)
    path, epoch = f"/v0/topics/{topic}/archived", speak.state(topic)["epoch"]
    wrong = {"epoch": epoch + 1, "to_seq": 1}
    detail = speak.refused(409, "epoch_mismatch", "POST", path, wrong)
    assert detail == {"topic": topic, "epoch": epoch}
    beyond = {"epoch": epoch, "to_seq": 4}
    detail = speak.refused(400, "invalid_request", "POST", path, beyond)
    assert detail == {"topic": topic, "head_seq": 3}
    for body in (
        {},
        {"epoch": epoch},
        {"to_seq": 1},
        {"epoch": epoch, "to_seq": -1},
        {"epoch": epoch, "to_seq": "1"},
        {"epoch": epoch, "to_seq": 2**64},
        [],
    ):
        speak.refused(400, "invalid_request", "POST", path, body)
    absent = f"/v0/topics/{topic}-absent/archived"
    speak.refused(404, "topic_not_found", "POST", absent, {"epoch": 1, "to_seq": 0})
    assert "archived_seq" not in speak.state(topic)


def test_a_topic_waits_and_is_overtaken(speak, topic) -> None:
    config = speak.ok("PUT", f"/v0/topics/{topic}", KEPT)["config"]
    assert (config["retain_until_archived"], config["retain_bytes_max"]) == (True, 0)
    speak.append(topic, 1, 2, 3, 4)
    assert speak.state(topic)["earliest_seq"] == 1
    archived(speak, topic, 1)
    assert speak.state(topic)["earliest_seq"] == 2
    speak.ok("PUT", f"/v0/topics/{topic}", {**KEPT, "retain_bytes_max": 2})
    speak.append(topic, 5, 6)
    state = speak.state(topic)
    assert (state["earliest_seq"], state["archived_seq"], state["overtaken_seq"]) == (3, 1, 2)
    tombstone = speak.diff(topic)["tombstone"]
    assert (tombstone["gap_to"], tombstone["reason"]) == (2, "cap")


def test_the_echo_has_it_only_where_it_is_set(speak, topic) -> None:
    path = f"/v0/topics/{topic}"
    assert len(speak.ok("PUT", path, {})["config"]) == 17
    off = {"retain_until_archived": False, "retain_bytes_max": 0}
    assert len(speak.ok("PUT", path, off)["config"]) == 17
    bounded = speak.ok("PUT", path, {"retain_bytes_max": 7})["config"]
    assert (bounded["retain_until_archived"], bounded["retain_bytes_max"]) == (False, 7)
    assert speak.state(topic)["config"] == bounded
    for wrong in ({"retain_until_archived": 1}, {"retain_bytes_max": -1}):
        speak.refused(400, "invalid_request", "PUT", path, wrong)


def test_it_needs_the_scope_of_a_config(servers) -> None:
    server = servers.with_settings(api_keys="root-key,w:rw+d,a:a,mine:a:t,yours:a:u")
    speak = servers.speaker(server, "h1")
    root = {"Authorization": "Bearer root-key"}
    speak.ok("POST", "/v0/topics/t", {"records": [{"data": 1}]}, **root)
    epoch = speak.ok("GET", "/v0/topics/t", **root)["epoch"]
    body = {"epoch": epoch, "to_seq": 1}
    refused = speak("POST", "/v0/topics/t/archived", body, {"authorization": "Bearer w"})
    assert refused.status == 403
    for key in ("a", "mine"):
        speak.ok("POST", "/v0/topics/t/archived", body, Authorization=f"Bearer {key}")
    other = speak("POST", "/v0/topics/t/archived", body, {"authorization": "Bearer yours"})
    assert other.status == 403, "a key is for the names it begins"
