"""What an actor asked of one thing, in order, and whether what a power loss left of it is allowed.

The law it owns: what is found is the state after the first so many steps, for some number of
them.  Class `fsync` has at least all that were acknowledged; a class that does not wait for a sync
may have any number, and what it lost is announced.  An actor asks for one step at a time, so that
only the last can be without an answer.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

from tests.harness.events import Violation

# A state is whatever the actor's steps change; `None` as a reason: it is what was found.
State = dict[str, Any]
Change = Callable[[State], None]
Compare = Callable[[State], str | None]
REASONS_MAX = 2  # that a violation tells, of the first and of the last states


class History:
    """The state of one thing by the last judgement, and the steps since."""

    def __init__(self, state: State, *, lossy: bool = False) -> None:
        self.base = state
        self.lossy = lossy
        self._steps: list[Change] = []
        self._acked = 0

    def begin(self, change: Change) -> None:
        """The next step was asked for."""
        assert self._acked == len(self._steps), "one step at a time"
        self._steps.append(change)

    def done(self) -> None:
        """It was acknowledged."""
        self._acked = len(self._steps)

    def undone(self) -> None:
        """It was refused, and has changed nothing."""
        self._steps.pop()

    @property
    def pending(self) -> bool:
        """Whether the last step has no answer."""
        return self._acked < len(self._steps)

    def judge(self, compare: Compare) -> int:
        """Raise a `Violation` unless some state fits; it is the base from then on.

        Returns how many steps are lost.
        """
        least = 0 if self.lossy else self._acked
        state = copy.deepcopy(self.base)
        reasons, fitting = [], None
        for count in range(len(self._steps) + 1):
            if count >= least:
                reason = compare(state)
                if reason is None:
                    fitting = count
                else:
                    reasons.append(f"after {count} of {len(self._steps)} steps: {reason}")
            if count < len(self._steps):
                self._steps[count](state)
        if fitting is None:
            some = dict.fromkeys(reasons[:REASONS_MAX] + reasons[-REASONS_MAX:])
            raise Violation("; ".join(some))
        for change in self._steps[:fitting]:
            change(self.base)
        lost = max(0, self._acked - fitting)
        self._steps, self._acked = [], 0
        return lost
