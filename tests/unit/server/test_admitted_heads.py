"""A head that repeats settles that a request is let in, and never lets in another."""

from __future__ import annotations

import socket
import struct
from collections.abc import Sequence

import pytest

from headrace.core.settings import Settings
from headrace.server.admitted_heads import admitted_head
from headrace.server.http1.connection import Http1Connection
from headrace.wire.exchange import Exchange
from headrace.wire.routes import Route
from tests.support.memory_transport import MemoryTransport
from tests.support.served_app import Response, Served, read_response

LONG = b"x" * 4_000
BODY = b'{"n":1}'


class Noted:
    """A route that answers the requests of a turn with what they sent, and notes them."""

    def __init__(self, answer: bytes = b"") -> None:
        self.turns: list[int] = []
        self.admitted: list[bool] = []
        self.held: list[Exchange] = []
        self.holds = False
        self._answer = answer
        self.route = Route("POST", "/v0/x", self.one, turn_handler=self.many)

    def one(self, exchange: Exchange) -> None:
        self.many([exchange])

    def many(self, exchanges: Sequence[Exchange]) -> None:
        self.turns.append(len(exchanges))
        for exchange in exchanges:
            self.admitted.append(getattr(exchange, "admitted", None) is not None)
            if self.holds:
                self.held.append(exchange)
            else:
                self.answer(exchange)

    def answer(self, exchange: Exchange) -> None:
        timing = ((b"server-timing", b"total;dur=1.0"),)
        exchange.answer(200, self._answer or exchange.body, headers=timing)


def request(*headers: str, host: str = "localhost", body: bytes = BODY) -> bytes:
    lines = ["POST /v0/x HTTP/1.1", f"Host: {host}", *headers, f"Content-Length: {len(body)}"]
    return "\r\n".join([*lines, "", ""]).encode() + body


def ask(served: Served, *requests: bytes) -> list[Response]:
    """The answers to requests of one connection, each sent after the last was answered."""
    with served.connect() as sock:
        found = []
        for one in requests:
            sock.sendall(one)
            found.append(read_response(sock))
        return found


def counted(served: Served) -> list[str]:
    lines = served.call(served.app.metrics.registry.text).splitlines()
    return [line for line in lines if line.startswith("headrace_http_requests_total{")]


def test_requests_that_repeat_a_head_are_answered_and_counted_as_the_first() -> None:
    noted = Noted()
    with Served(Settings(), [noted.route]) as served:
        found = ask(served, *[request()] * 6)
        assert all(one == found[0] for one in found)
        (line,) = counted(served)
        assert line.endswith(" 6") and 'status="200"' in line
        text = served.call(served.app.metrics.registry.text)
    assert 'headrace_http_request_duration_seconds_count{dialect="native"' in text
    assert noted.admitted[-2:] == [True, True] and not noted.admitted[0]


def test_a_forbidden_host_is_refused_however_often_it_comes() -> None:
    noted = Noted()
    with Served(Settings(), [noted.route]) as served:
        ask(served, *[request()] * 4)
        found = ask(served, *[request(host="evil.example")] * 4)
        mixed = ask(served, *[request(), request(host="evil.example")] * 3)
    assert {one.status for one in found} == {403}
    assert [one.status for one in mixed] == [200, 403] * 3


@pytest.mark.parametrize(
    ("headers", "settled"),
    [
        ({b"host": b"localhost"}, True),
        ({b"host": b"evil.example"}, False),
        ({b"host": b"127.0.0.1"}, False),  # nobody has asked by that name yet
        ({b"host": b"localhost", b"origin": b"http://localhost"}, False),
        ({b"host": b"localhost", b"content-encoding": b"gzip"}, False),
    ],
)
def test_what_is_settled_by_a_head(headers: dict[bytes, bytes], settled: bool) -> None:
    noted = Noted()
    with Served(Settings(), [noted.route]) as served:
        ask(served, request())
        exchange = Exchange("POST", "/v0/x", "", headers, 0)
        served.app.find_route(exchange)
        assert (served.call(lambda: admitted_head(served.app, exchange)) is not None) is settled


def test_a_web_page_is_asked_each_time() -> None:
    noted = Noted()
    with Served(Settings(), [noted.route]) as served:
        ask(served, *[request()] * 4)
        found = ask(served, *[request("Origin: https://evil.example")] * 4)
    assert {one.status for one in found} == {403}


def test_a_key_is_asked_for_each_time() -> None:
    noted = Noted()
    settings = Settings(api_keys="good:write,reader:read", max_inflight_per_key=2)
    route = noted.route._replace(scopes=frozenset({"write"}))
    with Served(settings, [route]) as served:
        good, weak, bad = (f"Authorization: Bearer {key}" for key in ("good", "reader", "bad"))
        assert {one.status for one in ask(served, *[request(good)] * 5)} == {200}
        assert noted.admitted[-1], "all but the key is settled"
        found = ask(served, *[request(good), request(bad), request(weak), request()] * 2)
        assert [one.status for one in found] == [200, 401, 403, 401] * 2
        # Slots are given back, whatever the answer was.
        assert {one.status for one in ask(served, *[request(good)] * 5)} == {200}


def test_requests_that_wait_in_a_turn_hold_the_slots_of_their_key() -> None:
    noted = Noted()
    settings = Settings(api_keys="good:write", max_inflight_per_key=2)
    with Served(settings, [noted.route]) as served:
        one = request("Authorization: Bearer good")
        ask(served, *[one] * 3)
        noted.holds = True
        first, second, third = (served.connect() for _ in range(3))
        with first, second, third:
            first.sendall(one)
            second.sendall(one)
            served.wait(lambda: len(noted.held) == 2)
            third.sendall(one)
            assert read_response(third).status == 429
            # A client that leaves gives its slot back; one that only ends its side may still read.
            first.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            first.close()
            served.wait(lambda: noted.held[0].answered)
            noted.holds = False
            third.sendall(one)
            assert read_response(third).status == 200
            served.call(lambda: noted.answer(noted.held[1]))
            assert read_response(second).status == 200
        assert ask(served, *[one] * 3)[-1].status == 200


def test_a_server_that_stops_takes_no_more() -> None:
    noted = Noted()
    with Served(Settings(), [noted.route]) as served:
        ask(served, *[request()] * 4)
        with served.connect() as sock:
            sock.sendall(request())
            read_response(sock)

            def stop_and_ask() -> None:
                # The request has come before the stop, and is read after it.
                served.app.state = "draining"

            served.call(stop_and_ask)
            sock.sendall(request())
            assert read_response(sock).status == 503


def test_large_answers_are_compressed_for_those_who_accept_it() -> None:
    noted = Noted(LONG)
    with Served(Settings(), [noted.route]) as served:
        plain = ask(served, *[request()] * 4)
        packed = ask(served, *[request("Accept-Encoding: gzip")] * 4)
    assert {one.body for one in plain} == {LONG}
    assert {one.headers.get(b"content-encoding") for one in packed} == {b"gzip"}
    assert {one.headers.get(b"content-encoding") for one in plain} == {None}


@pytest.mark.parametrize("size", [0, 1, 1_023, 1_024, 5_000])
def test_answers_of_any_length_are_framed_right(size: int) -> None:
    noted = Noted()
    with Served(Settings(), [noted.route]) as served:
        found = ask(served, *[request(body=b"y" * size)] * 4)
    assert {one.body for one in found} == {b"y" * size}


def test_pipelined_requests_with_a_known_head_are_answered_in_order() -> None:
    noted = Noted()
    with Served(Settings(), [noted.route]) as served:
        ask(served, *[request()] * 4)
        bodies = [b"%d" % number for number in range(10, 30)]
        with served.connect() as sock:
            sock.sendall(request(body=b"00"))
            read_response(sock)
            sock.sendall(b"".join(request(body=body) for body in bodies))
            assert [read_response(sock).body for _ in bodies] == bodies
    assert max(noted.turns) > 1, "they came together"
    assert all(noted.admitted[-10:])


@pytest.mark.parametrize("known", [False, True])
def test_a_client_that_ends_in_its_turn_is_not_kept_waiting_for(known: bool) -> None:
    """An answer that may take long is not begun for a client that has sent all it will."""
    waiting: list[Exchange] = []

    def wait(exchanges: Sequence[Exchange]) -> None:
        for exchange in exchanges:
            if exchange.body == b"wait":
                exchange.on_abort = print
                waiting.append(exchange)
            else:
                exchange.answer(200, b"", headers=((b"server-timing", b"total;dur=1.0"),))

    route = Route("POST", "/v0/x", print, turn_handler=wait)
    with Served(Settings(), [route]) as served:
        if known:
            ask(served, *[request(body=b"soon")] * 4)
        transport = MemoryTransport()

        def send_and_end() -> bool:
            connection = Http1Connection(served.app, served.heads)
            connection.connection_made(transport)
            connection.data_received(request(body=b"wait"))
            return connection.eof_received()

        assert served.call(send_and_end), "what is in progress is answered"
        served.wait(lambda: len(waiting) == 1)
        served.wait(lambda: transport.closed)
