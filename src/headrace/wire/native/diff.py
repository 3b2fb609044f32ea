"""`POST /v0/topics/{topic}/diff`: read from a cursor, waiting for records if asked to.

The requests of a turn are read one after another, and those of them that ask for the same get the
same page, read and encoded once; so do long polls that wake together.  A diff waits only when there
is nothing at all to say: no record, no tombstone, and the cursor is at the head.  An append wakes
it, and it waits on when everything new was filtered out: that is in `wire/long_poll.py`.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Final, NamedTuple

import msgspec

from headrace.api.records import DiffBody
from headrace.core.runtime import Ticket
from headrace.core.settings import Settings
from headrace.engine.engine import Engine
from headrace.engine.reading.page import Page
from headrace.engine.reading.page_rows import ReadRequest
from headrace.engine.reading.read import check_start
from headrace.metrics.requests import Metrics
from headrace.wire.bodies import check_json_type, decode_json
from headrace.wire.exchange import ARROW_STREAM, Exchange, WholeAnswer
from headrace.wire.long_poll import LongPoll, LongPolls, says_nothing
from headrace.wire.native.answers import MILLISECONDS, SERVER_TIMING, Timing, encode
from headrace.wire.native.diff_answers import PageAnswer, tier_of
from headrace.wire.native.record_json import encode_rows
from headrace.wire.native.request_checks import check_u64
from headrace.wire.native.vocabulary import Vocabulary
from headrace.wire.response_memory import ResponseMemory

_DECODER: Final = msgspec.json.Decoder(DiffBody)
_DEFAULTS: Final = DiffBody()
# Records of pages that are kept until the turn ends, for others that ask for the same.
SHARED_BYTES_MAX: Final = 4 << 20
# Records of answers that are written together.  Few: what is written counts as memory in use,
# and so decides how large the next page may be.
TOGETHER_BYTES_MAX: Final = 64 << 10


class _Head(msgspec.Struct, frozen=True):
    """What the head of a diff says."""

    arrow: bool  # the answer is to have columns
    is_json: bool  # it says that a body is JSON; not known of one without a body
    begins: str  # the answer, up to the epoch


class _Limits(NamedTuple):
    """How much a page may have, and how much it has by default."""

    rows_max: int
    bytes_max: int
    rows: int
    bytes: int


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
        self.memory = memory
        self.polls = polls
        self.engine = engine
        self.settings = settings
        rows_max, bytes_max = settings.arrow_rows_max, settings.arrow_bytes_max
        self._arrow_limits = _Limits(rows_max, bytes_max, rows_max, bytes_max)
        self._limits = _Limits(
            settings.read_limit_max,
            settings.read_bytes_max,
            settings.read_limit_default,
            settings.read_bytes_default,
        )
        self.metrics = metrics
        self._noun = vocabulary.noun
        self._default_tags = vocabulary.default_tags
        self.now_ns = engine.runtime.clock.monotonic_ns

    def diff(self, exchange: Exchange) -> None:
        """Answer with a page."""
        self.diff_turn((exchange,))

    def diff_turn(self, exchanges: Sequence[Exchange]) -> None:
        """Answer all diffs that a turn brought, each with its page."""
        reads = _Reads(self, shares=len(exchanges) > 1)
        for exchange in exchanges:
            try:
                reads.take(exchange)
            except Exception as error:  # noqa: BLE001 - whatever it is, its client hears of it
                exchange.fail(error)
        reads.finish()

    # What was asked for

    def head_of(self, exchange: Exchange) -> _Head:
        """What the head of a request says, kept with it."""
        memo = exchange.memo
        if memo is not None:
            head = memo.get(self)
            if isinstance(head, _Head) and (head.is_json or not exchange.body):
                return head
        sends = bool(exchange.body)
        if sends:
            check_json_type(exchange)
        arrow = ARROW_STREAM in exchange.headers.get(b"accept", b"")
        name = encode(exchange.params[0]).decode()
        head = _Head(arrow, sends, f'{{"{self._noun}":{name},"epoch":')
        if memo is not None:
            memo[self] = head
        return head

    def request_of(self, body: DiffBody, arrow: bool) -> ReadRequest:
        """Return the request to the engine, within the limits of the server."""
        rows_max, bytes_max, rows, size = self._arrow_limits if arrow else self._limits
        if body.limit:
            rows = body.limit if body.limit < rows_max else rows_max
        if body.max_batch_bytes:
            size = min(check_u64("max_batch_bytes", body.max_batch_bytes), bytes_max)
        node = body.node
        nodes: tuple[str, ...] = ()
        if node is not None:
            nodes = (node,) if isinstance(node, str) else tuple(node)
        from_seq, from_ts, last, epoch = body.from_seq or 0, body.from_ts, body.last, body.epoch
        request = ReadRequest(
            from_seq and check_u64("from_seq", from_seq),
            rows,
            self.memory.fit(size),
            nodes,
            epoch and check_u64("epoch", epoch),
            from_ts and check_u64("from_ts", from_ts),
            last and check_u64("last", last),
            arrow,
        )
        if from_ts is not None or last is not None:
            check_start(request)
        return request

    # The answer

    def encode_page(self, head: _Head, body: DiffBody, page: Page) -> PageAnswer:
        """A page as JSON."""
        tags = self._default_tags if body.include_tags is None else body.include_tags
        form, recent = (tags, body.include_meta is not False), page.recent
        if recent is not None and recent.encoded_as == form:
            told_of = (
                head.begins, page.epoch, page.head_seq, page.earliest_seq, page.tombstone,
                page.cold, page.lake,
            )  # fmt: skip
            if recent.told_of == told_of:
                told = recent.told
                assert isinstance(told, PageAnswer)
                return told
            recent.told = answer = PageAnswer(head.begins, page, recent.encoded)
            recent.told_of = told_of
            return answer
        records = encode_rows(page.rows, tags=tags, metas=form[1])
        if recent is not None:
            recent.encoded_as, recent.encoded = form, records
            recent.told_of = recent.told = None
        return PageAnswer(head.begins, page, records)

    def answer_arrow(self, exchange: Exchange, page: Page, body: DiffBody) -> None:
        """Answer with a page as columns."""
        from headrace.wire.native.arrow import encode_page, size_of, when_done

        runtime = self.engine.runtime

        def answer(encoded: bytes) -> None:
            timing = Timing(exchange, runtime.clock)
            exchange.answer(200, encoded, ARROW_STREAM, (timing.header,))

        encode_it = partial(
            encode_page,
            page,
            tags=body.include_tags is not False,
            metas=body.include_meta is not False,
            headers=body.include_headers is True,
            content_type=self._content_type(page),
        )
        when_done(runtime, exchange, size_of(page), encode_it, answer)

    def _content_type(self, page: Page) -> str | None:
        """What the records of a page are, where its topic is a stream."""
        topic = self.engine.topics_by_name.get(page.topic)
        if topic is None or topic.stream is None or topic.epoch != page.epoch:
            return None
        return topic.stream.content_type


class _Shared(NamedTuple):
    """A page that others may ask for, and how large it was allowed to be."""

    page: Page
    answer: PageAnswer
    bytes_max: int


class _Reads:
    """Reads that are done together: what has been read so far, and what is to be counted."""

    __slots__ = (
        "_api", "_counts", "_ready", "_ready_bytes", "_shared", "_shared_bytes", "_shares"
    )  # fmt: skip

    def __init__(self, api: DiffApi, *, shares: bool) -> None:
        self._api = api
        self._shares = shares  # there are others that may ask for the same
        self._shared: dict[object, _Shared] = {}  # by what was asked for
        self._shared_bytes = 0
        self._ready: list[tuple[Exchange, PageAnswer]] = []  # to be answered together
        self._ready_bytes = 0
        self._counts: dict[str, list[tuple[int, int]]] = {}  # by tier: records, nanoseconds

    def take(self, exchange: Exchange) -> None:
        """Read, and answer now or later."""
        api = self._api
        head = api.head_of(exchange)
        name, sent = exchange.params[0], exchange.body
        asked = (name, sent, head.arrow)  # who sends the same to the same topic asks for the same
        if self._shared:
            shared = self.shared(asked)
            if shared is not None:
                self._send(exchange, shared.answer)
                return
        body = decode_json(sent, _DECODER) if sent else _DEFAULTS
        request = api.request_of(body, head.arrow)
        found = api.engine.consume(name, request)
        if isinstance(found, Ticket) or (body.wait_ms and says_nothing(found)):
            _Poll(api, exchange, head, body, request).take(found)
        else:
            self.answer(exchange, head, body, found, asked, request.bytes_max)

    def shared(self, asked: object) -> _Shared | None:
        """What the same was answered with, if that may still be as large."""
        shared = self._shared.get(asked)
        if shared is None or self._api.memory.fit(shared.bytes_max) < shared.bytes_max:
            return None
        return shared

    def answer(
        self,
        exchange: Exchange,
        head: _Head,
        body: DiffBody,
        page: Page,
        asked: object,
        bytes_max: int,
    ) -> None:
        """Answer with a page, and keep it for those that ask for the same."""
        api = self._api
        if head.arrow:
            api.answer_arrow(exchange, page, body)
            self._note(tier_of(page), page.count, api.now_ns() - exchange.started_ns)
            return
        shared = self._shared.get(asked)
        if shared is not None and shared.page is page:
            answer = shared.answer
        else:
            answer = api.encode_page(head, body, page)
            if self._shares:
                self._keep(asked, _Shared(page, answer, bytes_max))
        self._send(exchange, answer)

    def _keep(self, asked: object, shared: _Shared) -> None:
        self._shared_bytes += shared.answer.size
        if self._shared_bytes > SHARED_BYTES_MAX:
            self._shared.clear()
            self._shared_bytes = shared.answer.size
        self._shared[asked] = shared

    def _send(self, exchange: Exchange, answer: PageAnswer) -> None:
        """Answer soon: with others, before they are large."""
        self._ready.append((exchange, answer))
        self._ready_bytes += answer.size
        if self._ready_bytes >= TOGETHER_BYTES_MAX:
            self._send_ready()

    def _send_ready(self) -> None:
        ready, self._ready, self._ready_bytes = self._ready, [], 0
        now_ns, answers = self._api.now_ns(), list[WholeAnswer]()
        for exchange, answer in ready:
            try:
                ns = now_ns - exchange.started_ns
                total = MILLISECONDS[ns // 1_000].encode()
                answers.append((exchange, answer.body(total), b"total;dur=" + total))
                self._note(answer.tier, answer.count, ns)
            except Exception as error:  # noqa: BLE001 - whatever it is, its client hears of it
                exchange.fail(error)
        if answers:
            answers[0][0].answer_all(answers, SERVER_TIMING)

    def _note(self, tier: str, records: int, ns: int) -> None:
        counts = self._counts.get(tier)
        if counts is None:
            self._counts[tier] = [(records, ns)]
        else:
            counts.append((records, ns))

    def finish(self) -> None:
        """Answer those who still wait for it, and count all that was answered."""
        if self._ready:
            self._send_ready()
        for tier, counts in self._counts.items():
            self._api.metrics.read_all("native", tier, counts)
        self._counts.clear()


class _Poll(LongPoll):
    """A diff that was not answered at once."""

    __slots__ = ("_api", "_body", "_head", "_reads")

    def __init__(
        self, api: DiffApi, exchange: Exchange, head: _Head, body: DiffBody, request: ReadRequest
    ) -> None:
        self._api = api
        self._head = head
        self._body = body
        self._reads: _Reads | None = None  # with which it is read
        wait_ms = min(body.wait_ms or 0, api.settings.wait_ms_max)
        super().__init__(api.polls, exchange, exchange.params[0], request, wait_ms)

    @property
    def kind(self) -> object:
        return self._api

    def read_all(self, polls: Sequence[LongPoll]) -> None:
        reads = _Reads(self._api, shares=len(polls) > 1)
        for poll in polls:
            assert isinstance(poll, _Poll)
            poll._read_with(reads)
        reads.finish()

    def _read_with(self, reads: _Reads) -> None:
        """Read, or take what another that asks for the same was given."""
        self._reads = reads
        shared = reads.shared(self._asked)
        if shared is None:
            self.read()
        else:
            self.take(shared.page)
        self._reads = None

    @property
    def _asked(self) -> object:
        body = self._body
        return self._topic, self._request, body.include_tags, body.include_meta

    def answer(self, page: Page) -> None:
        reads = self._reads or _Reads(self._api, shares=False)
        bytes_max = self._request.bytes_max
        reads.answer(self._exchange, self._head, self._body, page, self._asked, bytes_max)
        if reads is not self._reads:
            reads.finish()
