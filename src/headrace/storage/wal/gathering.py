"""Turns that a sync is put off for, because commits that it can serve are still coming in.

Those whom one sync has answered come back within a few turns of the loop.  A sync that begins with
the first of them leaves the others to the next one, and so two groups of writers take turns for
ever.  Only this file decides how many turns are waited for: while they bring more, but never many.
"""

from __future__ import annotations

from headrace.core.runtime import Runtime, Thunk

# A request takes two turns from the kernel to the log, so one turn that brings nothing says little.
IDLE_TURNS = 2
# However many more come: the first ones have waited long enough.
TURNS_MAX = 8


class Gathering:
    """Waits for turns of the loop, then begins what it was asked for.

    >>> from headrace.core.runtime import StepRuntime
    >>> runtime = StepRuntime()
    >>> gathering = Gathering(runtime, lambda: print("begun"))
    >>> gathering.open()
    >>> runtime.step(), gathering.join(), runtime.step(), runtime.step()
    (True, None, True, True)
    >>> runtime.step()
    begun
    True
    """

    __slots__ = ("_begin", "_idle_turns", "_joined", "_opening", "_runtime", "_turns", "is_open")

    def __init__(self, runtime: Runtime, begin: Thunk) -> None:
        self.is_open = False
        self._runtime = runtime
        self._begin = begin
        self._joined = False  # something came in this turn
        self._idle_turns = 0  # in a row
        self._turns = 0
        self._opening = 0  # tells turns that were asked for before it was ended from later ones

    def open(self) -> None:
        """Wait from now on."""
        assert not self.is_open
        self._turns = self._idle_turns = 0
        self._joined = False
        self._ask()
        self.is_open = True  # after that: nobody may wait for a turn that there was no memory for

    def join(self) -> None:
        """Say that one more has come."""
        self._joined = True

    def end(self) -> None:
        """Wait no longer, and begin nothing."""
        self.is_open = False
        self._opening += 1

    def _ask(self) -> None:
        opening = self._opening
        self._runtime.soon(lambda: self._turned(opening))

    def _turned(self, opening: int) -> None:
        if opening != self._opening:
            return
        self._turns += 1
        self._idle_turns = 0 if self._joined else self._idle_turns + 1
        self._joined = False
        if self._idle_turns < IDLE_TURNS and self._turns < TURNS_MAX:
            self._ask()
            return
        self.end()
        self._begin()
