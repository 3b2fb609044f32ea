"""Reads of Durable Streams over the wire: catch-up, long poll, events, tags and caching."""

from __future__ import annotations

import json
import socket
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor

import pytest

from headrace.core.clock import NS_PER_MS, SystemClock
from headrace.testing.process import ServerProcess
from tests.support.durable_streams import (
    BEYOND,
    OFFSET,
    ZERO,
    DurableStream,
    StreamMaker,
)
from tests.support.servers import Servers
from tests.support.speakers import Reply, Speaker

LONG_POLL_MS = 600
# Checkpoints follow each other closely, so that records are soon in files.
SETTINGS = {"ds_long_poll_ms": LONG_POLL_MS, "checkpoint_age_ms": 50}
SEALED_WITHIN_MS = 30_000
MIB = 1 << 20


@pytest.fixture
def make(speak: Speaker, topic: str) -> StreamMaker:
    """Create a stream: `make(type, body)`."""
    return StreamMaker(speak, topic)


@pytest.fixture
def pool() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(8) as pool:
        yield pool


def is_up_to_date(reply: Reply) -> bool:
    assert reply.headers.get("stream-up-to-date", "true") == "true"
    return "stream-up-to-date" in reply.headers


def is_closed(reply: Reply) -> bool:
    assert reply.headers.get("stream-closed", "true") == "true"
    return "stream-closed" in reply.headers


# Catch-up


@pytest.mark.parametrize(
    "query", [{}, {"offset": "-1"}, {"offset": ZERO}, {"offset": "-1", "x": ""}]
)
def test_a_read_from_the_start(make: StreamMaker, query: dict[str, str]) -> None:
    stream = make()
    first = stream.post(b"one")
    stream.post(b"two")
    reply = stream.get(**query)
    assert (reply.status, reply.body) == (200, b"onetwo")
    assert reply.headers["content-type"] == "text/plain"
    assert reply.headers["stream-next-offset"] == stream.tail
    assert is_up_to_date(reply) and not is_closed(reply)
    assert "stream-cursor" not in reply.headers
    later = stream.get(offset=first)
    assert (later.body, later.headers["stream-next-offset"]) == (b"two", stream.tail)
    end = stream.get(offset=stream.tail)
    assert (end.status, end.body, end.headers["stream-next-offset"]) == (200, b"", stream.tail)
    assert is_up_to_date(end)


@pytest.mark.parametrize(("type", "empty"), [("text/plain", b""), ("application/json", b"[]")])
def test_an_empty_stream_has_a_tail(make: StreamMaker, type: str, empty: bytes) -> None:
    stream = make(type)
    for offset in ("-1", ZERO, "now", stream.tail):
        reply = stream.get(offset=offset)
        assert (reply.status, reply.body) == (200, empty), offset
        assert reply.headers["stream-next-offset"] == stream.tail
        assert OFFSET.fullmatch(stream.tail) and is_up_to_date(reply)


def test_json_is_one_array_of_messages(make: StreamMaker) -> None:
    stream = make("application/json")
    first = stream.post(b'[{"a": 1}, "two"]')
    stream.post(b"3")
    stream.post(b"[[4, 5]]")
    reply = stream.get()
    assert json.loads(reply.body) == [{"a": 1}, "two", 3, [4, 5]]
    assert reply.headers["content-type"] == "application/json"
    assert json.loads(stream.get(offset=first).body) == [3, [4, 5]]


def test_now_is_the_tail_and_has_no_tag(make: StreamMaker) -> None:
    stream = make(body=b"old")
    reply = stream.get(offset="now")
    assert (reply.status, reply.body) == (200, b"")
    assert reply.headers["stream-next-offset"] == stream.tail
    assert reply.headers["cache-control"] == "no-store" and "etag" not in reply.headers
    assert is_up_to_date(reply) and not is_closed(reply)
    stream.close()
    assert is_closed(stream.get(offset="now"))


def test_every_offset_leads_to_what_follows_it(make: StreamMaker) -> None:
    stream = make("application/octet-stream")
    pieces = [bytes([number]) * (number + 1) for number in range(20)]
    offsets = [stream.tail, *(stream.post(piece) for piece in pieces)]
    assert offsets == sorted(set(offsets))
    for number, offset in enumerate(offsets):
        assert stream.get(offset=offset).body == b"".join(pieces[number:])


@pytest.mark.parametrize(
    "query",
    [
        "?offset=", "?offset=-1&offset=-1", "?offset=1%202", "?offset=a,b", "?offset=a%2Fb",
        "?offset=..", "?offset=%00", "?offset=-1%0D%0A", "?offset=-2", "?offset=NOW",
        f"?offset={BEYOND}", "?live=long-poll", "?live=sse", "?offset=-1&live=tail",
        "?offset=%FF", "?offset=-1&cursor=1&cursor=2",
    ],
)  # fmt: skip
def test_what_is_no_offset_of_the_stream_is_refused(make: StreamMaker, query: str) -> None:
    stream = make(body=b"x")
    reply = stream("GET", None, query)
    assert reply.status == 400, reply
    assert reply.headers["content-type"].startswith("text/plain") and reply.body


@pytest.mark.parametrize("live", ["", "&live=long-poll", "&live=sse"])
def test_a_stream_that_is_not_there(speak: Speaker, topic: str, live: str) -> None:
    stream = DurableStream(speak, topic)
    for offset in ("-1", "now", ZERO):
        assert stream("GET", None, f"?offset={offset}{live}").status == 404


def test_the_offsets_of_a_stream_that_was_made_again_are_gone(make: StreamMaker) -> None:
    stream = make(body=b"old")
    before = stream.tail
    tag = stream.get().headers["etag"]
    assert stream("DELETE").status == 204
    stream.put(b"new")
    assert stream.get(offset=before).status == 410
    assert stream.get({"if-none-match": tag}).body == b"new"
    assert stream.tail > before


def test_what_retention_took_is_gone(speak: Speaker, topic: str) -> None:
    stream = DurableStream(speak, topic, "application/octet-stream")
    stream.put(None, stream_retention_bytes="1000")
    first = stream.post(b"a" * 600)
    offsets = [stream.post(bytes([number]) * 600) for number in range(4)]
    assert stream.get(offset=first).status == 410
    assert stream.get(offset=offsets[2]).body == bytes([3]) * 600
    for start in ("-1", ZERO):
        assert stream.get(offset=start).body == bytes([3]) * 600


def test_windows_of_a_long_stream(make: StreamMaker) -> None:
    stream = make("application/json")
    for number in range(7):
        stream.post(
            json.dumps([{"n": number, "at": at, "x": "y" * 1000} for at in range(900)]).encode()
        )
    offset, read, answers = "-1", [], 0
    while True:
        reply = stream.get(offset=offset)
        assert len(reply.body) <= 5 * MIB
        read += json.loads(reply.body)
        offset, answers = reply.headers["stream-next-offset"], answers + 1
        if is_up_to_date(reply):
            break
        assert not is_closed(reply)
    assert [(found["n"], found["at"]) for found in read] == [
        (number, at) for number in range(7) for at in range(900)
    ]
    assert answers > 1


# Tags


def test_tags_change_with_what_they_stand_for(make: StreamMaker) -> None:
    stream = make(body=b"one")
    first = stream.tail
    tag = stream.get().headers["etag"]
    unchanged = stream.get({"if-none-match": tag})
    assert (unchanged.status, unchanged.body) == (304, b"")
    assert unchanged.headers["etag"] == tag
    assert unchanged.headers["stream-next-offset"] == stream.tail and is_up_to_date(unchanged)
    assert stream.get({"if-none-match": '"other"'}).status == 200
    assert stream.get({"if-none-match": f'"x", {tag}'}).status == 304
    assert stream.get({"if-none-match": tag}, offset=first).status == 200, "another start"
    stream.post(b"two")
    grown = stream.get({"if-none-match": tag})
    assert (grown.status, grown.body) == (200, b"onetwo")
    stream.close()
    closed = stream.get({"if-none-match": grown.headers["etag"]})
    assert closed.status == 200 and is_closed(closed)
    assert stream.get({"if-none-match": closed.headers["etag"]}).status == 304


# Caching


def test_caches_ask_where_the_offset_does_not_name_the_stream(make: StreamMaker) -> None:
    stream = make(body=b"one")
    for query in ({}, {"offset": "-1"}, {"offset": ZERO}):
        assert stream.get(**query).headers["cache-control"] == "public, no-cache"
    start = stream.tail
    stream.post(b"two")
    minute = "public, max-age=60, stale-while-revalidate=300"
    assert stream.get(offset=start).headers["cache-control"] == minute
    assert stream.get(offset=start, live="long-poll").headers["cache-control"] == minute
    assert stream.get(offset=stream.tail).headers["cache-control"] == minute


def test_answers_to_keys_are_private(speak_to: Callable[..., Speaker], topic: str) -> None:
    speak = speak_to(api_keys="secret")
    stream = DurableStream(speak, topic)
    key = {"authorization": "Bearer secret"}
    assert stream("PUT", b"one", **{**key, "content-type": "text/plain"}).status == 201
    assert stream.get(key).headers["cache-control"] == "private, no-cache"
    assert stream.get().status == 401


def seal(stream: DurableStream) -> None:
    """Wait until everything that the stream has now is in files."""
    name = "ds:" + stream.path.removeprefix("/v1/stream/")
    deadline_ns = SystemClock.monotonic_ns() + SEALED_WITHIN_MS * NS_PER_MS
    while True:
        found = stream.speak.ok("GET", f"/v0/topics/{name}/segments")
        stream.speak.ok("DELETE", f"/v0/topics/{name}/segments/{found['pin']}")
        if found["tail_from_seq"] > found["head_seq"]:
            return
        assert SystemClock.monotonic_ns() < deadline_ns, "the server does not seal"
        stream.speak.append("sealing", 1)  # a checkpoint needs something to do


@pytest.mark.parametrize("count", [3, 100])
def test_sealed_bytes_are_sent_as_they_were_appended(make: StreamMaker, count: int) -> None:
    stream = make("application/octet-stream")
    whole = bytes(range(256)) * (3 * MIB // 256)
    size = len(whole) // count
    pieces = [whole[at : at + size] for at in range(0, len(whole), size)]
    start = stream.tail
    offsets = [stream.post(piece) for piece in pieces]
    seal(stream)
    reply = stream.get({"accept-encoding": "gzip, zstd"})
    assert reply.body == whole and is_up_to_date(reply)
    assert "content-encoding" not in reply.headers
    assert reply.headers["cache-control"] == "public, no-cache"
    middle = len(pieces) // 2
    assert stream.get(offset=offsets[middle]).body == b"".join(pieces[middle + 1 :])
    stream.post(b"more")
    both = stream.get()
    assert both.body == whole + b"more" and is_up_to_date(both)
    seal(stream)
    assert "immutable" not in stream.get(offset=start).headers["cache-control"], "it may grow"
    stream.close()
    forever = stream.get(offset=start)
    assert forever.headers["cache-control"] == "public, max-age=31536000, immutable"
    assert forever.body == whole + b"more" and is_closed(forever)
    for query in ({}, {"offset": "-1"}, {"offset": ZERO}):
        assert stream.get(**query).headers["cache-control"] == "public, no-cache"


def test_a_sealed_window_that_is_not_the_last_never_changes(make: StreamMaker) -> None:
    stream = make("application/json")
    start = stream.tail
    for _ in range(6):
        stream.post(json.dumps(["y" * 1000] * 900).encode())
    before = stream.get(offset=start)
    seal(stream)
    reply = stream.get(offset=start)
    assert not is_up_to_date(reply)
    assert "immutable" in reply.headers["cache-control"]
    assert (reply.body, reply.headers["etag"]) == (before.body, before.headers["etag"])
    rest = stream.get(offset=reply.headers["stream-next-offset"])
    assert is_up_to_date(rest) and "immutable" not in rest.headers["cache-control"]


# Long poll


def wait(pool: ThreadPoolExecutor, stream: DurableStream, **query: str) -> Future[Reply]:
    return pool.submit(lambda: stream.get(live="long-poll", **query))


def waiting(server: ServerProcess, speak: Speaker, count: int = 1) -> None:
    """Until so many long polls wait."""
    deadline_ns = SystemClock.monotonic_ns() + SEALED_WITHIN_MS * NS_PER_MS
    shown = f'headrace_watch_connections{{kind="longpoll"}} {count}\n'.encode()
    while shown not in speak("GET", "/v0/metrics").body:
        assert SystemClock.monotonic_ns() < deadline_ns, "nobody waits"


def test_a_long_poll_that_has_something_is_answered_at_once(make: StreamMaker) -> None:
    stream = make(body=b"one")
    reply = stream.get(offset="-1", live="long-poll")
    assert (reply.status, reply.body) == (200, b"one")
    assert reply.headers["stream-cursor"].isdigit() and is_up_to_date(reply)
    assert reply.headers["etag"]


def test_a_long_poll_in_vain(make: StreamMaker) -> None:
    stream = make(body=b"one")
    for offset in (stream.tail, "now"):
        reply = stream.get(offset=offset, live="long-poll")
        assert (reply.status, reply.body) == (204, b"")
        assert reply.headers["stream-next-offset"] == stream.tail
        assert is_up_to_date(reply) and not is_closed(reply)
        assert reply.headers["cache-control"] == "no-store"
        cursor = reply.headers["stream-cursor"]
        again = stream.get(offset=offset, live="long-poll", cursor=cursor)
        assert int(again.headers["stream-cursor"]) > int(cursor)


def test_an_append_wakes_all_who_wait(
    speak_to: Callable[..., Speaker], topic: str, pool: ThreadPoolExecutor
) -> None:
    speak = speak_to(ds_long_poll_ms=30_000)
    stream = DurableStream(speak, topic, "application/json")
    stream.put(b"[1]")
    polls = [wait(pool, stream, offset=offset) for offset in (stream.tail, "now", stream.tail)]
    waiting(speak.server, speak, 3)
    stream.post(b"[2, 3]")
    for poll in polls:
        reply = poll.result()
        assert (reply.status, json.loads(reply.body)) == (200, [2, 3])
        assert reply.headers["stream-next-offset"] == stream.tail and reply.headers["etag"]


def test_a_close_wakes_who_waits(
    speak_to: Callable[..., Speaker], topic: str, pool: ThreadPoolExecutor
) -> None:
    speak = speak_to(ds_long_poll_ms=30_000)
    stream = DurableStream(speak, topic)
    stream.put(b"one")
    poll = wait(pool, stream, offset=stream.tail)
    waiting(speak.server, speak)
    stream.close()
    reply = poll.result()
    assert reply.status == 204 and is_closed(reply) and is_up_to_date(reply)
    for offset in ("now", stream.tail):
        at_once = stream.get(offset=offset, live="long-poll")
        assert at_once.status == 204 and is_closed(at_once)
    data = stream.get(offset="-1", live="long-poll")
    assert (data.body, is_closed(data)) == (b"one", True)


def test_a_delete_wakes_who_waits(
    speak_to: Callable[..., Speaker], topic: str, pool: ThreadPoolExecutor
) -> None:
    speak = speak_to(ds_long_poll_ms=30_000)
    stream = DurableStream(speak, topic)
    stream.put(b"one")
    poll = wait(pool, stream, offset=stream.tail)
    waiting(speak.server, speak)
    assert stream("DELETE").status == 204
    assert poll.result().status == 404


# What happens during a read


def test_a_delete_during_a_read_leaves_it_whole(
    server: ServerProcess, servers: Servers, topic: str
) -> None:
    speak = servers.speaker(server, "h1")
    stream = DurableStream(speak, topic, "application/octet-stream")
    stream.put()
    whole = b"".join(bytes([number]) * MIB for number in range(24))
    for at in range(0, len(whole), MIB):
        stream.post(whole[at : at + MIB])
    seal(stream)
    with socket.create_connection((server.host, server.port), timeout=20) as sock:
        sock.sendall(f"GET {stream.path} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode())
        received = sock.recv(1000)
        assert stream("DELETE").status == 204
        for _ in range(3):
            speak.append(topic, 1)
            stream.put(b"new")
            seal(stream)
            assert stream("DELETE").status == 204
        head, _, body = received.partition(b"\r\n\r\n")
        length = int(head.lower().partition(b"content-length: ")[2].split(b"\r\n")[0])
        parts, left = [body], length - len(body)
        while left:
            part = sock.recv(1 << 20)
            assert part, "it ends early, although every file was there when it began"
            parts.append(part)
            left -= len(part)
    assert b"".join(parts) == whole[:length]
