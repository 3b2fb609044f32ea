"""What a WebSocket is told that is no answer to a command, as frames.

Only this file wraps the messages of `live_json.py` for a WebSocket.
"""

from __future__ import annotations

from typing import Final

from headrace.engine.live.follower import Subscription
from headrace.engine.live.pages import SharedPage
from headrace.wire.live_stream import StreamEncoder
from headrace.wire.native import live_json
from headrace.wire.native.live_json import View
from headrace.wire.native.vocabulary import TOPICS
from headrace.wire.websocket_frames import text_frame

_ERROR: Final = b'{"op":"error","request_id":null,'


class WebSocketMessages(StreamEncoder[View]):
    """What a WebSocket is told that is no answer to a command, as frames."""

    __slots__ = ()
    dialect = "native"

    def page(self, subscription: Subscription[View], shared: SharedPage) -> bytes:
        key = (subscription.view, "websocket")
        data = shared.encoded.get(key)
        if data is None:
            messages = live_json.messages_of(
                shared.page, subscription.view, subscription.position.cursor
            )
            parts = (
                (b'{"op":"tombstone",', messages.tombstone),
                (b'{"op":"record",', messages.record),
                (b'{"op":"caught_up",', messages.caught_up),
            )
            data = b"".join(text_frame(start + rest) for start, rest in parts if rest)
            shared.encoded[key] = data
        assert isinstance(data, bytes)
        return data

    def gone(self, subscription: Subscription[View], head_seq: int) -> bytes:
        message = live_json.deleted_message(subscription.position.name, 0, TOPICS)
        return text_frame(b'{"op":"topic_deleted",' + message)

    def delayed(self, subscription: Subscription[View], ms_max: int) -> bytes:
        return text_frame(
            _ERROR + live_json.delayed_message(subscription.position.name, ms_max, TOPICS)
        )

    def topic_failed(
        self, subscription: Subscription[View], error: BaseException, retry_ms: int
    ) -> bytes:
        position = subscription.position
        message = live_json.failed_message(position.name, position.cursor, error, retry_ms, TOPICS)
        return text_frame(_ERROR + message)

    def error(self, error: BaseException) -> bytes:
        return text_frame(_ERROR + live_json.error_message(error, TOPICS))

    def stopping(self) -> bytes:
        return text_frame(_ERROR + live_json.STOPPING)
