"""What routers copy, as a client sees it (native §6.5)."""

from __future__ import annotations

import json
import threading

import pytest

from headrace.testing.process import ServerProcess


def route(speak, name: str, source: str, dest: str, **options: object):
    return speak.ok("PUT", f"/v0/routers/{name}", {"source": source, "dest": dest, **options})


def total(speak, name: str) -> int:
    return speak.ok("GET", f"/v0/routers/{name}")["forwarded_total"]


def data_of(speak, topic: str) -> list[object]:
    return [record["data"] for record in speak.diff(topic)["records"]]


@pytest.fixture
def pair(topic) -> tuple[str, str]:
    return f"{topic}-a", f"{topic}-b"


def test_a_copy(speak, topic, pair) -> None:
    """§6.5: fresh seq and time, everything else intact, in order, at once."""
    a, b = pair
    route(speak, topic, a, b)
    speak.append(b, "before")
    records = [
        {"data": {"n": 1.50}, "tag": "t:1", "node": "n1", "meta": {"k": [1]}},
        {"data": None, "node": "n2"},
        {"data": "x", "meta": "plain"},
    ]
    speak.ok("POST", f"/v0/topics/{a}", {"records": records})
    found = speak.diff(b, 1, include_tags=True)["records"]
    assert [record.pop("$seq") for record in found] == [2, 3, 4]
    assert all(record.pop("$ts") > 0 for record in found)
    assert found == [
        {"$node": "n1", "$tag": "t:1", "data": {"n": 1.5}, "meta": {"k": [1]}},
        {"$node": "n2", "data": None},
        {"data": "x", "meta": "plain"},
    ]
    # A node does not hear what it said itself, however many topics are between.
    heard = speak.diff(b, 1, node="n1")["records"]
    assert [record["$seq"] for record in heard] == [3, 4]


def test_node_and_tag_may_be_left_out(speak, topic, pair) -> None:
    """§6.5: cleared per flags."""
    a, b = pair
    route(speak, topic, a, b, preserve_node=False, preserve_tag=False)
    speak.ok("POST", f"/v0/topics/{a}", {"records": [{"data": 1, "tag": "t", "node": "n"}]})
    (found,) = speak.diff(b, include_tags=True)["records"]
    assert found.keys() == {"$seq", "$ts", "data"}


def test_a_filter(speak, topic, pair) -> None:
    """§6.5: only tagged records that match; the others are consumed."""
    a, b = pair
    route(speak, topic, a, b, filter=["tag", "Glob", "chat:*"])
    tags = ["chat:1", "chat", None, "chat:2", "mail"]
    records = [{"data": n, "tag": tag} for n, tag in enumerate(tags)]
    speak.ok("POST", f"/v0/topics/{a}", {"records": records})
    assert data_of(speak, b) == [0, 3]
    assert total(speak, topic) == 2
    # What did not match then does not come when the filter goes.
    route(speak, topic, a, b)
    speak.append(a, 5)
    assert data_of(speak, b) == [0, 3, 5]


def test_a_deleted_source_record_is_skipped_silently(speak, topic, pair) -> None:
    """§6.5: deletes are never announced, and do not go through routers (§5)."""
    a, b = pair
    speak.ok("PUT", f"/v0/topics/{b}", {"cap_records": 1, "discard": "reject"})
    speak.append(b, "full")
    route(speak, topic, a, b)
    speak.append(a, 1, 2, 3)
    assert total(speak, topic) == 0
    speak.ok("POST", f"/v0/topics/{a}/delete", {"before_seq": 3})
    speak.ok("PUT", f"/v0/topics/{b}", {})
    page = speak.diff(b)
    assert [record["data"] for record in page["records"]] == ["full", 3]
    assert page["tombstone"] is None
    assert total(speak, topic) == 1
    speak.ok("POST", f"/v0/topics/{a}/delete", {"before_seq": 9})
    assert data_of(speak, b) == ["full", 3]


def test_what_the_source_lost_is_announced(speak, topic, pair) -> None:
    """§6.5: evicted before it was copied: a hole for each, and `source_trim`."""
    a, b = pair
    speak.ok("PUT", f"/v0/topics/{a}", {"cap_records": 2})
    speak.ok("PUT", f"/v0/topics/{b}", {"cap_records": 1, "discard": "reject"})
    speak.append(b, "full")
    route(speak, topic, a, b)
    for n in range(1, 6):
        speak.append(a, n)
    assert total(speak, topic) == 3  # a hole needs no room
    speak.ok("PUT", f"/v0/topics/{b}", {})
    first = speak.diff(b)
    assert [record["data"] for record in first["records"]] == ["full"]
    page = speak.diff(b, first["next_from_seq"])
    assert [record["data"] for record in page["records"]] == [4, 5]
    told = page["tombstone"]
    assert (told["gap_from"], told["gap_to"], told["reason"]) == (2, 4, "source_trim")
    assert total(speak, topic) == 5


def test_a_full_destination(speak, topic, pair) -> None:
    """§6.5: cap 2 and four writes are 2, after freeing 4; nothing is skipped."""
    a, b = pair
    speak.ok("PUT", f"/v0/topics/{b}", {"cap_records": 2, "discard": "reject"})
    route(speak, topic, a, b)
    for n in range(1, 5):
        speak.append(a, n)
    assert data_of(speak, b) == [1, 2]
    assert total(speak, topic) == 2
    speak.ok("POST", f"/v0/topics/{b}/delete", {"before_seq": 3})
    assert total(speak, topic) == 4
    assert data_of(speak, b) == [3, 4]


def test_a_mirror_ends(speak, topic, pair) -> None:
    """§6.5: the write returns normally, and each head stays at 16 or below."""
    a, b = pair
    route(speak, f"{topic}-1", a, b)
    route(speak, f"{topic}-2", b, a, allow_cycle=True)
    assert speak.append(a, 1)["first_seq"] == 1
    before = None
    while (heads := (speak.state(a)["head_seq"], speak.state(b)["head_seq"])) != before:
        before = heads
    assert heads == (5, 4)  # written once, copied 8 times


def test_exactly_once(speak, topic, pair) -> None:
    """§6.5: each copy says in its meta where it is from; its key is of a fixed form."""
    a, b = pair
    route(speak, topic, a, b, guarantee="exactly_once")
    full = {f"k{n}": n for n in range(64)}
    for meta in (None, {"k": 1}, full, [1]):
        speak.ok("POST", f"/v0/topics/{a}", {"records": [{"data": 1, "meta": meta}]})
    metas = [record["meta"] for record in speak.diff(b)["records"]]
    for seq, meta in enumerate(metas, start=1):
        mark = meta.pop("_topics_router")
        epoch = speak.state(a)["epoch"]
        key = f"router:{topic}:{mark['source_topic_id']}:{epoch}:{seq}"
        assert mark == {
            "idempotency_key": key,
            "router": topic,
            "source_topic": a,
            "source_topic_id": mark["source_topic_id"],
            "source_epoch": epoch,
            "source_seq": seq,
        }
    assert metas == [{}, {"k": 1}, {"_topics_original_meta": full}, {"_topics_original_meta": [1]}]


def test_a_copy_that_is_there_is_not_made_again(speak, topic, pair) -> None:
    """§6.5: a router that begins anew makes only the copies that the destination lost."""
    a, b = pair
    speak.append(a, 1, 2, 3)
    route(speak, topic, a, b, guarantee="exactly_once", backfill=True)
    assert data_of(speak, b) == [1, 2, 3]
    speak.ok("DELETE", f"/v0/routers/{topic}")
    speak.ok("POST", f"/v0/topics/{b}/delete", {"before_seq": 2})
    route(speak, topic, a, b, guarantee="exactly_once", backfill=True)
    assert data_of(speak, b) == [2, 3, 1]
    assert total(speak, topic) == 1


def metric(speak, name: str) -> int:
    lines = speak("GET", "/v0/metrics").body.decode().splitlines()
    return int(next(line for line in lines if line.startswith(f"{name} ")).split()[1])


def test_one_entry_for_each_write_whatever_the_fan_out(speak_to, topic) -> None:
    """§6.5: seen through `headrace_wal_frames_total`, with topics of class fsync."""
    speak = speak_to(log="error")
    dests = [f"{topic}-{n}" for n in range(5)]
    for name in (topic, *dests):
        speak.ok("PUT", f"/v0/topics/{name}", {"durability": "fsync"})
    before = metric(speak, "headrace_routers")
    for dest in dests:
        route(speak, dest, topic, dest)
    assert metric(speak, "headrace_routers") == before + 5
    asked = {"accept": "application/json"}
    assert speak("GET", "/v0/metrics", None, asked).json["routers"] == before + 5
    frames = metric(speak, "headrace_wal_frames_total")
    forwards = metric(speak, "headrace_wal_forward_entries_total")
    for n in range(1, 11):
        speak.append(topic, n)
        assert [speak.state(dest)["head_seq"] for dest in dests] == [n] * 5
    assert metric(speak, "headrace_wal_frames_total") == frames + 10
    assert metric(speak, "headrace_wal_forward_entries_total") == forwards + 10


# Who reads


def test_a_long_poll_of_a_destination(speak, topic, pair) -> None:
    """§6.5: whoever waits hears of a copy as of a write."""
    a, b = pair
    route(speak, topic, a, b)
    timer = threading.Timer(0.1, speak.append, (a, "late"))
    timer.start()
    page = speak.diff(b, wait_ms=20_000)
    timer.join()
    assert [record["data"] for record in page["records"]] == ["late"]


def test_a_watch_of_a_destination(speak, topic, pair) -> None:
    """§6.5: a watch drains first, and then gets copies as they come."""
    a, b = pair
    route(speak, topic, a, b)
    speak.append(a, 1)
    made = speak.ok("POST", "/v0/watch", {"topics": {b: {"from_seq": 0}}})
    assert made["topics"][b]["head_seq"] == 1
    with speak.stream(made["stream_url"]) as stream:
        first = stream.next("record").data
        assert [record["data"] for record in first["records"]] == [1]
        stream.next("caught-up")
        speak.append(a, 2)
        assert [record["data"] for record in stream.next("record").data["records"]] == [2]


def test_a_watch_of_what_is_new(speak, topic, pair) -> None:
    """`tail` leaves out what was written before, also where its copy waits for a sync."""
    a, b = pair
    speak.ok("PUT", f"/v0/topics/{b}", {"durability": "fsync"})
    route(speak, topic, a, b)
    for n in range(1, 6):
        speak.append(a, n)
        made = speak.ok("POST", "/v0/watch", {"topics": {b: {"tail": True}}})
        assert made["topics"][b]["from_seq"] == made["topics"][b]["head_seq"] == n


def test_copies_as_columns(speak, topic, pair) -> None:
    """§12: an Arrow read of a destination drains first as well."""
    import pyarrow as pa

    a, b = pair
    speak.ok("PUT", f"/v0/topics/{b}", {"durability": "fsync"})
    route(speak, topic, a, b)
    speak.append(a, {"n": 1}, {"n": 2})
    asked = {"accept": "application/vnd.apache.arrow.stream", "content-type": "application/json"}
    reply = speak("POST", f"/v0/topics/{b}/diff", b"{}", asked)
    table = pa.ipc.open_stream(reply.body).read_all()
    assert [json.loads(value) for value in table["data"].to_pylist()] == [{"n": 1}, {"n": 2}]


# Across restarts


@pytest.mark.parametrize("killed", [False, True], ids=["stopped", "killed"])
def test_after_a_restart(servers, tmp_path, killed) -> None:
    """A router, its options, its place and its total are there again; a deleted one is not."""
    server: ServerProcess = servers.start(tmp_path / "data")
    speak = servers.speaker(server, "h1")
    speak.append("a", 0)
    route(speak, "r", "a", "b", filter="x*", preserve_node=False, guarantee="exactly_once")
    route(speak, "gone", "a", "c")
    record = {"data": 1, "tag": "x1", "node": "n"}
    speak.ok("POST", "/v0/topics/a", {"records": [record, {"data": 2}]})
    assert total(speak, "r") == 1
    speak.ok("DELETE", "/v0/routers/gone")
    shown = speak.ok("GET", "/v0/routers/r")
    copies = speak.diff("b")["records"]
    if killed:
        server.kill()
    else:
        server.stop()
    speak = servers.speaker(servers.start(tmp_path / "data"), "h1")
    again = speak.ok("GET", "/v0/routers/r")
    assert {**again, "performance": None} == {**shown, "performance": None}
    assert speak.diff("b")["records"] == copies
    assert [entry["router"] for entry in speak.ok("GET", "/v0/routers")["routers"]] == ["r"]
    speak.ok("POST", "/v0/topics/a", {"records": [{**record, "data": 3}]})
    assert data_of(speak, "b") == [1, 3]
    assert total(speak, "r") == 2
    assert metric(speak, "headrace_routers") == 1


def test_a_source_that_is_deleted_is_copied_first(speak, topic, pair) -> None:
    """§3.4d: what was appended to a source before its delete is in the destination."""
    a, b = pair
    route(speak, topic, a, b)
    speak.append(a, *range(5_000))
    gone = speak.ok("DELETE", f"/v0/topics/{a}")
    assert (gone["deleted"], gone["routers_removed"]) == (True, [topic])
    state = speak.ok("GET", f"/v0/topics/{b}")
    assert (state["head_seq"], state["count"]) == (5_000, 5_000)


def test_what_a_full_destination_did_not_take_of_a_deleted_source(speak, topic, pair) -> None:
    """§3.4d: it is announced in the destination as `source_trim`."""
    a, b = pair
    speak.ok("PUT", f"/v0/topics/{b}", {"cap_records": 2, "discard": "reject"})
    route(speak, topic, a, b)
    speak.append(a, *range(5))
    assert speak.ok("DELETE", f"/v0/topics/{a}")["routers_removed"] == [topic]
    page = speak.diff(b, 2)
    assert page["tombstone"]["reason"] == "source_trim"
    assert (page["tombstone"]["gap_from"], page["tombstone"]["gap_to"]) == (3, 5)


def test_a_deleted_router_says_what_it_left(speak, topic, pair) -> None:
    """§6.4b: the source still has it, and a new router can go on there."""
    a, b = pair
    speak.ok("PUT", f"/v0/topics/{b}", {"cap_records": 2, "discard": "reject"})
    route(speak, topic, a, b)
    speak.append(a, *range(5))
    gone = speak.ok("DELETE", f"/v0/routers/{topic}")
    assert (gone["records_left"], gone["copied_to"]) == (3, 2)
    speak.ok("PUT", f"/v0/topics/{b}", {})
    route(speak, topic, a, b, backfill=gone["copied_to"])
    assert data_of(speak, b) == [*range(5)]
    assert "records_left" not in speak.ok("DELETE", f"/v0/routers/{topic}")
