"""Long polls: reads that wait for records when there is nothing to say yet.

Only this file decides when a read waits and what ends the wait: a record beyond the cursor, the end
of the topic, the deadline, a client that goes away, or a server that stops.  All long polls of a
server share one timer.  What is asked for and how the answer looks is the dialect's: it subclasses
`LongPoll` once for each kind of read.
"""

from __future__ import annotations

from headrace.core.runtime import Ticket
from headrace.engine.engine import Engine
from headrace.engine.reading.page import Page
from headrace.engine.reading.page_rows import ReadRequest
from headrace.wire.deadlines import Deadline, Deadlines
from headrace.wire.exchange import Exchange


class LongPolls:
    """All long polls of one server, of every dialect."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self.deadlines = Deadlines(engine.runtime)
        self.draining = False
        self.waiting: set[LongPoll] = set()  # at most one for each request in progress

    def drain(self) -> None:
        """End every wait now, and let no read wait from here on."""
        self.draining = True
        for poll in list(self.waiting):
            poll.end_wait()


class LongPoll:
    """One read of a topic, from the first page that is looked at to the answer."""

    __slots__ = (
        "_deadline",
        "_exchange",
        "_page",
        "_polls",
        "_request",
        "_topic",
        "_wait_ms",
        "_waiting",
    )

    def __init__(
        self, polls: LongPolls, exchange: Exchange, topic: str, request: ReadRequest, wait_ms: int
    ) -> None:
        self._polls = polls
        self._exchange = exchange
        self._topic = topic
        self._request = request
        self._wait_ms = wait_ms  # 0: answer at once
        self._deadline: Deadline | None = None
        self._waiting: Ticket[None] | None = None
        self._page: Page | None = None

    # What the dialect says

    def answer(self, page: Page) -> None:
        """Answer the exchange with a page, which is empty when the wait was in vain."""
        raise NotImplementedError

    def is_idle(self, page: Page) -> bool:
        """Whether a page gives the client nothing to act on, so that waiting makes sense."""
        return not page.count and page.tombstone is None and page.caught_up

    # The read

    def read(self) -> None:
        """Read, and answer now or later."""
        self._polls.engine.read_page(self._topic, self._request).when_done(self._read)

    def _read(self, ticket: Ticket[Page]) -> None:
        exchange = self._exchange
        if exchange.answered:
            return
        try:
            if ticket.error is not None:
                self._give_up()
                exchange.fail(ticket.error)
                return
            page, polls = ticket.result(), self._polls
            polls.engine.touch(page.topic)
            if (
                self._wait_ms
                and (self._deadline is None or self._deadline.thunk is not None)
                and not polls.draining
                and self.is_idle(page)
            ):
                self._park(page)
            else:
                self._finish(page)
        except Exception as error:  # noqa: BLE001 - whatever it is, the client hears of it
            self._give_up()
            exchange.fail(error)

    def _park(self, page: Page) -> None:
        self._page = page
        if self._deadline is None:
            self._deadline = self._polls.deadlines.add(self._wait_ms, self.end_wait)
            self._polls.waiting.add(self)
            self._exchange.on_abort = self._give_up
            self._exchange.body = b""  # it may be large, and has been read
        # The cursor moves past what was left out, so that it is not looked at again.
        # A time that is yet to come stays what is waited for.
        if self._request.from_ts is None:
            self._request = self._request._replace(
                from_seq=page.next_from_seq, last=None, epoch=page.epoch
            )
        self._waiting = self._polls.engine.wait(page.topic, page.next_from_seq)
        self._waiting.when_done(self._woken)

    def _woken(self, _ticket: Ticket[None]) -> None:
        self._waiting = None
        if not self._exchange.answered:
            self.read()

    def end_wait(self) -> None:
        """Answer with the page that made it wait."""
        assert self._page is not None
        if self._waiting is None:
            return  # a read is under way, and will find that its time is over
        self._finish(self._page)

    def _finish(self, page: Page) -> None:
        self._give_up()
        if not self._exchange.answered:
            self.answer(page)

    def _give_up(self) -> None:
        """Leave nothing behind."""
        self._exchange.on_abort = None
        self._polls.waiting.discard(self)
        if self._deadline is not None:
            self._deadline.cancel()
        if self._waiting is not None:
            self._waiting.abandon()
            self._waiting = None
