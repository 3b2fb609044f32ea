"""A WebSocket of any dialect: a live stream that also takes messages.

Only this file connects `websocket_frames.py` to a live stream: messages go to the dialect, pings
are the heartbeats, and a connection ends with the closing handshake.  A client that sends messages
and reads no answers is closed, and so is one that leaves a message unfinished, or answers no ping
for as long as a connection may rest, or whose message has no room beside those of others
(`request_memory.py`).  What a message means is the dialect's business; its encoder returns whole
frames (`text_frame`).
"""

from __future__ import annotations

from typing import Final

from headrace.core.errors import OutOfResources
from headrace.core.pace import Pace
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
_NEVER: Final = -1


class WebSocketStream(LiveStream[ViewT]):
    """One connection."""

    __slots__ = ("_counted_bytes", "_incoming", "_pace", "_pinged_ms", "_replies_unread")
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
        self._pace = Pace()  # of a message that has begun, as visits see it
        self._pinged_ms = _NEVER  # when the first ping was sent since anything came
        self._counted_bytes = 0  # of a message in part, that count as memory of requests
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
        self._pinged_ms = _NEVER
        try:
            messages = self._incoming.feed(data)
        except MemoryError:
            self.fail(OutOfResources.told("nothing"))
            return
        if self._incoming.out_of_memory:
            # Before the close, which the protocol has begun.
            super().write(self._encoder.error(OutOfResources.told("nothing")))
        self._count_arriving(self._incoming.message_bytes)
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
        memory, more = self._streams.request_memory, counted - self._counted_bytes
        if more <= 0:
            memory.give(-more)
        elif not memory.take(more):
            self._metrics.rejected("request_memory")
            self.write(self._encoder.error(no_memory(memory.limit)))
            self.close(TRY_LATER, "too many large messages arrive at once")
            return
        self._counted_bytes = counted

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
        if self._pinged_ms == _NEVER:
            self._pinged_ms = self._hub.turns.started_ms
        self._incoming.ping()
        self._flush()

    # Time

    def visit(self, now_ms: int) -> int | None:
        next_ms = super().visit(now_ms)
        if next_ms is not None:
            self._look_at_message(now_ms)
        if self.closed:
            return None
        settings, pinged_ms = self._streams.settings, self._pinged_ms
        if pinged_ms != _NEVER and now_ms - pinged_ms > settings.idle_timeout_ms:
            self._metrics.rejected("ping_timeout")
            self.close(TOO_SLOW, "no ping was answered")
            return None
        return next_ms

    def _look_at_message(self, now_ms: int) -> None:
        """Close the connection if a message does not go on, or goes on too slowly."""
        incoming, settings = self._incoming, self._streams.settings
        if not incoming.in_message or not self._outlet.room:  # or the client is not read from
            self._pace.rest()
            return
        late = self._pace.look(
            incoming.cut_messages,
            incoming.message_bytes,
            now_ms,
            settings.body_timeout_ms,
            settings.body_bytes_per_second_min,
        )
        if late:
            self._metrics.rejected(f"message_{late}")
            self.close(TOO_SLOW, "a message did not arrive in time")

    # The end

    def ended(self) -> None:
        self._streams.request_memory.give(self._counted_bytes)
        self._counted_bytes = 0
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
