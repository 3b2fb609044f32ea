"""Appends that messages bring, not requests: the engine gets those of a turn together.

Only this file decides which of them go together: those that came since the last turn ended, of all
connections, in the order in which they came, at most `turn_requests_max` of them and about
`TURN_BYTES_MAX` of messages.  Requests have a turn of their own (`server/turn.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

from headrace.core.settings import Settings
from headrace.engine.appending.pending_append import Answered, PendingAppend
from headrace.engine.engine import Engine

# Messages whose appends wait for the end of their turn.
TURN_BYTES_MAX: Final = 1 << 20

# Hears of appends that were handed over and may not all be answered, and of what went wrong.
Failed = Callable[[Sequence[PendingAppend], Exception], None]


class TurnAppends:
    """The appends of one kind of message that wait for the end of the turn."""

    __slots__ = (
        "_answered", "_asked", "_bytes", "_engine", "_failed", "_requests_max", "_runtime",
        "_waiting",
    )  # fmt: skip

    def __init__(
        self, engine: Engine, settings: Settings, answered: Answered, failed: Failed
    ) -> None:
        self._engine = engine
        self._runtime = engine.runtime
        self._requests_max = settings.turn_requests_max
        self._answered = answered
        self._failed = failed
        self._waiting: list[PendingAppend] = []
        self._bytes = 0
        self._asked = False  # the end of the turn will run it

    def __len__(self) -> int:
        """How many appends wait for the end of the turn."""
        return len(self._waiting)

    def add(self, pending: PendingAppend, size: int) -> None:
        """Append with the others when the turn ends; `size` is how long the message was."""
        if not self._asked and self._requests_max > 1:
            self._runtime.soon(self.run)
            self._asked = True
        self._waiting.append(pending)
        self._bytes += size
        if len(self._waiting) >= self._requests_max or self._bytes >= TURN_BYTES_MAX:
            self._hand_over()

    def run(self) -> None:
        """Hand over what has come: the turn ends."""
        self._asked = False  # first of all: whatever fails now, the next append asks again
        self._hand_over()

    def _hand_over(self) -> None:
        if not self._waiting:
            return
        appends, self._waiting = self._waiting, []
        self._bytes = 0
        try:
            self._engine.append_all(appends, self._answered, ends_turn=True)
        except Exception as error:  # noqa: BLE001 - whatever it is, the clients hear of it
            self._failed(appends, error)
