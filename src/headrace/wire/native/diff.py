"""`POST /v0/topics/{topic}/diff`: read from a cursor, waiting for records if asked to.

A diff waits only when there is nothing at all to say: no record, no tombstone, and the cursor is at
the head.  An append wakes it, and it waits on when everything new was filtered out; the waiting is
that of `wire/long_poll.py`.
"""

from __future__ import annotations

from functools import partial
from typing import Final

import msgspec

from headrace.api.records import DiffBody
from headrace.core.errors import InvalidRequest
from headrace.core.settings import Settings
from headrace.engine.engine import Engine
from headrace.engine.reading.page import Page, Tombstone
from headrace.engine.reading.page_rows import ReadRequest
from headrace.metrics.requests import Metrics
from headrace.wire.bodies import decode
from headrace.wire.exchange import ARROW_STREAM, JSON, Exchange
from headrace.wire.long_poll import LongPoll, LongPolls
from headrace.wire.native.answers import Timing, encode
from headrace.wire.native.record_json import encode_rows
from headrace.wire.native.request_checks import check_u64
from headrace.wire.native.vocabulary import Vocabulary
from headrace.wire.response_memory import ResponseMemory

_DECODER: Final = msgspec.json.Decoder(DiffBody)
_DEFAULTS: Final = DiffBody()


class DiffApi:
    """Reads in one vocabulary."""

    def __init__(
        self,
        engine: Engine,
        settings: Settings,
        metrics: Metrics,
        memory: ResponseMemory,
        polls: LongPolls,
        vocabulary: Vocabulary,
    ) -> None:
        self._memory = memory
        self.polls = polls
        self.engine = engine
        self.settings = settings
        self.metrics = metrics
        self.vocabulary = vocabulary

    def diff(self, exchange: Exchange) -> None:
        """Answer with a page."""
        body = decode(exchange, _DECODER) if exchange.body else _DEFAULTS
        arrow = ARROW_STREAM in exchange.headers.get(b"accept", b"")
        _Poll(self, exchange, body, arrow).read()

    def request_of(self, body: DiffBody, arrow: bool) -> ReadRequest:
        """Return the request to the engine, within the limits of the server."""
        settings = self.settings
        rows_max = settings.arrow_rows_max if arrow else settings.read_limit_max
        bytes_max = settings.arrow_bytes_max if arrow else settings.read_bytes_max
        limit_default = rows_max if arrow else settings.read_limit_default
        bytes_default = bytes_max if arrow else settings.read_bytes_default
        node = body.node
        nodes: tuple[str, ...] = ()
        if node is not None:
            nodes = (node,) if isinstance(node, str) else tuple(node)
        return ReadRequest(
            check_u64("from_seq", body.from_seq) or 0,
            min(body.limit or limit_default, rows_max),
            self._memory.fit(
                min(check_u64("max_batch_bytes", body.max_batch_bytes) or bytes_default, bytes_max)
            ),
            nodes,
            check_u64("epoch", body.epoch),
            check_u64("from_ts", body.from_ts),
            check_u64("last", body.last),
            columns=arrow,
        )

    def answer(self, exchange: Exchange, page: Page, body: DiffBody, arrow: bool) -> None:
        """Answer with what was read."""
        clock = self.engine.runtime.clock
        if arrow:
            self._answer_arrow(exchange, page, body)
        else:
            tags = body.include_tags
            records = encode_rows(
                page.rows,
                tags=self.vocabulary.default_tags if tags is None else tags,
                metas=body.include_meta is not False,
            )
            timing = Timing(exchange, clock)
            more = f',"records_scanned":{page.scanned}'
            if page.cold:
                more += f',"cold_segments_read":{page.cold}'
            if page.lake:
                more += f',"lake_records_read":{page.lake}'
            body_bytes = self._object(page, records, timing.close(more))
            exchange.answer(200, body_bytes, JSON, (timing.header,))
        ns = clock.monotonic_ns() - exchange.started_ns
        tier = "lake" if page.lake else "cold" if page.cold else "hot"
        self.metrics.read("native", page.count, ns, tier)

    def _answer_arrow(self, exchange: Exchange, page: Page, body: DiffBody) -> None:
        from headrace.wire.native.arrow import encode_page, size_of, when_done

        runtime = self.engine.runtime
        tags, metas = body.include_tags is not False, body.include_meta is not False

        def answer(encoded: bytes) -> None:
            timing = Timing(exchange, runtime.clock)
            exchange.answer(200, encoded, ARROW_STREAM, (timing.header,))

        encode_it = partial(encode_page, page, tags=tags, metas=metas)
        when_done(runtime, exchange, size_of(page), encode_it, answer)

    def _object(self, page: Page, records: bytes, performance: bytes) -> bytes:
        """Return the answer, joined once: each copy of a page costs as much as reading it."""
        name = encode(page.topic).decode()
        caught_up = "true" if page.caught_up else "false"
        before = f'{{"{self.vocabulary.noun}":{name},"epoch":{page.epoch},"records":'
        after = (
            f',"next_from_seq":{page.next_from_seq},"head_seq":{page.head_seq},'
            f'"earliest_seq":{page.earliest_seq},"caught_up":{caught_up},'
            f'"tombstone":{_tombstone(page.tombstone)},"lag":{page.lag},"performance":'
        )
        return b"".join((before.encode(), records, after.encode(), performance, b"}"))


def _tombstone(lost: Tombstone | None) -> str:
    if lost is None:
        return "null"
    return (
        f'{{"gap_from":{lost.gap_from},"gap_to":{lost.gap_to},"reason":"{lost.reason}",'
        f'"missed_estimate":{lost.missed_estimate},"earliest_seq":{lost.earliest_seq},'
        f'"head_seq":{lost.head_seq}}}'
    )


class _Poll(LongPoll):
    """One diff, from its first read to its answer."""

    __slots__ = ("_api", "_arrow", "_body")

    def __init__(self, api: DiffApi, exchange: Exchange, body: DiffBody, arrow: bool) -> None:
        if body.from_seq and (body.from_ts is not None or body.last is not None):
            raise InvalidRequest("more than one start", fix="send from_seq, from_ts or last")
        self._api = api
        self._body = body
        self._arrow = arrow
        wait_ms = min(body.wait_ms or 0, api.settings.wait_ms_max)
        request = api.request_of(body, arrow)
        super().__init__(api.polls, exchange, exchange.params[0], request, wait_ms)

    def answer(self, page: Page) -> None:
        self._api.answer(self._exchange, page, self._body, self._arrow)
