"""HTTP/2 against clients that break the protocol, flood, or send noise."""

from __future__ import annotations

import random
import socket
from collections.abc import Callable

import pytest
from h2.errors import ErrorCodes
from hpack.hpack import Encoder

from headrace.core.limits import KIB
from headrace.server.http2 import limits
from headrace.server.http2.connection_state import PREFACE
from tests.support.http2_client import Client, Fields, Frame, frame, read_to_end
from tests.support.served_app import Served
from tests.support.transport_routes import HTTP2_SETTINGS as SETTINGS
from tests.support.transport_routes import Handlers

PSEUDO: Fields = (
    (b":method", b"GET"),
    (b":scheme", b"http"),
    (b":authority", b"localhost"),
    (b":path", b"/echo"),
)


def lacking(name: bytes) -> Fields:
    return tuple(field for field in PSEUDO if field[0] != name)


def having(name: bytes, value: bytes) -> Fields:
    return (*lacking(name), (name, value))


# Malformed requests: the stream is reset, the connection goes on


@pytest.mark.parametrize(
    ("pseudo", "headers"),
    [
        (lacking(b":method"), ()),
        (lacking(b":path"), ()),
        (lacking(b":scheme"), ()),
        (lacking(b":authority"), ()),
        ((*PSEUDO, (b":path", b"/echo")), ()),
        ((*PSEUDO, (b":status", b"200")), ()),
        ((*PSEUDO, (b":mine", b"1")), ()),
        ((*PSEUDO, (b":protocol", b"websocket")), ()),
        (((b"x-first", b"1"), *PSEUDO), ()),
        (having(b":method", b"GE T"), ()),
        (having(b":path", b""), ()),
        (having(b":path", b"echo"), ()),
        (having(b":path", b"/a b"), ()),
        (having(b":path", b"/\xc3\xa9"), ()),
        (having(b":path", b"/a#b"), ()),
        (((b":method", b"CONNECT"), *PSEUDO[1:]), ()),
        (PSEUDO, [(b"host", b"elsewhere")]),
        (PSEUDO, [(b"connection", b"close")]),
        (PSEUDO, [(b"keep-alive", b"1")]),
        (PSEUDO, [(b"proxy-connection", b"1")]),
        (PSEUDO, [(b"transfer-encoding", b"chunked")]),
        (PSEUDO, [(b"upgrade", b"websocket")]),
        (PSEUDO, [(b"te", b"gzip")]),
        (PSEUDO, [(b"X-Upper", b"1")]),
        (PSEUDO, [(b"", b"1")]),
        (PSEUDO, [(b"x y", b"1")]),
        (PSEUDO, [(b"x:y", b"1")]),
        (PSEUDO, [(b"x-value", b"a\r\nb: c")]),
        (PSEUDO, [(b"x-value", b"a\x00b")]),
        (PSEUDO, [(b"x-value", b" a")]),
        (PSEUDO, [(b"x-value", b"a\t")]),
        (PSEUDO, [(b"content-length", b"-1")]),
        (PSEUDO, [(b"content-length", b"1e3")]),
        (PSEUDO, [(b"content-length", b"1"), (b"content-length", b"2")]),
        (PSEUDO, [(b"content-length", b"5")]),
        (PSEUDO, [(b"authorization", b"Bearer a"), (b"authorization", b"Bearer b")]),
    ],
)
def test_a_malformed_request_is_reset(served: Served, pseudo: Fields, headers: Fields) -> None:
    with Client(served) as client:
        for _ in range(2):  # the second time from what is remembered
            stream = client.finish(client.start(b"", b"", headers, pseudo=pseudo))
            assert (stream.status, stream.reset) == (0, ErrorCodes.PROTOCOL_ERROR)
        assert client.get(b"/echo?on").data == b"on"


def test_te_trailers_and_a_matching_host_are_fine(served: Served) -> None:
    with Client(served) as client:
        assert client.get(b"/echo?a", [(b"te", b"trailers"), (b"host", b"localhost")]).data == b"a"


@pytest.mark.parametrize("sent", [b"shor", b"longer than it"])
@pytest.mark.parametrize("path", [b"/echo", b"/duplex"])
def test_a_body_of_another_length_than_declared_is_reset(
    served: Served, path: bytes, sent: bytes
) -> None:
    with Client(served) as client:
        stream_id = client.start(b"POST", path, [(b"content-length", b"5")], end=False)
        client.h2.send_data(stream_id, sent, end_stream=True)
        client.flush()
        assert client.finish(stream_id).reset == ErrorCodes.PROTOCOL_ERROR
        assert client.get(b"/echo?on").data == b"on"
        assert served.call(lambda: served.app.budget.used) == 0


# Headers that are too large


def test_too_many_header_bytes_are_refused_and_the_connection_goes_on(served: Served) -> None:
    with Client(served) as client:
        for _ in range(3):
            stream = client.get(b"/echo", [(b"x-large", b"v" * SETTINGS.header_bytes_max)])
            assert stream.status == 431
        assert client.get(b"/echo?on").data == b"on"
        small = [(b"x-large", b"v" * (SETTINGS.header_bytes_max - 300))]
        assert client.get(b"/echo?ok", small).data == b"ok"


def test_a_refused_upload_with_large_headers_is_reset_after_its_answer(served: Served) -> None:
    with Client(served) as client:
        stream_id = client.start(b"POST", b"/echo", [(b"x-large", b"v" * 5000)], end=False)
        client.until(lambda: client.streams[stream_id].reset is not None)
        assert client.streams[stream_id].status == 431
        assert client.streams[stream_id].reset == ErrorCodes.NO_ERROR


def test_a_header_list_without_end_closes_the_connection(served: Served) -> None:
    with Client(served) as client:
        client.start(b"GET", b"/echo", [(b"x-large", b"v" * 3 * SETTINGS.header_bytes_max)])
        assert client.expect_goaway() == ErrorCodes.ENHANCE_YOUR_CALM


def test_a_compression_bomb_closes_the_connection(served: Served) -> None:
    """One large entry of the table, referred to by one byte, again and again."""
    with Client(served) as client:
        block = Encoder().encode([*PSEUDO, (b"x-bomb", b"v" * 3000)]) + b"\xbe" * 1000
        client.raw(frame(limits.HEADERS, limits.END_HEADERS | 1, 1, block))
        assert client.expect_goaway() == ErrorCodes.ENHANCE_YOUR_CALM


# Floods: each one has a bound, and closes the connection


def resets(client: Client) -> None:
    for _ in range(2 * SETTINGS.http2_streams_max + 500):
        stream_id = client.start(b"GET", b"/hold")
        client.h2.reset_stream(stream_id, ErrorCodes.CANCEL)
        client.flush()


def malformed(client: Client) -> None:
    for _ in range(2 * SETTINGS.http2_streams_max + 500):
        client.start(b"", b"", pseudo=lacking(b":path"))


def window_overflows(client: Client) -> None:
    """The server is made to reset: the other way round of the same attack."""
    for _ in range(2 * SETTINGS.http2_streams_max + 500):
        stream_id = client.start(b"GET", b"/hold")
        client.raw(frame(limits.WINDOW_UPDATE, 0, stream_id, b"\x7f\xff\xff\xff"))


def large_heads(client: Client) -> None:
    for _ in range(40):
        client.start(b"GET", b"/echo", [(b"x-large", b"v" * SETTINGS.header_bytes_max)])


def pings(client: Client) -> None:
    client.raw(frame(limits.PING, 0, 0, b"12345678") * 1000)


def settings(client: Client) -> None:
    client.raw(frame(limits.SETTINGS, 0, 0) * 1000)


def settings_acks(client: Client) -> None:
    client.raw(frame(limits.SETTINGS, limits.ACK, 0) * 1000)


def priorities(client: Client) -> None:
    client.raw(frame(limits.PRIORITY, 0, 1, bytes(5)) * 5000)


def unknown_frames(client: Client) -> None:
    client.raw(frame(0x42, 0, 1, b"what") * 5000)


def empty_data(client: Client) -> None:
    stream_id = client.start(b"POST", b"/echo", end=False)
    client.raw(frame(limits.DATA, 0, stream_id) * 1000)


def padded_data(client: Client) -> None:
    stream_id = client.start(b"POST", b"/echo", end=False)
    client.raw(frame(limits.DATA, 0x8, stream_id, b"\x03\x00\x00\x00") * 1000)


def continuations(client: Client) -> None:
    block = Encoder().encode(PSEUDO)
    client.raw(frame(limits.HEADERS, 1, 1, block))
    client.raw(frame(limits.CONTINUATION, 0, 1) * 100)


def large_continuations(client: Client) -> None:
    client.raw(frame(limits.HEADERS, 1, 1, b"\x00"))
    client.raw(frame(limits.CONTINUATION, 0, 1, b"x" * KIB) * 12)


@pytest.mark.parametrize(
    "flood",
    [
        resets,
        malformed,
        window_overflows,
        large_heads,
        pings,
        settings,
        settings_acks,
        priorities,
        unknown_frames,
        empty_data,
        padded_data,
        continuations,
        large_continuations,
    ],
)
def test_a_flood_closes_its_connection_and_no_other(
    served: Served, handlers: Handlers, flood: Callable[[Client], None]
) -> None:
    with Client(served) as other, Client(served) as client:
        assert other.get(b"/echo?before").data == b"before"
        flood(client)
        assert client.expect_goaway() == ErrorCodes.ENHANCE_YOUR_CALM
        assert other.get(b"/echo?after").data == b"after"
    served.wait(lambda: not served.app.connections)
    assert served.call(lambda: served.app.budget.used) == 0
    assert len(handlers.held) == handlers.aborted


def test_giving_up_all_streams_at_once_is_no_flood(served: Served, handlers: Handlers) -> None:
    with Client(served) as client:
        streams = [client.start(b"GET", b"/hold") for _ in range(SETTINGS.http2_streams_max)]
        served.wait(lambda: len(handlers.held) == len(streams))
        for stream_id in streams:
            client.h2.reset_stream(stream_id, ErrorCodes.CANCEL)
        client.flush()
        served.wait(lambda: handlers.aborted == len(streams))
        assert client.get(b"/echo?on").data == b"on"


def test_a_stream_too_many_is_refused(served: Served, handlers: Handlers) -> None:
    with Client(served) as client:
        # It has not read the settings, so it does not know better.
        streams = [client.start(b"GET", b"/hold") for _ in range(SETTINGS.http2_streams_max)]
        refused = client.finish(client.start(b"GET", b"/echo"))
        assert refused.reset == ErrorCodes.REFUSED_STREAM
        assert len(handlers.held) == len(streams)
        served.call(lambda: handlers.held[0].answer(200, b"room"))
        assert client.finish(streams[0]).data == b"room"
        assert client.get(b"/echo?on").data == b"on"


def test_a_turn_is_bounded_and_the_rest_is_done_in_the_next(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With no time at all a turn takes one frame; everything is answered all the same."""
    monkeypatch.setattr("headrace.server.loop_shares.SLICE_NS_MAX", -1)
    monkeypatch.setattr("headrace.server.loop_shares.SLICE_NS_MIN", -1)
    with Client(served) as client:
        encoder, data = Encoder(), b""
        for number in range(1, 100, 2):
            block = encoder.encode(having(b":path", b"/echo?%d" % number))
            data += frame(limits.HEADERS, limits.END_HEADERS | 1, number, block)
        client.h2.encoder = encoder
        client.h2.highest_outbound_stream_id = 99
        client.raw(data)
        answers = b""
        while b"99" not in answers:
            answers += client.sock.recv(1 << 16)


# Frames that are wrong: the connection ends


@pytest.mark.parametrize(
    ("data", "code"),
    [
        (frame(limits.HEADERS, 4, 1, b"\xff\xff\xff\xff\xff\xff\xff\xff"), "COMPRESSION_ERROR"),
        (frame(limits.HEADERS, 4, 1, b"\xfe"), "COMPRESSION_ERROR"),
        (frame(limits.HEADERS, 4, 1, b"\x40\x7f\xff\xff\x01ab"), "COMPRESSION_ERROR"),
        (frame(limits.HEADERS, 4, 1, b"\x3f\xff\xff\x7f"), "COMPRESSION_ERROR"),
        (frame(limits.HEADERS, 4, 2, b"\x82"), "PROTOCOL_ERROR"),
        (frame(limits.HEADERS, 4, 0, b"\x82"), "PROTOCOL_ERROR"),
        (
            frame(limits.HEADERS, 0, 1, b"\x82") + frame(limits.PING, 0, 0, bytes(8)),
            "PROTOCOL_ERROR",
        ),
        (frame(limits.DATA, 0, 1, b"x"), "PROTOCOL_ERROR"),
        (frame(limits.DATA, 0, 0, b"x"), "PROTOCOL_ERROR"),
        (frame(limits.CONTINUATION, 4, 1, b""), "PROTOCOL_ERROR"),
        (frame(limits.RST_STREAM, 0, 0, bytes(4)), "PROTOCOL_ERROR"),
        (frame(limits.SETTINGS, 0, 0, b"\x00\x04\xff\xff\xff\xff"), "FLOW_CONTROL_ERROR"),
        (frame(limits.SETTINGS, 0, 0, b"\x00\x02\x00\x00\x00\x05"), "PROTOCOL_ERROR"),
        (frame(limits.WINDOW_UPDATE, 0, 0, b"\x7f\xff\xff\xff"), "FLOW_CONTROL_ERROR"),
        (b"\x01\x00\x01\x00\x00\x00\x00\x00\x01", "FRAME_SIZE_ERROR"),
        (frame(5, 4, 1, b"\x00\x00\x00\x02\x82"), "PROTOCOL_ERROR"),
    ],
)
def test_a_wrong_frame_ends_the_connection(served: Served, data: bytes, code: str) -> None:
    with Client(served) as client:
        client.raw(data)
        assert client.expect_goaway().name == code
    served.wait(lambda: not served.app.connections)


def test_the_first_frame_has_to_be_settings(served: Served) -> None:
    with served.connect() as sock:
        sock.sendall(PREFACE + frame(limits.PING, 0, 0, bytes(8)))
        goaway = [f for f in read_to_end(sock) if f.kind == limits.GOAWAY]
        assert goaway[0].body[4:8] == ErrorCodes.PROTOCOL_ERROR.to_bytes(4, "big")


def test_what_was_answered_before_a_wrong_frame_is_still_sent(served: Served) -> None:
    """`h2` forgets the events of a read in which it finds an error."""
    with served.connect() as sock:
        head = Encoder().encode(having(b":path", b"/echo?answer"))
        sock.sendall(
            PREFACE
            + frame(limits.SETTINGS, 0, 0)
            + frame(limits.HEADERS, limits.END_HEADERS | 1, 1, head)
            + frame(limits.DATA, 0, 0, b"x")
        )
        kinds = [(f.kind, f.stream_id) for f in read_to_end(sock)]
        assert (limits.HEADERS, 1) in kinds
        assert kinds[-1] == (limits.GOAWAY, 0)


def test_data_after_the_end_of_a_request_resets_its_stream(
    served: Served, handlers: Handlers
) -> None:
    with Client(served) as client:
        stream_id = client.start(b"GET", b"/hold")
        client.raw(frame(limits.DATA, 0, stream_id, b"more"))
        assert client.finish(stream_id).reset == ErrorCodes.STREAM_CLOSED
        served.wait(lambda: handlers.aborted == 1)
        assert client.get(b"/echo?on").data == b"on"


def test_a_late_reset_of_an_answered_stream_is_ignored(served: Served) -> None:
    with Client(served) as client:
        client.get(b"/echo")
        client.raw(frame(limits.RST_STREAM, 0, 1, bytes(4)))
        client.raw(frame(limits.WINDOW_UPDATE, 0, 1, b"\x00\x00\x00\x01"))
        assert client.get(b"/echo?on").data == b"on"


# Noise


def noise(chance: random.Random) -> bytes:
    """Frames that are half right."""
    data = b""
    for _ in range(chance.randrange(1, 30)):
        kind = chance.choice([0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 200])
        body = chance.randbytes(chance.choice([0, 1, 4, 5, 6, 8, 8, 40]))
        if kind == limits.HEADERS and chance.random() < 0.8:
            method = chance.choice([b"GET", b"POST", b"HEAD", b"CONNECT"])
            path = chance.choice([b"/echo", b"/hold", b"/stream", b"/duplex", b"/late", b"/tunnel"])
            body = Encoder().encode(
                [(b":method", method), *PSEUDO[1:3], (b":path", path), (b"x", chance.randbytes(3))]
            )
        flags = chance.choice([0, 1, 4, 5, 8, 0x20, 0x2D, 255])
        made = frame(kind, flags, chance.choice([0, 1, 1, 2, 3, 3, 5, 7, 1 << 30]), body)
        if chance.random() < 0.05:
            made = made[: chance.randrange(len(made))]
        data += made
    return data


@pytest.mark.parametrize("seed", range(40))
def test_noise_never_breaks_the_server(
    handlers: Handlers, caplog: pytest.LogCaptureFixture, seed: int
) -> None:
    chance = random.Random(seed)
    unhandled: list[object] = []
    with Served(SETTINGS, handlers.routes()) as served:
        served.loop.set_exception_handler(lambda _, context: unhandled.append(context))
        for _ in range(25):
            with served.connect() as sock:
                sock.sendall(PREFACE)
                if chance.random() < 0.8:
                    sock.sendall(frame(limits.SETTINGS, 0, 0))
                data = chance.randbytes(500) if chance.random() < 0.2 else noise(chance)
                sock.sendall(data)
                sock.shutdown(socket.SHUT_WR)
                assert all(isinstance(f, Frame) for f in read_to_end(sock))
        with Client(served) as client:
            assert client.get(b"/echo?alive").data == b"alive"
        served.wait(lambda: not served.app.connections)
        assert served.call(lambda: served.app.budget.used) == 0
    assert not unhandled
    assert not [r for r in caplog.records if r.exc_info]
    assert len(handlers.outlets) >= handlers.closed
