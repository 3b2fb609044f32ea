"""How much more memory a server has than at first, and how much more it may have."""

from __future__ import annotations

import time

import pytest

from headrace.testing.process import ServerProcess
from tests.support.processes import resident_bytes

GROWTH_KIB_MAX = 64 << 10
# What a rush of large bodies leaves in the heap is given back within some ticks of the server.
REST_SECONDS_MAX = 15
LOOK_SECONDS = 0.1
# Requests of each kind: enough for the default suite to notice a body that stays, and enough to
# notice one of which a part stays.
FEW = 30
MANY = 250
COUNTS = [FEW, pytest.param(MANY, marks=[pytest.mark.slow, pytest.mark.timeout(900)])]


class Growth:
    """The growth after each kind of request.

    All of them count: the server may happen to collect in between.
    """

    def __init__(self, server: ServerProcess) -> None:
        self._pid = server.process.pid
        self._first = resident_bytes(self._pid)
        self._grown: dict[str, int] = {}

    def _now(self) -> int:
        return (resident_bytes(self._pid) - self._first) >> 10

    def look(self, name: str) -> None:
        """Note how much it is now."""
        self._grown[name] = self._now()

    def look_at_rest(self, name: str) -> None:
        """Note how much it is when the server has had time to give back what it can."""
        deadline = time.monotonic() + REST_SECONDS_MAX
        while self._now() >= GROWTH_KIB_MAX and time.monotonic() < deadline:
            time.sleep(LOOK_SECONDS)
        self.look(name)

    def check(self) -> None:
        assert max(self._grown.values()) < GROWTH_KIB_MAX, self._grown
