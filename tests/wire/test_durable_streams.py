"""Durable Streams over the wire: create, append, close, look and delete, and every refusal."""

from __future__ import annotations

import re

import pytest

from tests.support.speakers import Reply, Speaker

OFFSET = re.compile(r"[0-9]{16}_[0-9]{16}")
TEXT = {"content-type": "text/plain"}
JSON = {"content-type": "application/json"}
CLOSED = {"stream-closed": "true"}
START = "0000000000000000_0000000000000000"
BEYOND = "9999999999999999_9999999999999999"


class Stream:
    """One stream, by one protocol."""

    def __init__(self, speak: Speaker, name: str) -> None:
        self.speak = speak
        self.path = f"/v1/stream/{name}"

    def __call__(self, method: str, body: bytes | None = None, **headers: str) -> Reply:
        sent = {name.replace("_", "-"): value for name, value in headers.items()}
        reply = self.speak.send(method, self.path, body, sent)
        assert reply.headers["x-content-type-options"] == "nosniff"
        assert reply.headers["cross-origin-resource-policy"] == "cross-origin"
        return reply

    def put(self, body: bytes | None = None, type: str = "text/plain", **headers: str) -> Reply:
        return self("PUT", body, **{"content-type": type, **headers})

    def post(self, body: bytes | None = b"x", type: str = "text/plain", **headers: str) -> Reply:
        return self("POST", body, **{"content-type": type, **headers})

    def read(self) -> bytes:
        reply = self("GET")
        assert reply.status == 200
        return reply.body

    @property
    def tail(self) -> str:
        return self("HEAD").headers["stream-next-offset"]


@pytest.fixture
def stream(speak: Speaker, topic: str) -> Stream:
    return Stream(speak, topic)


@pytest.fixture
def text(stream: Stream) -> Stream:
    assert stream.put().status == 201
    return stream


@pytest.fixture
def json(stream: Stream) -> Stream:
    assert stream.put(type="application/json").status == 201
    return stream


# Create


def test_a_stream_is_created_once(stream: Stream) -> None:
    made = stream.put(b"first", host="localhost:81")
    assert made.status == 201
    assert made.headers["content-type"] == "text/plain"
    assert made.headers["location"] == "http://localhost:81" + stream.path
    assert OFFSET.fullmatch(made.headers["stream-next-offset"])
    assert "stream-closed" not in made.headers
    again = stream.put(b"second", type="TEXT/Plain; charset=utf-8")
    assert again.status == 200
    assert again.headers["stream-next-offset"] == made.headers["stream-next-offset"]
    assert "location" not in again.headers
    assert stream.read() == b"first"


@pytest.mark.parametrize(
    "sent", ["text/plain", "Text/Plain; charset=UTF-8", "application/json; x=1", "a/b"]
)
def test_the_type_is_told_as_it_was_given(stream: Stream, sent: str) -> None:
    assert stream.put(type=sent).headers["content-type"] == sent
    assert stream("HEAD").headers["content-type"] == sent
    assert stream("GET").headers["content-type"] == sent


@pytest.mark.parametrize("headers", [{}, {"content-type": "nonsense"}])
def test_a_stream_without_a_type_has_octets(stream: Stream, headers: dict[str, str]) -> None:
    made = stream("PUT", b"\x00\xff", **headers)
    assert made.status == 201
    assert made.headers["content-type"] == "application/octet-stream"
    assert stream.read() == b"\x00\xff"


@pytest.mark.parametrize(
    "other",
    [{"type": "text/html"}, {"stream-ttl": "61"}, {"stream-expires-at": "2099-01-01T00:00:00Z"},
     CLOSED, {"stream-retention-age": "9"}, {"stream-retention-bytes": "9000"}],
)  # fmt: skip
def test_another_stream_at_the_same_path_is_refused(stream: Stream, other: dict[str, str]) -> None:
    assert stream.put(**{"stream-ttl": "60"}).status == 201
    asked = dict(other)
    if not {"stream-ttl", "stream-expires-at"} & other.keys():
        asked["stream-ttl"] = "60"
    assert stream.put(**asked).status == 409
    assert stream.put(**{"stream-ttl": "60"}).status == 200


@pytest.mark.parametrize(
    "bad",
    [
        *({"stream-ttl": value} for value in ("abc", "-1", "+60", "00060", "60.5", "1e3", "")),
        *({"stream-expires-at": value} for value in ("soon", "2030-01-01", "2030-02-30T00:00:00Z")),
        {"stream-ttl": "60", "stream-expires-at": "2030-01-01T00:00:00Z"},
        {"stream-fork-offset": START},
        {"stream-fork-sub-offset": "0"},
        {"stream-forked-from": "elsewhere"},
        {"stream-forked-from": "/v1/stream/"},
        {"stream-retention-age": "1d"},
        {"stream-retention-bytes": "-1"},
        {"content-type": "x" * 300},
    ],
)
def test_a_header_that_is_wrong_creates_nothing(stream: Stream, bad: dict[str, str]) -> None:
    assert stream("PUT", b"data", **{**TEXT, **bad}).status == 400
    assert stream("HEAD").status == 404


def test_a_closed_stream_can_be_created(stream: Stream) -> None:
    made = stream.put(b"all", **CLOSED)
    assert (made.status, made.headers["stream-closed"]) == (201, "true")
    assert stream.put(**CLOSED).status == 200
    assert stream.put().status == 409
    assert stream.read() == b"all"
    refused = stream.post()
    assert (refused.status, refused.headers["stream-closed"]) == (409, "true")


def test_what_a_stream_was_given_is_told(stream: Stream) -> None:
    expires = "2099-01-01T00:00:00.5+01:00"
    assert stream.put(**{"stream-expires-at": expires, "stream-retention-age": "3600",
                         "stream-retention-bytes": "65536"}).status == 201  # fmt: skip
    told = stream("HEAD")
    assert told.status == 200 and told.body == b""
    assert told.headers["stream-expires-at"] == expires
    assert told.headers["stream-retention-age"] == "3600"
    assert told.headers["stream-retention-bytes"] == "65536"
    assert told.headers["cache-control"] == "no-store"
    assert "stream-ttl" not in told.headers and "content-length" not in told.headers


@pytest.mark.parametrize("path", ["a%2Fb", "a%00", "a%", "x%zz", "%ff", "x" * 700, "a/%2E%2e/b"])
def test_a_path_that_is_no_stream_is_refused(speak: Speaker, path: str) -> None:
    for method in ("PUT", "POST", "HEAD", "GET", "DELETE"):
        reply = speak.send(method, f"/v1/stream/{path}", None, TEXT)
        assert reply.status == 400, method
        assert reply.headers["x-content-type-options"] == "nosniff"


def test_two_paths_are_two_streams(speak: Speaker, topic: str) -> None:
    paths = [topic, f"{topic}/", f"{topic}//", f"{topic}/a", f"{topic}%20a"]
    for path in paths:
        assert Stream(speak, path).put(path.encode()).status == 201
    assert [Stream(speak, path).read() for path in paths] == [path.encode() for path in paths]
    assert Stream(speak, f"{topic}/%61").read() == f"{topic}/a".encode()


# Append


def test_an_append_is_told_the_new_tail(text: Stream) -> None:
    before = text.tail
    first = text.post(b"one")
    second = text.post(b"two", type="TEXT/PLAIN; a=b")
    assert (first.status, first.body, second.status) == (204, b"", 204)
    offsets = [before, first.headers["stream-next-offset"], second.headers["stream-next-offset"]]
    assert offsets == sorted(set(offsets))
    assert text.tail == offsets[-1]
    assert text.read() == b"onetwo"
    assert "content-length" not in first.headers


@pytest.mark.parametrize(
    ("body", "headers", "status"),
    [
        (b"", TEXT, 400),
        (None, TEXT, 400),
        (b"x", {}, 400),
        (b"x", {"content-type": "text/html"}, 409),
        (b"x", JSON, 409),
        (b"1", JSON, 409),
        (b"x" * ((1 << 20) + 1), TEXT, 413),
        (b"x", {**TEXT, "stream-seq": "s" * 300}, 400),
        (b"x", {**TEXT, "producer-id": "p"}, 400),
        (b"x", {**TEXT, "if-match": "unquoted"}, 400),
    ],
)
def test_an_append_that_is_wrong_changes_nothing(
    text: Stream, body: bytes | None, headers: dict[str, str], status: int
) -> None:
    text.post(b"kept")
    tail = text.tail
    assert text("POST", body, **headers).status == status
    assert (text.tail, text.read()) == (tail, b"kept")


def test_what_is_not_there_takes_nothing(stream: Stream) -> None:
    for method in ("POST", "HEAD", "GET", "DELETE"):
        body = b"x" if method == "POST" else None
        reply = stream(method, body, **TEXT)
        assert reply.status == 404
        assert reply.headers["cache-control"] == "no-store"
    assert stream("POST", b"", **CLOSED).status == 404


def test_other_methods_are_refused(text: Stream) -> None:
    reply = text("PATCH", b"x")
    assert reply.status == 405
    assert set(reply.headers["allow"].split(", ")) >= {"DELETE", "GET", "HEAD", "POST", "PUT"}


def test_writers_that_number_their_appends_keep_an_order(text: Stream) -> None:
    def numbered(number: str) -> int:
        return text.post(b"x", **{"stream-seq": number}).status

    assert [numbered(n) for n in ("09", "10", "10", "2", "1", "9a", "9A")] == [
        204, 204, 409, 204, 409, 204, 409,
    ]  # fmt: skip
    assert text.read() == b"xxxx"
    refused = text.post(b"y", **{"stream-seq": "0"})
    assert (refused.body, refused.headers["stream-next-offset"]) == (
        b"Sequence conflict",
        text.tail,
    )


def test_an_append_may_want_the_stream_as_it_was(text: Stream) -> None:
    start = text.tail
    assert text.post(b"a", **{"if-match": f'"{start}"'}).status == 204
    refused = text.post(b"b", **{"if-match": f'"{start}"'})
    assert (refused.status, refused.headers["stream-next-offset"]) == (412, text.tail)
    of_another = "9" * 16 + text.tail[16:]
    for other in (BEYOND, of_another, "anything"):
        assert text.post(b"b", **{"if-match": f'"{other}"'}).status == 412
    assert text.post(b"c", **{"if-match": f'"{text.tail}"'}).status == 204
    assert text.post(b"d", **{"if-match": "*"}).status == 204
    assert text.read() == b"acd"
    assert Stream(text.speak, "nowhere").post(**{"if-match": "*"}).status == 404


def test_an_append_may_expect_an_offset(text: Stream) -> None:
    start = text.tail
    assert text.post(b"a", **{"stream-expected-offset": start}).status == 204
    for other in (start, BEYOND, "anything", "now", "-1"):
        refused = text.post(b"b", **{"stream-expected-offset": other})
        assert (refused.status, refused.body) == (409, b"Expected offset conflict")
        assert refused.headers["stream-next-offset"] == text.tail
    numbered = {"producer-id": "p", "producer-epoch": "0", "producer-seq": "0"}
    numbered["stream-expected-offset"] = text.tail
    assert [text.post(b"c", **numbered).status for _ in range(2)] == [200, 204]
    assert text.read() == b"ac"


def test_what_comes_before_the_offset_of_an_append(text: Stream) -> None:
    """An offset of no place is no matter where the stream is not there, or closed."""
    nowhere = {"stream-expected-offset": "anything"}
    quoted = {"if-match": '"anything"'}
    assert Stream(text.speak, "nowhere").post(**nowhere).status == 404
    assert text("POST", b"x", **JSON, **nowhere).status == 409
    assert text("POST", b"last", **TEXT, **CLOSED).status == 204
    for sent in (nowhere, quoted):
        refused = text.post(b"x", **sent)
        assert (refused.status, refused.headers["stream-closed"]) == (409, "true")


def test_a_close_may_want_the_stream_as_it_was(text: Stream) -> None:
    start = text.tail
    text.post(b"a")
    assert text("POST", b"", **{**CLOSED, "if-match": f'"{start}"'}).status == 412
    assert "stream-closed" not in text("HEAD").headers
    assert text("POST", b"", **{**CLOSED, "if-match": f'"{text.tail}"'}).status == 204


# JSON


@pytest.mark.parametrize(
    ("body", "read"),
    [(b'{"a": 1}', b'[{"a": 1}]'), (b"[1, [2], 3]", b"[1,[2],3]"), (b' "x" ', b'["x"]'),
     (b"[[1,2],[3,4]]", b"[[1,2],[3,4]]"), (b"null", b"[null]")],
)  # fmt: skip
def test_an_array_is_its_messages(json: Stream, body: bytes, read: bytes) -> None:
    assert json.read() == b"[]"
    assert json.post(body, type="application/json; charset=utf-8").status == 204
    assert json.read() == read


@pytest.mark.parametrize("body", [b"{", b"[]", b"[1", b'"\xff"', b"", b"1 2", b" "])
def test_what_is_no_message_is_refused(json: Stream, body: bytes) -> None:
    assert json.post(body, type="application/json").status == 400
    assert json.read() == b"[]"


@pytest.mark.parametrize("body", [b"{", b"[]"])
def test_the_stream_is_looked_at_before_what_is_no_message(json: Stream, body: bytes) -> None:
    def refused(headers: dict[str, str]) -> Reply:
        return json.post(body, type="application/json", **headers)

    last = {"producer-id": "p", "producer-epoch": "0", "producer-seq": "1"}
    first = {**last, "producer-seq": "0"}
    assert json.post(b"1", type="application/json", **first, **{"stream-seq": "b"}).status == 200
    assert refused({}).status == refused(last).status == 400
    assert refused(first).status == 204, "it was stored before"
    assert refused({"stream-seq": "a"}).status == 409
    assert refused({**last, "producer-seq": "7"}).headers["producer-expected-seq"] == "1"
    assert json.post(b"2", type="application/json", **last, **CLOSED).status == 200
    closed = refused({})
    assert (closed.status, closed.headers["stream-closed"]) == (409, "true")
    repeat = refused(last)
    assert (repeat.status, repeat.headers["stream-closed"]) == (204, "true")
    assert json.read() == b"[1,2]"
    fork = Stream(json.speak, json.path.removeprefix("/v1/stream/") + "/fork")
    assert fork("PUT", None, **{"stream-forked-from": json.path}).status == 201
    assert json("DELETE").status == 204
    assert refused({}).status == 410
    assert fork("DELETE").status == 204
    nowhere = Stream(json.speak, "nowhere")
    assert nowhere.post(body, type="application/json").status == 404


def test_a_stream_of_messages_may_begin_with_some(speak: Speaker, topic: str) -> None:
    for number, (body, read) in enumerate([(b"[]", b"[]"), (b"[1,2]", b"[1,2]"), (b"3", b"[3]")]):
        stream = Stream(speak, f"{topic}-{number}")
        assert stream.put(body, type="application/json").status == 201
        assert stream.read() == read
    bad = Stream(speak, f"{topic}-bad")
    assert bad.put(b"[1", type="application/json").status == 400
    assert bad("HEAD").status == 404


# Close and delete


def test_a_close_is_the_end(text: Stream) -> None:
    text.post(b"last")
    tail = text.tail
    for headers in (CLOSED, {**CLOSED, "content-type": "a/b"}, {"stream-closed": "TRUE"}):
        closed = text("POST", b"", **headers)
        assert closed.status == 204
        assert closed.headers["stream-closed"] == "true"
        assert closed.headers["stream-next-offset"] == tail
    for headers in ({}, CLOSED, {"content-type": "text/html"}):
        refused = text.post(b"more", **headers)
        assert refused.status == 409
        assert refused.headers["stream-closed"] == "true"
        assert refused.headers["stream-next-offset"] == tail
    assert text("HEAD").headers["stream-closed"] == "true"
    assert text.read() == b"last"


def test_a_last_append_closes(text: Stream) -> None:
    done = text.post(b"last", **CLOSED)
    assert (done.status, done.headers["stream-closed"]) == (204, "true")
    assert done.headers["stream-next-offset"] == text.tail
    assert text.post().status == 409
    assert text.read() == b"last"


@pytest.mark.parametrize("value", ["false", "1", "yes", ""])
def test_only_true_closes(text: Stream, value: str) -> None:
    assert text("POST", b"", **{"stream-closed": value}).status == 400
    assert text.post(**{"stream-closed": value}).status == 204
    assert "stream-closed" not in text("HEAD").headers


def test_a_deleted_stream_may_begin_again(text: Stream) -> None:
    text.post(b"old", **CLOSED)
    old = text.tail
    deleted = text("DELETE")
    assert (deleted.status, deleted.body) == (204, b"")
    assert text("DELETE").status == text("HEAD").status == text.post().status == 404
    made = text.put(b"new", type="a/b")
    assert made.status == 201
    assert made.headers["stream-next-offset"] > old
    assert text.read() == b"new"
    assert text.speak("GET", f"{text.path}?offset={old}").status == 410


# Forks


def test_a_fork_begins_with_what_its_source_had(speak: Speaker, topic: str) -> None:
    source, fork = Stream(speak, topic), Stream(speak, f"{topic}/fork")
    source.put(b"ab")
    middle = source.tail
    source.post(b"cd")
    made = fork("PUT", b"!", **{"stream-forked-from": source.path, "stream-fork-offset": middle})
    assert (made.status, made.headers["content-type"]) == (201, "text/plain")
    assert "stream-forked-from" not in made.headers
    source.post(b"ef")
    assert (fork.read(), source.read()) == (b"ab!", b"abcdef")
    again = fork("PUT", None, **{"stream-forked-from": source.path, "stream-fork-offset": middle})
    assert again.status == 200
    assert fork("PUT", None, **{"stream-forked-from": source.path}).status == 200
    assert source("DELETE").status == 204
    assert source("HEAD").status == source.post().status == source("DELETE").status == 410
    assert source.put().status == 409
    repeat = fork("PUT", b"!", **{"stream-forked-from": source.path, "stream-fork-offset": middle})
    assert repeat.status == 200  # whatever became of the source
    late = Stream(speak, f"{topic}/late")
    assert late("PUT", b"!", **{"stream-forked-from": source.path}).status == 409
    assert fork.read() == b"ab!"
    assert fork("DELETE").status == 204


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"stream-fork-offset": BEYOND}, 400),
        ({"stream-fork-offset": "nonsense"}, 400),
        ({"stream-fork-sub-offset": "05", "stream-fork-offset": START}, 400),
        ({"stream-fork-sub-offset": "1"}, 400),
        ({"stream-fork-sub-offset": "9", "stream-fork-offset": START}, 400),
        ({"content-type": "a/b"}, 409),
    ],
)
def test_a_fork_that_cannot_be_leaves_nothing(
    speak: Speaker, topic: str, headers: dict[str, str], status: int
) -> None:
    source, fork = Stream(speak, topic), Stream(speak, f"{topic}/fork")
    source.put(b"abc")
    assert fork("PUT", None, **{"stream-forked-from": source.path, **headers}).status == status
    assert fork("HEAD").status == 404
    assert source("DELETE").status == 204
    assert source("HEAD").status == 404, "nothing is kept for a fork that was never made"


def test_a_fork_of_nothing_is_refused(stream: Stream) -> None:
    assert stream("PUT", None, **{"stream-forked-from": "/v1/stream/nowhere"}).status == 404
    assert stream("HEAD").status == 404
