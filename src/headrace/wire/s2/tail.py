"""`GET /v1/streams/{stream}/records/tail`: where a stream ends."""

from __future__ import annotations

from headrace.wire.exchange import Exchange
from headrace.wire.s2.catalog.streams import OpenStream
from headrace.wire.s2.data_requests import DataRequests, tail_of


class TailApi:
    """Looks at the ends of streams."""

    def __init__(self, data: DataRequests) -> None:
        self._data = data

    def check(self, exchange: Exchange) -> None:
        """Answer with the seq_num of the next record, and the timestamp of the last one."""
        target = self._data.target(exchange)
        target.caller.allow("check-tail", target.basin, target.stream)

        def answer(opened: OpenStream) -> None:
            seq_num, timestamp = tail_of(opened)
            body = b'{"tail":{"seq_num":%d,"timestamp":%d}}' % (seq_num, timestamp)
            exchange.answer(200, body)

        self._data.open(exchange, "read", target, answer, configured=False)
