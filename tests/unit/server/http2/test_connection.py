"""HTTP/2 on a real socket: requests, bodies, streams, tunnels, aborts, drain."""

from __future__ import annotations

import httpx
import pytest
from h2.errors import ErrorCodes

from headrace.core.settings import Settings
from headrace.server.http2.connection import Http2Connection
from headrace.server.http2.limits import DATA, END_STREAM, GOAWAY, PING, RST_STREAM
from tests.support.http2_client import CONNECT, Client, Frame, frame, read_to_end
from tests.support.served_app import Served
from tests.support.transport_routes import Handlers


def streams_of(served: Served) -> int:
    """How many the only connection has; called in the loop's thread."""
    (connection,) = served.app.connections
    assert isinstance(connection, Http2Connection)
    return len(connection.streams)


# Whole answers


def test_a_request_is_answered(served: Served) -> None:
    with Client(served) as client:
        answer = client.get(b"/echo?a=1&b=2")
        assert (answer.status, answer.data, answer.ended) == (200, b"a=1&b=2", True)
        assert answer.headers[b"content-type"] == b"text/plain"
        assert answer.headers[b"content-length"] == b"7"


def test_requests_follow_each_other_on_a_connection(served: Served) -> None:
    with Client(served) as client:
        for number in range(50):
            body = b"%d" % number * number
            assert client.post(b"/echo", body).data == body


def test_a_real_client_is_answered(served: Served) -> None:
    host, port = served.address
    with httpx.Client(http1=False, http2=True, base_url=f"http://{host}:{port}") as client:
        for number in range(20):
            answer = client.post("/echo", content=b"%d" % number)
            assert (answer.http_version, answer.content) == ("HTTP/2", b"%d" % number)
        assert client.get("/nope").json()["error"]["code"] == "not_found"
        assert len(client.get("/big").content) == 3 << 20
        assert client.post("/echo", content=b"y" * (1 << 20)).content == b"y" * (1 << 20)


def test_a_hundred_streams_are_in_progress_at_once(served: Served, handlers: Handlers) -> None:
    with Client(served) as client:
        streams = [client.start(b"GET", b"/hold") for _ in range(100)]
        served.wait(lambda: len(handlers.held) == 100)
        for number, exchange in reversed(list(enumerate(handlers.held))):
            served.call(lambda e=exchange, n=number: e.answer(200, b"%d" % n))
        assert [client.finish(s).data for s in streams] == [b"%d" % n for n in range(100)]
        served.wait(lambda: streams_of(served) == 0)


def test_the_handler_sees_the_headers(served: Served) -> None:
    with Client(served) as client:
        sent = [(b"x-a", b"1"), (b"x-a", b"2"), (b"cookie", b"c=1"), (b"cookie", b"d=2")]
        answer = client.get(b"/headers", sent)
        assert answer.data == b"cookie=c=1; d=2\nhost=localhost\nx-a=1, 2"
        assert answer.headers[b"x-more"] == b"1"


def test_a_head_that_comes_again_is_read_again(served: Served) -> None:
    """A head is remembered by its compressed form, which means another one once tables change."""
    with Client(served) as client:
        for value in (b"1", b"1", b"1", b"2", b"2", b"3", b"1", b"1"):
            assert client.get(b"/headers", [(b"x-a", value)]).data.endswith(b"x-a=" + value)


def test_head_is_get_without_a_body(served: Served) -> None:
    with Client(served) as client:
        answer = client.finish(client.start(b"HEAD", b"/echo?abc"))
        assert (answer.status, answer.data) == (200, b"")
        assert answer.headers[b"content-length"] == b"3"


def test_head_of_a_stream_ends_it(served: Served, handlers: Handlers) -> None:
    with Client(served) as client:
        answer = client.finish(client.start(b"HEAD", b"/stream"))
        assert (answer.status, answer.data) == (200, b"")
        served.wait(lambda: handlers.closed == 1)


def test_no_content_has_no_length(served: Served) -> None:
    with Client(served) as client:
        answer = client.get(b"/nothing")
        assert (answer.status, answer.data) == (204, b"")
        assert b"content-length" not in answer.headers


def test_errors_have_the_form_of_the_dialect(served: Served) -> None:
    with Client(served) as client:
        assert b'"code":"not_found"' in client.get(b"/nope").data
        assert client.get(b"/duplex").status == 405
        assert b'"code":"internal"' in client.get(b"/boom").data
        assert client.get(b"/echo?still").data == b"still"


def test_an_answer_is_compressed_when_asked_for(served: Served) -> None:
    with Client(served) as client:
        answer = client.get(b"/big", [(b"accept-encoding", b"gzip")])
        assert answer.headers[b"content-encoding"] == b"gzip"
        assert len(answer.data) < 1 << 16


def test_trailers_are_ignored(served: Served) -> None:
    with Client(served) as client:
        stream_id = client.start(b"POST", b"/echo", end=False)
        client.send(stream_id, b"body")
        client.h2.send_headers(stream_id, [(b"x-trailer", b"1")], end_stream=True)
        client.flush()
        assert client.finish(stream_id).data == b"body"


def test_100_continue_comes_before_the_body(served: Served) -> None:
    with Client(served) as client:
        stream_id = client.start(b"POST", b"/echo", [(b"expect", b"100-continue")], end=False)
        client.until(lambda: client.streams[stream_id].interim == [100])
        client.send(stream_id, b"body", end=True)
        answer = client.finish(stream_id)
        assert (answer.status, answer.data) == (200, b"body")


def test_another_expectation_is_refused(served: Served) -> None:
    with Client(served) as client:
        stream_id = client.start(b"POST", b"/echo", [(b"expect", b"miracles")], end=False)
        assert client.finish(stream_id).status == 400


# Bodies that are too large


@pytest.mark.parametrize("declared", [True, False])
def test_a_body_above_the_bound_is_refused(served: Served, declared: bool) -> None:
    with Client(served) as client:
        length = [(b"content-length", b"%d" % (2 << 20))] if declared else []
        stream_id = client.start(b"POST", b"/echo", length, end=False)
        stream = client.streams[stream_id]
        while not declared and not stream.over:
            client.until(lambda: stream.over or client.h2.local_flow_control_window(stream_id) > 0)
            if not stream.over:
                client.send(stream_id, b"x" * 16384)
        client.until(lambda: stream.reset is not None)
        assert (stream.status, stream.ended) == (413, True)
        assert stream.reset == ErrorCodes.NO_ERROR
        assert client.get(b"/echo?on").data == b"on"
        assert served.call(lambda: served.app.budget.used) == 0


def test_bodies_that_arrive_share_a_budget(handlers: Handlers) -> None:
    settings = Settings(
        body_bytes_max=1 << 20, record_bytes_max=1 << 20, request_memory_bytes_max=1 << 20
    )
    with Served(settings, handlers.routes()) as served, Client(served) as client:
        first = client.start(b"POST", b"/echo", end=False)
        client.send(first, b"x" * 700_000)
        second = client.start(b"POST", b"/echo", end=False)
        client.send(second, b"y" * 300_000)
        client.send(second, b"y" * 100_000)
        assert client.finish(second).status == 429
        client.send(first, b"", end=True)
        assert client.finish(first).data == b"x" * 700_000
        assert served.call(lambda: served.app.budget.used) == 0


# Streams both ways


def test_a_streamed_route_gets_the_body_in_pieces_and_answers_meanwhile(
    served: Served, handlers: Handlers
) -> None:
    with Client(served) as client:
        stream_id = client.start(b"POST", b"/duplex", end=False)
        stream = client.streams[stream_id]
        for piece in (b"one", b"two", b"three"):
            before = stream.data
            client.send(stream_id, piece)
            wanted = before + piece.upper()
            client.until(lambda want=wanted: stream.data == want)
        client.send(stream_id, b"", end=True)
        assert client.finish(stream_id).data == b"ONETWOTHREE"
        assert handlers.pieces == [b"one", b"two", b"three", b""]
        assert stream.reset is None


def test_a_streamed_body_may_be_larger_than_every_window(served: Served) -> None:
    with Client(served) as client:
        body = bytes(range(97, 107)) * 900_000
        assert client.post(b"/duplex", body).data == body.upper()


def test_what_arrives_before_a_streamed_handler_is_ready_is_kept(
    served: Served, handlers: Handlers
) -> None:
    with Client(served) as client:
        stream_id = client.start(b"POST", b"/late", end=False)
        client.send(stream_id, b"early", end=True)
        served.wait(lambda: len(handlers.held) == 1)
        client.get(b"/echo")  # so that the body is there, too
        served.call(lambda: handlers.duplex(handlers.held[0]))
        assert client.finish(stream_id).data == b"EARLY"
        assert handlers.pieces == [b"early", b""]


def test_a_streamed_request_without_a_body_hears_of_its_end(served: Served) -> None:
    with Client(served) as client:
        answer = client.finish(client.start(b"POST", b"/duplex"))
        assert (answer.status, answer.data) == (200, b"")


def test_a_tunnel_carries_bytes_both_ways(served: Served, handlers: Handlers) -> None:
    with Client(served) as client:
        client.until(lambda: client.h2.remote_settings.enable_connect_protocol == 1)
        stream_id = client.start(b"CONNECT", b"/tunnel", end=False, pseudo=CONNECT)
        stream = client.streams[stream_id]
        client.until(lambda: stream.status == 200)
        assert stream.headers[b"x-more"] == b"1"
        assert b"sec-websocket-accept" not in stream.headers
        client.send(stream_id, b"ping")
        client.until(lambda: stream.data == b"PING")
        client.send(stream_id, b"pong", end=True)
        assert client.finish(stream_id).data == b"PINGPONG"
        assert handlers.pieces == [b"ping", b"pong", b""]
        assert handlers.closed == 0


def test_a_tunnel_that_the_server_ends_waits_for_the_client(
    served: Served, handlers: Handlers
) -> None:
    with Client(served) as client:
        stream_id = client.start(b"CONNECT", b"/tunnel", end=False, pseudo=CONNECT)
        served.wait(lambda: len(handlers.outlets) == 1)
        served.call(handlers.outlets[0].close)
        stream = client.finish(stream_id)
        assert stream.ended and stream.reset is None
        client.send(stream_id, b"", end=True)
        served.wait(lambda: streams_of(served) == 0)


def test_a_tunnel_needs_the_extended_connect(served: Served) -> None:
    with Client(served) as client:
        assert client.get(b"/tunnel").data == b"no upgrade"
        plain = ((b":method", b"CONNECT"), (b":authority", b"localhost"))
        assert client.finish(client.start(b"CONNECT", b"", pseudo=plain)).status == 404


def test_the_origin_of_a_tunnel_is_checked(served: Served, handlers: Handlers) -> None:
    with Client(served) as client:
        origin = [(b"origin", b"http://evil.example")]
        stream_id = client.start(b"CONNECT", b"/tunnel", origin, end=False, pseudo=CONNECT)
        assert client.finish(stream_id).status == 403
        assert not handlers.outlets


# Aborts


def test_a_reset_before_the_answer_aborts_the_exchange(served: Served, handlers: Handlers) -> None:
    with Client(served) as client:
        stream_id = client.start(b"GET", b"/hold")
        served.wait(lambda: len(handlers.held) == 1)
        client.h2.reset_stream(stream_id, ErrorCodes.CANCEL)
        client.flush()
        served.wait(lambda: handlers.aborted == 1)
        assert handlers.held[0].answered
        assert client.get(b"/echo?on").data == b"on"


def test_a_reset_closes_an_outlet(served: Served, handlers: Handlers) -> None:
    with Client(served) as client:
        stream_id = client.start(b"GET", b"/stream")
        client.until(lambda: client.streams[stream_id].data == b"first\n")
        client.h2.reset_stream(stream_id, ErrorCodes.CANCEL)
        client.flush()
        served.wait(lambda: handlers.closed == 1)
        outlet = handlers.outlets[0]
        served.call(lambda: outlet.write(b"into the void"))
        served.call(outlet.close)
        assert not served.call(lambda: outlet.room)
        assert client.get(b"/echo?on").data == b"on"
        assert handlers.closed == 1


def test_a_lost_connection_ends_everything_on_it(served: Served, handlers: Handlers) -> None:
    with Client(served) as client:
        client.start(b"GET", b"/hold")
        client.start(b"GET", b"/stream")
        body = client.start(b"POST", b"/echo", end=False)
        client.send(body, b"part")
        served.wait(lambda: len(handlers.held) == len(handlers.outlets) == 1)
        served.wait(lambda: served.app.budget.used == 4)
    served.wait(lambda: (handlers.aborted, handlers.closed) == (1, 1))
    served.wait(lambda: not served.app.connections)
    assert served.call(lambda: served.app.budget.used) == 0


# Drain


def test_a_drain_lets_streams_finish_and_takes_no_new_ones(
    served: Served, handlers: Handlers
) -> None:
    with Client(served) as client:
        held = client.start(b"GET", b"/hold")
        served.wait(lambda: len(handlers.held) == 1)
        connection = next(iter(served.app.connections))
        served.call(connection.drain)
        reads = connection.reads
        late = client.start(b"GET", b"/echo")
        served.wait(lambda: connection.reads > reads)
        served.call(lambda: handlers.held[0].answer(200, b"done"))
        came = read_to_end(client.sock)
        goaway = Frame(GOAWAY, 0, 0, late.to_bytes(4, "big") + bytes(4))
        refused = Frame(RST_STREAM, 0, late, ErrorCodes.REFUSED_STREAM.to_bytes(4, "big"))
        answer = Frame(DATA, END_STREAM, held, b"done")
        assert came.index(refused) < came.index(answer) < came.index(goaway)
        served.wait(lambda: not served.app.connections)


def test_a_drain_closes_a_connection_at_rest(served: Served) -> None:
    with Client(served) as client:
        client.get(b"/echo")
        served.call(next(iter(served.app.connections)).drain)
        assert client.expect_goaway() == ErrorCodes.NO_ERROR
    served.wait(lambda: not served.app.connections)


def test_a_client_that_says_goodbye_still_gets_its_answers(
    served: Served, handlers: Handlers
) -> None:
    with Client(served) as client:
        client.start(b"GET", b"/hold")
        served.wait(lambda: len(handlers.held) == 1)
        client.raw(frame(GOAWAY, 0, 0, bytes(8)))
        client.raw(frame(PING, 0, 0, b"ping-now"))
        data = b""
        while b"ping-now" not in data:
            data += client.sock.recv(1 << 16)
        served.call(lambda: handlers.held[0].answer(200, b"done"))
        assert Frame(DATA, END_STREAM, 1, b"done") in read_to_end(client.sock)
