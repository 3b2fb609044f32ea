"""Long polls: reads that wait for records when there is nothing to say yet.

Only this file decides when a read waits and what ends the wait: a record beyond the cursor, the end
of the topic, the deadline, a client that goes away, or a server that stops.  All long polls of a
server share one timer, and those that the same turn wakes are read together.  What is asked for
and how the answer looks is the dialect's: it subclasses `LongPoll` once for each kind of read, and
makes one where a read cannot be answered at once.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from headrace.core.errors import Throttled
from headrace.core.runtime import Ticket
from headrace.engine.engine import Engine
from headrace.engine.reading.page import Page
from headrace.engine.reading.page_rows import ReadRequest
from headrace.wire.deadlines import Deadline, Deadlines
from headrace.wire.exchange import Exchange

# Polls that are read together: the loop looks at its sockets before it goes on with more.
READ_TOGETHER_MAX: Final = 256


def says_nothing(page: Page) -> bool:
    """Whether a page gives the client nothing to act on, so that waiting makes sense."""
    return page.next_from_seq == page.head_seq and page.tombstone is None and not page.count


class LongPolls:
    """All long polls of one server, of every dialect."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self.deadlines = Deadlines(engine.runtime)
        self.draining = False
        self.waiting: set[LongPoll] = set()  # at most one for each request in progress
        self._woken: list[LongPoll] = []  # those of them that are about to be read
        self._max = engine.settings.max_long_polls

    def check_room(self) -> None:
        """Raise if no more reads may wait."""
        if 0 < self._max <= len(self.waiting):
            raise Throttled(
                f"{self._max} reads wait for records, the most allowed",
                fix="retry later, read without waiting, or raise HEADRACE_MAX_LONG_POLLS",
                detail={"limit": "max_long_polls", "max": self._max},
            )

    def drain(self) -> None:
        """End every wait now, and let no read wait from here on."""
        self.draining = True
        for poll in list(self.waiting):
            poll.end_wait()

    def wake(self, poll: LongPoll) -> None:
        """Read for a poll with the others that wake in this turn, once it ends."""
        if not self._woken:
            self.engine.runtime.soon(self._read_woken)
        self._woken.append(poll)

    def _read_woken(self) -> None:
        woken, self._woken = self._woken[:READ_TOGETHER_MAX], self._woken[READ_TOGETHER_MAX:]
        if self._woken:
            self.engine.runtime.soon(self._read_woken)
        kinds: dict[object, list[LongPoll]] = {}
        for poll in woken:
            if not poll.answered:
                kinds.setdefault(poll.kind, []).append(poll)
        for polls in kinds.values():
            polls[0].read_all(polls)


class LongPoll:
    """One read of a topic that was not answered at once: it takes a while, or waits for records."""

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
        """Whether to wait for more than this page has."""
        return says_nothing(page)

    @property
    def kind(self) -> object:
        """What polls have in common that are read together."""
        return type(self)

    def read_all(self, polls: Sequence[LongPoll]) -> None:
        """Read for polls of this kind that woke together; this is the first of them."""
        for poll in polls:
            poll.read()

    # The read

    @property
    def answered(self) -> bool:
        """Whether nobody waits for this any more."""
        return self._exchange.answered

    def read(self) -> None:
        """Read, and answer now or later."""
        try:
            found = self._polls.engine.consume(self._topic, self._request)
        except Exception as error:  # noqa: BLE001 - whatever it is, the client hears of it
            self._fail(error)
            return
        self.take(found)

    def take(self, found: Page | Ticket[Page]) -> None:
        """Go on with what was read: answer, or wait."""
        if isinstance(found, Ticket):
            found.when_done(self._read)
            return
        try:
            if self._waits_on(found):
                self._park(found)
            else:
                self._finish(found)
        except Exception as error:  # noqa: BLE001 - as in `read`
            self._fail(error)

    def _read(self, ticket: Ticket[Page]) -> None:
        if self._exchange.answered:
            return
        if ticket.error is not None:
            self._fail(ticket.error)
        else:
            self.take(ticket.result())

    def _waits_on(self, page: Page) -> bool:
        return (
            self._wait_ms > 0
            and (self._deadline is None or self._deadline.thunk is not None)
            and not self._polls.draining
            and self.is_idle(page)
        )

    def _park(self, page: Page) -> None:
        self._page = page
        if self._deadline is None:
            self._polls.check_room()
            self._deadline = self._polls.deadlines.add(self._wait_ms, self.end_wait)
            self._polls.waiting.add(self)
            self._exchange.on_abort = self._give_up
            self._exchange.let_go_body()  # it may be large, and has been read
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
            self._polls.wake(self)

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

    def _fail(self, error: BaseException) -> None:
        self._give_up()
        self._exchange.fail(error)

    def _give_up(self) -> None:
        """Leave nothing behind."""
        self._exchange.on_abort = None
        self._polls.waiting.discard(self)
        if self._deadline is not None:
            self._deadline.cancel()
        if self._waiting is not None:
            self._waiting.abandon()
            self._waiting = None
