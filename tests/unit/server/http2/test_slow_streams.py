"""Clients of HTTP/2 that send, or take, a byte now and then; time passes when a test says so."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from h2.errors import ErrorCodes

from headrace.server.http2.limits import CONTINUATION, DATA, HEADERS, PING, WINDOW_UPDATE
from tests.support.http2_client import frame
from tests.support.http2_memory_client import Answer, Http2Client
from tests.support.memory_transport import in_a_loop
from tests.support.wire_fuzz import World

ALLOWED_S = 30
RATE = 256
PATIENCE_S = 600  # longer than anything may be waited for

APPEND = b"/v0/topics/t"


class Slow:
    """A connection that is looked at once a second."""

    def __init__(self, window: int | None = None, **settings: Any) -> None:
        self.world = World(**settings)
        self.client = Http2Client(self.world, *([] if window is None else [window]))

    def begin(self, path: bytes = APPEND, *headers: tuple[bytes, bytes]) -> int:
        """Send the head of a request with a body; return its stream."""
        self.client.send(self.client.request(path, b"", *headers)[0])
        return self.client.stream_id

    def pass_s(self, seconds: int = 1) -> None:
        for _ in range(seconds):
            self.world.clock.advance(1_000)
            self.world.runtime.run()
            self.client.connection.tick(self.world.server.app.now_ms())
            self.client.take()

    def until(self, over: Callable[[], bool], piece: bytes = b"", every_s: int = 1) -> int:
        """Send a piece so often until something is over; return the seconds until then."""
        for second in range(PATIENCE_S):
            if piece and second % every_s == 0:
                self.client.send(piece)
            self.pass_s()
            if over():
                return second
        pytest.fail("it goes on for ever")

    def answered(self, stream_id: int) -> bool:
        answer = self.client.take().get(stream_id)
        return answer is not None and bool(answer.ended or answer.reset is not None)

    @property
    def closed(self) -> bool:
        return self.client.connection.closing

    def rejected(self, reason: str) -> int:
        text = self.world.server.app.metrics.registry.text()
        (line,) = [
            one for one in text.splitlines() if f'rejected_total{{reason="{reason}"}}' in one
        ]
        return int(line.split()[-1])


def _in_words(answer: Answer) -> str:
    """The code of an error that is told as text."""
    return "request_timeout" if b"did not arrive in time" in answer.body else ""


@pytest.mark.parametrize(
    ("path", "headers", "code_of"),
    [
        (APPEND, (), lambda told: told.json["error"]["code"]),
        (b"/v1/stream/t", (), _in_words),
        (b"/v1/streams/s/records", ((b"s2-basin", b"basin-one"),), lambda told: told.json["code"]),
    ],
    ids=["native", "durable-streams", "s2"],
)
def test_a_body_byte_by_byte_ends_its_stream_only(
    path: bytes, headers: tuple[tuple[bytes, bytes], ...], code_of: Callable[[Answer], str]
) -> None:
    slow = Slow()
    stream_id = slow.begin(path, *headers)
    piece = frame(DATA, 0, stream_id, b"x")
    assert slow.until(lambda: slow.answered(stream_id), piece, every_s=20) == ALLOWED_S + 1
    answer = slow.client.answers[stream_id]
    assert (answer.status, code_of(answer)) == (408, "request_timeout")
    assert answer.reset == ErrorCodes.NO_ERROR  # the rest is not wanted
    assert slow.rejected("body_rate") == 1
    slow.client.send(slow.client.append(b"t", 1))
    assert slow.client.take()[stream_id + 2].status == 200


@pytest.mark.parametrize(
    ("kind", "flags", "body"),
    [(DATA, 0, b""), (DATA, 8, b"\xff" + b"\x00" * 255)],
    ids=["empty", "padding"],
)
def test_frames_without_a_byte_of_a_body_are_none_of_it(kind: int, flags: int, body: bytes) -> None:
    slow = Slow()
    stream_id = slow.begin()
    piece = frame(kind, flags, stream_id, body)
    assert slow.until(lambda: slow.answered(stream_id), piece, every_s=2) == ALLOWED_S + 1
    assert slow.client.answers[stream_id].status == 408
    assert slow.rejected("body_timeout") == 1


@pytest.mark.parametrize(
    "piece", [frame(PING, 0, 0, b"12345678"), frame(WINDOW_UPDATE, 0, 0, b"\0\0\0\1")]
)
def test_frames_of_the_connection_keep_neither_a_body_nor_the_connection(piece: bytes) -> None:
    def test() -> None:
        slow = Slow()
        stream_id = slow.begin()
        slow.until(lambda: slow.answered(stream_id), piece)
        assert slow.client.answers[stream_id].status == 408
        assert slow.until(lambda: slow.closed, piece) <= 121  # `idle_timeout_ms`

    in_a_loop(test)


BODY = b'{"records":[{"data":"%b"}]}' % (b"x" * 40_000)


@pytest.mark.parametrize("frame_bytes", [100, 2_000, len(BODY)])
def test_a_slow_body_above_the_rate_is_served(frame_bytes: int) -> None:
    """Also one of a single frame, which takes more than two minutes to arrive."""
    slow = Slow()
    stream_id = slow.begin()
    sent = b""
    for at in range(0, len(BODY), frame_bytes):
        piece = BODY[at : at + frame_bytes]
        sent += frame(DATA, int(at + len(piece) == len(BODY)), stream_id, piece)
    step = RATE + 44 + 9 * (RATE // frame_bytes)
    for at in range(0, len(sent), step):
        assert not slow.answered(stream_id) and not slow.closed
        slow.pass_s()
        slow.client.send(sent[at : at + step])
    assert slow.client.take()[stream_id].status == 200


def test_a_frame_of_data_byte_by_byte_ends_the_connection() -> None:
    """Also where its stream has no deadline of its own, as a session has none."""

    def test() -> None:
        slow = Slow()
        stream_id = slow.begin()
        slow.client.send(frame(DATA, 0, stream_id, b"x" * 10_000)[:50])
        slow.until(lambda: slow.answered(stream_id), b"x", every_s=5)
        assert slow.client.answers[stream_id].status == 408
        slow.until(lambda: slow.closed, b"x", every_s=5)
        assert slow.client.goaway() == "NO_ERROR"
        assert slow.rejected("body_rate") == 2  # the stream, then the connection

    in_a_loop(test)


@pytest.mark.parametrize("drips", ["continuations", "bytes"])
def test_a_header_block_has_one_deadline_however_it_drips(drips: str) -> None:
    def test() -> None:
        slow = Slow(header_timeout_ms=20_000)
        slow.client.send(slow.client.append(b"t", 1))
        block = frame(HEADERS, 0, 3, b"\x82")
        if drips == "bytes":
            block += frame(CONTINUATION, 0, 3, b"\x40" + b"x" * 1_000)[:10]
        slow.client.send(block)
        piece = frame(CONTINUATION, 0, 3, b"") if drips == "continuations" else b"x"
        assert slow.until(lambda: slow.closed, piece, every_s=2) == 21
        assert slow.rejected("header_timeout") == 1

    in_a_loop(test)


# Answers

WINDOW = 100


def test_an_answer_that_is_taken_byte_by_byte_is_given_up() -> None:
    """The client opens its window by a byte now and then."""
    slow = Slow(window=WINDOW)
    slow.client.send(slow.client.request(b"/openapi.json")[0])
    stream_id = slow.client.stream_id
    assert len(slow.client.take()[stream_id].body) == WINDOW
    piece = frame(WINDOW_UPDATE, 0, stream_id, b"\0\0\0\1")
    assert slow.until(lambda: slow.answered(stream_id), piece, every_s=10) <= ALLOWED_S + 2
    assert slow.client.answers[stream_id].reset == ErrorCodes.CANCEL
    assert slow.rejected("write_rate") == 1


def test_an_answer_that_is_taken_slowly_above_the_rate_is_sent() -> None:
    slow = Slow(window=WINDOW)
    slow.client.send(slow.client.request(b"/v0/metrics")[0])
    stream_id = slow.client.stream_id
    size = len(slow.client.take()[stream_id].body)
    assert size == WINDOW
    opened = frame(WINDOW_UPDATE, 0, stream_id, (RATE + 44).to_bytes(4, "big"))
    slow.until(lambda: slow.answered(stream_id), opened)
    answer = slow.client.answers[stream_id]
    assert answer.ended and answer.reset is None
