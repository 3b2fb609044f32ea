"""Flow control of HTTP/2: windows, room, memory, fairness, time-outs."""

from __future__ import annotations

from dataclasses import replace

import pytest
from h2.errors import ErrorCodes
from h2.settings import SettingCodes

from headrace.server.http2.connection import Http2Connection
from headrace.server.http2.limits import (
    CONNECTION_WINDOW_BYTES,
    PING,
    STREAM_WINDOW_BYTES,
    TUNNEL_LINGER_MS,
)
from tests.support.http2_client import CONNECT, Client, frame, read_to_end
from tests.support.served_app import Served
from tests.support.transport_routes import HTTP2_SETTINGS as SETTINGS
from tests.support.transport_routes import Handlers

BIG_BYTES = 3 << 20


def connection_of(served: Served) -> Http2Connection:
    """The only connection."""
    (connection,) = served.call(lambda: list(served.app.connections))
    assert isinstance(connection, Http2Connection)
    return connection


# What we tell the client


def test_the_windows_are_those_of_the_contract(served: Served) -> None:
    with Client(served) as client:
        stream_id = client.start(b"POST", b"/echo", end=False)
        client.until(lambda: client.h2.remote_settings.initial_window_size == STREAM_WINDOW_BYTES)
        client.until(lambda: client.h2.outbound_flow_control_window == CONNECTION_WINDOW_BYTES)
        assert client.h2.local_flow_control_window(stream_id) == STREAM_WINDOW_BYTES
        assert client.h2.remote_settings.max_concurrent_streams == SETTINGS.http2_streams_max
        assert client.h2.remote_settings.max_header_list_size == SETTINGS.header_bytes_max


def test_what_is_dropped_gives_its_window_back(served: Served, handlers: Handlers) -> None:
    """Bodies that are refused or never asked for must not close the connection's window."""
    with Client(served) as client:
        for _ in range(8):
            stream_id = client.start(b"POST", b"/late", end=False)
            client.send(stream_id, b"x" * 900_000)
            client.h2.reset_stream(stream_id, ErrorCodes.CANCEL)
            client.flush()
        assert client.post(b"/echo", b"y" * 100_000).data == b"y" * 100_000


# Answers larger than the windows


@pytest.mark.parametrize("window", [1, 7, 1000])
def test_a_tiny_window_gets_everything_in_tiny_pieces(served: Served, window: int) -> None:
    with Client(served, window=window, greedy=False) as client:
        stream_id = client.start(b"GET", b"/echo?" + b"0123456789" * 30)
        stream = client.streams[stream_id]
        while not stream.ended:
            before = len(stream.data)
            client.until(lambda b=before: len(stream.data) > b or stream.ended)
            assert len(stream.data) - before <= window
            if not stream.ended:
                client.h2.increment_flow_control_window(window, stream_id)
                client.flush()
        assert stream.data == b"0123456789" * 30


def test_an_answer_waits_for_the_window_and_others_pass_it(served: Served) -> None:
    with Client(served, greedy=False) as client:
        big = client.start(b"GET", b"/big")
        client.until(lambda: len(client.streams[big].data) == 65_535)
        client.h2.increment_flow_control_window(1 << 20)  # of the connection alone
        assert client.get(b"/echo?quick").data == b"quick"
        connection = connection_of(served)
        assert served.call(lambda: connection.pending_bytes) == BIG_BYTES - 65_535
        client.h2.increment_flow_control_window(BIG_BYTES)
        client.h2.increment_flow_control_window(BIG_BYTES, big)
        client.flush()
        assert len(client.finish(big).data) == BIG_BYTES
        assert served.call(lambda: connection.pending_bytes) == 0


def test_a_long_answer_is_cut_into_frames_that_the_client_takes(served: Served) -> None:
    """Alone it is sent in one go, from where it lies; its bytes stay in order."""
    body = b"".join(b"%07d " % number for number in range(60_000))
    with Client(served, window=1 << 20) as client:
        client.h2.increment_flow_control_window(1 << 20)
        assert client.h2.max_inbound_frame_size < len(body)  # a longer one would be an error
        assert client.post(b"/echo", body).data == body
        assert client.get(b"/echo?short").data == b"short"


def test_a_full_connection_window_holds_all_streams(served: Served) -> None:
    with Client(served, window=1 << 20, greedy=False) as client:
        streams = [client.start(b"GET", b"/big") for _ in range(2)]
        client.until(lambda: sum(len(client.streams[s].data) for s in streams) == 65_535)
        client.h2.increment_flow_control_window(2 * 16_384)
        client.flush()
        client.until(
            lambda: sum(len(client.streams[s].data) for s in streams) == 65_535 + 2 * 16_384
        )
        assert all(client.streams[s].data for s in streams), "each has its turn"
        client.greedy = True
        client.h2.increment_flow_control_window(4 * BIG_BYTES)
        for stream_id in streams:
            client.h2.increment_flow_control_window(BIG_BYTES, stream_id)
        client.flush()
        assert [len(client.finish(s).data) for s in streams] == [BIG_BYTES] * 2


def test_a_changed_initial_window_opens_streams(served: Served) -> None:
    with Client(served, window=10, greedy=False) as client:
        stream_id = client.start(b"GET", b"/echo?" + b"x" * 100)
        client.until(lambda: len(client.streams[stream_id].data) == 10)
        client.h2.update_settings({SettingCodes.INITIAL_WINDOW_SIZE: 1000})
        client.flush()
        assert client.finish(stream_id).data == b"x" * 100


def test_new_requests_wait_while_answers_are_not_taken(handlers: Handlers) -> None:
    """The response memory: a client that takes nothing gets no further answers made."""
    settings = replace(SETTINGS, response_memory_bytes_max=8 << 20)
    with Served(settings, handlers.routes()) as served, Client(served, greedy=False) as client:
        big = client.start(b"GET", b"/big")
        client.until(lambda: len(client.streams[big].data) == 65_535)
        held = client.start(b"GET", b"/hold")
        client.h2.ping(b"12345678")
        client.flush()
        client.until(lambda: client.read())
        assert not served.call(lambda: handlers.held)
        client.h2.increment_flow_control_window(BIG_BYTES)
        client.h2.increment_flow_control_window(BIG_BYTES, big)
        client.flush()
        assert len(client.finish(big).data) == BIG_BYTES
        served.wait(lambda: len(handlers.held) == 1)
        served.call(lambda: handlers.held[0].answer(200, b"late"))
        assert client.finish(held).data == b"late"


def test_who_takes_its_answers_does_not_wait_for_those_who_do_not(served: Served) -> None:
    """The response memory of all is used up by others, as the last tick saw it."""
    with Client(served) as client:
        used_up = 2 * SETTINGS.response_memory_bytes_max
        served.call(served.app.stop)  # the next tick would see that it is free
        served.call(lambda: setattr(served.app, "pending_bytes", used_up))
        # Not in one frame with its head, which is handed over on another way.
        stream_id = client.start(b"POST", b"/echo", end=False)
        client.send(stream_id, b"modest", end=True)
        assert client.finish(stream_id).data == b"modest"
        assert client.get(b"/echo?whole").data == b"whole"


def test_an_answer_beyond_the_response_memory_is_given_up(handlers: Handlers) -> None:
    settings = replace(SETTINGS, response_memory_bytes_max=4 << 20)
    with Served(settings, handlers.routes()) as served, Client(served, greedy=False) as client:
        first = client.start(b"GET", b"/hold")
        second = client.start(b"GET", b"/hold")
        served.wait(lambda: len(handlers.held) == 2)
        for exchange in handlers.held:
            served.call(lambda e=exchange: e.answer(200, b"x" * BIG_BYTES))
        assert client.finish(second).reset == ErrorCodes.ENHANCE_YOUR_CALM
        client.greedy = True
        client.h2.increment_flow_control_window(BIG_BYTES)
        client.h2.increment_flow_control_window(BIG_BYTES, first)
        client.flush()
        assert len(client.finish(first).data) == BIG_BYTES


# Streams that go on


def test_a_stalled_stream_has_no_room_until_the_window_opens(
    served: Served, handlers: Handlers
) -> None:
    with Client(served, window=100, greedy=False) as client:
        stream_id = client.start(b"GET", b"/stream")
        served.wait(lambda: len(handlers.outlets) == 1)
        outlet = handlers.outlets[0]
        written = len(b"first\n")
        while served.call(lambda: outlet.room):
            served.call(lambda: outlet.write(b"e" * 1000))
            written += 1000
        assert SETTINGS.stream_pending_bytes <= written < SETTINGS.stream_pending_bytes + 2100
        served.wait(lambda: outlet.stuck_ms > 0)
        assert handlers.woken == 0
        client.h2.increment_flow_control_window(written, stream_id)
        client.flush()
        served.wait(lambda: handlers.woken > 0)
        assert served.call(lambda: (outlet.room, outlet.stuck_ms)) == (True, 0)
        client.h2.increment_flow_control_window(written)
        client.flush()
        served.call(outlet.close)
        assert len(client.finish(stream_id).data) == written
        assert handlers.closed == 0


def test_a_client_that_does_not_read_leaves_no_room(served: Served, handlers: Handlers) -> None:
    """The socket's buffer counts, too: the windows are wide open here."""
    with Client(served, window=(1 << 31) - 1, greedy=False) as client:
        client.h2.increment_flow_control_window((1 << 31) - 1 - 65_535)
        stream_id = client.start(b"GET", b"/stream")
        client.flush()
        served.wait(lambda: len(handlers.outlets) == 1)
        outlet = handlers.outlets[0]
        written = len(b"first\n")
        stuck = False
        while not stuck:
            while served.call(lambda: outlet.room):
                served.call(lambda: outlet.write(b"e" * 60_000))
                written += 60_000
                assert written < 1 << 28
            # Sent at the end of the turn, so there may be room again.
            stuck = not served.call(lambda: outlet.room)
        client.until(lambda: len(client.streams[stream_id].data) == written)
        served.wait(lambda: outlet.room)
        served.wait(lambda: handlers.woken > 0)
        served.call(outlet.close)
        assert len(client.finish(stream_id).data) == written


def test_small_writes_of_a_turn_leave_in_one_frame(served: Served, handlers: Handlers) -> None:
    with Client(served) as client:
        client.start(b"GET", b"/stream")
        served.wait(lambda: len(handlers.outlets) == 1)
        outlet = handlers.outlets[0]

        def write() -> None:
            for number in range(100):
                outlet.write(b"%d\n" % number)
            outlet.close()

        served.call(write)
        served.call(connection_of(served).drain)
        came = [f for f in read_to_end(client.sock) if f.kind == 0]
        assert came[-1].body.endswith(b"0\n1\n" + b"".join(b"%d\n" % n for n in range(2, 100)))
        assert len(came) <= 2


# Time-outs: the tick is given a time, so that nothing has to wait


def tick(served: Served, after_ms: int) -> None:
    """Let the only connection believe that so much time has passed."""
    connection = connection_of(served)
    served.call(lambda: connection.tick(served.app.now_ms()))
    served.call(lambda: connection.tick(served.app.now_ms() + after_ms))


def test_a_silent_client_is_asked_and_then_closed(served: Served, handlers: Handlers) -> None:
    with Client(served) as client:
        client.start(b"GET", b"/stream")
        served.wait(lambda: len(handlers.outlets) == 1)
        connection = connection_of(served)
        start = served.call(served.app.now_ms)
        ping_ms = SETTINGS.http2_ping_ms
        served.call(lambda: connection.tick(start))
        served.call(lambda: connection.tick(start + ping_ms))
        came = b""
        while b"headrace" not in came:
            came += client.sock.recv(1 << 16)
        reads = connection.reads
        client.raw(frame(PING, 1, 0, b"headrace"))
        served.wait(lambda: connection.reads > reads)
        served.call(lambda: connection.tick(start + ping_ms + 1))
        assert handlers.closed == 0
        served.call(lambda: connection.tick(start + 3 * ping_ms))
        served.call(lambda: connection.tick(start + 5 * ping_ms))
        served.wait(lambda: handlers.closed == 1)
        served.wait(lambda: not served.app.connections)


def test_an_idle_connection_is_closed(served: Served) -> None:
    with Client(served) as client:
        client.get(b"/echo")
        tick(served, SETTINGS.idle_timeout_ms + 1)
        assert client.expect_goaway() == ErrorCodes.NO_ERROR


def test_half_a_frame_is_not_waited_for(served: Served) -> None:
    with Client(served) as client:
        client.get(b"/echo")
        client.raw(frame(1, 4, 3, b"x" * 100)[:50])
        connection = connection_of(served)
        served.wait(lambda: connection._receiver._inbox != b"")
        tick(served, SETTINGS.header_timeout_ms + 1)
        assert client.expect_goaway() == ErrorCodes.NO_ERROR


def test_a_body_that_stops_is_refused(served: Served) -> None:
    with Client(served) as client:
        stream_id = client.start(b"POST", b"/echo", end=False)
        client.send(stream_id, b"part")
        served.wait(lambda: served.app.budget.used == 4)
        tick(served, SETTINGS.body_timeout_ms + 1)
        assert client.finish(stream_id).status == 408
        assert served.call(lambda: served.app.budget.used) == 0


def test_an_answer_that_is_not_taken_is_given_up(served: Served) -> None:
    with Client(served, greedy=False) as client:
        stream_id = client.start(b"GET", b"/big")
        client.until(lambda: len(client.streams[stream_id].data) == 65_535)
        tick(served, min(SETTINGS.write_timeout_ms + 1, 2 * SETTINGS.http2_ping_ms))
        client.until(lambda: client.streams[stream_id].reset is not None)
        assert client.streams[stream_id].reset == ErrorCodes.CANCEL
        connection = connection_of(served)
        assert served.call(lambda: connection.pending_bytes) == 0


def test_a_tunnel_that_the_client_does_not_end_is_reset(served: Served, handlers: Handlers) -> None:
    with Client(served) as client:
        stream_id = client.start(b"CONNECT", b"/tunnel", end=False, pseudo=CONNECT)
        served.wait(lambda: len(handlers.outlets) == 1)
        served.call(handlers.outlets[0].close)
        assert client.finish(stream_id).ended
        tick(served, TUNNEL_LINGER_MS + 1)
        client.until(lambda: client.streams[stream_id].reset is not None)
        assert client.streams[stream_id].reset == ErrorCodes.NO_ERROR
