"""The state of one HTTP/2 connection: `h2`, with the parts replaced that a busy server pays for.

Only this file reaches into `h2`.  Frames, states and windows stay with the library.  Replaced:
request heads (a malformed one ends its stream, where `h2` ends the connection, and is read once),
response heads, and data both ways (as bytes, without an object for each frame), the count of open
streams (`h2` walks all of them for every request), and how a stream begins and ends whose request
or answer is whole: it is put into the state in which `h2` would have left it.  It does no input or
output and calls no handler.
"""

from __future__ import annotations

from functools import cached_property
from struct import Struct
from typing import TYPE_CHECKING, Final

from h2.config import H2Configuration
from h2.connection import ConnectionInputs, ConnectionState, H2Connection
from h2.events import Event
from h2.exceptions import ProtocolError
from h2.settings import SettingCodes, Settings
from h2.stream import H2Stream, H2StreamStateMachine, StreamClosedBy, StreamInputs, StreamState
from h2.windows import WindowManager
from hyperframe.frame import WindowUpdateFrame

from headrace.core.lru import FifoMap
from headrace.server.http2.headers import Head, HeadReader, Malformed
from headrace.server.http2.limits import (
    CLOSED_STREAMS_KEPT,
    CONNECTION_WINDOW_BYTES,
    CONTINUATION,
    DATA,
    END_HEADERS,
    END_STREAM,
    FRAME_BYTES_MAX,
    HEADERS,
    OVERSIZE_FACTOR,
    PADDED,
    PRIORITY_FLAG,
    STREAM_WINDOW_BYTES,
)
from headrace.server.http2.response_heads import HeadWriter

if TYPE_CHECKING:
    from hyperframe.frame import Frame, HeadersFrame

PREFACE: Final = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
FRAME_HEAD_BYTES: Final = 9
# Data of fewer bytes is copied to what is sent with it; more is sent from where it lies.
COPIED_BYTES_MAX: Final = 4_096

# Of the connection and of each stream, until the client or we say otherwise.
_WINDOW_BYTES_DEFAULT: Final = 65_535
# A HEADERS frame that is neither padded nor has a priority, and is the whole block.
HEADERS_FORM: Final = END_HEADERS | PADDED | PRIORITY_FLAG
# The head of a frame: its length in two parts, its kind, its flags, and its stream.
_FRAME_HEAD: Final = Struct(">HBBBL")
frame_head_at: Final = _FRAME_HEAD.unpack_from
_frame_head: Final = _FRAME_HEAD.pack
_stream_id_at: Final = Struct(">L").unpack_from


class HeadReceived(Event):
    """A request has begun; `head` is None when it is malformed."""

    __slots__ = ("ended", "head", "stream_id")

    def __init__(self, stream_id: int, head: Head | None, ended: bool) -> None:
        self.stream_id = stream_id
        self.head = head
        self.ended = ended


class _StreamState(H2StreamStateMachine):
    """The state of a stream from the head of its request on."""

    # What `h2` has noted by then.  Most streams change none of it.
    client = False
    headers_received = True
    headers_sent: bool | None = None
    trailers_received: bool | None = None
    trailers_sent: bool | None = None
    stream_closed_by: StreamClosedBy | None = None

    def __init__(self, stream_id: int, state: StreamState) -> None:
        # Not the base's: this is done for each request.
        self.stream_id = stream_id
        self.state = state


class _Stream(H2Stream):
    """A stream from the head of its request on."""

    _actual_content_length = 0
    _authority: bytes | None = None
    _expected_content_length: int | None = None
    max_outbound_frame_size: int | None = None
    request_method: bytes | None = None

    def __init__(
        self, stream_id: int, config: H2Configuration, state: StreamState, window: int
    ) -> None:
        # Not the base's, as above.
        self.stream_id = stream_id
        self.config = config
        self.state_machine = _StreamState(stream_id, state)
        self.outbound_flow_control_window = window

    @cached_property
    def _inbound_window_manager(self) -> WindowManager:  # type: ignore[override]
        """What the client may send on the stream; not needed for a request that comes whole."""
        return WindowManager(STREAM_WINDOW_BYTES)


class Http2State(H2Connection):
    """The server's side of one connection."""

    MAX_CLOSED_STREAMS = CLOSED_STREAMS_KEPT

    def __init__(self, streams_max: int, header_bytes_max: int) -> None:
        super().__init__(
            H2Configuration(
                client_side=False,
                header_encoding=None,
                validate_inbound_headers=False,
                normalize_inbound_headers=False,
                validate_outbound_headers=False,
                normalize_outbound_headers=False,
            )
        )
        self.local_settings = Settings(
            client=False,
            initial_values={
                SettingCodes.MAX_CONCURRENT_STREAMS: streams_max,
                SettingCodes.INITIAL_WINDOW_SIZE: STREAM_WINDOW_BYTES,
                SettingCodes.MAX_FRAME_SIZE: FRAME_BYTES_MAX,
                SettingCodes.MAX_HEADER_LIST_SIZE: header_bytes_max,
                SettingCodes.ENABLE_CONNECT_PROTOCOL: 1,
            },
        )
        self.max_inbound_frame_size = FRAME_BYTES_MAX
        self.reader = HeadReader(OVERSIZE_FACTOR * header_bytes_max)
        self.decoder = self.reader
        self.writer = HeadWriter()
        self.encoder = self.writer
        self._closed_streams: FifoMap[int, StreamClosedBy | None] = FifoMap(CLOSED_STREAMS_KEPT)
        self._first_window = _WINDOW_BYTES_DEFAULT  # of a new stream, for what we send
        self._pieces: list[bytes | bytearray | memoryview] = []  # to send before `_data_to_send`
        self._pieces_bytes = 0
        self.initiate_connection()
        self.increment_flow_control_window(CONNECTION_WINDOW_BYTES - _WINDOW_BYTES_DEFAULT)

    # Receiving

    def receive(self, kind: int, flags: int, frame: bytes) -> list[Event]:
        """Take one frame, not inside a header block; return what it means.

        Data takes a shorter way, in the form in which it usually comes.
        """
        if kind == DATA and not flags & PADDED:
            stream = self.streams.get(_stream_id_at(frame, 5)[0])
            if stream is not None and stream.state_machine.state is StreamState.OPEN:
                length = len(frame) - FRAME_HEAD_BYTES
                self._inbound_flow_control_window_manager.window_consumed(length)
                data = frame[FRAME_HEAD_BYTES:]
                return stream.receive_data(data, bool(flags & END_STREAM), length)[1]
        return self.receive_data(frame)

    def _open_streams(self, remainder: int) -> int:
        return 0  # `receiving.py` counts the streams, and refuses one too many

    def _receive_headers_frame(self, frame: HeadersFrame) -> tuple[list[Frame], list[Event]]:
        stream_id = frame.stream_id
        if stream_id in self.streams or stream_id <= self.highest_inbound_stream_id:
            return super()._receive_headers_frame(frame)
        if stream_id % 2 == 0:
            raise ProtocolError("a client opened a stream with an even number")
        return [], self._take_head(stream_id, frame.data, "END_STREAM" in frame.flags)

    def _take_head(self, stream_id: int, block: bytes, ended: bool) -> list[Event]:
        """Begin a request; return its head, or that it is malformed."""
        head: Head | None
        try:
            head = self.reader.read(block)
        except Malformed:
            head = None
        self.open_stream(stream_id, ended=ended)
        return [HeadReceived(stream_id, head, ended)]

    def open_stream(self, stream_id: int, *, ended: bool) -> None:
        """Open a stream whose number is right: the head of its request has come, or all of it."""
        if self.state_machine.state is not ConnectionState.SERVER_OPEN:
            self.state_machine.process_input(ConnectionInputs.RECV_HEADERS)
        state = StreamState.HALF_CLOSED_REMOTE if ended else StreamState.OPEN
        self.streams[stream_id] = _Stream(stream_id, self.config, state, self._first_window)
        self.highest_inbound_stream_id = stream_id

    def _flow_control_change_from_settings(self, old_value: int | None, new_value: int) -> None:
        super()._flow_control_change_from_settings(old_value, new_value)
        self._first_window = new_value

    def took(self, size: int) -> None:
        """Let the client send as much again: requests that came whole had as many bytes of data."""
        windows = self._inbound_flow_control_window_manager
        windows.window_consumed(size)
        self._open_connection_window(windows.process_bytes(size))

    def _open_connection_window(self, increment: int | None) -> None:
        if increment:
            update = WindowUpdateFrame(0)
            update.window_increment = increment
            self._prepare_for_sending([update])

    def acknowledge(self, stream_id: int, *, of_stream: int, of_connection: int) -> None:
        """Give back this much of the windows of a stream and of the connection."""
        if of_stream == of_connection:
            self.acknowledge_received_data(of_stream, stream_id)
            return
        if of_connection:
            windows = self._inbound_flow_control_window_manager
            self._open_connection_window(windows.process_bytes(of_connection))
        stream = self.streams.get(stream_id)
        if of_stream and stream is not None and stream.open:
            self._prepare_for_sending(stream.acknowledge_received_data(of_stream))

    @property
    def inbound_window(self) -> int:
        """Bytes of data that the client may send on the connection now."""
        return int(self._inbound_flow_control_window_manager.current_window_size)

    def forget(self, stream_id: int) -> None:
        """Remember of a stream only how it was closed."""
        stream = self.streams.pop(stream_id, None)
        if stream is not None:
            self._closed_streams.put(stream_id, stream.closed_by)

    # Sending

    def send_head(self, stream_id: int, block: bytes, *, end: bool) -> None:
        """Send a final response head, of `encode_head`."""
        machine = self.streams[stream_id].state_machine
        machine.process_input(StreamInputs.SEND_HEADERS)
        if end:
            machine.process_input(StreamInputs.SEND_END_STREAM)
        self._put_block(stream_id, self.writer.prefix() + block, END_STREAM if end else 0)

    def send_whole(self, stream_id: int, block: bytes, body: bytes) -> bool:
        """Send all of an answer that has a body, if the windows let all of it go in one frame.

        The request must have ended; so does the stream then.
        """
        stream, length = self.streams[stream_id], len(body)
        machine, most = stream.state_machine, self.max_outbound_frame_size
        if machine.state is not StreamState.HALF_CLOSED_REMOTE or machine.headers_sent:
            return False
        window = self.outbound_flow_control_window
        if length > window or length > stream.outbound_flow_control_window or length > most:
            return False
        if self.writer.shrunk:
            block = self.writer.prefix() + block
        size = len(block)
        if size > most:
            self._put_block(stream_id, block, 0)
            self._put(DATA, END_STREAM, stream_id, body)
        else:
            head = _frame_head(size >> 8, size & 0xFF, HEADERS, END_HEADERS, stream_id)
            data = _frame_head(length >> 8, length & 0xFF, DATA, END_STREAM, stream_id)
            self._data_to_send += b"%b%b%b%b" % (head, block, data, body)
        self.outbound_flow_control_window = window - length
        del self.streams[stream_id]
        self._closed_streams.put(stream_id, StreamClosedBy.SEND_END_STREAM)
        return True

    def send_interim(self, stream_id: int, block: bytes) -> None:
        """Send a 1xx head, of `encode_head`."""
        machine = self.streams[stream_id].state_machine
        machine.process_input(StreamInputs.SEND_INFORMATIONAL_HEADERS)
        self._put_block(stream_id, self.writer.prefix() + block, 0)

    def _put_block(self, stream_id: int, block: bytes, flags: int) -> None:
        most = self.max_outbound_frame_size
        kind = HEADERS
        while len(block) > most:
            self._put(kind, flags, stream_id, block[:most])
            block = block[most:]
            kind, flags = CONTINUATION, 0
        self._put(kind, flags | END_HEADERS, stream_id, block)

    def sendable(self, stream_id: int) -> int:
        """Bytes of data that the windows let a stream send now."""
        stream = self.streams[stream_id]
        return min(stream.outbound_flow_control_window, self.outbound_flow_control_window)

    def send_piece(self, stream_id: int, data: bytes | memoryview, *, end: bool) -> None:
        """Send data, of at most `sendable` bytes, in as many frames as it takes."""
        stream, size, most = self.streams[stream_id], len(data), self.max_outbound_frame_size
        stream.state_machine.process_input(StreamInputs.SEND_DATA)
        if end:
            stream.state_machine.process_input(StreamInputs.SEND_END_STREAM)
        stream.outbound_flow_control_window -= size
        self.outbound_flow_control_window -= size
        assert not data or stream.outbound_flow_control_window >= 0
        assert not data or self.outbound_flow_control_window >= 0
        last = END_STREAM if end else 0
        if size <= min(most, COPIED_BYTES_MAX):
            self._put(DATA, last, stream_id, data)
            return
        view = memoryview(data)
        for at in range(0, size, most):
            length = min(most, size - at)
            flags = last if at + length == size else 0
            head = _frame_head(length >> 8, length & 0xFF, DATA, flags, stream_id)
            self._data_to_send += head
            self._send_later(view[at : at + length])

    def _send_later(self, view: memoryview) -> None:
        """Send this after all that there is to send, without a copy."""
        self._pieces += (self._data_to_send, view)
        self._pieces_bytes += len(self._data_to_send) + len(view)
        self._data_to_send = bytearray()

    def take_unsent(self) -> list[bytes | bytearray | memoryview]:
        """What is to be sent, in pieces; it is forgotten here."""
        pieces, self._pieces, self._pieces_bytes = self._pieces, [], 0
        if self._data_to_send:
            pieces.append(self.data_to_send())
        return pieces

    def close(self, code: int, reason: str) -> None:
        """Say that the connection ends, and why; `h2` has done so after an error that it found."""
        if self.state_machine.state is not ConnectionState.CLOSED:
            self.close_connection(code, reason.encode("utf-8", "replace"))

    def let_go(self) -> None:
        """Break the circles of `h2`: nothing is received or sent any more."""
        self.streams.clear()
        self._frame_dispatch_table.clear()

    @property
    def unsent_bytes(self) -> int:
        return self._pieces_bytes + len(self._data_to_send)

    def _put(self, kind: int, flags: int, stream_id: int, body: bytes | memoryview) -> None:
        length = len(body)
        self._data_to_send += _frame_head(length >> 8, length & 0xFF, kind, flags, stream_id)
        self._data_to_send += body
