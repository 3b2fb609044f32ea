"""HTTP/1.1 as bytes on a real socket: order, bodies, limits, refusals, streams, upgrades."""

from __future__ import annotations

import contextlib
import socket
import time
from collections.abc import Sequence
from dataclasses import replace

import pytest

from headrace.wire.exchange import Exchange
from headrace.wire.routes import READ, Route
from tests.support.served_app import Served, read_response, read_until
from tests.support.transport_routes import HTTP1_SETTINGS as SETTINGS
from tests.support.transport_routes import Handlers, http1_handlers


def test_keep_alive_answers_request_after_request(served: Served) -> None:
    with served.connect() as sock:
        for number in range(3):
            sock.sendall(
                b"POST /echo HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1\r\n\r\n%d" % number
            )
            assert read_response(sock).body == b"%d" % number


def test_pipelined_requests_are_answered_in_order(served: Served, handlers: Handlers) -> None:
    with served.connect() as sock:
        get = b"GET /%b HTTP/1.1\r\nHost: localhost\r\n\r\n"
        sock.sendall(get % b"hold" + get % b"echo?2" + get % b"hold" + get % b"echo?4")
        served.wait(lambda: len(handlers.held) == 2)
        served.call(lambda: handlers.held[1].answer(200, b"3"))
        served.call(lambda: handlers.held[0].answer(200, b"1"))
        assert [read_response(sock).body for _ in range(4)] == [b"1", b"2", b"3", b"4"]


def test_more_pipelined_requests_than_the_bound_are_all_answered(served: Served) -> None:
    with served.connect() as sock:
        get = b"GET /echo?%d HTTP/1.1\r\nHost: localhost\r\n\r\n"
        sock.sendall(b"".join(get % number for number in range(200)))
        assert [read_response(sock).body for _ in range(200)] == [b"%d" % n for n in range(200)]


def test_at_most_so_many_requests_of_a_connection_are_in_progress(
    served: Served, handlers: Handlers
) -> None:
    with served.connect() as sock:
        sock.sendall(b"GET /hold HTTP/1.1\r\nHost: localhost\r\n\r\n" * 20)
        served.wait(lambda: len(handlers.held) >= 8)
        time.sleep(0.1)
        assert len(handlers.held) == 8
        served.call(lambda: handlers.held[0].answer(200, b"x"))
        served.wait(lambda: len(handlers.held) == 9)


def test_pipelined_reads_of_a_client_that_takes_nothing_end_at_a_bound() -> None:
    """Where the reads of a turn are handled together, too: their answers may be large."""
    handled = []

    def read_all(exchanges: Sequence[Exchange]) -> None:
        for exchange in exchanges:
            handled.append(exchange)
            exchange.answer(200, b"x" * (4 << 20))

    route = Route(
        "GET", "/large", lambda one: read_all([one]), frozenset({READ}), name_param=False,
        turn_handler=read_all,
    )  # fmt: skip
    settings = replace(SETTINGS, pipeline_requests_max=64)
    with Served(settings, [route]) as served, served.connect() as sock:
        sock.sendall(b"GET /large HTTP/1.1\r\nHost: localhost\r\n\r\n" * 30)
        served.wait(lambda: len(handled) > 0)
        time.sleep(0.1)
        assert len(handled) <= 4, "the buffers of the kernel may take one or two"
        for _ in range(30):
            assert len(read_response(sock).body) == 4 << 20
        assert len(handled) == 30


@pytest.mark.parametrize("pieces", [1, 3, 50])
def test_a_request_may_arrive_in_any_pieces(served: Served, pieces: int) -> None:
    raw = b"POST /echo HTTP/1.1\r\nHost: localhost\r\nContent-Length: 11\r\n\r\nhello world"
    step = max(1, len(raw) // pieces)
    with served.connect() as sock:
        for at in range(0, len(raw), step):
            sock.sendall(raw[at : at + step])
            time.sleep(0.001)
        assert read_response(sock).body == b"hello world"


def test_chunked_bodies_are_put_together(served: Served) -> None:
    with served.connect() as sock:
        sock.sendall(
            b"POST /echo HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n"
            b"5\r\nhello\r\n6;ext=1\r\n world\r\n0\r\nTrailer: x\r\n\r\n"
        )
        assert read_response(sock).body == b"hello world"


def test_a_body_that_is_expected_is_asked_for(served: Served) -> None:
    with served.connect() as sock:
        sock.sendall(
            b"POST /echo HTTP/1.1\r\nHost: localhost\r\nContent-Length: 2\r\n"
            b"Expect: 100-continue\r\n\r\n"
        )
        assert read_until(sock, b"\r\n\r\n") == b"HTTP/1.1 100 Continue\r\n\r\n"
        sock.sendall(b"ok")
        assert read_response(sock).body == b"ok"


def test_a_body_too_large_is_refused_before_it_is_sent(served: Served) -> None:
    with served.connect() as sock:
        sock.sendall(
            b"POST /echo HTTP/1.1\r\nHost: localhost\r\nContent-Length: 9999999\r\n"
            b"Expect: 100-continue\r\n\r\n"
        )
        response = read_response(sock)
        assert response.status == 413
        assert response.json["error"]["code"] == "payload_too_large"
        assert sock.recv(1) == b""


def test_a_chunked_body_too_large_is_refused_on_the_way(served: Served) -> None:
    with served.connect() as sock:
        sock.sendall(
            b"POST /echo HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n"
        )
        chunk = b"20000\r\n" + b"x" * 0x20000 + b"\r\n"
        try:
            for _ in range(20):
                sock.sendall(chunk)
        except OSError:
            pass
        assert read_response(sock).status == 413


def test_an_error_of_a_handler_is_a_500_and_the_connection_goes_on(served: Served) -> None:
    with served.connect() as sock:
        sock.sendall(b"GET /boom HTTP/1.1\r\nHost: localhost\r\n\r\n")
        response = read_response(sock)
        assert (response.status, response.json["error"]["code"]) == (500, "internal")
        sock.sendall(b"GET /echo?x HTTP/1.1\r\nHost: localhost\r\n\r\n")
        assert read_response(sock).body == b"x"


def test_head_has_the_headers_of_get_and_no_body(served: Served) -> None:
    with served.connect() as sock:
        sock.sendall(b"HEAD /echo?abc HTTP/1.1\r\nHost: localhost\r\n\r\n")
        head = read_until(sock, b"\r\n\r\n")
        assert b"content-length: 3\r\n" in head
        sock.sendall(b"GET /echo?x HTTP/1.1\r\nHost: localhost\r\n\r\n")
        assert read_response(sock).body == b"x"


def test_http_1_0_closes_unless_asked_to_keep(served: Served) -> None:
    with served.connect() as sock:
        sock.sendall(b"GET /echo?x HTTP/1.0\r\nConnection: keep-alive\r\n\r\n")
        response = read_response(sock)
        assert response.headers[b"connection"] == b"keep-alive"
        sock.sendall(b"GET /echo?y HTTP/1.0\r\n\r\n")
        assert read_response(sock).body == b"y"
        assert sock.recv(1) == b""


def test_a_stream_is_sent_in_chunks_and_the_connection_goes_on(
    served: Served, handlers: Handlers
) -> None:
    with served.connect() as sock:
        sock.sendall(b"GET /stream HTTP/1.1\r\nHost: localhost\r\n\r\n")
        head = read_until(sock, b"\r\n\r\n")
        assert b"transfer-encoding: chunked" in head
        assert read_until(sock, b"first\n\r\n") == b"6\r\nfirst\n\r\n"
        served.call(lambda: handlers.outlets[0].close())  # type: ignore[attr-defined]
        assert read_until(sock, b"0\r\n\r\n") == b"0\r\n\r\n"
        sock.sendall(b"GET /echo?x HTTP/1.1\r\nHost: localhost\r\n\r\n")
        assert read_response(sock).body == b"x"
        assert handlers.closed == 0


def test_a_stream_waits_for_the_answers_before_it(served: Served, handlers: Handlers) -> None:
    with served.connect() as sock:
        get = b"GET /%b HTTP/1.1\r\nHost: localhost\r\n\r\n"
        sock.sendall(get % b"hold" + get % b"stream")
        served.wait(lambda: len(handlers.outlets) == 1)
        assert not served.call(lambda: handlers.outlets[0].room)  # type: ignore[attr-defined]
        served.call(lambda: handlers.held[0].answer(200, b"1"))
        assert read_response(sock).body == b"1"
        assert read_until(sock, b"first\n\r\n").endswith(b"6\r\nfirst\n\r\n")


def test_a_stream_hears_that_the_client_went(served: Served, handlers: Handlers) -> None:
    with served.connect() as sock:
        sock.sendall(b"GET /stream HTTP/1.1\r\nHost: localhost\r\n\r\n")
        read_until(sock, b"first\n\r\n")
    served.wait(lambda: handlers.closed == 1)


def test_a_stream_without_room_says_so_and_goes_on_later(
    served: Served, handlers: Handlers
) -> None:
    rooms: list[int] = []
    with served.connect() as sock:
        sock.sendall(b"GET /stream HTTP/1.1\r\nHost: localhost\r\n\r\n")
        read_until(sock, b"first\n\r\n")
        outlet = handlers.outlets[0]
        served.call(lambda: setattr(outlet, "on_room", lambda: rooms.append(1)))
        written = 0
        while served.call(lambda: outlet.room):  # type: ignore[attr-defined]
            served.call(lambda: outlet.write(b"x" * 16384))  # type: ignore[attr-defined]
            written += 16384
            assert written < 64 << 20
        assert not rooms
        taken = 0
        while taken < written:
            taken += len(sock.recv(1 << 16))
        served.wait(lambda: bool(rooms))


def test_a_held_request_hears_that_the_client_went(served: Served, handlers: Handlers) -> None:
    with served.connect() as sock:
        sock.sendall(b"GET /hold HTTP/1.1\r\nHost: localhost\r\n\r\n")
        served.wait(lambda: len(handlers.held) == 1)
    served.wait(lambda: handlers.aborted == 1)
    served.call(lambda: handlers.held[0].answer(200, b"late"))


def test_body_and_answer_go_at_the_same_time(served: Served) -> None:
    with served.connect() as sock:
        sock.sendall(
            b"POST /duplex HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n"
        )
        read_until(sock, b"\r\n\r\n")
        sock.sendall(b"3\r\nabc\r\n")
        assert read_until(sock, b"ABC\r\n") == b"3\r\nABC\r\n"
        sock.sendall(b"3\r\ndef\r\n")
        assert read_until(sock, b"DEF\r\n") == b"3\r\nDEF\r\n"
        sock.sendall(b"0\r\n\r\n")
        assert read_until(sock, b"0\r\n\r\n") == b"0\r\n\r\n"
        sock.sendall(b"GET /echo?x HTTP/1.1\r\nHost: localhost\r\n\r\n")
        assert read_response(sock).body == b"x"


def test_a_tunnel_carries_bytes_both_ways(served: Served, handlers: Handlers) -> None:
    with served.connect() as sock:
        sock.sendall(
            b"GET /tunnel HTTP/1.1\r\nHost: localhost\r\nConnection: Upgrade\r\n"
            b"Upgrade: echo\r\n\r\nearly"
        )
        head = read_until(sock, b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 101 ")
        assert read_until(sock, b"EARLY") == b"EARLY"
        sock.sendall(b"later")
        assert read_until(sock, b"LATER") == b"LATER"
    served.wait(lambda: handlers.closed == 1)


def test_an_upgrade_that_is_not_taken_is_an_ordinary_request(served: Served) -> None:
    with served.connect() as sock:
        sock.sendall(
            b"GET /tunnel HTTP/1.1\r\nHost: localhost\r\nConnection: Upgrade, HTTP2-Settings\r\n"
            b"Upgrade: h2c\r\nHTTP2-Settings: AAMAAABkAAQAAP__\r\n\r\n"
            b"GET /echo?x HTTP/1.1\r\nHost: localhost\r\n\r\n"
        )
        assert read_response(sock).body == b"no upgrade"
        assert read_response(sock).body == b"x"


def test_slow_headers_and_bodies_are_timed_out(served: Served) -> None:
    with served.connect() as headers, served.connect() as body, served.connect() as idle:
        headers.sendall(b"GET /echo HTTP/1.1\r\nHost: local")
        body.sendall(b"POST /echo HTTP/1.1\r\nHost: localhost\r\nContent-Length: 5\r\n\r\nab")
        assert read_response(headers).status == 408
        assert read_response(body).status == 408
        assert idle.recv(1) == b""


def test_trickled_headers_are_timed_out_too(served: Served) -> None:
    with served.connect() as sock:
        sock.sendall(b"GET /echo HTTP/1.1\r\nHost: localhost\r\n")
        answer = b""
        sock.settimeout(0.2)
        for number in range(60):
            try:
                sock.sendall(b"X-%d: y\r\n" % number)
                answer = sock.recv(100)
                break
            except TimeoutError:
                continue
            except OSError:
                break
        assert answer.startswith(b"HTTP/1.1 408 ") or answer == b""


def test_a_client_who_does_not_read_is_not_read_from(served: Served) -> None:
    with served.connect() as sock, served.connect() as other:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        sock.settimeout(0.5)
        get = b"GET /big HTTP/1.1\r\nHost: localhost\r\n\r\n"
        with pytest.raises(TimeoutError):
            sock.sendall(get * 1_000_000)
        other.sendall(b"GET /echo?fine HTTP/1.1\r\nHost: localhost\r\n\r\n")
        assert read_response(other).body == b"fine"


def test_large_bodies_share_a_budget() -> None:
    settings = replace(SETTINGS, request_memory_bytes_max=1 << 20)
    with Served(settings, http1_handlers().routes()) as served:
        head = b"POST /echo HTTP/1.1\r\nHost: localhost\r\nContent-Length: 900000\r\n\r\n"
        with served.connect() as first, served.connect() as second:
            first.sendall(head + b"x" * 800_000)
            served.wait(lambda: served.app.budget.used >= 700_000)
            second.sendall(head + b"x" * 800_000)
            response = read_response(second)
            assert response.status == 429
            assert response.headers[b"retry-after"] == b"1"
            first.sendall(b"x" * 100_000)
            assert len(read_response(first).body) == 900_000
        served.wait(lambda: served.app.budget.used == 0)


def test_more_connections_than_the_bound_are_closed() -> None:
    with (
        Served(replace(SETTINGS, max_connections=2), http1_handlers().routes()) as served,
        served.connect() as first,
        served.connect() as second,
        served.connect() as third,
    ):
        for sock in (first, second):
            sock.sendall(b"GET /echo?x HTTP/1.1\r\nHost: localhost\r\n\r\n")
            assert read_response(sock).body == b"x"
        with contextlib.suppress(ConnectionResetError):
            assert third.recv(1) == b""


def test_drain_ends_idle_connections_and_lets_others_finish(
    served: Served, handlers: Handlers
) -> None:
    with served.connect() as idle, served.connect() as busy:
        idle.sendall(b"GET /echo?x HTTP/1.1\r\nHost: localhost\r\n\r\n")
        assert read_response(idle).body == b"x"
        busy.sendall(b"GET /hold HTTP/1.1\r\nHost: localhost\r\n\r\n")
        served.wait(lambda: len(handlers.held) == 1)
        served.call(served.app.drain)
        assert idle.recv(1) == b""
        served.call(lambda: handlers.held[0].answer(200, b"done"))
        response = read_response(busy)
        assert response.body == b"done"
        assert response.headers[b"connection"] == b"close"
        assert busy.recv(1) == b""


def test_requests_wait_for_recovery_and_then_go_on(handlers: Handlers) -> None:
    with Served(SETTINGS, handlers.routes(), live=False) as served, served.connect() as sock:
        sock.sendall(b"GET /echo?x HTTP/1.1\r\nHost: localhost\r\n\r\n")
        time.sleep(0.05)
        served.call(served.app.go_live)
        assert read_response(sock).body == b"x"


def test_requests_that_wait_too_long_for_recovery_are_refused(handlers: Handlers) -> None:
    settings = replace(SETTINGS, parked_ms_max=1, parked_requests_max=1)
    with (
        Served(settings, handlers.routes(), live=False) as served,
        served.connect() as first,
        served.connect() as second,
    ):
        first.sendall(b"GET /echo HTTP/1.1\r\nHost: localhost\r\n\r\n")
        served.wait(lambda: served.app.parked == 1)
        second.sendall(b"GET /echo HTTP/1.1\r\nHost: localhost\r\n\r\n")
        for sock in (second, first):
            response = read_response(sock)
            assert response.status == 503
            assert response.json["error"]["code"] == "not_ready"
            assert response.headers[b"retry-after"] == b"1"


def test_a_read_behind_a_write_waits_for_it(handlers: Handlers) -> None:
    writes: list[Exchange] = []
    done: list[str] = []

    def read(exchange: Exchange) -> None:
        done.append("read")
        exchange.answer(200, b"read")

    routes = [
        Route("POST", "/write", writes.append, frozenset({"write"})),
        Route("GET", "/read", read, frozenset({"read"})),
    ]
    with Served(SETTINGS, routes) as served, served.connect() as sock:
        write = b"POST /write HTTP/1.1\r\nHost: localhost\r\nContent-Length: 0\r\n\r\n"
        sock.sendall(write * 2 + b"GET /read HTTP/1.1\r\nHost: localhost\r\n\r\n")
        served.wait(lambda: len(writes) == 2)
        served.call(lambda: writes[1].answer(200, b"2"))
        assert not served.call(lambda: list(done))
        served.call(lambda: writes[0].answer(200, b"1"))
        assert [read_response(sock).body for _ in range(3)] == [b"1", b"2", b"read"]


@pytest.mark.parametrize(
    ("target", "host", "status"),
    [
        (b"http://evil.example/echo?1", b"localhost", 403),
        (b"http://localhost/echo?1", b"evil.example", 200),
        (b"HTTP://127.0.0.1:4000/echo?1", b"evil.example", 200),
        (b"https://evil.example:443?1", b"localhost", 403),
        (b"http:///echo?1", b"localhost", 400),
        (b"http://localhost@evil.example/echo?1", b"localhost", 400),
        (b"http://?1", b"localhost", 400),
        (b"ftp://localhost/echo?1", b"localhost", 400),
        (b"/echo?http://evil.example/", b"localhost", 200),
    ],
)
def test_a_host_in_the_target_counts_in_place_of_the_header(
    served: Served, target: bytes, host: bytes, status: int
) -> None:
    """§1.10a, RFC 9112 3.2.2: also when the request is sent again on the same connection."""
    with served.connect() as sock:
        for body in (b"x", b"yz"):
            sock.sendall(
                b"POST %b HTTP/1.1\r\nHost: %b\r\nContent-Length: %d\r\n\r\n%b"
                % (target, host, len(body), body)
            )
            reply = read_response(sock)
            assert reply.status == status, reply
            if status == 400:
                break
            assert status == 403 or reply.body == body


def test_http_1_0_with_a_host_in_the_target(served: Served) -> None:
    """§1.10a: there is no `Host` header to be replaced."""
    with served.connect() as sock:
        sock.sendall(b"GET http://evil.example/echo?1 HTTP/1.0\r\n\r\n")
        assert read_response(sock).status == 403


def test_an_origin_is_compared_with_the_host_in_the_target(served: Served) -> None:
    """§1.10b: what a proxy or a page puts into `Host` does not make an origin our own."""
    with served.connect() as sock:
        sock.sendall(
            b"POST http://localhost:4000/echo HTTP/1.1\r\nHost: evil.example\r\n"
            b"Origin: http://evil.example\r\nContent-Length: 0\r\n\r\n"
        )
        assert read_response(sock).status == 403
