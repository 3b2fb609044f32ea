"""`POST /v0/topics/{topic}/diff`: read from a cursor, waiting for records if asked to.

A long poll parks only when there is nothing at all to say: no record, no tombstone, and the cursor
is at the head.  It is woken by an append, and waits on when everything new was filtered out.
"""

from __future__ import annotations

from functools import partial
from typing import Final

import msgspec

from headrace.core.errors import InvalidRequest
from headrace.core.runtime import Ticket
from headrace.core.settings import Settings
from headrace.engine.collect import ReadRequest
from headrace.engine.engine import Engine
from headrace.engine.reading import Page, Tombstone
from headrace.wire.deadlines import Deadline, Deadlines
from headrace.wire.exchange import ARROW_STREAM, JSON, Exchange
from headrace.wire.metrics import Metrics
from headrace.wire.native import Timing, Vocabulary, check_u64, decode, encode
from headrace.wire.native_types import DiffBody
from headrace.wire.pressure import ResponseMemory
from headrace.wire.record_json import encode_rows

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
        vocabulary: Vocabulary,
    ) -> None:
        self._memory = memory
        self.engine = engine
        self.settings = settings
        self.metrics = metrics
        self.vocabulary = vocabulary
        self.deadlines = Deadlines(engine.runtime)
        self.draining = False
        self.waiting: set[_Poll] = set()  # for records; at most one for each request in progress

    def diff(self, exchange: Exchange) -> None:
        """Answer with a page."""
        body = decode(exchange, _DECODER) if exchange.body else _DEFAULTS
        arrow = ARROW_STREAM in exchange.headers.get(b"accept", b"")
        _Poll(self, exchange, body, arrow).read()

    def drain(self) -> None:
        """Let nobody wait any longer, also not those who read just now."""
        self.draining = True
        for poll in list(self.waiting):
            poll.end_wait()

    def request_of(self, body: DiffBody, arrow: bool) -> ReadRequest:
        """What the engine is asked for, within the limits of the server."""
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
        from headrace.wire.native_arrow import encode_page, size_of, when_done

        runtime = self.engine.runtime
        tags, metas = body.include_tags is not False, body.include_meta is not False

        def answer(encoded: bytes) -> None:
            timing = Timing(exchange, runtime.clock)
            exchange.answer(200, encoded, ARROW_STREAM, (timing.header,))

        encode_it = partial(encode_page, page, tags=tags, metas=metas)
        when_done(runtime, exchange, size_of(page), encode_it, answer)

    def _object(self, page: Page, records: bytes, performance: bytes) -> bytes:
        """The answer, put together once: each copy of a page costs as much as reading it."""
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


class _Poll:
    """One diff, from its first read to its answer."""

    __slots__ = (
        "_api",
        "_arrow",
        "_body",
        "_deadline",
        "_exchange",
        "_page",
        "_request",
        "_waiting",
    )

    def __init__(self, api: DiffApi, exchange: Exchange, body: DiffBody, arrow: bool) -> None:
        if body.from_seq and (body.from_ts is not None or body.last is not None):
            raise InvalidRequest("more than one start", fix="send from_seq, from_ts or last")
        self._api = api
        self._exchange = exchange
        self._body = body
        self._arrow = arrow
        self._request = api.request_of(body, arrow)
        self._deadline: Deadline | None = None
        self._waiting: Ticket[None] | None = None
        self._page: Page | None = None

    def read(self) -> None:
        engine = self._api.engine
        name = self._exchange.params[0]
        ticket = engine.read_page(name, self._request)
        ticket.when_done(self._read)

    def _read(self, ticket: Ticket[Page]) -> None:
        exchange = self._exchange
        if exchange.answered:
            return
        try:
            if ticket.error is not None:
                self._give_up()
                exchange.fail(ticket.error)
                return
            page = ticket.result()
            self._api.engine.touch(page.topic)
            wait_ms = min(self._body.wait_ms or 0, self._api.settings.wait_ms_max)
            idle = not page.count and page.tombstone is None and page.caught_up
            idle = idle and not self._api.draining
            if wait_ms and idle and (self._deadline is None or self._deadline.thunk is not None):
                self._park(page, wait_ms)
            else:
                self._finish(page)
        except Exception as error:  # noqa: BLE001 - whatever it is, the client hears of it
            self._give_up()
            exchange.fail(error)

    def _park(self, page: Page, wait_ms: int) -> None:
        self._page = page
        if self._deadline is None:
            self._deadline = self._api.deadlines.add(wait_ms, self.end_wait)
            self._api.waiting.add(self)
            self._exchange.on_abort = self._give_up
            self._exchange.body = b""  # it may be large, and has been read
        # The cursor moves past what was left out, so that it is not looked at again.
        # A time that is yet to come stays what is waited for.
        if self._request.from_ts is None:
            self._request = self._request._replace(
                from_seq=page.next_from_seq, last=None, epoch=page.epoch
            )
        self._waiting = self._api.engine.wait(page.topic, page.next_from_seq)
        self._waiting.when_done(self._woken)

    def _woken(self, _ticket: Ticket[None]) -> None:
        self._waiting = None
        if not self._exchange.answered:
            self.read()

    def end_wait(self) -> None:
        """Answer with what there is."""
        assert self._page is not None
        if self._waiting is None:
            return  # a read is under way, and will find that its time is over
        self._finish(self._page)

    def _finish(self, page: Page) -> None:
        self._give_up()
        if not self._exchange.answered:
            self._api.answer(self._exchange, page, self._body, self._arrow)

    def _give_up(self) -> None:
        """Leave nothing behind."""
        self._exchange.on_abort = None
        self._api.waiting.discard(self)
        if self._deadline is not None:
            self._deadline.cancel()
        if self._waiting is not None:
            self._waiting.abandon()
            self._waiting = None
