"""A connection of HTTP/2 to a server without sockets; it takes the requests of HTTP/1.1."""

from __future__ import annotations

from h2.config import H2Configuration
from h2.connection import H2Connection
from h2.events import DataReceived, ResponseReceived, StreamEnded, StreamReset

from tests.support.served_app import Response
from tests.support.turn_servers import TurnClient, TurnServer

FRAME_BYTES = 16_384


class Http2TurnClient(TurnClient):
    """Like `TurnClient`: what it sends at once is in streams of their own."""

    def __init__(self, server: TurnServer) -> None:
        super().__init__(server)
        self._h2 = H2Connection(H2Configuration(client_side=True, header_encoding=None))
        self._asked: list[int] = []  # streams that were not heard of yet
        self._answers: dict[int, Response] = {}
        self._ended: set[int] = set()
        self._h2.initiate_connection()
        self._flush()

    def send(self, *requests: bytes) -> None:
        """Send each in a stream of its own."""
        for request in requests:
            head, _, body = request.partition(b"\r\n\r\n")
            line, *lines = head.split(b"\r\n")
            method, path, _ = line.split(b" ")
            headers = [tuple(line.split(b": ", 1)) for line in lines]
            (host,) = [value for name, value in headers if name == b"host"]
            rest = [(name, value) for name, value in headers if name != b"host"]
            pseudo = [(b":method", method), (b":scheme", b"http"), (b":path", path)]
            stream_id = self._h2.get_next_available_stream_id()
            self._asked.append(stream_id)
            fields = [*pseudo, (b":authority", host), *rest]
            self._h2.send_headers(stream_id, fields, end_stream=not body)
            self._flush()
            self._send_body(stream_id, body)

    def cancel(self) -> None:
        """Reset the stream of the last request."""
        self._h2.reset_stream(self._asked.pop())
        self._flush()

    def _send_body(self, stream_id: int, body: bytes) -> None:
        while body and stream_id not in self._ended:
            size = min(FRAME_BYTES, self._h2.local_flow_control_window(stream_id), len(body))
            assert size, "the server gives back no window"
            self._h2.send_data(stream_id, body[:size], end_stream=size == len(body))
            body = body[size:]
            self._flush()

    def _flush(self) -> None:
        """Send what is to be sent, and take what has come back."""
        while data := self._h2.data_to_send():
            self.protocol.data_received(data)
            self._take()

    def _take(self) -> None:
        data = bytes(self._transport.sent)
        self._transport.sent.clear()
        for event in self._h2.receive_data(data) if data else ():
            if isinstance(event, ResponseReceived):
                headers = dict(event.headers)
                status = int(headers.pop(b":status"))
                self._answers[event.stream_id] = Response(status, headers, b"")
            elif isinstance(event, DataReceived):
                answer = self._answers[event.stream_id]
                self._answers[event.stream_id] = answer._replace(body=answer.body + event.data)
                self._h2.acknowledge_received_data(event.flow_controlled_length, event.stream_id)
            elif isinstance(event, StreamEnded | StreamReset):
                self._ended.add(event.stream_id)

    def hear(self) -> list[Response]:
        """The answers that have come since the last time, in the order of their requests."""
        self._take()
        self._flush()
        heard = [stream_id for stream_id in self._asked if stream_id in self._ended]
        self._asked = [stream_id for stream_id in self._asked if stream_id not in self._ended]
        return [self._answers.pop(stream_id) for stream_id in heard if stream_id in self._answers]
