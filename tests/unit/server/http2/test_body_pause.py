"""A handler that pauses a body over HTTP/2: its stream waits, and the others go on."""

from __future__ import annotations

import time
from contextlib import suppress
from dataclasses import replace
from typing import Any

from h2.errors import ErrorCodes

from headrace.server.http2.limits import CONNECTION_WINDOW_BYTES, STREAM_WINDOW_BYTES
from tests.support.http2_client import Client, Stream
from tests.support.served_app import Served
from tests.support.upload_server import upload_handlers, upload_server
from tests.support.uploads import BODY_BYTES, MIB, PIECE, UploadHandlers, expected_hash
from tests.support.uploads import UPLOAD_SETTINGS as SETTINGS

# As fixtures: `handlers` and `served`.
__all__ = ["upload_handlers", "upload_server"]


def kept(served: Served, handlers: UploadHandlers) -> int:
    return served.call(lambda: sum(upload.kept_bytes for upload in handlers.uploads))


def fill(client: Client, path: bytes, served: Served, handlers: UploadHandlers) -> int:
    """Open a stream and use its whole window up."""
    count = len(handlers.uploads)
    stream_id = client.start(b"POST", path, end=False)
    served.wait(lambda: len(handlers.uploads) == count + 1)
    client.until(lambda: client.h2.remote_settings.initial_window_size == STREAM_WINDOW_BYTES)
    for _ in range(STREAM_WINDOW_BYTES // len(PIECE)):
        client.send(stream_id, PIECE)
    assert client.h2.local_flow_control_window(stream_id) == 0
    return stream_id


def finish(client: Client, stream_id: int, size: int) -> Stream:
    """Send the rest of a body of `size` bytes."""
    for _ in range((size - STREAM_WINDOW_BYTES) // len(PIECE)):
        client.send(stream_id, PIECE)
    client.send(stream_id, b"", end=True)
    return client.finish(stream_id)


def test_holds_a_stream_at_its_window_and_others_go_on(
    served: Served, handlers: UploadHandlers
) -> None:
    count = 2 * CONNECTION_WINDOW_BYTES // STREAM_WINDOW_BYTES
    size = BODY_BYTES // count
    with Client(served) as client:
        streams = [fill(client, b"/paused", served, handlers) for _ in range(count)]
        served.wait(lambda: served.app.budget.used == count * STREAM_WINDOW_BYTES)
        assert kept(served, handlers) == count * STREAM_WINDOW_BYTES
        echo = b"y" * 900_000
        assert client.post(b"/echo", echo).data == echo
        assert [client.h2.local_flow_control_window(s) for s in streams] == [0] * count
        assert [upload.bytes for upload in handlers.uploads] == [0] * count
        for upload in handlers.uploads:
            served.call(upload.resume)
        for stream_id in streams:
            assert finish(client, stream_id, size).data == b"%d" % size
        assert {u.hash.hexdigest() for u in handlers.uploads} == {expected_hash(size)}
        served.wait(lambda: served.app.budget.used == 0)


def test_pauses_after_each_piece(served: Served, handlers: UploadHandlers) -> None:
    with Client(served) as client:
        stream_id = fill(client, b"/paused", served, handlers)
        upload = handlers.uploads[0]
        upload.each = True
        served.call(upload.resume)
        assert finish(client, stream_id, 8 * MIB).data == b"%d" % (8 * MIB)
        assert upload.hash.hexdigest() == expected_hash(8 * MIB)
        served.wait(lambda: served.app.budget.used == 0)


def test_without_memory_the_connection_waits(handlers: UploadHandlers) -> None:
    """Paused bodies hold no more than the shared memory and the connection's window."""
    settings = replace(SETTINGS, request_memory_bytes_max=2 * MIB)
    with Served(settings, handlers.routes()) as served, Client(served) as client:
        client.until(lambda: client.h2.outbound_flow_control_window == CONNECTION_WINDOW_BYTES)
        streams = [client.start(b"POST", b"/paused", end=False) for _ in range(12)]
        served.wait(lambda: len(handlers.uploads) == 12)
        sent = dict.fromkeys(streams, 0)
        client.sock.settimeout(0.3)
        for stream_id in streams:
            while sent[stream_id] < STREAM_WINDOW_BYTES:
                try:
                    client.send(stream_id, PIECE)
                except TimeoutError:
                    break
                sent[stream_id] += len(PIECE)
        client.sock.settimeout(20)
        assert client.h2.outbound_flow_control_window < len(PIECE)
        assert kept(served, handlers) <= CONNECTION_WINDOW_BYTES + 2 * MIB + len(PIECE)
        assert served.call(lambda: served.app.budget.used) <= 2 * MIB
        # Whatever else the client wants to send has to wait for us, and is not late.
        client.sock.settimeout(0.3)
        while client.h2.outbound_flow_control_window:
            with suppress(TimeoutError):
                client.send(streams[-1], b"x" * client.h2.outbound_flow_control_window)
        client.sock.settimeout(20)
        other = client.start(b"POST", b"/echo", end=False)
        (found,) = served.app.connections
        connection: Any = found
        served.wait(lambda: other in connection.streams)
        late_ms = 2 * settings.body_timeout_ms
        for ms in (0, late_ms, 2 * late_ms):
            served.call(lambda ms=ms: connection.tick(served.app.now_ms() + ms))
        assert not served.call(lambda: connection.streams[other].answered)
        for upload in handlers.uploads:
            served.call(upload.resume)
        client.until(lambda: client.h2.outbound_flow_control_window >= 2 * MIB)
        for stream_id in (*streams, other):
            client.send(stream_id, b"", end=True)
            client.finish(stream_id)
        assert client.streams[other].status == 200
        assert all(upload.ended for upload in handlers.uploads)
        served.wait(lambda: served.app.budget.used == 0)


def test_a_reset_while_paused(served: Served, handlers: UploadHandlers) -> None:
    with Client(served) as client:
        for round_ in range(2 * CONNECTION_WINDOW_BYTES // STREAM_WINDOW_BYTES):
            stream_id = fill(client, b"/paused", served, handlers)
            client.h2.reset_stream(stream_id, ErrorCodes.CANCEL)
            client.flush()
            upload = handlers.uploads[round_]
            served.wait(lambda upload=upload: upload.aborted == 1)
            served.call(upload.resume)
        served.wait(lambda: served.app.budget.used == 0)
        assert kept(served, handlers) == 0
        assert client.post(b"/echo", b"y" * 900_000).status == 200


def test_a_connection_that_ends_while_paused(served: Served, handlers: UploadHandlers) -> None:
    with Client(served) as client:
        fill(client, b"/paused", served, handlers)
        served.wait(lambda: served.app.budget.used == STREAM_WINDOW_BYTES)
    served.wait(lambda: handlers.uploads[0].aborted == 1)
    served.wait(lambda: served.app.budget.used == 0)


def test_a_paused_body_is_not_timed_out(served: Served, handlers: UploadHandlers) -> None:
    with Client(served) as client:
        stream_id = fill(client, b"/paused", served, handlers)
        time.sleep(3 * SETTINGS.body_timeout_ms / 1000)
        served.call(handlers.uploads[0].resume)
        assert finish(client, stream_id, 2 * MIB).data == b"%d" % (2 * MIB)


def test_an_answer_while_paused_ends_the_stream(served: Served, handlers: UploadHandlers) -> None:
    with Client(served) as client:
        stream_id = fill(client, b"/paused", served, handlers)
        served.call(lambda: handlers.uploads[0].exchange.answer(200, b"enough"))
        stream = client.finish(stream_id)
        assert (stream.status, stream.data) == (200, b"enough")
        served.wait(lambda: served.app.budget.used == 0)
        assert client.post(b"/echo", b"y").data == b"y"


def test_small_pieces_are_kept_together(served: Served, handlers: UploadHandlers) -> None:
    with Client(served) as client:
        stream_id = client.start(b"POST", b"/paused", end=False)
        for number in range(2_000):
            client.send(stream_id, b"%04d" % number)
        served.wait(lambda: sum(upload.kept_bytes for upload in handlers.uploads) == 8_000)
        assert served.call(lambda: len(handlers.uploads[0].exchange.arrived)) == 2
        served.call(handlers.uploads[0].resume)
        client.send(stream_id, b"", end=True)
        assert client.finish(stream_id).data == b"8000"


def test_drain_lets_a_paused_body_finish(served: Served, handlers: UploadHandlers) -> None:
    with Client(served) as client:
        stream_id = fill(client, b"/paused", served, handlers)
        served.call(served.app.drain)
        served.call(handlers.uploads[0].resume)
        assert finish(client, stream_id, 2 * MIB).data == b"%d" % (2 * MIB)
        assert client.expect_goaway() == ErrorCodes.NO_ERROR
