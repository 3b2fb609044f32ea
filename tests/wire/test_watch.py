"""Watch sessions and their SSE streams (native §7)."""

from __future__ import annotations

import base64
import json
import re
import time

import pytest

from tests.support.seqs import json_seqs

JSON_WANTED = {"accept": "application/json"}


def watch(speak, topics: dict, query: str = "", **fields: object):
    return speak.ok("POST", f"/v0/watch{query}", {"topics": topics, **fields})


def id_of(event) -> dict:
    padded = event.id + "=" * (-len(event.id) % 4)
    return json.loads(base64.urlsafe_b64decode(padded))


# Sessions


def test_the_answer_of_a_session(speak, topic) -> None:
    """§7.1: every field; `wid` has 26 characters; `tail` resolves to the head."""
    speak.append(topic, 1, 2)
    speak.append(f"{topic}-2", 1)
    answer = watch(speak, {topic: {"from_seq": 1}, f"{topic}-2": {"tail": True}})
    assert re.fullmatch(r"wid_[A-Za-z0-9_-]{22}", answer["wid"])
    assert answer["stream_url"] == f"/v0/watch/{answer['wid']}"
    assert answer["session_ttl_ms"] == 300_000
    assert isinstance(answer["performance"]["server_total_ms"], int | float)
    expected = {
        topic: {"from_seq": 1, "head_seq": 2, "earliest_seq": 1},
        f"{topic}-2": {"from_seq": 1, "head_seq": 1, "earliest_seq": 1},
    }
    for name, fields in expected.items():
        assert {k: answer["topics"][name][k] for k in fields} == fields
        assert answer["topics"][name]["epoch"] == speak.state(name)["epoch"]


def test_two_sessions_have_two_wids(speak, topic) -> None:
    """§7.1: 16 random bytes."""
    speak.append(topic, 1)
    assert len({watch(speak, {topic: {}})["wid"] for _ in range(50)}) == 50


@pytest.mark.parametrize(
    "body",
    [
        {},
        {"topics": {}},
        {"topics": []},
        {"topics": {"t": 5}},
        {"topics": {"t": {"from_seq": -1}}},
        {"topics": {"t": {}}, "consistency": "linear"},
        {"topics": {"t": {}}, "limit": -1},
        {"topics": {"t": {}}, "node": 5},
        {"topics": {f"t{n}": {} for n in range(257)}},
    ],
)
def test_bad_sessions(speak, body) -> None:
    """§7.1: 400; at most 256 topics; the 404 of an unknown topic comes after."""
    speak.refused(400, "invalid_request", "POST", "/v0/watch", body)


def test_unknown_topics(speak, topic) -> None:
    """§7.1: 404, unless lenient: then they are dropped silently."""
    speak.append(topic, 1)
    topics = {topic: {}, f"{topic}-absent": {}}
    detail = speak.refused(404, "topic_not_found", "POST", "/v0/watch", {"topics": topics})
    assert detail == {"topic": f"{topic}-absent"}
    for query in ("?lenient=true", "?lenient=1"):
        assert watch(speak, topics, query)["topics"].keys() == {topic}
    speak.refused(404, "topic_not_found", "GET", f"/v0/topics/{topic}-absent")


def test_unknown_keys_of_a_topic_are_ignored(speak, topic) -> None:
    """§7.1: unknown keys of a topic, such as `{"from":"tail"}`, are ignored."""
    speak.append(topic, 1)
    assert watch(speak, {topic: {"from": "tail"}})["topics"][topic]["from_seq"] == 0


def test_strong_needs_a_disk(speak, topic) -> None:
    """§7.1: strong on an `ephemeral` topic is 400."""
    speak.ok("PUT", f"/v0/topics/{topic}", {"durability": "ephemeral"})
    body = {"topics": {topic: {}}, "consistency": "strong"}
    speak.refused(400, "invalid_request", "POST", "/v0/watch", body)
    assert watch(speak, {topic: {}}, consistency="eventual")["wid"]


def test_the_check_order_of_a_stream(speak, topic) -> None:
    """§7.2: Accept 406, then the wid 404."""
    speak.append(topic, 1)
    url = watch(speak, {topic: {}})["stream_url"]
    speak.refused(406, "not_acceptable", "GET", url, accept="application/json")
    speak.refused(406, "not_acceptable", "GET", "/v0/watch/wid_x", accept="text/html")
    unknown = "/v0/watch/wid_" + "A" * 22
    speak.refused(404, "not_found", "GET", unknown, accept="text/event-stream")
    speak.refused(404, "not_found", "GET", unknown)


@pytest.mark.parametrize("accept", ["*/*", "text/html, text/event-stream;q=0.5", "text/*;q=1, */*"])
def test_what_is_accepted(speak, topic, accept) -> None:
    """§7.2: `text/event-stream` or `*/*` anywhere in it."""
    speak.append(topic, 1)
    url = watch(speak, {topic: {}})["stream_url"]
    with speak.stream(url, accept=accept) as stream:
        assert stream.status == 200


# Streams


def test_a_backlog_and_then_live(speak, topic) -> None:
    """§7.3: the headers, `retry` first, `record` then `caught-up`, for each live batch too."""
    speak.append(topic, "a", "b")
    url = watch(speak, {topic: {}})["stream_url"]
    with speak.stream(url) as stream:
        assert stream.status == 200
        assert stream.headers["content-type"] == "text/event-stream"
        assert stream.headers["cache-control"] == "no-store"
        assert stream.headers["x-accel-buffering"] == "no"
        events = stream.until("caught-up")
        assert events[0].text == "retry: 2000"
        assert [event.event for event in events] == ["retry", "record", "caught-up"]
        record = events[1]
        assert json_seqs(record.data) == [1, 2]
        rest = {k: v for k, v in record.data.items() if k != "records"}
        assert {k: rest[k] for k in ("topic", "from_seq", "to_seq", "head_seq")} == {
            "topic": topic,
            "from_seq": 0,
            "to_seq": 2,
            "head_seq": 2,
        }
        assert events[2].data["head_seq"] == 2
        for n in (3, 4):
            speak.append(topic, n)
            events = stream.until("caught-up")
            assert [event.event for event in events] == ["record", "caught-up"]
            assert (json_seqs(events[0].data), events[1].data["head_seq"]) == ([n], n)


def test_the_bytes_of_a_frame(speak, topic) -> None:
    """§1.1, §7.3: compact JSON on one line, `event: x` with one blank, an id on each."""
    speak.append(topic, 1)
    url = watch(speak, {topic: {}})["stream_url"]
    with speak.stream(url) as stream:
        record = stream.next("record")
        caught_up = stream.next("caught-up")
    assert '"$seq":1,' in record.text and f'"topic":"{topic}"' in record.text
    assert "event: record" in record.text.split("\n")
    assert record.id and caught_up.id
    assert len(record.text.split("\n")) == 3


def test_line_breaks_in_a_payload_do_not_break_a_frame(speak, topic) -> None:
    """§7.3: raw CR and LF between tokens become blanks."""
    body = b'{"records":[{"data":{\n"a":\r\n1,\r"b": "x\\ny"}}]}'
    speak("POST", f"/v0/topics/{topic}", body, {"content-type": "application/json"})
    with speak.stream(watch(speak, {topic: {}})["stream_url"]) as stream:
        assert stream.next("record").data["records"][0]["data"] == {"a": 1, "b": "x\ny"}


def test_tail_is_only_what_comes(speak, topic) -> None:
    """§7.3."""
    speak.append(topic, 1, 2)
    with speak.stream(watch(speak, {topic: {"tail": True}})["stream_url"]) as stream:
        assert [e.event for e in stream.until("caught-up")] == ["retry", "caught-up"]
        speak.append(topic, 3)
        assert json_seqs(stream.next("record").data) == [3]


def test_what_a_watch_may_leave_out(speak, topic) -> None:
    """§7.1, §7.3: include_data:false drops `data` only; tags and meta by request."""
    record = {"data": 1, "tag": "t", "meta": {"m": 1}, "node": "n"}
    speak.ok("POST", f"/v0/topics/{topic}", {"records": [record]})

    def keys(**fields: object) -> set[str]:
        with speak.stream(watch(speak, {topic: {}}, **fields)["stream_url"]) as stream:
            return set(stream.next("record").data["records"][0])

    assert keys() == {"$seq", "$ts", "$node", "data", "meta"}
    assert keys(include_data=False) == {"$seq", "$ts", "$node", "meta"}
    assert keys(include_tags=True, include_meta=False) == {"$seq", "$ts", "$node", "$tag", "data"}


def test_own_records_move_the_cursor_only(speak, topic) -> None:
    """§7.3: no `record` frame when all was filtered, but `caught-up`."""
    speak.append(topic, 1, node="own")
    url = watch(speak, {topic: {}}, node=["own"])["stream_url"]
    with speak.stream(url) as stream:
        events = stream.until("caught-up")
        assert [event.event for event in events] == ["retry", "caught-up"]
        assert id_of(events[-1])[topic] == 1
        speak.append(topic, 2, node="other")
        record = stream.next("record")
        assert (json_seqs(record.data), record.data["to_seq"]) == ([2], 2)


def test_batches_are_bounded(speak, topic) -> None:
    """§7.1: `limit` and `max_batch_bytes` bound a frame, and nothing is lost."""
    speak.append(topic, *("x" * 100 for _ in range(25)))
    with speak.stream(watch(speak, {topic: {}}, limit=10)["stream_url"]) as stream:
        frames = stream.until("caught-up")[1:-1]
    assert [len(json_seqs(frame.data)) for frame in frames] == [10, 10, 5]
    with speak.stream(watch(speak, {topic: {}}, max_batch_bytes=500)["stream_url"]) as stream:
        frames = stream.until("caught-up")[1:-1]
    assert [seq for frame in frames for seq in json_seqs(frame.data)] == list(range(1, 26))
    assert max(len(json_seqs(frame.data)) for frame in frames) <= 5


def test_many_topics_on_one_stream(speak, topic) -> None:
    """§7.3, §7.4: in the order of their names; each id covers all of them."""
    names = [f"{topic}-{end}" for end in "cab"]
    for name in names:
        speak.append(name, name)
    url = watch(speak, {name: {} for name in names})["stream_url"]
    with speak.stream(url) as stream:
        seen = []
        while len([e for e in seen if e.event == "caught-up"]) < 3:
            seen.append(next(stream.events()))
        records = [event for event in seen if event.event == "record"]
        assert [event.data["topic"] for event in records] == sorted(names)
        assert {k for k in id_of(seen[-1]) if k != "$e"} == set(names)
        assert {k: v for k, v in id_of(seen[-1]).items() if k != "$e"} == dict.fromkeys(names, 1)
        speak.append(names[0], "more")
        assert stream.next("record").data["topic"] == names[0]


def test_ids_carry_epochs(speak, topic) -> None:
    """§7.4: one key more, `$e`; base64url without padding, keys sorted, compact."""
    speak.append(topic, 1)
    with speak.stream(watch(speak, {topic: {}})["stream_url"]) as stream:
        event = stream.next("record")
    assert re.fullmatch(r"[A-Za-z0-9_-]+", event.id)
    assert id_of(event) == {topic: 1, "$e": {topic: speak.state(topic)["epoch"]}}


def test_more_topics_than_fit_an_id(speak, topic) -> None:
    """§7.4: above 64 topics the id is an opaque `cp_…`, and resumes as well."""
    names = [f"{topic}-{n}" for n in range(65)]
    for name in names:
        speak.append(name, 1)
    session = watch(speak, {name: {} for name in names})
    with speak.stream(session["stream_url"]) as stream:
        seen = [next(stream.events()) for _ in range(1 + 2 * 65)]
    assert all(event.id.startswith("cp_") for event in seen[1:])
    first = next(event for event in seen if event.event == "record")
    with speak.stream(session["stream_url"], last_event_id=first.id) as stream:
        again = [next(stream.events()) for _ in range(1 + 64)]
    redelivered = [e.data["topic"] for e in again if e.event == "record"]
    assert first.data["topic"] not in redelivered


# Resuming


def test_a_session_remembers_its_cursors(speak, topic) -> None:
    """§7.4: resuming with the current id redelivers nothing and still reaches caught-up."""
    speak.append(topic, 1, 2, 3)
    url = watch(speak, {topic: {}})["stream_url"]
    with speak.stream(url) as stream:
        last = stream.until("caught-up")[-1]
    with speak.stream(url, last_event_id=last.id) as stream:
        assert [e.event for e in stream.until("caught-up")] == ["retry", "caught-up"]


def event_id(**seqs: int) -> str:
    return base64.urlsafe_b64encode(json.dumps(seqs).encode()).decode().rstrip("=")


def test_an_id_may_only_rewind(speak, topic) -> None:
    """§7.4: to 1 redelivers 2 and 3, not 1; a higher one is not believed."""
    speak.append(topic, 1, 2, 3)
    url = watch(speak, {topic: {}})["stream_url"]
    with speak.stream(url) as stream:
        stream.until("caught-up")
    with speak.stream(url, last_event_id=event_id(**{topic: 1})) as stream:
        assert json_seqs(stream.next("record").data) == [2, 3]
        stream.next("caught-up")
    # Until the server has noticed that nobody listens, it would deliver the next one there.
    while speak("GET", "/v0/metrics", None, JSON_WANTED).json["sse_connections"]:
        pass
    speak.append(topic, 4)
    with speak.stream(url, last_event_id=event_id(**{topic: 99, "unknown": 5})) as stream:
        assert json_seqs(stream.next("record").data) == [4]


@pytest.mark.parametrize("bad", ["!!!", "AAAA", "cp_none", "bnVsbA", "W10", "x" * 2_000])
def test_undecodable_ids_are_ignored(speak, topic, bad) -> None:
    """§7.4."""
    speak.append(topic, 1)
    url = watch(speak, {topic: {}})["stream_url"]
    with speak.stream(url, last_event_id=bad) as stream:
        assert json_seqs(stream.next("record").data) == [1]


def test_an_id_of_a_former_topic(speak, topic) -> None:
    """§7.4, §12: the epoch in it does not match: announced, and read from the start."""
    speak.append(topic, 1, 2, 3)
    session = watch(speak, {topic: {}, f"{topic}-other": {}}, "?lenient=true")
    with speak.stream(session["stream_url"]) as stream:
        last = stream.until("caught-up")[-1]
    speak.ok("DELETE", f"/v0/topics/{topic}")
    speak.append(topic, "new1", "new2", "new3", "new4")
    url = watch(speak, {topic: {"from_seq": 3}})["stream_url"]
    with speak.stream(url, last_event_id=last.id) as stream:
        events = stream.until("caught-up")
    assert [event.event for event in events] == ["retry", "tombstone", "record", "caught-up"]
    assert json_seqs(events[2].data) == [1, 2, 3, 4]


def test_a_watch_of_a_former_epoch(speak, topic) -> None:
    """§12: `epoch` in a watch request; a mismatch gives a tombstone."""
    speak.append(topic, 1, 2)
    epoch = speak.state(topic)["epoch"]
    speak.ok("DELETE", f"/v0/topics/{topic}")
    speak.append(topic, "a", "b", "c")
    url = watch(speak, {topic: {"from_seq": 2, "epoch": epoch}})["stream_url"]
    with speak.stream(url) as stream:
        assert stream.until("record")[-2].event == "tombstone"


def test_a_new_session_from_an_id(speak, topic) -> None:
    """§7.3: `cursor` in the request; what it does not name starts where the body says."""
    speak.append(topic, 1, 2, 3)
    speak.append(f"{topic}-2", 1)
    with speak.stream(watch(speak, {topic: {}}, limit=2)["stream_url"]) as stream:
        first = stream.next("record")
    session = watch(speak, {topic: {}, f"{topic}-2": {}}, cursor=first.id)
    with speak.stream(session["stream_url"]) as stream:
        assert json_seqs(stream.until("record", topic=topic)[-1].data) == [3]
        assert json_seqs(stream.until("record", topic=f"{topic}-2")[-1].data) == [1]
    body = {"topics": {topic: {}}, "cursor": "!!!"}
    speak.refused(400, "invalid_request", "POST", "/v0/watch", body)


# Loss and ends


def test_a_tombstone_frame(speak, topic) -> None:
    """§7.3: `from_seq_too_old` on connect; the cursor is gap_to; no missed_estimate."""
    speak.ok("PUT", f"/v0/topics/{topic}", {"cap_records": 2})
    speak.append(topic, 1, 2, 3, 4, 5)
    with speak.stream(watch(speak, {topic: {}})["stream_url"]) as stream:
        events = stream.until("caught-up")
    assert [event.event for event in events] == ["retry", "tombstone", "record", "caught-up"]
    tombstone = events[1]
    assert {k: v for k, v in tombstone.data.items() if k != "epoch"} == {
        "topic": topic,
        "reason": "from_seq_too_old",
        "gap_from": 1,
        "gap_to": 3,
        "earliest_seq": 4,
        "head_seq": 5,
    }
    assert id_of(tombstone)[topic] == 3
    assert json_seqs(events[2].data) == [4, 5]


def test_deleting_a_topic_tells_its_watchers(speak, topic) -> None:
    """§7.3: at once, without another wake; the other topics go on; then the stream ends.

    The head is the real one, as documented.
    """
    other = f"{topic}-other"
    speak.append(topic, 1)
    speak.append(other, 1)
    url = watch(speak, {topic: {}, other: {}}, heartbeat_ms=60_000)["stream_url"]
    with speak.stream(url) as stream:
        stream.until("caught-up", topic=other)
        speak.ok("DELETE", f"/v0/topics/{topic}")
        gone = stream.next("topic-deleted")
        assert '"reason":"deleted"' in gone.text
        assert {k: gone.data[k] for k in ("topic", "head_seq", "reason")} == {
            "topic": topic,
            "head_seq": 1,
            "reason": "deleted",
        }
        speak.append(other, 2)
        assert stream.next("record").data["topic"] == other
        speak.ok("DELETE", f"/v0/topics/{other}")
        assert stream.next("topic-deleted").data["topic"] == other
        assert list(stream.events()) == []


def test_the_older_words_on_a_stream(speak, topic) -> None:
    """The opening: `boxes` in the body, `box` in the frames, `event: box-deleted`."""
    speak.append(topic, 1)
    answer = speak.ok("POST", "/v0/watch", {"boxes": {topic: {"from_seq": 0}}})
    assert answer["boxes"][topic]["head_seq"] == 1
    with speak.stream(answer["stream_url"]) as stream:
        assert stream.next("record").data["box"] == topic
        speak.ok("DELETE", f"/v0/topics/{topic}")
        assert stream.next("box-deleted").data["box"] == topic


# Wildcards


def test_a_wildcard_follows_topics_created_later(speak, topic) -> None:
    """§12: `"orders:*"`."""
    speak.append(f"{topic}:a", "old")
    speak.append(f"{topic}-not", "other")
    url = watch(speak, {f"{topic}:*": {}})["stream_url"]
    with speak.stream(url) as stream:
        first = stream.next("record")
        assert first.data["topic"] == f"{topic}:a"
        stream.next("caught-up")
        speak.append(f"{topic}-not", "other")
        speak.append(f"{topic}:b", "new")
        later = stream.next("record")
        assert (later.data["topic"], json_seqs(later.data)) == (f"{topic}:b", [1])
        assert later.data["records"][0]["data"] == "new"


# Heartbeats


def test_heartbeats_carry_the_time(speak_to, topic) -> None:
    """§7.3, §7.5: `: hb <ms>` when idle, without an id."""
    speak = speak_to(variables=FAST_HEARTBEATS)
    speak.append(topic, 1)
    with speak.stream(watch(speak, {topic: {}}, heartbeat_ms=20)["stream_url"]) as stream:
        stream.next("caught-up")
        beats = [stream.next("comment").text for _ in range(3)]
    stamps = [int(re.fullmatch(r": hb (\d{13})", beat)[1]) for beat in beats]
    assert stamps == sorted(stamps)
    assert abs(stamps[-1] - time.time() * 1_000) < 60_000


FAST_HEARTBEATS = {"HEADRACE_TEST_MIN_HEARTBEAT_MS": "10"}


def test_a_stream_resumes_what_its_session_was_given(speak, topic) -> None:
    """§7.4: what was appended while nobody listened is delivered on the next stream."""
    speak.append(topic, 1)
    url = watch(speak, {topic: {}})["stream_url"]
    with speak.stream(url) as stream:
        last = stream.until("caught-up")[-1]
    speak.append(topic, 2, 3)
    with speak.stream(url, last_event_id=last.id) as stream:
        assert json_seqs(stream.next("record").data) == [2, 3]


@pytest.mark.parametrize("durability", ["memory", "disk", "fsync"])
@pytest.mark.parametrize("consistency", ["eventual", "strong"])
def test_both_consistencies_deliver(speak, topic, durability, consistency) -> None:
    """§7.1: strong waits for the sync, and gets everything in the end."""
    speak.ok("PUT", f"/v0/topics/{topic}", {"durability": durability})
    url = watch(speak, {topic: {}}, consistency=consistency)["stream_url"]
    with speak.stream(url) as stream:
        stream.next("caught-up")
        seen: list[int] = []
        for n in range(10):
            speak.append(topic, n)
        while len(seen) < 10:
            seen += json_seqs(stream.next("record").data)
    assert seen == list(range(1, 11))
