"""Producers of Durable Streams: every row of the table, and what is never stored twice."""

from __future__ import annotations

import pytest

from tests.support.speakers import Reply, Speaker

CLOSED = {"stream-closed": "true"}


class Stream:
    """One stream that producers write to."""

    def __init__(self, speak: Speaker, name: str, type: str = "text/plain") -> None:
        self.speak = speak
        self.path = f"/v1/stream/{name}"
        self.type = {"content-type": type}
        assert speak.send("PUT", self.path, None, self.type).status == 201

    def append(
        self, epoch: object, sequence: object, body: bytes = b"x", id: str = "p", **more: str
    ) -> Reply:
        numbers = {"producer-epoch": str(epoch), "producer-seq": str(sequence)}
        headers = {**self.type, "producer-id": id, **numbers, **more}
        return self.speak.send("POST", self.path, body, headers)

    def read(self) -> bytes:
        return self.speak.send("GET", self.path, None, {}).body


@pytest.fixture
def stream(speak: Speaker, topic: str) -> Stream:
    return Stream(speak, topic)


def producer_headers(reply: Reply) -> dict[str, str]:
    return {name: value for name, value in reply.headers.items() if name.startswith("producer-")}


def test_every_row_of_the_table(stream: Stream) -> None:
    gap = stream.append(0, 1)
    assert gap.status == 409
    assert producer_headers(gap) == {"producer-expected-seq": "0", "producer-received-seq": "1"}
    for sequence in range(3):
        done = stream.append(2, sequence, b"%d" % sequence)
        assert done.status == 200 and done.body == b""
        assert producer_headers(done) == {"producer-epoch": "2", "producer-seq": str(sequence)}
        assert "stream-next-offset" in done.headers
    for sequence in range(3):
        again = stream.append(2, sequence, b"other")
        assert again.status == 204
        assert producer_headers(again) == {"producer-epoch": "2", "producer-seq": "2"}
    skipped = stream.append(2, 9)
    assert producer_headers(skipped) == {
        "producer-expected-seq": "3",
        "producer-received-seq": "9",
    }
    fenced = stream.append(1, 3)
    assert (fenced.status, producer_headers(fenced)) == (403, {"producer-epoch": "2"})
    assert stream.append(3, 1).status == 400
    assert stream.append(3, 0, b"3").status == 200
    assert stream.append(2, 3).status == 403
    assert stream.append(0, 0, b"4", id="another").status == 200
    assert stream.read() == b"01234"


@pytest.mark.parametrize("bad", ["-1", "1abc", "1e3", "", "9007199254740992", "1.0"])
def test_numbers_that_are_none_are_refused(stream: Stream, bad: str) -> None:
    assert stream.append(bad, 0).status == 400
    assert stream.append(0, bad).status == 400
    assert stream.append(0, 0, id="").status == 400
    assert stream.append(0, 0).status == 200


def test_a_body_that_is_refused_advances_nothing(speak: Speaker, topic: str) -> None:
    stream = Stream(speak, topic, "application/json")
    for body in (b"{", b"[]", b""):
        assert stream.append(0, 0, body).status == 400
    assert stream.append(0, 0, b"[1,2]").status == 200
    assert stream.append(0, 1, b"3").status == 200
    assert stream.read() == b"[1,2,3]"


def test_a_repeat_is_told_before_the_order_of_writers(stream: Stream) -> None:
    assert stream.append(0, 0, **{"stream-seq": "a"}).status == 200
    assert stream.append(0, 0, **{"stream-seq": "a"}).status == 204
    assert stream.append(0, 1, **{"stream-seq": "a"}).status == 409
    assert stream.append(0, 1, **{"stream-seq": "b"}).status == 200


def test_a_close_is_a_step_of_its_producer(stream: Stream) -> None:
    assert stream.append(0, 0, b"a").status == 200
    assert stream.append(0, 2, b"", **CLOSED).status == 409
    for body in (b"", b"", b"ignored"):
        closed = stream.append(0, 1, body, **CLOSED)
        assert (closed.status, closed.headers["stream-closed"]) == (204, "true")
        assert producer_headers(closed) == {"producer-epoch": "0", "producer-seq": "1"}
    for epoch, sequence, id in ((0, 0, "p"), (0, 2, "p"), (1, 0, "p"), (0, 1, "q")):
        other = stream.append(epoch, sequence, id=id)
        assert (other.status, other.headers["stream-closed"]) == (409, "true")
    assert stream.read() == b"a"


def test_a_last_append_of_a_producer_closes_once(stream: Stream) -> None:
    done = stream.append(0, 0, b"all", **CLOSED)
    assert (done.status, done.headers["stream-closed"]) == (200, "true")
    again = stream.append(0, 0, b"all", **CLOSED)
    assert (again.status, again.headers["stream-closed"]) == (204, "true")
    assert again.headers["stream-next-offset"] == done.headers["stream-next-offset"]
    assert stream.read() == b"all"


def test_a_stream_that_begins_again_knows_no_producer(stream: Stream) -> None:
    assert stream.append(5, 0).status == 200
    assert stream.speak.send("DELETE", stream.path, None, {}).status == 204
    assert stream.speak.send("PUT", stream.path, None, stream.type).status == 201
    assert stream.append(0, 0).status == 200
