"""A long poll of a stream at its tail: it waits for an append, the close, or its time to end."""

from __future__ import annotations

from typing import TYPE_CHECKING

from headrace.core.errors import TopicNotFound
from headrace.engine.reading.page import Page
from headrace.engine.reading.page_rows import ReadRequest
from headrace.engine.streams.operations import StreamInfo
from headrace.wire.durable_streams.read_query import ReadQuery
from headrace.wire.exchange import Exchange
from headrace.wire.long_poll import LongPoll, says_nothing

if TYPE_CHECKING:
    from headrace.wire.durable_streams.reads import Reads


class StreamPoll(LongPoll):
    """One read that waits."""

    __slots__ = ("_after", "_asked", "_info", "_reads")

    def __init__(
        self,
        reads: Reads,
        exchange: Exchange,
        info: StreamInfo,
        asked: ReadQuery,
        request: ReadRequest,
    ) -> None:
        super().__init__(reads.polls, exchange, info.name, request, reads.long_poll_ms)
        self._reads = reads
        self._info = info
        self._asked = asked
        self._after = request.from_seq

    def is_idle(self, page: Page) -> bool:
        return says_nothing(page) and not self._reads.still(self._info).state.closed

    def _fail(self, error: BaseException) -> None:
        if isinstance(error, TopicNotFound):
            error = self._reads.why_gone(self._info) or error
        super()._fail(error)

    def answer(self, page: Page) -> None:
        exchange, reads, info = self._exchange, self._reads, self._info
        try:
            if says_nothing(page):
                reads.answer_idle(exchange, reads.still(info), self._asked)
            else:
                reads.answer_page(exchange, info, self._asked, self._after, page)
        except Exception as error:  # noqa: BLE001 - whatever it is, the client hears of it
            exchange.fail(error)
