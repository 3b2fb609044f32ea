"""Headers of Durable Streams that a client may get wrong: sent twice, empty, or not for this call.

A condition that the server would not look at is refused: to ignore it would be to lie.
"""

from __future__ import annotations

import pytest

from tests.support.speakers import Speaker

TEXT = {"content-type": "text/plain"}
PRODUCER = {"producer-id": "p", "producer-epoch": "0", "producer-seq": "0"}


@pytest.fixture
def path(speak: Speaker, topic: str) -> str:
    """The path of a stream that holds `kept`."""
    path = f"/v1/stream/{topic}"
    assert speak.send("PUT", path, b"kept", TEXT).status == 201
    return path


@pytest.mark.parametrize(
    ("name", "values"),
    [
        ("Producer-Id", ("p", "p")),
        ("Producer-Epoch", ("0", "0")),
        ("Producer-Seq", ("0", "0")),
        ("Stream-Seq", ("1", "2")),
        ("Stream-Closed", ("true", "true")),
        ("If-Match", ("*", "*")),
        ("Stream-Expected-Offset", ("a", "a")),
        ("Stream-Seq", ("",)),
    ],
)
def test_an_append_has_each_header_once(
    speak: Speaker, path: str, name: str, values: tuple[str, ...]
) -> None:
    # Names that differ in case are one header, and two keys.
    twice = dict(zip((name, name.upper()), values, strict=False))
    others = PRODUCER if name.startswith("Producer") else {}
    sent = {key: value for key, value in others.items() if key != name.lower()}
    for _ in range(2):  # the second time the head is known
        assert speak.send("POST", path, b"x", {**TEXT, **sent, **twice}).status == 400
    assert speak("GET", path).body == b"kept"
    assert "stream-closed" not in speak("HEAD", path).headers


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("Stream-TTL", "60"),
        ("Stream-Expires-At", "2099-01-01T00:00:00Z"),
        ("Stream-Closed", "true"),
        ("Stream-Forked-From", "/v1/stream/a"),
        ("Stream-Retention-Age", "60"),
    ],
)
def test_a_stream_is_created_with_each_header_once(
    speak: Speaker, topic: str, name: str, value: str
) -> None:
    path = f"/v1/stream/{topic}"
    assert speak.send("PUT", path, b"", {name: value, name.upper(): value}).status == 400
    assert speak("HEAD", path).status == 404


def test_a_comma_in_one_value_is_part_of_it(speak: Speaker, path: str) -> None:
    assert speak.send("POST", path, b"1", {**TEXT, "stream-seq": "1, 2"}).status == 204
    assert speak.send("POST", path, b"2", {**TEXT, "stream-seq": "1, 2"}).status == 409
    named = {**PRODUCER, "producer-id": "a, b"}
    assert speak.send("POST", path, b"3", {**TEXT, **named}).status == 200
    assert speak("GET", path).body == b"kept13"


def test_a_stream_may_be_wanted_only_if_it_is_new(speak: Speaker, topic: str) -> None:
    path, new = f"/v1/stream/{topic}", {**TEXT, "if-none-match": "*"}
    assert speak.send("PUT", path, b"first", new).status == 201
    there = speak.send("PUT", path, b"second", new)
    assert there.status == 412
    assert there.headers["stream-next-offset"] == speak("HEAD", path).headers["stream-next-offset"]
    assert speak.send("PUT", path, b"", TEXT).status == 200
    assert speak("GET", path).body == b"first"


@pytest.mark.parametrize(
    ("method", "name", "value"),
    [
        ("PUT", "if-match", "*"),
        ("PUT", "if-none-match", '"a"'),
        ("POST", "if-none-match", "*"),
        ("DELETE", "if-match", '"0000000000000001_0000000000000000"'),
        ("DELETE", "if-none-match", "*"),
        ("PUT", "stream-expected-offset", "a"),
        ("DELETE", "stream-expected-offset", "a"),
    ],
)
def test_a_condition_that_is_not_looked_at_is_refused(
    speak: Speaker, path: str, method: str, name: str, value: str
) -> None:
    body = None if method == "DELETE" else b"more"
    assert speak.send(method, path, body, {**TEXT, name: value}).status == 400
    assert speak.send("PUT", path + "/other", b"", {**TEXT, "if-match": "*"}).status == 400
    assert speak("HEAD", path + "/other").status == 404
    assert speak("GET", path).body == b"kept"
    assert speak.send("DELETE", path, None, {"if-match": "*"}).status == 204
