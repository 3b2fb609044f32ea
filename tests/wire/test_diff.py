"""Reads over the wire: cursors, filters, budgets, tombstones, long polls (native §4)."""

from __future__ import annotations

import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.support.seqs import json_seqs


def test_the_answer_of_a_diff(speak, topic) -> None:
    """§4.1: every field; `tombstone` is always there; scanned records in `performance`."""
    speak.append(topic, "a", "b", "c")
    page = speak.diff(topic, limit=2)
    assert page["performance"]["records_scanned"] == 2
    assert "cold_segments_read" not in page["performance"]
    assert isinstance(page["performance"]["server_total_ms"], float)
    assert isinstance(page["epoch"], int)
    assert json_seqs(page) == [1, 2]
    assert [record["data"] for record in page["records"]] == ["a", "b"]
    rest = {k: v for k, v in page.items() if k not in ("records", "performance", "epoch")}
    assert rest == {
        "topic": topic,
        "next_from_seq": 2,
        "head_seq": 3,
        "earliest_seq": 1,
        "caught_up": False,
        "tombstone": None,
        "lag": 1,
    }
    last = speak.diff(topic, page["next_from_seq"])
    assert (json_seqs(last), last["caught_up"], last["lag"]) == ([3], True, 0)


def test_an_empty_topic(speak, topic) -> None:
    """§4.1: from 0: no records, next 0, caught up."""
    speak.ok("PUT", f"/v0/topics/{topic}")
    page = speak.diff(topic)
    assert page["records"] == []
    assert (page["next_from_seq"], page["head_seq"], page["earliest_seq"]) == (0, 0, 1)
    assert (page["caught_up"], page["lag"], page["tombstone"]) == (True, 0, None)


def test_no_body_means_the_defaults(speak, topic) -> None:
    """§1.1: a zero-length body, without a content type."""
    speak.append(topic, *range(300))
    page = speak("POST", f"/v0/topics/{topic}/diff").json
    assert len(page["records"]) == 256
    reply = speak("POST", f"/v0/topics/{topic}/diff", b"", {"content-type": "text/plain"})
    assert len(reply.json["records"]) == 256


def test_an_absent_topic(speak, topic) -> None:
    """§4.1: 404, and it is not created."""
    for _ in range(2):
        path = f"/v0/topics/{topic}/diff"
        assert speak.refused(404, "topic_not_found", "POST", path, {}) == {"topic": topic}


@pytest.mark.parametrize(
    "body",
    [
        {"from_seq": -1},
        {"from_seq": "1"},
        {"from_seq": 1.5},
        {"from_seq": 2**64},
        {"limit": -1},
        {"limit": 2**32},
        {"wait_ms": -1},
        {"node": 5},
        {"node": ["a", 5]},
        {"include_tags": "true"},
        {"max_batch_bytes": -1},
        {"from_ts": -1},
        {"last": "all"},
        {"epoch": -1},
        {"from_seq": 1, "last": 1},
        [],
    ],
)
def test_bad_fields_are_refused(speak, topic, body) -> None:
    """§1.1: integers are strict."""
    speak.ok("PUT", f"/v0/topics/{topic}")
    speak.refused(400, "invalid_request", "POST", f"/v0/topics/{topic}/diff", body)


def test_null_is_absent(speak, topic) -> None:
    """§1.1: for every optional field."""
    speak.append(topic, 1)
    names = "limit node include_tags include_meta wait_ms max_batch_bytes epoch from_ts last"
    page = speak.ok(
        "POST", f"/v0/topics/{topic}/diff", {"from_seq": None, **dict.fromkeys(names.split())}
    )
    assert json_seqs(page) == [1]


def test_limits_are_clamped(speak, topic) -> None:
    """§1.8: default 256, 0 means 256, at most 1000."""
    speak.append(topic, *range(1_100))
    assert len(speak.diff(topic)["records"]) == 256
    assert len(speak.diff(topic, limit=0)["records"]) == 256
    assert len(speak.diff(topic, limit=5_000)["records"]) == 1_000
    assert len(speak.diff(topic, limit=1)["records"]) == 1


def test_a_byte_budget_stops_before_the_record_that_breaks_it(speak, topic) -> None:
    """§4.1: at least one is delivered, and the undelivered one is not skipped."""
    speak.append(topic, *("x" * 998 for _ in range(10)))
    page = speak.diff(topic, max_batch_bytes=3_500)
    assert json_seqs(page) == [1, 2, 3]
    assert page["next_from_seq"] == 3
    assert json_seqs(speak.diff(topic, max_batch_bytes=1)) == [1]
    assert json_seqs(speak.diff(topic, 3, max_batch_bytes=0)) == [4, 5, 6, 7, 8, 9, 10]


def test_the_default_budget_is_a_mebibyte(speak, topic) -> None:
    """§1.8: default 1 MiB, at most 8 MiB."""
    for _ in range(3):
        speak.append(topic, *("y" * 500_000 for _ in range(7)))
    assert len(speak.diff(topic)["records"]) == 2
    large = len(speak.diff(topic, max_batch_bytes=1 << 40)["records"])
    assert large == 8 * 1024 * 1024 // 500_002


def test_own_records_are_skipped_silently(speak, topic) -> None:
    """§4.1: the cursor moves past them (J1); a list of nodes; `dedupe_node:false`."""
    for node in ("a", "b", "c", "a", "a"):
        speak.append(topic, node, node=node)
    page = speak.diff(topic, node="a")
    assert (json_seqs(page), page["next_from_seq"], page["caught_up"]) == ([2, 3], 5, True)
    assert page["performance"]["records_scanned"] == 5
    assert json_seqs(speak.diff(topic, node=["a", "b"])) == [3]
    assert json_seqs(speak.diff(topic, node=[])) == [1, 2, 3, 4, 5]
    all_own = speak.diff(topic, 3, node="a")
    assert (json_seqs(all_own), all_own["next_from_seq"], all_own["caught_up"]) == ([], 5, True)
    speak.ok("PUT", f"/v0/topics/{topic}", {"dedupe_node": False})
    assert json_seqs(speak.diff(topic, node="a")) == [1, 2, 3, 4, 5]


def test_limit_counts_what_is_delivered(speak, topic) -> None:
    """§4.1: skipped records do not use up the limit."""
    for n in range(6):
        speak.append(topic, n, node="own" if n % 2 else "other")
    page = speak.diff(topic, node="own", limit=2)
    assert (json_seqs(page), page["next_from_seq"]) == ([1, 3], 3)


def test_meta_and_tags_by_request(speak, topic) -> None:
    """§4.1: include_tags false, include_meta true by default."""
    record = {"data": 1, "tag": "t", "meta": {"a": 1}}
    speak.ok("POST", f"/v0/topics/{topic}", {"records": [record]})
    shown = [
        speak.diff(topic, include_tags=tags, include_meta=meta)["records"][0].keys()
        for tags in (False, True)
        for meta in (False, True)
    ]
    base = {"$seq", "$ts", "data"}
    assert shown == [base, base | {"meta"}, base | {"$tag"}, base | {"$tag", "meta"}]
    assert speak.diff(topic)["records"][0].keys() == base | {"meta"}


def test_the_tombstone_of_a_cap(speak, topic) -> None:
    """§4.2: cap 3, six writes, from 0: gap 1..3 and records 4 to 6; from the floor: none."""
    speak.ok("PUT", f"/v0/topics/{topic}", {"cap_records": 3})
    for n in range(6):
        speak.append(topic, n)
    page = speak.diff(topic)
    assert page["tombstone"] == {
        "gap_from": 1,
        "gap_to": 3,
        "reason": "cap",
        "missed_estimate": 3,
        "earliest_seq": 4,
        "head_seq": 6,
    }
    assert json_seqs(page) == [4, 5, 6]
    assert speak.diff(topic, 1)["tombstone"]["gap_from"] == 2
    assert speak.diff(topic, 3)["tombstone"] is None
    assert json_seqs(speak.diff(topic, 3)) == [4, 5, 6]


def test_the_tombstone_of_a_byte_cap(speak, topic) -> None:
    """§4.2: reason cap, too."""
    speak.ok("PUT", f"/v0/topics/{topic}", {"cap_bytes": 20})
    for _ in range(5):
        speak.append(topic, "12345678")  # 10 bytes as JSON
    page = speak.diff(topic)
    assert (page["tombstone"]["reason"], json_seqs(page)) == ("cap", [4, 5])


def expire(speak, topic: str) -> None:
    """Wait until what is there has expired, by the server's own clock."""
    while speak.state(topic)["count"]:
        time.sleep(0.005)


def test_the_tombstone_of_a_ttl(speak, topic) -> None:
    """§4.2: reason ttl; head stays, earliest is head + 1."""
    speak.ok("PUT", f"/v0/topics/{topic}", {"ttl_ms": 10})
    speak.append(topic, 1, 2)
    expire(speak, topic)
    page = speak.diff(topic)
    assert (page["records"], page["next_from_seq"], page["caught_up"]) == ([], 2, True)
    assert (page["head_seq"], page["earliest_seq"]) == (2, 3)
    assert page["tombstone"] == {
        "gap_from": 1,
        "gap_to": 2,
        "reason": "ttl",
        "missed_estimate": 2,
        "earliest_seq": 3,
        "head_seq": 2,
    }


def test_the_tombstone_of_both(speak, topic) -> None:
    """§4.2: cap floor and ttl floor both reach the gap: mixed."""
    speak.ok("PUT", f"/v0/topics/{topic}", {"cap_records": 2, "ttl_ms": 10})
    speak.append(topic, 1, 2, 3, 4)
    expire(speak, topic)
    speak.ok("PUT", f"/v0/topics/{topic}", {})
    tombstone = speak.diff(topic)["tombstone"]
    assert (tombstone["reason"], tombstone["gap_to"]) == ("mixed", 4)


def test_a_deleted_range_is_silent(speak, topic) -> None:
    """§4.1, §5 (B5): no tombstone, and the cursor jumps past it."""
    speak.append(topic, 1, 2, 3, 4)
    speak.ok("POST", f"/v0/topics/{topic}/delete", {"before_seq": 3})
    page = speak.diff(topic)
    assert (page["tombstone"], json_seqs(page), page["earliest_seq"]) == (None, [3, 4], 3)


def test_a_tombstone_names_the_involuntary_floor(speak, topic) -> None:
    """§4.2: its earliest_seq is that floor, also where a delete moved on."""
    speak.ok("PUT", f"/v0/topics/{topic}", {"cap_records": 4})
    speak.append(topic, 1, 2, 3, 4, 5, 6)
    speak.ok("POST", f"/v0/topics/{topic}/delete", {"before_seq": 5})
    page = speak.diff(topic)
    assert (page["tombstone"]["gap_to"], page["tombstone"]["earliest_seq"]) == (2, 3)
    assert (page["earliest_seq"], json_seqs(page)) == (5, [5, 6])


def test_a_cursor_beyond_the_head(speak, topic) -> None:
    """§4.1: reason recreated, gap 1..head, and reading starts again at the earliest."""
    speak.append(topic, 1, 2, 3)
    speak.ok("DELETE", f"/v0/topics/{topic}")
    speak.append(topic, "new", "newer")
    page = speak.diff(topic, 3)
    assert page["tombstone"]["reason"] == "recreated"
    assert (page["tombstone"]["gap_from"], page["tombstone"]["gap_to"]) == (1, 2)
    assert [record["data"] for record in page["records"]] == ["new", "newer"]
    assert page["next_from_seq"] == 2


def test_a_large_cursor_is_beyond_every_head(speak, topic) -> None:
    """§1.1: seqs are u64."""
    speak.append(topic, 1)
    page = speak.diff(topic, 2**64 - 1)
    assert (page["tombstone"]["reason"], json_seqs(page)) == ("recreated", [1])


def test_a_diff_is_a_read(speak, topic) -> None:
    """§4.1: it sets last_read and recency."""
    speak.append(topic, 1)
    speak.diff(topic)
    state = speak.state(topic)
    assert state["last_read_ts"] is not None
    assert state["effective_priority"] > 400


# Long polls


def wait_until_parked(speak, topic: str) -> None:
    """A diff marks the topic as read before it parks."""
    while speak.state(topic)["last_read_ts"] is None:
        time.sleep(0.002)


def test_an_append_wakes_a_long_poll(speak, topic) -> None:
    """§4.1: it answers when the write lands, not when its time is over."""
    speak.ok("PUT", f"/v0/topics/{topic}", {"durability": "fsync"})
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(speak.diff, topic, 0, wait_ms=30_000)
        wait_until_parked(speak, topic)
        speak.append(topic, "hello")
        page = waiting.result()
    assert [record["data"] for record in page["records"]] == ["hello"]
    assert (page["next_from_seq"], page["head_seq"], page["caught_up"]) == (1, 1, True)


def test_a_long_poll_ends_at_its_time(speak, topic) -> None:
    """§4.1: idle with 200 ms it waits at least 150 and answers with the first result."""
    speak.append(topic, 1)
    started = time.monotonic()
    page = speak.diff(topic, 1, wait_ms=200)
    assert time.monotonic() - started >= 0.15
    assert (page["records"], page["caught_up"], page["next_from_seq"]) == ([], True, 1)


def test_what_is_there_is_not_waited_for(speak, topic) -> None:
    """§4.1: records, a tombstone or a lag answer at once; `wait_ms` 30 s here."""
    speak.append(topic, 1, node="own", config={"cap_records": 1})
    assert json_seqs(speak.diff(topic, 0, wait_ms=30_000)) == [1]
    speak.append(topic, 2)
    speak.ok("POST", f"/v0/topics/{topic}/delete", {"before_seq": 3})
    assert speak.diff(topic, 0, wait_ms=30_000)["tombstone"] is not None


def test_a_long_poll_sleeps_on_through_its_own_records(speak, topic) -> None:
    """§4.1: a wake by a filtered record need not end the wait; what comes next is delivered."""
    speak.ok("PUT", f"/v0/topics/{topic}")
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(speak.diff, topic, 0, wait_ms=30_000, node="own")
        wait_until_parked(speak, topic)
        speak.append(topic, "mine", node="own")
        speak.append(topic, "yours")
        page = waiting.result()
        while not page["records"]:  # it may also answer early, with the cursor moved
            assert page["next_from_seq"] >= 1
            page = speak.diff(topic, page["next_from_seq"], node="own", wait_ms=30_000)
    assert json_seqs(page) == [2]


def test_deleting_the_topic_ends_a_long_poll(speak, topic) -> None:
    """§4.1, §7.3: nobody waits for what is gone."""
    speak.ok("PUT", f"/v0/topics/{topic}")
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(speak, "POST", f"/v0/topics/{topic}/diff", {"wait_ms": 30_000})
        wait_until_parked(speak, topic)
        speak.ok("DELETE", f"/v0/topics/{topic}")
        reply = waiting.result()
    assert (reply.status, reply.error["code"]) == (404, "topic_not_found")


def test_many_wait_and_all_are_woken(speak, topic) -> None:
    """§4.1: one write, every waiter; and none is left behind by the next one."""
    speak.ok("PUT", f"/v0/topics/{topic}")
    with ThreadPoolExecutor(20) as pool:
        waiting = [pool.submit(speak.diff, topic, 0, wait_ms=30_000) for _ in range(20)]
        wait_until_parked(speak, topic)
        speak.append(topic, 1)
        assert all(json_seqs(future.result()) == [1] for future in waiting)


def test_no_wake_is_missed(speak, topic) -> None:
    """§4.1: a waiter is registered before its read, so no wake is missed."""
    speak.ok("PUT", f"/v0/topics/{topic}")
    stop = threading.Event()

    def follow() -> list[int]:
        cursor, seen = 0, []
        while len(seen) < 150:
            page = speak.diff(topic, cursor, wait_ms=30_000)
            seen += json_seqs(page)
            cursor = page["next_from_seq"]
        stop.set()
        return seen

    with ThreadPoolExecutor(1) as pool:
        following = pool.submit(follow)
        for n in range(150):
            speak.append(topic, n)
        assert following.result() == list(range(1, 151))
    assert stop.is_set()
