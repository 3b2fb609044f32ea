"""Clients that send a byte now and then over HTTP/1.1; time passes when a test says so."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from headrace.wire.s2.frames import frame as session_frame
from tests.support.memory_transport import in_a_loop
from tests.support.served_app import Response
from tests.support.turn_servers import TurnClient, TurnServer, http

ALLOWED_S = 30
RATE = 256
PATIENCE_S = 600  # longer than anything may be waited for

NATIVE = "/v0/topics/t"
STREAM = "/v1/stream/t"
S2 = "/v1/streams/s/records"


class Slow:
    """A server, and connections to it that are looked at once a second."""

    def __init__(self, **settings: Any) -> None:
        self.server = TurnServer(**{"body_timeout_ms": 1_000 * ALLOWED_S, **settings})

    def connect(self) -> TurnClient:
        return self.server.connect(1)[0]

    def pass_s(self, *protocols: Any, seconds: int = 1) -> None:
        for _ in range(seconds):
            self.server.pass_ms(1_000)
            for protocol in protocols:
                protocol.tick(self.server.app.now_ms())

    def drip(self, client: TurnClient, piece: bytes, every_s: int) -> int:
        """Send a piece so often, until the server has enough; return the seconds until then."""
        for second in range(PATIENCE_S):
            if second % every_s == 0:
                client.send(piece)
            self.pass_s(client.protocol)
            if client._transport.sent or client.closed:
                return second
        pytest.fail("it goes on for ever")

    def rejected(self, reason: str) -> int:
        (line,) = self.server.counters(rf'headrace_http_rejected_total{{reason="{reason}"}}')
        return int(line.split()[-1])


def head(path: str, *lines: str, method: str = "POST") -> bytes:
    given = [f"{method} {path} HTTP/1.1", "Host: localhost", "Content-Type: application/json"]
    return "\r\n".join([*given, *lines, "", ""]).encode()


SIZED = "Content-Length: 1000000"
CHUNKED = "Transfer-Encoding: chunked"


def told(client: TurnClient) -> Response:
    (answer,) = client.hear()
    return answer


def _in_words(answer: Response) -> str:
    """The code of an error that is told as text."""
    assert answer.headers[b"content-type"].startswith(b"text/plain")
    return "request_timeout" if b"did not arrive in time" in answer.body else ""


# Bodies


@pytest.mark.parametrize(
    ("path", "lines", "code_of"),
    [
        (NATIVE, (), lambda told: told.json["error"]["code"]),
        (STREAM, (), _in_words),
        (S2, ("s2-basin: basin-one",), lambda told: told.json["code"]),
    ],
    ids=["native", "durable-streams", "s2"],
)
def test_a_body_byte_by_byte_is_refused_in_the_form_of_its_dialect(
    path: str, lines: tuple[str, ...], code_of: Callable[[Response], str]
) -> None:
    def test() -> None:
        slow = Slow()
        client = slow.connect()
        client.send(head(path, SIZED, *lines))
        assert slow.drip(client, b"x", every_s=20) == ALLOWED_S + 1
        answer = told(client)
        assert answer.status == 408
        assert code_of(answer) == "request_timeout"
        assert answer.headers[b"connection"] == b"close"
        assert slow.rejected("body_rate") == 1

    in_a_loop(test)


@pytest.mark.parametrize(
    ("start", "piece"),
    [
        (b"", b"1\r\nx\r\n"),
        (b"5;x=", b"y"),
        (b"5\r\nhello\r\n0\r\nx: ", b"y"),
        (b"5\r\nhello\r\n0\r\n", b"x: y\r\n"),
        (b"5\r\nhello\r\n", b"0"),
    ],
    ids=["chunks", "extension", "trailer", "trailers", "zeros"],
)
def test_what_is_around_the_bytes_of_a_body_keeps_it_from_nothing(
    start: bytes, piece: bytes
) -> None:
    def test() -> None:
        slow = Slow()
        client = slow.connect()
        client.send(head(NATIVE, CHUNKED) + start)
        assert slow.drip(client, piece, every_s=1) == ALLOWED_S + 1
        assert told(client).status == 408

    in_a_loop(test)


def test_a_body_that_came_fast_at_first_may_not_rest_later() -> None:
    def test() -> None:
        slow = Slow()
        client = slow.connect()
        client.send(head(NATIVE, SIZED) + b"x" * 900_000)
        assert slow.drip(client, b"x", every_s=10) <= ALLOWED_S + 2
        assert told(client).status == 408

    in_a_loop(test)


def test_no_slowest_rate_if_none_is_set() -> None:
    slow = Slow(body_bytes_per_second_min=0)
    client = slow.connect()
    client.send(head(NATIVE, SIZED))
    for _ in range(5):
        client.send(b"x")
        slow.pass_s(client.protocol, seconds=ALLOWED_S)
    assert client.hear() == [] and not client.closed


BODY = b'{"records":[{"data":"%b"}]}' % (b"x" * 40_000)


@pytest.mark.parametrize("every_s", [1, 7, 29])
def test_a_slow_body_above_the_rate_is_served(every_s: int) -> None:
    slow = Slow()
    client = slow.connect()
    client.send(head(NATIVE, f"Content-Length: {len(BODY)}"))
    step = (RATE + 100) * every_s  # in any half a minute enough, also if one of these is missing
    for at in range(0, len(BODY), step):
        assert client.hear() == []
        slow.pass_s(client.protocol, seconds=every_s)
        client.send(BODY[at : at + step])
    slow.server.end_turn()
    assert told(client).status == 201


def test_a_body_that_the_server_does_not_read_is_not_late() -> None:
    """The client does not take its answers, so that nothing of it is read meanwhile."""
    slow = Slow()
    client = slow.connect()
    client.send(head(NATIVE, f"Content-Length: {len(BODY)}") + BODY[:10])
    slow.pass_s(client.protocol, seconds=ALLOWED_S - 1)
    client.protocol.pause_writing()
    slow.pass_s(client.protocol, seconds=3 * ALLOWED_S)
    client.protocol.resume_writing()
    slow.pass_s(client.protocol, seconds=ALLOWED_S)
    client.send(BODY[10:])
    slow.server.end_turn()
    assert told(client).status == 201


def test_a_body_that_has_not_been_asked_for_is_not_late() -> None:
    """A long poll goes before it, and only then is the client told to continue."""
    slow = Slow(wait_ms_max=100_000)
    client = slow.connect()
    assert slow.server.ask(http("PUT", NATIVE, {})).status == 201
    wait = {"from": "head", "wait_ms": 90_000}
    client.send(http("POST", f"{NATIVE}/diff", wait))
    client.send(head(NATIVE, f"Content-Length: {len(BODY)}", "Expect: 100-continue"))
    slow.pass_s(client.protocol, seconds=80)
    assert client.hear() == [] and not client.closed
    slow.pass_s(client.protocol, seconds=20)
    assert [answer.status for answer in client.hear()] == [200, 100]
    client.send(BODY)
    slow.server.end_turn()
    assert told(client).status == 200


def test_the_rest_of_a_request_that_was_answered_is_not_waited_for() -> None:
    """A session that is refused has its answer; what its client still sends is dropped."""

    def test() -> None:
        slow = Slow()
        client = slow.connect()
        lines = (CHUNKED, "s2-basin: basin-one", "Content-Type: s2s/proto")
        start = head(S2, *lines).replace(b"Content-Type: application/json\r\n", b"")
        client.send(start)
        slow.server.end_turn()
        assert told(client).status in (404, 403)
        assert slow.drip(client, b"1\r\nx\r\n", every_s=5) == ALLOWED_S + 1
        assert client.hear() == [] and client.closed

    in_a_loop(test)


# What is around a body


def test_what_is_around_a_body_is_bounded_altogether() -> None:
    """However it is spread over the body, and however fast it comes."""

    def test() -> None:
        slow = Slow(chunk_overhead_bytes_max=4_096)
        client = slow.connect()
        client.send(head(NATIVE, CHUNKED))
        chunk = b"1;%b\r\nx\r\n" % (b"y" * 100)
        sent = 0
        while not client._transport.sent:
            client.send(chunk)
            sent += len(chunk)
            assert sent < 8_192
        answer = told(client)
        assert (answer.status, answer.json["error"]["code"]) == (431, "headers_too_large")
        assert sent > 4_096
        assert slow.rejected("chunk_overhead") == 1

    in_a_loop(test)


def test_a_body_in_chunks_of_one_byte_is_taken() -> None:
    slow = Slow(chunk_overhead_bytes_max=1_024)
    client = slow.connect()
    client.send(head(NATIVE, CHUNKED))
    for at in range(3_000):
        client.send(
            b"0000001\r\n%b\r\n" % (b'{"records":[{"data":1}]}' + b" " * 3_000)[at : at + 1]
        )
    client.send(b"0\r\n\r\n")
    slow.server.end_turn()
    assert told(client).status == 201


# Heads, and a connection at rest


@pytest.mark.parametrize(
    ("start", "piece"),
    [(b"", b"G"), (b"PRI * HTTP/2", b""), (b"GET /v0/health HTTP/1.1\r\n", b"x: y\r\n")],
)
def test_a_head_has_one_deadline_however_it_drips(start: bytes, piece: bytes) -> None:
    def test() -> None:
        slow = Slow(header_timeout_ms=20_000)
        client = slow.connect()
        client.send(start or b"G")
        if not start:
            client.protocol.data_received(b"ET /")
        assert slow.drip(client, piece, every_s=PATIENCE_S if not start else 1) == 21
        assert told(client).status == 408
        assert slow.rejected("header_timeout") == 1

    in_a_loop(test)


def test_heads_that_every_look_finds_cut_are_not_one_that_does_not_end() -> None:
    """A client that pipelines without rest is nearly always in the middle of one."""
    slow = Slow(header_timeout_ms=5_000)
    client = slow.connect()
    request = b"GET /v0/health HTTP/1.1\r\nHost: localhost\r\n\r\n"
    client.send(request[:20])
    for _ in range(20):
        slow.pass_s(client.protocol)
        client.send(request[20:] + request[:20])
        slow.server.end_turn()
        assert told(client).status == 200


def test_blank_lines_do_not_keep_a_connection_at_rest() -> None:
    slow = Slow(idle_timeout_ms=10_000)
    client = slow.connect()
    client.send(b"GET /v0/health HTTP/1.1\r\nHost: localhost\r\n\r\n")
    slow.server.end_turn()
    assert told(client).status == 200
    assert slow.drip(client, b"\r\n", every_s=1) == 11
    assert client.closed


def test_what_is_no_http_is_refused_at_once() -> None:
    def test() -> None:
        slow = Slow()
        client = slow.connect()
        client.send(b"PROXY TCP4 127.0.0.1 127.0.0.1 1 2\r\n")
        assert told(client).status == 400

    in_a_loop(test)


# What lives on heartbeats


def test_a_session_is_not_cut_however_little_it_sends() -> None:
    """Its inputs are whole, and come when there is something to append (s2 §1e)."""
    slow = Slow()
    slow.server.app.start()
    slow.pass_s()
    made = slow.server.ask(http("POST", "/v1/basins", {"basin": "basin-one"}))
    assert made.status == 201, made
    asked = http("POST", "/v1/streams", {"stream": "s"}, s2_basin="basin-one")
    assert slow.server.ask(asked).status == 201
    client = slow.connect()
    lines = (CHUNKED, "s2-basin: basin-one", "Content-Type: s2s/proto")
    client.send(head(S2, *lines).replace(b"Content-Type: application/json\r\n", b""))
    sent = session_frame(b"\x0a\x03\x1a\x01x")  # a record of one byte
    for _ in range(5):
        slow.pass_s(seconds=3 * ALLOWED_S)
        assert not client.closed
        for byte in b"%x\r\n%b\r\n" % (len(sent), sent):
            client.send(bytes([byte]))
            slow.pass_s()
    client.send(b"0\r\n\r\n")
    slow.pass_s()
    answered = bytes(client._transport.sent)
    assert answered.startswith(b"HTTP/1.1 200") and answered.endswith(b"\r\n0\r\n\r\n")
    assert not client.closed
    read = slow.server.ask(http("GET", f"{S2}?seq_num=0", s2_basin="basin-one"))
    assert len(read.json["records"]) == 5


def test_a_tunnel_is_not_cut_while_its_pings_are_answered() -> None:
    slow = Slow()
    slow.server.app.start()
    client = slow.connect()
    upgrade = {"connection": "upgrade", "upgrade": "websocket", "sec_websocket_version": "13"}
    client.send(http("GET", "/v0/ws", sec_websocket_key="a" * 22 + "==", **upgrade))
    slow.server.end_turn()
    assert client.hear()[0].status == 101
    pings = 0
    for _ in range(600):
        slow.pass_s()
        assert not client.closed
        if client._transport.sent:
            assert bytes(client._transport.sent) == b"\x89\x00"
            client._transport.sent.clear()
            client.send(b"\x8a\x80mask")  # a pong
            pings += 1
    assert pings >= 39
    for _ in range(200):  # and who answers none is gone
        slow.pass_s()
    assert client.closed
