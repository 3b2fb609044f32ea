"""What the head of an append says that is the same for all requests that have such a head.

Values that differ from request to request (a producer's numbers, `Stream-Seq`, a wanted offset) are
not in it: only whether they are there.
"""

from __future__ import annotations

from typing import Final

from headrace.engine.appending.admission import Append
from headrace.engine.streams.spec import StreamWrite
from headrace.wire.durable_streams.paths import stream_name
from headrace.wire.durable_streams.request_headers import (
    closes,
    content_type_of,
    refuse_condition,
)
from headrace.wire.exchange import Exchange
from headrace.wire.producer_headers import PRODUCER_HEADERS
from headrace.wire.routes import PathRest

_PRODUCER: Final = frozenset(PRODUCER_HEADERS)
_CONDITIONS: Final = frozenset((b"if-match", b"stream-expected-offset", b"stream-seq"))


class AppendHead:
    """An append, as far as its head tells."""

    __slots__ = (
        "closes", "conditional", "how", "is_json", "media_type", "name", "numbered", "write",
    )  # fmt: skip

    def __init__(self, exchange: Exchange) -> None:
        (path,) = exchange.params
        assert isinstance(path, PathRest)
        headers = exchange.headers
        content_type = content_type_of(headers)
        refuse_condition(headers, "If-None-Match")
        self.name = stream_name(path)
        self.media_type = None if content_type is None else content_type.media_type
        self.is_json = content_type is not None and content_type.is_json
        self.closes = closes(headers)
        # What each request says of its own: its producer's numbers; anything else.
        self.numbered = not _PRODUCER.isdisjoint(headers)
        self.conditional = not _CONDITIONS.isdisjoint(headers)
        self.write = StreamWrite(self.media_type, None, self.closes)
        self.how = Append(create=False, stream=self.write)  # of most appends
