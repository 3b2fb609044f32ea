"""Long polls as a dialect of its own uses them: what ends a wait, and that nothing stays behind."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from headrace.core.clock import ManualClock
from headrace.core.errors import HeadraceError
from headrace.engine.reading.page import Page
from headrace.engine.reading.page_rows import ReadRequest
from headrace.storage.block import Batch
from headrace.wire.dialect import Dialect
from headrace.wire.exchange import Exchange, Reply
from headrace.wire.long_poll import LongPoll, LongPolls
from headrace.wire.routes import Route
from tests.support.exchanges import AnsweredExchange
from tests.support.live_readers import Live

WAIT_MS = 1_000


class Plain(Dialect):
    """Errors as their code alone."""

    name = "plain"

    def failure(self, error: HeadraceError, exchange: Exchange) -> Reply:
        return error.status, error.code.encode(), b"text/plain", ()


class CountPoll(LongPoll):
    """Answers with how many records there are, and where to go on."""

    __slots__ = ()

    def answer(self, page: Page) -> None:
        text = f"{page.count} {page.next_from_seq}".encode()
        self._exchange.answer(200 if page.count else 204, text)


class EagerPoll(CountPoll):
    """Never waits for more than it knows already."""

    __slots__ = ()

    def is_idle(self, page: Page) -> bool:
        return False


@pytest.fixture
def polls(live: Live) -> Iterator[LongPolls]:
    live.append("orders", 1)
    polls = LongPolls(live.engine)
    yield polls
    assert not polls.waiting


def poll(
    polls: LongPolls,
    clock: ManualClock,
    kind: type[CountPoll] = CountPoll,
    topic: str = "orders",
    request: ReadRequest | None = None,
    wait_ms: int = WAIT_MS,
) -> AnsweredExchange:
    exchange = AnsweredExchange("GET", "/count", "", {}, clock.monotonic_ns())
    exchange.route = Route("GET", "/count", print)._replace(dialect=Plain())
    exchange.body = b"a large one"
    kind(polls, exchange, topic, request or ReadRequest(from_seq=1), wait_ms).read()
    return exchange


def said(exchange: AnsweredExchange) -> tuple[int, bytes]:
    return exchange.status, exchange.reply


def test_what_is_there_is_answered_at_once(
    live: Live, polls: LongPolls, clock: ManualClock
) -> None:
    exchange = poll(polls, clock, request=ReadRequest())
    live.run()
    assert said(exchange) == (200, b"1 1")


def test_no_wait_is_no_wait(live: Live, polls: LongPolls, clock: ManualClock) -> None:
    exchange = poll(polls, clock, wait_ms=0)
    live.run()
    assert said(exchange) == (204, b"0 1")


def test_a_dialect_may_say_that_there_is_something_to_tell(
    live: Live, polls: LongPolls, clock: ManualClock
) -> None:
    exchange = poll(polls, clock, EagerPoll)
    live.run()
    assert said(exchange) == (204, b"0 1")


def test_a_record_ends_the_wait(live: Live, polls: LongPolls, clock: ManualClock) -> None:
    exchange = poll(polls, clock)
    live.run()
    assert polls.waiting
    assert exchange.body == b""  # nothing needs it while it waits
    live.append("orders", 2)
    live.run()
    assert said(exchange) == (200, b"1 2")


def test_what_is_filtered_out_does_not_end_the_wait_and_is_not_read_again(
    live: Live, polls: LongPolls, clock: ManualClock
) -> None:
    exchange = poll(polls, clock, request=ReadRequest(from_seq=1, nodes=("own",)))
    live.run()
    live.engine.append("orders", Batch([b"2"], nodes="own")).result()
    live.run()
    assert not exchange.answered
    live.wait(WAIT_MS + 10)
    assert said(exchange) == (204, b"0 2")


def test_the_deadline_ends_the_wait_and_is_not_early(
    live: Live, polls: LongPolls, clock: ManualClock
) -> None:
    short, long = poll(polls, clock, wait_ms=100), poll(polls, clock, wait_ms=500)
    live.wait(90)
    assert not short.answered
    live.wait(30)
    assert said(short) == (204, b"0 1")
    assert not long.answered
    live.wait(400)
    assert said(long) == (204, b"0 1")


def test_the_end_of_the_topic_ends_the_wait(
    live: Live, polls: LongPolls, clock: ManualClock
) -> None:
    exchange = poll(polls, clock)
    live.run()
    live.engine.delete_topic("orders").result()
    live.run()
    assert said(exchange) == (404, b"topic_not_found")


def test_no_such_topic_is_the_dialects_own_error(
    live: Live, polls: LongPolls, clock: ManualClock
) -> None:
    exchange = poll(polls, clock, topic="nowhere")
    live.run()
    assert said(exchange) == (404, b"topic_not_found")


def test_a_client_that_goes_away_leaves_nothing(
    live: Live, polls: LongPolls, clock: ManualClock
) -> None:
    exchange = poll(polls, clock)
    live.run()
    assert exchange.on_abort is not None
    exchange.answered = True  # as a transport does
    exchange.on_abort()
    assert not polls.waiting
    live.append("orders", 2)
    live.wait(WAIT_MS + 10)
    assert exchange.status == 0


def test_a_stop_ends_every_wait_of_every_dialect(
    live: Live, polls: LongPolls, clock: ManualClock
) -> None:
    waiting = [poll(polls, clock), poll(polls, clock, topic="orders")]
    live.run()
    polls.drain()
    assert [said(exchange) for exchange in waiting] == [(204, b"0 1")] * 2
    late = poll(polls, clock)
    live.run()
    assert said(late) == (204, b"0 1")
