"""Deletes of records over the wire (native §5)."""

from __future__ import annotations

import pytest

from tests.support.seqs import json_seqs


@pytest.fixture
def chat(speak, topic) -> str:
    """Seven records with tags."""
    tags = ["chat-42:a", "chat-42:b", "chat-420:x", None, "msg-1", "msg-1", "chat-42:a"]
    records = [{"data": n, "tag": tag} for n, tag in enumerate(tags, start=1)]
    speak.ok("POST", f"/v0/topics/{topic}", {"records": records})
    return topic


def delete(speak, topic: str, **body: object):
    return speak.ok("POST", f"/v0/topics/{topic}/delete", body)


def left(speak, topic: str) -> list[int]:
    return json_seqs(speak.diff(topic))


def test_the_answer(speak, chat) -> None:
    """§5: every field."""
    answer = delete(speak, chat, before_seq=3)
    assert isinstance(answer.pop("performance")["server_total_ms"], float)
    assert answer == {
        "topic": chat,
        "deleted": 2,
        "earliest_seq": 3,
        "head_seq": 7,
        "count": 5,
        "bytes": 5,
    }


def test_before_a_seq(speak, chat) -> None:
    """§5: below it; 0 and 1 delete nothing; beyond the head is the head + 1."""
    assert delete(speak, chat, before_seq=0)["deleted"] == 0
    assert delete(speak, chat, before_seq=1)["deleted"] == 0
    assert delete(speak, chat, before_seq=4)["deleted"] == 3
    assert delete(speak, chat, before_seq=4)["deleted"] == 0
    assert left(speak, chat) == [4, 5, 6, 7]
    emptied = delete(speak, chat, before_seq=2**64 - 1)
    assert (emptied["deleted"], emptied["count"], emptied["bytes"]) == (4, 0, 0)
    assert emptied["earliest_seq"] == 8
    assert speak.append(chat, 8)["first_seq"] == 8
    assert left(speak, chat) == [8]


@pytest.mark.parametrize(
    ("match", "deleted"),
    [
        (["tag", "Eq", "msg-1"], [5, 6]),
        ("msg-1", [5, 6]),
        (["tag", "Glob", "chat-42:*"], [1, 2, 7]),
        ("chat-42:*", [1, 2, 7]),
        (["tag", "Glob", "chat-42*"], [1, 2, 3, 7]),
        (["tag", "Glob", "*"], [1, 2, 3, 5, 6, 7]),
        ("*", [1, 2, 3, 5, 6, 7]),
        (["tag", "Eq", "chat-42:*"], []),
        (["tag", "Eq", ""], []),
        ("nothing", []),
        (["tag", "Glob", "msg-1**"], []),
    ],
)
def test_by_tag(speak, chat, match, deleted) -> None:
    """§5: Eq is exact, Glob a prefix, a bare string either; untagged never match."""
    assert delete(speak, chat, match=match)["deleted"] == len(deleted)
    assert left(speak, chat) == [seq for seq in range(1, 8) if seq not in deleted]


def test_both_is_and(speak, chat) -> None:
    """§5: the floor does not move, so older records that do not match stay."""
    answer = delete(speak, chat, match=["tag", "Glob", "chat-42:*"], before_seq=3)
    assert (answer["deleted"], answer["earliest_seq"]) == (2, 3)
    assert left(speak, chat) == [3, 4, 5, 6, 7]
    assert delete(speak, chat, match="msg-1", before_seq=6)["deleted"] == 1
    assert left(speak, chat) == [3, 4, 6, 7]


def test_the_front_record_by_tag_moves_the_earliest(speak, chat) -> None:
    """§5: earliest advances past it, and past what was deleted behind it."""
    delete(speak, chat, match=["tag", "Eq", "chat-42:b"])
    assert speak.state(chat)["earliest_seq"] == 1
    assert delete(speak, chat, match=["tag", "Eq", "chat-42:a"])["earliest_seq"] == 3


def test_it_is_about_now(speak, chat) -> None:
    """§5: never affects later writes."""
    delete(speak, chat, match="msg-*")
    speak.ok("POST", f"/v0/topics/{chat}", {"records": [{"data": 8, "tag": "msg-1"}]})
    assert left(speak, chat) == [1, 2, 3, 4, 7, 8]


def test_it_is_silent(speak, chat) -> None:
    """§5: no tombstone; the cursor moves over it."""
    delete(speak, chat, before_seq=7)
    page = speak.diff(chat)
    assert (page["tombstone"], page["next_from_seq"]) == (None, 7)


def test_a_delete_then_a_cap_still_tombstones(speak, topic) -> None:
    """B6."""
    speak.ok("PUT", f"/v0/topics/{topic}", {"cap_records": 3})
    speak.append(topic, 1, 2)
    delete(speak, topic, before_seq=2)
    speak.append(topic, 3, 4, 5, 6)
    page = speak.diff(topic, 1)
    assert page["tombstone"]["reason"] == "cap"
    assert json_seqs(page) == [4, 5, 6]


@pytest.mark.parametrize(
    "body",
    [
        {},
        {"before_seq": None, "match": None},
        {"before_seq": -1},
        {"before_seq": "3"},
        {"match": 5},
        {"match": []},
        {"match": ["tag", "Eq"]},
        {"match": ["tag", "Eq", "a", "b"]},
        {"match": ["node", "Eq", "a"]},
        {"match": ["tag", "Like", "a"]},
        {"match": ["tag", "Glob", "a"]},
        {"match": ["tag", "Eq", 5]},
    ],
)
def test_bad_bodies(speak, topic, body) -> None:
    """§5: 400, checked before the topic is looked up."""
    speak.refused(400, "invalid_request", "POST", f"/v0/topics/{topic}/delete", body)


def test_an_absent_topic(speak, topic) -> None:
    """§5: 404, and it is not created."""
    for _ in range(2):
        path = f"/v0/topics/{topic}/delete"
        detail = speak.refused(404, "topic_not_found", "POST", path, {"before_seq": 1})
        assert detail == {"topic": topic}
