"""A WebSocket of any dialect: a live stream that also takes messages.

Only this file connects `websocket_frames.py` to a live stream: messages go to the dialect, pings
are the heartbeats, and a connection ends with the closing handshake.  A client that sends messages
and reads no answers is closed, and so is one whose message has no room beside those of others
(`request_memory.py`).  What a message means is the dialect's business; its encoder returns whole
frames (`text_frame`).
"""

from __future__ import annotations

from typing import Final

from headrace.core.errors import OutOfResources
from headrace.engine.live.follower import ViewT
from headrace.wire.live_stream import LiveStream, StreamClient, StreamEncoder
from headrace.wire.open_streams import OpenStreams
from headrace.wire.request_memory import FREE_MESSAGE_BYTES, no_memory
from headrace.wire.websocket_frames import (
    BROKEN,
    GOING_AWAY,
    INVALID_TEXT,
    TOO_SLOW,
    TRY_LATER,
    Incoming,
    text_frame,
)

# Answers that wait for a client that sends messages and reads nothing.
REPLIES_UNREAD_MAX: Final = 1_000


class WebSocketStream(LiveStream[ViewT]):
    """One connection."""

    __slots__ = ("_arriving", "_incoming", "_replies_unread")
    kind = "ws"

    def __init__(
        self,
        streams: OpenStreams,
        encoder: StreamEncoder[ViewT],
        client: StreamClient,
        message_bytes_max: int,
    ) -> None:
        super().__init__(streams, encoder, client)
        self._incoming = Incoming(message_bytes_max)
        self._replies_unread = 0
        self._arriving = 0  # bytes of a message in part that count as memory of requests
        client.outlet.on_data = self._received

    # What a dialect adds

    def text_message(self, message: bytes) -> None:
        """Take a text message; its bytes are UTF-8."""
        raise NotImplementedError

    def binary_message(self, message: bytes) -> None:
        """Take a binary message."""
        raise NotImplementedError

    # Messages

    def _received(self, data: bytes) -> None:
        try:
            messages = self._incoming.feed(data)
        except MemoryError:
            self.fail(OutOfResources.told("nothing"))
            return
        if self._incoming.out_of_memory:
            # Before the close, which the protocol has begun.
            super().write(self._encoder.error(OutOfResources.told("nothing")))
        self._count_arriving(self._incoming.partial_bytes)
        for is_text, message in messages:
            if self.closed:
                return
            if not is_text:
                self.binary_message(message)
            elif _is_utf8(message):
                self.text_message(message)
            else:
                self.close(INVALID_TEXT, "the text is not UTF-8")
        self._flush()

    def _count_arriving(self, size: int) -> None:
        """Count what has come of a message; close the connection if there is no room for it."""
        counted = max(0, size - FREE_MESSAGE_BYTES)
        memory, more = self._streams.request_memory, counted - self._arriving
        if more <= 0:
            memory.give(-more)
        elif not memory.take(more):
            self._metrics.rejected("request_memory")
            self.write(self._encoder.error(no_memory(memory.limit)))
            self.close(TRY_LATER, "too many large messages arrive at once")
            return
        self._arriving = counted

    def reply(self, *texts: bytes) -> None:
        """Send answers to messages; close the connection if too many are unread."""
        if len(texts) == 1:
            self.write(text_frame(texts[0]))
        else:
            self.write(b"".join(map(text_frame, texts)))
        if self.closed or self._outlet.room:
            self._replies_unread = 0
            return
        self._replies_unread += len(texts)
        if self._replies_unread > REPLIES_UNREAD_MAX:
            self.close(TOO_SLOW, "too many answers are unread")

    @property
    def ready(self) -> bool:
        return self._incoming.open and self._outlet.room

    def write(self, data: bytes) -> None:
        """Write frames, unless the closing handshake has begun."""
        if self._incoming.open:
            super().write(data)

    def _flush(self) -> None:
        """Send the protocol's own frames: pings, pongs, and the closing handshake."""
        data, ends = self._incoming.to_send()
        if data:
            super().write(data)
        if ends or not self._incoming.open:
            self.finish()

    def send_heartbeat(self) -> None:
        self._incoming.ping()
        self._flush()

    # The end

    def ended(self) -> None:
        self._streams.request_memory.give(self._arriving)
        self._arriving = 0
        self._incoming.drop()

    def fail(self, error: BaseException) -> None:
        if not self.closed:
            self.write(self._encoder.error(error))
            self.close(BROKEN, "")

    def stop(self) -> None:
        if not self.closed:
            self._metrics.watch_dropped("shutdown")
            self.write(self._encoder.stopping())
            self.close(GOING_AWAY, "")

    def close(self, code: int, reason: str) -> None:
        """End the connection with a close frame."""
        self._incoming.close(code, reason)
        self._flush()


def _is_utf8(message: bytes) -> bool:
    try:
        str(message, "utf-8")
    except UnicodeDecodeError:
        return False
    return True
